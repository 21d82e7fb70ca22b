//! Restarts with obstacles: aggregators that do not answer, few file descriptors, files that exist already.

use crate::support::*;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A store with checkpoints whose files are not HDF5.
struct Site {
    dir: TempDir,
}

impl Site {
    /// Saves each step as `it_STEP/rank_RANK.dat`, in groups of two ranks.
    fn new(steps: &[u32], ranks: u32) -> Self {
        let site = Self::empty();
        steps.iter().for_each(|step| (0..ranks).for_each(|rank| site.write(&site.data(), *step, rank)));
        site.save("{checkpoint}/rank_{rank}.dat", 2);
        site
    }

    fn empty() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(site.data()).expect("made");
        site
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn to(&self) -> PathBuf {
        self.dir.path().join("back")
    }

    fn write(&self, dir: &Path, step: u32, rank: u32) {
        let path = dir.join(format!("it_{step}/rank_{rank}.dat"));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, bytes_of(step, rank)).expect("written");
    }

    fn save(&self, layout: &str, group_size: u32) {
        let mut save = mcr();
        save.args(["save", "--create"])
            .arg(self.data())
            .args(["--layout", layout, "--job", "job", "--store"])
            .arg(self.store());
        run(save.args(["--group-size", &group_size.to_string()]), 0);
    }

    fn restart(&self) -> Command {
        let mut restart = mcr();
        restart.arg("restart").arg("--store").arg(self.store()).arg("--to").arg(self.to());
        restart
    }
}

/// The contents of a rank's file at a step, which name the step and the rank.
fn bytes_of(step: u32, rank: u32) -> Vec<u8> {
    format!("step {step} of rank {rank}\n").repeat(200).into_bytes()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_restart_passes_over_aggregators_that_stand_still_and_fails_where_all_do() {
    let site = Site::new(&[1], 6);
    let (stopped, address) = Daemon::aggregator(site.dir.path(), "stopped", &site.store(), "");
    nix_kill(stopped.id(), "-STOP");
    // The kernel accepts connections to this listener, but no process answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().expect("an address").to_string();
    let started = Instant::now();
    let failed = run(site.restart().args(["--aggregators", &format!("{address},{silent}")]), 1);
    assert!(started.elapsed() < Duration::from_secs(50), "{} s", started.elapsed().as_secs());
    let said = text(&failed.stderr);
    assert!(said.contains(&address) && said.contains(&silent) && said.contains("gave no answer"), "{said}");
    assert!(!site.to().exists(), "a directory was made for a restore that failed");

    let (_good, good) = Daemon::aggregator(site.dir.path(), "good", &site.store(), "");
    let started = Instant::now();
    run(site.restart().args(["--aggregators", &format!("{address},{good}")]), 0);
    assert!(started.elapsed() < Duration::from_secs(25), "asked for each group: {} s", started.elapsed().as_secs());
    assert_same_files(&contents(&site.data()), &contents(&site.to()));
    nix_kill(stopped.id(), "-CONT");
}

fn nix_kill(process: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().is_ok_and(|status| status.success()));
}

#[test]
fn a_group_of_any_number_of_files_is_restored_with_64_descriptors() {
    let site = Site::empty();
    (0..600).for_each(|rank| site.write(&site.data(), 1, rank));
    site.save("{checkpoint}/rank_{rank}.dat", 1000);
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &site.store(), "");
    for more in [&[][..], &["--aggregators", &address]] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]);
        let restart = site.restart();
        limited.arg(restart.get_program()).args(restart.get_args()).args(more);
        run(&mut limited, 0);
        assert_same_files(&contents(&site.data()), &contents(&site.to()));
        std::fs::remove_dir_all(site.to()).expect("removed");
    }
}

/// Sets the modification time of a file. Files that are written one after the other may otherwise have the same time.
fn set_time(path: &Path, seconds: u64) {
    let file = std::fs::File::options().write(true).open(path).expect("opened");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("set");
}

#[test]
fn what_stands_in_the_way_and_what_is_newer_is_moved_aside_and_what_is_the_same_stays() {
    let site = Site::empty();
    let data = site.data();
    (0..2).for_each(|rank| site.write(&data, 1, rank));
    (0..2).for_each(|rank| set_time(&data.join(format!("it_1/rank_{rank}.dat")), 1_000_000));
    site.save("{checkpoint}/rank_{rank}.dat", 2);
    // The run continued, failed, and overwrote one file.
    (0..2).for_each(|rank| site.write(&data, 2, rank));
    site.write(&data, 0, 0);
    set_time(&data.join("it_0/rank_0.dat"), 999_999);
    std::fs::write(data.join("it_1/rank_1.dat"), "broken").expect("written");
    std::fs::write(data.join("log_2"), "not of a checkpoint").expect("written");
    let before = contents(&data);
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&data.join(name).metadata().expect("there"));
    let kept = inode("it_1/rank_0.dat");
    let restart = || {
        let mut restart = mcr();
        restart.arg("restart").arg("--store").arg(site.store()).arg("--to").arg(&data);
        restart
    };

    let looked = run(restart().arg("--dry-run"), 2);
    let said = text(&looked.stdout) + &text(&looked.stderr);
    assert!(said.contains("may be a whole newer checkpoint, which was not committed"), "{said}");
    assert!(said.contains("would restore it_1") && said.contains("3 files would be moved aside"), "{said}");
    assert_same_files(&before, &contents(&data));

    let copied = run(restart().arg("--copy"), 0);
    assert!(!text(&copied.stderr).contains("it_2"), "a copy takes what is newer from a run that goes on");
    std::fs::write(data.join("it_1/rank_1.dat"), "broken again").expect("written");

    let report = run_json(&mut restart(), 2);
    let aside = data.join(".mcr-aside-2");
    assert_eq!(report["moved_aside"]["to"], aside.display().to_string());
    let files = serde_json::json!(["it_1/rank_1.dat", "it_2/rank_0.dat", "it_2/rank_1.dat"]);
    assert_eq!(report["moved_aside"]["files"], files);
    assert_eq!(std::fs::read(aside.join("it_1/rank_1.dat")).expect("there"), b"broken again");
    assert_eq!(std::fs::read(aside.join("it_2/rank_0.dat")).expect("there"), bytes_of(2, 0));
    for rank in 0..2 {
        assert_eq!(std::fs::read(data.join(format!("it_1/rank_{rank}.dat"))).expect("there"), bytes_of(1, rank));
    }
    assert_eq!(inode("it_1/rank_0.dat"), kept, "a file of the same content was written anew");
    assert!(data.join("it_0/rank_0.dat").exists() && data.join("log_2").exists() && !data.join("it_2").exists());
    let ours = ["mcr-lock", "mcr-publish", "mcr-restart", "mcr-restored"];
    let left: Vec<_> =
        contents(&data).into_keys().filter(|p| ours.iter().any(|o| p.display().to_string().contains(o))).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_restart_that_moves_a_whole_newer_checkpoint_aside_says_so_and_the_files_can_be_saved_afterwards() {
    for (layout, name) in
        [("{checkpoint}/rank_{rank}.dat", "it_STEP/rank_RANK.dat"), ("{checkpoint}.{rank}.dat", "restart.RANK.dat")]
    {
        let site = Site::empty();
        let data = site.data();
        let write = |step: u32, rank: u32| {
            let path = data.join(name.replace("STEP", &step.to_string()).replace("RANK", &rank.to_string()));
            std::fs::create_dir_all(path.parent().expect("has one")).expect("made");
            std::fs::write(&path, bytes_of(step, rank)).expect("written");
            set_time(&path, 1_000_000 + 100 * u64::from(step));
        };
        (0..2).for_each(|rank| write(1, rank));
        site.save(layout, 2);
        // One rank of step 2 is no whole checkpoint.
        write(2, 0);
        let report = run_json(&mut restart_in_place(&site), 0);
        assert_eq!((&report["outcome"], &report["moved_aside"]["may_be_whole"]), (&"restored".into(), &false.into()));
        // Two ranks are one.
        (0..2).for_each(|rank| write(2, rank));
        let restarted = run(&mut restart_in_place(&site), 2);
        let said = text(&restarted.stdout);
        assert!(said.contains("this may be OLDER than files that may be a whole checkpoint"), "{said}");
        // The message says how to continue from the newer files.
        let aside = data.join(".mcr-aside-2");
        for rank in 0..2 {
            let path = name.replace("STEP", "2").replace("RANK", &rank.to_string());
            std::fs::create_dir_all(data.join(&path).parent().expect("has one")).expect("made");
            std::fs::rename(aside.join(&path), data.join(&path)).expect("moved back");
        }
        site.save(layout, 2);
        run(&mut restart_in_place(&site), 0);
        for rank in 0..2 {
            let path = data.join(name.replace("STEP", "2").replace("RANK", &rank.to_string()));
            assert!(std::fs::read(path).expect("there") == bytes_of(2, rank));
        }
        // Who asks for an older checkpoint gets it.
        let older = list(&site.store())[1]["checkpoint"].as_str().expect("text").to_owned();
        run(restart_in_place(&site).arg("--checkpoint").arg(older), 0);
    }
}

/// The command that restarts from the newest checkpoint into the directory of the application.
fn restart_in_place(site: &Site) -> Command {
    let mut restart = mcr();
    restart.arg("restart").arg("--store").arg(site.store()).arg("--to").arg(site.data());
    restart
}

#[test]
fn files_and_links_below_a_link_to_another_file_system_are_moved_aside_and_restored() {
    use std::os::unix::fs::MetadataExt;
    let site = Site::empty();
    let temporary = site.dir.path().metadata().expect("there").dev();
    let is_other = |dir: &&Path| dir.metadata().is_ok_and(|about| about.dev() != temporary);
    let scratch = match Some(Path::new("/dev/shm")).filter(is_other) {
        Some(other) => tempfile::tempdir_in(other),
        None => tempfile::tempdir(),
    };
    let scratch = scratch.expect("a directory");
    if !is_other(&scratch.path()) {
        eprintln!("SKIPPED: moving files aside on another file system, because this machine has no other one");
    }
    let (data, out) = (site.data(), site.data().join("out"));
    std::os::unix::fs::symlink(scratch.path(), &out).expect("linked");
    let point_to = |step: u32| {
        let _ = std::fs::remove_file(out.join("latest"));
        std::os::unix::fs::symlink(format!("it_{step}"), out.join("latest")).expect("linked");
    };
    for step in 1..=2 {
        (0..2).for_each(|rank| site.write(&out, step, rank));
        point_to(step);
        std::thread::sleep(Duration::from_millis(50)); // so that the times of the files differ
    }
    site.save("out/{checkpoint}/rank_{rank}.dat", 2);
    // The application dies in step 3, and has overwritten one file of step 2.
    site.write(&out, 3, 0);
    point_to(3);
    std::fs::write(out.join("it_2/rank_1.dat"), "broken").expect("written");
    for nth in 1..=2 {
        let report = run_json(&mut restart_in_place(&site), 0);
        assert_eq!(report["checkpoint"], "it_2");
        let aside = data.join(format!(".mcr-aside-{nth}"));
        assert_eq!(report["moved_aside"]["to"], aside.display().to_string());
        assert_eq!(std::fs::read(aside.join("out/it_2/rank_1.dat")).expect("there"), b"broken");
        assert_eq!(aside.join("out/it_3/rank_0.dat").exists(), nth == 1);
        assert_eq!(std::fs::read_link(out.join("latest")).expect("a link"), Path::new("it_2"));
        assert!(std::fs::read(out.join("latest/rank_1.dat")).expect("there") == bytes_of(2, 1));
        assert!(!out.join("it_3").exists());
        std::fs::write(out.join("it_2/rank_1.dat"), "broken").expect("written");
    }
}

#[test]
fn newer_files_of_another_name_that_the_application_uses_in_turn_are_moved_aside() {
    for names in [["a", "b"], ["slot_even", "slot_odd"]] {
        let site = Site::empty();
        let data = site.data();
        std::fs::create_dir_all(&data).expect("made");
        let write = |name: &str, rank: u32, step: u64| {
            let path = data.join(format!("{name}.{rank}"));
            std::fs::write(&path, format!("step {step}")).expect("written");
            set_time(&path, 1_700_000_000 + 100 * step);
        };
        for (step, name) in (1..).zip(names) {
            (0..2).for_each(|rank| write(name, rank, step));
        }
        std::fs::write(data.join("notes.txt"), "not of a checkpoint").expect("written");
        site.save("{checkpoint}.{rank}", 2);
        // The application was killed while it overwrote the older of the two.
        write(names[0], 0, 3);
        let report = run_json(&mut restart_in_place(&site), 0);
        assert_eq!(report["checkpoint"], names[1]);
        assert_eq!(report["moved_aside"]["files"], serde_json::json!([format!("{}.0", names[0])]));
        assert!(data.join(format!("{}.1", names[0])).exists() && data.join("notes.txt").exists());
        assert_eq!(std::fs::read_to_string(data.join(format!("{}.0", names[1]))).expect("there"), "step 2");
    }
}

#[test]
fn files_of_later_steps_are_moved_aside_although_they_are_older_than_the_restored_checkpoint() {
    let site = Site::empty();
    let data = site.data();
    let write = |step: u32, rank, seconds| {
        site.write(&data, step, rank);
        set_time(&data.join(format!("it_{step}/rank_{rank}.dat")), seconds);
    };
    for step in 9..=10 {
        (0..2).for_each(|rank| write(step, rank, 1_000_000 + u64::from(step)));
    }
    site.save("{checkpoint}/rank_{rank}.dat", 2);
    // An earlier start committed nothing, and left files of the steps 8 to 12.
    for (step, rank) in [(8, 0), (10, 7), (11, 0), (11, 1), (12, 1)] {
        write(step, rank, 500_000 + u64::from(step));
    }
    std::fs::write(data.join("it_11/notes"), "not of a checkpoint").expect("written");
    std::fs::write(data.join("plot_12"), "not of a checkpoint").expect("written");
    let looked = run_json(restart_in_place(&site).arg("--dry-run"), 0);
    let report = run_json(&mut restart_in_place(&site), 0);
    let files = serde_json::json!(["it_11/rank_0.dat", "it_11/rank_1.dat", "it_12/rank_1.dat"]);
    assert_eq!(report["moved_aside"]["files"], files);
    assert_eq!(looked["would_move_aside"], files);
    assert_eq!(std::fs::read(data.join(".mcr-aside-1/it_12/rank_1.dat")).expect("there"), bytes_of(12, 1));
    for stays in
        ["it_8/rank_0.dat", "it_9/rank_0.dat", "it_10/rank_1.dat", "it_10/rank_7.dat", "it_11/notes", "plot_12"]
    {
        assert!(data.join(stays).exists(), "{stays} was moved");
    }
    write(11, 0, 500_000);
    let said = text(&run(&mut restart_in_place(&site), 0).stderr);
    assert!(said.contains("it_11/rank_0.dat (its name is later than the restored checkpoint)"), "{said}");
}

#[test]
fn older_checkpoints_with_later_names_stay_if_the_application_uses_a_few_names_in_turn() {
    let site = Site::empty();
    let data = site.data();
    for (step, seconds) in [(1, 1_000_000), (2, 2_000_000), (0, 3_000_000)] {
        for rank in 0..2 {
            site.write(&data, step, rank);
            set_time(&data.join(format!("it_{step}/rank_{rank}.dat")), seconds);
        }
    }
    site.save("{checkpoint}/rank_{rank}.dat", 2);
    let before = contents(&data);
    let report = run_json(&mut restart_in_place(&site), 0);
    assert_eq!((&report["checkpoint"], &report["moved_aside"]), (&"it_0".into(), &serde_json::Value::Null));
    assert_same_files(&before, &contents(&data));
}

#[test]
fn a_new_run_in_a_directory_that_has_files_says_how_to_save_them() {
    let site = Site::empty();
    std::fs::create_dir_all(site.data()).expect("made");
    std::fs::create_dir(site.store()).expect("made");
    let mut restart = mcr();
    restart.args(["restart", "--job", "job", "--store"]).arg(site.store()).arg("--to").arg(site.data());
    let said = text(&run(&mut restart, 3).stderr);
    assert!(!said.contains("mcr save"), "there are no files: {said}");
    std::fs::write(site.data().join("state.h5"), "an hour of work").expect("written");
    std::fs::write(site.data().join("run.log"), "a log").expect("written");
    let said = text(&run(&mut restart, 3).stderr);
    assert!(said.contains("has 1 file (such as state.h5)") && said.contains("mcr save"), "{said}");
}

#[test]
fn a_target_that_cannot_be_a_directory_is_refused_with_the_reason_before_anything_is_decided() {
    let site = Site::new(&[1], 2);
    std::fs::write(site.to(), "a file").expect("written");
    let said = text(&run(&mut site.restart(), 1).stderr);
    assert!(said.contains("back: it is not a directory"), "{said}");
    std::fs::remove_file(site.to()).expect("removed");
    std::os::unix::fs::symlink("nowhere", site.to()).expect("made");
    let said = text(&run(&mut site.restart(), 1).stderr);
    assert!(said.contains("it is a symbolic link to nowhere, which does not exist"), "{said}");
    assert!(!site.store().join("job/.incarnations").exists(), "a refused restart decides nothing");
    std::fs::create_dir(site.dir.path().join("nowhere")).expect("made");
    run(&mut site.restart(), 0);
    assert_eq!(std::fs::read(site.dir.path().join("nowhere/it_1/rank_0.dat")).expect("restored"), bytes_of(1, 0));
}

#[test]
fn two_restarts_of_two_checkpoints_into_one_directory_do_not_mix() {
    let site = Site::empty();
    for step in 1..=2 {
        for rank in 0..40 {
            std::fs::write(site.data().join(format!("restart.rank_{rank}.dat")), bytes_of(step, rank))
                .expect("written");
        }
        site.save("{checkpoint}.rank_{rank}.dat", 8);
    }
    let ids: Vec<String> = list(&site.store()).iter().map(|c| c["checkpoint"].as_str().expect("text").into()).collect();
    assert_eq!(ids.len(), 2);
    for _ in 0..10 {
        let start =
            |id: &String| site.restart().args(["--copy", "--no-sync", "--checkpoint", id]).spawn().expect("started");
        let mut both: Vec<_> = ids.iter().map(start).collect();
        both.iter_mut().for_each(|one| assert!(one.wait().expect("ends").success()));
        let steps: std::collections::BTreeSet<Vec<u8>> = (0..40)
            .map(|rank| std::fs::read(site.to().join(format!("restart.rank_{rank}.dat"))).expect("there")[..6].to_vec())
            .collect();
        assert_eq!(steps.len(), 1, "mixed: {steps:?}");
        std::fs::remove_dir_all(site.to()).expect("removed");
    }
}

const AGENT: &str = "ranks = 2\ngroup-size = 2\nquiet-ms = 20\ncheckpoint-quiet-ms = 40";

fn complete(store: &Path) -> Vec<String> {
    let mut ids: Vec<String> = list(store)
        .iter()
        .filter(|c| c["complete"] == true)
        .map(|c| c["checkpoint"].as_str().expect("text").to_owned())
        .collect();
    ids.sort();
    ids
}

#[test]
fn what_a_restart_put_there_is_neither_saved_again_nor_deleted() {
    let site = Site::empty();
    let (dir, data, store) = (site.dir.path(), site.data(), site.store());
    make_store(&store);
    let (_anc, address) = Daemon::aggregator(dir, "anc", &store, "group-size = 2");
    let more = format!("layout = \"{{checkpoint}}/rank_{{rank}}.dat\"\ndelete-after-commit = true\n{AGENT}");
    let agent = Daemon::agent(dir, "agent", &data, std::slice::from_ref(&address), &more);
    let write = |step| (0..2).for_each(|rank| site.write(&data, step, rank));
    let is_there = |step: u32| (0..2).any(|rank| data.join(format!("it_{step}/rank_{rank}.dat")).exists());
    let until_deleted = |step| {
        wait_complete(&store, &format!("it_{step}"));
        wait_for("deleted", Duration::from_secs(20), || (!is_there(step)).then_some(()));
    };
    write(1);
    until_deleted(1);
    let mut restart = mcr();
    run(restart.arg("restart").arg("--store").arg(&store).arg("--to").arg(&data), 0);
    write(2);
    until_deleted(2);
    assert!(is_there(1), "what was restored was deleted");
    // An agent without a record of earlier checkpoints does not delete the restored files either.
    agent.kill();
    let _agent = Daemon::agent(dir, "another", &data, std::slice::from_ref(&address), &more);
    write(3);
    until_deleted(3);
    assert!(is_there(1), "what was restored was deleted");
    assert_eq!(complete(&store), ["it_1", "it_2", "it_3"]);
    // An application that writes into the restored file, for example `touch`, may still read it.
    write(1);
    write(4);
    until_deleted(4);
    assert!(is_there(1), "what was restored was deleted");
    // A new file of the same name is deleted like any other file.
    (0..2).for_each(|rank| std::fs::remove_file(data.join(format!("it_1/rank_{rank}.dat"))).expect("removed"));
    write(1);
    wait_for("deleted", Duration::from_secs(20), || (!is_there(1)).then_some(()));
}

#[test]
fn a_step_that_the_application_writes_on_after_it_was_committed_and_deleted_is_doubtful() {
    let site = Site::empty();
    let (dir, data, store) = (site.dir.path(), site.data(), site.store());
    make_store(&store);
    let (_anc, address) = Daemon::aggregator(dir, "anc", &store, "group-size = 2");
    let more = format!(
        "layout = \"{{checkpoint}}/rank_{{rank}}.dat\"\ndelete-after-commit = true\ndoubt-quiet-ms = 2000\n{AGENT}"
    );
    let _agent = Daemon::agent(dir, "agent", &data, std::slice::from_ref(&address), &more);
    let file = |rank: u32| data.join(format!("it_1/rank_{rank}.dat"));
    (0..2).for_each(|rank| site.write(&data, 1, rank));
    wait_complete(&store, "it_1");
    wait_for("deleted", Duration::from_secs(20), || (0..2).all(|rank| !file(rank).exists()).then_some(()));
    for rank in 0..2 {
        let appended = std::fs::OpenOptions::new().create(true).append(true).open(file(rank));
        appended.and_then(|mut file| file.write_all(b"the second part of the step")).expect("written");
    }
    let second = wait_for("a second checkpoint", Duration::from_secs(30), || {
        list(&store).into_iter().find(|found| found["checkpoint"] == "it_1~2" && found["complete"] == true)
    });
    assert!(second["doubt"].as_str().is_some_and(|why| why.contains("delete-after-commit = false")), "{second}");
}

#[test]
fn restored_files_and_files_that_were_written_since_are_never_one_checkpoint() {
    let site = Site::empty();
    let (dir, data, store) = (site.dir.path(), site.data(), site.store());
    make_store(&store);
    let (_anc, address) = Daemon::aggregator(dir, "anc", &store, "group-size = 2");
    let more = format!("layout = \"{{checkpoint}}.rank_{{rank}}.dat\"\n{AGENT}");
    let agent = Daemon::agent(dir, "agent", &data, std::slice::from_ref(&address), &more);
    agent.wait_for_log("session began");
    let name = |label: &str, rank: u32| data.join(format!("{label}.rank_{rank}.dat"));
    let write = |label: &str, step, rank| std::fs::write(name(label, rank), bytes_of(step, rank)).expect("written");
    (0..2).for_each(|rank| write("restart", 1, rank));
    wait_complete(&store, "restart");
    (0..2).for_each(|rank| std::fs::remove_file(name("restart", rank)).expect("removed"));
    let mut restart = mcr();
    run(restart.arg("restart").arg("--store").arg(&store).arg("--to").arg(&data), 0);
    write("restart", 2, 0);
    // An agent that has no record of earlier checkpoints finds both checkpoints at the same time.
    agent.kill();
    let _agent = Daemon::agent(dir, "another", &data, std::slice::from_ref(&address), &more);
    // When the later checkpoint is complete, the agent has examined the earlier checkpoint.
    (0..2).for_each(|rank| write("other", 1, rank));
    wait_complete(&store, "other");
    assert_eq!(complete(&store), ["other", "restart"]);
    // The agent does not wait, because files whose times are far apart do not form one checkpoint.
    (0..2).for_each(|rank| write("restart", 3, rank));
    let third = wait_for("a third checkpoint", Duration::from_secs(30), || {
        complete(&store).into_iter().find(|id| id.starts_with("restart~"))
    });
    let back = dir.join("third");
    let mut restart = mcr();
    restart.arg("restart").arg("--store").arg(&store).arg("--to").arg(&back).args(["--copy", "--checkpoint", &third]);
    run(&mut restart, 0);
    for rank in 0..2 {
        assert_eq!(std::fs::read(back.join(format!("restart.rank_{rank}.dat"))).expect("there"), bytes_of(3, rank));
    }
}

#[test]
fn a_checkpoint_that_cannot_be_restored_is_answered_with_its_state_and_the_complete_ones() {
    let site = Site::new(&[1, 2], 2);
    std::fs::remove_file(site.store().join("job/it_2/group-0000.manifest")).expect("removed");
    let said = text(&run(site.restart().args(["--copy", "--checkpoint", "it_2"]), 1).stderr);
    assert!(said.contains("it_2 is incomplete") && said.contains("complete checkpoints of job job"), "{said}");
    assert!(said.contains(": it_1. Give one of them with --checkpoint"), "{said}");
    std::fs::write(site.store().join("job/it_1/group-0000.manifest"), "not a manifest").expect("written");
    let said = text(&run(site.restart().args(["--copy", "--checkpoint", "it_1"]), 1).stderr);
    assert!(said.contains("it_1 is damaged, and job job has no complete checkpoint"), "{said}");
}

#[test]
fn a_target_inside_the_store_is_refused_and_nothing_is_decided() {
    let site = Site::new(&[1], 2);
    let link = site.dir.path().join("link");
    std::os::unix::fs::symlink(site.store(), &link).expect("linked");
    for to in [site.store(), site.store().join("job/new/dir"), link.join("new")] {
        let mut restart = mcr();
        restart.arg("restart").arg("--store").arg(site.store()).arg("--to").arg(&to);
        let said = text(&run(&mut restart, 1).stderr);
        assert!(said.contains("it is inside the store") && said.contains("outside the store"), "{said}");
    }
    let names = |dir: &Path| contents(dir).into_keys().collect::<Vec<_>>();
    assert!(names(&site.store()).iter().all(|path| path.starts_with("job/it_1")), "{:?}", names(&site.store()));
}

#[test]
fn temporary_files_of_a_killed_restart_are_removed_by_a_restart_of_another_checkpoint() {
    let site = Site::empty();
    for step in 1..=2 {
        std::fs::create_dir_all(site.data().join(format!("it_{step}"))).expect("made");
        let bytes: Vec<u8> = (0..32 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> (step + 7)) as u8).collect();
        std::fs::write(site.data().join(format!("it_{step}/rank_0.dat")), bytes).expect("written");
    }
    site.save("{checkpoint}/rank_{rank}.dat", 2);
    let restart = |id: &str| {
        let mut restart = site.restart();
        restart.args(["--copy", "--checkpoint", id]);
        restart
    };
    let left = || {
        let entries = std::fs::read_dir(site.to().join("it_2")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".mcr-restart-")).count()
    };
    for attempt in 0.. {
        let mut killed = Daemon::start(&mut restart("it_2"));
        while !killed.has_ended() && left() == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        killed.kill();
        if left() > 0 {
            break;
        }
        assert!(attempt < 50, "no restart was killed while it wrote");
        let _ = std::fs::remove_dir_all(site.to());
    }
    run(&mut restart("it_1"), 0);
    assert_eq!(left(), 0);
}

#[test]
fn a_restart_whose_result_cannot_be_printed_says_that_the_files_are_restored() {
    let site = Site::new(&[1], 2);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
    let output = site.restart().stdout(full).output().expect("it starts");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the files of it_1 ARE restored, to ") && said.contains("cannot be written"), "{said}");
    assert_same_files(&contents(&site.data()), &contents(&site.to()));
}

#[test]
fn restart_files_are_restored_although_outputs_are_newer() {
    let site = Site::empty();
    let names = ["fields_1", "fields_3", "rst_3", "fields_5", "rst_6", "fields_7"];
    std::fs::create_dir_all(site.data()).expect("made");
    for (name, at) in names.iter().zip((1_000_000..).step_by(60)) {
        std::fs::write(site.data().join(format!("{name}.0")), name).expect("written");
        set_time(&site.data().join(format!("{name}.0")), at);
    }
    site.save("{checkpoint}.{rank}", 1);
    let said = text(&run(&mut site.restart(), 2).stdout);
    assert!(said.contains("this is OLDER than fields_7") && said.contains("rst_6 is a restart file"), "{said}");
    assert_eq!(contents(&site.to()).into_values().collect::<Vec<_>>(), [b"rst_6".to_vec()]);
    std::fs::remove_dir_all(site.to()).expect("removed");
    run(site.restart().args(["--checkpoint", "fields_7"]), 0);
}
