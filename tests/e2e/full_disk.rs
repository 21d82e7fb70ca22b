//! If the store's file system becomes full, this is reported, nothing is lost, and the checkpoint is saved when there
//! is free space again.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A small tmpfs, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, mib: u32) -> Option<Self> {
        std::fs::create_dir(&at).expect("made");
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(at)),
            other => {
                eprintln!("SKIPPED: a small file system cannot be mounted here: {other:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Uses all the free space.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("created");
    let block = vec![7u8; 64 << 10];
    while file.write_all(&block).is_ok() {}
    while file.write_all(&block[..1]).is_ok() {}
}

fn waiting(address: &str) -> String {
    wait_for("a checkpoint that waits for the store", Duration::from_secs(30), || {
        let status = run_json(mcr().args(["status", "--aggregators", address]), 0);
        let checkpoints = status[0]["checkpoints"].as_array().cloned().unwrap_or_default();
        let found = checkpoints.into_iter().find(|c| c["phase"] == "waiting")?;
        Some(found["reason"].as_str().unwrap_or_default().to_owned())
    })
}

#[test]
fn a_full_disk_is_named_costs_no_committed_checkpoint_and_is_used_again_once_there_is_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), 8) else { return };
    let (store, watch) = (disk.0.join("store"), dir.path().join("run"));
    std::fs::create_dir(&watch).expect("made");
    let (aggregator, address) = Daemon::aggregator(dir.path(), "a", &store, "group-size = 2\nprofile = \"raw\"");
    let layout =
        "ranks = 2\ngroup-size = 2\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 20\ncheckpoint-quiet-ms = 50";
    let agent = Daemon::agent(dir.path(), "n", &watch, std::slice::from_ref(&address), layout);
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 20_000));
    wait_complete(&store, "sim.it_1");
    let first = contents(&watch);

    let ballast = disk.0.join("ballast");
    fill(&ballast);
    (0..2).for_each(|rank| write_rank(&watch, 2, rank, 20_000));
    let reason = waiting(&address);
    assert!(reason.contains("No space left on device") && reason.contains("store"), "{reason}");
    let line = aggregator.wait_for_log("flush failed");
    assert!(line.contains("sim.it_2") && line.contains("No space left on device"), "{line}");

    let back = |name: &str, id: &str| {
        let to = dir.path().join(name);
        run(mcr().arg("restart").args(["--checkpoint", id]).arg("--store").arg(&store).arg("--to").arg(&to), 0);
        contents(&to)
    };
    assert_same_files(&first, &back("back1", "sim.it_1"));

    std::fs::remove_file(&ballast).expect("removed");
    wait_complete(&store, "sim.it_2");
    let second = contents(&watch).into_iter().filter(|(path, _)| path.to_string_lossy().contains("it_2")).collect();
    assert_same_files(&second, &back("back2", "sim.it_2"));
    assert_same_files(&first, &back("back3", "sim.it_1"));
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(aggregator.stop(), Some(0));
}
