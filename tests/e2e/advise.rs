//! `mcr advise`: the interval between checkpoints, from measured times and a failure rate, and what other settings
//! would bring.

use crate::bench::assert_is_xml;
use crate::support::*;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

const STEPS: u32 = 4;

/// A store with checkpoints of two files. The time between two checkpoints is 600 s. The time between the two files
/// of a checkpoint is `spread`.
fn store(dir: &Path, spread: Duration) {
    let data = dir.join("data");
    std::fs::create_dir(&data).expect("made");
    for step in 1..=STEPS {
        let last = SystemTime::now() - Duration::from_secs(600 * u64::from(STEPS - step));
        for (rank, time) in [(0, last - spread), (1, last)] {
            write_rank(&data, step, rank, 900);
            let file = File::options().append(true).open(data.join(format!("sim.it_{step}.rank_{rank}.h5")));
            file.expect("opened").set_modified(time).expect("set");
        }
    }
    let mut save = mcr();
    save.args(["save", "--create", "--job", "wave", "--store"]).arg(dir.join("store")).arg(&data);
    run(&mut save, 0);
}

fn advise(dir: &Path, more: &str) -> Command {
    let mut command = mcr();
    command.arg("advise").args(more.split(' ')).arg("--store").arg(dir.join("store")).current_dir(dir);
    command
}

fn line<'v>(value: &'v Value, formula: &str) -> &'v Value {
    let lines = value["intervals"].as_array().expect("a list");
    lines.iter().find(|line| line["formula"] == formula).unwrap_or_else(|| panic!("no {formula}: {value}"))
}

#[test]
fn the_intervals_follow_from_the_times_of_the_files_and_the_failure_rate() {
    let dir = tempfile::tempdir().expect("a directory");
    store(dir.path(), Duration::from_secs(10));
    let value = run_json(&mut advise(dir.path(), "--mtbf 24 --keep 3"), 0);
    let near = |value: &Value, expected: f64| (value.as_f64().expect("a number") / expected - 1.0).abs() < 0.01;
    assert!(near(&value["measured"]["write_ms"], 10_000.0), "{value}");
    assert!(near(&value["measured"]["interval_ms"], 600_000.0) && value["measured"]["count"] == STEPS, "{value}");
    assert!(near(&line(&value, "in-use")["interval_ms"], 590_000.0), "{value}");
    // Young's interval is the square root of 2 * 10 s * 86400 s.
    assert!(near(&line(&value, "young")["interval_ms"], 1_314_534.0), "{value}");
    assert!(near(&line(&value, "daly")["interval_ms"], 1_307_872.0), "{value}");
    let lost = |formula: &str| line(&value, formula)["lost_percent"].as_f64().expect("a number");
    assert!(lost("daly") < lost("in-use"), "{value}");
    let kept = line(&value, "young")["kept"].as_array().expect("a list");
    let stored = value["measured"]["stored_bytes"].as_u64().expect("a number");
    assert!(kept.iter().all(|one| one["count"] == 3 && one["stored_bytes"] == 3 * stored), "{value}");
    // Given times replace measured times, and the rules of the job's settings are used.
    let settings = format!("job = \"wave\"\nwatch = \".\"\nkeep = 2\nstore = {:?}\n", dir.path().join("store"));
    std::fs::write(dir.path().join("mcr.toml"), settings).expect("written");
    let value = run_json(&mut advise(dir.path(), "--mtbf 24 --write-seconds 40 --restart-seconds 600"), 0);
    assert!(near(&line(&value, "young")["interval_ms"], 2_629_068.0), "{value}");
    assert_eq!(line(&value, "young")["kept"][2]["count"], 2, "{value}");
    let text = String::from_utf8(run(&mut advise(dir.path(), "--mtbf 24"), 0).stdout).expect("UTF-8");
    for part in [
        "one in 24 h, as given",
        "job wave, the newest 4 complete checkpoints",
        "by Young",
        "by Daly",
        "in use",
        "--restart-seconds",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_time_that_the_store_does_not_have_must_be_given() {
    let dir = tempfile::tempdir().expect("a directory");
    store(dir.path(), Duration::ZERO);
    let error = run_json(&mut advise(dir.path(), "--mtbf 24"), 1);
    assert!(error["error"]["advice"].as_str().is_some_and(|text| text.contains("--write-seconds")), "{error}");
    run(&mut advise(dir.path(), "--mtbf 24 --write-seconds 3"), 0);
    for wrong in ["--mtbf 0", "--mtbf x", "--mtbf 24 --write-seconds -1", "--mtbf inf"] {
        run(&mut advise(dir.path(), wrong), 1);
    }
}

#[test]
fn other_profiles_and_group_sizes_are_measured_on_the_stored_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("made");
    (0..4).for_each(|rank| write_rank(&data, 1, rank, 20_000));
    let mut save = mcr();
    save.args(["save", "--create", "--job", "wave", "--group-size", "2", "--no-reuse", "--profile", "fast", "--store"]);
    run(save.arg(dir.path().join("store")).arg(&data), 0);
    let options = "--mtbf 24 --write-seconds 2 --measure --profiles balanced --group-sizes 1,4,64 --threads 1";
    let value = run_json(&mut advise(dir.path(), options), 0);
    let list = |name: &str| value[name].as_array().expect("a list").clone();
    let of = |name: &str, key: &str| list(name).iter().map(|one| one[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("profiles", "profile"), ["fast", "balanced"], "{value}");
    assert_eq!(of("group_sizes", "group_size"), [1, 2, 4], "{value}");
    assert_eq!(of("aggregators", "aggregators"), [1, 2], "{value}");
    assert_eq!(value["sample"]["too_large"], serde_json::json!([64]), "{value}");
    // The measurement repeats the save, so it finds the bytes of the store.
    let stored = value["measured"]["stored_bytes"].as_f64().expect("a number");
    let fast = &list("profiles")[0];
    assert_eq!(fast["in_use"], true);
    assert!((fast["stored_bytes"].as_f64().expect("a number") / stored - 1.0).abs() < 0.001, "{value}");
    // In this sample, larger groups need fewer bytes.
    let bytes: Vec<u64> =
        of("group_sizes", "stored_bytes").iter().map(|bytes| bytes.as_u64().expect("bytes")).collect();
    assert!(bytes[0] > bytes[1] && bytes[1] > bytes[2], "{bytes:?}");
    let text = String::from_utf8(run(&mut advise(dir.path(), options), 0).stdout).expect("UTF-8");
    for part in ["fast (in use)", "balanced", "2 (in use)", "aggregators", "Group size 64: not measured"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    run(&mut advise(dir.path(), "--mtbf 24 --write-seconds 2 --profiles balanced"), 1);
}

#[test]
fn the_failure_rate_and_the_time_of_a_restart_come_from_the_restarts_of_the_job() {
    let dir = tempfile::tempdir().expect("a directory");
    store(dir.path(), Duration::from_secs(10));
    let error = run_json(&mut advise(dir.path(), "--keep 3"), 1);
    assert!(error["error"]["advice"].as_str().is_some_and(|text| text.contains("--mtbf")), "{error}");
    let mut restart = mcr();
    restart.args(["restart", "--incarnation", "second", "--store"]).arg(dir.path().join("store"));
    run(restart.arg("--to").arg(dir.path().join("to")), 0);
    let value = run_json(&mut advise(dir.path(), "--keep 3"), 0);
    // The first start wrote its four checkpoints within 1800 s.
    let near = |value: &Value, expected: f64| (value.as_f64().expect("a number") / expected - 1.0).abs() < 0.01;
    assert!(value["restarts"]["count"] == 1 && near(&value["mtbf_ms"], 1_800_000.0), "{value}");
    assert_eq!(value["restart_ms"], value["measured"]["restart_ms"], "{value}");
    let text = String::from_utf8(run(&mut advise(dir.path(), "--keep 3"), 0).stdout).expect("UTF-8");
    assert!(text.contains("1 restart in 30 min") && text.contains("in mcr restart"), "{text}");
}

#[test]
fn checkpoints_that_were_saved_long_after_the_run_do_not_count_as_slow_commits() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("made");
    write_rank(&data, 1, 0, 900);
    let old = SystemTime::now() - Duration::from_secs(86_400 * 9);
    let file = File::options().append(true).open(data.join("sim.it_1.rank_0.h5")).expect("opened");
    file.set_modified(old).expect("set");
    drop(file); // a file that is open for writing is not saved
    let mut save = mcr();
    run(save.args(["save", "--create", "--job", "wave", "--store"]).arg(dir.path().join("store")).arg(&data), 0);
    let value = run_json(&mut advise(dir.path(), "--mtbf 24 --write-seconds 5"), 0);
    assert_eq!(value["measured"]["saved_later"], true, "{value}");
    assert_eq!(value["measured"]["commit_ms"], value["measured"]["flush_ms"], "{value}");
}

#[test]
fn the_picture_shows_the_lost_time_and_the_growth_of_the_store() {
    let dir = tempfile::tempdir().expect("a directory");
    store(dir.path(), Duration::from_secs(10));
    run(&mut advise(dir.path(), "--mtbf 24 --keep 3 --svg advice.svg"), 0);
    let svg = std::fs::read_to_string(dir.path().join("advice.svg")).expect("written");
    assert_is_xml(&svg);
    let parts =
        ["by Young: 21 min", "by Daly: 21 min", "in use: 9 min", "lost time", "bytes in the store", "under the rules"];
    for part in parts {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    let refused = run(&mut advise(dir.path(), "--mtbf 24 --svg missing/advice.svg --json"), 1).stdout;
    let refused: Value = serde_json::from_slice(&refused).expect("JSON");
    assert_eq!(refused["error"]["path"], "missing/advice.svg");
}

#[test]
fn a_given_time_to_write_that_is_above_the_interval_in_use_is_named_instead_of_a_row() {
    let dir = tempfile::tempdir().expect("a directory");
    store(dir.path(), Duration::from_secs(10));
    let text =
        String::from_utf8(run(&mut advise(dir.path(), "--mtbf 24 --write-seconds 700"), 0).stdout).expect("UTF-8");
    assert!(!text.contains("in use  ") && text.contains("There is no row for the interval in use"), "{text}");
    assert!(text.contains("checkpoints are 10 min") && text.contains("one takes 11 min 40 s to write"), "{text}");
}
