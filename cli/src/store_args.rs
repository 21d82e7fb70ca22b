//! The options that name a store and a job.

use clap::Args;
use mcrengine::ids::JobId;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Directory that holds the containers, on the parallel file system
    #[arg(long, env = "MCR_STORE", value_name = "DIR")]
    pub store: PathBuf,
    /// Name of the job; needed if the store holds several jobs
    #[arg(long, env = "MCR_JOB", value_name = "NAME")]
    pub job: Option<JobId>,
}
