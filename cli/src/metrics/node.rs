//! The metrics of `mcr node`: the totals of all workers, and the jobs that run on the node.

use super::{Format, Metrics};
use mcr_node::metrics::{BEGIN_BOUNDS_US, FLUSH_BOUNDS_MS, JobOfUser, Page};
use nix::unistd::{Uid, User};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Maximum number of remembered names of users.
const NAMES_MAX: usize = 1024;

/// Names of users. Each name is looked up once, because the database of users may be on a server.
#[derive(Debug, Default)]
pub struct UserNames(Mutex<BTreeMap<u32, String>>);

impl UserNames {
    /// The name of a user. A user without a name has its number.
    fn of(&self, uid: u32) -> String {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = names.get(&uid) {
            return name.clone();
        }
        let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return uid.to_string() };
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(uid, user.name.clone());
        user.name
    }
}

/// The text of all metrics of a node. `page`: the answer of `mcr node`. `None` if `mcr node` does not answer.
/// `metrics` counts the lines of the log of this process.
pub fn node_text(metrics: &Metrics, page: Option<&Page>, names: &UserNames, format: Format) -> String {
    let mut registry = Registry::default();
    let named = page.map(|page| page.named.iter().map(|job| (job.clone(), names.of(job.uid))).collect());
    let of_node = OfNode { page: page.cloned(), named: named.unwrap_or_default() };
    registry.register_collector(Box::new(of_node));
    metrics.register_common(&mut registry);
    format.encode(&registry)
}

/// The page, and its jobs with the names of their users.
#[derive(Debug)]
struct OfNode {
    page: Option<Page>,
    named: Vec<(JobOfUser, String)>,
}

impl Collector for OfNode {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let up = u64::from(self.page.is_some());
        gauge(&mut encoder, "mcr_node_up", "Whether mcr node answers: 1, or 0")?.encode_gauge(&up)?;
        let Some(page) = &self.page else { return Ok(()) };
        let (totals, counts) = (&page.totals, &page.totals.counts);
        for (name, help, value) in [
            ("mcr_checkpoints_committed", "Checkpoints whose last group is committed", counts.checkpoints_committed),
            ("mcr_checkpoints_saved", "Complete checkpoints with ranks of this node", counts.checkpoints_saved),
            ("mcr_groups_committed", "Groups that aggregators of this node committed", counts.groups_committed),
            ("mcr_ranks_committed", "Committed ranks of this node", counts.ranks_committed),
            ("mcr_ranks_refused", "Announcements of ranks that were refused", counts.ranks_refused),
            ("mcr_bytes_raw", "Bytes of committed groups before compression", counts.bytes_raw),
            ("mcr_bytes_stored", "Bytes of committed groups after compression", counts.bytes_stored),
            ("mcr_store_errors", "Flushes that failed", counts.store_errors),
            ("mcr_drains_cut_short", "Ends of a worker before everything was committed", counts.drains_cut_short),
            ("mcr_not_committed_at_end", "Checkpoints not committed when a worker ended", counts.not_committed_at_end),
            ("mcr_jobs_begun", "Jobs that began on this node", totals.jobs_begun),
            ("mcr_jobs_ended", "Jobs that are over on this node", totals.jobs_ended),
            ("mcr_worker_deaths", "Workers that died and were started again", totals.worker_deaths),
        ] {
            count(&mut counter(&mut encoder, name, help)?, value)?;
        }
        let help = "Groups of checkpoints that were given up";
        let mut abandoned = counter(&mut encoder, "mcr_checkpoints_abandoned", help)?;
        for (reason, value) in [
            ("missing", counts.abandoned_missing),
            ("store", counts.abandoned_store),
            ("overtaken", counts.abandoned_overtaken),
            ("fenced", counts.abandoned_fenced),
            ("shutdown", counts.abandoned_shutdown),
            ("other", counts.abandoned_other),
        ] {
            count(&mut abandoned.encode_family(&[("reason", reason)])?, value)?;
        }
        let mut refused = counter(&mut encoder, "mcr_tls_refused", "Connections that were refused")?;
        for (why, value) in
            [("tls", counts.refused_tls), ("user", counts.refused_user), ("other", counts.refused_other)]
        {
            count(&mut refused.encode_family(&[("why", why)])?, value)?;
        }
        gauge(&mut encoder, "mcr_jobs", "Jobs of this node that are saved")?.encode_gauge(&page.jobs)?;
        let help = "Agents that are connected to aggregators of this node";
        gauge(&mut encoder, "mcr_agents", help)?.encode_gauge(&page.agents)?;
        let mut workers = gauge(&mut encoder, "mcr_workers", "Running workers of this node")?;
        for (kind, value) in [("job", page.of_jobs), ("aggregator", page.of_aggregators)] {
            workers.encode_family(&[("kind", kind)])?.encode_gauge(&value)?;
        }
        let seconds = |us: u64| us as f64 / 1e6;
        Durations {
            bounds: &BEGIN_BOUNDS_US.map(seconds),
            counts: &totals.begins.buckets,
            sum_seconds: seconds(totals.begins.sum_us),
        }
        .encode(
            &mut encoder,
            "mcr_begin_seconds",
            "Time in which the daemon of a node begins a job, while Prolog waits",
        )?;
        let seconds = |ms: u64| ms as f64 / 1e3;
        Durations {
            bounds: &FLUSH_BOUNDS_MS.map(seconds),
            counts: &counts.flush_buckets(),
            sum_seconds: seconds(counts.flush_ms),
        }
        .encode(&mut encoder, "mcr_flush_seconds", "Duration of the flush of a group")?;
        self.jobs(
            &mut encoder,
            "mcr_job_last_commit_timestamp_seconds",
            "Time of the last committed group of a job, in seconds since 1970",
            |job| job.state.last_commit_unix_seconds,
        )?;
        self.jobs(
            &mut encoder,
            "mcr_job_uncommitted_ranks",
            "Ranks of this node that are written and not committed yet",
            |job| job.state.uncommitted_ranks,
        )
    }
}

impl OfNode {
    fn jobs(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        of: impl Fn(&JobOfUser) -> Option<u64>,
    ) -> fmt::Result {
        let mut metric = gauge(encoder, name, help)?;
        for (job, user) in &self.named {
            if let Some(value) = of(job) {
                let labels = [("job", job.state.job.as_str()), ("user", user.as_str())];
                metric.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

type Described<'e> = Result<MetricEncoder<'e>, fmt::Error>;

fn counter<'e>(encoder: &'e mut DescriptorEncoder, name: &'e str, help: &str) -> Described<'e> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

fn gauge<'e>(encoder: &'e mut DescriptorEncoder, name: &'e str, help: &str) -> Described<'e> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

fn count(metric: &mut MetricEncoder, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

/// A histogram of durations.
struct Durations<'d> {
    /// Upper bounds of the buckets, in seconds.
    bounds: &'d [f64],
    /// Number of durations in each bucket. The last number counts the durations above all bounds.
    counts: &'d [u64],
    sum_seconds: f64,
}

impl Durations<'_> {
    fn encode(&self, encoder: &mut DescriptorEncoder, name: &str, help: &str) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        // The encoder adds the numbers of the buckets up. The last bucket has no upper bound.
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts.iter().copied()).collect();
        metric.encode_histogram::<NoLabelSet>(self.sum_seconds, self.counts.iter().sum(), &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcr_node::metrics::{Counts, JobState};

    #[test]
    fn the_page_has_totals_without_and_jobs_with_the_names_of_job_and_user() {
        let metrics = Metrics::new(String::new());
        let mut page = Page { jobs: 3, of_jobs: 2, of_aggregators: 1, agents: 4, ..Page::default() };
        page.totals.counts = Counts { checkpoints_committed: 7, abandoned_fenced: 2, ..Counts::default() };
        [50, 250, 2_000_000].into_iter().for_each(|ms| page.totals.counts.add_flush(ms));
        [2_500, 900, 9_000_000].into_iter().for_each(|us| page.totals.begins.add(us));
        let state =
            |job: &str, last| JobState { job: job.into(), last_commit_unix_seconds: last, uncommitted_ranks: Some(5) };
        page.add_job(0, &state("wave \"1\"", Some(1_790_000_000)));
        page.add_job(4_000_000_000, &state("melt", None));
        let text = node_text(&metrics, Some(&page), &UserNames::default(), Format::OpenMetrics);
        for line in [
            "mcr_node_up 1\n",
            "mcr_checkpoints_committed_total 7\n",
            "mcr_store_errors_total 0\n",
            "mcr_checkpoints_abandoned_total{reason=\"fenced\"} 2\n",
            "mcr_tls_refused_total{why=\"tls\"} 0\n",
            "mcr_jobs 3\n",
            "mcr_agents 4\n",
            "mcr_workers{kind=\"job\"} 2\n",
            "mcr_workers{kind=\"aggregator\"} 1\n",
            "mcr_begin_seconds_bucket{le=\"0.001\"} 1\n",
            "mcr_begin_seconds_bucket{le=\"0.003\"} 2\n",
            "mcr_begin_seconds_bucket{le=\"3.0\"} 2\n",
            "mcr_begin_seconds_bucket{le=\"+Inf\"} 3\n",
            "mcr_begin_seconds_count 3\n",
            "mcr_flush_seconds_sum 2000.3\n",
            "mcr_flush_seconds_bucket{le=\"0.1\"} 1\n",
            "mcr_flush_seconds_bucket{le=\"900.0\"} 2\n",
            "mcr_flush_seconds_bucket{le=\"+Inf\"} 3\n",
            "mcr_job_last_commit_timestamp_seconds{job=\"wave \\\"1\\\"\",user=\"root\"} 1790000000\n",
            "mcr_job_uncommitted_ranks{job=\"melt\",user=\"4000000000\"} 5\n",
            "mcr_log_lines_total{level=\"error\"} 0\n",
            "mcr_build_info{version=\"",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("timestamp_seconds{job=\"melt\"") && text.ends_with("# EOF\n"), "{text}");
        let text = node_text(&metrics, None, &UserNames::default(), Format::OpenMetrics);
        assert!(text.contains("mcr_node_up 0\n") && !text.contains("mcr_jobs"), "{text}");
    }
}
