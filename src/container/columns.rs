//! The index consists of columns of numbers. "Index" in docs/format/container.md says what each column holds.

use crate::varint::{NotANumber, VARINT_BYTES_MAX, put_varint, take_varint};

/// A column that is being written.
#[derive(Default)]
pub(crate) struct Column(pub(crate) Vec<u8>);

impl Column {
    /// Appends a number: 7 bits in each byte, the lowest bits first.
    pub(crate) fn number(&mut self, value: u64) {
        put_varint(value, &mut self.0);
    }

    /// Appends the difference of two numbers modulo 2^64. A small positive or negative difference takes few bytes.
    pub(crate) fn delta(&mut self, value: u64, from: u64) {
        let delta = value.wrapping_sub(from) as i64;
        self.number(((delta << 1) ^ (delta >> 63)) as u64);
    }

    /// Appends bytes without their count.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends the count of the bytes, then the bytes.
    pub(crate) fn text(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes(bytes);
    }

    /// Appends the length of the prefix shared with `before` and the number of bytes after it. The bytes after the
    /// prefix go to `suffixes`.
    pub(crate) fn front_coded(&mut self, bytes: &[u8], before: &[u8], suffixes: &mut Column) {
        let shared = bytes.iter().zip(before).take_while(|(a, b)| a == b).count();
        self.number(shared as u64);
        self.number((bytes.len() - shared) as u64);
        suffixes.bytes(&bytes[shared..]);
    }
}

/// A column that is being read. A number of items is refused, before memory is allocated, if the remaining bytes
/// cannot hold this number of items.
pub(crate) struct Cursor<'a> {
    name: &'static str,
    left: &'a [u8],
}

/// An error in an index: the column and the broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexFault {
    pub(crate) column: &'static str,
    pub(crate) what: &'static str,
    /// Whether a later build may be able to read the index.
    pub(crate) unknown: bool,
}

pub(crate) type Parsed<T> = Result<T, IndexFault>;

impl<'a> Cursor<'a> {
    pub(crate) fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Self { name, left: bytes }
    }

    pub(crate) fn bad<T>(&self, what: &'static str) -> Parsed<T> {
        Err(IndexFault { column: self.name, what, unknown: false })
    }

    pub(crate) fn unknown<T>(&self, what: &'static str) -> Parsed<T> {
        Err(IndexFault { column: self.name, what, unknown: true })
    }

    pub(crate) fn number(&mut self) -> Parsed<u64> {
        let before = self.left;
        match take_varint(&mut self.left, VARINT_BYTES_MAX) {
            Ok(value) => {
                let bytes = &before[..before.len() - self.left.len()];
                match bytes {
                    [_, .., 0] => self.bad("a number has more bytes than necessary"),
                    _ => Ok(value),
                }
            }
            Err(NotANumber::TooLong) => self.bad("a number has more than 64 bits"),
            Err(NotANumber::Cut) => self.bad("it ends too early"),
        }
    }

    pub(crate) fn delta(&mut self, from: u64) -> Parsed<u64> {
        let coded = self.number()?;
        Ok(from.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg()))
    }

    pub(crate) fn small(&mut self) -> Parsed<u32> {
        u32::try_from(self.number()?).or_else(|_| self.bad("a number has more than 32 bits"))
    }

    /// Reads an index, which must be below `limit`.
    pub(crate) fn index(&mut self, limit: usize) -> Parsed<usize> {
        match usize::try_from(self.number()?) {
            Ok(i) if i < limit => Ok(i),
            _ => self.bad("an index is out of range"),
        }
    }

    /// Reads the number of items that follow. Each item takes at least `least` bytes of this column.
    pub(crate) fn count(&mut self, least: usize) -> Parsed<usize> {
        let count = self.number()?;
        self.fits(count, least)
    }

    /// Checks that `count` items of at least `least` bytes can still be in this column.
    pub(crate) fn fits(&self, count: u64, least: usize) -> Parsed<usize> {
        match usize::try_from(count) {
            Ok(count) if count <= self.left.len() / least => Ok(count),
            _ => self.bad("a count is larger than the rest of the column"),
        }
    }

    pub(crate) fn byte(&mut self) -> Parsed<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Parsed<&'a [u8]> {
        match self.left.split_at_checked(count) {
            Some((bytes, left)) => {
                self.left = left;
                Ok(bytes)
            }
            None => self.bad("it ends too early"),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        self.bytes(N).map(|bytes| bytes.try_into().expect("N bytes were taken"))
    }

    pub(crate) fn text(&mut self) -> Parsed<&'a [u8]> {
        let count = self.count(1)?;
        self.bytes(count)
    }

    /// Replaces `before` with the next front-coded bytes. Fails if the result would be longer than `limit` bytes.
    pub(crate) fn front_coded(&mut self, before: &mut Vec<u8>, suffixes: &mut Cursor<'_>, limit: usize) -> Parsed<()> {
        let shared = self.number()?;
        let more = self.number()?;
        match (usize::try_from(shared), usize::try_from(more)) {
            (Ok(shared), Ok(more)) if shared <= before.len() && more <= limit.saturating_sub(shared) => {
                before.truncate(shared);
                before.extend_from_slice(suffixes.bytes(more)?);
                Ok(())
            }
            _ => self.bad("a name shares more bytes than the previous name has, or is too long"),
        }
    }

    pub(crate) fn remainder(&self) -> &'a [u8] {
        self.left
    }

    /// Checks that the column has no bytes left.
    pub(crate) fn end(&self) -> Parsed<()> {
        if self.left.is_empty() { Ok(()) } else { self.bad("it has bytes after its last item") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(numbers in prop::collection::vec((any::<u64>(), any::<u64>()), 0..50)) {
            let mut column = Column::default();
            for &(value, from) in &numbers {
                column.number(value);
                column.delta(value, from);
            }
            let mut cursor = Cursor::new("test", &column.0);
            for &(value, from) in &numbers {
                prop_assert_eq!(cursor.number(), Ok(value));
                prop_assert_eq!(cursor.delta(from), Ok(value));
            }
            prop_assert_eq!(cursor.end(), Ok(()));
        }
    }

    #[test]
    fn a_number_has_one_spelling_and_64_bits() {
        for bad in
            [&[0x80, 0][..], &[0xff; 10], &[0x80], &[], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert!(Cursor::new("test", bad).number().is_err(), "{bad:x?}");
        }
    }
}
