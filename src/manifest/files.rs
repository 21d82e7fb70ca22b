//! The files of a manifest: a list, or only their number and total length.

use crate::header::FileKind;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The files of a manifest: a list, or only their number and total length.
pub trait Files: DeserializeOwned {
    /// Number and total length of the files.
    fn totals(&self) -> FileTotals;
}

/// Number and total length of the files that a manifest lists. A list of checkpoints needs only these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTotals {
    /// Number of files.
    pub files: u64,
    /// Total length of the files, in bytes.
    pub bytes: u64,
    /// The lowest and the highest rank of the files; `None` if there are no files.
    pub(super) ranks: Option<(u32, u32)>,
}

impl FileTotals {
    pub(super) fn add(&mut self, rank: u32, bytes: u64, kind: FileKind) {
        self.files += u64::from(kind.is_file());
        self.bytes = self.bytes.saturating_add(bytes);
        self.ranks = Some(self.ranks.map_or((rank, rank), |(low, high)| (low.min(rank), high.max(rank))));
    }
}

impl Files for FileTotals {
    fn totals(&self) -> FileTotals {
        *self
    }
}

impl<'a> Deserialize<'a> for FileTotals {
    fn deserialize<D: serde::Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        /// The fields of a file that are needed. The path and the digest are skipped.
        #[derive(Deserialize)]
        struct Counted {
            rank: u32,
            bytes: u64,
            #[serde(default)]
            kind: FileKind,
        }
        struct Counting;
        impl<'a> serde::de::Visitor<'a> for Counting {
            type Value = FileTotals;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of files")
            }
            fn visit_seq<A: serde::de::SeqAccess<'a>>(self, mut files: A) -> Result<FileTotals, A::Error> {
                let mut totals = FileTotals::default();
                while let Some(Counted { rank, bytes, kind }) = files.next_element()? {
                    totals.add(rank, bytes, kind);
                }
                Ok(totals)
            }
        }
        from.deserialize_seq(Counting)
    }
}
