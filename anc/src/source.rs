//! Where a flush has its raw bytes from: remote agents, or files of this machine.

use mcrengine::classify::VariableRef;
use mcrengine::ids::Rank;

/// A run of a variable's raw bytes, and where it is wanted.
pub struct Wanted<'a> {
    /// Whose bytes, by the flush's own list of files.
    pub variable: VariableRef,
    /// First byte, counted in the raw bytes.
    pub offset: u64,
    /// Filled whole.
    pub into: &'a mut [u8],
}

/// Raw bytes of the variables of a group.
pub trait Source: Sync {
    /// Fills every run, or fails; then the runs hold anything. `filled` is told of all bytes, those of a run in order and
    /// none of another between them, while they are still in the cache: which run, and its next bytes.
    fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError>;

    /// Whether the bytes of this file come from the very memory that was hashed for its header, so that hashing them
    /// again tells nothing.
    fn is_checked(&self, _file: u32) -> bool {
        false
    }

    /// How many fetches at a time make sense: more than one where waiting is most of it, none of their own where a fetch
    /// is no waiting at all. Then whoever compresses fetches.
    fn parallel(&self) -> usize;
}

/// Why bytes could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The agent of this rank is gone, silent or failing. It may come back.
    #[error("{rank}: {reason}; its agent announces again when it is back")]
    Lost {
        /// Whose bytes.
        rank: Rank,
        /// What happened.
        reason: String,
    },
    /// The file is not what was announced.
    #[error("{rank}: {file} changed after it was announced; it is read again once it rests")]
    Changed {
        /// Whose file.
        rank: Rank,
        /// Which.
        file: String,
    },
}

impl FetchError {
    /// The rank whose bytes are missing.
    pub fn rank(&self) -> Rank {
        match self {
            Self::Lost { rank, .. } | Self::Changed { rank, .. } => *rank,
        }
    }
}
