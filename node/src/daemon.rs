//! The daemon: accepts requests on a Unix socket. The daemon also starts workers, ends workers, and finds the workers
//! that an earlier daemon started.

mod clients;
mod earlier;
mod given_up;
mod listing;
mod standing;
mod totals;

use clients::{Clients, Peer};
use given_up::AllGivenUp;
pub use standing::CERTIFICATES_ARGUMENT;
use standing::Failures;
use totals::Reported;

use crate::cgroup::Groups;
use crate::comment::Comments;
use crate::facts::{JobFacts, job_id_of};
use crate::metrics::Totals;
use crate::process::Process;
use crate::protocol::{End, Places, Reply, Request, Standing, StateFile};
use crate::record::{Record, Records};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of jobs on a node.
const JOBS_MAX: usize = 1024;
/// Maximum time that a client may ask the daemon to wait for the end of a worker.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Maximum time to wait until a killed worker has ended.
const KILL_PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of times that a worker of a job is started again because the worker died.
const RESTARTS_MAX: u32 = 5;
/// Time before a worker is started again for the first time. Each further restart of the worker waits twice as long.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// Exit statuses after which a worker is not started again: the worker ended on purpose (0, 5), has no permission to
/// save the job (77), or has wrong settings (78).
const FINAL: [i32; 4] = [0, 5, 77, 78];

/// The options of the daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of the socket and the records, usually `/run/mcr`.
    pub run_dir: PathBuf,
    /// The uid of the only user whose jobs are saved. The user is not root. `None`: the daemon is root, and saves the
    /// jobs of all users with a uid of at least `min_uid`.
    pub own: Option<u32>,
    /// Users with a lower uid are accounts of the system, so their jobs are not saved.
    pub min_uid: u32,
    /// The uid of the gate's user. This user may start aggregators for jobs on other nodes.
    pub gate: Option<u32>,
    /// The command of a worker. The path of the record of the worker's job is appended.
    pub worker: Vec<OsString>,
    /// The control groups of the workers, if the daemon has a group that it may divide.
    pub groups: Option<Groups>,
}

/// The daemon of a node.
pub struct Daemon {
    options: Options,
    records: Records,
    comments: Comments,
    jobs: Mutex<BTreeMap<String, Job>>,
    clients: Clients,
    /// Aggregators that ended with an error, and must not be started again yet.
    failures: Failures,
    /// Jobs of this node that are not saved any more.
    given_up: AllGivenUp,
    /// Number of running processes that read certificates.
    readers: Arc<AtomicUsize>,
    totals: Mutex<Totals>,
    /// Wakes [`Daemon::serve`] if the jobs have changed.
    wake: (PipeReader, PipeWriter),
}

/// A job whose worker is running.
struct Job {
    facts: JobFacts,
    /// The aggregator of a job that runs on other nodes. `None`: the job runs on this node.
    standing: Option<Standing>,
    /// Where the aggregators run, if the worker has reported it.
    places: Option<Places>,
    /// The state file of the agent, if the worker has reported it.
    state_file: Option<StateFile>,
    /// The last report of a worker of this job.
    reported: Option<Reported>,
    worker: Process,
    /// `None` if an earlier daemon started the worker.
    child: Option<Child>,
    /// Whether the worker was started after the job was over. Such a worker needs no signal.
    is_late: bool,
    /// Whether the job is over.
    is_over: bool,
    /// Number of requests that wait for the end of the worker. While this number is above 0, these requests handle
    /// the end.
    waiting: u32,
    /// How often a worker of this job died and was started again.
    restarts: u32,
    /// When to start another worker, because the last worker died.
    again_at: Option<Instant>,
    /// The last error that a worker of this job reported at its end.
    last_error: Option<String>,
}

impl Job {
    fn new(facts: JobFacts, worker: Process, child: Option<Child>) -> Self {
        Self {
            facts,
            standing: None,
            places: None,
            state_file: None,
            reported: None,
            worker,
            child,
            is_late: false,
            is_over: false,
            waiting: 0,
            restarts: 0,
            again_at: None,
            last_error: None,
        }
    }
}

impl Daemon {
    /// Makes a daemon that knows the workers of earlier daemons.
    pub fn new(options: Options) -> io::Result<Self> {
        let records = Records::open(&options.run_dir)?;
        let comments = Comments::open(&options.run_dir)?;
        let jobs = earlier::jobs(&records)?;
        let wake = io::pipe()?;
        Ok(Self {
            options,
            records,
            comments,
            jobs: Mutex::new(jobs),
            clients: Clients::default(),
            failures: Failures::default(),
            given_up: AllGivenUp::default(),
            readers: Arc::default(),
            totals: Mutex::default(),
            wake,
        })
    }

    /// Serves requests. Calls `tick` at least once in each `interval`, and returns when `tick` returns `false`.
    pub fn serve(
        self: &Arc<Self>,
        listener: &UnixListener,
        interval: Option<Duration>,
        mut tick: impl FnMut() -> bool,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        while tick() {
            let (workers, again_in) = self.look_after_workers();
            let wait = interval.into_iter().chain(again_in).min();
            let timeout =
                wait.map_or(PollTimeout::NONE, |wait| PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX));
            let waited = [listener.as_fd(), self.wake.0.as_fd()].into_iter().chain(workers.iter().map(|w| w.as_fd()));
            let mut waited: Vec<PollFd> = waited.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            match poll(&mut waited, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if waited[1].any() == Some(true) {
                let _ = (&self.wake.0).read(&mut [0; 64]);
            }
            match listener.accept() {
                Ok((stream, _)) => self.answer_on_a_thread(stream),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => {
                    // The cause may be that the process has no free file descriptor. A client without an answer gives
                    // up after some time.
                    tracing::warn!(%error, "a connection cannot be accepted");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        Ok(())
    }

    fn reply(&self, peer: Peer, request: Request) -> Reply {
        let uid = peer.uid;
        let may_command = self.may_command(uid);
        match request {
            Request::Begin(_) | Request::End { .. } if !may_command => {
                let needed = if self.options.own.is_some() { "the user of this daemon" } else { "root" };
                Reply::Refused(format!("user {uid} may not begin or end jobs; only {needed} may"))
            }
            Request::Begin(facts) => self.begin(facts),
            Request::End { job_id, wait_ms } => self.end(&job_id, Duration::from_millis(wait_ms).min(WAIT_MAX)),
            Request::Jobs => Reply::Jobs(self.lines(|facts| may_command || facts.uid == uid)),
            Request::Places { job_id, places, state_file } => self.note_places(uid, &job_id, places, state_file),
            Request::Stand(_) | Request::Standing | Request::Certificates { .. } if !self.may_stand(uid) => {
                Reply::Refused(format!(
                    "user {uid} may not start aggregators; only the gate (mcr node --gate-user) may"
                ))
            }
            Request::Stand(standing) => self.stand(standing),
            Request::Standing => self.standing(),
            Request::Certificates { uid } => self.certificates(uid),
            Request::Report(report) => self.note_report(peer, *report),
            Request::Failed { why } => self.note_failure(peer, &why),
            Request::Metrics => {
                let sees_all = may_command || self.is_of_system(uid);
                Reply::Metrics(Box::new(self.page_with(|facts| sees_all || facts.uid == uid)))
            }
            Request::Comment { job_id } => match job_id_of(job_id) {
                Ok(job_id) => {
                    Reply::Comment(self.comments.get(&job_id).filter(|comment| may_command || comment.uid == uid))
                }
                Err(error) => Reply::Refused(error.to_string()),
            },
        }
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<String, Job>> {
        self.look_after_workers();
        self.lock()
    }

    /// Removes the jobs whose workers have ended, and starts another worker for each job whose worker died. Returns
    /// the descriptors of the running workers, and the time until the next start of a worker. A descriptor becomes
    /// readable when its worker ends.
    fn look_after_workers(&self) -> (Vec<OwnedFd>, Option<Duration>) {
        let (now, mut running, mut again_in) = (Instant::now(), Vec::new(), None::<Duration>);
        self.lock().retain(|id, job| {
            if let Some(descriptor) = job.worker.descriptor() {
                running.push(descriptor);
                return true;
            }
            if job.waiting > 0 {
                return true;
            }
            let again_at = match job.again_at {
                Some(again_at) => again_at,
                None => {
                    let status = job.child.as_mut().and_then(|child| child.wait().ok());
                    tracing::info!(
                        job_id = id,
                        status = status.map(|s| s.to_string()),
                        "the worker of a job has ended"
                    );
                    let is_final = status.is_some_and(|status| status.code().is_some_and(|code| FINAL.contains(&code)));
                    if is_final || job.is_over || job.restarts >= RESTARTS_MAX {
                        let restarts = job.restarts;
                        match &job.standing {
                            _ if is_final || job.is_over => {}
                            None => tracing::error!(
                                job_id = id,
                                restarts,
                                "the worker of a job died too often: the job is not saved any more on this node"
                            ),
                            Some(_) => tracing::error!(
                                aggregator = id,
                                restarts,
                                "an aggregator died too often: it starts again only if an agent asks the gate"
                            ),
                        }
                        match (&job.standing, status) {
                            (Some(_), Some(status)) => self.failures.add(id, status, now),
                            // A worker that found nothing to save ends with 0.
                            (None, status) if !job.is_over && status.is_none_or(|status| !status.success()) => {
                                self.given_up.add(job, status);
                            }
                            _ => {}
                        }
                        self.forget(id);
                        return false;
                    }
                    *job.again_at.insert(now + RESTART_DELAY * 2u32.pow(job.restarts))
                }
            };
            if now < again_at {
                let left = again_at - now;
                again_in = Some(again_in.map_or(left, |other| other.min(left)));
                return true;
            }
            (job.again_at, job.restarts) = (None, job.restarts + 1);
            match self.start(&job.facts, job.standing.as_ref(), false) {
                Ok((child, worker)) => {
                    tracing::warn!(job_id = id, pid = worker.pid, "the worker of a job died, and was started again");
                    self.totals().worker_deaths += 1;
                    (job.child, job.worker) = (Some(child), worker);
                    running.extend(worker.descriptor());
                    true
                }
                Err(error) => {
                    tracing::error!(job_id = id, %error, "the worker of a job died and cannot be started again");
                    job.last_error = Some(format!("another worker cannot be started: {error}"));
                    if job.standing.is_none() {
                        self.given_up.add(job, None);
                    }
                    self.forget(id);
                    false
                }
            }
        });
        (running, again_in)
    }

    /// Makes [`Daemon::serve`] check the jobs.
    fn wake(&self) {
        let _ = (&self.wake.1).write(&[1]); // the pipe is full only if `serve` is about to read it
    }

    /// The reason why no worker is started for a user. `None` if workers are started.
    fn not_served(&self, uid: u32) -> Option<String> {
        let Options { own, min_uid, .. } = &self.options;
        match own {
            Some(own) if uid != *own => Some(format!("only jobs of user {own} are saved here")),
            None if uid < *min_uid => Some(format!(
                "jobs of user {uid} are not saved: only users with at least the number {min_uid} are served"
            )),
            _ => None,
        }
    }

    /// Starts the worker of a job. If an earlier start of the job still has a worker, that worker is killed first,
    /// because SLURM begins a job again only if SLURM considers the earlier start dead.
    fn begin(&self, facts: JobFacts) -> Reply {
        let began = Instant::now();
        if let Err(error) = facts.check() {
            return Reply::Refused(error.to_string());
        }
        if let Some(why) = self.not_served(facts.uid) {
            return Reply::Refused(why);
        }
        self.keep_comment(&facts);
        self.given_up.remove(&facts.job_id);
        let mut jobs = self.jobs();
        if let Some(mut earlier) = jobs.remove(&facts.job_id) {
            tracing::warn!(
                job_id = facts.job_id,
                restart_count = earlier.facts.restart_count,
                "the job begins again: the worker of its earlier start is killed"
            );
            earlier.worker.signal(Signal::KILL);
            if !earlier.worker.wait(KILL_PATIENCE) {
                let why = format!("the worker of an earlier start of job {} does not end", facts.job_id);
                jobs.insert(facts.job_id, earlier);
                return Reply::Refused(why);
            }
            drop(earlier.child.as_mut().map(Child::wait));
        }
        if jobs.values().filter(|job| job.standing.is_none()).count() >= JOBS_MAX {
            return Reply::Refused(format!("{JOBS_MAX} jobs are saved on this node already"));
        }
        match self.start(&facts, None, false) {
            Ok((child, worker)) => {
                let elapsed_us = began.elapsed().as_micros() as u64;
                {
                    let mut totals = self.totals();
                    totals.jobs_begun += 1;
                    totals.begins.add(elapsed_us);
                }
                tracing::info!(job_id = facts.job_id, uid = facts.uid, pid = worker.pid, elapsed_us, "a job begins");
                jobs.insert(facts.job_id.clone(), Job::new(facts, worker, Some(child)));
                self.wake();
                Reply::Begun { pid: worker.pid }
            }
            Err(error) => {
                self.forget(&facts.job_id);
                Reply::Refused(format!("the worker cannot be started: {error}"))
            }
        }
    }

    /// Removes what is kept for the worker of a job, which has ended.
    fn forget(&self, job_id: &str) {
        self.records.remove(job_id);
        if let Some(groups) = &self.options.groups {
            groups.remove_empty();
        }
    }

    /// The command of a worker, without the arguments that name the record or the user. The worker becomes this user.
    fn worker_command(&self) -> io::Result<Command> {
        let [program, arguments @ ..] = &self.options.worker[..] else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
        };
        let kept = [
            "PATH",
            "LANG",
            "MCR_LOG",
            "MCR_CLUSTER",
            "MCR_TLS",
            "MCR_CERT_DIR",
            "MCR_TEST_ALONE_MS",
            "JOURNAL_STREAM",
        ];
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(kept.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .current_dir("/");
        Ok(command)
    }

    fn start(&self, facts: &JobFacts, standing: Option<&Standing>, is_over: bool) -> io::Result<(Child, Process)> {
        // The worker reads the facts from the record.
        let record = |worker| {
            let (facts, standing) = (facts.clone(), standing.cloned());
            Record { facts, standing, worker, is_over, places: None, state_file: None }
        };
        self.records.put(&record(None))?;
        let mut child = self.worker_command()?.arg(self.records.path(&facts.job_id)).spawn()?;
        let worker = i32::try_from(child.id()).ok().and_then(Process::of_child);
        let recorded = worker
            .ok_or_else(|| io::Error::other("/proc does not show the new process of the worker"))
            .and_then(|worker| self.records.put(&record(Some(worker))).map(|()| worker));
        if recorded.is_err() {
            let _ = child.kill().and_then(|()| child.wait().map(drop));
        }
        let worker = recorded?;
        // The gate, not the job, limits the memory of an aggregator for other nodes.
        let groups = self.options.groups.as_ref().filter(|_| standing.is_none());
        if let Some(Err(error)) = groups.map(|groups| groups.put(&facts.job_id, worker.pid)) {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(
                job_id = facts.job_id, %error, source,
                "the worker of a job runs without some of its limits; see the error"
            );
        }
        Ok((child, worker))
    }

    /// Signals the worker of a job that the job is over, and waits at most `wait` until the worker has ended.
    fn end(&self, job_id: &str, wait: Duration) -> Reply {
        if let Err(error) = job_id_of(job_id.to_owned()) {
            return Reply::Refused(error.to_string());
        }
        self.comments.remove(job_id);
        let until = Instant::now() + wait;
        loop {
            let Some(worker) = self.tell_that_it_is_over(job_id) else {
                return Reply::Ended(self.given_up.remove(job_id).map_or(End::NotSaved, End::GivenUp));
            };
            let has_ended = worker.wait(until.saturating_duration_since(Instant::now()));
            if let Some(job) = self.lock().get_mut(job_id) {
                job.waiting = job.waiting.saturating_sub(1);
            }
            if !has_ended {
                let wait_ms = wait.as_millis() as u64;
                tracing::warn!(job_id, wait_ms, "a job is over, and its files are still being committed");
                return Reply::Ended(End::StillCommitting);
            }
            let mut jobs = self.lock();
            let is_it = jobs.get(job_id).is_some_and(|job| job.worker == worker);
            let Some(mut job) = is_it.then(|| jobs.remove(job_id)).flatten() else { return Reply::Ended(End::Unknown) };
            let status = job.child.as_mut().and_then(|child| child.wait().ok());
            // SIGUSR1 killed the worker, because the worker had no handler for the signal yet. Another worker saves
            // the files.
            if status.is_some_and(|status| status.signal() == Some(Signal::USR1.as_raw()))
                && let Ok((child, worker)) = self.start(&job.facts, None, true)
            {
                jobs.insert(job_id.to_owned(), Job { worker, child: Some(child), is_late: true, ..job });
                self.wake();
                continue;
            }
            self.forget(job_id);
            tracing::info!(job_id, status = status.map(|status| status.to_string()), "a job is over");
            self.totals().jobs_ended += 1;
            return Reply::Ended(status.and_then(|status| status.code()).map_or(End::Unknown, End::Status));
        }
    }

    /// Signals the worker of a job that the job is over, and returns the worker. `None` if the job has no worker.
    fn tell_that_it_is_over(&self, job_id: &str) -> Option<Process> {
        let mut jobs = self.jobs();
        let job = jobs.get_mut(job_id)?;
        // The worker died, and the next worker was to start later. The job is over, so the next worker starts now,
        // with a record that says that the job is over.
        if job.again_at.take().is_some() {
            match self.start(&job.facts, None, true) {
                Ok((child, worker)) => (job.child, job.worker, job.is_late) = (Some(child), worker, true),
                Err(error) => tracing::error!(job_id, %error, "the worker of a job cannot be started again"),
            }
        }
        (job.is_over, job.waiting) = (true, job.waiting + 1);
        if job.is_late {
            return Some(job.worker);
        }
        let (facts, places, state_file) = (job.facts.clone(), job.places.clone(), job.state_file.clone());
        let record = Record { facts, standing: None, worker: Some(job.worker), is_over: true, places, state_file };
        if let Err(error) = self.records.put(&record) {
            tracing::warn!(job_id, %error, "the record of a job cannot be written");
        }
        job.worker.signal(Signal::USR1);
        Some(job.worker)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ask;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;

    /// A process of this user that is no worker.
    pub(super) fn of_user(uid: u32) -> Peer {
        Peer { uid, pid: std::process::id() as i32 }
    }

    pub(super) struct Site {
        dir: tempfile::TempDir,
        pub(super) daemon: Arc<Daemon>,
    }

    impl Site {
        /// A daemon whose worker is a shell script. `$1` is the path of the record.
        pub(super) fn new(script: &str) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let own = nix::unistd::geteuid().as_raw();
            let worker = ["sh", "-c", script, "worker"].map(OsString::from).into();
            let options = Options {
                run_dir: dir.path().join("run"),
                own: Some(own),
                min_uid: 1000,
                gate: None,
                worker,
                groups: None,
            };
            let daemon = Arc::new(Daemon::new(options).expect("starts"));
            Self { dir, daemon }
        }

        fn facts(&self, job_id: &str, restart_count: u32) -> JobFacts {
            let (uid, work_dir) = (nix::unistd::geteuid().as_raw(), self.dir.path().into());
            JobFacts {
                job_id: job_id.into(),
                restart_count,
                uid,
                work_dir,
                node: "n1".into(),
                nodes: 1,
                node_list: String::new(),
                tasks: None,
                comment: String::new(),
                het_job_id: None,
            }
        }

        pub(super) fn own(&self, request: Request) -> Reply {
            self.daemon.reply(of_user(nix::unistd::geteuid().as_raw()), request)
        }

        pub(super) fn begin(&self, job_id: &str, restart_count: u32) -> i32 {
            match self.own(Request::Begin(self.facts(job_id, restart_count))) {
                Reply::Begun { pid } => pid,
                other => panic!("{other:?}"),
            }
        }

        /// Makes the daemon not start another worker if the worker of a job dies.
        pub(super) fn give_up_next_time(&self, job_id: &str) {
            self.daemon.lock().get_mut(job_id).expect("known").restarts = RESTARTS_MAX;
        }

        pub(super) fn end(&self, job_id: &str, wait_ms: u64) -> Reply {
            self.own(Request::End { job_id: job_id.into(), wait_ms })
        }
    }

    /// A worker that waits for SIGUSR1 and then ends with status 5.
    pub(super) const WORKER: &str = "trap 'exit 5' USR1; touch \"$1.$$\"; grep -q 'is-over\":true' \"$1\" && exit 5; \
                          while :; do sleep 0.02; done";

    pub(super) fn wait_until_ready(site: &Site, job_id: &str, pid: i32) {
        let ready = site.dir.path().join(format!("run/jobs/{job_id}.json.{pid}"));
        while !ready.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    impl Drop for Site {
        fn drop(&mut self) {
            self.daemon.lock().values().for_each(|job| {
                job.worker.signal(Signal::KILL);
            });
        }
    }

    #[test]
    fn a_worker_is_told_that_its_job_is_over_and_its_status_is_the_answer() {
        let site = Site::new(WORKER);
        let pid = site.begin("7", 0);
        wait_until_ready(&site, "7", pid);
        let lines = site.own(Request::Jobs);
        assert!(matches!(&lines, Reply::Jobs(all) if all.len() == 1 && all[0].pid == pid), "{lines:?}");
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::Status(5)));
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::NotSaved));
        assert_eq!(site.own(Request::Jobs), Reply::Jobs(Vec::new()));
    }

    #[test]
    fn a_job_that_begins_again_has_one_worker_and_the_earlier_worker_is_dead() {
        let site = Site::new(WORKER);
        let first = Process::of(site.begin("7", 0)).expect("it runs");
        let second = site.begin("7", 1);
        assert!(!first.is_alive() && second != first.pid);
        assert!(matches!(site.own(Request::Jobs), Reply::Jobs(all) if all.len() == 1));
        // The worker may not have a handler for SIGUSR1 yet.
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::Status(5)));
    }

    #[test]
    fn a_worker_that_dies_is_started_again_but_not_for_ever_and_not_after_the_end_of_its_job() {
        let site = Site::new(WORKER);
        let dies = |pid: i32| {
            let worker = Process::of(pid).expect("it runs");
            assert!(worker.signal(Signal::KILL) && worker.wait(Duration::from_secs(10)));
        };
        let pid_now = || match site.own(Request::Jobs) {
            Reply::Jobs(all) => all.iter().find(|job| job.not_saved.is_none()).map(|job| job.pid),
            other => panic!("{other:?}"),
        };
        let mut pid = site.begin("7", 0);
        for _ in 0..2 {
            dies(pid);
            let until = Instant::now() + Duration::from_secs(20);
            while pid_now() == Some(pid) {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(10));
            }
            pid = pid_now().expect("started again");
        }
        // The worker dies again, and the job ends before another worker is started.
        dies(pid);
        assert_eq!(pid_now(), Some(pid));
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::Status(5)), "another worker saves what is left");
        let pid = site.begin("8", 0);
        site.give_up_next_time("8");
        dies(pid);
        assert_eq!(pid_now(), None, "the daemon gives the worker up");
        let refused = Site::new("exit 78");
        refused.begin("7", 0);
        let until = Instant::now() + Duration::from_secs(20);
        while matches!(refused.own(Request::Jobs), Reply::Jobs(all) if all[0].not_saved.is_none()) {
            assert!(Instant::now() < until, "a worker with wrong settings is not started again");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn an_end_has_a_bound_although_the_worker_does_not_end() {
        let site = Site::new("trap '' USR1; touch \"$1.$$\"; while :; do sleep 0.02; done");
        let pid = site.begin("7", 0);
        wait_until_ready(&site, "7", pid);
        let began = Instant::now();
        assert_eq!(site.end("7", 200), Reply::Ended(End::StillCommitting));
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!(Process::of(pid).expect("it runs").signal(Signal::KILL));
    }

    #[test]
    fn requests_of_other_users_and_jobs_of_the_system_are_refused() {
        let site = Site::new(WORKER);
        let own = nix::unistd::geteuid().as_raw();
        for request in [Request::Begin(site.facts("7", 0)), Request::End { job_id: "7".into(), wait_ms: 0 }] {
            let reply = site.daemon.reply(of_user(own + 1), request);
            assert!(matches!(&reply, Reply::Refused(why) if why.contains("may not begin or end jobs")), "{reply:?}");
        }
        assert_eq!(site.daemon.reply(of_user(own + 1), Request::Jobs), Reply::Jobs(Vec::new()));
        let other = JobFacts { uid: own + 1, ..site.facts("7", 0) };
        assert!(matches!(site.own(Request::Begin(other)), Reply::Refused(why) if why.contains("only jobs of user")));
        let path = JobFacts { job_id: "../7".into(), ..site.facts("7", 0) };
        assert!(matches!(site.own(Request::Begin(path)), Reply::Refused(why) if why.contains("SLURM_JOB_ID")));
        let root = Options { own: None, ..site.daemon.options.clone() };
        let daemon = Daemon::new(root).expect("starts");
        let reply = daemon.reply(of_user(0), Request::Begin(JobFacts { uid: 999, ..site.facts("7", 0) }));
        assert!(matches!(&reply, Reply::Refused(why) if why.contains("at least the number 1000")), "{reply:?}");
    }

    fn standing(site: &Site, key: &str) -> Standing {
        let uid = site.facts("7", 0).uid;
        Standing { key: key.repeat(32), uid, groups: 3, budget_mib: 256, settings: "store = \"/s\"".into() }
    }

    #[test]
    fn an_aggregator_for_a_job_elsewhere_is_started_once_and_is_no_job_of_this_node() {
        let site = Site::new("exec sleep 600");
        let Reply::Begun { pid } = site.own(Request::Stand(standing(&site, "a"))) else { panic!("refused") };
        assert_eq!(site.own(Request::Stand(standing(&site, "a"))), Reply::Begun { pid });
        assert_eq!(site.own(Request::Jobs), Reply::Jobs(Vec::new()));
        let lines = site.own(Request::Standing);
        assert!(matches!(&lines, Reply::Standing(all) if all.len() == 1 && all[0].pid == pid && all[0].groups == 3));
        let record = format!("a{}-{}", site.facts("7", 0).uid, "a".repeat(32));
        let record = Records::read(&site.daemon.records.path(&record)).expect("recorded");
        assert_eq!(record.standing, Some(standing(&site, "a")), "the worker reads the settings");
        assert!(matches!(site.end(&format!("a{}", record.facts.uid), 0), Reply::Refused(_)), "no job can be named so");
        // The next daemon finds the running aggregator.
        let next = Daemon::new(site.daemon.options.clone()).expect("starts");
        assert!(matches!(next.standing(), Reply::Standing(all) if all[0].pid == pid));
    }

    #[test]
    fn an_aggregator_that_fails_is_not_started_again_at_once() {
        for (script, is_started_again) in [("exit 78", false), ("exit 5", true)] {
            let site = Site::new(script);
            assert!(matches!(site.own(Request::Stand(standing(&site, "d"))), Reply::Begun { .. }));
            let until = Instant::now() + Duration::from_secs(20);
            while site.own(Request::Standing) != Reply::Standing(Vec::new()) {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(10));
            }
            let again = site.own(Request::Stand(standing(&site, "d")));
            assert_eq!(matches!(again, Reply::Begun { .. }), is_started_again, "{again:?}");
            assert!(matches!(&again, Reply::Begun { .. }) || format!("{again:?}").contains("exit status: 78"));
            assert!(matches!(site.own(Request::Stand(standing(&site, "e"))), Reply::Begun { .. }));
        }
    }

    #[test]
    fn only_the_gate_may_start_aggregators_and_it_may_do_nothing_else() {
        let site = Site::new("exec sleep 600");
        let own = site.facts("7", 0).uid;
        let (gate, other) = (own + 1, own + 2);
        let daemon = Daemon::new(Options { gate: Some(gate), ..site.daemon.options.clone() }).expect("starts");
        for request in [Request::Stand(standing(&site, "b")), Request::Standing, Request::Certificates { uid: own }] {
            let reply = daemon.reply(of_user(other), request);
            assert!(matches!(&reply, Reply::Refused(why) if why.contains("may not start aggregators")), "{reply:?}");
        }
        assert!(matches!(daemon.reply(of_user(gate), Request::Standing), Reply::Standing(all) if all.is_empty()));
        for request in [Request::Begin(site.facts("7", 0)), Request::End { job_id: "7".into(), wait_ms: 0 }] {
            assert!(
                matches!(daemon.reply(of_user(gate), request), Reply::Refused(why) if why.contains("may not begin"))
            );
        }
        let refused = |change: &dyn Fn(&mut Standing)| {
            let mut wrong = standing(&site, "c");
            change(&mut wrong);
            match daemon.reply(of_user(gate), Request::Stand(wrong)) {
                Reply::Refused(why) => why,
                other => panic!("{other:?}"),
            }
        };
        assert!(refused(&|it| it.uid += 7).contains("only jobs of user"));
        assert!(refused(&|it| it.key = "../../../../../../../../../etc/x".into()).contains("hexadecimal"));
        assert!(refused(&|it| it.settings = "x".repeat(20_000)).contains("more than 16384 bytes"));
    }

    #[test]
    fn certificates_are_read_by_another_process_within_a_bound() {
        let uid = nix::unistd::geteuid().as_raw();
        let of = |script: &str| Site::new(script).own(Request::Certificates { uid });
        assert_eq!(of("echo \"$1 $2\""), Reply::Certificates(format!("--certificates {uid}\n")));
        assert_eq!(of("echo there is no key; exit 1"), Reply::Refused("there is no key".into()));
        let began = Instant::now();
        assert!(matches!(of("exec sleep 600"), Reply::Refused(why) if why.contains("timed out")));
        assert!(matches!(of("yes"), Reply::Refused(why) if why.contains("more than 32768 bytes")));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn workers_are_in_control_groups_and_a_group_that_cannot_be_made_changes_nothing() {
        let unit = crate::cgroup::tests::unit("memory pids");
        let mut site = Site::new(WORKER);
        let options = Options { groups: Some(crate::cgroup::tests::groups(&unit)), ..site.daemon.options.clone() };
        site.daemon = Arc::new(Daemon::new(options).expect("starts"));
        let pid = site.begin("7", 0);
        let procs = std::fs::read_to_string(unit.path().join("job_7/cgroup.procs")).expect("readable");
        assert_eq!(procs, pid.to_string());
        assert_eq!(site.end("7", 10_000), Reply::Ended(End::Status(5)));
        drop(unit);
        site.begin("8", 0);
        assert_eq!(site.end("8", 10_000), Reply::Ended(End::Status(5)));
    }

    #[test]
    fn the_words_of_a_comment_are_kept_until_the_job_is_over_and_only_its_user_sees_them() {
        let site = Site::new(WORKER);
        let own = nix::unistd::geteuid().as_raw();
        let words_for = |uid| match site.daemon.reply(of_user(uid), Request::Comment { job_id: "7".into() }) {
            Reply::Comment(comment) => comment.map(|comment| comment.words),
            other => panic!("{other:?}"),
        };
        let facts = |comment: &str| JobFacts { comment: comment.into(), ..site.facts("7", 0) };
        assert!(matches!(site.own(Request::Begin(facts("mcr:job=melt"))), Reply::Begun { .. }));
        assert_eq!((words_for(own).as_deref(), words_for(own + 1)), (Some("mcr:job=melt"), None));
        assert!(matches!(site.own(Request::Comment { job_id: "../7".into() }), Reply::Refused(_)));
        site.end("7", 10_000);
        assert_eq!(words_for(own), None);
        // The job begins again without a comment.
        assert!(matches!(site.own(Request::Begin(facts("mcr:job=melt"))), Reply::Begun { .. }));
        site.begin("7", 1);
        assert_eq!(words_for(own), None);
    }

    #[test]
    fn clients_that_say_nothing_or_nonsense_do_not_keep_others_from_being_served() {
        let site = Site::new(WORKER);
        let path = site.dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let daemon = Arc::clone(&site.daemon);
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let serving = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                daemon.serve(&listener, Some(Duration::from_millis(20)), || !over.load(Ordering::Relaxed))
            })
        };
        let silent: Vec<_> = (0..128).filter_map(|_| UnixStream::connect(&path).ok()).collect();
        for nonsense in [&b"{\"begin\":{}}\n"[..], b"\xff\n", &[b'x'; 100_000]] {
            use std::io::Write;
            // The daemon may close the connection at any time.
            let _ = UnixStream::connect(&path).and_then(|mut stream| stream.write_all(nonsense));
        }
        // Silent clients are dropped after CLIENT_PATIENCE.
        let until = Instant::now() + Duration::from_secs(30);
        let jobs = loop {
            match ask(&path, &Request::Jobs, Duration::from_secs(5)) {
                Ok(reply) => break reply,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(jobs, Reply::Jobs(Vec::new()));
        over.store(true, Ordering::Relaxed);
        drop(silent);
        serving.join().expect("ended").expect("served");
    }
}
