//! How the job's processes ended, and what this shows about their files.

use super::ready::SettledFile;

/// How the job's processes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It is not known whether they succeeded. A process may have ended while it was writing.
    Unknown,
    /// With success. The processes have finished the files that changed since this time.
    Well {
        /// When the processes began, in nanoseconds since 1970.
        since_ns: i64,
    },
    /// Without success, a short time ago. A process may have ended while it was writing.
    Failed,
}

impl Gone {
    /// Whether processes that ended with success have written one of these files.
    pub(super) fn vouches_for(self, files: &[SettledFile]) -> bool {
        match self {
            Self::Well { since_ns } => files.iter().any(|file| file.fingerprint.changed_ns >= since_ns),
            Self::Unknown | Self::Failed => false,
        }
    }
}
