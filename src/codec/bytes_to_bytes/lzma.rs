//! Codec LZMA2, from `liblzma`. The streams have the format of the streams in .xz files, without headers. Takes any
//! bytes. Restores every bit.
//!
//! Source: doc/lzma-file-format.txt and doc/xz-file-format.txt of github.com/tukaani-project/xz. LZMA2 is slow, but
//! leaves the fewest bytes of all codecs for records and text. LZMA2 remembers the distances of the last repeats, and
//! models each byte by the preceding bytes and by the position of the byte in a word.
//!
//! The raw bytes are cut into pieces, and each piece is a separate stream, so that several threads can encode and
//! decode them. In real checkpoints, pieces of 2 MiB took at most 1.5 % more bytes than one stream.
//!
//! Payload, in which all numbers are varints: the number of pieces, then two numbers for each piece, then the stored
//! bytes of all pieces. The two numbers are the length of the raw bytes and the length of the stored bytes. Every
//! piece except the last has at least 512 KiB of raw bytes. No piece has more than 16 MiB of raw bytes.
//!
//! Parameter: the properties byte of LZMA, (`pb` * 5 + `lp`) * 9 + `lc`, with `lc` + `lp` at most 4. The dictionary
//! is as long as the piece. The length of the piece is checked before memory is allocated for it.

use crate::codec::array_to_bytes::varint::{VARINT_BYTES_MAX, put_varint, take_varint};
use crate::codec::{BytesCodec, CodecError, CodecId, Work, ids, threads};
use liblzma::stream::{Action, Filters, LzmaOptions, MatchFinder, Mode, Status, Stream};

/// A piece is half of the raw bytes, rounded to whole words, but its length stays between these limits.
const PIECE_BYTES_MIN: usize = 512 << 10;
const PIECE_BYTES_MAX: usize = 2 << 20;
const WORD: usize = 8;
/// A decoder refuses longer pieces.
const DECODED_BYTES_MAX: usize = 16 << 20;
/// The shortest dictionary that the library accepts.
const DICTIONARY_MIN: usize = 4 << 10;
const PROPERTIES_MAX: u32 = (4 * 5 + 4) * 9 + 8;
/// The most bits that the library accepts for `lc` and `lp` together.
const LITERAL_BITS_MAX: u32 = 4;
/// Settings of the match finder, a binary tree. Encoding with these settings took 0.67 to 0.98 times the time of
/// level 6, and gave at most 1.5 % more bytes than level 6.
const NICE_LENGTH: u32 = 32;
const DEPTH: u32 = 16;

pub(crate) struct Lzma;

/// How LZMA models bytes. `lc` is the number of high bits of the previous byte that predict a literal. `lp` is the
/// number of low bits of the position that predict a literal. `pb` is the number of low bits of the position that
/// predict all other parts of the stream.
#[derive(Clone, Copy)]
struct Properties {
    lc: u32,
    lp: u32,
    pb: u32,
}

impl Properties {
    fn of(param: u32) -> Option<Self> {
        let found = Self { lc: param % 9, lp: param / 9 % 5, pb: param / 45 };
        (param <= PROPERTIES_MAX && found.lc + found.lp <= LITERAL_BITS_MAX).then_some(found)
    }

    fn filters(self, piece_bytes: usize) -> Result<Filters, CodecError> {
        let dictionary = piece_bytes.max(DICTIONARY_MIN) as u32; // the value is at most DECODED_BYTES_MAX
        let mut options = LzmaOptions::new_preset(6).map_err(failed)?;
        options.dict_size(dictionary).mode(Mode::Normal).match_finder(MatchFinder::BinaryTree4);
        options.literal_context_bits(self.lc).literal_position_bits(self.lp).position_bits(self.pb);
        options.nice_len(NICE_LENGTH).depth(DEPTH);
        let mut filters = Filters::new();
        filters.lzma2(&options);
        Ok(filters)
    }
}

/// Parameter for text.
pub(crate) const TEXT: u32 = 3;
/// Parameter for words of 4 and 8 bytes.
pub(crate) const WORDS: u32 = (3 * 5 + 3) * 9 + 1;

fn damaged(what: &'static str) -> CodecError {
    CodecError::Damaged { codec: "lzma", what }
}

fn failed(source: liblzma::stream::Error) -> CodecError {
    CodecError::Library { codec: "lzma", source: Box::new(source) }
}

fn properties(param: u32) -> Result<Properties, CodecError> {
    Properties::of(param).ok_or(CodecError::Param { codec: "lzma", param })
}

/// The most bytes that a piece takes. Incompressible bytes are stored in chunks of 64 KiB, with 3 bytes before each
/// chunk, and one byte ends the stream.
fn max_piece_bytes(raw_bytes: usize) -> usize {
    raw_bytes + raw_bytes.div_ceil(64 << 10) * 3 + 64
}

fn piece_bytes(raw_bytes: usize) -> usize {
    raw_bytes.div_ceil(2).next_multiple_of(WORD).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
}

fn encode_piece(properties: Properties, raw: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut stream = Stream::new_raw_encoder(&properties.filters(raw.len())?).map_err(failed)?;
    let mut stored = Vec::with_capacity(max_piece_bytes(raw.len()));
    match stream.process_vec(raw, &mut stored, Action::Finish).map_err(failed)? {
        Status::StreamEnd => Ok(stored),
        Status::Ok | Status::GetCheck | Status::MemNeeded => {
            Err(damaged("the library needs more bytes than its own upper bound"))
        }
    }
}

fn decode_piece(properties: Properties, stored: &[u8], raw_bytes: usize) -> Result<Vec<u8>, CodecError> {
    let mut stream = Stream::new_raw_decoder(&properties.filters(raw_bytes)?).map_err(failed)?;
    let mut raw = Vec::with_capacity(raw_bytes + 1); // the additional byte shows whether the stream is too long
    let status = stream.process_vec(stored, &mut raw, Action::Finish).map_err(failed)?;
    match status {
        Status::StreamEnd if stream.total_in() != stored.len() as u64 => {
            Err(damaged("there are bytes after the end of a piece"))
        }
        Status::StreamEnd if raw.len() != raw_bytes => {
            Err(CodecError::Length { found: raw.len(), expected: raw_bytes })
        }
        Status::StreamEnd => Ok(raw),
        Status::Ok | Status::GetCheck | Status::MemNeeded => {
            Err(damaged("a piece ends too early, or is longer than its recorded length"))
        }
    }
}

impl BytesCodec for Lzma {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::LZMA, "lzma")
    }

    fn takes(&self, param: u32) -> bool {
        Properties::of(param).is_some()
    }

    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize {
        let pieces = raw_bytes.div_ceil(PIECE_BYTES_MIN);
        max_piece_bytes(raw_bytes) + pieces * (max_piece_bytes(0) + 2 * VARINT_BYTES_MAX) + VARINT_BYTES_MAX
    }

    fn memory_to_decode(&self) -> u64 {
        3
    }

    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let properties = properties(param)?;
        let pieces: Vec<&[u8]> = raw.chunks(piece_bytes(raw.len())).collect();
        let coded = threads::all(pieces.len(), work.threads, |n| encode_piece(properties, pieces[n]));
        let coded = coded.into_iter().collect::<Result<Vec<_>, _>>()?;
        stored.clear();
        stored.reserve(coded.iter().map(|piece| piece.len() + 2 * VARINT_BYTES_MAX).sum::<usize>() + VARINT_BYTES_MAX);
        put_varint(coded.len() as u32, stored); // at most SEGMENT_BYTES_MAX / PIECE_BYTES_MIN, rounded up
        for (raw, coded) in pieces.iter().zip(&coded) {
            put_varint(raw.len() as u32, stored);
            put_varint(coded.len() as u32, stored);
        }
        coded.iter().for_each(|piece| stored.extend_from_slice(piece));
        Ok(())
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        limit: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let properties = properties(param)?;
        let mut rest = stored;
        let number = |rest: &mut &[u8]| {
            take_varint(rest).map(|n| n as usize).ok_or(damaged("the list of pieces ends too early"))
        };
        let count = number(&mut rest)?;
        if count > limit / PIECE_BYTES_MIN + 1 {
            return Err(damaged("the number of pieces is too large"));
        }
        let lengths = (0..count).map(|_| Ok((number(&mut rest)?, number(&mut rest)?)));
        let lengths = lengths.collect::<Result<Vec<_>, CodecError>>()?;
        let total = lengths.iter().try_fold(0usize, |sum, (raw, _)| sum.checked_add(*raw)).unwrap_or(usize::MAX);
        if total > limit {
            return Err(CodecError::Length { found: total, expected: limit });
        }
        if lengths.iter().any(|(raw_bytes, _)| *raw_bytes > DECODED_BYTES_MAX) {
            return Err(damaged("a piece is longer than 16 MiB"));
        }
        let mut pieces = Vec::with_capacity(count);
        for (raw_bytes, stored_bytes) in lengths {
            let (own, later) = rest.split_at_checked(stored_bytes).ok_or(damaged("a piece ends too early"))?;
            pieces.push((own, raw_bytes));
            rest = later;
        }
        if !rest.is_empty() {
            return Err(damaged("there are bytes after the last piece"));
        }
        raw.clear();
        raw.reserve(total);
        let decode = |n: usize| decode_piece(properties, pieces[n].0, pieces[n].1);
        let mut result = Ok(());
        threads::in_turn(count, work.threads, decode, |_, piece| match piece {
            Ok(piece) => {
                raw.extend_from_slice(&piece);
                Some(())
            }
            Err(error) => {
                result = Err(error);
                None
            }
        });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Chain, Scratch};

    /// Words of 8 bytes, each with only some random bits.
    fn words(bytes: usize) -> Vec<u8> {
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Some((1.0 + (*state >> 50) as f64 / 16384.0).to_le_bytes())
        };
        let mut state = 7;
        std::iter::from_fn(|| next(&mut state)).flatten().take(bytes).collect()
    }

    #[test]
    fn several_pieces_are_the_same_bytes_on_any_number_of_threads_and_come_back() {
        for bytes in [PIECE_BYTES_MIN + 1, 3 * PIECE_BYTES_MIN + 5] {
            let raw = words(bytes);
            let chain = Chain::lzma_of_words();
            let mut scratch = Scratch::default();
            let stored = chain.encode(&raw, &[], &mut scratch).expect("encodes");
            assert!(stored.len() <= Lzma.max_encoded_bytes(bytes));
            scratch.set_threads(3);
            assert!(stored == chain.encode(&raw, &[], &mut scratch).expect("encodes"));
            assert_eq!(stored[0], 2, "number of pieces");
            for threads in [1, 3] {
                scratch.set_threads(threads);
                assert!(chain.gives_back(&stored, &raw, &mut scratch).expect("decodes"));
                // The second piece is damaged at its end, or its end is missing.
                let end = stored.len() - 1;
                let damaged = [&stored[..end], &[1]].concat();
                chain.decode(&damaged, bytes, &mut scratch).expect_err("the end of the stream is damaged");
                chain.decode(&stored[..end], bytes, &mut scratch).expect_err("the last byte is missing");
            }
        }
    }

    #[test]
    fn what_does_not_get_shorter_stays_within_the_bound() {
        let noise: Vec<u8> = words(4 * 70_000).chunks(4).map(|word| word[1] ^ word[0]).collect();
        for bytes in [0, 1, 100, 65_536, 70_000] {
            let stored = Chain::lzma_of_words().encode(&noise[..bytes], &[], &mut Scratch::default()).expect("encodes");
            assert!(stored.len() <= Lzma.max_encoded_bytes(bytes), "{} for {bytes}", stored.len());
        }
    }

    #[test]
    fn a_list_of_pieces_that_does_not_add_up_is_refused() {
        let refused = |stored: &[u8], limit: usize| {
            let error = Chain::lzma_of_words().decode(stored, limit, &mut Scratch::default());
            error.expect_err("refused").to_string()
        };
        assert_eq!(refused(&[], 0), "codec lzma: the stored bytes are damaged: the list of pieces ends too early");
        assert_eq!(refused(&[1, 3], 3), "codec lzma: the stored bytes are damaged: the list of pieces ends too early");
        assert_eq!(
            refused(&[2, 1, 1, 1, 1, 0, 0], 9),
            "codec lzma: the stored bytes are damaged: the number of pieces is too large"
        );
        assert_eq!(refused(&[1, 10, 1, 0], 9), "the stored bytes decode to 10 bytes instead of 9");
        assert_eq!(refused(&[1, 9, 2, 0], 9), "codec lzma: the stored bytes are damaged: a piece ends too early");
        assert_eq!(
            refused(&[1, 9, 1, 0, 0], 9),
            "codec lzma: the stored bytes are damaged: there are bytes after the last piece"
        );
        assert_eq!(refused(&[1, 9, 1, 0], 9), "the stored bytes decode to 0 bytes instead of 9");
        let long = [&[1][..], &[0x81, 0x80, 0x80, 8], &[1, 0]].concat(); // 16 MiB and one byte
        let error = "codec lzma: the stored bytes are damaged: a piece is longer than 16 MiB";
        assert_eq!(refused(&long, 1 << 25), error);
    }
}
