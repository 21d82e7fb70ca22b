//! Programs that are not ours read a mounted store: cmp, diff, cp, tar, rsync, h5diff, ncdump and h5py. Also tests what
//! a reading program sees if a checkpoint is damaged or removed, or if the mount ends.

use crate::corpus::sets;
use crate::mount::{Site, can_mount};
use crate::support::*;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Whether a program is installed. Prints a line if its part of the test is skipped.
fn has(program: &str, arguments: &[&str]) -> bool {
    let is_there = Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success());
    if !is_there {
        eprintln!("SKIPPED: reading a mount with {program} {}, which is not installed", arguments.join(" "));
    }
    is_there
}

/// All regular files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let out = run(Command::new("find").arg(dir).args(["-type", "f"]), 0);
    String::from_utf8_lossy(&out.stdout).lines().map(PathBuf::from).collect()
}

/// Reads each file of `names` below both directories with the command, and compares the output.
fn assert_same_output(command: &[&str], a: &Path, b: &Path, names: &[PathBuf]) {
    for name in names {
        // The programs print the path, so they run in the directory.
        let read = |dir: &Path| Command::new(command[0]).args(&command[1..]).arg(name).current_dir(dir).output();
        let (of_a, of_b) = (read(a).expect("it starts"), read(b).expect("it starts"));
        let is_same = (of_a.status.code(), &of_a.stdout) == (of_b.status.code(), &of_b.stdout);
        assert!(is_same, "{command:?} {}: {}", name.display(), String::from_utf8_lossy(&of_b.stderr));
    }
}

#[test]
fn tools_read_the_same_bytes_from_a_mount_as_from_the_files() {
    if !can_mount() {
        return;
    }
    let tools = [("rsync", "--version"), ("h5diff", "--version"), ("ncdump", "-k"), ("python3", "-V")];
    let h5py = has("python3", &["-c", "import h5py"]);
    let is_there = |name: &str| {
        let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).output();
        found.is_ok_and(|output| output.status.success()) || has(name, &[])
    };
    let [rsync, h5diff, ncdump, _] = tools.map(|(name, _)| is_there(name));
    for profile in ["fast", "balanced", "max"] {
        let dir = tempfile::tempdir().expect("a directory");
        let (store, mounted) = (dir.path().join("store"), dir.path().join("mounted"));
        std::fs::create_dir(&mounted).expect("made");
        let sets = sets();
        for (number, set) in sets.iter().enumerate() {
            let job = format!("job{number}");
            let mut save = mcr();
            save.args(["save", "--create", "--profile", profile, "--job", &job, "--store"]).arg(&store).arg(set);
            run(&mut save, 0);
        }
        let mut mount = mcr();
        mount.arg("mount").arg(&mounted).arg("--store").arg(&store).args(["--budget-mib", "16"]);
        let daemon = Daemon::start(&mut mount);
        wait_for("the mount", Duration::from_secs(20), || mounted.join("job0").is_dir().then_some(()));
        for (number, set) in sets.iter().enumerate() {
            let job = mounted.join(format!("job{number}"));
            let mut of_set = 0;
            for checkpoint in std::fs::read_dir(&job).expect("listed").map(|entry| entry.expect("an entry").path()) {
                // The paths of a checkpoint begin at the directory of the set.
                let names: Vec<PathBuf> = files_below(&checkpoint)
                    .iter()
                    .map(|path| path.strip_prefix(&checkpoint).expect("below it").to_owned())
                    .collect();
                of_set += names.len();
                for name in &names {
                    run(Command::new("cmp").arg(set.join(name)).arg(checkpoint.join(name)), 0);
                }
                let some: Vec<PathBuf> = names.iter().step_by(9).cloned().collect();
                if h5diff {
                    for name in &some {
                        let (a, b) = (set.join(name), checkpoint.join(name));
                        let is_hdf5 = std::fs::read(&a).expect("read").starts_with(b"\x89HDF");
                        if is_hdf5 {
                            run(Command::new("h5diff").arg(a).arg(b), 0);
                        }
                    }
                }
                if ncdump {
                    assert_same_output(&["ncdump", "-h"], set, &checkpoint, &some);
                }
                if h5py {
                    assert_same_output(&["python3", "-c", H5PY], set, &checkpoint, &some);
                }
            }
            assert!(of_set > 0, "{}", set.display());
            // Copies of whole directories.
            let copy = dir.path().join("copy");
            std::fs::create_dir(&copy).expect("made");
            run(Command::new("sh").args(["-c", "tar c . | tar x -C \"$0\""]).arg(&copy).current_dir(&job), 0);
            run(Command::new("diff").arg("-r").arg(&job).arg(&copy), 0);
            if rsync {
                let mut again = Command::new("rsync");
                again.args(["-ain", "--checksum", "--omit-dir-times", "--no-p"]).arg(job.join("")).arg(&copy);
                let out = run(&mut again, 0);
                let changed = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(!changed.lines().any(|line| line.starts_with(">f")), "{changed}");
            }
            std::fs::remove_dir_all(&copy).expect("removed");
        }
        assert_eq!(daemon.stop(), Some(0));
    }
}

/// Prints a digest of each dataset of an HDF5 file.
const H5PY: &str = "
import sys, hashlib, h5py
try: file = h5py.File(sys.argv[1], 'r')
except OSError: sys.exit(0)
def show(name, of):
    if isinstance(of, h5py.Dataset):
        try: print(name, of.shape, hashlib.sha256(of[()].tobytes()).hexdigest())
        except Exception as error: print(name, type(error).__name__)
file.visititems(show)
";

#[test]
fn mmap_and_many_readers_at_once_see_the_right_bytes_within_a_small_budget() {
    if !can_mount() || !has("python3", &["-V"]) {
        return;
    }
    let site = Site::new();
    let daemon = site.mount_with(&["--spool-mib", "0"]);
    let script = "
import mmap, random, sys
original, mounted = (open(name, 'rb') for name in sys.argv[1:3])
whole = original.read()
with mmap.mmap(mounted.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    random.seed(sys.argv[3])
    for _ in range(300):
        at = random.randrange(len(whole)); n = random.randrange(1, 9000)
        assert mapped[at:at + n] == whole[at:at + n], at
";
    let readers: Vec<_> = (0..12)
        .map(|n| {
            let name = format!("it_1/sim.it_1.rank_{}.h5", n % 4);
            let mut python = Command::new("python3");
            python.args(["-c", script]).arg(site.path("data").join(&name));
            python.arg(site.path("mounted/sim/it_1").join(&name)).arg(n.to_string()).spawn().expect("it starts")
        })
        .collect();
    for mut reader in readers {
        assert!(reader.wait().expect("waited for").success());
    }
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn the_end_of_a_mount_does_not_wait_for_programs_that_have_files_open() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let daemon = site.mount();
    let file = std::fs::File::open(site.path("mounted/sim/it_1/it_1/run.log")).expect("opened");
    assert_eq!(daemon.stop(), Some(0));
    let names = std::fs::read_dir(site.path("mounted")).expect("listed").count();
    assert_eq!(names, 0, "the directory is as before, although a file is open");
    drop(file);
}

#[test]
fn a_pruned_checkpoint_disappears_and_its_open_files_are_stale() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.save(2);
    let daemon = site.mount();
    let log = |step: u32| site.path(&format!("mounted/sim/it_{step}/it_{step}/run.log"));
    assert_eq!(std::fs::read_to_string(log(1)).expect("read"), "step 1\n");
    let before = std::fs::File::open(site.path("mounted/sim/it_1/it_1/sim.it_1.rank_3.h5")).expect("opened");
    let mut prune = mcr();
    prune.args(["prune", "--keep", "1", "--job", "sim", "--store"]).arg(site.path("store"));
    run(&mut prune, 0);
    wait_for("the end of it_1", Duration::from_secs(10), || (!site.path("mounted/sim/it_1").exists()).then_some(()));
    assert!(!log(1).exists());
    assert!(log(2).is_file());
    let mut bytes = [0; 64];
    let error = before.read_exact_at(&mut bytes, 4096).expect_err("the container was removed");
    assert_eq!(error.kind(), std::io::ErrorKind::StaleNetworkFileHandle, "{error}");

    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn a_damaged_container_gives_an_error_for_its_files_and_no_wrong_byte() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.save(2);
    // The ranks 0 and 1 are in group 0. A byte in the middle of the container is in a segment.
    let containers = files_below(&site.path("store"));
    let of = |text: &str| -> PathBuf {
        let mut found: Vec<_> = containers.iter().filter(|path| path.to_string_lossy().contains(text)).collect();
        found.sort_by_key(|path| std::cmp::Reverse(path.metadata().map_or(0, |it| it.len())));
        found.first().expect("a container").to_path_buf()
    };
    let container = of("it_2");
    let mut bytes = std::fs::read(&container).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&container, bytes).expect("written");
    let daemon = site.mount();
    let mut damaged = 0;
    for rank in 0..4 {
        let name = format!("sim.it_2.rank_{rank}.h5");
        match std::fs::read(site.path("mounted/sim/it_2/it_2").join(&name)) {
            Ok(read) => assert!(read == std::fs::read(site.path("data/it_2").join(&name)).expect("read")),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0, "no file needs the changed byte");
    daemon.wait_for_log("damaged");
    run(Command::new("diff").arg("-r").arg(site.path("data/it_1")).arg(site.path("mounted/sim/it_1/it_1")), 0);
    assert_eq!(daemon.stop(), Some(0));
}
