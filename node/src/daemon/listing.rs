//! What `mcr job list` shows, and the words for `mcr` in the comments of jobs.

use super::{Daemon, Job};
use crate::comment::Comment;
use crate::facts::JobFacts;
use crate::protocol::{JobLine, Places, Reply};
use crate::record::Record;

impl Daemon {
    pub(super) fn lines(&self, is_seen: impl Fn(&JobFacts) -> bool) -> Vec<JobLine> {
        let jobs = self.jobs();
        let seen = jobs.values().filter(|job| job.standing.is_none() && is_seen(&job.facts));
        let line = |job: &Job| JobLine {
            job_id: job.facts.job_id.clone(),
            uid: job.facts.uid,
            pid: job.worker.pid,
            aggregators: job.places.clone(),
        };
        seen.map(line).collect()
    }

    /// Notes where the aggregators of a job run. Only the user of the job may report this.
    pub(super) fn note_places(&self, uid: u32, job_id: &str, places: Places) -> Reply {
        if !places.are_valid() {
            return Reply::Refused("the addresses of the aggregators are too many, or cannot be shown".into());
        }
        let mut jobs = self.jobs();
        let own = jobs.get_mut(job_id).filter(|job| job.standing.is_none() && job.facts.uid == uid);
        let Some(job) = own else { return Reply::Refused(format!("user {uid} has no job {job_id} here")) };
        let (facts, worker) = (job.facts.clone(), Some(job.worker));
        job.places = Some(places.clone());
        // The next daemon reads the record.
        let record = Record { facts, standing: None, worker, is_over: job.is_over, places: Some(places) };
        if let Err(error) = self.records.put(&record) {
            tracing::warn!(job_id, %error, "the record of a job cannot be written");
        }
        Reply::Noted
    }

    /// Keeps the words for `mcr` in the comment of a job until the job is over, even if the job is not saved.
    pub(super) fn keep_comment(&self, facts: &JobFacts) {
        let JobFacts { job_id, uid, comment: words, work_dir, .. } = facts;
        if words.is_empty() {
            return self.comments.remove(job_id); // of an earlier start of the job
        }
        let comment = Comment { uid: *uid, words: words.clone(), work_dir: work_dir.clone() };
        if let Err(error) = self.comments.put(job_id, &comment) {
            tracing::warn!(job_id, %error, "the comment of a job cannot be kept; its processes do not find it");
        }
    }
}
