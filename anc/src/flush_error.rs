//! Why a flush failed.

use crate::compress::CompressError;
use crate::source::FetchError;
use mcrengine::container::ReadError;
use mcrengine::ids::{JobId, Rank};
use mcrengine::store::StoreError;

/// Why a flush failed. Nothing of it exists then, but for a temporary file that no reader looks at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// A rank's bytes could not be had, or are not those that were announced.
    #[error("fetching")]
    Fetch(#[from] FetchError),
    /// The store refused.
    #[error("writing to the store")]
    Store(#[from] StoreError),
    /// The store could not be read.
    #[error("reading from the store")]
    Read(#[from] ReadError),
    /// A codec failed.
    #[error(transparent)]
    Compress(#[from] CompressError),
    /// An older checkpoint was not committed, so this one is not either.
    #[error("a checkpoint before it failed")]
    NotItsTurn,
    /// Another incarnation began while this was flushed.
    #[error("another incarnation of the job began meanwhile; looked at again")]
    Overtaken,
    /// These ranks' files are not of the incarnation and step that is saved now; each with the reason.
    #[error("{}", stale_ranks(.0))]
    Stale(Vec<(Rank, String)>),
    /// Another aggregator saves a run of the same name.
    #[error(
        "two runs have the name {job}: it is saved by {other}, and by {who}, and nothing tells them apart. Nothing of the second \
         is saved until the first ends; give it another name (--job), or each an identity of its own (\"incarnation\" in [cnc], MCR_INCARNATION)"
    )]
    Held {
        /// The name.
        job: JobId,
        /// This aggregator, for people.
        who: String,
        /// The one that was first.
        other: String,
    },
    /// A mistake of ours. Nothing was committed.
    #[error("the flush panicked: {0}; report this")]
    Panicked(String),
}

fn stale_ranks(ranks: &[(Rank, String)]) -> String {
    let all: Vec<String> = ranks.iter().take(4).map(|(rank, why)| format!("{rank}: {why}")).collect();
    let more = if ranks.len() > 4 { format!("; and {} more ranks", ranks.len() - 4) } else { String::new() };
    format!("{}{more}", all.join("; "))
}
