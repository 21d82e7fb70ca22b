//! Finds records of equal length in files of unknown format, by bytes that repeat at a constant distance.
//!
//! Many simulation codes write their state as plain records, one for each particle or cell. In such files, bytes of
//! the same meaning (signs and exponents of numbers, counters, constants) are often equal at the distance of one
//! record. The search has three steps. Step 1 finds the distance with the most equal bytes. Step 2 finds the
//! beginning and end of the records. Step 3 finds the positions of numbers in a record.

use super::super::format::records::Records;
#[cfg(target_arch = "x86_64")]
use crate::codec::registers::has_avx2;

/// The minimum and maximum length of a record, in bytes.
const RECORD_BYTES: std::ops::RangeInclusive<usize> = 8..=2048;
/// The maximum number of bytes of a file that are searched for the distance.
const LOOKED_AT: usize = 1 << 14;
/// The maximum number of files that are searched for the distance. The longest files are searched first.
const FILES_LOOKED_AT: usize = 3;
/// The share of bytes that must be equal at the distance of one record. The share must also be more than twice the
/// median share of all distances.
const EQUAL_PERCENT_MIN: usize = 20;
/// The minimum number of records in a region.
const ROWS_MIN: usize = 32;

/// The distance at which the most bytes are equal, or a shorter distance that is nearly as good. The distance is a
/// multiple of 4 bytes. `None` if too few bytes are equal.
pub(crate) fn distance(bytes: &[u8]) -> Option<usize> {
    let from = (bytes.len() / 2).saturating_sub(LOOKED_AT / 2);
    let looked_at = &bytes[from..(from + LOOKED_AT).min(bytes.len())];
    let mut all: Vec<(usize, usize)> = Vec::new();
    for distance in RECORD_BYTES.step_by(4).take_while(|d| d * 4 < looked_at.len()) {
        let equal = equal_bytes(looked_at, &looked_at[distance..]);
        all.push((equal * 100 / (looked_at.len() - distance), distance));
    }
    let most = all.iter().map(|(percent, _)| *percent).max()?;
    let mut sorted: Vec<usize> = all.iter().map(|(percent, _)| *percent).collect();
    sorted.sort_unstable();
    let usual = sorted[sorted.len() / 2];
    // The shortest distance that is nearly as good as the best distance. Multiples of the record length are good too.
    let shortest = all.iter().find(|(percent, _)| percent * 10 >= most * 9)?;
    (most >= EQUAL_PERCENT_MIN && most > 2 * usual).then_some(shortest.1)
}

/// The number of places at which both slices have the same byte.
fn equal_bytes(a: &[u8], b: &[u8]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        #[expect(unsafe_code, reason = "a function for processors with AVX2 is called")]
        // SAFETY: the processor has AVX2.
        return unsafe { equal_bytes_avx2(a, b) };
    }
    equal_bytes_anywhere(a, b)
}

/// [`equal_bytes_anywhere`], compiled for AVX2. AVX2 compares twice as many bytes at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn equal_bytes_avx2(a: &[u8], b: &[u8]) -> usize {
    equal_bytes_anywhere(a, b)
}

#[inline(always)]
fn equal_bytes_anywhere(a: &[u8], b: &[u8]) -> usize {
    // Each of the `COLUMNS` counts is one byte, so that the compiler can vectorize the loop. The counts are added up
    // after `ROWS` rows, before a byte can overflow.
    const COLUMNS: usize = 64;
    const ROWS: usize = u8::MAX as usize;
    let length = a.len().min(b.len());
    let ((a, rest_of_a), (b, rest_of_b)) = (a[..length].as_chunks::<COLUMNS>(), b[..length].as_chunks::<COLUMNS>());
    let mut equal = rest_of_a.iter().zip(rest_of_b).filter(|(a, b)| a == b).count();
    for (a, b) in a.chunks(ROWS).zip(b.chunks(ROWS)) {
        let mut counts = [0u8; COLUMNS];
        for (a, b) in a.iter().zip(b) {
            counts.iter_mut().zip(a.iter().zip(b)).for_each(|(count, (a, b))| *count += u8::from(a == b));
        }
        equal += counts.iter().map(|&count| usize::from(count)).sum::<usize>();
    }
    equal
}

/// The records of one file, as the position of the first byte and the number of records.
fn region(bytes: &[u8], distance: usize, width: usize) -> Option<(usize, usize)> {
    let other = bytes.get(distance..)?;
    let windows: Vec<usize> = (bytes.chunks_exact(distance).zip(other.chunks_exact(distance)))
        .map(|(window, next)| equal_bytes(window, next))
        .collect();
    let mean = windows.iter().sum::<usize>() / windows.len().max(1);
    let (mut best, mut from) = (0..0, 0);
    for (n, &count) in windows.iter().chain(std::iter::once(&0)).enumerate() {
        if count * 3 < mean || count == 0 {
            if n - from > best.len() {
                best = from..n;
            }
            from = n + 1;
        }
    }
    // Numbers begin where their last bytes, which hold sign and exponent, are equal most often.
    let inside = best.start * distance..best.end * distance;
    let pairs = bytes.get(inside.clone())?.chunks_exact(width).zip(other.get(inside)?.chunks_exact(width));
    let mut counts = vec![0usize; width];
    for (here, next) in pairs {
        let equal = here.iter().zip(next).map(|(a, b)| usize::from(a == b));
        counts.iter_mut().zip(equal).for_each(|(count, equal)| *count += equal);
    }
    let phase = (0..width)
        .max_by_key(|&p| (counts[(p + width - 1) % width] * 2 + counts[(p + width - 2) % width], width - p))?;
    let start = best.start * distance + phase;
    let rows = ((best.end + 1) * distance).checked_sub(start)? / distance;
    (rows >= ROWS_MIN && start + rows * distance <= bytes.len()).then_some((start, rows))
}

/// Finds the records of contiguous files. All files use the distance of the longest file in which a distance is
/// found.
pub(crate) fn find(bytes: &[u8], files: &[usize]) -> Option<Records> {
    let mut rest = bytes;
    let mut parts: Vec<&[u8]> = Vec::new();
    for &length in files {
        let (file, after) = rest.split_at_checked(length)?;
        parts.push(file);
        rest = after;
    }
    parts.push(rest);
    let mut longest = parts.clone();
    longest.sort_by_key(|file| std::cmp::Reverse(file.len()));
    let distance = longest.iter().take(FILES_LOOKED_AT).find_map(|file| distance(file))?;
    let width = if distance % 8 == 0 { 8 } else { 4 };
    let mut found = Records { width, lanes: distance / width, regions: Vec::new() };
    let mut gap = 0;
    for file in parts {
        match region(file, distance, width) {
            Some((start, rows)) => {
                found.regions.push((gap + start, rows));
                gap = file.len() - start - rows * distance;
            }
            None => gap += file.len(),
        }
    }
    (!found.regions.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(head: usize, rows: usize, tail: usize) -> Vec<u8> {
        let noise = |n: usize| (n as f64 * 12.9898).sin().abs() + 0.01;
        let mut bytes: Vec<u8> = (0..head).map(|n| (n * 37 % 251) as u8).collect();
        for row in 0..rows {
            for x in [5.0, noise(row), noise(row + 7777), 1.0] {
                bytes.extend(f64::to_le_bytes(x));
            }
            bytes.extend((row as u64).to_le_bytes());
        }
        bytes.extend((0..tail).map(|n| (n * 91 % 241) as u8));
        bytes
    }

    #[test]
    fn equal_bytes_are_counted_one_by_one_however_many_there_are() {
        let a: Vec<u8> = (0..40_000u32).map(|n| ((n * n) >> 7) as u8).collect();
        let b: Vec<u8> = a.iter().enumerate().map(|(n, &byte)| if n % 7 == 3 { byte ^ 1 } else { byte }).collect();
        for (from, to) in [(0, 0), (0, 1), (5, 68), (0, 64), (1, 16_321), (0, 16_384), (3, 40_000)] {
            let plainly = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a == b).count();
            for (a, b) in [(&a[from..to], &b[from..]), (&a[from..], &a[from..to])] {
                assert_eq!(equal_bytes(a, b), plainly(a, b), "{from} to {to}");
                assert_eq!(equal_bytes_anywhere(a, b), plainly(a, b), "{from} to {to}");
            }
        }
    }

    #[test]
    fn records_are_found_between_what_is_none_and_come_back() {
        let files = [file(83, 200, 11), file(0, 90, 500), vec![9; 40]];
        let all: Vec<u8> = files.concat();
        let lengths: Vec<usize> = files.iter().map(Vec::len).collect();
        let found = find(&all, &lengths).expect("there are records");
        assert_eq!((found.width, found.lanes, found.regions.len()), (8, 5, 2));
        assert!(found.regions[0].0.abs_diff(83).is_multiple_of(8), "numbers begin at {}", found.regions[0].0);
        assert!(found.regions[0].1 >= 195, "{} of 200 records", found.regions[0].1);
        let (records, others) = found.split(&all);
        let mut again = Vec::new();
        found.join(&records, &others, &mut again).expect("the records and the other bytes fit");
        assert_eq!(again, all);
        let mut written = Vec::new();
        found.write(&mut written);
        assert_eq!(Records::read(&mut &written[..]), Some(found));
    }

    #[test]
    fn text_and_noise_have_no_records() {
        let text = "a parameter = 17; another = nothing at all; the third one is a long sentence. ".repeat(3);
        assert_eq!(find(text.as_bytes(), &[]), None);
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..40_000).map(|_| next()).collect();
        assert_eq!(find(&noise, &[100, 200]), None);
    }
}
