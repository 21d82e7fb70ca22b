//! What happened to each job: its last commit, its last error, and its agents that were lost. `mcr status` shows the
//! history.
//!
//! No decision of the hub depends on the history. The number of entries is limited, and the oldest entries are
//! forgotten first.

use mcr_proto::v1;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::units::{RawBytes, StoredBytes};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Maximum number of jobs.
const JOBS_MAX: usize = 256;
/// Maximum number of checkpoints of a job that are remembered because their groups are not all committed yet.
const INCOMPLETE_MAX: usize = 64;
/// Maximum number of lost agents.
const LOST_MAX: usize = 4096;
/// Time after which a lost agent is forgotten. Its job has probably ended.
const LOST_KEPT: Duration = Duration::from_secs(3600);
/// Maximum length of the text of an error, in characters.
const ERROR_CHARS_MAX: usize = 1000;

#[derive(Default)]
pub(super) struct History {
    jobs: BTreeMap<JobId, OfJob>,
    /// Agents that disconnected without reporting their end, by job and node.
    lost: BTreeMap<(JobId, String), Instant>,
}

struct OfJob {
    committed_groups: u64,
    raw_bytes: u64,
    stored_bytes: u64,
    /// The newest checkpoint whose groups are all committed.
    last_commit: Option<(CheckpointId, Instant)>,
    /// Checkpoints of which this process committed a group, and of which it is not known that all groups are
    /// committed. The checkpoint with the newest commit is last.
    incomplete: VecDeque<CheckpointId>,
    last_error: Option<(String, Instant)>,
    changed: Instant,
}

impl History {
    /// Notes a group that this process committed. Groups that another process committed are not noted.
    pub(super) fn committed(&mut self, job: &JobId, id: &CheckpointId, raw: RawBytes, stored: StoredBytes) {
        let of_job = self.of_job(job);
        of_job.committed_groups += 1;
        of_job.raw_bytes = of_job.raw_bytes.saturating_add(raw.0);
        of_job.stored_bytes = of_job.stored_bytes.saturating_add(stored.0);
        if !of_job.incomplete.contains(id) {
            if of_job.incomplete.len() >= INCOMPLETE_MAX {
                of_job.incomplete.pop_front();
            }
            of_job.incomplete.push_back(id.clone());
        }
    }

    /// Notes that all groups of a checkpoint are committed. The checkpoint is the newest one, unless a checkpoint of
    /// which this process committed a group later is complete already.
    pub(super) fn complete(&mut self, job: &JobId, id: &CheckpointId) {
        let Some(of_job) = self.jobs.get_mut(job) else { return };
        let Some(nth) = of_job.incomplete.iter().position(|other| other == id) else { return };
        of_job.incomplete.drain(..=nth);
        of_job.last_commit = Some((id.clone(), Instant::now()));
        of_job.changed = Instant::now();
    }

    pub(super) fn failed(&mut self, job: &JobId, why: String) {
        let why = why.chars().take(ERROR_CHARS_MAX).collect();
        self.of_job(job).last_error = Some((why, Instant::now()));
    }

    /// Notes that a job has no agent on `node` any more, because its agent disconnected without reporting its end.
    pub(super) fn lost(&mut self, job: &JobId, node: &str) {
        if self.lost.len() >= LOST_MAX {
            let oldest = self.lost.iter().min_by_key(|(_, since)| **since).map(|(of, _)| of.clone());
            oldest.map(|oldest| self.lost.remove(&oldest));
        }
        self.lost.insert((job.clone(), node.to_owned()), Instant::now());
    }

    pub(super) fn connected(&mut self, job: &JobId, node: &str) {
        self.lost.remove(&(job.clone(), node.to_owned()));
    }

    fn of_job(&mut self, job: &JobId) -> &mut OfJob {
        if !self.jobs.contains_key(job) && self.jobs.len() >= JOBS_MAX {
            let oldest = self.jobs.iter().min_by_key(|(_, of_job)| of_job.changed).map(|(job, _)| job.clone());
            oldest.map(|oldest| self.jobs.remove(&oldest));
        }
        let now = Instant::now();
        let of_job = self.jobs.entry(job.clone()).or_insert_with(|| OfJob {
            committed_groups: 0,
            raw_bytes: 0,
            stored_bytes: 0,
            last_commit: None,
            incomplete: VecDeque::new(),
            last_error: None,
            changed: now,
        });
        of_job.changed = now;
        of_job
    }

    /// The jobs, by name.
    pub(super) fn jobs(&self) -> impl Iterator<Item = v1::JobStatus> {
        self.jobs.iter().map(|(job, of_job)| {
            let (last_checkpoint, last_commit_ago_ms) = ago(of_job.last_commit.as_ref());
            let (last_error, last_error_ago_ms) = ago(of_job.last_error.as_ref());
            v1::JobStatus {
                job: job.to_string(),
                committed_groups: of_job.committed_groups,
                raw_bytes: of_job.raw_bytes,
                stored_bytes: of_job.stored_bytes,
                last_checkpoint,
                last_commit_ago_ms,
                last_error,
                last_error_ago_ms,
            }
        })
    }

    /// The agents that do not answer any more, by job and node.
    pub(super) fn lost_agents(&self) -> impl Iterator<Item = v1::AgentStatus> {
        let is_new = |(_, since): &(&(JobId, String), &Instant)| since.elapsed() < LOST_KEPT;
        self.lost.iter().filter(is_new).map(|((job, node), since)| v1::AgentStatus {
            node: node.clone(),
            job: job.to_string(),
            connected_ms: 0,
            silent_ms: since.elapsed().as_millis() as u64,
            ranks: Vec::new(),
            lost: true,
            at_rest: false,
        })
    }
}

/// A text, and the time in milliseconds since its event.
fn ago(last: Option<&(impl ToString, Instant)>) -> (String, u64) {
    last.map(|(text, when)| (text.to_string(), when.elapsed().as_millis() as u64)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> JobId {
        name.parse().expect("valid")
    }

    #[test]
    fn the_newest_complete_checkpoint_and_the_last_error_of_a_job_are_remembered() {
        let mut history = History::default();
        let id = |name: &str| name.parse::<CheckpointId>().expect("valid");
        history.committed(&job("wave"), &id("it_1"), RawBytes(100), StoredBytes(40));
        history.committed(&job("wave"), &id("it_2"), RawBytes(100), StoredBytes(30));
        history.complete(&job("wave"), &id("it_2"));
        // A checkpoint without all of its groups is not the last checkpoint, and an older one does not come after it.
        history.committed(&job("wave"), &id("it_3"), RawBytes(0), StoredBytes(0));
        history.complete(&job("wave"), &id("it_1"));
        history.complete(&job("melt"), &id("it_1"));
        history.failed(&job("wave"), "x".repeat(5000));
        history.failed(&job("melt"), "no space".into());
        let jobs: Vec<_> = history.jobs().collect();
        let [melt, wave] = jobs.as_slice() else { panic!("{jobs:?}") };
        assert_eq!((melt.last_error.as_str(), melt.last_checkpoint.as_str()), ("no space", ""));
        assert_eq!((wave.committed_groups, wave.raw_bytes, wave.stored_bytes), (3, 200, 70));
        assert_eq!((wave.last_checkpoint.as_str(), wave.last_error.len()), ("it_2", ERROR_CHARS_MAX));
    }

    #[test]
    fn an_agent_is_lost_until_it_connects_again() {
        let mut history = History::default();
        ["n1", "n2"].iter().for_each(|node| history.lost(&job("wave"), node));
        history.connected(&job("wave"), "n1");
        history.connected(&job("melt"), "n2");
        let lost: Vec<_> = history.lost_agents().map(|agent| agent.node).collect();
        assert_eq!(lost, ["n2"]);
    }

    #[test]
    fn the_incomplete_checkpoints_of_a_job_are_bounded() {
        let mut history = History::default();
        let id = |n: usize| format!("it_{n}").parse::<CheckpointId>().expect("valid");
        for n in 0..INCOMPLETE_MAX + 10 {
            history.committed(&job("wave"), &id(n), RawBytes(1), StoredBytes(1));
        }
        assert_eq!(history.jobs[&job("wave")].incomplete.len(), INCOMPLETE_MAX);
        assert_eq!(history.jobs().map(|job| job.last_checkpoint).collect::<Vec<_>>(), [""]);
        history.complete(&job("wave"), &id(INCOMPLETE_MAX + 9));
        assert_eq!(history.jobs[&job("wave")].incomplete.len(), 0);
        assert!(history.jobs().all(|job| job.last_checkpoint == format!("it_{}", INCOMPLETE_MAX + 9)));
    }

    #[test]
    fn the_history_is_bounded_and_keeps_the_newest_entries() {
        let mut history = History::default();
        for n in 0..LOST_MAX + 10 {
            history.failed(&job(&format!("job-{n}")), "x".into());
            history.lost(&job("wave"), &format!("node-{n}"));
        }
        assert_eq!((history.jobs.len(), history.lost.len()), (JOBS_MAX, LOST_MAX));
        assert!(history.jobs.contains_key(&job(&format!("job-{}", LOST_MAX + 9))));
        assert!(
            !history.jobs.contains_key(&job("job-0")) && !history.lost.contains_key(&(job("wave"), "node-0".into()))
        );
    }
}
