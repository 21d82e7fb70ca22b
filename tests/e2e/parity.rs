//! Tests `--parity-percent`: damaged containers are mended by their parity, and a restart gets the same bytes.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A store with two checkpoints of two ranks.
struct Site(TempDir);

impl Site {
    fn new(percent: &str) -> Self {
        let site = Self(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(site.path("data")).expect("made");
        for step in [1, 2] {
            (0..2).for_each(|rank| write_rank(&site.path("data"), step, rank, 20_000));
            let mut save = site.command(&format!("save --create --job wave --parity-percent {percent}"));
            run(save.arg(site.path("data")).args(["--layout", "{checkpoint}.rank_{rank}.h5"]), 0);
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = mcr();
        command.args(words.split(' ')).arg("--store").arg(self.path("store"));
        command
    }

    fn container(&self, step: u32) -> PathBuf {
        self.path(&format!("store/wave/sim.it_{step}/group-0000.mcr"))
    }

    fn text(&self, words: &str, status: i32) -> String {
        let output = run(&mut self.command(words), status);
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }
}

fn damage(path: &Path, at: usize, len: usize) {
    let mut bytes = std::fs::read(path).expect("read");
    bytes[at..at + len].fill(0xA5);
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn a_damaged_container_is_mended_by_its_parity_and_restored_byte_for_byte() {
    let site = Site::new("5");
    let store = contents(&site.path("store"));
    assert_eq!(store.keys().filter(|path| path.to_string_lossy().ends_with("group-0000.mcr.parity")).count(), 2);
    assert!(site.text("show --job wave", 0).contains("parity 5 %, "));
    let stats = run_json(&mut site.command("stats"), 0);
    let of = |value: &serde_json::Value| value["parity_bytes"].as_u64().expect("a number");
    assert!(of(&stats["jobs"][0]) > 8000 && of(&stats["jobs"][0]["checkpoints"][0]) > 4000, "{stats}");
    assert!(site.text("stats", 0).contains("parity: "));

    damage(&site.container(2), 5000, 3000);
    let text = site.text("verify --job wave", 1);
    assert!(text.contains("sim.it_2: DAMAGED") && text.contains("mcr verify sim.it_2 --repair"), "{text}");
    let to = site.path("older");
    let failed = run(site.command("restart --copy --job wave --exact").arg("--to").arg(&to), 1);
    let advice = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(advice.contains("mcr verify sim.it_2 --repair --job wave --store "), "{advice}");
    let text = site.text("verify --job wave --repair", 0);
    assert!(text.contains("mended by parity, 4.00 KiB computed: wave/sim.it_2/group-0000.mcr"), "{text}");
    let without_marks = |mut files: std::collections::BTreeMap<PathBuf, Vec<u8>>| {
        files.retain(|path, _| !path.ends_with("damaged"));
        files
    };
    assert_same_files(&store, &without_marks(contents(&site.path("store"))));
    run(site.command("restart --copy --job wave").arg("--to").arg(site.path("to")), 0);
    let mut expected = contents(&site.path("data"));
    expected.retain(|path, _| path.to_string_lossy().starts_with("sim.it_2."));
    assert_same_files(&expected, &contents(&site.path("to")));

    // Damaged parity is not damage of the checkpoint.
    let parity = site.container(2).with_extension("mcr.parity");
    damage(&parity, 600, 9);
    let text = site.text("verify --job wave", 0);
    assert!(text.contains("a parity file is damaged") && text.contains("--repair writes it again"), "{text}");
    let report = run_json(&mut site.command("verify --job wave --repair"), 0);
    let mended = &report["checkpoints"][0]["mended"][0];
    assert_eq!((&mended["by"], &mended["path"]), (&"container".into(), &"wave/sim.it_2/group-0000.mcr.parity".into()));
    assert_same_files(&store, &contents(&site.path("store")));

    run(&mut site.command("prune --job wave --drop sim.it_1,sim.it_2"), 0);
    assert!(contents(&site.path("store")).keys().all(|path| !path.to_string_lossy().contains("sim.it_")));
}

#[test]
fn parity_is_written_within_a_small_budget_while_files_wait_in_memory() {
    let site = Site(tempfile::tempdir().expect("a directory"));
    std::fs::create_dir(site.path("data")).expect("made");
    for step in 1..=6u64 {
        let bytes: Vec<u8> = (0..(12 << 17)).flat_map(|n: u64| (n * n * step).to_le_bytes()).collect();
        std::fs::write(site.path(&format!("data/s{step}.bin")), bytes).expect("written");
    }
    let mut save = site.command("save --create --job wave --parity-percent 5 --profile fast --budget-mib 64");
    run(save.arg(site.path("data")).args(["--layout", "{checkpoint}.bin"]), 0);
    assert!(site.text("verify", 0).contains("6 of 6 checkpoints"));
}

#[test]
fn what_cannot_be_mended_is_named_with_what_is_missing() {
    let site = Site::new("0");
    run(site.command("copy --all --job wave").args(["--from"]).arg(site.path("store")).arg("--to-job").arg("other"), 0);
    damage(&site.container(2), 5000, 3000);
    let text = site.text("verify --job wave --repair", 1);
    assert!(text.contains("not mended: it has no parity; name a store that has an intact copy with --from"), "{text}");
    let failed = run(site.command("restart --copy --job wave --exact").arg("--to").arg(site.path("to")), 1);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(said.contains("sim.it_2 cannot be restored") && !said.contains("--repair"), "there is no parity: {said}");
    run(&mut site.command("save --parity-percent 51 x"), 1);
    run(site.command("verify --from").arg(site.path("store")), 1);
}

#[test]
fn a_store_that_other_users_could_change_is_not_repaired() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new("5");
    let mode = |mode| std::fs::set_permissions(site.path("store"), std::fs::Permissions::from_mode(mode)).expect("set");
    damage(&site.container(2), 5000, 30);
    mode(0o770);
    run(&mut site.command("verify --job wave"), 1);
    let text = site.text("verify --job wave --repair", 77);
    assert!(text.contains("its group can change checkpoints"), "{text}");
    run(&mut site.command("verify --job wave --repair --shared-store"), 0);
}

#[test]
fn daemons_write_the_parity_of_their_configuration() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, watch) = (dir.path().join("store"), dir.path().join("watch"));
    std::fs::create_dir(&watch).expect("made");
    let more = "group-size = 2\nparity-percent = 20";
    let (_aggregator, address) = Daemon::aggregator(dir.path(), "a", &store, more);
    let more = "ranks = 2\ngroup-size = 2\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 20";
    let _agent = Daemon::agent(dir.path(), "n", &watch, &[address], more);
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 2000));
    wait_complete(&store, "sim.it_1");
    let container = store.join("job/sim.it_1/group-0000.mcr");
    assert!(container.with_extension("mcr.parity").exists());
    damage(&container, 100, 50);
    run(mcr().args(["verify", "--repair", "--store"]).arg(&store), 0);
}
