//! Memory that one flush leaves for the next flush.

use mcrengine::codec::Scratch;
use std::sync::{Condvar, Mutex, PoisonError};

/// Memory that one flush leaves for the next flush, because getting a new page costs more time than filling it. The
/// total is limited by the memory that simultaneous flushes needed together: raw segments (a third of their leases)
/// and the tables of codecs.
#[derive(Default)]
pub struct Spare {
    scratches: Mutex<Scratches>,
    scratch_left: Condvar,
    /// The buffers. Each buffer is less than twice as long as the longest segment that it has held.
    raw: Mutex<Vec<Vec<u8>>>,
}

#[derive(Default)]
struct Scratches {
    free: Vec<Scratch>,
    in_use: usize,
}

/// The permission to code one segment, with the memory of a codec.
pub(crate) struct CodingSlot<'a> {
    spare: &'a Spare,
    pub(crate) scratch: Scratch,
}

impl Spare {
    /// Waits while `most` segments are being coded, over all flushes that share this value. Coding more segments at
    /// the same time than there are cores only wastes CPU caches. A thread with a slot does not wait for any other
    /// thread.
    pub(crate) fn coding_slot(&self, most: usize) -> CodingSlot<'_> {
        let scratches = self.scratches.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |scratches: &mut Scratches| scratches.in_use >= most.max(1);
        let waited = self.scratch_left.wait_while(scratches, is_full);
        let mut scratches = waited.unwrap_or_else(PoisonError::into_inner);
        scratches.in_use += 1;
        CodingSlot { spare: self, scratch: scratches.free.pop().unwrap_or_default() }
    }

    /// A buffer for a raw segment. The length and the content of the buffer are arbitrary.
    pub(crate) fn take_raw(&self) -> Vec<u8> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(crate) fn leave_raw(&self, raw: Vec<u8>) {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner).push(raw);
    }
}

impl Drop for CodingSlot<'_> {
    fn drop(&mut self) {
        let mut scratches = self.spare.scratches.lock().unwrap_or_else(PoisonError::into_inner);
        scratches.in_use -= 1;
        // After a panic the tables may be inconsistent, so the tables are dropped.
        if !std::thread::panicking() {
            scratches.free.push(std::mem::take(&mut self.scratch));
        }
        drop(scratches);
        self.spare.scratch_left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_segments_are_coded_at_once_than_there_are_threads_for() {
        let (spare, now, most) = (Spare::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let slot = spare.coding_slot(2);
                        most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::Relaxed);
                        drop(slot);
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
        let scratches = spare.scratches.into_inner().expect("not poisoned");
        assert_eq!(scratches.in_use, 0);
        assert!((1..=2).contains(&scratches.free.len()));
    }
}
