//! Helpers that several subcommands use: the store, the job, the layout, the clock.

use crate::advice::Advised;
use crate::args::{LayoutArgs, StoreArgs};
use crate::guard::check_store;
use crate::output::{name_of, note};
use crate::refused::NotPermitted;
use crate::remembered::SavedFiles;
use anyhow::{anyhow, bail};
use mcr_cnc::layout::{Layout, Listing};
use mcrengine::codec::cores;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::partition::Recording;
use mcrengine::store::{PosixStore, Store, StoreError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The time now in milliseconds since 1970, as a manifest records it.
pub fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Maximum number of threads, even if the user asks for more threads.
const THREADS_MAX: usize = 1024;

/// The number of threads for an option value. 0 stands for the number of cores that the process may use.
pub fn threads_of(asked: usize) -> usize {
    match asked {
        0 => cores(),
        asked => asked.min(THREADS_MAX),
    }
}

/// Writes the recorded uses of segments, for `mcr bench partitions --trace`.
pub fn write_trace(file: &Path, recording: Recording) -> anyhow::Result<()> {
    let written = std::fs::File::create(file).and_then(|out| recording.write(std::io::BufWriter::new(out)));
    written.map_err(|error| anyhow!("{}: the trace cannot be written: {error}", file.display()))
}

/// Opens the store, which must exist.
pub fn open_store(args: &StoreArgs) -> anyhow::Result<PosixStore> {
    open_existing(&args.store)
}

/// Opens the store at this path, which must exist.
pub fn open_existing(store: &Path) -> anyhow::Result<PosixStore> {
    open_or_create(store, false, "").inspect(|_| tracing::info!(store = name_of(store), "the store is open"))
}

/// Opens the store. Creates the store only if `create` is true. Otherwise a store whose file system is not mounted
/// would be created on the local disk. The error message ends with `how`, which names the options that create the
/// store. If `how` is empty, the command needs the files of a store, and an empty new store does not help.
fn open_or_create(store: &Path, create: bool, how: &str) -> anyhow::Result<PosixStore> {
    let opened = if create { PosixStore::create(store) } else { PosixStore::open(store) };
    let name = name_of(store);
    opened.map_err(|error| {
        let StoreError::Io { source, .. } = &error else { return error.into() };
        let check = "Check --store / MCR_STORE";
        let advised = |what: String, advice: String| Advised::with_sentence(what, advice).at(store).into();
        match source.kind() {
            ErrorKind::NotFound if how.is_empty() => advised(
                format!("no store at \"{name}\": no such directory"),
                "Check the name (--store, MCR_STORE, or store in mcr.toml), and whether its file system is mounted"
                    .to_owned(),
            ),
            ErrorKind::NotFound => advised(
                format!("no store at \"{name}\": no such directory"),
                format!("{check}, or create it: mkdir -m 700 {}{how}", quoted(&name)),
            ),
            ErrorKind::PermissionDenied => {
                let why = format!("the store at \"{name}\" cannot be used: {source}. {check}");
                NotPermitted::new(why).at(store).into()
            }
            ErrorKind::NotADirectory => {
                advised(format!("no store at \"{name}\": it is not a directory"), check.to_owned())
            }
            _ => advised(format!("the store at \"{name}\" cannot be used: {source}"), check.to_owned()),
        }
    })
}

/// Opens the user's own store, to save to it. `is_shared`: see [`check_store`].
pub fn open_own(store: &Path, create: bool, is_shared: bool, how: &str) -> anyhow::Result<PosixStore> {
    let opened = open_or_create(store, create, how)?;
    check_store(store, is_shared)?;
    Ok(opened)
}

/// Quotes a name for a shell.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%:,=~".contains(c);
    if name.chars().all(is_plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', "'\\''")) }
}

/// The error for the directory of a job whose manifests name another job, because a user renamed or copied the
/// directory. `None` if the manifests name this job, or if the directory has no manifests.
pub fn renamed(store: &dyn Store, root: &Path, job: &JobId) -> Option<Advised> {
    let other = manifest::foreign_job(store, job)?;
    let (directory, right) = (root.join(job.as_str()), root.join(&other));
    let what = format!("{} has the checkpoints of job {other}", name_of(&directory));
    let (from, to) = (quoted(&name_of(&directory)), quoted(&name_of(&right)));
    let advice = match right.exists() {
        true => format!("the directory is a copy of {to}: remove the copy, or move it out of the store"),
        false => format!("the directory was renamed: rename it back with mv {from} {to}"),
    };
    Some(Advised::new(what, advice).at(&directory))
}

/// Maximum number of directories in which [`renamed_away`] looks for checkpoints of a job.
const RENAMED_LOOKS_MAX: usize = 256;

/// The error for a job without a directory whose checkpoints are in a directory of another name, because a user
/// renamed the directory. `None` if no such directory was found.
pub fn renamed_away(store: &dyn Store, root: &Path, job: &JobId) -> Option<Advised> {
    if root.join(job.as_str()).exists() {
        return None;
    }
    let jobs = manifest::jobs(store).unwrap_or_default();
    let mut looked_at = jobs.iter().take(RENAMED_LOOKS_MAX);
    let other = looked_at.find(|other| manifest::foreign_job(store, other).as_deref() == Some(job.as_str()))?;
    renamed(store, root, other)
}

/// The job to use: the job that the user named, even if this job does not exist, or the only job that has a
/// checkpoint. `None` if no job has a checkpoint. Fails if the directory of the job was renamed.
pub fn job_of(store: &dyn Store, args: &StoreArgs) -> anyhow::Result<Option<JobId>> {
    let job = named_or_only_job(store, args)?;
    match job.as_ref().and_then(|job| renamed(store, &args.store, job)) {
        Some(renamed) => Err(renamed.into()),
        None => Ok(job),
    }
}

fn named_or_only_job(store: &dyn Store, args: &StoreArgs) -> anyhow::Result<Option<JobId>> {
    if let Some(job) = &args.job {
        return Ok(Some(job.clone()));
    }
    let mut jobs = jobs_with_checkpoints(store)?;
    match jobs.len() {
        0 => Ok(None),
        1 => Ok(jobs.pop()),
        n => {
            let names = some_of(&jobs);
            let what = format!("{} holds checkpoints of {n} jobs", name_of(&args.store));
            Err(Advised::new(what, format!("name one with --job or MCR_JOB: {names}")).at(&args.store).into())
        }
    }
}

/// Does the same as [`job_of`], but fails if the job has no checkpoint.
pub fn one_job(store: &dyn Store, args: &StoreArgs) -> anyhow::Result<JobId> {
    let saves =
        "mcr list shows incomplete checkpoints; mcr save and mcr run save checkpoints; --store names another store";
    let Some(job) = job_of(store, args)? else {
        return Err(Advised::new(format!("{} holds no complete checkpoint", name_of(&args.store)), saves)
            .at(&args.store)
            .into());
    };
    match no_checkpoint_of(store, args, &job)? {
        None => Ok(job),
        Some(none) => Err(none.advised(&args.store).into()),
    }
}

/// A job without a checkpoint.
pub struct NoCheckpoint {
    /// The error message. It lists the jobs that have a checkpoint, the most similar name first.
    pub what: String,
    /// The job with the most similar name, because the user may have misspelt the name of the job.
    pub near: Option<JobId>,
}

impl NoCheckpoint {
    /// The error with advice. `store`: the directory of the store.
    pub fn advised(self, store: &Path) -> Advised {
        let shows = "mcr list shows all checkpoints of the store";
        let advice = match &self.near {
            Some(near) => format!("did you mean {:?}? {shows}", near.as_str()),
            None => shows.to_owned(),
        };
        Advised::new(self.what, advice).at(store)
    }
}

/// The error if the job has no checkpoint.
pub fn no_checkpoint_of(store: &dyn Store, args: &StoreArgs, job: &JobId) -> anyhow::Result<Option<NoCheckpoint>> {
    if has_checkpoint(store, job)? {
        return Ok(None);
    }
    let mut others = jobs_with_checkpoints(store)?;
    let likeness = |other: &JobId| likeness(job.as_str(), other.as_str());
    others.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)).then_with(|| a.cmp(b)));
    let there = match others.is_empty() {
        true => "no job has one".to_owned(),
        false => format!("jobs there: {}", some_of(&others)),
    };
    let what = format!("job {:?} has no checkpoint in {} ({there})", job.as_str(), name_of(&args.store));
    let near = others.into_iter().next().filter(|nearest| likeness(nearest) > LIKENESS_MIN);
    Ok(Some(NoCheckpoint { what, near }))
}

/// The error if the job has no checkpoint of this name. The advice names the most similar checkpoint, and the newest
/// checkpoints. `states`: the checkpoints of the job, newest first.
pub fn no_checkpoint_named(store: &Path, job: &JobId, id: &CheckpointId, states: &[CheckpointState]) -> Advised {
    let there: Vec<&CheckpointId> = states.iter().filter(|state| !state.is_pruned).map(|state| &state.id).collect();
    let near = nearest_of(id.as_str(), there.iter().map(|id| id.as_str()).chain(["latest"]));
    let advice = match (near, there.is_empty()) {
        (Some(near), _) => format!("did you mean {near:?}? The newest checkpoints: {}", some_of(&there)),
        (None, false) => format!("name another checkpoint. The newest checkpoints: {}", some_of(&there)),
        (None, true) => "the job has no checkpoint; mcr list shows all checkpoints of the store".to_owned(),
    };
    Advised::new(format!("job {job} has no checkpoint {id} in {}", name_of(store)), advice).at(store)
}

/// The real path of the directory that holds the checkpoints of an application.
pub fn real_directory(dir: &Path) -> anyhow::Result<PathBuf> {
    let advice = "give the directory that holds the checkpoints";
    let real = dir
        .canonicalize()
        .map_err(|error| Advised::new(format!("{}: cannot be opened: {error}", name_of(dir)), advice).at(dir))?;
    match real.is_dir() {
        true => Ok(real),
        false => Err(Advised::new(format!("{} is not a directory", name_of(dir)), advice).at(dir).into()),
    }
}

/// The known name that is most similar to the given name, or that begins with the given name. If several names are
/// equally similar, the result is the first one in the list. `None` if no name is similar.
fn nearest_of<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let best =
        known.map(|other| (likeness(name, other), other)).fold(None, |best: Option<(f64, &str)>, one| match best {
            Some(best) if best.0 >= one.0 => Some(best),
            _ => Some(one),
        });
    best.filter(|(likeness, _)| *likeness > LIKENESS_MIN).map(|(_, name)| name)
}

/// Similarity of two names, from 0 to 1. If one of the names begins with the other name, 1 is added.
fn likeness(name: &str, other: &str) -> f64 {
    let (a, b) = (other.to_lowercase(), name.to_lowercase());
    let begins = if a.starts_with(&b) || b.starts_with(&a) { 1.0 } else { 0.0 };
    begins + strsim::jaro_winkler(&a, &b)
}

/// Minimum similarity for which an error message asks "did you mean".
const LIKENESS_MIN: f64 = 0.75;

/// Lists at most `SHOWN_MAX` names, and the number of the remaining names.
fn some_of(all: &[impl ToString]) -> String {
    const SHOWN_MAX: usize = 10;
    let mut names = all.iter().take(SHOWN_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN_MAX {
        names.push_str(&format!(" and {} more", all.len() - SHOWN_MAX));
    }
    names
}

/// The jobs that have a checkpoint. A directory without a checkpoint, left by a misspelt name or an unfinished save,
/// is not a job.
fn jobs_with_checkpoints(store: &dyn Store) -> anyhow::Result<Vec<JobId>> {
    let mut jobs = Vec::new();
    for job in manifest::jobs(store)? {
        if has_checkpoint(store, &job)? {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// Whether the job has a manifest that was not pruned. The search ends at the first manifest.
fn has_checkpoint(store: &dyn Store, job: &JobId) -> anyhow::Result<bool> {
    let list = |dir: &Path| match store.list_dir(dir) {
        Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    };
    let of_job = Path::new(job.as_str());
    for checkpoint in list(of_job)?.iter().filter(|entry| entry.is_dir && entry.name.parse::<CheckpointId>().is_ok()) {
        let entries = list(&of_job.join(&checkpoint.name))?;
        let is_pruned = entries.iter().any(|entry| entry.name == "pruned");
        let is_manifest = |name: &str| name.starts_with("group-") && name.ends_with(".manifest");
        if !is_pruned && entries.iter().any(|entry| is_manifest(&entry.name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The layout that the user asked for, or a guess from the files that `names` returns together with their directory.
/// `ranks`: the number of ranks, if it is known. `saved`: the files that were saved before, which the guess must place
/// as they were saved. If the names do not show the layout, the error asks the user to name the layout.
pub fn layout_of(
    args: &LayoutArgs,
    names: impl FnOnce() -> anyhow::Result<(Listing, PathBuf)>,
    ranks: Option<u32>,
    saved: Option<&SavedFiles>,
    quiet: bool,
) -> anyhow::Result<Layout> {
    match args.layout.as_slice() {
        [] => {}
        [guess] if guess == "guess" => {}
        [name] if name == "single" => return Ok(Layout::whole(&names()?.1)),
        [name] if !name.contains('{') => return Ok(Layout::named(name)?),
        patterns => return Ok(Layout::from_patterns(patterns, args.first_rank)?),
    }
    let (listing, dir) = names()?;
    let guess = Layout::guess(&listing, &dir, ranks);
    let (layout, explanation) = match saved {
        Some(saved) => saved.keep(guess, &dir, ranks),
        None => guess,
    };
    if let Some(asks) = &explanation.asks {
        bail!("{}: {asks}", name_of(&dir));
    }
    if !quiet && !listing.files.is_empty() {
        for (nth, line) in explanation.lines.iter().enumerate() {
            note(if nth == 0 { format!("layout guessed: {line}") } else { format!("  {line}") });
        }
    }
    Ok(layout)
}

/// Whether the user named the layout. If so, files that belong to no checkpoint need no warning.
pub fn is_layout_said(args: &LayoutArgs) -> bool {
    !matches!(args.layout.as_slice(), [] | [_]) || args.layout.first().is_some_and(|name| name != "guess")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::Told;

    #[test]
    fn a_misspelt_name_has_the_most_similar_name_as_suggestion_and_an_odd_name_has_none() {
        let known = ["DD0009", "DD0008", "DD0007", "RD0001"];
        for (name, near) in [
            ("DD007", Some("DD0007")),
            ("dd0008", Some("DD0008")),
            ("DD", Some("DD0009")),
            ("DD0008x", Some("DD0008")),
            ("melt.1700", None),
        ] {
            assert_eq!(nearest_of(name, known.into_iter()), near, "{name}");
        }
    }

    #[test]
    fn a_name_with_blanks_is_quoted_for_the_shell() {
        assert_eq!(quoted("a/b-c.d"), "a/b-c.d");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
    }

    #[test]
    fn the_advice_for_a_misspelt_name_has_the_suggestion_and_the_path_of_the_store() {
        let near = Some("wave".parse().expect("a name"));
        let none = NoCheckpoint { what: "job \"wav\" has no checkpoint in s (jobs there: wave)".into(), near };
        let told = Told::new(&none.advised(Path::new("s")).into(), 1);
        assert_eq!(told.advice, "did you mean \"wave\"? mcr list shows all checkpoints of the store");
        assert_eq!((told.message.matches("; ").count(), told.path.as_deref()), (0, Some("s")), "{}", told.message);
        let (job, id) = ("wave".parse().expect("a name"), "DD7".parse().expect("a name"));
        let told = Told::new(&no_checkpoint_named(Path::new("s"), &job, &id, &[]).into(), 1);
        assert!(told.message == "job wave has no checkpoint DD7 in s", "{}", told.message);
    }
}
