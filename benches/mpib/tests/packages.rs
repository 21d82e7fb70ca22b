//! What the build says on a machine without an MPI library.

#[path = "../probe/src/tools.rs"]
mod tools;

use std::ffi::OsStr;

#[test]
fn without_an_mpi_library_the_build_says_in_one_sentence_which_packages_are_missing() {
    let own = std::env::var_os("PATH").unwrap_or_default();
    assert_eq!(
        tools::missing(&own, tools::ROOTS, |name| std::env::var_os(name).is_some()),
        [""; 0],
        "this machine has an MPI library"
    );
    // libclang may also be found by programs in PATH.
    let without = tools::missing(OsStr::new("/nowhere"), tools::ROOTS, |name| name == "LIBCLANG_PATH");
    assert_eq!(without.len(), 1, "{without:?}");
    for name in ["libopenmpi-dev", "openmpi-bin", "openmpi-devel", "MPICC"] {
        assert!(without[0].contains(name), "{name}: {without:?}");
    }
    let is_set = |name: &str| name == "MPICC" || name == "LIBCLANG_PATH";
    assert_eq!(tools::missing(OsStr::new("/nowhere"), tools::ROOTS, is_set), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn without_libclang_the_build_says_in_one_sentence_which_packages_are_missing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = directory.path().to_str().expect("a name in UTF-8");
    let missing = || tools::missing(OsStr::new("/nowhere"), ["/nowhere", root], |name| name == "MPICC");
    let without = missing();
    assert_eq!(without.len(), 1, "{without:?}");
    for name in ["libclang-dev", "clang-devel", "LIBCLANG_PATH"] {
        assert!(without[0].contains(name), "{name}: {without:?}");
    }
    // The library without its headers cannot generate bindings.
    let llvm = directory.path().join("lib/llvm-19/lib");
    let headers = llvm.join("clang/19/include");
    std::fs::create_dir_all(&headers).expect("made");
    std::fs::write(llvm.join("libclang-19.so.1"), "").expect("written");
    assert_eq!(missing(), without);
    std::fs::write(headers.join("stddef.h"), "").expect("written");
    assert_eq!(missing(), [""; 0]);
}
