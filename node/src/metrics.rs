//! What the metrics of a node show: the counts that workers report, and the page that the daemon answers with.
//!
//! A worker reports its counts since its start ([`Report`]). The daemon adds to its totals by how much the counts
//! have grown since the last report of this worker. If the daemon has no earlier report, because another daemon has
//! started the worker, the daemon adds the growth since the last report that any daemon has accepted. So no count is
//! added twice, and the totals of a daemon begin at 0.

use serde::{Deserialize, Serialize};

/// Maximum length of the name of a job in a report, in bytes. Names of jobs are at most 200 bytes long.
const JOB_BYTES_MAX: usize = 200;
/// Maximum value in a report. Prometheus uses floating-point numbers, which represent integers exactly only up to
/// this value.
const VALUE_MAX: u64 = 1 << 53;
/// Maximum number of jobs on a page. A page with this number of the longest names is shorter than a line of the
/// protocol may be.
pub const JOBS_SHOWN_MAX: usize = 64;
/// Upper bounds of the buckets of [`Begins`], in microseconds.
pub const BEGIN_BOUNDS_US: [u64; 8] = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000];

/// Upper bounds of the buckets of the durations of flushes, in milliseconds.
pub const FLUSH_BOUNDS_MS: [u64; 10] = [100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 120_000, 300_000, 900_000];

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one worker, or sums of the counts of workers.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            fn with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
                Self { $($name: of(self.$name, other.$name),)* }
            }

            fn largest(self) -> u64 {
                [$(self.$name),*].into_iter().fold(0, u64::max)
            }
        }
    };
}

counts! {
    /// Checkpoints whose last group the aggregator committed.
    checkpoints_committed,
    /// Groups that the aggregator committed.
    groups_committed,
    /// Complete checkpoints with ranks of the agent.
    checkpoints_saved,
    /// Committed ranks of the agent.
    ranks_committed,
    /// Announcements that the aggregator refused.
    ranks_refused,
    /// Bytes of committed groups before compression.
    bytes_raw,
    /// Bytes of committed groups after compression.
    bytes_stored,
    /// Flushes that failed.
    store_errors,
    /// How often a second signal ended the worker before everything was committed.
    drains_cut_short,
    /// Checkpoints that were not committed when the worker ended.
    not_committed_at_end,
    /// Groups that were given up because ranks did not announce their files in time.
    abandoned_missing,
    /// Groups that were given up because their flushes failed.
    abandoned_store,
    /// Groups that were given up because newer checkpoints were complete earlier.
    abandoned_overtaken,
    /// Groups that were given up because they belong to an earlier start of the job.
    abandoned_fenced,
    /// Groups that were given up because the aggregator ended.
    abandoned_shutdown,
    /// Groups that were given up for another reason.
    abandoned_other,
    /// Connections that were refused because of the certificate.
    refused_tls,
    /// Connections that were refused because of the user.
    refused_user,
    /// Connections that were refused for another reason.
    refused_other,
    /// Flushes that took at most 0.1 s. The fields below do not count these flushes again.
    flushes_to_100_ms,
    /// Flushes that took at most 0.3 s.
    flushes_to_300_ms,
    /// Flushes that took at most 1 s.
    flushes_to_1_s,
    /// Flushes that took at most 3 s.
    flushes_to_3_s,
    /// Flushes that took at most 10 s.
    flushes_to_10_s,
    /// Flushes that took at most 30 s.
    flushes_to_30_s,
    /// Flushes that took at most 60 s.
    flushes_to_60_s,
    /// Flushes that took at most 120 s.
    flushes_to_120_s,
    /// Flushes that took at most 300 s.
    flushes_to_300_s,
    /// Flushes that took at most 900 s.
    flushes_to_900_s,
    /// Flushes that took more than 900 s.
    flushes_longer,
    /// Sum of the durations of all flushes, in milliseconds.
    flush_ms,
}

impl Counts {
    /// Adds a flush that took this time.
    pub fn add_flush(&mut self, elapsed_ms: u64) {
        let buckets = [
            &mut self.flushes_to_100_ms,
            &mut self.flushes_to_300_ms,
            &mut self.flushes_to_1_s,
            &mut self.flushes_to_3_s,
            &mut self.flushes_to_10_s,
            &mut self.flushes_to_30_s,
            &mut self.flushes_to_60_s,
            &mut self.flushes_to_120_s,
            &mut self.flushes_to_300_s,
            &mut self.flushes_to_900_s,
            &mut self.flushes_longer,
        ];
        let bucket = FLUSH_BOUNDS_MS.partition_point(|bound| *bound < elapsed_ms);
        buckets.into_iter().skip(bucket).take(1).for_each(|count| *count += 1);
        self.flush_ms = self.flush_ms.saturating_add(elapsed_ms);
    }

    /// Number of flushes in each bucket, see [`FLUSH_BOUNDS_MS`]. The last bucket has the flushes above all bounds.
    pub fn flush_buckets(&self) -> [u64; FLUSH_BOUNDS_MS.len() + 1] {
        [
            self.flushes_to_100_ms,
            self.flushes_to_300_ms,
            self.flushes_to_1_s,
            self.flushes_to_3_s,
            self.flushes_to_10_s,
            self.flushes_to_30_s,
            self.flushes_to_60_s,
            self.flushes_to_120_s,
            self.flushes_to_300_s,
            self.flushes_to_900_s,
            self.flushes_longer,
        ]
    }

    /// How much each count has grown. If a count has become smaller, its growth is 0.
    pub fn growth_since(self, earlier: Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// Adds each count. A sum above `u64::MAX` becomes `u64::MAX`.
    pub fn add(&mut self, growth: Self) {
        *self = self.with(growth, u64::saturating_add);
    }
}

/// The job of a worker, as metrics show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct JobState {
    /// The name of the job. The user chooses the name.
    pub job: String,
    /// When the last group was committed, in seconds since 1970. `None`: this worker has committed no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_commit_unix_seconds: Option<u64>,
    /// Ranks that are written and not committed yet. `None`: the agent of this worker has reported no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncommitted_ranks: Option<u64>,
}

/// What a worker reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Report {
    /// The counts since the worker started.
    pub counts: Counts,
    /// The counts of the last report of this worker that a daemon has accepted.
    pub accepted: Counts,
    /// Number of agents that are connected to the aggregator of this worker.
    pub agents: u64,
    /// The job. `None`: the worker does not know its name yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobState>,
}

impl Report {
    /// What is wrong with the report. `None`: the report can be used. The check is needed because a user can write
    /// any report, and the daemon of root shows its values.
    pub fn wrong(&self) -> Option<String> {
        let job = self.job.clone().unwrap_or_default();
        if job.job.len() > JOB_BYTES_MAX || job.job.contains(char::is_control) {
            return Some(format!("the name of a job is longer than {JOB_BYTES_MAX} bytes, or cannot be shown"));
        }
        let others = [job.last_commit_unix_seconds, job.uncommitted_ranks, Some(self.agents)];
        let counts = [self.counts, self.accepted].map(Counts::largest);
        let largest = others.into_iter().flatten().chain(counts).fold(0, u64::max);
        (largest > VALUE_MAX).then(|| format!("a value of a report is {largest}; it must be at most {VALUE_MAX}"))
    }
}

/// A histogram and the sum of the times in which jobs began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Begins {
    /// Number of times in each bucket, see [`BEGIN_BOUNDS_US`]. The last bucket has the times above all bounds.
    pub buckets: [u64; BEGIN_BOUNDS_US.len() + 1],
    /// Sum of all times, in microseconds.
    pub sum_us: u64,
}

impl Begins {
    /// Adds the time in which a job began, in microseconds.
    pub fn add(&mut self, elapsed_us: u64) {
        self.buckets[BEGIN_BOUNDS_US.partition_point(|bound| *bound < elapsed_us)] += 1;
        self.sum_us = self.sum_us.saturating_add(elapsed_us);
    }

    /// Number of all times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Totals since the daemon started. A total never becomes smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Totals {
    /// Sums of the counts of all workers.
    pub counts: Counts,
    /// Jobs that began.
    pub jobs_begun: u64,
    /// Jobs that are over.
    pub jobs_ended: u64,
    /// Workers that died and were started again.
    pub worker_deaths: u64,
    /// The times in which jobs began.
    pub begins: Begins,
}

/// A job with a worker on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct JobOfUser {
    /// The user's uid.
    pub uid: u32,
    /// The job.
    pub state: JobState,
}

/// All metrics of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Page {
    /// The totals.
    pub totals: Totals,
    /// Jobs that are saved now.
    pub jobs: u64,
    /// Running workers of these jobs.
    pub of_jobs: u64,
    /// Running aggregators of jobs on other nodes.
    pub of_aggregators: u64,
    /// Agents that are connected to aggregators of this node.
    pub agents: u64,
    /// Jobs whose workers have reported, at most [`JOBS_SHOWN_MAX`]. Each pair of a uid and a name occurs once.
    pub named: Vec<JobOfUser>,
}

impl Page {
    /// Adds a job. Two workers may work for one job, for example an agent, and an aggregator that the gate started.
    pub fn add_job(&mut self, uid: u32, state: &JobState) {
        let known = self.named.iter_mut().find(|known| known.uid == uid && known.state.job == state.job);
        match known {
            None => self.named.push(JobOfUser { uid, state: state.clone() }),
            Some(JobOfUser { state: known, .. }) => {
                known.last_commit_unix_seconds = known.last_commit_unix_seconds.max(state.last_commit_unix_seconds);
                let both = [known.uncommitted_ranks, state.uncommitted_ranks];
                known.uncommitted_ranks = both.into_iter().flatten().reduce(u64::saturating_add);
            }
        }
    }

    /// Leaves out jobs beyond the maximum number. The jobs that committed least recently stay, because they are the
    /// jobs that may have a problem.
    pub fn limit_jobs(&mut self) {
        self.named.sort_by_key(|job| job.state.last_commit_unix_seconds);
        self.named.truncate(JOBS_SHOWN_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{LINE_BYTES_MAX, Reply};

    #[test]
    fn a_report_has_only_known_names_plain_numbers_and_a_short_name_of_a_job() {
        let parsed = |text: &str| serde_json::from_str::<Report>(text);
        let of = |counts: &str| format!("{{\"counts\":{counts},\"accepted\":{{}},\"agents\":0}}");
        let good = parsed(&of("{\"bytes-raw\":7}")).expect("read");
        assert_eq!((good.counts.bytes_raw, good.counts.bytes_stored, good.wrong()), (7, 0, None));
        for counts in ["{\"bytes\":7}", "{\"bytes-raw\":-7}", "{\"bytes-raw\":7.5}", "{\"bytes-raw\":\"7\"}", "7"] {
            assert!(parsed(&of(counts)).is_err(), "{counts}");
        }
        let named =
            |job: &str| Report { job: Some(JobState { job: job.into(), ..JobState::default() }), ..good.clone() };
        assert_eq!(named("wave \"1\"").wrong(), None);
        for name in ["x".repeat(JOB_BYTES_MAX + 1), "\x1b[2J".into(), "a\nb".into()] {
            assert!(named(&name).wrong().is_some_and(|why| why.contains("name of a job")), "{name}");
        }
        let mut large = good;
        large.counts.refused_other = VALUE_MAX + 1;
        assert!(large.wrong().is_some_and(|why| why.contains("at most")));
    }

    #[test]
    fn a_count_that_becomes_smaller_does_not_make_a_total_smaller() {
        let counts = |bytes_raw, store_errors| Counts { bytes_raw, store_errors, ..Counts::default() };
        let mut total = counts(100, 1);
        total.add(counts(7, 9).growth_since(counts(10, 5)));
        assert_eq!(total, counts(100, 5));
        total.add(counts(u64::MAX, 0));
        assert_eq!(total, counts(u64::MAX, 5));
    }

    #[test]
    fn times_are_in_the_first_bucket_whose_bound_is_not_below_them() {
        let mut begins = Begins::default();
        [1, 1_000, 1_001, 9_000_000].into_iter().for_each(|us| begins.add(us));
        assert_eq!((begins.buckets, begins.count()), ([2, 1, 0, 0, 0, 0, 0, 0, 1], 4));
        assert_eq!(begins.sum_us, 9_002_002);
        let mut flushes = Counts::default();
        [0, 100, 101, 900_000, 900_001].into_iter().for_each(|ms| flushes.add_flush(ms));
        assert_eq!(flushes.flush_buckets(), [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(flushes.flush_ms, 1_800_202);
    }

    #[test]
    fn the_longest_page_fits_into_one_line_and_a_job_with_two_workers_is_named_once() {
        let mut page = Page::default();
        for n in 0..200u64 {
            let job = format!("{n:03}{}", "\"".repeat(JOB_BYTES_MAX - 3));
            let (last_commit_unix_seconds, uncommitted_ranks) = (Some(VALUE_MAX - n), Some(VALUE_MAX));
            page.add_job(u32::MAX, &JobState { job, last_commit_unix_seconds, uncommitted_ranks });
        }
        page.limit_jobs();
        assert_eq!(page.named.len(), JOBS_SHOWN_MAX);
        assert!(page.named[0].state.job.starts_with("199"), "the job that committed least recently stays");
        let line = serde_json::to_vec(&Reply::Metrics(Box::new(page))).expect("written");
        assert!((line.len() as u64) < LINE_BYTES_MAX, "{}", line.len());
        let mut page = Page::default();
        let state =
            |last, ranks| JobState { job: "wave".into(), last_commit_unix_seconds: last, uncommitted_ranks: ranks };
        page.add_job(7, &state(Some(3), None));
        page.add_job(7, &state(None, Some(2)));
        page.add_job(8, &state(None, None));
        assert_eq!((page.named.len(), &page.named[0].state), (2, &state(Some(3), Some(2))));
    }
}
