//! What transfer paths give, with error bars: a library that any Rust MPI program can call at run time on any communicator.
//! The command `mpib` is a thin shell over it.
//!
//! Three published programs are done anew here, and each module names its source and where it deviates:
//!
//! - A. Lastovetsky, V. Rychkov, M. O'Flynn, "MPIBlib: benchmarking MPI communications for parallel computing on homogeneous
//!   and heterogeneous clusters" (EuroPVM/MPI 2008): [`timing`], [`p2p`], [`collectives`], [`models`], [`tune`];
//! - T. Chiba, T. Endo, S. Matsuoka, "Optimization of MPI_Scatter/Gather algorithm for grid environment" (2009):
//!   [`collectives::lanes`], [`models::lanes`], [`pathfinder`];
//! - C. Clauss, S. Gsell, S. Lankes, T. Bemmerl, "A fair benchmark for evaluating the latent potential of heterogeneous
//!   coupled clusters": [`jor`].
//!
//! # From a question to a figure
//!
//! 1. [`comm::Comm::of`] duplicates the caller's communicator. Only [`comm`] knows MPI's calls.
//! 2. [`timing::Timer::new`] synchronises clocks ([`clock`]).
//! 3. [`timing::Timer::measure`] prepares an [`collectives::operation::Operation`], warms up, isolates and repeats it, until
//!    [`stats::StoppingRule`] has enough, and gives a [`stats::Summary`] with both confidence intervals on every rank.
//! 4. [`sizes::refine`] and [`tune::estimate`] say which size to measure next; [`report`] writes it down with its context;
//!    [`rules`] hands the choice to Open MPI.
//!
//! # What always holds
//!
//! - Statistics, schedules, models and the points of [`jor`] know no MPI, and are tested without it.
//! - Whatever decides how often all ranks do something is decided by one rank, and told to the others: ranks of different
//!   machines need not round alike.
//! - A figure is only as good as what was moved: every [`collectives::operation::Operation`] can tell whether the right bytes
//!   came, and `mpib check` asks all of them.
//! - A message ends before its buffer is anybody else's ([`comm::Comm::overlapped`]).

pub mod clock;
pub mod collectives;
pub mod comm;
pub mod daemons;
pub mod jor;
pub mod models;
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
