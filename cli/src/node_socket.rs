//! The option that names the socket of `mcr node`.

use clap::Args;
use mcr_node::client::RUN_DIR;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub struct NodeSocket {
    /// Directory of the daemon's socket
    #[arg(long, env = "MCR_RUN_DIR", default_value = RUN_DIR, value_name = "DIR")]
    pub run_dir: PathBuf,
}
