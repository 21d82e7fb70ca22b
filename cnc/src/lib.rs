//! The compute node's side: which files the application has finished, what they are made of, and how they come back.

pub mod capture;
pub mod h5;
mod holes;
pub mod restart;
pub mod source;
