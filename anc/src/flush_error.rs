//! Why a flush failed.

use crate::compress::CompressError;
use crate::source::FetchError;
use mcrengine::container::ReadError;
use mcrengine::ids::{JobId, Rank};
use mcrengine::store::StoreError;

/// Why a flush failed. A failed flush leaves nothing in the store except a temporary file that no reader opens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// A rank's bytes could not be fetched, or differ from the announced bytes.
    #[error("fetching the bytes of a variable")]
    Fetch(#[from] FetchError),
    /// The store failed.
    #[error("in the store")]
    Store(#[from] StoreError),
    /// The store could not be read.
    #[error("in the store")]
    Read(#[from] ReadError),
    /// A codec failed.
    #[error(transparent)]
    Compress(#[from] CompressError),
    /// An older checkpoint was not committed, so this checkpoint is not committed either.
    #[error("an older checkpoint failed, so this checkpoint is not committed")]
    NotItsTurn,
    /// Another incarnation began during the flush.
    #[error("another incarnation of the job began meanwhile; the flush is tried again")]
    Overtaken,
    /// The application wrote the committed content again, and another group may change soon.
    #[error("the content is the committed content; waiting for the other groups")]
    Unchanged,
    /// The files of these ranks do not belong to the incarnation and step that is being saved. Each rank has a
    /// reason.
    #[error("{}", stale_ranks(.0))]
    Stale(Vec<(Rank, String)>),
    /// Another aggregator saves a run of the same name.
    #[error(
        "two runs have the name {job}: it is saved by {other}, and by {who}, and they have the same identity. \
         The second run is not saved until the first ends; give it another name (--job), or give each its own identity \
         (\"incarnation\" in [cnc], MCR_INCARNATION)"
    )]
    Held {
        /// The name of the job.
        job: JobId,
        /// A description of this aggregator for the user.
        who: String,
        /// A description of the aggregator that already saves a run of this name.
        other: String,
    },
    /// The flush has a bug. Nothing was committed.
    #[error("the flush panicked: {0}; report this")]
    Panicked(String),
}

fn stale_ranks(ranks: &[(Rank, String)]) -> String {
    let all: Vec<String> = ranks.iter().take(4).map(|(rank, why)| format!("{rank}: {why}")).collect();
    let more = if ranks.len() > 4 { format!("; and {} more ranks", ranks.len() - 4) } else { String::new() };
    format!("{}{more}", all.join("; "))
}
