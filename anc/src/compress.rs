//! One merged run of raw bytes in, one stored segment out, decoded again and compared.

use mcrengine::codec::{ArrayShape, Basis, CodecError, Coded, Profile, Reason, Scratch, encode_chosen};
use mcrengine::header::{ElementType, FileHeader};
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
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<Coded, CompressError> {
    // Interleaved blocks are no arrays any more.
    let arrays: Vec<ArrayShape> = match segment.layout {
        _ if !profile.looks_at_shapes() => Vec::new(),
        Layout::Concatenated => (segment.pieces.iter().enumerate())
            .map(|(n, piece)| ArrayShape {
                is_integer: is_float(&segment.element) && !is_float(&piece.variable.of(files).element),
                ..array_shape(piece, files, segment.column_of(n))
            })
            .collect(),
        Layout::Interleaved(_) => Vec::new(),
    };
    match encode_checked(profile, segment, &arrays, raw, verify, basis, scratch) {
        Ok(coded) => Ok(coded),
        // A mistake in a codec must not cost a checkpoint: what is simpler is tried, and checked as well.
        Err(error) => {
            tracing::error!(
                error = crate::hub::error_chain(&error),
                "a segment is stored by zstd instead; report this"
            );
            let simple = Profile::Zstd { level: 3 };
            let coded = encode_checked(&simple, segment, &[], raw, verify, &Basis::NOTHING, scratch)?;
            Ok(Coded { reason: Reason::Failed, ..coded })
        }
    }
}

fn encode_checked(
    profile: &Profile,
    segment: &SegmentPlan,
    arrays: &[ArrayShape],
    raw: &[u8],
    verify: bool,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<Coded, CompressError> {
    let pooled = segment.class.is_none() && segment.columns.is_empty();
    let coded =
        encode_chosen(profile, raw, &segment.element, arrays, pooled, basis, scratch).map_err(CompressError::Codec)?;
    if verify && !coded.chain.gives_back(&coded.stored, raw, scratch).map_err(CompressError::Codec)? {
        return Err(CompressError::NotLossless {
            chain: coded.chain.to_string(),
            raw_bytes: RawBytes(raw.len() as u64),
        });
    }
    Ok(coded)
}

fn is_float(element: &ElementType) -> bool {
    matches!(element, ElementType::Float { .. })
}

/// The array that a piece is, as far as it is whole; a cut piece is a line of elements.
fn array_shape(piece: &mcrengine::plan::Piece, files: &[FileHeader], column: u32) -> ArrayShape {
    let variable = piece.variable.of(files);
    let elements = piece.bytes / u64::from(variable.element.width());
    let is_whole = piece.offset == 0 && piece.bytes == variable.raw_bytes.0;
    let product = |dims: &[u64]| dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let (dims, chunk) = (&variable.shape.0, &variable.chunk.0);
    if is_whole && product(dims) == Some(elements) && (chunk.is_empty() || chunk == dims) {
        return ArrayShape { elements, dims: dims.to_vec(), column, ..ArrayShape::default() };
    }
    // All chunks are there, the last ones in each dimension filled up.
    if is_whole && chunk.len() == dims.len() && !chunk.contains(&0) {
        let filled: Vec<u64> = dims.iter().zip(chunk).map(|(&n, &c)| n.div_ceil(c).saturating_mul(c)).collect();
        if product(&filled) == Some(elements) {
            return ArrayShape { elements, dims: filled, chunk: chunk.to_vec(), column, is_integer: false };
        }
    }
    ArrayShape { elements, dims: vec![elements], column, ..ArrayShape::default() }
}
