//! Types for names and numbers. With these types, the compiler refuses a rank in the place of a group. Paths from a
//! peer are checked before use.

use std::fmt;
use std::str::FromStr;

/// A rank of the application's `MPI_COMM_WORLD`. A rank is neither the number of a node nor a position in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Number of a group. A group is `GROUP_SIZE` consecutive ranks, whose variables one aggregator merges (mcrEngine,
/// SC12, section VI).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// How the ranks of a job are divided into groups. `ranks` and `group_size` are both at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    ranks: u32,
    group_size: u32,
}

/// Maximum number of ranks of a job. The maximum is larger than any existing machine needs, and limits the length of
/// lists of ranks.
pub const RANKS_MAX: u32 = 1 << 24;

impl Grouping {
    /// Returns `None` if one of the numbers is zero, or if there are more than [`RANKS_MAX`] ranks.
    pub fn new(ranks: u32, group_size: u32) -> Option<Self> {
        (ranks > 0 && ranks <= RANKS_MAX && group_size > 0).then_some(Self { ranks, group_size })
    }

    /// Number of ranks of the job.
    pub fn ranks(self) -> u32 {
        self.ranks
    }

    /// Number of groups, `ceil(ranks / GROUP_SIZE)` (mcrEngine, SC12, equation 3, with one aggregator for each
    /// group).
    pub fn groups(self) -> u32 {
        self.ranks.div_ceil(self.group_size)
    }

    /// The group of a rank.
    pub fn group_of(self, rank: Rank) -> GroupId {
        GroupId(rank.0 / self.group_size)
    }

    /// The ranks of a group, in order; empty if the group does not exist.
    pub fn ranks_of(self, group: GroupId) -> std::ops::Range<u32> {
        let first = group.0.saturating_mul(self.group_size).min(self.ranks);
        first..first.saturating_add(self.group_size).min(self.ranks)
    }
}

/// Why a name or path was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the name is empty")]
    Empty,
    /// The name is longer than a file system allows.
    #[error("the name has {found} bytes; at most {limit} are allowed")]
    TooLong {
        /// Length of the name, in bytes.
        found: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The name cannot be used as a name in the store.
    #[error("{name:?}: {reason}")]
    Refused {
        /// The name; bytes that are not UTF-8 are replaced.
        name: String,
        /// Why the name is refused.
        reason: &'static str,
    },
}

/// Checks one component of a path in the store.
fn check_component(name: &str, limit: usize) -> Result<(), NameError> {
    let refuse = |reason| Err(NameError::Refused { name: name.chars().take(80).collect(), reason });
    match name {
        "" => Err(NameError::Empty),
        _ if name.len() > limit => Err(NameError::TooLong { found: name.len(), limit }),
        _ if name.starts_with('.') => refuse("it begins with a dot"),
        _ if name.contains('/') => refuse("it contains a slash"),
        _ if name.chars().any(char::is_control) => refuse("it contains a control character"),
        _ => Ok(()),
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $limit:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = NameError;
            fn from_str(name: &str) -> Result<Self, NameError> {
                check_component(name, $limit).map(|()| Self(name.to_owned()))
            }
        }
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(name: String) -> Result<Self, NameError> {
                check_component(&name, $limit).map(|()| Self(name))
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// A job: one application run with all its restarts. In the store, a directory with the name of the job contains
    /// the checkpoints of the job. The name has at most 200 bytes, no slash, no leading dot and no control character.
    JobId,
    200
);
name_type!(
    /// A checkpoint: the data that all ranks saved at one step. A directory of this name, in the job's directory,
    /// holds its containers and manifests. The name has at most 200 bytes, no slash, no leading dot and no control
    /// character.
    CheckpointId,
    200
);

impl CheckpointId {
    /// The label that the application gave (`DD0007`), without the suffix `~2` that this program adds for a second
    /// checkpoint with the same label.
    pub fn label(&self) -> &str {
        self.split().0
    }

    /// Number of the checkpoint among the checkpoints that were saved under the same label, counted from 1.
    /// `DD0007~2` has number 2.
    pub fn generation(&self) -> u32 {
        self.split().1
    }

    /// The name with the same label and the given generation.
    pub fn with_generation(&self, generation: u32) -> Result<Self, NameError> {
        match generation {
            0 | 1 => self.label().parse(),
            n => format!("{}~{n}", self.label()).parse(),
        }
    }

    fn split(&self) -> (&str, u32) {
        match self.0.rsplit_once('~') {
            Some((label, n)) if !label.is_empty() && !n.starts_with(['0', '+']) => match n.parse() {
                Ok(n) if n >= 2 => (label, n),
                _ => (&self.0, 1),
            },
            _ => (&self.0, 1),
        }
    }
}

/// A name with `#` for each number. Names of one shape differ only in their numbers.
pub fn shape_of(name: &str) -> Vec<u8> {
    let mut shape: Vec<u8> = Vec::new();
    for byte in name.bytes() {
        match byte.is_ascii_digit() {
            true if shape.last() == Some(&b'#') => {}
            true => shape.push(b'#'),
            false => shape.push(byte),
        }
    }
    shape
}

/// Compares names: runs of digits by their value, and all other bytes one by one (`it_9` is before `it_10`).
pub fn natural_cmp(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    use std::cmp::Ordering;
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        if a[i].is_ascii_digit() && b[j].is_ascii_digit() {
            let run = |s: &[u8], at: usize| at + s[at..].iter().take_while(|c| c.is_ascii_digit()).count();
            let (end_a, end_b) = (run(a, i), run(b, j));
            let strip =
                |s: &[u8], from: usize, to: usize| from + s[from..to].iter().take_while(|&&c| c == b'0').count();
            let (na, nb) = (&a[strip(a, i, end_a)..end_a], &b[strip(b, j, end_b)..end_b]);
            match na.len().cmp(&nb.len()).then_with(|| na.cmp(nb)) {
                Ordering::Equal => (i, j) = (end_a, end_b),
                unequal => return unequal,
            }
        } else {
            match a[i].cmp(&b[j]) {
                Ordering::Equal => (i, j) = (i + 1, j + 1),
                unequal => return unequal,
            }
        }
    }
    (a.len() - i).cmp(&(b.len() - j)).then_with(|| a.cmp(b))
}

/// Path of an application's file, relative to the watched directory. The bytes of the path need not be UTF-8.
///
/// The type guarantees that the path is not empty and not absolute, has no empty, `.` or `..` component and no NUL,
/// and has at most 4096 bytes. Therefore the path, joined to a directory, is inside this directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Box<[u8]>);

/// Maximum length of a path in bytes, as in Linux.
pub const FILE_PATH_MAX: usize = 4096;

impl FilePath {
    /// Checks the bytes of a relative path.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        let refuse = |reason| {
            Err(NameError::Refused { name: String::from_utf8_lossy(&bytes).chars().take(200).collect(), reason })
        };
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > FILE_PATH_MAX {
            return Err(NameError::TooLong { found: bytes.len(), limit: FILE_PATH_MAX });
        }
        if bytes.contains(&0) {
            return refuse("it contains a NUL byte");
        }
        for component in bytes.split(|&b| b == b'/') {
            match component {
                b"" => return refuse("it is absolute, or has an empty component"),
                b"." | b".." => return refuse("it has a component \".\" or \"..\""),
                c if c.len() > 255 => return refuse("a component has more than 255 bytes"),
                _ => {}
            }
        }
        Ok(Self(bytes))
    }

    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The last component.
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|&b| b == b'/').next().unwrap_or(&self.0)
    }

    /// The path as a type of the standard library, still relative.
    pub fn as_path(&self) -> &std::path::Path {
        use std::os::unix::ffi::OsStrExt;
        std::path::Path::new(std::ffi::OsStr::from_bytes(&self.0))
    }
}

/// Writes the path as text. Different paths give different texts, and the text contains no control characters. A byte
/// that is not UTF-8, and each byte of a control character, is written as `\xNN`. A backslash is doubled. The reader
/// of a manifest can turn the text back into the path.
impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' => f.write_str("\\\\")?,
                    c if c.is_control() => {
                        c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
                    }
                    c => write!(f, "{c}")?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}
impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilePath({:?})", String::from_utf8_lossy(&self.0))
    }
}

/// A BLAKE3 hash of 256 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The digest as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}
impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}
impl FromStr for Digest {
    type Err = NameError;
    fn from_str(hex: &str) -> Result<Self, NameError> {
        blake3::Hash::from_hex(hex).map(Self::from).map_err(|_| NameError::Refused {
            name: hex.chars().take(80).collect(),
            reason: "it is not 64 hexadecimal digits",
        })
    }
}
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex()[..16])
    }
}
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_their_directory_are_refused() {
        for bad in ["", "/etc/passwd", "a/../b", "..", ".", "a//b", "a/", "a/./b", "a\0b"] {
            assert!(FilePath::new(bad.as_bytes()).is_err(), "{bad:?} was taken");
        }
        for good in ["a", "a/b.h5", "...", "..a", "a b/\u{fc}", "DD0007/DD0007.cpu0003"] {
            assert_eq!(FilePath::new(good.as_bytes()).expect(good).as_bytes(), good.as_bytes());
        }
        assert!(FilePath::new(&b"caf\xe9.h5"[..]).is_ok(), "a path need not be UTF-8");
    }

    #[test]
    fn different_paths_are_shown_differently_and_without_control_characters() {
        let names: [&[u8]; 7] =
            [b"a\xff", b"a\xfe", b"a\\xff", b"n\nl", b"n\\x0al", "a\u{9b}".as_bytes(), b"\x1b[31mred"];
        let shown = names.map(|name| FilePath::new(name).expect("valid").to_string());
        let expected = [r"a\xff", r"a\xfe", r"a\\xff", r"n\x0al", r"n\\x0al", r"a\xc2\x9b", r"\x1b[31mred"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn numbers_in_names_sort_by_value() {
        let mut names = vec!["it_10", "it_9", "it_009", "it_1", "it_10b", "a2", "a10", "a"];
        names.sort_by(|a, b| natural_cmp(a.as_bytes(), b.as_bytes()));
        assert_eq!(names, ["a", "a2", "a10", "it_1", "it_009", "it_9", "it_10", "it_10b"]);
    }

    #[test]
    fn the_last_group_may_be_smaller() {
        let grouping = Grouping::new(70, 32).expect("valid");
        assert_eq!(grouping.groups(), 3);
        assert_eq!(grouping.ranks_of(GroupId(2)), 64..70);
        assert_eq!(grouping.group_of(Rank(69)), GroupId(2));
        assert!(grouping.ranks_of(GroupId(3)).is_empty());
        assert!(Grouping::new(0, 32).is_none() && Grouping::new(1, 0).is_none());
    }

    #[test]
    fn a_generation_is_told_from_a_tilde_in_a_name() {
        let id = |s: &str| s.parse::<CheckpointId>().expect("valid");
        assert_eq!((id("DD0007~2").label(), id("DD0007~2").generation()), ("DD0007", 2));
        for plain in ["DD0007", "a~b", "a~1", "a~02", "~2"] {
            assert_eq!((id(plain).label(), id(plain).generation()), (plain, 1));
        }
        assert_eq!(id("x~3").with_generation(1).expect("valid").as_str(), "x");
    }
}
