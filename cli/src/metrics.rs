//! Metrics of daemons for Prometheus.
//!
//! Each metric is computed from events of the log. A layer of the logger receives each event of the level `debug` or
//! higher, even if the log leaves out its line. So a metric and its log lines agree. `GET /metrics` answers with all
//! metrics.
//!
//! The workers of `mcr node` serve no metrics: they report their counts to the daemon ([`Metrics::report`]), and the
//! page of the node ([`node_text`]) has the totals.

mod address;
mod node;
mod server;

pub use address::{WrongMetrics, metrics_address};
pub use node::{UserNames, node_text};
pub use server::{Format, serve};

use mcr_node::metrics::{Counts, FLUSH_BOUNDS_MS, JobState, Report};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Maximum number of jobs that a metric names. The job that committed least recently is forgotten first.
const JOBS_MAX: usize = 64;

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
    agents: Gauge,
    flush_seconds: Histogram,
    /// The durations of `flush_seconds`, for the report of a worker. Only the fields about flushes are used.
    flushes: Mutex<Counts>,
    last_commit: Family<OfJob, Gauge>,
    uncommitted_ranks: Family<OfJob, Gauge>,
    log_lines: Family<OfLevel, Counter>,
    user: String,
    /// The jobs in `last_commit`, in the order of their last commits. The job with the most recent commit is last.
    jobs: Mutex<VecDeque<String>>,
    /// The job of the last event, for the report of a worker, which has one job.
    current: Mutex<Option<JobState>>,
    /// Whether an event was counted since the last call of [`Metrics::wait`].
    has_changed: Mutex<bool>,
    change: Condvar,
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
    pub const UNCOMMITTED: &str = "ranks wait for a commit";
    /// All messages of this module.
    pub const ALL: [&str; 12] = [
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
    ];

    /// Whether an event with this message changes a metric.
    pub fn is_counted(message: &str) -> bool {
        ALL.contains(&message)
    }
}

impl Metrics {
    /// Metrics of a process with an aggregator, all 0. `user`: the user of this process.
    pub fn new(user: String) -> Self {
        Self::of(user, true)
    }

    /// Metrics of a process without an aggregator, all 0. `mcr_agents` is missing, because the alert
    /// `McrAggregatorDown` counts each process that has shown this metric as an aggregator.
    pub fn without_agents(user: String) -> Self {
        Self::of(user, false)
    }

    fn of(user: String, has_aggregator: bool) -> Self {
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
        let agents = match has_aggregator {
            true => gauge(&mut registry, "mcr_agents", "Agents that are connected to this aggregator"),
            false => Gauge::default(),
        };
        let flush_seconds = Histogram::new(FLUSH_BOUNDS_MS.map(|ms| ms as f64 / 1000.0));
        registry.register("mcr_flush_seconds", "Duration of the flush of a group", flush_seconds.clone());
        let last_commit = Family::<OfJob, Gauge>::default();
        let help = "Time of the last committed group of a job, in seconds since 1970";
        registry.register("mcr_job_last_commit_timestamp_seconds", help, last_commit.clone());
        let uncommitted_ranks = Family::<OfJob, Gauge>::default();
        let help = "Ranks of this agent that are written and not committed yet";
        registry.register("mcr_job_uncommitted_ranks", help, uncommitted_ranks.clone());
        let log_lines = Family::<OfLevel, Counter>::default();
        for level in ["warn", "error"] {
            drop(log_lines.get_or_create(&OfLevel { level })); // shown from the start
        }
        register_common(&mut registry, &log_lines);
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
            agents,
            flush_seconds,
            flushes: Mutex::default(),
            last_commit,
            uncommitted_ranks,
            log_lines,
            user,
            jobs: Mutex::default(),
            current: Mutex::default(),
            has_changed: Mutex::default(),
            change: Condvar::new(),
        }
    }

    /// The text of all metrics.
    pub fn text(&self, format: Format) -> String {
        format.encode(&self.registry)
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
            message::UNCOMMITTED => {
                self.uncommitted_ranks.get_or_create(&self.labels_of(&seen.job)).set(seen.ranks as i64);
                self.with_current(&seen.job, |current| current.uncommitted_ranks = Some(seen.ranks));
                return;
            }
            message::SAVED => Some(&self.checkpoints_saved),
            message::RANK => Some(&self.ranks_committed),
            message::FLUSH_FAILED => Some(&self.store_errors),
            message::REFUSED_RANK => Some(&self.ranks_refused),
            message::CUT_SHORT => Some(&self.drains_cut_short),
            message::NOT_COMMITTED => Some(&self.not_committed_at_end),
            message::ABANDONED => {
                self.checkpoints_abandoned.get_or_create(&OfReason { reason: known(&REASONS) }).inc();
                None
            }
            message::REFUSED_CONNECTION => {
                self.connections_refused.get_or_create(&OfRefusal { why: known(&REFUSALS) }).inc();
                None
            }
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

    fn with_current(&self, job: &str, change: impl FnOnce(&mut JobState)) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = current.as_ref().is_some_and(|current| current.job == job);
        if !is_it {
            *current = Some(JobState { job: job.to_owned(), ..JobState::default() });
        }
        current.as_mut().map(change);
    }

    fn lock_changed(&self) -> MutexGuard<'_, bool> {
        self.has_changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the metrics that every process has.
    fn register_common(&self, registry: &mut Registry) {
        register_common(registry, &self.log_lines);
    }

    /// Waits until an event was counted since the last call, or [`Metrics::wake`] was called, but at most the time
    /// `most`.
    pub fn wait(&self, most: Duration) {
        let waited = self.change.wait_timeout_while(self.lock_changed(), most, |has_changed| !*has_changed);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Ends the current or the next call of [`Metrics::wait`].
    pub fn wake(&self) {
        *self.lock_changed() = true;
        self.change.notify_all();
    }

    /// What a worker reports to `mcr node`. `accepted`: the counts that the daemon has accepted before.
    pub fn report(&self, accepted: Counts) -> Report {
        let abandoned = |reason| self.checkpoints_abandoned.get_or_create(&OfReason { reason }).get();
        let refused = |why| self.connections_refused.get_or_create(&OfRefusal { why }).get();
        let counts = Counts {
            checkpoints_committed: self.checkpoints_committed.get(),
            groups_committed: self.groups_committed.get(),
            checkpoints_saved: self.checkpoints_saved.get(),
            ranks_committed: self.ranks_committed.get(),
            ranks_refused: self.ranks_refused.get(),
            bytes_raw: self.bytes_raw.get(),
            bytes_stored: self.bytes_stored.get(),
            store_errors: self.store_errors.get(),
            drains_cut_short: self.drains_cut_short.get(),
            not_committed_at_end: self.not_committed_at_end.get(),
            abandoned_missing: abandoned("missing"),
            abandoned_store: abandoned("store"),
            abandoned_overtaken: abandoned("overtaken"),
            abandoned_fenced: abandoned("fenced"),
            abandoned_shutdown: abandoned("shutdown"),
            abandoned_other: abandoned(OTHER),
            refused_tls: refused("tls"),
            refused_user: refused("user"),
            refused_other: refused(OTHER),
            ..*self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let job = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Report { counts, accepted, agents: u64::try_from(self.agents.get()).unwrap_or(0), job }
    }

    fn labels_of(&self, job: &str) -> OfJob {
        OfJob { job: job.to_owned(), user: self.user.clone() }
    }

    /// If the last agent of a job has reported its end, the job is over, and metrics no longer name the job.
    fn disconnected(&self, seen: &Seen) {
        self.agents.dec();
        if seen.is_leaving && seen.others == 0 {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.retain(|job| *job != seen.job);
            self.last_commit.remove(&self.labels_of(&seen.job));
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
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner).add_flush(seen.elapsed_ms);
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|job| *job != seen.job);
        if jobs.len() >= JOBS_MAX
            && let Some(oldest) = jobs.pop_front()
        {
            self.last_commit.remove(&self.labels_of(&oldest));
        }
        jobs.push_back(seen.job.clone());
        let now = now_unix_seconds();
        self.last_commit.get_or_create(&self.labels_of(&seen.job)).set(now as i64);
        self.with_current(&seen.job, |current| current.last_commit_unix_seconds = Some(now));
    }
}

fn register_common(registry: &mut Registry, log_lines: &Family<OfLevel, Counter>) {
    registry.register("mcr_log_lines", "Warnings and errors of the log", log_lines.clone());
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("mcr_build", "Version of mcr", build);
}

fn now_unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
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
    ranks: u64,
    others: u64,
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
            "ranks" => self.ranks = value,
            "others" => self.others = value,
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
        if message::is_counted(&seen.message) {
            *self.0.lock_changed() = true;
            self.0.change.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcr_anc::group::Reason;
    use mcr_node::metrics::Page;
    use std::path::Path;
    use tracing_subscriber::layer::SubscriberExt;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new("alice".into()))
    }

    fn counted(events: impl Fn()) -> String {
        let metrics = metrics();
        let subscriber = tracing_subscriber::registry().with(CountEvents(Arc::clone(&metrics)));
        tracing::subscriber::with_default(subscriber, events);
        metrics.text(Format::OpenMetrics)
    }

    fn group(job: &str, exists: bool, was_there: bool) {
        tracing::debug!(
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
    fn only_a_process_with_an_aggregator_shows_a_number_of_agents() {
        let shows = |metrics: Metrics| metrics.text(Format::Prometheus).contains("mcr_agents");
        assert!(shows(Metrics::new("alice".into())) && !shows(Metrics::without_agents("alice".into())));
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
        let all = [
            Reason::Missing([].into()),
            Reason::Store(mcr_anc::group::Failed::default()),
            Reason::Overtaken,
            Reason::Fenced(text()),
        ];
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
    fn a_worker_reports_what_its_events_have_counted_and_a_change_ends_the_wait() {
        let metrics = metrics();
        let subscriber = tracing_subscriber::registry().with(CountEvents(Arc::clone(&metrics)));
        let none = metrics.report(Counts::default());
        assert_eq!((none.counts, none.agents, none.job), (Counts::default(), 0, None));
        tracing::subscriber::with_default(subscriber, || {
            group("wave", true, false);
            tracing::debug!(job = "wave", ranks = 7u64, "ranks wait for a commit");
            tracing::debug!(job = "wave", ranks = 5u64, "ranks wait for a commit");
            tracing::info!("agent connected");
            tracing::warn!(kind = "missing", "abandoned checkpoint");
            tracing::warn!(kind = "user", "a connection is refused");
        });
        let accepted = Counts { groups_committed: 1, ..Counts::default() };
        let report = metrics.report(accepted);
        let expected = Counts {
            checkpoints_committed: 1,
            groups_committed: 1,
            bytes_raw: 1000,
            bytes_stored: 300,
            abandoned_missing: 1,
            refused_user: 1,
            flushes_to_300_ms: 1,
            flush_ms: 250,
            ..Counts::default()
        };
        assert_eq!((report.counts, report.accepted, report.agents), (expected, accepted, 1));
        let job = report.job.clone().expect("a job");
        assert_eq!((job.job.as_str(), job.uncommitted_ranks), ("wave", Some(5)));
        assert!(job.last_commit_unix_seconds.is_some() && report.wrong().is_none());
        let text = metrics.text(Format::OpenMetrics);
        assert!(text.contains("mcr_job_uncommitted_ranks{job=\"wave\",user=\"alice\"} 5\n"), "{text}");
        let began = std::time::Instant::now();
        metrics.wait(Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(30));
        metrics.wait(Duration::from_millis(10)); // nothing has changed
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
        for file in ["cli/src/daemon.rs", "cli/src/uncommitted.rs"] {
            text.push_str(&std::fs::read_to_string(root.join(file)).expect("read"));
        }
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
            tracing::debug!(job = "wave", ranks = 1u64, "ranks wait for a commit");
        });
        let all = all + &node_text(&metrics(), Some(&Page::default()), &UserNames::default(), Format::OpenMetrics);
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
