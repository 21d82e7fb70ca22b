//! BLAKE3 of many short runs of bytes.

use crate::ids::Digest;
use std::cell::Cell;

thread_local! {
    /// The buffer of the last [`Gathered::roomy`] of this thread. The next call of `roomy` uses this buffer again.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A digest of many short runs of bytes. Short runs are gathered in a buffer first, because BLAKE3 is fast only if it
/// hashes at least 16 KiB at once.
#[derive(Default)]
pub struct Gathered {
    hasher: blake3::Hasher,
    runs: Vec<u8>,
}

impl Gathered {
    /// Runs of at least this length are hashed directly, without a copy in the buffer.
    const DIRECT_MIN_BYTES: usize = 32 << 10;

    /// A digest whose buffer has its full size from the start. The digest reuses the buffer of the last such digest
    /// of this thread.
    pub fn roomy() -> Self {
        let mut runs = SPARE.take();
        runs.reserve(2 * Self::DIRECT_MIN_BYTES);
        Self { runs, ..Self::default() }
    }

    /// Adds the bytes of a run.
    pub fn push(&mut self, run: &[u8]) {
        if run.len() < Self::DIRECT_MIN_BYTES {
            self.runs.extend_from_slice(run);
        }
        if run.len() >= Self::DIRECT_MIN_BYTES || self.runs.len() >= Self::DIRECT_MIN_BYTES {
            self.hasher.update(&self.runs);
            self.runs.clear();
        }
        if run.len() >= Self::DIRECT_MIN_BYTES {
            self.hasher.update(run);
        }
    }

    /// The digest of all runs.
    pub fn finish(mut self) -> Digest {
        let digest = self.hasher.update(&self.runs).finalize().into();
        if self.runs.capacity() >= 2 * Self::DIRECT_MIN_BYTES {
            self.runs.clear();
            SPARE.set(self.runs);
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_digest_of_runs_is_that_of_all_bytes(
            lengths in prop::collection::vec(prop_oneof![0usize..100, 30_000usize..40_000], 0..30), is_roomy in any::<bool>(),
        ) {
            let all: Vec<u8> = (0..lengths.iter().sum::<usize>()).map(|n| ((n * n) >> 5) as u8).collect();
            let mut gathered = if is_roomy { Gathered::roomy() } else { Gathered::default() };
            let mut rest = &all[..];
            for length in lengths {
                let (run, after) = rest.split_at(length);
                gathered.push(run);
                rest = after;
            }
            prop_assert_eq!(gathered.finish(), Digest::of(&all));
        }
    }
}
