//! Confidence intervals from Student's t and from order statistics of the median, and the rule for the end of
//! repetitions.
//!
//! Times of messages are skewed, with a long tail to the right, so the mean does not describe the times well. Both
//! mean and median are reported, each with a two-sided confidence interval. The interval of the median needs no
//! assumption about the distribution: the number of samples below the median is binomial with p = 1/2. Since the
//! binomial distribution is discrete, an interval between two order statistics covers more than requested (97.9 %
//! instead of 95 % at n = 10). The interval is therefore interpolated between two such intervals, after T. P.
//! Hettmansperger and S. J. Sheather (Statistics and Probability Letters 4, 1986).

use serde::{Deserialize, Serialize};
use std::time::Instant;

/// When the repetitions of a measurement end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoppingRule {
    /// Minimum number of repetitions.
    pub min_reps: usize,
    /// Maximum number of repetitions. If it equals `min_reps`, the number is fixed.
    pub max_reps: usize,
    /// The relative error to reach: half the width of the confidence interval divided by the estimate.
    pub alpha: f64,
    /// Probability that the interval contains the true value, for example 0.95.
    pub confidence: f64,
    /// The estimate that must reach `alpha`.
    pub estimate: Estimate,
    /// Time after which the series ends, even if the error is larger than `alpha` or there are fewer repetitions than
    /// `min_reps`. There is always one repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_seconds: Option<f64>,
}

/// The value that represents a series of repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Estimate {
    /// The arithmetic mean, with Student's t.
    Mean,
    /// The median, with order statistics.
    Median,
}

impl Estimate {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Median => "median",
        }
    }
}

/// The reason why a stopping rule is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// There are no repetitions.
    #[error("min-reps is 0; at least 1 repetition is needed")]
    NoReps,
    /// The minimum is larger than the maximum.
    #[error("min-reps is {min}, which is more than max-reps, {max}")]
    Reversed {
        /// `min_reps`
        min: usize,
        /// `max_reps`
        max: usize,
    },
    /// There are more repetitions than can be kept in memory.
    #[error("max-reps is {0}; at most {MAX_REPS} are allowed")]
    TooMany(usize),
    /// `alpha` is not a relative error.
    #[error("alpha is {0}; it is the relative error to reach, and must be more than 0 and less than 1")]
    Alpha(f64),
    /// `confidence` is not a probability.
    #[error("confidence is {0}; it must be at least 0.5 and less than 1, as in 0.95")]
    Confidence(f64),
    /// The time limit is not a time.
    #[error("time-limit is {0}; it is a number of seconds, and must be more than 0")]
    TimeLimit(f64),
    /// An interval needs more samples.
    #[error("min-reps is {0}; at least 3 repetitions are needed to estimate an error")]
    TooFew(usize),
}

/// Factor for the error probability of an interval if the width of the interval ended the series. A test simulates
/// how often intervals of the default rule contain the true value.
const STOPPED_PART: f64 = 0.8;

/// Maximum number of repetitions of a measurement.
pub const MAX_REPS: usize = 10_000_000;

impl Default for StoppingRule {
    fn default() -> Self {
        Self {
            min_reps: 10,
            max_reps: 1000,
            alpha: 0.05,
            confidence: 0.95,
            estimate: Estimate::Median,
            max_seconds: None,
        }
    }
}

impl StoppingRule {
    /// A rule for exactly `reps` repetitions.
    pub fn fixed(reps: usize) -> Self {
        Self { min_reps: reps, max_reps: reps, ..Self::default() }
    }

    /// Rejects invalid rules.
    pub fn check(&self) -> Result<(), RuleError> {
        match *self {
            Self { min_reps: 0, .. } => Err(RuleError::NoReps),
            Self { min_reps: min, max_reps: max, .. } if min > max => Err(RuleError::Reversed { min, max }),
            Self { max_reps, .. } if max_reps > MAX_REPS => Err(RuleError::TooMany(max_reps)),
            // NaN fails these comparisons and is therefore rejected.
            Self { alpha, .. } if !(alpha > 0.0 && alpha < 1.0) => Err(RuleError::Alpha(alpha)),
            Self { confidence, .. } if !(0.5..1.0).contains(&confidence) => Err(RuleError::Confidence(confidence)),
            Self { max_seconds: Some(limit), .. } if !(limit > 0.0 && limit.is_finite()) => {
                Err(RuleError::TimeLimit(limit))
            }
            Self { min_reps, max_reps, .. } if min_reps < max_reps && min_reps < 3 => Err(RuleError::TooFew(min_reps)),
            _ => Ok(()),
        }
    }

    /// Number of repetitions to add to `samples` before the next check. Returns 0 if the series has reached `alpha`
    /// or `max_reps`.
    ///
    /// With a check after every repetition, the series would stop at the first interval that is narrow by chance, and
    /// intervals would be too narrow. So checks are rare. With the current spread, a certain number of samples
    /// reaches `alpha`. The next check is at 1.1 times this number, but not below 2 times and not above 4 times the
    /// current number of samples.
    pub fn more_reps(&self, samples: &[f64]) -> usize {
        let n = samples.len();
        if n < self.min_reps {
            return self.min_reps - n;
        }
        if n >= self.max_reps {
            return 0;
        }
        let error = self.steady_error(samples);
        if error <= self.alpha {
            return 0;
        }
        let wanted = if error.is_finite() { 1.1 * n as f64 * (error / self.alpha).powi(2) } else { f64::INFINITY };
        let next = wanted.clamp(2.0 * n as f64, 4.0 * n as f64).ceil() as usize;
        next.min(self.max_reps) - n
    }

    /// Summarises a series that ended by this rule. A rule that waits for a narrow interval prefers intervals that
    /// are narrow by chance, so such intervals would contain the true value less often than they state. To compensate
    /// for this choice, the intervals are computed at a higher level, with four fifths of the error probability.
    pub fn summary(&self, samples: &[f64]) -> Summary {
        let kept = samples[..samples.len().min(MAX_SAMPLES_KEPT)].to_vec();
        let summary = Summary::of(samples, self.level(samples.len()));
        Summary { confidence: self.confidence, samples: kept, ..summary }
    }

    /// The level at which intervals are computed for a series of `reps` repetitions. At `max_reps`, and with a fixed
    /// number of repetitions, the width of the interval has not ended the series.
    fn level(&self, reps: usize) -> f64 {
        if reps < self.max_reps { 1.0 - STOPPED_PART * (1.0 - self.confidence) } else { self.confidence }
    }

    /// Whether the series ended with an error of at most `alpha`. `None` for a fixed number of repetitions, which has
    /// no such aim.
    pub fn reached(&self, summary: &Summary) -> Option<bool> {
        let cut_short = summary.reps < self.min_reps;
        let aims = self.min_reps < self.max_reps || cut_short;
        aims.then(|| !cut_short && summary.relative_error(self.estimate) <= self.alpha)
    }

    /// The relative error that is compared with `alpha`. The width of a median's interval depends on the few samples
    /// next to its ends and varies much. So an interval of twice as many standard deviations is computed, and half of
    /// its width is used if this value is larger. The wider interval is less often narrow by chance.
    fn steady_error(&self, samples: &[f64]) -> f64 {
        let level = self.level(samples.len());
        let summary = Summary::of(samples, level);
        let error = summary.relative_error(self.estimate);
        if self.estimate == Estimate::Mean {
            return error;
        }
        let twice = 2.0 * t_quantile(0.5 + level / 2.0, 1e9);
        let wide = Summary::of(samples, 2.0 * t_cdf(twice, 1e9) - 1.0).relative_error(self.estimate) / 2.0;
        if wide.is_finite() { wide.max(error) } else { error }
    }
}

/// The repetitions of one measurement, until its rule ends it.
pub struct Series {
    rule: StoppingRule,
    begun: Instant,
    /// Number of repetitions after which the rule is checked again.
    planned: usize,
}

impl Series {
    /// Starts a series. The time limit begins now.
    pub fn new(rule: &StoppingRule) -> Self {
        Self { rule: *rule, begun: Instant::now(), planned: 0 }
    }

    /// Number of repetitions to add to `samples` now. Returns 0 if the series has ended. With a time limit,
    /// repetitions are made in small parts, but the rule is not checked more often.
    pub fn next(&mut self, samples: &[f64]) -> usize {
        let done = samples.len();
        if done >= self.planned {
            self.planned = done + self.rule.more_reps(samples);
        }
        let left = self.planned - done;
        match (self.rule.max_seconds, done) {
            (None, _) => left,
            (Some(_), 0) => left.min(1),
            (Some(limit), _) => {
                let passed = self.begun.elapsed().as_secs_f64();
                let fit = (limit - passed) / (passed / done as f64);
                left.min(2 * done).min(fit.max(0.0) as usize)
            }
        }
    }
}

/// An interval that contains the true value with the requested confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Statistics of a series of repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of repetitions.
    pub reps: usize,
    /// Probability that an interval contains the true value.
    #[serde(default = "usual_confidence")]
    pub confidence: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// Standard deviation of one repetition; 0 if there is only one repetition.
    pub deviation: f64,
    /// The median.
    pub median: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// Student's interval of the mean. `None` for a single repetition.
    pub mean_interval: Option<Interval>,
    /// Interval of the median from order statistics. `None` if there are too few repetitions for the confidence.
    pub median_interval: Option<Interval>,
    /// The values in the order of the repetitions, at most the first [`MAX_SAMPLES_KEPT`]. [`StoppingRule::summary`]
    /// stores these values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

/// Maximum number of values of a series in a [`Summary`].
pub const MAX_SAMPLES_KEPT: usize = 10_000;

/// The confidence level of a report that does not contain a level.
fn usual_confidence() -> f64 {
    0.95
}

impl Summary {
    /// Summarises samples. There must be at least one sample, and all samples must be finite.
    pub fn of(samples: &[f64], confidence: f64) -> Self {
        assert!(!samples.is_empty(), "a summary of no samples");
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let mean = samples.iter().sum::<f64>() / n as f64;
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        let deviation = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        let mean_interval = (n > 1).then(|| {
            let half = t_quantile(0.5 + confidence / 2.0, (n - 1) as f64) * deviation / (n as f64).sqrt();
            Interval { low: mean - half, high: mean + half }
        });
        Self {
            reps: n,
            confidence,
            min: sorted[0],
            max: sorted[n - 1],
            mean,
            deviation,
            median: median_of_sorted(&sorted),
            p99: sorted[(n * 99).div_ceil(100) - 1],
            mean_interval,
            median_interval: median_interval(&sorted, confidence),
            samples: Vec::new(),
        }
    }

    /// The value of an estimate.
    pub fn value(&self, estimate: Estimate) -> f64 {
        match estimate {
            Estimate::Mean => self.mean,
            Estimate::Median => self.median,
        }
    }

    /// The interval of an estimate.
    pub fn interval(&self, estimate: Estimate) -> Option<Interval> {
        match estimate {
            Estimate::Mean => self.mean_interval,
            Estimate::Median => self.median_interval,
        }
    }

    /// Half the width of the interval divided by the estimate. The result is infinite if there is no interval.
    pub fn relative_error(&self, estimate: Estimate) -> f64 {
        let Some(interval) = self.interval(estimate) else { return f64::INFINITY };
        let half = (interval.high - interval.low) / 2.0;
        if half == 0.0 { 0.0 } else { half / self.value(estimate).abs() }
    }
}

/// The median of samples; 0 if there are no samples.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() { 0.0 } else { median_of_sorted(&sorted) }
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 }
}

/// The interpolated interval of the median. The samples must be sorted.
fn median_interval(sorted: &[f64], confidence: f64) -> Option<Interval> {
    let n = sorted.len();
    // [X(d), X(n+1-d)] covers with 1 - 2 P(B <= d-1), B binomial(n, 1/2). The widest interval has d = 1.
    let mut term = 0.5f64.powi(i32::try_from(n).ok()?); // P(B = 0); underflows only for n > 1074
    if term == 0.0 {
        return Some(wide_median_interval(sorted, confidence));
    }
    let mut below = term;
    let mut coverage = 1.0 - 2.0 * below;
    if coverage < confidence {
        return None;
    }
    let mut d = 1;
    loop {
        term *= (n - d + 1) as f64 / d as f64; // P(B = d)
        let narrower = 1.0 - 2.0 * (below + term);
        if narrower < confidence || 2 * (d + 1) > n {
            // Interpolate between the narrower and the wider interval with the weight of T. P. Hettmansperger and
            // S. J. Sheather, "Confidence intervals based on interpolated order statistics" (1986).
            let at = (coverage - confidence) / (coverage - narrower).max(f64::MIN_POSITIVE);
            let weight = (n - d) as f64 * at / (d as f64 + (n as f64 - 2.0 * d as f64) * at);
            let weight = if 2 * (d + 1) > n { 0.0 } else { weight.clamp(0.0, 1.0) };
            let low = (1.0 - weight) * sorted[d - 1] + weight * sorted[d];
            let high = (1.0 - weight) * sorted[n - d] + weight * sorted[n - d - 1];
            return Some(Interval { low, high });
        }
        below += term;
        coverage = narrower;
        d += 1;
    }
}

/// Like [`median_interval`], for large n, for which the binomial distribution is nearly normal.
fn wide_median_interval(sorted: &[f64], confidence: f64) -> Interval {
    let n = sorted.len() as f64;
    let half = t_quantile(0.5 + confidence / 2.0, 1e9) * n.sqrt() / 2.0;
    let at = |position: f64| {
        let position = (position - 0.5).clamp(0.0, n - 1.0); // the middle of n samples is position n/2
        let (whole, part) = (position.floor() as usize, position.fract());
        let next = sorted[(whole + 1).min(sorted.len() - 1)];
        sorted[whole] * (1.0 - part) + next * part
    };
    Interval { low: at(n / 2.0 - half), high: at(n / 2.0 + half) }
}

/// The p-quantile of Student's t with `df` degrees of freedom, 0.5 <= p < 1.
pub fn t_quantile(p: f64, df: f64) -> f64 {
    debug_assert!((0.5..1.0).contains(&p) && df > 0.0, "p {p}, df {df}");
    let (mut low, mut high) = (0.0, 1.0);
    while t_cdf(high, df) < p {
        (low, high) = (high, high * 2.0);
        if high > 1e12 {
            return high;
        }
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        if t_cdf(middle, df) < p { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// Probability that Student's t with `df` degrees of freedom is below `t`, for `t` >= 0.
fn t_cdf(t: f64, df: f64) -> f64 {
    // Compute 1 - x separately, since t*t would be lost in the sum with a large df.
    let x = df / (df + t * t);
    let y = t * t / (df + t * t);
    1.0 - 0.5 * incomplete_beta(df / 2.0, 0.5, x, y)
}

/// The regularised incomplete beta function I_x(a, b), with y = 1 - x: the continued fraction of DLMF 8.17.22.
fn incomplete_beta(a: f64, b: f64, x: f64, y: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if y <= 0.0 {
        return 1.0;
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, y, x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * (-y).ln_1p() + b * y.ln()).exp() / a;
    let guard = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
    let (mut c, mut d) = (1.0, 1.0 / guard(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        for numerator in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / guard(1.0 + numerator * d);
            c = guard(1.0 + numerator / c);
            fraction *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// Logarithm of the gamma function for x > 0: Lanczos' approximation with g = 7 and nine terms, 15 digits.
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let t = x + 7.5;
    let series = (1..9).fold(TERMS[0], |sum, i| sum + TERMS[i] / (x + i as f64));
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + series.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64 (S. Vigna), and Box and Muller's normal deviates.
    struct Random(u64);
    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }
        fn normal(&mut self) -> f64 {
            (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }
    }

    #[test]
    fn t_quantiles_are_those_of_the_printed_tables() {
        for (p, df, printed) in [
            (0.975, 1.0, 12.7062),
            (0.975, 2.0, 4.3027),
            (0.975, 9.0, 2.2622),
            (0.95, 9.0, 1.8331),
            (0.995, 30.0, 2.7500),
            (0.975, 120.0, 1.9799),
            (0.975, 1e9, 1.9600),
            (0.5, 5.0, 0.0),
        ] {
            let found = t_quantile(p, df);
            assert!((found - printed).abs() < 6e-5, "t({p}, {df}) = {found}, printed {printed}");
        }
    }

    /// Fraction of the intervals of `series` that contain the true value.
    fn coverage(trials: usize, truth: f64, estimate: Estimate, mut series: impl FnMut() -> Vec<f64>) -> f64 {
        let held = (0..trials)
            .filter(|_| {
                let interval = Summary::of(&series(), 0.95).interval(estimate).expect("samples enough for an interval");
                interval.low <= truth && truth <= interval.high
            })
            .count();
        held as f64 / trials as f64
    }

    #[test]
    fn nominal_95_percent_is_95_percent_within_one_point() {
        let mut random = Random(7);
        for n in [10, 11, 101] {
            let found = coverage(10_000, 3.0, Estimate::Mean, || (0..n).map(|_| 3.0 + random.normal()).collect());
            assert!((found - 0.95).abs() < 0.01, "mean of {n} normal samples: {found}");
        }
        // Lognormal, like message times: skewed, with a tail. The median is e^0.
        for n in [10, 15, 30, 101, 1200] {
            let trials = if n > 1000 { 3_000 } else { 10_000 };
            let found = coverage(trials, 1.0, Estimate::Median, || (0..n).map(|_| random.normal().exp()).collect());
            assert!((found - 0.95).abs() < 0.01, "median of {n} lognormal samples: {found}");
        }
    }

    /// Fraction of the intervals that contain the true value, in series that end by `rule`.
    fn stopped_coverage(rule: &StoppingRule, truth: f64, mut draw: impl FnMut() -> f64) -> f64 {
        const TRIALS: usize = 3_000;
        let mut held = 0;
        for _ in 0..TRIALS {
            let mut samples = Vec::new();
            loop {
                let more = rule.more_reps(&samples);
                samples.extend((0..more).map(|_| draw()));
                if more == 0 {
                    break;
                }
            }
            let summary = rule.summary(&samples);
            if samples.len() < rule.max_reps {
                assert_eq!(rule.reached(&summary), Some(true), "a series that stops has reached alpha");
            }
            let interval = summary.interval(rule.estimate).expect("samples enough for an interval");
            held += usize::from(interval.low <= truth && truth <= interval.high);
        }
        held as f64 / TRIALS as f64
    }

    #[test]
    fn the_default_rule_for_the_end_of_a_series_keeps_the_confidence_within_one_point() {
        // In an earlier version, 93.4 to 94.9 % of the intervals contained the true value.
        let rule = StoppingRule::default();
        let mut random = Random(11);
        // The second number of each pair selects the distribution: 0 is normal, 1 is lognormal, and 2 is a shifted
        // exponential.
        for (spread, shape) in [(0.04, 0), (0.08, 0), (0.1, 0), (0.15, 0), (0.25, 0), (0.1, 1), (0.1, 2)] {
            let truth = if shape == 2 { 1.0 + spread * std::f64::consts::LN_2 } else { 1.0 };
            let found = stopped_coverage(&rule, truth, || match shape {
                0 => 1.0 + spread * random.normal(),
                1 => (spread * random.normal()).exp(),
                _ => 1.0 - spread * (1.0 - random.uniform()).ln(),
            });
            // The standard error of the simulation is 0.4 percentage points.
            assert!((found - 0.95).abs() < 0.01 + 0.004, "spread {spread}, shape {shape}: {found}");
        }
        let mean = StoppingRule { estimate: Estimate::Mean, ..rule };
        let found = stopped_coverage(&mean, 1.1, || 1.0 - 0.1 * (1.0 - random.uniform()).ln());
        assert!((0.88..0.92).contains(&found), "README states about 90 % for means of skewed times: {found}");
    }

    #[test]
    fn a_series_ends_at_max_reps_whatever_its_error() {
        let rule = StoppingRule { max_reps: 25, ..StoppingRule::default() };
        let mut samples: Vec<f64> = Vec::new();
        let mut looks = Vec::new();
        loop {
            let more = rule.more_reps(&samples);
            looks.push(more);
            if more == 0 {
                break;
            }
            samples.extend((0..more).map(|i| if i % 2 == 0 { 1.0 } else { 9.0 }));
        }
        assert_eq!(looks, [10, 15, 0]);
        assert_eq!(StoppingRule::fixed(4).more_reps(&[1.0, 5.0, 9.0]), 1);
        assert_eq!(StoppingRule::fixed(4).more_reps(&[1.0, 5.0, 9.0, 2.0]), 0);
    }

    #[test]
    fn a_time_limit_ends_a_series_and_the_series_says_that_alpha_was_not_reached() {
        let rule = StoppingRule { max_seconds: Some(0.1), ..StoppingRule::fixed(1_000_000) };
        let (mut series, mut samples) = (Series::new(&rule), Vec::new());
        let begun = Instant::now();
        loop {
            let more = series.next(&samples);
            if more == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(more as u64));
            samples.extend(vec![1e-3; more]);
        }
        assert!(
            samples.len() > 10 && begun.elapsed().as_secs_f64() < 1.0,
            "{} in {:?}",
            samples.len(),
            begun.elapsed()
        );
        assert_eq!(rule.reached(&rule.summary(&samples)), Some(false));
        let mut unlimited = Series::new(&StoppingRule::fixed(7));
        assert_eq!((unlimited.next(&[]), unlimited.next(&[1.0; 7])), (7, 0));
    }

    #[test]
    fn rules_that_cannot_be_obeyed_are_refused() {
        let good = StoppingRule::default();
        assert_eq!(good.check(), Ok(()));
        assert_eq!(StoppingRule { min_reps: 0, ..good }.check(), Err(RuleError::NoReps));
        assert_eq!(StoppingRule { max_reps: 9, ..good }.check(), Err(RuleError::Reversed { min: 10, max: 9 }));
        assert_eq!(StoppingRule { alpha: 1.0, ..good }.check(), Err(RuleError::Alpha(1.0)));
        let nan = StoppingRule { alpha: f64::NAN, ..good }.check().expect_err("NaN is no error to reach");
        assert!(nan.to_string().starts_with("alpha is NaN"), "{nan}");
        assert_eq!(StoppingRule { confidence: 1.0, ..good }.check(), Err(RuleError::Confidence(1.0)));
        assert_eq!(StoppingRule { min_reps: 2, ..good }.check(), Err(RuleError::TooFew(2)));
    }

    #[test]
    fn few_samples_have_no_interval_of_the_median() {
        assert_eq!(Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95).median_interval, None);
        let six = Summary::of(&[6.0, 2.0, 3.0, 4.0, 5.0, 1.0], 0.95);
        let interval = six.median_interval.expect("six samples are enough for 95 %");
        assert!(interval.low >= 1.0 && interval.low < 2.0 && interval.high > 5.0, "{interval:?}");
        assert_eq!((six.median, six.min, six.max, six.p99), (3.5, 1.0, 6.0, 6.0));
    }
}
