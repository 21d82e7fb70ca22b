//! Converts headers between messages of the protocol and checked types. Every received header is checked here.

use crate::v1;
use mcrengine::header::{self, ByteOrder, DIMENSIONS_MAX, Extent, FILTERS_MAX, HeaderError, MEMBERS_MAX, Role, Shape};
use mcrengine::ids::{Digest, FilePath, NameError, Rank};
use mcrengine::units::RawBytes;

/// Why a peer's header was rejected.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The path is invalid, for example because it could lead out of its directory.
    #[error("a peer's file path is refused")]
    Path(#[from] NameError),
    /// The header violates a rule of [`header::FileHeader::check`].
    #[error("a peer's header is refused")]
    Header(#[from] HeaderError),
    /// The value of a field is not known to this version, or is not allowed.
    #[error("a peer's header is refused: {what} is {found}; {expected}")]
    Field {
        /// Name of the field.
        what: &'static str,
        /// Value of the field.
        found: u64,
        /// The allowed values.
        expected: &'static str,
    },
    /// The bytes are not a valid message.
    #[error("a peer's announcement does not parse")]
    Parse(#[from] prost::DecodeError),
}

fn field<T>(what: &'static str, found: impl TryInto<u64>, expected: &'static str) -> Result<T, WireError> {
    Err(WireError::Field { what, found: found.try_into().unwrap_or(u64::MAX), expected })
}

fn digest(bytes: &[u8]) -> Result<Digest, WireError> {
    match bytes.try_into() {
        Ok(digest) => Ok(Digest(digest)),
        Err(_) => field("length of a digest", bytes.len(), "it must be 32 bytes"),
    }
}

/// Converts a file's header to a message.
pub fn file_to_wire(file: &header::FileHeader) -> v1::FileHeader {
    v1::FileHeader {
        path: file.path.as_bytes().to_vec().into(),
        file_bytes: file.bytes,
        mode: file.mode,
        modified_ns: file.modified_ns,
        digest: file.digest.0.to_vec().into(),
        variables: file.variables.iter().map(variable_to_wire).collect(),
        kind: u32::try_from(file.kind.number()).unwrap_or(u32::MAX),
    }
}

/// Converts a message to a checked header of the given rank.
pub fn file_from_wire(file: v1::FileHeader, rank: Rank) -> Result<header::FileHeader, WireError> {
    if file.mode > 0o7777 {
        return field("a file's mode", file.mode, "only permission bits, at most 0o7777, are allowed");
    }
    let Some(kind) = header::FileKind::from_number(u64::from(file.kind)) else {
        return field("a file's kind", file.kind, "FileHeader.kind in the .proto file lists them");
    };
    let checked = header::FileHeader {
        path: FilePath::new(file.path.to_vec())?,
        rank,
        bytes: file.file_bytes,
        kind,
        mode: file.mode,
        modified_ns: file.modified_ns,
        digest: digest(&file.digest)?,
        variables: file.variables.into_iter().map(variable_from_wire).collect::<Result<_, _>>()?,
    };
    checked.check()?;
    Ok(checked)
}

fn variable_to_wire(variable: &header::VariableHeader) -> v1::VariableHeader {
    let mut extents = Vec::with_capacity(variable.extents.len() * 3);
    let mut end = 0u64;
    for extent in &variable.extents {
        extents.push(zigzag(extent.offset.wrapping_sub(end) as i64));
        extents.push(extent.stored_bytes);
        if !variable.filters.is_empty() {
            extents.push(extent.raw_bytes);
        }
        end = extent.offset.wrapping_add(extent.stored_bytes);
    }
    v1::VariableHeader {
        role: match variable.role {
            Role::Skeleton => 1,
            Role::Array => 2,
            Role::StoredChunks => 3,
            Role::WholeFile => 4,
        },
        path: variable.path.to_string(),
        element: Some(element_to_wire(&variable.element)),
        dims: variable.shape.0.to_vec(),
        chunk: variable.chunk.0.to_vec(),
        digest: variable.digest.0.to_vec().into(),
        filters: (variable.filters.iter())
            .map(|filter| match *filter {
                header::Filter::Shuffle { width } => v1::Filter { kind: 1, param: width },
                header::Filter::Deflate { level } => v1::Filter { kind: 2, param: u32::from(level) },
                header::Filter::Fletcher32 => v1::Filter { kind: 3, param: 0 },
            })
            .collect(),
        extents,
    }
}

fn variable_from_wire(variable: v1::VariableHeader) -> Result<header::VariableHeader, WireError> {
    let role = match variable.role {
        1 => Role::Skeleton,
        2 => Role::Array,
        3 => Role::StoredChunks,
        4 => Role::WholeFile,
        other => return field("a variable's role", other, "1 to 4 are known"),
    };
    if variable.dims.len() > DIMENSIONS_MAX {
        return field("a variable's number of dimensions", variable.dims.len(), "at most 32 are allowed");
    }
    if variable.chunk.len() > DIMENSIONS_MAX {
        return field("a chunk's number of dimensions", variable.chunk.len(), "at most 32 are allowed");
    }
    if variable.filters.len() > FILTERS_MAX {
        return field("a variable's number of filters", variable.filters.len(), "at most 8 are allowed");
    }
    let filters = (variable.filters.iter())
        .map(|filter| match (filter.kind, filter.param) {
            (1, width) => Ok(header::Filter::Shuffle { width }),
            (2, level @ 0..=9) => Ok(header::Filter::Deflate { level: level as u8 }),
            (2, level) => field("a deflate level", level, "0 to 9 are allowed"),
            (3, _) => Ok(header::Filter::Fletcher32),
            (other, _) => field("a filter", other, "1 to 3 are known"),
        })
        .collect::<Result<Box<[_]>, _>>()?;
    let per_extent = if filters.is_empty() { 2 } else { 3 };
    if !variable.extents.len().is_multiple_of(per_extent) {
        return field(
            "the length of a list of extents",
            variable.extents.len(),
            "it must be pairs, or with filters triples",
        );
    }
    let mut end = 0u64;
    let extents: Box<[Extent]> = (variable.extents.chunks_exact(per_extent))
        .map(|e| {
            let (offset, stored_bytes) = (end.wrapping_add(unzigzag(e[0]) as u64), e[1]);
            end = offset.wrapping_add(stored_bytes);
            Extent { offset, stored_bytes, raw_bytes: *e.get(2).unwrap_or(&stored_bytes) }
        })
        .collect();
    Ok(header::VariableHeader {
        role,
        path: variable.path.into(),
        element: element_from_wire(variable.element.unwrap_or_default(), true)?,
        shape: Shape(variable.dims.into()),
        chunk: Shape(variable.chunk.into()),
        raw_bytes: RawBytes(extents.iter().fold(0u64, |sum, e| sum.saturating_add(e.raw_bytes))),
        digest: digest(&variable.digest)?,
        filters,
        extents,
    })
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

fn element_to_wire(element: &header::ElementType) -> v1::ElementType {
    use header::ElementType as E;
    let (kind, order, members) = match element {
        E::Bytes => (1, ByteOrder::Little, &[][..]),
        E::Int { signed: false, order, .. } => (2, *order, &[][..]),
        E::Int { signed: true, order, .. } => (3, *order, &[][..]),
        E::Float { order, .. } => (4, *order, &[][..]),
        E::Fixed { .. } => (5, ByteOrder::Little, &[][..]),
        E::Compound { members, .. } => (6, ByteOrder::Little, &members[..]),
    };
    v1::ElementType {
        kind,
        width: element.width(),
        big_endian: order == ByteOrder::Big,
        members: (members.iter())
            .map(|m| v1::Member { offset: m.offset, count: m.count, element: Some(element_to_wire(&m.element)) })
            .collect(),
    }
}

fn element_from_wire(element: v1::ElementType, compound_allowed: bool) -> Result<header::ElementType, WireError> {
    use header::ElementType as E;
    let order = if element.big_endian { ByteOrder::Big } else { ByteOrder::Little };
    let narrow = u8::try_from(element.width).unwrap_or(0); // 0 is not a valid width and is rejected below
    let checked = match element.kind {
        1 => E::Bytes,
        2 | 3 => E::Int { width: narrow, signed: element.kind == 3, order },
        4 => E::Float { width: narrow, order },
        5 => E::Fixed { width: element.width },
        6 if compound_allowed && element.members.len() <= MEMBERS_MAX => E::Compound {
            width: element.width,
            members: (element.members.into_iter())
                .map(|m| {
                    let element = element_from_wire(m.element.unwrap_or_default(), false)?;
                    Ok(header::Member { offset: m.offset, count: m.count, element })
                })
                .collect::<Result<_, WireError>>()?,
        },
        other => {
            return field("an element's kind", other, "1 to 6 are known; a compound cannot contain a compound");
        }
    };
    match checked.is_valid() {
        true => Ok(checked),
        false => field("an element's width", checked.width(), "it does not fit its kind or its members"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use header::{ElementType, FileHeader, Filter, Member, VariableHeader};
    use proptest::prelude::*;

    fn elements() -> impl Strategy<Value = ElementType> {
        let order = prop_oneof![Just(ByteOrder::Little), Just(ByteOrder::Big)];
        let int = (prop::sample::select(vec![1u8, 2, 4, 8]), any::<bool>(), order.clone())
            .prop_map(|(width, signed, order)| ElementType::Int { width, signed, order });
        let float = (prop::sample::select(vec![2u8, 4, 8]), order)
            .prop_map(|(width, order)| ElementType::Float { width, order });
        let compound = Just(ElementType::Compound {
            width: 24,
            members: [
                Member { offset: 0, count: 1, element: ElementType::F64 },
                Member { offset: 8, count: 3, element: ElementType::F32 },
            ]
            .into(),
        });
        prop_oneof![
            Just(ElementType::Bytes),
            int,
            float,
            (1u32..99).prop_map(|width| ElementType::Fixed { width }),
            compound
        ]
    }

    fn files() -> impl Strategy<Value = FileHeader> {
        let variable = (
            elements(),
            "/[a-z]{1,9}",
            prop::collection::vec(0u64..9, 0..4),
            1u64..5000,
            any::<bool>(),
            any::<[u8; 32]>(),
        );
        (prop::collection::vec(variable, 0..20), 0u32..0o10000, any::<i64>()).prop_map(
            |(variables, mode, modified_ns)| {
                let mut end = 0;
                let variables = variables
                    .into_iter()
                    .map(|(element, path, dims, n, filtered, digest)| {
                        let extent =
                            Extent { offset: end, stored_bytes: n, raw_bytes: if filtered { 2 * n } else { n } };
                        end += n;
                        VariableHeader {
                            role: Role::Array,
                            path: path.into(),
                            element,
                            shape: Shape(dims.into()),
                            chunk: Default::default(),
                            raw_bytes: RawBytes(extent.raw_bytes),
                            digest: Digest(digest),
                            filters: if filtered {
                                [Filter::Shuffle { width: 8 }, Filter::Deflate { level: 6 }, Filter::Fletcher32].into()
                            } else {
                                [].into()
                            },
                            extents: [extent].into(),
                        }
                    })
                    .rev() // the extents of different variables need not be in increasing order
                    .collect();
                let path = FilePath::new(&b"d/f.\xff.h5"[..]).expect("valid");
                FileHeader {
                    path,
                    rank: Rank(7),
                    bytes: end,
                    kind: Default::default(),
                    mode,
                    modified_ns,
                    digest: Digest([3; 32]),
                    variables,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_header_survives_the_wire(file in files()) {
            use prost::Message;
            let bytes = file_to_wire(&file).encode_to_vec();
            let back = v1::FileHeader::decode(&bytes[..]).expect("just encoded");
            prop_assert_eq!(file_from_wire(back, Rank(7)).expect("it was valid"), file);
        }

        #[test]
        fn a_mutated_header_is_refused_or_valid(file in files(), at in any::<prop::sample::Index>(), by in 1u8..) {
            use prost::Message;
            let mut bytes = file_to_wire(&file).encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            if let Ok(message) = v1::FileHeader::decode(&bytes[..])
                && let Ok(header) = file_from_wire(message, Rank(7))
            {
                prop_assert_eq!(header.check(), Ok(()));
            }
        }
    }

    #[test]
    fn a_path_that_leaves_its_directory_is_refused() {
        let wire = v1::FileHeader { path: b"../x".to_vec().into(), digest: vec![0; 32].into(), ..Default::default() };
        assert!(matches!(file_from_wire(wire, Rank(0)), Err(WireError::Path(_))));
    }
}
