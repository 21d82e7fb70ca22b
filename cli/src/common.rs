//! What several subcommands need: the store, the job, the layout, the clock.

use crate::args::{LayoutArgs, StoreArgs};
use anyhow::{Context, bail};
use mcr_cnc::layout::Layout;
use mcrengine::codec::cores;
use mcrengine::ids::{FilePath, JobId};
use mcrengine::manifest;
use mcrengine::store::{PosixStore, Store};
use std::path::PathBuf;
use std::time::SystemTime;

/// Milliseconds since 1970, as the manifest records them.
pub fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Threads most at a time, whatever was asked for.
const THREADS_MAX: usize = 1024;

/// How many threads are meant: 0 stands for as many as the process may run on.
pub fn threads_of(asked: usize) -> usize {
    match asked {
        0 => cores(),
        asked => asked.min(THREADS_MAX),
    }
}

/// Opens the store that must exist already.
pub fn open_store(args: &StoreArgs) -> anyhow::Result<PosixStore> {
    PosixStore::open(&args.store).with_context(|| {
        format!("{}: this is no store; name its directory with --store or MCR_STORE", args.store.display())
    })
}

/// The job that is meant: the one that was named, or the only one there is. `None`: the store is empty.
pub fn job_of(store: &dyn Store, args: &StoreArgs) -> anyhow::Result<Option<JobId>> {
    if let Some(job) = &args.job {
        return Ok(Some(job.clone()));
    }
    let mut jobs = manifest::jobs(store)?;
    match jobs.len() {
        0 => Ok(None),
        1 => Ok(jobs.pop()),
        n => {
            let names = jobs.iter().take(10).map(|job| job.to_string()).collect::<Vec<_>>().join(", ");
            bail!("{} holds {n} jobs; name one with --job or MCR_JOB: {names}", args.store.display())
        }
    }
}

/// As [`job_of`], where there must be one.
pub fn one_job(store: &dyn Store, args: &StoreArgs) -> anyhow::Result<JobId> {
    job_of(store, args)?.with_context(|| format!("{} holds no checkpoint", args.store.display()))
}

/// The layout that was asked for, or guessed from the names that `names` gives (with the directory that they are in).
pub fn layout_of(
    args: &LayoutArgs,
    names: impl FnOnce() -> anyhow::Result<(Vec<FilePath>, PathBuf)>,
    quiet: bool,
) -> anyhow::Result<Layout> {
    match args.layout.as_slice() {
        [] => {}
        [guess] if guess == "guess" => {}
        [name] if !name.contains('{') => return Ok(Layout::named(name)?),
        patterns => return Ok(Layout::from_patterns(patterns, args.first_rank)?),
    }
    let (names, dir) = names()?;
    let (layout, explanation) = Layout::guess(&names, &dir);
    if !quiet && !names.is_empty() {
        eprintln!("mcr: guessed from {} file name{}:", names.len(), if names.len() == 1 { "" } else { "s" });
        for line in explanation.to_string().lines() {
            eprintln!("mcr:   {line}");
        }
    }
    Ok(layout)
}
