//! x

pub mod layout;
