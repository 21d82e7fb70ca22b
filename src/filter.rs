//! Removes HDF5's reversible chunk filters and applies them again, without HDF5.
//!
//! Sources: HDF5 1.14 `H5Zshuffle.c`, `H5Zdeflate.c` (`compress2` of the classic zlib), `H5checksum.c`
//! (`H5_checksum_fletcher32`). For each chunk, the agent removes the filters, applies them again, and compares the
//! result with the stored bytes. If the bytes differ, the stored bytes of the chunk are saved.

use crate::header::Filter;
use flate2::{Compress, Compression, FlushCompress, Status};
use libdeflater::{Decompressor, adler32};
use std::cell::RefCell;

/// Why the filters of a chunk cannot be removed or applied again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The stored bytes are not a complete deflate stream, or there are bytes after the stream.
    #[error("{stored_bytes} stored bytes are not a deflate stream")]
    Inflate {
        /// Number of stored bytes.
        stored_bytes: usize,
    },
    /// zlib refused to compress.
    #[error("zlib cannot compress {raw_bytes} bytes at level {level}")]
    Deflate {
        /// Number of raw bytes.
        raw_bytes: usize,
        /// The requested level.
        level: u8,
    },
    /// The result of a filter has another length than the file states.
    #[error("a chunk has {found} raw bytes, not {expected}")]
    Length {
        /// Length of the filter's result, in bytes.
        found: usize,
        /// The length that the file states, in bytes.
        expected: usize,
    },
    /// The checksum does not agree with the bytes.
    #[error("a chunk's Fletcher-32 checksum is {found:08x}, recorded {recorded:08x}")]
    Checksum {
        /// Checksum of the bytes.
        found: u32,
        /// Checksum in the file.
        recorded: u32,
    },
}

/// Removes the filters of one chunk. Returns exactly `raw_bytes` bytes, or an error. The length of `stored` and the
/// number `raw_bytes` limit the allocated memory.
pub fn take_off(filters: &[Filter], stored: &[u8], raw_bytes: usize) -> Result<Vec<u8>, FilterError> {
    // For each filter, the maximum number of bytes that the application passed to the filter.
    let mut limits = Vec::with_capacity(filters.len());
    let mut limit = raw_bytes;
    for filter in filters {
        limits.push(limit);
        limit = match filter {
            Filter::Shuffle { .. } => limit,
            Filter::Deflate { .. } => deflated_max(limit),
            Filter::Fletcher32 => limit.saturating_add(4),
        };
    }
    let mut bytes: Option<Vec<u8>> = None;
    for (filter, &limit) in filters.iter().zip(&limits).rev() {
        let input = bytes.as_deref().unwrap_or(stored);
        bytes = Some(match filter {
            Filter::Shuffle { width } => unshuffle(input, *width as usize),
            Filter::Deflate { .. } => inflate(input, limit)?,
            Filter::Fletcher32 => without_checksum(input)?.to_vec(),
        });
    }
    let raw = bytes.unwrap_or_else(|| stored.to_vec());
    if raw.len() != raw_bytes {
        return Err(FilterError::Length { found: raw.len(), expected: raw_bytes });
    }
    Ok(raw)
}

/// Applies the filters to one chunk. The result equals the stored bytes that [`take_off`] received if the application
/// used the same filters.
pub fn put_on(filters: &[Filter], raw: &[u8]) -> Result<Vec<u8>, FilterError> {
    let mut bytes: Option<Vec<u8>> = None;
    for filter in filters {
        let input = bytes.as_deref().unwrap_or(raw);
        bytes = Some(match filter {
            Filter::Shuffle { width } => shuffle(input, *width as usize),
            Filter::Deflate { level } => deflate(input, *level)?,
            Filter::Fletcher32 => [input, &fletcher32(input).to_le_bytes()].concat(),
        });
    }
    Ok(bytes.unwrap_or_else(|| raw.to_vec()))
}

/// Puts the first byte of every element first, then the second byte of every element, and so on. Bytes after the last
/// whole element stay at the end. A single element is not changed.
fn shuffle(raw: &[u8], width: usize) -> Vec<u8> {
    let elements = raw.len().checked_div(width).unwrap_or(0);
    if width <= 1 || elements <= 1 {
        return raw.to_vec();
    }
    let mut out = vec![0; raw.len()];
    let (planes, rest) = out.split_at_mut(elements * width);
    for (at, plane) in planes.chunks_exact_mut(elements).enumerate() {
        for (byte, element) in plane.iter_mut().zip(raw.chunks_exact(width)) {
            *byte = element[at];
        }
    }
    rest.copy_from_slice(&raw[elements * width..]);
    out
}

/// The inverse of [`shuffle`].
fn unshuffle(stored: &[u8], width: usize) -> Vec<u8> {
    let elements = stored.len().checked_div(width).unwrap_or(0);
    if width <= 1 || elements <= 1 {
        return stored.to_vec();
    }
    let mut out = vec![0; stored.len()];
    for (at, plane) in stored[..elements * width].chunks_exact(elements).enumerate() {
        for (byte, element) in plane.iter().zip(out.chunks_exact_mut(width)) {
            element[at] = *byte;
        }
    }
    out[elements * width..].copy_from_slice(&stored[elements * width..]);
    out
}

/// Size of the output buffer that HDF5 gives to zlib. At level 0, the result of zlib depends on this size.
fn deflated_max(raw_bytes: usize) -> usize {
    raw_bytes.saturating_add(raw_bytes / 1000).saturating_add(13)
}

thread_local! {
    /// The last level and its stream are kept, because creating a stream takes longer than compressing a small chunk.
    static DEFLATE: RefCell<Option<(u8, Compress)>> = const { RefCell::new(None) };
    static INFLATE: RefCell<Option<Decompressor>> = const { RefCell::new(None) };
}

/// Compresses like zlib's `compress2`: writes a zlib stream with the default window, memory level and strategy.
fn deflate(raw: &[u8], level: u8) -> Result<Vec<u8>, FilterError> {
    let refused = || FilterError::Deflate { raw_bytes: raw.len(), level };
    let mut out = vec![0; deflated_max(raw.len())];
    let kept = DEFLATE.take().filter(|(of, _)| *of == level);
    let (_, mut stream) =
        kept.unwrap_or_else(|| (level, Compress::new(Compression::new(u32::from(level.min(9))), true)));
    stream.reset();
    match stream.compress(raw, &mut out, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => {}
        Ok(Status::Ok | Status::BufError) | Err(_) => return Err(refused()),
    }
    out.truncate(usize::try_from(stream.total_out()).map_err(|_| refused())?);
    DEFLATE.set(Some((level, stream)));
    Ok(out)
}

/// Decompresses at most `limit` bytes. Fails if the stream has more bytes, or if bytes follow the end of the stream.
fn inflate(stored: &[u8], limit: usize) -> Result<Vec<u8>, FilterError> {
    let refused = || FilterError::Inflate { stored_bytes: stored.len() };
    // One byte of a deflate stream gives at most 1032 bytes, so a short stored chunk allocates little memory even if
    // its header claims a large length.
    let mut out = vec![0; limit.min(stored.len().saturating_mul(1040).saturating_add(64))];
    let mut stream = INFLATE.take().unwrap_or_default();
    let bytes = stream.zlib_decompress(stored, &mut out);
    INFLATE.set(Some(stream));
    out.truncate(bytes.map_err(|_| refused())?);
    // The library does not report where the stream ended. The stream ends with the checksum of all raw bytes.
    if !stored.ends_with(&adler32(&out).to_be_bytes()) {
        return Err(refused());
    }
    Ok(out)
}

fn without_checksum(stored: &[u8]) -> Result<&[u8], FilterError> {
    let Some((raw, sum)) = stored.split_last_chunk::<4>() else {
        return Err(FilterError::Length { found: stored.len(), expected: 4 });
    };
    let (found, recorded) = (fletcher32(raw), u32::from_le_bytes(*sum));
    if found != recorded {
        return Err(FilterError::Checksum { found, recorded });
    }
    Ok(raw)
}

/// HDF5's `H5_checksum_fletcher32`: the checksum over big-endian 16-bit words. If the number of bytes is odd, the
/// last byte is the high half of the last word.
fn fletcher32(bytes: &[u8]) -> u32 {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut sum1, mut sum2) = (0u32, 0u32);
    let words = bytes.chunks_exact(2);
    let odd = words.remainder();
    // A block has 360 words, because in longer blocks one of the two sums may overflow.
    for block in bytes[..bytes.len() - odd.len()].chunks(720) {
        for word in block.chunks_exact(2) {
            sum1 += u32::from(u16::from_be_bytes([word[0], word[1]]));
            sum2 += sum1;
        }
        (sum1, sum2) = (fold(sum1), fold(sum2));
    }
    if let [last] = odd {
        sum1 += u32::from(*last) << 8;
        sum2 += sum1;
        (sum1, sum2) = (fold(sum1), fold(sum2));
    }
    (sum1, sum2) = (fold(sum1), fold(sum2));
    (sum2 << 16) | sum1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_filter() -> impl Strategy<Value = Filter> {
        prop_oneof![
            (1u32..20).prop_map(|width| Filter::Shuffle { width }),
            (0u8..=9).prop_map(|level| Filter::Deflate { level }),
            Just(Filter::Fletcher32),
        ]
    }

    proptest! {
        #[test]
        fn what_was_put_on_comes_off(
            raw in prop::collection::vec(prop_oneof![any::<u8>(), Just(0u8)], 0..5000),
            filters in prop::collection::vec(any_filter(), 0..4),
        ) {
            let stored = put_on(&filters, &raw).expect("put on");
            prop_assert_eq!(take_off(&filters, &stored, raw.len()).expect("take off"), raw);
        }

        #[test]
        fn a_stream_that_is_used_again_gives_the_bytes_of_a_new_one(
            chunks in prop::collection::vec((0u8..=9, 1usize..7, 0usize..70_000), 1..6),
        ) {
            for (level, period, len) in chunks {
                let raw: Vec<u8> = (0..len).map(|at| (at % period * at / 1000) as u8).collect();
                let fresh = std::thread::spawn({
                    let raw = raw.clone();
                    move || deflate(&raw, level)
                });
                prop_assert_eq!(deflate(&raw, level), fresh.join().expect("no panic"));
            }
        }

        #[test]
        fn garbage_is_an_error_and_never_longer_than_allowed(
            stored in prop::collection::vec(any::<u8>(), 0..400),
            filters in prop::collection::vec(any_filter(), 0..4),
            raw_bytes in 0usize..1000,
        ) {
            if let Ok(raw) = take_off(&filters, &stored, raw_bytes) {
                prop_assert_eq!(raw.len(), raw_bytes);
            }
        }
    }

    #[test]
    fn shuffle_leaves_the_bytes_that_fill_no_element_last() {
        assert_eq!(shuffle(b"abcdefgh", 3), b"adbecfgh");
        assert_eq!(unshuffle(b"adbecfgh", 3), b"abcdefgh");
        assert_eq!(shuffle(b"abcde", 3), b"abcde", "one element is left alone");
    }

    #[test]
    fn the_checksum_is_the_librarys() {
        assert_eq!(fletcher32(b""), 0);
        assert_eq!(fletcher32(b"badc"), 0x2926_c6c4);
        assert_eq!(fletcher32(b"abcde"), 0x4ff0_29c7);
        assert_eq!(fletcher32(b"\x01"), 0x0100_0100);
    }

    #[test]
    fn deflate_is_the_classic_zlibs() {
        // Made with CPython's zlib.compress(bytes(range(16)) * 8, 6), which calls zlib's compress2.
        let raw: Vec<u8> = (0..16).cycle().take(128).collect();
        let stored = deflate(&raw, 6).expect("deflate");
        let known = *b"\x78\x9c\x63\x60\x64\x62\x66\x61\x65\x63\xe7\xe0\xe4\xe2\xe6\xe1\xe5\xe3\x67\xa0\x33\x1f\x00\xe7\xc0\x03\xc1";
        assert_eq!(stored, known);
        assert_eq!(inflate(&stored, 128).expect("inflate"), raw);
        assert!(inflate(&stored, 127).is_err(), "one byte too many must be refused");
        assert!(inflate(&[&stored[..], b"x"].concat(), 128).is_err(), "bytes after the end must be refused");
    }
}
