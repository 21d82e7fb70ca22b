//! Between emulated sites (`tests/cluster/sites.sh`), where links have known rates: what is found must be what is there.
//!
//! Skipped, aloud, where that script finds no root or no namespaces. Others' work on the machine only makes a link seem
//! slower, so that each measurement may be made three times until one is as it should be.

mod support;

use std::process::Command;
use std::sync::Mutex;
use support::{MPIB, json, stderr};

/// One emulation at a time: two would share the cores.
static ALONE: Mutex<()> = Mutex::new(());

/// LAN, WAN and trunk in Mbit/s, one way of the trunk in ms.
struct Links(u32, u32, u32, u32);

/// The report of `mpib` on 4 + 4 hosts, and the bytes that passed the trunk; nothing where there can be no sites.
fn between_sites(links: &Links, words: &str) -> Option<(serde_json::Value, u64)> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cluster/sites.sh");
    // mpirun's own time limit, within the script, so that the sites go away in any case; the trunk's bytes go to stderr
    let inner = "timeout --kill-after=20 240 \"$SITES_MPIRUN\" -n 8 \"$@\"; code=$?; echo \"trunk $($SITES_TRUNK)\" >&2; exit $code";
    let mut command = Command::new(script);
    command.args(["bash", "-c", inner, "sites", MPIB]).args(words.split_whitespace());
    for (name, value) in [("LAN", links.0), ("WAN", links.1), ("TRUNK", links.2), ("DELAY_MS", links.3)] {
        command.env(name, value.to_string());
    }
    let output = command.output().expect("bash runs");
    if output.status.code() == Some(77) {
        eprint!("{}", stderr(&output));
        return None;
    }
    let text = stderr(&output);
    let trunk = text.lines().find_map(|l| l.strip_prefix("trunk ")).unwrap_or_default();
    let bytes = trunk.split(' ').filter_map(|n| n.parse::<u64>().ok()).sum();
    Some((json(output), bytes))
}

/// Three attempts at what `judge` accepts; its last complaint otherwise.
fn found(links: &Links, words: &str, mut judge: impl FnMut(&serde_json::Value, u64) -> Result<(), String>) {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let mut last = String::new();
    for _ in 0..3 {
        let Some((report, trunk)) = between_sites(links, words) else { return };
        match judge(&report, trunk) {
            Ok(()) => return,
            Err(complaint) => last = complaint,
        }
        eprintln!("once more: {last}");
    }
    panic!("{last}");
}

fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// Not so for what is no number.
fn near(found: f64, truth: f64, within: f64) -> bool {
    (found / truth - 1.0).abs() <= within
}

/// What each direction has: times by implementation, and the models'.
fn direction<'r>(report: &'r serde_json::Value, name: &str) -> &'r serde_json::Value {
    let choices = report["found"]["choices"].as_array().expect("choices");
    choices.iter().find(|c| c["operation"] == name).expect("scatter and gather")
}

const LANES: &str = "lanes --sites 0-3/4-7 --min-reps 3 --max-reps 3 --warm-up 1 --rate-reps 2 --format json";

#[test]
fn four_lanes_beat_one_where_the_line_is_wider_than_a_host() {
    found(&Links(1000, 100, 400, 0), LANES, |report, trunk| {
        for (name, least) in [("scatter", 2.5), ("gather", 3.0)] {
            let found = direction(report, name);
            let time = |what: &str| number(&found["measured_seconds"][what]);
            let best = (1..=4).map(|p| time(&format!("lanes-{p}"))).fold(f64::MAX, f64::min);
            let gain = time("lanes-1") / best;
            if gain.is_nan() || gain < least {
                return Err(format!("{name}: {gain} x over one lane, at least {least} is needed: {found}"));
            }
            let chosen = found["best_lanes_by_model"].as_u64().unwrap_or(0);
            if time(&format!("lanes-{chosen}")) > 1.1 * best {
                return Err(format!("{name}: {chosen} lanes chosen, more than 10 % off the best: {found}"));
            }
            for lanes in 1..=4 {
                let measured = time(&format!("lanes-{lanes}"));
                let model = number(&found["model_seconds"]["Overlapped"][lanes - 1]);
                if !near(model, measured, 0.15) {
                    return Err(format!("{name}, {lanes} lanes: model {model}, measured {measured}"));
                }
            }
        }
        // 4 far blocks each time, each way, in seven implementations, four times
        let least = 2 * 7 * 4 * (4 << 20);
        if trunk < least { Err(format!("{trunk} bytes over the trunk, at least {least} must be")) } else { Ok(()) }
    });
}

#[test]
fn linear_is_chosen_where_lanes_bring_nothing() {
    // b_LAN = b_WAN: what the root gives away over its LAN it could as well send itself
    let words = format!("{LANES} --sizes 512KiB");
    found(&Links(100, 100, 400, 0), &words, |report, _| {
        for name in ["scatter", "gather"] {
            let found = direction(report, name);
            if !found["lanes_by_model"].is_null() {
                return Err(format!("{name}: the model chooses {}", found["lanes_by_model"]));
            }
        }
        Ok(())
    });
}

#[test]
fn a_model_finds_the_links_as_they_are() {
    // a token bucket counts whole frames; 1448 of 1514 bytes are ours
    let goodput = |mbit: f64| mbit * 1e6 / 8.0 * 1448.0 / 1514.0;
    let words = "model --sizes 256KiB,2MiB --min-reps 3 --max-reps 3 --train 2 --triples 1 --format json";
    found(&Links(100, 50, 400, 10), words, |report, _| {
        let pairs = report["found"]["hockney_pairs"]["values"].as_array().expect("pairs");
        // links of a kind are equal: their median is off only when most of them were disturbed
        let of_kind = |others: std::ops::Range<usize>, what: &str| {
            let values = others.map(|j| number(&pairs[mpib::models::PairMatrix::<()>::index(8, 0, j)][what]));
            mpib::stats::median(&values.collect::<Vec<_>>())
        };
        let latency = of_kind(4..8, "latency_seconds");
        if !near(latency, 10e-3, 0.1) {
            return Err(format!("latency of the WAN: {latency}, truth 0.01"));
        }
        for (others, mbit) in [(1..4, 100.0), (4..8, 50.0)] {
            let (rate, truth) = (1.0 / of_kind(others, "seconds_per_byte"), goodput(mbit));
            if !near(rate, truth, 0.05) {
                return Err(format!("{mbit} Mbit/s: {rate} bytes each second, truth {truth}"));
            }
        }
        Ok(())
    });
}

#[test]
fn sites_are_found_by_round_trips_and_an_artful_program_gains_where_an_artless_one_loses() {
    // 48 rows: a ratio of 2 shares them without a remainder
    let words = "jor --size 24 --pace 25000,12500 --periods 1,4,8 --format json";
    found(&Links(1000, 1000, 1000, 5), words, |report, _| {
        let sites = report["context"]["sites"].as_array().expect("sites");
        let sites: Vec<_> = sites.iter().filter_map(serde_json::Value::as_u64).collect();
        if sites != [0, 0, 0, 0, 1, 1, 1, 1] {
            return Err(format!("sites {sites:?}"));
        }
        let found = &report["found"]["runs"][0]["outcome"];
        let (ratio, artless, artful) = (number(&found["ratio"]), number(&found["artless"]), number(&found["artful"]));
        let good = near(ratio, 2.0, 0.05) && artless < 0.9 && artful >= 1.2;
        if good { Ok(()) } else { Err(format!("ratio {ratio}, truth 2; artless {artless}, artful {artful}")) }
    });
}
