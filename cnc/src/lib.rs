//! The compute node's side: which files the application has finished, what they are made of, and how they come back.

pub mod config;
pub mod layout;
pub mod settle;
pub mod state;
pub mod watch;
