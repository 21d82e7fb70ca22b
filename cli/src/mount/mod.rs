//! `mcr mount`: the checkpoints of a store as a read-only file system.

pub mod args;
mod data;
mod files;
mod tree;

use crate::common::open_store;
use crate::output::{name_of, print, print_json};
use crate::signals::Signals;
use anyhow::{Context, bail};
use args::MountArgs;
use data::Data;
use files::Files;
use fuser::{Config, MountOption};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tree::Tree;

/// The device of FUSE.
const DEVICE: &str = "/dev/fuse";
/// Number of threads that answer requests of the kernel.
const THREADS: usize = 4;
/// Interval of the checks whether another program has unmounted the file system.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub fn run(args: MountArgs) -> anyhow::Result<ExitCode> {
    check_directory(&args.dir)?;
    if !Path::new(DEVICE).exists() {
        bail!(
            "{DEVICE} does not exist, so nothing can be mounted here: load the kernel's module (modprobe fuse), or \
             start the container with --device {DEVICE}. mcr ls, mcr cat and mcr extract need no mount"
        );
    }
    let store = Arc::new(open_store(&args.store)?);
    let tree = Tree::new(Arc::clone(&store), args.store.job.clone());
    let data = Data::new(store, args.budget_mib.max(16) << 20);
    let owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let mut config = Config::default();
    let named = MountOption::FSName(format!("mcr:{}", args.store.store.display()));
    config.mount_options = vec![MountOption::RO, MountOption::NoSuid, MountOption::NoDev, MountOption::NoAtime, named];
    config.n_threads = Some(THREADS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mounted = fuser::spawn_mount(Files::new(tree, data, owner), &args.dir, &config);
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
        mounted.umount_and_join().with_context(|| format!("{}: cannot be unmounted", name_of(&args.dir)))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a directory that is missing or not empty. A mount would hide the files of a directory that is not empty.
fn check_directory(dir: &Path) -> anyhow::Result<()> {
    let mut entries = std::fs::read_dir(dir).with_context(|| format!("{}: give an empty directory", name_of(dir)))?;
    if entries.next().is_some() {
        bail!("{}: the directory is not empty; give an empty one", name_of(dir));
    }
    Ok(())
}
