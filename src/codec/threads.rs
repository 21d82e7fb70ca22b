//! Runs work on several threads. The results do not depend on the number of threads.

use crate::units::RawBytes;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

/// Cores that this process may use, or 1 if the system does not report a number. The number is read once, because the
/// system reads files to determine the number.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Memory for the segments that are worked on at the same time.
#[derive(Clone, Copy, Debug)]
pub struct SegmentMemory {
    /// Memory for all segments together, in bytes.
    pub bytes: u64,
    /// Bytes in memory for each raw byte of a segment.
    pub per_raw_byte: u64,
}

/// How many threads to use inside each segment. More than one thread helps only if there are fewer large segments
/// than threads, or if the memory is enough for fewer segments than threads. The result 0 or 1 means no additional
/// threads.
pub fn threads_of_each(
    threads: usize,
    memory: SegmentMemory,
    segments: impl Iterator<Item = RawBytes> + Clone,
) -> usize {
    let largest = segments.clone().max().unwrap_or_default();
    let large = segments.filter(|bytes| bytes.0 * 2 > largest.0).count();
    let fit = memory.bytes / largest.0.saturating_mul(memory.per_raw_byte).max(1);
    threads / large.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
}

/// Computes `make(n)` for each `n` below `count` on up to `threads` threads, and returns the results in order.
pub(super) fn all<T: Send>(count: usize, threads: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut made = Vec::with_capacity(count);
    let each = in_turn(count, threads, make, |_, one| {
        made.push(one);
        Some(())
    });
    debug_assert_eq!(each, Some(()));
    made
}

/// State of the results: which results were begun, and which results are ready but not used yet.
struct Ahead<T> {
    next: usize,
    made: Vec<Option<T>>,
    /// No more results are needed.
    is_over: bool,
}

struct OnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// Computes `make(n)` for each `n` below `count` on up to `threads` threads. The calling thread passes the results to
/// `use_it` in order, while the other threads compute later results. Ends early if `use_it` returns `None`.
pub(super) fn in_turn<T: Send>(
    count: usize,
    threads: usize,
    make: impl Fn(usize) -> T + Sync,
    mut use_it: impl FnMut(usize, T) -> Option<()>,
) -> Option<()> {
    if threads < 2 || count < 2 {
        return (0..count).try_for_each(|n| use_it(n, make(n)));
    }
    let ahead = Mutex::new(Ahead { next: 0, made: (0..count).map(|_| None).collect(), is_over: false });
    let is_made = Condvar::new();
    let lock = || ahead.lock().unwrap_or_else(PoisonError::into_inner);
    // Computes the next result. Returns false if no result is left to compute.
    let make_next = || {
        let mut state = lock();
        let n = state.next;
        if n >= count || state.is_over {
            return false;
        }
        state.next = n + 1;
        drop(state);
        // If `make` panics, the waiting thread is woken, and the scope ends with the panic of `make`.
        let on_panic = OnPanic(|| {
            lock().is_over = true;
            is_made.notify_all();
        });
        let one = make(n);
        lock().made[n] = Some(one);
        is_made.notify_all();
        drop(on_panic);
        true
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(|| while make_next() {});
        }
        let used = (0..count).try_for_each(|n| {
            let one = loop {
                let mut state = lock();
                if let Some(one) = state.made[n].take() {
                    break one;
                }
                if state.is_over {
                    return None;
                }
                if state.next < count {
                    drop(state);
                    make_next();
                } else {
                    // Other threads are computing the last results.
                    drop(is_made.wait(state).unwrap_or_else(PoisonError::into_inner));
                }
            };
            use_it(n, one)
        });
        lock().is_over = true;
        used
    })
}

/// Runs `a` and `b`, at the same time if there is more than one thread.
pub(super) fn both<A, B: Send>(threads: usize, a: impl FnOnce() -> A, b: impl FnOnce() -> B + Send) -> (A, B) {
    if threads < 2 {
        return (a(), b());
    }
    std::thread::scope(|scope| {
        let b = scope.spawn(b);
        let a = a();
        match b.join() {
            Ok(b) => (a, b),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_shared_by_those_that_are_large() {
        let within = |bytes, threads, segments: &[u64]| {
            threads_of_each(threads, SegmentMemory { bytes, per_raw_byte: 10 }, segments.iter().copied().map(RawBytes))
        };
        let of_each = |threads, segments: &[u64]| within(u64::MAX, threads, segments);
        assert_eq!((of_each(8, &[]), of_each(8, &[0]), of_each(8, &[100, 49, 1])), (8, 8, 8));
        assert_eq!((of_each(8, &[100, 51, 90]), of_each(2, &[9, 9, 9])), (2, 0));
        // If the memory is enough for one segment only, the segment uses all threads. If the memory is enough for two
        // segments, each segment uses half of the threads.
        assert_eq!([900, 1999, 2000, 2999].map(|bytes| within(bytes, 8, &[100, 51, 90])), [8, 8, 4, 4]);
    }

    #[test]
    fn everything_is_used_once_and_in_order_on_any_number_of_threads() {
        for threads in [0, 1, 2, 5, 100] {
            assert_eq!(all(57, threads, |n| n * n), (0..57).map(|n| n * n).collect::<Vec<_>>());
            let mut used = Vec::new();
            let ended = in_turn(
                57,
                threads,
                |n| n,
                |n, one| {
                    used.push((n, one));
                    (n < 20).then_some(())
                },
            );
            assert_eq!((ended, used.len(), used.last()), (None, 21, Some(&(20, 20))));
        }
        assert_eq!(all(0, 4, |n| n), Vec::<usize>::new());
    }

    #[test]
    fn a_panic_ends_everything_and_nobody_waits_for_ever() {
        for at in [0, 30, 56] {
            let result = std::panic::catch_unwind(|| all(57, 3, |n| assert_ne!(n, at)));
            assert!(result.is_err());
        }
    }
}
