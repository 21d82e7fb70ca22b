//! Decodes segments before they are needed, if a file is read from its beginning to its end.

use super::tree::FileAt;
use mcrengine::container::SegmentBuffer;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of bytes that must have been read in sequence before segments are decoded in advance.
const SEQUENCE_BYTES: u64 = 512 << 10;
/// The upcoming segments are looked up again after this number of bytes.
const STEP_BYTES: u64 = 1 << 20;
/// The kernel reads ahead with several requests, and they may arrive in any order within this number of bytes.
const DISORDER_BYTES: u64 = 2 << 20;
/// Maximum number of segments that wait to be decoded.
const WAITING_MAX: usize = 8;
/// Maximum number of files whose progress is known.
const FILES_MAX: usize = 64;

/// A segment to decode.
type Wanted = (Arc<SegmentBuffer>, u32);

/// Threads that decode segments in advance. The threads end when this value is dropped.
pub struct Ahead {
    wanted: SyncSender<Wanted>,
    threads: usize,
    progress: Mutex<Vec<(Arc<FileAt>, Progress)>>,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    /// The largest end of the reads of the sequence.
    end: u64,
    /// Number of bytes of the sequence.
    bytes: u64,
    /// Offset up to which the upcoming segments were looked up.
    looked: u64,
}

impl Progress {
    /// Notes a read. Returns whether the upcoming segments should be looked up.
    fn note(&mut self, offset: u64, bytes: u64) -> bool {
        let end = offset.saturating_add(bytes);
        if offset.abs_diff(self.end) > DISORDER_BYTES {
            *self = Self { end, bytes, looked: 0 };
            return false;
        }
        self.end = self.end.max(end);
        self.bytes = self.bytes.saturating_add(bytes);
        let is_due = self.bytes >= SEQUENCE_BYTES && self.end >= self.looked.saturating_add(STEP_BYTES);
        if is_due {
            self.looked = self.end;
        }
        is_due
    }
}

impl Ahead {
    /// Starts the threads.
    pub fn new(threads: usize) -> Self {
        let (wanted, receiver) = sync_channel(WAITING_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let receiver = Arc::clone(&receiver);
            std::thread::spawn(move || work(&receiver));
        }
        Self { wanted, threads, progress: Mutex::default() }
    }

    /// Notes a read of a file. Returns how many upcoming segments are wanted; 0 if the file is not read in sequence.
    pub fn note(&self, at: &Arc<FileAt>, offset: u64, bytes: u64) -> usize {
        let mut files = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let known = files.iter().position(|(file, _)| file == at).map(|known| files.remove(known).1);
        let mut progress = known.unwrap_or_default();
        let is_due = progress.note(offset, bytes);
        if files.len() >= FILES_MAX {
            files.remove(0);
        }
        files.push((Arc::clone(at), progress));
        // The segment of this read may be among the upcoming segments.
        if is_due { self.threads + 1 } else { 0 }
    }

    /// Decodes these segments if a thread is free soon.
    pub fn fetch(&self, segments: &Arc<SegmentBuffer>, numbers: Vec<u32>) {
        for number in numbers {
            if self.wanted.try_send((Arc::clone(segments), number)).is_err() {
                return; // the threads have enough to do
            }
        }
    }
}

/// Takes segments until the sender is dropped.
fn work(receiver: &Mutex<Receiver<Wanted>>) {
    loop {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((segments, number)) = next else { return };
        // A process that needs the segment gets the error.
        let _ = segments.fetch(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sequence_of_reads_asks_for_upcoming_segments() {
        let mut progress = Progress::default();
        let step = 128 << 10;
        let asked = (0..32u64).filter(|n| progress.note((n ^ 1) * step, step)).count();
        assert_eq!(asked, 4, "once for each MiB, although pairs of reads are swapped");
        assert!(!(1..20).any(|n: u64| progress.note(n * 7919 * 4096 % (1 << 30) + (1 << 30), 4096)), "random reads");
    }
}
