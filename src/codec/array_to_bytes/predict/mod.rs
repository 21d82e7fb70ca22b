//! Prediction: each number is predicted from numbers that are decoded before it, and only the difference is stored.
//!
//! The codec works on a whole segment. A segment may hold several classes, since their variables predict each other.
//! It is lossless: a difference is a count of representable numbers, so that prediction plus difference gives back
//! every bit.
//!
//! # Words
//!
//! | word | means here |
//! |---|---|
//! | group | arrays of one class that are treated alike: as they are, joined slabs, or points taken apart |
//! | column | the elements of a group, or of one component of its points; what is predicted and coded as one |
//! | layout | the groups, and the order in which their columns are coded |
//! | copy | an element that equals an earlier one (exact), or nearly does (near, wide) |
//! | told | a cell of a coarse grid that the cells of a finer grid give, or the other way round |
//! | literal | an element that is neither copied nor told; it is predicted |
//! | term | one number that a prediction adds, times a weight: a neighbour, another column's value, a product, ... |
//! | set | one way to predict: terms with their weights, or an integer sum of neighbours |
//! | predictor | the sets of a column, and which of them each unit of some 256 elements uses |
//! | table | rows with numbers (particles), put in the order of these numbers |
//! | known, twin | a column of an older checkpoint; the one that is like a column of this one (codec `since`) |
//!
//! # The way of a segment
//!
//! ```text
//! raw bytes
//!   | groups.rs, components.rs, find_tables.rs     what the arrays are
//!   | pipeline.rs: arrange_arrays                  slabs joined, elements loaded       -> Arranged
//!   |              order_columns                   nested grids, order of the columns  -> Ordered
//!   |              find_runs                       copies of earlier elements
//!   |              predict_columns (column.rs)     a predictor and codes for each      -> Choice
//!   | encode.rs                                    header, codes
//!   v
//! stream (FORMAT.md)  --  decode.rs: header, then column by column  -->  raw bytes
//! ```
//!
//! # Folders
//!
//! - `format/`: what a decoder needs, with its exact inverse. The bytes are there for good, so what is here is never
//!   changed in meaning. It does not name the encoder; a test of this file reads its source and says so.
//! - `choose/`: what the encoder guesses. Anything here may change at any time: whatever is chosen, `format/` decodes
//!   it. All thresholds that depend on the effort are in `effort.rs`.
//! - `particles/`: tables, in the same two halves. Its `mod.rs` names all that the other folders know of it.
//!
//! # How to add a predictor
//!
//! Say that a column is often the difference of two others at the same place. To add this as a term:
//!
//! 1. `FORMAT.md`, section "Predictors": give the term the next free number, and say what it computes, operation by
//!    operation.
//! 2. `format/linear.rs`: add a variant to `Term`. The compiler then asks for it in `columns`
//!    (which columns before this one it reads), `is_of_same_number`, `is_valid`, `gather` (one place at a time, for
//!    fitting) and `add_row_here` (a row at a time, for coding and decoding). The last two must give the same
//!    doubles.
//! 3. `format/predictor.rs`: `write_term` and `read_term`. What is read is checked there, since it may be damaged.
//! 4. `choose/column.rs`, `terms`: add the term to those that are tried. Whether it helps is decided by `weights.rs`
//!    and `fit.rs`, which select terms by orthogonal least squares on a sample. If the term costs much time, make it
//!    a knob of `effort.rs`.
//! 5. A golden file with such a column in `src/codec/tests/golden.rs`, and a test that it takes fewer bytes in
//!    `choosing.rs`.
//! 6. Run the test `compression` on real checkpoints: it prints what each set gains or loses.
//!
//! A way to predict that is no sum of terms is a new `Set`: its predictions are made in
//! `Row::predict` (all elements known) and `Row::fill` (decoding), and it is offered in `choose/column.rs`,
//! `predictor`.

mod choose;
mod format;
mod particles;

use crate::codec::array_to_bytes::varint::put;
use crate::codec::{ArrayCodec, ArrayJob, ArrayShape, CodecError, CodecId, Older, Work, ids};
pub(crate) use choose::components::LANES_POINT_MAX;
use choose::effort::Effort;
pub(crate) use choose::encode::has_known_rows;
use choose::encode::{encode, pack};
use choose::find_records;
pub(crate) use choose::find_records::distance as record_bytes;
use choose::groups::groups;
use format::decode::{MORE_BYTES, damaged, decode, decode_bytes};
use format::group::{Group, Kind};
use format::numbers::Elements;
use format::param::{BYTES, EFFORT_SHIFT, elements_of};
pub(crate) use format::param::{EFFORT_MAX, is_of_bytes, param, param_of_bytes};
use format::records;
use std::fmt;

pub(crate) struct Predict;

/// Whether records are found in bytes of which nothing is known, and are most of them; else prediction has nothing to
/// do.
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

impl ArrayCodec for Predict {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::PREDICT, "predict")
    }

    fn takes(&self, param: u32) -> bool {
        let effort = param >> EFFORT_SHIFT;
        matches!(param & 0xFF, 4 | 8)
            && param & 0xF800 == 0
            && (param & BYTES == 0 || param & 0xFFFF == BYTES | 8)
            && (1..=EFFORT_MAX).contains(&effort)
    }

    fn max_encoded_bytes(&self, _param: u32, raw_bytes: usize) -> usize {
        // A column is never coded in more than its elements take, but for some forty bytes, and has an element at
        // least.
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
