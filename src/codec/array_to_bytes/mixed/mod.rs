//! Codec `mixed`, for numbers between other bytes, in files of unknown format. Each kind of numbers is coded with
//! prediction, and all other bytes with zstd. With more effort, LZMA is used where LZMA leaves clearly fewer bytes
//! (`lzma_trial.rs`). Restores every bit. `find.rs` finds the numbers, and `shape.rs` finds their shape.
//!
//! Many codes write their state as arrays of numbers after headers and between markers. Examples are Fortran records,
//! XDR, and a line of text followed by binary numbers. In such files numbers may begin anywhere in a word, and may be
//! big-endian.
//!
//! Payload, in which all numbers are varints:
//! - The number of streams, at least one. For each stream: the chain as in [`Chain::to_bytes`], and the number of
//!   stored bytes.
//! - The number of regions. For each region: the number of bytes of the first stream that come before the region, the
//!   index of another stream, and the number of bytes that the region takes from this other stream.
//! - The stored bytes of all streams, one stream after the other.
//!
//! The raw bytes of a stream are the bytes of its regions. The first stream has all other bytes of the segment. The
//! remaining bytes of the first stream come after the last region. No stream is coded by `mixed`, `columns` or
//! `since`.

mod effort;
mod find;
mod shape;

use super::predict;
use super::varint::{VARINT_BYTES_MAX, put_varint, take_varint};
use crate::codec::lzma_trial::{OfZstd, lzma};
use crate::codec::{ArrayCodec, ArrayJob, ArrayShape, Chain, CodecError, CodecId, STEPS_MAX, Scratch, Work, ids};
use crate::header::{ByteOrder, ElementType};
use effort::Effort;
use find::{Kind, Region};
use std::fmt;

const EFFORT_SHIFT: u32 = 16;
/// The most streams: one for each width, byte order and type of numbers, and one for all other bytes.
const STREAMS_MAX: usize = 9;
const CHAIN_BYTES_MAX: usize = 1 + STEPS_MAX * 6;
/// The shortest region has one number of 4 bytes.
const NUMBER_BYTES_MIN: usize = 4;
/// Numbers are coded separately only if they are at least 1/8 of all bytes.
const NUMBERS_DIVISOR: usize = 8;

pub(crate) struct Mixed;

#[derive(Default)]
pub(crate) struct Buffers {
    /// Buffers for the chains of the streams.
    inner: Option<Box<Scratch>>,
}

/// The parameter for an effort of 1 or 2.
pub(crate) fn param(effort: u32) -> u32 {
    effort.clamp(1, predict::EFFORT_MAX) << EFFORT_SHIFT
}

/// Whether the bytes contain enough numbers for this codec.
pub(crate) fn is_of_numbers(raw: &[u8], arrays: &[ArrayShape]) -> bool {
    let numbers: usize = find::find(raw, &predict::file_lengths(arrays)).iter().map(|region| region.bytes).sum();
    numbers > 0 && numbers >= raw.len() / NUMBERS_DIVISOR
}

fn element(kind: Kind) -> ElementType {
    let (width, order) = (kind.width as u8, if kind.is_big { ByteOrder::Big } else { ByteOrder::Little });
    match kind.is_float {
        true => ElementType::Float { width, order },
        false => ElementType::Int { width, signed: true, order },
    }
}

/// The bytes of all numbers of one kind, as arrays.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    arrays: Vec<ArrayShape>,
}

impl Stream {
    fn push(&mut self, bytes: &[u8], region: &Region) {
        self.bytes.extend_from_slice(bytes);
        let record = Some(region.lanes).filter(|&lanes| lanes > 1);
        let dims: Vec<u64> =
            region.dims.into_iter().skip_while(|&n| n == 1).chain(record).map(|extent| extent as u64).collect();
        // Coordinates of points, values on grids of points, and all other numbers are coded in separate columns,
        // because these kinds of numbers do not predict each other.
        let point = |dims: &[u64]| {
            let last = dims.last().copied().filter(|&last| last <= predict::LANES_POINT_MAX as u64);
            last.filter(|_| dims.len() > 1).map(|last| (last, dims.len() > 2))
        };
        let column = self.arrays.last().map_or(0, |last| last.column + u32::from(point(&last.dims) != point(&dims)));
        let elements = (region.bytes / region.kind.width) as u64;
        self.arrays.push(ArrayShape { elements, dims, chunk: Vec::new(), column, is_integer: false });
    }
}

impl ArrayCodec for Mixed {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::MIXED, "mixed")
    }

    fn takes(&self, param: u32) -> bool {
        (1..=predict::EFFORT_MAX).contains(&(param >> EFFORT_SHIFT)) && param & 0xFFFF == 0
    }

    /// A stream is never stored in more bytes than it has, because the raw chain is always a candidate. A region is
    /// never shorter than one number.
    fn max_encoded_bytes(&self, _: u32, raw_bytes: usize) -> usize {
        let regions = raw_bytes / NUMBER_BYTES_MIN;
        raw_bytes + (2 + 3 * regions) * VARINT_BYTES_MAX + STREAMS_MAX * (VARINT_BYTES_MAX + CHAIN_BYTES_MAX)
    }

    fn memory_to_decode(&self, _: u32) -> u64 {
        11
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let effort = Effort::of(job.param >> EFFORT_SHIFT);
        let regions = shape::shaped(find::find(job.raw, &predict::file_lengths(job.arrays)), job.raw);
        let mut kinds: Vec<Kind> = regions.iter().map(|region| region.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let mut streams: Vec<Stream> = kinds.iter().map(|_| Stream::default()).collect();
        let (mut others, mut list) = (Vec::new(), Vec::new());
        let mut end = 0;
        put_varint(regions.len() as u32, &mut list); // fewer regions than bytes
        for region in &regions {
            let kind = kinds.partition_point(|&kind| kind < region.kind);
            let (gap, own) = (&job.raw[end..region.start], &job.raw[region.start..region.start + region.bytes]);
            others.extend_from_slice(gap);
            streams[kind].push(own, region);
            end = region.start + region.bytes;
            for number in [gap.len(), kind + 1, region.bytes] {
                put_varint(number as u32, &mut list); // the value is at most SEGMENT_BYTES_MAX
            }
        }
        others.extend_from_slice(&job.raw[end..]);

        let threads = work.threads;
        let inner = work.kept::<Buffers>().inner.get_or_insert_default();
        inner.set_threads(threads);
        let mut code = |chains: &[Chain], slowly: &[Chain], bytes: &[u8], arrays: &[ArrayShape]| {
            let (mut best, mut by_zstd) = ((Chain::raw(), bytes.to_vec()), None);
            for chain in chains {
                let stored = chain.encode(bytes, arrays, inner)?;
                if chain.is_zstd() {
                    by_zstd = Some(OfZstd { chain, stored_bytes: stored.len() });
                }
                if stored.len() < best.1.len() {
                    best = (chain.clone(), stored);
                }
            }
            if let Some(by_zstd) = by_zstd.filter(|_| effort.tries_lzma)
                && let Some(found) = lzma(bytes, slowly, by_zstd, best.1.len(), inner)?
            {
                best = found;
            }
            Ok::<_, CodecError>(best)
        };
        let mut coded = vec![code(&[Chain::zstd(effort.zstd_level(others.len()))], &Chain::lzmas(), &others, &[])?];
        for (stream, &kind) in streams.iter().zip(&kinds) {
            // Numbers that are not smooth may still contain repeats of whole numbers or of bytes.
            let width = kind.width as u32;
            let mut chains: Vec<Chain> = Chain::predict(&element(kind), effort.prediction).into_iter().collect();
            chains.push(Chain::shuffle_zstd(width, effort.shuffled_zstd_level));
            chains.extend(effort.numbers_zstd_level.map(Chain::zstd));
            coded.push(code(&chains, &[Chain::lzma_of_words()], &stream.bytes, &stream.arrays)?);
        }
        stored.clear();
        put_varint(coded.len() as u32, stored); // the value is at most STREAMS_MAX
        for (chain, bytes) in &coded {
            chain.to_bytes(stored);
            put_varint(bytes.len() as u32, stored); // the value is at most SEGMENT_BYTES_MAX
        }
        stored.extend_from_slice(&list);
        coded.iter().for_each(|(_, bytes)| stored.extend_from_slice(bytes));
        Ok(())
    }

    fn decode(
        &self,
        _: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let damaged = |what| CodecError::Damaged { codec: "mixed", what };
        const CUT: &str = "the list of streams or regions ends too early";
        let mut rest = stored;
        let number = |rest: &mut &[u8]| take_varint(rest).map(|n| n as usize).ok_or(damaged(CUT));
        let count = number(&mut rest)?;
        if !(1..=STREAMS_MAX).contains(&count) {
            return Err(damaged("the number of streams is zero or too large"));
        }
        let mut streams: Vec<(Chain, usize)> = Vec::with_capacity(count);
        for _ in 0..count {
            let (chain, used) = Chain::from_bytes(rest)?;
            rest = &rest[used..];
            if chain.steps().iter().any(|step| [ids::MIXED, ids::COLUMNS, ids::SINCE].contains(&step.codec)) {
                return Err(damaged("a stream contains columns or streams again"));
            }
            streams.push((chain, number(&mut rest)?));
        }
        let regions = number(&mut rest)?;
        if regions > raw_bytes / NUMBER_BYTES_MIN || regions > rest.len() / 3 {
            return Err(damaged("the number of regions is too large"));
        }
        // `lengths` counts the raw bytes of each stream.
        let mut lengths = vec![0usize; count];
        let mut list: Vec<(usize, usize, usize)> = Vec::with_capacity(regions);
        let mut left = raw_bytes;
        for _ in 0..regions {
            let (gap, stream, bytes) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
            left = (left.checked_sub(gap).and_then(|left| left.checked_sub(bytes)))
                .ok_or(damaged("the regions are longer than the segment"))?;
            *lengths
                .get_mut(stream)
                .filter(|_| stream > 0)
                .ok_or(damaged("a region names a stream that does not exist"))? += bytes;
            lengths[0] += gap;
            list.push((gap, stream, bytes));
        }
        lengths[0] += left;
        let threads = work.threads;
        let inner = work.kept::<Buffers>().inner.get_or_insert_default();
        inner.set_threads(threads);
        let mut decoded: Vec<Vec<u8>> = Vec::with_capacity(count);
        for ((chain, stored_bytes), &length) in streams.iter().zip(&lengths) {
            let (own, later) = rest.split_at_checked(*stored_bytes).ok_or(damaged("a stream ends too early"))?;
            decoded.push(chain.decode(own, length, inner)?);
            rest = later;
        }
        if !rest.is_empty() {
            return Err(damaged("there are bytes after the last stream"));
        }
        raw.clear();
        raw.reserve(raw_bytes);
        let mut parts: Vec<&[u8]> = decoded.iter().map(Vec::as_slice).collect();
        for (gap, stream, bytes) in list.into_iter().chain([(left, 0, 0)]) {
            for (stream, bytes) in [(0, gap), (stream, bytes)] {
                let (own, later) =
                    parts[stream].split_at_checked(bytes).ok_or(damaged("a stream is shorter than its regions"))?;
                raw.extend_from_slice(own);
                parts[stream] = later;
            }
        }
        Ok(())
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(effort {})", param >> EFFORT_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(kind: Kind, count: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut walk = 1.0f64;
        (0..count)
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                walk += (state >> 40) as f64 / (1u64 << 24) as f64 - 0.5;
                let mut own = match (kind.width, kind.is_float) {
                    (8, true) => walk.to_le_bytes().to_vec(),
                    (8, false) => ((walk * 1e9) as i64).to_le_bytes().to_vec(),
                    (_, true) => (walk as f32).to_le_bytes().to_vec(),
                    (_, false) => ((walk * 1e4) as i32).to_le_bytes().to_vec(),
                };
                if kind.is_big {
                    own.reverse();
                }
                own
            })
            .collect()
    }

    fn kind() -> impl Strategy<Value = Kind> {
        (prop_oneof![Just(4usize), Just(8)], any::<bool>(), any::<bool>()).prop_map(|(width, is_big, is_float)| Kind {
            width,
            is_big,
            is_float,
        })
    }

    /// The parts of a file. Each part has other bytes, then numbers of one kind.
    fn parts() -> impl Strategy<Value = Vec<(Vec<u8>, Kind, usize, u64)>> {
        prop::collection::vec((prop::collection::vec(any::<u8>(), 0..700), kind(), 0usize..2500, any::<u64>()), 0..5)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn numbers_and_other_bytes_come_back(
            parts in parts(), effort in 1u32..=2, cuts in prop::collection::vec(0usize..30_000, 0..3),
        ) {
            let mut raw = Vec::new();
            for (others, kind, count, seed) in parts {
                raw.extend(others);
                raw.extend(numbers(kind, count, seed));
            }
            // Lengths of files. A file may be longer or shorter than its shape says.
            let files = |&elements: &usize| ArrayShape { elements: elements as u64, ..ArrayShape::default() };
            let arrays: Vec<ArrayShape> = cuts.iter().map(files).collect();
            let mut scratch = Scratch::default();
            let chain = Chain::mixed(effort);
            let stored = chain.encode(&raw, &arrays, &mut scratch).expect("encodes");
            prop_assert!(chain.gives_back(&stored, &raw, &mut scratch).expect("decodes"));
            prop_assert!(stored.len() <= Mixed.max_encoded_bytes(param(effort), raw.len()));
        }

        #[test]
        fn damaged_bytes_are_an_error_or_other_bytes_of_the_same_length(
            at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>(), seed in any::<u64>(),
        ) {
            let kind = Kind { width: 8, is_big: true, is_float: true };
            let raw = [&b"header"[..], &numbers(kind, 600, seed), &[7; 40]].concat();
            let mut scratch = Scratch::default();
            let mut stored = Chain::mixed(1).encode(&raw, &[], &mut scratch).expect("encodes");
            let at = at.index(stored.len());
            stored[at] ^= flip;
            if let Ok(decoded) = Chain::mixed(1).decode(&stored, raw.len(), &mut scratch) {
                prop_assert_eq!(decoded.len(), raw.len());
            }
            stored[at] ^= flip;
            stored.truncate(cut.index(stored.len()));
            prop_assert!(Chain::mixed(1).decode(&stored, raw.len(), &mut scratch).is_err());
        }
    }

    #[test]
    fn numbers_behind_a_header_take_less_than_without_being_found() {
        for big in [false, true] {
            let kind = Kind { width: 8, is_big: big, is_float: true };
            let raw = [&b"a header that ends anywhere\n("[..], &numbers(kind, 20_000, 5), b")\n// the end"].concat();
            assert!(is_of_numbers(&raw, &[]));
            let mut scratch = Scratch::default();
            let found = Chain::mixed(1).encode(&raw, &[], &mut scratch).expect("encodes").len();
            for other in [Chain::zstd(6), Chain::shuffle_zstd(8, 3)] {
                let others = other.encode(&raw, &[], &mut scratch).expect("encodes").len();
                assert!(found * 100 < others * 97, "{found} bytes, {others} by {other}");
            }
        }
    }

    #[test]
    fn a_stream_that_is_taken_apart_again_is_refused() {
        for inner in [Chain::mixed(1), Chain::of(&[(ids::COLUMNS, 16)])] {
            let mut stored = vec![1];
            inner.to_bytes(&mut stored);
            stored.extend([0, 0]);
            let error =
                Chain::mixed(1).decode(&stored, 0, &mut Scratch::default()).expect_err("nested chains are refused");
            assert!(error.to_string().contains("a stream contains columns or streams again"), "{error}");
        }
        let mut stored = vec![1, 16];
        Chain::mixed(1).to_bytes(&mut stored);
        stored.push(0);
        let error = Chain::of(&[(ids::COLUMNS, 16)])
            .decode(&stored, 0, &mut Scratch::default())
            .expect_err("nested chains are refused");
        assert!(error.to_string().contains("a column contains columns or streams again"), "{error}");
    }
}
