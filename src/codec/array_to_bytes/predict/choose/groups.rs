//! Makes the groups of a segment from the shapes of its arrays.

use super::super::format::group::{Dims, Group, Kind, collapse, fits, product};
use super::super::format::layout::COLUMNS_MAX;
use super::super::format::numbers::Elements;
use super::components;
use super::components::{LANES_POINT_MAX, Taken};
use crate::codec::ArrayShape;

/// Reduces the extents of chunks to three, for an array whose extents were reduced to `collapsed`. `None` if the
/// chunk and the array cannot be reduced in the same way.
fn collapse_chunk(dims: &[u64], chunk: &[u64], collapsed: Dims) -> Option<Dims> {
    let wide: Vec<usize> = (dims.iter().zip(chunk).filter(|(n, _)| **n > 1))
        .map(|(_, &c)| usize::try_from(c).ok())
        .collect::<Option<_>>()?;
    let mut found = [1; 3];
    (dims.len() == chunk.len() && wide.len() <= 3).then_some(())?;
    found[3 - wide.len()..].copy_from_slice(&wide);
    let same: Vec<usize> = dims.iter().filter(|&&n| n > 1).map(|&n| n as usize).collect();
    (collapsed[3 - same.len()..] == same && fits(&collapsed, Some(found)) && found != collapsed).then_some(found)
}

/// For each array, how the array is split into components. Arrays of a column are split only if all of them can be
/// split in the same way. If one array cannot be split in this way, no array of the column is split, because the
/// short extent may be the extent of a thin grid.
fn taken_apart(arrays: &[ArrayShape], raw: &[u8], elements: Elements) -> Vec<Option<Taken>> {
    let mut begin = 0usize;
    let of_column = |column: &[ArrayShape]| {
        let count = column.iter().fold(0u64, |sum, array| sum.saturating_add(array.elements));
        let own = raw.get(begin.saturating_mul(elements.width)..).unwrap_or_default();
        begin = begin.saturating_add(usize::try_from(count).unwrap_or(usize::MAX));
        // A place outside of the bytes gives 0. This 0 is harmless: it occurs only if the extents are wrong, and then
        // `groups` replaces all groups by one row of numbers.
        let bytes = |at: usize| own.chunks_exact(elements.width).nth(at);
        let ordered = |at: usize| bytes(at).map_or(0, |bytes| elements.ordered(elements.load(bytes)));
        let full: Vec<ArrayShape> = column.iter().filter(|array| array.elements > 0).cloned().collect();
        let mut taken = components::of_column(&full, ordered).into_iter().flatten();
        let of = |array: &ArrayShape| if array.elements > 0 { taken.next() } else { None };
        column.iter().map(of).collect::<Vec<_>>()
    };
    arrays.chunk_by(|a, b| a.column == b.column).flat_map(of_column).collect()
}

/// The groups of a segment. If the shapes do not match the number of elements, all elements are one row of numbers.
pub(crate) fn groups(arrays: &[ArrayShape], raw: &[u8], elements: Elements) -> Vec<Group> {
    let mut groups: Vec<(u32, Group)> = Vec::new();
    let mut sum = 0usize;
    for (array, taken) in arrays.iter().zip(taken_apart(arrays, raw, elements)) {
        let Ok(count) = usize::try_from(array.elements) else { break };
        if count == 0 {
            continue;
        }
        sum = sum.saturating_add(count);
        let extents: Vec<usize> = array.dims.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
        let mut dims = Some(collapse(&extents)).filter(|dims| product(dims) == Some(count)).unwrap_or([1, 1, count]);
        let chunk = collapse_chunk(&array.dims, &array.chunk, dims);
        if chunk.is_none() && !array.chunk.is_empty() {
            dims = [1, 1, count];
        }
        let mut kind = Kind::Plain;
        if let Some(taken) = taken {
            (dims, kind) = taken;
        }
        match groups.last_mut() {
            Some((column, group)) if *column == array.column && group.chunk == chunk && group.kind == kind => {
                group.arrays.push(dims);
            }
            _ => {
                let group = Group { is_integer: array.is_integer, ..Group::new(kind, chunk, vec![dims]) };
                groups.push((array.column, group));
            }
        }
    }
    let elements = raw.len() / elements.width;
    if elements == 0 {
        return Vec::new();
    }
    if sum != elements
        || groups.iter().map(|(_, group)| group.lanes().max(LANES_POINT_MAX)).sum::<usize>() > COLUMNS_MAX
    {
        return vec![Group::new(Kind::Plain, None, vec![[1, 1, elements]])];
    }
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, group)| group).collect();
    for group in groups.iter_mut().filter(|group| group.kind == Kind::Plain) {
        let lanes = group.arrays.first().map_or(1, |dims| dims[2]);
        let are_points = |dims: &Dims| dims[2] == lanes && dims[0] == 1;
        let is_linear = group.chunk.is_none_or(|chunk| chunk[0] == 1 && chunk[2] == lanes);
        if (2..=LANES_POINT_MAX).contains(&lanes)
            && is_linear
            && group.arrays.iter().all(are_points)
            && group.arrays.iter().any(|dims| dims[1] > 1)
        {
            group.kind = Kind::Lanes(lanes);
            group.chunk = None; // points are contiguous, with or without chunks
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOUBLES: Elements = Elements { width: 8, is_big: false, is_float: true };

    fn array(dims: &[u64], column: u32) -> ArrayShape {
        ArrayShape { elements: dims.iter().product(), dims: dims.to_vec(), column, ..ArrayShape::default() }
    }

    #[test]
    fn arrays_of_one_column_are_one_group_and_lists_of_points_have_lanes() {
        let arrays = [array(&[6, 5], 0), array(&[7, 5], 0), array(&[40, 3], 1)];
        let raw = vec![0; (30 + 35 + 120) * 8];
        let found = groups(&arrays, &raw, DOUBLES);
        let expected = [(Kind::Plain, vec![[1, 6, 5], [1, 7, 5]]), (Kind::Lanes(3), vec![[1, 40, 3]])];
        let found: Vec<(Kind, Vec<Dims>)> = found.into_iter().map(|group| (group.kind, group.arrays)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn arrays_that_do_not_add_up_are_one_row_of_numbers() {
        for elements in [0, 29, 31] {
            let found = groups(&[array(&[6, 5], 0)], &vec![0; elements * 8], DOUBLES);
            let arrays: Vec<Vec<Dims>> = found.into_iter().map(|group| group.arrays).collect();
            assert_eq!(arrays, if elements == 0 { vec![] } else { vec![vec![[1, 1, elements]]] });
        }
    }
}
