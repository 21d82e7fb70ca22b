//! A part of a segment, on which candidates are tried.

/// Segments up to this are coded in each way that comes into question.
pub(super) const WHOLE_BYTES: usize = 16 << 10;
/// Of longer ones a sample is: a part of them, but not less than so many bytes, in runs of at least so many.
const SAMPLE_DIVISOR: usize = 16;
const SAMPLE_RUN_BYTES: usize = 16 << 10;
const SAMPLE_RUNS_MAX: usize = 4;

/// Whole elements from all over the segment, put together.
pub(super) fn sample(raw: &[u8], width: usize) -> Vec<u8> {
    if raw.len() <= WHOLE_BYTES {
        return raw.to_vec();
    }
    sample_of(raw, width, (raw.len() / SAMPLE_DIVISOR).max(SAMPLE_RUN_BYTES))
}

/// Whole elements in so many bytes, from a few places spread over the segment; all of it where it has no more.
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
