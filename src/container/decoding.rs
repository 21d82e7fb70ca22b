//! The memory of the codecs while segments are decoded.

use crate::codec::{Older, Scratch};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Limits the memory that codecs need while several threads decode segments. Also keeps the buffers of the codecs, so
/// that the next segments use them again.
///
/// A thread that finds no memory waits until another thread has decoded its segment. Threads get memory in the order
/// in which they asked. A segment that needs more than the limit is decoded while no other segment is decoded.
pub struct DecodingMemory {
    limit_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Memory of the segments that are being decoded, in bytes.
    taken_bytes: u64,
    /// Buffers that no thread uses, each with its length in bytes.
    idle: Vec<(u64, Scratch)>,
    /// Number of threads that have asked.
    asked: u64,
    /// Number of threads that have stopped waiting.
    admitted: u64,
}

/// Memory of one segment that is being decoded. Dropping this value gives the memory to the next thread.
pub(super) struct Decoding<'a> {
    memory: &'a DecodingMemory,
    bytes: u64,
    scratch: Scratch,
}

impl DecodingMemory {
    /// Memory for segments that need at most `limit_bytes` bytes together ([`crate::codec::Chain::decoding_bytes`]).
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, state: Mutex::default(), changed: Condvar::new() })
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Waits until `bytes` bytes are free, or until no segment is being decoded.
    pub(super) fn take(&self, bytes: u64) -> Decoding<'_> {
        let mut state = self.state();
        let turn = state.asked;
        state.asked += 1;
        let must_wait = |state: &mut State| {
            let fits = state.taken_bytes.saturating_add(bytes) <= self.limit_bytes;
            state.admitted != turn || !(fits || state.taken_bytes == 0)
        };
        let mut state = self.changed.wait_while(state, must_wait).unwrap_or_else(PoisonError::into_inner);
        state.admitted += 1;
        let (bytes, scratch) = loop {
            let Some((kept_bytes, scratch)) = state.idle.pop() else { break (bytes, Scratch::default()) };
            let most = bytes.max(kept_bytes);
            if state.all_bytes().saturating_add(most) <= self.limit_bytes {
                break (most, scratch);
            }
            // These buffers are too long for the free memory, so they are freed.
        };
        state.taken_bytes = state.taken_bytes.saturating_add(bytes);
        drop(state);
        self.changed.notify_all();
        Decoding { memory: self, bytes, scratch }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Memory of the segments that are being decoded, and of the idle buffers.
    fn all_bytes(&self) -> u64 {
        self.idle.iter().fold(self.taken_bytes, |sum, (bytes, _)| sum.saturating_add(*bytes))
    }
}

impl Decoding<'_> {
    /// The buffers of the codecs, for a codec that may use `threads` threads and needs the bytes of `older`.
    pub(super) fn scratch(&mut self, threads: usize, older: Option<Arc<Older>>) -> &mut Scratch {
        self.scratch.set_threads(threads);
        self.scratch.set_older(older);
        &mut self.scratch
    }
}

impl Drop for Decoding<'_> {
    fn drop(&mut self) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.set_older(None);
        let mut state = self.memory.state();
        if state.all_bytes() <= self.memory.limit_bytes {
            state.idle.push((self.bytes, scratch));
        } else {
            drop(state);
            drop(scratch); // before another thread takes the memory
            state = self.memory.state();
        }
        state.taken_bytes -= self.bytes;
        drop(state);
        self.memory.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    #[test]
    fn segments_that_are_decoded_at_the_same_time_take_no_more_than_the_limit() {
        let (memory, taken) = (DecodingMemory::new(100), AtomicU64::new(0));
        drop((memory.take(50), memory.take(50))); // neither waits for the other
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (memory, taken) = (&memory, &taken);
                scope.spawn(move || {
                    for n in 0..200 {
                        let bytes = 1 + (thread * 31 + n * 17) % 90;
                        let decoding = memory.take(bytes);
                        let now = taken.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(now <= 100 && memory.state().all_bytes() <= 100, "{now}");
                        std::thread::yield_now();
                        taken.fetch_sub(bytes, Ordering::SeqCst);
                        drop(decoding);
                    }
                });
            }
        });
        assert_eq!(memory.state().taken_bytes, 0);
    }

    #[test]
    fn a_segment_that_needs_more_than_the_limit_is_decoded_alone_and_its_buffers_are_freed() {
        let memory = DecodingMemory::new(100);
        let large = memory.take(1000);
        std::thread::scope(|scope| {
            let small = scope.spawn(|| drop(memory.take(1)));
            while memory.state().asked < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!small.is_finished(), "the small segment waits");
            drop(large);
        });
        let state = memory.state();
        assert_eq!((state.taken_bytes, state.idle.len(), state.all_bytes()), (0, 1, 1), "only the small buffers stay");
    }

    #[test]
    fn buffers_are_used_again() {
        let memory = DecodingMemory::new(100);
        drop(memory.take(30));
        drop(memory.take(40));
        assert_eq!(memory.state().idle.len(), 1);
        drop((memory.take(30), memory.take(30)));
        assert_eq!(memory.state().all_bytes(), 70, "buffers of 40 and of 30 bytes");
    }
}
