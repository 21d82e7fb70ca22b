//! `mcr bench` reports the same number of bytes as a save stores. This file also tests the reports, plots and errors
//! of `mcr bench`. `mcr bench partitions` counts the loads that the partition manager makes.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;

fn set(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/checkpoints").join(name)
}

fn bench(kind: &str, dir: &Path) -> Command {
    let mut command = mcr();
    command.args(["bench", kind]).arg(dir);
    command
}

/// Saves the set to a new store. Returns the bytes of the files and the stored bytes of this checkpoint.
fn saved_bytes(dir: &Path, checkpoint: &str, more: &[&str]) -> (u64, u64) {
    let store = tempfile::tempdir().expect("a directory");
    let mut save = mcr();
    save.args(["save", "--create"]).arg(dir).args(["--no-reuse", "--store"]).arg(store.path()).args(more);
    let report = run_json(&mut save, 0);
    let of = report["checkpoints"].as_array().expect("a list").iter().find(|line| line["label"] == checkpoint);
    let number = |key: &str| of.expect("the same checkpoint")[key].as_u64().expect("a number");
    (number("file_bytes"), number("stored_bytes"))
}

fn points<'a>(report: &'a serde_json::Value, figure: &str) -> Vec<&'a serde_json::Value> {
    let lines = report[figure].as_array().expect("lines");
    lines.iter().flat_map(|line| line["points"].as_array().expect("points")).collect()
}

#[test]
fn bench_schemes_reports_to_the_byte_what_a_save_stores() {
    for name in ["dedalus-rayleighbenard", "lammps-binarymelt"] {
        let dir = set(name);
        let mut command = bench("schemes", &dir);
        command.args(["--group-sizes", "3,16", "--block-sizes", "4K", "--profiles", "fast,balanced"]);
        let report = run_json(&mut command, 0);
        assert_eq!(report["bounds"]["is_complete"], true);
        assert_eq!(report["looked_at"]["measured_ranks"], 16, "{name}");
        let points = [points(&report, "figure_7"), points(&report, "figure_9")].concat();
        assert_eq!(points.len(), 6 * 2 + 6 * 2, "six lines over two group sizes, and over two checkpoints");
        for point in points {
            let text = |key: &str| point[key].as_str().expect("text").to_owned();
            let (size, scheme, coder) = (point["group_size"].to_string(), text("scheme"), text("coder"));
            let mut more = vec!["--scheme", &scheme, "--profile", &coder, "--group-size", &size];
            // Every container records a block size, also with schemes that do not use it.
            if !point["block_bytes"].is_null() {
                more.extend(["--block-bytes", "4096"]);
            }
            let saved = saved_bytes(&dir, &text("checkpoint"), &more);
            let found = ["file_bytes", "stored_bytes"].map(|key| point[key].as_u64().expect("a number"));
            assert_eq!((found[0], found[1]), saved, "{name}: {point}");
        }
    }
}

#[test]
fn bench_schemes_reports_every_table_and_figure_and_draws_them() {
    let dir = set("dedalus-rayleighbenard");
    let plots = tempfile::tempdir().expect("a directory");
    let run_with = |command: &mut Command| {
        command.args(["--group-sizes", "1,64", "--block-sizes", "512,64K", "--profiles", "fast", "--plots"]);
        command.arg(plots.path().join("new"));
    };
    let mut command = bench("schemes", &dir);
    run_with(&mut command);
    let report = run_json(&mut command, 0);
    let table = &report["table_3"];
    assert_eq!((&table["ranks"], &table["files"], &table["variables"]), (&16.into(), &17.into(), &61.into()));
    let of_types: u64 =
        ["double_bytes", "float_bytes", "other_bytes"].iter().filter_map(|key| table[key].as_u64()).sum();
    assert_eq!(Some(of_types), table["variable_bytes"].as_u64());
    assert!(table["double_bytes"].as_u64() > Some(of_types / 100 * 98), "Dedalus writes doubles: {table}");
    let skeleton = table["file_bytes"].as_u64().expect("bytes") - table["variable_bytes"].as_u64().expect("bytes");
    assert_eq!(table["skeleton_bytes"].as_u64(), Some(skeleton), "nothing is filtered, so the rest is skeleton");
    let lines = |figure: &str| report[figure].as_array().expect("a list").len();
    assert_eq!(["figure_6", "figure_7", "figure_8", "figure_9", "table_4"].map(lines), [7, 5, 2, 5, 2]);
    assert!(points(&report, "figure_7").iter().any(|point| point["group_size"] == 16), "64 is all sixteen");
    for line in report["table_4"].as_array().expect("a list") {
        let percent = |end: &str| line[end]["percent"].as_f64().expect("a number");
        assert!(percent("best") >= percent("worst"), "{line}");
    }
    for figure in ["figure-6", "figure-7", "figure-8", "figure-9"] {
        let svg = std::fs::read_to_string(plots.path().join("new").join(format!("{figure}.svg"))).expect("written");
        assert_is_xml(&svg);
        assert!(svg.contains("raw bytes for each stored byte"), "{figure} has no unit");
        assert!(figure == "figure-8" || svg.contains("fast (ours)"), "{figure} does not show our profile");
    }

    let mut command = bench("schemes", &dir);
    run_with(&mut command);
    let text = String::from_utf8(run(&mut command, 0).stdout).expect("UTF-8");
    for part in ["Table III", "Figure 6", "Figure 7", "Figure 8", "Figure 9", "Table IV", "Bounds:"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

/// Checks that elements are closed in the right order, attributes are quoted, and markup characters occur only as
/// markup.
pub fn assert_is_xml(text: &str) {
    let (mut open, mut rest, mut elements) = (Vec::new(), text, 0);
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "a lone > before {:?}", &rest[at..rest.len().min(at + 60)]);
        let end = at + rest[at..].find('>').expect("every tag ends");
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => elements += 1,
            None => open.push(tag.split_whitespace().next().expect("a name")),
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && elements > 10, "{open:?} stay open, {elements} elements");
}

#[test]
fn bench_codecs_covers_every_byte_and_promises_what_a_save_stores() {
    for name in ["dedalus-rayleighbenard", "lammps-binarymelt"] {
        let dir = set(name);
        let mut command = bench("codecs", &dir);
        command.args(["--repetitions", "1", "--profiles", "fast,paper,max", "--group-size", "8", "--plots"]);
        let plots = tempfile::tempdir().expect("a directory");
        command.arg(plots.path().join("new"));
        let report = run_json(&mut command, 0);
        for (figure, unit) in [("ratios", "raw bytes for each stored byte"), ("rates", "raw bytes, MB/s")] {
            let file = plots.path().join("new").join(format!("{figure}.svg"));
            let svg = std::fs::read_to_string(file).expect("written");
            assert_is_xml(&svg);
            assert!(svg.contains(unit) && svg.contains("all classes"), "{figure}: {svg}");
        }
        let looked = &report["looked_at"];
        let bytes = |value: &serde_json::Value| value.as_u64().expect("bytes");
        let classes = report["classes"].as_array().expect("a list");
        let raw: u64 = classes.iter().map(|class| bytes(&class["raw_bytes"])).sum();
        assert_eq!(raw, bytes(&looked["file_bytes"]), "{name}: no filters, so the variables are the files");
        for class in classes {
            let codecs = class["codecs"].as_object().expect("codecs");
            let ratio = |codec: &serde_json::Value| codec["ratio"].as_f64().expect("a number");
            let best = &codecs[class["best"].as_str().expect("a name")];
            assert!(codecs.values().all(|codec| ratio(codec) <= ratio(best)), "{class}");
            assert!(codecs.contains_key("raw") && codecs.contains_key("fast") && codecs.contains_key("max"));
            let rates = ["encode_bytes_per_second", "decode_bytes_per_second"];
            assert!(codecs.values().all(|codec| rates.iter().all(|key| codec[key].as_f64().expect("a rate") > 0.0)));
            let is_doubles = class["element"] == "F64LE";
            assert_eq!(codecs.contains_key("fpc"), is_doubles, "{}", class["key"]);
        }
        let checkpoint = looked["checkpoint"].as_str().expect("a label");
        for line in report["profiles"].as_array().expect("a list") {
            let profile = line["profile"].as_str().expect("a name");
            let (_, stored) = saved_bytes(&dir, checkpoint, &["--profile", profile, "--group-size", "8"]);
            assert_eq!((&line["stored_bytes"], &line["is_exact"]), (&stored.into(), &true.into()), "{name}: {profile}");
        }
    }
}

#[test]
fn bench_codecs_shows_the_largest_classes_and_sums_up_the_others() {
    let mut command = bench("codecs", &set("dedalus-rayleighbenard"));
    command.args(["--classes", "2", "--repetitions", "1", "--profiles", "fast"]);
    let text = String::from_utf8(run(&mut command, 0).stdout).expect("UTF-8");
    assert!(text.contains("smaller classes") && text.contains("all classes") && text.contains("Bounds:"), "{text}");
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(widest <= 130, "a line of {widest} characters in\n{text}");
}

#[test]
fn a_sample_leaves_ranks_out_and_says_so() {
    for kind in ["codecs", "schemes"] {
        let mut command = bench(kind, &set("lammps-binarymelt"));
        command.args(["--sample", "200K", "--profiles", "fast"]);
        let report = run_json(&mut command, 0);
        let looked = &report["looked_at"];
        let ranks = looked["measured_ranks"].as_u64().expect("ranks");
        assert!((1..16).contains(&ranks), "{kind}: {looked}");
        assert!(looked["measured_file_bytes"].as_u64().expect("bytes") <= 200 << 10, "{kind}: {looked}");
        assert_eq!(looked["ranks"], 16);
    }
}

#[test]
fn one_rank_is_a_group_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    write_rank(dir.path(), 7, 0, 900);
    std::os::unix::fs::symlink("sim.it_7.rank_0.h5", dir.path().join("newest")).expect("linked");
    let report = run_json(bench("schemes", dir.path()).args(["--block-sizes", "4K", "--profiles", "fast"]), 0);
    assert_eq!(report["looked_at"]["ranks"], 1);
    assert!(points(&report, "figure_7").iter().all(|point| point["group_size"] == 1));
    assert!(points(&report, "figure_9").is_empty(), "one checkpoint is no series");
    let report = run_json(bench("codecs", dir.path()).args(["--profiles", "fast"]), 0);
    let looked = &report["looked_at"];
    assert_eq!((&looked["measured_files"], &looked["files"]), (&1.into(), &1.into()), "a link is no file: {looked}");
    assert_eq!(looked["measured_file_bytes"], looked["file_bytes"], "{looked}");
    assert!(!report["classes"].as_array().expect("a list").is_empty());
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |command: &mut Command| String::from_utf8(run(command, 1).stderr).expect("UTF-8");
    for kind in ["codecs", "schemes"] {
        let text = refused(&mut bench(kind, dir.path()));
        assert!(text.contains("it holds no file"), "{text}");
        let text = refused(&mut bench(kind, &dir.path().join("not-there")));
        assert!(text.contains("not-there: cannot be opened"), "{text}");
        let file = dir.path().join("file");
        std::fs::write(&file, b"x").expect("written");
        let text = refused(&mut bench(kind, &file));
        assert!(text.contains("is not a directory; give the directory that holds the checkpoints"), "{text}");
        std::fs::remove_file(&file).expect("removed");
    }
    (0..3).for_each(|rank| write_rank(dir.path(), 7, rank, 900));
    let text = refused(bench("schemes", dir.path()).args(["--ranks", "4"]));
    assert!(text.contains("rank 3 has no file (of 4 ranks)") && text.contains("no checkpoint is complete"), "{text}");
    let text = refused(bench("codecs", dir.path()).args(["--checkpoint", "it_9"]));
    assert!(text.contains("there is no complete checkpoint it_9") && text.contains('7'), "{text}");
    let text = refused(bench("codecs", dir.path()).args(["--budget-mib", "1"]));
    assert!(text.contains("--budget-mib is 1; it must be at least"), "{text}");
    let text = refused(bench("schemes", dir.path()).args(["--block-sizes", "0"]));
    assert!(text.contains("a block has 1 byte"), "{text}");
}

#[test]
fn a_simulation_that_needs_more_open_files_than_are_permitted_is_refused_before_it_begins() {
    let line = "ulimit -n 1000 && exec \"$0\" bench scale --ranks 640 --ranks-of-node 32 --aggregators groups";
    let mut bash = mcr_test_support::clean(Command::new("bash"));
    let output = run(bash.args(["-c", line]).arg(mcr().get_program()), 1);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("20 agents and 20 aggregators opens about 2200 files"), "{error}");
    assert!(error.contains("may open 1000; raise the limit (ulimit -n), or give fewer --aggregators"), "{error}");
    assert!(!error.contains("simulating"), "{error}");
}

#[test]
fn bench_partitions_prints_the_figures_of_the_paper_in_lines_of_80_characters_and_draws_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = mcr();
    command.args(["bench", "partitions", "--plots"]).arg(dir.path().join("plots"));
    let text = String::from_utf8(run(&mut command, 0).stdout).expect("UTF-8");
    for figure in 8..=12 {
        assert!(text.contains(&format!("Figure {figure}: ")), "no Figure {figure} in\n{text}");
        let svg = dir.path().join(format!("plots/figure-{figure}.svg"));
        let svg = std::fs::read_to_string(svg).expect("written");
        assert_is_xml(&svg);
        assert!(svg.contains("jacobi") && svg.contains("micro-8"), "the traces of figure {figure} have no names");
    }
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(widest <= 80, "a line of {widest} characters in\n{text}");
    let report = run_json(mcr().args(["bench", "partitions"]), 0);
    let traces = report["traces"].as_array().expect("a list");
    let case_8 = traces.iter().find(|trace| trace["name"] == "micro-8").expect("case 8");
    let loads = |policy: &str, victims: u64| {
        let played = case_8["played"].as_array().expect("a list").iter();
        let is_it = |p: &&serde_json::Value| (&p["policy"], &p["victims"]) == (&policy.into(), &victims.into());
        let mut played = played.filter(|played| played["sub_buffers"] == 2);
        played.find(is_it).expect("played")["counters"]["loads"].as_u64().expect("a number")
    };
    for policy in ["modulus", "lru"] {
        assert_eq!(loads(policy, 0), 88 * loads(policy, 1), "Figure 12: 88x");
    }
}

#[test]
fn bench_partitions_plays_a_recorded_trace_and_refuses_what_is_not_a_trace() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("two-threads.txt");
    // Two threads read two segments of different lengths, so one sub-buffer is not sufficient.
    let text = "mcr-partitions 1\npartition 10\npartition 3\ncall 0\ncall 1 1\nreturn\nreturn 1\ncall 0\nreturn\n";
    std::fs::write(&path, text).expect("written");
    let partitions = |path: &Path| {
        let mut command = mcr();
        command.args(["bench", "partitions", "--only-traces", "--sub-buffers", "2,1", "--trace"]).arg(path);
        command
    };
    let report = run_json(&mut partitions(&path), 0);
    let traces = report["traces"].as_array().expect("a list");
    assert_eq!((traces.len(), &traces[0]["name"]), (1, &"two-threads".into()));
    for played in traces[0]["played"].as_array().expect("a list") {
        let counters = &played["counters"];
        match played["sub_buffers"].as_u64() {
            Some(1) => assert!(counters.is_null(), "{played}"),
            _ => assert_eq!((&counters["loads"], &counters["loaded_bytes"]), (&2.into(), &13.into()), "{played}"),
        }
    }
    std::fs::write(&path, text.replace("return 1", "jump")).expect("written");
    let text = String::from_utf8(run(&mut partitions(&path), 1).stderr).expect("UTF-8");
    assert!(text.contains("two-threads.txt: line 7: \"jump\" is not a record of a trace"), "{text}");
}
