//! The profiles that a user can choose, with the name, the memory and the segment length of each profile.

use crate::header::ElementType;
use std::fmt;
use std::str::FromStr;

/// How chains are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Profile {
    /// Name `fast`. For each segment, the smaller result of two methods: shuffle with zstd, and zstd alone. Takes
    /// little time.
    #[default]
    Fast,
    /// Name `balanced`. Prediction with the settings that take little time. The result is about as small as the
    /// result of the best single codec for each class, or smaller.
    Balanced,
    /// Name `max`. The smallest result, in less time than `xz -6`.
    Max,
    /// Names `paper` and `paper-single` (without the second pass). The chain of the mcrEngine paper.
    Paper {
        /// Whether gzip follows as a second pass.
        double: bool,
    },
    /// Name `raw`. No compression.
    Raw,
    /// Name `gzip`. gzip at level 6.
    Gzip,
    /// Name `zstd`, or for example `zstd-9` with a level. zstd for all segments.
    Zstd {
        /// zstd's level, 1 to 22.
        level: u32,
    },
    /// Name `shuffle-zstd`, or for example `shuffle-zstd-9` with a level. Shuffle and zstd for all segments that have
    /// elements.
    ShuffleZstd {
        /// zstd's level, 1 to 22.
        level: u32,
    },
    /// Name `fpc`, or for example `fpc-16` with a level. FPC and zstd for doubles, and the chains of the default
    /// profile for all other elements.
    Fpc {
        /// log2 of the number of entries in each table, 1 to 20.
        level: u32,
    },
    /// Name `fpzip`. fpzip for floats and doubles, in the number of dimensions that gives the fewest bytes, and the
    /// chains of the default profile for all other elements.
    Fpzip,
}

/// Segments of untyped bytes and of records are shorter by this factor, because finding numbers in such bytes needs
/// about four times the memory per byte.
pub(crate) const UNTYPED_SEGMENT_DIVISOR: u64 = 4;

// The levels of the profiles, if the name of the profile contains no level.
pub(super) const ZSTD_LEVEL: u32 = 3;
pub(super) const SHUFFLE_ZSTD_LEVEL: u32 = 1;
pub(super) const FPC_LEVEL: u32 = 16;

/// The error for an unknown name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a profile; the profiles are fast, balanced, max, paper, paper-single, raw, gzip, zstd, zstd-1 to \
     zstd-22, shuffle-zstd, shuffle-zstd-1 to shuffle-zstd-22, fpc, fpc-1 to fpc-20, and fpzip"
)]
pub struct ProfileError {
    /// The unknown name.
    pub found: String,
}

impl FromStr for Profile {
    type Err = ProfileError;
    fn from_str(name: &str) -> Result<Self, ProfileError> {
        let error = || ProfileError { found: name.chars().take(80).collect() };
        let (kind, level) = match name.rsplit_once('-') {
            Some((kind, digits)) if digits.starts_with(|c: char| ('1'..='9').contains(&c)) => {
                (kind, Some(digits.parse::<u32>().map_err(|_| error())?))
            }
            _ => (name, None),
        };
        let within = |default: u32, most: u32| {
            let level = level.unwrap_or(default);
            if (1..=most).contains(&level) { Ok(level) } else { Err(error()) }
        };
        match (kind, level) {
            ("zstd", _) => Ok(Self::Zstd { level: within(ZSTD_LEVEL, 22)? }),
            ("shuffle-zstd", _) => Ok(Self::ShuffleZstd { level: within(SHUFFLE_ZSTD_LEVEL, 22)? }),
            ("fpc", _) => Ok(Self::Fpc { level: within(FPC_LEVEL, 20)? }),
            ("fast", None) => Ok(Self::Fast),
            ("balanced", None) => Ok(Self::Balanced),
            ("max", None) => Ok(Self::Max),
            ("paper", None) => Ok(Self::Paper { double: true }),
            ("paper-single", None) => Ok(Self::Paper { double: false }),
            ("raw", None) => Ok(Self::Raw),
            ("gzip", None) => Ok(Self::Gzip),
            ("fpzip", None) => Ok(Self::Fpzip),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leveled = |f: &mut fmt::Formatter<'_>, name: &str, level: u32, default: u32| {
            if level == default { f.write_str(name) } else { write!(f, "{name}-{level}") }
        };
        match *self {
            Self::Fast => f.write_str("fast"),
            Self::Balanced => f.write_str("balanced"),
            Self::Max => f.write_str("max"),
            Self::Paper { double: true } => f.write_str("paper"),
            Self::Paper { double: false } => f.write_str("paper-single"),
            Self::Raw => f.write_str("raw"),
            Self::Gzip => f.write_str("gzip"),
            Self::Zstd { level } => leveled(f, "zstd", level, ZSTD_LEVEL),
            Self::ShuffleZstd { level } => leveled(f, "shuffle-zstd", level, SHUFFLE_ZSTD_LEVEL),
            Self::Fpc { level } => leveled(f, "fpc", level, FPC_LEVEL),
            Self::Fpzip => f.write_str("fpzip"),
        }
    }
}

impl TryFrom<String> for Profile {
    type Error = ProfileError;
    fn try_from(name: String) -> Result<Self, ProfileError> {
        name.parse()
    }
}
impl From<Profile> for String {
    fn from(profile: Profile) -> Self {
        profile.to_string()
    }
}

impl Profile {
    /// Whether several classes may share a segment, because their variables predict each other.
    pub fn is_together(&self) -> bool {
        matches!(self, Self::Balanced | Self::Max)
    }

    /// Whether a codec of the profile uses the layout of the elements.
    pub fn looks_at_shapes(&self) -> bool {
        match self {
            Self::Balanced | Self::Max | Self::Paper { .. } | Self::Fpzip => true,
            Self::Fast | Self::Raw | Self::Gzip | Self::Zstd { .. } | Self::ShuffleZstd { .. } | Self::Fpc { .. } => {
                false
            }
        }
    }

    /// Whether the profile measures which chain suits the bytes.
    pub fn is_measured(&self) -> bool {
        matches!(self, Self::Fast | Self::Balanced | Self::Max)
    }

    /// Whether chunks keep their HDF5 filters. If true, filters are removed only from variables that compress much
    /// better without filters.
    pub fn leaves_filters(&self) -> bool {
        matches!(self, Self::Fast | Self::Raw)
    }

    /// Whether the profile codes segments with the help of an older checkpoint.
    pub fn looks_back(&self) -> bool {
        *self == Self::Max
    }

    /// Length of a segment in raw bytes, if only the budget is configured. Repeats and relations are found only
    /// within a segment, so segments of `max` are longer if there is enough memory. Longer segments of `balanced` were
    /// not smaller (decision 33).
    pub fn segment_bytes(&self, budget_bytes: u64) -> u64 {
        let has_room = budget_bytes >= self.budget_mib() << 20;
        match self {
            Self::Max if has_room => 32 << 20,
            Self::Balanced | Self::Max => 16 << 20,
            _ => 4 << 20,
        }
    }

    /// Bytes of memory for each raw byte of a segment of numbers that is fetched, merged, coded and decoded again.
    /// The memory was measured for four simulation codes, with segments of up to 16 MiB. The highest values are 10.5
    /// bytes for `balanced` (12.6 bytes on two threads) and 15 bytes for `max` (18.6 bytes on two threads).
    pub fn memory_per_raw_byte(&self) -> u64 {
        match self {
            Self::Balanced => 12,
            Self::Max => 16,
            _ => 3,
        }
    }

    /// Bytes of memory for each raw byte of a segment with elements of this type. Untyped bytes and records are split
    /// first, and each part is coded like a segment. With 16 MiB of doubles in a file of unknown format, 18 bytes
    /// were measured for `balanced` (26 bytes on two threads) and 28 bytes for `max` (37 bytes on two threads).
    pub fn memory_per_raw_byte_of(&self, element: &ElementType) -> u64 {
        let is_taken_apart = self.is_together() && element.is_taken_apart();
        self.memory_per_raw_byte() * if is_taken_apart { UNTYPED_SEGMENT_DIVISOR } else { 1 }
    }

    /// Bytes of memory for each raw byte of an older segment that helps to code a segment. The memory holds the older
    /// bytes, the rearranged bytes, the elements as bits and as numbers, the starts of runs, and a second copy of all
    /// these items for decoding. With 16 MiB of doubles, 15 bytes were measured.
    pub fn memory_per_older_byte(&self) -> u64 {
        16
    }

    /// Default memory budget for checkpoint data, in MiB. The budget is enough for one of the profile's longest
    /// segments together with an older segment, or with files that are kept until they are stored.
    pub fn budget_mib(&self) -> u64 {
        match self {
            Self::Max => 1024,
            Self::Balanced => 512,
            _ => 256,
        }
    }
}
