//! What another profile, another group size or another number of aggregators would bring.

use super::args::MeasureArgs;
use super::history::Measured;
use super::interval::Times;
use super::sample::{Coding, CodingResult, Sample};
use crate::common::threads_of;
use mcrengine::codec::Profile;

/// One choice of profile, group size and number of aggregators. Fields are `None` if they were not measured before
/// the time limit, or if they depend on a measurement of the profile in use and this version does not know that
/// profile.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Choice {
    pub profile: Profile,
    pub group_size: u32,
    pub aggregators: u32,
    pub in_use: bool,
    pub ratio: Option<f64>,
    /// Bytes of a whole checkpoint in the store.
    pub stored_bytes: Option<u64>,
    pub encode_bytes_per_second: Option<f64>,
    pub decode_bytes_per_second: Option<f64>,
    /// Percentage of the raw bytes of the measured ranks that was encoded.
    pub measured_percent: Option<f64>,
    /// Time in which the aggregators encode a checkpoint, without the transfers.
    pub coding_ms: Option<u64>,
    /// Time in which as many processes decode a checkpoint, without the transfers.
    pub decoding_ms: Option<u64>,
    /// The interval by Daly, or the time to encode a checkpoint if this is longer.
    pub interval_ms: Option<u64>,
    pub lost_percent: Option<f64>,
    pub bytes_per_day: Option<u64>,
}

/// All choices that were measured.
#[derive(Debug, serde::Serialize)]
pub struct Choices {
    pub profiles: Vec<Choice>,
    pub group_sizes: Vec<Choice>,
    pub aggregators: Vec<Choice>,
}

/// The numbers of the job from which the costs of a choice follow.
pub struct Job<'a> {
    pub sample: &'a Sample,
    pub measured: &'a Measured,
    pub times: &'a Times,
    pub aggregators: u32,
    /// Threads of each aggregator.
    pub threads: u32,
}

impl<'a> Job<'a> {
    pub fn new(sample: &'a Sample, measured: &'a Measured, times: &'a Times, options: &MeasureArgs) -> Self {
        let threads = threads_of(options.threads) as u32; // a number of threads is small
        Self { sample, measured, times, aggregators: options.aggregators.get(), threads }
    }

    pub fn choices(&self) -> Choices {
        let of = |codings: &[Coding]| codings.iter().map(|coding| self.choice(coding, self.aggregators)).collect();
        let counts = numbers_of_aggregators(self.aggregators, self.groups(self.sample.group_size));
        let first = self.sample.profiles.first();
        Choices {
            profiles: of(&self.sample.profiles),
            group_sizes: of(&self.sample.group_sizes),
            aggregators: counts.into_iter().filter_map(|count| Some(self.choice(first?, count))).collect(),
        }
    }

    fn groups(&self, group_size: u32) -> u32 {
        self.sample.ranks.max(1).div_ceil(group_size.max(1))
    }

    /// Seconds in which aggregators code a whole checkpoint at this rate of one thread. Each group is coded by one
    /// aggregator.
    fn coding_s(&self, bytes_per_second: f64, group_size: u32, aggregators: u32) -> f64 {
        let groups = self.groups(group_size);
        let of_busiest = f64::from(groups.div_ceil(aggregators.max(1))) / f64::from(groups);
        self.measured.file_bytes as f64 / bytes_per_second.max(1.0) * of_busiest / f64::from(self.threads.max(1))
    }

    /// The profile, group size and number of aggregators that the job uses now.
    fn now(&self) -> Option<[f64; 2]> {
        let in_use = self.sample.in_use.as_ref()?;
        let coding = self.sample.profiles.iter().find(|coding| coding.profile == *in_use)?;
        Some(self.seconds(coding, &coding.result?, self.aggregators))
    }

    /// The seconds to encode and to decode a checkpoint.
    fn seconds(&self, coding: &Coding, result: &CodingResult, aggregators: u32) -> [f64; 2] {
        [result.encode_bytes_per_second, result.decode_bytes_per_second]
            .map(|rate| self.coding_s(rate, coding.group_size, aggregators))
    }

    fn choice(&self, coding: &Coding, aggregators: u32) -> Choice {
        let in_use = self.sample.in_use.as_ref() == Some(&coding.profile)
            && coding.group_size == self.sample.group_size
            && aggregators == self.aggregators;
        let mut choice = Choice {
            profile: coding.profile.clone(),
            group_size: coding.group_size,
            aggregators,
            in_use,
            ratio: None,
            stored_bytes: None,
            encode_bytes_per_second: None,
            decode_bytes_per_second: None,
            measured_percent: None,
            coding_ms: None,
            decoding_ms: None,
            interval_ms: None,
            lost_percent: None,
            bytes_per_day: None,
        };
        let Some(result) = &coding.result else { return choice };
        let stored_bytes = self.measured.file_bytes as f64 / result.ratio.max(1e-9);
        let [encode_s, decode_s] = self.seconds(coding, result, aggregators);
        choice.ratio = Some(result.ratio);
        choice.stored_bytes = Some(stored_bytes as u64);
        choice.encode_bytes_per_second = Some(result.encode_bytes_per_second);
        choice.decode_bytes_per_second = Some(result.decode_bytes_per_second);
        choice.measured_percent = Some(result.measured_percent);
        choice.coding_ms = Some((encode_s * 1000.0) as u64);
        choice.decoding_ms = Some((decode_s * 1000.0) as u64);
        if let Some([encode_now_s, decode_now_s]) = self.now() {
            // The commit and the restart take the measured times, and longer or shorter by the difference of coding.
            let times = Times {
                commit_s: (self.times.commit_s + encode_s - encode_now_s).max(0.0),
                restart_s: (self.times.restart_s + decode_s - decode_now_s).max(0.0),
                ..*self.times
            };
            // If checkpoints follow each other faster than the aggregators encode, checkpoints wait.
            let interval_s = times.daly_s().max(encode_s - times.write_s);
            choice.interval_ms = Some((interval_s * 1000.0) as u64);
            choice.lost_percent = Some(times.lost_percent(interval_s));
            choice.bytes_per_day = Some((stored_bytes * 86_400.0 / (interval_s + times.write_s)) as u64);
        }
        choice
    }
}

/// The numbers of aggregators to show: the number in use, fewer, and more, up to one for each group.
fn numbers_of_aggregators(in_use: u32, groups: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = [in_use / 2, in_use, in_use.saturating_mul(2), in_use.saturating_mul(4)]
        .into_iter()
        .filter(|count| *count == in_use || (1..=groups).contains(count))
        .collect();
    if groups > in_use {
        numbers.push(groups);
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coding(profile: Profile, group_size: u32, ratio: f64, encode_mb: f64) -> Coding {
        let rate = encode_mb * 1e6;
        let result = CodingResult {
            ratio,
            encode_bytes_per_second: rate,
            decode_bytes_per_second: 2.0 * rate,
            measured_percent: 100.0,
        };
        Coding { profile, group_size, result: Some(result) }
    }

    #[test]
    fn a_slower_profile_stores_less_and_delays_the_commit_and_the_restart() {
        let mut unmeasured = coding(Profile::Max, 8, 3.0, 1.0);
        unmeasured.result = None;
        let sample = Sample {
            in_use: Some(Profile::Fast),
            group_size: 8,
            ranks: 32,
            measured_ranks: 32,
            measured_file_bytes: 1 << 20,
            profiles: vec![coding(Profile::Fast, 8, 2.0, 100.0), coding(Profile::Balanced, 8, 4.0, 1.0), unmeasured],
            group_sizes: vec![coding(Profile::Fast, 8, 2.0, 100.0), coding(Profile::Fast, 32, 2.5, 100.0)],
            too_large: Vec::new(),
        };
        let measured = Measured {
            count: 1,
            write_ms: Some(1000),
            commit_ms: 20_000,
            saved_later: false,
            flush_ms: 10_000,
            interval_ms: None,
            restart_ms: None,
            file_bytes: 1_000_000_000,
            stored_bytes: 500_000_000,
        };
        let times = Times { write_s: 1.0, mtbf_s: 86_400.0, restart_s: 60.0, commit_s: 20.0 };
        let job = Job { sample: &sample, measured: &measured, times: &times, aggregators: 1, threads: 1 };
        let Choices { profiles, group_sizes, aggregators } = job.choices();
        let [fast, balanced, max] = profiles.as_slice() else { panic!("{profiles:?}") };
        assert!(fast.in_use && !balanced.in_use);
        assert_eq!(
            (fast.coding_ms, fast.decoding_ms, fast.stored_bytes),
            (Some(10_000), Some(5_000), Some(500_000_000))
        );
        assert_eq!((balanced.coding_ms, balanced.stored_bytes), (Some(1_000_000), Some(250_000_000)));
        // The best interval of `fast` is shorter than the time in which `balanced` encodes a checkpoint.
        assert_eq!(balanced.interval_ms, Some(999_000));
        assert!(balanced.lost_percent > fast.lost_percent && fast.lost_percent > Some(0.0));
        assert!(max.ratio.is_none() && max.interval_ms.is_none());
        // One group for all ranks leaves no work for a second aggregator.
        let one_group = &group_sizes[1];
        assert!(!one_group.in_use && one_group.coding_ms == Some(10_000));
        let of_numbers: Vec<_> = aggregators.iter().map(|choice| (choice.aggregators, choice.coding_ms)).collect();
        assert_eq!(of_numbers, [(1, Some(10_000)), (2, Some(5_000)), (4, Some(2_500))]);
    }

    #[test]
    fn no_more_aggregators_than_groups_are_shown() {
        assert_eq!(numbers_of_aggregators(1, 1), [1]);
        assert_eq!(numbers_of_aggregators(4, 100), [2, 4, 8, 16, 100]);
        assert_eq!(numbers_of_aggregators(8, 3), [8]);
    }
}
