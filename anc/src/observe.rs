//! Reports the progress of a flush or restart. The command line shows the progress as a bar, a daemon adds the
//! numbers to its counters, and a test checks the numbers.

use mcrengine::codec::Reason;
use mcrengine::units::{RawBytes, StoredBytes};

/// Receives the progress of a flush or restart from several threads. All methods do nothing unless overridden.
pub trait Observer: Sync {
    /// The plan is made. The plan has this number of segments and of raw bytes.
    fn planned(&self, segments: usize, raw_bytes: RawBytes) {
        let _ = (segments, raw_bytes);
    }

    /// One segment was coded. `reason` says why this codec was chosen.
    fn chosen(&self, reason: &Reason) {
        let _ = reason;
    }

    /// One segment was written, or in a restart one segment was read and passed on.
    fn segment(&self, raw_bytes: RawBytes, stored_bytes: StoredBytes) {
        let _ = (raw_bytes, stored_bytes);
    }
}

/// An observer that does nothing.
pub struct Silent;
impl Observer for Silent {}
