//! Tests `mcr copy` and `mcr verify --repair`: copied and repaired checkpoints can be restored, byte for byte.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A store with the steps 1 to 3 of four ranks, in groups of two ranks. Steps 2 and 3 refer to older containers.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        Self::of_run(3000)
    }

    /// A run of the application. The content of its files depends on `cells`.
    fn of_run(cells: usize) -> Self {
        let site = Self(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(site.path("data")).expect("made");
        for step in 1..=3 {
            (0..4).for_each(|rank| write_rank(&site.path("data"), step, rank, cells));
            let mut save = site.command("save --create --job wave --group-size 2", "store");
            run(save.arg(site.path("data")).args(["--layout", "{checkpoint}.rank_{rank}.h5"]), 0);
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &str, store: &str) -> Command {
        let mut command = mcr();
        command.args(words.split(' ')).arg("--store").arg(self.path(store));
        command
    }

    /// `mcr copy` to the store `to`.
    fn copy(&self, words: &str, to: &str) -> Command {
        let mut command = self.command(&format!("copy --create {words}"), to);
        command.arg("--from").arg(self.path("store"));
        command
    }

    /// Restores the newest checkpoint of a store and job. Returns the ID.
    fn restart(&self, store: &str, job: &str) -> String {
        let to = self.path(&format!("to-{store}-{job}"));
        let report = run_json(self.command(&format!("restart --job {job}"), store).arg("--to").arg(&to), 0);
        let id = report["checkpoint"].as_str().expect("an ID").to_owned();
        let mut expected = contents(&self.path("data"));
        expected.retain(|name, _| name.to_string_lossy().starts_with(&format!("{id}.")));
        assert_eq!(expected.len(), 4);
        assert_same_files(&expected, &contents(&to));
        id
    }
}

fn outcomes(report: &serde_json::Value) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let lines = report["checkpoints"].as_array().expect("a list");
    lines.iter().map(|line| (text(&line["checkpoint"]), text(&line["outcome"]))).collect()
}

#[test]
fn a_copy_is_restored_byte_for_byte_and_a_second_copy_copies_nothing() {
    let site = Site::new();
    // The destination does not exist yet. Without --dry-run, --create would create it.
    let new = run_json(site.copy("--all", "archive").arg("--dry-run"), 0);
    let would_copy = ["sim.it_1", "sim.it_2", "sim.it_3"].map(|id| (id.to_owned(), "would-copy".to_owned()));
    assert_eq!(outcomes(&new), would_copy);
    assert!(!site.path("archive").exists(), "nothing is created");
    make_store(&site.path("archive"));
    let dry = run_json(&mut site.copy("--all --dry-run", "archive"), 0);
    assert_eq!((&new["bytes"], outcomes(&new)), (&dry["bytes"], outcomes(&dry)));
    assert!(contents(&site.path("archive")).is_empty(), "nothing is written");
    let report = run_json(&mut site.copy("--all", "archive"), 0);
    assert_eq!(report["bytes"], dry["bytes"]);
    let all = ["sim.it_1", "sim.it_2", "sim.it_3"];
    assert_eq!(outcomes(&report), all.map(|id| (id.to_owned(), "copied".to_owned())));
    assert_same_files(&contents(&site.path("store")), &contents(&site.path("archive")));
    assert_eq!(site.restart("archive", "wave"), "sim.it_3");
    let again = run_json(&mut site.copy("--all", "archive"), 0);
    assert_eq!(
        (&again["bytes"], outcomes(&again)),
        (&0.into(), all.map(|id| (id.to_owned(), "there-already".to_owned())).to_vec())
    );
    let text = String::from_utf8(run(&mut site.copy("latest~1", "archive"), 0).stdout).expect("UTF-8");
    assert!(text.contains("sim.it_2: there already") && text.contains("1 of 1 chosen checkpoint is in "), "{text}");
    run(&mut site.command("verify --job wave", "archive"), 0);
}

#[test]
fn the_last_line_of_a_copy_counts_the_chosen_checkpoints_and_no_others() {
    let site = Site::new();
    for (words, said) in [
        ("sim.it_1", "1 of 1 chosen checkpoint is in "),
        ("sim.it_2 --dry-run", "1 of 1 chosen checkpoint would be in "),
        ("sim.it_2 sim.it_3", "2 of 2 chosen checkpoints are in "),
    ] {
        let text = String::from_utf8(run(&mut site.copy(words, "archive"), 0).stdout).expect("UTF-8");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with(said) && last.ends_with(" (job wave)"), "{text}");
    }
}

#[test]
fn a_copy_of_a_checkpoint_that_does_not_exist_creates_no_store() {
    let site = Site::new();
    let failed = run(&mut site.copy("sim.it_99", "archive"), 1);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("sim.it_99"), "{failed:?}");
    assert!(!site.path("archive").exists());
}

#[test]
fn one_checkpoint_is_copied_to_a_job_with_another_name() {
    let site = Site::new();
    let report = run_json(&mut site.copy("sim.it_2 --to-job other", "archive"), 0);
    assert_eq!((&report["to_job"], outcomes(&report).len()), (&"other".into(), 1));
    assert_eq!(site.restart("archive", "other"), "sim.it_2");
    let listed = list(&site.path("archive"));
    assert_eq!(listed.len(), 1, "the older checkpoints are there only for others: {listed:?}");
    // The source and the destination can be two jobs of one store, but cannot be the same job.
    run(&mut site.copy("latest --job wave --to-job third", "store"), 0);
    assert_eq!(site.restart("store", "third"), "sim.it_3");
    let failed = run(&mut site.copy("latest --job wave", "store"), 1);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("the source and the destination are job wave"));
}

#[test]
fn what_cannot_be_copied_is_named_and_the_others_are_copied() {
    let site = Site::new();
    let container = site.path("store/wave/sim.it_1/group-0001.mcr");
    let mut bytes = std::fs::read(&container).expect("read");
    bytes[150] ^= 1;
    std::fs::write(&container, bytes).expect("written");
    (0..4).for_each(|rank| write_rank(&site.path("data"), 4, rank, 3000));
    let mut save = site.command("save --job wave --group-size 2 --no-reuse", "store");
    run(save.arg(site.path("data")).args(["--layout", "{checkpoint}.rank_{rank}.h5"]), 0);
    std::fs::remove_file(site.path("store/wave/sim.it_3/group-0000.manifest")).expect("removed");
    let output = run(&mut site.copy("--all", "archive"), 4);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("PARTLY: ") && last.contains("not copied: sim.it_1"), "{text}");
    assert!(text.contains("sim.it_3: not copied: it is incomplete"), "{text}");
    assert!(
        text.contains("sim.it_4: copied")
            && text.contains("sim.it_1: not copied: ")
            && text.contains("group-0001.mcr: segment"),
        "{text}"
    );
    let listed = list(&site.path("archive"));
    assert!(listed.iter().all(|one| one["complete"] == true || one["checkpoint"] == "sim.it_1"), "{listed:?}");
    run(&mut site.copy("sim.it_1", "archive"), 1);
    let missing = run(&mut site.copy("sim.it_9", "archive"), 1);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no checkpoint sim.it_9"));
}

#[test]
fn a_damaged_store_is_mended_from_its_copy() {
    let site = Site::new();
    run(&mut site.copy("--all", "archive"), 0);
    let whole = contents(&site.path("store"));
    let repair = || {
        let mut command = site.command("verify --job wave --repair", "store");
        command.arg("--from").arg(site.path("archive"));
        command
    };
    let container = site.path("store/wave/sim.it_1/group-0001.mcr");
    let mut bytes = std::fs::read(&container).expect("read");
    bytes[150] ^= 1;
    std::fs::write(&container, bytes).expect("written");
    std::fs::remove_file(site.path("store/wave/sim.it_2/group-0000.mcr")).expect("removed");
    std::fs::write(site.path("store/wave/sim.it_3/group-0000.manifest"), "damaged").expect("written");
    run(&mut site.command("verify --job wave", "store"), 1);
    let text = String::from_utf8(run(&mut repair(), 0).stdout).expect("UTF-8");
    for path in ["sim.it_1/group-0001.mcr", "sim.it_2/group-0000.mcr", "sim.it_3/group-0000.manifest"] {
        let line = text.lines().find(|line| line.ends_with(path));
        assert!(line.is_some_and(|line| line.contains("mended from")), "{path}: {text}");
    }
    assert_same_files(&whole, &contents(&site.path("store")));
    assert_eq!(site.restart("store", "wave"), "sim.it_3");
    // If the copy is damaged too, nothing is changed.
    for store in ["store", "archive"] {
        std::fs::write(site.path(&format!("{store}/wave/sim.it_1/group-0001.mcr")), "damaged").expect("written");
    }
    let report = run_json(&mut repair(), 1);
    let lines = report["checkpoints"].as_array().expect("a list");
    let line = lines.iter().find(|line| line["checkpoint"] == "sim.it_1").expect("listed");
    assert!(line["not_mended"][0].as_str().is_some_and(|text| text.contains("not mended")), "{report}");
    assert_eq!(std::fs::read(&container).expect("read"), b"damaged");
    run(mcr().args(["verify", "--repair", "--store"]).arg(site.path("store")), 1);
}

/// One way in which the group 0 of a checkpoint, or the whole checkpoint, is damaged.
type Damage = fn(&Path);

/// Changes four bytes in the first lines of a manifest.
fn scratch(manifest: &Path) {
    let mut text = std::fs::read(manifest).expect("read");
    text[60..64].copy_from_slice(b"XXXX");
    std::fs::write(manifest, text).expect("written");
}

#[test]
fn a_repair_takes_nothing_from_another_run_and_replaces_no_intact_container() {
    let (site, other) = (Site::of_run(3000), Site::of_run(3100));
    run(&mut site.copy("--all", "copy"), 0);
    let whole = contents(&site.path("store"));
    let wreck: Damage = |dir| std::fs::write(dir.join("group-0000.manifest"), "damaged").expect("written");
    // Each entry: the damage, and whether a true copy can be recognized as such.
    let cases: [(&str, Damage, bool); 5] = [
        ("a manifest", |dir| scratch(&dir.join("group-0000.manifest")), true),
        ("all manifests", scratch_all, true),
        ("a manifest and its container", wreck_with_container, true),
        ("the text of a manifest", wreck, true),
        ("everything", wreck_all, false),
    ];
    for (what, damage, is_known) in cases {
        let dir = site.path("store/wave/sim.it_2");
        damage(&dir);
        let before = contents(&site.path("store"));
        let repair = |from: PathBuf| {
            let mut command = site.command("verify sim.it_2 --job wave --repair", "store");
            command.arg("--from").arg(from);
            command
        };
        let text = String::from_utf8(run(&mut repair(other.path("store")), 1).stdout).expect("UTF-8");
        let why = if is_known { "another checkpoint with the name sim.it_2" } else { "nothing that can be read here" };
        assert!(text.contains(why) && text.contains("name the store of the copy with --from"), "{what}: {text}");
        assert_same_files(&before, &contents(&site.path("store")));
        run(&mut repair(site.path("copy")), if is_known { 0 } else { 1 });
        if is_known {
            assert_same_files(&whole, &contents(&site.path("store")));
        }
    }
}

fn scratch_all(dir: &Path) {
    ["0000", "0001"].iter().for_each(|n| scratch(&dir.join(format!("group-{n}.manifest"))));
}

fn wreck_with_container(dir: &Path) {
    std::fs::write(dir.join("group-0000.manifest"), "damaged").expect("written");
    std::fs::write(dir.join("group-0000.mcr"), "damaged").expect("written");
}

fn wreck_all(dir: &Path) {
    wreck_with_container(dir);
    std::fs::write(dir.join("group-0001.manifest"), "damaged").expect("written");
    std::fs::write(dir.join("group-0001.mcr"), "damaged").expect("written");
}

#[test]
fn a_damaged_container_is_not_replaced_by_that_of_another_run() {
    let (site, other) = (Site::of_run(3000), Site::of_run(3100));
    let container = site.path("store/wave/sim.it_1/group-0001.mcr");
    std::fs::write(&container, "damaged").expect("written");
    let mut repair = site.command("verify sim.it_1 --job wave --repair", "store");
    let text = String::from_utf8(run(repair.arg("--from").arg(other.path("store")), 1).stdout).expect("UTF-8");
    assert!(text.contains("another checkpoint with the name sim.it_1"), "{text}");
    assert_eq!(std::fs::read(&container).expect("read"), b"damaged");
}

#[test]
fn steps_are_saved_whole_after_an_old_container_was_lost_and_a_copy_still_mends_the_old_steps() {
    for save_again in [false, true] {
        let site = Site::new();
        run(&mut site.copy("--job wave --all", "copy"), 0);
        let first = list(&site.path("store")).last().expect("three steps")["checkpoint"].clone();
        let lost = site.path("store/wave").join(first.as_str().expect("a name")).join("group-0000.mcr");
        std::fs::remove_file(&lost).expect("removed");
        if save_again {
            let mut save = site.command("save --job wave --group-size 2", "store");
            let saved = run(save.arg(site.path("data")).args(["--layout", "{checkpoint}.rank_{rank}.h5"]), 0);
            let said = String::from_utf8_lossy(&saved.stderr);
            assert!(said.contains("mcr verify --repair --from COPY"), "{said}");
            let to = site.path("again");
            run(site.command("restart --job wave", "store").arg("--to").arg(&to), 0);
            assert_eq!(contents(&to).len(), 4);
            assert!(!lost.exists(), "another container has the name of the lost one");
        }
        run(site.command("verify --repair --job wave", "store").arg("--from").arg(site.path("copy")), 0);
        let all = list(&site.path("store"));
        assert!(all.len() == if save_again { 6 } else { 3 } && all.iter().all(|c| c["complete"] == true), "{all:?}");
    }
}
