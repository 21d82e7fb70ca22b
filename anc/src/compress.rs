//! Compresses one merged segment of raw bytes. Decodes the result, and compares it with the raw bytes.

use mcrengine::codec::{ArrayShape, Basis, CodecError, Coded, Profile, Reason, Scratch, encode_chosen};
use mcrengine::error_chain::error_chain;
use mcrengine::header::{ElementType, FileHeader};
use mcrengine::merge::Layout;
use mcrengine::plan::SegmentPlan;
use mcrengine::slabs;
use mcrengine::units::RawBytes;

/// Why a segment could not be coded. The cause is a bug in a codec. No byte of the segment was written.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// A codec could not decode its own output.
    #[error("compressing a segment")]
    Codec(#[source] CodecError),
    /// A codec decoded its own output to other bytes.
    #[error(
        "decoding with the chain {chain} did not reproduce the {raw_bytes} of the segment; report this and use the \
         profile \"zstd\""
    )]
    NotLossless {
        /// Name of the chain of codecs.
        chain: String,
        /// Length of the segment.
        raw_bytes: RawBytes,
    },
}

/// Codes a segment with the given profile. With `verify`, the result is decoded and compared before it is written.
/// Then a bug in a codec costs time, but no data.
pub fn compress(
    profile: &Profile,
    segment: &SegmentPlan,
    files: &[FileHeader],
    raw: &[u8],
    verify: bool,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<Coded, CompressError> {
    // Interleaved blocks do not have the shape of the arrays.
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
        // A bug in a codec must not cost a checkpoint. Therefore zstd is tried instead, and its result is checked
        // too.
        Err(error) => {
            tracing::error!(
                error = error_chain(&error),
                "a codec failed, so the segment is compressed with zstd instead; report this"
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

/// The shape of the array that a piece holds. If a piece contains only some rows of a larger array, the shape has
/// this number of rows.
fn array_shape(piece: &mcrengine::plan::Piece, files: &[FileHeader], column: u32) -> ArrayShape {
    let variable = piece.variable.of(files);
    let elements = piece.bytes / u64::from(variable.element.width());
    let (dims, chunk) = match slabs::array_of(piece, variable) {
        Some(array) => (array.dims, array.chunk),
        None => (vec![elements], Vec::new()),
    };
    ArrayShape { elements, dims, chunk, column, is_integer: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::classify::{Naming, classify};
    use mcrengine::header::{Role, Shape, VariableHeader};
    use mcrengine::ids::{Digest, FilePath, Rank};
    use mcrengine::plan::{PlanOptions, plan};

    /// One file with one array of doubles.
    fn file(dims: &[u64]) -> Vec<FileHeader> {
        let raw_bytes = RawBytes(dims.iter().product::<u64>() * 8);
        vec![FileHeader {
            path: FilePath::new(b"f".to_vec()).expect("valid"),
            rank: Rank(0),
            bytes: 0,
            kind: Default::default(),
            mode: 0,
            modified_ns: 0,
            digest: Digest([0; 32]),
            variables: vec![VariableHeader {
                role: Role::Array,
                path: "/field".into(),
                element: ElementType::F64,
                shape: Shape(dims.into()),
                chunk: Shape::default(),
                raw_bytes,
                digest: Digest([0; 32]),
                filters: [].into(),
                extents: [].into(),
            }],
        }]
    }

    #[test]
    fn a_grid_too_large_for_a_segment_is_told_by_its_neighbours_in_all_directions() {
        // The values are rough along each axis, so a value can be predicted only with its neighbours along all three
        // axes. Some noise cannot be predicted.
        let rough = |n: u64| {
            let mixed = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((mixed ^ mixed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 12) as f64 / (1u64 << 52) as f64
        };
        let value = |n: u64| {
            let [x, y, z] = [n % 48, n / 48 % 48 + 48, n / 2304 + 96].map(rough);
            5.0 + x * y + y * z + z * x + rough(n + 1000) / 1e9
        };
        let raw: Vec<u8> = (0..48 * 48 * 48).flat_map(|n| value(n).to_le_bytes()).collect();
        let options = PlanOptions { segment_bytes: 320_000, together: true, ..PlanOptions::default() };
        let stored = |dims: &[u64]| -> usize {
            let files = file(dims);
            let segments = plan(&files, &classify(&files, &Naming::default()), &options, |_| false);
            assert_eq!(segments.len(), 3);
            let mut scratch = Scratch::default();
            let own = |segment: &SegmentPlan| {
                let piece = segment.pieces[0];
                let raw = &raw[piece.offset as usize..(piece.offset + piece.bytes) as usize];
                let basis = Basis::NOTHING;
                compress(&Profile::Balanced, segment, &files, raw, true, &basis, &mut scratch).expect("codes").stored
            };
            segments.iter().map(own).map(|stored| stored.len()).sum()
        };
        let (grid, line) = (stored(&[48, 48, 48]), stored(&[48 * 48 * 48]));
        assert!(grid * 3 < line * 2, "{grid} bytes as a grid, {line} as a line");
    }
}
