//! `mcr advise`: the interval between checkpoints, from measured times and a failure rate.

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
    for part in ["job wave, the newest 4 complete checkpoints", "by Young", "by Daly", "in use", "--restart-seconds"] {
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
