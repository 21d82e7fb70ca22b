//! Tests `prune`, the rules for kept checkpoints, and the states that `list` prints.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A store with the checkpoints of steps 1 to `steps`, with two ranks and one rank in each group.
fn saved(steps: u32, more: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("made");
    for step in 1..=steps {
        (0..2).for_each(|rank| write_rank(&data, step, rank, 2000));
    }
    let mut save = mcr();
    save.args(["save", "--create"])
        .arg(&data)
        .args(["--group-size", "1", "--job", "job", "--store"])
        .arg(store(&dir))
        .args(more);
    run(&mut save, 0);
    dir
}

fn store(dir: &TempDir) -> PathBuf {
    dir.path().join("store")
}

fn prune(dir: &TempDir, args: &[&str], expected: i32) -> String {
    let output = run(mcr().arg("prune").args(args).arg("--store").arg(store(dir)), expected);
    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
}

/// Names and states of the checkpoints, newest first.
fn states(dir: &TempDir) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    list(&store(dir)).iter().map(|c| (text(&c["checkpoint"]), text(&c["state"]))).collect()
}

fn names(dir: &TempDir) -> Vec<String> {
    states(dir).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn what_stays_of_a_pruned_checkpoint_is_listed_with_its_bytes_and_those_that_need_it() {
    let dir = saved(4, &[]);
    let all = names(&dir);
    prune(&dir, &["--keep", "2", "--repack-below", "0"], 0);
    let listed = run_json(mcr().args(["list", "--all", "--store"]).arg(store(&dir)), 0);
    let rows = listed["checkpoints"].as_array().expect("a list");
    let row = |id: &str| rows.iter().find(|row| row["checkpoint"] == id).unwrap_or_else(|| panic!("{id}: {listed}"));
    let bytes = |id: &str| -> u64 {
        let container = |group: u32| store(&dir).join("job").join(id).join(format!("group-{group:04}.mcr"));
        (0..2).map(|group| std::fs::metadata(container(group)).map_or(0, |found| found.len())).sum()
    };
    let held = &row(&all[3])["held"];
    assert_eq!(held["bytes"], bytes(&all[3]));
    assert_eq!(held["by"], serde_json::json!([all[0], all[1]]), "newest first");
    let needed = held["needed_bytes"].as_u64().expect("it can be told");
    assert!(needed > 0 && needed < bytes(&all[3]), "{needed}: the mesh is needed, and nothing else");
    assert!(row(&all[0])["held"].is_null(), "what is not pruned is held for itself");
    let said = run(mcr().args(["list", "--all", "--store"]).arg(store(&dir)), 0);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = format!("{} is pruned; ", all[3]);
    assert!(
        said.contains(&line) && said.contains(&format!("are still there for {}, {}, about ", all[0], all[1])),
        "{said}"
    );
    let said = run(mcr().args(["list", "--store"]).arg(store(&dir)), 0);
    assert!(!String::from_utf8_lossy(&said.stdout).contains("pruned"));
}

/// Replaces a manifest by a directory, so that the manifest cannot be read. A test can cause this I/O error without a
/// failing disk.
fn hide(manifest: &Path) {
    std::fs::rename(manifest, manifest.with_extension("hidden")).expect("renamed");
    std::fs::create_dir(manifest).expect("made");
}

fn show(manifest: &Path) {
    std::fs::remove_dir(manifest).expect("removed");
    std::fs::rename(manifest.with_extension("hidden"), manifest).expect("renamed");
}

#[test]
fn what_cannot_be_read_just_now_is_called_so_and_nothing_is_removed_meanwhile() {
    let dir = saved(5, &[]);
    let all = names(&dir);
    let manifest = store(&dir).join("job").join(&all[2]).join("group-0001.manifest");
    hide(&manifest);
    assert_eq!(states(&dir)[2].1, "unreadable", "{:?}", states(&dir));
    let before = contents(&store(&dir));
    for args in [&["--keep", "1"][..], &["--keep", "5", "--incomplete"], &["--drop", &all[4]]] {
        let said = prune(&dir, args, 1);
        assert!(said.contains(&format!("{} was not read", all[2])) && said.contains("--drop"), "{said}");
        assert!(contents(&store(&dir)) == before, "{args:?}: nothing is removed");
    }
    show(&manifest);
    assert!(states(&dir).iter().all(|(_, state)| state == "complete"));
    run(mcr().args(["verify", "--store"]).arg(store(&dir)), 0);
    assert!(prune(&dir, &["--keep", "1"], 0).contains("4 checkpoints removed"));
}

#[test]
fn a_checkpoint_without_its_container_is_damaged_and_the_file_is_named() {
    let dir = saved(3, &[]);
    let all = names(&dir);
    let container = store(&dir).join("job").join(&all[0]).join("group-0001.mcr");
    let whole = std::fs::read(&container).expect("readable");
    std::fs::write(&container, &whole[..whole.len() - 1]).expect("written");
    assert_eq!(states(&dir)[0].1, "damaged");
    std::fs::remove_file(&container).expect("removed");
    let listed = &list(&store(&dir))[0];
    assert_eq!((&listed["state"], &listed["complete"]), (&"damaged".into(), &false.into()));
    assert!(listed["problems"][0].as_str().is_some_and(|what| what.contains("group-0001.mcr")), "{listed}");
    let said = prune(&dir, &["--keep", "1"], 0);
    assert!(said.contains("1 checkpoint removed"), "{said}");
    assert!(names(&dir).contains(&all[1]), "what cannot be restored does not count among those that are kept");
}

#[test]
fn a_pruned_checkpoint_is_called_pruned_by_every_command() {
    let dir = saved(3, &[]);
    let oldest = names(&dir)[2].clone();
    prune(&dir, &["--keep", "1"], 0);
    let listed = run_json(mcr().args(["list", "--all", "--store"]).arg(store(&dir)), 0);
    let states: Vec<_> = listed["checkpoints"].as_array().expect("a list").iter().map(|c| c["state"].clone()).collect();
    assert!(states.contains(&"pruned".into()), "the mesh of the first step is referred to: {listed}");
    let to = dir.path().join("to");
    for mut command in
        [mcr(), mcr(), mcr()].into_iter().zip(["verify", "show", "restart"]).map(|(mut command, name)| {
            command.arg(name);
            match name {
                "restart" => command.arg("--to").arg(&to).args(["--copy", "--checkpoint", &oldest]),
                _ => command.arg(&oldest),
            };
            command
        })
    {
        let output = run(command.arg("--store").arg(store(&dir)), 1);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("prune") && !said.contains("damaged"), "{command:?}: {said}");
    }
}

#[test]
fn a_dry_run_changes_nothing_and_a_drop_removes_just_what_is_named() {
    let dir = saved(4, &[]);
    let (all, before) = (names(&dir), contents(&store(&dir)));
    let said = prune(&dir, &["--keep-last", "1", "--dry-run"], 0);
    assert!(said.contains("3 checkpoints would be removed"), "{said}");
    let said = prune(&dir, &["--drop", &all[0], "--drop", "nonsense"], 1);
    assert!(said.contains("has no checkpoint nonsense"), "{said}");
    prune(&dir, &[], 1);
    assert!(contents(&store(&dir)) == before);
    assert!(prune(&dir, &["--drop", &all[2]], 0).contains("1 checkpoint removed"));
    assert_eq!(names(&dir), [&all[..2], &all[3..]].concat());
    assert!(prune(&dir, &["--keep-within", "1h"], 0).contains("0 checkpoints removed"), "all of the last second");
    assert!(prune(&dir, &["--keep-daily", "7"], 0).contains("removed"));
    assert_eq!(names(&dir)[0], all[0]);
}

#[test]
fn a_checkpoint_that_is_marked_as_bad_is_listed_so_until_the_mark_is_taken_away() {
    let dir = saved(3, &[]);
    let all = names(&dir);
    prune(&dir, &["--mark-bad", &all[0], "--reason", "diverged"], 0);
    let listed = &list(&store(&dir))[0];
    assert_eq!((&listed["state"], &listed["bad"]), (&"bad".into(), &"diverged".into()));
    let shown = run(mcr().args(["show", "latest", "--json", "--store"]).arg(store(&dir)), 0);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["checkpoint"], all[1].as_str(), "latest is what a restart would restore");
    prune(&dir, &["--keep", "1"], 0);
    assert_eq!(names(&dir), all[..2], "a bad one is not counted, and one that is newer than what stays is left");
    prune(&dir, &["--unmark", &all[0]], 0);
    assert_eq!(states(&dir)[0].1, "complete");
}

#[test]
fn a_dry_run_counts_with_the_marks_that_the_real_command_sets_or_removes_first() {
    let dir = saved(3, &[]);
    let all = names(&dir);
    let removed = |id: &str, said: &str| said.lines().any(|line| line.ends_with(&format!(" remove {id}")));
    let said = prune(&dir, &["--mark-bad", &all[0], "--keep", "1", "--dry-run"], 0);
    assert_eq!([0, 1, 2].map(|n| removed(&all[n], &said)), [false, false, true], "{said}");
    prune(&dir, &["--mark-bad", &all[0]], 0);
    let said = prune(&dir, &["--unmark", &all[0], "--keep", "1", "--dry-run"], 0);
    assert_eq!([0, 1, 2].map(|n| removed(&all[n], &said)), [false, true, true], "{said}");
    assert_eq!(states(&dir)[0].1, "bad", "a dry run changes no mark");
    prune(&dir, &["--mark-bad", &all[0], "--keep", "1"], 0);
    assert_eq!(names(&dir), all[..2]);
}

#[test]
fn empty_directories_and_old_temporary_files_go_and_new_ones_stay() {
    let dir = saved(2, &[]);
    let job = store(&dir).join("job");
    std::fs::create_dir(job.join("it_7")).expect("made");
    std::fs::create_dir(job.join("it_8")).expect("made");
    std::fs::write(job.join("it_8/.group-0000.mcr.00000000000000aa"), b"half").expect("written");
    let old = job.join(&names(&dir)[0]).join(".group-0000.mcr.00000000000000bb");
    let file = std::fs::File::create(&old).expect("made");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).expect("set");
    drop(file);
    let of_killed_run = job.join(".holders/.group-0000.00000000000000cc");
    std::fs::create_dir_all(job.join(".holders")).expect("made");
    let file = std::fs::File::create(&of_killed_run).expect("made");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).expect("set");
    drop(file);
    prune(&dir, &["--keep", "9"], 0);
    assert!(!job.join("it_7").exists() && !old.exists() && !of_killed_run.exists());
    assert!(job.join("it_8").exists(), "a writer may be at work there");
    assert_eq!(names(&dir).len(), 3);
}

#[test]
fn a_prune_that_removes_the_last_checkpoint_says_that_the_next_restart_starts_a_new_run() {
    let dir = saved(2, &[]);
    let all = names(&dir);
    let said = prune(&dir, &["--drop", &all[0], "--drop", &all[1], "--dry-run"], 0);
    assert!(said.contains("no complete checkpoint would be left: the next restart would start a new run"), "{said}");
    let said = prune(&dir, &["--keep", "1"], 0);
    assert!(!said.contains("new run"), "{said}");
    let said = prune(&dir, &["--drop", &all[0]], 0);
    assert!(said.contains("no complete checkpoint is left: the next restart starts a new run"), "{said}");
    let to = dir.path().join("to");
    run(mcr().args(["restart", "--job", "job", "--store"]).arg(store(&dir)).arg("--to").arg(to), 3);
}

#[test]
fn a_checkpoint_that_is_dropped_does_not_count_as_one_of_those_to_keep() {
    let dir = saved(4, &[]);
    let all = names(&dir);
    prune(&dir, &["--keep", "1", "--drop", &all[0]], 0);
    assert_eq!(names(&dir), [all[1].as_str()]);
}

#[test]
fn an_empty_directory_is_not_called_a_leftover_of_a_dead_writer() {
    let dir = saved(2, &[]);
    // A writer whose disk was full leaves such a directory, and tries again later.
    std::fs::create_dir(store(&dir).join("job/sim.it_3")).expect("made");
    let said = prune(&dir, &["--keep", "2", "--job", "job"], 0);
    assert!(said.contains("1 leftover removed (empty directories, and temporary files of writers that"), "{said}");
    assert!(!store(&dir).join("job/sim.it_3").exists());
}

#[test]
fn a_save_that_keeps_some_removes_older_ones_afterwards() {
    let dir = saved(5, &["--keep", "2"]);
    assert_eq!(names(&dir).len(), 2);
    assert!(names(&dir)[0].contains('5'), "{:?}", names(&dir));
}

#[test]
fn the_newest_of_each_series_of_names_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = dir.path().join("run");
    std::fs::create_dir(&watch).expect("made");
    for (n, name) in
        ["checkpoints_s1", "analysis_s1", "checkpoints_s2", "analysis_s2", "analysis_s3"].iter().enumerate()
    {
        std::fs::write(watch.join(format!("{name}.r0")), format!("{name} {n}").repeat(900)).expect("written");
        std::thread::sleep(Duration::from_millis(20));
    }
    let layout = ["--layout", "{checkpoint}.r{rank}", "--job", "job", "--keep", "1", "--create", "--store"];
    run(mcr().arg("save").arg(&watch).args(layout).arg(store(&dir)), 0);
    assert_eq!(names(&dir), ["analysis_s3", "checkpoints_s2"]);
}

#[test]
fn an_aggregator_that_keeps_some_removes_older_ones_after_each_commit() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = dir.path().join("run");
    std::fs::create_dir(&watch).expect("made");
    let (anc, address) = Daemon::aggregator(dir.path(), "anc", &store(&dir), "group-size = 1\nkeep = 2");
    let layout = "layout = \"sim.it_{checkpoint}.rank_{rank}.h5\"\nranks = 2\ngroup-size = 1";
    let cnc = Daemon::agent(dir.path(), "cnc", &watch, &[address], layout);
    for step in 1..=4 {
        (0..2).for_each(|rank| write_rank(&watch, step, rank, 900));
        wait_for("the newest is complete", Duration::from_secs(60), || {
            let all = if store(&dir).join("job").exists() { list(&store(&dir)) } else { Vec::new() };
            let id = format!("{step}");
            all.into_iter()
                .find(|c| c["complete"] == true && c["checkpoint"].as_str().is_some_and(|c| c.ends_with(&id)))
        });
    }
    wait_for("older ones are removed", Duration::from_secs(30), || {
        let left = names(&dir); // the order may change while a checkpoint is removed
        (left.len() == 2 && left[0].ends_with('4') && left[1].ends_with('3')).then_some(())
    });
    run(mcr().args(["verify", "--store"]).arg(store(&dir)), 0);
    anc.wait_for_log("removed old checkpoints");
    drop((cnc, anc));
}

/// Measures how long `mcr list` takes with 10,000 checkpoints. To run this test:
/// `MCR_MEASURE=1 cargo test -p mcr-cli --test e2e ten_thousand -- --nocapture`.
#[test]
fn ten_thousand_checkpoints_are_listed_within_a_second() {
    if std::env::var_os("MCR_MEASURE").is_none() {
        eprintln!("SKIPPED: it makes 10,000 checkpoints and measures; MCR_MEASURE=1 runs it");
        return;
    }
    let dir = saved(1, &[]);
    let job = store(&dir).join("job");
    let first = names(&dir)[0].clone();
    let text =
        |group: u32| std::fs::read(job.join(&first).join(format!("group-{group:04}.manifest"))).expect("readable");
    let containers =
        [0, 1].map(|group| std::fs::read(job.join(&first).join(format!("group-{group:04}.mcr"))).expect("readable"));
    let manifests = [0, 1].map(|group| String::from_utf8(text(group)).expect("text"));
    for n in 0..10_000 {
        let id = format!("c{n:05}");
        std::fs::create_dir(job.join(&id)).expect("made");
        for group in 0..2 {
            let manifest = &manifests[group];
            let end = manifest.rfind("blake3 ").expect("a last line");
            let named = manifest[..end].replace(&format!("{first:?}"), &format!("{id:?}"));
            let digest = mcrengine::ids::Digest::of(named.as_bytes());
            std::fs::write(
                job.join(&id).join(format!("group-{group:04}.manifest")),
                format!("{named}blake3 {digest}\n"),
            )
            .expect("written");
            std::fs::write(job.join(&id).join(format!("group-{group:04}.mcr")), &containers[group]).expect("written");
        }
    }
    for _ in 0..3 {
        let began = std::time::Instant::now();
        run(mcr().args(["list", "--store"]).arg(store(&dir)), 0);
        eprintln!("{:.3} s", began.elapsed().as_secs_f64());
    }
    assert_eq!(list(&store(&dir)).iter().filter(|c| c["complete"] == true).count(), 10_001);
}

#[test]
fn a_checkpoint_that_was_found_damaged_does_not_count_among_those_that_prune_keeps() {
    for finder in ["verify", "restart"] {
        let dir = saved(3, &[]);
        let all = names(&dir);
        let container = store(&dir).join("job").join(&all[0]).join("group-0000.mcr");
        let good = std::fs::read(&container).expect("readable");
        let mut bytes = good.clone();
        let third = bytes.len() / 3;
        bytes[third] ^= 4;
        std::fs::write(&container, bytes).expect("written");
        match finder {
            "verify" => run(mcr().args(["verify", "--store"]).arg(store(&dir)), 1),
            _ => run(
                mcr().args(["restart", "--copy", "--store"]).arg(store(&dir)).arg("--to").arg(dir.path().join("look")),
                2,
            ),
        };
        assert_eq!(states(&dir)[0], (all[0].clone(), "damaged".to_owned()), "{finder}");
        prune(&dir, &["--keep", "1"], 0);
        assert_eq!(names(&dir), all[..2], "{finder}");
        run(mcr().args(["restart", "--copy", "--store"]).arg(store(&dir)).arg("--to").arg(dir.path().join("to")), 2);
        // After the disk is repaired, the mark is removed.
        std::fs::write(&container, &good).expect("written");
        run(mcr().args(["verify", "--store"]).arg(store(&dir)), 0);
        prune(&dir, &["--keep", "1"], 0);
        assert_eq!(states(&dir), [(all[0].clone(), "complete".to_owned())], "{finder}");
    }
}

#[test]
fn stats_reports_the_bytes_on_disk_and_what_prune_then_frees() {
    let dir = saved(4, &[]);
    // Records of a job that has no directory.
    std::fs::create_dir(store(&dir).join(".melt.incarnations")).expect("made");
    std::fs::write(store(&dir).join(".melt.incarnations/0001"), [b'x'; 700]).expect("written");
    let stats = |more: &[&str]| run_json(mcr().args(["stats", "--store"]).arg(store(&dir)).args(more), 0);
    let on_disk = || -> u64 { contents(&store(&dir)).values().map(|bytes| bytes.len() as u64).sum() };
    let before = on_disk();
    let plots = dir.path().join("plots");
    let report = stats(&["--keep", "2", "--plots", plots.to_str().expect("UTF-8")]);
    assert_eq!(report["disk_bytes"], before, "{report}");
    assert!(std::fs::read_to_string(plots.join("ratio-job.svg")).expect("a plot").starts_with("<svg"));
    let of_job = &report["jobs"][0];
    assert_eq!(
        (&of_job["prune"]["rules"], of_job["checkpoints"].as_array().map(Vec::len)),
        (&"--keep 2".into(), Some(4))
    );
    let text = String::from_utf8(run(mcr().args(["stats", "--store"]).arg(store(&dir)), 0).stdout).expect("UTF-8");
    assert!(
        text.contains("mcr prune with --keep 1 would remove 3 checkpoints") && text.contains("ratio from"),
        "{text}"
    );
    let prune =
        |more: &[&str]| run_json(mcr().args(["prune", "--keep", "2", "--store"]).arg(store(&dir)).args(more), 0);
    let freed = |pruned: &serde_json::Value| pruned["freed_bytes"].as_u64().expect("a number");
    assert_eq!(freed(&of_job["prune"]), freed(&prune(&["--dry-run"])));
    let (exact, with_repacking) = (freed(&prune(&["--dry-run", "--repack-below", "0"])), freed(&of_job["prune"]));
    assert_eq!(freed(&prune(&["--repack-below", "0"])), exact, "without repacking the dry run is exact");
    // Some containers of pruned checkpoints remain, because other checkpoints need these containers.
    let after = stats(&[]);
    let held: u64 = (after["jobs"][0]["checkpoints"].as_array().expect("a list").iter())
        .filter(|one| one["pruned"] == true)
        .map(|one| one["disk_bytes"].as_u64().expect("a number"))
        .sum();
    assert_eq!(after["jobs"][0]["held_bytes"], held);
    assert!(held > 0 && after["jobs"][0]["needed_bytes"].as_u64().is_some_and(|needed| needed <= held), "{after}");
    let repacked = freed(&prune(&[]));
    let (told, done) = (with_repacking as f64, (exact + repacked) as f64);
    assert!(repacked > 0 && (told / done - 1.0).abs() < 0.1, "told {told}, done {done}");
}

#[test]
fn bytes_of_a_checkpoint_that_is_known_to_be_damaged_are_stored_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("made");
    let mesh: Vec<u32> = (0..1u32 << 16).map(|n| n.wrapping_mul(2_654_435_761)).collect();
    let save = |step: u32| {
        let file = hdf5::File::create(data.join(format!("sim.{step}.0.h5"))).expect("created");
        file.new_dataset_builder().with_data(&mesh).create("mesh").expect("written");
        file.new_dataset_builder().with_data(&[step; 100]).create("time").expect("written");
        file.close().expect("closed");
        let mut save = mcr();
        save.arg("save").arg(&data).args(["--create", "--job", "job", "--layout", "sim.{checkpoint}.{rank}.h5"]);
        run(save.arg("--store").arg(store(&dir)), 0);
    };
    (1..=3).for_each(save);
    let oldest = names(&dir).pop().expect("a name");
    let container = store(&dir).join("job").join(oldest).join("group-0000.mcr");
    let mut bytes = std::fs::read(&container).expect("read");
    let half = bytes.len() / 2;
    bytes[half..half + 1000].fill(0xA5);
    std::fs::write(&container, bytes).expect("written");
    let restart = |to: &str, expected: i32| {
        let mut restart = mcr();
        restart.args(["restart", "--copy", "--store"]).arg(store(&dir)).arg("--to").arg(dir.path().join(to));
        run(&mut restart, expected);
    };
    restart("none", 1); // each checkpoint needs the mesh of the first
    run(mcr().args(["verify", "--store"]).arg(store(&dir)), 1);
    save(4);
    restart("back", 0);
    let mut of_step = contents(&data);
    of_step.retain(|path, _| path.to_string_lossy().contains("sim.4."));
    assert_eq!(of_step.len(), 1);
    assert_same_files(&of_step, &contents(&dir.path().join("back")));
}
