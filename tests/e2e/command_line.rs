//! Tests effects, output and exit status of `save`, `restart`, `list`, `show`, `verify` and `prune`.

use crate::support::*;
use mcrengine::container::ContainerWriter;
use mcrengine::ids::GroupId;
use mcrengine::store::PosixStore;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

#[test]
fn a_directory_of_other_programs_is_no_store_and_its_directories_are_no_checkpoints() {
    let dir = tempfile::tempdir().expect("a directory");
    let etc = dir.path().join("etc");
    std::fs::create_dir_all(etc.join("ssl/certs")).expect("made");
    std::fs::write(etc.join("ssl/certs/ca.pem"), "text").expect("written");
    let command = |name: &str| {
        let mut command = mcr();
        command.arg(name).arg("--store").arg(&etc);
        command
    };
    for name in ["list", "stats"] {
        let error = run_json(&mut command(name), 1)["error"].clone();
        assert!(error["message"].as_str().is_some_and(|text| text.contains("is no store of mcr")), "{error}");
        assert_eq!(error["path"], etc.to_str().expect("UTF-8"));
    }
    // A restart from such a directory is no new run.
    std::fs::create_dir(dir.path().join("run")).expect("made");
    std::fs::write(dir.path().join("run/out_1.0"), "a state").expect("written");
    for (store, job) in [("etc", &[][..]), ("etc", &["--job", "wave"]), ("run", &["--job", "wave"])] {
        let (store, to) = (dir.path().join(store), dir.path().join("to"));
        let failed = run(mcr().arg("restart").arg("--store").arg(&store).arg("--to").arg(to).args(job), 1);
        assert!(String::from_utf8_lossy(&failed.stderr).contains("is no store of mcr"), "{failed:?}");
        assert!(std::fs::read_dir(&store).expect("there").count() == 1, "something was recorded");
    }
    // The first group of a job is being written, and a directory of another program is in the job.
    std::fs::create_dir_all(etc.join("wave/it_1")).expect("made");
    std::fs::write(etc.join("wave/it_1/.group-0000.mcr.1f"), "begun").expect("written");
    std::fs::create_dir_all(etc.join("wave/plots")).expect("made");
    std::fs::write(etc.join("wave/plots/a.png"), "picture").expect("written");
    let listed = run_json(&mut command("list"), 0);
    let lines = listed["checkpoints"].as_array().expect("a list");
    let names: Vec<_> = lines.iter().map(|line| (line["checkpoint"].as_str(), line["state"].as_str())).collect();
    assert_eq!(names, [(Some("it_1"), Some("incomplete"))], "{listed}");
    let stats = run_json(&mut command("stats"), 0);
    assert_eq!(stats["jobs"].as_array().map(Vec::len), Some(1), "{stats}");
    assert_eq!(stats["jobs"][0]["checkpoints"].as_array().map(Vec::len), Some(1), "{stats}");
}

#[test]
fn an_incomplete_checkpoint_without_a_manifest_is_listed_by_the_time_of_its_directory() {
    let saved = Saved::new(&[1, 2]);
    // The times of files have a resolution of some milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let begun = saved.store().join("job/it_0");
    std::fs::create_dir(&begun).expect("made");
    std::fs::write(begun.join(".group-0000.mcr.1f"), "begun").expect("written");
    let ids = || -> Vec<String> {
        let ids = list(&saved.store()).into_iter().map(|line| line["checkpoint"].as_str().map(str::to_owned));
        ids.map(|id| id.expect("an ID")).collect()
    };
    assert_eq!(ids(), ["it_0", "sim.it_2", "sim.it_1"]);
    let mut restart = mcr();
    restart.args(["restart", "--copy", "--store"]).arg(saved.store()).arg("--to").arg(saved.to());
    let said = String::from_utf8(run(&mut restart, 0).stderr).expect("text");
    assert!(said.contains("it_0 may be newer than sim.it_2, but incomplete"), "{said}");
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let dir = std::fs::File::open(&begun).expect("opened");
    dir.set_modified(long_ago).expect("set");
    assert_eq!(ids(), ["sim.it_2", "sim.it_1", "it_0"]);
}

/// A directory with checkpoints of six ranks, and a store that holds all of these checkpoints.
struct Saved {
    dir: TempDir,
}

impl Saved {
    fn new(steps: &[u32]) -> Self {
        let saved = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(saved.data()).expect("made");
        for step in steps {
            (0..6).for_each(|rank| write_rank(&saved.data(), *step, rank, 900 + 100 * rank as usize));
        }
        saved.save(0);
        saved
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

    fn save(&self, expected: i32) -> serde_json::Value {
        run_json(
            mcr()
                .args(["save", "--create"])
                .arg(self.data())
                .args(["--group-size", "4", "--job", "job", "--store"])
                .arg(self.store()),
            expected,
        )
    }

    fn restart(&self, more: &[&str], expected: i32) -> serde_json::Value {
        let _ = std::fs::remove_dir_all(self.to());
        run_json(mcr().arg("restart").arg("--store").arg(self.store()).arg("--to").arg(self.to()).args(more), expected)
    }

    /// The files of one step, as the application wrote them.
    fn step(&self, step: u32) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
        let of_step = format!("it_{step}.");
        contents(&self.data()).into_iter().filter(|(path, _)| path.to_string_lossy().contains(&of_step)).collect()
    }

    fn container(&self, checkpoint: &str, group: u32) -> PathBuf {
        self.store().join("job").join(checkpoint).join(format!("group-{group:04}.mcr"))
    }
}

/// Flips one bit of a file, after one third of its bytes.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).expect("readable");
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).expect("writable");
}

fn ids(saved: &Saved) -> Vec<String> {
    list(&saved.store()).iter().map(|c| c["checkpoint"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn the_newest_checkpoint_comes_back_byte_for_byte() {
    let saved = Saved::new(&[9, 10]);
    let newest = ids(&saved)[0].clone();
    assert!(newest.contains("10"), "{newest}");
    let report = saved.restart(&[], 0);
    assert_eq!((&report["outcome"], &report["checkpoint"]), (&"restored".into(), &newest.into()));
    assert_same_files(&saved.step(10), &contents(&saved.to()));
}

#[test]
fn an_older_checkpoint_comes_back_when_it_is_asked_for() {
    let saved = Saved::new(&[9, 10]);
    let older = ids(&saved)[1].clone();
    saved.restart(&["--checkpoint", &older], 0);
    assert_same_files(&saved.step(9), &contents(&saved.to()));
}

#[test]
fn some_ranks_come_back_alone() {
    let saved = Saved::new(&[10]);
    saved.restart(&["--ranks", "1,4-5"], 0);
    let expected = saved
        .step(10)
        .into_iter()
        .filter(|(p, _)| ["rank_1.", "rank_4.", "rank_5."].iter().any(|r| p.to_string_lossy().contains(r)));
    assert_same_files(&expected.collect(), &contents(&saved.to()));
    let refused = run(
        mcr().arg("restart").arg("--store").arg(saved.store()).arg("--to").arg(saved.to()).args(["--ranks", "6"]),
        1,
    );
    assert!(String::from_utf8_lossy(&refused.stderr).contains("ranks 0 to 5"));
}

#[test]
fn a_damaged_newest_checkpoint_is_passed_over_openly() {
    let saved = Saved::new(&[9, 10]);
    let newest = ids(&saved)[0].clone();
    damage(&saved.container(&newest, 1));
    let report = saved.restart(&[], 2);
    assert_eq!(report["outcome"], "older");
    assert_eq!(report["passed_over"][0]["checkpoint"], newest);
    // No file of the damaged checkpoint was restored, not even of its undamaged group.
    assert_same_files(&saved.step(9), &contents(&saved.to()));
    saved_exactly(&saved, &newest);
}

fn saved_exactly(saved: &Saved, newest: &str) {
    let _ = std::fs::remove_dir_all(saved.to());
    let refused =
        run(mcr().arg("restart").arg("--exact").arg("--store").arg(saved.store()).arg("--to").arg(saved.to()), 1);
    assert!(String::from_utf8_lossy(&refused.stderr).contains(newest));
    assert!(!saved.to().exists(), "neither is something half written left nor the directory for it");
}

#[test]
fn a_checkpoint_without_one_manifest_does_not_exist() {
    let saved = Saved::new(&[9, 10]);
    let newest = ids(&saved)[0].clone();
    std::fs::remove_file(saved.container(&newest, 0).with_extension("manifest")).expect("removed");
    let report = saved.restart(&[], 0);
    assert!(report["checkpoint"] != newest, "the newest that exists is the older one, so this is no fallback");
    assert_same_files(&saved.step(9), &contents(&saved.to()));
}

#[test]
fn with_everything_damaged_a_restart_fails_and_writes_nothing() {
    let saved = Saved::new(&[10]);
    damage(&saved.container(&ids(&saved)[0], 0));
    let _ = std::fs::remove_dir_all(saved.to());
    let failed = run(mcr().arg("restart").arg("--store").arg(saved.store()).arg("--to").arg(saved.to()), 1);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("mcr verify"));
    assert!(!saved.to().exists());
}

#[test]
fn a_store_without_checkpoints_is_a_new_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    make_store(&store);
    let report = run_json(mcr().arg("restart").arg("--store").arg(store).arg("--to").arg(to), 3);
    assert_eq!(report["outcome"], "new-run");
}

#[test]
fn a_mistyped_command_is_not_taken_for_an_older_checkpoint() {
    for args in [&["restart", "--sotre", "x"][..], &["restart", "--to"], &["restart"], &["restrat"]] {
        run(mcr().args(args), 1);
    }
    run(mcr().args(["restart", "--help"]), 0);
}

#[test]
fn saving_again_stores_nothing_again() {
    let saved = Saved::new(&[9, 10]);
    let before = contents(&saved.store());
    let report = saved.save(0);
    assert!(
        report["checkpoints"].as_array().expect("a list").iter().all(|c| c["outcome"] == "there-already"),
        "{report}"
    );
    assert_same_files(&before, &contents(&saved.store()));
}

#[test]
fn another_content_under_the_same_names_becomes_another_checkpoint() {
    let saved = Saved::new(&[10]);
    let first = saved.step(10);
    (0..6).for_each(|rank| write_rank(&saved.data(), 10, rank, 500));
    saved.save(0);
    let all = ids(&saved);
    assert_eq!(all.len(), 2);
    assert_eq!(all[0], format!("{}~2", all[1]));
    saved.restart(&[], 0);
    assert_same_files(&saved.step(10), &contents(&saved.to()));
    saved.restart(&["--checkpoint", &all[1]], 0);
    assert_same_files(&first, &contents(&saved.to()));
}

#[test]
fn files_with_times_of_long_ago_are_one_checkpoint_all_the_same() {
    let saved = Saved::new(&[10]);
    for rank in 0..6 {
        write_rank(&saved.data(), 10, rank, 500);
        if rank >= 4 {
            // The files of the second group look much older than the files of the first group.
            let file =
                std::fs::File::options().write(true).open(saved.data().join(format!("sim.it_10.rank_{rank}.h5")));
            let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(1 << 20);
            file.and_then(|file| file.set_modified(long_ago)).expect("its time is set");
        }
    }
    saved.save(0);
    assert_eq!(ids(&saved).len(), 2);
    let report = saved.restart(&[], 0);
    assert!(report["checkpoint"].as_str().is_some_and(|id| id.ends_with("~2")), "{report}");
    assert_same_files(&saved.step(10), &contents(&saved.to()));
}

#[test]
fn a_checkpoint_with_a_missing_rank_is_not_saved_and_said_so() {
    let saved = Saved::new(&[9]);
    (0..5).for_each(|rank| write_rank(&saved.data(), 10, rank, 500));
    let report = saved.save(4);
    let incomplete = &report["checkpoints"][1];
    assert_eq!((&incomplete["outcome"], &incomplete["checkpoint"]), (&"incomplete".into(), &serde_json::Value::Null));
    assert!(
        incomplete["reason"].as_str().expect("a reason").contains("rank 5 has no file (of 6 ranks)"),
        "{incomplete}"
    );
}

#[test]
fn a_chunk_that_does_not_come_back_though_all_before_did_is_stored_as_it_stands() {
    let dir = tempfile::tempdir().expect("a directory");
    let [data, store, to] = ["data", "store", "to"].map(|name| dir.path().join(name));
    std::fs::create_dir(&data).expect("made");
    // Random numbers do not compress: 32 KiB for each rank and step.
    let rough = |step: u32, rank: u32| -> Vec<u64> {
        (0..4096).map(|i| (i + 1 + u64::from(step * 10 + rank) * 4096).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
    };
    let mut last = 0;
    for (step, rank) in (1..=2).flat_map(|step| (0..6).map(move |rank| (step, rank))) {
        let file = begin_rank(&data, step, rank, 900);
        let rough = rough(step, rank);
        let dataset = file.new_dataset_builder().deflate(6).chunk(1024).with_data(&rough).create("rough");
        let dataset = dataset.expect("written");
        last = dataset.chunk_info(3).expect("a chunk").addr as usize;
        file.close().expect("closed");
    }
    // The header of the last chunk names another deflate level.
    let name = data.join("sim.it_2.rank_5.h5");
    let mut bytes = std::fs::read(&name).expect("read");
    assert_eq!(bytes[last..last + 2], [0x78, 0x9c]);
    bytes[last + 1] = 0xda;
    std::fs::write(&name, bytes).expect("written");

    let args = ["--group-size", "4", "--job", "job", "--profile", "balanced", "--threads", "1", "--store"];
    run(mcr().args(["save", "--create"]).arg(&data).args(args).arg(&store), 0);
    run_json(mcr().arg("restart").arg("--store").arg(&store).arg("--to").arg(&to), 0);
    let mut newest = contents(&data);
    newest.retain(|path, _| path.to_string_lossy().contains("it_2."));
    assert_same_files(&newest, &contents(&to));
    assert_eq!(list(&store).len(), 2);
}

#[test]
fn what_did_not_change_is_stored_once_and_survives_pruning() {
    let saved = Saved::new(&[8, 9, 10]);
    let shown = run_json(mcr().arg("show").arg("--store").arg(saved.store()), 0);
    assert!(!shown["references"].as_array().expect("a list").is_empty(), "the mesh is the same at every step: {shown}");
    run(mcr().args(["prune", "--keep", "1", "--store"]).arg(saved.store()), 0);
    assert_eq!(ids(&saved).len(), 1);
    saved.restart(&[], 0);
    assert_same_files(&saved.step(10), &contents(&saved.to()));
    run(mcr().args(["verify", "--store"]).arg(saved.store()), 0);
}

#[test]
fn verify_finds_damage_and_names_it() {
    let saved = Saved::new(&[10]);
    run(mcr().args(["verify", "--store"]).arg(saved.store()), 0);
    damage(&saved.container(&ids(&saved)[0], 1));
    let report = run(mcr().args(["verify", "--store"]).arg(saved.store()), 1);
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(text.contains("DAMAGED") && text.contains("group-0001"), "{text}");
}

#[test]
fn show_tells_the_classes_with_the_papers_hash_keys() {
    let saved = Saved::new(&[10]);
    let shown = run_json(mcr().arg("show").arg("--store").arg(saved.store()), 0);
    let keys: Vec<&str> =
        shown["classes"].as_array().expect("a list").iter().map(|c| c["key"].as_str().expect("a key")).collect();
    for key in ["state/temperature_F64LE_Array1D", "state/mesh_F64LE_Array1D", "state/ids_I32LE_Array1D"] {
        assert!(keys.contains(&key), "{key} is not among {keys:?}");
    }
    let text = run(mcr().arg("show").arg("--files").arg("--store").arg(saved.store()), 0);
    assert!(String::from_utf8_lossy(&text.stdout).contains("sim.it_10.rank_5.h5"));
}

#[test]
fn with_v_each_command_that_works_on_a_store_prints_log_lines() {
    let saved = Saved::new(&[10]);
    let (other, to) = (saved.dir.path().join("other"), saved.to());
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (data, other, to) = (text(&saved.data()), text(&other), text(&to));
    make_store(Path::new(&other));
    let lines = |args: &[&str], store: &str| {
        let said = run(mcr().args(args).args(["--store", store]), 0).stderr;
        String::from_utf8(said).expect("UTF-8").lines().filter(|line| line.contains("INFO")).count()
    };
    let store = text(&saved.store());
    let all: [(&[&str], &str); 6] = [
        (&["save", &data, "--job", "job", "--group-size", "4"], &store),
        (&["restart", "--to", &to], &store),
        (&["verify"], &store),
        (&["copy", "--from", &store, "--all"], &other),
        (&["stats"], &store),
        (&["prune", "--keep", "1", "--dry-run"], &store),
    ];
    for (args, store) in all {
        assert_eq!(lines(args, store), 0, "{args:?}");
        let verbose = [args, &["-v"]].concat();
        let n = lines(&verbose, store);
        assert!((2..20).contains(&n), "{verbose:?}: {n}");
    }
}

#[test]
fn a_wrong_address_of_an_aggregator_is_reported_before_a_missing_certificate() {
    for address in ["foo", "", "n1:", "n1:70000"] {
        for command in [&["status"][..], &["restart", "--store", "/nowhere", "--to", "/nowhere"][..]] {
            let said = run(mcr().args(command).args(["--aggregators", address]), 1).stderr;
            let said = String::from_utf8(said).expect("UTF-8");
            assert!(said.contains("it must be HOST:PORT") && !said.contains("certificate"), "{address}: {said}");
        }
    }
}

#[test]
fn several_jobs_in_a_store_must_be_told_apart() {
    let saved = Saved::new(&[10]);
    run(mcr().args(["save", "--create"]).arg(saved.data()).args(["--job", "other", "--store"]).arg(saved.store()), 0);
    let refused = run(mcr().arg("restart").arg("--store").arg(saved.store()).arg("--to").arg(saved.to()), 1);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("--job") && text.contains("other"), "{text}");
    saved.restart(&["--job", "other"], 0);
    assert_same_files(&saved.step(10), &contents(&saved.to()));
}

#[test]
fn every_scheme_and_profile_gives_back_the_same_bytes() {
    let saved = Saved::new(&[10]);
    for scheme in ["agnostic", "agnostic-block", "aware", "aware-block"] {
        for profile in ["fast", "balanced", "max", "paper", "paper-single", "raw"] {
            let store = saved.dir.path().join(format!("{scheme}-{profile}"));
            let more = ["--scheme", scheme, "--profile", profile, "--block-bytes", "1000", "--job", "j", "--store"];
            run(mcr().args(["save", "--create"]).arg(saved.data()).args(more).arg(&store), 0);
            let _ = std::fs::remove_dir_all(saved.to());
            run(mcr().arg("restart").arg("--store").arg(&store).arg("--to").arg(saved.to()), 0);
            assert_same_files(&saved.step(10), &contents(&saved.to()));
        }
    }
}

#[test]
fn a_damaged_manifest_is_told_and_not_taken_for_a_checkpoint_that_never_was() {
    let saved = Saved::new(&[1, 2]);
    for (age, id) in ids(&saved).iter().enumerate() {
        for group in 0..2 {
            let manifest = saved.container(id, group).with_extension("manifest");
            let bytes = std::fs::read(&manifest).expect("readable");
            std::fs::write(&manifest, &bytes[..bytes.len() / 2 * group as usize]).expect("cut");
        }
        let listed = run_json(mcr().arg("list").arg("--store").arg(saved.store()), 0);
        let line = &listed["checkpoints"][age];
        assert_eq!(
            (&line["checkpoint"], &line["damaged"], &line["complete"]),
            (&id[..].into(), &true.into(), &false.into())
        );
        run(mcr().arg("verify").arg("--store").arg(saved.store()), 1);
        if age == 0 {
            let report = saved.restart(&[], 2);
            assert_eq!((&report["outcome"], &report["wanted"]), (&"older".into(), &id[..].into()), "{report}");
            assert_eq!(report["passed_over"].as_array().map(Vec::len), Some(1), "{report}");
            assert_eq!(contents(&saved.to()), saved.step(1));
            let exact = mcr()
                .arg("restart")
                .arg("--exact")
                .arg("--store")
                .arg(saved.store())
                .arg("--to")
                .arg(saved.to())
                .output();
            assert_eq!(exact.expect("it starts").status.code(), Some(1));
        }
    }
    let output = run(mcr().arg("restart").arg("--store").arg(saved.store()).arg("--to").arg(saved.to()), 1);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is damaged, and no checkpoint of job"), "not a new run: {said}");
}

#[test]
fn a_file_size_limit_is_an_error_that_names_the_file() {
    let saved = Saved::new(&[1]);
    let limited = |what: &str| {
        let script = format!(
            "ulimit -f 4; exec \"$0\" {what} --job job --store \"$1\" {} \"$2\"",
            if what == "save" { "--create" } else { "--to" }
        );
        let mut command = std::process::Command::new("bash");
        let (store, dir) = match what {
            "save" => (saved.dir.path().join("other"), saved.data()),
            _ => (saved.store(), saved.to()),
        };
        let output = run(command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_mcr")).arg(store).arg(dir), 1);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = limited("save");
    assert!(said.contains("group-000") && said.contains("File too large"), "{said}");
    let said = limited("restart");
    assert!(said.contains(".h5") && said.contains("File too large"), "{said}");
}

#[test]
fn a_store_below_the_directory_is_not_saved_into_itself() {
    let saved = Saved::new(&[1]);
    let store = saved.data().join("below/store");
    let save = |expected| {
        let mut command = mcr();
        run_json(
            command
                .args(["save", "--create"])
                .arg(saved.data())
                .args(["--group-size", "4", "--job", "job", "--store"])
                .arg(&store),
            expected,
        )
    };
    let first = save(0);
    assert_eq!(first["checkpoints"][0]["outcome"], "saved", "{first}");
    let again = save(0);
    assert_eq!(
        (again["checkpoints"].as_array().map(Vec::len), &again["checkpoints"][0]["outcome"]),
        (Some(1), &"there-already".into()),
        "{again}"
    );
    assert_eq!(again["checkpoints"][0]["files"], 6);
}

#[test]
fn two_who_save_one_directory_at_once_both_succeed_and_agree_about_the_order() {
    let saved = Saved::new(&[1, 2, 3, 4, 5]);
    for (round, profile) in ["raw", "zstd", "raw", "zstd"].into_iter().enumerate() {
        let store = saved.dir.path().join(format!("shared-{round}"));
        let save = || {
            let mut command = mcr();
            command.args(["save", "--create"]).arg(saved.data()).args([
                "--group-size",
                "2",
                "--job",
                "job",
                "--profile",
                profile,
            ]);
            let report = run_json(command.arg("--store").arg(&store), 0);
            report["checkpoints"].as_array().map(Vec::len)
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(save);
            assert_eq!((save(), other.join().expect("no panic")), (Some(5), Some(5)));
        });
        run(mcr().arg("verify").arg("--store").arg(&store), 0);
        let listed = list(&store);
        let newest_first: Vec<_> =
            listed.iter().map(|c| c["checkpoint"].as_str().expect("a name").to_owned()).collect();
        assert_eq!(newest_first, ids(&saved));
        assert!(listed.iter().all(|c| c["complete"] == true), "{listed:?}");
        let places = || list(&store).iter().map(|c| c["sequence"].as_u64().expect("a number")).collect::<Vec<_>>();
        assert_eq!(places(), [5, 4, 3, 2, 1], "as if one had saved alone");
        let last = store.join("job").join(&ids(&saved)[0]).join("group-0001.manifest");
        std::fs::remove_file(last).expect("as if it had been stopped before");
        save();
        assert_eq!(places(), [5, 4, 3, 2, 1], "what is completed keeps its place");
    }
}

#[test]
fn a_group_that_another_process_is_saving_is_waited_for_as_long_as_was_said() {
    let saved = Saved { dir: tempfile::tempdir().expect("a directory") };
    std::fs::create_dir(saved.data()).expect("made");
    (0..6).for_each(|rank| write_rank(&saved.data(), 7, rank, 900));
    let save = |wait: &str| {
        let mut command = mcr();
        command
            .args(["save", "--create"])
            .arg(saved.data())
            .args(["--job", "job", "--wait", wait, "--store"])
            .arg(saved.store());
        command
    };
    // A save to another store shows the name that the checkpoint will get.
    let elsewhere = tempfile::tempdir().expect("a directory");
    run(mcr().args(["save", "--create"]).arg(saved.data()).args(["--job", "job", "--store"]).arg(elsewhere.path()), 0);
    let id = list(elsewhere.path())[0]["checkpoint"].as_str().expect("a name").parse().expect("an identifier");
    let job = "job".parse().expect("an identifier");
    let store = PosixStore::create(saved.store()).expect("a store");
    let other = ContainerWriter::create(&store, &job, &id, GroupId(0)).expect("it writes");
    let output = run(&mut save("1"), 1);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("waited 1 s; save again when the other process has ended, or give a longer --wait"),
        "{error}"
    );
    assert!(error.contains("another process is saving this checkpoint now"), "{error}");
    // A process that waits for the lock saves the checkpoint when it gets the lock.
    let waiting = Daemon::start(&mut save("60"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(other);
    wait_complete(&saved.store(), id.as_str());
    drop(waiting);
    assert_eq!(list(&saved.store()).len(), 1);
}
