//! What `mcr job list` shows, and the words for `mcr` in the comments of jobs.

use super::{Daemon, Job};
use crate::comment::Comment;
use crate::facts::JobFacts;
use crate::protocol::{JobLine, Places, Reply, StateFile};
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
            state_file: job.state_file.clone(),
            not_saved: None,
        };
        seen.map(line).chain(self.given_up.lines(&is_seen)).collect()
    }

    /// Notes where the aggregators of a job run, and the state file of its agent. Only the user of the job may report
    /// this.
    pub(super) fn note_places(&self, uid: u32, job_id: &str, places: Places, state_file: Option<StateFile>) -> Reply {
        if !places.are_valid() {
            return Reply::Refused("the addresses of the aggregators are too many, or cannot be shown".into());
        }
        if state_file.as_ref().is_some_and(|file| !file.is_valid()) {
            return Reply::Refused("the path of the state file is relative, too long, or cannot be shown".into());
        }
        let mut jobs = self.jobs();
        let own = jobs.get_mut(job_id).filter(|job| job.standing.is_none() && job.facts.uid == uid);
        let Some(job) = own else { return Reply::Refused(format!("user {uid} has no job {job_id} here")) };
        let (facts, worker) = (job.facts.clone(), Some(job.worker));
        (job.places, job.state_file) = (Some(places.clone()), state_file.clone());
        // The next daemon reads the record.
        let record = Record { facts, standing: None, worker, is_over: job.is_over, places: Some(places), state_file };
        if let Err(error) = self.records.put(&record) {
            tracing::warn!(job_id, %error, "the record of a job cannot be written");
        }
        Reply::Noted
    }

    /// Keeps the words for `mcr` in the comment of a job until the job is over, even if the job is not saved.
    pub(super) fn keep_comment(&self, facts: &JobFacts) {
        let JobFacts { job_id, uid, comment: words, work_dir, .. } = facts;
        if words.is_empty() {
            return self.comments.remove(job_id); // the kept words are from an earlier start of the job
        }
        let comment = Comment { uid: *uid, words: words.clone(), work_dir: work_dir.clone() };
        if let Err(error) = self.comments.put(job_id, &comment) {
            tracing::warn!(job_id, %error, "the comment of a job cannot be kept; its processes do not find it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Site, WORKER, of_user};
    use super::*;
    use crate::protocol::Request;
    use std::sync::Arc;

    #[test]
    fn only_the_user_of_a_job_reports_where_its_aggregators_run_and_the_next_daemon_knows_it() {
        let site = Site::new(WORKER);
        let own = nix::unistd::geteuid().as_raw();
        site.begin("7", 0);
        let report = |uid, addresses: &[&str]| {
            let places = Places::Gates(addresses.iter().map(|address| (*address).to_owned()).collect());
            let state_file = Some(StateFile("/home/alice/7.state".into()));
            site.daemon.reply(of_user(uid), Request::Places { job_id: "7".into(), places, state_file })
        };
        let of_file = |path: &str| {
            let state_file = Some(StateFile(path.into()));
            site.daemon.reply(of_user(own), Request::Places { job_id: "7".into(), places: Places::Here, state_file })
        };
        for path in ["7.state", "/\x1b[2J", &"/".repeat(5000)] {
            assert!(matches!(of_file(path), Reply::Refused(why) if why.contains("state file")), "{path}");
        }
        assert!(matches!(report(own + 1, &["agg0:7117"]), Reply::Refused(why) if why.contains("has no job 7 here")));
        assert!(matches!(report(own, &["\x1b[2J"]), Reply::Refused(why) if why.contains("cannot be shown")));
        assert_eq!(report(own, &["agg0:7117", "[::1]:7117"]), Reply::Noted);
        for daemon in [&site.daemon, &Arc::new(Daemon::new(site.daemon.options.clone()).expect("starts"))] {
            let Reply::Jobs(jobs) = daemon.reply(of_user(own), Request::Jobs) else { panic!("no list") };
            let shown = jobs[0].aggregators.as_ref().map(ToString::to_string);
            assert_eq!(shown.as_deref(), Some("gates: agg0:7117 [::1]:7117"));
            assert_eq!(jobs[0].state_file, Some(StateFile("/home/alice/7.state".into())));
        }
    }
}
