//! Finds out which tools of the build are missing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

const NO_MPI: &str = "missing: an MPI library with mpicc in PATH; install libopenmpi-dev and openmpi-bin \
                      (Debian, Ubuntu), or openmpi-devel (Red Hat, Fedora; then: module load mpi/openmpi-x86_64), or set MPICC";
const NO_LIBCLANG: &str = "missing: libclang and its headers, which generate the bindings to MPI; install \
                           libclang-dev (Debian, Ubuntu) or clang-devel (Red Hat, Fedora), or set LIBCLANG_PATH";

/// The directories below which libclang and its headers are searched.
pub const ROOTS: [&str; 2] = ["/usr", "/usr/local"];

/// A sentence for each missing tool. `path` is the value of PATH, libclang is searched below `roots`, and `is_set` says
/// which environment variables are set.
pub fn missing(path: &OsStr, roots: [&str; 2], is_set: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let roots = roots.map(Path::new);
    let in_path = |name: &str| std::env::split_paths(path).any(|dir| dir.join(name).is_file());
    let known = |package: &str| {
        let asked = in_path("pkg-config").then(|| Command::new("pkg-config").args(["--exists", package]).status());
        asked.is_some_and(|status| status.is_ok_and(|status| status.success()))
    };
    let names = ["MPI_PKG_CONFIG", "CRAY_MPICH_DIR", "MPICC"];
    let mpi = names.into_iter().any(&is_set) || in_path("mpicc") || known("ompi") || known("mpich");
    // On systems other than Linux, libclang has other file names, so libclang is not searched there.
    let libclang = !cfg!(target_os = "linux") || is_set("LIBCLANG_PATH") || in_path("llvm-config") || {
        has_library(roots) && (in_path("clang") || has_headers(roots))
    };
    [(mpi, NO_MPI), (libclang, NO_LIBCLANG)].into_iter().filter(|(found, _)| !found).map(|(_, text)| text).collect()
}

/// Whether libclang is where the crate clang-sys looks for it: up to two directories below lib* and llvm* of `bases`.
fn has_library(bases: [&Path; 2]) -> bool {
    let is = |path: PathBuf| {
        named(&path, |name| {
            let libclang = name.starts_with("libclang.so") || name.starts_with("libclang-");
            libclang && name.contains(".so") && !name.starts_with("libclang-cpp")
        })
    };
    let bases = bases.into_iter().flat_map(entries);
    let mut directories: Vec<PathBuf> =
        bases.filter(|path| named(path, |name| name.starts_with("lib") || name.starts_with("llvm"))).collect();
    for _ in 0..3 {
        if directories.iter().any(|directory| entries(directory).into_iter().any(is)) {
            return true;
        }
        directories = directories.iter().flat_map(|d| entries(d)).filter(|path| path.is_dir()).collect();
    }
    false
}

/// Whether there is `clang/VERSION/include/stddef.h` in one of the usual places.
fn has_headers(bases: [&Path; 2]) -> bool {
    let bases = bases.into_iter().flat_map(entries);
    let libs: Vec<PathBuf> = bases.filter(|path| named(path, |name| name.starts_with("lib"))).collect();
    let llvm = libs.iter().flat_map(|lib| entries(lib)).filter(|path| named(path, |name| name.starts_with("llvm")));
    let all: Vec<PathBuf> = llvm.map(|llvm| llvm.join("lib")).chain(libs.iter().cloned()).collect();
    let versions = all.iter().flat_map(|lib| entries(&lib.join("clang")));
    versions.into_iter().any(|version| version.join("include/stddef.h").is_file())
}

fn named(path: &Path, is: impl Fn(&str) -> bool) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).map_or(Vec::new(), |all| all.flatten().map(|entry| entry.path()).collect())
}
