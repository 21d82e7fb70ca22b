//! Makes containers of pruned checkpoints smaller by removing the bytes that no manifest needs.
//!
//! A kept checkpoint may need only a small part of an older container, but the whole container stays in the store.
//! Therefore prune writes a new container with only the needed segments, and only the needed pieces of these
//! segments. Prune writes the new container next to the old container, syncs the new container, and gives it the name
//! of the old container. Name and index do not change, so references to the old container are valid for the new
//! container. After a crash at any point, the store has either the whole old container or the whole new container.
//! "Repacked containers" in docs/format/container.md describes the bytes.

use crate::classify::VariableRef;
use crate::codec::{Chain, Profile, Scratch, encode_best};
use crate::container::layout::{self, FILE_HEADER_LEN, TRAILER_LEN};
use crate::container::{
    ContainerReader, ContainerRef, Kept, KeptSegment, Placement, ReadError, checkpoint_dir, container_name,
    container_path, repacked_tail,
};
use crate::ids::{CheckpointId, GroupId, JobId};
use crate::manifest::CheckpointState;
use crate::merge::runs;
use crate::parity;
use crate::store::{Store, StoreError};
use crate::units::StoredBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A container that was rewritten.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Repacked {
    /// Checkpoint of the container.
    pub checkpoint: CheckpointId,
    /// Group of the container.
    pub group: GroupId,
    /// Length of the container before it was rewritten.
    pub before: StoredBytes,
    /// Length of the rewritten container.
    pub after: StoredBytes,
}

/// A container is replaced only if the new container is shorter by more than the old length divided by this number.
const WORTH_DIVISOR: u64 = 10;

/// Whether a container is repacked. A repacked container has another length than the manifest states. Fails if the
/// container is cut.
pub(crate) fn is_repacked(store: &dyn Store, path: &Path, bytes: u64) -> Result<bool, ReadError> {
    let needed = (FILE_HEADER_LEN + TRAILER_LEN) as u64;
    let full = store.root().join(path);
    if bytes < needed {
        return Err(ReadError::Cut { path: full, what: "a container", needed, found: bytes });
    }
    let file = store.open(path).map_err(ReadError::from_store)?;
    let read = |offset: u64, into: &mut [u8]| {
        let len = into.len() as u64;
        file.read_at(offset, into).map_err(|source| ReadError::Io { path: full.clone(), offset, len, source })
    };
    let (mut header, mut trailer) = ([0; FILE_HEADER_LEN], [0; TRAILER_LEN]);
    read(0, &mut header)?;
    read(file.len() - TRAILER_LEN as u64, &mut trailer)?;
    let is_repacked = layout::check_file_header(&header).map_err(|fault| fault.at(&full, "the file header", 0))?;
    let at = file.len() - TRAILER_LEN as u64;
    layout::Trailer::from_record(&trailer, file.len()).map_err(|fault| fault.at(&full, "the trailer", at))?;
    Ok(is_repacked)
}

/// The parts of a container that manifests need.
#[derive(Debug, Default)]
struct Need {
    /// The variables that are needed.
    variables: BTreeSet<VariableRef>,
    /// The segments that are bases of other segments.
    bases: BTreeSet<u32>,
    /// Whether a checkpoint refers to the container, but the index of that checkpoint cannot be read.
    is_unknown: bool,
}

/// For each `wanted` container, the parts that the listed checkpoints need.
fn needs(
    store: &dyn Store,
    job: &JobId,
    states: &[CheckpointState],
    wanted: &BTreeSet<(CheckpointId, GroupId)>,
) -> BTreeMap<(CheckpointId, GroupId), Need> {
    let mut needs: BTreeMap<(CheckpointId, GroupId), Need> = BTreeMap::new();
    for state in states {
        let refers: Vec<&ContainerRef> =
            state.references.iter().filter(|r| wanted.contains(&(r.checkpoint.clone(), r.group))).collect();
        for group in refers.iter().map(|r| r.group).collect::<BTreeSet<_>>() {
            let Ok(reader) = ContainerReader::open(store, job, &state.id, group) else {
                for reference in refers.iter().filter(|r| r.group == group) {
                    needs.entry((reference.checkpoint.clone(), group)).or_default().is_unknown = true;
                }
                continue;
            };
            let index = reader.index();
            let key = |n: u32| {
                let reference = &index.references()[n as usize];
                (reference.checkpoint.clone(), reference.group)
            };
            for (at, _) in index.variables() {
                if let Some(Placement::External { reference, at }) = index.placement(at) {
                    needs.entry(key(reference)).or_default().variables.insert(at);
                }
            }
            for base in index.segments().iter().filter_map(|segment| segment.base()) {
                needs.entry(key(base.reference)).or_default().bases.insert(base.segment);
            }
        }
    }
    needs
}

/// The segments and pieces to keep, and the approximate number of their stored bytes. `None` if a needed piece is
/// missing from the container.
fn kept_of(reader: &ContainerReader, need: &Need) -> Option<(BTreeMap<u32, Kept>, u64)> {
    let index = reader.index();
    let mut pieces: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for at in &need.variables {
        index.variable(*at)?;
        for (segment, piece) in index.pieces_of(*at) {
            let nth = (piece - index.segments()[segment as usize].pieces.start) as u32;
            reader.holds(segment, nth).then_some(())?;
            pieces.entry(segment).or_default().insert(nth);
        }
    }
    let mut kept = BTreeMap::new();
    for (segment, nth) in pieces {
        let is_all = nth.len() == index.pieces(segment).len();
        kept.insert(segment, if is_all { Kept::Whole } else { Kept::Pieces(nth) });
    }
    for segment in &need.bases {
        reader.holds_whole(*segment).then_some(())?;
        kept.insert(*segment, Kept::Whole);
    }
    let bytes = |(segment, kept): (&u32, &Kept)| {
        let entry = &index.segments()[*segment as usize];
        match kept {
            Kept::Whole => entry.stored_bytes.0,
            Kept::Pieces(nth) => {
                let all = index.pieces(*segment);
                let raw: u64 = nth.iter().map(|n| all[*n as usize].bytes).sum();
                (u128::from(entry.stored_bytes.0) * u128::from(raw) / u128::from(entry.raw_bytes.0.max(1))) as u64
            }
        }
    };
    let sum = kept.iter().map(bytes).sum();
    Some((kept, sum))
}

/// For each `wanted` container, the number of bytes that checkpoints need. A container is left out if the number is
/// not known.
pub fn needed_bytes(
    store: &dyn Store,
    job: &JobId,
    states: &[CheckpointState],
    wanted: &BTreeSet<(CheckpointId, GroupId)>,
) -> BTreeMap<(CheckpointId, GroupId), StoredBytes> {
    let mut found = BTreeMap::new();
    for ((checkpoint, group), need) in needs(store, job, states, wanted) {
        if need.is_unknown || !wanted.contains(&(checkpoint.clone(), group)) {
            continue;
        }
        let Ok(reader) = ContainerReader::open(store, job, &checkpoint, group) else { continue };
        if let Some((_, bytes)) = kept_of(&reader, &need) {
            found.insert((checkpoint, group), StoredBytes(bytes));
        }
    }
    found
}

/// The remaining containers of a pruned checkpoint, which other checkpoints need.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Held {
    /// Total length of the containers.
    pub bytes: StoredBytes,
    /// Approximate number of bytes of the containers that the other checkpoints need; `None` if the number is not
    /// known.
    pub needed_bytes: Option<StoredBytes>,
    /// The checkpoints that refer to the containers, in the order of `states`.
    pub by: Vec<CheckpointId>,
}

/// The remaining containers of each pruned checkpoint of a job. The entry of a checkpoint is empty if no other
/// checkpoint refers to a container of the checkpoint.
pub fn held_for_others(store: &dyn Store, job: &JobId, states: &[CheckpointState]) -> BTreeMap<CheckpointId, Held> {
    let mut held: BTreeMap<CheckpointId, Held> =
        states.iter().filter(|s| s.is_pruned).map(|s| (s.id.clone(), Held::default())).collect();
    let mut wanted = BTreeSet::new();
    for state in states {
        for reference in &state.references {
            let Some(held) = held.get_mut(&reference.checkpoint) else { continue };
            if held.by.last() != Some(&state.id) {
                held.by.push(state.id.clone());
            }
            wanted.insert((reference.checkpoint.clone(), reference.group));
        }
    }
    let needed = needed_bytes(store, job, states, &wanted);
    for (id, held) in &mut held {
        let groups = || wanted.iter().filter(|(of, _)| of == id);
        let bytes = |group: GroupId| store.stat(&container_path(job, id, group)).map_or(0, |stat| stat.bytes);
        held.bytes = StoredBytes(groups().map(|(_, group)| bytes(*group)).sum());
        held.needed_bytes = groups().map(|of| needed.get(of).copied()).sum();
    }
    held
}

/// Rewrites each wanted container if less than `below_percent` per cent of its bytes are needed. A container that
/// cannot be repacked stays unchanged. Fails if the store has no room for a new container. `may_be_written` says
/// whether another process may be writing a checkpoint. With `is_dry_run`, no container is rewritten, and the lengths
/// after rewriting are estimates.
pub fn repack(
    store: &dyn Store,
    job: &JobId,
    states: &[CheckpointState],
    wanted: &BTreeSet<(CheckpointId, GroupId)>,
    below_percent: u32,
    may_be_written: &dyn Fn(&CheckpointId) -> bool,
    is_dry_run: bool,
) -> Result<Vec<Repacked>, StoreError> {
    let mut done = Vec::new();
    for ((checkpoint, group), need) in needs(store, job, states, wanted) {
        if need.is_unknown || !wanted.contains(&(checkpoint.clone(), group)) {
            continue;
        }
        let Ok(reader) = ContainerReader::open(store, job, &checkpoint, group) else { continue };
        let Some((kept, bytes)) = kept_of(&reader, &need) else { continue };
        if bytes.saturating_mul(100) >= reader.bytes().saturating_mul(u64::from(below_percent)) {
            continue;
        }
        // A process that is writing this group may refer to bytes that would be removed.
        let mut written = states.iter().filter(|state| may_be_written(&state.id));
        if written.any(|state| is_group_held(store, job, &state.id, group)) {
            continue;
        }
        if is_dry_run {
            done.extend(estimate(checkpoint, group, &reader, kept.len(), bytes));
        } else if let Some(repacked) = write_anew(store, job, checkpoint, group, &reader, &kept)? {
            done.push(repacked);
        }
    }
    Ok(done)
}

/// Estimates the length of a container after it is rewritten with this number of segments, which have `bytes` stored
/// bytes. `None` if the container would not be rewritten.
fn estimate(
    checkpoint: CheckpointId,
    group: GroupId,
    reader: &ContainerReader,
    segments: usize,
    bytes: u64,
) -> Option<Repacked> {
    let index = reader.stored_index().ok()?.len();
    let after = bytes + (FILE_HEADER_LEN + segments * layout::SEGMENT_HEADER_LEN + index + TRAILER_LEN) as u64;
    is_worth(reader, after).then(|| Repacked {
        checkpoint,
        group,
        before: StoredBytes(reader.bytes()),
        after: StoredBytes(after),
    })
}

/// Whether a container of length `after` is enough shorter than the container of `reader` to replace that container.
fn is_worth(reader: &ContainerReader, after: u64) -> bool {
    after < reader.bytes() - reader.bytes() / WORTH_DIVISOR
}

fn is_group_held(store: &dyn Store, job: &JobId, id: &CheckpointId, group: GroupId) -> bool {
    let (dir, prefix) = (checkpoint_dir(job, id), format!(".{}.", container_name(group)));
    store.list_dir(&dir).is_ok_and(|entries| {
        entries.iter().any(|entry| entry.name.starts_with(&prefix) && store.is_held(&dir.join(&entry.name)))
    })
}

fn write_anew(
    store: &dyn Store,
    job: &JobId,
    checkpoint: CheckpointId,
    group: GroupId,
    reader: &ContainerReader,
    kept: &BTreeMap<u32, Kept>,
) -> Result<Option<Repacked>, StoreError> {
    let (dir, path) = (checkpoint_dir(job, &checkpoint), container_path(job, &checkpoint, group));
    let mut temp = store.create_temp(&dir, &container_name(group))?;
    temp.append(&layout::repacked_file_header())?;
    let (mut scratch, mut table) = (Scratch::default(), Vec::new());
    for (&segment, kept) in kept {
        // A container with a damaged segment stays unchanged. The checkpoint that needs the segment reports the
        // damage.
        let Ok(part) = encode_part(reader, segment, kept, &mut scratch) else { return Ok(None) };
        let EncodedPart { chain, raw_len, stored, kept } = part;
        let (data_crc, stored_len) = (crc32c::crc32c(&stored), stored.len() as u64);
        let header = layout::SegmentHeader { raw_len, stored_len, data_crc, chain: chain.clone() };
        let Some(record) = header.to_record() else { return Ok(None) };
        temp.append(&record)?;
        temp.append(&stored)?;
        table.push(KeptSegment { segment, stored_bytes: stored_len, chain, kept });
    }
    temp.append(&repacked_tail(reader, &table)?)?;
    temp.sync()?;
    let written = ContainerReader::from_file(store.open(temp.path())?, store.root().join(temp.path()))?;
    if written.index_digest() != reader.index_digest() || !is_worth(reader, written.bytes()) {
        return Ok(None);
    }
    for part in &table {
        written.read_segment(part.segment, Vec::new())?;
    }
    // The old parity does not fit the new container. Between the two renames, the parity shows by its length that it
    // belongs to another container.
    let percent = parity::find(store, &path).map(|found| parity::percent_of(&found));
    let parity = percent
        .map(|percent| parity::write(store, temp.path(), &path, written.index_digest(), percent, parity::MEMORY_BYTES));
    let parity = parity.transpose()?;
    store.rename(temp.path(), &path)?;
    if let Some(parity) = parity {
        store.rename(parity.path(), &parity::parity_path(&path))?;
    }
    store.sync_dir(&dir)?;
    let (before, after) = (StoredBytes(reader.bytes()), StoredBytes(written.bytes()));
    Ok(Some(Repacked { checkpoint, group, before, after }))
}

struct EncodedPart {
    chain: Chain,
    raw_len: u64,
    stored: Vec<u8>,
    kept: Kept,
}

/// Makes a kept segment. The stored bytes of the segment are the shorter of two variants: the unchanged bytes, and
/// the result of encoding the segment with zeros in place of the unneeded pieces.
fn encode_part(
    reader: &ContainerReader,
    segment: u32,
    kept: &Kept,
    scratch: &mut Scratch,
) -> Result<EncodedPart, ReadError> {
    let stored = reader.read_segment(segment, Vec::new())?;
    let as_it_is = |kept: Kept| EncodedPart {
        chain: stored.chain.clone(),
        raw_len: stored.raw_bytes.0,
        stored: stored.stored.clone(),
        kept,
    };
    let Kept::Pieces(nth) = kept else { return Ok(as_it_is(Kept::Whole)) };
    // If the container was repacked earlier, some pieces of the segment may already be missing.
    let as_before = || as_it_is(if reader.holds_whole(segment) { Kept::Whole } else { kept.clone() });
    let entry = &reader.index().segments()[segment as usize];
    let mut raw = reader.decode_segment(segment, scratch)?;
    let lens: Vec<usize> = reader.index().pieces(segment).iter().map(|piece| piece.bytes as usize).collect();
    runs(&lens, entry.layout, |run| {
        if !nth.contains(&(run.piece as u32)) {
            raw[run.in_segment].fill(0);
        }
    });
    let Ok((chain, shorter)) = encode_best(&Profile::Fast, &raw, &entry.element, &[], true, scratch) else {
        return Ok(as_before());
    };
    if shorter.len() >= stored.stored.len() || !chain.gives_back(&shorter, &raw, scratch).unwrap_or(false) {
        return Ok(as_before());
    }
    Ok(EncodedPart { chain, raw_len: stored.raw_bytes.0, stored: shorter, kept: kept.clone() })
}
