//! x
pub mod comm;
pub mod models;
pub mod report;
pub mod rules;
pub mod schedule;
pub mod sizes;
pub mod stats;
