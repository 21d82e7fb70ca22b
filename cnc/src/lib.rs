//! The compute node's side: which files the application has finished, what they are made of, and how they come back.

pub mod agent;
pub mod capture;
pub mod config;
pub mod fingerprint;
pub mod h5;
mod holes;
pub mod layout;
pub mod restart;
pub mod serve;
pub mod settle;
pub mod source;
pub mod state;
pub mod watch;
