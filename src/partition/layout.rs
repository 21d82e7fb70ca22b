//! How the partition buffer is cut into sub-buffers (sections 5.4 and 6).

use super::error::PartitionError;
use super::ids::SubBufferId;

/// Maximum number of sub-buffers.
pub const SUB_BUFFERS_MAX: usize = 1 << 16;
/// Maximum length of a partition buffer: 1 TiB.
pub const BUFFER_BYTES_MAX: u64 = 1 << 40;

/// Maximum number of sub-buffers of [`BufferLayout::mixed`]. Each choice of a sub-buffer looks at all sub-buffers.
const MIXED_MAX: usize = 1 << 12;

/// The cut of a partition buffer into sub-buffers. The cut never changes, as in section 5.5 ("statically divide").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferLayout {
    lengths: Vec<u64>,
}

impl BufferLayout {
    /// Cuts `bytes` into `sub_buffers` of equal length. A remainder of fewer than `sub_buffers` bytes is not used.
    pub fn equal(bytes: u64, sub_buffers: usize) -> Result<Self, PartitionError> {
        let length = bytes.checked_div(sub_buffers as u64).ok_or(PartitionError::NoSubBuffer)?;
        check("sub-buffers", sub_buffers as u64, SUB_BUFFERS_MAX as u64)?;
        check("bytes of the partition buffer", bytes, BUFFER_BYTES_MAX)?;
        Ok(Self { lengths: vec![length; sub_buffers] })
    }

    /// Cuts `bytes` into sub-buffers of these lengths, whose sum must be at most `bytes`.
    pub fn of_lengths(bytes: u64, lengths: &[u64]) -> Result<Self, PartitionError> {
        if lengths.is_empty() {
            return Err(PartitionError::NoSubBuffer);
        }
        check("sub-buffers", lengths.len() as u64, SUB_BUFFERS_MAX as u64)?;
        check("bytes of the partition buffer", bytes, BUFFER_BYTES_MAX)?;
        let sum = lengths.iter().fold(0u64, |sum, length| sum.saturating_add(*length));
        check("bytes of all sub-buffers", sum, bytes)?;
        Ok(Self { lengths: lengths.to_vec() })
    }

    /// Cuts at most `bytes` bytes into sub-buffers for partitions of different lengths. Each sub-buffer has the
    /// length of a partition. Short and long sub-buffers have the same shares as short and long partitions. If all
    /// partitions fit, each partition has a sub-buffer of its length.
    ///
    /// `together` is the number of partitions that must be in the buffer at the same time. If not all partitions fit,
    /// the first `together` sub-buffers are as long as the longest partition, even if these sub-buffers take more
    /// than `bytes`.
    pub fn mixed(
        bytes: u64,
        partitions: impl IntoIterator<Item = u64>,
        together: usize,
    ) -> Result<Self, PartitionError> {
        let mut lengths: Vec<u64> = partitions.into_iter().collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let sum = lengths.iter().fold(0u64, |sum, length| sum.saturating_add(*length));
        if sum <= bytes && (1..=MIXED_MAX).contains(&lengths.len()) {
            return Self::of_lengths(sum, &lengths);
        }
        let longest = lengths.first().copied().unwrap_or(0);
        let mut cut = vec![longest; together.clamp(1, MIXED_MAX)];
        let room = bytes.saturating_sub(longest.saturating_mul(cut.len() as u64));
        // The remaining bytes are the fraction `room / sum` of all partitions. Each partition adds this fraction of
        // its length to `saved`, and a sub-buffer is cut as soon as `saved` is at least its length.
        let mut saved = 0u128;
        for length in lengths {
            saved += u128::from(length) * u128::from(room);
            let cost = u128::from(length) * u128::from(sum);
            if length > 0 && saved >= cost && cut.len() < MIXED_MAX {
                saved -= cost;
                cut.push(length);
            }
        }
        Self::of_lengths(cut.iter().sum(), &cut)
    }

    /// Number of sub-buffers.
    pub fn sub_buffers(&self) -> usize {
        self.lengths.len()
    }

    /// The sub-buffers with their lengths in bytes.
    pub fn iter(&self) -> impl Iterator<Item = (SubBufferId, u64)> {
        (0..).map(SubBufferId).zip(self.lengths.iter().copied())
    }

    /// Length of the largest sub-buffer.
    pub fn largest_bytes(&self) -> u64 {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Sum of the lengths of all sub-buffers.
    pub fn bytes(&self) -> u64 {
        self.lengths.iter().sum()
    }
}

fn check(what: &'static str, found: u64, most: u64) -> Result<(), PartitionError> {
    if found > most { Err(PartitionError::TooMany { what, found, most }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sub_buffers_of_a_buffer_never_have_more_bytes_than_the_buffer() {
        let cut = BufferLayout::equal(10, 4).expect("four sub-buffers");
        assert_eq!((cut.sub_buffers(), cut.largest_bytes(), cut.bytes()), (4, 2, 8));
        assert_eq!(BufferLayout::of_lengths(10, &[7, 3]).map(|cut| cut.bytes()), Ok(10));
        let error = BufferLayout::of_lengths(10, &[7, 4]).expect_err("11 bytes");
        assert_eq!(error.to_string(), "bytes of all sub-buffers: 11 is more than the limit of 10");
        assert!(BufferLayout::of_lengths(10, &[u64::MAX, u64::MAX]).is_err(), "the sum does not overflow");
        assert_eq!(BufferLayout::equal(10, 0), Err(PartitionError::NoSubBuffer));
        assert_eq!(BufferLayout::of_lengths(10, &[]), Err(PartitionError::NoSubBuffer));
        assert!(BufferLayout::equal(u64::MAX, 1).is_err() && BufferLayout::equal(1 << 20, 1 << 17).is_err());
    }
    #[test]
    fn a_mixed_cut_has_room_for_all_partitions_or_for_the_same_share_of_each_length() {
        let lengths = |bytes, partitions: &[u64], together| -> Vec<u64> {
            let cut = BufferLayout::mixed(bytes, partitions.iter().copied(), together).expect("valid");
            cut.iter().map(|(_, length)| length).collect()
        };
        assert_eq!(lengths(16, &[5, 1, 10], 2), [10, 5, 1], "all fit");
        assert_eq!(lengths(15, &[5, 1, 10], 1), [10, 1]);
        assert_eq!(lengths(0, &[5, 1, 10], 2), [10, 10], "two must fit at the same time");
        let many: Vec<u64> = [[8; 50], [2; 50]].concat();
        let half = lengths(8 + 250, &many, 1);
        assert_eq!(half.iter().filter(|length| **length == 8).count(), 1 + 25);
        assert_eq!(half.iter().filter(|length| **length == 2).count(), 25);
        assert!(half.iter().sum::<u64>() <= 258);
        assert_eq!(lengths(7, &[], 1), [0]);
    }
}
