//! Measures transfer paths and reports confidence intervals. Any Rust MPI program can call this library at run time
//! on any communicator. The command `mpib` only adds options and reports.
//!
//! Three published programs are implemented again. Each module names its source and its deviations:
//!
//! - A. Lastovetsky, V. Rychkov, M. O'Flynn, "MPIBlib: benchmarking MPI communications for parallel computing on
//!   homogeneous and heterogeneous clusters" (EuroPVM/MPI 2008): [`timing`], [`p2p`], [`collectives`], [`models`],
//!   [`tune`];
//! - T. Chiba, T. Endo, S. Matsuoka, "Optimization of MPI_Scatter/Gather algorithm for grid environment" (2009):
//!   [`collectives::lanes`], [`models::lanes`], [`pathfinder`], [`wan`];
//! - C. Clauss, S. Gsell, S. Lankes, T. Bemmerl, "A fair benchmark for evaluating the latent potential of
//!   heterogeneous coupled clusters": [`jor`].
//!
//! # From a question to a result
//!
//! 1. [`comm::Comm::of`] duplicates the caller's communicator. Only [`comm`] and its modules send messages.
//! 2. [`timing::Timer::new`] synchronises clocks ([`clock`]).
//! 3. [`timing::Timer::measure`] prepares an [`collectives::operation::Operation`], warms up, isolates and repeats it
//!    until [`stats::StoppingRule`] is satisfied, and returns a [`stats::Summary`] with both confidence intervals on
//!    every rank.
//! 4. [`tune::Optimal`] scatters and gathers typed buffers with the fastest implementation, or over the number of
//!    lanes that the measured links choose. [`origin`] says which stored estimates fit a run.
//! 5. [`sizes::refine`] and [`tune::estimate`] choose the sizes to measure next. [`report`] writes the results with
//!    their context. [`rules`] converts the choice to rules for Open MPI.
//!
//! # Invariants
//!
//! - Statistics, schedules, models and the points of [`jor`] do not use MPI, and are tested without it.
//! - One rank decides how often all ranks repeat a step, and broadcasts the decision, because machines may round
//!   differently.
//! - Every [`collectives::operation::Operation`] can check that the right bytes arrived, and `mpib check` checks all
//!   operations.
//! - A message always ends before its buffer can be used again ([`comm::Comm::overlapped`]).

pub mod clock;
pub mod collectives;
pub mod comm;
pub mod configurations;
pub mod daemons;
pub mod interference;
pub mod jor;
pub mod links;
pub mod merge;
pub mod models;
pub mod open_mpi;
pub mod origin;
pub mod p2p;
pub mod pathfinder;
pub mod paths;
pub mod report;
pub mod rules;
pub mod schedule;
pub mod sites;
pub mod sizes;
pub mod stats;
pub mod timing;
pub mod tune;
pub mod wan;
