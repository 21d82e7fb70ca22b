//! Codec `runs` (run lengths): an element that repeats is stored once, with the number of repetitions. Takes elements
//! of any width. Restores every bit.
//!
//! Source: run-length coding. The method is older than its literature (A. H. Robinson, C. Cherry, "Results of a
//! prototype television bandwidth compression scheme", Proceedings of the IEEE 55(3), 1967). A constant array is one
//! run of a few bytes.
//!
//! Payload: literal lists and runs in turn. A literal list is a varint L and L elements. A run is a varint N and one
//! element, which occurs N times. The payload ends when all elements are stored, so no run follows a literal list
//! that contains the last element. The bytes after the last whole element come last. Elements are equal if all their
//! bits are equal. The encoder makes a run only if the run saves at least 12 bytes.

use super::varint::{VARINT_BYTES_MAX, put_varint, take_varint};
use crate::codec::{ArrayCodec, ArrayJob, CodecError, CodecId, Work, ids};
use crate::header::ELEMENT_WIDTH_MAX;
use std::fmt;

/// A run must save at least this many bytes. A run costs at most two varints: the length of the run, and the length
/// of the next literal list.
const RUN_SAVES_MIN: usize = 2 * VARINT_BYTES_MAX + 2;

pub(crate) struct RunLengths;

impl ArrayCodec for RunLengths {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::RUNS, "runs")
    }

    fn takes(&self, param: u32) -> bool {
        (1..=ELEMENT_WIDTH_MAX).contains(&param)
    }

    fn max_encoded_bytes(&self, _: u32, raw_bytes: usize) -> usize {
        raw_bytes + VARINT_BYTES_MAX
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, _: &mut Work) -> Result<(), CodecError> {
        let width = job.param as usize;
        let (elements, tail) = job.raw.split_at(job.raw.len() / width * width);
        stored.clear();
        match width {
            // If the compiler knows the width, one instruction compares two elements.
            1 => encode(elements, |at| elements[at..].iter().take_while(|&&b| b == elements[at]).count(), 1, stored),
            4 => encode(elements, |at| same(elements[at..].as_chunks::<4>().0), 4, stored),
            8 => encode(elements, |at| same(elements[at..].as_chunks::<8>().0), 8, stored),
            _ => {
                let same_from = |at: usize| {
                    let mut elements = elements[at..].chunks_exact(width);
                    elements.next().map_or(0, |first| 1 + elements.take_while(|&e| e == first).count())
                };
                encode(elements, same_from, width, stored);
            }
        }
        stored.extend_from_slice(tail);
        Ok(())
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        _: &mut Work,
    ) -> Result<(), CodecError> {
        let damaged = |what| CodecError::Damaged { codec: "runs", what };
        let cut = || damaged("the stored bytes end too early");
        let width = param as usize;
        let whole = raw_bytes / width * width;
        raw.clear();
        raw.reserve(raw_bytes);
        let mut rest = stored;
        while raw.len() < whole {
            let left = (whole - raw.len()) / width;
            let literals = take_varint(&mut rest).ok_or_else(cut)? as usize;
            if literals > left {
                return Err(damaged("a literal list is longer than the segment"));
            }
            let bytes;
            (bytes, rest) = rest.split_at_checked(literals * width).ok_or_else(cut)?;
            raw.extend_from_slice(bytes);
            if literals == left {
                break;
            }
            let times = take_varint(&mut rest).ok_or_else(cut)? as usize;
            if times == 0 || times > left - literals {
                return Err(damaged("a run is empty or longer than the segment"));
            }
            let element;
            (element, rest) = rest.split_at_checked(width).ok_or_else(cut)?;
            fill(raw, element, times);
        }
        if rest.len() != raw_bytes - whole {
            return Err(damaged("the number of bytes after the last element is wrong"));
        }
        raw.extend_from_slice(rest);
        Ok(())
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({param})")
    }
}

/// Number of elements at the beginning that equal the first element.
fn same<const WIDTH: usize>(elements: &[[u8; WIDTH]]) -> usize {
    elements.first().map_or(0, |first| elements.iter().take_while(|&e| e == first).count())
}

fn encode(elements: &[u8], same_from: impl Fn(usize) -> usize, width: usize, stored: &mut Vec<u8>) {
    let (mut at, mut literals) = (0, 0);
    while at < elements.len() {
        let times = same_from(at);
        if (times - 1) * width >= RUN_SAVES_MIN {
            put_varint(((at - literals) / width) as u32, stored); // the value is at most SEGMENT_BYTES_MAX
            stored.extend_from_slice(&elements[literals..at]);
            put_varint(times as u32, stored);
            stored.extend_from_slice(&elements[at..at + width]);
            literals = at + times * width;
        }
        at += times * width;
    }
    if literals < elements.len() {
        put_varint(((elements.len() - literals) / width) as u32, stored);
        stored.extend_from_slice(&elements[literals..]);
    }
}

/// Appends an element `times` times.
fn fill(raw: &mut Vec<u8>, element: &[u8], times: usize) {
    if let [byte] = element {
        return raw.resize(raw.len() + times, *byte);
    }
    // Each copy doubles the bytes that were appended, so there are few copies, and they are long.
    let (from, bytes) = (raw.len(), element.len() * times);
    raw.extend_from_slice(element);
    while raw.len() - from < bytes {
        let more = (raw.len() - from).min(bytes - (raw.len() - from));
        raw.extend_from_within(from..from + more);
    }
}

/// Whether all elements are equal, and no byte follows the last element. One comparison is enough: the bytes without
/// the first element equal the bytes without the last element.
pub(crate) fn is_constant(raw: &[u8], width: usize) -> bool {
    raw.len() >= 2 * width && raw.len().is_multiple_of(width) && raw[width..] == raw[..raw.len() - width]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(raw: &[u8], width: u32) -> Vec<u8> {
        let (mut stored, mut again) = (Vec::new(), Vec::new());
        let job = ArrayJob { param: width, raw, arrays: &[], members: &[] };
        RunLengths.encode(job, &mut stored, &mut Work::default()).expect("encodes");
        RunLengths.decode(width, &stored, raw.len(), &mut again, &mut Work::default()).expect("decodes");
        assert!(again == raw, "{width}: {} and {} bytes", again.len(), raw.len());
        stored
    }

    #[test]
    fn a_constant_is_one_run_and_runs_stand_between_what_is_none() {
        assert_eq!(stored(&[7; 300], 1), [0, 0xAC, 2, 7]);
        assert_eq!(stored(&[1, 2, 3].repeat(100), 3), [0, 100, 1, 2, 3]);
        assert!(stored(&[], 8).is_empty());
        let mixed = [&[1, 2][..], &[9; 20], &[3]].concat();
        assert_eq!(stored(&mixed, 1), [2, 1, 2, 20, 9, 1, 3]);
        assert_eq!(stored(&mixed, 8), [&[2][..], &mixed].concat(), "a run of two elements saves too little");
    }

    #[test]
    fn lengths_that_are_not_those_of_the_segment_are_refused() {
        let mut raw = Vec::new();
        for (bad, expected) in [
            (&[][..], "the stored bytes end too early"),
            (&[0, 5], "the stored bytes end too early"),
            (&[0, 0, 1], "a run is empty or longer than the segment"),
            (&[0, 11, 1], "a run is empty or longer than the segment"),
            (&[11], "a literal list is longer than the segment"),
            (&[0, 10, 1, 9], "the number of bytes after the last element is wrong"),
        ] {
            let error = RunLengths.decode(1, bad, 10, &mut raw, &mut Work::default()).expect_err("damaged");
            assert_eq!(error.to_string(), format!("codec runs: the stored bytes are damaged: {expected}"), "{bad:?}");
        }
    }

    #[test]
    fn only_what_is_the_same_to_the_last_bit_is_constant() {
        let zeros = [0.0f64, 0.0, -0.0].map(f64::to_le_bytes).concat();
        assert!(is_constant(&zeros[..16], 8) && !is_constant(&zeros, 8) && !is_constant(&zeros[..15], 8));
        assert!(!is_constant(&zeros[..8], 8), "one element is not a run");
    }
}
