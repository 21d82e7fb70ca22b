//! x
pub mod clock;
pub mod collectives;
pub mod comm;
pub mod jor;
pub mod models;
pub mod p2p;
pub mod pathfinder;
pub mod report;
pub mod rules;
pub mod schedule;
pub mod sites;
pub mod sizes;
pub mod stats;
pub mod timing;
pub mod tune;
