//! The source of a flush's raw bytes: remote agents, or files of this machine.

use mcrengine::classify::VariableRef;
use mcrengine::ids::Rank;

/// A run of a variable's raw bytes, and the buffer for these bytes.
pub struct Wanted<'a> {
    /// The variable, whose file is identified by its place in the flush's list of files.
    pub variable: VariableRef,
    /// Offset of the first byte in the variable's raw bytes.
    pub offset: u64,
    /// The buffer, which is filled completely.
    pub into: &'a mut [u8],
}

/// Raw bytes of the variables of a group.
pub trait Source: Sync {
    /// Fills every run. After an error the content of the runs is undefined. Calls `filled` with the number of a run
    /// and the run's next bytes, while these bytes are still in the CPU cache. The runs follow one after the other,
    /// and the bytes of each run are in order.
    fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError>;

    /// Whether the bytes of this file come from the memory that was hashed for the file's header. If so, hashing the
    /// bytes again is useless.
    fn is_checked(&self, _file: u32) -> bool {
        false
    }

    /// Number of threads that fetch in parallel. More than one thread is useful if a fetch mostly waits. The number
    /// is 0 if fetches do not wait. In this case, the threads that compress also fetch.
    fn parallel(&self) -> usize;
}

/// Why bytes could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The agent of this rank has disconnected, is silent or fails. The agent may connect again.
    #[error("{rank}: {reason}; the rank's agent announces again after it has connected again")]
    Lost {
        /// The rank whose bytes were wanted.
        rank: Rank,
        /// Why the agent is lost.
        reason: String,
    },
    /// The content of the file differs from the announced content.
    #[error("{rank}: {file} changed after it was announced; the file is read again once nothing writes to it")]
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
