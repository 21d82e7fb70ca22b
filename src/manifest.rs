//! The small file that makes a checkpoint exist: writing it, reading it, and finding the newest checkpoint.
//!
//! **A checkpoint exists if and only if the valid manifests in its directory cover all of its groups.** There is no
//! other record, no root file and no lock. The text of a manifest is described in docs/format/manifest.md, section "Manifest".

mod commit;
mod files;
mod format;
mod list;
mod spoiled;
mod state;
mod taken;

pub use commit::{ManifestDraft, UncommittedManifest, commit, write};
pub use files::{FileTotals, Files};
pub use format::{
    KnownContainer, MANIFEST_BYTES_MAX, MANIFEST_VERSION, Manifest, ManifestContainer, ManifestFile, Place, Referred,
    is_there, manifest_name, manifests, read_manifest,
};
pub(crate) use format::{PRUNED, checked_body, group_of_manifest, manifest_path, missing_groups, read_head};
pub use list::{free_generation, jobs, list, list_remembering, newest_of_group, newest_restorable, state};
pub use spoiled::spoil;
pub(crate) use spoiled::{SPOILED, spoiled};
pub(crate) use state::unknown_state;
pub use state::{CheckpointState, Condition};

/// The version of manifests that this build writes and reads.
pub const MANIFEST_VERSION: u32 = 1;
/// The most bytes of a manifest: room for a million files.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// A directory with a file of this name was pruned; what is left in it, kept checkpoints refer to.
pub(crate) const PRUNED: &str = "pruned";
/// A directory with a file of this name is of a checkpoint that is not whole, whatever its manifests say; the text says why.
pub(crate) const SPOILED: &str = "spoiled";
/// The most bytes of that text.
const SPOILED_BYTES_MAX: u64 = 1024;
const MANIFEST_SUFFIX: &str = ".manifest";

/// What a committed group says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest<Files = Vec<ManifestFile>> {
    /// The job.
    pub job: JobId,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of the incarnation of the job that saved it; 0 where the job had none. Manifests of two incarnations never make
    /// one checkpoint.
    pub incarnation: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// Groups of the checkpoint.
    pub groups: u32,
    /// Ranks of each group but perhaps the last.
    pub group_size: u32,
    /// Which group this is.
    pub group: GroupId,
    /// The first of its ranks.
    pub first_rank: Rank,
    /// How many ranks it has.
    pub rank_count: u32,
    /// How the variables were put together.
    pub scheme: Scheme,
    /// How codecs were chosen.
    pub profile: String,
    /// When the application wrote the newest of the files, in milliseconds since 1970, by the clock of its node. Within an
    /// incarnation the order of checkpoints.
    pub written_unix_ms: i64,
    /// Why it cannot be known that all files are of one step, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// When the commit began, in milliseconds since 1970, by the clock of the aggregator.
    pub created_unix_ms: u64,
    /// From the first announced header to the commit, in milliseconds.
    pub elapsed_ms: u64,
    /// Bytes of the variables.
    pub raw_bytes: RawBytes,
    /// Bytes of the container.
    pub stored_bytes: StoredBytes,
    /// The container, beside this manifest.
    pub container: ManifestContainer,
    /// Containers of older checkpoints that hold bytes of this group.
    pub references: Vec<ContainerRef>,
    /// What is known of each of them, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub referred: Vec<Referred>,
    /// In how many checkpoints in a row, this being the last, segments are coded with those of older ones.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub in_a_row: u32,
    /// What was chosen for its classes, and why; at most 64, of the largest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// The files of the group; [`FileTotals`] where only their number and length are wanted.
    pub files: Files,
}

/// What a manifest knows of an older container that it refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Referred {
    /// Length of the container when it was committed; 0 where that is not known.
    pub bytes: u64,
    /// How many checkpoints in a row refer to it, this being the last.
    pub dependents: u32,
}

/// An older container that the next checkpoint may refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownContainer {
    /// Which one.
    pub container: ContainerRef,
    /// Its length when it was committed; 0 where that is not known.
    pub bytes: u64,
    /// How many checkpoints in a row refer to it already.
    pub dependents: u32,
}

impl Manifest {
    /// The containers that the next checkpoint of the group may refer to: this one's own, then those that it refers to.
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

    /// Bytes of the group's files together.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| file.bytes.saturating_add(sum))
    }
}

/// The container of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestContainer {
    /// Its name, beside the manifest.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of its frame: all but the stored bytes of the segments, whose checksums the frame has.
    #[serde(with = "hex")]
    pub digest: Digest,
    /// BLAKE3 of its stored index.
    #[serde(with = "hex")]
    pub index_digest: Digest,
}

/// A file of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Below the watched directory. In the text, a byte that is not UTF-8 is `\xNN`, and a backslash is doubled.
    #[serde(with = "escaped")]
    pub path: FilePath,
    /// The rank that wrote it.
    pub rank: Rank,
    /// Its length.
    pub bytes: u64,
    /// What it is; left out for a regular file.
    #[serde(default, skip_serializing_if = "FileKind::is_regular")]
    pub kind: FileKind,
    /// When it was last modified, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// BLAKE3 of it.
    #[serde(with = "hex")]
    pub digest: Digest,
}

/// Where a checkpoint stands in the order of the checkpoints of its job: the incarnation comes first, then the time at which
/// the application wrote it. Among equals the name decides. The order of commits means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Number of the incarnation.
    pub incarnation: u32,
    /// The newest of its files, in milliseconds since 1970.
    pub written_unix_ms: i64,
}

/// What a manifest says and the container does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestDraft {
    /// Number of the incarnation, or 0.
    pub incarnation: u32,
    /// When the newest of the files was written, in milliseconds since 1970.
    pub written_unix_ms: i64,
    /// Why it cannot be known that all files are of one step, if it cannot.
    pub doubt: Option<String>,
    /// Ranks of the job.
    pub ranks: u32,
    /// Ranks of each group but perhaps the last.
    pub group_size: u32,
    /// How codecs were chosen.
    pub profile: String,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Milliseconds since the first header was announced.
    pub elapsed_ms: u64,
    /// In how many checkpoints in a row, this being the last, segments are coded with those of older ones.
    pub in_a_row: u32,
    /// What is known of the containers that it may refer to ([`Manifest::known_containers`] of the checkpoint before).
    pub known: Vec<KnownContainer>,
    /// What was chosen for its classes, and why.
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

/// A manifest that is durable under a temporary name. Dropped, it leaves nothing that a reader looks at.
pub struct UncommittedManifest {
    manifest: Manifest,
    path: PathBuf,
    temp: Box<dyn TempFile>,
}

/// Writes the manifest of a container, which need not have its final name yet.
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

/// Makes a sealed container part of its checkpoint. When the last group has done so, the checkpoint exists: before this
/// returns no restart sees this group, afterwards every restart does.
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
        return Err(StoreError::Contents { path, what: "it is not of the container that was sealed".into() });
    }
    // A reference to what was pruned meanwhile must not become a promise.
    for (n, reference) in (0u32..).zip(&manifest.references) {
        let older = container_path(job, &reference.checkpoint, reference.group);
        let bytes = store.stat(&older).map_err(ReadError::from_store)?.bytes;
        if crate::repack::is_repacked(store, &older, bytes)? {
            let older = ContainerReader::open(store, job, &reference.checkpoint, reference.group)?;
            if !older.holds_all(&summary.index, n) {
                let (path, part) = (older.path().into(), "the table of what is kept");
                let what = "prune took out of it what this checkpoint needs".into();
                return Err(ReadError::Invalid { path, part, what }.into());
            }
        }
    }
    // The container that stands there is ours by now. What stood there before was looked at before ours was begun.
    check_no_manifest(store, job, checkpoint, manifest.group)?;
    store.rename(temp.path(), &path)?;
    drop(held); // whoever looks now finds the manifest
    // An index of many variables takes a while to be freed, and so does the disk.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(summary));
        store.sync_dir(&checkpoint_dir(job, checkpoint))
    })?;
    Ok(manifest)
}

/// Whether the container of a manifest is there and the one that was meant, as far as can be told without reading its
/// segments, which [`verify`](crate::verify::verify) does.
pub fn has_container(store: &dyn Store, manifest: &Manifest) -> Result<bool, StoreError> {
    match ContainerReader::open(store, &manifest.job, &manifest.checkpoint, manifest.group) {
        Ok(found) => {
            Ok((found.bytes(), found.index_digest()) == (manifest.container.bytes, manifest.container.index_digest))
        }
        Err(error) if error.advice() == Advice::OlderCheckpoint => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a group may be written: no valid manifest of it is there beside its container, and no kept checkpoint needs
/// that. Where a container stands, all checkpoints of the job are looked at.
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

/// Whether no valid manifest of a group is there beside its container.
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
        // Missing, or damaged, or its container is: nothing can be restored from it, and it may be replaced.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_referred_to(states: &[CheckpointState], checkpoint: &CheckpointId, group: GroupId) -> bool {
    states.iter().flat_map(|s| &s.references).any(|r| r.checkpoint == *checkpoint && r.group == group)
}

impl<F> Manifest<F> {
    /// Where its checkpoint stands in the order, as far as this group tells.
    pub fn place(&self) -> Place {
        Place { incarnation: self.incarnation, written_unix_ms: self.written_unix_ms }
    }
}

impl<F: Files> Manifest<F> {
    /// Which rule is broken, if one is.
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
    /// The whole text, with its last line.
    fn to_text(&self) -> Result<String, String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        let mut text = format!("mcr-manifest {MANIFEST_VERSION}\n{json}\n");
        let digest = Digest::of(text.as_bytes());
        writeln!(text, "blake3 {digest}").map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// Reads the text of a manifest. `path` is for messages.
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

/// The text before the last line, `blake3 ` and the digest of that text, if the digest agrees.
pub(crate) fn checked_body<'a>(text: &'a [u8], path: &Path, what: &'static str) -> Result<&'a [u8], ReadError> {
    const LAST_LINE_LEN: usize = "blake3 \n".len() + 64;
    let (needed, found) = (LAST_LINE_LEN as u64, text.len() as u64);
    let cut = ReadError::Cut { path: path.to_path_buf(), what, needed, found };
    let Some((body, last)) = text.len().checked_sub(LAST_LINE_LEN).map(|at| text.split_at(at)) else {
        return Err(cut);
    };
    let recorded = last.strip_prefix(b"blake3 ").and_then(|hex| hex.strip_suffix(b"\n"));
    // One spelling: lower case, so that every flipped bit is noticed.
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

/// Reads the manifest of one group, and checks that it is of that group.
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

/// The manifests of a checkpoint, by group. Fails at the first that cannot be read.
pub fn manifests(store: &dyn Store, job: &JobId, checkpoint: &CheckpointId) -> Result<Vec<Manifest>, ReadError> {
    let first = read_manifest(store, job, checkpoint, GroupId(0))?;
    let groups = first.groups;
    let mut all = vec![first];
    for group in 1..groups {
        all.push(read_manifest(store, job, checkpoint, GroupId(group))?);
    }
    Ok(all)
}

/// The jobs of a store, by name.
pub fn jobs(store: &dyn Store) -> Result<Vec<JobId>, ReadError> {
    directories(store, Path::new(""))
}

fn directories<T: std::str::FromStr>(store: &dyn Store, dir: &Path) -> Result<Vec<T>, ReadError> {
    let entries = store.list_dir(dir).map_err(ReadError::from_store)?;
    Ok(entries.iter().filter(|e| e.is_dir && visible(&e.name)).filter_map(|e| e.name.parse().ok()).collect())
}

/// The checkpoints of a job, newest first, complete or not. A job that is not there has none.
pub fn list(store: &dyn Store, job: &JobId) -> Result<Vec<CheckpointState>, ReadError> {
    list_remembering(store, job, &mut Remembered::nothing())
}

/// As [`list`]; the manifests of what is remembered are not read again.
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
    // Of one whose manifests are all damaged only the name is left to say how old it is.
    let is_placed = |s: &CheckpointState| s.place.is_some() || !(s.is_damaged || s.is_unreadable);
    let (mut placed, nameless): (Vec<_>, Vec<_>) = states.into_iter().partition(is_placed);
    for state in nameless {
        let older = placed.iter().position(|other| by_name(other, &state).is_lt());
        placed.insert(older.unwrap_or(placed.len()), state);
    }
    Ok(placed)
}

/// The complete checkpoints of a job, newest first: what a restart tries, one after the other. Those that a newer
/// incarnation set aside come last.
pub fn newest_restorable(
    store: &dyn Store,
    job: &JobId,
) -> Result<impl Iterator<Item = CheckpointState> + use<>, ReadError> {
    let (aside, line): (Vec<_>, Vec<_>) =
        list(store, job)?.into_iter().filter(CheckpointState::is_complete).partition(|state| state.is_set_aside);
    Ok(line.into_iter().chain(aside))
}

/// Marks a checkpoint as not whole, whatever its manifests say: it has files that were not taken. Durable, and marking twice
/// is marking once.
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

/// What the mark of a checkpoint that is not whole says.
pub(crate) fn spoiled(store: &dyn Store, dir: &Path) -> String {
    let read = || {
        let file = store.open(&dir.join(SPOILED)).ok()?;
        let mut text = vec![0; file.len().min(SPOILED_BYTES_MAX) as usize];
        file.read_at(0, &mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    read().unwrap_or_else(|| "it has files that were not taken".into())
}

/// Whether a manifest is still in the store, as far as its name tells: one that was read never changes.
pub fn is_there(store: &dyn Store, manifest: &Manifest) -> bool {
    store.open(&manifest_path(&manifest.job, &manifest.checkpoint, manifest.group)).is_ok()
}

/// The manifest of a group that the application wrote last, but for one checkpoint if one is named. Reads one manifest of
/// each checkpoint.
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
    // What cannot be read is no reason to fail.
    let place = |id: &CheckpointId| Ok(read_head(store, job, id, group).ok().map(|head| (head.place(), id.clone())));
    let mut places: Vec<(Place, CheckpointId)> =
        crate::looking::side_by_side(&ids, place)?.into_iter().flatten().collect();
    let order = |(a, a_id): &(Place, CheckpointId), (b, b_id): &(Place, CheckpointId)| {
        a.cmp(b).then_with(|| natural_cmp(a_id.as_str().as_bytes(), b_id.as_str().as_bytes()))
    };
    while let Some((newest, _)) = places.iter().enumerate().max_by(|(_, a), (_, b)| order(a, b)) {
        let (_, id) = places.swap_remove(newest);
        // Removed meanwhile: the one before is the newest.
        if let Ok(manifest) = read_manifest(store, job, &id, group) {
            return Ok(Some(manifest));
        }
    }
    Ok(None)
}

/// One checkpoint as its directory shows it, with the containers that it refers to.
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

/// The group of a manifest's name, if it is the name that we write.
pub(crate) fn group_of_manifest(name: &str) -> Option<GroupId> {
    let number = name.strip_prefix("group-")?.strip_suffix(MANIFEST_SUFFIX)?;
    let group = GroupId(number.parse().ok()?);
    (manifest_name(group) == name).then_some(group)
}

/// "groups 0, 3-7 of 12 are not committed". `there` is sorted.
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

/// A digest as hexadecimal text.
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

/// A path as text that gives the same bytes back, whatever they are.
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

/// A reference as a manifest spells it.
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
