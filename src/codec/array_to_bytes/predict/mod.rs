//! Prediction: of what is a number only the difference to what the other numbers tell is stored.
//!
//! Works on a whole segment, which may hold several classes: their variables predict each other. In this order:
//! rows of particles are put in the order of their numbers (`tables.rs`, `curve.rs`); columns are put in an order
//! (`order.rs`); runs that occur before are taken out (`repeats.rs`, `strides.rs`); each column gets the predictor that leaves the fewest bits of a
//! sample (`choose.rs`): a weighted sum of neighbours in up to three dimensions, of other columns, of products and
//! quotients of them (`linear.rs`, `weights.rs`, `fit.rs`), or integer
//! differences, or none (`predictor.rs`); the differences, as a count of representable numbers, are coded (`residual.rs`). What
//! coarse and fine grids tell of each other is in `nested.rs`, numbers in files that nobody described in `records.rs`, what an
//! older checkpoint tells in `older.rs`.
//!
//! The stream is described in `FORMAT.md`, beside this file.

mod choose;
mod format;
mod particles;

use crate::codec::array_to_bytes::varint::put;
use crate::codec::{ArrayCodec, ArrayJob, ArrayShape, BIG_ENDIAN, CodecError, CodecId, Older, Work};
pub(crate) use choose::components::LANES_POINT_MAX;
use choose::effort::Effort;
pub(crate) use choose::encode::has_known_rows;
use choose::encode::{encode, pack};
use choose::find_records;
pub(crate) use choose::find_records::distance as record_bytes;
use choose::groups::groups;
use format::copies::Source;
use format::decode::{MORE_BYTES, decode, decode_bytes};
use format::group::{Group, Kind};
use format::numbers::Elements;
use format::records;
use std::fmt;

pub(crate) const ID: CodecId = CodecId(5);
/// Bits of the parameter.
const INTEGERS: u32 = 1 << 9;
const BYTES: u32 = 1 << 10;
const EFFORT_SHIFT: u32 = 16;
/// The highest effort; decoding does not depend on it.
pub(crate) const EFFORT_MAX: u32 = 2;

pub(crate) struct Predict;

/// What a decoder fills, kept so that its pages need not be made anew for each segment.
#[derive(Default)]
pub(crate) struct Buffers {
    bits: Vec<u64>,
    values: Vec<f64>,
    froms: [Vec<Source>; 2],
}

/// The parameter for elements of a width and kind.
pub(crate) fn param(width: u8, is_big: bool, is_float: bool, effort: u32) -> u32 {
    let big = if is_big { BIG_ENDIAN } else { 0 };
    let integers = if is_float { 0 } else { INTEGERS };
    u32::from(width) | big | integers | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

/// The parameter for bytes of which nothing is known.
pub(crate) fn param_of_bytes(effort: u32) -> u32 {
    BYTES | 8 | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

fn elements_of(param: u32) -> Elements {
    Elements { width: (param & 0xFF) as usize, is_big: param & BIG_ENDIAN != 0, is_float: param & INTEGERS == 0 }
}

/// Whether a parameter is for bytes of which nothing is known.
pub(crate) fn is_of_bytes(param: u32) -> bool {
    param & BYTES != 0
}

/// Whether records are found in bytes of which nothing is known, and are most of them; else prediction has nothing to do.
pub(crate) fn is_of_records(raw: &[u8], arrays: &[ArrayShape]) -> bool {
    records_of(raw, arrays).is_some_and(|found| found.bytes().is_some_and(|bytes| bytes * 2 > raw.len()))
}

fn records_of(raw: &[u8], arrays: &[ArrayShape]) -> Option<records::Records> {
    find_records::find(raw, &file_lengths(arrays))
}

/// How long each file is, where elements are bytes of which nothing is known.
pub(crate) fn file_lengths(arrays: &[ArrayShape]) -> Vec<usize> {
    arrays.iter().map(|array| usize::try_from(array.elements).unwrap_or(usize::MAX)).collect()
}

fn damaged(what: &'static str) -> CodecError {
    CodecError::Damaged { codec: "predict", what }
}

impl ArrayCodec for Predict {
    fn id(&self) -> (CodecId, &'static str) {
        (ID, "predict")
    }

    fn takes(&self, param: u32) -> bool {
        let effort = param >> EFFORT_SHIFT;
        matches!(param & 0xFF, 4 | 8)
            && param & 0xF800 == 0
            && (param & BYTES == 0 || param & 0xFFFF == BYTES | 8)
            && (1..=EFFORT_MAX).contains(&effort)
    }

    fn max_encoded_bytes(&self, _param: u32, raw_bytes: usize) -> usize {
        // A column is never coded in more than its elements take, but for some forty bytes, and has an element at least.
        raw_bytes * 12 + MORE_BYTES
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let effort = Effort::of(job.param >> EFFORT_SHIFT);
        stored.clear();
        if job.param & BYTES == 0 {
            let kind = elements_of(job.param);
            return encode(kind, job.raw, groups(job.arrays, job.raw, kind), None, effort, work, stored);
        }
        let none = records::Records { width: 8, lanes: 1, regions: Vec::new() };
        let found = records_of(job.raw, job.arrays).unwrap_or(none);
        let (records, others) = found.split(job.raw);
        let packed = pack(&others, effort)?;
        found.write(stored);
        put(packed.len(), stored);
        stored.extend(packed);
        let kind = Elements { width: found.width, is_big: false, is_float: true };
        let arrays = found.arrays();
        let kind_of = if found.lanes > 1 { Kind::Lanes(found.lanes) } else { Kind::Plain };
        let group = Group::new(kind_of, None, arrays);
        let groups = if group.arrays.is_empty() { Vec::new() } else { vec![group] };
        encode(kind, &records, groups, None, effort, work, stored)
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let wrong = || damaged("the stream does not say what it must");
        if param & BYTES == 0 {
            return decode(elements_of(param), stored, None, raw_bytes, work, raw).ok_or_else(wrong);
        }
        decode_bytes(stored, raw_bytes, work, raw).ok_or_else(wrong)
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, effort) = (elements_of(param), param >> EFFORT_SHIFT);
        if param & BYTES != 0 {
            return write!(f, "(bytes, effort {effort})");
        }
        let letter = if kind.is_float { 'f' } else { 'i' };
        write!(f, "({letter}{}{}, effort {effort})", kind.width * 8, if kind.is_big { "be" } else { "" })
    }
}

/// The stream of codec `since`: as [`Predict`], with the older segment.
pub(crate) fn encode_since(
    job: ArrayJob<'_>,
    older: &Older,
    stored: &mut Vec<u8>,
    work: &mut Work,
) -> Result<(), CodecError> {
    let kind = elements_of(job.param);
    let groups = groups(job.arrays, job.raw, kind);
    stored.clear();
    encode(kind, job.raw, groups, Some((job.arrays, older)), Effort::of(job.param >> EFFORT_SHIFT), work, stored)
}

/// What [`encode_since`] gave. `None` where the stream does not say what it must.
pub(crate) fn decode_since(
    param: u32,
    stored: &[u8],
    older: &Older,
    raw_bytes: usize,
    raw: &mut Vec<u8>,
    work: &mut Work,
) -> Option<()> {
    decode(elements_of(param), stored, Some(&older.raw), raw_bytes, work, raw)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Calls for each source file of a folder, and of those in it.
    fn each_source(folder: &Path, call: &mut impl FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("readable").path();
            match path.is_dir() {
                true => each_source(&path, call),
                false if path.extension().is_some_and(|is| is == "rs") => {
                    call(&path, &std::fs::read_to_string(&path).expect("is text"));
                }
                false => {}
            }
        }
    }

    #[test]
    fn no_file_of_the_format_names_what_the_encoder_chooses() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/codec/array_to_bytes/predict");
        let mut files = 0;
        for folder in ["format", "particles/format"] {
            each_source(&root.join(folder), &mut |path, text| {
                files += 1;
                for (at, line) in (1..).zip(text.lines()) {
                    assert!(!line.contains("choose"), "{}, line {at}: {line}", path.display());
                }
            });
        }
        assert!(files > 12, "{files} files");
    }
}
