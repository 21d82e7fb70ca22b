//! Tests which files `mcr save` saves, which files it leaves out and reports, and the exit status of commands.

use crate::support::*;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

mod doubts;
mod keeping;
mod layouts;

/// A directory of files, and a store.
struct Site {
    dir: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(site.data()).expect("made");
        make_store(&site.store());
        site
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.data().join(name);
        std::fs::create_dir_all(path.parent().expect("below")).expect("made");
        std::fs::write(path, bytes).expect("written");
    }

    fn command(&self) -> Command {
        let mut command = mcr();
        command.args(["save", "--job", "job"]).arg(self.data()).arg("--store").arg(self.store());
        command
    }

    fn save(&self, more: &[&str], expected: i32) -> (String, String) {
        said(&run(self.command().args(more), expected))
    }

    /// The files that a restart of the newest checkpoint restores.
    fn back(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let to = self.dir.path().join("back");
        let _ = std::fs::remove_dir_all(&to);
        run(mcr().args(["restart", "--copy", "--store"]).arg(self.store()).arg("--to").arg(&to), 0);
        contents(&to)
    }
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (text(&output.stdout), text(&output.stderr))
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[test]
fn an_hdf5_file_that_is_not_whole_is_not_saved_and_the_others_are() {
    let whole = |dir: &Path| write_rank(dir, 1, 0, 4000);
    for (what, word) in
        [("cut", "cut short"), ("empty", "empty"), ("zeros", "never written"), ("marked", "open for writing")]
    {
        let site = Site::new();
        for step in 1..=3 {
            (0..2).for_each(|rank| write_rank(&site.data(), step, rank, 4000));
        }
        let path = site.data().join("sim.it_2.rank_1.h5");
        let mut bytes = std::fs::read(&path).expect("read");
        match what {
            "cut" => bytes.truncate(bytes.len() - 100),
            "empty" => bytes.clear(),
            "zeros" => bytes.fill(0),
            // Write a superblock of version 2 whose flags say that the file is open for writing.
            _ => {
                let end = bytes.len() as u64;
                bytes[8..12].copy_from_slice(&[2, 8, 8, 1]);
                bytes[12..20].fill(0);
                bytes[28..36].copy_from_slice(&end.to_le_bytes());
            }
        }
        std::fs::write(&path, bytes).expect("written");
        let (out, err) = site.save(&[], 4);
        assert!(err.contains("sim.it_2.rank_1.h5") && err.contains(word), "{what}: {err}");
        assert!(last_line(&out).starts_with("PARTLY: 2 of 3 checkpoints are in"), "{what}: {out}");
        assert!(last_line(&out).contains("not saved: sim.it_2"), "{what}: {out}");
        let there: Vec<_> = list(&site.store()).iter().map(|c| c["checkpoint"].to_string()).collect();
        assert_eq!(there, ["\"sim.it_3\"", "\"sim.it_1\""], "{what}");
    }
    // With no other checkpoint in the directory, nothing is saved.
    let site = Site::new();
    whole(&site.data());
    std::fs::File::options()
        .write(true)
        .open(site.data().join("sim.it_1.rank_0.h5"))
        .and_then(|f| f.set_len(900))
        .expect("cut");
    let (out, _) = site.save(&[], 1);
    assert!(last_line(&out).starts_with("FAILED: 0 of 1"), "{out}");
    assert_eq!(list(&site.store()).len(), 0);
}

#[test]
fn an_hdf5_file_that_is_longer_than_its_superblock_says_makes_its_checkpoint_doubtful() {
    let site = Site::new();
    for step in 1..=2 {
        (0..2).for_each(|rank| write_rank(&site.data(), step, rank, 4000));
    }
    // The writer was killed after it had written data, and before HDF5 wrote the new end into the superblock.
    let path = site.data().join("sim.it_2.rank_1.h5");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes.extend_from_slice(&[7; 5000]);
    std::fs::write(&path, bytes).expect("written");
    let (_, err) = site.save(&[], 4);
    assert!(err.contains("sim.it_2.rank_1.h5) is longer than its superblock says"), "{err}");
    let to = site.dir.path().join("to");
    let restarted = run(mcr().args(["restart", "--copy", "--store"]).arg(site.store()).arg("--to").arg(&to), 2);
    let (_, said) = said(&restarted);
    assert!(said.contains("sim.it_2") && to.join("sim.it_1.rank_1.h5").exists(), "{said}");

    // The agent knows it too.
    let (store, watch) = (site.dir.path().join("store2"), site.data());
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &store, "");
    let _agent = Daemon::agent(site.dir.path(), "n1", &watch, &[address], "ranks = 2");
    wait_complete(&store, "sim.it_2");
    let doubts: Vec<_> = list(&store).iter().map(|line| line["doubt"].to_string()).collect();
    assert!(doubts.iter().any(|doubt| doubt.contains("longer than its superblock says")), "{doubts:?}");
}

#[test]
fn a_file_that_another_process_has_open_for_writing_is_not_saved() {
    let site = Site::new();
    (1..=2).for_each(|step| site.write(format!("c{step}/f.bin"), &[step; 999]));
    let held = std::fs::File::options().append(true).open(site.data().join("c2/f.bin")).expect("opened");
    let (out, err) = site.save(&["--layout", "directories"], 4);
    assert!(err.contains("c2/f.bin: it is open for writing by process"), "{err}");
    assert!(last_line(&out).contains("not saved: c2"), "{out}");
    drop(held);
    site.save(&["--layout", "directories"], 0);
}

#[test]
fn a_file_that_changes_while_it_is_saved_fails_its_checkpoint_only() {
    let mut seen = 0;
    for delay_ms in [5, 20, 50, 100, 200, 400, 600, 800] {
        let site = Site::new();
        for c in 0..4u8 {
            (0..3u8).for_each(|r| {
                site.write(
                    format!("c{c}/f_{r}.bin"),
                    &field(c.into(), r.into(), 1 << 20).iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>(),
                )
            });
        }
        // The command would wait until no new file changes, so all files get old times.
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        for path in contents(&site.data()).into_keys() {
            let file = std::fs::File::options().write(true).open(site.data().join(path)).expect("opened");
            file.set_modified(hour_ago).expect("set");
        }
        let file = site.data().join("c1/f_1.bin");
        let (out, err) = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The file must change at different moments of the command, so the delay is a fixed time, and not the
                // wait for an event.
                std::thread::sleep(Duration::from_millis(delay_ms));
                let file = std::fs::File::options().write(true).open(&file).expect("opened");
                file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set");
            });
            let output = site.command().args(["--threads", "1", "--budget-mib", "16"]).output().expect("it starts");
            let code = output.status.code();
            let (out, err) = said(&output);
            assert!(matches!(code, Some(0 | 4)), "{delay_ms} ms: {code:?}\n{out}{err}");
            assert_eq!(code == Some(4), err.contains("c1 is not saved"), "{delay_ms} ms: {code:?}\n{out}{err}");
            (out, err)
        });
        if err.contains("c1 is not saved") {
            seen += 1;
            let why = ["changed while it was saved", "it is open for writing"];
            assert!(err.contains("c1/f_1.bin") && why.iter().any(|why| err.contains(why)), "{err}");
            assert!(
                last_line(&out).starts_with("PARTLY: 3 of 4") && last_line(&out).contains("not saved: c1"),
                "{out}"
            );
        }
        let complete = list(&site.store()).iter().filter(|c| c["complete"] == true).count();
        assert_eq!(complete, if err.contains("c1 is not saved") { 3 } else { 4 }, "{delay_ms} ms\n{out}{err}");
    }
    assert!(seen > 0, "no change came while it was saved");
}

#[test]
fn a_file_from_a_node_whose_clock_is_ahead_does_not_become_the_newest_and_the_clock_is_named() {
    let site = Site::new();
    for step in 1..=3 {
        for rank in 0..2 {
            site.write(format!("step{step}/f_{rank}.bin"), format!("step {step} of rank {rank}").as_bytes());
        }
        if step == 2 {
            let file = std::fs::File::options().write(true).open(site.data().join("step2/f_1.bin")).expect("opened");
            file.set_modified(std::time::SystemTime::now() + Duration::from_secs(7200)).expect("set");
        }
    }
    let (_, err) = site.save(&["--layout", "directories"], 0);
    assert!(err.contains("step2/f_1.bin: its modification time is 7") && err.contains("Set the clocks right"), "{err}");
    assert!(site.back().contains_key(Path::new("step3/f_0.bin")), "the last one that was written");
}

#[test]
fn what_is_left_out_is_counted_in_the_last_line_and_the_exit_code_says_partly() {
    let site = Site::new();
    for step in 1..=2 {
        (0..4).for_each(|rank| write_rank(&site.data(), step, rank, 500));
    }
    site.write("notes", b"x");
    std::os::unix::fs::symlink("notes", site.data().join("link")).expect("linked");
    let (out, err) = site.save(&[], 4);
    assert!(err.contains("notes: it belongs to no checkpoint"), "{err}");
    assert!(
        last_line(&out).contains("; 2 paths left out (first: link: it is a symbolic link that leads to no checkpoint)"),
        "{out}"
    );
    let report = run_json(&mut site.command(), 4);
    assert_eq!((&report["outcome"], &report["left_out"]["count"]), (&"partly".into(), &2.into()), "{report}");
    // The user named the files. The other files are reported, but not as a warning.
    let (_, err) = site.save(&["--layout", "{checkpoint}.rank_{rank}.h5"], 0);
    assert!(err.contains("1 file not named by --layout (first: notes)"), "{err}");
    let (_, err) = site.save(&["--layout", "rst.{checkpoint}.{rank}"], 1);
    assert!(err.contains("none of 9 files matches \"rst.{checkpoint}.{rank}\""), "{err}");
    assert!(err.contains("patterns are compared with the path below the directory"), "{err}");
}

#[test]
fn a_directory_that_cannot_be_read_is_named_and_the_exit_code_says_partly() {
    let site = Site::new();
    site.write("x", b"1");
    site.write("sub/y", b"2");
    std::fs::set_permissions(site.data().join("sub"), std::fs::Permissions::from_mode(0o000)).expect("set");
    let is_root = std::fs::read_dir(site.data().join("sub")).is_ok();
    if is_root {
        // root can read everything, so the test runs the command as another user.
        std::os::unix::fs::chown(site.store(), Some(65534), None).expect("given away");
        for dir in [site.dir.path().to_owned(), site.data()] {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("set");
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_mcr")]);
        command.args(["save", "--job", "job"]).arg(site.data()).arg("--store").arg(site.store());
        let output = command.output();
        if !output.as_ref().is_ok_and(|output| output.status.code() != Some(127) && output.status.code() != Some(126)) {
            eprintln!("SKIPPED: no other user can run the binary: {output:?}");
            return;
        }
        let output = output.expect("it ran");
        let (out, err) = said(&output);
        assert_eq!(output.status.code(), Some(4), "{out}{err}");
        assert!(last_line(&out).contains("1 path left out (first: sub: the directory cannot be read)"), "{out}");
    } else {
        let (out, _) = site.save(&[], 4);
        assert!(last_line(&out).contains("1 path left out (first: sub: the directory cannot be read)"), "{out}");
    }
    std::fs::set_permissions(site.data().join("sub"), std::fs::Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn files_in_deep_directories_and_with_names_like_ours_are_saved() {
    let site = Site::new();
    site.write(format!("{}leaf", "d/".repeat(70)), b"1");
    for name in ["x", ".mcrc", ".mcr-inputs/a", ".mcr/b", ".mcr-restart-1.tmp"] {
        site.write(name, name.as_bytes());
    }
    let expected = contents(&site.data());
    // `mcr save` does not save files with the exact names of mcr's own files.
    site.write(".mcr-lock", b"");
    site.write(".mcr-aside-1/x", b"old");
    site.save(&[], 0);
    assert_same_files(&expected, &site.back());
}

#[test]
fn the_names_of_a_minority_do_not_decide_what_is_saved() {
    let site = Site::new();
    for (c, r) in [(3, 0), (3, 1), (4, 0), (4, 1)] {
        site.write(format!("case{c}/fam_{r}.bin"), b"x");
    }
    (0..40u8)
        .for_each(|i| site.write(format!("data/{}{}.bin", (b'a' + i / 10) as char, (b'a' + i % 10) as char), &[i]));
    let (out, err) = site.save(&[], 0);
    assert!(last_line(&out).starts_with("1 of 1") && err.contains("too few for a guess"), "{out}{err}");
    assert_same_files(&contents(&site.data()), &site.back());
}

#[test]
fn a_guess_that_would_drop_much_is_asked_about_and_nothing_is_saved() {
    let site = Site::new();
    (0..8).for_each(|r| site.write(format!("DD0001/DD0001.cpu000{r}"), b"12345"));
    (0..8).for_each(|r| site.write(format!("DD0002/DD0002.cpu000{r}"), b"12345"));
    (0..9u8).for_each(|i| site.write(format!("plots/{}.png", (b'a' + i) as char), b"12345"));
    let (_, err) = site.save(&[], 1);
    assert!(err.contains("9 would be left out (first: plots/a.png)") && err.contains("--layout"), "{err}");
    assert!(contents(&site.store()).is_empty());
    site.save(&["--layout", "single"], 0);
    assert_same_files(&contents(&site.data()), &site.back());
}

#[test]
fn two_runs_below_one_directory_are_asked_about() {
    let site = Site::new();
    (0..4).for_each(|r| site.write(format!("runA/rst.2.{r}"), b"a"));
    (0..2).for_each(|r| site.write(format!("runB/rst.2.{r}"), b"b"));
    let (_, err) = site.save(&[], 1);
    assert!(err.contains("runA/rst.2.0 and runB/rst.2.0") && err.contains("two runs"), "{err}");
    assert!(contents(&site.store()).is_empty());
    site.save(&["--layout", "runA/{checkpoint}.{rank}"], 0);
}

#[test]
fn a_store_that_is_not_there_is_an_error_that_says_what_to_do() {
    let site = Site::new();
    site.write("x", b"1");
    let nope = site.dir.path().join("nope");
    let shown = nope.display().to_string();
    let expected = format!(
        "no store at \"{shown}\": no such directory. Check --store / MCR_STORE, or create it: mkdir -m 700 {shown}"
    );
    let save = |create: &[&str], expected| {
        said(&run(mcr().args(["save", "--job", "j"]).args(create).arg(site.data()).arg("--store").arg(&nope), expected))
            .1
    };
    assert!(save(&[], 1).contains(&format!("{expected}, or --create")));
    // A new store would be empty, so a command that reads does not advise to create it.
    let to = site.dir.path().join("to").display().to_string();
    let (list, verify, prune) = (&["list"][..], &["verify"][..], &["prune", "--keep", "1"][..]);
    for command in [list, verify, &["verify", "--repair"], prune, &["show"], &["restart", "--to", &to]] {
        let (_, err) = said(&run(mcr().args(command).arg("--store").arg(&nope), 1));
        let expected =
            format!("no store at \"{shown}\": no such directory. Check the name (--store, MCR_STORE, or store");
        assert!(err.contains(&expected) && !err.contains("mkdir"), "{command:?}: {err}");
    }
    let watch = site.data();
    let run_args = ["run", "--job", "j", "--ranks", "1", "--layout", "single", "--state", "st", "--watch"];
    let (_, err) = said(&run(mcr().args(run_args).arg(&watch).arg("--store").arg(&nope), 1));
    assert!(err.contains(&expected), "{err}");
    let config = site.dir.path().join("anc.toml");
    std::fs::write(&config, format!("[anc]\nstore = {nope:?}\nlisten = \"127.0.0.1:0\"\n")).expect("written");
    let (_, err) = said(&run(mcr().arg("anc").arg("--config").arg(&config), 1));
    assert!(err.contains(&expected) && err.contains("create = true"), "{err}");
    assert!(!nope.exists(), "nothing was made");
    let file = site.data().join("x");
    let (_, err) = said(&run(mcr().arg("list").arg("--store").arg(&file), 1));
    assert!(err.contains("it is not a directory"), "{err}");
    save(&["--create"], 0);
    assert!(nope.join("j").exists());
}

#[test]
fn a_checkpoint_that_is_being_written_is_saved_with_all_of_its_ranks() {
    // A rank is added to a new checkpoint, and to a checkpoint that is overwritten.
    for name in ["it_1/rank_", "restart.rank_"] {
        let site = Site::new();
        let layout =
            if name.starts_with("it") { "{checkpoint}/rank_{rank}.dat" } else { "{checkpoint}.rank_{rank}.dat" };
        let write = |step: u8, rank: u8| site.write(format!("{name}{rank}.dat"), &[step, rank].repeat(500));
        if name.starts_with("restart") {
            (0..4).for_each(|rank| write(1, rank));
        }
        write(2, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for rank in 1..4 {
                    std::thread::sleep(Duration::from_millis(300));
                    write(2, rank);
                }
            });
            site.save(&["--layout", layout], 0);
        });
        let back = site.back();
        assert_eq!(back.len(), 4, "{name}");
        assert!(back.values().all(|bytes| bytes[0] == 2), "{name}: all files are of step 2");
    }
}

#[test]
fn a_rank_whose_second_file_follows_is_awaited_or_its_checkpoint_is_not_saved() {
    for (delay_ms, status) in [(500, 0), (1600, 4)] {
        let site = Site::new();
        let write = |step: u8, kind: &str| {
            (0..2).for_each(|rank| site.write(format!("ck_{step}_r{rank}.{kind}"), &[step, rank]));
        };
        ["a", "b"].iter().for_each(|kind| write(1, kind));
        write(2, "a");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(delay_ms));
                write(2, "b");
            });
            let (_, err) = site.save(&["--layout", "ck_{checkpoint}_r{rank}.*", "--ranks", "2"], status);
            assert_eq!(err.contains("it has 2 files and 1 has 4"), status == 4, "{err}");
        });
        let (files, step) = if status == 0 { (4, 2) } else { (4, 1) };
        let back = site.back();
        assert!(back.len() == files && back.values().all(|bytes| bytes[0] == step), "{delay_ms} ms: {back:?}");
    }
}

#[test]
fn files_that_were_partly_overwritten_when_the_application_died_are_saved_as_doubtful() {
    let site = Site::new();
    for (rank, seconds) in [(0u8, 10), (1, 10), (2, 70), (3, 70)] {
        site.write(format!("st_r{rank}"), &[u8::from(seconds == 10) + 1, rank]);
        let file = std::fs::File::options().write(true).open(site.data().join(format!("st_r{rank}"))).expect("opened");
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(seconds)).expect("set");
    }
    let (out, err) = site.save(&["--layout", "{checkpoint}_r{rank}"], 4);
    assert!(err.contains("st is doubtful") && err.contains("60.0 s apart"), "{err}");
    assert!(last_line(&out).starts_with("DOUBTFUL: 1 of 1 checkpoint is in "), "{out}");
    let show = || {
        let mut command = mcr();
        command.args(["show", "st", "--store"]).arg(site.store());
        command
    };
    let text = said(&run(&mut show(), 0)).0;
    assert!(text.contains("doubtful: ") && text.contains("60.0 s apart"), "{text}");
    let shown = run_json(&mut show(), 0);
    assert!(shown["doubt"].as_str().is_some_and(|doubt| doubt.contains("60.0 s apart")), "{shown}");
    assert!(shown["bad"].is_null(), "{shown}");
    let to = site.dir.path().join("back");
    run(mcr().args(["restart", "--copy", "--store"]).arg(site.store()).arg("--to").arg(to), 2);
}

#[test]
fn a_checkpoint_with_fewer_ranks_than_the_job_has_in_the_store_is_not_saved_as_whole() {
    let site = Site::new();
    let write = |step: u8, ranks: u8| {
        (0..ranks).for_each(|rank| site.write(format!("it_{step}/rank_{rank}.dat"), &[step, rank]));
    };
    write(1, 4);
    site.save(&[], 0);
    std::fs::remove_dir_all(site.data().join("it_1")).expect("removed");
    write(2, 2);
    let (_, err) = site.save(&[], 1);
    assert!(err.contains("it_1 of this job has 4 ranks; if the job has fewer ranks now, give --ranks"), "{err}");
    assert_eq!(site.back().len(), 4, "the newest whole checkpoint is it_1");
    site.save(&["--ranks", "2"], 0);
    assert_eq!(site.back().len(), 2);
}

#[test]
fn a_misspelt_job_is_answered_with_those_that_are_there() {
    let site = Site::new();
    site.write("x", b"1");
    for job in ["lammps-binarymelt", "enzo"] {
        run(mcr().args(["save", "--job", job]).arg(site.data()).arg("--store").arg(site.store()), 0);
    }
    // A directory without a checkpoint is not a job.
    std::fs::create_dir(site.store().join("empty")).expect("made");
    let expected =
        format!("job \"lamps\" has no checkpoint in {} (jobs there: lammps-binarymelt, enzo", site.store().display());
    for command in [&["list"][..], &["verify"], &["prune", "--keep", "1"], &["show"], &["verify", "x"]] {
        let (_, err) = said(&run(mcr().args(command).args(["--job", "lamps", "--store"]).arg(site.store()), 1));
        assert!(err.contains(&expected) && err.contains("did you mean \"lammps-binarymelt\"?"), "{command:?}: {err}");
    }
    let to = site.dir.path().join("to");
    let mut restart = mcr();
    restart.args(["restart", "--job", "lamps", "--store"]).arg(site.store()).arg("--to").arg(to);
    let mut by_name = mcr();
    by_name.args(restart.get_args()).args(["--checkpoint", "x"]);
    let (_, err) = said(&run(&mut by_name, 1));
    assert!(err.contains(&expected) && err.contains("did you mean \"lammps-binarymelt\"?"), "{err}");
    let (out, _) = said(&run(&mut restart, 3));
    assert!(out.starts_with(&expected) && last_line(&out).ends_with(": new run, exit 3"), "{out}");
    assert!(!site.store().join("lamps").exists());
    let jobs =
        std::fs::read_dir(site.store()).expect("lists").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(jobs.filter(|name| !name.starts_with('.')).count(), 3, "the decision of the restart is hidden");
    std::fs::remove_dir_all(site.store().join("enzo")).expect("removed");
    run(mcr().args(["verify", "--store"]).arg(site.store()), 0);
}

#[test]
fn a_renamed_directory_of_a_job_is_named_with_what_to_do() {
    let site = Site::new();
    site.write("x", b"1");
    site.save(&[], 0);
    std::fs::rename(site.store().join("job"), site.store().join("job2")).expect("renamed");
    let to = site.dir.path().join("to");
    let commands: [&[&str]; 5] =
        [&["verify"], &["show"], &["prune", "--keep", "1"], &["stats", "--job", "job2"], &["restart", "--to"]];
    for command in commands {
        let mut run_it = mcr();
        run_it.args(command).args((command == ["restart", "--to"]).then_some(&to)).arg("--store").arg(site.store());
        let (_, err) = said(&run(&mut run_it, 1));
        let advice = "job2 has the checkpoints of job job; the directory was renamed: rename it back with mv ";
        assert!(err.contains(advice), "{command:?}: {err}");
    }
    let (_, err) =
        said(&run(mcr().args(["restart", "--job", "job", "--to"]).arg(&to).arg("--store").arg(site.store()), 1));
    assert!(err.contains("job2 has the checkpoints of job job; the directory was renamed"), "not a new run: {err}");
    let (_, err) =
        said(&run(mcr().args(["save", "--job", "job2"]).arg(site.data()).arg("--store").arg(site.store()), 1));
    assert!(err.contains("job2 has the checkpoints of job job"), "{err}");
    let mut job_run = mcr();
    job_run.args(["run", "--job", "job2", "--ranks", "1", "--watch"]).arg(site.data()).arg("--state");
    let ran = site.dir.path().join("ran");
    job_run.arg(site.dir.path().join("state")).arg("--store").arg(site.store()).args(["--", "touch"]).arg(&ran);
    let (_, err) = said(&run(&mut job_run, 1));
    assert!(err.contains("job2 has the checkpoints of job job") && !ran.exists(), "the command did not start: {err}");
    let (out, _) = said(&run(mcr().args(["list", "--store"]).arg(site.store()), 0));
    assert!(out.contains("job2 has the checkpoints of job job; the directory was renamed"), "{out}");
    std::fs::rename(site.store().join("job2"), site.store().join("job")).expect("renamed back");
    assert_eq!(site.back(), contents(&site.data()));
}

#[test]
fn verify_says_what_it_did_not_find_good() {
    let site = Site::new();
    for step in 1..=3 {
        (0..4).for_each(|rank| write_rank(&site.data(), step, rank, 500));
    }
    site.save(&["--group-size", "2"], 0);
    let verify = |more: &[&str], expected| {
        let (out, err) = said(&run(mcr().arg("verify").args(more).arg("--store").arg(site.store()), expected));
        format!("{out}{err}")
    };
    assert_eq!(last_line(&verify(&[], 0)), "3 of 3 checkpoints of job job ok");
    std::fs::remove_file(site.store().join("job/sim.it_3/group-0001.manifest")).expect("removed");
    let text = verify(&[], 4);
    assert_eq!(last_line(&text), "PARTLY: 2 of 3 checkpoints of job job ok; not complete: sim.it_3");
    assert!(text.contains("sim.it_3: not complete"), "{text}");
    let text = verify(&["sim.it_9"], 1);
    assert!(text.contains("job job has no checkpoint sim.it_9") && text.contains("sim.it_2"), "{text}");
    std::fs::write(site.store().join("job/sim.it_1/pruned"), b"").expect("marked");
    let text = verify(&["sim.it_1"], 1);
    assert!(text.contains("sim.it_1 was pruned"), "{text}");
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let site = Site::new();
    site.write("x", b"1");
    site.save(&[], 0);
    let store = site.store();
    let store = store.to_str().expect("UTF-8");
    for args in [
        &["config", "defaults"][..],
        &["--help"],
        &["save", "--help"],
        &["--version"],
        &["list", "--store", store],
        &["list", "--json", "--store", store],
        &["show", "--store", store],
        &["verify", "--store", store],
        &["prune", "--keep", "1", "--store", store],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
        let output = mcr().args(args).stdout(full).output().expect("it starts");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {err}");
        assert!(err.contains("standard output cannot be written"), "{args:?}: {err}");
        // The reader of the pipe has exited.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = mcr().args(args).stdout(writer).output().expect("it starts");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(!err.contains("standard output"), "no error is printed if the reader has exited: {args:?}: {err}");
        let mut closed = Command::new("sh");
        closed.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_mcr")]).args(args);
        let output = closed.output().expect("it starts");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {err}");
        assert!(err.contains("standard output cannot be written"), "{args:?}: {err}");
    }
    // An error that cannot be printed is still an error.
    let full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
    let status = mcr().args(["list", "--store", "/nowhere/at/all"]).stderr(full).status().expect("it starts");
    assert_eq!(status.code(), Some(1));
    // A progress line that cannot be printed does not end the command.
    let full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
    let to = site.dir.path().join("to");
    std::fs::write(site.store().join("job/data/group-0000.manifest"), b"").expect("cut");
    let mut restart = mcr();
    restart.args(["restart", "--job", "job", "--store", store, "--to"]).arg(&to).stderr(full);
    assert_eq!(restart.status().expect("it starts").code(), Some(1));
}

#[test]
fn names_never_reach_the_terminal_raw_and_different_ones_are_shown_differently() {
    let site = Site::new();
    for name in [&b"a\xff"[..], b"a\xfe", b"n\nl", b"\x1b[31mred"] {
        site.write(std::ffi::OsStr::from_bytes(name), b"x");
    }
    std::os::unix::fs::symlink("x", site.data().join("li\x1b[1mnk")).expect("linked");
    let (out, err) = site.save(&[], 0);
    let shown = said(&run(mcr().args(["show", "--files", "--store"]).arg(site.store()), 0));
    for text in [&out, &err, &shown.0, &shown.1] {
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }
    let lines: Vec<&str> = shown.0.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for name in [r"a\xff", r"a\xfe", r"n\x0al", r"\x1b[31mred", r"li\x1b[1mnk"] {
        assert!(lines.contains(&name), "{name}: {lines:?}");
    }
    let report = run_json(mcr().args(["show", "--files", "--store"]).arg(site.store()), 0);
    let paths: std::collections::BTreeSet<String> =
        report["files"].as_array().expect("files").iter().map(|file| file["path"].to_string()).collect();
    assert_eq!(paths.len(), 5, "{paths:?}");
}

#[test]
fn a_checkpoint_that_vanishes_before_it_is_saved_leaves_a_line_in_the_agents_log() {
    let site = Site::new();
    let config = site.dir.path().join("cnc.toml");
    let (watch, state) = (site.data(), site.dir.path().join("state"));
    // No process listens on port 1, so nothing is ever saved.
    let text = format!(
        "[cnc]\njob = \"job\"\nwatch = {watch:?}\nstate-file = {state:?}\naggregators = [\"127.0.0.1:1\"]\nranks = 1\n\
         layout = \"{{checkpoint}}.rank_{{rank}}.h5\"\nquiet-ms = 20\ncheckpoint-quiet-ms = 20\n"
    );
    std::fs::write(&config, text).expect("written");
    let agent = Daemon::start(mcr().env("MCR_LOG", "debug").arg("cnc").arg("--config").arg(&config));
    write_rank(&site.data(), 1, 0, 500);
    agent.wait_for_log("settled");
    std::fs::remove_file(site.data().join("sim.it_1.rank_0.h5")).expect("removed");
    let line = agent.wait_for_log("vanished before it was");
    assert!(line.contains("sim.it_1"), "{line}");
}

#[test]
fn every_command_says_its_exit_codes_and_has_examples() {
    for command in [
        "save",
        "list",
        "show",
        "verify",
        "prune",
        "status",
        "config",
        "bench",
        "restart",
        "cnc",
        "anc",
        "run",
        "flush",
        "job",
        "layouts",
        "config check",
        "bench codecs",
        "cert init",
    ] {
        let (out, _) = said(&run(mcr().args(command.split(' ')).arg("--help"), 0));
        assert!(out.contains("Exit status: 0"), "{command}: {out}");
        assert!(out.contains(&format!("Examples:\n  mcr {command}")), "{command}: {out}");
    }
    let (out, _) = said(&run(mcr().arg("--help"), 0));
    for heading in ["Save and restore:", "Look at checkpoints and jobs:", "Run daemons:", "Measure:"] {
        assert!(out.contains(heading), "{out}");
    }
    let (out, _) = said(&run(mcr().arg("layouts"), 0));
    assert!(out.lines().any(|line| line.starts_with("enzo") && line.contains("DD0007/DD0007.cpu0003")), "{out}");
}

#[test]
fn a_misspelt_command_option_or_checkpoint_has_the_most_similar_one_as_suggestion() {
    let site = Site::new();
    site.write("x", b"1");
    site.save(&[], 0);
    let store = site.store();
    let store = store.to_str().expect("UTF-8");
    let known = list(&site.store())[0]["checkpoint"].as_str().expect("a name").to_owned();
    let to = site.dir.path().join("to");
    let to = to.to_str().expect("UTF-8");
    let data = site.data();
    let data = data.to_str().expect("UTF-8");
    let misspelt = format!("{known}x");
    for (args, suggestion) in [
        (&["lits"][..], "'list'"),
        (&["list", "--sotre", store], "'--store'"),
        (&["list", "--store", store, "--jbo", "x"], "'--job'"),
        (&["show", "lates", "--store", store], "did you mean \"latest\"?"),
        (&["show", &misspelt, "--store", store], &format!("did you mean \"{known}\"?")),
        (&["verify", &misspelt, "--store", store], &format!("did you mean \"{known}\"?")),
        (&["prune", "--drop", &misspelt, "--store", store], &format!("did you mean \"{known}\"?")),
        (&["restart", "--checkpoint", &misspelt, "--to", to, "--store", store], &format!("did you mean \"{known}\"?")),
        (&["save", data, "--layout", "enso", "--store", store], "did you mean \"enzo\"?"),
    ] {
        let (_, err) = said(&run(mcr().args(args), 1));
        assert!(err.contains(suggestion), "{args:?}: {err}");
    }
}

#[test]
fn files_of_ranks_beyond_the_number_that_was_given_are_named_and_nothing_of_the_checkpoint_is_saved() {
    let site = Site::new();
    (0..4).for_each(|rank| site.write(format!("s1/r{rank}"), b"x"));
    (0..2).for_each(|rank| site.write(format!("s2/r{rank}"), b"y"));
    let layout = ["--layout", "{checkpoint}/r{rank}", "--ranks", "2", "--group-size", "2"];
    let (out, err) = site.save(&layout, 4);
    assert!(err.contains("s1 is not saved: ranks 2-3 NOT SAVED: --ranks 2 means ranks 0 to 1"), "{err}");
    assert!(out.contains("PARTLY: 1 of 2 checkpoints") && out.contains("not saved: s1"), "{out}");
    assert_eq!(site.back().len(), 2);
    assert!(!site.store().join("job/s1").exists());
}

#[test]
fn pointer_files_beside_few_checkpoints_are_neither_left_out_nor_part_of_what_makes_a_checkpoint() {
    let site = Site::new();
    for step in 1..=3 {
        (0..2).for_each(|rank| site.write(format!("chk_{step}/f.{rank}"), format!("{step} {rank}").as_bytes()));
        site.write("checkpoints.txt", format!("chk_{step}").as_bytes());
        site.write("rpointer.atm", format!("chk_{step}").as_bytes());
        let (out, err) = site.save(&[], 0);
        assert!(out.contains(&format!("{step} of {step} checkpoint")), "{out}");
        assert!(!err.contains("left out") && !err.contains("not named after"), "{err}");
        assert_eq!(list(&site.store()).len(), step, "each is saved once");
        let back = site.back();
        assert_eq!(back[Path::new("checkpoints.txt")], format!("chk_{step}").as_bytes());
        assert_eq!(back.len(), 4);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_cannot_be_read_just_now_is_not_called_damaged_by_verify() {
    let site = Site::new();
    site.write("s1/r0", b"x");
    site.save(&["--layout", "{checkpoint}/r{rank}"], 0);
    let manifest = site.store().join("job/s1/group-0000.manifest");
    std::fs::remove_file(&manifest).expect("removed");
    // No user can open this file.
    std::os::unix::fs::symlink("group-0000.manifest", &manifest).expect("linked");
    let (out, _) = said(&run(mcr().args(["verify", "--job", "job", "--store"]).arg(site.store()), 1));
    assert!(out.contains("cannot be read at present and may be complete: s1; try again"), "{out}");
    assert!(!out.contains("damaged"), "{out}");
    let (out, _) = said(&run(mcr().args(["list", "--job", "job", "--store"]).arg(site.store()), 0));
    assert!(out.contains("s1 is unreadable: "), "{out}");
}

#[test]
fn directories_in_which_nothing_was_ever_finished_are_removed_by_prune_also_where_the_job_has_no_checkpoint() {
    let site = Site::new();
    ["s1", "s2"].iter().for_each(|id| std::fs::create_dir_all(site.store().join("job").join(id)).expect("made"));
    let mut prune = mcr();
    run(prune.args(["prune", "--incomplete", "--job", "job", "--store"]).arg(site.store()), 0);
    assert!(!site.store().join("job/s1").exists() && !site.store().join("job/s2").exists());
}

#[test]
fn older_steps_that_are_saved_again_after_a_restart_stay_older_than_what_it_restored() {
    for rule in [&[][..], &["--keep", "1"]] {
        let site = Site::new();
        for step in 1..=3 {
            (0..2).for_each(|rank| {
                site.write(format!("s{step}/r{rank}"), format!("{step} {rank}").repeat(400).as_bytes())
            });
            std::thread::sleep(Duration::from_millis(50));
        }
        site.save(rule, 0);
        let mut restart = mcr();
        restart.args(["restart", "--job", "job", "--store"]).arg(site.store()).arg("--to").arg(site.data());
        run(&mut restart, 0);
        run(mcr().args(["prune", "--keep", "1", "--store"]).arg(site.store()), 0);
        site.save(rule, 0);
        let newest = list(&site.store())[0]["checkpoint"].clone();
        assert_eq!(newest, "s3", "{rule:?}");
        assert!(site.back().keys().all(|path| path.starts_with("s3")), "{rule:?}");
        // The files that are written next are newer.
        (0..2).for_each(|rank| site.write(format!("s2/r{rank}"), format!("again {rank}").repeat(400).as_bytes()));
        site.save(rule, 0);
        assert!(site.back().keys().all(|path| path.starts_with("s2")), "{rule:?}");
    }
}

#[test]
fn a_number_of_ranks_that_contradicts_the_guess_is_answered_with_what_to_say() {
    let site = Site::new();
    for step in [100, 200, 300] {
        site.write(format!("restart/swift_{step}.rst"), &[7; 3000]);
    }
    let (_, told) = said(&run(site.command().args(["--ranks", "3"]), 1));
    assert!(told.contains("--ranks 3 is given") && told.contains("--layout"), "{told}");
    // If files with the numbers 0, 1, 2 ... have nearly the same time, the numbers may be ranks.
    let site = Site::new();
    (0..4).for_each(|rank| site.write(format!("restart/swift_00000{rank}.rst"), &[7; 3000]));
    let (_, told) = said(&run(&mut site.command(), 1));
    assert!(told.contains("they may be the ranks of one checkpoint") && told.contains("--layout"), "{told}");
    run(site.command().args(["--layout", "restart/{checkpoint}_{rank}.rst"]), 0);
}

#[test]
fn a_rank_with_much_less_than_before_is_not_saved_while_its_files_are_young() {
    let site = Site::new();
    for (step, last) in [(1, 3000), (2, 1000)] {
        site.write(format!("s{step}.rank_0.bin"), &[0; 3000]);
        site.write(format!("s{step}.rank_1.bin"), &vec![0; last]);
        std::thread::sleep(Duration::from_millis(1100));
    }
    let save = |status| said(&run(&mut site.command(), status));
    let (_, told) = save(4);
    assert!(told.contains("rank 1 has 1000 bytes in it and 3000 bytes in s1"), "{told}");
    let old = std::time::SystemTime::now() - Duration::from_secs(90);
    for name in ["s2.rank_0.bin", "s2.rank_1.bin"] {
        let file = std::fs::File::options().write(true).open(site.data().join(name)).expect("opened");
        file.set_modified(old).expect("set");
    }
    for name in ["s1.rank_0.bin", "s1.rank_1.bin"] {
        let file = std::fs::File::options().write(true).open(site.data().join(name)).expect("opened");
        file.set_modified(old - Duration::from_secs(9)).expect("set");
    }
    save(0);
}

#[test]
fn a_damaged_or_dead_checkpoint_is_saved_again_under_the_next_generation() {
    for what in ["marked as damaged", "dead", "spoiled"] {
        let site = Site::new();
        for step in 1..=2 {
            (0..2).for_each(|rank| write_rank(&site.data(), step, rank, 500));
            std::thread::sleep(Duration::from_millis(20)); // so that the times of the files differ
        }
        site.save(&[], 0);
        let of_job = site.store().join("job");
        let dir = of_job.join("sim.it_2");
        match what {
            "marked as damaged" => {
                let container = dir.join("group-0000.mcr");
                let mut bytes = std::fs::read(&container).expect("read");
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(&container, bytes).expect("written");
                run(mcr().args(["verify", "--store"]).arg(site.store()), 1);
            }
            "dead" => {
                let (manifest, away) =
                    (dir.join("group-0000.manifest"), dir.join(".group-0000.manifest.0000000000000000"));
                std::fs::rename(&manifest, &away).expect("not committed yet");
                let to = site.dir.path().join("back");
                run(mcr().args(["restart", "--store"]).arg(site.store()).arg("--to").arg(&to), 0);
                std::fs::rename(&away, &manifest).expect("committed too late");
            }
            _ => std::fs::write(dir.join("spoiled"), "rank 1 was not saved").expect("written"),
        }
        let (out, _) = site.save(&[], 0);
        assert!(out.contains("sim.it_1    there already"), "{what}: {out}");
        assert!(out.contains("sim.it_2~2  saved"), "{what}: {out}");
        assert_same_files(
            &contents(&site.data()).into_iter().filter(|(path, _)| path.to_string_lossy().contains("it_2")).collect(),
            &site.back(),
        );
        let (out, _) = site.save(&[], 0);
        assert!(out.contains("sim.it_2~2  there already"), "{what}: {out}");
    }
}

#[test]
fn a_checkpoint_whose_container_is_missing_is_made_complete_by_the_next_save() {
    let site = Site::new();
    (0..2).for_each(|rank| write_rank(&site.data(), 1, rank, 500));
    site.save(&[], 0);
    std::fs::remove_file(site.store().join("job/sim.it_1/group-0000.mcr")).expect("removed");
    let (out, _) = site.save(&[], 0);
    assert!(out.contains("sim.it_1    saved"), "{out}");
    assert_same_files(&contents(&site.data()), &site.back());
}

#[test]
fn a_restart_from_a_directory_that_is_no_store_creates_nothing_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let no_store = dir.path().join("data");
    std::fs::create_dir(&no_store).expect("made");
    std::fs::write(no_store.join("data.txt"), "text").expect("written");
    let mut restart = mcr();
    restart.args(["restart", "--job", "j", "--store"]).arg(&no_store).arg("--to").arg(dir.path().join("to"));
    let failed = run(&mut restart, 1);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("is no store of mcr"), "{failed:?}");
    assert_eq!(std::fs::read_dir(&no_store).expect("lists").count(), 1);
}
