//! A chain of codecs: how a chain is built, written, and run in both directions.

use super::array_to_bytes::{fpc, mixed, pco, predict, runs};
use super::bytes_to_bytes::{bitshuffle, gzip, lzma, shuffle, zstd};
use super::table::Codec;
use super::traits::BIG_ENDIAN;
use super::{ArrayCodec, ArrayJob, ArrayShape, BytesCodec, CodecError, CodecId, SEGMENT_BYTES_MAX, Scratch, ids};
use crate::header::{ByteOrder, ELEMENT_WIDTH_MAX, ElementType, Member};
use crate::units::RawBytes;
use std::fmt;
use std::sync::Arc;

/// One codec of a chain, with its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The codec of the step.
    pub codec: CodecId,
    /// The parameter. The meaning of the parameter depends on the codec, see `docs/format/codecs.md`.
    pub param: u32,
}

/// The most steps of a chain.
pub const STEPS_MAX: usize = 6;

fn order_bit(order: ByteOrder) -> u32 {
    if order == ByteOrder::Big { BIG_ENDIAN } else { 0 }
}

/// A sequence of at most [`STEPS_MAX`] codecs: one from array to bytes, then any number from bytes to bytes, in the
/// order of encoding.
///
/// Two chains are equal if their steps are equal. The members of a record are not compared, because only the encoder
/// uses them.
#[derive(Clone, Debug)]
pub struct Chain {
    steps: Vec<Step>,
    members: Option<Arc<[Member]>>,
}

impl PartialEq for Chain {
    fn eq(&self, other: &Self) -> bool {
        self.steps == other.steps
    }
}
impl Eq for Chain {}
impl std::hash::Hash for Chain {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.steps.hash(state);
    }
}

impl Chain {
    /// Makes a chain. Fails if the number, the order or the parameters of the steps are not valid.
    pub fn new(steps: &[Step]) -> Result<Self, CodecError> {
        if steps.len() > STEPS_MAX {
            return Err(CodecError::Chain { what: "it has more than 6 steps" });
        }
        for (i, step) in steps.iter().enumerate() {
            let (takes, (_, codec)) = match Codec::find(step.codec)? {
                Codec::Array(_) if i > 0 => {
                    return Err(CodecError::Chain { what: "an array-to-bytes codec is not the first step" });
                }
                Codec::Bytes(_) if i == 0 => {
                    return Err(CodecError::Chain { what: "the first step is not an array-to-bytes codec" });
                }
                Codec::Array(codec) => (codec.takes(step.param), codec.id()),
                Codec::Bytes(codec) => (codec.takes(step.param), codec.id()),
            };
            if !takes {
                return Err(CodecError::Param { codec, param: step.param });
            }
        }
        if steps.is_empty() {
            return Err(CodecError::Chain { what: "it has no steps" });
        }
        Ok(Self { steps: steps.into(), members: None })
    }

    /// The steps of the chain, in the order of encoding.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Appends the chain: the number of steps in one byte, then the codec (`u16`) and the parameter (`u32`) of each
    /// step, both little-endian.
    pub fn to_bytes(&self, out: &mut Vec<u8>) {
        out.push(self.steps.len() as u8); // the value is at most STEPS_MAX
        for step in &self.steps {
            out.extend(step.codec.0.to_le_bytes());
            out.extend(step.param.to_le_bytes());
        }
    }

    /// Reads a chain from the front of `bytes`. Returns the chain and the number of bytes read.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, usize), CodecError> {
        const CUT: CodecError = CodecError::Chain { what: "it ends too early" };
        const STEP_BYTES: usize = size_of::<u16>() + size_of::<u32>();
        let (&count, rest) = bytes.split_first().ok_or(CUT)?;
        let count = usize::from(count);
        if count > STEPS_MAX {
            return Err(CodecError::Chain { what: "it has more than 6 steps" });
        }
        let rest = rest.get(..count * STEP_BYTES).ok_or(CUT)?;
        let (records, _) = rest.as_chunks::<STEP_BYTES>();
        let step = |&[a, b, c, d, e, f]: &[u8; STEP_BYTES]| Step {
            codec: CodecId(u16::from_le_bytes([a, b])),
            param: u32::from_le_bytes([c, d, e, f]),
        };
        let steps: Vec<Step> = records.iter().map(step).collect();
        Ok((Self::new(&steps)?, 1 + count * STEP_BYTES))
    }

    /// Encodes a segment and returns its stored bytes. `arrays` gives the shape of each piece of the segment.
    pub fn encode(&self, raw: &[u8], arrays: &[ArrayShape], scratch: &mut Scratch) -> Result<Vec<u8>, CodecError> {
        self.encode_into(raw, arrays, scratch)?;
        Ok(if self.is_raw() { raw.to_vec() } else { scratch.front.clone() })
    }

    /// Encodes a segment like [`Chain::encode`], but returns only the number of stored bytes.
    pub(crate) fn encoded_bytes(
        &self,
        raw: &[u8],
        arrays: &[ArrayShape],
        scratch: &mut Scratch,
    ) -> Result<usize, CodecError> {
        self.encode_into(raw, arrays, scratch)?;
        Ok(if self.is_raw() { raw.len() } else { scratch.front.len() })
    }

    /// Encodes and leaves the stored bytes in `scratch.front`, unless the chain is [`Chain::raw`].
    fn encode_into(&self, raw: &[u8], arrays: &[ArrayShape], scratch: &mut Scratch) -> Result<(), CodecError> {
        if raw.len() > SEGMENT_BYTES_MAX {
            return Err(CodecError::TooLong { found: raw.len() });
        }
        let Scratch { front, back, work, .. } = scratch;
        let steps = self.working_steps();
        for (i, step) in steps.iter().enumerate() {
            // The last step writes to `front`, and the step before it writes to `back`. In a chain of shuffle and
            // zstd, `back` therefore stays as long as the segment, and its bytes need not be cleared again.
            let to_front = (steps.len() - i) % 2 == 1;
            let (before, target) = if to_front { (&*back, &mut *front) } else { (&*front, &mut *back) };
            let source = if i == 0 { raw } else { before.as_slice() };
            match Codec::find(step.codec)? {
                Codec::Array(codec) => {
                    let members = self.members.as_deref().unwrap_or_default();
                    codec.encode(ArrayJob { param: step.param, raw: source, arrays, members }, target, work)?;
                }
                Codec::Bytes(codec) => codec.encode(step.param, source, target, work)?,
            }
        }
        Ok(())
    }

    /// Decodes a segment and returns exactly `raw_bytes` raw bytes, or an error.
    ///
    /// Allocates at most a small multiple of `raw_bytes`, even if `stored` claims a larger length. The caller must
    /// have compared `raw_bytes` with a limit.
    pub fn decode(&self, stored: &[u8], raw_bytes: usize, scratch: &mut Scratch) -> Result<Vec<u8>, CodecError> {
        self.decode_into(stored, raw_bytes, scratch)?;
        let mut raw = std::mem::take(&mut scratch.front);
        raw.shrink_to_fit(); // frees the additional memory of an earlier, longer segment
        Ok(raw)
    }

    /// Memory that decoding a segment of this length takes, in bytes, with the result and without the stored bytes.
    pub fn decoding_bytes(&self, raw_bytes: RawBytes) -> u64 {
        let of_step = |step: &Step| match Codec::find(step.codec) {
            Ok(Codec::Array(codec)) => codec.memory_to_decode(step.param),
            Ok(Codec::Bytes(codec)) => codec.memory_to_decode(),
            Err(_) => 0, // such a chain is refused before anything is decoded
        };
        raw_bytes.0.saturating_mul(self.working_steps().iter().map(of_step).max().unwrap_or(1))
    }

    /// Whether the stored bytes decode to exactly the bytes in `raw`.
    pub fn gives_back(&self, stored: &[u8], raw: &[u8], scratch: &mut Scratch) -> Result<bool, CodecError> {
        if self.working_steps().is_empty() {
            return Ok(stored == raw);
        }
        self.decode_into(stored, raw.len(), scratch)?;
        Ok(scratch.front == raw)
    }

    /// Decodes like [`Chain::decode`], but leaves the raw bytes in `scratch.front`, so that the memory of this buffer
    /// is reused.
    fn decode_into(&self, stored: &[u8], raw_bytes: usize, scratch: &mut Scratch) -> Result<(), CodecError> {
        if raw_bytes > SEGMENT_BYTES_MAX {
            return Err(CodecError::TooLong { found: raw_bytes });
        }
        let steps = self.working_steps();
        // For each step, the most bytes that decoding may return. This limit is the most bytes that encoding can pass
        // to the same step.
        let mut limits = [raw_bytes; STEPS_MAX];
        for (i, step) in steps.iter().enumerate().take(steps.len().saturating_sub(1)) {
            limits[i + 1] = match Codec::find(step.codec)? {
                Codec::Array(codec) => codec.max_encoded_bytes(step.param, limits[i]),
                Codec::Bytes(codec) => codec.max_encoded_bytes(limits[i]),
            };
        }
        let Scratch { front, back, work, .. } = scratch;
        for (i, step) in steps.iter().enumerate().rev() {
            let source = if i + 1 == steps.len() { stored } else { front.as_slice() };
            match Codec::find(step.codec)? {
                Codec::Array(codec) => codec.decode(step.param, source, limits[i], back, work)?,
                Codec::Bytes(codec) => codec.decode(step.param, source, limits[i], back, work)?,
            }
            std::mem::swap(front, back);
        }
        if steps.is_empty() && stored.len() == raw_bytes {
            front.clear();
            front.extend_from_slice(stored);
        }
        if front.len() != raw_bytes || steps.is_empty() && stored.len() != raw_bytes {
            let found = if steps.is_empty() { stored.len() } else { front.len() };
            return Err(CodecError::Length { found, expected: raw_bytes });
        }
        Ok(())
    }

    /// The steps that change bytes.
    pub(super) fn working_steps(&self) -> &[Step] {
        match self.steps.split_first() {
            Some((first, rest)) if first.codec == ids::RAW => rest,
            _ => &self.steps,
        }
    }

    /// Whether the stored bytes equal the raw bytes.
    pub fn is_raw(&self) -> bool {
        self.working_steps().is_empty()
    }

    /// Whether the chain is zstd alone.
    pub(super) fn is_zstd(&self) -> bool {
        matches!(self.working_steps(), [step] if step.codec == ids::ZSTD)
    }

    pub(super) fn of(steps: &[(CodecId, u32)]) -> Self {
        let steps: Vec<Step> = steps.iter().map(|&(codec, param)| Step { codec, param }).collect();
        Self::new(&steps).expect("the constructors of Chain make valid chains")
    }

    /// A chain that changes no byte.
    pub fn raw() -> Self {
        Self::of(&[(ids::RAW, 0)])
    }

    /// gzip alone, at a level from 1 to 9. Other levels are replaced by the nearest valid level.
    pub fn gzip(level: u32) -> Self {
        Self::raw().then_gzip(level)
    }

    /// zstd alone, at a level from 1 to 22. Other levels are replaced by the nearest valid level.
    pub fn zstd(level: u32) -> Self {
        Self::raw().then_zstd(level)
    }

    /// zstd alone, with a table of 2^`log` entries for repeats. `log` is limited to 10 to 20.
    pub fn zstd_fast(log: u32) -> Self {
        Self::raw().then(ids::ZSTD, zstd::TABLE + log.clamp(10, 20))
    }

    /// LZ4 alone.
    pub fn lz4() -> Self {
        Self::raw().then(ids::LZ4, 0)
    }

    /// LZMA alone, with properties that suit words of 4 and 8 bytes.
    pub(super) fn lzma_of_words() -> Self {
        Self::raw().then(ids::LZMA, lzma::WORDS)
    }

    /// Two chains of LZMA alone: one chain with properties for words, and one chain with properties for text.
    pub(super) fn lzmas() -> [Self; 2] {
        [Self::lzma_of_words(), Self::raw().then(ids::LZMA, lzma::TEXT)]
    }

    /// Shuffles bytes, so that bytes of equal significance lie together, then compresses with zstd. Widths below 2
    /// and above 2^20 mean no shuffle.
    pub fn shuffle_zstd(width: u32, level: u32) -> Self {
        let raw = Self::raw();
        let shuffled = if shuffle::Shuffle.takes(width) { raw.then(ids::SHUFFLE, width) } else { raw };
        shuffled.then_zstd(level)
    }

    /// Shuffles bits, so that bits of equal significance lie together, then compresses with zstd. Widths above 2^20
    /// mean no shuffle.
    pub fn bitshuffle_zstd(width: u32, level: u32) -> Self {
        let raw = Self::raw();
        let shuffled = if bitshuffle::Bitshuffle.takes(width) { raw.then(ids::BITSHUFFLE, width) } else { raw };
        shuffled.then_zstd(level)
    }

    /// Shuffles bytes, so that bytes of equal significance lie together, then compresses with LZ4.
    pub(super) fn shuffle_lz4(width: u32) -> Self {
        let raw = Self::raw();
        let shuffled = if shuffle::Shuffle.takes(width) { raw.then(ids::SHUFFLE, width) } else { raw };
        shuffled.then(ids::LZ4, 0)
    }

    /// Codec `runs` alone, for runs of equal elements. `None` for widths above 2^20.
    pub fn runs(width: u32) -> Option<Self> {
        runs::RunLengths.takes(width).then(|| Self::of(&[(ids::RUNS, width)]))
    }

    /// pcodec at a level from 1 to 12. `None` for elements that pcodec does not take.
    pub fn pco(element: &ElementType, level: u32) -> Option<Self> {
        let (width, order, kind) = match *element {
            ElementType::Float { width: width @ (4 | 8), order } => (width, order, pco::Kind::Float),
            ElementType::Int { width: width @ (2 | 4 | 8), order, signed: true } => (width, order, pco::Kind::Signed),
            ElementType::Int { width: width @ (2 | 4 | 8), order, signed: false } => {
                (width, order, pco::Kind::Unsigned)
            }
            ElementType::Bytes
            | ElementType::Float { .. }
            | ElementType::Int { .. }
            | ElementType::Fixed { .. }
            | ElementType::Compound { .. } => return None,
        };
        Some(Self::of(&[(ids::PCO, pco::param(width, order == ByteOrder::Big, kind, level))]))
    }

    /// FPC alone, with tables of 2^`level` entries. `level` is limited to 1 to 20.
    pub fn fpc(level: u32, order: ByteOrder) -> Self {
        Self::of(&[(ids::FPC, level.clamp(1, fpc::LEVEL_MAX) | order_bit(order))])
    }

    /// fpzip alone, for elements of 4 or 8 bytes, with neighbours in `dimensions` dimensions. `dimensions` is limited
    /// to 1 to 3.
    ///
    /// # Panics
    /// If the width is neither 4 nor 8.
    pub fn fpzip(width: u8, order: ByteOrder, dimensions: u32) -> Self {
        Self::of(&[(ids::FPZIP, u32::from(width) | order_bit(order) | dimensions.clamp(1, 3) << 16)])
    }

    /// Prediction with an effort of 1 or 2. `None` for elements that are neither bytes nor numbers of 4 or 8 bytes.
    pub fn predict(element: &ElementType, effort: u32) -> Option<Self> {
        let (width, order, is_float) = match *element {
            ElementType::Float { width: width @ (4 | 8), order } => (width, order, true),
            ElementType::Int { width: width @ (4 | 8), order, .. } => (width, order, false),
            ElementType::Bytes => return Some(Self::of(&[(ids::PREDICT, predict::param_of_bytes(effort))])),
            ElementType::Float { .. }
            | ElementType::Int { .. }
            | ElementType::Fixed { .. }
            | ElementType::Compound { .. } => return None,
        };
        Some(Self::of(&[(ids::PREDICT, predict::param(width, order == ByteOrder::Big, is_float, effort))]))
    }

    /// Codec `mixed`, for numbers between other bytes. The codec codes each kind of numbers separately.
    pub fn mixed(effort: u32) -> Self {
        Self::of(&[(ids::MIXED, mixed::param(effort))])
    }

    /// Prediction with the help of an older segment. `None` for elements that are not numbers of 4 or 8 bytes.
    pub fn since(element: &ElementType, effort: u32) -> Option<Self> {
        let Step { codec: ids::PREDICT, param } = *Self::predict(element, effort)?.steps().first()? else {
            return None;
        };
        (!predict::is_of_bytes(param)).then(|| Self::of(&[(ids::SINCE, param)]))
    }

    /// Whether decoding needs an older segment ([`Scratch::set_older`]).
    pub fn needs_older(&self) -> bool {
        self.steps.first().is_some_and(|step| step.codec == ids::SINCE)
    }

    /// Splits records into columns and codes each column separately. `None` for elements that are not records.
    pub fn columns(element: &ElementType) -> Option<Self> {
        match element {
            ElementType::Compound { width, members } if (2..=ELEMENT_WIDTH_MAX).contains(width) => {
                let chain = Self::of(&[(ids::COLUMNS, *width)]);
                Some(Self { members: Some(members.iter().cloned().collect()), ..chain })
            }
            ElementType::Compound { .. }
            | ElementType::Bytes
            | ElementType::Int { .. }
            | ElementType::Float { .. }
            | ElementType::Fixed { .. } => None,
        }
    }

    /// The chain of the mcrEngine paper (SC12, sections IV-C and VII): FPC of level 2 for doubles, fpzip in one
    /// dimension for floats, and LZ4 for all other elements, instead of the paper's Lempel-Ziv coder. If `double` is
    /// true, gzip at level 6 follows. Pooled variables (fewer than 100 bytes) get only gzip.
    pub fn paper(element: &ElementType, double: bool, pooled: bool) -> Self {
        const GZIP_LEVEL: u32 = 6;
        if pooled {
            return Self::gzip(GZIP_LEVEL);
        }
        let first = match element {
            ElementType::Float { width: 8, order } => Self::fpc(2, *order),
            ElementType::Float { width: 4, order } => Self::fpzip(4, *order, 1),
            ElementType::Float { .. }
            | ElementType::Bytes
            | ElementType::Int { .. }
            | ElementType::Fixed { .. }
            | ElementType::Compound { .. } => Self::lz4(),
        };
        if double { first.then_gzip(GZIP_LEVEL) } else { first }
    }

    /// Adds a step to the chain. The step must be valid and within [`STEPS_MAX`].
    pub(super) fn then(mut self, codec: CodecId, param: u32) -> Self {
        self.steps.push(Step { codec, param });
        debug_assert!(Self::new(&self.steps).is_ok(), "{self}");
        self
    }

    pub(crate) fn then_zstd(self, level: u32) -> Self {
        self.then(ids::ZSTD, level.clamp(1, zstd::LEVEL_MAX))
    }

    pub(super) fn then_gzip(self, level: u32) -> Self {
        self.then(ids::GZIP, level.clamp(1, gzip::LEVEL_MAX))
    }
}

/// Shows the steps that change bytes, for example `shuffle(8) zstd(1)`. Shows `raw` if no step changes bytes.
impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = if self.is_raw() { &self.steps[..] } else { self.working_steps() };
        for (i, step) in steps.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            match Codec::find(step.codec) {
                Ok(Codec::Array(codec)) => {
                    f.write_str(codec.id().1)?;
                    codec.show(step.param, f)?;
                }
                Ok(Codec::Bytes(codec)) => {
                    f.write_str(codec.id().1)?;
                    codec.show(step.param, f)?;
                }
                Err(_) => write!(f, "codec-{}({})", step.codec.0, step.param)?,
            }
        }
        Ok(())
    }
}
