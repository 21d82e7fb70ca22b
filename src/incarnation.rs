//! Distinguishes the starts of the application within a job, and records from which checkpoint each start continues.
//!
//! An *incarnation* is one start of a job. An incarnation is identified by a number and a text, never by a time,
//! because the clocks of nodes differ. Each incarnation has one record in the store, for example
//! `JOB/.incarnations/0003`. The first restart of the incarnation writes the record. Without a restart, the record is
//! written when the first agent announces an identity that no record has. A record is never changed. Only the newest
//! incarnation may commit checkpoints. The name of a job may be misspelt, and a misspelt name must not make a
//! directory of a job. Therefore the records of a job without a directory are in the hidden directory
//! `.JOB.incarnations` of the store. "Incarnation" in docs/format/manifest.md describes the text of a record.
//!
//! A manifest has the number of its incarnation. If a group of a checkpoint was not committed when a newer
//! incarnation began, the checkpoint never becomes complete ([`Incarnations::is_dead`]). If all groups were committed
//! but could not be read at that time, the checkpoint is set aside.

mod copying;

pub(crate) use copying::{add_records, missing_records};

use crate::container::ReadError;
use crate::ids::{CheckpointId, Digest, JobId};
use crate::manifest::Place;
use crate::store::{Store, StoreError, create_dirs, visible};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of the records, inside the job's directory.
const DIRECTORY: &str = ".incarnations";
/// The version of records that this build writes and reads.
pub const INCARNATION_VERSION: u32 = 1;
/// Maximum number of records that are kept for a job. The oldest records are removed.
const RECORDS_MAX: usize = 1024;
/// Maximum length of a record, in bytes.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of checkpoints in each list of a record.
pub const NAMED_MAX: usize = 256;
/// Maximum number of attempts to write a record, if other processes begin incarnations at the same moment.
const TRIES_MAX: u32 = 64;
/// Maximum length of an identity, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 200;

/// A file counts as a copy that kept the modification time of the original if its modification time is earlier than
/// the last change of its inode by more than this time (1 s).
pub const COPIED_NS: i64 = 1_000_000_000;

/// The record of one incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// The job.
    pub job: JobId,
    /// Number of the incarnation, counted from 1. In a manifest, 0 means that the job had no record when the manifest
    /// was written.
    pub number: u32,
    /// The name that SLURM or the operator gives to this start; empty for a start by hand.
    pub identity: String,
    /// The program and node that began the incarnation. This text is for people, and for counting restarts by hand on
    /// each node.
    pub begun_by: String,
    /// Time at which the incarnation began, in milliseconds since 1970, by the clock of the node that began it. The
    /// time is for people only; no decision depends on it.
    pub began_unix_ms: u64,
    /// Twice the time from the boundary between the previous and this incarnation to the writing of this record, in
    /// milliseconds. A restart writes the time since it started, so the boundary is the middle of this time: the last
    /// file of the previous run was written before the restart started, the next run writes its first file after the
    /// record, and the times of files may be wrong by some milliseconds. An aggregator that separates two runs writes
    /// twice the time since the first agent of the new run started.
    pub took_ms: u64,
    /// The checkpoint from which the incarnation continues. `None` if the incarnation started without a checkpoint.
    pub from: Option<CheckpointId>,
    /// The place of [`Self::from`] in the order of checkpoints.
    pub from_place: Option<Place>,
    /// `true` if a restart chose the checkpoint, `false` if an agent's announcement began the incarnation.
    pub is_restart: bool,
    /// Checkpoints newer than [`Self::from`] that were complete when the incarnation began. These checkpoints stay
    /// complete, but the incarnation does not continue from them.
    pub whole: Vec<CheckpointId>,
    /// Checkpoints of the incarnation of [`Self::from`] or of a later one that had an uncommitted group when the
    /// incarnation began, and that are or may become newer than [`Self::from`]. If such a checkpoint is newer, it
    /// never becomes complete. `None` if there were more than [`NAMED_MAX`] such checkpoints, or if an older program
    /// wrote the record. If `None`, none of the newer checkpoints can become complete except the
    /// checkpoints in [`Self::whole`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<Vec<CheckpointId>>,
    /// Checkpoints newer than [`Self::from`] that could not be restored, with the reasons.
    pub passed_over: Vec<PassedOver>,
}

/// A checkpoint that a restart did not restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Name of the checkpoint.
    pub checkpoint: CheckpointId,
    /// Why the restart did not restore the checkpoint.
    pub reason: String,
}

/// The fields of a record that its writer chooses.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// See [`Incarnation::identity`].
    pub identity: String,
    /// See [`Incarnation::begun_by`].
    pub begun_by: String,
    /// See [`Incarnation::began_unix_ms`].
    pub began_unix_ms: u64,
    /// See [`Incarnation::took_ms`].
    pub took_ms: u64,
    /// See [`Incarnation::from`] and [`Incarnation::from_place`].
    pub from: Option<(CheckpointId, Place)>,
    /// See [`Incarnation::is_restart`].
    pub is_restart: bool,
    /// See [`Incarnation::whole`].
    pub whole: Vec<CheckpointId>,
    /// See [`Incarnation::unfinished`].
    pub unfinished: Option<Vec<CheckpointId>>,
    /// See [`Incarnation::passed_over`].
    pub passed_over: Vec<PassedOver>,
}

/// The result of an attempt to begin an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// This process wrote the record, and the record is durable.
    Here(Incarnation),
    /// Another process wrote the record of this incarnation or of a later incarnation first.
    Other(Incarnation),
}

/// The records of a job, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incarnations(Vec<Incarnation>);

impl Incarnations {
    /// Reads all records of a job. The list is empty if the job does not exist.
    pub fn load(store: &dyn Store, job: &JobId) -> Result<Self, ReadError> {
        let mut records = Vec::new();
        for number in numbers(store, job)? {
            match read(store, job, number) {
                Err(ReadError::Missing { .. }) => {} // removed in the meantime, because there are many newer records
                other => records.push(other?),
            }
        }
        Ok(Self(records))
    }

    /// The newest record. `None` if there are no records.
    pub fn newest(&self) -> Option<&Incarnation> {
        self.0.last()
    }

    /// The number of the newest incarnation that a restart began and that has the identity of the newest incarnation.
    pub fn newest_restart(&self) -> Option<u32> {
        let newest = self.newest()?;
        let is_one = |record: &&Incarnation| record.is_restart && record.identity == newest.identity;
        self.0.iter().rev().find(is_one).map(|record| record.number)
    }

    /// All records, the oldest first.
    pub fn all(&self) -> &[Incarnation] {
        &self.0
    }

    /// The record of the incarnation that ended incarnation `number`: the first record with a higher number.
    pub fn ended_by(&self, number: u32) -> Option<&Incarnation> {
        self.0.iter().find(|record| record.number > number)
    }

    /// Whether a checkpoint can never become complete, because a newer incarnation began before all of its groups
    /// were committed.
    pub fn is_dead(&self, id: &CheckpointId, place: Place) -> bool {
        self.ended_by(place.incarnation).is_some_and(|next| next.is_death_of(id, place))
    }

    /// The incarnations from which the newest incarnation descends: the newest incarnation, the incarnation that
    /// wrote the checkpoint from which the newest incarnation continued, and so on.
    pub fn line(&self) -> Line<'_> {
        let mut line: Vec<&Incarnation> = self.newest().into_iter().collect();
        while let Some(record) = line.last()
            && let Some(from) = record.from_place.filter(|from| from.incarnation < record.number)
            && let Ok(at) = self.0.binary_search_by_key(&from.incarnation, |older| older.number)
        {
            line.push(&self.0[at]);
        }
        Line(line)
    }

    /// Number of consecutive incarnations, counted back from the newest incarnation, that were restarts from this
    /// checkpoint; at most `most`. A restart that failed, or that was killed before any part of the job was restored,
    /// does not count.
    pub fn restarts_in_a_row(
        &self,
        store: &dyn Store,
        job: &JobId,
        id: &CheckpointId,
        most: usize,
    ) -> Result<usize, StoreError> {
        let from_it = |record: &&Incarnation| record.is_restart && record.from.as_ref() == Some(id);
        let mut in_a_row = InARow::default();
        for record in self.0.iter().rev().take_while(from_it) {
            if has_any_part(store, job, record.number)? && in_a_row.add(record) >= most {
                break;
            }
        }
        Ok(in_a_row.count())
    }
}

/// Counts consecutive restarts from one checkpoint. The nodes of a job that is started by hand have no common
/// identity, so the restarts of several nodes look like consecutive starts. Therefore restarts by hand are counted
/// separately for each node.
#[derive(Debug, Default)]
struct InARow<'a> {
    with_identity: usize,
    by_hand: BTreeMap<Cow<'a, str>, usize>,
}

impl<'a> InARow<'a> {
    fn add(&mut self, record: &'a Incarnation) -> usize {
        self.add_one(record.identity.is_empty().then_some(Cow::Borrowed(&record.begun_by)))
    }

    fn add_one(&mut self, by_hand_on: Option<Cow<'a, str>>) -> usize {
        match by_hand_on {
            None => self.with_identity += 1,
            Some(node) => *self.by_hand.entry(node).or_default() += 1,
        }
        self.count()
    }

    fn count(&self) -> usize {
        self.with_identity + self.by_hand.values().max().copied().unwrap_or(0)
    }
}

/// The line of incarnations from which the newest incarnation of a job descends, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a>(Vec<&'a Incarnation>);

impl<'a> Line<'a> {
    /// The incarnation that set a complete checkpoint aside, because the incarnation continued from an older
    /// checkpoint. The state of the application does not descend from checkpoints that are set aside, so a restart
    /// uses such a checkpoint only if the user names it.
    pub fn set_aside_by(&self, place: Place) -> Option<&'a Incarnation> {
        let in_line = |record: &&Incarnation| record.from_place.is_some_and(|from| from >= place);
        let record = self.0.get(self.0.partition_point(in_line))?;
        (record.from_place.is_some() && place.incarnation < record.number).then_some(*record)
    }
}

/// By default, a checkpoint is skipped after this number of consecutive restarts from the checkpoint.
pub const GIVE_UP_AFTER: usize = 3;
/// Maximum number of records that are read to count the restarts. The number is larger than [`GIVE_UP_AFTER`],
/// because failed restarts do not count.
const RECORDS_READ_MAX: u32 = 64;

/// The checkpoint that the next restart skips, because it was restored [`GIVE_UP_AFTER`] times in a row; `None` if
/// there is no such checkpoint. Only a few records are read, even if the job has many records.
pub fn restored_too_often(store: &dyn Store, job: &JobId) -> Result<Option<CheckpointId>, ReadError> {
    let Some(newest) = newest(store, job)? else { return Ok(None) };
    let Some(from) = newest.from.clone().filter(|_| newest.is_restart) else { return Ok(None) };
    let (mut in_a_row, mut record) = (InARow::default(), newest);
    for _ in 0..RECORDS_READ_MAX {
        if !record.is_restart || record.from.as_ref() != Some(&from) {
            break;
        }
        let by_hand_on = record.identity.is_empty().then(|| Cow::Owned(record.begun_by.clone()));
        if has_any_part(store, job, record.number).map_err(ReadError::from_store)?
            && in_a_row.add_one(by_hand_on) >= GIVE_UP_AFTER
        {
            return Ok(Some(from));
        }
        record = match read(store, job, record.number.saturating_sub(1)) {
            Ok(before) => before,
            Err(ReadError::Missing { .. }) => break,
            Err(error) => return Err(error),
        };
    }
    Ok(None)
}

/// The directory of the records. As long as the job has no directory, the directory of the records is
/// `.JOB.incarnations`. The first call after the job's directory was created moves the directory of the records into
/// the job's directory.
fn directory(store: &dyn Store, job: &JobId) -> Result<PathBuf, StoreError> {
    let of_job = Path::new(job.as_str());
    let (inside, beside) = (of_job.join(DIRECTORY), PathBuf::from(format!(".{job}{DIRECTORY}")));
    if is_dir(store, &inside)? {
        return Ok(inside);
    }
    if !is_dir(store, of_job)? {
        return Ok(beside);
    }
    if !is_dir(store, &beside)? {
        return Ok(inside);
    }
    match store.rename(&beside, &inside) {
        Ok(()) => {
            store.sync_dir(of_job)?;
            store.sync_dir(Path::new(""))?;
            Ok(inside)
        }
        // Another process moved or created the directory.
        Err(_) if is_dir(store, &inside)? => Ok(inside),
        // The store is read-only.
        Err(_) => Ok(beside),
    }
}

fn is_dir(store: &dyn Store, path: &Path) -> Result<bool, StoreError> {
    match store.stat(path) {
        Ok(stat) => Ok(stat.is_dir),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn record_name(number: u32) -> String {
    format!("{number:04}")
}

/// The numbers of the records of a job, in increasing order.
fn numbers(store: &dyn Store, job: &JobId) -> Result<Vec<u32>, ReadError> {
    let entries = match directory(store, job).and_then(|dir| store.list_dir(&dir)) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        other => other.map_err(ReadError::from_store)?,
    };
    let number = |name: &str| name.parse().ok().filter(|number| record_name(*number) == name);
    let files = entries.iter().filter(|entry| !entry.is_dir && visible(&entry.name));
    let mut numbers: Vec<u32> = files.filter_map(|entry| number(&entry.name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The number of the newest incarnation of a job, or 0 if the job has no incarnation. Lists one directory and reads
/// no file.
pub fn newest_number(store: &dyn Store, job: &JobId) -> Result<u32, ReadError> {
    Ok(numbers(store, job)?.last().copied().unwrap_or(0))
}

/// The newest incarnation of a job. `None` if the job has no incarnation.
pub fn newest(store: &dyn Store, job: &JobId) -> Result<Option<Incarnation>, ReadError> {
    match newest_number(store, job)? {
        0 => Ok(None),
        number => read(store, job, number).map(Some),
    }
}

/// The incarnation that ended incarnation `number`: the next incarnation after `number` that has a record.
pub fn ended_by(store: &dyn Store, job: &JobId, number: u32) -> Result<Option<Incarnation>, ReadError> {
    match numbers(store, job)?.into_iter().find(|next| *next > number) {
        None => Ok(None),
        Some(next) => read(store, job, next).map(Some),
    }
}

/// How long ago an incarnation began, by the clock of the store's file system. The result does not depend on the
/// clocks of the nodes.
pub fn age(store: &dyn Store, job: &JobId, number: u32) -> Result<Duration, StoreError> {
    store.age(&directory(store, job)?.join(record_name(number)))
}

/// Begins the incarnation after `after`, unless another process began this incarnation first. The record is durable
/// when this function returns.
pub fn begin(store: &dyn Store, job: &JobId, after: u32, draft: Draft) -> Result<Begun, StoreError> {
    let number = after.saturating_add(1);
    let name = |names: Vec<CheckpointId>| names.into_iter().take(NAMED_MAX).collect();
    let (from, from_place) = draft.from.unzip();
    let record = Incarnation {
        job: job.clone(),
        number,
        identity: draft.identity,
        begun_by: draft.begun_by,
        began_unix_ms: draft.began_unix_ms,
        took_ms: draft.took_ms,
        from,
        from_place,
        is_restart: draft.is_restart,
        whole: name(draft.whole),
        unfinished: draft.unfinished.filter(|names| names.len() <= NAMED_MAX),
        passed_over: draft.passed_over.into_iter().take(NAMED_MAX).collect(),
    };
    let mut attempt = 1;
    loop {
        match begin_in(store, job, &directory(store, job)?, &record) {
            // The directory was moved into the job's directory in the meantime.
            Err(error) if error.is_not_found() && attempt < TRIES_MAX => attempt += 1,
            other => return other,
        }
    }
}

fn begin_in(store: &dyn Store, job: &JobId, dir: &Path, record: &Incarnation) -> Result<Begun, StoreError> {
    let path = dir.join(record_name(record.number));
    create_dirs(store, dir)?;
    let mut temp = store.create_temp(dir, &record_name(record.number))?;
    let text = record.to_text().map_err(|what| StoreError::Contents { path: path.clone(), what })?;
    temp.append(text.as_bytes())?;
    temp.sync()?;
    for _ in 0..TRIES_MAX {
        let newest = newest_number(store, job)?;
        if newest >= record.number {
            return Ok(Begun::Other(read(store, job, newest)?));
        }
        if store.rename_new(temp.path(), &path)? {
            store.sync_dir(dir)?;
            // If another process created the job's directory and its first record at the same moment, the new record
            // is outside of this directory.
            if directory(store, job)? != dir && !read(store, job, record.number).is_ok_and(|first| first == *record) {
                store.remove_file(&path)?;
                continue;
            }
            remove_old_records(store, job)?;
            return Ok(Begun::Here(record.clone()));
        }
    }
    Err(StoreError::Busy { path })
}

/// A part of a job that a restart restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Name of the node. The name has no blanks.
    pub node: String,
    /// The ranks, as in `0-31,40-40`; empty if all ranks were restored.
    pub ranks: String,
    /// The absolute path of the directory with the restored files. The path has no symbolic links.
    pub directory: String,
}

/// Records that a part of the job was restored for an incarnation. `key` names the part and the directory. A second
/// restore of the same part means that the application was started again.
pub fn note_part(store: &dyn Store, job: &JobId, number: u32, key: &str, part: &Part) -> Result<(), StoreError> {
    let dir = parts_directory(store, job, number)?;
    create_dirs(store, &dir)?;
    let name = part_name(key);
    let mut file = store.create_temp(&dir, &name)?;
    file.append(format!("{} {} {}", part.node, part.ranks, part.directory).as_bytes())?;
    file.sync()?;
    store.rename(file.path(), &dir.join(&name))?;
    store.sync_dir(&dir)
}

/// The parts that were restored for an incarnation. A part that cannot be read has empty texts.
pub fn parts(store: &dyn Store, job: &JobId, number: u32) -> Result<Vec<Part>, StoreError> {
    let dir = parts_directory(store, job, number)?;
    let entries = match store.list_dir(&dir) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        other => other?,
    };
    let part_of = |name: &str| -> Option<Part> {
        let file = store.open(&dir.join(name)).ok()?;
        let mut text = vec![0; file.len().min(RECORD_BYTES_MAX) as usize];
        file.read_at(0, &mut text).ok()?;
        let text = String::from_utf8(text).ok()?;
        let mut words = text.splitn(3, ' ').map(str::to_owned);
        Some(Part { node: words.next()?, ranks: words.next()?, directory: words.next()? })
    };
    let parts = entries.iter().filter(|entry| !entry.is_dir && visible(&entry.name));
    Ok(parts.map(|entry| part_of(&entry.name).unwrap_or_default()).collect())
}

/// Whether the part `key` of the job was restored for an incarnation.
pub fn has_part(store: &dyn Store, job: &JobId, number: u32, key: &str) -> Result<bool, StoreError> {
    match store.open(&parts_directory(store, job, number)?.join(part_name(key))) {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether any part of the job was restored for an incarnation.
fn has_any_part(store: &dyn Store, job: &JobId, number: u32) -> Result<bool, StoreError> {
    match store.list_dir(&parts_directory(store, job, number)?) {
        Ok(entries) => Ok(entries.iter().any(|entry| visible(&entry.name))),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn parts_directory(store: &dyn Store, job: &JobId, number: u32) -> Result<PathBuf, StoreError> {
    Ok(directory(store, job)?.join(format!("{}.parts", record_name(number))))
}

fn part_name(key: &str) -> String {
    Digest::of(key.as_bytes()).to_hex()[..16].to_owned()
}

/// Removes the files that record which parts were restored for an incarnation, except `kept` of these files.
fn remove_parts(store: &dyn Store, job: &JobId, number: u32, kept: usize) -> Result<(), StoreError> {
    let dir = parts_directory(store, job, number)?;
    let entries = match store.list_dir(&dir) {
        Err(error) if error.is_not_found() => return Ok(()),
        other => other?,
    };
    let parts = entries.iter().filter(|entry| !entry.is_dir && (kept == 0 || visible(&entry.name)));
    for entry in parts.skip(kept) {
        store.remove_file(&dir.join(&entry.name))?;
    }
    if kept == 0 { store.remove_dir(&dir) } else { Ok(()) }
}

fn remove_old_records(store: &dyn Store, job: &JobId) -> Result<(), StoreError> {
    let numbers = numbers(store, job)?;
    if let Some(old) = numbers.len().checked_sub(3).and_then(|at| numbers.get(at)) {
        // One file stays. This file shows that a restart restored files for the incarnation.
        remove_parts(store, job, *old, 1)?;
    }
    for number in &numbers[..numbers.len().saturating_sub(RECORDS_MAX)] {
        remove_parts(store, job, *number, 0)?;
        store.remove_file(&directory(store, job)?.join(record_name(*number)))?;
    }
    Ok(())
}

/// A damaged record that was written again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MendedRecord {
    /// Number of the incarnation.
    pub number: u32,
    /// The damage, as a sentence for people.
    pub damage: String,
}

/// Replaces each damaged record of a job by a record of the same number that sets no checkpoint aside. The number must
/// not be used again, because it determines the order of the checkpoints. The damaged file stays under the name
/// `NUMBER.damaged`.
pub fn mend_records(store: &dyn Store, job: &JobId, began_unix_ms: u64) -> Result<Vec<MendedRecord>, ReadError> {
    let mut mended = Vec::new();
    for number in numbers(store, job)? {
        let damage = match read(store, job, number) {
            Err(error) if error.is_damage() => error.to_string(),
            Err(ReadError::Missing { .. }) | Ok(_) => continue,
            Err(error) => return Err(error),
        };
        let mend = || -> Result<(), StoreError> {
            let (dir, name) = (directory(store, job)?, record_name(number));
            let record = Incarnation {
                job: job.clone(),
                number,
                identity: String::new(),
                begun_by: "mcr verify --repair".to_owned(),
                began_unix_ms,
                took_ms: 0,
                from: None,
                from_place: None,
                is_restart: false,
                whole: Vec::new(),
                unfinished: Some(Vec::new()),
                passed_over: Vec::new(),
            };
            let path = dir.join(&name);
            let text = record.to_text().map_err(|what| StoreError::Contents { path: path.clone(), what })?;
            let mut temp = store.create_temp(&dir, &name)?;
            temp.append(text.as_bytes())?;
            temp.sync()?;
            store.rename(&path, &dir.join(format!("{name}.damaged")))?;
            store.rename(temp.path(), &path)?;
            store.sync_dir(&dir)
        };
        mend().map_err(ReadError::from_store)?;
        mended.push(MendedRecord { number, damage });
    }
    Ok(mended)
}

fn read(store: &dyn Store, job: &JobId, number: u32) -> Result<Incarnation, ReadError> {
    let relative = directory(store, job).map_err(ReadError::from_store)?.join(record_name(number));
    let file = store.open(&relative).map_err(ReadError::from_store)?;
    let (path, len) = (store.root().join(relative), file.len());
    if len > RECORD_BYTES_MAX {
        let what = format!("it has {len} bytes, more than {RECORD_BYTES_MAX}");
        return Err(ReadError::Invalid { path, part: "the record of an incarnation", what });
    }
    let mut text = vec![0; len as usize];
    file.read_at(0, &mut text).map_err(|source| ReadError::Io { path: path.clone(), offset: 0, len, source })?;
    let record = Incarnation::parse(&text, &path)?;
    if (&record.job, record.number) != (job, number) {
        let (expected, found) = (format!("{job}, {number}"), format!("{}, {}", record.job, record.number));
        return Err(ReadError::Foreign { path, what: "the record of an incarnation", expected, found });
    }
    Ok(record)
}

impl Incarnation {
    /// The place of files that were not written later than the checkpoint from which this incarnation continues. Such
    /// files belong to an earlier run, so their place is before this checkpoint. `None` if the files were written
    /// later, or if the incarnation continues from no checkpoint.
    pub fn place_of_older(&self, written_unix_ms: i64) -> Option<Place> {
        let from = self.from_place.filter(|from| written_unix_ms <= from.written_unix_ms)?;
        let before_ms = from.written_unix_ms.saturating_sub(1);
        Some(Place { incarnation: from.incarnation, written_unix_ms: written_unix_ms.min(before_ms) })
    }

    /// Whether a checkpoint of an older incarnation can never become complete, because this incarnation began before
    /// all of its groups were committed.
    pub fn is_death_of(&self, id: &CheckpointId, place: Place) -> bool {
        let was_unfinished = match &self.unfinished {
            Some(unfinished) => unfinished.contains(id),
            None => !self.whole.contains(id),
        };
        was_unfinished && self.from_place.is_none_or(|from| place > from)
    }

    fn to_text(&self) -> Result<String, String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        let text = format!("mcr-incarnation {INCARNATION_VERSION}\n{json}\n");
        let digest = Digest::of(text.as_bytes());
        Ok(format!("{text}blake3 {digest}\n"))
    }

    /// Parses the text of a record. `path` appears in error messages only.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ReadError> {
        let path = || path.to_path_buf();
        let invalid = |what: String| ReadError::Invalid { path: path(), part: "the record of an incarnation", what };
        let Some(rest) = text.strip_prefix(b"mcr-incarnation ") else {
            return Err(ReadError::NotOurs { path: path(), what: "the record of an incarnation", at: 0 });
        };
        let version = rest.split(|&b| b == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
        match version.and_then(|version| version.parse::<u32>().ok()) {
            Some(INCARNATION_VERSION) => {}
            Some(found) if found > INCARNATION_VERSION => {
                return Err(ReadError::TooNew { path: path(), found, newest: INCARNATION_VERSION });
            }
            _ => return Err(invalid("its first line has no version".into())),
        }
        let body = crate::manifest::checked_body(text, &path(), "the record of an incarnation")?;
        let json = body.iter().position(|&b| b == b'\n').map_or(&[][..], |line| &body[line + 1..]);
        let record: Self = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        match () {
            () if record.number == 0 => Err(invalid("its number is 0".into())),
            () if record.identity.len() > IDENTITY_BYTES_MAX => Err(invalid("its identity is too long".into())),
            () if record.from.is_some() != record.from_place.is_some() => {
                Err(invalid("it has a checkpoint without its place, or a place without a checkpoint".into()))
            }
            () => Ok(record),
        }
    }

    /// A description for people: "incarnation 3 (SLURM job 4711, begun by mcr restart on n1)".
    pub fn describe(&self) -> String {
        let identity = if self.identity.is_empty() { String::new() } else { format!("{}, ", self.identity) };
        format!("incarnation {} ({identity}begun by {})", self.number, self.begun_by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, PosixStore};

    fn job() -> JobId {
        "j".parse().expect("valid")
    }

    fn id(name: &str) -> CheckpointId {
        name.parse().expect("valid")
    }

    fn place(incarnation: u32, written_unix_ms: i64) -> Place {
        Place { incarnation, written_unix_ms }
    }

    fn begin_after(store: &MemoryStore, after: u32, draft: Draft) -> Begun {
        begin(store, &job(), after, draft).expect("begins")
    }

    #[test]
    fn the_first_to_begin_an_incarnation_decides_and_the_second_is_told_the_decision() {
        let store = MemoryStore::new();
        assert_eq!(newest(&store, &job()).expect("lists"), None);
        let from = Some((id("it_1"), place(0, 5)));
        let first = begin_after(&store, 0, Draft { from, identity: "a".into(), ..Draft::default() });
        let second = begin_after(&store, 0, Draft { identity: "b".into(), ..Draft::default() });
        let (Begun::Here(first), Begun::Other(second)) = (first, second) else { panic!("one of them is the first") };
        assert_eq!(first, second);
        assert_eq!(second.from, Some(id("it_1")));
        assert_eq!(newest_number(&store, &job()).expect("lists"), 1);
        assert!(matches!(begin_after(&store, 1, Draft::default()), Begun::Here(Incarnation { number: 2, .. })));
    }

    #[test]
    fn a_record_for_a_job_without_a_directory_is_hidden_and_moves_into_the_directory_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let stores: [Box<dyn Store>; 2] =
            [Box::new(MemoryStore::new()), Box::new(PosixStore::create(dir.path().join("store")).expect("creates"))];
        for store in &stores {
            let store = store.as_ref();
            let begun = begin(store, &job(), 0, Draft { is_restart: true, ..Draft::default() }).expect("begins");
            note_part(store, &job(), 1, "ranks 0-1", &Part::default()).expect("noted");
            assert_eq!(crate::manifest::jobs(store).expect("lists"), [], "the name may be misspelt");
            create_dirs(store, Path::new("j/it_1")).expect("made");
            let Begun::Here(first) = begun else { panic!("nobody else began") };
            assert_eq!(newest(store, &job()).expect("reads"), Some(first));
            assert!(has_part(store, &job(), 1, "ranks 0-1").expect("looked up"));
            let names = |dir: &str| store.list_dir(Path::new(dir)).expect("lists").into_iter().map(|entry| entry.name);
            assert!(names("").eq(["j"]) && names("j").eq([".incarnations", "it_1"]), "the records are moved");
            let second = begin(store, &job(), 1, Draft::default()).expect("begins");
            assert!(matches!(second, Begun::Here(Incarnation { number: 2, .. })));
        }
    }

    #[test]
    fn of_two_that_begin_while_the_job_gets_its_directory_one_is_told_the_decision_of_the_other() {
        let store = MemoryStore::new();
        let draft = |identity: &str| Draft { identity: identity.into(), ..Draft::default() };
        let record = |identity: &str| {
            let other = MemoryStore::new();
            match begin(&other, &job(), 0, draft(identity)).expect("begins") {
                Begun::Here(record) | Begun::Other(record) => record,
            }
        };
        // The first process found no directory of the job. Then the second process created the directory, and began
        // an incarnation.
        let beside = directory(&store, &job()).expect("looked up");
        create_dirs(&store, Path::new("j")).expect("made");
        let second = begin_after(&store, 0, draft("b"));
        let first = begin_in(&store, &job(), &beside, &record("a")).expect("tried");
        assert_eq!((first, second), (Begun::Other(record("b")), Begun::Here(record("b"))));
        assert_eq!(Incarnations::load(&store, &job()).expect("loads").all(), [record("b")]);
        // The second process created the directory but has not written its record yet. The record of the first
        // process is valid.
        let store = MemoryStore::new();
        let beside = directory(&store, &job()).expect("looked up");
        create_dirs(&store, Path::new("j")).expect("made");
        let moved = begin_in(&store, &job(), &beside, &record("a")).expect_err("its directory was moved");
        assert!(moved.is_not_found());
        let first = begin_after(&store, 0, draft("a"));
        let second = begin_after(&store, 0, draft("b"));
        assert_eq!((first, second), (Begun::Here(record("a")), Begun::Other(record("a"))));
    }

    #[test]
    fn what_was_not_whole_when_the_next_incarnation_began_is_dead_and_what_was_whole_is_not() {
        let store = MemoryStore::new();
        let from = Some((id("it_3"), place(0, 30)));
        begin_after(&store, 0, Draft { from, whole: vec![id("it_5")], is_restart: true, ..Draft::default() });
        let all = Incarnations::load(&store, &job()).expect("loads");
        assert!(!all.is_dead(&id("it_3"), place(0, 30)), "the incarnation continues from it");
        assert!(!all.is_dead(&id("it_2"), place(0, 20)), "older than the checkpoint that it continues from");
        assert!(all.is_dead(&id("it_4"), place(0, 40)), "it was incomplete");
        assert!(all.is_dead(&id("it_6"), place(0, 60)), "it was committed too late");
        assert!(!all.is_dead(&id("it_5"), place(0, 50)) && all.line().set_aside_by(place(0, 50)).is_some());
        assert!(!all.is_dead(&id("it_4"), place(1, 40)), "it belongs to the new incarnation");
    }

    #[test]
    fn what_was_committed_and_only_not_readable_when_the_next_incarnation_began_is_set_aside() {
        let store = MemoryStore::new();
        let (from, unfinished) = (Some((id("it_3"), place(0, 30))), Some(vec![id("it_2"), id("it_4")]));
        begin_after(&store, 0, Draft { from, unfinished, is_restart: true, ..Draft::default() });
        let all = Incarnations::load(&store, &job()).expect("loads");
        assert!(all.is_dead(&id("it_4"), place(0, 40)), "a group was not committed");
        assert!(!all.is_dead(&id("it_2"), place(0, 20)), "older than the checkpoint that it continues from");
        assert!(!all.is_dead(&id("it_5"), place(0, 50)) && all.line().set_aside_by(place(0, 50)).is_some());
        // If there are too many names for a record, only the checkpoints in `whole` are set aside.
        let unfinished = Some((0..=NAMED_MAX).map(|n| id(&format!("x{n}"))).collect());
        begin_after(&store, 1, Draft { unfinished, whole: vec![id("it_6")], ..Draft::default() });
        let all = Incarnations::load(&store, &job()).expect("loads");
        assert!(all.is_dead(&id("it_5"), place(1, 50)) && !all.is_dead(&id("it_6"), place(1, 60)));
    }

    #[test]
    fn what_was_set_aside_stays_so_until_a_restart_continues_from_it_or_from_its_line() {
        let store = MemoryStore::new();
        let aside = |all: &[(u32, i64)]| {
            let incarnations = Incarnations::load(&store, &job()).expect("loads");
            let by = |at: &(u32, i64)| incarnations.line().set_aside_by(place(at.0, at.1)).map_or(0, |by| by.number);
            all.iter().map(by).collect::<Vec<_>>()
        };
        let all = [(0, 10), (0, 30), (0, 40), (0, 50), (1, 5), (1, 60), (2, 70), (3, 80)];
        let from = |after: u32, at: (u32, i64), is_restart: bool| {
            let from = Some((id("it"), place(at.0, at.1)));
            begin_after(&store, after, Draft { from, is_restart, ..Draft::default() });
        };
        assert_eq!(aside(&all), [0; 8]);
        from(0, (0, 30), true);
        assert_eq!(aside(&all), [0, 0, 1, 1, 0, 0, 0, 0]);
        from(1, (1, 5), true);
        assert_eq!(aside(&all), [0, 0, 1, 1, 0, 2, 0, 0], "the restart before set them aside");
        from(2, (2, 70), false);
        assert_eq!(aside(&all), [0, 0, 1, 1, 0, 2, 0, 0]);
        from(3, (0, 40), true);
        assert_eq!(aside(&all), [0, 0, 0, 4, 4, 4, 4, 4], "a restart took one of the checkpoints by its name");
        begin_after(&store, 4, Draft::default());
        assert_eq!(aside(&all), [0; 8], "a new run goes back to nothing");
    }

    #[test]
    fn only_restarts_that_restored_something_count_as_restarts_in_a_row() {
        let store = MemoryStore::new();
        let in_a_row = |most| {
            let all = Incarnations::load(&store, &job()).expect("loads");
            all.restarts_in_a_row(&store, &job(), &id("it_3"), most).expect("counts")
        };
        for after in 0..6 {
            begin_after(
                &store,
                after,
                Draft { from: Some((id("it_3"), place(0, 30))), is_restart: true, ..Draft::default() },
            );
            if after != 4 {
                ["a", "b"]
                    .iter()
                    .for_each(|part| note_part(&store, &job(), after + 1, part, &Part::default()).expect("noted"));
            }
        }
        assert_eq!((in_a_row(9), in_a_row(3)), (5, 3));
        assert_eq!(restored_too_often(&store, &job()).expect("looks"), Some(id("it_3")));
        begin_after(&store, 6, Draft { from: Some((id("it_4"), place(0, 40))), is_restart: true, ..Draft::default() });
        assert_eq!(restored_too_often(&store, &job()).expect("looks"), None);
    }

    #[test]
    fn restarts_by_hand_on_several_nodes_are_no_restarts_in_a_row() {
        let store = MemoryStore::new();
        let restart = |after: u32, node: &str| {
            let (from, begun_by) = (Some((id("it_3"), place(0, 30))), format!("mcr restart on {node}"));
            begin_after(&store, after, Draft { from, begun_by, is_restart: true, ..Draft::default() });
            note_part(&store, &job(), after + 1, node, &Part::default()).expect("noted");
            Incarnations::load(&store, &job()).expect("loads").restarts_in_a_row(&store, &job(), &id("it_3"), 9)
        };
        let counts =
            ["n1", "n2", "n3", "n1", "n2", "n1"].into_iter().zip(0..).map(|(node, after)| restart(after, node));
        assert_eq!(counts.map(|count| count.expect("counts")).collect::<Vec<_>>(), [1, 1, 1, 2, 2, 3]);
        assert_eq!(restored_too_often(&store, &job()).expect("looks"), Some(id("it_3")));
    }

    #[test]
    fn parts_are_known_until_two_more_incarnations_began() {
        let store = MemoryStore::new();
        begin_after(&store, 0, Draft::default());
        assert!(!has_part(&store, &job(), 1, "ranks 0-1").expect("looked up"));
        note_part(&store, &job(), 1, "ranks 0-1", &Part::default()).expect("noted");
        assert!(has_part(&store, &job(), 1, "ranks 0-1").expect("looked up"));
        assert!(!has_part(&store, &job(), 1, "ranks 2-3").expect("looked up"));
        assert_eq!(newest_number(&store, &job()).expect("lists"), 1);
        note_part(&store, &job(), 1, "ranks 4-5", &Part::default()).expect("noted");
        let known = || {
            let parts = ["ranks 0-1", "ranks 4-5"].iter();
            parts.filter(|part| has_part(&store, &job(), 1, part).expect("looked up")).count()
        };
        begin_after(&store, 1, Draft::default());
        assert_eq!(known(), 2);
        begin_after(&store, 2, Draft::default());
        assert_eq!(known(), 1, "one file still shows that something was restored");
    }

    #[test]
    fn old_records_go_and_the_newest_stays() {
        let store = MemoryStore::new();
        for after in 0..RECORDS_MAX as u32 + 20 {
            begin_after(&store, after, Draft::default());
        }
        let dir = directory(&store, &job()).expect("looked up");
        assert_eq!(store.list_dir(&dir).expect("lists").len(), RECORDS_MAX);
        assert_eq!(newest_number(&store, &job()).expect("lists"), RECORDS_MAX as u32 + 20);
    }

    #[test]
    fn every_cut_and_every_flipped_bit_of_a_record_is_noticed() {
        let store = MemoryStore::new();
        let from = Some((id("it_3"), place(0, 30)));
        begin_after(&store, 0, Draft { from, whole: vec![id("it_5")], ..Draft::default() });
        let path = directory(&store, &job()).expect("looked up").join("0001");
        let whole = store.get(&path).expect("there");
        for at in 0..whole.len() {
            assert!(Incarnation::parse(&whole[..at], &path).is_err(), "cut at {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(Incarnation::parse(&flipped, &path).is_err(), "byte {at}");
        }
        assert!(Incarnation::parse(&whole, &path).is_ok());
    }
}
