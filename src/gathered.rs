//! BLAKE3 of many little runs.

use crate::ids::Digest;
use std::cell::Cell;

thread_local! {
    /// Memory for the next one.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A digest of many little runs: they are gathered first, since BLAKE3 is fast only on 16 KiB and more at once.
#[derive(Default)]
pub struct Gathered {
    hasher: blake3::Hasher,
    runs: Vec<u8>,
}

impl Gathered {
    /// Bytes from which on runs go by the buffer.
    const ENOUGH: usize = 32 << 10;

    /// One whose buffer does not grow while it is filled: the last of this thread, if it was.
    pub fn roomy() -> Self {
        let mut runs = SPARE.take();
        runs.reserve(2 * Self::ENOUGH);
        Self { runs, ..Self::default() }
    }

    /// Adds bytes.
    pub fn push(&mut self, run: &[u8]) {
        if run.len() < Self::ENOUGH {
            self.runs.extend_from_slice(run);
        }
        if run.len() >= Self::ENOUGH || self.runs.len() >= Self::ENOUGH {
            self.hasher.update(&self.runs);
            self.runs.clear();
        }
        if run.len() >= Self::ENOUGH {
            self.hasher.update(run);
        }
    }

    /// Of all that was added.
    pub fn finish(mut self) -> Digest {
        let digest = self.hasher.update(&self.runs).finalize().into();
        if self.runs.capacity() >= 2 * Self::ENOUGH {
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
