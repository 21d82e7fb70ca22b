//! What a container holds, and where: the part of it that is read first.

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

/// Stands for the digest of a variable that has none in the index, because it is short.
pub const NO_DIGEST: Digest = Digest([0; 32]);
/// The most variables of one container.
pub const VARIABLES_MAX: u64 = 1 << 23;
/// The most pieces of one container.
pub const PIECES_MAX: u64 = 1 << 24;
/// The most extents of one container.
pub const EXTENTS_MAX: u64 = 1 << 25;
/// The most older containers that one container refers to.
pub const REFERENCES_MAX: usize = 16;

/// A container of an older checkpoint of the same job that holds bytes we did not store again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerRef {
    /// Its checkpoint.
    pub checkpoint: CheckpointId,
    /// Its group.
    pub group: GroupId,
    /// The digest that its manifest names.
    pub digest: Digest,
    /// BLAKE3 of its stored index, which is quick to compare and holds the digests of its files.
    pub index_digest: Digest,
}

/// Where the bytes of a variable are that is not stored itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The bytes of another variable of the same group, which is itself stored, or external, but not the same as a third.
    SameAs(VariableRef),
    /// The bytes of a variable that is stored in an older container.
    External {
        /// Which one.
        container: Arc<ContainerRef>,
        /// Where among its files; it has pieces there.
        at: VariableRef,
    },
}

/// Where the bytes of a variable are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In pieces of this container's segments; in none if it has no bytes.
    Pieces,
    /// As those of another variable of this container, whose placement is one of the other two.
    SameAs(VariableRef),
    /// In an older container.
    External {
        /// Index in [`Index::references`].
        reference: u32,
        /// Where among its files.
        at: VariableRef,
    },
}

/// The segment of an older container that a segment is coded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseSegment {
    /// In which container.
    pub container: Arc<ContainerRef>,
    /// Which of its segments; one that has no base itself.
    pub segment: u32,
    /// BLAKE3 of its raw bytes.
    pub digest: Digest,
}

/// The same, as an index names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseRef {
    /// Index in [`Index::references`].
    pub reference: u32,
    /// Which of its segments.
    pub segment: u32,
    /// BLAKE3 of its raw bytes.
    pub digest: Digest,
}

/// A dependency on a segment of a reference.
pub(super) const ON_OLDER: u32 = 2;

/// What a segment is decoded with besides its own bytes. Of the kinds that FORMAT.md numbers, this build writes and
/// reads [`BaseRef`]; it decodes no segment that has another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// What sort of thing; FORMAT.md numbers them.
    pub kind: u32,
    /// Which one, as its kind spells it.
    pub of: Box<[u8]>,
}

/// A segment, as the index describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Where its header begins.
    pub offset: u64,
    /// Bytes that follow its header.
    pub stored_bytes: StoredBytes,
    /// The sum over its pieces.
    pub raw_bytes: RawBytes,
    /// Index in [`Index::classes`], or `None` for a pool of small variables.
    pub class: Option<u32>,
    /// What its variables are.
    pub role: Role,
    /// Type of the elements.
    pub element: ElementType,
    /// How its pieces are merged.
    pub layout: Layout,
    /// How it is coded.
    pub chain: Chain,
    /// Its pieces, in the order of merging, as a range of all pieces of the container.
    pub pieces: Range<usize>,
    /// What else it is decoded with.
    pub dependencies: Vec<Dependency>,
}

impl SegmentEntry {
    /// The older segment that it is decoded with, if it is with one.
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

    /// What it names, if it is of that kind and says what it must.
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
    /// For each variable, files after each other.
    pub(super) placements: Vec<Placement>,
    /// Number of variables before each file, and of all at the end.
    pub(super) first: Vec<usize>,
    /// Indices of pieces by variable and offset, and where those of each variable begin.
    pub(super) by_variable: Vec<u32>,
    pub(super) by_variable_start: Vec<u32>,
}

impl Index {
    /// How the variables of the group were put together.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Bytes of each piece before the next piece's turn, in the block schemes.
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

    /// The older containers that hold bytes of this one's variables.
    pub fn references(&self) -> &[Arc<ContainerRef>] {
        &self.references
    }

    /// The pieces of a segment, in the order of merging. Empty for a segment that there is not.
    pub fn pieces(&self, segment: u32) -> &[Piece] {
        self.segments.get(segment as usize).map_or(&[], |s| &self.pieces[s.pieces.clone()])
    }

    /// All pieces, segment after segment.
    pub fn all_pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The header of a variable, if there is one.
    pub fn variable(&self, at: VariableRef) -> Option<&VariableHeader> {
        self.files.get(at.file as usize)?.variables.get(at.variable as usize)
    }

    /// Where the bytes of a variable are, if there is such a variable.
    pub fn placement(&self, at: VariableRef) -> Option<Placement> {
        self.flat(at).map(|flat| self.placements[flat])
    }

    /// The pieces of a variable by increasing offset: its segment, and the index among [`Index::all_pieces`].
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

    /// The sum over all variables, stored here or not.
    pub fn raw_bytes(&self) -> RawBytes {
        self.variables().map(|(_, variable)| variable.raw_bytes).sum()
    }

    /// Place of a variable when files follow each other.
    pub(super) fn flat(&self, at: VariableRef) -> Option<usize> {
        self.variable(at).map(|_| self.first[at.file as usize] + at.variable as usize)
    }

    /// Whether a segment has a base.
    pub fn has_bases(&self) -> bool {
        self.segments.iter().any(|segment| !segment.dependencies.is_empty())
    }

    fn segment_of(&self, piece: usize) -> u32 {
        self.segments.partition_point(|s| s.pieces.end <= piece) as u32
    }
}

/// Both are below [`VARIABLES_MAX`], or stand for a place that has 32 bits.
pub(super) fn reference(file: usize, variable: usize) -> VariableRef {
    VariableRef { file: file as u32, variable: variable as u32 }
}

/// Number of variables before each file, and of all at the end.
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

/// The variables that pieces are made of, in the order in which piece lists count them: class after class, then those
/// without a class, each by file and place; without those that have no bytes or lie elsewhere.
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
