//! Helpers for tests and benchmarks of several crates: random numbers, processes that end with the test, waiting with
//! a deadline, the files below a directory, and measured values.
//!
//! This crate uses no other crate of the workspace. The module `group.rs`, in the folder above, makes test data with
//! `mcrengine`. The integration tests of `mcrengine` include `group.rs` by its path. `group.rs` is not part of this
//! crate, because then the unit tests of `mcrengine` would compile `mcrengine` twice.

mod command;
mod files;
pub mod measure;
mod process;
mod random;
mod wait;

pub use command::{clean, run, run_json};
pub use files::{assert_same_files, bytes_below, contents, files_below};
pub use process::Process;
pub use random::Random;
pub use wait::wait_for;
