//! Decodes the original order of a table's rows. The order is stored as differences of places, or along a curve.

use super::super::super::format::layout::Layout;
use super::super::super::format::numbers::Elements;
use super::super::super::format::residual;
use super::curve::{Curve, Runs};
use crate::codec::array_to_bytes::varint::take;
use crate::codec::threads;

/// Way to store an order: as differences of places.
pub(crate) const STEPS: usize = 0;
/// Way to store an order: as runs along a curve.
pub(crate) const CURVE: usize = 1;

/// Returns a function that gives the values of three columns at a place.
pub(crate) fn point<'a>(
    layout: &'a Layout,
    columns: [usize; 3],
    kind: Elements,
    bits: &'a [u64],
) -> impl Fn(usize) -> [f64; 3] + 'a {
    let columns = columns.map(|n| &bits[layout.columns[n].base..][..layout.columns[n].elements]);
    move |n| columns.map(|column| kind.value(column[n]))
}

/// The inverse of `encode_orders`: for each table, the place of each row.
pub(crate) fn decode_orders(
    layout: &Layout,
    kind: Elements,
    bits: &[u64],
    threads: usize,
    header: &mut &[u8],
    codes: &mut &[u8],
) -> Option<Vec<Vec<u32>>> {
    let mut stored = Vec::new();
    for table in &layout.tables {
        let mut columns = [0; 3];
        let way = take(header)?;
        if way > STEPS {
            for column in &mut columns {
                *column =
                    take(header).filter(|&n| layout.columns.get(n).is_some_and(|c| c.elements == table.places()))?;
            }
        }
        let curve = match way {
            CURVE => Some((Curve::read(header, table.places())?, take(header)?)),
            _ => None,
        };
        let mut parts: [&[u8]; 2] = [&[]; 2];
        for part in &mut parts {
            let (front, rest) = codes.split_at_checked(take(header)?)?;
            (*part, *codes) = (front, rest);
        }
        stored.push(Stored { way, columns, curve, parts });
    }
    let order = |t: usize| decode_order(layout, t, kind, bits, &stored[t]);
    threads::all(stored.len(), threads, order).into_iter().collect()
}

/// A stored order of rows.
struct Stored<'a> {
    way: usize,
    /// The columns that hold the positions.
    columns: [usize; 3],
    /// The curve, and the number of runs along the curve.
    curve: Option<(Curve, usize)>,
    /// The two codes of the order.
    parts: [&'a [u8]; 2],
}

fn decode_order(layout: &Layout, t: usize, kind: Elements, bits: &[u64], stored: &Stored<'_>) -> Option<Vec<u32>> {
    let (table, Stored { way, columns, curve, parts }) = (&layout.tables[t], stored);
    let numbers = |code: &[u8], count: usize| match count {
        0 => code.is_empty().then(Vec::new),
        count => residual::decode(code, count, |_| 0, Vec::new()),
    };
    if let Some((curve, runs)) = curve {
        (*runs <= table.row_count()).then_some(())?;
        let runs = Runs { jumps: numbers(parts[0], *runs)?, lengths: numbers(parts[1], *runs)? };
        return curve.order(point(layout, *columns, kind, bits), &table.is_row(), &runs);
    }
    (*way == STEPS && parts[1].is_empty()).then_some(())?;
    let mut before = -1i64;
    (numbers(parts[0], table.row_count())?.into_iter())
        .map(|step| {
            before = before.checked_add(1)?.checked_add(step)?;
            u32::try_from(before).ok().filter(|&slot| (slot as usize) < table.places())
        })
        .collect()
}
