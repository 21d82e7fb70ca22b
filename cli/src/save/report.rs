//! The report of `mcr save`: one line for each checkpoint, and a last line that names the missing checkpoints.

use super::group::GroupEnd;
use crate::advice::{Advised, Told, message_of};
use crate::args::SaveArgs;
use crate::exit::Exit;
use crate::found::LeftOut;
use crate::output::{
    Paint, Table, counted, human_rate, human_time, json_word, name_of, or_dash, print, print_json, printed, ratio,
    tell, tell_error,
};
use mcr_anc::commit_group::CommittedGroup;
use mcr_cnc::layout::Labelled;
use mcrengine::container::ReadError;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::incarnation;
use mcrengine::manifest;
use mcrengine::store::Store;
use mcrengine::units::human_bytes;
use std::time::{Duration, Instant};

/// One line of the report.
#[derive(serde::Serialize)]
pub struct Saved {
    pub label: String,
    pub checkpoint: Option<String>,
    #[serde(serialize_with = "as_json_word")]
    pub outcome: &'static str,
    pub reason: Option<String>,
    /// Whether the checkpoint is incomplete here, and the store has a complete checkpoint with its name.
    #[serde(skip)]
    pub is_complete_in_store: bool,
    /// The reason if something about the files is uncertain.
    pub doubt: Option<String>,
    pub files: u64,
    pub ranks: u32,
    pub containers: u32,
    pub file_bytes: u64,
    pub stored_bytes: u64,
    /// Time to capture the checkpoint, and to flush its groups. `None` if no group was begun, or if not all groups
    /// ended.
    pub elapsed_ms: Option<u64>,
}

fn as_json_word<S: serde::Serializer>(outcome: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&json_word(outcome))
}

impl Saved {
    /// The line of a checkpoint before its first group is saved.
    pub fn new(label: &CheckpointId, files: usize, ranks: u32, outcome: &'static str) -> Self {
        Self {
            label: label.to_string(),
            checkpoint: None,
            outcome,
            reason: None,
            is_complete_in_store: false,
            doubt: None,
            files: files as u64,
            ranks,
            containers: 0,
            file_bytes: 0,
            stored_bytes: 0,
            elapsed_ms: None,
        }
    }

    /// Whether the checkpoint is in the store now.
    fn is_in_store(&self) -> bool {
        self.checkpoint.is_some() && self.outcome != REMOVED
    }

    /// Whether the checkpoint is neither saved nor left out by the rules of --keep.
    fn is_missing(&self) -> bool {
        self.checkpoint.is_none() && self.outcome != NOT_KEPT
    }
}

/// An event of a checkpoint. An error instead of an event ends the whole run.
pub enum Event {
    /// A checkpoint was captured, or could not be captured. `groups` is the number of its groups that follow.
    Begun { line: Saved, captured_in: Duration, groups: usize },
    /// A group of the checkpoint with line `nth`, whose flush began at `began`, is committed or has failed.
    Ended { nth: usize, began: Instant, end: GroupEnd },
}

/// The report, in the order of the checkpoints.
#[derive(Default)]
pub struct Report {
    lines: Vec<Saved>,
    /// The open groups of each line.
    open: Vec<OpenGroups>,
    /// The error that ended the run, or the error of pruning.
    error: Option<anyhow::Error>,
    /// Whether an error ended the run early.
    is_cut: bool,
}

/// The groups of a checkpoint that have not ended.
struct OpenGroups {
    count: usize,
    captured_in: Duration,
    /// When the flush of the first group began. A checkpoint that was captured waits until then for the flushes of
    /// older checkpoints, and this wait is no part of its own time.
    began: Option<Instant>,
}

/// The outcome of a checkpoint that was saved, and then removed by the rules of --keep.
const REMOVED: &str = "removed again";
/// The outcome of a checkpoint that was not saved, because the rules of --keep would have removed it again.
const NOT_KEPT: &str = "not kept";

impl Report {
    pub fn take(&mut self, event: anyhow::Result<Event>) {
        match event {
            Ok(Event::Begun { line, captured_in, groups }) => {
                self.lines.push(line);
                self.open.push(OpenGroups { count: groups, captured_in, began: None });
            }
            Ok(Event::Ended { nth, began, end }) => {
                let (line, open) = (&mut self.lines[nth], &mut self.open[nth]);
                let first = open.began.map_or(began, |first| first.min(began));
                open.began = Some(first);
                match end {
                    GroupEnd::Committed(done) => {
                        let CommittedGroup { manifest, was_there } = *done;
                        if !was_there && line.reason.is_none() {
                            line.outcome = "saved";
                        }
                        line.checkpoint = Some(manifest.checkpoint.to_string());
                        line.containers += 1;
                        line.file_bytes += manifest.file_bytes();
                        line.stored_bytes += manifest.stored_bytes.0;
                    }
                    GroupEnd::Failed(reason) => {
                        line.outcome = "failed";
                        line.reason = line.reason.take().or(reason);
                    }
                }
                open.count -= 1;
                if open.count == 0 {
                    line.elapsed_ms = Some((open.captured_in + first.elapsed()).as_millis() as u64);
                }
            }
            Err(error) => {
                self.is_cut = true;
                self.error.get_or_insert(error); // later errors are consequences of the first error
            }
        }
    }

    /// Ends the report after the last event. Unfinished checkpoints, and checkpoints that were not begun, have
    /// failed.
    pub fn close(&mut self, found: &[Labelled], ranks: u32) {
        for (line, open) in self.lines.iter_mut().zip(&self.open) {
            // Some groups of the checkpoint may be committed. Without all of its groups, the checkpoint does not
            // exist.
            if open.count > 0 {
                line.outcome = "failed";
                line.reason.get_or_insert_with(|| "an error ended the save before this checkpoint was complete".into());
            }
            if line.reason.is_some() {
                line.checkpoint = None;
            }
        }
        for (label, files) in &found[self.lines.len()..] {
            let reason = Some("an error ended the save before this checkpoint was begun".into());
            self.lines.push(Saved { reason, ..Saved::new(label, files.len(), ranks, "failed") });
        }
    }

    /// Adds the checkpoints that were not saved, because the rules of --keep would have removed them again. They are
    /// older than the others.
    pub fn not_kept(&mut self, found: &[Labelled], ranks: u32) {
        let lines = found.iter().map(|(label, files)| Saved::new(label, files.len(), ranks, NOT_KEPT));
        self.lines.splice(0..0, lines);
    }

    /// Marks the checkpoints as failed that can never become complete, because a start of the job began while their
    /// groups were committed.
    pub fn fail_dead(&mut self, store: &dyn Store, job: &JobId) {
        if let Err(error) = fail_dead(&mut self.lines, store, job) {
            self.error.get_or_insert(error.into());
        }
    }

    /// Asks the store whether the newest saved checkpoint is doubtful. The doubt of a checkpoint that was there already
    /// may have been taken back.
    pub fn judge_newest(&mut self, store: &dyn Store, job: &JobId) {
        let Some(newest) = self.lines.iter_mut().rev().find(|line| line.is_in_store()) else { return };
        let Some(Ok(id)) = newest.checkpoint.as_ref().map(|name| name.parse::<CheckpointId>()) else { return };
        match manifest::state(store, job, &id) {
            Ok(state) => newest.doubt = state.doubt,
            Err(error) => tracing::warn!(%job, checkpoint = %id, %error, "the saved checkpoint could not be read"),
        }
    }

    /// The newest saved checkpoint, if it is doubtful.
    fn doubtful(&self) -> Option<&Saved> {
        self.lines.iter().rev().find(|line| line.is_in_store()).filter(|line| line.doubt.is_some())
    }

    /// Whether old checkpoints may be removed now: at least one checkpoint is saved, and the store works.
    pub fn may_prune(&self) -> bool {
        !self.is_cut && self.saved() > 0
    }

    /// Records the checkpoints that the rules of --keep removed.
    pub fn pruned(&mut self, removed: anyhow::Result<Vec<CheckpointId>>) {
        match removed {
            Ok(removed) => {
                let is_removed = |line: &Saved| removed.iter().any(|id| Some(id.to_string()) == line.checkpoint);
                for line in self.lines.iter_mut().filter(|line| is_removed(line)) {
                    line.outcome = REMOVED;
                }
            }
            Err(error) => self.error = Some(error),
        }
    }

    fn saved(&self) -> usize {
        self.lines.iter().filter(|line| !line.is_missing()).count()
    }

    pub fn exit(&self, left_out: &LeftOut) -> Exit {
        Exit::of(self.saved(), self.is_partly(left_out) || self.doubtful().is_some())
    }

    /// Whether something is not saved, or an error occurred.
    fn is_partly(&self, left_out: &LeftOut) -> bool {
        self.saved() < self.lines.len() || left_out.count > 0 || self.error.is_some()
    }

    /// Whether everything is saved, and only the newest checkpoint is doubtful.
    fn is_only_doubtful(&self, left_out: &LeftOut) -> bool {
        !self.is_partly(left_out) && self.doubtful().is_some()
    }

    /// The error of the command as an object: the error that ended the run, or what `missing` returns if something is
    /// not saved. `None` if everything is saved.
    fn told(&self, exit: Exit, missing: impl FnOnce() -> Advised) -> Option<Told> {
        match (&self.error, exit) {
            (Some(error), _) => Some(Told::new(error, exit as u8)),
            (None, Exit::Done) => None,
            (None, _) => Some(Told::new(&missing().into(), exit as u8)),
        }
    }

    /// The error if checkpoints or files are not saved, and no error ended the run.
    fn missing(&self, job: &JobId, args: &SaveArgs, left_out: &LeftOut, exit: Exit) -> Advised {
        let line = self.last_line(job, args, left_out, exit);
        let what = line.split_once(": ").map_or(line.as_str(), |(_, what)| what);
        let first = self.lines.iter().find(|line| line.is_missing());
        let (what, advice) = match first.and_then(|first| Some((&first.label, first.reason.as_ref()?))) {
            Some((label, reason)) => (
                format!("{what}; {label}: {reason}"),
                "correct what the reason of each checkpoint names, and save again",
            ),
            None if left_out.count == 0 => (
                what.to_owned(),
                "look at the reason for the doubt. mcr restart --checkpoint restores a doubtful checkpoint",
            ),
            None => (
                what.to_owned(),
                "name the files with --layout, or move files that belong to no checkpoint to another directory",
            ),
        };
        Advised::new(what, advice).at(&args.dir)
    }

    pub fn print(&self, job: &JobId, args: &SaveArgs, left_out: &LeftOut, exit: Exit) -> anyhow::Result<()> {
        printed(self.print_result(job, args, left_out, exit), || {
            let (saved, all) = (self.saved(), counted(self.lines.len() as u64, "checkpoint"));
            (saved > 0).then(|| format!("{saved} of {all} ARE saved in {}", name_of(&args.store.store)))
        })
    }

    fn print_result(&self, job: &JobId, args: &SaveArgs, left_out: &LeftOut, exit: Exit) -> anyhow::Result<()> {
        if let Some(error) = &self.error {
            tell_error(error);
        }
        if args.json {
            let outcome = match exit {
                Exit::Done => "saved",
                Exit::Partly if self.is_only_doubtful(left_out) => "doubtful",
                Exit::Partly => "partly",
                _ => "failed",
            };
            let error = self.told(exit, || self.missing(job, args, left_out, exit));
            return print_json(&serde_json::json!({
                "job": job, "store": name_of(&args.store.store), "outcome": outcome, "error": error,
                "checkpoints": self.lines, "left_out": left_out,
            }));
        }
        let mut table = Table::new(&[
            "checkpoint",
            "outcome",
            ">ranks",
            ">files",
            "?>containers",
            ">bytes",
            ">stored",
            ">ratio",
            "?>time",
            "?>rate",
        ]);
        for line in &self.lines {
            // Bytes and the rate are known only of committed groups.
            let elapsed = line.elapsed_ms.map(Duration::from_millis);
            let is_measured = line.containers > 0;
            let ratio = || format!("{:.3}", ratio(line.file_bytes, line.stored_bytes));
            let rate = elapsed.filter(|_| is_measured).map(|elapsed| human_rate(line.file_bytes, elapsed));
            table.row([
                line.checkpoint.clone().unwrap_or_else(|| line.label.clone()),
                line.outcome.into(),
                line.ranks.to_string(),
                line.files.to_string(),
                line.containers.to_string(),
                or_dash(is_measured.then(|| human_bytes(line.file_bytes))),
                or_dash(is_measured.then(|| human_bytes(line.stored_bytes))),
                or_dash(is_measured.then(ratio)),
                or_dash(elapsed.map(human_time)),
                or_dash(rate),
            ]);
            table.paint(1, if line.is_missing() { Paint::Bad } else { Paint::Good });
        }
        table.print()?;
        for line in &self.lines {
            if let Some(reason) = &line.reason {
                tell(format!("{} is not saved: {reason}", line.label));
            } else if let Some(doubt) = &line.doubt {
                tell(format!("{} is doubtful: {doubt}", line.checkpoint.as_ref().unwrap_or(&line.label)));
            }
        }
        let why = self.error.as_ref().map(|error| format!("; {}", message_of(error))).unwrap_or_default();
        print(&format!("{}{why}\n", self.last_line(job, args, left_out, exit)))
    }

    /// The last line: the number of saved checkpoints, and the names of missing checkpoints.
    fn last_line(&self, job: &JobId, args: &SaveArgs, left_out: &LeftOut, exit: Exit) -> String {
        const SHOWN_MAX: usize = 8;
        let some_of = |names: &[&str]| {
            let more = names.len().saturating_sub(SHOWN_MAX);
            let shown = names[..names.len() - more].join(", ");
            if more > 0 { format!("{shown} and {more} more") } else { shown }
        };
        let of_job = if args.store.job.is_none() { format!(" (job {job})") } else { String::new() };
        let not_there = self.lines.iter().filter(|line| line.is_missing());
        let (unknown, missing): (Vec<&Saved>, Vec<&Saved>) = not_there.partition(|line| line.is_complete_in_store);
        let names = |lines: &[&Saved]| some_of(&lines.iter().map(|line| line.label.as_str()).collect::<Vec<_>>());
        let word = match exit {
            Exit::Done => "",
            Exit::Partly if self.is_only_doubtful(left_out) => "DOUBTFUL: ",
            Exit::Partly => "PARTLY: ",
            _ => "FAILED: ",
        };
        let count_of = |outcome| self.lines.iter().filter(|line| line.outcome == outcome).count();
        let (removed, not_kept) = (count_of(REMOVED), count_of(NOT_KEPT));
        let not_saved = missing.len() + unknown.len();
        let (saved, store) = (self.lines.len() - not_saved - removed - not_kept, name_of(&args.store.store));
        let mut line = format!(
            "{word}{saved} of {} {} {}in {store}{of_job}",
            self.lines.len(),
            if self.lines.len() == 1 { "checkpoint is" } else { "checkpoints are" },
            if unknown.is_empty() { "" } else { "known to be " }
        );
        if removed > 0 {
            line.push_str(&format!("; {removed} removed by --keep"));
        }
        if not_kept > 0 {
            line.push_str(&format!("; {not_kept} older than what --keep keeps"));
        }
        if !missing.is_empty() {
            line.push_str(&format!("; not saved: {}", names(&missing)));
        }
        if !unknown.is_empty() {
            let names = names(&unknown);
            line.push_str(&format!("; incomplete here, and complete under the same name in the store: {names}"));
        }
        if let Some(sentence) = left_out.sentence() {
            line.push_str(&format!("; {sentence}"));
        }
        if let Some(newest) = self.doubtful() {
            let name = newest.checkpoint.as_ref().unwrap_or(&newest.label);
            line.push_str(&format!(
                "; the newest, {name}, is doubtful: a restart takes an older checkpoint if there is one without doubt"
            ));
        }
        line
    }
}

fn fail_dead(lines: &mut [Saved], store: &dyn Store, job: &JobId) -> Result<(), ReadError> {
    let newest = incarnation::newest(store, job)?;
    // The other nodes of such a start may restore their parts later, so the files are not saved for this job.
    let has_parts = newest.is_some_and(|newest| newest.is_restart && !newest.identity.is_empty());
    for line in lines {
        let Some(Ok(id)) = line.checkpoint.as_ref().map(|name| name.parse::<CheckpointId>()) else { continue };
        let state = match manifest::state(store, job, &id) {
            Err(ReadError::Missing { .. }) => continue, // removed by another process
            other => other?,
        };
        if !state.is_dead {
            continue;
        }
        let why = state.problems.last().map_or("a start of the job began meanwhile", String::as_str);
        let advice = match id.with_generation(id.generation().saturating_add(1)) {
            Ok(next) if !has_parts => format!("save again: the checkpoint then gets the name {next}"),
            _ => "to keep it, save it for a job of another name (--job)".into(),
        };
        line.reason = Some(format!("{why}; {advice}"));
        line.outcome = "failed";
        line.checkpoint = None;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::store::StoreError;

    #[test]
    fn the_error_that_ended_a_save_is_an_object_with_advice_and_a_path() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = StoreError::Io { path: "/store/wave/1/group-0000.mcr".into(), what: "writing", source: full };
        let mut report = Report::default();
        let missing = || Advised::new("0 of 1 checkpoint is saved", "correct the reason");
        assert!(report.told(Exit::Done, missing).is_none());
        assert_eq!(report.told(Exit::Failed, missing).map(|told| told.advice).as_deref(), Some("correct the reason"));
        report.take(Err(anyhow::Error::from(error).context("wave.1, group 0")));
        let told = serde_json::to_value(report.told(Exit::Failed, missing)).expect("JSON");
        assert_eq!((&told["code"], &told["path"]), (&1.into(), &"/store/wave/1/group-0000.mcr".into()), "{told}");
        assert!(told["advice"].as_str().is_some_and(|advice| advice.starts_with("free space")), "{told}");
    }

    #[test]
    fn the_time_of_a_checkpoint_does_not_contain_the_time_of_older_checkpoints() {
        let mut report = Report::default();
        for label in ["wave.1", "wave.2"] {
            let line = Saved::new(&label.parse().expect("a name"), 1, 1, "there already");
            let captured_in = Duration::from_secs(1);
            report.take(Ok(Event::Begun { line, captured_in, groups: 2 }));
        }
        let now = Instant::now();
        for (nth, seconds_ago) in [(0, 60), (0, 50), (1, 10), (1, 20)] {
            let began = now.checked_sub(Duration::from_secs(seconds_ago)).expect("a time since the start of the node");
            report.take(Ok(Event::Ended { nth, began, end: GroupEnd::Failed(None) }));
        }
        let seconds: Vec<u64> = report.lines.iter().map(|line| line.elapsed_ms.map_or(0, |ms| ms / 1000)).collect();
        assert_eq!(seconds, [61, 21]);
    }
}
