//! Sets of ranks, as options give them.

use mcrengine::ids::Rank;
use std::ops::RangeInclusive;

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
    fn rank_lists_are_read_and_nonsense_is_refused() {
        let set = ranks("0-3,7").expect("valid");
        assert!(set.contains(Rank(0)) && set.contains(Rank(3)) && set.contains(Rank(7)) && !set.contains(Rank(4)));
        assert_eq!(set.highest(), Rank(7));
        for bad in ["", "a", "3-1", "1-", "-1", "1,,2"] {
            assert!(ranks(bad).is_err(), "{bad:?} was taken");
        }
    }
}
