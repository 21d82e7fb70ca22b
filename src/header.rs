//! The description of a file without its bytes: the variables, including the skeleton, and the places of the
//! variables in the file.
//!
//! All other code relies on this invariant: **the extents of a file's variables, including the skeleton, cover each
//! byte of the file exactly once** ([`FileHeader::check`]). Therefore a program that writes each variable's bytes
//! back to their extents restores the application's file, regardless of the HDF5 features that the file uses.

use crate::ids::{Digest, FilePath, Rank};
use crate::units::RawBytes;
use std::fmt;
use std::num::NonZeroU32;

/// Order of the bytes of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// The type of one element of a variable. Every `match` names all variants, so that the compiler finds every codec
/// that must handle a new variant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementType {
    /// Bytes without known meaning: skeletons, files that are not HDF5, stored chunks with an unknown filter.
    Bytes,
    /// A two's complement or unsigned integer of 1, 2, 4 or 8 bytes. Booleans, enumerations and bit fields are such
    /// integers too.
    Int {
        /// Bytes of one element: 1, 2, 4 or 8.
        width: u8,
        /// Whether the integer is in two's complement instead of unsigned.
        signed: bool,
        /// Order of the bytes.
        order: ByteOrder,
    },
    /// IEEE 754 binary16, binary32 or binary64.
    Float {
        /// Bytes of one element: 2, 4 or 8.
        width: u8,
        /// Order of the bytes.
        order: ByteOrder,
    },
    /// An element of a fixed width whose contents are not interpreted: a fixed string, opaque data, a long double, or
    /// an integer of an unusual width.
    Fixed {
        /// Bytes of one element, 1 to [`ELEMENT_WIDTH_MAX`].
        width: u32,
    },
    /// A record of named members at fixed offsets. Bytes that belong to no member are padding.
    Compound {
        /// Bytes of one record, 1 to [`ELEMENT_WIDTH_MAX`].
        width: u32,
        /// The members, by increasing offset. Members do not overlap, and no member is a compound. There are at most
        /// [`MEMBERS_MAX`] members.
        members: Box<[Member]>,
    },
}

/// One member of a compound type. The member is not a compound.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Offset from the start of the record, in bytes.
    pub offset: u32,
    /// Number of consecutive elements. An array member has more than one element.
    pub count: u32,
    /// Type of the elements; never a compound.
    pub element: ElementType,
}

/// Maximum width of an element whose type is interpreted, in bytes. Wider elements are [`ElementType::Bytes`].
pub const ELEMENT_WIDTH_MAX: u32 = 1 << 20;
/// Maximum number of members of a compound whose members are interpreted. A compound with more than this number of
/// members is [`ElementType::Fixed`].
pub const MEMBERS_MAX: usize = 1024;

impl ElementType {
    /// Little-endian binary64, the most common element type.
    pub const F64: Self = Self::Float { width: 8, order: ByteOrder::Little };
    /// Little-endian binary32.
    pub const F32: Self = Self::Float { width: 4, order: ByteOrder::Little };

    /// Whether segments of this type are searched for numbers, which are then coded separately.
    pub(crate) fn is_taken_apart(&self) -> bool {
        matches!(self, Self::Bytes | Self::Compound { .. })
    }

    /// Number of bytes of one element, at least 1.
    pub fn width(&self) -> u32 {
        match self {
            Self::Bytes => 1,
            Self::Int { width, .. } | Self::Float { width, .. } => u32::from(*width),
            Self::Fixed { width } | Self::Compound { width, .. } => *width,
        }
    }

    /// Whether the invariants of the variant hold. Every type from a file or a peer is checked with this function
    /// before the type is used.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Bytes => true,
            Self::Int { width, .. } => matches!(width, 1 | 2 | 4 | 8),
            Self::Float { width, .. } => matches!(width, 2 | 4 | 8),
            Self::Fixed { width } => (1..=ELEMENT_WIDTH_MAX).contains(width),
            Self::Compound { width, members } => {
                let mut end = 0u64;
                (1..=ELEMENT_WIDTH_MAX).contains(width)
                    && members.len() <= MEMBERS_MAX
                    && members.iter().all(|m| {
                        let fits = u64::from(m.offset) >= end && m.count > 0 && m.element.is_valid();
                        end = u64::from(m.offset) + u64::from(m.count) * u64::from(m.element.width());
                        fits && end <= u64::from(*width) && !matches!(m.element, Self::Compound { .. })
                    })
            }
        }
    }
}

/// The type's name in hash keys: `F64LE`, `I32BE`, `U8`, `B1` (bytes), `X16` (fixed width), `C24[...]` (compound).
impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = |o: &ByteOrder, width: &u8| match (o, width) {
            (_, 1) => "",
            (ByteOrder::Little, _) => "LE",
            (ByteOrder::Big, _) => "BE",
        };
        match self {
            Self::Bytes => f.write_str("B1"),
            Self::Int { width, signed, order: o } => {
                write!(f, "{}{}{}", if *signed { 'I' } else { 'U' }, u32::from(*width) * 8, order(o, width))
            }
            Self::Float { width, order: o } => write!(f, "F{}{}", u32::from(*width) * 8, order(o, width)),
            Self::Fixed { width } => write!(f, "X{width}"),
            Self::Compound { width, members } => {
                write!(f, "C{width}[")?;
                for (i, m) in members.iter().enumerate() {
                    let space = if i == 0 { "" } else { " " };
                    write!(f, "{space}{}:{}x{}", m.offset, m.element, m.count)?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Number of elements of a variable in each dimension, the slowest-varying dimension first. A scalar has no
/// dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(pub Box<[u64]>);

/// Maximum number of dimensions, which is HDF5's own limit.
pub const DIMENSIONS_MAX: usize = 32;

/// The class part of a hash key: `Scalar`, `Array1D`, ... (mcrEngine, SC12, section III-A).
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => f.write_str("Scalar"),
            n => write!(f, "Array{n}D"),
        }
    }
}

/// A reversible filter between a chunk's raw bytes and its bytes in the file. Lists of filters have the order in
/// which the application applied the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// HDF5's byte shuffle over elements of this many bytes.
    Shuffle {
        /// Bytes of one element.
        width: u32,
    },
    /// zlib's deflate at this level, 0 to 9. The agent has verified that deflate at this level reproduces the bytes
    /// of the file.
    Deflate {
        /// The level that the application asked for.
        level: u8,
    },
    /// HDF5's Fletcher-32 checksum, 4 bytes after the chunk.
    Fletcher32,
}

/// Maximum number of filters of one variable.
pub const FILTERS_MAX: usize = 8;

/// A run of bytes in the file that holds a run of a variable's raw bytes.
///
/// Without filters, `stored_bytes` equals `raw_bytes`. With filters, each extent is one chunk, and each chunk is
/// filtered separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Offset from the first byte of the file. A user block (HDF5's space before the HDF5 data) is counted.
    pub offset: u64,
    /// Number of bytes in the file.
    pub stored_bytes: u64,
    /// Number of raw bytes of the variable, after the filters were removed.
    pub raw_bytes: u64,
}

/// The role of a variable in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// All bytes of the file outside the arrays. Each file that was split into variables has exactly one skeleton.
    Skeleton,
    /// A named array.
    Array,
    /// The stored bytes of an array as they are in the file, because a filter could not be removed and applied again.
    StoredChunks,
    /// A whole file that was not split into variables.
    WholeFile,
}

/// One named array of one rank, described without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableHeader {
    /// Role of the variable in its file.
    pub role: Role,
    /// HDF5's path of the dataset (`/Grid00000012/Density`); empty for a skeleton or a whole file.
    pub path: Box<str>,
    /// Type of the elements.
    pub element: ElementType,
    /// Dimensions of the array, even if its raw bytes are stored chunk after chunk.
    pub shape: Shape,
    /// Dimensions of the chunks, if the dimensions are known and the chunks are whole. Empty if the raw bytes are not
    /// stored chunk after chunk. The dimensions are a hint for codecs, and are not stored in containers.
    pub chunk: Shape,
    /// Total raw bytes of the extents.
    pub raw_bytes: RawBytes,
    /// BLAKE3 of the raw bytes. A variable of fewer than 4096 bytes has [`NO_DIGEST`](crate::container::NO_DIGEST) in
    /// an index, and in the header of a file that the agent keeps in memory.
    pub digest: Digest,
    /// Filters of each extent; empty if the extents hold the raw bytes themselves.
    pub filters: Box<[Filter]>,
    /// Extents of the raw bytes in the file, in the order of the raw bytes.
    pub extents: Box<[Extent]>,
}

/// Maximum raw bytes of one chunk whose filters are removed. HDF5's own limit is 4 GiB. The stored bytes of larger
/// chunks are saved.
pub const FILTERED_CHUNK_MAX: u64 = 64 << 20;

/// One file of a checkpoint, described without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Path relative to the watched directory.
    pub path: FilePath,
    /// The rank that wrote the file. Files that belong to no rank are saved with rank 0.
    pub rank: Rank,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits, 0o000 to 0o7777.
    pub mode: u32,
    /// Time of last modification, nanoseconds since 1970.
    pub modified_ns: i64,
    /// BLAKE3 of the whole file.
    pub digest: Digest,
    /// The skeleton (or the whole file) first, then the arrays, sorted by name.
    pub variables: Vec<VariableHeader>,
}

/// An error in a header that came from a file or peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A field is out of its range.
    #[error("{file}: variable {variable:?}: {what}")]
    Variable {
        /// The file.
        file: String,
        /// The variable's path.
        variable: String,
        /// The broken rule.
        what: &'static str,
    },
    /// The kind of the file does not agree with its length.
    #[error("{file}: {what}, but the header states {bytes} bytes")]
    Kind {
        /// The file.
        file: String,
        /// Length of the file, in bytes.
        bytes: u64,
        /// The broken rule.
        what: &'static str,
    },
    /// The extents leave a gap, overlap, or extend past the end.
    #[error(
        "{file}: the extents of its variables do not cover each of its {bytes} bytes exactly once: {what} at byte {at}"
    )]
    Cover {
        /// The file.
        file: String,
        /// Length of the file, in bytes.
        bytes: u64,
        /// A gap or an overlap.
        what: &'static str,
        /// Offset of the gap or overlap.
        at: u64,
    },
}

impl VariableHeader {
    /// Checks all rules that do not depend on other variables. The error is the broken rule.
    pub fn check(&self) -> Result<(), &'static str> {
        let filters_fit = self.filters.iter().all(|f| match f {
            Filter::Shuffle { width } => *width > 0 && *width <= ELEMENT_WIDTH_MAX,
            Filter::Deflate { level } => *level <= 9,
            Filter::Fletcher32 => true,
        });
        let mut sum = 0u64;
        for extent in &self.extents {
            if extent.offset.checked_add(extent.stored_bytes).is_none() {
                return Err("an extent ends beyond byte 2^64");
            }
            if self.filters.is_empty() && extent.stored_bytes != extent.raw_bytes {
                return Err("an extent without filters has different raw and stored lengths");
            }
            if !self.filters.is_empty() && extent.raw_bytes.max(extent.stored_bytes) > FILTERED_CHUNK_MAX {
                return Err("a filtered chunk has more than 64 MiB");
            }
            sum = sum.checked_add(extent.raw_bytes).ok_or("it has more than 2^64 bytes")?;
        }
        match () {
            () if !self.element.is_valid() => Err("its element type is not valid"),
            () if self.shape.0.len() > DIMENSIONS_MAX => Err("it has more than 32 dimensions"),
            () if self.filters.len() > FILTERS_MAX || !filters_fit => Err("its filters are not valid"),
            () if sum != self.raw_bytes.0 => Err("its length is not the sum of its extents"),
            () => Ok(()),
        }
    }
}

/// The kind of an entry of a checkpoint. The identity of a checkpoint depends only on regular files and hard links.
/// Entries of the other kinds are saved together with the checkpoint ([`FileKind::is_companion`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A file that the layout assigns to the checkpoint.
    #[default]
    Regular,
    /// A directory, which has no bytes. Directories are saved because of their permission bits, and because an empty
    /// directory may be part of a checkpoint.
    Directory,
    /// A symbolic link. The bytes are the text of the link, which has 1 to [`LINK_BYTES_MAX`] bytes.
    SymbolicLink,
    /// A file next to the checkpoint that names the newest checkpoint, such as `checkpoints.txt` or `rpointer.ocn`.
    Pointer,
    /// A second name of a regular file that belongs to the same rank. The number is the distance from this entry back
    /// to the entry of the regular file, in entries of the list.
    HardLink(NonZeroU32),
}

/// Maximum length of the text of a symbolic link, in bytes (Linux's PATH_MAX).
pub const LINK_BYTES_MAX: u64 = 4096;

impl FileKind {
    /// Whether the entry only accompanies a checkpoint. A checkpoint stays the same checkpoint if such an entry is
    /// missing or different.
    pub fn is_companion(self) -> bool {
        matches!(self, Self::Directory | Self::SymbolicLink | Self::Pointer)
    }

    /// Whether the entry counts as a file in reports.
    pub fn is_file(self) -> bool {
        matches!(self, Self::Regular | Self::Pointer | Self::HardLink(_))
    }

    /// Whether the entry is a regular file. A manifest does not store the kind of a regular file.
    pub fn is_regular(&self) -> bool {
        *self == Self::Regular
    }

    /// The number of the kind in the formats: 0 regular file, 1 directory, 2 symbolic link, 3 pointer, and 3 + n for
    /// a second name of the file n places earlier.
    pub fn number(self) -> u64 {
        match self {
            Self::Regular => 0,
            Self::Directory => 1,
            Self::SymbolicLink => 2,
            Self::Pointer => 3,
            Self::HardLink(before) => 3 + u64::from(before.get()),
        }
    }

    /// The inverse of [`FileKind::number`]. `None` if no kind has the number.
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Regular),
            1 => Some(Self::Directory),
            2 => Some(Self::SymbolicLink),
            3 => Some(Self::Pointer),
            more => Some(Self::HardLink(NonZeroU32::new(u32::try_from(more - 3).ok()?)?)),
        }
    }
}

impl FileHeader {
    /// The first hard link in the list that does not name an earlier regular file with the same rank and bytes.
    pub fn stray_link(files: &[Self]) -> Option<usize> {
        files.iter().enumerate().position(|(at, file)| {
            let FileKind::HardLink(before) = file.kind else { return false };
            let named = at.checked_sub(before.get() as usize).map(|at| &files[at]);
            let is_same = |named: &Self| {
                (named.kind, named.rank, named.bytes, named.digest)
                    == (FileKind::Regular, file.rank, file.bytes, file.digest)
            };
            !named.is_some_and(is_same)
        })
    }

    /// Checks every variable, and checks that the extents cover each byte of the file exactly once.
    pub fn check(&self) -> Result<(), HeaderError> {
        let file = || self.path.to_string();
        match self.kind {
            FileKind::Directory if self.bytes > 0 => {
                return Err(HeaderError::Kind { file: file(), bytes: self.bytes, what: "a directory has no bytes" });
            }
            FileKind::SymbolicLink if !(1..=LINK_BYTES_MAX).contains(&self.bytes) => {
                let what = "the text of a symbolic link has 1 to 4096 bytes";
                return Err(HeaderError::Kind { file: file(), bytes: self.bytes, what });
            }
            _ => {}
        }
        for v in &self.variables {
            v.check().map_err(|what| HeaderError::Variable {
                file: file(),
                variable: v.path.chars().take(200).collect(),
                what,
            })?;
        }
        let mut runs: Vec<(u64, u64)> = (self.variables.iter())
            .flat_map(|v| {
                v.extents.iter().filter(|e| e.stored_bytes > 0).map(|e| (e.offset, e.offset + e.stored_bytes))
            })
            .collect();
        runs.sort_unstable();
        let mut end = 0;
        for (from, to) in runs {
            if from != end {
                let what = if from > end { "a gap" } else { "an overlap" };
                return Err(HeaderError::Cover { file: file(), bytes: self.bytes, what, at: end.min(from) });
            }
            end = to;
        }
        if end != self.bytes {
            let what = if end < self.bytes { "a gap" } else { "an overlap" };
            return Err(HeaderError::Cover { file: file(), bytes: self.bytes, what, at: end.min(self.bytes) });
        }
        Ok(())
    }

    /// The gaps between sorted, disjoint `(offset, bytes)` runs in a file of `bytes` bytes. The gaps are the
    /// skeleton's extents.
    pub fn gaps(runs: &[(u64, u64)], bytes: u64) -> Box<[Extent]> {
        let mut gaps = Vec::with_capacity(runs.len() + 1);
        let mut end = 0;
        let mut gap = |from: u64, to: u64| {
            if to > from {
                gaps.push(Extent { offset: from, stored_bytes: to - from, raw_bytes: to - from });
            }
        };
        for &(offset, len) in runs {
            gap(end, offset);
            end = offset + len;
        }
        gap(end, bytes);
        gaps.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(extents: &[(u64, u64)]) -> VariableHeader {
        let extents: Box<[Extent]> =
            extents.iter().map(|&(offset, n)| Extent { offset, stored_bytes: n, raw_bytes: n }).collect();
        VariableHeader {
            role: Role::Array,
            path: "/x".into(),
            element: ElementType::Bytes,
            shape: Shape::default(),
            chunk: Default::default(),
            raw_bytes: RawBytes(extents.iter().map(|e| e.raw_bytes).sum()),
            digest: Digest([0; 32]),
            filters: [].into(),
            extents,
        }
    }

    fn file(bytes: u64, variables: Vec<VariableHeader>) -> FileHeader {
        FileHeader {
            path: FilePath::new(&b"f"[..]).expect("valid"),
            rank: Rank(0),
            bytes,
            kind: Default::default(),
            mode: 0o644,
            modified_ns: 0,
            digest: Digest([0; 32]),
            variables,
        }
    }

    #[test]
    fn every_gap_and_overlap_is_noticed() {
        assert_eq!(file(10, vec![variable(&[(0, 3), (7, 3)]), variable(&[(3, 4)])]).check(), Ok(()));
        assert_eq!(file(0, vec![]).check(), Ok(()));
        for (bytes, runs, what, at) in [
            (10, vec![(0, 3), (4, 6)], "a gap", 3),
            (10, vec![(0, 5), (4, 6)], "an overlap", 4),
            (10, vec![(0, 9)], "a gap", 9),
            (10, vec![(0, 11)], "an overlap", 10),
        ] {
            let error = file(bytes, vec![variable(&runs)]).check().expect_err("must be refused");
            assert_eq!(error, HeaderError::Cover { file: "f".into(), bytes, what, at });
        }
    }

    #[test]
    fn gaps_are_what_the_runs_leave() {
        let gap = |offset, n| Extent { offset, stored_bytes: n, raw_bytes: n };
        assert_eq!(*FileHeader::gaps(&[(2, 3), (5, 1), (8, 2)], 12), [gap(0, 2), gap(6, 2), gap(10, 2)]);
        assert_eq!(*FileHeader::gaps(&[], 4), [gap(0, 4)]);
        assert_eq!(*FileHeader::gaps(&[(0, 4)], 4), []);
    }

    #[test]
    fn compound_members_that_overlap_or_stick_out_are_refused() {
        let member = |offset, count| Member { offset, count, element: ElementType::F64 };
        let compound = |members: Vec<Member>| ElementType::Compound { width: 24, members: members.into() };
        assert!(compound(vec![member(0, 1), member(8, 2)]).is_valid());
        assert!(!compound(vec![member(0, 1), member(4, 1)]).is_valid());
        assert!(!compound(vec![member(8, 3)]).is_valid());
        assert!(!compound(vec![member(0, 0)]).is_valid());
        assert_eq!(compound(vec![member(0, 1), member(8, 2)]).to_string(), "C24[0:F64LEx1 8:F64LEx2]");
    }
}
