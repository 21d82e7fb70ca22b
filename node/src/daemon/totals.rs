//! The counts that workers report, and the page with all metrics.

use super::clients::{Peer, is_worker_of};
use super::{Daemon, Job};
use crate::facts::JobFacts;
use crate::metrics::{Page, Report, Totals};
use crate::process::Process;
use crate::protocol::Reply;
use std::sync::{MutexGuard, PoisonError};

/// The last report of a worker.
#[derive(Debug)]
pub(super) struct Reported {
    worker: Process,
    report: Report,
}

impl Daemon {
    pub(super) fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a worker has counted. Only a worker may report, so no other process of its user can change a total.
    pub(super) fn note_report(&self, peer: Peer, report: Report) -> Reply {
        let mut jobs = self.jobs();
        let Some(job) = jobs.values_mut().find(|job| is_worker_of(job, peer)) else {
            return Reply::Refused(format!("process {} of user {} is no worker of this node", peer.pid, peer.uid));
        };
        if let Some(why) = report.wrong() {
            return Reply::Refused(why);
        }
        let worker = job.worker;
        let known = job.reported.as_ref().filter(|reported| reported.worker == worker);
        // Another daemon may have accepted the earlier reports of this worker.
        let earlier = known.map_or(report.accepted, |reported| reported.report.counts);
        self.totals().counts.add(report.counts.growth_since(earlier));
        job.reported = Some(Reported { worker, report });
        Reply::Noted
    }

    /// All metrics. `is_named`: whether the page names a job with these facts.
    pub(super) fn page_with(&self, is_named: impl Fn(&JobFacts) -> bool) -> Page {
        let jobs = self.jobs();
        let mut page = Page { totals: *self.totals(), ..Page::default() };
        for job in jobs.values() {
            let runs = u64::from(job.again_at.is_none());
            match job.standing {
                None => (page.jobs, page.of_jobs) = (page.jobs + 1, page.of_jobs + runs),
                Some(_) => page.of_aggregators += runs,
            }
            let Job { facts, reported: Some(Reported { report, worker }), .. } = job else { continue };
            // The agents of a dead worker are not connected any more. The job still exists.
            if *worker == job.worker && runs == 1 {
                page.agents = page.agents.saturating_add(report.agents);
            }
            if let Some(state) = report.job.as_ref().filter(|_| is_named(facts)) {
                page.add_job(facts.uid, state);
            }
        }
        page.limit_jobs();
        page
    }

    /// All metrics, with the names of all jobs.
    pub fn page(&self) -> Page {
        self.page_with(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{Site, WORKER};
    use super::*;
    use crate::metrics::{Counts, JobState};
    use crate::protocol::Request;
    use std::time::{Duration, Instant};

    fn counts(checkpoints_committed: u64) -> Counts {
        Counts { checkpoints_committed, ..Counts::default() }
    }

    fn report(committed: u64, accepted: u64) -> Report {
        let state = JobState { job: "wave".into(), last_commit_unix_seconds: Some(committed), uncommitted_ranks: None };
        Report { counts: counts(committed), accepted: counts(accepted), agents: 1, job: Some(state) }
    }

    fn reported(daemon: &Daemon, pid: i32, report: Report) -> Reply {
        let peer = Peer { uid: nix::unistd::geteuid().as_raw(), pid };
        daemon.reply(peer, Request::Report(Box::new(report)))
    }

    #[test]
    fn what_a_worker_reports_is_added_once_and_stays_after_its_end() {
        let site = Site::new(WORKER);
        let (first, second) = (site.begin("7", 0), site.begin("8", 0));
        for (pid, committed, accepted) in [(first, 2, 0), (first, 2, 0), (second, 5, 0), (first, 3, 2)] {
            assert_eq!(reported(&site.daemon, pid, report(committed, accepted)), Reply::Noted);
        }
        let page = site.daemon.page();
        assert_eq!((page.totals.counts, page.agents, page.jobs, page.of_jobs), (counts(8), 2, 2, 2));
        assert_eq!((page.totals.jobs_begun, page.totals.begins.count()), (2, 2));
        assert_eq!(page.named.len(), 1, "both workers have one user and one name");
        for (job_id, pid) in [("7", first), ("8", second)] {
            super::super::tests::wait_until_ready(&site, job_id, pid);
            site.end(job_id, 10_000);
        }
        let page = site.daemon.page();
        assert_eq!((page.totals.counts, page.agents, page.jobs, page.named.len()), (counts(8), 0, 0, 0));
        assert_eq!(page.totals.jobs_ended, 2);
        assert!(matches!(reported(&site.daemon, first, report(9, 3)), Reply::Refused(_)), "the worker has ended");
    }

    #[test]
    fn a_worker_that_was_started_again_counts_from_zero() {
        let site = Site::new(WORKER);
        let first = site.begin("7", 0);
        assert_eq!(reported(&site.daemon, first, report(4, 0)), Reply::Noted);
        let second = site.begin("7", 1);
        assert_eq!(reported(&site.daemon, second, report(1, 0)), Reply::Noted);
        assert_eq!(site.daemon.page().totals.counts, counts(5));
    }

    #[test]
    fn the_next_daemon_adds_only_what_no_daemon_has_accepted() {
        let site = Site::new(WORKER);
        let pid = site.begin("7", 0);
        assert_eq!(reported(&site.daemon, pid, report(4, 0)), Reply::Noted);
        let next = Daemon::new(site.daemon.options.clone()).expect("starts");
        assert_eq!(next.page().totals.counts, counts(0));
        assert_eq!(reported(&next, pid, report(7, 4)), Reply::Noted);
        assert_eq!(reported(&next, pid, report(9, 4)), Reply::Noted, "the answer before was lost");
        assert_eq!(next.page().totals.counts, counts(5));
        assert_eq!(next.page().named.len(), 1);
    }

    #[test]
    fn a_process_that_is_no_worker_and_a_report_that_cannot_be_shown_are_refused() {
        let site = Site::new(WORKER);
        let pid = site.begin("7", 0);
        let own = std::process::id() as i32;
        assert!(matches!(reported(&site.daemon, own, report(1, 0)), Reply::Refused(why) if why.contains("no worker")));
        let uid = nix::unistd::geteuid().as_raw() + 1;
        let reply = site.daemon.reply(Peer { uid, pid }, Request::Report(Box::new(report(1, 0))));
        assert!(matches!(reply, Reply::Refused(why) if why.contains("no worker")), "the worker of another user");
        let mut wrong = report(1, 0);
        wrong.job.as_mut().expect("a job").job = "x".repeat(300);
        assert!(matches!(reported(&site.daemon, pid, wrong), Reply::Refused(why) if why.contains("name of a job")));
        assert_eq!(site.daemon.page().totals.counts, counts(0));
    }

    #[test]
    fn only_root_services_and_the_user_see_the_names_of_jobs() {
        let site = Site::new("exec sleep 600");
        let pid = site.begin("7", 0);
        assert_eq!(reported(&site.daemon, pid, report(1, 0)), Reply::Noted);
        let own = nix::unistd::geteuid().as_raw();
        let named = |daemon: &Daemon, uid| match daemon.reply(Peer { uid, pid: 0 }, Request::Metrics) {
            Reply::Metrics(page) => (page.totals.counts, page.named.len()),
            other => panic!("{other:?}"),
        };
        assert_eq!(named(&site.daemon, own), (counts(1), 1));
        assert_eq!(named(&site.daemon, own + 1), (counts(1), 0));
        // This daemon belongs to root, and finds the same worker.
        let root = Daemon::new(Options { own: None, ..site.daemon.options.clone() }).expect("starts");
        assert_eq!(reported(&root, pid, report(1, 0)), Reply::Noted);
        let seen = [0, 999, 61_184, 65_519, own.max(1000) + 1].map(|uid| named(&root, uid).1);
        assert_eq!(seen, [1, 1, 1, 1, 0]);
    }

    #[test]
    fn the_death_of_a_worker_is_counted() {
        let site = Site::new(WORKER);
        let worker = Process::of(site.begin("7", 0)).expect("it runs");
        assert!(worker.signal(rustix::process::Signal::KILL) && worker.wait(Duration::from_secs(10)));
        let until = Instant::now() + Duration::from_secs(20);
        while site.daemon.page().totals.worker_deaths == 0 {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
