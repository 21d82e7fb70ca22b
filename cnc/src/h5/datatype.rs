//! Converts HDF5's datatype message to an element type.
//!
//! Source: HDF5 File Format Specification 3.0, section IV.A.2.d, message versions 1 to 5. The fields that this module
//! reads are the same in versions 3 to 5. The function `H5Tencode` of the library returns the same message, so
//! `classic.rs` and `library.rs` both use this file.

use mcrengine::header::{ByteOrder, ELEMENT_WIDTH_MAX, ElementType, MEMBERS_MAX, Member};

/// The type of a dataset whose raw data is stored in the same file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataType {
    pub element: ElementType,
    /// Dimensions of an array type. These dimensions follow the dimensions of the dataset.
    pub dims: Vec<u64>,
}

impl DataType {
    /// The element type of data with this length in bytes. If the length is not a multiple of the element's width,
    /// the type is plain bytes.
    pub fn element_for(&self, bytes: u64) -> ElementType {
        match bytes % u64::from(self.element.width()) {
            0 => self.element.clone(),
            _ => ElementType::Bytes,
        }
    }
}

/// The content of a datatype message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Numbers, or elements of a fixed width.
    Data(DataType),
    /// Raw data that only refers to other parts of the file: data of variable length, and references. Such data
    /// belongs to the skeleton.
    Pointers,
}

/// Maximum nesting depth of types.
const DEPTH_MAX: u32 = 16;

/// Length of one element in bytes, according to the message.
pub(super) fn message_width(message: &[u8]) -> Option<u32> {
    message.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes)
}

/// Parses a message. `None` if the message is truncated or has an unknown version.
pub(super) fn parse(message: &[u8]) -> Option<Parsed> {
    let width = message_width(message)?;
    let mut cursor = Cursor { bytes: message, at: 0 };
    let element = match cursor.node(0)? {
        Node::Pointers => return Some(Parsed::Pointers),
        Node::Opaque => fixed(width),
        Node::Leaf(element) => element,
        Node::Record { width, members } => record(width, members),
        Node::Array { dims, base_width, base } => {
            let element = match *base {
                Node::Leaf(element) => element,
                Node::Record { width, members } => record(width, members),
                Node::Pointers => return Some(Parsed::Pointers),
                Node::Opaque | Node::Array { .. } => fixed(base_width),
            };
            return Some(Parsed::Data(DataType { element, dims }));
        }
    };
    Some(Parsed::Data(DataType { element, dims: Vec::new() }))
}

fn fixed(width: u32) -> ElementType {
    match width {
        1..=ELEMENT_WIDTH_MAX => ElementType::Fixed { width },
        _ => ElementType::Bytes,
    }
}

fn record(width: u32, members: Vec<Member>) -> ElementType {
    let element = ElementType::Compound { width, members: members.into() };
    if element.is_valid() { element } else { fixed(width) }
}

enum Node {
    Leaf(ElementType),
    /// The members of a compound, flattened and sorted by offset. A member is never a compound itself.
    Record {
        width: u32,
        members: Vec<Member>,
    },
    /// An array. The dimensions of nested arrays are already combined.
    Array {
        dims: Vec<u64>,
        base_width: u32,
        base: Box<Node>,
    },
    /// A type of an unsupported class or format, with a known width.
    Opaque,
    Pointers,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(taken)
    }

    fn number(&mut self, width: usize) -> Option<u64> {
        Some(self.take(width)?.iter().rev().fold(0, |n, &b| (n << 8) | u64::from(b)))
    }

    fn u16(&mut self) -> Option<u16> {
        self.number(2).and_then(|n| u16::try_from(n).ok())
    }

    fn u32(&mut self) -> Option<u32> {
        self.number(4).and_then(|n| u32::try_from(n).ok())
    }

    /// Skips a name that ends with a NUL byte. In older versions, also skips the padding after the name.
    fn name(&mut self, version: u8) -> Option<()> {
        let len = self.bytes.get(self.at..)?.iter().position(|&b| b == 0)? + 1;
        self.take(if version < 3 { len.next_multiple_of(8) } else { len }).map(|_| ())
    }

    fn node(&mut self, depth: u32) -> Option<Node> {
        if depth > DEPTH_MAX {
            return None;
        }
        let head = self.number(1)? as u8;
        let (class, version) = (head & 15, head >> 4);
        let flags = self.number(3)? as u32;
        let width = self.u32()?;
        if width == 0 || !(1..=5).contains(&version) {
            return None;
        }
        let order = if flags & 1 == 0 { ByteOrder::Little } else { ByteOrder::Big };
        let node = match class {
            0 | 4 => {
                self.take(4)?;
                match u8::try_from(width) {
                    Ok(w @ (1 | 2 | 4 | 8)) => {
                        Node::Leaf(ElementType::Int { width: w, signed: class == 0 && flags & 8 != 0, order })
                    }
                    _ => Node::Leaf(fixed(width)),
                }
            }
            1 => self.float(width, flags)?,
            2 => {
                self.take(2)?;
                Node::Leaf(fixed(width))
            }
            3 => Node::Leaf(fixed(width)),
            5 => {
                self.take((flags & 0xff) as usize)?;
                Node::Leaf(fixed(width))
            }
            6 => self.record(depth, version, width, flags & 0xffff)?,
            7 | 9 => Node::Pointers,
            8 => self.enumeration(depth, version, width, flags & 0xffff)?,
            10 => self.array(depth, version)?,
            _ => Node::Opaque,
        };
        Some(node)
    }

    /// Parses a floating-point type. Only the IEEE formats of 16, 32 and 64 bits become floating-point numbers.
    fn float(&mut self, width: u32, flags: u32) -> Option<Node> {
        let (offset, precision) = (self.u16()?, self.u16()?);
        let fields = [self.number(1)?, self.number(1)?, self.number(1)?, self.number(1)?];
        let bias = self.u32()?;
        let (ieee, bits) = match width {
            2 => (fields == [10, 5, 0, 10] && bias == 15, 16),
            4 => (fields == [23, 8, 0, 23] && bias == 127, 32),
            8 => (fields == [52, 11, 0, 52] && bias == 1023, 64),
            _ => (false, 0),
        };
        // The type must not be a VAX float. The sign must be the highest bit, and the first bit of the mantissa must
        // be implied.
        let plain = offset == 0
            && precision == bits
            && flags & 0x40 == 0
            && (flags >> 8) & 0xff == u32::from(bits).wrapping_sub(1)
            && (flags >> 4) & 3 == 2;
        let order = if flags & 1 == 0 { ByteOrder::Little } else { ByteOrder::Big };
        Some(Node::Leaf(match u8::try_from(width) {
            Ok(width) if ieee && plain => ElementType::Float { width, order },
            _ => fixed(width),
        }))
    }

    fn record(&mut self, depth: u32, version: u8, width: u32, count: u32) -> Option<Node> {
        let mut members = Vec::new();
        let mut opaque = false;
        for _ in 0..count {
            self.name(version)?;
            let offset = match version {
                3.. => self.number(4 - (width.leading_zeros() / 8) as usize)?,
                _ => self.number(4)?,
            };
            let offset = u32::try_from(offset).ok()?;
            let mut times = 1u64;
            if version == 1 {
                let dims = self.number(1)?;
                self.take(11)?;
                for at in 0..4 {
                    let dim = self.number(4)?;
                    times = if at < dims { times.checked_mul(dim)? } else { times };
                }
            }
            let base_width = message_width(self.bytes.get(self.at..)?)?;
            let node = self.node(depth + 1)?;
            if matches!(node, Node::Pointers) {
                return Some(Node::Pointers);
            }
            // If a member cannot be represented, all further members are skipped.
            opaque = opaque || place(&node, base_width, offset, times, &mut members).is_none();
        }
        if opaque {
            return Some(Node::Opaque);
        }
        members.sort_by_key(|m| m.offset);
        Some(Node::Record { width, members })
    }

    fn enumeration(&mut self, depth: u32, version: u8, width: u32, count: u32) -> Option<Node> {
        let base = self.node(depth + 1)?;
        for _ in 0..count {
            self.name(version)?;
        }
        self.take((count as usize).checked_mul(width as usize)?)?;
        Some(base)
    }

    fn array(&mut self, depth: u32, version: u8) -> Option<Node> {
        let count = self.number(1)? as usize;
        self.take(if version < 3 { 3 } else { 0 })?;
        let mut dims = (0..count).map(|_| self.number(4)).collect::<Option<Vec<u64>>>()?;
        self.take(if version < 3 { count * 4 } else { 0 })?;
        let base_width = message_width(self.bytes.get(self.at..)?)?;
        Some(match self.node(depth + 1)? {
            Node::Pointers => Node::Pointers,
            Node::Array { dims: inner, base_width, base } => {
                dims.extend(inner);
                Node::Array { dims, base_width, base }
            }
            base => Node::Array { dims, base_width, base: Box::new(base) },
        })
    }
}

/// Adds the leaves of a member. The member begins at `offset` and is repeated `times` times. `None` if there are too
/// many leaves, or if a leaf cannot be represented.
fn place(node: &Node, width: u32, offset: u32, times: u64, members: &mut Vec<Member>) -> Option<()> {
    match node {
        Node::Leaf(element) => {
            members.push(Member { offset, count: u32::try_from(times).ok()?, element: element.clone() });
        }
        Node::Record { width, members: inner } => {
            if times.checked_mul(inner.len() as u64)? > MEMBERS_MAX as u64 {
                return None;
            }
            for nth in 0..u32::try_from(times).ok()? {
                let start = nth.checked_mul(*width)?.checked_add(offset)?;
                for m in inner {
                    members.push(Member { offset: start.checked_add(m.offset)?, ..m.clone() });
                }
            }
        }
        Node::Array { dims, base_width, base } => {
            let times = dims.iter().try_fold(times, |n, &d| n.checked_mul(d))?;
            place(base, *base_width, offset, times, members)?;
        }
        Node::Opaque => members.push(Member { offset, count: u32::try_from(times).ok()?, element: fixed(width) }),
        Node::Pointers => return None,
    }
    (members.len() <= MEMBERS_MAX).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const F64LE: [u8; 20] = [0x11, 0x20, 63, 0, 8, 0, 0, 0, 0, 0, 64, 0, 52, 11, 0, 52, 0xff, 3, 0, 0];
    const I32BE: [u8; 12] = [0x10, 0x09, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0];

    fn data(message: &[u8]) -> DataType {
        match parse(message) {
            Some(Parsed::Data(datatype)) => datatype,
            other => panic!("{other:?}"),
        }
    }

    fn compound(members: &[(&str, u8, &[u8])], width: u8) -> Vec<u8> {
        let mut message = vec![0x36, members.len() as u8, 0, 0, width, 0, 0, 0];
        for (name, offset, inner) in members {
            message.extend(name.as_bytes());
            message.extend([0, *offset]);
            message.extend(*inner);
        }
        message
    }

    #[test]
    fn nested_records_and_arrays_become_leaves_by_offset() {
        let array: Vec<u8> = [&[0x3a, 0, 0, 0, 12, 0, 0, 0, 1, 3, 0, 0, 0], &I32BE[..]].concat();
        let inner = compound(&[("i", 8, &array), ("x", 0, &F64LE)], 24);
        let outer = compound(&[("in", 8, &inner), ("y", 0, &F64LE)], 32);
        let found = data(&outer).element.to_string();
        assert_eq!(found, "C32[0:F64LEx1 8:F64LEx1 16:I32BEx3]");
        let pointer = [0x37, 0, 0, 0, 8, 0, 0, 0];
        assert_eq!(parse(&compound(&[("r", 0, &pointer), ("y", 8, &F64LE)], 16)), Some(Parsed::Pointers));
    }

    #[test]
    fn an_array_type_gives_its_dimensions_to_the_dataset() {
        let array: Vec<u8> = [&[0x3a, 0, 0, 0, 48, 0, 0, 0, 2, 2, 0, 0, 0, 3, 0, 0, 0], &F64LE[..]].concat();
        assert_eq!(data(&array), DataType { element: ElementType::F64, dims: vec![2, 3] });
    }

    #[test]
    fn a_float_that_is_not_ieee_has_only_a_width() {
        let mut odd = F64LE;
        odd[16] = 0;
        assert_eq!(data(&odd).element, ElementType::Fixed { width: 8 });
    }

    proptest! {
        #[test]
        fn whatever_a_message_holds_the_type_is_valid(
            mut message in prop::collection::vec(any::<u8>(), 0..200),
            class in 0u8..12, version in 1u8..4, width in prop_oneof![1u32..64, any::<u32>()],
        ) {
            if message.len() > 8 {
                message[0] = version << 4 | class;
                message[4..8].copy_from_slice(&width.to_le_bytes());
            }
            if let Some(Parsed::Data(datatype)) = parse(&message) {
                prop_assert!(datatype.element.is_valid(), "{datatype:?}");
            }
        }
    }
}
