//! The values of options: numbers of bytes, schemes, and sets of ranks.

use mcrengine::ids::Rank;
use mcrengine::plan::Scheme;
use std::ops::RangeInclusive;

/// Parses a number of bytes. K, M, G and T are powers of 1024.
pub fn byte_count(text: &str) -> Result<u64, String> {
    let error = || format!("{text:?} is not a number of bytes; write for example 1048576, 512M or 2G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(error()),
    };
    let number: u64 = digits.parse().map_err(|_| error())?;
    number.checked_mul(1 << shift).ok_or_else(error)
}

/// Parses a number that must not be 0.
pub fn at_least_one(text: &str) -> Result<std::num::NonZeroU32, String> {
    text.parse().map_err(|_| format!("{text:?} must be a number, at least 1"))
}

pub fn block_bytes(text: &str) -> Result<std::num::NonZeroU32, String> {
    let bytes = byte_count(text)?;
    let bytes = u32::try_from(bytes).ok().and_then(std::num::NonZeroU32::new);
    bytes.ok_or_else(|| format!("{text:?}: a block has 1 byte to 4 GiB"))
}

pub fn scheme(name: &str) -> Result<Scheme, String> {
    let known = || Scheme::ALL.map(Scheme::name).join(", ");
    Scheme::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| format!("known schemes: {}", known()))
}

/// A set of ranks, as ranges that include both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSet(Vec<RangeInclusive<u32>>);

impl std::fmt::Display for RankSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{}-{}", if i == 0 { "" } else { "," }, range.start(), range.end())?;
        }
        Ok(())
    }
}

impl RankSet {
    /// Whether a rank is in the set.
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.iter().any(|range| range.contains(&rank.0))
    }

    /// The ranks 0 to `count - 1`.
    pub fn all(count: u32) -> Self {
        Self(if count == 0 { Vec::new() } else { vec![0..=count - 1] })
    }

    /// Whether each rank is in one of the other sets.
    pub fn is_covered_by<'a>(&self, others: impl Iterator<Item = &'a Self>) -> bool {
        let mut ranges: Vec<&RangeInclusive<u32>> = others.flat_map(|other| &other.0).collect();
        ranges.sort_unstable_by_key(|range| *range.start());
        self.0.iter().all(|own| {
            let mut next = u64::from(*own.start());
            for range in &ranges {
                if u64::from(*range.start()) <= next {
                    next = next.max(u64::from(*range.end()) + 1);
                }
            }
            next > u64::from(*own.end())
        })
    }

    /// The highest rank.
    pub fn highest(&self) -> Rank {
        Rank(self.0.iter().map(|range| *range.end()).max().unwrap_or(0))
    }
}

/// Reads a set of ranks, such as `0-31,40`.
pub fn ranks(text: &str) -> Result<RankSet, String> {
    let number =
        |n: &str| n.trim().parse::<u32>().map_err(|_| format!("{n:?} is not a rank; write for example 0-31,40"));
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => match (number(first)?, number(last)?) {
            (first, last) if first <= last => Ok(first..=last),
            (first, last) => Err(format!("{first}-{last}: the first rank is above the last")),
        },
        None => number(part).map(|rank| rank..=rank),
    };
    text.split(',').map(range).collect::<Result<Vec<_>, _>>().map(RankSet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes_are_read_and_nonsense_is_refused() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4K", 4096), ("64MiB", 64 << 20), ("2 GB", 2 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(byte_count(text), Ok(bytes), "{text:?}");
        }
        for bad in ["", "M", "1.5G", "-1", "1X", "99999999999T"] {
            assert!(byte_count(bad).is_err(), "{bad:?} was taken");
        }
        assert!(at_least_one("0").is_err() && at_least_one("x").is_err() && at_least_one("3").is_ok());
        assert!(block_bytes("0").is_err() && block_bytes("8G").is_err() && block_bytes("1K").is_ok());
    }

    #[test]
    fn rank_lists_are_read_and_nonsense_is_refused() {
        let set = ranks("0-3,7").expect("valid");
        assert!(set.contains(Rank(0)) && set.contains(Rank(3)) && set.contains(Rank(7)) && !set.contains(Rank(4)));
        assert_eq!(set.highest(), Rank(7));
        for bad in ["", "a", "3-1", "1-", "-1", "1,,2"] {
            assert!(ranks(bad).is_err(), "{bad:?} was taken");
        }
    }
}
