//! The commands that look inside a checkpoint: ls, cat, extract, diff. The files are real HDF5 files.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const RANKS: u32 = 4;
const LEN: usize = 3000;

/// A store with the steps 1 and 2 of four ranks, in groups of two ranks.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(site.data()).expect("made");
        for step in [1, 2] {
            for rank in 0..RANKS {
                let file = begin_rank(&site.data(), step, rank, LEN);
                let group = file.create_group("Grid00000001").expect("created");
                // The last chunks extend beyond the edge of the array. Two of the datasets have filters.
                let values = ndarray_of(step, rank);
                let dataset = || group.new_dataset::<f32>().shape((30, 50));
                let plain = dataset().chunk((8, 16)).create("Plain").expect("created");
                let filtered = dataset().chunk((16, 7)).shuffle().deflate(4).create("Filtered").expect("created");
                // The filter N-bit cannot be removed, so the chunks are stored as they are.
                let stored = dataset().chunk((16, 7)).nbit().create("Stored").expect("created");
                [plain, filtered, stored].iter().for_each(|dataset| dataset.write_raw(&values).expect("written"));
                file.close().expect("closed");
            }
        }
        let mut save = mcr();
        save.args(["save", "--create", "--group-size", "2", "--job", "sim", "--profile", "balanced", "--store"]);
        run(save.arg(site.store()).arg(site.data()).args(["--layout", "{checkpoint}.rank_{rank}.h5"]), 0);
        site
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = mcr();
        command.args(words).arg("--store").arg(self.store());
        command
    }

    fn text(&self, words: &[&str]) -> String {
        String::from_utf8(run(&mut self.command(words), 0).stdout).expect("UTF-8")
    }

    /// Extracts variables to a file.
    fn extract(&self, variable: &str, to: &str) -> (serde_json::Value, PathBuf) {
        let to = self.path(to);
        let words = ["extract", "sim.it_2", "--variable", variable, "--to", to.to_str().expect("text")];
        (run_json(&mut self.command(&words), 0), to)
    }
}

fn ndarray_of(step: u32, rank: u32) -> Vec<f32> {
    (0..30 * 50).map(|n| (step * 1000 + rank * 100) as f32 + n as f32 * 0.25).collect()
}

/// Type, shape and bytes of a NumPy array.
fn read_npy(path: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(path).expect("read");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    (String::from_utf8_lossy(&bytes[10..end]).trim_end().to_owned(), bytes[end..].to_vec())
}

#[test]
fn ls_lists_files_and_variables_and_cat_gives_the_bytes_of_each_file() {
    let site = Site::new();
    let text = site.text(&["ls", "latest"]);
    for (name, bytes) in contents(&site.data()) {
        let name = name.to_str().expect("text");
        let id = &name[..name.find(".rank").expect("a rank")];
        let is_listed = text.lines().any(|line| line.ends_with(name) && line.contains(&bytes.len().to_string()));
        assert_eq!(is_listed, id == "sim.it_2", "{text}");
        let back = run(&mut site.command(&["cat", id, name]), 0).stdout;
        assert!(back == bytes, "{name}");
    }
    let text = site.text(&["ls", "sim.it_1", "--variables", "*rank_3*"]);
    let has_line = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has_line(&["rank_3", "/Grid00000001/Plain", "F32LE", "30 x 50"]) && !text.contains("rank_2"), "{text}");
    let json = run_json(&mut site.command(&["ls", "latest"]), 0);
    assert_eq!(json["files"].as_array().map(Vec::len), Some(RANKS as usize));
    let json = run_json(&mut site.command(&["cat", "latest", "sim.it_2.rank_0.h5"]), 0);
    assert_eq!(json["path"], "sim.it_2.rank_0.h5");
    for bad in [&["cat", "latest", "nothing"][..], &["ls", "nothing"], &["ls", "latest", "nothing*"]] {
        run(&mut site.command(bad), 1);
    }
}

#[test]
fn ls_and_cat_of_an_incomplete_checkpoint_give_the_files_of_its_committed_groups() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store) = (dir.path().join("data"), dir.path().join("store"));
    std::fs::create_dir(&data).expect("made");
    (0..4)
        .for_each(|rank| std::fs::write(data.join(format!("out_1.{rank}")), format!("rank {rank}")).expect("written"));
    let mut save = mcr();
    save.args(["save", "--create", "--group-size", "2", "--layout", "out_{checkpoint}.{rank}", "--job", "wave"]);
    run(save.arg(&data).arg("--store").arg(&store), 0);
    for (missing, present) in [(0, 1), (1, 0)] {
        let manifest = store.join(format!("wave/1/group-{missing:04}.manifest"));
        let bytes = std::fs::read(&manifest).expect("read");
        std::fs::remove_file(&manifest).expect("removed");
        let command = |args: &[&str]| {
            let mut command = mcr();
            command.args(args).arg("--store").arg(&store);
            command
        };
        let listed = run_json(&mut command(&["ls", "1"]), 4);
        let paths: Vec<_> =
            listed["files"].as_array().expect("a list").iter().map(|file| file["path"].clone()).collect();
        assert_eq!(paths, [format!("out_1.{}", 2 * present), format!("out_1.{}", 2 * present + 1)], "{listed}");
        let name = format!("out_1.{}", 2 * present);
        assert_eq!(run(&mut command(&["cat", "1", &name]), 0).stdout, format!("rank {}", 2 * present).into_bytes());
        let refused = run(&mut command(&["diff", "1", "1"]), 1);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("1 has 1 of 2 groups") && said.contains("mcr ls 1 lists"), "{said}");
        std::fs::write(&manifest, bytes).expect("written");
    }
}

#[test]
fn a_group_whose_container_is_cut_does_not_count_as_readable() {
    let site = Site::new();
    let container = site.store().join("sim/sim.it_2/group-0001.mcr");
    let bytes = std::fs::read(&container).expect("read");
    std::fs::write(&container, &bytes[..bytes.len() / 2]).expect("written");
    for (rank, expected) in [(0, 0), (3, 1)] {
        let name = format!("sim.it_2.rank_{rank}.h5");
        let said = run(&mut site.command(&["cat", "sim.it_2", &name]), expected).stderr;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains("sim.it_2 is damaged: 1 of 2 groups can be read"), "{said}");
    }
}

#[test]
fn extract_gives_the_numbers_of_all_ranks_whatever_the_chunks_and_filters_are() {
    let site = Site::new();
    for name in ["Plain", "Filtered", "Stored"] {
        let (report, npy) = site.extract(&format!("Grid*/{name}"), &format!("{name}.npy"));
        let (header, bytes) = read_npy(&npy);
        assert!(header.contains("'<f4'") && header.contains("(4, 30, 50)"), "{header}");
        let expected: Vec<u8> = (0..RANKS).flat_map(|rank| ndarray_of(2, rank)).flat_map(f32::to_le_bytes).collect();
        assert!(bytes == expected, "{name}");
        let pieces = report["pieces"].as_array().expect("a list");
        let ranks: Vec<_> = pieces.iter().map(|piece| (piece["rank"].as_u64(), piece["at"].as_u64())).collect();
        assert_eq!(ranks, (0..4).map(|rank| (Some(rank), Some(rank))).collect::<Vec<_>>());
    }
    let (report, h5) = site.extract("state/*", "state.h5");
    let file = hdf5::File::open(&h5).expect("an HDF5 file");
    for rank in 0..RANKS {
        let dataset = |name: &str| file.dataset(&format!("sim.it_2.rank_{rank}.h5/state/{name}")).expect("there");
        assert!(dataset("temperature").read_raw::<f64>().expect("read") == field(2, rank, LEN));
        assert!(dataset("mesh").read_raw::<f64>().expect("read") == field(0, rank, LEN / 2));
        let ids: Vec<i32> = (0..LEN as i32 / 4).map(|i| i + 2).collect();
        assert!(dataset("ids").read_raw::<i32>().expect("read") == ids);
        let of_rank: u32 = dataset("ids").attr("rank").and_then(|attr| attr.read_scalar()).expect("an attribute");
        assert_eq!(of_rank, rank);
    }
    assert_eq!(report["pieces"].as_array().map(Vec::len), Some(12));
    let left: Vec<_> =
        std::fs::read_dir(site.0.path()).expect("read").map(|e| e.expect("an entry").file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with('.')), "{left:?}");

    let refused = |variable: &str, to: &str| {
        let to = site.path(to);
        let words = ["extract", "latest", "--variable", variable, "--to", to.to_str().expect("text")];
        let out = site.command(&words).output();
        let out = out.expect("it starts");
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(refused("Grid*/Nothing", "a.npy").contains("has no array"));
    let npy = site.path("ranks.npy");
    let words = ["extract", "latest", "--variable", "Grid*/Plain", "--ranks", "77"];
    let out = run(site.command(&words).arg("--to").arg(&npy), 1).stderr;
    let said = String::from_utf8_lossy(&out).into_owned();
    assert!(said.contains("--ranks names rank 77, but sim.it_2 has 4 ranks; name ranks from 0 to 3"), "{said}");
    assert!(!npy.exists());
    assert!(refused("Grid*/Plain", "Plain.npy").contains("exists already"));
    assert!(refused("Grid*/Plain", "a.txt").contains("must end with"));
    assert!(refused("*/*", "types.npy").contains("use --to FILE.h5") && !site.path("types.npy").exists());
}

#[test]
fn diff_says_which_classes_differ_and_by_how_much() {
    let site = Site::new();
    let report = run_json(&mut site.command(&["diff", "sim.it_1", "latest"]), 0);
    let class = |report: &serde_json::Value, name: &str| {
        let classes = report["classes"].as_array().expect("a list").clone();
        let found = classes.into_iter().find(|class| class["key"].as_str().is_some_and(|key| key.contains(name)));
        found.unwrap_or_else(|| panic!("no class {name}: {report}"))
    };
    let temperature = class(&report, "temperature");
    let pairs = |rank| field(1, rank, LEN).into_iter().zip(field(2, rank, LEN));
    let largest = (0..RANKS).flat_map(pairs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let changed = (0..RANKS).flat_map(pairs).filter(|(a, b)| a != b).count();
    assert_eq!(temperature["largest_absolute"].as_f64(), Some(largest));
    assert_eq!(temperature["changed"].as_u64(), Some(changed as u64));
    assert_eq!(temperature["elements"].as_u64(), Some(u64::from(RANKS) * LEN as u64));
    assert_eq!(class(&report, "mesh")["changed"], 0);
    assert_eq!((&report["same"], &report["only_in_a"]), (&false.into(), &serde_json::json!([])));
    let stored = class(&report, "Stored");
    assert_eq!((&stored["element"], &stored["elements"]), (&"F32LE".into(), &(RANKS * 30 * 50).into()), "decoded");
    assert_eq!((&stored["changed"], &stored["largest_absolute"]), (&(RANKS * 30 * 50).into(), &1000.0.into()));
    let text = site.text(&["diff", "sim.it_1", "latest"]);
    assert!(text.contains("0 files are the same, 4 are changed") && text.contains("temperature"), "{text}");
    let same = run_json(&mut site.command(&["diff", "latest", "sim.it_2"]), 0);
    assert_eq!(same["same"], true);

    // Compare with a directory in which one number of one rank changes and the file of another rank is missing.
    let dir = format!("{}/", site.data().display());
    assert_eq!(run_json(&mut site.command(&["diff", "latest", &dir]), 0)["same"], true);
    let path = site.data().join("sim.it_2.rank_1.h5");
    let file = hdf5::File::open_rw(&path).expect("opened");
    let dataset = file.dataset("state/temperature").expect("there");
    let mut numbers = dataset.read_raw::<f64>().expect("read");
    numbers[17] += 0.5;
    dataset.write_raw(&numbers).expect("written");
    drop(dataset);
    file.close().expect("closed");
    std::fs::remove_file(site.data().join("sim.it_2.rank_3.h5")).expect("removed");
    let report = run_json(&mut site.command(&["diff", "latest", &dir]), 0);
    assert_eq!(class(&report, "temperature")["changed"], 1);
    let largest = class(&report, "temperature")["largest_absolute"].as_f64().expect("a number");
    assert!((largest - 0.5).abs() < 1e-9, "{largest}");
    assert_eq!(report["only_in_a"], serde_json::json!(["sim.it_2.rank_3.h5"]));
    run(&mut site.command(&["diff", "latest", "nothing"]), 1);
    let missing = run(&mut site.command(&["diff", "latest", "./no-such-directory/"]), 1);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("./no-such-directory/"));
}

#[test]
fn diff_calls_a_restored_directory_the_same_and_names_what_was_added_to_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store, back) = (dir.path().join("data"), dir.path().join("store"), dir.path().join("back"));
    std::fs::create_dir(&data).expect("made");
    for (name, text) in [("it_1.rank_0", "zero"), ("it_1.rank_1", "one"), ("notes", "text")] {
        std::fs::write(data.join(name), text.repeat(100)).expect("written");
    }
    std::fs::hard_link(data.join("notes"), data.join("hard")).expect("linked");
    let mut save = mcr();
    save.args(["save", "--create", "--job", "j", "--layout", "single", "--store"]).arg(&store).arg(&data);
    run(&mut save, 0);
    run(mcr().args(["restart", "--store"]).arg(&store).arg("--to").arg(&back), 0);
    let diff = || {
        let mut diff = mcr();
        diff.args(["diff", "latest"]).arg(format!("{}/", back.display())).arg("--store").arg(&store);
        run_json(&mut diff, 0)
    };
    let none = serde_json::json!([]);
    assert_eq!((&diff()["same"], &diff()["only_in_a"], &diff()["only_in_b"]), (&true.into(), &none, &none));
    std::fs::write(back.join("it_1.rank_2"), "two").expect("written");
    std::fs::create_dir(back.join("more")).expect("made");
    std::fs::write(back.join("more/extra"), "more").expect("written");
    std::fs::write(back.join("it_2.rank_0"), "of another step").expect("written");
    let added = diff();
    let names = serde_json::json!(["it_1.rank_2", "more/extra"]);
    assert_eq!((&added["same"], &added["only_in_b"]), (&false.into(), &names), "{added}");
    std::fs::remove_file(back.join("hard")).expect("removed");
    std::fs::write(back.join("hard"), "other text").expect("written");
    let changed = diff();
    let files = changed["files"].as_array().expect("a list");
    let changed: Vec<_> = files.iter().filter(|file| file["same"] == false).map(|file| &file["a"]).collect();
    assert!(changed == ["hard"] || changed == ["notes"], "{changed:?}");
}

#[test]
fn diff_sees_no_change_in_other_filters_and_says_if_the_elements_have_another_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store, other) = (dir.path().join("data"), dir.path().join("store"), dir.path().join("other"));
    [&data, &other].iter().for_each(|dir| std::fs::create_dir(dir).expect("made"));
    let write = |dir: &Path, chunk: (usize, usize), level: u8| {
        let file = hdf5::File::create(dir.join("it_1.rank_0.h5")).expect("created");
        let dataset = file.new_dataset::<i32>().shape((64, 64)).chunk(chunk).deflate(level).create("grid");
        dataset.expect("created").write_raw(&(0..4096).collect::<Vec<i32>>()).expect("written");
        file.close().expect("closed");
    };
    write(&data, (16, 16), 1);
    let mut save = mcr();
    save.args(["save", "--create", "--job", "j", "--layout", "{checkpoint}.rank_{rank}.h5", "--store"]);
    run(save.arg(&store).arg(&data), 0);
    let diff = |words: &[&str]| {
        let mut diff = mcr();
        diff.args(["diff", "latest"]).arg(format!("{}/", other.display())).args(words).arg("--store").arg(&store);
        diff
    };
    let grid = || {
        let report = run_json(&mut diff(&[]), 0);
        let classes = report["classes"].as_array().expect("a list").clone();
        let grid = classes.into_iter().find(|class| class["element"] != "u8" && class["elements"] == 4096);
        grid.unwrap_or_else(|| panic!("no class grid: {report}"))
    };
    write(&other, (16, 16), 9);
    assert_eq!((&grid()["changed"], &grid()["reordered"]), (&0.into(), &0.into()), "other filters");
    write(&other, (32, 8), 1);
    assert_eq!(grid()["reordered"], 1, "other chunks");
    let text = String::from_utf8(run(&mut diff(&[]), 0).stdout).expect("UTF-8");
    assert!(text.contains("1 of the changed variables has the same elements in another order"), "{text}");
}
