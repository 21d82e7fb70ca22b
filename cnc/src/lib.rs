//! The compute node's side: which files the application has finished, what they are made of, and how they come back.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "deletes committed files, if it is told to"))]
pub mod agent;
pub mod capture;
pub mod clock;
pub mod companions;
pub mod config;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "makes its own socket, on the node"))]
pub mod control;
pub mod drain;
pub mod fingerprint;
pub mod h5;
mod holes;
pub mod judge;
pub mod layout;
pub mod memory;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes the restored files"))]
pub mod restart;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes the records of restored files"))]
pub mod restored;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes small files of its own"))]
mod sealed;
pub mod serve;
pub mod settle;
pub mod source;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "writes its own file, on the node"))]
pub mod state;
pub mod watch;
