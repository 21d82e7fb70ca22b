//! One merged run of raw bytes in, one stored segment out, decoded again and compared.

use mcrengine::codec::{ArrayShape, CodecError, Profile, Scratch, encode_best};
use mcrengine::container::StoredSegment;
use mcrengine::header::FileHeader;
use mcrengine::merge::Layout;
use mcrengine::plan::SegmentPlan;
use mcrengine::units::RawBytes;

/// Why a segment could not be coded. A bug of ours; nothing of the segment was written.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// A codec failed on its own output.
    #[error("coding a segment")]
    Codec(#[source] CodecError),
    /// A codec did not give the same bytes back.
    #[error(
        "the chain {chain} did not give back the {raw_bytes} that it was given; report this and use the profile \"zstd\""
    )]
    NotLossless {
        /// Which chain.
        chain: String,
        /// How much.
        raw_bytes: RawBytes,
    },
}

/// Codes a segment as the profile says. With `verify` it is decoded again and compared before anything is written:
/// a codec's mistake costs a checkpoint's time, never its data.
pub fn compress(
    profile: &Profile,
    segment: &SegmentPlan,
    files: &[FileHeader],
    raw: &[u8],
    verify: bool,
    scratch: &mut Scratch,
) -> Result<StoredSegment, CompressError> {
    // Interleaved blocks are no arrays any more.
    let arrays: Vec<ArrayShape> = match segment.layout {
        Layout::Concatenated => segment.pieces.iter().map(|piece| array_shape(piece, files)).collect(),
        Layout::Interleaved(_) => Vec::new(),
    };
    let pooled = segment.class.is_none();
    let (chain, stored) =
        encode_best(profile, raw, &segment.element, &arrays, pooled, scratch).map_err(CompressError::Codec)?;
    if verify && !chain.gives_back(&stored, raw, scratch).map_err(CompressError::Codec)? {
        return Err(CompressError::NotLossless { chain: chain.to_string(), raw_bytes: RawBytes(raw.len() as u64) });
    }
    Ok(StoredSegment { chain, raw_bytes: RawBytes(raw.len() as u64), stored })
}

/// The array that a piece is, as far as it is whole; a cut piece is a line of elements.
fn array_shape(piece: &mcrengine::plan::Piece, files: &[FileHeader]) -> ArrayShape {
    let variable = piece.variable.of(files);
    let elements = piece.bytes / u64::from(variable.element.width());
    let is_whole = piece.offset == 0 && piece.bytes == variable.raw_bytes.0;
    let dims = match is_whole && variable.filters.is_empty() && variable.extents.len() == 1 {
        true => variable.shape.0.to_vec(),
        false => vec![elements],
    };
    ArrayShape { elements, dims }
}
