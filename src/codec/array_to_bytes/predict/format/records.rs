//! Records of equal length between other bytes: the positions of the records, and functions that separate and rejoin
//! records and other bytes.

use super::group::Dims;
use crate::codec::array_to_bytes::varint::{put, take};

/// The positions of records. Each region has some other bytes, then some records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    /// Bytes of each number: 4 or 8.
    pub width: usize,
    /// Numbers in a record.
    pub lanes: usize,
    /// For each region, the number of bytes before the records, and the number of records.
    pub regions: Vec<(usize, usize)>,
}

impl Records {
    fn record_bytes(&self) -> usize {
        self.width * self.lanes
    }

    /// Splits bytes into the records and the other bytes.
    pub(crate) fn split(&self, mut bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut records, mut others) = (Vec::with_capacity(bytes.len()), Vec::new());
        for &(gap, rows) in &self.regions {
            let (before, rest) = bytes.split_at(gap);
            let (here, rest) = rest.split_at(rows * self.record_bytes());
            others.extend_from_slice(before);
            records.extend_from_slice(here);
            bytes = rest;
        }
        others.extend_from_slice(bytes);
        (records, others)
    }

    /// The inverse of [`Records::split`]. Returns `None` if the numbers of bytes do not match the regions.
    pub(crate) fn join(&self, mut records: &[u8], mut others: &[u8], into: &mut Vec<u8>) -> Option<()> {
        for &(gap, rows) in &self.regions {
            let (before, rest) = others.split_at_checked(gap)?;
            let (here, after) = records.split_at_checked(rows.checked_mul(self.record_bytes())?)?;
            into.extend_from_slice(before);
            into.extend_from_slice(here);
            (others, records) = (rest, after);
        }
        into.extend_from_slice(others);
        records.is_empty().then_some(())
    }

    /// The records as arrays, one for each region.
    pub(crate) fn arrays(&self) -> Vec<Dims> {
        self.regions.iter().map(|&(_, rows)| [1, rows, self.lanes]).collect()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(self.width, out);
        put(self.lanes, out);
        put(self.regions.len(), out);
        for &(gap, rows) in &self.regions {
            put(gap, out);
            put(rows, out);
        }
    }

    pub(crate) fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (width, lanes, count) = (take(bytes)?, take(bytes)?, take(bytes)?);
        (matches!(width, 4 | 8) && lanes > 0 && count <= bytes.len()).then_some(())?;
        let regions = (0..count).map(|_| Some((take(bytes)?, take(bytes)?))).collect::<Option<_>>()?;
        Some(Self { width, lanes, regions })
    }

    /// The number of bytes of all records; `None` if the number overflows.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let record = self.width.checked_mul(self.lanes)?;
        self.regions.iter().try_fold(0usize, |sum, (_, rows)| sum.checked_add(rows.checked_mul(record)?))
    }
}
