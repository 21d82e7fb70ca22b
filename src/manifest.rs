//! The small file that makes a checkpoint exist: writing it, reading it, and finding the newest checkpoint.
//!
//! **A checkpoint exists if and only if the valid manifests in its directory cover all of its groups.** There is no
//! other record, no root file and no lock. The text of a manifest is described in docs/format/manifest.md, section "Manifest".

use crate::codec::Decision;
use crate::container::{
    ContainerReader, ContainerRef, ContainerSummary, ReadError, SealedContainer, checkpoint_dir, container_name,
    container_path,
};
use crate::header::FileKind;
use crate::ids::{CheckpointId, Digest, FilePath, GroupId, Grouping, JobId, Rank, natural_cmp};
use crate::incarnation::{self, Incarnations};
use crate::plan::Scheme;
use crate::remembered::Remembered;
use crate::store::{Advice, Store, StoreError, TempFile, create_dirs, visible};
use crate::units::{RawBytes, StoredBytes};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::{Path, PathBuf};

mod files;
mod state;
pub use files::{FileTotals, Files};
pub(crate) use state::unknown_state;
pub use state::{CheckpointState, Condition};

/// The version of manifests that this build writes and reads.
pub const MANIFEST_VERSION: u32 = 1;
/// Maximum length of a manifest. This is enough for a million files.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// A checkpoint directory that holds a file of this name was pruned. The containers that are left in it are there
/// only because kept checkpoints refer to them.
pub(crate) const PRUNED: &str = "pruned";
/// A checkpoint directory that holds a file of this name is not whole, whatever its manifests say. The text of the
/// file states the reason.
pub(crate) const SPOILED: &str = "spoiled";
/// Maximum length of the text in a [`SPOILED`] file.
const SPOILED_BYTES_MAX: u64 = 1024;
const MANIFEST_SUFFIX: &str = ".manifest";

/// The manifest of one committed group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest<Files = Vec<ManifestFile>> {
    /// The job.
    pub job: JobId,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of the incarnation of the job that saved the checkpoint, or 0 if the job had no incarnation. Manifests
    /// of two incarnations never form one checkpoint.
    pub incarnation: u32,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Number of groups of the checkpoint.
    pub groups: u32,
    /// Number of ranks in each group. The last group may have fewer.
    pub group_size: u32,
    /// The number of this group.
    pub group: GroupId,
    /// The first rank of the group.
    pub first_rank: Rank,
    /// Number of ranks in the group.
    pub rank_count: u32,
    /// How the variables were merged.
    pub scheme: Scheme,
    /// The compression profile by which codecs were chosen.
    pub profile: String,
    /// When the application wrote the newest of the files, in milliseconds since 1970, by the clock of the
    /// application's node. Within an incarnation, checkpoints are ordered by this time.
    pub written_unix_ms: i64,
    /// Why the files may not all be of the same step; `None` if there is no such doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// When the commit began, in milliseconds since 1970, by the clock of the aggregator.
    pub created_unix_ms: u64,
    /// Time from the first announced header to the commit, in milliseconds.
    pub elapsed_ms: u64,
    /// Raw bytes of the variables.
    pub raw_bytes: RawBytes,
    /// Length of the container.
    pub stored_bytes: StoredBytes,
    /// The container, which is in the same directory as this manifest.
    pub container: ManifestContainer,
    /// Containers of older checkpoints that hold bytes of this group.
    pub references: Vec<ContainerRef>,
    /// What is known of each container in `references`, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub referred: Vec<Referred>,
    /// Length of the chain of consecutive checkpoints, ending with this one, in which segments are coded against
    /// segments of older checkpoints.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub in_a_row: u32,
    /// Which codecs were chosen for the classes, and why. At most 64 entries, for the largest classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// The files of the group; [`FileTotals`] if only their number and total length are needed.
    pub files: Files,
}

/// What a manifest knows of an older container that it refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Referred {
    /// Length of the container when it was committed, or 0 if that is not known.
    pub bytes: u64,
    /// How many consecutive checkpoints refer to the container, including this one.
    pub dependents: u32,
}

/// An older container that the next checkpoint may refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownContainer {
    /// The container.
    pub container: ContainerRef,
    /// Length of the container when it was committed, or 0 if that is not known.
    pub bytes: u64,
    /// How many consecutive checkpoints refer to the container already.
    pub dependents: u32,
}

impl Manifest {
    /// The containers that the next checkpoint of the group may refer to: the container of this manifest first, then
    /// the containers that this manifest refers to.
    pub fn known_containers(&self) -> Vec<KnownContainer> {
        let own = ContainerRef {
            checkpoint: self.checkpoint.clone(),
            group: self.group,
            digest: self.container.digest,
            index_digest: self.container.index_digest,
        };
        let own = KnownContainer { container: own, bytes: self.container.bytes, dependents: 0 };
        let older = self.references.iter().enumerate().map(|(n, container)| {
            let Referred { bytes, dependents } = self.referred.get(n).copied().unwrap_or_default();
            KnownContainer { container: container.clone(), bytes, dependents: dependents.max(1) }
        });
        [own].into_iter().chain(older).collect()
    }

    /// Total length of the group's files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| file.bytes.saturating_add(sum))
    }
}

/// What a manifest says about its container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestContainer {
    /// File name of the container, which is in the same directory as the manifest.
    pub name: String,
    /// Length of the container, in bytes.
    pub bytes: u64,
    /// BLAKE3 of the container's frame. The frame is everything except the stored bytes of the segments; it holds the
    /// checksums of those bytes.
    #[serde(with = "hex")]
    pub digest: Digest,
    /// BLAKE3 of the container's index as it is stored.
    #[serde(with = "hex")]
    pub index_digest: Digest,
}

/// What a manifest says about one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Path of the file below the watched directory. In the text of the manifest, a byte that is not UTF-8 is written
    /// as `\xNN`, and a backslash is doubled.
    #[serde(with = "escaped")]
    pub path: FilePath,
    /// The rank that wrote the file.
    pub rank: Rank,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Kind of the file; absent from the text for a regular file.
    #[serde(default, skip_serializing_if = "FileKind::is_regular")]
    pub kind: FileKind,
    /// When the file was last modified, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// BLAKE3 of the file's bytes.
    #[serde(with = "hex")]
    pub digest: Digest,
}

/// The place of a checkpoint in the order of the job's checkpoints. The incarnation is compared first, then the time
/// at which the application wrote the checkpoint. If both are equal, the checkpoint's name decides. The order of the
/// commits does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Number of the incarnation.
    pub incarnation: u32,
    /// When the application wrote the newest of the files, in milliseconds since 1970.
    pub written_unix_ms: i64,
}

/// The facts that a manifest holds and the container does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestDraft {
    /// Number of the incarnation, or 0 if the job has none.
    pub incarnation: u32,
    /// When the newest of the files was written, in milliseconds since 1970.
    pub written_unix_ms: i64,
    /// Why the files may not all be of the same step; `None` if there is no such doubt.
    pub doubt: Option<String>,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Number of ranks in each group. The last group may have fewer.
    pub group_size: u32,
    /// The compression profile by which codecs were chosen.
    pub profile: String,
    /// When the commit began, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Time since the first header was announced, in milliseconds.
    pub elapsed_ms: u64,
    /// Length of the chain of consecutive checkpoints, ending with this one, in which segments are coded against
    /// segments of older checkpoints.
    pub in_a_row: u32,
    /// What is known of the containers that this checkpoint may refer to ([`Manifest::known_containers`] of the
    /// previous checkpoint).
    pub known: Vec<KnownContainer>,
    /// Which codecs were chosen for the classes, and why.
    pub decisions: Vec<Decision>,
}

fn is_nothing(count: &u32) -> bool {
    *count == 0
}

/// The name of a group's manifest in the directory of its checkpoint.
pub fn manifest_name(group: GroupId) -> String {
    format!("group-{:04}{MANIFEST_SUFFIX}", group.0)
}

pub(crate) fn manifest_path(job: &JobId, checkpoint: &CheckpointId, group: GroupId) -> PathBuf {
    checkpoint_dir(job, checkpoint).join(manifest_name(group))
}

/// A manifest that is durable under a temporary name. If it is dropped, no file remains that a reader opens.
pub struct UncommittedManifest {
    manifest: Manifest,
    path: PathBuf,
    temp: Box<dyn TempFile>,
}

/// Writes the manifest of a container under a temporary name. The container need not have its final name yet.
pub fn write(
    store: &dyn Store,
    container: &ContainerSummary,
    draft: ManifestDraft,
) -> Result<UncommittedManifest, StoreError> {
    let ContainerSummary { job, checkpoint, group, bytes, digest, index_digest, index } = container;
    let (group, bytes, digest, index_digest) = (*group, *bytes, *digest, *index_digest);
    let path = manifest_path(job, checkpoint, group);
    let refuse = |what: &str| StoreError::Contents { path: path.clone(), what: what.into() };
    let grouping = Grouping::new(draft.ranks, draft.group_size).ok_or_else(|| refuse("the job has no ranks"))?;
    let ranks = grouping.ranks_of(group);
    let file = |file: &crate::header::FileHeader| ManifestFile {
        path: file.path.clone(),
        rank: file.rank,
        bytes: file.bytes,
        kind: file.kind,
        modified_ns: file.modified_ns,
        digest: file.digest,
    };
    let referred = |reference: &ContainerRef| {
        let known = draft.known.iter().find(|known| known.container == *reference);
        let Some(KnownContainer { bytes, dependents, .. }) = known else { return Referred { bytes: 0, dependents: 1 } };
        Referred { bytes: *bytes, dependents: dependents.saturating_add(1) }
    };
    let referred = index.references().iter().map(|reference| referred(reference)).collect();
    let manifest = Manifest {
        incarnation: draft.incarnation,
        ranks: draft.ranks,
        groups: grouping.groups(),
        group_size: draft.group_size,
        group,
        first_rank: Rank(ranks.start),
        rank_count: ranks.end - ranks.start,
        scheme: index.scheme(),
        profile: draft.profile,
        written_unix_ms: draft.written_unix_ms,
        doubt: draft.doubt,
        created_unix_ms: draft.created_unix_ms,
        elapsed_ms: draft.elapsed_ms,
        raw_bytes: index.raw_bytes(),
        stored_bytes: StoredBytes(bytes),
        container: ManifestContainer { name: container_name(group), bytes, digest, index_digest },
        references: index.references().iter().map(|reference| ContainerRef::clone(reference)).collect(),
        referred,
        in_a_row: draft.in_a_row,
        decisions: draft.decisions,
        files: index.files().iter().map(file).collect(),
        job: job.clone(),
        checkpoint: checkpoint.clone(),
    };
    manifest.check().map_err(|what| refuse(&what))?;
    let text = manifest.to_text().map_err(|what| refuse(&what))?;
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        let (found, limit) = (text.len() as u64, MANIFEST_BYTES_MAX);
        return Err(StoreError::TooLarge { path, what: "bytes of manifest", found, limit });
    }
    let mut temp = store.create_temp(&checkpoint_dir(job, checkpoint), &manifest_name(group))?;
    temp.append(text.as_bytes())?;
    temp.sync()?;
    Ok(UncommittedManifest { manifest, path, temp })
}

/// Makes a sealed container part of its checkpoint. The checkpoint exists once its last group is committed. Before
/// this function returns, no restart sees this group; afterwards, every restart does.
pub fn commit(
    store: &dyn Store,
    sealed: SealedContainer,
    uncommitted: UncommittedManifest,
) -> Result<Manifest, StoreError> {
    let UncommittedManifest { manifest, path, temp } = uncommitted;
    let SealedContainer { summary, held } = sealed;
    let (job, checkpoint) = (&manifest.job, &manifest.checkpoint);
    let of = (job, checkpoint, manifest.group, manifest.container.digest);
    if of != (summary.job(), summary.checkpoint(), summary.group(), summary.digest()) {
        return Err(StoreError::Contents { path, what: "it does not belong to the container that was sealed".into() });
    }
    // An older container may have been pruned since this checkpoint was planned. A manifest must not refer to bytes
    // that are gone.
    for (n, reference) in (0u32..).zip(&manifest.references) {
        let older = container_path(job, &reference.checkpoint, reference.group);
        let bytes = store.stat(&older).map_err(ReadError::from_store)?.bytes;
        if crate::repack::is_repacked(store, &older, bytes)? {
            let older = ContainerReader::open(store, job, &reference.checkpoint, reference.group)?;
            if !older.holds_all(&summary.index, n) {
                let (path, part) = (older.path().into(), "the table of kept segments");
                let what = "prune removed bytes that this checkpoint needs".into();
                return Err(ReadError::Invalid { path, part, what }.into());
            }
        }
    }
    // The container under the final name is ours by now. A container that stood there earlier was checked before ours
    // was begun.
    check_no_manifest(store, job, checkpoint, manifest.group)?;
    store.rename(temp.path(), &path)?;
    drop(held); // from here on, another writer finds the manifest
    // Freeing the index of many variables takes time, and so does syncing. Do both at the same time.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(summary));
        store.sync_dir(&checkpoint_dir(job, checkpoint))
    })?;
    Ok(manifest)
}

/// Whether the container of a manifest exists and is the one that the manifest names. Its segments are not read;
/// [`verify`](crate::verify::verify) reads them.
pub fn has_container(store: &dyn Store, manifest: &Manifest) -> Result<bool, StoreError> {
    match ContainerReader::open(store, &manifest.job, &manifest.checkpoint, manifest.group) {
        Ok(found) => {
            Ok((found.bytes(), found.index_digest()) == (manifest.container.bytes, manifest.container.index_digest))
        }
        Err(error) if error.advice() == Advice::OlderCheckpoint => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Checks that a group may be written. It may not if a valid manifest of the group exists together with its
/// container, or if a kept checkpoint needs a container of that name. If a container of that name exists, all
/// checkpoints of the job are examined.
pub(crate) fn check_not_committed(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<(), StoreError> {
    check_no_manifest(store, job, checkpoint, group)?;
    let container = container_path(job, checkpoint, group);
    match store.open(&container) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => match is_referred_to(&list(store, job)?, checkpoint, group) {
            true => Err(StoreError::Committed { path: container }),
            false => Ok(()),
        },
    }
}

/// Checks that there is no valid manifest of a group whose container exists too.
fn check_no_manifest(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<(), StoreError> {
    match read_manifest(store, job, checkpoint, group) {
        Ok(manifest) if has_container(store, &manifest)? => {
            Err(StoreError::Committed { path: manifest_path(job, checkpoint, group) })
        }
        Err(error @ (ReadError::TooNew { .. } | ReadError::Unsupported { .. } | ReadError::Io { .. })) => {
            Err(error.into())
        }
        // The manifest or its container is missing or damaged. Nothing can be restored from the group, so it may be
        // replaced.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_referred_to(states: &[CheckpointState], checkpoint: &CheckpointId, group: GroupId) -> bool {
    states.iter().flat_map(|s| &s.references).any(|r| r.checkpoint == *checkpoint && r.group == group)
}

impl<F> Manifest<F> {
    /// The place of the checkpoint in the order of checkpoints, as this group's manifest gives it.
    pub fn place(&self) -> Place {
        Place { incarnation: self.incarnation, written_unix_ms: self.written_unix_ms }
    }
}

impl<F: Files> Manifest<F> {
    /// Checks the rules of a manifest. The error says which rule is broken.
    fn check(&self) -> Result<(), String> {
        let Some(grouping) = Grouping::new(self.ranks, self.group_size) else {
            return Err(format!("{} ranks in groups of {}", self.ranks, self.group_size));
        };
        let ranks = grouping.ranks_of(self.group);
        let stray = |&(low, high): &(u32, u32)| low < ranks.start || high >= ranks.end;
        match () {
            () if grouping.groups() != self.groups => Err(format!("{} groups", self.groups)),
            () if ranks.is_empty() => Err(format!("{} of {}", self.group, self.groups)),
            () if (ranks.start, ranks.end - ranks.start) != (self.first_rank.0, self.rank_count) => {
                Err(format!("{} ranks from {} on", self.rank_count, self.first_rank))
            }
            () if self.container.name != container_name(self.group) => {
                Err(format!("its container is {:?}", self.container.name))
            }
            () => match self.files.totals().ranks.filter(stray) {
                Some((low, high)) => {
                    Err(format!("it lists files of ranks {low} to {high}, which are not all in {}", self.group))
                }
                None => Ok(()),
            },
        }
    }
}

impl Manifest {
    /// The whole text, including the last line with its digest.
    fn to_text(&self) -> Result<String, String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        let mut text = format!("mcr-manifest {MANIFEST_VERSION}\n{json}\n");
        let digest = Digest::of(text.as_bytes());
        writeln!(text, "blake3 {digest}").map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// Parses the text of a manifest. `path` appears in error messages only.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ReadError> {
        Self::parse_text(text, path)
    }
}

impl<F: Files> Manifest<F> {
    fn parse_text(text: &[u8], path: &Path) -> Result<Self, ReadError> {
        let path = || path.to_path_buf();
        let invalid = |what: String| ReadError::Invalid { path: path(), part: "the manifest", what };
        let Some(rest) = text.strip_prefix(b"mcr-manifest ") else {
            return Err(ReadError::NotOurs { path: path(), what: "the manifest", at: 0 });
        };
        let version = rest.split(|&b| b == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
        match version.and_then(|version| version.parse::<u32>().ok()) {
            Some(MANIFEST_VERSION) => {}
            Some(found) if found > MANIFEST_VERSION => {
                return Err(ReadError::TooNew { path: path(), found, newest: MANIFEST_VERSION });
            }
            _ => return Err(invalid("its first line has no version".into())),
        }
        let body = checked_body(text, &path(), "the manifest")?;
        let json = body.iter().position(|&b| b == b'\n').map_or(&[][..], |line| &body[line + 1..]);
        let manifest: Self = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        manifest.check().map_err(invalid)?;
        Ok(manifest)
    }
}

/// Checks the last line of a text, which is `blake3 ` and the digest of all text before it. Returns the text before
/// that line.
pub(crate) fn checked_body<'a>(text: &'a [u8], path: &Path, what: &'static str) -> Result<&'a [u8], ReadError> {
    const LAST_LINE_LEN: usize = "blake3 \n".len() + 64;
    let (needed, found) = (LAST_LINE_LEN as u64, text.len() as u64);
    let cut = ReadError::Cut { path: path.to_path_buf(), what, needed, found };
    let Some((body, last)) = text.len().checked_sub(LAST_LINE_LEN).map(|at| text.split_at(at)) else {
        return Err(cut);
    };
    let recorded = last.strip_prefix(b"blake3 ").and_then(|hex| hex.strip_suffix(b"\n"));
    // Only lower-case hexadecimal digits are accepted, so that every flipped bit is noticed.
    let recorded = recorded.and_then(|hex| {
        let text = std::str::from_utf8(hex).ok()?;
        text.parse::<Digest>().ok().filter(|digest| digest.to_hex() == text)
    });
    let recorded = recorded.ok_or(cut)?;
    let found = Digest::of(body);
    match found == recorded {
        true => Ok(body),
        false => Err(ReadError::Digest { path: path.to_path_buf(), what: what.into(), found, recorded }),
    }
}

/// Reads the manifest of one group and checks that it belongs to that group.
pub fn read_manifest(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<Manifest, ReadError> {
    read_as(store, job, checkpoint, group)
}

fn read_as<F: Files>(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<Manifest<F>, ReadError> {
    let relative = manifest_path(job, checkpoint, group);
    let file = store.open(&relative).map_err(ReadError::from_store)?;
    let path = store.root().join(relative);
    let len = file.len();
    if len > MANIFEST_BYTES_MAX {
        let what = format!("it has {len} bytes, more than {MANIFEST_BYTES_MAX}");
        return Err(ReadError::Invalid { path, part: "the manifest", what });
    }
    let mut text = vec![0; len as usize];
    file.read_at(0, &mut text).map_err(|source| ReadError::Io { path: path.clone(), offset: 0, len, source })?;
    let manifest = Manifest::<F>::parse_text(&text, &path)?;
    let (found, expected) = ((&manifest.job, &manifest.checkpoint, manifest.group), (job, checkpoint, group));
    if found != expected {
        let show = |(job, checkpoint, group): (&JobId, &CheckpointId, GroupId)| format!("{job}/{checkpoint}, {group}");
        let (expected, found) = (show(expected), show(found));
        return Err(ReadError::Foreign { path, what: "the manifest", expected, found });
    }
    Ok(manifest)
}

/// The manifests of a checkpoint, by group. Fails at the first manifest that cannot be read.
pub fn manifests(store: &dyn Store, job: &JobId, checkpoint: &CheckpointId) -> Result<Vec<Manifest>, ReadError> {
    let first = read_manifest(store, job, checkpoint, GroupId(0))?;
    let groups = first.groups;
    let mut all = vec![first];
    for group in 1..groups {
        all.push(read_manifest(store, job, checkpoint, GroupId(group))?);
    }
    Ok(all)
}

/// The jobs of a store, sorted by name.
pub fn jobs(store: &dyn Store) -> Result<Vec<JobId>, ReadError> {
    directories(store, Path::new(""))
}

fn directories<T: std::str::FromStr>(store: &dyn Store, dir: &Path) -> Result<Vec<T>, ReadError> {
    let entries = store.list_dir(dir).map_err(ReadError::from_store)?;
    Ok(entries.iter().filter(|e| e.is_dir && visible(&e.name)).filter_map(|e| e.name.parse().ok()).collect())
}

/// The checkpoints of a job, newest first, complete or not. The list is empty if the job does not exist.
pub fn list(store: &dyn Store, job: &JobId) -> Result<Vec<CheckpointState>, ReadError> {
    list_remembering(store, job, &mut Remembered::nothing())
}

/// Does the same as [`list`], but does not read the manifests of remembered checkpoints again.
pub fn list_remembering(
    store: &dyn Store,
    job: &JobId,
    remembered: &mut Remembered,
) -> Result<Vec<CheckpointState>, ReadError> {
    let mut ids: Vec<CheckpointId> = match directories(store, Path::new(job.as_str())) {
        Err(ReadError::Missing { .. }) => Vec::new(),
        other => other?,
    };
    ids.sort_unstable();
    let incarnations = Incarnations::load(store, job)?;
    let mut states = crate::looking::look_at_all(store, job, ids, remembered)?;
    for state in &mut states {
        if let Some(place) = state.place {
            state.judge(place, incarnations.ended_by(place.incarnation), incarnations.newest());
        }
    }
    let by_name =
        |a: &CheckpointState, b: &CheckpointState| natural_cmp(a.id.as_str().as_bytes(), b.id.as_str().as_bytes());
    states.sort_by(|a, b| b.place.cmp(&a.place).then_with(|| by_name(b, a)));
    // If all manifests of a checkpoint are damaged, only its name tells how old it is.
    let is_placed = |s: &CheckpointState| s.place.is_some() || !(s.is_damaged || s.is_unreadable);
    let (mut placed, nameless): (Vec<_>, Vec<_>) = states.into_iter().partition(is_placed);
    for state in nameless {
        let older = placed.iter().position(|other| by_name(other, &state).is_lt());
        placed.insert(older.unwrap_or(placed.len()), state);
    }
    Ok(placed)
}

/// The complete checkpoints of a job, newest first, in the order in which a restart tries them. Checkpoints that a
/// newer incarnation set aside come last.
pub fn newest_restorable(
    store: &dyn Store,
    job: &JobId,
) -> Result<impl Iterator<Item = CheckpointState> + use<>, ReadError> {
    let (aside, line): (Vec<_>, Vec<_>) =
        list(store, job)?.into_iter().filter(CheckpointState::is_complete).partition(|state| state.is_set_aside);
    Ok(line.into_iter().chain(aside))
}

/// Marks a checkpoint as not whole, whatever its manifests say, because some of its files were not saved. The mark is
/// durable. Marking a checkpoint twice has the same effect as marking it once.
pub fn spoil(store: &dyn Store, job: &JobId, id: &CheckpointId, why: &str) -> Result<(), StoreError> {
    let dir = checkpoint_dir(job, id);
    create_dirs(store, &dir)?;
    let mut mark = store.create_temp(&dir, SPOILED)?;
    let why: String =
        why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SPOILED_BYTES_MAX as usize / 4).collect();
    mark.append(why.as_bytes())?;
    mark.sync()?;
    store.rename(mark.path(), &dir.join(SPOILED))?;
    store.sync_dir(&dir)
}

/// The reason that the mark of [`spoil`] gives.
pub(crate) fn spoiled(store: &dyn Store, dir: &Path) -> String {
    let read = || {
        let file = store.open(&dir.join(SPOILED)).ok()?;
        let mut text = vec![0; file.len().min(SPOILED_BYTES_MAX) as usize];
        file.read_at(0, &mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    read().unwrap_or_else(|| "some of its files were not saved".into())
}

/// Whether a manifest is still in the store. Only its name is looked for, because a manifest never changes.
pub fn is_there(store: &dyn Store, manifest: &Manifest) -> bool {
    store.open(&manifest_path(&manifest.job, &manifest.checkpoint, manifest.group)).is_ok()
}

/// The manifest of the checkpoint of a group that the application wrote last. The checkpoint `except` is left out.
/// Reads one manifest of each checkpoint.
pub fn newest_of_group(
    store: &dyn Store,
    job: &JobId,
    group: GroupId,
    except: Option<&CheckpointId>,
) -> Result<Option<Manifest>, ReadError> {
    let mut ids: Vec<CheckpointId> = match directories(store, Path::new(job.as_str())) {
        Err(ReadError::Missing { .. }) => Vec::new(),
        other => other?,
    };
    ids.retain(|id| Some(id) != except);
    // A manifest that cannot be read is skipped; it is not an error.
    let place = |id: &CheckpointId| Ok(read_head(store, job, id, group).ok().map(|head| (head.place(), id.clone())));
    let mut places: Vec<(Place, CheckpointId)> =
        crate::looking::side_by_side(&ids, place)?.into_iter().flatten().collect();
    let order = |(a, a_id): &(Place, CheckpointId), (b, b_id): &(Place, CheckpointId)| {
        a.cmp(b).then_with(|| natural_cmp(a_id.as_str().as_bytes(), b_id.as_str().as_bytes()))
    };
    while let Some((newest, _)) = places.iter().enumerate().max_by(|(_, a), (_, b)| order(a, b)) {
        let (_, id) = places.swap_remove(newest);
        // If this manifest was removed since, the next older one is the newest.
        if let Ok(manifest) = read_manifest(store, job, &id, group) {
            return Ok(Some(manifest));
        }
    }
    Ok(None)
}

/// The first of the names `DD0007`, `DD0007~2`, ... that is free: no group is committed under it, and no checkpoint
/// refers to a container under it.
pub fn free_generation(store: &dyn Store, job: &JobId, label: &CheckpointId) -> Result<CheckpointId, ReadError> {
    let states = list(store, job)?;
    let taken = |id: &CheckpointId| {
        let referred = states.iter().flat_map(|s| &s.references).any(|r| r.checkpoint == *id);
        referred || states.iter().any(|s| s.id == *id && s.groups > 0)
    };
    let mut id = label.clone();
    while taken(&id) {
        // Each iteration finds another existing checkpoint, so the loop ends. It fails if the name becomes too long.
        id = id.with_generation(id.generation().saturating_add(1)).map_err(|error| ReadError::Invalid {
            path: store.root().join(checkpoint_dir(job, &id)),
            part: "the checkpoint's name",
            what: error.to_string(),
        })?;
    }
    Ok(id)
}

/// The state of one checkpoint as its directory shows it, including the containers that it refers to.
pub fn state(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Result<CheckpointState, ReadError> {
    let mut state = crate::looking::look_at(store, job, id)?;
    if let Some(place) = state.place {
        let next = incarnation::ended_by(store, job, place.incarnation)?;
        let newest = if next.is_some() { incarnation::newest(store, job)? } else { None };
        state.judge(place, next.as_ref(), newest.as_ref());
    }
    Ok(state)
}

/// The manifest of one group without its list of files.
pub(crate) fn read_head(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<Manifest<FileTotals>, ReadError> {
    read_as(store, job, checkpoint, group)
}

/// The group that a manifest's name states, if the name is spelled as this build spells it.
pub(crate) fn group_of_manifest(name: &str) -> Option<GroupId> {
    let number = name.strip_prefix("group-")?.strip_suffix(MANIFEST_SUFFIX)?;
    let group = GroupId(number.parse().ok()?);
    (manifest_name(group) == name).then_some(group)
}

/// Describes the missing groups, for example "groups 0, 3-7 of 12 are not committed". `there` holds the committed
/// groups and is sorted.
pub(crate) fn missing_groups(there: &[u32], groups: u32) -> Option<String> {
    if there.is_empty() {
        return Some("no group is committed".into());
    }
    let mut runs = String::new();
    let mut next = 0;
    for &group in there.iter().chain([&groups]) {
        if group > next {
            let comma = if runs.is_empty() { "" } else { ", " };
            let _ = match group - 1 {
                last if last == next => write!(runs, "{comma}{next}"),
                last => write!(runs, "{comma}{next}-{last}"),
            };
        }
        next = group + 1;
    }
    (!runs.is_empty()).then(|| format!("groups {runs} of {groups} are not committed"))
}

/// Converts a digest to and from hexadecimal text.
mod hex {
    use crate::ids::Digest;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&digest.to_hex())
    }
    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Converts a path to text, and the text back to the same bytes. The bytes need not be UTF-8.
mod escaped {
    use crate::ids::FilePath;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Write;

    pub(super) fn serialize<S: Serializer>(path: &FilePath, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&escape(path.as_bytes()))
    }
    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<FilePath, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = unescape(&text).ok_or_else(|| D::Error::custom(format!("{text:?} has a bad escape")))?;
        FilePath::new(bytes).map_err(D::Error::custom)
    }

    pub(super) fn escape(bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(&chunk.valid().replace('\\', "\\\\"));
            for byte in chunk.invalid() {
                let _ = write!(text, "\\x{byte:02x}"); // writing to a String does not fail
            }
        }
        text
    }

    pub(super) fn unescape(text: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'\\' {
                bytes.push(byte);
                continue;
            }
            match rest {
                [b'\\', after @ ..] => {
                    bytes.push(b'\\');
                    rest = after;
                }
                [b'x', high, low, after @ ..] => {
                    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
                    bytes.push(digit(*high)? << 4 | digit(*low)?);
                    rest = after;
                }
                _ => return None,
            }
        }
        Some(bytes)
    }
}

impl Serialize for ContainerRef {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Reference {
            checkpoint: self.checkpoint.clone(),
            group: self.group,
            digest: self.digest,
            index_digest: self.index_digest,
        }
        .serialize(to)
    }
}
impl<'a> Deserialize<'a> for ContainerRef {
    fn deserialize<D: serde::Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        let Reference { checkpoint, group, digest, index_digest } = Reference::deserialize(from)?;
        Ok(Self { checkpoint, group, digest, index_digest })
    }
}

/// A reference to an older container, with the field names of the manifest's text.
#[derive(Serialize, Deserialize)]
struct Reference {
    checkpoint: CheckpointId,
    group: GroupId,
    #[serde(with = "hex")]
    digest: Digest,
    #[serde(with = "hex")]
    index_digest: Digest,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_path_comes_back_whatever_its_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(escaped::unescape(&escaped::escape(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn missing_groups_are_named() {
        assert_eq!(missing_groups(&[0, 1, 2], 3), None);
        assert_eq!(missing_groups(&[], 3).as_deref(), Some("no group is committed"));
        assert_eq!(missing_groups(&[1, 5], 9).as_deref(), Some("groups 0, 2-4, 6-8 of 9 are not committed"));
    }

    #[test]
    fn only_our_own_names_are_manifests() {
        assert_eq!(group_of_manifest("group-0003.manifest"), Some(GroupId(3)));
        assert_eq!(group_of_manifest("group-123456.manifest"), Some(GroupId(123_456)));
        for other in ["group-3.manifest", ".group-0003.manifest.1", "group-0003.mcr", "group-+003.manifest"] {
            assert_eq!(group_of_manifest(other), None, "{other}");
        }
    }
}
