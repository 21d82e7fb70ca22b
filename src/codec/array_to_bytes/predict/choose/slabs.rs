//! Finds slabs of one domain that several ranks wrote, and joins the slabs.

use super::super::format::group::{Group, Kind};
use super::super::format::layout::Layout;
use super::super::format::numbers::Elements;

/// Whether the arrays of a group may be slabs of one domain: the group has several arrays with equal extents.
pub(crate) fn are_slabs(group: &Group) -> bool {
    let dims = group.arrays.first().copied().unwrap_or_default();
    let is_wide = dims.iter().product::<usize>() >= 8;
    let is_plain = group.table.is_none() && group.kind == Kind::Plain;
    is_plain && group.arrays.len() > 1 && is_wide && group.arrays.iter().all(|d| *d == dims)
}

/// Joins slabs of one domain, if the last plane of each slab is similar to the first plane of the next slab. Returns
/// `None` if no slabs are joined.
pub(crate) fn join(layout: &Layout, bits: &[u64], kind: Elements) -> Option<Layout> {
    let mut groups = layout.groups.clone();
    let mut from = 0; // the first element of the group in working order
    let mut is_any = false;
    for (n, group) in groups.iter_mut().enumerate() {
        let elements: usize = group.arrays.iter().map(|dims| dims.iter().product::<usize>()).sum();
        let dims = group.arrays[0];
        let each: usize = dims.iter().product();
        if group.table.is_some() {
            from += layout.elements_of(n);
            continue;
        }
        if are_slabs(group) {
            // The group is still `Kind::Plain`, so its elements are in row order.
            let value = |array: usize, at: [usize; 3]| {
                kind.ordered(bits[from + array * each + (at[0] * dims[1] + at[1]) * dims[2] + at[2]])
            };
            let bits_of = |a: i64, b: i64| f64::from(64 - a.wrapping_sub(b).unsigned_abs().leading_zeros());
            let mut best: Option<(f64, usize)> = None;
            for axis in 0..3 {
                if dims[axis] < 2 {
                    continue;
                }
                let (mut seam, mut inner, mut count) = (0.0, 0.0, 0.0);
                for array in 0..group.arrays.len() - 1 {
                    let step = (each / dims[axis] / 64).max(1);
                    for place in (0..each / dims[axis]).step_by(step) {
                        let others: Vec<usize> = (0..3).filter(|&a| a != axis).collect();
                        let mut at = [0; 3];
                        at[others[0]] = place / dims[others[1]];
                        at[others[1]] = place % dims[others[1]];
                        let with = |n: usize| {
                            let mut at = at;
                            at[axis] = n;
                            at
                        };
                        let last = value(array, with(dims[axis] - 1));
                        seam += bits_of(last, value(array + 1, with(0)));
                        inner += bits_of(last, value(array, with(dims[axis] - 2)));
                        count += 1.0;
                    }
                }
                let gap = (seam - inner) / f64::max(count, 1.0);
                if gap < 1.0 && best.is_none_or(|(least, _)| gap < least) {
                    best = Some((gap, axis));
                }
            }
            if let Some((_, axis)) = best {
                group.kind = Kind::Join(axis);
                is_any = true;
            }
        }
        from += elements;
    }
    if is_any { Layout::new(groups, layout.tables.clone(), None) } else { None }
}
