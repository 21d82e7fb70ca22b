//! A manifest written, and committed.

use super::format::{
    KnownContainer, MANIFEST_BYTES_MAX, Manifest, ManifestContainer, ManifestFile, Referred, manifest_name,
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
    /// What is known of the containers that it may refer to ([`Manifest::known_containers`] of the checkpoint
    /// before).
    pub known: Vec<KnownContainer>,
    /// What was chosen for its classes, and why.
    pub decisions: Vec<Decision>,
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

/// Makes a sealed container part of its checkpoint. When the last group has done so, the checkpoint exists: before
/// this returns no restart sees this group, afterwards every restart does.
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
