//! If the store's file system becomes full, the error is reported, no checkpoint is lost, and the checkpoint is saved
//! when there is free space again.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A small tmpfs. The tmpfs is unmounted when this value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, mib: u32) -> Option<Self> {
        std::fs::create_dir(&at).expect("made");
        let options = format!("size={mib}m,mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(at)),
            other => {
                eprintln!("SKIPPED: a small file system cannot be mounted here: {other:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// An agent, and an aggregator whose store is on a small disk.
struct Site {
    disk: SmallDisk,
    store: PathBuf,
    watch: PathBuf,
    aggregator: Daemon,
    address: String,
    agent: Daemon,
}

impl Site {
    fn begin(dir: &Path) -> Option<Self> {
        Self::begin_with(dir, "")
    }

    /// `more`: further lines of the configuration of the aggregator.
    fn begin_with(dir: &Path, more: &str) -> Option<Self> {
        let disk = SmallDisk::mount(dir.join("disk"), 8)?;
        let (store, watch) = (disk.0.join("store"), dir.join("run"));
        std::fs::create_dir(&watch).expect("made");
        let (aggregator, address) =
            Daemon::aggregator(dir, "a", &store, &format!("group-size = 2\nprofile = \"raw\"\n{more}"));
        let layout = "ranks = 2\ngroup-size = 2\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 20\n\
                      checkpoint-quiet-ms = 50";
        let agent = Daemon::agent(dir, "n", &watch, std::slice::from_ref(&address), layout);
        Some(Self { disk, store, watch, aggregator, address, agent })
    }
}

/// Fills the file system: writes to a file until no space is free.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("created");
    let block = vec![7u8; 64 << 10];
    while file.write_all(&block).is_ok() {}
    while file.write_all(&block[..1]).is_ok() {}
}

fn waiting(address: &str) -> String {
    wait_for("a checkpoint that waits for the store", Duration::from_secs(30), || {
        let status = run_json(mcr().args(["status", "--aggregators", address]), 0);
        let checkpoints = status["aggregators"][0]["checkpoints"].as_array().cloned().unwrap_or_default();
        let found = checkpoints.into_iter().find(|c| c["phase"] == "waiting")?;
        Some(found["reason"].as_str().unwrap_or_default().to_owned())
    })
}

#[test]
fn a_full_disk_is_named_costs_no_committed_checkpoint_and_is_used_again_once_there_is_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(Site { disk, store, watch, aggregator, address, agent }) = Site::begin(dir.path()) else { return };
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 20_000));
    wait_complete(&store, "sim.it_1");
    let first = contents(&watch);

    let ballast = disk.0.join("ballast");
    fill(&ballast);
    (0..2).for_each(|rank| write_rank(&watch, 2, rank, 20_000));
    let reason = waiting(&address);
    assert!(reason.contains("No space left on device") && reason.contains("store"), "{reason}");
    let line = aggregator.wait_for_log("flush failed");
    assert!(line.contains("sim.it_2") && line.contains("No space left on device"), "{line}");

    let back = |name: &str, id: &str| {
        let to = dir.path().join(name);
        run(
            mcr().arg("restart").args(["--copy", "--checkpoint", id]).arg("--store").arg(&store).arg("--to").arg(&to),
            0,
        );
        contents(&to)
    };
    assert_same_files(&first, &back("back1", "sim.it_1"));

    std::fs::remove_file(&ballast).expect("removed");
    wait_complete(&store, "sim.it_2");
    let second = contents(&watch).into_iter().filter(|(path, _)| path.to_string_lossy().contains("it_2")).collect();
    assert_same_files(&second, &back("back2", "sim.it_2"));
    assert_same_files(&first, &back("back3", "sim.it_1"));
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(aggregator.stop(), Some(0));
}

#[test]
fn all_checkpoints_that_were_written_while_the_disk_was_full_are_committed_once_there_is_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(Site { disk, store, watch, aggregator, agent, .. }) = Site::begin(dir.path()) else { return };
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 2_000));
    wait_complete(&store, "sim.it_1");
    let ballast = disk.0.join("ballast");
    fill(&ballast);
    for step in 2..=14 {
        (0..2).for_each(|rank| write_rank(&watch, step, rank, 2_000));
        std::thread::sleep(Duration::from_millis(300));
    }
    aggregator.wait_for_log("too many newer checkpoints wait for the store");
    std::fs::remove_file(&ballast).expect("removed");
    let mut flush = mcr();
    flush.args(["flush", "--timeout", "60", "--state"]).arg(dir.path().join("n.state"));
    run(&mut flush, 0);
    let complete = list(&store).iter().filter(|line| line["complete"] == true).count();
    assert_eq!(complete, 14, "{:?}", list(&store));
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(aggregator.stop(), Some(0));
}

#[test]
fn a_checkpoint_whose_agent_died_while_the_store_was_full_is_lost_because_of_the_store_and_gives_5() {
    let dir = tempfile::tempdir().expect("a directory");
    let site = Site::begin_with(dir.path(), "gather-seconds = 6");
    let Some(Site { disk, store, watch, aggregator, address, agent }) = site else { return };
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 20_000));
    wait_complete(&store, "sim.it_1");
    fill(&disk.0.join("ballast"));
    (0..2).for_each(|rank| write_rank(&watch, 2, rank, 20_000));
    let reason = waiting(&address);
    assert!(reason.contains("time and will be tried again") || reason.contains("times and will"), "{reason}");
    let text = String::from_utf8(run(mcr().args(["status", "--aggregators", &address]), 0).stdout).expect("UTF-8");
    assert!(text.contains("mcr prune --keep N frees space"), "{text}");
    agent.kill();
    let line = aggregator.wait_for_log("abandoned checkpoint");
    assert!(line.contains("kind=\"store\"") && line.contains("No space left on device"), "{line}");
    assert!(line.contains("2 of the group's ranks were lost: 0, 1"), "{line}");
    let status = run_json(mcr().args(["status", "--aggregators", &address]), 0);
    let last_error = status["aggregators"][0]["jobs"][0]["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(last_error.contains("No space left on device"), "{status}");
    aggregator.signal("TERM");
    let (status, log) = aggregator.end();
    assert_eq!(status, Some(5), "{log}");
    let last = log.lines().find(|line| line.contains("ERROR not committed")).unwrap_or_default();
    assert!(last.contains("No space left on device") && last.contains("with mcr prune"), "{log}");
}

/// Saves checkpoints to the store `s` below `dir`, and fills the small file system `disk` beside it. `None` if this
/// system cannot mount it.
fn saved_beside_a_full_disk(dir: &Path, steps: u32, numbers: usize) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(dir.join("disk"), 1)?;
    let data = dir.join("run");
    std::fs::create_dir(&data).expect("made");
    (1..=steps).for_each(|step| (0..2).for_each(|rank| write_rank(&data, step, rank, numbers)));
    run(mcr().args(["save", "run", "--store", "s", "--create", "--job", "wave"]).current_dir(dir), 0);
    fill(&disk.0.join("ballast"));
    Some(disk)
}

#[test]
fn an_extract_to_a_full_disk_names_the_disk_and_not_the_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(_disk) = saved_beside_a_full_disk(dir.path(), 1, 20_000) else { return };
    for to in ["disk/ids.npy", "disk/ids.h5"] {
        let mut extract = mcr();
        extract.args(["extract", "latest", "--variable", "state/temperature", "--to", to, "--store", "s", "--json"]);
        let output = run(extract.current_dir(dir.path()), 1);
        let error = serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")["error"].clone();
        assert_eq!(error["message"], format!("{to}: cannot be written: No space left on device"));
        assert_eq!((&error["advice"], &error["path"]), (&"free space, or give another directory".into(), &to.into()));
        assert!(!dir.path().join(to).exists());
    }
}

#[test]
fn tables_are_printed_although_their_pictures_cannot_be_written_to_a_full_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(_disk) = saved_beside_a_full_disk(dir.path(), 2, 2_000) else { return };
    for (line, printed) in [
        ("stats --store s --plots disk", "job wave: "),
        ("advise --store s --mtbf 24 --write-seconds 1 --svg disk/a.svg", "by Daly"),
        ("bench schemes run --group-sizes 1 --block-sizes 4K --plots disk", "Bounds: "),
    ] {
        let output = run(mcr().args(line.split(' ')).current_dir(dir.path()), 1);
        let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(out.contains(printed), "{line}: {out}");
        assert!(said.contains("disk/") && said.contains("No space left on device"), "{line}: {said}");
    }
    let output = run(mcr().args(["bench", "schemes", "run", "--plots", "/etc/hostname"]).current_dir(dir.path()), 1);
    assert!(
        output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("/etc/hostname: cannot be made")
    );
}

#[test]
fn a_store_that_is_unmounted_is_named_and_nothing_is_written_below_its_mount_point() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(dir.path().join("store"), 16) else { return };
    let (store, watch) = (disk.0.clone(), dir.path().join("run"));
    std::fs::create_dir(&watch).expect("made");
    let (aggregator, address) = Daemon::aggregator(dir.path(), "a", &store, "group-size = 2\ndrain-seconds = 2");
    let layout =
        "ranks = 2\ngroup-size = 2\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 20\ncheckpoint-quiet-ms = 50";
    let agent = Daemon::agent(dir.path(), "n", &watch, std::slice::from_ref(&address), layout);
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 20_000));
    wait_complete(&store, "sim.it_1");
    run(Command::new("umount").arg("-l").arg(&store), 0);
    (0..2).for_each(|rank| write_rank(&watch, 2, rank, 20_000));
    let reason = waiting(&address);
    assert!(reason.contains("not mounted any more"), "{reason}");
    assert!(contents(&store).is_empty(), "nothing is written to the local disk");
    agent.signal("TERM");
    assert_eq!(agent.end().0, Some(5), "step 2 is not committed");
    aggregator.signal("TERM");
    assert_eq!(aggregator.end().0, Some(5));
}

#[test]
fn a_restart_whose_decision_cannot_be_recorded_restores_nothing_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), 8) else { return };
    let (store, watch) = (disk.0.join("store"), dir.path().join("run"));
    std::fs::create_dir(&watch).expect("made");
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 20_000));
    run(mcr().args(["save", "--create", "--job", "job"]).arg(&watch).arg("--store").arg(&store), 0);
    let ballast = disk.0.join("ballast");
    fill(&ballast);
    let restart = |more: &[&str], expected: i32| {
        let mut command = mcr();
        command.args(["restart", "--job", "job", "--store"]).arg(&store).arg("--to").arg(dir.path().join("back"));
        String::from_utf8_lossy(&run(command.args(more), expected).stderr).into_owned()
    };
    let said = restart(&[], 1);
    assert!(said.contains("No space left on device") && said.contains("--copy"), "{said}");
    assert!(!dir.path().join("back/sim.it_1.rank_0.h5").exists());
    restart(&["--copy"], 0);
    std::fs::remove_file(&ballast).expect("removed");
    restart(&[], 0);
}

#[test]
fn a_save_that_cannot_write_to_the_store_has_an_error_with_advice_as_text_and_as_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("run");
    std::fs::create_dir(&data).expect("made");
    // The digits have no pattern, so that the container exceeds the limit of the file size.
    let bytes: Vec<u8> = (0..100_000u64).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    std::fs::write(data.join("out_1.0"), bytes).expect("written");
    let save = |more: &str| {
        let mut save = mcr_test_support::clean(Command::new("sh"));
        let limited = "ulimit -f 100 && exec \"$0\" save run --store s --create --layout 'out_{checkpoint}.{rank}' \
                       --profile raw";
        save.args(["-c", &format!("{limited} {more}"), env!("CARGO_BIN_EXE_mcr")]).current_dir(dir.path());
        run(&mut save, 1)
    };
    let output = save("--json");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let error = &report["error"];
    assert_eq!((&report["outcome"], &error["code"]), (&"failed".into(), &1.into()), "{report}");
    let advice = error["advice"].as_str().expect("a text");
    assert!(error["path"].as_str().is_some_and(|path| path.starts_with("s/run/1/")), "{report}");
    crate::json::check(&crate::json::schemas()["save"], &report, "save").expect("the documented shape");
    let said = String::from_utf8_lossy(&save("").stderr).into_owned();
    assert!(said.contains(&format!("mcr: advice: {advice}")), "{said}");
}

#[test]
fn a_command_whose_result_cannot_be_printed_says_that_its_work_is_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("run");
    std::fs::create_dir(&data).expect("made");
    (1..=2).for_each(|step| (0..2).for_each(|rank| write_rank(&data, step, rank, 500)));
    for (line, done) in [
        ("save run --store s --create --job wave", "2 of 2 checkpoints ARE saved in s"),
        ("copy --all --from s --store t --create", "2 of 2 chosen checkpoints ARE in t (job wave)"),
        ("extract latest --variable state/ids --to ids.npy --store s", "ids.npy IS written"),
        ("prune --keep 1 --store s", "mcr prune IS done, with 1 checkpoint removed"),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
        let output = mcr().args(line.split(' ')).current_dir(dir.path()).stdout(full).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains(&format!("mcr: {done}; only this result is not printed")), "{line}: {said}");
    }
    assert!(dir.path().join("ids.npy").is_file() && list(&dir.path().join("s")).len() == 1);
}

#[test]
fn a_run_whose_store_is_full_names_this_as_the_reason_at_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), 1) else { return };
    std::fs::create_dir(dir.path().join("run")).expect("made");
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "1", "--layout", "{checkpoint}.{rank}", "--store"]);
    command.arg(disk.0.join("store")).args(["--state", "state", "--watch", "run", "--drain-seconds", "3", "--"]);
    command.args(["sh", "-c", "head -c 3000000 /dev/urandom > run/s1.0"]).current_dir(dir.path());
    let said = String::from_utf8_lossy(&run(&mut command, 5).stderr).into_owned();
    let last = said.lines().find(|line| line.contains("ERROR not committed")).unwrap_or_default();
    assert!(last.contains("No space left on device"), "{said}");
}
