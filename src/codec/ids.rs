//! The number of each codec. `docs/format/codecs.md` lists the numbers with their parameters. A number is never
//! reused. 0 is never assigned, so a page of zeros is not a valid chain.

/// The number of a codec, assigned once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u16);

// Codecs from array to bytes.
pub(crate) const RAW: CodecId = CodecId(1);
pub(crate) const FPC: CodecId = CodecId(2);
pub(crate) const FPZIP: CodecId = CodecId(3);
pub(crate) const COLUMNS: CodecId = CodecId(4);
pub(crate) const PREDICT: CodecId = CodecId(5);
pub(crate) const RUNS: CodecId = CodecId(6);
pub(crate) const PCO: CodecId = CodecId(7);
pub(crate) const SINCE: CodecId = CodecId(8);
pub(crate) const MIXED: CodecId = CodecId(9);

// Codecs from bytes to bytes.
pub(crate) const SHUFFLE: CodecId = CodecId(16);
pub(crate) const LZ4: CodecId = CodecId(17);
pub(crate) const ZSTD: CodecId = CodecId(18);
pub(crate) const GZIP: CodecId = CodecId(19);
pub(crate) const BITSHUFFLE: CodecId = CodecId(20);
pub(crate) const LZMA: CodecId = CodecId(21);
