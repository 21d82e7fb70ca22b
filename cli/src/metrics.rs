//! Metrics of daemons in the format OpenMetrics, for Prometheus.
//!
//! Each metric is computed from events of the log. A layer of the logger receives each event of the level `debug` or
//! higher, even if the log leaves out its line. So a metric and its log lines agree. `GET /metrics` answers with all
//! metrics.

mod server;

pub use server::serve;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Maximum number of jobs that a metric names. The job that committed least recently is forgotten first.
const JOBS_MAX: usize = 64;
/// Upper bounds of the buckets of `mcr_begin_seconds`, the histogram of the time to begin a job, in seconds.
const BEGIN_SECONDS: [f64; 8] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
/// Upper bounds of the buckets of `mcr_flush_seconds`, the histogram of the duration of a flush, in seconds.
const FLUSH_SECONDS: [f64; 10] = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfJob {
    job: String,
    user: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfLevel {
    level: &'static str,
}

/// Why a group was given up. `mcr_anc::group::Reason::kind` has the words.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

/// Why a connection was refused.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfRefusal {
    why: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfWorker {
    kind: &'static str,
}

/// The reasons for which groups are given up.
const REASONS: [&str; 5] = ["missing", "store", "overtaken", "fenced", "shutdown"];
/// The reasons for which connections are refused.
const REFUSALS: [&str; 2] = ["tls", "user"];
/// The label of a reason that is in neither list.
const OTHER: &str = "other";

/// All metrics of a process.
pub struct Metrics {
    registry: Registry,
    checkpoints_committed: Counter,
    checkpoints_abandoned: Family<OfReason, Counter>,
    checkpoints_saved: Counter,
    groups_committed: Counter,
    ranks_committed: Counter,
    ranks_refused: Counter,
    bytes_raw: Counter,
    bytes_stored: Counter,
    store_errors: Counter,
    connections_refused: Family<OfRefusal, Counter>,
    drains_cut_short: Counter,
    not_committed_at_end: Counter,
    jobs_begun: Counter,
    jobs_ended: Counter,
    worker_deaths: Counter,
    agents: Gauge,
    node_jobs: Gauge,
    workers: Family<OfWorker, Gauge>,
    begin_seconds: Histogram,
    flush_seconds: Histogram,
    last_commit: Family<OfJob, Gauge>,
    uncommitted_ranks: Family<OfJob, Gauge>,
    log_lines: Family<OfLevel, Counter>,
    user: String,
    /// The jobs in `last_commit`, in the order of their last commits. The job with the most recent commit is last.
    jobs: Mutex<VecDeque<String>>,
}

/// Messages of the log that change a metric. A test looks for each message in the sources.
mod message {
    pub const GROUP: &str = "committed group";
    pub const SAVED: &str = "checkpoint saved";
    pub const RANK: &str = "committed";
    pub const ABANDONED: &str = "abandoned checkpoint";
    pub const FLUSH_FAILED: &str = "flush failed";
    pub const REFUSED_CONNECTION: &str = "a connection is refused";
    pub const REFUSED_RANK: &str = "announcement refused";
    pub const CUT_SHORT: &str = "ended early: it is not known whether everything that was written is committed";
    pub const NOT_COMMITTED: &str = "not committed";
    pub const CONNECTED: &str = "agent connected";
    pub const DISCONNECTED: &str = "agent disconnected";
    pub const JOB_BEGINS: &str = "a job begins";
    pub const JOB_ENDS: &str = "a job is over";
    pub const WORKER_DIED: &str = "the worker of a job died, and was started again";
    pub const WORKERS: &str = "jobs and workers";
    pub const UNCOMMITTED: &str = "ranks wait for a commit";
    #[cfg(test)]
    pub const ALL: [&str; 16] = [
        WORKERS,
        UNCOMMITTED,
        GROUP,
        SAVED,
        RANK,
        ABANDONED,
        FLUSH_FAILED,
        REFUSED_CONNECTION,
        REFUSED_RANK,
        CUT_SHORT,
        NOT_COMMITTED,
        CONNECTED,
        DISCONNECTED,
        JOB_BEGINS,
        JOB_ENDS,
        WORKER_DIED,
    ];
}

impl Metrics {
    /// Metrics that are all 0. `user`: the user of this process.
    pub fn new(user: String) -> Self {
        let mut registry = Registry::default();
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let checkpoints_committed = counter("mcr_checkpoints_committed", "Checkpoints whose last group is committed");
        let checkpoints_saved = counter("mcr_checkpoints_saved", "Checkpoints of this agent that are complete");
        let groups_committed = counter("mcr_groups_committed", "Groups that this aggregator committed");
        let ranks_committed = counter("mcr_ranks_committed", "Ranks of this agent that are committed");
        let ranks_refused = counter("mcr_ranks_refused", "Announcements of ranks that were refused");
        let bytes_raw = counter("mcr_bytes_raw", "Bytes of committed groups before compression");
        let bytes_stored = counter("mcr_bytes_stored", "Bytes of committed groups after compression");
        let store_errors = counter("mcr_store_errors", "Flushes that failed");
        let drains_cut_short = counter("mcr_drains_cut_short", "Ends of a daemon before everything was committed");
        let not_committed_at_end = counter("mcr_not_committed_at_end", "Checkpoints not committed when a daemon ended");
        let jobs_begun = counter("mcr_jobs_begun", "Jobs that began on this node");
        let jobs_ended = counter("mcr_jobs_ended", "Jobs that are over on this node");
        let worker_deaths = counter("mcr_worker_deaths", "Workers that died and were started again");
        // The labels are shown from the start, because an alert needs the value 0 before the first event.
        let checkpoints_abandoned = Family::<OfReason, Counter>::default();
        let help = "Groups of checkpoints that were given up";
        registry.register("mcr_checkpoints_abandoned", help, checkpoints_abandoned.clone());
        REASONS.iter().for_each(|reason| drop(checkpoints_abandoned.get_or_create(&OfReason { reason })));
        let connections_refused = Family::<OfRefusal, Counter>::default();
        registry.register("mcr_tls_refused", "Connections that were refused", connections_refused.clone());
        REFUSALS.iter().for_each(|why| drop(connections_refused.get_or_create(&OfRefusal { why })));
        let gauge = |registry: &mut Registry, name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let agents = gauge(&mut registry, "mcr_agents", "Agents that are connected to this aggregator");
        let node_jobs = gauge(&mut registry, "mcr_jobs", "Jobs of this node that are saved");
        let workers = Family::<OfWorker, Gauge>::default();
        registry.register("mcr_workers", "Running workers of this node", workers.clone());
        let begin_seconds = Histogram::new(BEGIN_SECONDS);
        let help = "Time in which the daemon of a node begins a job, while Prolog waits";
        registry.register("mcr_begin_seconds", help, begin_seconds.clone());
        let flush_seconds = Histogram::new(FLUSH_SECONDS);
        registry.register("mcr_flush_seconds", "Duration of the flush of a group", flush_seconds.clone());
        let last_commit = Family::<OfJob, Gauge>::default();
        let help = "Time of the last committed group of a job, in seconds since 1970";
        registry.register("mcr_job_last_commit_timestamp_seconds", help, last_commit.clone());
        let uncommitted_ranks = Family::<OfJob, Gauge>::default();
        let help = "Ranks of this agent that are written and not committed yet";
        registry.register("mcr_job_uncommitted_ranks", help, uncommitted_ranks.clone());
        let log_lines = Family::<OfLevel, Counter>::default();
        registry.register("mcr_log_lines", "Warnings and errors of the log", log_lines.clone());
        for level in ["warn", "error"] {
            drop(log_lines.get_or_create(&OfLevel { level })); // shown from the start
        }
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("mcr_build", "Version of mcr", build);
        Self {
            registry,
            checkpoints_committed,
            checkpoints_abandoned,
            checkpoints_saved,
            groups_committed,
            ranks_committed,
            ranks_refused,
            bytes_raw,
            bytes_stored,
            store_errors,
            connections_refused,
            drains_cut_short,
            not_committed_at_end,
            jobs_begun,
            jobs_ended,
            worker_deaths,
            agents,
            node_jobs,
            workers,
            begin_seconds,
            flush_seconds,
            last_commit,
            uncommitted_ranks,
            log_lines,
            user,
            jobs: Mutex::default(),
        }
    }

    /// All metrics in the format OpenMetrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry); // writing to a String cannot fail
        text
    }

    fn count(&self, level: Level, seen: &Seen) {
        let known = |words: &[&'static str]| words.iter().find(|word| **word == seen.kind).copied().unwrap_or(OTHER);
        let counter = match seen.message.as_str() {
            message::GROUP => return self.group_committed(seen),
            message::CONNECTED => {
                self.agents.inc();
                return;
            }
            message::DISCONNECTED => return self.disconnected(seen),
            message::WORKERS => return self.workers(seen),
            message::UNCOMMITTED => {
                self.uncommitted_ranks.get_or_create(&self.of(&seen.job)).set(seen.ranks as i64);
                return;
            }
            message::SAVED => Some(&self.checkpoints_saved),
            message::RANK => Some(&self.ranks_committed),
            message::FLUSH_FAILED => Some(&self.store_errors),
            message::REFUSED_RANK => Some(&self.ranks_refused),
            message::CUT_SHORT => Some(&self.drains_cut_short),
            message::NOT_COMMITTED => Some(&self.not_committed_at_end),
            message::JOB_BEGINS => {
                self.begin_seconds.observe(seen.elapsed_us as f64 / 1e6);
                Some(&self.jobs_begun)
            }
            message::ABANDONED => {
                self.checkpoints_abandoned.get_or_create(&OfReason { reason: known(&REASONS) }).inc();
                None
            }
            message::REFUSED_CONNECTION => {
                self.connections_refused.get_or_create(&OfRefusal { why: known(&REFUSALS) }).inc();
                None
            }
            message::JOB_ENDS => Some(&self.jobs_ended),
            message::WORKER_DIED => Some(&self.worker_deaths),
            _ => None,
        };
        counter.map(|counter| counter.inc());
        let level = match level {
            Level::WARN => "warn",
            Level::ERROR => "error",
            _ => return,
        };
        self.log_lines.get_or_create(&OfLevel { level }).inc();
    }

    fn of(&self, job: &str) -> OfJob {
        OfJob { job: job.to_owned(), user: self.user.clone() }
    }

    /// If the last agent of a job has reported its end, the job is over, and metrics no longer name the job.
    fn disconnected(&self, seen: &Seen) {
        self.agents.dec();
        if seen.is_leaving && seen.others == 0 {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.retain(|job| *job != seen.job);
            self.last_commit.remove(&self.of(&seen.job));
        }
    }

    fn workers(&self, seen: &Seen) {
        self.node_jobs.set(seen.jobs as i64);
        for (kind, count) in [("job", seen.of_jobs), ("aggregator", seen.of_aggregators)] {
            self.workers.get_or_create(&OfWorker { kind }).set(count as i64);
        }
    }

    fn group_committed(&self, seen: &Seen) {
        if seen.was_there {
            return; // the group was committed before
        }
        self.groups_committed.inc();
        if seen.exists {
            self.checkpoints_committed.inc();
        }
        self.bytes_raw.inc_by(seen.raw_bytes);
        self.bytes_stored.inc_by(seen.stored_bytes);
        self.flush_seconds.observe(seen.elapsed_ms as f64 / 1000.0);
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|job| *job != seen.job);
        if jobs.len() >= JOBS_MAX
            && let Some(oldest) = jobs.pop_front()
        {
            self.last_commit.remove(&self.of(&oldest));
        }
        jobs.push_back(seen.job.clone());
        self.last_commit.get_or_create(&self.of(&seen.job)).set((crate::common::now_unix_ms() / 1000) as i64);
    }
}

/// The fields of an event.
#[derive(Debug, Default)]
struct Seen {
    message: String,
    job: String,
    kind: String,
    exists: bool,
    was_there: bool,
    is_leaving: bool,
    raw_bytes: u64,
    stored_bytes: u64,
    elapsed_ms: u64,
    elapsed_us: u64,
    ranks: u64,
    others: u64,
    jobs: u64,
    of_jobs: u64,
    of_aggregators: u64,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "job" => self.job = format!("{value:?}"),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "job" => self.job = value.to_owned(),
            "kind" => self.kind = value.to_owned(),
            _ => {}
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "exists" => self.exists = value,
            "was_there" => self.was_there = value,
            "is_leaving" => self.is_leaving = value,
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "raw_bytes" => self.raw_bytes = value,
            "stored_bytes" => self.stored_bytes = value,
            "elapsed_ms" => self.elapsed_ms = value,
            "elapsed_us" => self.elapsed_us = value,
            "ranks" => self.ranks = value,
            "others" => self.others = value,
            "jobs" => self.jobs = value,
            "of_jobs" => self.of_jobs = value,
            "of_aggregators" => self.of_aggregators = value,
            _ => {}
        }
    }
}

/// The layer of the logger that counts events.
pub struct CountEvents(pub Arc<Metrics>);

impl<S: Subscriber> Layer<S> for CountEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut seen = Seen::default();
        event.record(&mut seen);
        self.0.count(*event.metadata().level(), &seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcr_anc::group::Reason;
    use std::path::Path;
    use tracing_subscriber::layer::SubscriberExt;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new("alice".into()))
    }

    fn counted(events: impl Fn()) -> String {
        let metrics = metrics();
        let subscriber = tracing_subscriber::registry().with(CountEvents(Arc::clone(&metrics)));
        tracing::subscriber::with_default(subscriber, events);
        metrics.text()
    }

    fn group(job: &str, exists: bool, was_there: bool) {
        tracing::info!(
            %job, exists, was_there, raw_bytes = 1000u64, stored_bytes = 300u64, elapsed_ms = 250u64,
            "committed group"
        );
    }

    #[test]
    fn events_of_the_log_are_counted_and_a_group_that_was_there_is_not() {
        let text = counted(|| {
            group("wave", false, false);
            group("wave", true, false);
            group("wave", true, true);
            tracing::warn!("flush failed");
            tracing::info!("agent connected");
        });
        for line in [
            "mcr_groups_committed_total 2\n",
            "mcr_checkpoints_committed_total 1\n",
            "mcr_bytes_raw_total 2000\n",
            "mcr_bytes_stored_total 600\n",
            "mcr_store_errors_total 1\n",
            "mcr_agents 1\n",
            "mcr_log_lines_total{level=\"warn\"} 1\n",
            "mcr_flush_seconds_count 2\n",
            "mcr_flush_seconds_bucket{le=\"0.3\"} 2\n",
            "mcr_job_last_commit_timestamp_seconds{job=\"wave\",user=\"alice\"} ",
            "mcr_build_info{version=\"",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn reasons_are_labels_from_the_start_and_an_unknown_reason_is_other() {
        let text = counted(|| {
            tracing::warn!(kind = "missing", "abandoned checkpoint");
            tracing::warn!(kind = "one of a thousand", "abandoned checkpoint");
            tracing::warn!(kind = "user", "a connection is refused");
        });
        for (line, count) in
            [("missing", 1), ("store", 0), ("overtaken", 0), ("fenced", 0), ("shutdown", 0), ("other", 1)]
        {
            let line = format!("mcr_checkpoints_abandoned_total{{reason=\"{line}\"}} {count}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
        for line in ["{why=\"tls\"} 0\n", "{why=\"user\"} 1\n"] {
            assert!(text.contains(&format!("mcr_tls_refused_total{line}")), "{text}");
        }
        let text = String::new;
        let all = [Reason::Missing([].into()), Reason::Store(text()), Reason::Overtaken, Reason::Fenced(text())];
        assert!(all.iter().chain([&Reason::Shutdown]).all(|reason| REASONS.contains(&reason.kind())));
    }

    #[test]
    fn a_job_has_no_label_after_its_last_agent_has_reported_its_end() {
        let left = |job: &str, is_leaving: bool, others: u64| {
            tracing::info!(%job, is_leaving, others, "agent disconnected");
        };
        let text = counted(|| {
            ["wave", "melt", "flow"].iter().for_each(|job| group(job, true, false));
            (0..3).for_each(|_| tracing::info!("agent connected"));
            left("wave", true, 0);
            left("melt", false, 0);
            left("flow", true, 1);
        });
        let named = |job: &str| text.contains(&format!("mcr_job_last_commit_timestamp_seconds{{job=\"{job}\""));
        assert_eq!(["wave", "melt", "flow"].map(named), [false, true, true], "{text}");
        assert!(text.contains("mcr_agents 0\n"), "{text}");
    }

    #[test]
    fn jobs_workers_begins_and_ranks_that_are_not_committed_are_measured() {
        let text = counted(|| {
            tracing::debug!(jobs = 3u64, of_jobs = 2u64, of_aggregators = 1u64, "jobs and workers");
            tracing::info!(elapsed_us = 2500u64, "a job begins");
            tracing::debug!(job = "wave", ranks = 7u64, "ranks wait for a commit");
            tracing::debug!(job = "wave", ranks = 5u64, "ranks wait for a commit");
        });
        for line in [
            "mcr_jobs 3\n",
            "mcr_workers{kind=\"job\"} 2\n",
            "mcr_workers{kind=\"aggregator\"} 1\n",
            "mcr_begin_seconds_bucket{le=\"0.001\"} 0\n",
            "mcr_begin_seconds_bucket{le=\"0.003\"} 1\n",
            "mcr_jobs_begun_total 1\n",
            "mcr_job_uncommitted_ranks{job=\"wave\",user=\"alice\"} 5\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn at_most_64_jobs_are_named() {
        let text = counted(|| (0..200).for_each(|n| group(&format!("job-{n}"), true, false)));
        let named = text.lines().filter(|line| line.starts_with("mcr_job_last_commit_timestamp_seconds{")).count();
        assert_eq!(named, JOBS_MAX);
        assert!(text.contains("job=\"job-199\"") && !text.contains("job=\"job-100\""));
    }

    /// The text of all sources of the daemons.
    fn sources() -> String {
        fn collect(dir: &Path, into: &mut String) {
            for entry in std::fs::read_dir(dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => collect(&path, into),
                    false => into.push_str(&std::fs::read_to_string(&path).unwrap_or_default()),
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut text = String::new();
        ["anc/src", "cnc/src", "node/src"].iter().for_each(|dir| collect(&root.join(dir), &mut text));
        text.push_str(&std::fs::read_to_string(root.join("cli/src/daemon.rs")).expect("read"));
        text
    }

    #[test]
    fn every_message_that_is_counted_is_logged_somewhere() {
        let sources = sources();
        for message in message::ALL {
            assert!(sources.contains(&format!("\"{message}\"")), "{message}");
        }
    }

    #[test]
    fn alerts_dashboard_and_document_use_only_metrics_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("read");
        let all = counted(|| {
            group("wave", true, false);
            tracing::debug!(jobs = 1u64, "jobs and workers");
            tracing::debug!(job = "wave", ranks = 1u64, "ranks wait for a commit");
        });
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for file in ["deploy/prometheus/alerts.yml", "deploy/grafana/mcrengine.json", "docs/metrics.md"] {
            let text = read(file);
            let names = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("mcr_"));
            let mut count = 0;
            for name in names {
                assert!(all.lines().any(|line| line.starts_with(name)), "{file}: {name}");
                count += 1;
            }
            assert!(count > 4, "{file}");
        }
        let (rules, operators) = (read("deploy/prometheus/alerts.yml"), read("deploy/README.md"));
        for name in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
            assert!(operators.contains(&format!("- **`{name}`**: ")), "the operator's page does not explain {name}");
        }
        let page = read("docs/metrics.md");
        let described = all.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        for name in described {
            assert!(page.contains(&format!("`{name}")), "the document does not explain {name}");
        }
    }
}
