//! What a flush or restart reports while it runs: a progress bar at a terminal, counters in a daemon, facts in a test.

use mcrengine::codec::Reason;
use mcrengine::units::{RawBytes, StoredBytes};

/// Told from several threads. All methods do nothing unless overridden.
pub trait Observer: Sync {
    /// The plan is made: so much is to do.
    fn planned(&self, segments: usize, raw_bytes: RawBytes) {
        let _ = (segments, raw_bytes);
    }

    /// One segment was coded, and why as it was.
    fn chosen(&self, reason: &Reason) {
        let _ = reason;
    }

    /// One segment was written, or on restart read and handed on.
    fn segment(&self, raw_bytes: RawBytes, stored_bytes: StoredBytes) {
        let _ = (raw_bytes, stored_bytes);
    }
}

/// Nobody watches.
pub struct Silent;
impl Observer for Silent {}
