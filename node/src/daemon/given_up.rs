//! The jobs that are not saved any more, although they are not over: their workers failed. `mcr job list`, `mcr job
//! end` and `mcr status` name the reason.

use super::clients::{Peer, is_worker_of};
use super::{Daemon, Job};
use crate::facts::JobFacts;
use crate::protocol::{JobLine, Reply};
use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of remembered jobs. The oldest job is forgotten first.
const GIVEN_UP_MAX: usize = 1024;
/// Maximum length of the text of an error, in characters.
const ERROR_CHARS_MAX: usize = 1000;

/// A job that is not saved any more.
struct GivenUp {
    facts: JobFacts,
    /// Process number of its last worker.
    pid: i32,
    why: String,
    since: Instant,
}

/// The jobs that are not saved any more, by their number.
#[derive(Default)]
pub(super) struct AllGivenUp(Mutex<BTreeMap<String, GivenUp>>);

impl AllGivenUp {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, GivenUp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a job whose worker is not started again. `status` is the exit status of the last worker, if it is known.
    pub(super) fn add(&self, job: &Job, status: Option<ExitStatus>) {
        let status = match status.map(|status| (status.code(), status)) {
            None => "an unknown status".to_owned(),
            Some((Some(code), _)) => format!("exit status {code}"),
            Some((None, status)) => status.to_string(), // a signal
        };
        let workers = match job.restarts {
            0 => format!("its worker ended with {status}"),
            restarts => format!("its worker died {} times, the last time with {status}", restarts + 1),
        };
        let error = job.last_error.as_deref().unwrap_or("the log of mcr node says why");
        let why = format!("{workers}: {error}");
        let mut all = self.lock();
        if all.len() >= GIVEN_UP_MAX {
            let oldest = all.iter().min_by_key(|(_, one)| one.since).map(|(id, _)| id.clone());
            oldest.map(|oldest| all.remove(&oldest));
        }
        let (facts, pid, since) = (job.facts.clone(), job.worker.pid, Instant::now());
        all.insert(job.facts.job_id.clone(), GivenUp { facts, pid, why, since });
    }

    /// Forgets a job. Returns why the job was not saved any more.
    pub(super) fn remove(&self, job_id: &str) -> Option<String> {
        self.lock().remove(job_id).map(|one| one.why)
    }

    /// The lines of `mcr job list`.
    pub(super) fn lines(&self, is_seen: impl Fn(&JobFacts) -> bool) -> Vec<JobLine> {
        let all = self.lock();
        let line = |one: &GivenUp| JobLine {
            job_id: one.facts.job_id.clone(),
            uid: one.facts.uid,
            pid: one.pid,
            aggregators: None,
            state_file: None,
            not_saved: Some(one.why.clone()),
        };
        all.values().filter(|one| is_seen(&one.facts)).map(line).collect()
    }
}

impl Daemon {
    /// Notes the error with which a worker will end. Only a worker may report it.
    pub(super) fn note_failure(&self, peer: Peer, why: &str) -> Reply {
        // A user chooses a part of the text, and root reads it.
        let shown = |letter: char| if letter.is_control() { ' ' } else { letter };
        let why: String = why.chars().take(ERROR_CHARS_MAX).map(shown).collect();
        let mut jobs = self.lock();
        match jobs.values_mut().find(|job| is_worker_of(job, peer)) {
            Some(job) => job.last_error = Some(why),
            None => {
                return Reply::Refused(format!("process {} of user {} is no worker of this node", peer.pid, peer.uid));
            }
        }
        Reply::Noted
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Site, WORKER, of_user};
    use super::*;
    use crate::process::Process;
    use crate::protocol::{End, Request};
    use std::time::Duration;

    fn wait_for_line(site: &Site) -> JobLine {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match site.own(Request::Jobs) {
                Reply::Jobs(jobs) if jobs.first().is_some_and(|job| job.not_saved.is_some()) => {
                    return jobs.into_iter().next().expect("one job");
                }
                other => assert!(Instant::now() < until, "{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_job_whose_worker_failed_is_listed_with_the_reason_until_it_is_over() {
        let site = Site::new("exit 78");
        let pid = site.begin("7", 0);
        let line = wait_for_line(&site);
        let why = "its worker ended with exit status 78: the log of mcr node says why";
        assert_eq!((line.pid, line.not_saved.as_deref()), (pid, Some(why)));
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!(site.daemon.reply(of_user(own + 1), Request::Jobs), Reply::Jobs(Vec::new()), "of another user");
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::GivenUp(why.into())));
        assert_eq!(site.own(Request::Jobs), Reply::Jobs(Vec::new()));
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::NotSaved));
    }

    #[test]
    fn the_reason_is_the_last_error_that_the_worker_reported() {
        let site = Site::new(WORKER);
        let pid = site.begin("8", 0);
        let peer = Peer { uid: nix::unistd::geteuid().as_raw(), pid };
        let failed = |peer, why: &str| site.daemon.reply(peer, Request::Failed { why: why.into() });
        let no_worker = Peer { pid: std::process::id() as i32, ..peer };
        assert!(matches!(failed(no_worker, "x"), Reply::Refused(why) if why.contains("is no worker of this node")));
        assert_eq!(failed(peer, "/s: no space\x1b[2J"), Reply::Noted);
        site.give_up_next_time("8");
        let worker = Process::of(pid).expect("it runs");
        assert!(worker.signal(rustix::process::Signal::KILL) && worker.wait(Duration::from_secs(10)));
        let why = wait_for_line(&site).not_saved.expect("a reason");
        assert_eq!(why, "its worker died 6 times, the last time with signal: 9 (SIGKILL): /s: no space [2J");
        // The job begins again, and its new worker saves it.
        site.begin("8", 1);
        assert!(matches!(site.own(Request::Jobs), Reply::Jobs(all) if all.len() == 1 && all[0].not_saved.is_none()));
    }
}
