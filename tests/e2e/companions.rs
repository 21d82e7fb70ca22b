//! Links, directories and pointer files that are saved with a checkpoint are restored with the checkpoint.

use crate::support::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const LAYOUT: &str = "**/{checkpoint:DD[0-9]+}/{checkpoint}.cpu{rank}";

/// A run directory, another file system, and a store.
struct Site {
    dir: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        fs::create_dir(site.run()).expect("made");
        site
    }

    fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn scratch(&self) -> PathBuf {
        self.dir.path().join("scratch")
    }

    fn back(&self) -> PathBuf {
        self.dir.path().join("back")
    }

    /// Writes a step of two ranks. The times of the files grow with the number of the step.
    fn step(&self, below: &str, step: u32) -> PathBuf {
        let dir = self.run().join(below).join(format!("DD{step:04}"));
        fs::create_dir_all(&dir).expect("made");
        for rank in 0..2 {
            let path = dir.join(format!("DD{step:04}.cpu{rank:04}"));
            fs::write(&path, format!("step {step} of rank {rank}\n").repeat(300)).expect("written");
            set_time(&path, 1_000_000 + 100 * u64::from(step));
        }
        dir
    }

    fn save(&self, expected: i32, more: &[&str]) -> std::process::Output {
        let mut save = mcr();
        save.arg("save").arg(self.run()).args(["--create", "--job", "job", "--store"]);
        let layout = if more.contains(&"--layout") { &[][..] } else { &["--layout", LAYOUT] };
        run(save.arg(self.dir.path().join("store")).args(layout).args(more), expected)
    }

    fn restart(&self, to: &Path) -> Command {
        let mut restart = mcr();
        restart.args(["restart", "--job", "job", "--store"]).arg(self.dir.path().join("store")).arg("--to").arg(to);
        restart
    }

    fn labels(&self) -> Vec<String> {
        let all = list(&self.dir.path().join("store"));
        all.iter()
            .filter(|c| c["complete"] == true)
            .map(|c| c["checkpoint"].as_str().expect("a name").to_owned())
            .collect()
    }
}

fn set_time(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).expect("opened");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("set");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn link(path: &Path) -> Option<PathBuf> {
    fs::read_link(path).ok()
}

/// Writes a checkpoint, and every kind of entry inside and next to the checkpoint.
fn furnished(site: &Site) {
    let dir = site.step("", 18);
    fs::create_dir(dir.join("empty")).expect("made");
    fs::create_dir_all(dir.join("deep/er")).expect("made");
    symlink("DD0018.cpu0000", dir.join("first")).expect("linked");
    symlink("../../project/mesh.h5", dir.join("mesh")).expect("linked");
    fs::hard_link(dir.join("DD0018.cpu0001"), dir.join("DD0018.cpu0001.too")).expect("linked");
    symlink("DD0018", site.run().join("latest")).expect("linked");
    symlink("latest/DD0018.cpu0001", site.run().join("newest.cpu0001")).expect("linked");
    symlink(".", site.run().join("loop")).expect("linked");
    symlink("..", site.run().join("up")).expect("linked");
    fs::write(site.run().join("checkpoints.txt"), "DD0017\nDD0018\n").expect("written");
    fs::write(site.run().join("rpointer.ocn"), "./DD0018/DD0018.cpu0000\n").expect("written");
    fs::write(site.run().join("where.to.go.on"), "DD0018\n").expect("written");
    fs::write(site.run().join("run.log"), "wrote DD0018\n").expect("written");
    fs::set_permissions(&dir, Permissions::from_mode(0o2750)).expect("set");
    fs::set_permissions(dir.join("deep"), Permissions::from_mode(0o700)).expect("set");
}

fn assert_furnished(back: &Path) {
    let dir = back.join("DD0018");
    assert!(fs::read_dir(dir.join("empty")).expect("it is there").next().is_none());
    assert!(dir.join("deep/er").is_dir());
    assert_eq!((mode(&dir), mode(&dir.join("deep")), mode(&dir.join("deep/er"))), (0o2750, 0o700, 0o755));
    assert_eq!(mode(&dir.join("empty")), 0o755);
    assert_eq!(link(&dir.join("first")), Some("DD0018.cpu0000".into()));
    assert_eq!(link(&dir.join("mesh")), Some("../../project/mesh.h5".into()), "a link comes back as its text");
    assert_eq!(link(&back.join("latest")), Some("DD0018".into()));
    assert_eq!(link(&back.join("newest.cpu0001")), Some("latest/DD0018.cpu0001".into()));
    assert_eq!(fs::read(back.join("checkpoints.txt")).expect("it is there"), b"DD0017\nDD0018\n");
    assert_eq!(fs::read(back.join("rpointer.ocn")).expect("it is there"), b"./DD0018/DD0018.cpu0000\n");
    assert!(back.join("where.to.go.on").is_file(), "a file of nothing but a checkpoint's name is a pointer");
    assert!(!back.join("run.log").exists() && !back.join("loop").exists() && !back.join("up").exists());
}

fn same_inode(a: &Path, b: &Path) -> bool {
    fs::metadata(a).expect("it is there").ino() == fs::metadata(b).expect("it is there").ino()
}

#[test]
fn links_directories_modes_and_pointers_come_back_with_the_checkpoint_they_belong_to() {
    let site = Site::new();
    furnished(&site);
    let saved = site.save(0, &[]);
    let said = String::from_utf8_lossy(&saved.stderr).into_owned();
    assert!(said.contains("a link leads out of the directory") && said.contains("DD0018/mesh"), "{said}");
    run(&mut site.restart(&site.back()), 0);
    assert_furnished(&site.back());
    let checkpoint = &list(&site.dir.path().join("store"))[0];
    assert_eq!(checkpoint["files"], 5, "links and directories are no files: {checkpoint}");
}

#[test]
fn links_directories_modes_and_pointers_come_back_from_what_daemons_saved() {
    let site = Site::new();
    furnished(&site);
    let store = site.dir.path().join("store");
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &store, "");
    let more = format!("ranks = 2\nlayout = {LAYOUT:?}");
    let agent = Daemon::agent(site.dir.path(), "cnc", &site.run(), std::slice::from_ref(&address), &more);
    wait_for("a checkpoint", Duration::from_secs(30), || (!site.labels().is_empty()).then_some(()));
    agent.wait_for_log("a link leads out of the directory");
    for (more, to) in [(vec![], "one"), (vec!["--aggregators", &address], "two")] {
        let to = site.dir.path().join(to);
        run(site.restart(&to).args(more).arg("--copy"), 0);
        assert_furnished(&to);
    }
}

#[test]
fn a_second_name_comes_back_as_a_second_name() {
    let site = Site::new();
    let dir = site.step("", 1);
    fs::remove_file(dir.join("DD0001.cpu0001")).expect("removed");
    fs::hard_link(dir.join("DD0001.cpu0000"), dir.join("mesh")).expect("linked");
    let mut save = mcr();
    save.arg("save").arg(site.run()).args(["--create", "--job", "job", "--layout", "{checkpoint}/**", "--store"]);
    run(save.arg(site.dir.path().join("store")), 0);
    run(&mut site.restart(&site.back()), 0);
    let back = site.back().join("DD0001");
    assert!(same_inode(&back.join("DD0001.cpu0000"), &back.join("mesh")));
    assert_same_files(&contents(&site.run()), &contents(&site.back()));
    // One of the two links exists already.
    fs::remove_file(back.join("mesh")).expect("removed");
    run(&mut site.restart(&site.back()), 0);
    assert!(same_inode(&back.join("DD0001.cpu0000"), &back.join("mesh")));
}

#[test]
fn an_output_directory_that_is_a_link_is_saved_and_restored_through() {
    let site = Site::new();
    fs::create_dir(site.scratch()).expect("made");
    symlink(site.scratch(), site.run().join("out")).expect("linked");
    symlink(site.run(), site.scratch().join("home")).expect("linked");
    site.step("out", 1);
    site.save(0, &[]);
    let before = contents(&site.scratch().join("DD0001"));
    assert_eq!(before.len(), 2, "{:?}", before.keys());
    fs::remove_dir_all(site.scratch().join("DD0001")).expect("removed");
    run(&mut site.restart(&site.run()), 0);
    assert_eq!(link(&site.run().join("out")), Some(site.scratch()), "the link is still there");
    assert_same_files(&before, &contents(&site.scratch().join("DD0001")));
    let said = String::from_utf8_lossy(&run(&mut site.restart(&site.run()), 0).stderr).into_owned();
    assert!(said.contains("mcr: out: this is a link; the files below it were restored through it"), "{said}");
    // With --copy, the link is restored as a directory, because a copy must never write into the directory of the
    // run.
    run(site.restart(&site.back()).arg("--copy"), 0);
    assert!(link(&site.back().join("out")).is_none());
    assert_same_files(&before, &contents(&site.back().join("out/DD0001")));
}

#[test]
fn a_copy_moves_a_link_in_the_place_of_a_directory_aside_and_writes_nothing_through_it() {
    let site = Site::new();
    let before = contents(&site.step("", 1));
    site.save(0, &[]);
    fs::create_dir(site.scratch()).expect("made");
    fs::create_dir(site.back()).expect("made");
    let link_in_back = site.back().join("DD0001");
    symlink(site.scratch(), &link_in_back).expect("linked");
    // The target directory itself may be a link.
    let to = site.dir.path().join("to");
    symlink(site.back(), &to).expect("linked");
    let dry = run(site.restart(&to).args(["--copy", "--dry-run", "--json"]), 0);
    let dry: serde_json::Value = serde_json::from_slice(&dry.stdout).expect("JSON");
    assert_eq!(dry["would_move_aside"], serde_json::json!(["DD0001"]));
    assert_eq!(link(&link_in_back), Some(site.scratch()), "a dry run changes nothing");
    let restored = run(site.restart(&to).arg("--copy"), 0);
    let said = String::from_utf8_lossy(&restored.stderr).into_owned();
    assert!(said.contains("DD0001 (a link with the name of a directory of the checkpoint)"), "{said}");
    assert_eq!(fs::read_dir(site.scratch()).expect("readable").count(), 0, "nothing was written through the link");
    assert_eq!(link(&site.back().join(".mcr-aside-1/DD0001")), Some(site.scratch()));
    assert_same_files(&before, &contents(&link_in_back));
}

#[test]
fn an_agent_watches_through_an_output_directory_that_is_a_link_also_one_that_is_made_later() {
    let site = Site::new();
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &site.dir.path().join("store"), "");
    let more = format!("ranks = 2\nlayout = {LAYOUT:?}");
    let agent = Daemon::agent(site.dir.path(), "cnc", &site.run(), &[address], &more);
    agent.wait_for_log("session began");
    fs::create_dir(site.scratch()).expect("made");
    symlink(site.scratch(), site.run().join("out")).expect("linked");
    for step in 1..=2 {
        site.step("out", step);
        let wanted = format!("DD{step:04}");
        wait_for(&wanted, Duration::from_secs(20), || site.labels().contains(&wanted).then_some(()));
    }
}

#[test]
fn a_link_to_a_directory_of_another_owner_is_not_followed() {
    if fs::metadata("/proc/self").expect("there").uid() != 0 {
        eprintln!("skipped: only root can make directories of other owners");
        return;
    }
    let site = Site::new();
    fs::create_dir(site.scratch()).expect("made");
    symlink(site.scratch(), site.run().join("out")).expect("linked");
    site.step("out", 1);
    site.step("", 2);
    std::os::unix::fs::chown(site.scratch(), Some(1234), None).expect("root may");
    site.save(0, &[]);
    assert_eq!(site.labels(), ["DD0002"]);
    // A restart does not follow a link to a directory of another user, and writes nothing below the link.
    std::os::unix::fs::chown(site.scratch(), Some(0), None).expect("root may");
    site.save(0, &[]);
    std::os::unix::fs::chown(site.scratch(), Some(1234), None).expect("root may");
    fs::remove_dir_all(site.scratch().join("DD0001")).expect("removed");
    let failed = run(site.restart(&site.run()).args(["--checkpoint", "DD0001"]), 1);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(said.contains("run/out"), "{said}");
}

#[test]
fn a_link_that_moves_on_makes_no_second_checkpoint_of_the_same_files() {
    let site = Site::new();
    for step in [1, 2] {
        site.step("", step);
        let latest = site.run().join("latest");
        let _ = fs::remove_file(&latest);
        symlink(format!("DD{step:04}"), &latest).expect("linked");
        fs::write(site.run().join("checkpoints.txt"), format!("DD{step:04}\n")).expect("written");
        site.save(0, &[]);
    }
    assert_eq!(site.labels(), ["DD0002", "DD0001"]);
    for (step, to) in [("DD0001", "one"), ("DD0002", "two")] {
        let to = site.dir.path().join(to);
        run(site.restart(&to).args(["--copy", "--checkpoint", step]), 0);
        assert_eq!(link(&to.join("latest")), Some(step.into()), "each has the link it was saved with");
        assert_eq!(fs::read(to.join("checkpoints.txt")).expect("there"), format!("{step}\n").into_bytes());
    }
    // Restore the first checkpoint. The link to the second checkpoint is moved away.
    run(site.restart(&site.run()).args(["--checkpoint", "DD0001"]), 0);
    assert_eq!(link(&site.run().join("latest")), Some("DD0001".into()));
    assert_eq!(link(&site.run().join(".mcr-aside-1/latest")), Some("DD0002".into()));
}

#[test]
fn a_pointer_that_is_written_after_the_checkpoint_travels_with_it_without_a_second_checkpoint() {
    let site = Site::new();
    let store = site.dir.path().join("store");
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &store, "");
    let more = format!("ranks = 2\nlayout = {LAYOUT:?}");
    let agent = Daemon::agent(site.dir.path(), "cnc", &site.run(), &[address], &more);
    agent.wait_for_log("session began");
    for step in 1..=4u32 {
        site.step("", step);
        // The pointer file is written after the quiet time of the checkpoint. For the first checkpoint, the pointer
        // file comes too late. For later checkpoints, the agent waits for the pointer file.
        std::thread::sleep(Duration::from_millis(1500));
        fs::write(site.run().join("rpointer.atm"), format!("DD{step:04}\n")).expect("written");
        let wanted = format!("DD{step:04}");
        wait_for(&wanted, Duration::from_secs(20), || site.labels().contains(&wanted).then_some(()));
        std::thread::sleep(Duration::from_millis(1500));
    }
    assert_eq!(site.labels(), ["DD0004", "DD0003", "DD0002", "DD0001"]);
    for step in 2..=4 {
        let (id, to) = (format!("DD{step:04}"), site.dir.path().join(format!("back{step}")));
        run(site.restart(&to).args(["--copy", "--checkpoint", &id]), 0);
        assert_eq!(fs::read(to.join("rpointer.atm")).expect("it travels"), format!("{id}\n").into_bytes());
    }
}

#[test]
fn all_pointers_that_are_written_one_after_another_travel_with_the_second_checkpoint() {
    let site = Site::new();
    let store = site.dir.path().join("store");
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &store, "");
    let agent = Daemon::agent(site.dir.path(), "cnc", &site.run(), &[address], "ranks = 1\nlayout = \"cesm\"");
    agent.wait_for_log("session began");
    let models = [("atm", "cam"), ("lnd", "clm2"), ("ice", "cice"), ("drv", "cpl")];
    let file = |model: &str, step: u32| format!("case.{model}.r.000{step}-01-01-00000.nc");
    for step in 1..=2 {
        for (_, model) in models {
            fs::write(site.run().join(file(model, step)), format!("{model} at step {step}").repeat(99))
                .expect("written");
        }
        for (pointer, model) in models {
            std::thread::sleep(Duration::from_millis(800));
            fs::write(site.run().join(format!("rpointer.{pointer}")), file(model, step)).expect("written");
        }
        let wanted = format!("000{step}-01-01-00000");
        wait_for(&wanted, Duration::from_secs(20), || site.labels().contains(&wanted).then_some(()));
    }
    run(site.restart(&site.back()).args(["--copy", "--checkpoint", "0002-01-01-00000"]), 0);
    for (pointer, model) in models {
        let text = fs::read_to_string(site.back().join(format!("rpointer.{pointer}"))).expect("it travels");
        assert_eq!(text, file(model, 2));
    }
}

#[test]
fn the_files_that_pluto_needs_for_a_restart_travel_with_each_checkpoint() {
    let site = Site::new();
    let state = |step: u32| site.run().join(format!("data.000{step}.dbl"));
    for step in 1..=3 {
        fs::write(state(step), format!("step {step}").repeat(999)).expect("written");
        set_time(&state(step), 1_000_000 + 100 * u64::from(step));
    }
    let names = ["grid.out", "dbl.out", "restart.out"];
    names.iter().for_each(|name| fs::write(site.run().join(name), name).expect("written"));
    fs::write(site.run().join("pluto.log"), "step 3").expect("written");
    let said = String::from_utf8_lossy(&site.save(0, &["--layout", "guess"]).stderr).into_owned();
    assert!(said.contains("3 files (such as dbl.out) saved with each checkpoint"), "{said}");
    assert!(said.contains("1 file with the name of a log"), "{said}");
    for step in 1..=3 {
        let back = site.dir.path().join(format!("back{step}"));
        run(site.restart(&back).args(["--copy", "--checkpoint", &format!("000{step}.dbl")]), 0);
        assert!(back.join(format!("data.000{step}.dbl")).is_file());
        assert!(names.iter().all(|name| fs::read_to_string(back.join(name)).is_ok_and(|text| text == *name)));
    }
}

#[test]
fn a_running_pluto_saves_the_files_that_it_needs_for_a_restart() {
    let site = Site::new();
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "1", "--layout", "pluto", "--watch"]).arg(site.run());
    command.arg("--store").arg(site.dir.path().join("store")).arg("--state").arg(site.dir.path().join("state"));
    let script = "echo grid > grid.out; for n in 1 2; do echo state $n > data.000$n.dbl; echo $n >> dbl.out; \
                  cp dbl.out restart.out; sleep 2; done";
    let ended = run(command.args(["--", "sh", "-c", script]).current_dir(site.run()), 0);
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!log.contains("are not saved"), "{log}");
    run(&mut site.restart(&site.back()), 0);
    for name in ["dbl.out", "restart.out"] {
        assert_eq!(fs::read_to_string(site.back().join(name)).expect("it travels"), "1\n2\n", "{name}");
    }
    assert!(site.back().join("grid.out").is_file() && site.back().join("data.0002.dbl").is_file());
}

#[test]
fn a_pointer_that_is_written_between_two_saves_is_saved_with_the_newest_checkpoint_once() {
    let site = Site::new();
    site.step("", 1);
    let newest = site.step("", 2);
    site.save(0, &[]);
    let pointer = site.run().join("latest.txt");
    for (text, labels) in
        [("DD0002\n", &["DD0002~2", "DD0002", "DD0001"]), ("DD0002 again\n", &["DD0002~2", "DD0002", "DD0001"])]
    {
        fs::write(&pointer, text).expect("written");
        site.save(0, &[]);
        assert_eq!(site.labels(), labels, "a pointer that changes all the time makes only one more checkpoint");
    }
    run(&mut site.restart(&site.back()), 0);
    assert_eq!(fs::read_to_string(site.back().join("latest.txt")).expect("it travels"), "DD0002\n");
    let restored = site.back().join("DD0002/DD0002.cpu0001");
    assert_eq!(fs::read(restored).expect("restored"), fs::read(newest.join("DD0002.cpu0001")).expect("written"));
    site.step("", 3);
    site.save(0, &[]);
    assert_eq!(site.labels()[0], "DD0003", "the order is that of the files");
}

#[test]
fn a_second_link_to_a_checkpoint_that_is_itself_a_link_is_restored_as_a_link() {
    let site = Site::new();
    fs::create_dir(site.scratch()).expect("made");
    for step in 1..=3 {
        let dir = site.step("", step);
        let away = site.scratch().join(dir.file_name().expect("a name"));
        fs::rename(&dir, &away).expect("moved");
        symlink(&away, &dir).expect("linked");
    }
    symlink("DD0003", site.run().join("latest")).expect("linked");
    site.save(0, &["--layout", "guess"]);
    assert_eq!(site.labels(), ["DD0003", "DD0002", "DD0001"]);
    run(&mut site.restart(&site.back()), 0);
    assert_eq!(link(&site.back().join("latest")), Some("DD0003".into()));
    assert!(site.back().join("DD0003/DD0003.cpu0001").is_file());
}

#[test]
fn the_link_to_the_newest_checkpoint_travels_for_presets_and_guesses_whose_directories_have_other_names() {
    for (dir, file) in
        [("DD000#", "DD000#.cpu000@"), ("snapdir_00#", "snapshot_00#.@.hdf5"), ("out_#", "state_#_@.bin")]
    {
        let site = Site::new();
        let named =
            |text: &str, step: u32, rank: u32| text.replace('#', &step.to_string()).replace('@', &rank.to_string());
        for step in 1..=3 {
            for rank in 0..2 {
                let path = site.run().join(named(dir, step, rank)).join(named(file, step, rank));
                fs::create_dir_all(path.parent().expect("below")).expect("made");
                fs::write(&path, format!("step {step} of rank {rank}").repeat(500)).expect("written");
                set_time(&path, 1_000_000 + 100 * u64::from(step));
            }
        }
        symlink(named(dir, 3, 0), site.run().join("latest")).expect("linked");
        site.save(0, &["--layout", "guess"]);
        assert_eq!(site.labels().len(), 3, "{dir}");
        run(&mut site.restart(&site.back()), 0);
        assert_eq!(link(&site.back().join("latest")), Some(named(dir, 3, 0).into()), "{dir}");
    }
}

#[test]
fn a_socket_within_a_checkpoint_is_named_once_with_a_count() {
    let site = Site::new();
    for step in [1, 2] {
        let dir = site.step("", step);
        for name in ["a", "b"] {
            drop(std::os::unix::net::UnixListener::bind(dir.join(name)).expect("bound"));
        }
    }
    let said = String::from_utf8_lossy(&site.save(0, &[]).stderr).into_owned();
    assert!(said.contains("a socket, pipe or device is not saved: 4 in all, first DD0001/"), "{said}");
}

#[test]
fn a_link_to_a_directory_elsewhere_is_not_restored_where_a_later_restart_would_write_through_it() {
    let site = Site::new();
    let dir = site.step("", 1);
    // The link points out of the checkpoint. The target of the link does not exist yet, as in a malicious checkpoint.
    symlink(site.scratch(), dir.join("out")).expect("linked");
    site.save(0, &[]);
    run(site.restart(&site.back()).arg("--copy"), 0);
    assert_eq!(link(&site.back().join("DD0001/out")), Some(site.scratch()), "it harms nobody");
    fs::remove_dir_all(site.back()).expect("removed");
    fs::create_dir(site.scratch()).expect("made");
    let restored = run(site.restart(&site.back()).arg("--copy"), 0);
    assert!(link(&site.back().join("DD0001/out")).is_none());
    let said = String::from_utf8_lossy(&restored.stderr).into_owned();
    assert!(said.contains("DD0001/out: this link is not restored"), "{said}");
    assert!(site.back().join("DD0001/DD0001.cpu0001").is_file());
}

#[test]
fn a_link_of_each_rank_comes_back_with_the_file_that_it_leads_to() {
    let site = Site::new();
    let store = site.dir.path().join("store");
    fs::create_dir(site.run().join("links")).expect("made");
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "2", "--layout", "rst.{checkpoint}.{rank}", "--store"]);
    command.arg(&store).arg("--watch").arg(site.run()).arg("--state").arg(site.dir.path().join("state"));
    let daemon = Daemon::start(&mut command);
    daemon.wait_for_log("session began");
    for rank in 0..2 {
        fs::write(site.run().join(format!("rst.0001.{rank}")), format!("rank {rank}").repeat(500)).expect("written");
        symlink(format!("rst.0001.{rank}"), site.run().join(format!("latest.{rank}"))).expect("linked");
        symlink(format!("../rst.0001.{rank}"), site.run().join(format!("links/newest.{rank}"))).expect("linked");
    }
    let is_there = || store.join("job").is_dir() && !site.labels().is_empty();
    wait_for("the checkpoint", Duration::from_secs(20), || is_there().then_some(()));
    run(&mut site.restart(&site.back()), 0);
    for rank in 0..2 {
        let expected = Some(PathBuf::from(format!("rst.0001.{rank}")));
        assert_eq!(link(&site.back().join(format!("latest.{rank}"))), expected);
        let expected = Some(PathBuf::from(format!("../rst.0001.{rank}")));
        assert_eq!(link(&site.back().join(format!("links/newest.{rank}"))), expected);
    }
    drop(daemon);
}

#[test]
fn a_pointer_file_of_a_newer_checkpoint_is_not_stored_with_an_older_one_that_is_found_late() {
    let site = Site::new();
    let store = site.dir.path().join("store");
    for step in 1..=2 {
        for rank in 0..2 {
            let path = site.run().join(format!("DD{step:04}/f.{rank}"));
            fs::create_dir_all(path.parent().expect("below")).expect("made");
            fs::write(path, format!("step {step} of rank {rank}").repeat(500)).expect("written");
        }
        fs::write(site.run().join("checkpoints.txt"), format!("DD{step:04}\n")).expect("written");
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "2", "--layout", "{checkpoint}/f.{rank}", "--store"]);
    command.arg(&store).arg("--watch").arg(site.run()).arg("--state").arg(site.dir.path().join("state"));
    let daemon = Daemon::start(&mut command);
    let are_there = || store.join("job").is_dir() && site.labels().len() == 2;
    wait_for("both checkpoints", Duration::from_secs(20), || are_there().then_some(()));
    drop(daemon);
    run(site.restart(&site.back()).args(["--copy", "--checkpoint", "DD0001"]), 0);
    assert!(site.back().join("DD0001/f.0").exists());
    assert!(!site.back().join("checkpoints.txt").exists(), "it names DD0002");
    let newest = site.dir.path().join("newest");
    run(site.restart(&newest).arg("--copy"), 0);
    assert_eq!(fs::read_to_string(newest.join("checkpoints.txt")).expect("it came back"), "DD0002\n");
}

#[test]
fn a_link_to_a_directory_whose_files_are_saved_is_not_left_out() {
    let site = Site::new();
    let out = site.run().join("out");
    fs::create_dir(&out).expect("made");
    for step in 1..=3 {
        (0..2).for_each(|rank| write_rank(&out, step, rank, 500));
    }
    symlink("out", site.run().join("data")).expect("linked");
    symlink(".", site.run().join("self")).expect("linked");
    symlink("..", out.join("top")).expect("linked");
    let mut save = mcr();
    save.arg("save").arg(site.run()).args(["--create", "--job", "job", "--store"]).arg(site.dir.path().join("store"));
    let output = run(&mut save, 0);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("3 of 3 checkpoints are in ") && !out.contains("left out"), "{out}{err}");
    assert!(err.contains("3 symbolic links not saved (first: "), "{err}");
}

#[test]
fn a_code_that_writes_a_step_each_second_gets_back_each_step_with_its_own_pointer_and_link() {
    let site = Site::new();
    let script = "for s in 1 2 3 4 5 6; do d=DD000$s; mkdir $d; echo $s > $d/data.0; echo $s > $d/data.1; \
                  echo $d >> checkpoints.txt; ln -s $d new; mv -T new latest; sleep 1; done";
    let (store, back) = (site.dir.path().join("store"), site.back());
    let mut run_it = mcr_run("DD{checkpoint}/data.{rank}");
    run_it.arg("--store");
    run_it.arg(&store).arg("--watch").arg(site.run()).arg("--state").arg(site.dir.path().join("state"));
    run(run_it.args(["--", "sh", "-c", script]).current_dir(site.run()), 0);
    let saved = list(&store);
    assert_eq!(saved.len(), 6, "{saved:?}");
    let mut with_both = 0;
    for step in 1..=6 {
        let _ = fs::remove_dir_all(&back);
        let id = format!("000{step}");
        run(site.restart(&back).args(["--copy", "--checkpoint", &id]), 0);
        let (pointer, link) = (fs::read_to_string(back.join("checkpoints.txt")), fs::read_link(back.join("latest")));
        let name = format!("DD{id}");
        assert!(pointer.as_ref().map_or(true, |text| text.trim_end().ends_with(&name)), "{id}: {pointer:?}");
        assert!(link.as_ref().map_or(true, |end| end == Path::new(&name)), "{id}: {link:?}");
        with_both += u32::from(pointer.is_ok() && link.is_ok());
    }
    // On a machine that stands still for more than a second, a pointer may be written again before it was read.
    assert!(with_both >= 3, "only {with_both} of 6 checkpoints have their pointer and their link");
}

#[test]
fn a_checkpoint_in_which_a_link_takes_the_place_of_a_ranks_file_is_never_complete() {
    let site = Site::new();
    fs::create_dir(site.scratch()).expect("made");
    for (step, rank) in (1..=2).flat_map(|step| (0..4).map(move |rank| (step, rank))) {
        let of_link = step == 2 && rank == 3;
        let name = format!("rst.{step}.{rank}");
        let path = if of_link { site.scratch() } else { site.run() }.join(&name);
        fs::write(&path, format!("step {step} of rank {rank}\n").repeat(300)).expect("written");
        set_time(&path, 1_000_000_000 + 100 * step);
        if of_link {
            symlink(path, site.run().join(name)).expect("linked");
        }
    }
    for layout in ["guess", "{checkpoint}.{rank}"] {
        let output = site.save(4, &["--layout", layout]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("rank 3 NOT SAVED: rst.2.3 is a symbolic link to a file elsewhere"), "{said}");
        assert_eq!(site.labels(), ["rst.1"]);
    }
}

#[test]
fn a_run_that_writes_through_links_to_files_elsewhere_gives_5_and_a_run_that_only_reads_through_them_gives_0() {
    let write = |step: u32, elsewhere: &str| {
        format!(
            "for r in 0 1 2; do if [ $r = {elsewhere} ]; then at=../scratch; else at=.; fi; echo {step} of $r > \
             $at/rst.{step}.$r; [ $at = . ] || ln -s $at/rst.{step}.$r .; done; sleep 0.5; "
        )
    };
    let (one, all) =
        ([write(1, "2"), write(2, "2")].concat(), [write(1, "$r"), write(2, "$r")].concat() + "echo note > notes.dat");
    let reads = "ln -s ../scratch/rst.0.* .; cat rst.0.1; ".to_owned() + &write(1, "none") + &write(2, "none");
    for (script, status, complete) in [(one, 5, 0), (all, 5, 1), (reads, 0, 2)] {
        let site = Site::new();
        fs::create_dir(site.scratch()).expect("made");
        for rank in 0..4 {
            let path = site.scratch().join(format!("rst.0.{rank}"));
            fs::write(&path, "of an earlier run").expect("written");
            set_time(&path, 1_000_000_000);
        }
        let mut command = mcr();
        command.args(["run", "--create", "--job", "job", "--watch", ".", "--store"]).arg(site.dir.path().join("store"));
        command.arg("--state").arg(site.dir.path().join("state")).current_dir(site.run());
        let output = run(command.args(["--", "sh", "-c", &script]), status);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(log.contains("symbolic links to files elsewhere"), status == 5, "{script}: {log}");
        assert_eq!(site.labels().len(), complete, "{script}: {log}");
    }
}

#[test]
fn the_pointer_file_of_each_rank_directory_comes_back_from_run_and_from_save() {
    let site = Site::new();
    let script = "for s in 1 2 3; do for r in 1 0; do mkdir -p rank$r; echo $s > rank$r/step_$s.dat; \
                  echo step_$s.dat > rank$r/latest; [ $s$r = 31 ] && kill -9 $$; done; sleep 2.2; done";
    let mut run_it = mcr_run("rank{rank}/step_{checkpoint}.dat");
    run_it.arg("--store").arg(site.dir.path().join("store")).arg("--watch").arg(site.run());
    run_it.arg("--state").arg(site.dir.path().join("state"));
    let log = run(run_it.args(["--", "sh", "-c", script]).current_dir(site.run()), 137);
    let latest = |dir: &Path, rank: u32| fs::read_to_string(dir.join(format!("rank{rank}/latest"))).unwrap_or_default();
    // Rank 1 wrote the pointer to a step that is not whole.
    assert_eq!(latest(&site.run(), 1), "step_3.dat\n");
    run(&mut site.restart(&site.run()), 0);
    let log = String::from_utf8_lossy(&log.stderr).into_owned();
    assert_eq!([0, 1].map(|rank| latest(&site.run(), rank)), ["step_2.dat\n", "step_2.dat\n"], "{log}");

    let mut save = mcr();
    save.args([
        "save",
        "--create",
        "--job",
        "saved",
        "--layout",
        "rank{rank}/step_{checkpoint}.dat",
        "--group-size",
        "1",
    ]);
    run(save.arg("--store").arg(site.dir.path().join("saved")).arg(site.run()), 0);
    let mut restart = mcr();
    restart.args(["restart", "--ranks", "1", "--store"]).arg(site.dir.path().join("saved"));
    run(restart.arg("--to").arg(site.back()), 0);
    assert_eq!([0, 1].map(|rank| latest(&site.back(), rank)), ["", "step_2.dat\n"], "only that of rank 1");
}

#[test]
fn each_node_with_a_local_disk_saves_and_restores_its_own_pointer_file() {
    let site = Site::new();
    let (dir, store) = (site.dir.path(), site.dir.path().join("store"));
    let (_aggregator, address) = Daemon::aggregator(dir, "anc", &store, "group-size = 2");
    let disk = |node: u32| dir.join(format!("disk{node}"));
    let mut agents = Vec::new();
    for node in 0..2 {
        fs::create_dir(disk(node)).expect("made");
        let more = format!(
            "group-size = 2\nranks = 4\nlayout = \"st{{checkpoint}}.r{{rank}}\"\nlocal-ranks = \"{}-{}\"",
            2 * node,
            2 * node + 1
        );
        agents.push(Daemon::agent(dir, &format!("n{node}"), &disk(node), std::slice::from_ref(&address), &more));
    }
    agents.iter().for_each(|agent| drop(agent.wait_for_log("session began")));
    for node in 0..2 {
        for rank in 2 * node..2 * node + 2 {
            fs::write(disk(node).join(format!("st1.r{rank}")), format!("of rank {rank}\n").repeat(300))
                .expect("written");
        }
        fs::write(disk(node).join("latest"), format!("node {node}: st1\n")).expect("written");
    }
    wait_complete(&store, "1");
    for (ranks, text) in [("0-1", "node 0: st1\n"), ("2-3", "node 1: st1\n"), ("0-3", "node 0: st1\n")] {
        let back = dir.join(format!("back{ranks}"));
        run(site.restart(&back).args(["--ranks", ranks]), 0);
        assert_eq!(fs::read_to_string(back.join("latest")).expect("it came back"), text, "ranks {ranks}");
    }
}
