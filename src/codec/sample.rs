//! Samples: parts of a segment on which candidates are tried.

/// Segments of at most this many bytes are encoded as a whole with every candidate.
pub(super) const WHOLE_BYTES: usize = 16 << 10;
/// The sample of a segment longer than `WHOLE_BYTES` is 1/16 of the segment, but at least `SAMPLE_RUN_BYTES`. The
/// sample consists of 1 to 4 runs of at least `SAMPLE_RUN_BYTES` each.
const SAMPLE_DIVISOR: usize = 16;
const SAMPLE_RUN_BYTES: usize = 16 << 10;
const SAMPLE_RUNS_MAX: usize = 4;

/// A sample of the segment: whole elements from several places, joined together.
pub(super) fn sample(raw: &[u8], width: usize) -> Vec<u8> {
    if raw.len() <= WHOLE_BYTES {
        return raw.to_vec();
    }
    sample_of(raw, width, (raw.len() / SAMPLE_DIVISOR).max(SAMPLE_RUN_BYTES))
}

/// About `bytes` bytes of whole elements, from a few places spread over the segment. Returns the whole segment if the
/// segment has at most `bytes` bytes.
pub(super) fn sample_of(raw: &[u8], width: usize, bytes: usize) -> Vec<u8> {
    if raw.len() <= bytes {
        return raw.to_vec();
    }
    let runs = (bytes / SAMPLE_RUN_BYTES).clamp(1, SAMPLE_RUNS_MAX);
    let whole = |bytes: usize| bytes / width * width;
    let run = whole(bytes / runs).max(width).min(raw.len());
    let mut sample = Vec::with_capacity(runs * run);
    for i in 0..runs {
        let from = whole((raw.len() - run) / (2 * runs) * (2 * i + 1));
        sample.extend_from_slice(&raw[from..from + run]);
    }
    sample
}
