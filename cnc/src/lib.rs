//! The agent on a compute node. The agent finds files that the application has finished, describes them, and restores
//! files.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "deletes committed files if the configuration says so")
)]
pub mod agent;
pub mod capture;
pub mod clock;
pub mod companions;
pub mod config;
pub mod control;
pub mod dial;
pub mod drain;
pub mod finder;
pub mod fingerprint;
pub mod h5;
mod here;
mod holes;
pub mod judge;
pub mod layout;
pub mod memory;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes the restored files"))]
pub mod restart;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes the records of restored files"))]
pub mod restored;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes small files of mcrEngine"))]
mod sealed;
pub mod serve;
pub mod sessions;
pub mod settle;
pub mod source;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes the state file of the agent, on the node"))]
pub mod state;
pub mod timeline;
pub mod watch;
mod way;
