//! x

pub mod config;
pub mod layout;
pub mod settle;
pub mod state;
pub mod watch;
