//! How each column is predicted.

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

/// All that the encoder decided.
pub(crate) struct Choice {
    pub layout: Layout,
    pub bits: Vec<u64>,
    /// Of all elements, where they are real numbers.
    pub values: Vec<f64>,
    pub runs: Runs,
    /// Which arrays refine which: the first column that this holds for, and the links.
    pub nested: Vec<(usize, Vec<Link>)>,
    /// Of each column that is not known, with its three codes.
    pub predictors: Vec<EncodedColumn>,
}

impl Choice {
    /// The first groups are known, as many as there are in `like`, which says like which of the others they are. What the
    /// buffers hold does not matter.
    pub(crate) fn new(
        mut layout: Layout,
        like: &[Like],
        body: &[u8],
        kind: Elements,
        (effort, threads): (&'static Effort, usize),
        (mut bits, mut values): (Vec<u64>, Vec<f64>),
    ) -> Self {
        let load = |layout: &Layout, bits: &mut Vec<u64>| {
            let own = of_length(bits, layout.elements());
            if cfg!(debug_assertions) {
                own.fill(0xA5A5_A5A5_A5A5_A5A5);
            }
            bits.truncate(layout.elements());
            layout.load(body, kind, bits, threads);
        };
        let mut is_loaded = layout.groups.iter().any(are_slabs);
        if is_loaded {
            load(&layout, &mut bits);
            if let Some(joined) = join(&layout, &bits, kind) {
                layout = match like.is_empty() {
                    true => joined,
                    false => same_kinds(joined, like).unwrap_or(layout),
                };
                is_loaded = false;
            }
        }
        let twins = Twins::new(&layout, like);
        let is_ordered = kind.is_float && effort.orders_columns;
        // Nothing is looked at for this order, so that nothing has to be moved afterwards.
        if !is_ordered && let Some(grouped) = grouped(&layout, &twins) {
            (layout, is_loaded) = (grouped, false);
        }
        if !is_loaded {
            load(&layout, &mut bits);
        }
        if kind.is_float {
            let own = of_length(&mut values, bits.len());
            if cfg!(debug_assertions) {
                own.fill(f64::NAN);
            }
            values.truncate(bits.len());
            layout.load_values(&bits, kind, &mut values, |column| effort.fits_particles || !column.is_placed, threads);
        } else {
            values.clear();
        }
        let mut relations = Relations::new();
        let mut nested =
            if kind.is_float { links(&layout, &values, kind, effort.nested_tries_max, &twins) } else { Vec::new() };
        let keys: Vec<usize> = nested.iter().map(|(key, _)| *key).collect();
        if is_ordered && let Some((ordered, found)) = reorder(&layout, &values, kind, (&keys, threads), &twins) {
            (bits, values) = moved(&layout, &ordered, (&bits, &values));
            (layout, relations) = (ordered, found);
        }
        let is_looked_through = effort.searches_particles || !is_mostly_placed(&layout);
        let mut runs = match is_looked_through {
            true => {
                let borders: Vec<usize> = layout.columns.iter().map(|column| column.base).collect();
                find_copies::find_all(&bits, twins.elements, kind, (effort.copies, threads), &borders)
            }
            false => Runs::none(bits.len()),
        };
        let froms = runs.froms.each_ref().map(Vec::as_slice);
        let families = families(&layout.columns, twins.columns);
        let place_of = layout.places();
        nested.iter_mut().for_each(|(key, _)| *key = place_of[*key]);
        nested.sort_by_key(|(key, _)| *key);
        let cells = all_cells(&layout.columns, &nested).unwrap_or_default();
        let choose = |n: usize| {
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
            // Where particles were, and how fast: both tell where they are. On grids this brought nothing.
            let others = 1..=if layout.columns[column].is_placed { families[column] } else { 0 };
            let family_twins: Vec<u16> = others
                .filter_map(|back| twins.back(&layout, &place_of, column - back)?.checked_add(back as u16))
                .collect();
            let mut data = Data { place, kind, bits: &bits, values: &values, marks: none, effort, twin, family_twins };
            let told = cells.get(column).and_then(|cells| data.told(cells, families[column]));
            if told.is_some() {
                data.marks = Marks::new(froms, &cells[column], own.clone());
            }
            let related: Vec<Term> = related.filter(|term| term.is_valid()).collect();
            let encode = |data: &Data<'_>| -> EncodedColumn {
                let (predictor, code) = data.predictor(families[column], related.clone());
                let predictor = Predictor { told, ..predictor };
                let [near, told] = predictor.encode_others(data.field(), &data.marks, effort.numbers);
                (predictor, [code, near, told])
            };
            let near = encode(&data);
            match data.by_wide(&near, runs.wide.as_ref(), encode) {
                Some(wide) => (wide, true),
                None => (near, false),
            }
        };
        let chosen = threads::all(layout.columns.len() - twins.columns, threads, choose);
        let (predictors, is_wide): (Vec<EncodedColumn>, Vec<bool>) = chosen.into_iter().unzip();
        let column_of = |at: usize| layout.columns.partition_point(|column| column.base <= at) - 1;
        runs.take_wide(|at| column_of(at).checked_sub(twins.columns).is_some_and(|n| is_wide[n]));
        Self { layout, bits, values, runs, nested, predictors }
    }
}

/// Whether most elements are of particles, which repeat nothing.
fn is_mostly_placed(layout: &Layout) -> bool {
    let placed: usize = layout.columns.iter().filter(|column| column.is_placed).map(|column| column.elements).sum();
    placed * 8 > layout.elements() * 7
}

/// The same with columns of the same arrays side by side, where rows have places in tables.
fn grouped(layout: &Layout, twins: &Twins) -> Option<Layout> {
    (!layout.tables.is_empty()).then(|| layout.reordered(side_by_side(&layout.columns, twins))).flatten()
}

/// Elements and values in another order of the same columns.
fn moved(from: &Layout, to: &Layout, (bits, values): (&[u64], &[f64])) -> (Vec<u64>, Vec<f64>) {
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

/// For each column how many before it, in a row, have the same arrays; none of those known.
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
