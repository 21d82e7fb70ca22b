//! Tests `mcr status`: the live view on a terminal, repeated output, and how the command finds aggregators.

use crate::support::*;
use mcr_test_support::{Process, clean};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// A pseudo-terminal with a program, and the text that the terminal shows.
struct Terminal {
    program: Process,
    /// The side of the program.
    inner: File,
    /// The side of the user.
    outer: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(command: &Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let outer = openpt(flags).expect("a terminal");
        grantpt(&outer).and_then(|()| unlockpt(&outer)).expect("unlocked");
        let name = ptsname(&outer, Vec::new()).expect("a name");
        let inner = File::options().read(true).write(true).open(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let (inner, outer) = (inner.expect("opened"), File::from(outer));
        let copy = || inner.try_clone().expect("copied");
        // `setsid --ctty` gives the program the new terminal instead of the terminal of the tests.
        let mut by = clean(Command::new("setsid"));
        by.arg("--ctty").arg(command.get_program()).args(command.get_args());
        by.env("TERM", "xterm").stdin(copy()).stdout(copy()).stderr(copy());
        tcsetwinsize(&inner, winsize(80, 24)).expect("a size");
        let program = Process::start(&mut by).expect("it starts");
        drop(by); // the command holds the terminal open
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let (mut from, shown) = (outer.try_clone().expect("copied"), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut part) {
                shown.lock().expect("not poisoned").process(&part[..length]);
            }
        });
        Self { program, inner, outer, screen }
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().expect("not poisoned").screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.inner, winsize(columns, rows)).expect("a size");
    }

    fn text(&self) -> String {
        self.screen.lock().expect("not poisoned").screen().contents()
    }

    /// Waits until a line of the screen contains all of these words.
    fn wait_for_line(&self, words: &[&str]) {
        let mut last = String::new();
        let has_line = || {
            last = self.text();
            last.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
        };
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait_for("a line", PATIENCE, has_line)));
        assert!(waited.is_ok(), "no line has {words:?}:\n{last}");
    }

    /// Waits until the program ends. Checks that the terminal is as before.
    fn ends(mut self) {
        let status = wait_for("the end", PATIENCE, || self.program.0.try_wait().expect("can be waited for"));
        assert!(status.success(), "{status}: {}", self.text());
        let modes = tcgetattr(&self.inner).expect("modes").local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        wait_for("the first screen", PATIENCE, || {
            let shown = self.screen.lock().expect("not poisoned");
            (!shown.screen().alternate_screen() && !shown.screen().hide_cursor()).then_some(())
        });
    }
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// `mcr status --watch` for these aggregators. No `mcr node` is asked.
fn watch(aggregators: &[&str]) -> Command {
    let mut command = mcr();
    command.args(["status", "--watch", "--interval", "1", "--aggregators", &aggregators.join(",")]);
    command
}

fn aggregator(dir: &Path, name: &str) -> (Daemon, String) {
    Daemon::aggregator(dir, name, &dir.join(name), "")
}

#[test]
fn the_live_view_survives_resizing_and_the_death_of_an_aggregator_and_q_restores_the_terminal() {
    let dir = tempfile::tempdir().expect("a directory");
    let ((first, a), (_second, b)) = (aggregator(dir.path(), "a"), aggregator(dir.path(), "b"));
    let mut terminal = Terminal::start(&watch(&[&a, &b]));
    terminal.wait_for_line(&["2 aggregators; 0 agents"]);
    terminal.wait_for_line(&[&a, "answers"]);
    terminal.wait_for_line(&[&b, "answers"]);
    assert!(terminal.screen.lock().expect("not poisoned").screen().alternate_screen());
    first.kill();
    terminal.wait_for_line(&[&a, "has not answered for 3 s"]);
    terminal.wait_for_line(&["2 aggregators, 1 does not answer"]);
    terminal.resize(120, 40);
    terminal.wait_for_line(&[&a, "has not answered for", "connection refused"]);
    wait_for("the last line of 40", PATIENCE, || {
        terminal.text().lines().nth(39).is_some_and(|line| line.contains("q: quit")).then_some(())
    });
    terminal.resize(30, 5);
    wait_for("the last line of 5", PATIENCE, || {
        terminal.text().lines().nth(4).is_some_and(|line| line.contains("lines 1 to 3")).then_some(())
    });
    terminal.resize(80, 24);
    terminal.wait_for_line(&[&b, "answers"]);
    terminal.outer.write_all(b"q").expect("typed");
    terminal.ends();
}

#[test]
fn ctrl_c_and_sigterm_end_the_live_view_and_restore_the_terminal() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_aggregator, address) = aggregator(dir.path(), "a");
    for by_key in [true, false] {
        let mut terminal = Terminal::start(&watch(&[&address]));
        terminal.wait_for_line(&[&address, "answers"]);
        match by_key {
            true => terminal.outer.write_all(b"\x03").expect("typed"),
            false => assert!(terminal.program.signal("TERM")),
        }
        terminal.ends();
    }
}

#[test]
fn without_a_terminal_watch_prints_tables_or_lines_of_json_and_goes_on_after_the_death_of_an_aggregator() {
    let dir = tempfile::tempdir().expect("a directory");
    let (aggregator, address) = aggregator(dir.path(), "a");
    let mut command = watch(&[&address]);
    let mut program = Process::start(command.arg("--json").stdout(Stdio::piped())).expect("it starts");
    let mut lines = BufReader::new(program.0.stdout.take().expect("piped")).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("UTF-8")).expect("JSON") };
    let line = next();
    assert_eq!((&line["version"], &line["aggregators"][0]["aggregator"]), (&1.into(), &address.as_str().into()));
    assert!(line["aggregators"][0]["error"].is_null(), "{line}");
    let mut command = watch(&[&address]);
    let mut of_text = Process::start(command.stdout(Stdio::piped())).expect("it starts");
    let mut text = BufReader::new(of_text.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(text.any(|line| line.contains(" UTC: 1 aggregator; 0 agents")));
    assert!(text.any(|line| line.starts_with(&address) && line.contains("answers")));
    aggregator.kill();
    let silent = std::iter::repeat_with(&mut next).take(20).find(|line| line["aggregators"][0]["error"].is_string());
    let silent_ms = silent.as_ref().and_then(|line| line["aggregators"][0]["silent_ms"].as_u64());
    assert!(silent_ms.is_some_and(|ms| ms > 0), "{silent:?}");
    assert!(text.by_ref().take(200).any(|line| line.contains("has not answered for")));
    for program in [program, of_text] {
        assert!(program.end("TERM").expect("it ends").success());
    }
}

#[test]
fn the_last_commit_and_the_last_error_of_a_job_are_shown_and_an_agent_that_was_killed_does_not_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let (_aggregator, address) = Daemon::aggregator(dir.path(), "a", &store, "gather-seconds = 10");
    let run_dir = dir.path().join("run");
    std::fs::create_dir(&run_dir).expect("made");
    let more = "ranks = 2\nquiet-ms = 20\ncheckpoint-quiet-ms = 40\nlayout = \"{checkpoint}.rank_{rank}.h5\"";
    let agent = Daemon::agent(dir.path(), "n1", &run_dir, std::slice::from_ref(&address), more);
    (0..2).for_each(|rank| write_rank(&run_dir, 1, rank, 900));
    wait_complete(&store, "sim.it_1");
    let status_text =
        || String::from_utf8(run(mcr().args(["status", "--aggregators", &address]), 0).stdout).expect("UTF-8");
    // An agent that waits for no answer sends no messages, and is not lost.
    wait_for("an idle agent", PATIENCE, || {
        status_text().lines().any(|line| line.starts_with("n1 ") && line.contains(" idle ")).then_some(())
    });
    write_rank(&run_dir, 2, 0, 900);
    let status = || run_json(mcr().args(["status", "--aggregators", &address]), 0)["aggregators"][0].clone();
    let known = wait_for("an error of the job", PATIENCE, || {
        Some(status()).filter(|s| s["jobs"][0]["last_error"] != Value::Null)
    });
    let job = &known["jobs"][0];
    assert_eq!((&job["job"], &job["last_checkpoint"]), (&"job".into(), &"sim.it_1".into()), "{known}");
    assert!(job["last_error"].as_str().is_some_and(|why| why.contains("sim.it_2 was abandoned")), "{known}");
    assert!(job["last_error_ago_ms"].as_u64() < job["last_commit_ago_ms"].as_u64(), "{known}");
    agent.kill();
    let lost = wait_for("a lost agent", PATIENCE, || Some(status()).filter(|s| s["agents"][0]["lost"] == true));
    assert_eq!((&lost["agents"][0]["node"], &lost["agents"][1]), (&"n1".into(), &Value::Null), "{lost}");
    let text = status_text();
    let row = text.lines().find(|line| line.starts_with("n1 ")).unwrap_or_else(|| panic!("no row: {text}"));
    assert!(row.contains(" lost "), "{text}");
    // An agent that ends after SIGTERM is not lost.
    let agent = Daemon::agent(dir.path(), "n1", &run_dir, std::slice::from_ref(&address), more);
    wait_for("the agent", PATIENCE, || Some(status()).filter(|s| s["agents"][0]["lost"] == false));
    std::fs::remove_file(run_dir.join("sim.it_2.rank_0.h5")).expect("removed");
    agent.stop();
    wait_for("no agent", PATIENCE, || Some(status()).filter(|s| s["agents"] == serde_json::json!([])));
}

#[test]
fn without_options_status_asks_the_node_for_the_jobs_of_the_user() {
    let dir = tempfile::tempdir().expect("a directory");
    let job_id = format!("{}88", std::process::id());
    write_job_files(dir.path(), &job_id, "");
    let run_dir = dir.path().join("node");
    let node = || {
        let node = Daemon::start(mcr().args(["node", "--own", "--run-dir"]).arg(&run_dir));
        node.wait_for_log("serving jobs");
        node
    };
    let daemon = node();
    let status = |expected: i32| {
        let mut command = mcr();
        command.args(["status", "--run-dir"]).arg(&run_dir).current_dir(dir.path());
        run_json(&mut command, expected)
    };
    let error = status(1)["error"]["message"].as_str().expect("a text").to_owned();
    assert!(error.contains("saves no job of this user") && error.contains("no mcr.toml"), "{error}");
    let mut application = Command::new("sleep");
    let application = Process::start(application.arg("600").env("SLURM_JOB_ID", &job_id).env("SLURM_NTASKS", "2"));
    let mut application = application.expect("it starts");
    let mut begin = mcr();
    begin.args(["job", "begin", "--run-dir"]).arg(&run_dir);
    begin.env("SLURM_JOB_ID", &job_id).env("SLURM_JOB_UID", nix::unistd::geteuid().to_string());
    begin.env("SLURM_JOB_WORK_DIR", dir.path().join("work")).env("SLURMD_NODENAME", "n1");
    run(begin.env("SLURM_JOB_NTASKS", "2").env("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"), 0);
    let found = |expected: i32| {
        let mut command = mcr();
        command.args(["status", "--json", "--run-dir"]).arg(&run_dir).current_dir(dir.path());
        let output = command.output().expect("it starts");
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code() == Some(expected)).then_some(value)
    };
    let shown = wait_for("the aggregator of the job", PATIENCE, || {
        found(0).filter(|shown| shown["aggregators"][0]["agents"][0]["job"].is_string())
    });
    let of_agent = &shown["aggregators"][0]["agents"][0];
    assert_eq!(of_agent["job"], format!("melt{job_id}"), "{shown}");
    // The next daemon knows the agent from its records.
    daemon.kill();
    let _daemon = node();
    assert!(wait_for("the aggregator of the job", PATIENCE, || found(0))["silent_agents"] == serde_json::json!([]));
    // A worker that is stopped by SIGSTOP does not answer. The output lists this worker with its job.
    let jobs = run_json(mcr().args(["job", "list", "--run-dir"]).arg(&run_dir), 0);
    let worker = jobs["jobs"][0]["pid"].to_string();
    run(Command::new("kill").args(["-STOP", &worker]), 0);
    let silent = run_json(mcr().args(["status", "--run-dir"]).arg(&run_dir), 1);
    run(Command::new("kill").args(["-CONT", &worker]), 0);
    assert_eq!(silent["silent_agents"][0]["job_id"], job_id.as_str(), "{silent}");
    assert!(silent["silent_agents"][0]["path"].as_str().is_some_and(|path| path.ends_with(".sock")), "{silent}");
    application.kill().expect("it ends");
    let mut end = mcr();
    run(end.args(["job", "end", "--run-dir"]).arg(&run_dir).env("SLURM_JOB_ID", &job_id), 0);
}

#[test]
fn if_no_aggregator_is_known_the_error_names_what_was_tried() {
    let dir = tempfile::tempdir().expect("a directory");
    let run_dir: PathBuf = dir.path().join("nowhere");
    let said = |more: &str| {
        std::fs::write(dir.path().join("mcr.toml"), format!("job = \"wave\"\nwatch = \".\"\n{more}")).expect("written");
        let mut command = mcr();
        command.arg("status").current_dir(dir.path()).env("MCR_RUN_DIR", &run_dir).env("XDG_STATE_HOME", dir.path());
        command
    };
    let error = run_json(&mut said(""), 1)["error"].clone();
    let message = error["message"].as_str().expect("a text");
    let socket = run_dir.join("socket").display().to_string();
    for part in ["mcr node does not answer at", &socket, "name no aggregators", "no agent answers at", ".state.sock"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(error["advice"].as_str().is_some_and(|text| text.contains("--aggregators")), "{error}");
    // If `mcr.toml` is a complete configuration file, `mcr status` uses its addresses.
    let file = "[cnc]\njob = \"wave\"\nwatch = \"/x\"\naggregators = [\"127.0.0.1:1\"]\n";
    let mut command = said("");
    std::fs::write(dir.path().join("mcr.toml"), file).expect("written");
    assert_eq!(run_json(&mut command, 1)["aggregators"][0]["aggregator"], "127.0.0.1:1");
}
