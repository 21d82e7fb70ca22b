//! Finds numbers in bytes of unknown format.
//!
//! Numbers near each other have similar magnitudes, so their exponents differ little, even if their signs differ. The
//! bytes are therefore read as numbers in different ways. A way is a width, a byte order, a type, and a phase: the
//! place in a word where the numbers begin. First all ways are tried at a few places of a file. Then each window of
//! the file is read in the ways that fitted at one of these places. The right way is the way in which neighbouring
//! numbers differ least. With a wrong phase or byte order, the last bits of another number are read as the exponent.
//! If the width is too small, every second number is wrong. Text is excluded, because the bytes of text are also near
//! each other.

/// How bytes are read as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    /// Bytes of each number: 4 or 8.
    pub width: usize,
    /// Whether the numbers are big-endian.
    pub is_big: bool,
    /// Whether the numbers are floating-point numbers instead of signed integers.
    pub is_float: bool,
}

/// Consecutive numbers of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// Position of the first byte.
    pub start: usize,
    /// Length in bytes, a multiple of the numbers' width, and never 0.
    pub bytes: usize,
    /// How the bytes are read as numbers.
    pub kind: Kind,
    /// Numbers in one record. 1 if there are no records.
    pub lanes: usize,
    /// Number of records along each dimension, slowest dimension first. 1 if unknown.
    pub dims: [usize; 3],
}

/// A kind of numbers, and the place in a word where the numbers begin.
type Way = (Kind, usize);

/// Number of bytes at one place of a file that are read in all ways.
const PLACE_BYTES: usize = 2048;
/// Maximum number of places in one file, and approximate maximum number of places in all files together.
const PLACES_MAX: usize = 16;
const PLACES_OF_ALL: usize = 256;
/// Maximum number of ways that are used for one file.
const WAYS_MAX: usize = 4;
/// After the ways are found, all bytes of the file are read in windows of this many bytes.
const WINDOW_BYTES: usize = 512;
/// Up to `GAP_WINDOWS` windows that do not fit may lie within a region. A region has at least `REGION_WINDOWS`
/// windows.
const GAP_WINDOWS: usize = 2;
const REGION_WINDOWS: usize = 4;
/// Neighbouring numbers are near each other if their difference is at least this many bits shorter than the numbers.
/// For random bits, the difference is 2.5 bits shorter on average.
const BITS_LESS: f64 = 6.0;
/// If the mean difference at a place has fewer bits than this number (for example at a place of zeros), the place
/// fits in many ways, and no way is chosen.
const BITS_FEW: f64 = 4.0;

impl Kind {
    /// All kinds of numbers, with floating-point numbers first.
    fn all() -> impl Iterator<Item = Self> {
        [true, false].into_iter().flat_map(|is_float| {
            [8, 4].into_iter().flat_map(move |width| [false, true].map(|is_big| Self { width, is_big, is_float }))
        })
    }

    fn bits(self) -> usize {
        self.width * 8
    }

    /// The numbers in these bytes. Integers are signed, and floating-point numbers are loaded without their sign.
    pub(super) fn load(self, bytes: &[u8]) -> impl Iterator<Item = i64> {
        bytes.chunks_exact(self.width).map(move |own| {
            let mut bits = [0; 8];
            bits[..self.width].copy_from_slice(own);
            if self.is_big {
                bits[..self.width].reverse();
            }
            let bits = u64::from_le_bytes(bits);
            match (self.is_float, self.width) {
                (true, _) => (bits & !(1 << (self.bits() - 1))) as i64,
                (false, 8) => bits as i64,
                (false, _) => i64::from(bits as i32),
            }
        })
    }

    /// Mean length in bits of the differences between each number and the number `lag` places before it. `bytes` must
    /// begin with a number.
    pub(super) fn cost(self, bytes: &[u8], lag: usize) -> f64 {
        /// A separate loop for each kind, so that the kind is chosen only once.
        fn sum<const WIDTH: usize>(bytes: &[u8], lag: usize, load: impl Fn([u8; WIDTH]) -> i64) -> (u32, usize) {
            let (own, _) = bytes.as_chunks::<WIDTH>();
            let pairs = own.get(lag..).unwrap_or_default().iter().zip(own);
            let sum = pairs.clone().map(|(&a, &b)| bits_between(load(a), load(b))).sum();
            (sum, pairs.len())
        }
        let (sum, count) = match (self.width, self.is_big, self.is_float) {
            (8, false, true) => sum::<8>(bytes, lag, |own| i64::from_le_bytes(own) & i64::MAX),
            (8, true, true) => sum::<8>(bytes, lag, |own| i64::from_be_bytes(own) & i64::MAX),
            (8, false, false) => sum::<8>(bytes, lag, i64::from_le_bytes),
            (8, true, false) => sum::<8>(bytes, lag, i64::from_be_bytes),
            (_, false, true) => sum::<4>(bytes, lag, |own| i64::from(i32::from_le_bytes(own) & i32::MAX)),
            (_, true, true) => sum::<4>(bytes, lag, |own| i64::from(i32::from_be_bytes(own) & i32::MAX)),
            (_, false, false) => sum::<4>(bytes, lag, |own| i64::from(i32::from_le_bytes(own))),
            (_, true, false) => sum::<4>(bytes, lag, |own| i64::from(i32::from_be_bytes(own))),
        };
        if count == 0 { self.bits() as f64 } else { f64::from(sum) / count as f64 }
    }

    /// The lowest cost of several lags. Lags of 2 and 3 compare numbers of equal meaning in records of 2 or 3
    /// numbers. Numbers of 4 bytes do not use lag 2, because the halves of numbers of 8 bytes are near each other at
    /// that lag.
    fn least_cost(self, bytes: &[u8]) -> f64 {
        let lags: &[usize] = if self.width == 8 { &[1, 2, 3] } else { &[1, 3] };
        lags.iter().map(|&lag| self.cost(bytes, lag)).fold(f64::MAX, f64::min)
    }

    fn is_near(self, cost: f64) -> bool {
        cost <= self.bits() as f64 - BITS_LESS
    }
}

/// Length in bits of the difference of two numbers.
fn bits_between(a: i64, b: i64) -> u32 {
    u64::BITS - a.wrapping_sub(b).unsigned_abs().leading_zeros()
}

/// The whole words of a window that begins at `start`, read in the given way.
fn words(bytes: &[u8], start: usize, (kind, phase): Way) -> &[u8] {
    let skip = (phase + kind.width - start % kind.width) % kind.width;
    let own = bytes.get(skip..).unwrap_or_default();
    &own[..own.len() / kind.width * kind.width]
}

fn is_text(bytes: &[u8]) -> bool {
    let count = bytes.iter().filter(|&&byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r')).count();
    count * 20 > bytes.len() * 19
}

/// The way in which the numbers at a place differ least. `None` if neighbours are not near each other in any way.
fn way_of(file: &[u8], start: usize) -> Option<Way> {
    let place = &file[start..(start + PLACE_BYTES).min(file.len())];
    if is_text(place) {
        return None;
    }
    let mut best: Option<(f64, Way)> = None;
    for kind in Kind::all() {
        for phase in 0..kind.width {
            let cost = kind.least_cost(words(place, start, (kind, phase)));
            let of_byte = cost / kind.width as f64;
            if cost >= BITS_FEW && kind.is_near(cost) && best.is_none_or(|(least, _)| of_byte < least) {
                best = Some((of_byte, (kind, phase)));
            }
        }
    }
    best.map(|(_, way)| way)
}

/// The ways that fit a file. The ways that fit at the most places come first.
fn ways_of(file: &[u8], places: usize) -> Vec<Way> {
    let room = file.len().saturating_sub(PLACE_BYTES);
    let mut found: Vec<(usize, Way)> = Vec::new();
    for place in 0..places {
        let start = if places == 1 { room / 2 } else { room / (places - 1) * place };
        let Some(way) = way_of(file, start) else { continue };
        match found.iter_mut().find(|(_, other)| *other == way) {
            Some((count, _)) => *count += 1,
            None => found.push((1, way)),
        }
    }
    found.sort_by_key(|(count, way)| (usize::MAX - count, *way));
    found.into_iter().map(|(_, way)| way).take(WAYS_MAX).collect()
}

/// The best way for each window, or `None` if no way fits. The way of the previous window is kept unless another way
/// is clearly better.
fn windows_of(file: &[u8], ways: &[Way]) -> Vec<Option<Way>> {
    let mut last = None;
    let way_of = |(n, window): (usize, &[u8])| {
        let of = |way: Way| {
            let cost = way.0.cost(words(window, n * WINDOW_BYTES, way), 1);
            way.0.is_near(cost).then_some((cost / way.0.width as f64, way))
        };
        let mut best = last.and_then(of);
        for (cost, way) in ways.iter().filter_map(|&way| of(way)) {
            if best.is_none_or(|(least, _)| cost + 0.01 < least) {
                best = Some((cost, way));
            }
        }
        let best = best.filter(|_| !is_text(window)).map(|(_, way)| way);
        last = best.or(last);
        best
    };
    file.chunks_exact(WINDOW_BYTES).enumerate().map(way_of).collect()
}

/// The regions of one file. Positions count from the beginning of the file.
fn regions_of(file: &[u8], places: usize) -> Vec<Region> {
    let ways = ways_of(file, places);
    let windows = if ways.is_empty() { Vec::new() } else { windows_of(file, &ways) };
    let mut regions: Vec<Region> = Vec::new();
    let mut n = 0;
    while let Some(&way) = windows.get(n) {
        let Some(way @ (kind, phase)) = way else {
            n += 1;
            continue;
        };
        let (from, mut to) = (n, n + 1);
        while let Some(more) = windows[to..].iter().take(GAP_WINDOWS + 1).position(|&other| other == Some(way)) {
            // A window of another kind ends the region.
            if windows[to..to + more].iter().any(Option::is_some) {
                break;
            }
            to += more + 1;
        }
        n = to;
        if to - from < REGION_WINDOWS {
            continue;
        }
        let floor = regions.last().map_or(0, |before| before.start + before.bytes);
        let mut start = (from * WINDOW_BYTES).max(floor);
        start += (phase + kind.width - start % kind.width) % kind.width;
        let mut end = start + (to * WINDOW_BYTES - start) / kind.width * kind.width;
        // Extends the region at both ends, as long as the next number is near its neighbour.
        let near = |at: usize, other: usize| {
            let load = |at: usize| kind.load(file.get(at..at + kind.width)?).next();
            let both = load(at).zip(load(other));
            both.is_some_and(|(a, b)| kind.is_near(f64::from(bits_between(a, b))))
        };
        let (first, last) = (start, end);
        while start >= floor + kind.width
            && from * WINDOW_BYTES < start + WINDOW_BYTES
            && near(start - kind.width, start)
        {
            start -= kind.width;
        }
        while end < to * WINDOW_BYTES + WINDOW_BYTES && near(end, end - kind.width) {
            end += kind.width;
        }
        // Removes numbers at the ends that are not near their neighbour, such as a header or a marker.
        while start >= first && start < first + WINDOW_BYTES && !near(start, start + kind.width) {
            start += kind.width;
        }
        while end <= last && end + WINDOW_BYTES > last && !near(end - 2 * kind.width, end - kind.width) {
            end -= kind.width;
        }
        let dims = [1, 1, (end - start) / kind.width];
        regions.push(Region { start, bytes: end - start, kind, lanes: 1, dims });
    }
    regions
}

/// All regions of several contiguous files. Each region is one row of numbers. The bytes after the last file count as
/// one more file.
pub(super) fn find(bytes: &[u8], files: &[usize]) -> Vec<Region> {
    let mut ends: Vec<usize> = Vec::with_capacity(files.len() + 1);
    let mut end = 0usize;
    for &length in files {
        end = end.saturating_add(length).min(bytes.len());
        ends.push(end);
    }
    ends.push(bytes.len());
    let places = (PLACES_OF_ALL / ends.len()).clamp(1, PLACES_MAX);
    let mut found = Vec::new();
    let mut start = 0;
    for end in ends {
        let file = &bytes[start..end];
        if file.len() >= REGION_WINDOWS * WINDOW_BYTES {
            let places = places.min(file.len() / PLACE_BYTES).max(1);
            found.extend(
                regions_of(file, places).into_iter().map(|region| Region { start: start + region.start, ..region }),
            );
        }
        start = end;
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn noise(n: usize) -> f64 {
        let n = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let n = (n ^ n >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((n ^ n >> 32) >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    }

    #[test]
    fn numbers_of_each_kind_are_found_at_any_phase() {
        for kind in Kind::all() {
            for phase in 0..kind.width {
                let mut bytes: Vec<u8> = (0..1000usize).map(|n| (noise(n) * 256.0) as i64 as u8).collect();
                bytes.truncate(992 + phase);
                for n in 0..3000 {
                    let x = noise(n + 5000) * 3.0;
                    let own = match (kind.width, kind.is_float) {
                        (8, true) => x.to_le_bytes().to_vec(),
                        (8, false) => ((x * 1e6) as i64).to_le_bytes().to_vec(),
                        (_, true) => (x as f32).to_le_bytes().to_vec(),
                        (_, false) => ((x * 1000.0) as i32).to_le_bytes().to_vec(),
                    };
                    if kind.is_big { bytes.extend(own.iter().rev()) } else { bytes.extend(&own) }
                }
                bytes.extend((0..600usize).map(|n| (noise(n + 99) * 256.0) as i64 as u8));
                let found = find(&bytes, &[]);
                let [region] = &found[..] else { panic!("{kind:?} at {phase}: {found:?}") };
                assert_eq!(region.kind, kind);
                assert!(region.start.abs_diff(992 + phase) <= WINDOW_BYTES, "{kind:?}: {region:?}");
                assert_eq!(region.start % kind.width, phase % kind.width, "{kind:?}: {region:?}");
                assert!(region.bytes.abs_diff(3000 * kind.width) <= 2 * WINDOW_BYTES, "{kind:?}: {region:?}");
            }
        }
    }

    #[test]
    fn text_and_noise_hold_no_numbers() {
        let text = "time 0.125 density 1.7320508 velocity -0.33 pressure 101325; ".repeat(300);
        assert_eq!(find(text.as_bytes(), &[]), []);
        let chance: Vec<u8> = (0..50_000).map(|n| (noise(n) * 256.0) as i64 as u8).collect();
        assert_eq!(find(&chance, &[]), []);
    }
}
