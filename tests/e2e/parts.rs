//! Restarts of a part of a checkpoint, and the ways to name a checkpoint.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A store with three checkpoints of six ranks, in groups of three ranks.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().expect("a directory"));
        for step in [8, 9, 10] {
            for rank in 0..6 {
                for (name, seed) in [("field", step * 100), ("table", 7)] {
                    let path = site.data().join(format!("it_{step}/rank_{rank}.{name}"));
                    std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
                    std::fs::write(path, random_bytes(40_000 + rank as usize, seed + rank)).expect("written");
                }
            }
        }
        let layout = ["{checkpoint}/rank_{rank}.field", "{checkpoint}/rank_{rank}.table"];
        let mut save = mcr();
        save.args(["save", "--create", "--group-size", "3", "--job", "sim", "--store"]).arg(site.store());
        run(save.arg(site.data()).args(["--layout", layout[0], "--layout", layout[1]]), 0);
        site
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// Restores to a new directory. Returns the names of the restored files.
    fn restart(&self, more: &[&str], code: i32) -> (String, Vec<String>) {
        let to = tempfile::tempdir_in(self.0.path()).expect("a directory");
        let text =
            text_of(mcr().arg("restart").arg("--store").arg(self.store()).arg("--to").arg(to.path()).args(more), code);
        let back = contents(to.path());
        for (name, bytes) in &back {
            let original = std::fs::read(self.data().join(name)).expect("read");
            assert!(*bytes == original, "{}", name.display());
        }
        (text, back.keys().map(|name| name.display().to_string()).collect())
    }
}

/// Standard output of a command.
fn text_of(command: &mut Command, code: i32) -> String {
    String::from_utf8(run(command, code).stdout).expect("UTF-8")
}

fn random_bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8 & 15
    };
    (0..len).map(next).collect()
}

#[test]
fn only_the_named_files_are_restored_and_the_restart_is_not_recorded() {
    let site = Site::new();
    let (_, names) = site.restart(&["--only", "*.table", "--only", "it_10/rank_0.*"], 0);
    let tables = (1..6).map(|rank| format!("it_10/rank_{rank}.table"));
    let expected: Vec<String> =
        ["it_10/rank_0.field".to_owned(), "it_10/rank_0.table".to_owned()].into_iter().chain(tables).collect();
    assert_eq!(names, expected);
    let (_, names) = site.restart(&["--only", "*.field", "--ranks", "4", "--checkpoint", "it_9"], 0);
    assert_eq!(names, ["it_9/rank_4.field"]);
    let listed = run_json(mcr().args(["list", "--store"]).arg(site.store()), 0);
    assert!(!listed.to_string().contains("\"incarnation\":2"), "{listed}");
    site.restart(&["--only", "nothing*"], 1);
    site.restart(&["--only", "["], 1);
}

#[test]
fn a_checkpoint_is_named_by_its_id_by_its_beginning_or_by_its_place() {
    let site = Site::new();
    for (asked, id) in [("it_9", "it_9"), ("latest", "it_10"), ("latest~1", "it_9"), ("latest~2", "it_8")] {
        let (text, names) = site.restart(&["--copy", "--ranks", "0", "--checkpoint", asked], 0);
        assert!(text.contains(&format!("restored {id}")) && names.len() == 2, "{asked}: {text}");
        let shown = run_json(mcr().args(["show", asked, "--store"]).arg(site.store()), 0);
        assert_eq!(shown["checkpoint"], id);
        let verified = text_of(mcr().args(["verify", asked, "--store"]).arg(site.store()), 0);
        assert!(verified.starts_with(&format!("{id}: ok")), "{verified}");
    }
    for asked in ["it_1", "it_", "latest~3"] {
        let out = mcr().args(["prune", "--drop", asked, "--store"]).arg(site.store()).output().expect("it starts");
        assert_eq!(out.status.code(), Some(1), "{asked}");
    }
    run(mcr().args(["prune", "--drop", "latest~2", "--store"]).arg(site.store()), 0);
    let text = text_of(mcr().args(["list", "--store"]).arg(site.store()), 0);
    assert!(!text.contains("it_8") && text.contains("it_9") && text.contains("it_10"), "{text}");
}

#[test]
fn the_recorded_order_of_a_restart_and_of_verify_is_a_trace_for_the_benchmark() {
    let site = Site::new();
    let trace = |name: &str| site.0.path().join(name);
    site.restart(&["--copy", "--trace", trace("restart").to_str().expect("text")], 0);
    run(mcr().args(["verify", "latest", "--store"]).arg(site.store()).arg("--trace").arg(trace("verify")), 0);
    for name in ["restart", "verify"] {
        let report = bench(&trace(name));
        assert!(report.contains("look-ahead") || report.contains("look_ahead"), "{report}");
    }
}

fn bench(trace: &Path) -> String {
    let mut bench = mcr();
    text_of(bench.args(["bench", "partitions", "--only-traces", "--sub-buffers", "64", "--trace"]).arg(trace), 0)
}
