//! Tests `mcr mount`. cmp, cp and the HDF5 library read the files of a mounted store.

use crate::support::*;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Whether this user can mount a file system on this machine. Prints a line if the test is skipped.
pub fn can_mount() -> bool {
    let has_device = Path::new("/dev/fuse").exists();
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line").trim();
    let may_mount = u64::from_str_radix(capabilities, 16).expect("a mask") >> 21 & 1 == 1; // CAP_SYS_ADMIN
    let has_helper = Command::new("fusermount3").arg("--version").output().is_ok();
    if !has_device || !(may_mount || has_helper) {
        eprintln!("SKIPPED: no /dev/fuse, or neither CAP_SYS_ADMIN nor fusermount3: nothing can be mounted here");
        return false;
    }
    true
}

/// Real HDF5 files of four ranks with a link, and a store.
pub struct Site(TempDir);

impl Site {
    pub fn new() -> Self {
        let site = Self(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(site.path("data")).expect("made");
        std::fs::create_dir(site.path("mounted")).expect("made");
        site.save(1);
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn save(&self, step: u32) {
        let dir = self.path("data").join(format!("it_{step}"));
        std::fs::create_dir(&dir).expect("made");
        for rank in 0..4 {
            begin_rank(&dir, step, rank, 20_000).close().expect("closed");
        }
        std::os::unix::fs::symlink(format!("sim.it_{step}.rank_0.h5"), dir.join("first.h5")).expect("linked");
        std::fs::write(dir.join("run.log"), format!("step {step}\n")).expect("written");
        let mut save = mcr();
        save.args(["save", "--create", "--group-size", "2", "--job", "sim", "--store"]).arg(self.path("store"));
        save.arg(self.path("data")).args(["--layout", "{checkpoint}/sim.it_*.rank_{rank}.h5"]);
        save.args(["--layout", "{checkpoint}/run.log"]);
        run(&mut save, 0);
    }

    pub fn mount(&self) -> Daemon {
        self.mount_with(&[])
    }

    pub fn mount_with(&self, more: &[&str]) -> Daemon {
        let mut mount = mcr();
        mount.arg("mount").arg(self.path("mounted")).arg("--store").arg(self.path("store"));
        let daemon = Daemon::start(mount.args(["--budget-mib", "16"]).args(more));
        wait_for("the mount", Duration::from_secs(20), || self.path("mounted/sim").is_dir().then_some(()));
        daemon
    }
}

/// After a failed test, unmounts the store, because access to the mount of a killed process fails.
impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-l").arg(self.path("mounted")).status();
        }
    }
}

#[test]
fn a_mounted_store_has_the_bytes_sizes_times_modes_and_links_of_all_files() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let daemon = site.mount();
    let (original, mounted) = (site.path("data/it_1"), site.path("mounted/sim/it_1/it_1"));
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&original), names(&mounted));
    for name in names(&original) {
        let (a, b) = (original.join(&name), mounted.join(&name));
        let (of_a, of_b) = (a.symlink_metadata().expect("there"), b.symlink_metadata().expect("there"));
        assert_eq!(of_a.file_type(), of_b.file_type());
        if of_a.is_symlink() {
            assert_eq!(a.read_link().expect("a link"), b.read_link().expect("a link"));
        } else {
            let of = |it: &std::fs::Metadata| (it.len(), it.mode(), it.mtime(), it.mtime_nsec());
            assert_eq!(of(&of_a), of(&of_b), "{}", a.display());
        }
        run(Command::new("cmp").arg(&a).arg(&b), 0);
    }
    run(Command::new("cp").arg("-r").arg(site.path("mounted/sim/it_1")).arg(site.path("copy")), 0);
    assert_same_files(&contents(&original), &contents(&site.path("copy/it_1")));

    // Four threads read ranges of the mounted files at the same time. Then the HDF5 library reads a mounted file.
    std::thread::scope(|scope| {
        for rank in 0..4u32 {
            let (a, b) = (&original, &mounted);
            scope.spawn(move || {
                let name = format!("sim.it_1.rank_{rank}.h5");
                let (a, b) = (std::fs::File::open(a.join(&name)), std::fs::File::open(b.join(&name)));
                let (a, b) = (a.expect("opened"), b.expect("opened"));
                let len = a.metadata().expect("there").len();
                for n in 1..200u64 {
                    let at = n * 7919 * u64::from(rank + 1) % (len - 4096);
                    let read = |file: &std::fs::File| {
                        let mut bytes = [0; 4096];
                        std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, at).expect("read");
                        bytes
                    };
                    assert!(read(&a) == read(&b), "rank {rank}, byte {at}");
                }
            });
        }
    });
    let of_library = hdf5::File::open(mounted.join("sim.it_1.rank_2.h5")).expect("an HDF5 file");
    let numbers = of_library.dataset("state/temperature").and_then(|dataset| dataset.read_raw::<f64>());
    assert!(numbers.expect("read") == field(1, 2, 20_000));
    of_library.close().expect("closed");

    let written = std::fs::write(mounted.join("new"), "x").expect_err("read-only");
    assert_eq!(written.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(!site.path("mounted/sim/it_2").exists() && !site.path("mounted/other").exists());
    site.save(2);
    wait_for("the new checkpoint", Duration::from_secs(10), || {
        site.path("mounted/sim/it_2/it_2/run.log").is_file().then_some(())
    });
    assert_eq!(std::fs::read_to_string(site.path("mounted/sim/it_2/it_2/run.log")).expect("read"), "step 2\n");

    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(names(&site.path("mounted")), Vec::<std::ffi::OsString>::new(), "the directory is as before");
}

#[test]
fn a_directory_that_cannot_be_a_mount_point_is_refused_with_the_reason() {
    let site = Site::new();
    for (dir, reason) in [("data", "not empty"), ("missing", "give an empty directory")] {
        let mut mount = mcr();
        mount.arg("mount").arg(site.path(dir)).arg("--store").arg(site.path("store"));
        let out = run(&mut mount, 1);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn the_mount_of_a_killed_command_is_named_and_can_be_removed() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let daemon = site.mount();
    daemon.kill();
    let mount = || {
        let mut mount = mcr();
        mount.arg("mount").arg(site.path("mounted")).arg("--store").arg(site.path("store"));
        mount
    };
    let text = String::from_utf8(run(&mut mount(), 1).stderr).expect("UTF-8");
    assert!(text.contains("the mount of a command that was killed") && text.contains("umount"), "{text}");
    assert!(Command::new("umount").arg(site.path("mounted")).status().expect("it runs").success());
    assert_eq!(site.mount().stop(), Some(0));
}

#[test]
fn a_mount_says_that_the_job_has_no_checkpoint_and_which_jobs_have_some() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let mut mount = mcr();
    mount.arg("mount").arg(site.path("mounted")).arg("--store").arg(site.path("store")).args(["--job", "sin"]);
    let daemon = Daemon::start(&mut mount);
    daemon.wait_for_log("jobs there: sim");
    wait_for("the mount", Duration::from_secs(20), || {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("read");
        mounts.contains(site.path("mounted").to_str().expect("UTF-8")).then_some(())
    });
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn the_reads_of_a_mount_are_recorded_as_a_trace_for_the_benchmark_of_policies() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let trace = site.path("mount.trace");
    let daemon = site.mount_with(&["--trace", trace.to_str().expect("UTF-8")]);
    for rank in 0..4 {
        std::fs::read(site.path(&format!("mounted/sim/it_1/it_1/sim.it_1.rank_{rank}.h5"))).expect("read");
    }
    assert_eq!(daemon.stop(), Some(0));
    let mut bench = mcr();
    bench.args(["bench", "partitions", "--only-traces", "--trace"]).arg(&trace);
    let report = run_json(&mut bench, 0);
    assert!(report["traces"][0]["uses"].as_u64().is_some_and(|uses| uses >= 4), "{report}");
}
