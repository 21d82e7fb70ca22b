//! Looks for an MPI library, and says in one sentence which packages are missing.

mod tools;

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

/// An MPI library, with the fields that rsmpi reads.
#[derive(Clone, Debug)]
pub struct Library {
    /// A compiler for MPI programs.
    pub mpicc: Option<String>,
    /// Names of the libraries to link.
    pub libs: Vec<String>,
    /// Directories of the libraries.
    pub lib_paths: Vec<PathBuf>,
    /// Directories of the headers.
    pub include_paths: Vec<PathBuf>,
    /// Version of the library.
    pub version: String,
}

/// Looks for the MPI library: MPI_PKG_CONFIG, CRAY_MPICH_DIR, MPICC or `mpicc`, and the packages mpich and ompi of
/// pkg-config. If MPI or libclang is missing, prints a sentence for each and ends the build script.
pub fn probe() -> Result<Library, Vec<Box<dyn Error>>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = tools::missing(&path, tools::ROOTS, |name| std::env::var_os(name).is_some());
    if !missing.is_empty() {
        missing.iter().for_each(|sentence| eprintln!("{sentence}"));
        std::process::exit(1)
    }
    if let Ok(package) = std::env::var("MPI_PKG_CONFIG") {
        return by_package(&package).map_err(|error| vec![error]);
    }
    let mut errors = Vec::new();
    if let Ok(directory) = std::env::var("CRAY_MPICH_DIR") {
        match by_package(&format!("{directory}/lib/pkgconfig/mpich.pc")) {
            Ok(library) => return Ok(library),
            Err(error) => errors.push(error),
        }
    }
    let mpicc = || by_mpicc(&std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into()));
    let ways: [&dyn Fn() -> Result<Library, Box<dyn Error>>; 3] =
        [&mpicc, &|| by_package("mpich"), &|| by_package("ompi")];
    for way in ways {
        match way() {
            Ok(library) => return Ok(library),
            Err(error) => errors.push(error),
        }
    }
    Err(errors)
}

fn by_package(package: &str) -> Result<Library, Box<dyn Error>> {
    let found = pkg_config::Config::new().cargo_metadata(false).probe(package)?;
    let (lib_paths, include_paths) = (found.link_paths, found.include_paths);
    Ok(Library { mpicc: None, libs: found.libs, lib_paths, include_paths, version: found.version })
}

fn by_mpicc(mpicc: &str) -> Result<Library, Box<dyn Error>> {
    let shown = Command::new(mpicc).arg("-show").output().map_err(|error| format!("{mpicc} -show: {error}"))?;
    let words = shell_words::split(&String::from_utf8(shown.stdout)?)?;
    let after = |start: &str| words.iter().filter_map(|word| word.strip_prefix(start).map(String::from)).collect();
    let paths = |start: &str| -> Vec<PathBuf> {
        let all: Vec<String> = after(start);
        all.into_iter().map(PathBuf::from).collect()
    };
    let (lib_paths, include_paths) = (paths("-L"), paths("-I"));
    let version = "unknown".into();
    Ok(Library { mpicc: Some(mpicc.into()), libs: after("-l"), lib_paths, include_paths, version })
}
