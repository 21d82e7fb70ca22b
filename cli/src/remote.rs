//! Restarts through the aggregators. The aggregators read, decode and split the segments. This node only writes
//! files.
//!
//! Every step has a deadline. An aggregator that does not deliver a group in time is skipped, and is asked last for
//! the remaining groups.

use crate::args::RestartArgs;
use crate::cert::security;
use crate::output::Progress;
use crate::restorers::{Failure, Restorers, receiver, sink_failure};
use anyhow::anyhow;
use mcr_anc::restart::Sink;
use mcr_cnc::dial::dial_address;
use mcr_cnc::restart::Target;
use mcr_cnc::serve::reason_of;
use mcr_proto::convert::file_from_wire;
use mcr_proto::tls::Security;
use mcr_proto::v1::restore_frame::Message as Frame;
use mcr_proto::version::WIRE_VERSIONS;
use mcr_proto::{ANNOUNCEMENT_BYTES_MAX, SILENCE_SECONDS, v1};
use mcrengine::error_chain::error_chain;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, JobId, Rank};
use prost::Message;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to connect to an aggregator.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until an aggregator confirms a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until the next frame of an answer. A busy aggregator sends a keep-alive frame every third of this
/// time.
const FRAME_TIMEOUT: Duration = Duration::from_secs(SILENCE_SECONDS);
/// Maximum time to write the bytes of a frame, which has at most 1 MiB.
const DISK_TIMEOUT: Duration = Duration::from_secs(45);
/// Maximum time to wait for an aggregator that is busy with other nodes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(600);

/// The aggregators to ask, and the aggregators that did not deliver a group.
pub struct Aggregators<'a> {
    addresses: &'a [String],
    security: Security,
    /// Indices in `addresses` of the aggregators that did not deliver a group.
    silent: BTreeSet<usize>,
}

impl<'a> Aggregators<'a> {
    /// The aggregators, before the first request.
    pub fn new(addresses: &'a [String]) -> anyhow::Result<Self> {
        Ok(Self { addresses, security: security(None, addresses)?, silent: BTreeSet::new() })
    }

    /// Asks the group's aggregator for the files of the group. If this request fails, asks the next aggregator,
    /// because every aggregator can read the store.
    #[expect(clippy::too_many_arguments, reason = "the arguments have nothing in common that a struct could name")]
    pub fn restore_group(
        &mut self,
        job: &JobId,
        checkpoint: &CheckpointId,
        group: GroupId,
        wanted: &dyn Fn(&FileHeader) -> bool,
        args: &RestartArgs,
        target: &Arc<Target>,
        progress: &Progress,
    ) -> Result<Restorers, Failure> {
        let runtime = tokio::runtime::Runtime::new()
            .map_err(|error| Failure::Receiver(anyhow!(error).context("starting the network threads")))?;
        let n = self.addresses.len();
        let in_turn = (0..n).map(|i| (group.0 as usize + i) % n);
        let (last, first): (Vec<_>, Vec<_>) = in_turn.partition(|place| self.silent.contains(place));
        let mut reasons = Vec::new();
        let mut result = None;
        let mut places = first.into_iter().chain(last).peekable();
        while let Some(place) = places.next() {
            let (address, security) = (&self.addresses[place], &self.security);
            let ask = from_aggregator(address, security, job, checkpoint, group, wanted, args, target, progress);
            match runtime.block_on(ask) {
                Ok(restorers) => result = Some(Ok(restorers)),
                Err(Attempt::Final(failure)) => result = Some(Err(failure)),
                Err(Attempt::Elsewhere(reason)) => {
                    // The error at the end names all reasons.
                    if places.peek().is_some() {
                        eprintln!("mcr: {reason}; another aggregator is asked");
                    }
                    reasons.push(reason);
                    self.silent.insert(place);
                    continue;
                }
            }
            break;
        }
        // Dropping the runtime would wait for name lookups and for writes that the disk does not complete.
        runtime.shutdown_background();
        result.unwrap_or_else(|| {
            let reasons = if reasons.is_empty() { "none was named".into() } else { reasons.join("; ") };
            Err(Failure::Receiver(anyhow!(
                "no aggregator gave the files of {checkpoint}, {group} ({reasons}); start one, or leave out \
                 --aggregators to read the store from here"
            )))
        })
    }
}

/// Waits at most `limit` for one step of an aggregator.
async fn within<T>(limit: Duration, address: &str, what: &str, step: impl Future<Output = T>) -> Result<T, Attempt> {
    let silent = |_| Attempt::Elsewhere(format!("{address}: {what} within {} s", limit.as_secs()));
    tokio::time::timeout(limit, step).await.map_err(silent)
}

enum Attempt {
    Final(Failure),
    /// This aggregator did not deliver the group. Another aggregator may deliver the group.
    Elsewhere(String),
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}

#[expect(clippy::too_many_arguments, reason = "the arguments have nothing in common that a struct could name")]
async fn from_aggregator(
    address: &str,
    security: &Security,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
    wanted: &dyn Fn(&FileHeader) -> bool,
    args: &RestartArgs,
    target: &Arc<Target>,
    progress: &Progress,
) -> Result<Restorers, Attempt> {
    let dialled = within(DIAL_TIMEOUT, address, "no connection", dial_address(address, security)).await?;
    let mut client = dialled.map_err(Attempt::Elsewhere)?;
    // The request lists each wanted rank. An empty list means all ranks of the group.
    let ranks = match &args.ranks {
        Some(set) => (0..=set.highest().0).filter(|rank| set.contains(Rank(*rank))).collect(),
        None => Vec::new(),
    };
    let request = v1::RestoreRequest {
        version: *WIRE_VERSIONS.start(),
        newest_version: *WIRE_VERSIONS.end(),
        job: job.to_string(),
        checkpoint: checkpoint.to_string(),
        group: group.0,
        ranks,
    };
    let status = |status: tonic::Status| match status.code() {
        tonic::Code::DataLoss | tonic::Code::NotFound => {
            Attempt::Final(Failure::Checkpoint(anyhow!("{address}: {}", status.message())))
        }
        _ => Attempt::Elsewhere(format!("{address}: {}", reason_of(&status))),
    };
    let answer =
        within(ANSWER_TIMEOUT, address, "it accepts connections but gave no answer", client.restore(request)).await?;
    let mut frames = answer.map_err(status)?.into_inner();
    // The checkpoint may be good, so another aggregator is asked.
    let broken = |what: String| Attempt::Elsewhere(format!("{address} broke the protocol: {what}"));
    let (mut announcement, mut restorers, mut files_count): (Vec<u8>, Option<Arc<Restorers>>, u64) =
        (Vec::new(), None, 0);
    let started = Instant::now();
    loop {
        let frame = within(FRAME_TIMEOUT, address, "no further data", frames.message()).await?.map_err(status)?;
        let Some(frame) = frame else {
            return Err(Attempt::Elsewhere(format!("{address} stopped before the end")));
        };
        match frame.message {
            Some(Frame::Files(part)) if restorers.is_none() => {
                if part.offset != announcement.len() as u64 || part.total_bytes > ANNOUNCEMENT_BYTES_MAX * 4 {
                    return Err(broken("its list of files is out of order or too long".into()));
                }
                announcement.extend_from_slice(&part.part);
                if announcement.len() as u64 == part.total_bytes {
                    let files = parse_files(&announcement, &part.ranks).map_err(broken)?;
                    if let Some(file) = files.iter().find(|file| !wanted(file)) {
                        return Err(broken(format!("{} was not asked for", file.path)));
                    }
                    files_count = files.len() as u64;
                    announcement = Vec::new();
                    restorers = Some(Arc::new(Restorers::create(target, &files, wanted)?));
                }
            }
            Some(Frame::Data(data)) => {
                let Some(restorers) = restorers.clone() else {
                    return Err(broken("data before the list of files".into()));
                };
                let crc = crc32c::crc32c(&data.bytes);
                if crc != data.crc {
                    return Err(Attempt::Elsewhere(format!(
                        "{address}: data damaged in transit (CRC {crc:08x}, sent {:08x})",
                        data.crc
                    )));
                }
                if data.bytes.is_empty() {
                    return Err(broken("an empty data frame".into()));
                }
                progress.done(data.bytes.len() as u64);
                let written = tokio::task::spawn_blocking(move || {
                    restorers.write(data.file, data.variable, data.offset, &data.bytes)
                });
                let stuck = |_| {
                    let (to, limit_s) = (args.to.display(), DISK_TIMEOUT.as_secs());
                    receiver(anyhow!(
                        "{to}: the file system wrote nothing for {limit_s} s; check whether it is available"
                    ))
                };
                let written = tokio::time::timeout(DISK_TIMEOUT, written).await.map_err(stuck)?;
                let written = written.map_err(|error| receiver(error.into()))?;
                written.map_err(|error| match sink_failure(error) {
                    Failure::Checkpoint(error) => broken(format!("{error:#}")),
                    failure => Attempt::Final(failure),
                })?;
            }
            Some(Frame::End(end)) => {
                let restorers = restorers
                    .and_then(Arc::into_inner)
                    .ok_or_else(|| broken("an end before the list of files".into()))?;
                return match end.files == files_count {
                    true => Ok(restorers),
                    false => Err(broken(format!("{} files at the end, {files_count} at the beginning", end.files))),
                };
            }
            Some(Frame::Files(_)) => return Err(broken("a second list of files".into())),
            // The aggregator is busy with other nodes.
            None if started.elapsed() < BUSY_TIMEOUT => {}
            None => {
                return Err(Attempt::Elsewhere(format!("{address} has been busy for {} s", BUSY_TIMEOUT.as_secs())));
            }
        }
    }
}

fn parse_files(announcement: &[u8], ranks: &[u32]) -> Result<Vec<FileHeader>, String> {
    let files = v1::Announcement::decode(announcement).map_err(|error| error.to_string())?.files;
    if files.len() != ranks.len() {
        return Err(format!("{} files and {} ranks", files.len(), ranks.len()));
    }
    let parse = |(file, rank): (v1::FileHeader, &u32)| file_from_wire(file, Rank(*rank));
    let files: Result<Vec<FileHeader>, _> = files.into_iter().zip(ranks).map(parse).collect();
    let files = files.map_err(|error| error_chain(&error))?;
    match FileHeader::stray_link(&files) {
        Some(stray) => Err(format!("{}: a hard link to a file that is not in the list", files[stray].path)),
        None => Ok(files),
    }
}
