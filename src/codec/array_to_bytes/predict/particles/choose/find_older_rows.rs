//! Finds the rows of an older segment that have the same numbers as the rows of a table, if there are enough such
//! rows.

use super::super::super::format::group::Group;
use super::super::super::format::numbers::Elements;
use super::super::format::older_rows::{NO_ROW, OlderRows};
use super::super::format::table::Table;
use crate::codec::{Older, OlderPlace};

/// An older segment is used for a table only if the older segment has rows for at least half of the places.
const THERE_DIVISOR: usize = 2;

/// The rows of an older segment that have the same numbers as the rows of a table. `places` are the positions of each
/// array of each group in the older segment.
pub(crate) fn find(
    t: usize,
    table: &Table,
    own: &[Group],
    places: &[Vec<&OlderPlace>],
    older: &Older,
    kind: Elements,
) -> Option<OlderRows> {
    let elements = |place: &OlderPlace, own: usize| {
        let OlderPlace { from, skip, bytes, is_other_length } = *place;
        let is_there = from.checked_add(bytes).is_some_and(|end| end <= older.raw.len());
        let is_whole = is_there && skip == 0 && (is_other_length || bytes == own * kind.width);
        (is_whole && from % kind.width == 0 && bytes % kind.width == 0).then(|| (from / kind.width, bytes / kind.width))
    };
    let of_group = |n: usize| {
        let arrays = own[n].arrays.iter().map(|dims| dims.iter().product::<usize>());
        places[n].iter().zip(arrays).map(|(place, own)| elements(place, own))
    };
    // Zeros at the end of an array are padding of a chunk, not rows.
    let is_zero =
        |n: usize| older.raw.get(n * kind.width..(n + 1) * kind.width).is_none_or(|bytes| kind.load(bytes) == 0);
    let keys: Vec<(usize, usize)> = of_group(table.key)
        .map(Option::unwrap_or_default)
        .map(|(from, all)| (from, (0..all).rev().find(|&row| !is_zero(from + row)).map_or(0, |row| row + 1)))
        .collect();
    let rows_of = |n: usize| -> Option<Vec<usize>> {
        let each = of_group(n).zip(&keys).map(|(found, &(_, rows))| match rows {
            0 => Some(0),
            _ => found.filter(|(_, count)| *count >= rows * own[n].lanes()).map(|(from, _)| from),
        });
        each.collect()
    };
    let members = (own.iter().enumerate()).filter(|(n, group)| group.table == Some(t) && *n != table.key);
    let members: Vec<(usize, Vec<usize>)> = members.filter_map(|(n, _)| Some((n, rows_of(n)?))).collect();
    let rows = OlderRows { first: 0, keys, members };
    let there =
        rows.rows(table.first, table.places(), &older.raw, kind)?.iter().filter(|(array, _)| *array != NO_ROW).count();
    // The known groups must not have more elements than the rows of this table and their numbers.
    let lanes: usize = rows.members.iter().map(|(n, _)| own[*n].lanes()).sum();
    let is_little = lanes * table.places() <= (lanes + 1) * table.slots.len();
    (lanes > 0 && is_little && there * THERE_DIVISOR >= table.places()).then_some(rows)
}
