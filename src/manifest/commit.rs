//! Writes a manifest under a temporary name, and commits it by renaming it.

use super::format::{
    Doubt, KnownContainer, MANIFEST_BYTES_MAX, Manifest, ManifestContainer, ManifestFile, Referred, manifest_name,
    manifest_path,
};
use super::taken::check_no_manifest;
use crate::codec::Decision;
use crate::container::{
    ContainerReader, ContainerRef, ContainerSummary, SealedContainer, checkpoint_dir, container_name, container_path,
};
use crate::error::{ReadError, StoreError};
use crate::ids::{Grouping, Rank};
use crate::store::{Store, TempFile};
use crate::units::StoredBytes;
use std::path::PathBuf;

/// The fields of a manifest that cannot be derived from its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestDraft {
    /// Number of the incarnation; 0 if the job has no incarnation.
    pub incarnation: u32,
    /// Time at which the application wrote the newest of the files, in milliseconds since 1970.
    pub written_unix_ms: i64,
    /// See [`Manifest::first_unix_ms`].
    pub first_unix_ms: Option<i64>,
    /// What is uncertain about the files of the checkpoint; `None` if there is no doubt.
    pub doubt: Option<Doubt>,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Number of ranks in each group. The last group may have fewer ranks.
    pub group_size: u32,
    /// The compression profile by which codecs were chosen.
    pub profile: String,
    /// Time at which the manifest is written, just before the commit, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Time from the start of the flush until all segments were written, in milliseconds.
    pub elapsed_ms: u64,
    /// Number of consecutive checkpoints, ending with this checkpoint, that have segments coded against older
    /// segments.
    pub in_a_row: u32,
    /// The containers that this checkpoint may refer to: [`Manifest::known_containers`] of the previous checkpoint.
    pub known: Vec<KnownContainer>,
    /// The codecs that were chosen for the classes, with the reasons.
    pub decisions: Vec<Decision>,
}

/// A manifest that is durable under a temporary name. If this value is dropped, no file remains that a reader opens.
pub struct UncommittedManifest {
    manifest: Manifest,
    path: PathBuf,
    temp: Box<dyn TempFile>,
}

/// Writes the manifest of a container. The container need not have its final name yet.
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
        first_unix_ms: draft.first_unix_ms,
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
        return Err(StoreError::TooLarge { path, what: "manifest", found, limit });
    }
    let mut temp = store.create_temp(&checkpoint_dir(job, checkpoint), &manifest_name(group))?;
    temp.append(text.as_bytes())?;
    temp.sync()?;
    Ok(UncommittedManifest { manifest, path, temp })
}

/// Makes a sealed container part of its checkpoint. The checkpoint exists once all of its groups are committed.
/// Before this function returns, no restart sees this group. Afterwards, every restart sees this group.
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
        return Err(StoreError::Contents { path, what: "it does not describe the container that was sealed".into() });
    }
    // Prune may have removed an older container, or a part of it, after this container was planned. In this case, the
    // manifest must not be committed.
    for (n, reference) in (0u32..).zip(&manifest.references) {
        let older = container_path(job, &reference.checkpoint, reference.group);
        let bytes = store.stat(&older).map_err(ReadError::from_store)?.bytes;
        if crate::repack::is_repacked(store, &older, bytes)? {
            let older = ContainerReader::open(store, job, &reference.checkpoint, reference.group)?;
            if !older.holds_all(&summary.index, n) {
                let (path, part) = (older.path().into(), "the table of kept segments");
                let what = "prune removed bytes from it that this checkpoint needs".into();
                return Err(ReadError::Invalid { path, part, what }.into());
            }
        }
    }
    // By now, the file under the final name is the new container. `ContainerWriter::create` checked the older
    // container that had this name.
    check_no_manifest(store, job, checkpoint, manifest.group)?;
    store.rename(temp.path(), &path)?;
    drop(held); // from here on, another writer finds the manifest
    // To free an index of many variables takes time, and to sync the directory takes time too. Therefore two threads
    // do these two steps at the same time.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(summary));
        store.sync_dir(&checkpoint_dir(job, checkpoint))
    })?;
    Ok(manifest)
}
