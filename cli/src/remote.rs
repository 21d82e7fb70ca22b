//! Restart through the aggregators: they read, decode and split; this node only writes.

use crate::args::RestartArgs;
use crate::output::Progress;
use crate::restorers::{Failure, Restorers, receiver, sink_failure};
use anyhow::anyhow;
use mcr_anc::restart::Sink;
use mcr_cnc::serve::dial_address;
use mcr_proto::convert::file_from_wire;
use mcr_proto::v1::restore_frame::Message as Frame;
use mcr_proto::{ANNOUNCEMENT_BYTES_MAX, SILENCE_SECONDS, WIRE_VERSION, v1};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, JobId, Rank};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;

/// Asks the group's aggregator for its files, or another one if that fails: every aggregator can read the store.
pub fn restore_group(
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
    wanted: &dyn Fn(&FileHeader) -> bool,
    args: &RestartArgs,
    progress: &Progress,
) -> Result<Restorers, Failure> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::Receiver(anyhow!(error).context("no threads for the network")))?;
    let mut last = None;
    for i in 0..args.aggregators.len() {
        let address = &args.aggregators[(group.0 as usize + i) % args.aggregators.len()];
        match runtime.block_on(from_aggregator(address, job, checkpoint, group, wanted, args, progress)) {
            Ok(restorers) => return Ok(restorers),
            Err(Attempt::Final(failure)) => return Err(failure),
            Err(Attempt::Elsewhere(reason)) => {
                eprintln!("mcr: {reason}");
                last = Some(reason);
            }
        }
    }
    Err(Failure::Receiver(anyhow!(
        "no aggregator could be asked (last: {})",
        last.unwrap_or_else(|| "none was named".into())
    )))
}

enum Attempt {
    Final(Failure),
    /// This aggregator does not answer; another one may.
    Elsewhere(String),
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}

async fn from_aggregator(
    address: &str,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
    wanted: &dyn Fn(&FileHeader) -> bool,
    args: &RestartArgs,
    progress: &Progress,
) -> Result<Restorers, Attempt> {
    let mut client = dial_address(address).await.map_err(Attempt::Elsewhere)?;
    // The aggregator sends all of the group; the ranks are chosen here, where the set may be anything.
    let ranks = match &args.ranks {
        Some(set) => (0..=set.highest().0).filter(|rank| set.contains(Rank(*rank))).collect(),
        None => Vec::new(),
    };
    let request = v1::RestoreRequest {
        version: WIRE_VERSION,
        job: job.to_string(),
        checkpoint: checkpoint.to_string(),
        group: group.0,
        ranks,
    };
    let status = |status: tonic::Status| match status.code() {
        tonic::Code::DataLoss | tonic::Code::NotFound => {
            Attempt::Final(Failure::Checkpoint(anyhow!("{address}: {}", status.message())))
        }
        code => Attempt::Elsewhere(format!("{address}: {code}: {}", status.message())),
    };
    let mut frames = client.restore(request).await.map_err(status)?.into_inner();
    let broken = |what: String| Attempt::Final(Failure::Checkpoint(anyhow!("{address} broke the protocol: {what}")));
    let (mut announcement, mut restorers, mut files_count): (Vec<u8>, Option<Arc<Restorers>>, u64) =
        (Vec::new(), None, 0);
    loop {
        let next = tokio::time::timeout(Duration::from_secs(2 * SILENCE_SECONDS), frames.message()).await;
        let frame = match next {
            Err(_) => return Err(Attempt::Elsewhere(format!("{address} said nothing for {} s", 2 * SILENCE_SECONDS))),
            Ok(frame) => frame.map_err(status)?,
        };
        match frame.and_then(|frame| frame.message) {
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
                    progress.add(files.iter().map(|file| file.bytes).sum());
                    files_count = files.len() as u64;
                    announcement = Vec::new();
                    restorers = Some(Arc::new(Restorers::create(&args.to, &files, wanted)?));
                }
            }
            Some(Frame::Data(data)) => {
                let Some(restorers) = restorers.clone() else {
                    return Err(broken("data before the list of files".into()));
                };
                let crc = crc32c::crc32c(&data.bytes);
                if crc != data.crc {
                    return Err(Attempt::Elsewhere(format!(
                        "{address}: data damaged on the way (CRC {crc:08x}, sent {:08x})",
                        data.crc
                    )));
                }
                progress.done(data.bytes.len() as u64);
                let written = tokio::task::spawn_blocking(move || {
                    restorers.write(data.file, data.variable, data.offset, &data.bytes)
                })
                .await;
                written.map_err(|error| receiver(error.into()))?.map_err(sink_failure)?;
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
            None => return Err(Attempt::Elsewhere(format!("{address} stopped before the end"))),
        }
    }
}

fn parse_files(announcement: &[u8], ranks: &[u32]) -> Result<Vec<FileHeader>, String> {
    let files = v1::Announcement::decode(announcement).map_err(|error| error.to_string())?.files;
    if files.len() != ranks.len() {
        return Err(format!("{} files and {} ranks", files.len(), ranks.len()));
    }
    let parse = |(file, rank): (v1::FileHeader, &u32)| file_from_wire(file, Rank(*rank));
    files.into_iter().zip(ranks).map(parse).collect::<Result<_, _>>().map_err(|error| mcr_anc::hub::error_chain(&error))
}
