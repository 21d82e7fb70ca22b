//! `mcr node`: the daemon of a compute node that saves the jobs of all users.
//!
//! ```text
//! Prolog:  mcr job begin --> mcr node --> mcr worker, as the job's user (agent and aggregator)
//! Epilog:  mcr job end   --> mcr node --> SIGUSR1 to the worker; waits until its files are committed
//! ```
//!
//! The daemon listens on a Unix socket only ([`daemon`]). For each connection the daemon parses one line of JSON of
//! limited length ([`protocol`]). The daemon reads no file that a user can write. The daemon has no async runtime and
//! no network connection. Only the worker touches the user's files, after the worker has dropped all privileges
//! ([`user`]). Workers report counts, and the daemon adds the counts up ([`metrics`]). Workers outlive the daemon.
//! The next daemon finds the workers by their records ([`record`]).

pub mod cgroup;
pub mod client;
pub mod comment;
pub mod daemon;
pub mod environment;
pub mod facts;
pub mod hostlist;
pub mod metrics;
pub mod process;
pub mod protocol;
pub mod record;
pub mod user;
