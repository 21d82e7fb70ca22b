//! Finds the jobs of an earlier daemon.

use super::Job;
use crate::environment;
use crate::record::{Record, Records};
use std::collections::BTreeMap;
use std::io;

/// The jobs that have a worker, and the jobs whose worker died while no daemon ran. Removes all other records.
pub(super) fn jobs(records: &Records) -> io::Result<BTreeMap<String, Job>> {
    let mut jobs = BTreeMap::new();
    for Record { facts, standing, worker, is_over, places, state_file } in records.all()? {
        let job_id = facts.job_id.clone();
        let Some(worker) = worker else {
            records.remove(&job_id);
            continue;
        };
        // A job that has processes but no worker: the worker died while no daemon ran. It is started again.
        let is_running = || standing.is_none() && !is_over && environment::has_process(&job_id, facts.uid);
        if worker.is_alive() {
            tracing::info!(job_id, uid = facts.uid, pid = worker.pid, "found the worker of a job");
        } else if is_running() {
            tracing::warn!(job_id, uid = facts.uid, "found a running job whose worker has died");
        } else {
            records.remove(&job_id);
            continue;
        }
        jobs.insert(job_id, Job { is_over, standing, places, state_file, ..Job::new(facts, worker, None) });
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Site, WORKER, wait_until_ready};
    use super::super::{Daemon, End, Process, Reply, Request};
    use rustix::process::Signal;
    use std::process::Command;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn the_next_daemon_finds_the_workers_of_the_daemon_before() {
        let mut site = Site::new(WORKER);
        let pid = site.begin("7", 0);
        wait_until_ready(&site, "7", pid);
        let ended = Process::of(site.begin("8", 0)).expect("it runs");
        assert!(ended.signal(Signal::KILL) && ended.wait(Duration::from_secs(10)));
        // The second daemon has no handles of the children of the first daemon.
        let next = Daemon::new(site.daemon.options.clone()).expect("starts");
        let next = Arc::new(next);
        let before = std::mem::replace(&mut site.daemon, next);
        assert!(matches!(site.own(Request::Jobs), Reply::Jobs(all) if all.len() == 1 && all[0].pid == pid));
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::Unknown));
        drop(before);
    }

    #[test]
    fn the_next_daemon_starts_the_worker_of_a_running_job_again_if_it_died_meanwhile() {
        let mut site = Site::new(WORKER);
        let job_id = format!("8{}", std::process::id()); // no other process has this job
        let mut application = Command::new("sleep").arg("60").env("SLURM_JOB_ID", &job_id).spawn().expect("starts");
        let pid = site.begin(&job_id, 0);
        wait_until_ready(&site, &job_id, pid);
        let before = Arc::clone(&site.daemon);
        let worker = Process::of(pid).expect("it runs");
        assert!(worker.signal(Signal::KILL) && worker.wait(Duration::from_secs(10)));
        site.daemon = Arc::new(Daemon::new(before.options.clone()).expect("starts"));
        let until = Instant::now() + Duration::from_secs(20);
        let again = loop {
            match site.own(Request::Jobs) {
                Reply::Jobs(all) if all.iter().any(|job| job.pid != pid) => break all[0].pid,
                _ => assert!(Instant::now() < until, "not started again"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        wait_until_ready(&site, &job_id, again);
        assert_eq!(site.end(&job_id, 10_000), Reply::Ended(End::Status(5)));
        application.kill().and_then(|()| application.wait()).expect("ends");
    }
}
