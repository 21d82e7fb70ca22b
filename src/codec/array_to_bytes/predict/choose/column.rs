//! The choice of a predictor for one column.

use super::super::format::copies::{COPIED, LITERAL, NEAR};
use super::super::format::layout::{Array, RowPlace};
use super::super::format::linear::{At, Term, locate};
use super::super::format::nested::DerivedCells;
use super::super::format::numbers::about_log2;
use super::super::format::predictor::{Predictor, Set, Units, rows};
use super::code_numbers;
use super::code_numbers::Numbers;
use super::column_data::{Data, Literals};
use super::effort::{ESTIMATE, SMALL_STENCIL, SMALL_STENCIL_OF_3D};
use super::find_copies::Wide;
use super::limits::FITTED_MIN;
use super::stencil::{around, changes, lorenzo_of_doubles, neighbours};
use super::weights::{Fitted, bits_of, spread};

/// The maximum number of cells that are sampled to decide whether cells are computed from their blocks.
const SAMPLE: usize = 2048;
/// Cells are computed from their blocks only if the mean difference between a cell and its computed value has fewer
/// bits than this number. For elements of 4 bytes, the limit is half of this number.
const DERIVED_BITS_MAX: f64 = 30.0;
/// In tables, fitted weights are used only if they save 1/12 of the bytes. Fitted weights slow down the decoding of
/// tables, because rows are short, and each element is decoded only after the previous element.
const WEIGHTS_DIVISOR: usize = 12;
/// With the lower effort, a set whose elements must be decoded one after the other is used only if it saves 1/64 of
/// the bits.
const ONE_BY_ONE_DIVISOR: f64 = 64.0;
/// The Lorenzo sum of doubles, whose weights are not fitted, is used only if it saves 1/48 of the bits.
const LORENZO_DIVISOR: f64 = 48.0;
/// The maximum number of literals that are coded to estimate the size of a code.
const LOOKED_AT: usize = 4096;
/// The number of runs of consecutive literals in a sample of `LOOKED_AT` literals.
const RUNS: usize = 4;
/// If the estimates of two predictors differ by less than 1/64, all literals are coded with both predictors.
const TIE_DIVISOR: usize = 64;
/// Wide copies are tried for a column only if the number of elements that they predict exceeds the number of near
/// copies by at least 1/16 of the elements.
const WIDE_DIVISOR: usize = 16;
/// Weights are fitted again only if wide copies predict more than 1/4 of the elements.
const WIDE_REFIT_DIVISOR: usize = 4;
/// The number of elements of a unit. All elements of a unit use the same set.
const UNIT: usize = 256;
/// In columns of at least this many elements, weights are fitted on a part of the units (`Effort::unit_divisor`).
const PART_MIN: usize = 1 << 14;
/// The maximum number of fitted sets of a column.
const SETS_MAX: usize = 4;
/// An additional set must save this share of the bits.
const SET_GAIN: f64 = 0.004;

impl<'a> Data<'a> {
    /// Decides whether to compute cells from their blocks. Returns how many columns before this column the column of
    /// weights is (0: plain means), or `None` if computing cells saves no bytes.
    pub(crate) fn derived(&self, cells: &[u32], family: usize) -> Option<u16> {
        let column = self.column();
        let some: Vec<usize> = (0..column.elements)
            .filter(|&n| cells.get(n).is_some_and(|&cell| cell != 0) && self.marks.kinds[n] != COPIED)
            .collect();
        if some.is_empty() {
            return None;
        }
        let sample = spread(&some, SAMPLE);
        let bits = |back: u16| {
            let weights = (back > 0).then(|| self.place.base_of(back));
            let mut derived_cells = DerivedCells::new(column, weights);
            let off = |&n: &usize| {
                let computed = self.kind.nearest(derived_cells.value(locate(column, n), cells[n], n, self.values));
                let off = self.kind.ordered(self.bits[column.base + n]).wrapping_sub(computed).unsigned_abs();
                f64::from(u64::BITS - off.leading_zeros())
            };
            sample.iter().map(off).sum::<f64>() / sample.len() as f64
        };
        let most = if self.kind.width == 4 { DERIVED_BITS_MAX / 2.0 } else { DERIVED_BITS_MAX };
        let backs = 0..=family.min(8) as u16;
        let best = backs.map(|back| (bits(back), back)).min_by(|a, b| a.0.total_cmp(&b.0));
        best.filter(|(bits, _)| *bits < most).map(|(_, back)| back)
    }

    /// Replaces near copies by wide copies, if wide copies make the code of the column shorter. The weights do not
    /// change. If wide copies predict much of the column, `encode` also fits new weights to the remaining elements.
    pub(crate) fn by_wide(
        &mut self,
        near: &EncodedColumn,
        wide: Option<&'a Wide>,
        encode: impl Fn(&Self) -> EncodedColumn,
    ) -> Option<EncodedColumn> {
        let (own, wide) = (self.column().base..self.column().base + self.column().elements, wide?);
        let marks = self.marks.with_near(&wide.froms, own.clone());
        let (count, before) = (marks.count(NEAR), self.marks.count(NEAR));
        let predicted = self.marks.count(LITERAL) + before;
        if count == 0 || count * WIDE_DIVISOR < predicted + before * WIDE_DIVISOR {
            return None;
        }
        let off = self.field().near_differences(&marks).map(|off| off.unsigned_abs() as f64);
        let (run_bytes, bytes_of) = (wide.bytes(own), |codes: &[Vec<u8>; 3]| codes.iter().map(Vec::len).sum::<usize>());
        let of_each = (bits_of(off) / 8.0 + run_bytes as f64) / count as f64;
        if of_each * predicted as f64 > bytes_of(&near.1) as f64 {
            return None;
        }
        self.marks = marks;
        let code = near.0.encode(self.field(), &self.marks, self.effort.numbers);
        let [copied, derived] = near.0.encode_others(self.field(), &self.marks, self.effort.numbers);
        let mut best = (near.0.clone(), [code, copied, derived]);
        if bytes_of(&best.1) + run_bytes >= bytes_of(&near.1) {
            return None;
        }
        if self.effort.refits_after_wide && count * WIDE_REFIT_DIVISOR > predicted {
            let anew = encode(self);
            if bytes_of(&anew.1) < bytes_of(&best.1) {
                best = anew;
            }
        }
        Some(best)
    }

    /// Chooses the predictor of the column, and returns the predictor and the code of the literals. `family` is the
    /// number of columns just before this column that have the same arrays. The values of these columns can be terms.
    /// `related` are products and quotients of earlier columns that are terms too.
    ///
    /// The options are: no prediction, an integer sum, and a predictor with fitted weights. With the lower effort,
    /// the size of each code is estimated from some literals. With the higher effort, all literals are coded with
    /// each option, and the option with the fewest bytes is taken.
    pub(crate) fn predictor(&self, family: usize, related: Vec<Term>) -> (Predictor, Vec<u8>) {
        let column = self.column();
        let mut literals =
            Literals { elements: Vec::new(), units: Vec::new(), unit_count: 0, is_one: vec![false; column.elements] };
        // To save time, the weights of a large column are fitted on one of every `part` units, see `Units`.
        let part = if column.elements < PART_MIN { 1 } else { self.effort.unit_divisor };
        let mut count = 0;
        let mut units = Units::new(UNIT);
        rows(column, |RowPlace { array, i, j, start }| {
            let unit = units.row(array, i, j);
            let is_looked_at = part == 1 || unit.wrapping_mul(0x9E37_79B1) >> 9 & (part - 1) == 0;
            let from = start - column.base;
            for (n, &kind) in self.marks.kinds[from..from + array.dims[2]].iter().enumerate() {
                if kind == LITERAL {
                    count += 1;
                    if is_looked_at {
                        literals.is_one[from + n] = true;
                        literals.elements.push(from + n);
                        literals.units.push(unit as u32);
                    }
                }
            }
            Some(())
        });
        literals.unit_count = units.count();
        let wide = |array: &Array| array.dims.iter().filter(|&&n| n > 1).count().max(1);
        let dimensions = column.arrays.iter().map(wide).max().unwrap_or(1);
        let lorenzo = Set::Integer(dimensions as u8);
        let since = self.since(&literals, dimensions);
        let mut others = Vec::new();
        if self.kind.is_float && !column.is_integer && literals.elements.len() >= FITTED_MIN {
            if column.is_placed {
                others.push(Predictor::of(self.integer(&literals, dimensions)));
            }
            if self.effort.fits_particles || !column.is_placed {
                others.push(self.fitted(&literals, lorenzo, since, dimensions, family, related));
            }
        } else if count > 0 {
            others.extend(since.map(|(set, _)| Predictor::of(set)));
            others.extend((self.effort.codes_all_ways && dimensions > 1).then(|| Predictor::of(lorenzo)));
        }
        let code = |option: &Predictor| option.encode(self.field(), &self.marks, self.effort.numbers);
        let none = Predictor::none();
        if others.is_empty() {
            let code = code(&none);
            return (none, code);
        }
        if !self.effort.codes_all_ways {
            let some = self.some_runs();
            let mut other = others.swap_remove(0);
            let (mut predicted, plain) = (self.looked_at(&some, &other), self.looked_at(&some, &none));
            let is_fitted = matches!(other.sets[..], [Set::Linear { .. }]);
            if is_fitted && predicted > plain {
                other = Predictor::of(Set::Integer(dimensions as u8));
                predicted = self.looked_at(&some, &other);
            }
            let (less, more) = (predicted.min(plain), predicted.max(plain));
            if !column.is_placed && more - less < more / TIE_DIVISOR {
                let both = [other, none].map(|option| (code(&option), option));
                let [predicted, plain] = both;
                let waits = matches!(&predicted.1.sets[..], [set] if set.is_one_by_one());
                let own = predicted.0.len() as f64 * if waits { 1.0 + 1.0 / ONE_BY_ONE_DIVISOR } else { 1.0 };
                let (code, chosen) = if own < plain.0.len() as f64 { predicted } else { plain };
                return (chosen, code);
            }
            let chosen = if predicted < plain { other } else { none };
            let code = code(&chosen);
            return (chosen, code);
        }
        let cost = |option: &Predictor, code: &[u8]| {
            let mut written = Vec::new();
            option.write(&mut written);
            written.len() + code.len()
        };
        let mut best = (code(&none), none);
        for other in others {
            let predicted = code(&other);
            let is_slow = column.is_placed && matches!(other.sets[..], [Set::Linear { .. }, ..]);
            let own = cost(&other, &predicted);
            if own + if is_slow { own / WEIGHTS_DIVISOR } else { 0 } < cost(&best.1, &best.0) {
                best = (predicted, other);
            }
        }
        (best.1, best.0)
    }

    /// The integer sum in the number of dimensions that leaves the fewest bits. Integer sums are tried for tables. In
    /// tables, rows are short, and fitted weights save few bytes and take much time.
    fn integer(&self, literals: &Literals, dimensions: usize) -> Set {
        let left = |dimensions: usize| {
            let set = Set::Integer(dimensions as u8);
            let errors = self.errors(&set, literals);
            (errors.iter().map(|error| about_log2(error + 0.5)).sum::<f64>(), set)
        };
        let best = (1..=dimensions).rev().map(left).min_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(Set::Integer(1), |(_, set)| set)
    }

    /// Runs of consecutive literals, spread over the column.
    fn some_runs(&self) -> Vec<usize> {
        let count = self.marks.count(LITERAL);
        let each = (count / RUNS).min(LOOKED_AT / RUNS);
        let (mut literals, mut at) = (self.marks.all(LITERAL), 0);
        let mut some = Vec::with_capacity(each * RUNS);
        for from in (0..RUNS).map(|n| n * count / RUNS + (count / RUNS - each) / 2) {
            some.extend(literals.by_ref().skip(from - at).take(each));
            at = from + each;
        }
        some
    }

    /// The number of bytes that the literals `some` take with a predictor. A predictor without sets means no
    /// prediction.
    fn looked_at(&self, some: &[usize], predictor: &Predictor) -> usize {
        let column = self.column();
        let mut values = Vec::with_capacity(some.len());
        let set = predictor.sets.first();
        if let Some(set) = set {
            let mut is_one = vec![false; column.elements];
            some.iter().for_each(|&n| is_one[n] = true);
            set.each_difference(self.field(), |n| is_one[n], |difference| values.push(difference));
        } else {
            values.extend(some.iter().map(|&n| self.kind.ordered(self.bits[column.base + n])));
        }
        let numbers = Numbers { values: &values, floats: None, is_predicted: set.is_some() };
        code_numbers::encode(&numbers, ESTIMATE).len()
    }

    /// The best set that predicts from the twin, and its errors. The prediction is the value of the twin plus a
    /// Lorenzo sum of the changes at neighbours. The sum is computed in ordered integers or in doubles, in the number
    /// of dimensions that leaves the fewest bits.
    fn since(&self, literals: &Literals, dimensions: usize) -> Option<(Set, Vec<f64>)> {
        let back = self.twin?;
        let integer = |n: usize| Set::Since { back, dimensions: n as u8 };
        let is_real = self.kind.is_float && !self.column().is_integer;
        let real = (1..=dimensions).filter(|_| is_real).map(|n| changes(back, n));
        let option = |set: Set| {
            let errors = self.errors(&set, literals);
            (errors.iter().map(|error| about_log2(error + 0.5)).sum::<f64>(), set, errors)
        };
        let best = (0..=dimensions).map(integer).chain(real).map(option).min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((best.1, best.2))
    }

    /// The predictor with the fewest bits of these options: the integer Lorenzo sum, the best prediction from the
    /// twin (`since`), and sets whose weights are fitted to the literals. If `has_unit_weights` of the effort is set,
    /// each unit of the column may use another set.
    fn fitted(
        &self,
        literals: &Literals,
        lorenzo: Set,
        since: Option<(Set, Vec<f64>)>,
        dimensions: usize,
        family: usize,
        related: Vec<Term>,
    ) -> Predictor {
        let pool = self.terms(dimensions, family, related);
        let all: Vec<usize> = (0..literals.elements.len()).collect();
        let mut sets: Vec<(Set, Vec<f64>)> = vec![{
            let errors = self.errors(&lorenzo, literals);
            (lorenzo, errors)
        }];
        if let Some(option) = since {
            let at = if bits_of(option.1.iter().copied()) < bits_of(sets[0].1.iter().copied()) { 0 } else { 1 };
            sets.insert(at, option);
        }
        let sets_max = SETS_MAX + sets.len() - 1;
        let importances = self.importances(literals, &sets[0].0);
        if let Some(fitted) = self.fit(literals, &all, &importances, &pool) {
            let whole = self.stencil(literals, &all, &importances, dimensions, &fitted);
            let Fitted { set, errors, .. } = whole.unwrap_or(fitted);
            sets.push((set, errors));
        }
        match self.effort.has_unit_weights {
            true => self.sets_by_unit(literals, sets, sets_max, |some| self.fit(literals, some, &importances, &pool)),
            false => self.best_set(literals, sets, dimensions),
        }
    }

    /// The terms from which a fit selects.
    fn terms(&self, dimensions: usize, family: usize, related: Vec<Term>) -> Vec<Term> {
        let mut pool: Vec<Term> = neighbours(dimensions, self.effort.stencil, self.effort.stencil_of_3d)
            .into_iter()
            .map(Term::Value)
            .collect();
        pool.extend((1..=family as u16).map(|back| Term::Value(At::column(back))));
        pool.push(Term::One);
        let powers_max = match self.column().is_placed {
            true => self.effort.power_columns_of_particles_max,
            false => self.effort.power_columns_max,
        };
        for back in 1..=family.min(powers_max) as u16 {
            pool.extend(self.effort.sixths.iter().map(|&sixths| Term::Power(back, sixths)));
        }
        pool.extend(related);
        if self.column().arrays.iter().any(|array| array.like != array.start) {
            pool.extend([Term::Before(1), Term::Before(2)]);
        }
        if let [array] = &self.column().arrays[..]
            && (self.effort.has_index_terms || self.column().wrap.is_some())
        {
            pool.extend((0..3u8).filter(|&axis| array.dims[usize::from(axis)] > 1).map(Term::Index));
        }
        if self.effort.has_terms_around {
            // Values of the columns just before, at the neighbours of the place.
            for back in 1..=family.min(4) as u16 {
                for (axis, step) in [(2, -1), (2, 1), (1, -1), (1, 1), (0, -1), (0, 1)] {
                    let mut steps = [0; 3];
                    steps[axis] = step;
                    if axis + dimensions >= 3 {
                        pool.push(Term::Value(At { back, steps }));
                    }
                }
            }
        }
        // Adds values of the twin (the same column in an older checkpoint) at the place and around it, and changes
        // since the twin at neighbours that are already decoded. A change is the difference of two other terms. The
        // change is a separate term, because selection examines one term at a time, and would miss two terms that
        // help only together.
        if let Some(back) = self.twin {
            pool.extend(around(dimensions).map(|steps| Term::Value(At { back, steps })));
            pool.extend(self.family_twins.iter().map(|&back| Term::Value(At::column(back))));
            pool.extend(
                neighbours(dimensions, SMALL_STENCIL, SMALL_STENCIL_OF_3D)
                    .into_iter()
                    .map(|At { steps, .. }| Term::Change(At { back, steps })),
            );
        }
        pool
    }

    /// The set that leaves the fewest bits for the whole column. Sets that are slow to decode are used only if they
    /// leave clearly fewer bits.
    fn best_set(&self, literals: &Literals, sets: Vec<(Set, Vec<f64>)>, dimensions: usize) -> Predictor {
        let more = |bits: f64, divisor: f64| bits + bits / divisor;
        let of_set = |(set, errors): &(Set, Vec<f64>)| {
            more(bits_of(errors.iter().copied()), if set.is_one_by_one() { ONE_BY_ONE_DIVISOR } else { f64::INFINITY })
        };
        let best = sets.into_iter().min_by(|a, b| of_set(a).total_cmp(&of_set(b)));
        if dimensions > 1 && !self.column().is_placed {
            let set = lorenzo_of_doubles(dimensions);
            let errors = self.errors(&set, literals);
            if best.as_ref().is_none_or(|best| more(bits_of(errors), LORENZO_DIVISOR) < of_set(best)) {
                return Predictor::of(set);
            }
        }
        best.map_or_else(Predictor::none, |(set, _)| Predictor::of(set))
    }

    /// Chooses a set for each unit. Additional sets are fitted to the units for which the sets chosen so far save the
    /// fewest bits. The search ends when an additional set saves no bits. `fit` fits a set to some of the literals.
    fn sets_by_unit(
        &self,
        literals: &Literals,
        sets: Vec<(Set, Vec<f64>)>,
        sets_max: usize,
        fit: impl Fn(&[usize]) -> Option<Fitted>,
    ) -> Predictor {
        let mut sets: Vec<(Set, Vec<f32>)> =
            sets.into_iter().map(|(set, errors)| (set, bits_of_each(&errors))).collect();
        let (mut which, mut sum) = choose_units(&sets, literals);
        while !self.column().is_placed && sets.len() <= sets_max && literals.unit_count > 1 {
            let Some(found) = self.set_for_units_that_gain_least(literals, &mut sets, &which, &fit) else { break };
            sets.push(found);
            let (now, less) = choose_units(&sets, literals);
            if less > sum * (1.0 - SET_GAIN) {
                sets.pop();
                break;
            }
            (which, sum) = (now, less);
        }
        let mut used = vec![false; sets.len()];
        which.iter().for_each(|&set| used[usize::from(set)] = true);
        let number: Vec<u8> = used
            .iter()
            .scan(0, |n, &used| {
                let own = *n;
                *n += u8::from(used);
                Some(own)
            })
            .collect();
        let kept = sets.into_iter().zip(&used).filter(|(_, used)| **used).map(|((set, _), _)| set).collect();
        let which = which.iter().map(|&set| number[usize::from(set)]).collect();
        Predictor { sets: kept, unit: UNIT, which, derived: None }
    }

    /// An additional set, fitted to one third of the units. In the units of this third, the present sets save the
    /// fewest bits, compared with the first set.
    fn set_for_units_that_gain_least(
        &self,
        literals: &Literals,
        sets: &mut Vec<(Set, Vec<f32>)>,
        which: &[u8],
        fit: impl Fn(&[usize]) -> Option<Fitted>,
    ) -> Option<(Set, Vec<f32>)> {
        let mut gains = vec![(0f64, 0usize); literals.unit_count];
        for (n, &unit) in literals.units.iter().enumerate() {
            let set = usize::from(which[unit as usize]);
            let gain = &mut gains[unit as usize];
            *gain = (gain.0 + f64::from(sets[0].1[n] - sets[set].1[n]), gain.1 + 1);
        }
        let mut by_gain: Vec<(f64, usize)> = (gains.iter().enumerate())
            .filter(|(_, (_, count))| *count > 0)
            .map(|(unit, (gain, count))| (gain / *count as f64, unit))
            .collect();
        by_gain.sort_by(|a, b| a.0.total_cmp(&b.0));
        by_gain.truncate(by_gain.len().div_ceil(3));
        let mut is_chosen = vec![false; literals.unit_count];
        by_gain.iter().for_each(|(_, unit)| is_chosen[*unit] = true);
        let mut found: Option<(Set, Vec<f32>)> = None;
        let mut least = f64::MAX;
        for _ in 0..2 {
            let some: Vec<usize> =
                (0..literals.elements.len()).filter(|&n| is_chosen[literals.units[n] as usize]).collect();
            let Some(Fitted { set, errors, .. }) = fit(&some) else { break };
            sets.push((set, bits_of_each(&errors)));
            let (now, less) = choose_units(sets, literals);
            let option = sets.pop();
            // If the column has a twin, the better of the two fits is kept. The second fit may be worse, because
            // places that no term predicts have too much weight in this fit.
            if self.twin.is_none() || less < least {
                (found, least) = (option, less);
            }
            // The second fit uses the units for which the first fit is the best set.
            is_chosen = now.iter().map(|&set| usize::from(set) == sets.len()).collect();
        }
        found
    }
}

/// The size of each error in bits.
fn bits_of_each(errors: &[f64]) -> Vec<f32> {
    errors.iter().map(|error| about_log2(error + 0.5) as f32).collect()
}

/// The best set for each unit, and the total number of bits that these sets leave.
fn choose_units(sets: &[(Set, Vec<f32>)], literals: &Literals) -> (Vec<u8>, f64) {
    let mut sums = vec![0f64; literals.unit_count * sets.len()];
    for (s, (_, bits)) in sets.iter().enumerate() {
        for (&bits, &unit) in bits.iter().zip(&literals.units) {
            sums[unit as usize * sets.len() + s] += f64::from(bits) + 1.0;
        }
    }
    let mut sum = 0.0;
    let which = (sums.chunks_exact(sets.len()))
        .map(|sums| {
            let best = (0..sets.len()).min_by(|&a, &b| sums[a].total_cmp(&sums[b])).unwrap_or(0);
            sum += sums[best];
            best as u8
        })
        .collect();
    (which, sum)
}

/// The predictor of a column, and the three codes of the column: of literals, of near copies, and of cells computed
/// from their blocks.
pub(crate) type EncodedColumn = (Predictor, [Vec<u8>; 3]);
