//! What the build says on a machine without an MPI library.

#[path = "../probe/src/tools.rs"]
mod tools;

use std::ffi::OsStr;

#[test]
fn without_an_mpi_library_the_build_says_in_one_sentence_which_packages_are_missing() {
    let own = std::env::var_os("PATH").unwrap_or_default();
    assert_eq!(
        tools::missing(&own, |name| std::env::var_os(name).is_some()),
        [""; 0],
        "this machine has an MPI library"
    );
    // libclang may also be found by programs in PATH.
    let without = tools::missing(OsStr::new("/nowhere"), |name| name == "LIBCLANG_PATH");
    assert_eq!(without.len(), 1, "{without:?}");
    for name in ["libopenmpi-dev", "openmpi-bin", "openmpi-devel", "MPICC"] {
        assert!(without[0].contains(name), "{name}: {without:?}");
    }
    assert_eq!(tools::missing(OsStr::new("/nowhere"), |name| name == "MPICC" || name == "LIBCLANG_PATH"), [""; 0]);
}
