//! Splits a variable whose chunks were stored through HDF5 filters.

use super::input::Input;
use super::mode::CaptureMode;
use super::verdicts::Verdicts;
use crate::h5::MappedVariable;
use mcrengine::codec::{Profile, Scratch, encode_best};
use mcrengine::filter;
use mcrengine::header::{ElementType, Extent, Filter, Role, Shape, VariableHeader};
use mcrengine::units::RawBytes;
use std::io;

/// Maximum length of the compressed sample, in percent of the stored bytes of its chunks. The sample is unfiltered,
/// and a fast codec compresses it. If the compressed sample is longer, mode `ApartLeavingFilters` keeps the filters.
const UNFILTERED_MAX_PERCENT: f64 = 60.0;
/// Length of the sample of unfiltered chunks, in raw bytes.
const SAMPLE_BYTES: usize = 64 << 10;
/// Number of failed chunks after which no further chunks of a variable are tried, unless more chunks have succeeded
/// than failed. A chunk fails if applying its filters again does not reproduce the stored bytes, probably because
/// another zlib wrote the chunk. Each attempt takes the time of compressing the chunk.
const FAILED_CHUNKS_MAX: u32 = 2;

/// Splits a variable with filters. Chunks whose filters can be removed and applied again become raw bytes of an
/// array. The other chunks are described as they are stored. Mode `Whole` tries no chunk. Mode `ApartLeavingFilters`
/// tries chunks only if the sample compresses much better without filters. Returns whether any chunk succeeded.
pub(super) fn filtered(
    input: &mut Input<'_>,
    mapped: MappedVariable,
    mode: CaptureMode,
    verdicts: &Verdicts,
    variables: &mut Vec<VariableHeader>,
    scratch: &mut Scratch,
) -> io::Result<bool> {
    let (mut array, mut stored) = (Part::default(), Part::default());
    let mut first = Vec::new();
    let is_tried = match mode {
        CaptureMode::Whole => false,
        CaptureMode::Apart => true,
        CaptureMode::ApartLeavingFilters => {
            let raw_bytes = mapped.extents.iter().map(|extent| extent.raw_bytes).sum();
            match verdicts.are_worth_it(&mapped, raw_bytes) {
                Some(known) => known,
                None => {
                    first = first_chunks(input, &mapped)?;
                    let found = !first.is_empty() && are_worth_it(&mapped, &first, scratch);
                    if !first.is_empty() {
                        verdicts.note_worth(&mapped, raw_bytes, found);
                    }
                    found
                }
            }
        }
    };
    let mut first = first.into_iter();
    let raw_bytes = mapped.extents.iter().map(|extent| extent.raw_bytes).sum();
    let mut chunks = (is_tried && input.may_keep(raw_bytes)).then(Vec::new);
    let (mut came_back, mut failed) = (0u32, 0u32);
    for extent in &mapped.extents {
        let chunk = input.get(extent.offset, extent.stored_bytes)?;
        let is_tried = is_tried && (failed < FAILED_CHUNKS_MAX || failed < came_back);
        let raw = is_tried.then(|| first.next().or_else(|| without_filters(&mapped, extent, chunk))).flatten();
        match raw.filter(|raw| comes_back(&mapped.filters, raw, chunk)) {
            Some(raw) => {
                array.push(*extent, &raw);
                if let Some(chunks) = &mut chunks {
                    chunks.push(raw);
                }
                came_back = came_back.saturating_add(1);
            }
            None => {
                stored.push(Extent { raw_bytes: extent.stored_bytes, ..*extent }, chunk);
                failed = failed.saturating_add(1);
            }
        }
    }
    let whole = stored.extents.is_empty();
    if !array.extents.is_empty() {
        input.chunks.extend(chunks.map(|chunks| (variables.len(), chunks)));
        variables.push(VariableHeader {
            role: Role::Array,
            path: mapped.path.clone(),
            element: mapped.element,
            shape: mapped.shape,
            chunk: mapped.chunk,
            raw_bytes: RawBytes(array.raw_bytes),
            digest: array.hasher.finalize().into(),
            filters: mapped.filters,
            extents: array.extents.into(),
        });
    }
    if !whole {
        variables.push(VariableHeader {
            role: Role::StoredChunks,
            path: mapped.path,
            element: ElementType::Bytes,
            chunk: Default::default(),
            shape: Shape([stored.raw_bytes].into()),
            raw_bytes: RawBytes(stored.raw_bytes),
            digest: stored.hasher.finalize().into(),
            filters: [].into(),
            extents: stored.extents.into(),
        });
    }
    Ok(came_back > 0)
}

/// Returns the first chunks without their filters. The list ends when it has the length of the sample, or before the
/// first chunk whose filters cannot be removed.
fn first_chunks(input: &mut Input<'_>, mapped: &MappedVariable) -> io::Result<Vec<Vec<u8>>> {
    let (mut first, mut bytes) = (Vec::new(), 0);
    for extent in &mapped.extents {
        if bytes >= SAMPLE_BYTES {
            break;
        }
        let chunk = input.get(extent.offset, extent.stored_bytes)?;
        let Some(raw) = without_filters(mapped, extent, chunk) else { break };
        bytes += raw.len();
        first.push(raw);
    }
    Ok(first)
}

fn without_filters(mapped: &MappedVariable, extent: &Extent, chunk: &[u8]) -> Option<Vec<u8>> {
    let raw_bytes = usize::try_from(extent.raw_bytes).ok()?;
    filter::take_off(&mapped.filters, chunk, raw_bytes).ok()
}

/// Whether the first chunks compress much better without their filters.
fn are_worth_it(mapped: &MappedVariable, first: &[Vec<u8>], scratch: &mut Scratch) -> bool {
    let width = (mapped.element.width() as usize).max(1);
    // Only the beginning of a long chunk is compressed.
    let most = (SAMPLE_BYTES / width).max(1) * width;
    let mut part = Vec::with_capacity(most);
    for raw in first {
        part.extend_from_slice(&raw[..raw.len().min(most - part.len())]);
    }
    let raw_bytes: usize = first.iter().map(Vec::len).sum();
    let stored_bytes: u64 = mapped.extents.iter().take(first.len()).map(|extent| extent.stored_bytes).sum();
    let coded = encode_best(&Profile::Fast, &part, &mapped.element, &[], false, scratch);
    let percent = |coded: usize| coded as f64 / part.len() as f64 / (stored_bytes as f64 / raw_bytes as f64) * 100.0;
    coded.is_ok_and(|(_, coded)| percent(coded.len()) < UNFILTERED_MAX_PERCENT)
}

/// Whether applying the filters to the raw bytes reproduces the stored bytes of a chunk.
fn comes_back(filters: &[Filter], raw: &[u8], stored: &[u8]) -> bool {
    filter::put_on(filters, raw).is_ok_and(|again| again == stored)
}

/// Chunks of a dataset, and the digest of their raw bytes.
#[derive(Default)]
struct Part {
    extents: Vec<Extent>,
    raw_bytes: u64,
    hasher: blake3::Hasher,
}

impl Part {
    fn push(&mut self, extent: Extent, raw: &[u8]) {
        self.extents.push(extent);
        self.raw_bytes += extent.raw_bytes;
        self.hasher.update(raw);
    }
}
