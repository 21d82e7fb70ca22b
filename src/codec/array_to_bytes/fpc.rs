//! Codec FPC, for doubles. Takes elements of 8 bytes in both byte orders. Restores every bit.
//!
//! Source: M. Burtscher, P. Ratanaworabhan, "FPC: a high-speed compressor for double-precision floating-point data",
//! IEEE Transactions on Computers 58(1), 2009, sections 3 and 4. The code was written from the text of the paper.
//! Each value is predicted twice by hash tables. The FCM table predicts the value that followed the same recent
//! values before. The DFCM table predicts the difference that followed the same recent differences before. The
//! exclusive or of the value and the better prediction is stored without its leading zero bytes. A code of 4 bits
//! stores the number of these zero bytes and the choice of predictor.
//!
//! Differences from the paper:
//! - All codes come first, then all residuals, so that a second codec finds codes next to codes, and residuals next
//!   to residuals.
//! - The number of elements is not stored, because the length of the segment gives it.
//! - The tables never have more entries than there are elements, rounded up to a power of two. Therefore the length
//!   of the segment limits the memory, even if the parameter asks for larger tables.
//!
//! Payload: first the codes, two in each byte, with the earlier code in the high half. The residuals follow, least
//! significant byte first. The bytes after the last whole element come last. Bit 3 of a code is 1 if DFCM predicted.
//! The low 3 bits are 0 to 3 for 0 to 3 leading zero bytes, and 4 to 7 for 5 to 8 leading zero bytes. A residual with
//! exactly 4 leading zero bytes is stored as a residual with 3 leading zero bytes.

use crate::codec::{ArrayCodec, ArrayJob, BIG_ENDIAN, CodecError, CodecId, Work, ids, resize_for_overwrite};
use std::fmt;

/// The largest parameter. With 2^20 entries, both tables together take 16 MiB.
pub(crate) const LEVEL_MAX: u32 = 20;

pub(crate) struct Fpc;

/// The FCM table, followed by the DFCM table.
#[derive(Default)]
pub(crate) struct Tables(Vec<u64>);

/// Bytes of the residual for each value of the low 3 bits of a code.
const RESIDUAL_BYTES: [usize; 8] = [8, 7, 6, 5, 3, 2, 1, 0];

impl ArrayCodec for Fpc {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::FPC, "fpc")
    }

    fn takes(&self, param: u32) -> bool {
        (1..=LEVEL_MAX).contains(&(param & !BIG_ENDIAN))
    }

    fn max_encoded_bytes(&self, _: u32, raw_bytes: usize) -> usize {
        raw_bytes + (raw_bytes / 8).div_ceil(2)
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let (elements, tail) = job.raw.as_chunks::<8>();
        let code_bytes = elements.len().div_ceil(2);
        // All 8 bytes of a residual are written. The next residual overwrites the leading zero bytes.
        resize_for_overwrite(stored, self.max_encoded_bytes(job.param, job.raw.len()));
        let (codes, residuals) = stored.split_at_mut(code_bytes);
        let big = job.param & BIG_ENDIAN != 0;
        let mut predictor = Predictor::new(job.param, elements.len(), work.kept::<Tables>());
        let mut at = 0;
        let mut code = |element: &[u8; 8]| {
            let value = if big { u64::from_be_bytes(*element) } else { u64::from_le_bytes(*element) };
            let (by_fcm, by_dfcm) = (value ^ predictor.fcm(), value ^ predictor.dfcm());
            predictor.learn(value);
            let (residual, choice) = if by_dfcm < by_fcm { (by_dfcm, 8) } else { (by_fcm, 0) };
            let zero_bytes = residual.leading_zeros() as u8 / 8;
            let code = if zero_bytes >= 4 { zero_bytes - 1 } else { zero_bytes };
            residuals[at..at + 8].copy_from_slice(&residual.to_le_bytes());
            at += RESIDUAL_BYTES[usize::from(code)];
            choice | code
        };
        for (two, pair) in codes.iter_mut().zip(elements.chunks(2)) {
            *two = code(&pair[0]) << 4;
            if let Some(second) = pair.get(1) {
                *two |= code(second);
            }
        }
        stored.truncate(code_bytes + at);
        stored.extend_from_slice(tail);
        Ok(())
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let damaged = |what| CodecError::Damaged { codec: "fpc", what };
        let count = raw_bytes / 8;
        let (codes, rest) = stored.split_at_checked(count.div_ceil(2)).ok_or(damaged("the codes end too early"))?;
        let codes_of = |two: &u8| [usize::from(two >> 4), usize::from(two & 15)];
        let residual_bytes: usize =
            codes.iter().flat_map(codes_of).take(count).map(|code| RESIDUAL_BYTES[code & 7]).sum();
        let (mut residuals, tail) =
            rest.split_at_checked(residual_bytes).ok_or(damaged("the residuals end too early"))?;
        if tail.len() != raw_bytes % 8 {
            return Err(damaged("the number of bytes after the residuals is wrong"));
        }
        if count % 2 == 1 && codes.last().is_some_and(|two| two & 15 != 0) {
            return Err(damaged("the unused half of the last code byte is not zero"));
        }
        resize_for_overwrite(raw, raw_bytes);
        let (elements, raw_tail) = raw.as_chunks_mut::<8>();
        let big = param & BIG_ENDIAN != 0;
        let mut predictor = Predictor::new(param, count, work.kept::<Tables>());
        for (element, code) in elements.iter_mut().zip(codes.iter().flat_map(codes_of)) {
            let bytes = RESIDUAL_BYTES[code & 7];
            let residual = match residuals.first_chunk::<8>() {
                // One shift by 64 bits would overflow, so half of the distance is shifted twice.
                Some(&eight) => u64::from_le_bytes(eight) & !(!0 << (bytes as u32 * 4) << (bytes as u32 * 4)),
                None => {
                    let mut eight = [0; 8];
                    eight[..bytes].copy_from_slice(&residuals[..bytes]);
                    u64::from_le_bytes(eight)
                }
            };
            residuals = &residuals[bytes..];
            let prediction = if code & 8 != 0 { predictor.dfcm() } else { predictor.fcm() };
            let value = residual ^ prediction;
            predictor.learn(value);
            *element = if big { value.to_be_bytes() } else { value.to_le_bytes() };
        }
        raw_tail.copy_from_slice(tail);
        Ok(())
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if param & BIG_ENDIAN != 0 { ",be" } else { "" };
        write!(f, "({}{order})", param & !BIG_ENDIAN)
    }
}

/// Both predictors. The hash functions are from figure 3 of the paper.
struct Predictor<'a> {
    fcm: &'a mut [u64],
    dfcm: &'a mut [u64],
    fcm_hash: usize,
    dfcm_hash: usize,
    last: u64,
}

impl<'a> Predictor<'a> {
    fn new(param: u32, elements: usize, tables: &'a mut Tables) -> Self {
        let level = (param & !BIG_ENDIAN).min(elements.max(2).next_power_of_two().ilog2());
        tables.0.clear();
        tables.0.resize(2 << level, 0);
        let (fcm, dfcm) = tables.0.split_at_mut(1 << level);
        Self { fcm, dfcm, fcm_hash: 0, dfcm_hash: 0, last: 0 }
    }

    #[inline(always)]
    fn fcm(&self) -> u64 {
        self.fcm[self.fcm_hash]
    }

    #[inline(always)]
    fn dfcm(&self) -> u64 {
        self.dfcm[self.dfcm_hash].wrapping_add(self.last)
    }

    #[inline(always)]
    fn learn(&mut self, value: u64) {
        let mask = self.fcm.len() - 1;
        self.fcm[self.fcm_hash] = value;
        self.fcm_hash = ((self.fcm_hash << 6) ^ (value >> 48) as usize) & mask;
        let difference = value.wrapping_sub(self.last);
        self.dfcm[self.dfcm_hash] = difference;
        self.dfcm_hash = ((self.dfcm_hash << 2) ^ (difference >> 40) as usize) & mask;
        self.last = value;
    }
}
