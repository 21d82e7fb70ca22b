//! Measures how many bytes a profile would store of a checkpoint, and how long encoding and decoding would take.

use super::input::Deadline;
use super::measure::{Bench, Coded, Coder, Item, Planned, all_items, check};
use crate::output::Progress;
use mcrengine::codec::{Chain, Profile, Scratch};
use mcrengine::container::StoredSegment;
use mcrengine::header::{FileHeader, Role};
use mcrengine::plan::SegmentPlan;
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::time::Duration;

/// The result of a codec for some segments, and its times.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub raw_bytes: u64,
    pub stored_bytes: u64,
    pub encode_ns: u64,
    pub decode_ns: u64,
    /// Raw bytes that each chain encoded.
    pub chains: BTreeMap<String, u64>,
}

impl Cell {
    pub fn add(&mut self, other: &Self) {
        self.raw_bytes += other.raw_bytes;
        self.stored_bytes += other.stored_bytes;
        self.encode_ns += other.encode_ns;
        self.decode_ns += other.decode_ns;
        for (chain, raw_bytes) in &other.chains {
            *self.chains.entry(chain.clone()).or_default() += raw_bytes;
        }
    }

    pub fn ratio(&self) -> f64 {
        crate::output::ratio(self.raw_bytes, self.stored_bytes)
    }

    /// Raw bytes per second of encoding and of decoding.
    pub fn rates(&self) -> [f64; 2] {
        [self.encode_ns, self.decode_ns].map(|ns| self.raw_bytes as f64 / (ns.max(1) as f64 / 1e9))
    }

    /// The chain that encoded most of the raw bytes.
    pub fn main_chain(&self) -> &str {
        self.chains.iter().max_by_key(|(_, raw_bytes)| **raw_bytes).map_or("", |(chain, _)| chain.as_str())
    }
}

/// The bytes that a profile would store of a checkpoint.
pub struct ProfileTotal {
    /// Bytes of the containers, including index and skeletons.
    pub stored_bytes: u64,
    /// Bytes of the containers without segments: the index and the headers of segments.
    pub index_bytes: u64,
    /// Whether every segment was encoded. If not, the stored lengths of the remaining segments are estimated from the
    /// encoded segments.
    pub is_exact: bool,
    /// The sum over the encoded segments.
    pub cell: Cell,
    /// Raw bytes of all segments.
    pub raw_bytes: u64,
    /// Processor time to encode and to decode all segments, measured or estimated.
    pub encode_ns: u64,
    pub decode_ns: u64,
}

impl ProfileTotal {
    /// Raw bytes per second of encoding and of decoding.
    pub fn rates(&self) -> [f64; 2] {
        [self.encode_ns, self.decode_ns].map(|ns| self.raw_bytes as f64 / (ns.max(1) as f64 / 1e9))
    }
}

/// The limits of the measurement of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Raw bytes to encode. At least one segment is encoded.
    pub sample_bytes: u64,
    /// Number of times that a segment is encoded and decoded.
    pub repetitions: u32,
    pub deadline: Deadline,
}

/// Measures a profile with the same plan as in a save. If the segments have more bytes than the sample, a part of each
/// class is measured, but at least one segment of each class. `None` if the deadline passed.
pub fn measure_profile(
    bench: &Bench<'_>,
    profile: &Profile,
    group_size: u32,
    limits: Limits,
    progress: &Progress,
) -> anyhow::Result<Option<ProfileTotal>> {
    let coder = Coder::Profile(profile.clone());
    let groups = bench.plan(group_size, coder.plan(bench.budget.total_bytes()))?;
    let all = all_items(&groups);
    let raw_of = |item: &Item| groups[item.group].segments[item.segment].raw_bytes.0;
    let raw_bytes = all.iter().map(raw_of).sum();
    let keys: Vec<String> = all.iter().map(|item| key_of(&groups[item.group], item.segment)).collect();
    let chosen = sampled_segments(&keys, &all.iter().map(raw_of).collect::<Vec<_>>(), limits.sample_bytes);
    let items: Vec<Item> = chosen.iter().map(|&at| all[at]).collect();
    progress.message(profile.to_string());
    let memory = coder.memory_per_raw_byte();
    let measured = bench.each(&groups, &items, memory, limits.deadline, |group, segment, raw, scratch| {
        let (cell, stored) = timed_cell(&coder, segment, group.files, raw, limits.repetitions, scratch)?;
        progress.done(raw.len() as u64);
        Ok((cell, stored.chain))
    })?;
    let Some(measured) = measured.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
    let (mut cell, mut of_keys) = (Cell::default(), BTreeMap::<&str, (Cell, Chain)>::new());
    for (&at, (one, chain)) in chosen.iter().zip(&measured) {
        cell.add(one);
        of_keys.entry(&keys[at]).or_insert_with(|| (Cell::default(), chain.clone())).0.add(one);
    }
    let is_exact = items.len() == all.len();
    // A segment that was not encoded is assumed to behave like the encoded segments of its class.
    let (mut encode_ns, mut decode_ns) = (0, 0);
    let mut measured = chosen.into_iter().zip(measured).peekable();
    let mut coded = all.iter().enumerate().map_while(|(at, item)| match measured.next_if(|(nth, _)| *nth == at) {
        Some((_, (one, chain))) => {
            (encode_ns, decode_ns) = (encode_ns + one.encode_ns, decode_ns + one.decode_ns);
            Some((chain, one.stored_bytes))
        }
        None => of_keys.get(keys[at].as_str()).map(|(class, chain)| {
            let factor = raw_of(item) as f64 / class.raw_bytes.max(1) as f64;
            let scaled = |value: u64| (value as f64 * factor) as u64;
            encode_ns += scaled(class.encode_ns);
            decode_ns += scaled(class.decode_ns);
            (chain.clone(), scaled(class.stored_bytes))
        }),
    });
    let (mut stored_bytes, mut segment_bytes) = (0, 0);
    for group in &groups {
        let coded: Vec<Coded> = coded.by_ref().take(group.segments.len()).collect();
        segment_bytes += coded.iter().map(|(_, stored_bytes)| stored_bytes).sum::<u64>();
        stored_bytes += group.container_bytes(coded.into_iter())?;
    }
    drop(coded);
    let index_bytes = stored_bytes - segment_bytes;
    Ok(Some(ProfileTotal { stored_bytes, index_bytes, is_exact, cell, raw_bytes, encode_ns, decode_ns }))
}

/// The class of a segment, or the kind of variables in its pool.
pub fn key_of(group: &Planned<'_>, segment: usize) -> String {
    let segment = &group.segments[segment];
    let class = segment.class.and_then(|class| group.classes.get(class as usize));
    match (class, segment.role) {
        (Some(class), _) => class.key.to_string(),
        (None, Role::Skeleton) => "#small skeletons".into(),
        (None, _) => format!("#small variables, {}", segment.element),
    }
}

/// The indices of the segments to measure, sorted. `keys` and `lengths` are the classes and the raw bytes of all
/// segments. Each class has the share that the sample has in all segments, and at least its longest segment.
fn sampled_segments(keys: &[String], lengths: &[u64], sample_bytes: u64) -> Vec<usize> {
    let mut of_keys = BTreeMap::<&str, Vec<usize>>::new();
    keys.iter().enumerate().for_each(|(at, key)| of_keys.entry(key).or_default().push(at));
    let total = lengths.iter().sum();
    let mut chosen = Vec::new();
    for mut of_key in of_keys.into_values() {
        // The last segment of a class may be short, so a class is represented by its longest segments first.
        of_key.sort_by_key(|&at| std::cmp::Reverse(lengths[at]));
        let count = part(of_key.len(), sample_bytes, total).count();
        chosen.extend((0..count).map(|nth| of_key[nth * of_key.len() / count]));
    }
    chosen.sort_unstable();
    chosen
}

/// Encodes and decodes a segment, and measures the times.
pub fn timed_cell(
    coder: &Coder,
    segment: &SegmentPlan,
    files: &[FileHeader],
    raw: &[u8],
    repetitions: u32,
    scratch: &mut Scratch,
) -> anyhow::Result<(Cell, StoredSegment)> {
    let (encode_ns, stored) = timed(repetitions, || coder.encode(segment, files, raw, &mut *scratch))?;
    let decode = || Ok(stored.chain.decode(&stored.stored, raw.len(), &mut *scratch)?);
    let (decode_ns, _) = timed(repetitions, decode)?;
    check(&stored, raw, scratch)?;
    let (raw_bytes, stored_bytes) = (raw.len() as u64, stored.stored.len() as u64);
    let chains = BTreeMap::from([(stored.chain.to_string(), raw_bytes)]);
    Ok((Cell { raw_bytes, stored_bytes, encode_ns, decode_ns, chains }, stored))
}

/// Chooses `things * sample / total` indices that are spread evenly over 0 to `things - 1`. Returns at least one
/// index if `things` is not 0.
pub fn part(things: usize, sample: u64, total: u64) -> impl Iterator<Item = usize> {
    let share = (things as u128 * u128::from(sample)).div_ceil(u128::from(total.max(1)));
    let n = usize::try_from(share).unwrap_or(usize::MAX).clamp(1, things.max(1)).min(things);
    (0..n).map(move |i| (2 * i + 1) * things / (2 * n))
}

/// Time after which no further repetition begins, as the sum over all repetitions. 500 ms is much longer than the
/// resolution of the clock.
const REPETITIONS_TIME_MAX: Duration = Duration::from_millis(500);

/// Calls `work` at most `repetitions` times. Returns the median processor time of this thread in ns, and the last
/// result.
fn timed<T>(repetitions: u32, mut work: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<(u64, T)> {
    let mut taken: Vec<Duration> = Vec::new();
    loop {
        let before = processor_time()?;
        let result = work()?;
        taken.push(processor_time()?.saturating_sub(before));
        if taken.len() >= repetitions as usize || taken.iter().sum::<Duration>() >= REPETITIONS_TIME_MAX {
            taken.sort();
            return Ok((taken[taken.len() / 2].as_nanos() as u64, result));
        }
    }
}

fn processor_time() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_evenly_spread_and_never_nothing_of_something() {
        assert_eq!(part(4, 100, 100).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(part(8, 25, 100).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(part(8, 0, 100).collect::<Vec<_>>(), [4]);
        assert_eq!(part(0, 5, 0).count(), 0);
        assert_eq!(part(3, u64::MAX, 1).count(), 3);
    }

    #[test]
    fn every_class_is_in_the_sample_with_its_longest_segments() {
        let keys = ["a", "a", "a", "a", "b", "b", "c"].map(String::from);
        let lengths = [10, 10, 10, 4, 5, 50, 1];
        assert_eq!(sampled_segments(&keys, &lengths, 0), [0, 5, 6]);
        assert_eq!(sampled_segments(&keys, &lengths, 45), [0, 2, 5, 6]);
        assert_eq!(sampled_segments(&keys, &lengths, 90), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(sampled_segments(&[], &[], 90), [0usize; 0]);
    }

    #[test]
    fn the_median_is_of_as_many_runs_as_asked_for() {
        let mut runs = 0;
        let (_, last) = timed(5, || {
            runs += 1;
            Ok(runs)
        })
        .expect("a clock");
        assert_eq!(last, 5);
    }
}
