//! Selects the checkpoints of a directory and the ranks to measure, and describes their files as a save would.

use crate::args::BenchInput;
use crate::common::real_directory;
use crate::found::{Found, find_checkpoints, missing_ranks, nothing_found};
use crate::output::{name_of, tell};
use anyhow::{Context, bail};
use mcr_cnc::capture::{CaptureMode, Image, Verdicts, capture_keeping};
use mcr_cnc::companions::{Companion, mark_hard_links};
use mcr_cnc::fingerprint::Fingerprint;
use mcr_cnc::h5::Maps;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, FilePath, Grouping, RANKS_MAX, Rank};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time after which no new work begins. If a segment or a file is being read at this time, it is still read to
/// its end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub Option<Instant>);

impl Deadline {
    /// A deadline `seconds` from now. 0: no deadline.
    pub fn after(seconds: u64) -> Self {
        let far = |seconds| Instant::now().checked_add(Duration::from_secs(seconds));
        Self(if seconds == 0 { None } else { far(seconds) })
    }

    /// A deadline after half of the remaining time.
    pub fn half(self) -> Self {
        Self(self.0.map(|end| {
            let now = Instant::now();
            now + end.saturating_duration_since(now) / 2
        }))
    }

    pub fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// A complete checkpoint of the directory.
pub struct Checkpoint {
    pub label: CheckpointId,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// The files by rank, then by path, each with its length.
    pub files: Vec<(Rank, FilePath, u64)>,
    /// Links, directories and pointer files that accompany the checkpoint.
    companions: Vec<Companion>,
}

impl Checkpoint {
    /// Total length of the files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, _, bytes)| bytes).sum()
    }
}

/// The directory and its complete checkpoints, the oldest first. There is at least one checkpoint.
pub fn checkpoints(input: &BenchInput) -> anyhow::Result<(PathBuf, Vec<Checkpoint>)> {
    let dir = real_directory(&input.dir)?;
    let Found { checkpoints: found, left_out, mut companions, .. } =
        find_checkpoints(&dir, &input.layout, input.ranks, input.json, None, None)?;
    let highest = |files: &[(FilePath, Rank)]| files.iter().map(|(_, rank)| rank.0).max().unwrap_or(0);
    let least = found.iter().map(|(_, files)| highest(files).saturating_add(1)).max();
    if let (Some(given), Some(least)) = (input.ranks, least)
        && given < least
    {
        bail!("--ranks is {given}, and there is a file of rank {}; give at least --ranks {least}", least - 1);
    }
    let ranks = input.ranks.or(least);
    let Some(ranks) = ranks else {
        return Err(nothing_found(&dir, &input.layout, &left_out).into());
    };
    if Grouping::new(ranks, 1).is_none() {
        bail!("{ranks} ranks; there must be 1 to {RANKS_MAX}");
    }
    let mut complete = Vec::with_capacity(found.len());
    for (label, files) in found {
        let mut present = vec![false; ranks as usize];
        let mut sized = Vec::with_capacity(files.len());
        for (path, rank) in files {
            let bytes = std::fs::symlink_metadata(dir.join(path.as_path()))
                .with_context(|| format!("{path}: cannot be examined"))?
                .len();
            present.iter_mut().skip(rank.0 as usize).take(1).for_each(|there| *there = true);
            sized.push((rank, path, bytes));
        }
        let missing: Vec<u32> = (0..).zip(&present).filter(|(_, there)| !**there).map(|(rank, _)| rank).collect();
        if missing.is_empty() {
            sized.sort();
            let companions = companions.remove(&label).unwrap_or_default();
            complete.push(Checkpoint { label, ranks, files: sized, companions });
        } else {
            tell(format!("{label}: {}; left out", missing_ranks(&missing, ranks)));
        }
    }
    if complete.is_empty() {
        bail!("{}: no checkpoint is complete; name the files with --layout, or the ranks with --ranks", name_of(&dir));
    }
    Ok((dir, complete))
}

/// The checkpoint with the given name, or the newest checkpoint.
pub fn wanted(checkpoints: &[Checkpoint], label: Option<&CheckpointId>) -> anyhow::Result<usize> {
    let Some(label) = label else { return Ok(checkpoints.len() - 1) };
    checkpoints.iter().position(|checkpoint| checkpoint.label == *label).with_context(|| {
        let known = checkpoints.iter().rev().take(10).map(|c| c.label.to_string()).collect::<Vec<_>>().join(", ");
        format!("there is no complete checkpoint {label}; the newest are {known}")
    })
}

/// The ranks to measure: evenly spread whole groups, whose files have at most `sample_bytes` together. If one group
/// is larger, only some ranks of the middle group are taken, but at least one rank.
pub fn sampled_ranks(bytes_of: &[u64], group_size: u32, sample_bytes: u64) -> Vec<u32> {
    let all = || (0u32..).zip(bytes_of).map(|(rank, _)| rank);
    if bytes_of.iter().sum::<u64>() <= sample_bytes {
        return all().collect();
    }
    let size = (group_size.max(1) as usize).min(bytes_of.len().max(1));
    let groups: Vec<u64> = bytes_of.chunks(size).map(|ranks| ranks.iter().sum()).collect();
    // Begin with the number of groups that would fit into the sample if all groups had the same size. Choose fewer
    // groups if the chosen groups are larger.
    let alike = (groups.len() as u64).saturating_mul(sample_bytes) / groups.iter().sum::<u64>().max(1);
    for n in (1..=alike.min(groups.len() as u64) as usize).rev() {
        let chosen: Vec<usize> = (0..n).map(|i| (2 * i + 1) * groups.len() / (2 * n)).collect();
        if chosen.iter().map(|&group| groups[group]).sum::<u64>() <= sample_bytes {
            let of_group = |group: usize| group * size..((group + 1) * size).min(bytes_of.len());
            return chosen.into_iter().flat_map(of_group).map(|rank| rank as u32).collect(); // ranks have 32 bits
        }
    }
    let first = groups.len() / 2 * size;
    let mut left = sample_bytes;
    let fits = |(n, rank): &(usize, u32)| {
        let bytes = bytes_of[*rank as usize];
        let fits = *n == 0 || bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    };
    all().skip(first).take(size).enumerate().take_while(fits).map(|(_, rank)| rank).collect()
}

/// Described files, sorted by rank, then by path. The measured ranks are numbered from 0 without gaps.
pub struct Captured {
    pub headers: Vec<FileHeader>,
    pub fingerprints: Vec<Fingerprint>,
    /// The bytes of files that are held in memory.
    pub images: Vec<Option<Arc<Image>>>,
    pub ranks: u32,
}

impl Captured {
    /// Whether the filters of any chunks were removed.
    pub fn has_filters(&self) -> bool {
        self.headers.iter().flat_map(|header| &header.variables).any(|variable| !variable.filters.is_empty())
    }

    /// The files of the checkpoint, without the links, directories and pointer files that accompany it.
    pub fn files(&self) -> impl Iterator<Item = &FileHeader> {
        self.headers.iter().filter(|header| !header.kind.is_companion())
    }

    /// Total length of the files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files().map(|header| header.bytes).sum()
    }
}

/// Reads some ranks of a checkpoint and describes their files, as a save would. `None` if the time limit was reached.
pub fn capture_ranks(
    dir: &Path,
    checkpoint: &Checkpoint,
    ranks: &[u32],
    mode: CaptureMode,
    threads: usize,
    deadline: Deadline,
) -> anyhow::Result<Option<Captured>> {
    let renumbered: BTreeMap<u32, u32> = ranks.iter().copied().zip(0..).collect();
    let files: Vec<(&FilePath, Rank)> = (checkpoint.files.iter())
        .filter_map(|(rank, path, _)| renumbered.get(&rank.0).map(|&rank| (path, Rank(rank))))
        .collect();
    let (maps, verdicts) = (Maps::new(), Verdicts::default());
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(files.len())), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, files.len().max(1)) {
            scope.spawn(|| {
                while !deadline.is_over() {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some((path, rank)) = files.get(nth) else { return };
                    match capture_keeping(dir, path, *rank, mode, &verdicts, &maps, &mut |_| false) {
                        Ok((file, _)) => done.lock().unwrap_or_else(PoisonError::into_inner).push((nth, file)),
                        Err(error) => {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error).with_context(|| format!("checkpoint {}", checkpoint.label));
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    if done.len() < files.len() {
        return Ok(None);
    }
    done.sort_by_key(|(nth, _)| *nth);
    let mut described: Vec<_> = done.into_iter().map(|(_, file)| (file.header, file.fingerprint, None)).collect();
    let of_rank = |one: &Companion| {
        let rank = Rank(*renumbered.get(&one.rank.0)?);
        Some((one.header(rank), one.fingerprint(), Some(one.image())))
    };
    described.extend(checkpoint.companions.iter().filter_map(of_rank));
    described.sort_by(|(a, ..), (b, ..)| a.rank.cmp(&b.rank).then_with(|| a.path.cmp(&b.path)));
    mark_hard_links(described.iter_mut().map(|(header, fingerprint, _)| (header, *fingerprint)));
    let mut captured = Captured {
        headers: Vec::with_capacity(described.len()),
        fingerprints: Vec::with_capacity(described.len()),
        images: Vec::with_capacity(described.len()),
        ranks: renumbered.len() as u32, // ranks have 32 bits
    };
    for (header, fingerprint, image) in described {
        captured.headers.push(header);
        captured.fingerprints.push(fingerprint);
        captured.images.push(image);
    }
    Ok(Some(captured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_whole_groups_or_ranks_of_one_and_never_nothing() {
        let bytes_of = [10u64; 64];
        assert_eq!(sampled_ranks(&bytes_of, 32, 640).len(), 64, "all where there is room");
        let two_groups: Vec<u32> = (16..24).chain(48..56).collect();
        assert_eq!(sampled_ranks(&bytes_of, 8, 170), two_groups);
        assert_eq!(sampled_ranks(&bytes_of, 32, 45), [32, 33, 34, 35]);
        assert_eq!(sampled_ranks(&bytes_of, 32, 0), [32]);
        assert_eq!(sampled_ranks(&[7], 32, 1), [0]);
        assert_eq!(sampled_ranks(&[1, 1, 9, 1], 1, 8), [1, 3]);
        assert_eq!(sampled_ranks(&[1, 9, 1, 1], 1, 8), [2], "one of the two that were hit is too large");
    }

    #[test]
    fn a_deadline_of_no_seconds_never_comes() {
        assert!(!Deadline::after(0).is_over() && !Deadline::after(0).half().is_over());
        assert!(Deadline(Some(Instant::now())).half().is_over());
    }
}
