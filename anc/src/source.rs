//! Where a flush gets its raw bytes from: remote agents, or files of this machine.

use mcrengine::classify::VariableRef;
use mcrengine::ids::Rank;

/// A run of a variable's raw bytes, and where it is wanted.
pub struct Wanted<'a> {
    /// The variable, by the flush's own list of files.
    pub variable: VariableRef,
    /// First byte, counted in the raw bytes.
    pub offset: u64,
    /// Filled whole.
    pub into: &'a mut [u8],
}

/// Raw bytes of the variables of a group.
pub trait Source: Sync {
    /// Fills every run, or fails; then the runs hold anything. Calls `filled` for all bytes while they are still in
    /// the cache, with the number of the run and its next bytes: the bytes of a run in order, one run after the
    /// other.
    fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError>;

    /// Whether the bytes of this file come from the very memory that was hashed for its header, so that hashing them
    /// again tells nothing.
    fn is_checked(&self, _file: u32) -> bool {
        false
    }

    /// How many fetches to run in parallel, on threads that only fetch: more than one where a fetch mostly waits. 0
    /// where a fetch does not wait; then the threads that compress fetch.
    fn parallel(&self) -> usize;
}

/// Why bytes could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The agent of this rank is gone, silent or failing. It may come back.
    #[error("{rank}: {reason}; its agent announces again when it is back")]
    Lost {
        /// The rank whose bytes were wanted.
        rank: Rank,
        /// What happened to the agent.
        reason: String,
    },
    /// The file is not what was announced.
    #[error("{rank}: {file} changed after it was announced; it is read again once it rests")]
    Changed {
        /// The rank of the file.
        rank: Rank,
        /// The file.
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
