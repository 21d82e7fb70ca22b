//! Tests the output of commands on terminals of several widths, and the options --quiet and --verbose.

use crate::support::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A directory with checkpoints whose names are long, and a store.
struct Site {
    dir: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir_all(site.data()).expect("made");
        (0..4).for_each(|rank| write_rank(&site.data(), 1_000_000_000, rank, 900));
        (0..4).for_each(|rank| write_rank(&site.data(), 1_000_000_001, rank, 900));
        let mut save = mcr();
        save.args(["save", "--create", "--job", "a-job-with-a-rather-long-name"]).arg(site.data());
        run(save.arg("--store").arg(site.store()), 0);
        site
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A command for the store.
    fn command(&self, args: &str) -> Command {
        let mut command = mcr();
        command.args(args.split(' ')).env("TERM", "xterm");
        match args.split(' ').next() {
            Some("bench") => command.arg(self.data()).args(["--time-limit", "20", "--sample", "64K", "--ranks", "4"]),
            Some("layouts") => &mut command,
            Some("save") => {
                let _ = std::fs::remove_dir_all(self.dir.path().join("other"));
                command.arg(self.data()).args(["--create", "--store"]).arg(self.dir.path().join("other"))
            }
            Some("job") => {
                let file = self.dir.path().join("mcr.toml");
                let text = format!("job = \"wave\"\nwatch = \".\"\nstore = {:?}\n", self.store());
                std::fs::write(file, text).expect("written");
                command.current_dir(self.dir.path())
            }
            _ => command.arg("--store").arg(self.store()),
        };
        command.env_remove("NO_COLOR");
        command
    }
}

/// Runs a command with a terminal of this width as standard output and standard error. Returns what the terminal
/// receives, without carriage returns.
fn on_terminal(columns: u16, mut command: Command) -> String {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outer = openpt(flags).expect("a terminal");
    grantpt(&outer).and_then(|()| unlockpt(&outer)).expect("unlocked");
    let name = ptsname(&outer, Vec::new()).expect("a name");
    let inner = File::options().read(true).write(true).open(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let inner = inner.expect("opened");
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&inner, size).expect("a size");
    command.stdout(inner.try_clone().expect("copied")).stderr(inner);
    let mut child = command.spawn().expect("it starts");
    drop(command); // the command holds the terminal open
    let (mut outer, mut bytes) = (File::from(outer), Vec::new());
    // Reading ends with an error when no process has the terminal.
    let _ = outer.read_to_end(&mut bytes);
    let status = child.wait().expect("it ends");
    let text = String::from_utf8(bytes).expect("UTF-8").replace('\r', "");
    assert!(status.success(), "{text}");
    text
}

/// The width of the widest line of a table. The terminal itself breaks the lines of sentences.
fn widest(text: &str) -> usize {
    let of_tables = text.lines().filter(|line| line.trim_start().contains("  "));
    of_tables.map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn every_table_fits_a_terminal_of_80_columns_and_is_whole_on_one_of_200() {
    let site = Site::new();
    for args in [
        "list",
        "list --all",
        "show",
        "show --files",
        "show --why --all",
        "verify",
        "layouts",
        "stats",
        "ls latest",
        "ls latest --variables",
        "diff latest~1 latest",
        "job show",
        "bench codecs",
        "bench schemes",
        "save -q",
    ] {
        for columns in [80, 200] {
            let mut command = site.command(args);
            command.env("NO_COLOR", "1").arg("-q");
            if args == "save -q" {
                command = site.command(args);
                command.env("NO_COLOR", "1");
            }
            let text = on_terminal(columns, command);
            assert!(widest(&text) <= usize::from(columns), "mcr {args}, {columns} columns:\n{text}");
        }
    }
    let text = on_terminal(200, site.command("list"));
    assert!(text.contains("ratio") && text.contains("took") && text.contains("files"), "{text}");
    let text = on_terminal(80, site.command("list"));
    assert!(text.contains("sim.it_1000000001") && text.contains("complete"), "{text}");
    assert!(text.contains("(too narrow for: "), "the columns that are left out are named: {text}");
    let text = on_terminal(80, site.command("ls latest"));
    let heading = text.lines().next().unwrap_or_default();
    assert!(heading.starts_with("mode") && heading.ends_with("file"), "the table has one part: {text}");
}

#[test]
fn the_reasons_for_codecs_are_shown_only_with_why_and_empty_columns_never() {
    let site = Site::new();
    let shown = |args| String::from_utf8(run(&mut site.command(args), 0).stdout).expect("UTF-8");
    let (short, long) = (shown("show"), shown("show --why"));
    let heading = |text: &str| text.lines().find(|line| line.starts_with("class")).expect("a table").to_owned();
    assert!(!heading(&short).contains("why") && heading(&long).contains("why"), "{short}{long}");
    assert!(!heading(&short).contains("shared") || short.contains("segments that several"), "{short}");
    assert!(short.contains("4 ranks, 1 group (group size 32), 4 files"), "{short}");
}

#[test]
fn a_table_and_the_text_below_it_are_one_write_so_that_head_never_makes_a_command_fail() {
    for _ in 0..5 {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let mut child = mcr().arg("layouts").stdout(writer).spawn().expect("it starts");
        let mut bytes = vec![0; 32 << 10];
        let read = reader.read(&mut bytes).expect("read");
        drop(reader);
        let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
        assert!(text.starts_with("layout") && text.contains("a pattern:"), "one read gets everything: {text}");
        assert!(child.wait().expect("it ends").success());
    }
}

#[test]
fn colours_are_only_on_a_terminal_and_not_with_no_color() {
    let site = Site::new();
    let escape = "\u{1b}[";
    assert!(on_terminal(80, site.command("list")).contains("\u{1b}[32mcomplete\u{1b}[0m"));
    for (name, value, is_coloured) in [("NO_COLOR", "1", false), ("NO_COLOR", "", true), ("TERM", "dumb", false)] {
        let mut command = site.command("list");
        command.env(name, value);
        assert_eq!(on_terminal(80, command).contains(escape), is_coloured, "{name}={value:?}");
    }
    let piped = run(&mut site.command("list"), 0);
    assert!(!String::from_utf8_lossy(&piped.stdout).contains(escape));
}

#[test]
fn a_terminal_shows_progress_with_a_rate_from_the_first_second() {
    let site = Site::new();
    let text = on_terminal(80, site.command("save"));
    assert!(text.contains("saving [") && text.contains("/s"), "{text:?}");
    let text = on_terminal(80, site.command("verify"));
    assert!(text.contains("verifying [") && text.contains("sim.it_1000000001"), "{text:?}");
    assert!(!on_terminal(80, site.command("verify -q")).contains("verifying ["));
}

#[test]
fn quiet_leaves_out_notes_and_verbose_adds_log_lines_of_every_command() {
    let site = Site::new();
    let err = |args: &str| {
        let output = run(&mut site.command(args), 0);
        (String::from_utf8(output.stdout).expect("UTF-8"), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    assert!(err("save").1.contains("layout guessed"));
    let (out, quiet) = err("save -q");
    assert!(quiet.is_empty() && out.contains("2 of 2 checkpoints are in"), "{out}{quiet}");
    assert!(err("verify -vv").1.len() >= err("verify").1.len());
    let both = run(&mut site.command("verify -q -v"), 1);
    assert!(String::from_utf8_lossy(&both.stderr).contains("cannot be used with"));
    // The level of a daemon's log: an option overrides the variable.
    for (options, variable, has_info) in [("-q", "info", false), ("-v", "error", true), ("", "info", true)] {
        let mut command = mcr();
        command.env("MCR_LOG", variable).args(["run", "--job", "j", "--ranks", "4", "--watch"]).arg(site.data());
        command.args(["--layout", "{checkpoint}.rank_{rank}.h5", "--state"]).arg(site.dir.path().join("state"));
        command.arg("--store").arg(site.store()).args(options.split_whitespace()).args(["--", "true"]);
        let output = command.output().expect("it starts");
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(log.contains(" INFO "), has_info, "{options} {variable}: {log}");
    }
}
