//! Tests of the metrics of `mcr node --own`: the totals of the workers, and the jobs that run on the node.

use crate::metrics::{metrics_of, prometheus, scraped, scraped_as, value};
use crate::support::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time within which a count of a worker is on the page of the node.
const SOON: Duration = Duration::from_secs(30);

/// A node with the work directories of jobs.
struct Site {
    dir: TempDir,
    /// Numbers of jobs that no other test has, because workers search the processes of this machine.
    jobs: [String; 2],
}

impl Site {
    fn new(number: u32) -> Self {
        let (dir, id) = (tempfile::tempdir().expect("a directory"), std::process::id());
        let jobs = [1, 2].map(|k| format!("{id}{number}{k}"));
        for job in &jobs {
            write_job_files(&dir.path().join(job), job, "");
        }
        Self { dir, jobs }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn work_dir(&self, job: &str) -> PathBuf {
        self.dir.path().join(job).join("work")
    }

    /// Starts the daemon. Returns the daemon and the address of its metrics.
    fn daemon(&self) -> (Daemon, String) {
        let mut command = mcr();
        command.args(["node", "--own", "--metrics", "127.0.0.1:0", "--run-dir"]).arg(self.run_dir());
        let daemon = Daemon::start(&mut command);
        daemon.wait_for_log("serving jobs");
        let address = metrics_of(&daemon);
        (daemon, address)
    }

    fn job(&self, what: &str, job: &str) {
        let mut command = mcr();
        command.args(["job", what, "--run-dir"]).arg(self.run_dir());
        command.env("SLURM_JOB_ID", job).env("SLURM_JOB_UID", nix::unistd::geteuid().to_string());
        command.env("SLURM_JOB_WORK_DIR", self.work_dir(job)).env("SLURMD_NODENAME", "n1");
        command.env("SLURM_JOB_NTASKS", "2").env("SLURM_SCRIPT_CONTEXT", "prolog_slurmd");
        let said = run(&mut command, 0).stderr;
        assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
    }

    /// Starts a process of a job that writes the steps `first` to `last`, and then waits until it is killed.
    fn application(&self, job: &str, first: u32, last: u32) -> Application {
        let script = format!(
            "for step in $(seq {first} {last}); do mkdir -p out/it_$step; for rank in 0 1; do echo $step $rank > \
             out/it_$step/rank_$rank.dat; done; sleep 0.3; done; exec sleep 600"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(self.work_dir(job));
        Application(command.env("SLURM_JOB_ID", job).env("SLURM_NTASKS", "2").spawn().expect("starts"))
    }

    /// Sends a line to the daemon, from a process of this user that is no worker. Returns the answer.
    fn answer_to(&self, line: &str) -> String {
        let mut stream = UnixStream::connect(self.run_dir().join("socket")).expect("connected");
        // The daemon may answer and close the connection before it has read a line that is too long.
        let _ = stream.write_all(line.as_bytes()).and_then(|()| stream.write_all(b"\n"));
        let mut answer = String::new();
        let _ = BufReader::new(stream).read_line(&mut answer);
        answer
    }
}

/// A process that is killed when this value is dropped.
struct Application(Child);

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

const COMMITTED: &str = "mcr_checkpoints_committed_total";

/// Waits until the page shows this number of committed checkpoints. Returns the page.
fn wait_committed(address: &str, count: f64) -> String {
    wait_for(&format!("{count} committed checkpoints"), SOON, || {
        Some(scraped(address)).filter(|text| value(text, COMMITTED) == count)
    })
}

fn names(text: &str, job: &str) -> bool {
    text.contains(&format!("mcr_job_last_commit_timestamp_seconds{{job=\"melt{job}\",user=\""))
}

#[test]
fn the_page_of_a_node_has_the_commits_of_its_workers_and_names_jobs_only_while_they_run() {
    let site = Site::new(21);
    let (_daemon, address) = site.daemon();
    let [first, second] = &site.jobs;
    site.job("begin", first);
    let application = site.application(first, 1, 2);
    let text = wait_committed(&address, 2.0);
    assert!(names(&text, first) && !names(&text, second), "{text}");
    assert_eq!(value(&text, "mcr_flush_seconds_count"), 2.0);
    assert!(value(&text, "mcr_bytes_raw_total") > 0.0 && value(&text, "mcr_bytes_stored_total") > 0.0, "{text}");
    wait_for("the number of uncommitted ranks", SOON, || {
        let name = format!("mcr_job_uncommitted_ranks{{job=\"melt{first}\"");
        scraped(&address).lines().find(|line| line.starts_with(&name))?.ends_with(" 0").then_some(())
    });
    drop(application);
    site.job("end", first);
    let text = scraped(&address);
    assert!(value(&text, COMMITTED) == 2.0 && !names(&text, first), "{text}");
    assert_eq!(["mcr_jobs", "mcr_jobs_ended_total", "mcr_agents"].map(|name| value(&text, name)), [0.0, 1.0, 0.0]);
    // What is committed at the end of a job is counted, too.
    site.job("begin", second);
    drop(site.application(second, 1, 0)); // so the worker finds the job's environment
    let out = site.work_dir(second).join("out/it_1");
    std::fs::create_dir(&out).expect("made");
    (0..2).for_each(|rank| std::fs::write(out.join(format!("rank_{rank}.dat")), "1").expect("written"));
    site.job("end", second);
    assert_eq!(value(&scraped(&address), COMMITTED), 3.0);
}

#[test]
fn workers_continue_without_the_daemon_and_the_next_daemon_counts_nothing_twice() {
    let site = Site::new(22);
    let (daemon, address) = site.daemon();
    let [job, _] = &site.jobs;
    site.job("begin", job);
    let _application = site.application(job, 1, 2);
    wait_committed(&address, 2.0);
    // The worker has read the daemon's answer to its report.
    std::thread::sleep(Duration::from_millis(500));
    daemon.kill();
    let (_daemon, address) = site.daemon();
    assert_eq!(value(&scraped(&address), COMMITTED), 0.0);
    let _more = site.application(job, 3, 5);
    // A total of 5 would be a checkpoint that was counted twice.
    let text = wait_committed(&address, 3.0);
    assert!(names(&text, job), "{text}");
    std::thread::sleep(Duration::from_millis(1500));
    site.job("end", job);
    assert_eq!(value(&scraped(&address), COMMITTED), 3.0);
}

#[test]
fn reports_of_other_processes_and_reports_that_are_no_reports_are_refused() {
    let site = Site::new(23);
    let (_daemon, address) = site.daemon();
    let [job, _] = &site.jobs;
    site.job("begin", job);
    let _application = site.application(job, 1, 1);
    wait_committed(&address, 1.0);
    let report = |counts: &str| format!("{{\"report\":{{\"counts\":{counts},\"accepted\":{{}},\"agents\":0}}}}");
    for (line, why) in [
        (report("{\"checkpoints-committed\":7}"), "is no worker of this node"),
        (report("{\"checkpoints\":7}"), "unknown field"),
        (report("{\"checkpoints-committed\":-7}"), "not a request"),
        (report(&format!("{{}}{}", " ".repeat(70_000))), "more than 65536 bytes"),
    ] {
        let answer = site.answer_to(&line);
        // The kernel may discard the answer to a line that the daemon has not read completely.
        assert!(answer.contains(why) || (answer.is_empty() && line.len() > 65_536), "{why}: {answer}");
    }
    assert_eq!(value(&scraped(&address), COMMITTED), 1.0);
    site.job("end", job);
}

#[test]
fn a_worker_reports_once_to_a_daemon_that_refuses_reports_and_saves_its_job() {
    let site = Site::new(24);
    let (daemon, _) = site.daemon();
    let [job, _] = &site.jobs;
    site.job("begin", job);
    let jobs = run_json(mcr().args(["job", "list", "--run-dir"]).arg(site.run_dir()), 0);
    let worker = jobs["jobs"][0]["pid"].as_i64().expect("a number") as i32;
    daemon.kill();
    // An older daemon, which does not know the request.
    let socket = site.run_dir().join("socket");
    std::fs::remove_file(&socket).expect("removed");
    let (listener, asked) = (UnixListener::bind(&socket).expect("bound"), Arc::new(Mutex::new(Vec::new())));
    let of_thread = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            of_thread.lock().expect("not poisoned").push(line);
            let _ = stream.write_all(b"{\"refused\":\"not a request: unknown variant `report`\"}\n");
        }
    });
    let _application = site.application(job, 1, 6);
    let store = site.dir.path().join(job).join("store");
    wait_complete(&store, "it_6");
    std::thread::sleep(Duration::from_millis(1500));
    let process = nix::unistd::Pid::from_raw(worker);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGUSR1).expect("it runs");
    let began = Instant::now();
    wait_for("the end of the worker", SOON, || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat"));
        (!stat.is_ok_and(|stat| !stat.contains(") Z "))).then_some(())
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let reports = asked.lock().expect("not poisoned").iter().filter(|line| line.contains("\"report\"")).count();
    assert_eq!(reports, 1);
}

#[test]
fn mcr_metrics_serves_the_page_of_the_node_and_says_whether_the_node_answers() {
    let site = Site::new(25);
    let mut command = mcr();
    command.args(["metrics", "--listen", "127.0.0.1:0", "--run-dir"]).arg(site.run_dir());
    let exporter = Daemon::start(&mut command);
    let address = metrics_of(&exporter);
    assert_eq!(value(&scraped(&address), "mcr_node_up"), 0.0);
    let (daemon, _) = site.daemon();
    let [job, _] = &site.jobs;
    site.job("begin", job);
    let _application = site.application(job, 1, 1);
    let text = wait_committed(&address, 1.0);
    assert!(value(&text, "mcr_node_up") == 1.0 && names(&text, job), "{text}");
    let open = scraped_as(&address, "application/openmetrics-text; version=1.0.0");
    assert!(open.ends_with("# EOF\n") && value(&open, COMMITTED) == 1.0, "{open}");
    check_by_promtool(&text);
    site.job("end", job);
    daemon.kill();
    assert_eq!(value(&scraped(&address), "mcr_node_up"), 0.0);
    exporter.wait_for_log("mcr node answers again");
    wait_for("the second line about the node", SOON, || {
        (exporter.log().matches("mcr node does not answer").count() == 2).then_some(())
    });
}

fn check_by_promtool(text: &str) {
    let Some(programs) = prometheus() else { return };
    let mut command = Command::new(programs.join("promtool"));
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut checked = command.spawn().expect("starts");
    checked.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
    let checked = checked.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.trim().is_empty(), "{said}");
}

/// The address of the metrics in a file must be an address.
#[test]
fn a_wrong_address_of_metrics_has_one_text_in_all_tables() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("mcr.toml");
    let check = |text: &str, file: &Path| {
        std::fs::write(file, text).expect("written");
        let said = run(mcr().args(["config", "check"]).arg(file), 1).stderr;
        String::from_utf8(said).expect("UTF-8")
    };
    for table in ["cnc", "anc"] {
        let said = check(&format!("[{table}]\nmetrics = \"7118\"\n"), &file);
        assert!(said.contains("metrics = \"7118\"; it must be ADDRESS:PORT, as in \"127.0.0.1:7118\""), "{said}");
        let output = mcr().arg(table).arg("--config").arg(&file).output().expect("runs");
        assert_eq!(output.status.code(), Some(78), "{output:?}");
    }
}
