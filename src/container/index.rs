//! The index of a container: what the container holds, and where. A reader reads the index first.

use super::columns::{Column, Cursor, Parsed};
use crate::classify::{VariableClass, VariableRef};
use crate::codec::Chain;
use crate::header::{ElementType, FileHeader, Role, VariableHeader};
use crate::ids::{CheckpointId, Digest, GroupId};
use crate::merge::Layout;
use crate::plan::{Piece, Scheme};
use crate::units::{RawBytes, StoredBytes};
use std::ops::Range;
use std::sync::Arc;

/// Digest of a variable of fewer than [`DIGEST_BYTES_MIN`](super::DIGEST_BYTES_MIN) bytes. The index stores no digest
/// for such a variable.
pub const NO_DIGEST: Digest = Digest([0; 32]);
/// Maximum number of variables in one container.
pub const VARIABLES_MAX: u64 = 1 << 23;
/// Maximum number of pieces in one container.
pub const PIECES_MAX: u64 = 1 << 24;
/// Maximum number of extents in one container.
pub const EXTENTS_MAX: u64 = 1 << 25;
/// Maximum number of older containers that one container may refer to.
pub const REFERENCES_MAX: usize = 16;

/// A segment after coding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSegment {
    /// The chain of codecs.
    pub chain: Chain,
    /// Length of the segment before coding.
    pub raw_bytes: RawBytes,
    /// Bytes of the segment after coding.
    pub stored: Vec<u8>,
    /// The older segment that decoding needs, if the chain needs an older segment.
    pub base: Option<BaseSegment>,
}

/// The contents of the index except the segments.
#[derive(Clone, Debug)]
pub struct Contents {
    /// How the variables were merged.
    pub scheme: Scheme,
    /// In the block schemes: number of bytes taken from one piece before the next piece follows.
    pub block_bytes: u32,
    /// The classes to which the plans of the segments refer.
    pub classes: Vec<VariableClass>,
    /// The files of the group, in rank order.
    pub files: Arc<Vec<FileHeader>>,
    /// Variables that are in no segment, because another variable or an older container has their bytes.
    pub reused: Vec<(VariableRef, Source)>,
}

/// The entry of an appended segment in the index.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) class: Option<u32>,
    pub(super) role: Role,
    pub(super) element: ElementType,
    pub(super) layout: Layout,
    pub(super) chain: Chain,
    pub(super) raw_bytes: RawBytes,
    pub(super) stored_bytes: StoredBytes,
    pub(super) pieces: Box<[Piece]>,
    pub(super) base: Option<BaseSegment>,
}

/// A container of an older checkpoint of the same job. The older container holds bytes that the new container needs
/// and does not store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerRef {
    /// The checkpoint of the older container.
    pub checkpoint: CheckpointId,
    /// The group of the older container.
    pub group: GroupId,
    /// The digest that the manifest of the older container names.
    pub digest: Digest,
    /// BLAKE3 of the stored index of the older container. The index is compared instead of the container, because the
    /// index is short and holds the digests of the files.
    pub index_digest: Digest,
}

/// Where a reader finds the bytes of a variable that has no pieces in this container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The bytes equal the bytes of another variable of the group, and the other variable is stored or
    /// [`Source::External`].
    SameAs(VariableRef),
    /// The bytes equal the bytes of a variable that is stored in an older container.
    External {
        /// The older container.
        container: Arc<ContainerRef>,
        /// Position of the equal variable among the files of the older container. The equal variable has pieces in
        /// the older container.
        at: VariableRef,
    },
}

/// Where the bytes of a variable are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The bytes are in pieces of this container's segments. A variable without bytes has no pieces.
    Pieces,
    /// The bytes equal the bytes of another variable of this container, whose placement is `Pieces` or `External`.
    SameAs(VariableRef),
    /// The bytes are in an older container.
    External {
        /// Index in [`Index::references`].
        reference: u32,
        /// Position of the variable among the files of the older container.
        at: VariableRef,
    },
}

/// A base: the segment of an older container that predicts the bytes of a new segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseSegment {
    /// The older container.
    pub container: Arc<ContainerRef>,
    /// Number of the segment in the older container. The older segment has no base itself.
    pub segment: u32,
    /// BLAKE3 of the raw bytes of the older segment.
    pub digest: Digest,
}

/// A [`BaseSegment`] in the form in which an index stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseRef {
    /// Index in [`Index::references`].
    pub reference: u32,
    /// Number of the segment in the referenced container.
    pub segment: u32,
    /// BLAKE3 of the raw bytes of the older segment.
    pub digest: Digest,
}

/// The kind of a dependency on a segment of a referenced container.
pub(super) const ON_OLDER: u32 = 2;

/// What a segment needs for decoding in addition to its own stored bytes. See docs/format/container.md.
/// This build writes and reads the kind [`BaseRef`]. A segment with a dependency of another kind is not decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Kind of the dependency, as docs/format/container.md numbers it.
    pub kind: u32,
    /// The object that the segment needs. `kind` determines the encoding.
    pub of: Box<[u8]>,
}

/// The description of one segment in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Offset of the segment header.
    pub offset: u64,
    /// Number of bytes that follow the segment header.
    pub stored_bytes: StoredBytes,
    /// Raw bytes of all pieces of the segment.
    pub raw_bytes: RawBytes,
    /// Index in [`Index::classes`]. `None` for a segment that pools small variables.
    pub class: Option<u32>,
    /// Role of the variables in the segment.
    pub role: Role,
    /// Type of the elements.
    pub element: ElementType,
    /// How the pieces of the segment are merged.
    pub layout: Layout,
    /// The chain of codecs.
    pub chain: Chain,
    /// The pieces of the segment in merge order, as a range of [`Index::all_pieces`].
    pub pieces: Range<usize>,
    /// What the segment needs for decoding in addition to its own bytes.
    pub dependencies: Vec<Dependency>,
}

impl SegmentEntry {
    /// The older segment against which this segment is coded; `None` if there is no such segment.
    pub fn base(&self) -> Option<BaseRef> {
        self.dependencies.first().and_then(Dependency::base)
    }
}

impl Dependency {
    pub(super) fn on(base: &BaseRef) -> Self {
        let mut of = Column::default();
        of.number(u64::from(base.reference));
        of.number(u64::from(base.segment));
        of.bytes(&base.digest.0);
        Self { kind: ON_OLDER, of: of.0.into() }
    }

    /// The base that the dependency names. `None` if the dependency is of another kind or its bytes are invalid.
    pub(super) fn base(&self) -> Option<BaseRef> {
        let read = |mut of: Cursor<'_>| -> Parsed<BaseRef> {
            let base = BaseRef { reference: of.small()?, segment: of.small()?, digest: Digest(of.array()?) };
            of.end().map(|()| base)
        };
        (self.kind == ON_OLDER).then(|| read(Cursor::new("dependencies", &self.of)).ok())?
    }
}

/// The index of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub(super) scheme: Scheme,
    pub(super) block_bytes: u32,
    pub(super) references: Vec<Arc<ContainerRef>>,
    pub(super) classes: Vec<VariableClass>,
    pub(super) segments: Vec<SegmentEntry>,
    pub(super) pieces: Vec<Piece>,
    pub(super) files: Vec<FileHeader>,
    /// Placement of each variable, in the order of the files.
    pub(super) placements: Vec<Placement>,
    /// For each file, the position of its first variable among all variables. The last entry is the number of all
    /// variables.
    pub(super) first: Vec<usize>,
    /// Indices of pieces, sorted by variable and offset. `by_variable_start` says where the pieces of each variable
    /// begin.
    pub(super) by_variable: Vec<u32>,
    pub(super) by_variable_start: Vec<u32>,
}

impl Index {
    /// How the variables of the group were merged.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// In the block schemes: number of bytes taken from one piece before the next piece follows.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// The files of the group, in rank order. Variables of fewer than 4096 bytes have the digest [`NO_DIGEST`].
    pub fn files(&self) -> &[FileHeader] {
        &self.files
    }

    /// The classes of variables.
    pub fn classes(&self) -> &[VariableClass] {
        &self.classes
    }

    /// The segments, in the order of the container.
    pub fn segments(&self) -> &[SegmentEntry] {
        &self.segments
    }

    /// The older containers that hold bytes of this container's variables.
    pub fn references(&self) -> &[Arc<ContainerRef>] {
        &self.references
    }

    /// The pieces of a segment in merge order. Empty if the segment does not exist.
    pub fn pieces(&self, segment: u32) -> &[Piece] {
        self.segments.get(segment as usize).map_or(&[], |s| &self.pieces[s.pieces.clone()])
    }

    /// All pieces, segment after segment.
    pub fn all_pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The header of a variable, if the variable exists.
    pub fn variable(&self, at: VariableRef) -> Option<&VariableHeader> {
        self.files.get(at.file as usize)?.variables.get(at.variable as usize)
    }

    /// Where the bytes of a variable are, if the variable exists.
    pub fn placement(&self, at: VariableRef) -> Option<Placement> {
        self.flat(at).map(|flat| self.placements[flat])
    }

    /// The pieces of a variable, by increasing offset. Each item is the number of the segment and an index in
    /// [`Index::all_pieces`].
    pub fn pieces_of(&self, at: VariableRef) -> impl Iterator<Item = (u32, usize)> + '_ {
        let range = match self.flat(at) {
            Some(flat) => self.by_variable_start[flat] as usize..self.by_variable_start[flat + 1] as usize,
            None => 0..0,
        };
        self.by_variable[range].iter().map(|&piece| (self.segment_of(piece as usize), piece as usize))
    }

    /// Every variable, in order.
    pub fn variables(&self) -> impl Iterator<Item = (VariableRef, &VariableHeader)> {
        self.files
            .iter()
            .enumerate()
            .flat_map(|(f, file)| file.variables.iter().enumerate().map(move |(v, header)| (reference(f, v), header)))
    }

    /// Raw bytes of all variables, whether they are stored in this container or not.
    pub fn raw_bytes(&self) -> RawBytes {
        self.variables().map(|(_, variable)| variable.raw_bytes).sum()
    }

    /// Position of a variable among all variables of all files.
    pub(super) fn flat(&self, at: VariableRef) -> Option<usize> {
        self.variable(at).map(|_| self.first[at.file as usize] + at.variable as usize)
    }

    /// Whether any segment has a base, or a dependency of another kind.
    pub fn has_bases(&self) -> bool {
        self.segments.iter().any(|segment| !segment.dependencies.is_empty())
    }

    fn segment_of(&self, piece: usize) -> u32 {
        self.segments.partition_point(|s| s.pieces.end <= piece) as u32
    }
}

/// Makes a reference. Both numbers fit 32 bits: they are below [`VARIABLES_MAX`], or were read from a 32-bit field.
pub(super) fn reference(file: usize, variable: usize) -> VariableRef {
    VariableRef { file: file as u32, variable: variable as u32 }
}

/// For each file, the position of its first variable among all variables. The last entry is the number of all
/// variables.
pub(super) fn firsts(files: &[FileHeader]) -> Vec<usize> {
    let mut first = Vec::with_capacity(files.len() + 1);
    let mut sum = 0;
    first.push(sum);
    for file in files {
        sum += file.variables.len();
        first.push(sum);
    }
    first
}

/// The variables that have pieces, in the order in which piece lists number them. The members of each class come
/// first, class by class. The variables without a class follow, by file and position. Variables without bytes and
/// variables stored elsewhere are left out.
pub(super) fn piece_order(
    files: &[FileHeader],
    classes: &[VariableClass],
    is_here: impl Fn(VariableRef) -> bool,
) -> Vec<VariableRef> {
    let first = firsts(files);
    let mut seen = vec![false; first[files.len()]];
    let mut order = Vec::new();
    let mut take = |at: VariableRef, header: &VariableHeader| {
        let seen = &mut seen[first[at.file as usize] + at.variable as usize];
        if !*seen && header.raw_bytes.0 > 0 && is_here(at) {
            order.push(at);
        }
        *seen = true;
    };
    for at in classes.iter().flat_map(|class| &class.members) {
        take(*at, at.of(files));
    }
    for (f, file) in files.iter().enumerate() {
        for (v, header) in file.variables.iter().enumerate() {
            take(reference(f, v), header);
        }
    }
    order
}
