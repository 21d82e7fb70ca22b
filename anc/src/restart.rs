//! Restores the bytes of files from containers: reads, decompresses and splits segments, and passes the pieces on,
//! directly or over the network.

use crate::budget::Budget;
use crate::observe::Observer;
use crate::served::ServedGroup;
use bytes::{Bytes, BytesMut};
use mcr_proto::convert::file_to_wire;
use mcr_proto::{FRAME_BYTES, v1};
use mcrengine::container::{ReadError, SegmentBuffer, SegmentTask};
use mcrengine::error_chain::error_chain;
use mcrengine::header::FileHeader;
use mcrengine::ids::Rank;
use mcrengine::store::Advice;
use mcrengine::store::Store;
use mcrengine::units::{RawBytes, StoredBytes};
use prost::Message;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Status;

/// The receiver of restored bytes: files of this machine, or frames.
pub trait Sink: Sync {
    /// Takes a run of a variable's raw bytes. Several threads call this function, in any order.
    fn write(&self, file: u32, variable: u32, offset: u64, bytes: &[u8]) -> Result<(), SinkError>;
}

/// An error of the receiver of the bytes.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Why a restart failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestartError {
    /// The store failed, or the data in the store is missing, damaged or unknown.
    #[error("reading the checkpoint")]
    Read(#[from] ReadError),
    /// The receiver of the bytes failed.
    #[error("passing the bytes to the receiver")]
    Sink(#[source] SinkError),
}

/// Decodes the segments of all tasks through a buffer, and passes the pieces to `sink`. Uses several threads.
/// `stored` is the budget for stored bytes. The buffer limits the decoded bytes and the memory of the codecs.
pub fn restore_files(
    segments: &SegmentBuffer,
    tasks: &[SegmentTask],
    threads: usize,
    stored: &Arc<Budget>,
    observer: &dyn Observer,
    sink: &dyn Sink,
) -> Result<(), RestartError> {
    observer.planned(tasks.len(), tasks.iter().map(|task| task.raw_bytes).sum());
    let threads_of_each = segments.threads_of_each(threads, tasks);
    let (queue, stopped) = (segments.queue(tasks), AtomicBool::new(false));
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    let Some(task) = queue.take() else { break };
                    let _lease = stored.lease(segments.set().stored_bytes_of(task));
                    let result = segments.run(task, threads_of_each, |variable, offset, bytes| {
                        sink.write(variable.file, variable.variable, offset, bytes).map_err(RestartError::Sink)
                    });
                    match result {
                        Ok(()) => observer.segment(task.raw_bytes, task.stored_bytes),
                        Err(error) => {
                            stopped.store(true, Ordering::Relaxed);
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

type Frames = mpsc::Sender<Result<v1::RestoreFrame, Status>>;

/// Sends the files of some ranks of a group as frames. If `ranks` is empty, sends the files of all ranks. Restarts
/// of the same group share the decoded segments. Must run on a thread that may block.
pub fn send_ranks(
    store: &dyn Store,
    served: &ServedGroup,
    ranks: &[Rank],
    threads: usize,
    budget: &Arc<Budget>,
    out: &Frames,
) -> Result<(), RestartError> {
    let open = served.open(store, budget)?;
    let set = open.segments.set();
    let ranks: BTreeSet<Rank> = ranks.iter().copied().collect();
    let wanted = |file: &FileHeader| ranks.is_empty() || ranks.contains(&file.rank);
    let sender = Sender { out, runtime: tokio::runtime::Handle::current() };
    let mut numbers = vec![0u32; set.index().files().len()];
    let files: Vec<&FileHeader> = set.index().files().iter().filter(|file| wanted(file)).collect();
    let mut sent = 0u32;
    for (number, file) in numbers.iter_mut().zip(set.index().files()) {
        *number = sent;
        sent += u32::from(wanted(file));
    }
    sender.files(&files).map_err(RestartError::Sink)?;
    let chosen: Vec<bool> = set.index().files().iter().map(wanted).collect();
    let tasks = set.tasks(|variable| chosen[variable.file as usize]);
    let sink = NumberedSink { sender: &sender, numbers };
    // Restarts of the same group share the threads too.
    let threads = threads.div_ceil(served.restarts().max(1));
    restore_files(&open.segments, &tasks, threads, &open.stored, &Totals, &sink)?;
    let end = v1::RestoreEnd { files: files.len() as u64, raw_bytes: files.iter().map(|file| file.bytes).sum() };
    sender.send(v1::restore_frame::Message::End(end)).map_err(RestartError::Sink)
}

/// The gRPC status of a failed restart.
pub fn to_status(error: &RestartError) -> Status {
    let text = error_chain(error);
    match error {
        RestartError::Read(ReadError::Missing { .. }) => Status::not_found(text),
        RestartError::Read(error) if error.advice() == Advice::OlderCheckpoint => Status::data_loss(text),
        RestartError::Read(_) => Status::unavailable(text),
        RestartError::Sink(_) => Status::aborted(text),
    }
}

struct Totals;
impl Observer for Totals {
    fn segment(&self, raw_bytes: RawBytes, stored_bytes: StoredBytes) {
        tracing::trace!(raw_bytes = raw_bytes.0, stored_bytes = stored_bytes.0, "sent segment");
    }
}

struct Sender<'a> {
    out: &'a Frames,
    runtime: tokio::runtime::Handle,
}

impl Sender<'_> {
    /// Waits for room in the queue. Returns an error if the receiver takes no frame for too long.
    fn send(&self, message: v1::restore_frame::Message) -> Result<(), SinkError> {
        let frame = Ok(v1::RestoreFrame { message: Some(message) });
        let deadline = Duration::from_secs(mcr_proto::SILENCE_SECONDS * 2);
        match self.runtime.block_on(self.out.send_timeout(frame, deadline)) {
            Ok(()) => Ok(()),
            Err(_) => Err("the receiver is gone, or received nothing for too long".into()),
        }
    }

    fn files(&self, files: &[&FileHeader]) -> Result<(), SinkError> {
        let wire = files.iter().map(|file| file_to_wire(file)).collect();
        let announcement = v1::Announcement { files: wire, ..Default::default() };
        let mut bytes = Bytes::from(announcement.encode_to_vec());
        let (total_bytes, mut offset) = (bytes.len() as u64, 0);
        loop {
            let part = bytes.split_to(bytes.len().min(FRAME_BYTES));
            let ranks = if bytes.is_empty() { files.iter().map(|file| file.rank.0).collect() } else { Vec::new() };
            let next = offset + part.len() as u64;
            self.send(v1::restore_frame::Message::Files(v1::RestoreFiles { total_bytes, offset, part, ranks }))?;
            offset = next;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }
}

struct NumberedSink<'a> {
    sender: &'a Sender<'a>,
    /// For each file of the container, its place in the list of files that was sent.
    numbers: Vec<u32>,
}

impl Sink for NumberedSink<'_> {
    fn write(&self, file: u32, variable: u32, offset: u64, bytes: &[u8]) -> Result<(), SinkError> {
        let file = self.numbers[file as usize];
        for (i, part) in bytes.chunks(FRAME_BYTES).enumerate() {
            let mut copy = BytesMut::with_capacity(part.len());
            copy.extend_from_slice(part);
            let data = v1::RestoreData {
                file,
                variable,
                offset: offset + (i * FRAME_BYTES) as u64,
                bytes: copy.freeze(),
                crc: crc32c::crc32c(part),
            };
            self.sender.send(v1::restore_frame::Message::Data(data))?;
        }
        Ok(())
    }
}
