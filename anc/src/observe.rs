//! The progress of a flush or restart: a progress bar at a terminal, counters in a daemon, facts in a test.

use mcrengine::codec::Reason;
use mcrengine::units::{RawBytes, StoredBytes};

/// Hears how far a flush or restart is, from several threads. All methods do nothing unless overridden.
pub trait Observer: Sync {
    /// The plan is made: this is to be done.
    fn planned(&self, segments: usize, raw_bytes: RawBytes) {
        let _ = (segments, raw_bytes);
    }

    /// One segment was coded; `reason`: why with this codec.
    fn chosen(&self, reason: &Reason) {
        let _ = reason;
    }

    /// One segment was written, or on restart read and handed on.
    fn segment(&self, raw_bytes: RawBytes, stored_bytes: StoredBytes) {
        let _ = (raw_bytes, stored_bytes);
    }
}

/// An observer that does nothing.
pub struct Silent;
impl Observer for Silent {}
