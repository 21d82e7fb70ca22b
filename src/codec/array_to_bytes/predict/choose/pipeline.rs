//! All decisions of the encoder about a segment, in stages. [`choose`] lists the stages.

use super::super::format::copies::Marks;
use super::super::format::decode::of_length;
use super::super::format::layout::{Column, Layout};
use super::super::format::linear::{Place, Term};
use super::super::format::nested::{Link, all_cells};
use super::super::format::numbers::Elements;
use super::super::format::older::Like;
use super::super::format::predictor::Predictor;
use super::column::EncodedColumn;
use super::column_data::Data;
use super::effort::Effort;
use super::find_copies;
use super::find_copies::Runs;
use super::find_nested::links;
use super::known::{Twins, same_kinds};
use super::limits::FAMILY_MAX;
use super::order::{Relation, Relations, reorder, side_by_side};
use super::slabs::{are_slabs, join};
use crate::codec::threads;

/// A segment that is to be encoded, and the settings of the encoder.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    /// The elements of known groups, then the elements of the segment.
    pub body: &'a [u8],
    pub kind: Elements,
    /// For each known group, the corresponding group of the segment. Known groups come before the groups of the
    /// segment.
    pub like: &'a [Like],
    pub effort: &'static Effort,
    pub threads: usize,
}

/// Buffers of an earlier segment, with any contents.
pub(crate) struct Spare {
    pub bits: Vec<u64>,
    pub values: Vec<f64>,
}

/// The result of stage 1. Arrays are arranged so that neighbours in space are neighbours in the columns. Elements are
/// loaded.
struct Arranged {
    layout: Layout,
    bits: Vec<u64>,
    twins: Twins,
}

/// The result of stage 2: the columns are in the order of coding.
struct Ordered {
    layout: Layout,
    bits: Vec<u64>,
    /// The values of all elements, if the elements are floating-point numbers.
    values: Vec<f64>,
    twins: Twins,
    /// Nested grids: the first column to which the links apply, in the order of coding, and the links.
    nested: Vec<(usize, Vec<Link>)>,
    /// The products and quotients that were found while columns were ordered.
    relations: Relations,
}

/// The result of stage 3: all decisions of the encoder, and the codes of each column.
pub(crate) struct Choice {
    pub layout: Layout,
    pub bits: Vec<u64>,
    /// The values of all elements, if the elements are floating-point numbers.
    pub values: Vec<f64>,
    pub runs: Runs,
    /// Nested grids: the first column to which the links apply, and the links.
    pub nested: Vec<(usize, Vec<Link>)>,
    /// The predictor and the three codes of each column that is not known.
    pub predictors: Vec<EncodedColumn>,
}

/// Runs all stages for a segment whose columns are in the order of the segment.
pub(crate) fn choose(own_order: Layout, task: Task<'_>, Spare { bits, values }: Spare) -> Choice {
    let arranged = arrange_arrays(own_order, task, bits);
    let ordered = order_columns(arranged, task, values);
    let runs = find_runs(&ordered, task);
    predict_columns(ordered, runs, task)
}

/// Joins slabs of one domain if the numbers are smooth across the border. Puts columns with the same arrays next to
/// each other.
fn arrange_arrays(mut layout: Layout, task: Task<'_>, mut bits: Vec<u64>) -> Arranged {
    let mut is_loaded = layout.groups.iter().any(are_slabs);
    if is_loaded {
        load(&layout, task, &mut bits);
        if let Some(joined) = join(&layout, &bits, task.kind) {
            layout = match task.like.is_empty() {
                true => joined,
                false => same_kinds(joined, task.like).unwrap_or(layout),
            };
            is_loaded = false;
        }
    }
    let twins = Twins::new(&layout, task.like);
    // This order does not depend on the elements, so it is set before the elements are loaded, and no element is
    // moved later.
    if !is_ordered(task)
        && let Some(grouped) = grouped(&layout, &twins)
    {
        (layout, is_loaded) = (grouped, false);
    }
    if !is_loaded {
        load(&layout, task, &mut bits);
    }
    Arranged { layout, bits, twins }
}

/// Whether columns get an order that depends on their elements.
fn is_ordered(task: Task<'_>) -> bool {
    task.kind.is_float && task.effort.orders_columns
}

fn load(layout: &Layout, task: Task<'_>, bits: &mut Vec<u64>) {
    let own = of_length(bits, layout.elements());
    if cfg!(debug_assertions) {
        own.fill(0xA5A5_A5A5_A5A5_A5A5);
    }
    bits.truncate(layout.elements());
    layout.load(task.body, task.kind, bits, task.threads);
}

/// Finds nested grids. Orders the columns so that columns that are predicted well by other columns come last.
fn order_columns(arranged: Arranged, task: Task<'_>, mut values: Vec<f64>) -> Ordered {
    let Arranged { mut layout, mut bits, twins } = arranged;
    let (mut nested, mut relations) = (Vec::new(), Relations::new());
    if task.kind.is_float {
        values = loaded_values(&layout, task, &bits, values);
        nested = links(&layout, &values, task.kind, task.effort.nested_tries_max, &twins);
    } else {
        values.clear();
    }
    let keys: Vec<usize> = nested.iter().map(|(key, _)| *key).collect();
    if is_ordered(task)
        && let Some((ordered, found)) = reorder(&layout, &values, task.kind, &keys, task.threads, &twins)
    {
        (bits, values) = moved(&layout, &ordered, &bits, &values);
        (layout, relations) = (ordered, found);
    }
    let place_of = layout.places();
    nested.iter_mut().for_each(|(key, _)| *key = place_of[*key]);
    nested.sort_by_key(|(key, _)| *key);
    Ordered { layout, bits, values, twins, nested, relations }
}

/// The elements as doubles, except for elements that no prediction reads.
fn loaded_values(layout: &Layout, task: Task<'_>, bits: &[u64], mut values: Vec<f64>) -> Vec<f64> {
    let own = of_length(&mut values, bits.len());
    if cfg!(debug_assertions) {
        own.fill(f64::NAN);
    }
    values.truncate(bits.len());
    let is_read = |column: &Column| task.effort.fits_particles || !column.is_placed;
    layout.load_values(bits, task.kind, &mut values, is_read, task.threads);
    values
}

/// Finds exact, near and wide copies of earlier elements.
fn find_runs(ordered: &Ordered, task: Task<'_>) -> Runs {
    let Ordered { layout, bits, twins, .. } = ordered;
    if !task.effort.searches_particles && is_mostly_placed(layout) {
        return Runs::none(bits.len());
    }
    let borders: Vec<usize> = layout.columns.iter().map(|column| column.base).collect();
    find_copies::find_all(bits, twins.elements, task.kind, &task.effort.copies, task.threads, &borders)
}

/// Chooses the predictor of each column, and encodes the differences.
fn predict_columns(ordered: Ordered, mut runs: Runs, task: Task<'_>) -> Choice {
    let Task { kind, effort, threads, .. } = task;
    let Ordered { layout, bits, values, twins, nested, relations } = ordered;
    let froms = runs.froms.each_ref().map(Vec::as_slice);
    let families = families(&layout.columns, twins.columns);
    let place_of = layout.places();
    let cells = all_cells(&layout.columns, &nested).unwrap_or_default();
    let predict = |n: usize| {
        let column = twins.columns + n;
        let related = relations.get(&layout.order[column]).map_or(&[][..], Vec::as_slice);
        let back = |own: usize| column.checked_sub(place_of[own]).and_then(|n| u16::try_from(n).ok()).unwrap_or(0);
        let related = related.iter().map(|relation| match *relation {
            Relation::Product(a, b) => Term::Product(back(a), back(b)),
            Relation::Quotient(a, b, c) => Term::Quotient(back(a), back(b), back(c)),
        });
        let place = Place { columns: &layout.columns, column };
        let base = layout.columns[column].base;
        let own = base..base + layout.columns[column].elements;
        let none = Marks::new(froms, &[], own.clone());
        let twin = twins.back(&layout, &place_of, column);
        // For particles, earlier positions and velocities together predict present positions. On grids, the twins of
        // other columns saved no bytes.
        let others = 1..=if layout.columns[column].is_placed { families[column] } else { 0 };
        let family_twins: Vec<u16> =
            others.filter_map(|back| twins.back(&layout, &place_of, column - back)?.checked_add(back as u16)).collect();
        let mut data = Data { place, kind, bits: &bits, values: &values, marks: none, effort, twin, family_twins };
        let derived = cells.get(column).and_then(|cells| data.derived(cells, families[column]));
        if derived.is_some() {
            data.marks = Marks::new(froms, &cells[column], own.clone());
        }
        let related: Vec<Term> = related.filter(|term| term.is_valid()).collect();
        let encode = |data: &Data<'_>| -> EncodedColumn {
            let (predictor, code) = data.predictor(families[column], related.clone());
            let predictor = Predictor { derived, ..predictor };
            let [near, derived] = predictor.encode_others(data.field(), &data.marks, effort.numbers);
            (predictor, [code, near, derived])
        };
        let near = encode(&data);
        match data.by_wide(&near, runs.wide.as_ref(), encode) {
            Some(wide) => (wide, true),
            None => (near, false),
        }
    };
    let chosen = threads::all(layout.columns.len() - twins.columns, threads, predict);
    let (predictors, is_wide): (Vec<EncodedColumn>, Vec<bool>) = chosen.into_iter().unzip();
    let column_of = |at: usize| layout.columns.partition_point(|column| column.base <= at) - 1;
    runs.take_wide(|at| column_of(at).checked_sub(twins.columns).is_some_and(|n| is_wide[n]));
    Choice { layout, bits, values, runs, nested, predictors }
}

/// Whether more than 7/8 of the elements belong to particles. Elements of particles rarely repeat.
fn is_mostly_placed(layout: &Layout) -> bool {
    let placed: usize = layout.columns.iter().filter(|column| column.is_placed).map(|column| column.elements).sum();
    placed * 8 > layout.elements() * 7
}

/// The layout in which columns with equal lists of arrays are next to each other. `None` if the segment has no
/// tables.
fn grouped(layout: &Layout, twins: &Twins) -> Option<Layout> {
    (!layout.tables.is_empty()).then(|| layout.reordered(side_by_side(&layout.columns, twins))).flatten()
}

/// Moves elements and values from one order of columns to another order of the same columns.
fn moved(from: &Layout, to: &Layout, bits: &[u64], values: &[f64]) -> (Vec<u64>, Vec<f64>) {
    let place_of = from.places();
    let (mut new_bits, mut new_values) = (Vec::with_capacity(bits.len()), Vec::with_capacity(values.len()));
    for &own in &to.order {
        let column = &from.columns[place_of[own]];
        new_bits.extend_from_slice(&bits[column.base..column.base + column.elements]);
        if !values.is_empty() {
            new_values.extend_from_slice(&values[column.base..column.base + column.elements]);
        }
    }
    (new_bits, new_values)
}

/// For each column, the number of consecutive columns just before the column that have the same arrays. Known columns
/// are not counted.
fn families(columns: &[Column], known: usize) -> Vec<usize> {
    let mut family = 0;
    (columns.iter().enumerate())
        .map(|(i, column)| {
            let is_next =
                i > known && columns[i - 1].arrays == column.arrays && columns[i - 1].is_placed == column.is_placed;
            family = if is_next && !column.is_integer && !columns[i - 1].is_integer {
                (family + 1).min(FAMILY_MAX)
            } else {
                0
            };
            family
        })
        .collect()
}
