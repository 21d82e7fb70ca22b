//! The options of `mcr copy`.

use crate::store_args::StoreArgs;
use clap::Args;
use mcrengine::ids::{CheckpointId, JobId};
use std::path::PathBuf;

/// Text for `mcr copy --help`.
pub const HELP: &str = "Exit status: 0 all are in the destination, 1 none is, 4 partly: some could not be copied, or \
    are not complete, and the last line names them, 77 other users could change the destination.";

#[derive(Debug, Args)]
pub struct CopyArgs {
    /// Checkpoints to copy: their IDs, the beginnings of their IDs (no part of a number), latest, or latest~1
    #[arg(required_unless_present = "all", value_name = "ID")]
    pub checkpoints: Vec<CheckpointId>,
    /// Copy all complete checkpoints of the job
    #[arg(long, conflicts_with = "checkpoints")]
    pub all: bool,
    /// Directory of the store from which checkpoints are copied
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    // --store is the destination.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Name of the job in the destination [default: the same name]
    #[arg(long, value_name = "NAME")]
    pub to_job: Option<JobId>,
    /// Create the directory of --store if it does not exist
    #[arg(long)]
    pub create: bool,
    /// Also use a store if another user owns it, or if members of its Unix group can write to it
    #[arg(long)]
    pub shared_store: bool,
    /// Only report what would be copied
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
