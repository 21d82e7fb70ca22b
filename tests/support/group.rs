//! A small group of ranks with test data, and functions that write the group into a store through all steps.
#![allow(dead_code, reason = "each test binary uses only a part of this module")]

use mcrengine::bases::Bases;
use mcrengine::classify::{Naming, VariableClass, VariableRef, classify};
use mcrengine::codec::{ArrayShape, Chain, Scratch};
use mcrengine::container::{ContainerWriter, Contents, SealedContainer, StoredSegment, UnsealedContainer};
use mcrengine::filter::put_on;
use mcrengine::header::{ElementType, Extent, FileHeader, FileKind, Filter, Role, Shape, VariableHeader};
use mcrengine::ids::{CheckpointId, Digest, FilePath, GroupId, Grouping, JobId, Rank};
use mcrengine::manifest::{Manifest, ManifestDraft, commit};
use mcrengine::merge::merge;
use mcrengine::plan::{PlanOptions, Scheme, plan};
use mcrengine::reuse::{ReuseIndex, reusable};
use mcrengine::store::{Store, StoreError};
use mcrengine::units::RawBytes;
use mcrengine::verify::VerifyOptions;
use std::num::NonZeroU32;

/// Limits for tests: 1 MiB of decoded segments, and two files at the same time.
pub const VERIFYING: VerifyOptions = VerifyOptions { memory_bytes: 2 << 20, threads: 2 };

pub fn job() -> JobId {
    "wave".parse().expect("valid")
}
pub fn checkpoint(name: &str) -> CheckpointId {
    name.parse().expect("valid")
}

/// Files and the bytes of their variables.
#[derive(Clone, Debug)]
pub struct Group {
    pub files: Vec<FileHeader>,
    /// The bytes by file, then by variable.
    pub raw: Vec<Vec<Vec<u8>>>,
}

impl Group {
    pub fn raw(&self, at: VariableRef) -> &[u8] {
        &self.raw[at.file as usize][at.variable as usize]
    }

    pub fn variables(&self) -> impl Iterator<Item = VariableRef> + '_ {
        let all = |f: usize| (0..self.raw[f].len()).map(move |v| (f, v));
        (0..self.raw.len()).flat_map(all).map(|(f, v)| VariableRef { file: f as u32, variable: v as u32 })
    }
}

/// The bytes of smooth numbers that a seed determines. Such bytes can be compressed.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut value = seed as f64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        value += (x % 16) as f64 / 64.0;
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A variable for a file to be built: name, type, bytes, and the lengths of the extents into which the bytes are cut.
#[derive(Debug)]
pub struct Part {
    pub path: String,
    pub element: ElementType,
    pub raw: Vec<u8>,
    pub cuts: Vec<usize>,
    /// The filters of each extent.
    pub filters: Vec<Filter>,
}

/// Makes a file of these variables. Some bytes of the skeleton precede each extent.
pub fn file(path: &str, rank: u32, parts: Vec<Part>) -> (FileHeader, Vec<Vec<u8>>) {
    let mut image: Vec<u8> = Vec::new();
    let mut runs = Vec::new();
    let mut variables = Vec::new();
    let mut raws = Vec::new();
    for (i, part) in parts.into_iter().enumerate() {
        let mut extents = Vec::new();
        let mut at = 0;
        let cuts: Vec<usize> = if part.cuts.is_empty() { vec![part.raw.len()] } else { part.cuts };
        for cut in cuts {
            image.extend(bytes(8 * (i % 4) + 3, 77));
            let stored = put_on(&part.filters, &part.raw[at..at + cut]).expect("filters take it");
            let (offset, stored_bytes) = (image.len() as u64, stored.len() as u64);
            extents.push(Extent { offset, stored_bytes, raw_bytes: cut as u64 });
            runs.push((offset, stored_bytes));
            image.extend_from_slice(&stored);
            at += cut;
        }
        let width = u64::from(part.element.width());
        variables.push(VariableHeader {
            role: Role::Array,
            path: part.path.into(),
            shape: Shape([part.raw.len() as u64 / width].into()),
            element: part.element,
            chunk: Default::default(),
            raw_bytes: RawBytes(part.raw.len() as u64),
            digest: Digest::of(&part.raw),
            filters: part.filters.into(),
            extents: extents.into(),
        });
        raws.push(part.raw);
    }
    image.extend(bytes(21, 5));
    let extents = FileHeader::gaps(&runs, image.len() as u64);
    let skeleton: Vec<u8> = (extents.iter())
        .flat_map(|e| image[e.offset as usize..(e.offset + e.stored_bytes) as usize].to_vec())
        .collect();
    variables.insert(
        0,
        VariableHeader {
            role: Role::Skeleton,
            path: "".into(),
            element: ElementType::Bytes,
            shape: Shape([skeleton.len() as u64].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(skeleton.len() as u64),
            digest: Digest::of(&skeleton),
            filters: [].into(),
            extents,
        },
    );
    raws.insert(0, skeleton);
    let header = FileHeader {
        path: FilePath::new(path.as_bytes()).expect("valid"),
        rank: Rank(rank),
        bytes: image.len() as u64,
        kind: Default::default(),
        mode: 0o640,
        modified_ns: 1_700_000_000_123_456_789 + i64::from(rank) * 1_000_003,
        digest: Digest::of(&image),
        variables,
    };
    (header, raws)
}

/// The files of a group at a step of the simulation. Each rank has a variable that changes, a variable that does not
/// change, a variable that is equal on all ranks, and a small variable.
pub fn group(ranks: std::ops::Range<u32>, step: u64) -> Group {
    let mut group = Group { files: Vec::new(), raw: Vec::new() };
    for rank in ranks {
        let part = |path: &str, len: usize, seed: u64, cuts: &[usize]| Part {
            path: path.into(),
            element: ElementType::F64,
            raw: bytes(len, seed),
            cuts: cuts.into(),
            filters: vec![],
        };
        let filters = vec![Filter::Shuffle { width: 8 }, Filter::Deflate { level: 6 }, Filter::Fletcher32];
        let parts = vec![
            part("/Grid1/Density", 9600, step * 1000 + u64::from(rank), &[4000, 5600]),
            part("/Grid1/Potential", 5000, 31 + u64::from(rank), &[]),
            part("/Grid1/Table", 6400, 7, &[]),
            Part { filters, ..part("/Grid1/Energy", 6000, step * 500 + u64::from(rank), &[2000, 2000, 2000]) },
            part("/Time", 8, step, &[]),
            part("/Nothing", 0, 0, &[]),
        ];
        let (header, raw) = file(&format!("DD{step:04}/data.cpu{rank:04}"), rank, parts);
        group.files.push(header);
        group.raw.push(raw);
    }
    group
}

/// A group of regular files with one more entry of each other kind: a hard link, a directory, a pointer file and a
/// symbolic link.
pub fn furnished_group(ranks: std::ops::Range<u32>, step: u64) -> Group {
    let mut group = group(ranks, step);
    let (mut second, second_raw) = (group.files[0].clone(), group.raw[0].clone());
    second.path = FilePath::new([second.path.as_bytes(), b".too"].concat()).expect("valid");
    second.kind = FileKind::HardLink(NonZeroU32::MIN);
    let mut more = vec![(second, second_raw)];
    let label = format!("DD{step:04}");
    let companions = [
        (format!("{label}/empty"), FileKind::Directory, 0o2750, Vec::new()),
        ("checkpoints.txt".into(), FileKind::Pointer, 0o644, format!("{label}\n").into_bytes()),
        ("latest".into(), FileKind::SymbolicLink, 0o777, label.clone().into_bytes()),
    ];
    for (path, kind, mode, content) in companions {
        let (digest, bytes) = (Digest::of(&content), content.len() as u64);
        let all = Extent { offset: 0, stored_bytes: bytes, raw_bytes: bytes };
        let whole = VariableHeader {
            role: Role::WholeFile,
            path: "".into(),
            element: ElementType::Bytes,
            shape: Shape([bytes].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(bytes),
            digest,
            filters: [].into(),
            extents: if bytes == 0 { [].into() } else { [all].into() },
        };
        let path = FilePath::new(path.into_bytes()).expect("valid");
        let modified_ns = 1_700_000_001_000_000_000;
        let variables = vec![whole];
        let header = FileHeader { path, rank: Rank(0), bytes, kind, mode, modified_ns, digest, variables };
        more.push((header, vec![content]));
    }
    for (nth, (header, raw)) in more.into_iter().enumerate() {
        group.files.insert(nth + 1, header);
        group.raw.insert(nth + 1, raw);
    }
    group
}

/// How a group is written.
#[derive(Clone)]
pub struct How {
    pub options: PlanOptions,
    pub chain: Chain,
    pub draft: ManifestDraft,
}

pub fn how(sequence: u64) -> How {
    How {
        options: PlanOptions { segment_bytes: 16 << 10, small_class_bytes: 64, ..PlanOptions::default() },
        chain: Chain::zstd(1),
        draft: ManifestDraft {
            incarnation: 0,
            written_unix_ms: 1_700_000_000_000 + sequence as i64,
            first_unix_ms: None,
            doubt: None,
            ranks: 4,
            group_size: 2,
            profile: "test".into(),
            created_unix_ms: 1_700_000_000_000 + sequence,
            elapsed_ms: 40,
            in_a_row: 0,
            known: Vec::new(),
            decisions: Vec::new(),
        },
    }
}

pub fn how_in(scheme: Scheme, sequence: u64) -> How {
    let mut how = how(sequence);
    how.options.scheme = scheme;
    how.options.block_bytes = 512.try_into().expect("not zero");
    how
}

/// Writes and seals the container of a group.
pub fn write(
    store: &dyn Store,
    id: &CheckpointId,
    number: GroupId,
    group: &Group,
    how: &How,
    reuse: &ReuseIndex,
) -> Result<SealedContainer, StoreError> {
    let (sealed, ()) = finish(store, id, number, group, how, reuse, None)?.seal(store, |_| ())?;
    Ok(sealed)
}

/// Writes the container of a group. With `newest`, a segment of numbers is predicted from the segment with the same
/// variables in the checkpoint `newest`, if there is one.
pub fn finish(
    store: &dyn Store,
    id: &CheckpointId,
    number: GroupId,
    group: &Group,
    how: &How,
    reuse: &ReuseIndex,
    newest: Option<&Manifest>,
) -> Result<UnsealedContainer, StoreError> {
    let classes: Vec<VariableClass> = classify(&group.files, &Naming::default());
    let load = |newest: &Manifest| Bases::load(store, &job(), newest, &group.files, &classes, true);
    let bases = newest.map(load).transpose()?;
    let reused = reusable(&group.files, reuse);
    let skipped: std::collections::HashSet<VariableRef> = reused.iter().map(|(at, _)| *at).collect();
    let plans = plan(&group.files, &classes, &how.options, |at| skipped.contains(&at));
    let mut writer = ContainerWriter::create(store, &job(), id, number)?;
    let mut scratch = Scratch::default();
    for plan in &plans {
        let pieces: Vec<&[u8]> = (plan.pieces.iter())
            .map(|p| &group.raw(p.variable)[p.offset as usize..(p.offset + p.bytes) as usize])
            .collect();
        let raw = merge(&pieces, plan.layout);
        let raw_bytes = RawBytes(raw.len() as u64);
        let since = bases.as_ref().and_then(|bases| Some((bases, bases.find(plan)?, Chain::since(&plan.element, 2)?)));
        if let Some((bases, base, chain)) = since {
            let (older, base) = bases.read(&base, &mut scratch)?;
            let line = |piece: &mcrengine::plan::Piece| {
                let elements = piece.bytes / u64::from(plan.element.width());
                ArrayShape { elements, dims: vec![elements], ..ArrayShape::default() }
            };
            let arrays: Vec<ArrayShape> = plan.pieces.iter().map(line).collect();
            scratch.set_older(Some(older.into()));
            let stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
            writer.append(plan, &StoredSegment { chain, raw_bytes, stored, base: Some(base) })?;
            continue;
        }
        let (chain, stored) = (how.chain.clone(), how.chain.encode(&raw, &[], &mut scratch).expect("encodes"));
        writer.append(plan, &StoredSegment { chain, raw_bytes, stored, base: None })?;
    }
    let contents = Contents {
        scheme: how.options.scheme,
        block_bytes: how.options.block_bytes.get(),
        classes,
        files: group.files.clone().into(),
        reused,
    };
    writer.finish(contents)
}

/// Runs all steps for one group: writes the container, then the manifest.
pub fn flush(
    store: &dyn Store,
    id: &CheckpointId,
    number: GroupId,
    group: &Group,
    how: &How,
    reuse: &ReuseIndex,
) -> Result<Manifest, StoreError> {
    seal_and_commit(store, finish(store, id, number, group, how, reuse, None)?, how)
}

/// Seals a container and writes its manifest at the same time, as the aggregator does.
pub fn seal_and_commit(store: &dyn Store, container: UnsealedContainer, how: &How) -> Result<Manifest, StoreError> {
    let write = |container: &_| mcrengine::manifest::write(store, container, how.draft.clone());
    let (sealed, manifest) = container.seal(store, write)?;
    commit(store, sealed, manifest?)
}

/// Writes the manifest of a sealed container and commits it.
pub fn commit_sealed(store: &dyn Store, sealed: SealedContainer, how: &How) -> Result<Manifest, StoreError> {
    let manifest = mcrengine::manifest::write(store, sealed.summary(), how.draft.clone())?;
    commit(store, sealed, manifest)
}

/// Writes all groups of a step. Each group is predicted from the checkpoint of step `before`, or from a checkpoint
/// from which step `before` was predicted.
pub fn flush_step_since(store: &dyn Store, step: u64, before: u64) -> Result<(), StoreError> {
    let mut how = how(step);
    let grouping = Grouping::new(how.draft.ranks, how.draft.group_size).expect("valid");
    for number in (0..grouping.groups()).map(GroupId) {
        let newest = mcrengine::manifest::read_manifest(store, &job(), &step_id(before), number)?;
        how.draft.known = newest.known_containers();
        let reuse = ReuseIndex::load(store, &job(), &newest)?;
        let group = group(grouping.ranks_of(number), step);
        let container = match finish(store, &step_id(step), number, &group, &how, &reuse, Some(&newest)) {
            // An earlier attempt was stopped after it had committed this group.
            Err(StoreError::Committed { .. }) => continue,
            other => other?,
        };
        seal_and_commit(store, container, &how)?;
    }
    Ok(())
}

/// Writes all groups of a step. Each group reuses data of the checkpoint of step `before`.
pub fn flush_step(store: &dyn Store, step: u64, before: Option<u64>) -> Result<(), StoreError> {
    let mut how = how(step);
    let grouping = Grouping::new(how.draft.ranks, how.draft.group_size).expect("valid");
    for number in (0..grouping.groups()).map(GroupId) {
        let reuse = match before {
            None => ReuseIndex::empty(),
            Some(before) => {
                let manifest = mcrengine::manifest::read_manifest(store, &job(), &step_id(before), number)?;
                how.draft.known = manifest.known_containers();
                ReuseIndex::load(store, &job(), &manifest)?
            }
        };
        let group = group(grouping.ranks_of(number), step);
        match flush(store, &step_id(step), number, &group, &how, &reuse) {
            // An earlier attempt was stopped after it had committed this group.
            Err(StoreError::Committed { .. }) => {}
            other => other.map(|_| ())?,
        }
    }
    Ok(())
}

pub fn step_id(step: u64) -> CheckpointId {
    checkpoint(&format!("DD{step:04}"))
}
