//! The tables of `mcr status`, for text and for the live view. The tables depend only on the model and the time.

use super::model::{Aggregator, Model};
use crate::found::rank_list;
use crate::output::{Paint, Table, counted, human_rate, ratio};
use mcr_proto::{HEARTBEAT_SECONDS, v1};
use mcrengine::units::human_bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Maximum number of rows for agents. The rows of agents that do not answer come first.
const AGENTS_MAX: usize = 2000;
/// Maximum number of rows for jobs, and for groups in flight.
const ROWS_MAX: usize = 256;
/// Time without a message after which an agent counts as not answering, in milliseconds: two heartbeats and a margin.
const SILENT_MS: u64 = (2 * HEARTBEAT_SECONDS + 5) * 1000;
/// The reason why a row is old.
const SILENT_AGGREGATOR: &str = "its aggregator does not answer";
/// What to do if a group could not be written to the store.
const FAILING_STORE: &str = "waiting: a flush failed, and is tried again. Look at the space and the mount of the \
    store; mcr prune --keep N frees space";
/// Width of a progress bar, in characters.
const BAR_WIDTH: u64 = 10;

/// A table, and a line below it.
pub struct Section {
    pub table: Table,
    pub note: Option<String>,
}

/// All tables that have rows. `recent_max`: maximum number of rows for groups that are committed or abandoned.
pub fn sections(model: &Model, now: Instant, recent_max: usize) -> Vec<Section> {
    let mut all = vec![Section { table: aggregators(model, now), note: no_agents(model, now) }];
    all.extend(in_flight(model, now));
    all.extend(jobs(model, now));
    all.extend(recent(model, recent_max));
    all.extend(agents(model, now));
    all
}

/// A duration, rounded down: `12 s`, `3 min`, `2 h 5 min`, `3 d`.
pub fn ago(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// The last cause of an error, which is the most useful cause. For example, `transport error: tcp connect error:
/// Connection refused (os error 111)` becomes `connection refused`.
pub fn last_cause(error: &str) -> String {
    let cause = error.rsplit(": ").next().unwrap_or(error);
    let cause = cause.split(" (os error").next().unwrap_or(cause);
    let mut letters = cause.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn current(model: &Model) -> impl Iterator<Item = &v1::StatusReply> {
    model.aggregators.iter().filter_map(|aggregator| Some(&aggregator.current()?.status))
}

/// The last answer of each aggregator that does not answer any more, and the time since this answer in milliseconds.
fn old(model: &Model, now: Instant) -> impl Iterator<Item = (&v1::StatusReply, u64)> {
    let silent = model.aggregators.iter().filter(|aggregator| aggregator.current().is_none());
    silent.filter_map(move |aggregator| {
        let answer = aggregator.last.as_ref()?;
        Some((&answer.status, millis(now.saturating_duration_since(answer.at))))
    })
}

/// Rate of a running flush, in bytes per second.
fn rate_of(c: &v1::CheckpointStatus) -> u64 {
    if c.phase == "flushing" && c.flush_ms > 0 { c.raw_bytes.saturating_mul(1000) / c.flush_ms } else { 0 }
}

fn shown_rate(bytes_per_s: u64) -> String {
    if bytes_per_s == 0 { "-".to_owned() } else { human_rate(bytes_per_s, Duration::from_secs(1)) }
}

/// The heading of a column of text, which a narrow terminal may leave out only if the column is empty.
fn needed(is_needed: bool, title: &str) -> String {
    format!("{}~{title}", if is_needed { "" } else { "?" })
}

fn aggregators(model: &Model, now: Instant) -> Table {
    let why = needed(model.aggregators.iter().any(|aggregator| aggregator.error.is_some()), "why");
    let mut table = Table::new(&[
        "~aggregator",
        "state",
        "?memory",
        "?>flushes",
        "?>queue",
        "?>waiting",
        "?>rate",
        "?>up",
        "?>store writes",
        "?~store",
        &why,
    ]);
    for aggregator in &model.aggregators {
        let (cells, paint) = aggregator_cells(aggregator, now);
        table.row([aggregator.address.clone()].into_iter().chain(cells));
        table.paint(1, paint);
    }
    table
}

fn aggregator_cells(aggregator: &Aggregator, now: Instant) -> ([String; 10], Paint) {
    let Some(answer) = aggregator.current() else {
        let (state, paint) = match &aggregator.error {
            None => ("is asked".to_owned(), Paint::Doubtful),
            Some(_) => {
                let since = aggregator.silent_for(now);
                let is_new = since < Duration::from_secs(1); // such as the first question
                let state = format!("has not answered for {}", ago(millis(since)));
                (if is_new { "does not answer".to_owned() } else { state }, Paint::Bad)
            }
        };
        let why = aggregator.error.as_deref().map(last_cause).unwrap_or_default();
        let mut cells = [(); 10].map(|()| "-".to_owned());
        (cells[0], cells[9]) = (state, why);
        return (cells, paint);
    };
    let status = &answer.status;
    let rate = status.checkpoints.iter().map(rate_of).sum();
    let flushes = match status.flushes_max {
        0 => "-".to_owned(),
        most => format!("{} of {most}", status.running_flushes),
    };
    let count = |count: u32| if count == 0 { "-".to_owned() } else { count.to_string() };
    let cells = [
        "answers".to_owned(),
        format!("{} of {}", human_bytes(status.leased_bytes), human_bytes(status.budget_bytes)),
        flushes,
        count(status.queued_flushes),
        count(status.waiting_announcements),
        shown_rate(rate),
        ago(status.uptime_ms),
        shown_rate(status.store_bytes_per_s),
        status.store.clone(),
        String::new(),
    ];
    (cells, Paint::Good)
}

/// The line `no agent is connected`. `None` if an agent is or was connected, or if no aggregator answers.
fn no_agents(model: &Model, now: Instant) -> Option<String> {
    let mut all = current(model).chain(old(model, now).map(|(status, _)| status));
    let is_known = current(model).next().is_some() && all.all(|status| status.agents.is_empty());
    is_known.then(|| "no agent is connected".to_owned())
}

fn is_over(c: &v1::CheckpointStatus) -> bool {
    c.phase == "committed" || c.phase == "abandoned"
}

fn bar(done: u64, total: u64) -> String {
    let percent = (u128::from(done.min(total)) * 100 / u128::from(total.max(1))) as u64;
    let filled = percent * BAR_WIDTH / 100;
    let part = |count: u64, sign: &str| sign.repeat(usize::try_from(count).unwrap_or(0));
    format!("[{}{}] {percent:>3} %", part(filled, "#"), part(BAR_WIDTH - filled, "."))
}

fn more(shown: usize, all: usize, what: &str) -> Option<String> {
    (all > shown).then(|| format!("and {} more", counted((all - shown) as u64, what)))
}

/// The progress of a group, or the ranks for which the group waits.
fn progress(c: &v1::CheckpointStatus) -> String {
    if !c.missing.is_empty() {
        return format!("waiting for {}", rank_list(&c.missing));
    }
    if c.planned_bytes == 0 {
        return c.reason.clone();
    }
    let rate = rate_of(c);
    let left = c.planned_bytes.saturating_sub(c.raw_bytes).checked_div(rate);
    let left = left.map_or(String::new(), |seconds| format!(", {} left", ago(seconds.saturating_mul(1000))));
    format!("{}, {}{left}", bar(c.raw_bytes, c.planned_bytes), human_rate(rate, Duration::from_secs(1)))
}

/// Job, label and number of a group.
fn key_of(c: &v1::CheckpointStatus) -> (&str, &str, u32) {
    (&c.job, &c.label, c.group)
}

/// The groups in flight. If an aggregator does not answer any more, its last known groups are shown as old.
fn in_flight(model: &Model, now: Instant) -> Option<Section> {
    let known: BTreeSet<_> = current(model).flat_map(|status| &status.checkpoints).map(key_of).collect();
    let of_current = current(model).flat_map(|status| &status.checkpoints).map(|c| (c, None));
    let of_old = old(model, now).flat_map(|(status, since_ms)| {
        status.checkpoints.iter().filter(|c| !known.contains(&key_of(c))).map(move |c| (c, Some(since_ms)))
    });
    let mut all: Vec<(&v1::CheckpointStatus, Option<u64>)> =
        of_current.chain(of_old).filter(|(c, _)| !is_over(c)).collect();
    if all.is_empty() {
        return None;
    }
    // Running flushes come first, then queued flushes. Old groups come last.
    all.sort_by_key(|(c, since_ms)| (since_ms.is_some(), c.phase != "flushing", c.phase != "queued"));
    let mut table = Table::new(&["job", "~in flight", ">group", "phase", "~progress", "?>age"]);
    for (c, since_ms) in all.iter().take(ROWS_MAX) {
        let (phase, progress) = match since_ms {
            None => (c.phase.clone(), progress(c)),
            Some(since_ms) => (format!("{} {} ago", c.phase, ago(*since_ms)), SILENT_AGGREGATOR.to_owned()),
        };
        let (group, age) = (c.group.to_string(), ago(c.age_ms.saturating_add(since_ms.unwrap_or(0))));
        table.row([c.job.clone(), c.label.clone(), group, phase, progress, age]);
        if since_ms.is_some() {
            table.paint(3, Paint::Doubtful);
        } else if c.phase == "waiting" {
            table.paint(3, Paint::Bad);
        }
    }
    let is_failing = all.iter().any(|(c, since_ms)| since_ms.is_none() && c.phase == "waiting" && !c.reason.is_empty());
    let notes = [more(ROWS_MAX, all.len(), "group"), is_failing.then(|| FAILING_STORE.to_owned())];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    Some(Section { table, note: (!notes.is_empty()).then(|| notes.join("\n")) })
}

fn recent(model: &Model, recent_max: usize) -> Option<Section> {
    let mut all: Vec<_> = current(model).flat_map(|status| &status.checkpoints).filter(|c| is_over(c)).collect();
    all.sort_by_key(|c| c.age_ms);
    if all.is_empty() {
        return None;
    }
    let mut table = Table::new(&[
        "job",
        "~checkpoint",
        ">group",
        "state",
        "?>raw",
        "?>stored",
        "?>ratio",
        "?>took",
        "?>age",
        "?~what",
    ]);
    for c in all.iter().take(recent_max) {
        // For a committed checkpoint, the field `reason` has its name in the store.
        let (name, what) = match c.phase == "committed" && !c.reason.is_empty() {
            true => (c.reason.clone(), String::new()),
            false => (c.label.clone(), c.reason.clone()),
        };
        let of = if c.stored_bytes == 0 { "-".into() } else { format!("{:.2}", ratio(c.raw_bytes, c.stored_bytes)) };
        let took = if c.flush_ms == 0 { "-".into() } else { format!("{:.1} s", c.flush_ms as f64 / 1000.0) };
        let (raw, stored) = (human_bytes(c.raw_bytes), human_bytes(c.stored_bytes));
        let group = c.group.to_string();
        table.row([c.job.clone(), name, group, c.phase.clone(), raw, stored, of, took, ago(c.age_ms), what]);
        table.paint(3, if c.phase == "committed" { Paint::Good } else { Paint::Bad });
    }
    Some(Section { table, note: more(recent_max, all.len(), "group") })
}

/// The last events of a job, over all aggregators.
#[derive(Default)]
struct JobRow<'a> {
    agents: usize,
    /// Time in milliseconds, and the name of the checkpoint.
    commit: Option<(u64, &'a str)>,
    error: Option<(u64, &'a str)>,
    raw_bytes: u64,
    stored_bytes: u64,
}

fn newest<'a>(known: Option<(u64, &'a str)>, ago_ms: u64, text: &'a str) -> Option<(u64, &'a str)> {
    let other = (!text.is_empty()).then_some((ago_ms, text));
    known.into_iter().chain(other).min_by_key(|(ago_ms, _)| *ago_ms)
}

fn jobs(model: &Model, now: Instant) -> Option<Section> {
    let mut rows: BTreeMap<&str, JobRow<'_>> = BTreeMap::new();
    // The last answer of an aggregator is used even if the aggregator no longer answers.
    for answer in model.aggregators.iter().filter_map(|aggregator| aggregator.last.as_ref()) {
        let since_ms = millis(now.saturating_duration_since(answer.at));
        for job in &answer.status.jobs {
            let row = rows.entry(&job.job).or_default();
            row.commit = newest(row.commit, job.last_commit_ago_ms.saturating_add(since_ms), &job.last_checkpoint);
            row.error = newest(row.error, job.last_error_ago_ms.saturating_add(since_ms), &job.last_error);
            row.raw_bytes = row.raw_bytes.saturating_add(job.raw_bytes);
            row.stored_bytes = row.stored_bytes.saturating_add(job.stored_bytes);
        }
    }
    for (job, _) in by_node(model, now).keys() {
        rows.entry(job).or_default().agents += 1;
    }
    if rows.is_empty() {
        return None;
    }
    let error = needed(rows.values().any(|row| row.error.is_some()), "last error");
    let mut table = Table::new(&["job", ">agents", "last commit", "?~checkpoint", "?>saved", "?>ratio", &error]);
    for (job, row) in rows.iter().take(ROWS_MAX) {
        let (when, checkpoint) = match row.commit {
            Some((ago_ms, checkpoint)) => (format!("{} ago", ago(ago_ms)), checkpoint.to_owned()),
            None => ("none since its start".to_owned(), "-".to_owned()),
        };
        let of =
            if row.stored_bytes == 0 { "-".into() } else { format!("{:.2}", ratio(row.raw_bytes, row.stored_bytes)) };
        let error = row.error.map_or_else(|| "-".into(), |(ago_ms, error)| format!("{} ago: {error}", ago(ago_ms)));
        let (agents, saved) = (row.agents.to_string(), human_bytes(row.raw_bytes));
        table.row([(*job).to_owned(), agents, when, checkpoint, saved, of, error]);
        if row.error.is_some_and(|(error_ms, _)| row.commit.is_none_or(|(commit_ms, _)| error_ms < commit_ms)) {
            table.paint(2, Paint::Bad);
        }
    }
    Some(Section { table, note: more(ROWS_MAX, rows.len(), "job") })
}

/// An agent, over all aggregators with which it has a session.
struct AgentRow {
    ranks: usize,
    connected_ms: u64,
    silent_ms: u64,
    is_lost: bool,
    /// Whether the agent waits for no answer. Such an agent sends no messages, and its session is open.
    is_idle: bool,
    /// The time since the last answer of the aggregator, in milliseconds. `None` if the aggregator answers.
    old_ms: Option<u64>,
}

impl AgentRow {
    /// Whether the agent answers. An agent of an aggregator that does not answer counts as before.
    fn answers(&self) -> bool {
        !self.is_lost && (self.old_ms.is_some() || self.is_idle || self.silent_ms < SILENT_MS)
    }
}

/// The agents, by job and node. If an aggregator does not answer any more, its last known agents are included.
fn by_node(model: &Model, now: Instant) -> BTreeMap<(&str, &str), AgentRow> {
    let mut rows: BTreeMap<(&str, &str), AgentRow> = BTreeMap::new();
    for agent in current(model).flat_map(|status| &status.agents) {
        let (is_lost, silent_ms, connected_ms) = (agent.lost, agent.silent_ms, agent.connected_ms);
        let is_idle = agent.at_rest && !is_lost;
        let row = AgentRow { ranks: agent.ranks.len(), connected_ms, silent_ms, is_lost, is_idle, old_ms: None };
        match rows.entry((&agent.job, &agent.node)) {
            std::collections::btree_map::Entry::Vacant(new) => drop(new.insert(row)),
            std::collections::btree_map::Entry::Occupied(known) => {
                let known = known.into_mut();
                known.ranks += row.ranks;
                known.connected_ms = known.connected_ms.max(row.connected_ms);
                // An agent is lost only if it has no session with any aggregator, and silent only if no aggregator
                // receives messages from it. An agent that waits for an answer of one aggregator is not idle.
                let order = |row: &AgentRow| (!row.answers(), row.is_lost, row.is_idle, row.silent_ms);
                if order(&row) < order(known) {
                    (known.is_lost, known.is_idle, known.silent_ms) = (row.is_lost, row.is_idle, row.silent_ms);
                }
            }
        }
    }
    for (status, since_ms) in old(model, now) {
        for agent in &status.agents {
            let (ranks, connected_ms, is_lost) = (agent.ranks.len(), agent.connected_ms, agent.lost);
            let silent_ms = agent.silent_ms.saturating_add(since_ms);
            let row = AgentRow { ranks, connected_ms, silent_ms, is_lost, is_idle: false, old_ms: Some(since_ms) };
            rows.entry((&agent.job, &agent.node)).or_insert(row);
        }
    }
    rows
}

fn agents(model: &Model, now: Instant) -> Option<Section> {
    let rows = by_node(model, now);
    if rows.is_empty() && model.silent_agents.is_empty() {
        return None;
    }
    let mut table = Table::new(&["~node", "~job", "?>ranks", "state", "?>connected", "?~why"]);
    for agent in &model.silent_agents {
        let job = format!("SLURM job {}", agent.job_id);
        let (state, why) = match agent.is_given_up {
            true => ("has ended", agent.error.clone()),
            false => ("does not answer", last_cause(&agent.error)),
        };
        table.row(["this node".into(), job, "-".into(), state.into(), "-".into(), why]);
        table.paint(3, Paint::Bad);
    }
    let mut all: Vec<_> = rows.iter().collect();
    all.sort_by_key(|(_, row)| row.answers());
    for ((job, node), row) in all.iter().take(AGENTS_MAX) {
        let (state, paint) = match row.old_ms {
            _ if row.is_lost => (format!("lost {} ago", ago(row.silent_ms)), Paint::Bad),
            Some(since_ms) => (format!("connected {} ago", ago(since_ms)), Paint::Doubtful),
            None if row.is_idle => ("idle".to_owned(), Paint::Good),
            None if row.answers() => ("answers".to_owned(), Paint::Good),
            None => (format!("has not answered for {}", ago(row.silent_ms)), Paint::Bad),
        };
        let why = if row.is_lost {
            "the connection broke before the agent reported its end".to_owned()
        } else if row.old_ms.is_some() {
            SILENT_AGGREGATOR.to_owned()
        } else {
            String::new()
        };
        let connected = if row.is_lost { "-".to_owned() } else { ago(row.connected_ms) };
        table.row([(*node).to_owned(), (*job).to_owned(), row.ranks.to_string(), state, connected, why]);
        table.paint(3, paint);
    }
    Some(Section { table, note: more(AGENTS_MAX, all.len(), "agent") })
}

/// One line that summarizes the model: `2 aggregators, 1 does not answer; 500 agents`.
pub fn summary(model: &Model) -> String {
    let silent = |count: usize| match count {
        0 => String::new(),
        1 => ", 1 does not answer".to_owned(),
        count => format!(", {count} do not answer"),
    };
    let rows = by_node(model, Instant::now()); // the numbers do not depend on the time
    let (all, silent_agents) = (rows.len() + model.silent_agents.len(), model.silent_agents.len());
    let silent_agents = silent_agents + rows.values().filter(|row| !row.answers()).count();
    let without_answer = model.aggregators.iter().filter(|aggregator| aggregator.error.is_some()).count();
    format!(
        "{}{}; {}{}",
        counted(model.aggregators.len() as u64, "aggregator"),
        silent(without_answer),
        counted(all as u64, "agent"),
        silent(silent_agents)
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An agent that was heard `silent_ms` ago.
    pub fn agent(node: &str, silent_ms: u64, lost: bool) -> v1::AgentStatus {
        let ranks = (0..8).collect();
        let (node, job) = (node.into(), "wave".into());
        v1::AgentStatus { node, job, connected_ms: 60_000, silent_ms, ranks, lost, at_rest: false }
    }

    /// The state of a busy aggregator with this number of agents.
    pub fn status(agents: u32) -> v1::StatusReply {
        let group = |label: &str, phase: &str| v1::CheckpointStatus {
            job: "wave".into(),
            label: label.into(),
            phase: phase.into(),
            age_ms: 5000,
            ..v1::CheckpointStatus::default()
        };
        let mut flushing = group("it_3", "flushing");
        (flushing.raw_bytes, flushing.planned_bytes, flushing.flush_ms) = (420 << 20, 1000 << 20, 2000);
        let mut gathering = group("it_4", "gathering");
        gathering.missing = vec![7];
        let mut committed = group("it_2", "committed");
        (committed.reason, committed.raw_bytes, committed.stored_bytes) = ("it_2".into(), 3 << 20, 1 << 20);
        v1::StatusReply {
            software: "mcr 0.1.0".into(),
            uptime_ms: 7_500_000,
            store: "/lustre/mcr".into(),
            budget_bytes: 512 << 20,
            leased_bytes: 100 << 20,
            agents: (0..agents).map(|n| agent(&format!("n{n:04}"), 1000, false)).collect(),
            checkpoints: vec![gathering, flushing, group("it_5", "queued"), committed],
            queued_flushes: 1,
            running_flushes: 1,
            flushes_max: 2,
            waiting_announcements: 3,
            store_bytes_per_s: 900 << 20,
            jobs: vec![v1::JobStatus {
                job: "wave".into(),
                committed_groups: 2,
                raw_bytes: 6 << 20,
                stored_bytes: 2 << 20,
                last_checkpoint: "it_2".into(),
                last_commit_ago_ms: 4000,
                last_error: "the flush of it_1 failed: no space left on device".into(),
                last_error_ago_ms: 300_000,
            }],
        }
    }

    fn text(model: &Model, now: Instant) -> String {
        let of = |section: &Section| section.table.render() + section.note.as_deref().unwrap_or_default();
        sections(model, now, 8).iter().map(of).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_is_in_flight_has_a_bar_a_rate_and_the_time_left_and_what_is_awaited_is_named() {
        let (mut model, now) = (Model::default(), Instant::now());
        model.add(&["a:1".to_owned()], now);
        model.note("a:1", Ok(status(2)), now);
        let text = text(&model, now);
        let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{text}"));
        for part in ["[####......]  42 %", "210.00 MiB/s", "2 s"] {
            assert!(line(" it_3 ").contains(part), "{text}");
        }
        assert!(line(" it_4 ").contains("waiting for rank 7") && line(" it_5 ").contains("queued"), "{text}");
        for part in ["answers", "100.00 MiB of 512.00 MiB", "1 of 2", "900.00 MiB/s", "2 h 5 min"] {
            assert!(line("a:1").contains(part), "{part}: {text}");
        }
        let job = text.lines().find(|line| line.contains("4 s ago")).unwrap_or_else(|| panic!("{text}"));
        assert!(job.contains("3.00") && job.contains("5 min ago: the flush of it_1 failed"), "{text}");
        assert_eq!(summary(&model), "1 aggregator; 2 agents");
    }

    #[test]
    fn an_aggregator_that_died_keeps_its_rows_and_they_are_marked_as_old() {
        let (mut model, start) = (Model::default(), Instant::now());
        model.add(&["a:1".to_owned(), "b:1".to_owned()], start);
        model.note("a:1", Ok(status(1)), start);
        model.note("a:1", Err("a:1: tcp connect error: Connection refused (os error 111)".into()), start);
        model.note("b:1", Ok(v1::StatusReply::default()), start);
        let text = text(&model, start + Duration::from_secs(12));
        let row = text.lines().find(|line| line.contains("a:1")).expect("a row");
        assert!(row.contains("has not answered for 12 s") && row.contains("connection refused"), "{text}");
        assert!(text.contains("16 s ago") && !text.contains("no agent is connected"), "{text}");
        let old = [(" it_3 ", "flushing 12 s ago"), (" it_4 ", "gathering 12 s ago"), ("n0000 ", "12 s ago")];
        for (part, state) in old {
            let row = text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {text}"));
            assert!(row.contains(state) && row.contains(SILENT_AGGREGATOR), "{text}");
        }
        assert_eq!(summary(&model), "2 aggregators, 1 does not answer; 1 agent");
        // The agent has announced the checkpoint to another aggregator.
        model.note("b:1", Ok(status(1)), start);
        let text = super::tests::text(&model, start + Duration::from_secs(12));
        assert!(!text.contains("12 s ago") && text.contains("[####......]  42 %"), "{text}");
    }

    #[test]
    fn an_aggregator_that_does_not_answer_the_first_question_has_no_time() {
        let (mut model, now) = (Model::default(), Instant::now());
        model.add(&["a:1".to_owned()], now);
        model.note("a:1", Err("a:1: connection refused, no process listens there".into()), now);
        let text = text(&model, now);
        assert!(text.contains("does not answer") && !text.contains("0 s"), "{text}");
    }

    #[test]
    fn agents_that_do_not_answer_come_first_and_one_that_any_aggregator_hears_answers() {
        let (mut model, now) = (Model::default(), Instant::now());
        model.add(&["a:1".to_owned(), "b:1".to_owned()], now);
        let with = |agents: Vec<v1::AgentStatus>| v1::StatusReply { agents, ..v1::StatusReply::default() };
        let all =
            vec![agent("n1", 10, false), agent("n2", 30_000, false), agent("n3", 5000, true), agent("n4", 1, true)];
        model.note("a:1", Ok(with(all)), now);
        model.note("b:1", Ok(with(vec![agent("n4", 2000, false)])), now);
        let text = text(&model, now);
        let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("node")).collect();
        let begins: Vec<&str> = rows.iter().filter_map(|row| row.split_whitespace().next()).collect();
        assert_eq!(begins, ["node", "n2", "n3", "n1", "n4"], "{text}");
        assert!(rows[1].contains("has not answered for 30 s") && rows[2].contains("lost 5 s ago"), "{text}");
        assert!(rows[4].contains("16") && rows[4].contains("answers"), "the ranks of both aggregators: {text}");
        assert_eq!(summary(&model), "2 aggregators; 4 agents, 2 do not answer");
    }

    #[test]
    fn an_idle_agent_sends_no_messages_and_does_not_count_as_silent() {
        let (mut model, now) = (Model::default(), Instant::now());
        model.add(&["a:1".to_owned(), "b:1".to_owned()], now);
        let with = |agents: Vec<v1::AgentStatus>| v1::StatusReply { agents, ..v1::StatusReply::default() };
        let idle = |node: &str| v1::AgentStatus { at_rest: true, ..agent(node, 600_000, false) };
        model.note("a:1", Ok(with(vec![idle("n1"), idle("n2"), idle("n3"), agent("n4", 600_000, true)])), now);
        model.note("b:1", Ok(with(vec![agent("n2", 30_000, false), agent("n3", 10, false), idle("n4")])), now);
        let text = text(&model, now);
        let state =
            |node: &str| text.lines().find(|line| line.starts_with(node)).map(str::to_owned).unwrap_or_default();
        for (node, word) in [("n1", " idle "), ("n2", " idle "), ("n3", " answers "), ("n4", " idle ")] {
            assert!(state(node).contains(word), "{node}: {text}");
        }
        assert_eq!(summary(&model), "2 aggregators; 4 agents");
    }

    #[test]
    fn the_last_cause_of_an_error_is_shown_in_lower_case() {
        assert_eq!(last_cause("transport error: Connection refused (os error 111)"), "connection refused");
        assert_eq!(last_cause(""), "");
        assert_eq!([ago(999), ago(61_000), ago(7_500_000), ago(90_000_000)], ["0 s", "1 min", "2 h 5 min", "1 d"]);
    }
}
