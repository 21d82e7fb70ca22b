//! The neighbours of a place that may predict the value at the place.

use super::super::format::linear::{At, Term};
use super::super::format::predictor::Set;
use super::effort::Stencil;

/// The neighbours that are decoded before a place, for arrays of 1 to 3 dimensions.
pub(crate) fn neighbours(dimensions: usize, stencil: Stencil, stencil_of_3d: Stencil) -> Vec<At> {
    let Stencil { near, far } = if dimensions == 3 { stencil_of_3d } else { stencil };
    let mut steps = Vec::new();
    let of = |n: usize, r: i8| if dimensions >= n { -r..=r } else { 0..=0 };
    for i in of(3, far) {
        for j in of(2, far) {
            for k in -far..=far {
                let size = [i, j, k].map(i8::abs);
                let is_near = size.iter().all(|&s| s <= near);
                let is_on_axis = size.iter().filter(|&&s| s > 0).count() == 1;
                let at = At::own([i, j, k]);
                if at.is_valid() && (is_near || is_on_axis) {
                    steps.push(at);
                }
            }
        }
    }
    steps
}

/// The steps to the place itself and to the places around it, in 1 to 3 dimensions.
pub(crate) fn around(dimensions: usize) -> impl Iterator<Item = [i8; 3]> {
    let of = move |n: usize| if dimensions >= n { -1..=1i8 } else { 0..=0 };
    let line = if dimensions > 1 { -1..=1i8 } else { -2..=2 };
    of(3).flat_map(move |i| {
        of(2).flat_map({
            let line = line.clone();
            move |j| line.clone().map(move |k| [i, j, k])
        })
    })
}

/// The neighbours of the Lorenzo sum, each with its weight, 1 or -1.
fn lorenzo_steps(dimensions: usize) -> impl Iterator<Item = ([i8; 3], f64)> {
    (1..1u8 << dimensions).map(|some| {
        // Here axis 0 is the fastest axis.
        let steps = [2, 1, 0].map(|axis| if some >> axis & 1 == 1 { -1 } else { 0 });
        (steps, if some.count_ones() % 2 == 1 { 1.0 } else { -1.0 })
    })
}

/// A set: the value of the known column that comes `back` columns before, plus the Lorenzo sum of the changes at
/// neighbours.
pub(crate) fn changes(back: u16, dimensions: usize) -> Set {
    let around = lorenzo_steps(dimensions).map(|(steps, weight)| (Term::Change(At { back, steps }), weight));
    let (terms, weights) = std::iter::once((Term::Value(At::column(back)), 1.0)).chain(around).unzip();
    Set::Linear { terms, weights }
}

/// A set: the Lorenzo sum of doubles. If numbers change their sign, this sum predicts better than the Lorenzo sum of
/// ordered integers.
pub(crate) fn lorenzo_of_doubles(dimensions: usize) -> Set {
    let around = lorenzo_steps(dimensions).map(|(steps, weight)| (Term::Value(At::own(steps)), weight));
    let (terms, weights) = around.unzip();
    Set::Linear { terms, weights }
}
