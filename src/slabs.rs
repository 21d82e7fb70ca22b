//! Cuts arrays that are too large for one segment into slabs of rows. Arrays with the same number of rows are cut at
//! the same rows.
//!
//! Each segment is coded separately. Therefore a segment gets a slab of every array instead of one whole array. In
//! this way, arrays that predict each other are in the same segment, and the elements of a slab have neighbours in
//! all dimensions.

use crate::header::{FileHeader, VariableHeader};
use crate::plan::piece::{Piece, concatenated};
use std::collections::HashMap;

/// Columns are cut together only if a segment has room for this number of rows of each column.
const ROWS_MIN: u64 = 8;
/// Minimum number of rows in a part of a column. With fewer rows, the column is cut along the next extent.
const ROWS_OF_PART: u64 = 2;
/// A piece is not cut if its length, times this number, is at most the length of a part of the column.
const UNCUT_PART: u64 = 8;
/// Arrays are cut at whole rows, into at most twice the necessary number of parts plus this number. If the parts are
/// still too long for a segment, the arrays are cut inside rows.
const PARTS_MORE: u64 = 64;

/// A unit into which an array may be cut. The longest units are rows along the first extent. Rows along each later
/// extent are shorter, and the shortest units are single elements. An array that is stored chunk after chunk is cut
/// into layers of chunks or into chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Raw bytes of one unit.
    pub bytes: u64,
    /// Extents of the unit, the slowest-varying dimension first. Consecutive units form one array that is longer
    /// along the first extent.
    pub dims: Vec<u64>,
    /// Extents of the chunks of the unit. Empty if the unit is not made of several chunks.
    pub chunk: Vec<u64>,
}

/// The kinds of units of an array, the longest units first. If the extents do not determine the order of the raw
/// bytes, the only units are elements.
pub fn steps(variable: &VariableHeader) -> Vec<Step> {
    let (dims, chunk) = (&*variable.shape.0, &*variable.chunk.0);
    let width = u64::from(variable.element.width()).max(1);
    let bytes_of = |dims: &[u64]| dims.iter().try_fold(width, |bytes, &n| bytes.checked_mul(n));
    let is_chunked = !chunk.is_empty() && chunk.len() == dims.len() && !chunk.contains(&0);
    let filled: Vec<u64> = match is_chunked {
        // The raw bytes consist of whole chunks. The last chunks in each dimension are padded.
        true => dims.iter().zip(chunk).map(|(&n, &c)| n.div_ceil(c).saturating_mul(c)).collect(),
        false => dims.to_vec(),
    };
    let mut shapes: Vec<(Vec<u64>, Vec<u64>)> = Vec::new();
    if bytes_of(&filled) == Some(variable.raw_bytes.0) && (is_chunked || chunk.is_empty()) {
        if is_chunked && chunk[1..] != filled[1..] {
            let beside = [&chunk[..1], &filled[1..]].concat();
            shapes = vec![(beside, chunk.to_vec()), (chunk.to_vec(), Vec::new())];
        } else {
            shapes = (1..dims.len()).map(|n| ([&[1], &filled[n..]].concat(), Vec::new())).collect();
        }
    }
    shapes.push((vec![1], Vec::new()));
    let step = |(dims, chunk): (Vec<u64>, Vec<u64>)| Some(Step { bytes: bytes_of(&dims)?, dims, chunk });
    shapes.into_iter().filter_map(step).filter(|step| step.bytes > 0).collect()
}

/// The array that a piece forms, made of the longest units into which the piece can be divided. `None` if the piece
/// is not made of whole units.
pub fn array_of(piece: &Piece, variable: &VariableHeader) -> Option<Step> {
    let is_whole = |step: &Step| piece.offset.is_multiple_of(step.bytes) && piece.bytes.is_multiple_of(step.bytes);
    let mut step = steps(variable).into_iter().find(is_whole)?;
    step.dims[0] *= piece.bytes / step.bytes;
    Some(Step { bytes: piece.bytes, ..step })
}

/// The pieces of one column in one file, in order.
pub(crate) type Column = Vec<Piece>;

/// Divides the columns of one file among segments. Columns with the same number of rows form a family. A family that
/// fits in a segment is not cut, and may share the segment with other families.
pub(crate) fn divide(columns: Vec<Column>, files: &[FileHeader], segment_bytes: u64) -> Vec<Vec<Column>> {
    let mut segments = Vec::new();
    let (mut open, mut room): (Vec<Column>, u64) = (Vec::new(), segment_bytes);
    for family in families(columns, files) {
        for own in with_room(family, files, segment_bytes) {
            let whole = bytes_of(&own);
            if whole > segment_bytes {
                segments.extend(slabs(&own, files, segment_bytes));
                continue;
            }
            if whole > room {
                segments.push(std::mem::take(&mut open));
                room = segment_bytes;
            }
            room -= whole;
            open.extend(own);
        }
    }
    segments.push(open);
    segments.retain(|columns| !columns.is_empty());
    segments
}

fn bytes_of(columns: &[Column]) -> u64 {
    columns.iter().flatten().map(|piece| piece.bytes).sum()
}

/// Groups the columns into families whose arrays have the same number of rows, in the order of their first columns.
fn families(columns: Vec<Column>, files: &[FileHeader]) -> Vec<Vec<Column>> {
    let rows = |piece: &Piece| piece.variable.of(files).shape.0.iter().copied().find(|&n| n > 1).unwrap_or(1);
    let mut families: Vec<Vec<Column>> = Vec::new();
    let mut family_of: HashMap<Vec<u64>, usize> = HashMap::new();
    for column in columns {
        let own = *family_of.entry(column.iter().map(rows).collect()).or_insert(families.len());
        families.resize_with(families.len().max(own + 1), Vec::new);
        families[own].push(column);
    }
    families
}

/// Divides a family into sets of columns that are cut together. There is one set if the family fits in a segment, or
/// if a segment has room for [`ROWS_MIN`] rows of each column.
fn with_room(family: Vec<Column>, files: &[FileHeader], segment_bytes: u64) -> Vec<Vec<Column>> {
    if bytes_of(&family) <= segment_bytes {
        return vec![family];
    }
    let row = |piece: &Piece| steps(piece.variable.of(files)).first().map_or(1, |step| step.bytes);
    let mut parts: Vec<Vec<Column>> = Vec::new();
    let mut room = 0;
    for column in family {
        let least = column.iter().map(row).max().unwrap_or(1).saturating_mul(ROWS_MIN);
        match parts.last_mut().filter(|_| least <= room) {
            Some(part) => part.push(column),
            None => {
                parts.push(vec![column]);
                room = segment_bytes;
            }
        }
        room = room.saturating_sub(least);
    }
    parts
}

/// Cuts columns into slabs of about equal size, each at most as long as a segment. Makes as few slabs as possible.
fn slabs(columns: &[Column], files: &[FileHeader], segment_bytes: u64) -> Vec<Vec<Column>> {
    let least = bytes_of(columns).div_ceil(segment_bytes.max(1)).max(1);
    for parts in least..=least.saturating_mul(2).saturating_add(PARTS_MORE) {
        let cut: Vec<Vec<Column>> = columns.iter().map(|column| cut(column, files, parts)).collect();
        let slab = |n: usize| -> Vec<Column> {
            cut.iter().map(|parts| parts[n].clone()).filter(|part| !part.is_empty()).collect()
        };
        // The number of slabs is at most the bytes of a file divided by the bytes of a segment.
        let slabs: Vec<Vec<Column>> = (0..parts as usize).map(slab).collect();
        if slabs.iter().all(|slab| bytes_of(slab) <= segment_bytes) {
            return slabs;
        }
    }
    // No number of parts gives slabs that fit, so the segments are filled without regard to rows.
    let mut one_by_one = Vec::new();
    for column in columns {
        concatenated(column, segment_bytes, |pieces| one_by_one.push(vec![pieces]));
    }
    one_by_one
}

/// Cuts a column into `parts` parts of about equal length. A long array is cut at whole rows. A short array is not
/// cut.
fn cut(column: &[Piece], files: &[FileHeader], parts: u64) -> Vec<Column> {
    let wide = u128::from;
    let (whole, parts_wide) = (wide(column.iter().map(|piece| piece.bytes).sum::<u64>()), wide(parts));
    let mut found = vec![Column::new(); parts as usize];
    let mut begin = 0; // offset of the piece in the column
    for piece in column {
        let step = steps(piece.variable.of(files))
            .into_iter()
            .find(|step| wide(step.bytes) * parts_wide * wide(ROWS_OF_PART) <= whole)
            .map_or(u64::from(piece.variable.of(files).element.width()).max(1), |step| step.bytes);
        let step = if wide(piece.bytes) * parts_wide * wide(UNCUT_PART) <= whole { piece.bytes } else { step };
        let end = begin + wide(piece.bytes);
        // Number of bytes of the piece that belong to the parts with a number below `n`.
        let before = |n: usize| -> u64 {
            let at = (whole * n as u128).saturating_sub(begin * parts_wide);
            let steps = (2 * at + parts_wide * wide(step)) / (2 * parts_wide * wide(step));
            let is_all = at >= wide(piece.bytes) * parts_wide;
            if is_all { piece.bytes } else { u64::try_from(steps * wide(step)).unwrap_or(u64::MAX).min(piece.bytes) }
        };
        // The range of parts that have bytes of this piece.
        let [first, last] = [begin * parts_wide / whole.max(1), (end * parts_wide).div_ceil(whole.max(1))];
        for (n, part) in found.iter_mut().enumerate().take(last as usize).skip(first as usize) {
            let (from, to) = (before(n), before(n + 1));
            if from < to {
                part.push(Piece { variable: piece.variable, offset: piece.offset + from, bytes: to - from });
            }
        }
        begin = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::VariableRef;
    use crate::header::{ElementType, Role, Shape};
    use crate::ids::{Digest, FilePath, Rank};
    use crate::units::RawBytes;
    use proptest::prelude::*;

    /// Extents of an array, and extents of its chunks.
    type Extents = (Vec<u64>, Vec<u64>);

    /// One file of doubles with the given extents and chunks.
    fn file(arrays: &[Extents]) -> Vec<FileHeader> {
        let variable = |(dims, chunk): &Extents| VariableHeader {
            role: Role::Array,
            path: "/a".into(),
            element: ElementType::F64,
            shape: Shape(dims.clone().into()),
            chunk: Shape(chunk.clone().into()),
            raw_bytes: RawBytes(match chunk.is_empty() {
                true => dims.iter().product::<u64>() * 8,
                false => dims.iter().zip(chunk).map(|(&n, &c)| n.next_multiple_of(c)).product::<u64>() * 8,
            }),
            digest: Digest([0; 32]),
            filters: [].into(),
            extents: [].into(),
        };
        vec![FileHeader {
            path: FilePath::new(b"f".to_vec()).expect("valid"),
            rank: Rank(0),
            bytes: 0,
            kind: Default::default(),
            mode: 0,
            modified_ns: 0,
            digest: Digest([0; 32]),
            variables: arrays.iter().map(variable).collect(),
        }]
    }

    fn whole(n: u32, files: &[FileHeader]) -> Piece {
        let variable = VariableRef { file: 0, variable: n };
        Piece { variable, offset: 0, bytes: variable.of(files).raw_bytes.0 }
    }

    /// The extents of the pieces of each column of each segment.
    fn divided(arrays: &[Extents], segment_bytes: u64) -> Vec<Vec<Vec<u64>>> {
        let files = file(arrays);
        let columns = (0..arrays.len() as u32).map(|n| vec![whole(n, &files)]).collect();
        let dims = |piece: &Piece| array_of(piece, piece.variable.of(&files)).expect("whole elements").dims;
        let of_segment = |columns: &Vec<Column>| columns.iter().flatten().map(dims).collect();
        divide(columns, &files, segment_bytes).iter().map(of_segment).collect()
    }

    #[test]
    fn each_segment_has_a_slab_of_all_arrays_with_as_many_rows() {
        let plain = |dims: &[u64]| (dims.to_vec(), Vec::new());
        // 100 planes of 3200 bytes, 100 planes of 9600 bytes, and lists of 100 and 31 elements: 1,281,048 bytes in
        // all.
        let arrays = [plain(&[100, 20, 20]), plain(&[31]), plain(&[100, 20, 20, 3]), plain(&[100])];
        let slab = |rows: u64| vec![vec![rows, 20, 20], vec![rows, 20, 20, 3], vec![rows]];
        assert_eq!(divided(&arrays, 700_000), [slab(50), slab(50), vec![vec![31]]]);
        assert_eq!(divided(&arrays, 450_000), [slab(33), slab(34), slab(33), vec![vec![31]]]);
        // A plane is longer than a segment, so it is cut into rows. The rows form an array of two dimensions.
        assert_eq!(divided(&[plain(&[3, 40, 50])], 9000), vec![vec![vec![20, 50]]; 6]);
    }

    #[test]
    fn arrays_in_chunks_are_cut_between_chunks() {
        let chunked = |dims: &[u64], chunk: &[u64]| (dims.to_vec(), chunk.to_vec());
        // 5 layers of 2 x 3 chunks, with the last chunks padded: 983,040 bytes in all.
        let array = chunked(&[70, 30, 40], &[16, 16, 16]);
        assert_eq!(divided(std::slice::from_ref(&array), 600_000), [[[48, 32, 48]], [[32, 32, 48]]]);
        // A layer is longer than a segment, so the array is cut into chunks.
        assert_eq!(divided(&[array], 70_000), vec![vec![vec![32, 16, 16]]; 15]);
        // Chunks that hold whole rows are cut like rows.
        assert_eq!(divided(&[chunked(&[99, 3], &[50, 3])], 1500), vec![vec![vec![50, 3]]; 2]);
    }

    #[test]
    fn families_that_have_room_stay_whole_and_share_a_segment() {
        let plain = |dims: &[u64]| (dims.to_vec(), Vec::new());
        let arrays = [plain(&[10, 10]), plain(&[200, 10]), plain(&[10, 20]), plain(&[12, 10])];
        let expected = [
            vec![vec![67, 10]],
            vec![vec![66, 10]],
            vec![vec![67, 10]],
            vec![vec![10, 10], vec![10, 20], vec![12, 10]],
        ];
        assert_eq!(divided(&arrays, 6000), expected);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_piece_in_order_and_within_the_bound(
            arrays in prop::collection::vec(
                prop::collection::vec((1u64..20, 1u64..6), 0..4)
                    .prop_flat_map(|extents| (Just(extents), any::<bool>())),
                1..6,
            ),
            same in any::<bool>(),
            segment_bytes in (1u64..200).prop_map(|n| n * 8),
        ) {
            let extents = |n: usize, extents: &[(u64, u64)], is_chunked: bool| -> Extents {
                let mut dims: Vec<u64> = extents.iter().map(|&(n, _)| n).collect();
                if let (true, Some(first)) = (same && n > 0, dims.first_mut()) {
                    *first = 17;
                }
                (dims, extents.iter().filter(|_| is_chunked).map(|&(_, c)| c).collect())
            };
            let arrays: Vec<Extents> = (arrays.iter().enumerate()).map(|(n, (own, is_chunked))| extents(n, own, *is_chunked)).collect();
            let files = file(&arrays);
            // If there are at least three arrays, the last two arrays are of one class.
            let mut columns: Vec<Column> = (0..arrays.len() as u32).map(|n| vec![whole(n, &files)]).collect();
            if columns.len() > 2 {
                let last = columns.pop().into_iter().flatten();
                columns.last_mut().expect("two at least").extend(last);
            }
            let mut covered = vec![0; arrays.len()];
            for segment in divide(columns, &files, segment_bytes) {
                prop_assert!((1..=segment_bytes).contains(&bytes_of(&segment)));
                for piece in segment.iter().flatten() {
                    let end = &mut covered[piece.variable.variable as usize];
                    prop_assert!(*end == piece.offset && piece.bytes > 0);
                    *end += piece.bytes;
                    let array = array_of(piece, piece.variable.of(&files)).expect("whole elements");
                    prop_assert_eq!(array.dims.iter().product::<u64>() * 8, piece.bytes);
                }
            }
            let expected: Vec<u64> = files[0].variables.iter().map(|variable| variable.raw_bytes.0).collect();
            prop_assert_eq!(covered, expected);
        }
    }
}
