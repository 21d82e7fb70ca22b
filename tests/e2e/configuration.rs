//! Configuration files: what is shipped loads, what is wrong is refused by name.

use crate::support::*;
use std::path::Path;

fn check(text: &str, expected: i32) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("mcr.toml");
    std::fs::write(&file, text).expect("written");
    let output = run(mcr().args(["config", "check"]).arg(&file), expected);
    String::from_utf8_lossy(if expected == 0 { &output.stdout } else { &output.stderr }).into_owned()
}

#[test]
fn every_configuration_that_is_shipped_can_be_used() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/config");
    let mut checked = 0;
    for entry in std::fs::read_dir(&dir).expect("deploy/config is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "toml") {
            run(mcr().args(["config", "check"]).arg(&path), 0);
            checked += 1;
        }
    }
    assert!(checked > 0, "deploy/config holds no configuration");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    let text = check("[anc]\nstore = \"/x\"\ngroup-sise = 4\n", 1);
    assert!(text.contains("group-sise") && text.contains("group-size"), "{text}");
    let text = check("[cnc]\nagregators = [\"a:1\"]\n", 1);
    assert!(text.contains("agregators") && text.contains("aggregators"), "{text}");
}

#[test]
fn a_value_out_of_range_is_refused_with_what_it_may_be() {
    let text = check("[anc]\nstore = \"/x\"\nbudget-mib = 3\n", 1);
    assert!(text.contains("anc.budget-mib is 3; with segments of 4 MiB it must be between 12"), "{text}");
}

#[test]
fn the_printed_defaults_are_known_keys() {
    let defaults = run(mcr().args(["config", "defaults"]), 0);
    let text = String::from_utf8_lossy(&defaults.stdout).into_owned();
    assert!(text.contains("[cnc]") && text.contains("[anc]") && text.contains("group-size = 32"), "{text}");
}
