//! Measures profiles and group sizes on a sample of the newest checkpoint, directly from the containers of the store.
//!
//! A save of the sample is repeated in memory, with the planning and the codecs of a save. The variables are those in
//! the containers, so filters of HDF5 were removed or left as by the profile of the saved checkpoint. Each checkpoint
//! is coded by itself. Nothing is written.

use super::args::AdviseArgs;
use crate::bench::input::Deadline;
use crate::bench::measure::{Bench, RawSource};
use crate::bench::profiles::{Limits, ProfileTotal, measure_profile};
use crate::output::Progress;
use anyhow::Context;
use mcr_anc::budget::Budget;
use mcr_anc::flush::least_budget;
use mcrengine::classify::VariableRef;
use mcrengine::codec::Profile;
use mcrengine::container::{ContainerSet, VariableReader};
use mcrengine::header::FileHeader;
use mcrengine::ids::{GroupId, JobId, Rank};
use mcrengine::manifest::CheckpointState;
use mcrengine::store::Store;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of ranks whose files are measured, unless one group has more ranks.
const RANKS_MAX: u32 = 128;
/// Maximum memory for segments that were decoded from containers, unless one container needs more. In bytes.
const DECODED_BYTES_MAX: u64 = 256 << 20;
/// Memory for decoded segments of one container, unless one segment needs more. In bytes.
const DECODED_BYTES: u64 = 32 << 20;

/// A measured combination of a profile and a group size.
#[derive(Debug)]
pub struct Coding {
    pub profile: Profile,
    pub group_size: u32,
    /// `None` if the time limit was reached.
    pub result: Option<CodingResult>,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct CodingResult {
    /// Bytes of the files divided by the bytes of the containers.
    pub ratio: f64,
    /// Raw bytes of a second of processor time.
    pub encode_bytes_per_second: f64,
    pub decode_bytes_per_second: f64,
    /// Percentage of the raw bytes of the measured ranks that was encoded.
    pub measured_percent: f64,
}

/// The measurements of a checkpoint.
#[derive(Debug)]
pub struct Sample {
    /// The profile that the checkpoint was saved with. `None` if this version does not know the profile.
    pub in_use: Option<Profile>,
    /// The group size that the checkpoint was saved with.
    pub group_size: u32,
    pub ranks: u32,
    pub measured_ranks: u32,
    /// Length of the files of the measured ranks, in bytes.
    pub measured_file_bytes: u64,
    /// The profiles, each with the group size in use. The profile in use is first.
    pub profiles: Vec<Coding>,
    /// The group sizes, each with the profile in use, or else with the first of the profiles.
    pub group_sizes: Vec<Coding>,
    /// Wanted group sizes that cannot be measured, because the sample has fewer ranks.
    pub too_large: Vec<u32>,
}

impl Sample {
    /// Whether everything was measured before the time limit.
    pub fn is_complete(&self) -> bool {
        self.profiles.iter().chain(&self.group_sizes).all(|coding| coding.result.is_some())
    }
}

/// Measures a checkpoint.
pub fn measure(store: &dyn Store, job: &JobId, state: &CheckpointState, args: &AdviseArgs) -> anyhow::Result<Sample> {
    let options = &args.measure;
    let deadline = Deadline::after(options.time_limit);
    let progress = Progress::new("measuring", args.json);
    progress.message(format!("{}, opening", state.id));
    let files = Files::open(store, job, state)?;
    let in_use: Option<Profile> = state.profile.parse().ok();
    let mut profiles: Vec<Profile> = in_use.iter().chain(&options.profiles).cloned().collect();
    let mut seen = Vec::new();
    profiles.retain(|profile| {
        !seen.contains(profile) && {
            seen.push(profile.clone());
            true
        }
    });
    let budget = Budget::new(budget_bytes(&profiles));
    let bench = Bench::of(&files.headers, files.ranks, files.source, &budget);
    let measured_file_bytes =
        files.headers.iter().filter(|file| !file.kind.is_companion()).map(|file| file.bytes).sum();
    let measured = |profile: &Profile, group_size: u32| -> anyhow::Result<Coding> {
        let limits = Limits { sample_bytes: options.sample, repetitions: 1, deadline };
        let total = measure_profile(&bench, profile, group_size, limits, &progress)?;
        let result = total.map(|total| CodingResult::of(&total, measured_file_bytes));
        Ok(Coding { profile: profile.clone(), group_size, result })
    };
    let group_size = state.group_size.max(1);
    let (group_sizes, too_large) = wanted_sizes(&options.group_sizes, group_size, files.ranks);
    let first = profiles.first().cloned().unwrap_or(Profile::Fast);
    let profiles = profiles.iter().map(|profile| measured(profile, group_size)).collect::<anyhow::Result<Vec<_>>>()?;
    let in_use_result = profiles.first().and_then(|coding| coding.result);
    let sized = |size: u32| match size == group_size {
        true => Ok(Coding { profile: first.clone(), group_size, result: in_use_result }),
        false => measured(&first, size),
    };
    Ok(Sample {
        in_use,
        group_size,
        ranks: state.ranks,
        measured_ranks: files.ranks,
        measured_file_bytes,
        group_sizes: group_sizes.into_iter().map(sized).collect::<anyhow::Result<_>>()?,
        profiles,
        too_large,
    })
}

/// The group sizes to measure, including the size in use, and the sizes that the sample is too small for. In a group
/// size above the number of ranks, all ranks are one group.
fn wanted_sizes(wanted: &[NonZeroU32], in_use: u32, measured_ranks: u32) -> (Vec<u32>, Vec<u32>) {
    let wanted = wanted.iter().map(|size| size.get());
    let (mut fitting, mut too_large): (Vec<u32>, Vec<u32>) =
        wanted.chain([in_use]).partition(|size| *size <= measured_ranks || *size == in_use);
    for sizes in [&mut fitting, &mut too_large] {
        sizes.sort_unstable();
        sizes.dedup();
    }
    (fitting, too_large)
}

/// The memory that a daemon has by default, for the profile that needs most.
fn budget_bytes(profiles: &[Profile]) -> u64 {
    let of = |profile: &Profile| {
        let bytes = profile.budget_mib() << 20;
        bytes.max(least_budget(profile.segment_bytes(bytes), profile))
    };
    profiles.iter().map(of).max().unwrap_or(1 << 30)
}

impl CodingResult {
    fn of(total: &ProfileTotal, file_bytes: u64) -> Self {
        let [encode, decode] = total.rates();
        Self {
            ratio: crate::output::ratio(file_bytes, total.stored_bytes),
            encode_bytes_per_second: encode,
            decode_bytes_per_second: decode,
            measured_percent: 100.0 * total.cell.raw_bytes as f64 / total.raw_bytes.max(1) as f64,
        }
    }
}

/// The files of some groups of a checkpoint.
struct Files {
    /// Sorted by rank. The ranks are numbered from 0.
    headers: Vec<FileHeader>,
    ranks: u32,
    source: StoreSource,
}

impl Files {
    /// Opens groups in the middle of the checkpoint, so that the files are those of typical ranks.
    fn open(store: &dyn Store, job: &JobId, state: &CheckpointState) -> anyhow::Result<Self> {
        let groups = (RANKS_MAX / state.group_size.max(1)).clamp(1, state.groups.max(1));
        let first = (state.groups.saturating_sub(groups)) / 2;
        let (mut sets, mut files) = (Vec::new(), Vec::new());
        for group in (first..first + groups).map(GroupId) {
            let set = ContainerSet::open(store, job, &state.id, group)
                .with_context(|| format!("checkpoint {}, {group}", state.id))?;
            let of_set = (0u32..).zip(set.index().files()).map(|(nth, file)| (file.clone(), (sets.len(), nth)));
            files.extend(of_set);
            sets.push(Arc::new(set));
        }
        let first_rank = first.saturating_mul(state.group_size);
        for (file, _) in &mut files {
            file.rank = Rank(file.rank.0.saturating_sub(first_rank));
        }
        files.sort_by(|(a, _), (b, _)| a.rank.cmp(&b.rank).then_with(|| a.path.cmp(&b.path)));
        let ranks = (groups * state.group_size).min(state.ranks.saturating_sub(first_rank)).max(1);
        let (headers, places) = files.into_iter().unzip();
        Ok(Self { headers, ranks, source: StoreSource { sets, places, readers: Mutex::default() } })
    }
}

/// Reads variables from the containers of several groups.
struct StoreSource {
    sets: Vec<Arc<ContainerSet>>,
    /// For each file: the index of its set, and its number in the set.
    places: Vec<(usize, u32)>,
    /// The readers of sets that were used last, the oldest first.
    readers: Mutex<Vec<(usize, VariableReader)>>,
}

impl RawSource for StoreSource {
    fn read_raw(&self, file: usize, variable: usize, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        let (at, file) = self.places[file];
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let found = readers.iter().position(|(set, _)| *set == at).map(|nth| readers.remove(nth).1);
        let mut reader = match found {
            Some(reader) => reader,
            None => VariableReader::new(Arc::clone(&self.sets[at]), DECODED_BYTES)?,
        };
        let kept = |readers: &[(usize, VariableReader)]| readers.iter().map(|(_, r)| r.segments().bytes()).sum::<u64>();
        while !readers.is_empty() && kept(&readers) + reader.segments().bytes() > DECODED_BYTES_MAX {
            readers.remove(0);
        }
        let variable = u32::try_from(variable)?;
        reader.read(VariableRef { file, variable }, offset, into)?;
        readers.push((at, reader));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_group_sizes_that_the_sample_has_ranks_for_are_measured() {
        let sizes = |all: &[u32]| all.iter().filter_map(|size| NonZeroU32::new(*size)).collect();
        let wanted: Vec<NonZeroU32> = sizes(&[128, 1, 8, 8]);
        assert_eq!(wanted_sizes(&wanted, 32, 64), (vec![1, 8, 32], vec![128]));
        // The size in use is measured, even if the job has fewer ranks.
        assert_eq!(wanted_sizes(&wanted, 32, 4), (vec![1, 32], vec![8, 128]));
    }
}
