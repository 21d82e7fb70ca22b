//! The header of a parity file, and how blocks form stripes. The tables are in docs/format/parity.md.

use crate::error::ReadError;
use crate::ids::Digest;
use std::num::NonZeroU32;
use std::path::Path;

/// The version of parity files that this build writes, and the newest version that it reads.
const VERSION: u16 = 1;
/// Length of the header, in bytes. The file begins and ends with the header.
pub const HEADER_LEN: usize = 128;
/// Length of a block that this build writes, in bytes: a page of memory, and a sector of most disks.
pub(super) const BLOCK_BYTES: u32 = 4096;
/// Maximum number of container blocks in a stripe that this build writes. More blocks need more memory and more reads
/// at different places; fewer blocks make the parity of a stripe weaker against several small holes.
const STRIPE_BLOCKS_MAX: u64 = 200;
/// A block has at least 64 bytes, because the code works on 64 bytes at a time.
const BLOCK_BYTES_MIN: u32 = 64;
/// Maximum length of a block that a reader accepts, in bytes.
const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of container blocks, and of parity blocks, in a stripe that a reader accepts.
const BLOCKS_MAX: u32 = 4096;
/// Maximum total length of the blocks of a stripe that a reader accepts, in bytes.
const STRIPE_BYTES_MAX: u64 = 1 << 26;

const MAGIC: [u8; 8] = *b"\x89MCP\r\n\x1a\n";

mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const FLAGS: usize = 10;
    pub(super) const PERCENT: usize = 12;
    pub(super) const BYTES: usize = 16;
    pub(super) const INDEX_DIGEST: usize = 24;
    pub(super) const BLOCK_BYTES: usize = 56;
    pub(super) const DATA: usize = 60;
    pub(super) const PARITY: usize = 64;
    pub(super) const STRIPES: usize = 72;
    pub(super) const CRC: usize = 124;
}
const _: () = assert!(at::CRC + size_of::<u32>() == HEADER_LEN);

/// The length of the parity, in per cent of the length of the container: 1 to 50.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct ParityPercent(NonZeroU32);

impl ParityPercent {
    /// The largest percentage.
    pub const MAX: u32 = 50;
    /// The percentage that documents recommend: a hole of 1 MiB in a container of 50 MiB is mended.
    pub const SUGGESTED: Self = Self(NonZeroU32::new(2).expect("not zero"));

    /// `None` for 0 per cent, which means no parity, and for more than [`Self::MAX`].
    pub fn new(percent: u32) -> Option<Self> {
        NonZeroU32::new(percent).filter(|percent| percent.get() <= Self::MAX).map(Self)
    }

    /// The percentage.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

/// How the blocks of a container form stripes. Block `b` is block `b / stripes` of stripe `b % stripes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length of a block in bytes, a multiple of 64.
    pub block_bytes: u32,
    /// Number of container blocks in a stripe. The last blocks of some stripes lie behind the end of the container.
    pub data: u32,
    /// Number of parity blocks in a stripe.
    pub parity: u32,
    /// Number of stripes.
    pub stripes: u64,
}

impl Geometry {
    /// The geometry that this build writes for a container of `bytes` bytes.
    pub(super) fn of(bytes: u64, percent: ParityPercent) -> Self {
        let blocks = bytes.div_ceil(u64::from(BLOCK_BYTES)).max(1);
        let stripes = blocks.div_ceil(STRIPE_BLOCKS_MAX);
        let data = blocks.div_ceil(stripes); // at most 200
        let parity = (data * u64::from(percent.get())).div_ceil(100);
        Self { block_bytes: BLOCK_BYTES, data: data as u32, parity: parity as u32, stripes }
    }

    /// Length of a stripe's record in the parity file: checksums, then parity blocks.
    pub(super) fn record_bytes(&self) -> u64 {
        self.table_bytes() as u64 + u64::from(self.parity) * u64::from(self.block_bytes)
    }

    /// Length of the checksums of a stripe, in bytes. There is one checksum for each block, and one checksum of all
    /// these checksums.
    pub(super) fn table_bytes(&self) -> usize {
        (self.data + self.parity + 1) as usize * size_of::<u32>()
    }

    /// Where the record of a stripe begins in the parity file.
    pub(super) fn record_at(&self, stripe: u64) -> u64 {
        HEADER_LEN as u64 + stripe * self.record_bytes()
    }

    /// Length of the parity file.
    pub fn file_bytes(&self) -> u64 {
        self.record_at(self.stripes) + HEADER_LEN as u64
    }

    /// Where block `row` of a stripe begins in the container.
    pub(super) fn offset(&self, row: u32, stripe: u64) -> u64 {
        (u64::from(row) * self.stripes + stripe) * u64::from(self.block_bytes)
    }

    /// Checks the rules for a container of `bytes` bytes. With these rules, no length of this type overflows.
    fn check(&self, bytes: u64) -> Result<(), &'static str> {
        let counts = [self.data, self.parity];
        let stripe_bytes = (u64::from(self.data) + u64::from(self.parity)) * u64::from(self.block_bytes);
        let blocks = bytes.div_ceil(u64::from(self.block_bytes).max(1)).max(1);
        match () {
            () if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&self.block_bytes)
                || !self.block_bytes.is_multiple_of(64) =>
            {
                Err("the length of a block is not a multiple of 64 between 64 and 2^20")
            }
            () if counts.iter().any(|count| !(1..=BLOCKS_MAX).contains(count)) => {
                Err("a stripe has no block, or more than 4096")
            }
            () if stripe_bytes > STRIPE_BYTES_MAX => Err("a stripe has more than 2^26 bytes"),
            () if bytes > i64::MAX as u64 / 4096 => Err("the container is too long"),
            () if self.stripes == 0 || self.stripes > blocks => Err("the number of stripes is wrong"),
            () if u64::from(self.data) != blocks.div_ceil(self.stripes) => {
                Err("the number of blocks in a stripe does not agree with the length of the container")
            }
            () => Ok(()),
        }
    }
}

/// The header of a parity file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityHeader {
    /// The percentage for which the parity was written.
    pub percent: u32,
    /// Length of the container, in bytes.
    pub bytes: u64,
    /// The index digest of the container.
    pub index_digest: Digest,
    /// How the blocks of the container form stripes.
    pub geometry: Geometry,
}

impl ParityHeader {
    pub(super) fn to_record(&self) -> [u8; HEADER_LEN] {
        let Self { percent, bytes, index_digest, geometry } = self;
        let mut record = [0; HEADER_LEN];
        let mut put = |at: usize, field: &[u8]| record[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(at::VERSION, &VERSION.to_le_bytes());
        put(at::PERCENT, &percent.to_le_bytes());
        put(at::BYTES, &bytes.to_le_bytes());
        put(at::INDEX_DIGEST, &index_digest.0);
        put(at::BLOCK_BYTES, &geometry.block_bytes.to_le_bytes());
        put(at::DATA, &geometry.data.to_le_bytes());
        put(at::PARITY, &geometry.parity.to_le_bytes());
        put(at::STRIPES, &geometry.stripes.to_le_bytes());
        let crc = crc32c::crc32c(&record[..at::CRC]);
        record[at::CRC..].copy_from_slice(&crc.to_le_bytes());
        record
    }
}

/// Parses and checks a header. `path` and `offset` are the place of the header, for error messages.
pub fn parse_header(record: &[u8; HEADER_LEN], path: &Path, offset: u64) -> Result<ParityHeader, ReadError> {
    let what = "the header of the parity";
    let path = || path.to_path_buf();
    if record[..MAGIC.len()] != MAGIC {
        return Err(ReadError::NotOurs { path: path(), what, at: offset });
    }
    let (found, recorded) = (crc32c::crc32c(&record[..at::CRC]), u32_at(record, at::CRC));
    if found != recorded {
        return Err(ReadError::Damaged { path: path(), part: what.into(), at: offset, found, recorded });
    }
    let (version, flags) = (u16_at(record, at::VERSION), u16_at(record, at::FLAGS));
    let invalid = |rule: &str| ReadError::Invalid { path: path(), part: what, what: rule.into() };
    match version {
        0 => return Err(invalid("the version is 0")),
        v if v > VERSION => {
            return Err(ReadError::TooNew { path: path(), found: u32::from(v), newest: u32::from(VERSION) });
        }
        _ if flags & 0xff != 0 => {
            return Err(ReadError::Unsupported { path: path(), what: format!("{what} has flags {flags:#x}") });
        }
        _ => {}
    }
    let geometry = Geometry {
        block_bytes: u32_at(record, at::BLOCK_BYTES),
        data: u32_at(record, at::DATA),
        parity: u32_at(record, at::PARITY),
        stripes: u64::from_le_bytes(array(record, at::STRIPES)),
    };
    let bytes = u64::from_le_bytes(array(record, at::BYTES));
    geometry.check(bytes).map_err(invalid)?;
    let (percent, index_digest) = (u32_at(record, at::PERCENT), Digest(array(record, at::INDEX_DIGEST)));
    Ok(ParityHeader { percent, bytes, index_digest, geometry })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes has N bytes")
}
