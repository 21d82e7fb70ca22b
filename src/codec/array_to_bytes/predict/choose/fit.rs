//! Selection of the terms that predict a column, and their weights.
//!
//! Selection is orthogonal least squares (S. Chen, S. A. Billings, W. Luo, "Orthogonal least squares methods and
//! their application to non-linear system identification", International Journal of Control 50(5), 1989) on a sample.
//! Each step adds the candidate that leaves the smallest error, and makes the other candidates orthogonal to the
//! added candidate. Errors are divided by the magnitude of the number, so that they measure the bits that are left.
//! The number of terms is chosen by the bits that the errors leave, not by the sum of squares, because a relation may
//! become exact only with its last term.

use super::super::format::linear::TERMS_MAX;
use super::super::format::numbers::about_log2;

/// After this many terms, only the best `SCREENED` candidates are considered.
const SCREENED_AFTER: usize = 4;
/// The number of candidates that are considered after `SCREENED_AFTER` terms.
const SCREENED: usize = 512;

/// The weighted values of one candidate on the sample.
pub(crate) type Sampled = Vec<f64>;

/// The selected candidates, best first. The prediction leaves, on average, `bits` bits of each number.
pub(crate) struct Selected {
    pub terms: Vec<usize>,
    pub bits: f64,
}

/// The mean of the binary logarithms of errors. Errors below their floor are replaced by the floor.
fn bits_left(errors: &[f64], floors: &[f64]) -> f64 {
    let sum: f64 = errors.iter().zip(floors).map(|(e, floor)| about_log2(e.abs().max(*floor))).sum();
    sum / errors.len().max(1) as f64
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Four independent sums, so that additions can run in parallel.
    let mut sums = [0.0; 4];
    let ((a4, a_rest), (b4, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    for (a, b) in a4.iter().zip(b4) {
        for i in 0..4 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

/// Computes `a -= factor * b`.
fn subtract(a: &mut [f64], factor: f64, b: &[f64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a -= factor * b);
}

/// Computes `a -= factor * b`. Returns the dot products of the result with itself and with `other`.
fn reduce(a: &mut [f64], factor: f64, b: &[f64], other: &[f64]) -> [f64; 2] {
    let mut sums = [[0.0; 4]; 2];
    let (a4, a_rest) = a.as_chunks_mut::<4>();
    let ((b4, b_rest), (other4, other_rest)) = (b.as_chunks::<4>(), other.as_chunks::<4>());
    for ((a, b), other) in a4.iter_mut().zip(b4).zip(other4) {
        for i in 0..4 {
            a[i] -= factor * b[i];
            sums[0][i] += a[i] * a[i];
            sums[1][i] += a[i] * other[i];
        }
    }
    let mut found = sums.map(|sums| sums.iter().sum::<f64>());
    for ((a, b), other) in a_rest.iter_mut().zip(b_rest).zip(other_rest) {
        *a -= factor * b;
        found[0] += *a * *a;
        found[1] += *a * other;
    }
    found
}

/// Selects candidates that predict a target. Target and candidates are multiplied by the same weights, so that an
/// error of 1 is equally important at all places. Errors below the floor do not count. `term_bits` is the cost of one
/// more term, in bits for each number.
pub(crate) fn select(
    target: &[f64],
    floors: &[f64],
    mut candidates: Vec<Sampled>,
    most: usize,
    term_bits: f64,
) -> Selected {
    let mut error = target.to_vec();
    let most = most.min(target.len() / 8).min(TERMS_MAX);
    let norms: Vec<f64> = candidates.iter().map(|c| dot(c, c)).collect();
    let mut left = norms.clone();
    let mut projections: Vec<f64> = candidates.iter().map(|c| dot(c, &error)).collect();
    let mut found = Selected { terms: Vec::new(), bits: bits_left(&error, floors) };
    let mut terms = Vec::new();
    for count in 1..=most {
        let mut best: Option<(f64, usize)> = None;
        for (i, (&projection, &left)) in projections.iter().zip(&left).enumerate() {
            // If a candidate is a sum of selected candidates, its orthogonal part has only rounding errors.
            if left > norms[i] * 1e-20 && left > 0.0 {
                let gain = projection * projection / left;
                if best.is_none_or(|(most, _)| gain > most) {
                    best = Some((gain, i));
                }
            }
        }
        let Some((_, chosen)) = best else { break };
        let direction = std::mem::take(&mut candidates[chosen]);
        let norm = left[chosen];
        left[chosen] = 0.0;
        let factor = dot(&direction, &error) / norm;
        subtract(&mut error, factor, &direction);
        for (i, candidate) in candidates.iter_mut().enumerate().filter(|_| count < most) {
            if left[i] > norms[i] * 1e-20 && left[i] > 0.0 {
                let factor = dot(&direction, candidate) / norm;
                [left[i], projections[i]] = reduce(candidate, factor, &direction, &error);
            }
        }
        terms.push(chosen);
        if count == SCREENED_AFTER {
            screen(&mut left, &projections);
        }
        let bits = bits_left(&error, floors);
        if bits + term_bits * count as f64 + 0.02 < found.bits + term_bits * found.terms.len() as f64 {
            found = Selected { terms: terms.clone(), bits };
        }
    }
    found
}

/// Drops all candidates except the `SCREENED` candidates that reduce the error most as a single term.
fn screen(left: &mut [f64], projections: &[f64]) {
    let gain = |i: usize, left: &[f64]| if left[i] > 0.0 { projections[i] * projections[i] / left[i] } else { 0.0 };
    let mut by_gain: Vec<usize> = (0..left.len()).collect();
    if by_gain.len() > SCREENED {
        by_gain.select_nth_unstable_by(SCREENED, |&a, &b| gain(b, left).total_cmp(&gain(a, left)).then(a.cmp(&b)));
        by_gain[SCREENED..].iter().for_each(|&i| left[i] = 0.0);
    }
}

/// The weights with which the sum of the columns is nearest to the target, by modified Gram-Schmidt with two steps of
/// refinement. Returns `None` if a weight is not finite or the columns depend on each other.
pub(crate) fn solve(target: &[f64], columns: &[Sampled]) -> Option<Vec<f64>> {
    let scales: Vec<f64> = columns.iter().map(|c| dot(c, c).sqrt()).collect();
    let mut q: Vec<Sampled> = Vec::with_capacity(columns.len());
    let mut r: Vec<Vec<f64>> = Vec::with_capacity(columns.len());
    for (column, &scale) in columns.iter().zip(&scales) {
        if scale <= 0.0 || !scale.is_finite() {
            return None;
        }
        let mut v: Sampled = column.iter().map(|x| x / scale).collect();
        let mut row = vec![0.0; columns.len()];
        for _ in 0..2 {
            for (i, other) in q.iter().enumerate() {
                let factor = dot(other, &v);
                subtract(&mut v, factor, other);
                row[i] += factor;
            }
        }
        let norm = dot(&v, &v).sqrt();
        if norm.is_nan() || norm <= 1e-15 {
            return None;
        }
        v.iter_mut().for_each(|x| *x /= norm);
        row[q.len()] = norm;
        q.push(v);
        r.push(row);
    }
    let mut weights = vec![0.0; columns.len()];
    for _ in 0..3 {
        let mut error = target.to_vec();
        for ((column, weight), scale) in columns.iter().zip(&weights).zip(&scales) {
            subtract(&mut error, weight / scale, column);
        }
        let mut step: Vec<f64> = Vec::with_capacity(q.len());
        for direction in &q {
            let factor = dot(direction, &error);
            subtract(&mut error, factor, direction);
            step.push(factor);
        }
        for i in (0..step.len()).rev() {
            let later: f64 = (i + 1..step.len()).map(|j| r[j][i] * step[j]).sum();
            step[i] = (step[i] - later) / r[i][i];
        }
        weights.iter_mut().zip(&step).for_each(|(w, s)| *w += s);
    }
    weights.iter_mut().zip(&scales).for_each(|(w, s)| *w /= s);
    weights.iter().all(|w| w.is_finite()).then_some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, n: usize) -> Vec<f64> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn an_exact_sum_of_three_among_forty_is_found_with_its_weights() {
        let candidates: Vec<Vec<f64>> = (0..40).map(|i| noise(i + 1, 500)).collect();
        let target: Vec<f64> =
            (0..500).map(|k| 3.0 * candidates[7][k] - 0.25 * candidates[30][k] + candidates[11][k]).collect();
        let selected = select(&target, &[1e-16; 500], candidates.clone(), 8, 0.01);
        let mut terms = selected.terms.clone();
        terms.sort_unstable();
        assert_eq!(terms, [7, 11, 30]);
        assert!(selected.bits < -47.0, "{} bits", selected.bits);
        let columns: Vec<Vec<f64>> = selected.terms.iter().map(|&t| candidates[t].clone()).collect();
        let weights = solve(&target, &columns).expect("the columns are independent");
        for (term, weight) in selected.terms.iter().zip(weights) {
            let expected = [(7, 3.0), (30, -0.25), (11, 1.0)].iter().find(|(t, _)| t == term).expect("one of them").1;
            assert!((weight - expected).abs() < 1e-14, "{weight} instead of {expected}");
        }
    }

    #[test]
    fn noise_is_left_alone() {
        let candidates: Vec<Vec<f64>> = (0..20).map(|i| noise(i + 1, 1000)).collect();
        assert!(select(&noise(99, 1000), &[1e-16; 1000], candidates, 8, 0.01).terms.is_empty());
    }

    #[test]
    fn columns_that_depend_on_each_other_have_no_weights() {
        let a = noise(1, 50);
        assert!(solve(&a, &[a.clone(), a.clone()]).is_none());
        assert!(solve(&a, &[vec![0.0; 50]]).is_none());
    }
}
