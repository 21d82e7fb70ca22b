//! Encodes the original order of a table's rows: along a curve if a curve is found, otherwise as differences of
//! places.

use super::super::super::choose::code_numbers;
use super::super::super::choose::code_numbers::Numbers;
use super::super::super::choose::effort::Effort;
use super::super::super::format::layout::Layout;
use super::super::super::format::numbers::Elements;
use super::super::format::curve::{Curve, Runs};
use super::super::format::row_order::{CURVE, STEPS, point};
use crate::codec::array_to_bytes::varint::put;
use crate::codec::threads;

/// The number of pairs of consecutive rows that are sampled to decide whether such rows are near in space.
const LOOKED_AT: usize = 512;
/// If the mean step from row to row is larger than this share of the range of all positions, no curve is searched.
const STEP_MAX: f64 = 0.2;
/// If an order along a curve takes less than one byte for 16 rows, no other way is tried.
const CURVE_ROWS_PER_BYTE: usize = 16;

/// The encoded order of a table's rows: its bytes in the header, and two codes.
type Order = (Vec<u8>, [Vec<u8>; 2]);

/// Writes the original order of the rows of all tables.
pub(crate) fn encode_orders(
    layout: &Layout,
    kind: Elements,
    bits: &[u64],
    effort: &Effort,
    threads: usize,
    header: &mut Vec<u8>,
    codes: &mut Vec<u8>,
) {
    for (own, parts) in threads::all(layout.tables.len(), threads, |t| encode_order(layout, t, kind, bits, effort)) {
        header.extend(own);
        for part in parts {
            put(part.len(), header);
            codes.extend(part);
        }
    }
}

fn encode_order(layout: &Layout, t: usize, kind: Elements, bits: &[u64], effort: &Effort) -> Order {
    let table = &layout.tables[t];
    let code = |values: &[i64]| match values.is_empty() {
        true => Vec::new(),
        false => code_numbers::encode(&Numbers { values, floats: None, is_predicted: true }, effort.numbers),
    };
    let (three, is_row) = (positions(layout, t, kind, bits), table.is_row());
    let header = |way: usize| {
        let mut header = Vec::new();
        put(way, &mut header);
        three.iter().filter(|_| way > STEPS).flatten().for_each(|&column| put(column, &mut header));
        header
    };
    let mut best: Option<Order> = None;
    let mut take_it = |order: Order| {
        let length = |order: &Order| order.0.len() + order.1.iter().map(Vec::len).sum::<usize>();
        if best.as_ref().is_none_or(|best| length(&order) < length(best)) {
            best = Some(order);
        }
        best.as_ref().map_or(0, length)
    };
    if let Some(columns) = three {
        let point = point(layout, columns, kind, bits);
        // The cube is the periodic box, or a cube around all points if there is no periodic box.
        for period in period(layout, columns).into_iter().map(Some).chain([None]) {
            let Some(curve) = Curve::find(&point, table.places(), &table.slots, period) else { continue };
            let Some(Runs { jumps, lengths }) = curve.runs(&point, &is_row, &table.slots) else { continue };
            let mut header = header(CURVE);
            curve.write(&mut header);
            put(jumps.len(), &mut header);
            if take_it((header, [code(&jumps), code(&lengths)])) * CURVE_ROWS_PER_BYTE < table.slots.len() {
                return best.unwrap_or_default();
            }
        }
    }
    let mut before = -1;
    let steps: Vec<i64> = (table.slots.iter())
        .map(|&slot| i64::from(slot) - std::mem::replace(&mut before, i64::from(slot)) - 1)
        .collect();
    take_it((header(STEPS), [code(&steps), Vec::new()]));
    best.unwrap_or_default()
}

/// The edge of the periodic box of the positions, if the box is a cube.
fn period(layout: &Layout, columns: [usize; 3]) -> Option<f64> {
    let [x, y, z] = columns.map(|column| layout.columns[column].wrap.map(|wrap| wrap.period));
    x.filter(|_| x == y && y == z)
}

fn points(layout: &Layout, column: usize, kind: Elements, bits: &[u64]) -> Vec<f64> {
    let column = &layout.columns[column];
    bits[column.base..column.base + column.elements].iter().map(|&bits| kind.value(bits)).collect()
}

/// The columns with the positions of rows: the three columns in which consecutive rows differ least. These columns
/// are the components of points, or three consecutive columns if the table has no points of three components. Columns
/// are in the order of coding.
fn positions(layout: &Layout, t: usize, kind: Elements, bits: &[u64]) -> Option<[usize; 3]> {
    let table = &layout.tables[t];
    let step = |column: usize| {
        let values = points(layout, column, kind, bits);
        let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), &v| (low.min(v), high.max(v)));
        let (mut sum, mut same, mut pairs) = (0.0, 0u32, 0u32);
        for pair in table.slots.windows(2).step_by(table.slots.len().div_ceil(LOOKED_AT).max(1)) {
            pairs += 1;
            let [a, b] = [values[pair[0] as usize], values[pair[1] as usize]];
            sum += (a - b).abs();
            same += u32::from(a == b);
        }
        let mean = sum / f64::from(pairs) / (high - low);
        // A column with few different values is not a position.
        if mean.is_finite() && same * 8 < pairs { mean } else { 1.0 }
    };
    let mut columns: Vec<(usize, usize, f64)> = Vec::new(); // lanes of its group, index in coding order, step
    layout.each_placed(|own, table, group| {
        if table == t
            && !group.is_integer
            && let Some(column) = layout.order.iter().position(|&n| n == own)
        {
            columns.push((group.lanes(), column, step(column)));
        }
    });
    let is_point = |three: &[(usize, usize, f64)]| three.iter().all(|(lanes, ..)| *lanes == 3);
    let points = columns.iter().any(|(lanes, ..)| *lanes == 3);
    let triples = (columns.windows(3)).filter(|three| is_point(three) == points);
    let mean = |three: &[(usize, usize, f64)]| three.iter().map(|(.., step)| step / 3.0).sum::<f64>();
    let best = triples.min_by(|a, b| mean(a).total_cmp(&mean(b))).filter(|three| mean(three) < STEP_MAX)?;
    Some([best[0].1, best[1].1, best[2].1])
}
