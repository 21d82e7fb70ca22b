//! The shipped configuration file loads, and errors name the wrong key.

use crate::support::*;
use mcr_anc::config::AncOptions;
use mcr_cnc::config::{CncOptions, parse_toml};
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
        // The cluster's file has other tables, and is tested in settings.rs.
        if path.extension().is_some_and(|e| e == "toml") && !path.ends_with("cluster.toml") {
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
fn all_unknown_keys_of_a_file_are_named_with_their_lines() {
    let text = check("[cnc]\njob = \"a\"\nwatch = \"/x\"\nagregators = [\"a:1\"]\n[anc]\nstroe = \"/x\"\n", 1);
    assert!(text.contains(":4: unknown key \"agregators\" in [cnc]"), "{text}");
    assert!(text.contains(":6: unknown key \"stroe\" in [anc]"), "{text}");
}

#[test]
fn the_settings_of_a_job_are_told_from_a_file_of_daemons() {
    let said = check("job = \"wave\"\nwatch = \"run\"\n", 1);
    assert!(said.contains("mcr job show checks them"), "{said}");
}

#[test]
fn a_value_out_of_range_is_refused_with_what_it_may_be() {
    let text = check("[anc]\nstore = \"/x\"\nbudget-mib = 3\n", 1);
    let expected = "anc.budget-mib is 3; with segments of 4 MiB and the profile fast it must be between 12";
    assert!(text.contains(expected), "{text}");
    let text = check("[anc]\nstore = \"/x\"\nbudget-mib = 255\nprofile = \"max\"\n", 1);
    let expected = "anc.budget-mib is 255; with segments of 16 MiB and the profile max it must be between 256";
    assert!(text.contains(expected), "{text}");
}

/// The shipped file, in which every line `# key = value` becomes a line of its table. Also returns each of these
/// lines separately.
fn printed_defaults() -> (String, Vec<(&'static str, String)>) {
    let printed = run(mcr().args(["config", "defaults"]), 0);
    let (mut whole, mut lines, mut table) = (String::new(), Vec::new(), "");
    for line in String::from_utf8(printed.stdout).expect("text").lines() {
        table = match line.split(']').next() {
            Some("[cnc") => "cnc",
            Some("[anc") => "anc",
            _ => table,
        };
        let open = line.strip_prefix("# ").filter(|rest| {
            let key = rest.split(" = ").next().unwrap_or_default();
            rest.contains(" = ") && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
        });
        lines.extend(open.map(|open| (table, open.to_owned())));
        whole.push_str(open.unwrap_or(line));
        whole.push('\n');
    }
    (whole, lines)
}

fn load(text: &str) -> (CncOptions, AncOptions) {
    #[derive(Default, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct File {
        cnc: CncOptions,
        anc: AncOptions,
    }
    let File { cnc, anc } = parse_toml(text, Path::new("defaults")).expect("the shipped lines are understood");
    (cnc, anc)
}

#[test]
fn every_key_stands_in_the_printed_defaults() {
    let (whole, _) = printed_defaults();
    check(&whole, 0);
    let tables: toml::Table = whole.parse().expect("TOML");
    for table in ["cnc", "anc"] {
        // An unknown key is refused with the list of the known keys.
        let refused = check(&format!("[{table}]\nqqqq = 1\n"), 1);
        let known = refused.split("the keys are ").nth(1).expect("a list of keys");
        for key in known.trim().split(", ") {
            assert!(tables[table].as_table().expect("a table").contains_key(key), "[{table}] does not name {key}");
        }
    }
}

#[test]
fn what_the_printed_defaults_call_a_default_is_one() {
    let (_, lines) = printed_defaults();
    let untouched = format!("{:?}", load(""));
    let mut defaults = 0;
    for (table, line) in lines {
        let is_example = line.contains("# e.g. ");
        let same = format!("{:?}", load(&format!("[{table}]\n{line}\n"))) == untouched;
        assert_eq!(same, !is_example, "[{table}] {line}");
        defaults += usize::from(same);
    }
    assert!(defaults >= 20, "only {defaults} defaults are shown");
}
