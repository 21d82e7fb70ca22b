//! Codec `predict`: each number is predicted from numbers that are decoded before it, and only the difference between
//! number and prediction is stored.
//!
//! The codec works on a whole segment. A segment may hold several classes, so that variables of one class can predict
//! variables of another class. The codec is lossless: a difference is a count of representable numbers, so the
//! prediction plus the difference gives back every bit.
//!
//! # Words
//!
//! | word | means here |
//! |---|---|
//! | group | arrays of one class that become columns in one way: unchanged, joined as slabs, or split into components |
//! | column | the elements of a group, or of one component of the group's points, which are coded together |
//! | layout | the groups, and the order in which their columns are coded |
//! | copy | an element that equals an earlier one, differs by rounding (near), or in up to half its bits (wide) |
//! | derived | a cell of a coarse grid that is computed from the cells of a finer grid, or the reverse |
//! | literal | an element that is neither copied nor derived, but predicted |
//! | term | a number that a prediction adds after multiplication by a weight: a neighbour, a product, ... |
//! | set | one method of prediction: terms with their weights, or an integer sum of neighbours |
//! | predictor | the sets of a column, and the set that each unit of about 256 elements uses |
//! | table | rows that each have a number (particles), sorted by this number |
//! | known column | a column of an older checkpoint, available before decoding begins (codec `since`) |
//! | twin | the known column that corresponds to a column of this checkpoint |
//!
//! # Steps of encoding and decoding a segment
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
//! stream (docs/format/predict.md)  --  decode.rs: header, then column by column  -->  raw bytes
//! ```
//!
//! # Folders
//!
//! - `format/`: the code that a decoder needs, and the encoder's exact inverse of this code. Stored files must stay
//!   readable, so the meaning of the format never changes. The code in `format/` does not refer to `choose/`; a test
//!   in `predict/mod.rs` checks this rule.
//! - `choose/`: the decisions of the encoder. Decisions may change at any time, because `format/` decodes every
//!   choice. All thresholds that depend on the effort are in `effort.rs`.
//! - `particles/`: tables, with the same two folders `format/` and `choose/`. The other folders use only the names in
//!   `particles/mod.rs`.
//!
//! # How to add a predictor
//!
//! Example: a column is often the difference of two other columns at the same place. To add this difference as a
//! term:
//!
//! 1. `docs/format/predict.md`, section 8.1 "Terms": give the term the next free number, and describe each operation
//!    of its computation. Older programs reject a stream with an unknown term.
//! 2. `format/linear.rs`: add a variant to `Term`. The compiler then reports the functions that must handle the
//!    variant: `columns` (the earlier columns that the term reads), `is_of_same_number`, `is_valid`, `gather` (one
//!    place at a time, for fitting) and `add_row_here` (a row at a time, for coding and decoding). `gather` and
//!    `add_row_here` must give the same doubles.
//! 3. `format/predictor.rs`: extend `write_term` and `read_term`. `read_term` must check the term, because a stored
//!    file may be damaged.
//! 4. `choose/column.rs`, `terms`: add the term to the terms that are tried. `weights.rs` and `fit.rs` decide whether
//!    a term helps: these files select terms by orthogonal least squares on a sample. If computing the term takes
//!    much time, add an option to `effort.rs` that enables the term.
//! 5. `src/codec/tests/golden.rs`: add a golden file with such a column. `src/codec/tests/choosing.rs`: add a test
//!    that the column takes fewer bytes with the term. `tests/reader/mcrformat`: add the term to the reader in
//!    Python, which must decode all golden files.
//! 6. Run the test `compression` on real checkpoints (MCR_CORPUS=DIR). The test prints the change in stored bytes for
//!    each data set.
//!
//! A method of prediction that is not a sum of terms is a new `Set`. The predictions of a set are computed in
//! `Row::predict` (when all elements are known) and in `Row::fill` (when decoding). Add the set to the
//! candidates of `predictor` in `choose/column.rs`.

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

/// Whether more than half of these bytes of unknown type belong to records. Prediction helps only for records.
pub(crate) fn is_of_records(raw: &[u8], arrays: &[ArrayShape]) -> bool {
    records_of(raw, arrays).is_some_and(|found| found.bytes().is_some_and(|bytes| bytes * 2 > raw.len()))
}

fn records_of(raw: &[u8], arrays: &[ArrayShape]) -> Option<records::Records> {
    find_records::find(raw, &file_lengths(arrays))
}

/// The length in bytes of each file, if each array is one file of bytes of unknown type.
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
        // A coded column takes at most about 40 bytes more than its elements, and a column has at least one element.
        raw_bytes * 12 + MORE_BYTES
    }

    fn memory_to_decode(&self, param: u32) -> u64 {
        match (param & BYTES, param & 0xFF) {
            (0, 4) => 8,
            (0, _) => 5,
            _ => 3,
        }
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
        let wrong = || damaged("the stream is not valid");
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

/// Encodes the stream of codec `since`. The stream has the format of [`Predict`], with columns of an older segment as
/// known columns.
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

/// The inverse of [`encode_since`]. Returns `None` if the stream is not valid.
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

    /// Calls `call` for each source file of a folder and of its subfolders.
    fn each_source(folder: &Path, call: &mut impl FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(folder).expect("the folder exists") {
            let path = entry.expect("the folder entry is readable").path();
            match path.is_dir() {
                true => each_source(&path, call),
                false if path.extension().is_some_and(|is| is == "rs") => {
                    call(&path, &std::fs::read_to_string(&path).expect("the file is UTF-8 text"));
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
