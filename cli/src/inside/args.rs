//! The options of `mcr ls`, `mcr cat`, `mcr extract` and `mcr diff`.

use crate::globs::FileGlob;
use crate::ranks::{RankSet, ranks};
use crate::store_args::StoreArgs;
use clap::Args;
use mcrengine::ids::CheckpointId;
use std::ffi::OsString;
use std::path::PathBuf;

/// Text for `mcr ls --help`.
pub const LS: &str = "Exit status: 0 done, 1 failed, 4 partly: the checkpoint is not complete, and only its committed \
    groups are listed.";
/// Text for `mcr cat --help`.
pub const CAT: &str = "Exit status: 0 all bytes are written and agree with the digest of the file, 1 failed.";
/// Text for `mcr extract --help`.
pub const EXTRACT: &str = "Exit status: 0 done, 1 failed.";
/// Text for `mcr diff --help`.
pub const DIFF: &str = "Exit status: 0 everything was compared, whether it differs or not, 1 failed.";

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Checkpoint: its ID, the beginning of its ID (no part of a number), latest, or latest~1
    pub checkpoint: CheckpointId,
    /// List only these files. A pattern without a slash is compared with the name of the file, a pattern with a slash
    /// with the path
    #[arg(value_parser = FileGlob::parse, value_name = "GLOB")]
    pub files: Vec<FileGlob>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// List the variables of each file
    #[arg(long)]
    pub variables: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CatArgs {
    /// Checkpoint: its ID, the beginning of its ID (no part of a number), latest, or latest~1
    pub checkpoint: CheckpointId,
    /// Path of the file, as mcr ls shows it
    pub file: OsString,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Maximum memory for decoded data and codecs, in MiB; one segment may need more
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    pub budget_mib: u64,
    /// Print a description of the file as JSON, and not its bytes
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExtractArgs {
    /// Checkpoint: its ID, the beginning of its ID (no part of a number), latest, or latest~1
    pub checkpoint: CheckpointId,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Pattern for the paths of the variables, such as Grid*/Density; can be given several times. The patterns * and
    /// ? do not stand for a slash
    #[arg(long, required = true, value_name = "PATTERN")]
    pub variable: Vec<String>,
    /// Only the variables of these ranks, for example 0-31,40
    #[arg(long, value_parser = ranks, value_name = "RANKS")]
    pub ranks: Option<RankSet>,
    /// New file: .npy for one NumPy array, .h5 for an HDF5 file with a dataset for each piece
    // The identifier differs from `to` of mcr restart, because the default of `to` is the watched directory of the
    // job.
    #[arg(id = "output", long = "to", value_name = "FILE")]
    pub to: PathBuf,
    /// Maximum memory for decoded data and codecs, in MiB; one segment may need more. Each piece must fit
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    pub budget_mib: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The first checkpoint: its ID, the beginning of its ID (no part of a number), latest, or latest~1
    pub a: CheckpointId,
    /// The second checkpoint, or a directory with files of the same names. A directory contains a slash, such as
    /// ./restored. Files of other steps in the directory are left out
    pub b: String,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Maximum memory for decoded data and codecs, in MiB; one segment may need more
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    pub budget_mib: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
