//! The segments of older checkpoints that a flush uses to code its segments.

use mcrengine::bases::{Base, Bases};
use mcrengine::codec::{Basis, Older, Profile, Scratch};
use mcrengine::container::BaseSegment;
use mcrengine::error_chain::error_chain;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The older segments that one flush uses. Several threads read these segments.
#[derive(Default)]
pub struct LookingBack {
    bases: Option<Bases>,
    /// For each segment, the older segment with which it may be coded.
    found: Vec<Option<Base>>,
    /// Length of the chain of checkpoints that ends with the newest checkpoint. Each checkpoint of the chain needs
    /// the previous checkpoint.
    before: u32,
    /// Length of the chain of checkpoints, including the checkpoint that is being written. 0 until a segment is coded
    /// with an older segment.
    in_a_row: AtomicU32,
}

/// An older segment, and the reference to it for a container's index.
pub type Named = (Arc<Older>, BaseSegment);

impl LookingBack {
    /// `found` has the bases that [`plan_segments`](crate::plan_segments::plan_segments) found. `before` is the
    /// length of the chain of checkpoints that ends with the newest checkpoint.
    pub fn new(bases: Option<Bases>, found: Vec<Option<Base>>, before: u32) -> Self {
        Self { bases, found, before, in_a_row: AtomicU32::new(0) }
    }

    /// Whether a segment may be coded with an older segment.
    pub fn is_there(&self, nth: usize) -> bool {
        self.found.get(nth).is_some_and(Option::is_some)
    }

    /// Bytes of memory that coding a segment needs for its older segment.
    pub fn memory_bytes(&self, nth: usize, profile: &Profile) -> u64 {
        let base = self.found.get(nth).and_then(Option::as_ref);
        base.map_or(0, |base| base.raw_bytes.0 * profile.memory_per_older_byte())
    }

    /// Approximate number of bytes of memory that the older segments need for each raw byte of a segment.
    pub fn memory_per_raw_byte(&self, profile: &Profile) -> u64 {
        if self.found.iter().any(Option::is_some) { profile.memory_per_older_byte() } else { 0 }
    }

    /// Reads the older segment. `None` if an earlier decision was to code the class without older segments, or if the
    /// older segment cannot be read.
    pub fn read(&self, nth: usize, basis: &Basis<'_>, scratch: &mut Scratch) -> Option<Named> {
        let base = self.found.get(nth)?.as_ref()?;
        if basis.kept.and_then(|kept| kept.chain()).is_some_and(|chain| !chain.needs_older()) {
            return None;
        }
        match self.bases.as_ref()?.read(base, scratch) {
            Ok((older, named)) => Some((Arc::new(older), named)),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(error, "cannot code a segment with the previous checkpoint");
                None
            }
        }
    }

    /// Notes that a segment was coded with its older segment.
    pub fn used(&self, nth: usize) {
        let base = self.found.get(nth).and_then(Option::as_ref);
        let in_a_row = if base.is_some_and(|base| base.is_newest) { 1 } else { self.before.saturating_add(1) };
        self.in_a_row.fetch_max(in_a_row, Ordering::Relaxed);
    }

    /// Length of the chain of checkpoints that ends with the checkpoint being written, for the manifest.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Ordering::Relaxed)
    }
}
