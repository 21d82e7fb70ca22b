//! The options of `mcr mount`.

use crate::store_args::StoreArgs;
use clap::Args;
use std::path::PathBuf;

/// Text for `mcr mount --help`.
pub const HELP: &str = "Exit status: 0 unmounted, 1 failed.";

#[derive(Debug, Args)]
pub struct MountArgs {
    /// Empty directory that shows DIR/JOB/CHECKPOINT/files until the command ends
    pub dir: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Maximum memory for decoded data and codecs, in MiB; one segment may need more
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    pub budget_mib: u64,
    /// Directory of a temporary file for decoded data that several files need [default: TMPDIR, unless it is in memory]
    #[arg(long, value_name = "DIR")]
    pub spool: Option<PathBuf>,
    /// Maximum length of the temporary file, in MiB; 0: no file
    #[arg(long, default_value_t = 4096, value_name = "MIB")]
    pub spool_mib: u64,
    /// Record the order in which segments are used, for mcr bench partitions --trace. The file is written at the end
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
