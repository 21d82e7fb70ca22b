//! `mcr mount`: the checkpoints of a store as a read-only file system.

mod ahead;
pub mod args;
mod data;
mod files;
mod spool;
mod tree;

use crate::advice::Advised;
use crate::common::{no_checkpoint_of, open_store, write_trace};
use crate::output::{name_of, print, print_json, tell};
use crate::signals::Signals;
use anyhow::{Context, bail};
use args::MountArgs;
use data::{Data, GROUPS_MAX};
use files::Files;
use fuser::{BackgroundSession, Config, MountOption};
use mcrengine::partition::Recording;
use nix::errno::Errno;
use nix::mount::MntFlags;
use spool::SpoolPlace;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tree::Tree;

/// The device of FUSE.
const DEVICE: &str = "/dev/fuse";
/// Number of threads that answer requests of the kernel.
const THREADS: usize = 4;
/// Time for which programs can read files that they have open when the mount ends.
const GRACE: Duration = Duration::from_secs(2);
/// Interval of the checks whether another program has unmounted the file system.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub fn run(args: MountArgs) -> anyhow::Result<ExitCode> {
    check_directory(&args.dir)?;
    if !Path::new(DEVICE).exists() {
        bail!(
            "{DEVICE} does not exist, so nothing can be mounted here: load the kernel's module (modprobe fuse), or \
             start the container with --device {DEVICE}. mcr ls, mcr cat and mcr extract need no mount"
        );
    }
    let store = Arc::new(open_store(&args.store)?);
    if let Some(job) = &args.store.job
        && let Some(none) = no_checkpoint_of(&*store, &args.store, job)?
    {
        tell(format!("{}; the mount shows its checkpoints as soon as there are some", none.what));
    }
    let spool = SpoolPlace::new(args.spool.as_deref(), args.spool_mib.saturating_mul(1 << 20), GROUPS_MAX)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let recording = args.trace.as_ref().map(|_| Arc::<Mutex<Recording>>::default());
    let bytes = args.budget_mib.clamp(16, 1 << 20) << 20;
    let data = Data::new(Arc::clone(&store), bytes, spool, threads, recording.clone());
    let owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let mut config = Config::default();
    let named = MountOption::FSName(format!("mcr:{}", args.store.store.display()));
    config.mount_options = vec![MountOption::RO, MountOption::NoSuid, MountOption::NoDev, MountOption::NoAtime, named];
    config.n_threads = Some(THREADS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mounted = fuser::spawn_mount(Files::new(store, Tree::new(args.store.job), data, owner), &args.dir, &config);
        let mounted = mounted.with_context(|| {
            format!(
                "{}: cannot be mounted. A user other than root needs the command fusermount3 of the package fuse3",
                name_of(&args.dir)
            )
        })?;
        if args.json {
            let (dir, store) = (name_of(&args.dir), name_of(&args.store.store));
            print_json(&serde_json::json!({ "mounted": dir, "store": store }))?;
        } else {
            let dir = name_of(&args.dir);
            print(&format!("mounted at {dir}; SIGTERM, Ctrl-C or umount {dir} ends this command\n"))?;
        }
        let unmounted_elsewhere = async {
            while !mounted.guard.is_finished() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = signals.next() => {}
            () = unmounted_elsewhere => return mounted.join().context("answering the kernel"),
        }
        unmount(mounted, &args.dir).await
    })?;
    if let (Some(file), Some(recording)) = (&args.trace, recording) {
        write_trace(file, std::mem::take(&mut *recording.lock().unwrap_or_else(PoisonError::into_inner)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Unmounts. The directory is empty at once, even if programs have files open. These programs can read on for
/// [`GRACE`].
async fn unmount(mounted: BackgroundSession, dir: &Path) -> anyhow::Result<()> {
    match nix::mount::umount2(dir, MntFlags::MNT_DETACH) {
        Ok(()) => {
            let until = tokio::time::Instant::now() + GRACE;
            while !mounted.guard.is_finished() && tokio::time::Instant::now() < until {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            if mounted.guard.is_finished() {
                return mounted.join().context("answering the kernel");
            }
            std::mem::forget(mounted); // its destructor would unmount what is mounted at the directory now
        }
        // A user other than root needs fusermount3. The call waits until all files are closed.
        Err(Errno::EPERM) => {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || sender.send(mounted.umount_and_join()));
            if let Ok(Ok(ended)) = tokio::time::timeout(GRACE, receiver).await {
                return ended.with_context(|| format!("{}: cannot be unmounted", name_of(dir)));
            }
        }
        Err(error) => return Err(error).with_context(|| format!("{}: cannot be unmounted", name_of(dir))),
    }
    tell("programs still have files of the mount open; they get errors from now on");
    Ok(())
}

/// Refuses a directory that is missing or not empty. A mount would hide the files of a directory that is not empty.
fn check_directory(dir: &Path) -> anyhow::Result<()> {
    let refused = |what: String| Advised::new(format!("{}: {what}", name_of(dir)), "give an empty directory").at(dir);
    let mut entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.raw_os_error() == Some(Errno::ENOTCONN as i32) => {
            let name = name_of(dir);
            let what = format!("{name}: it is still the mount of a command that was killed");
            let advice = format!("run umount {name} as root, or fusermount3 -u {name} as its user, then mount again");
            return Err(Advised::new(what, advice).at(dir).into());
        }
        Err(error) => return Err(refused(format!("it cannot be opened: {error}")).into()),
    };
    match entries.next() {
        Some(_) => Err(refused("the directory is not empty".to_owned()).into()),
        None => Ok(()),
    }
}
