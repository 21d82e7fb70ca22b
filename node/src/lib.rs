//! `mcr node`: the daemon of a compute node that saves the jobs of all users.
//!
//! ```text
//! Prolog:  mcr job begin --> mcr node --> mcr worker, as the job's user (agent and aggregator)
//! Epilog:  mcr job end   --> mcr node --> SIGUSR1 to the worker; waits until its files are committed
//! ```
//!
//! The daemon listens on a Unix socket only ([`daemon`]). It parses one bounded line of JSON for each connection
//! ([`protocol`]), and reads nothing that a user can write. It has no runtime and no network connection. Everything
//! that touches the user's files is in the worker, which drops all privileges first ([`user`]). Workers outlive the
//! daemon: the next daemon finds them by their records ([`record`]).

pub mod client;
pub mod daemon;
pub mod environment;
pub mod facts;
pub mod hostlist;
pub mod process;
pub mod protocol;
pub mod record;
pub mod user;
