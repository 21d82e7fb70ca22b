//! Measures which share of a segment repeats earlier parts of the segment.

/// How many of a thousand runs of [`REPEAT_ELEMENTS`] elements occurred before in the segment.
///
/// A run whose first two elements are equal is not counted, because every codec stores such a run in few bytes. A
/// hash of the run's beginning selects one run in [`REPEAT_SAMPLED_DIVISOR`]. A run and its repeat are therefore both
/// selected or both left out, and the selected runs fit into the processor's cache. Each place of the table stores
/// only the last run with the hash of this place.
pub(super) fn repeats_per_mille(raw: &[u8], width: u8, seen: &mut Vec<u32>) -> usize {
    match width {
        2 => repeats(raw.as_chunks::<2>().0, |&e| u64::from(u16::from_le_bytes(e)), seen),
        4 => repeats(raw.as_chunks::<4>().0, |&e| u64::from(u32::from_le_bytes(e)), seen),
        8 => repeats(raw.as_chunks::<8>().0, |&e| u64::from_le_bytes(e), seen),
        _ => 0,
    }
}

const REPEAT_ELEMENTS: usize = 4;
const REPEAT_SAMPLED_DIVISOR: usize = 64;
/// With fewer runs than this number, the count is not reliable.
const REPEAT_RUNS_MIN: usize = 8;
/// The most places in the table, which take 256 KiB.
const SEEN_MAX: usize = 1 << 16;

fn repeats<T>(elements: &[T], value: impl Fn(&T) -> u64, seen: &mut Vec<u32>) -> usize {
    let places = (elements.len() / REPEAT_SAMPLED_DIVISOR * 2).next_power_of_two().clamp(256, SEEN_MAX);
    seen.clear();
    seen.resize(places, 0);
    let (mut looked_at, mut again) = (0, 0);
    for run in elements.windows(REPEAT_ELEMENTS) {
        let [a, b, c, d] = run else { continue };
        let [a, b] = [value(a), value(b)];
        // A multiplication with an odd number mixes all bits into the high bits. The multipliers are the bits after
        // the binary point of the golden ratio and of square roots.
        let start = (a ^ b.rotate_left(23)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if start >> (u64::BITS - REPEAT_SAMPLED_DIVISOR.ilog2()) == 0 && a != b {
            let hash = (start ^ start >> 32)
                .wrapping_add(value(c).wrapping_mul(0xBB67_AE85_84CA_A73B))
                .wrapping_add(value(d).wrapping_mul(0x3C6E_F372_FE94_F82B))
                .wrapping_mul(0x6A09_E667_F3BC_C909);
            let place = &mut seen[(hash >> 40) as usize & (places - 1)];
            let mark = (hash >> 8) as u32 | 1; // never 0, because 0 marks an empty place
            looked_at += 1;
            again += usize::from(*place == mark);
            *place = mark;
        }
    }
    if looked_at < REPEAT_RUNS_MIN { 0 } else { again * 1000 / looked_at }
}
