//! The order in which columns are coded. Columns that are predicted well by other columns come last. The products and
//! quotients that predict a column are kept.

use super::super::format::layout::{Array, Column, Layout};
use super::super::format::linear::{At, SIXTHS, TOGETHER, Term, powers};
use super::super::format::numbers::{Elements, by_size, precision};
use super::fit::{Sampled, select};
use super::known::Twins;
use super::limits::{FAMILY_MAX, FITTED_MIN};
use crate::codec::threads;
use std::collections::HashMap;

/// The maximum number of places that are sampled to choose an order.
const SAMPLE_ORDER: usize = 512;
/// Products are tried only if there are at most this many columns.
const PRODUCTS_MAX: usize = 24;
/// Quotients are tried only if there are at most this many columns.
const QUOTIENTS_MAX: usize = 16;

/// The terms that were found while columns were ordered, for each column. Columns are given by their numbers in the
/// order of the segment.
pub(crate) type Relations = HashMap<usize, Vec<Relation>>;

#[derive(Clone, Copy)]
pub(crate) enum Relation {
    Product(usize, usize),
    Quotient(usize, usize, usize),
}

/// The order in which columns with the same arrays are next to each other, and columns of integers come first.
pub(crate) fn side_by_side(columns: &[Column], twins: &Twins) -> Vec<usize> {
    let mut first_of: HashMap<&[Array], usize> = HashMap::new();
    let mut order: Vec<(bool, usize, usize)> = (columns.iter().enumerate().skip(twins.columns))
        .map(|(n, column)| (!column.is_integer, *first_of.entry(&column.arrays).or_insert(n), n))
        .collect();
    order.sort_unstable();
    twins.first(order.into_iter().map(|(.., n)| n).collect())
}

/// Orders the columns of each family so that columns that are predicted well by other columns come last. `keys`: see
/// [`best_last`].
pub(crate) fn reorder(
    layout: &Layout,
    values: &[f64],
    kind: Elements,
    keys: &[usize],
    threads: usize,
    twins: &Twins,
) -> Option<(Layout, Relations)> {
    let mut by_arrays: HashMap<(&[Array], bool), Vec<usize>> = HashMap::new();
    let mut families: Vec<(&[Array], bool)> = Vec::new();
    for (i, column) in layout.columns.iter().enumerate().skip(twins.columns) {
        let alike = (&column.arrays[..], column.is_integer);
        let family = by_arrays.entry(alike).or_insert_with(|| {
            families.push(alike);
            Vec::new()
        });
        family.push(i);
    }
    let mut order = Vec::with_capacity(layout.columns.len());
    let mut relations = Relations::new();
    for family in families {
        let members = &by_arrays[&family];
        let elements = layout.columns[members[0]].elements;
        if family.1 || members.len() < 2 || members.len() > FAMILY_MAX || elements < FITTED_MIN {
            order.extend(members);
            continue;
        }
        let is_placed = layout.columns[members[0]].is_placed;
        let known: Vec<usize> = members.iter().filter(|_| is_placed).filter_map(|&member| twins.of(member)).collect();
        for (member, found) in best_last(members, &known, &layout.columns, values, kind, keys, threads) {
            order.push(member);
            relations.insert(member, found);
        }
    }
    // The columns are still in the order of the segment, so the index of a column is its number.
    Some((layout.reordered(twins.first(order))?, relations))
}

/// The result of predicting one member from other members: the bits that the differences from the prediction need,
/// the members that the prediction reads, and the products and quotients of members among its terms.
type Score = (f64, Vec<usize>, Vec<Relation>);

/// Orders the members of a family so that members that are predicted well by other members come last. Each member is
/// returned with the products and quotients that predict it. Known columns may predict any member. `keys` are the
/// columns in which nested grids were found; these columns come first.
fn best_last(
    members: &[usize],
    known: &[usize],
    columns: &[Column],
    values: &[f64],
    kind: Elements,
    keys: &[usize],
    threads: usize,
) -> Vec<(usize, Vec<Relation>)> {
    let (elements, is_placed) = (columns[members[0]].elements, columns[members[0]].is_placed);
    let sample = SAMPLE_ORDER.min(elements);
    let at = |n: usize| n * elements / sample;
    let samples = |of: &[usize]| -> Vec<Vec<f64>> {
        of.iter().map(|&m| (0..sample).map(|n| values[columns[m].base + at(n)]).collect()).collect()
    };
    let (sampled, sampled_known) = (samples(members), samples(known));
    let score = |target: usize, left: &[usize]| -> Score {
        let weigh = by_size(&sampled[target], precision(kind));
        let goal: Vec<f64> = sampled[target].iter().zip(&weigh).map(|(y, w)| y * w).collect();
        let others: Vec<usize> = left.iter().copied().filter(|&m| m != target).collect();
        let mut candidates: Vec<Sampled> = Vec::new();
        let mut terms: Vec<Term> = Vec::new();
        let of = |i: u16| others[usize::from(i) - 1];
        combine(others.len(), is_placed, |term| {
            let candidate: Sampled = match term {
                Term::Value(at) => sampled[of(at.back)].clone(),
                Term::Product(a, b) => multiply(&sampled[of(a)], &sampled[of(b)], None),
                Term::Quotient(a, b, c) => multiply(&sampled[of(a)], &sampled[of(b)], Some(&sampled[of(c)])),
                Term::Power(a, sixths) => (sampled[of(a)].chunks(TOGETHER))
                    .flat_map(|own| powers(own, sixths).into_iter().take(own.len()))
                    .collect(),
                Term::One | Term::Before(_) | Term::Index(_) | Term::Change(_) => vec![1.0; sample],
            };
            candidates.push(candidate.iter().zip(&weigh).map(|(x, w)| x * w).collect());
            terms.push(term);
        });
        if let [array] = &columns[members[0]].arrays[..] {
            let [_, ny, nx] = array.dims;
            for axis in (0..3u8).filter(|&axis| array.dims[usize::from(axis)] > 1) {
                let index = |n: usize| [n / nx / ny, n / nx % ny, n % nx][usize::from(axis)] as f64;
                candidates.push(weigh.iter().enumerate().map(|(n, w)| index(at(n)) * w).collect());
                terms.push(Term::Index(axis));
            }
        }
        for known in &sampled_known {
            candidates.push(known.iter().zip(&weigh).map(|(x, w)| x * w).collect());
            terms.push(Term::One); // stands for any term without members
        }
        let selected = select(&goal, &vec![0.5; sample], candidates, 12, 0.05);
        let mut uses = Vec::new();
        let mut found = Vec::new();
        for term in selected.terms.iter().map(|&t| terms[t]) {
            match term {
                Term::Value(at) => uses.push(of(at.back)),
                Term::Product(a, b) => {
                    uses.extend([of(a), of(b)]);
                    found.push(Relation::Product(members[of(a)], members[of(b)]));
                }
                Term::Quotient(a, b, c) => {
                    uses.extend([of(a), of(b), of(c)]);
                    found.push(Relation::Quotient(members[of(a)], members[of(b)], members[of(c)]));
                }
                Term::Power(a, _) => uses.push(of(a)),
                Term::One | Term::Before(_) | Term::Index(_) | Term::Change(_) => {}
            }
        }
        (selected.bits, uses, found)
    };
    let mut left: Vec<usize> = (0..members.len()).collect();
    let mut scores: Vec<Option<Score>> = vec![None; members.len()];
    let mut last_first = Vec::with_capacity(members.len());
    while left.len() > 1 {
        let missing: Vec<usize> = left.iter().copied().filter(|&member| scores[member].is_none()).collect();
        let made = threads::all(missing.len(), threads, |n| score(missing[n], &left));
        missing.into_iter().zip(made).for_each(|(member, made)| scores[member] = Some(made));
        let bits = |m: usize| scores[m].as_ref().map_or(f64::MAX, |(bits, ..)| *bits);
        // The order is made from its end. The member in which nested grids were found comes first, so it is not taken
        // here.
        let free = left.iter().filter(|&&m| !keys.contains(&members[m]));
        let Some(&best) = free.min_by(|&&a, &&b| bits(a).total_cmp(&bits(b)).then(b.cmp(&a))) else { break };
        let found = scores[best].take().map_or_else(Vec::new, |(_, _, found)| found);
        last_first.push((members[best], found));
        left.retain(|&m| m != best);
        // Members whose prediction used this member get a new score.
        for score in &mut scores {
            if score.as_ref().is_some_and(|(_, used, _)| used.contains(&best)) {
                *score = None;
            }
        }
    }
    last_first.extend(left.into_iter().map(|m| (members[m], Vec::new())));
    last_first.into_iter().rev().collect()
}

/// Calls `term` with all terms that can be made from the `columns` columns before a column: values, powers, products,
/// then quotients. Quotients are left out for particles, because quotients saved no bytes.
fn combine(columns: usize, is_placed: bool, mut term: impl FnMut(Term)) {
    let n = columns.min(usize::from(u16::MAX)) as u16;
    (1..=n).for_each(|a| term(Term::Value(At::column(a))));
    term(Term::One);
    (1..=n).for_each(|a| SIXTHS.into_iter().for_each(|sixths| term(Term::Power(a, sixths))));
    if columns <= PRODUCTS_MAX {
        (1..=n).for_each(|a| (a..=n).for_each(|b| term(Term::Product(a, b))));
    }
    if columns <= QUOTIENTS_MAX && !is_placed {
        for a in 1..=n {
            for b in a..=n {
                (1..=n).filter(|&c| c != a && c != b).for_each(|c| term(Term::Quotient(a, b, c)));
            }
        }
    }
}

fn multiply(a: &[f64], b: &[f64], over: Option<&[f64]>) -> Sampled {
    let product = a.iter().zip(b).map(|(a, b)| a * b);
    match over {
        None => product.map(finite).collect(),
        Some(over) => product.zip(over).map(|(ab, c)| finite(ab / c)).collect(),
    }
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::super::format::group::{Group, Kind};
    use super::*;

    #[test]
    fn a_column_that_is_the_product_of_two_others_is_put_behind_them() {
        let count = 2000;
        let wave = |n: usize, step: f64| 2.0 + (n as f64 * step).sin() + (n as f64 * step * 1.7).cos() / 3.0;
        // The product comes before its factors.
        let columns: [&dyn Fn(usize) -> f64; 3] =
            [&|n| wave(n, 0.7) * wave(n, 1.3), &|n| wave(n, 0.7), &|n| wave(n, 1.3)];
        let values: Vec<f64> = columns.iter().flat_map(|of| (0..count).map(of)).collect();
        let groups = vec![Group::new(Kind::Plain, None, vec![[1, 1, count]]); 3];
        let layout = Layout::new(groups, Vec::new(), None).expect("a valid layout");
        let kind = Elements { width: 8, is_big: false, is_float: true };
        let twins = Twins::new(&layout, &[]);
        let (ordered, relations) = reorder(&layout, &values, kind, &[], 1, &twins).expect("an order");
        assert_eq!(ordered.order[2], 0, "{:?}", ordered.order);
        let found = relations.get(&0).expect("relations of the product");
        assert!(found.iter().any(|one| matches!(one, Relation::Product(1, 2) | Relation::Product(2, 1))));
        // A column in which nested grids were found comes first.
        let (kept, _) = reorder(&layout, &values, kind, &[0], 1, &twins).expect("an order");
        assert_eq!(kept.order[0], 0);
    }
}
