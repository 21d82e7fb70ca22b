//! Fits the terms that predict a column, and their weights, on a sample of its literals.
//!
//! A fit should minimize the length of errors in bits, not their squares. Weighted least squares approximate this
//! goal: the error at a place gets less weight if an earlier prediction has a large error at this place. The earlier
//! error at the place alone is not enough: if this error is small by chance, the place gets too much weight, and the
//! fit imitates the earlier prediction. Therefore the mean of the earlier errors around the place is used if the mean
//! is larger (`Reach::Near`). If a field is smooth except for shocks, the error at the place alone (`Reach::Own`)
//! excludes shocks better. Both variants are tried, and the fit that leaves fewer bits is used.

use super::super::format::layout::Array;
use super::super::format::linear::{TERMS_MAX, Term, locate};
use super::super::format::numbers::{about_log2, noise, precision};
use super::super::format::predictor::Set;
use super::column_data::{Data, Literals};
use super::effort::Samples;
use super::fit::{Sampled, select, solve};
use super::stencil::neighbours;

/// All neighbours are fitted at once only for columns with at least this many literals.
const STENCIL_MIN: usize = 1 << 12;
/// The earlier error at a literal is averaged over this many literals before and after the literal.
const NEAR: usize = 4;
/// Earlier errors, relative to their numbers, are raised to at least 1/16 of their median.
const OFF_MIN_SHARE: f64 = 1.0 / 16.0;
/// This share of the mean magnitude is added to each magnitude, so that no magnitude is near 0.
const SIZE_MIN_SHARE: f64 = 1e-6;

/// Whether the earlier error at a place is the error at this place alone (`Own`), or includes the errors at the
/// places around this place (`Near`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Own,
    Near,
}

/// The error of a set at each literal, and the magnitude of the literal. All values are finite.
struct Off {
    off: Vec<f64>,
    sizes: Vec<f64>,
}

/// The weight of an error at each literal, and the reach with which the weight was computed.
pub(crate) struct Importance {
    reach: Reach,
    each: Vec<f64>,
}

/// A fitted set, its errors at all literals, and the bits that the errors take at the literals to which it was
/// fitted.
pub(crate) struct Fitted {
    pub set: Set,
    pub errors: Vec<f64>,
    bits: f64,
}

/// An estimate of the bits that errors take. Errors are counts of representable numbers. The estimate is the bits of
/// each error, plus the bits that encode the lengths of all errors.
pub(crate) fn bits_of(errors: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut lengths) = (0.0, [0u32; u64::BITS as usize + 2]);
    for error in errors {
        let bits = about_log2(error + 0.5); // from -1 to 64
        sum += bits;
        lengths[((bits + 1.0) as usize).min(lengths.len() - 1)] += 1;
    }
    let lengths = || lengths.iter().filter(|&&n| n > 0).map(|&n| f64::from(n));
    let all: f64 = lengths().sum();
    sum + lengths().map(|n| n * (all / n).log2()).sum::<f64>()
}

/// A sample of at most `most` elements: `all` is cut into equal parts, and one element is taken from a random place
/// of each part. With a constant distance (such as 64), all sampled elements might be at the beginning of their rows.
pub(crate) fn spread(all: &[usize], most: usize) -> Vec<usize> {
    let count = all.len().min(most);
    let one = |n: usize| {
        let (from, end) = (n * all.len() / count, (n + 1) * all.len() / count);
        let part = noise(n as u32);
        all[from + ((u64::from(part) * (end - from) as u64) >> 32) as usize]
    };
    (0..count).map(one).collect()
}

impl Data<'_> {
    /// The importance of the error at each literal, computed from the errors of a set of terms. In tables only
    /// `Reach::Near` is used, because rows are short and fits take a long time.
    pub(crate) fn importances(&self, literals: &Literals, set: &Set) -> Vec<Importance> {
        let reaches = if self.column().is_placed { &[Reach::Near][..] } else { &[Reach::Near, Reach::Own] };
        let off = self.off(literals, set);
        reaches.iter().map(|&reach| self.importance(&off, reach)).collect()
    }

    /// Computes the error of a set at each literal, and the magnitude of the literal.
    fn off(&self, literals: &Literals, set: &Set) -> Off {
        let base = self.column().base;
        let (mut off, mut sizes) = (Vec::new(), Vec::new());
        let mut elements = literals.elements.iter();
        let finite = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
        let found = |difference: i64| {
            let Some(n) = elements.next() else { return };
            let bits = self.bits[base + n];
            let predicted = self.kind.unordered(self.kind.ordered(bits).wrapping_sub(difference));
            let value = self.kind.value(bits);
            off.push(finite(value - self.kind.value(predicted)));
            sizes.push(finite(value));
        };
        set.each_difference(self.field(), |n| literals.is_one[n], found);
        let least = sizes.iter().sum::<f64>() / sizes.len().max(1) as f64 * SIZE_MIN_SHARE;
        sizes.iter_mut().for_each(|size| *size = (*size + least).max(f64::MIN_POSITIVE));
        Off { off, sizes }
    }

    fn importance(&self, Off { off, sizes }: &Off, reach: Reach) -> Importance {
        let mut parts: Vec<f64> = off.iter().zip(sizes).map(|(off, size)| off / size).collect();
        let middle = parts.len() / 2;
        let median = if parts.is_empty() { 0.0 } else { *parts.select_nth_unstable_by(middle, f64::total_cmp).1 };
        let least = (median * OFF_MIN_SHARE).max(1.0 / precision(self.kind));
        let near = if reach == Reach::Near { NEAR } else { 0 };
        let each = |n: usize| {
            let around = &off[n.saturating_sub(near)..(n + near + 1).min(off.len())];
            let others = (around.iter().sum::<f64>() - off[n]) / (around.len() - 1).max(1) as f64;
            let importance = 1.0 / others.max(off[n]).max(sizes[n] * least);
            if importance.is_finite() { importance } else { 0.0 }
        };
        Importance { reach, each: (0..off.len()).map(each).collect() }
    }

    /// Selects terms and fits weights on some of the literals, with each of the importances. The fit that leaves the
    /// fewest bits is returned.
    pub(crate) fn fit(
        &self,
        literals: &Literals,
        some: &[usize],
        importances: &[Importance],
        pool: &[Term],
    ) -> Option<Fitted> {
        let sample = spread(some, self.effort.samples.select);
        let most = self.effort.terms_max;
        let with = |importance: &Importance| {
            let (target, floors, candidates) = self.sampled(literals, &sample, importance, pool);
            let selected = select(&target, &floors, candidates, most, 64.0 / some.len().max(1) as f64);
            let terms: Vec<Term> = selected.terms.iter().map(|&t| pool[t]).collect();
            self.weighed(literals, some, importance, terms)
        };
        importances.iter().filter_map(with).min_by(|a, b| a.bits.total_cmp(&b.bits))
    }

    /// Fits all neighbours at once, together with the terms of other columns in `fitted`. The result is used only if
    /// it leaves clearly fewer bits than `fitted`. On a smooth field many weights cancel each other, so a neighbour
    /// that does not help alone may help together with others.
    pub(crate) fn stencil(
        &self,
        literals: &Literals,
        some: &[usize],
        importances: &[Importance],
        dimensions: usize,
        fitted: &Fitted,
    ) -> Option<Fitted> {
        let Set::Linear { terms, .. } = &fitted.set else { return None };
        if dimensions < 2 || self.column().is_placed || literals.elements.len() < STENCIL_MIN {
            return None;
        }
        let mut all: Vec<Term> = neighbours(dimensions, self.effort.stencil, self.effort.stencil_of_3d)
            .into_iter()
            .map(Term::Value)
            .collect();
        let others: Vec<Term> = terms.iter().copied().filter(|term| !all.contains(term)).collect();
        all.splice(0..0, others);
        all.truncate(TERMS_MAX);
        let with = |importance: &Importance| self.weighed(literals, some, importance, all.clone());
        let best = importances
            .iter()
            .take(self.effort.stencil_ways_max)
            .filter_map(with)
            .min_by(|a, b| a.bits.total_cmp(&b.bits));
        best.filter(|best| best.bits < fitted.bits * self.effort.stencil_max_share)
    }

    /// Fits the weights of terms on some literals. The fit is repeated with the errors of the previous fit, as long
    /// as each fit leaves fewer bits.
    fn weighed(
        &self,
        literals: &Literals,
        some: &[usize],
        importance: &Importance,
        terms: Vec<Term>,
    ) -> Option<Fitted> {
        if terms.is_empty() {
            return None;
        }
        let Samples { fit, fit_times, .. } = self.effort.samples;
        let sample = spread(some, fit);
        let mut best: Option<Fitted> = None;
        for _ in 0..fit_times {
            let again = best.as_ref().map(|best| self.importance(&self.off(literals, &best.set), importance.reach));
            let (target, _, columns) = self.sampled(literals, &sample, again.as_ref().unwrap_or(importance), &terms);
            let Some(weights) = solve(&target, &columns) else { break };
            let set = Set::Linear { terms: terms.clone(), weights };
            let errors = self.errors(&set, literals);
            let bits = bits_of(some.iter().map(|&n| errors[n]));
            if best.as_ref().is_some_and(|best| bits >= best.bits) {
                break;
            }
            best = Some(Fitted { set, errors, bits });
        }
        best
    }

    /// Weighted targets, the smallest error that counts for each target, and weighted terms, at some of the literals.
    fn sampled(
        &self,
        literals: &Literals,
        sample: &[usize],
        importance: &Importance,
        terms: &[Term],
    ) -> (Vec<f64>, Vec<f64>, Vec<Sampled>) {
        let column = self.column();
        let elements: Vec<usize> = sample.iter().map(|&n| literals.elements[n]).collect();
        let weigh: Vec<f64> = sample.iter().map(|&n| importance.each[n]).collect();
        let mut target: Vec<f64> = elements.iter().map(|&n| self.values[column.base + n]).collect();
        target.iter_mut().zip(&weigh).for_each(|(y, w)| *y *= w);
        let half = 0.5 / precision(self.kind);
        let floors = target.iter().map(|y| (y.abs() * half).max(f64::MIN_POSITIVE)).collect();
        let places: Vec<(&Array, [usize; 3])> = (elements.iter())
            .map(|&n| {
                let array = locate(column, n);
                let (at, [_, ny, nx]) = (n - array.start, array.dims);
                (array, [at / nx / ny, at / nx % ny, at % nx])
            })
            .collect();
        let weighed = |term: &Term| {
            let mut candidate = self.place.gather(*term, &places, self.values);
            candidate.iter_mut().zip(&weigh).for_each(|(x, w)| *x *= w);
            candidate
        };
        (target, floors, terms.iter().map(weighed).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::format::copies::Marks;
    use super::super::super::format::group::{Group, Kind};
    use super::super::super::format::layout::Layout;
    use super::super::super::format::linear::{At, Place};
    use super::super::super::format::numbers::Elements;
    use super::super::effort::HARD;
    use super::*;

    #[test]
    fn a_column_that_is_a_weighted_sum_of_another_gets_its_weights() {
        let count = 4000;
        let noise = |n: usize| f64::from(noise(n as u32)) / f64::from(u32::MAX) + 1.0;
        let values: Vec<f64> = (0..count).map(noise).chain((0..count).map(|n| 3.0 * noise(n) - 0.75)).collect();
        let bits: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
        let groups = vec![Group::new(Kind::Plain, None, vec![[1, 1, count]]); 2];
        let layout = Layout::new(groups, Vec::new(), None).expect("a valid layout");
        let data = Data {
            place: Place { columns: &layout.columns, column: 1 },
            kind: Elements { width: 8, is_big: false, is_float: true },
            bits: &bits,
            values: &values,
            marks: Marks::new([&[], &[]], &[], count..2 * count),
            effort: &HARD,
            twin: None,
            family_twins: Vec::new(),
        };
        let all: Vec<usize> = (0..count).collect();
        let literals =
            Literals { elements: all.clone(), units: vec![0; count], unit_count: 1, is_one: vec![true; count] };
        let pool = [Term::Value(At::own([0, 0, -1])), Term::One, Term::Value(At::column(1))];
        let importances = data.importances(&literals, &Set::Integer(1));
        let fitted = data.fit(&literals, &all, &importances, &pool).expect("weights");
        let Set::Linear { terms, weights } = &fitted.set else { panic!("{:?}", fitted.set) };
        let weight = |of: Term| terms.iter().position(|term| *term == of).map(|at| weights[at]).expect("a term");
        assert!((weight(pool[2]) - 3.0).abs() < 1e-12 && (weight(pool[1]) + 0.75).abs() < 1e-12, "{:?}", fitted.set);
        assert!(fitted.errors.iter().all(|&error| error <= 4.0), "only rounding errors remain");
    }

    #[test]
    fn a_sample_has_one_of_each_share_in_order_and_small_errors_take_fewer_bits() {
        let all: Vec<usize> = (0..1000).collect();
        let some = spread(&all, 100);
        assert!(some.iter().enumerate().all(|(n, &one)| (n * 10..n * 10 + 10).contains(&one)), "{some:?}");
        assert_eq!(spread(&all[..7], 100), all[..7]);
        let bits = |error: f64| bits_of([error; 50]);
        assert!(bits(0.0) < bits(1.0) && bits(1.0) < bits(100.0) && bits(100.0) < bits(1e15));
    }
}
