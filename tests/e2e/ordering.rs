//! The newest checkpoint is the checkpoint that the application wrote last.

use crate::support::*;
use std::path::Path;
use std::time::{Duration, SystemTime};

fn save(dir: &Path) {
    let mut save = mcr();
    save.args(["save", "--create", "--job", "job", "--layout", "{checkpoint}.dat"]).arg(dir.join("data"));
    run(save.arg("--store").arg(dir.join("store")), 0);
}

/// The names in `mcr list`, newest first.
fn listed(dir: &Path) -> Vec<String> {
    let name = |line: &serde_json::Value| line["checkpoint"].as_str().expect("a name").to_owned();
    list(&dir.join("store")).iter().map(name).collect()
}

#[test]
fn checkpoints_whose_numbers_count_down_are_ordered_by_when_they_were_written() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("data")).expect("made");
    let write = |step: u32| {
        std::fs::write(dir.path().join(format!("data/left_{step}.dat")), format!("step {step:2}")).expect("written");
        std::thread::sleep(Duration::from_millis(300));
    };
    (9..=11).rev().for_each(write);
    save(dir.path());
    assert_eq!(listed(dir.path()), ["left_9", "left_10", "left_11"]);
    (7..=8).rev().for_each(write);
    save(dir.path());
    assert_eq!(listed(dir.path()), ["left_7", "left_8", "left_9", "left_10", "left_11"]);
}

#[test]
fn copies_with_the_time_of_the_copy_are_ordered_by_their_names() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("data")).expect("made");
    let copied = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    for step in [10, 11, 9] {
        let path = dir.path().join(format!("data/left_{step}.dat"));
        std::fs::write(&path, format!("step {step}")).expect("written");
        std::fs::File::options().append(true).open(path).and_then(|f| f.set_modified(copied)).expect("set");
    }
    save(dir.path());
    assert_eq!(listed(dir.path()), ["left_11", "left_10", "left_9"]);
}

#[test]
fn a_file_from_before_the_year_2000_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("data")).expect("made");
    for (name, seconds) in [("step_10.dat", 1_790_000_000), ("step_20.dat", 5)] {
        let path = dir.path().join("data").join(name);
        std::fs::write(&path, name).expect("written");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::options().append(true).open(path).and_then(|file| file.set_modified(at)).expect("set");
    }
    let mut save = mcr();
    save.args(["save", "--create", "--job", "job"]).arg(dir.path().join("data"));
    let said = run(save.arg("--store").arg(dir.path().join("store")), 0);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("step_20.dat: its modification time is before the year 2000"), "{said}");
}

/// The file of a restored checkpoint.
fn restored(dir: &Path, more: &[&str], expected: i32) -> String {
    let to = dir.join("to");
    let _ = std::fs::remove_dir_all(&to);
    let mut restart = mcr();
    run(
        restart.args(["restart", "--copy", "--store"]).arg(dir.join("store")).arg("--to").arg(&to).args(more),
        expected,
    );
    let mut files: Vec<_> =
        std::fs::read_dir(&to).expect("lists").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).expect("text")).collect()
}

#[test]
fn three_names_that_are_overwritten_in_turn_are_ordered_by_when_they_were_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("made");
    for (step, name) in [1, 2, 3, 1].into_iter().enumerate() {
        std::fs::write(data.join(format!("rst.{name}.0")), format!("step {step}")).expect("written");
        // Files that are created less than 1 s apart may be the ranks of one checkpoint.
        std::thread::sleep(std::time::Duration::from_millis(1200));
    }
    run(mcr().arg("save").arg(&data).args(["--create", "--job", "job", "--store"]).arg(dir.path().join("store")), 0);
    assert_eq!(listed(dir.path()), ["rst.1", "rst.3", "rst.2"]);
    assert_eq!(restored(dir.path(), &[], 0), "step 3");
}

#[test]
fn a_name_in_turn_that_a_killed_application_had_overwritten_by_half_is_doubtful() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("made");
    let write = |name: u32, rank: u32, step: u32| {
        let path = data.join(format!("rst.{name}.{rank}"));
        std::fs::write(&path, format!("step {step} ")).expect("written");
        let at = std::time::SystemTime::now() - std::time::Duration::from_secs(600 * u64::from(4 - step));
        std::fs::File::options().write(true).open(path).and_then(|file| file.set_modified(at)).expect("set");
    };
    for (name, rank, step) in [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 2), (1, 0, 3)] {
        write(name, rank, step);
    }
    let mut save = mcr();
    save.arg("save").arg(&data).args(["--layout", "rst.{checkpoint}.{rank}", "--create", "--job", "job", "--store"]);
    let said = run(save.arg(dir.path().join("store")), 4);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("rst.1.0 was written after 2, and rst.1.1 before 2"), "{said}");
    assert_eq!(restored(dir.path(), &[], 2), "step 2 step 2 ");
}

#[test]
fn a_name_in_turn_that_was_overwritten_by_half_before_the_agent_began_is_doubtful() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store) = (dir.path().join("data"), dir.path().join("store"));
    std::fs::create_dir(&data).expect("made");
    for (name, rank, step) in [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 2), (1, 0, 3)] {
        let path = data.join(format!("rst.{name}.{rank}"));
        std::fs::write(&path, format!("step {step} ")).expect("written");
        let at = SystemTime::now() - Duration::from_secs(3 + 3 * (3 - step));
        std::fs::File::options().write(true).open(path).and_then(|file| file.set_modified(at)).expect("set");
    }
    let (_aggregator, address) = Daemon::aggregator(dir.path(), "anc", &store, "");
    let layout = "ranks = 2\nlayout = [\"rst.{checkpoint}.{rank}\"]";
    let agent = Daemon::agent(dir.path(), "n1", &data, &[address], layout);
    wait_complete(&store, "1");
    wait_complete(&store, "2");
    agent.signal("TERM");
    let (_, log) = agent.end();
    assert!(log.contains("rst.1.0 was written after 2, and rst.1.1 before 2"), "{log}");
    assert_eq!(restored(dir.path(), &[], 2), "step 2 step 2 ");
}

#[test]
fn the_newest_checkpoint_is_doubtful_if_it_has_fewer_files_than_all_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    for (step, files) in [(1, 3), (2, 3), (3, 1)] {
        let checkpoint = data.join(format!("ckpt-{step}"));
        std::fs::create_dir_all(&checkpoint).expect("made");
        for name in ["model.pt", "optimizer.pt", "rng.pt"].iter().take(files) {
            std::fs::write(checkpoint.join(name), format!("step {step}")).expect("written");
            let at = std::time::SystemTime::now() - std::time::Duration::from_secs(900 - step * 100);
            let file = std::fs::File::options().write(true).open(checkpoint.join(name));
            file.and_then(|file| file.set_modified(at)).expect("set");
        }
    }
    let said = run(
        mcr().arg("save").arg(&data).args(["--create", "--job", "job", "--store"]).arg(dir.path().join("store")),
        4,
    );
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("it has 1 file, and each checkpoint before has 3"), "{said}");
    let to = dir.path().join("to");
    run(mcr().args(["restart", "--copy", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&to), 2);
    assert!(to.join("ckpt-2/rng.pt").exists() && !to.join("ckpt-3").exists());
}

/// Adds a byte to the end of a checkpoint's only manifest.
fn damage(dir: &Path, id: &str) {
    let manifest = dir.join("store/job").join(id).join("group-0000.manifest");
    let mut bytes = std::fs::read(&manifest).expect("readable");
    bytes.push(b'x');
    std::fs::write(&manifest, bytes).expect("written");
}

/// Runs a restart, and returns what it prints.
fn restart(dir: &Path, more: &[&str], expected: i32) -> String {
    let mut restart = mcr();
    restart.args(["restart", "--copy", "--store"]).arg(dir.join("store")).arg("--to").arg(dir.join("said")).args(more);
    let output = run(&mut restart, expected);
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Writes and saves these checkpoints one after the other.
fn save_each(dir: &Path, names: &[&str]) {
    std::fs::create_dir(dir.join("data")).expect("made");
    for name in names {
        std::fs::write(dir.join(format!("data/{name}.dat")), name).expect("written");
        save(dir);
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn a_restart_says_so_if_a_damaged_checkpoint_of_unknown_place_may_be_newer_than_what_it_restored() {
    for newest in ["heat_1", "run_1"] {
        let dir = tempfile::tempdir().expect("a directory");
        save_each(dir.path(), &["min_1", "min_2", newest]);
        damage(dir.path(), newest);
        assert_eq!(listed(dir.path()), [newest, "min_2", "min_1"]);
        assert_eq!(restored(dir.path(), &[], 2), "min_2");
        let said = restart(dir.path(), &[], 2);
        assert!(said.contains(&format!("this may be OLDER than {newest}, which was skipped: ")), "{said}");
        let said = restart(dir.path(), &["--checkpoint", newest], 1);
        let others = "none of the complete checkpoints of job job is known to be older: min_2, min_1";
        assert!(said.contains(others), "{said}");
        run(mcr().args(["prune", "--incomplete", "--store"]).arg(dir.path().join("store")), 0);
        assert_eq!(listed(dir.path()).len(), 3, "it may be the newest, so prune keeps it");
    }
}

#[test]
fn a_damaged_checkpoint_that_was_saved_before_the_restored_one_is_older_whatever_its_name() {
    for oldest in ["heat_1", "run_9"] {
        let dir = tempfile::tempdir().expect("a directory");
        save_each(dir.path(), &[oldest, "min_1", "min_2"]);
        damage(dir.path(), oldest);
        assert_eq!(listed(dir.path()), ["min_2", "min_1", oldest]);
        assert_eq!(restored(dir.path(), &[], 0), "min_2");
        assert!(!restart(dir.path(), &[], 0).contains("OLDER"));
        run(mcr().args(["prune", "--incomplete", "--store"]).arg(dir.path().join("store")), 0);
        assert_eq!(listed(dir.path()), ["min_2", "min_1"]);
    }
}
