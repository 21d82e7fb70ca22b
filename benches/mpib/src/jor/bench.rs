//! The benchmark's runs over MPI: finds the front-ends, measures the power of each site, and measures the gain from
//! coupling.

use super::{Block, Cut, CutError, Part, Problem, SIDES, balanced_rows, iterations, parts};
use crate::comm::{Comm, CommError, wtime};
use crate::p2p::round_trips;
use crate::stats::{Interval, StoppingRule, Summary, median};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const TAG: u16 = 500;
/// Length of a sleep of a rank that simulates computing and waits for a message. The sleep leaves the core to other
/// ranks.
const NAP: Duration = Duration::from_micros(50);
/// Time of spinning before the first sleep. The message of a neighbour often arrives within this time, and a sleep
/// takes twice as long as requested.
const SPIN_TIME: Duration = Duration::from_micros(300);

/// Why a run is impossible.
#[derive(Debug, thiserror::Error)]
pub enum JorError {
    /// MPI failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The points cannot be divided among the ranks.
    #[error(transparent)]
    Cut(#[from] CutError),
}

/// The parameters of a benchmark.
#[derive(Clone, Debug)]
pub struct Plan {
    /// N
    pub n: usize,
    /// The site of each rank, 0 or 1. Both sites must have at least one rank.
    pub sites: Vec<usize>,
    /// Points per second to which each rank of a site is limited. `None`: no limit.
    pub pace: Option<[f64; 2]>,
    /// Numbers of iterations between exchanges of the sites. One of the numbers must be 1.
    pub periods: Vec<usize>,
    /// How the area of a site is divided among its ranks.
    pub cut: Cut,
    /// Power of site 0 divided by the power of site 1. `None`: the ratio is measured.
    pub ratio: Option<f64>,
    /// Number of repetitions of each run. The median is reported.
    pub reps: usize,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// After this time in seconds, no repetition begins. Each run is done at least once.
    pub max_seconds: Option<f64>,
    /// Maximum number of iterations of each run, but at least one period. The time is scaled, and the error is not
    /// checked.
    pub sample: Option<usize>,
}

/// The results. All ranks have equal results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The ranks that exchange the border, of site 0 and of site 1.
    pub front_ends: [usize; 2],
    /// The round trip time between the front-ends in seconds.
    pub front_end_seconds: f64,
    /// Time of each site alone on N x N points.
    pub half_seconds: [f64; 2],
    /// Time of each site alone on 2N x N points.
    pub whole_seconds: [f64; 2],
    /// Power of site 0 divided by the power of site 1 on N x N points: the ratio of the median times of an iteration.
    pub ratio: f64,
    /// Interval of the measured ratio. `None` with too few repetitions, like all intervals.
    #[serde(default)]
    pub ratio_interval: Option<Interval>,
    /// Power of site 0 divided by the power of site 1 on 2N x N points.
    pub ratio_whole: f64,
    /// Interval of `ratio_whole`.
    #[serde(default)]
    pub ratio_whole_interval: Option<Interval>,
    /// Whether the measured ratios on N x N and on 2N x N points differ significantly. If they differ, half of the
    /// problem fits into a cache at one site, but the whole problem does not. `None` with too few repetitions.
    #[serde(default)]
    pub cache_crossed: Option<bool>,
    /// Number of the 2N rows that site 0 has if the load is balanced.
    pub balanced_rows: usize,
    /// Time of both sites with equal load and an exchange after each iteration.
    pub transparent_seconds: f64,
    /// Period, number of iterations, and seconds of the balanced runs.
    pub periods: Vec<(usize, usize, f64)>,
    /// The error after each balanced run as a fraction of the error at the start: 0.1 or a little less, or more if
    /// only a sample of the iterations was computed.
    pub errors_left: Vec<f64>,
    /// The period of the fastest balanced run.
    pub best_period: usize,
    /// The period that was predicted to be the best, from `inner_seconds` and `exchange_seconds`. `periods` contains
    /// this period.
    pub chosen_period: usize,
    /// Time of an iteration without an exchange of the sites.
    pub inner_seconds: f64,
    /// Additional time of an exchange.
    pub exchange_seconds: f64,
    /// Speedup of both sites with an exchange after each iteration over the faster site alone: the median of the
    /// speedups in each repetition.
    pub artless: f64,
    /// Interval of `artless`.
    #[serde(default)]
    pub artless_interval: Option<Interval>,
    /// Speedup of the fastest balanced run over the faster site alone.
    pub artful: f64,
    /// Interval of `artful`, which does not include the choice of the fastest period.
    #[serde(default)]
    pub artful_interval: Option<Interval>,
    /// Name and times of each kind of run.
    #[serde(default)]
    pub times: Vec<(String, Summary)>,
}

impl Plan {
    /// The rule that summarises the times of a run.
    pub fn rule(&self) -> StoppingRule {
        let (confidence, max_seconds) = (self.confidence, self.max_seconds);
        StoppingRule { confidence, max_seconds, ..StoppingRule::fixed(self.reps) }
    }
}

/// Part of the time limit in which the repetitions on N x N points begin.
const HALF_TIME_DIVISOR: f64 = 4.0;

/// Runs the whole benchmark. After each run, `report` gets the name of the run and the statistics of its times so far.
/// All ranks must call this function. The field `sites` must contain both 0 and 1.
pub fn run(comm: &Comm, plan: &Plan, mut report: impl FnMut(&str, &Summary)) -> Result<Outcome, JorError> {
    let begun = wtime();
    // One rank decides, because clocks differ.
    let is_over = |limit: Option<f64>| -> Result<bool, CommError> {
        let Some(limit) = limit else { return Ok(false) };
        let mut over = [f64::from(u8::from(wtime() - begun > limit))];
        comm.broadcast(&mut over, 0)?;
        Ok(over[0] != 0.0)
    };
    let rule = plan.rule();
    let mut so_far = |name: &str, times: &[f64]| report(name, &rule.summary(times));
    let of_site = |site| (0..comm.size()).filter(move |&r| plan.sites[r] == site).collect::<Vec<_>>();
    let (near, far) = (of_site(0), of_site(1));
    let (front_ends, front_end_seconds) = front_ends(comm, &near, &far, plan.n)?;
    let (whole, half) = (Problem::whole(plan.n), Problem::half(plan.n));
    // Positions: site 0 from the top with its front-end last, then site 1 with its front-end first.
    let mut order: Vec<usize> = near.iter().copied().filter(|&r| r != front_ends[0]).collect();
    order.extend(front_ends);
    order.extend(far.iter().copied().filter(|&r| r != front_ends[1]));
    let runner = Runner { comm, plan, order, near: near.len(), far: far.len() };
    let [alone_half, alone_whole] = counts(comm, &[(half, 0, 1), (whole, 0, 1)])?[..] else {
        return Err(CommError::Told("two counts were asked for".into()).into());
    };
    let mut series = Series::default();
    for rep in 0..plan.reps {
        if rep > 0 && is_over(plan.max_seconds.map(|limit| limit / HALF_TIME_DIVISOR))? {
            break;
        }
        series.half.push(runner.alone_once(half, alone_half)?);
        alone_times(&series.half, HALF).iter().for_each(|(name, times)| so_far(name, times));
    }
    // Use the median iteration and not the whole time, because occasional other work of a node is not part of its
    // power.
    let used = plan.ratio.unwrap_or_else(|| median(&series.ratios()));
    let rows = balanced_rows(whole.rows, used, near.len(), far.len());
    let even = balanced_rows(whole.rows, near.len() as f64 / far.len() as f64, near.len(), far.len());
    let rows_at = |period| if period == 1 { 0 } else { rows };
    let wanted: Vec<_> = plan.periods.iter().map(|&p| (whole, rows_at(p), p)).collect();
    let mut known: Vec<_> = plan.periods.iter().copied().zip(counts(comm, &wanted)?).collect();
    let [inner_seconds, exchange_seconds] = runner.probe(whole, rows)?;
    // One rank decides, because machines may round differently.
    let mut chosen = [choose_period(&known, inner_seconds, exchange_seconds) as f64];
    comm.broadcast(&mut chosen, 0)?;
    let chosen_period = chosen[0] as usize;
    if !plan.periods.contains(&chosen_period) {
        let count = counts(comm, &[(whole, rows_at(chosen_period), chosen_period)])?;
        known.extend(count.into_iter().map(|count| (chosen_period, count)));
        known.sort_unstable();
    }
    // The runs alternate, so that disturbances affect all runs equally.
    let mut errors_left = vec![0.0; known.len()];
    series.balanced = vec![Vec::new(); known.len()];
    for rep in 0..plan.reps {
        if rep > 0 && is_over(plan.max_seconds)? {
            break;
        }
        series.whole.push(runner.alone_once(whole, alone_whole)?);
        alone_times(&series.whole, WHOLE).iter().for_each(|(name, times)| so_far(name, times));
        series.transparent.push(runner.coupled_once(whole, even, 1, alone_whole)?.0);
        so_far(TRANSPARENT, &series.transparent);
        for (at, &(period, count)) in known.iter().enumerate() {
            let (seconds, left) = runner.coupled_once(whole, rows, period, count)?;
            series.balanced[at].push(seconds);
            so_far(&balanced(period), &series.balanced[at]);
            errors_left[at] = left;
        }
    }
    let periods: Vec<_> =
        known.iter().zip(&series.balanced).map(|(&(period, count), t)| (period, count, median(t))).collect();
    let best = (0..periods.len()).min_by(|&a, &b| periods[a].2.total_cmp(&periods[b].2)).unwrap_or(0);
    let of = |times: &[f64]| rule.summary(times);
    let (ratio, ratio_whole) = (of(&series.ratios()), of(&series.whole_ratios()));
    let (artless, artful) = (of(&series.speedups(&series.transparent)), of(&series.speedups(&series.balanced[best])));
    let mut times = Vec::new();
    for (runs, points) in [(&series.half, HALF), (&series.whole, WHOLE)] {
        times.extend(alone_times(runs, points).map(|(name, seconds)| (name, of(&seconds))));
    }
    times.push((TRANSPARENT.to_string(), of(&series.transparent)));
    times.extend(known.iter().zip(&series.balanced).map(|((p, _), t)| (balanced(*p), of(t))));
    Ok(Outcome {
        front_ends,
        front_end_seconds,
        half_seconds: [0, 1].map(|s| median(&times_of(&series.half, s))),
        whole_seconds: [0, 1].map(|s| median(&times_of(&series.whole, s))),
        ratio: used,
        ratio_interval: ratio.median_interval,
        ratio_whole: ratio_whole.median,
        ratio_whole_interval: ratio_whole.median_interval,
        cache_crossed: crossed(&ratio, &ratio_whole),
        balanced_rows: rows,
        transparent_seconds: median(&series.transparent),
        best_period: periods[best].0,
        periods,
        errors_left,
        chosen_period,
        inner_seconds,
        exchange_seconds,
        artless: artless.median,
        artless_interval: artless.median_interval,
        artful: artful.median,
        artful_interval: artful.median_interval,
        times,
    })
}

/// The points of the runs of each site alone, and the name of the unmodified run, in [`Outcome::times`].
const HALF: &str = "N x N";
const WHOLE: &str = "2N x N";
const TRANSPARENT: &str = "transparent";

/// The times of one site alone.
fn times_of(runs: &[Alone], site: usize) -> Vec<f64> {
    runs.iter().map(|run| run.seconds[site]).collect()
}

/// The name and the times of the runs of each site alone.
fn alone_times(runs: &[Alone], points: &str) -> [(String, Vec<f64>); 2] {
    [0, 1].map(|site| (format!("alone, site {site}, {points}"), times_of(runs, site)))
}

/// The name of a balanced run in [`Outcome::times`].
pub fn balanced(period: usize) -> String {
    format!("balanced, period {period}")
}

/// Whether two ratios differ significantly (their intervals have no common value) and by more than a tenth. `None`
/// without intervals.
fn crossed(ratio: &Summary, whole: &Summary) -> Option<bool> {
    let (a, b) = (ratio.median_interval?, whole.median_interval?);
    let apart = a.high < b.low || b.high < a.low;
    Some(apart && (whole.median / ratio.median - 1.0).abs() > 0.1)
}

/// The times of both sites alone in one repetition.
struct Alone {
    /// The whole run.
    seconds: [f64; 2],
    /// The median iteration.
    iteration_seconds: [f64; 2],
}

/// The times of all repetitions.
#[derive(Default)]
struct Series {
    half: Vec<Alone>,
    whole: Vec<Alone>,
    transparent: Vec<f64>,
    /// For each period.
    balanced: Vec<Vec<f64>>,
}

impl Series {
    fn ratios(&self) -> Vec<f64> {
        self.half.iter().map(|run| run.iteration_seconds[1] / run.iteration_seconds[0]).collect()
    }

    fn whole_ratios(&self) -> Vec<f64> {
        self.whole.iter().map(|run| run.iteration_seconds[1] / run.iteration_seconds[0]).collect()
    }

    /// Speedup over the faster site alone in each repetition.
    fn speedups(&self, together: &[f64]) -> Vec<f64> {
        let alone = self.whole.iter().map(|run| run.seconds[0].min(run.seconds[1]));
        alone.zip(together).map(|(alone, together)| alone / together).collect()
    }
}

/// Solves the problem with both sites at `period` for `count` iterations, with rows balanced for `ratio`. Returns all
/// points, row by row, on all ranks, for a comparison with [`super::Serial`] bit by bit. All ranks must call this
/// function.
pub fn solve(comm: &Comm, plan: &Plan, ratio: f64, period: usize, count: usize) -> Result<Vec<f64>, JorError> {
    solve_from(comm, plan, ratio, period, |_| Ok(0), count, |_, _| Ok(()))
}

/// Like [`solve`], but starts from a saved state: `load` fills this rank's part and returns its iteration. `after` is
/// called after each iteration. All ranks must call this function, which calls `load` on all ranks.
pub fn solve_from(
    comm: &Comm,
    plan: &Plan,
    ratio: f64,
    period: usize,
    load: impl FnOnce(&mut Block) -> Result<usize, CommError>,
    count: usize,
    after: impl FnMut(usize, &Block) -> Result<(), CommError>,
) -> Result<Vec<f64>, JorError> {
    let of_site = |site| (0..comm.size()).filter(move |&r| plan.sites[r] == site).collect::<Vec<_>>();
    let (near, far) = (of_site(0), of_site(1));
    let order: Vec<usize> = near.iter().chain(&far).copied().collect();
    let problem = Problem::whole(plan.n);
    let rows = balanced_rows(problem.rows, ratio, near.len(), far.len());
    let cut = parts(problem, plan.cut, near.len(), far.len(), rows)?;
    let runner = Runner { comm, plan, order, near: near.len(), far: far.len() };
    let mut block = Block::new(problem, cut[runner.position()].area.clone());
    let from = load(&mut block)?;
    let block = runner.iterate(&cut, 0, period, from..count, block, after)?.block;
    let mine: Vec<u8> = block.values().iter().flat_map(|v| v.to_ne_bytes()).collect();
    let all = comm.all_bytes(&mine)?;
    let mut values = vec![0.0; problem.points()];
    for (part, &rank) in cut.iter().zip(&runner.order) {
        let mut numbers = all[rank].as_chunks::<8>().0.iter();
        for row in part.area.rows.clone() {
            for col in part.area.cols.clone() {
                if let Some(number) = numbers.next() {
                    values[row * problem.cols + col] = f64::from_ne_bytes(*number);
                }
            }
        }
    }
    Ok(values)
}

/// The numbers of iterations of several problems. Different ranks compute different problems. All ranks must call
/// this function.
fn counts(comm: &Comm, wanted: &[(Problem, usize, usize)]) -> Result<Vec<usize>, CommError> {
    let mut found = vec![0.0; wanted.len()];
    for (i, &(problem, rows, period)) in wanted.iter().enumerate() {
        if i % comm.size() == comm.rank() {
            found[i] = iterations(problem, rows, period) as f64;
        }
    }
    comm.all_max(&mut found)?;
    Ok(found.into_iter().map(|n| n as usize).collect())
}

/// The pair of ranks of both sites with the fastest round trip of a border. The number of pairs that are measured at
/// the same time is the number of ranks of the smaller site.
fn front_ends(comm: &Comm, near: &[usize], far: &[usize], n: usize) -> Result<([usize; 2], f64), CommError> {
    let (few, many, turned) = if near.len() <= far.len() { (near, far, false) } else { (far, near, true) };
    let mut times = vec![f64::NEG_INFINITY; few.len() * many.len()];
    for round in 0..many.len() {
        comm.barrier()?;
        for (i, &a) in few.iter().enumerate() {
            let j = (i + round) % many.len();
            if [a, many[j]].contains(&comm.rank()) {
                let trips = round_trips(comm, a, many[j], 8 * n, 8 * n, &StoppingRule::fixed(5))?;
                if comm.rank() == a {
                    times[i * many.len() + j] = trips.into_iter().fold(f64::INFINITY, f64::min);
                }
            }
        }
    }
    comm.all_max(&mut times)?;
    let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
    let pair = [few[best / many.len()], many[best % many.len()]];
    Ok((if turned { [pair[1], pair[0]] } else { pair }, times[best]))
}

/// Maximum number of iterations whose times are kept for the median.
const KEPT_ITERATIONS_MAX: usize = 100_000;

/// Number of short runs of each kind before a period is chosen.
const PROBES: usize = 3;
/// Number of iterations of a short run; a multiple of `PROBE_PERIOD`.
const PROBE_ITERATIONS: usize = 48;
const PROBE_PERIOD: usize = 16;

/// The period with the smallest `iterations (inner + exchange / period)`, from the smallest to the largest of
/// `known`. Fewer exchanges need more iterations. `known` contains the iterations of some periods in ascending order.
/// The iterations of other periods are interpolated linearly, since computing all of these numbers would take longer
/// than a run.
fn choose_period(known: &[(usize, usize)], inner_seconds: f64, exchange_seconds: f64) -> usize {
    let seconds = |period: f64, count: f64| count * (inner_seconds + exchange_seconds / period);
    let mut best = known.first().map_or((1, f64::INFINITY), |&(p, count)| (p, seconds(p as f64, count as f64)));
    for ends in known.windows(2) {
        let ((from, few), (to, many)) = (ends[0], ends[1]);
        for period in from + 1..=to {
            let part = (period - from) as f64 / (to - from) as f64;
            let time = seconds(period as f64, few as f64 + part * (many as f64 - few as f64));
            if time < best.1 {
                best = (period, time);
            }
        }
    }
    best.0
}

/// One rank's part of a run.
struct Run {
    seconds: f64,
    iteration_seconds: f64,
    block: Block,
}

struct Runner<'a> {
    comm: &'a Comm,
    plan: &'a Plan,
    /// The rank at each position.
    order: Vec<usize>,
    near: usize,
    far: usize,
}

impl Runner<'_> {
    fn position(&self) -> usize {
        self.order.iter().position(|&r| r == self.comm.rank()).unwrap_or(0)
    }

    /// Number of iterations to compute, in whole periods, and the factor from their time to the time of all `count`
    /// iterations.
    fn sampled(&self, count: usize, period: usize) -> (usize, f64) {
        let some = self.plan.sample.map_or(count, |most| (most / period).max(1) * period).min(count);
        (some, count as f64 / some.max(1) as f64)
    }

    /// Time of each site alone, and of its median iteration. Both sites run at the same time without any
    /// communication.
    fn alone_once(&self, problem: Problem, count: usize) -> Result<Alone, JorError> {
        let me = self.position();
        let (ranks, first) = if me < self.near { (self.near, 0) } else { (self.far, self.near) };
        let cut = parts(problem, self.plan.cut, ranks, 0, problem.rows)?;
        let (some, longer) = self.sampled(count, 1);
        let run = self.timed(problem, &cut, first, 1, some)?;
        let mut all = [0.0; 4];
        let site = usize::from(first != 0);
        (all[site], all[2 + site]) = (run.seconds * longer, run.iteration_seconds);
        self.comm.all_max(&mut all)?;
        // The clock may not advance within an iteration of few points.
        let [near, far, near_iteration, far_iteration] = all.map(|seconds| seconds.max(1e-9));
        Ok(Alone { seconds: [near, far], iteration_seconds: [near_iteration, far_iteration] })
    }

    /// Runs both sites together. Returns the time in seconds, and the remaining error. An error that is larger than
    /// predicted is a failure.
    fn coupled_once(&self, problem: Problem, rows: usize, period: usize, count: usize) -> Result<(f64, f64), JorError> {
        let cut = parts(problem, self.plan.cut, self.near, self.far, rows)?;
        let (some, longer) = self.sampled(count, period);
        let run = self.timed(problem, &cut, 0, period, some)?;
        let mut longest = [run.seconds * longer, run.block.error(problem) / problem.start_error()];
        self.comm.all_max(&mut longest)?;
        let [seconds, left] = longest;
        // The tolerance is for rounding errors, which differ between the prediction and the iteration on the points.
        if some == count && left > 0.1 * (1.0 + 1e-9) {
            let text = format!("period {period}: after {count} iterations {left} of the error is left, not a tenth");
            return Err(CommError::Told(text).into());
        }
        Ok((seconds, left))
    }

    /// Time of an iteration without an exchange between the sites, and the additional time of an exchange. Both times
    /// come from short runs of both sites, with an exchange after each iteration and with few exchanges.
    fn probe(&self, problem: Problem, rows: usize) -> Result<[f64; 2], JorError> {
        let cut = parts(problem, self.plan.cut, self.near, self.far, rows)?;
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..PROBES {
            for (times, period) in times.iter_mut().zip([1, PROBE_PERIOD]) {
                let run = self.timed(problem, &cut, 0, period, PROBE_ITERATIONS)?;
                let mut longest = [run.seconds / PROBE_ITERATIONS as f64];
                self.comm.all_max(&mut longest)?;
                times.push(longest[0]);
            }
        }
        let [each, few] = times.map(|t| median(&t));
        // each = inner + exchange, few = inner + exchange / PROBE_PERIOD
        let exchange = ((each - few) / (1.0 - 1.0 / PROBE_PERIOD as f64)).max(0.0);
        Ok([each - exchange, exchange])
    }

    /// Times a run, in which this rank computes its part. The run uses the positions from `first` on.
    fn timed(
        &self,
        problem: Problem,
        cut: &[Part],
        first: usize,
        period: usize,
        count: usize,
    ) -> Result<Run, CommError> {
        let block = Block::new(problem, cut[self.position() - first].area.clone());
        self.iterate(cut, first, period, 0..count, block, |_, _| Ok(()))
    }

    /// Iterates. `after` gets the number of finished iterations and this rank's points.
    fn iterate(
        &self,
        cut: &[Part],
        first: usize,
        period: usize,
        steps: std::ops::Range<usize>,
        mut block: Block,
        mut after: impl FnMut(usize, &Block) -> Result<(), CommError>,
    ) -> Result<Run, CommError> {
        let me = self.position();
        let part = &cut[me - first];
        let mut pace = self.plan.pace.map(|rates| Pace::new(rates[usize::from(me >= self.near)]));
        self.comm.barrier()?;
        let start = wtime();
        let mut before = start;
        let mut iterations = Vec::with_capacity(steps.len().min(KEPT_ITERATIONS_MAX));
        for step in steps {
            let now = |side: usize| !part.other_site[side] || step % period == 0;
            let meet: Vec<(usize, usize)> = (0..4)
                .filter(|&side| now(side))
                .filter_map(|side| Some((side, self.order[part.neighbours[side]? + first])))
                .collect();
            self.exchange(&mut block, &meet)?;
            if let Some(pace) = &mut pace {
                pace.begin();
            }
            block.sweep();
            if let Some(pace) = &mut pace {
                pace.end(block.points());
            }
            let now = wtime();
            if iterations.len() < KEPT_ITERATIONS_MAX {
                iterations.push(now - before);
            }
            before = now;
            after(step + 1, &block)?;
        }
        Ok(Run { seconds: before - start, iteration_seconds: median(&iterations), block })
    }

    /// Exchanges borders with some neighbours. `meet` has the side and the rank of each neighbour.
    fn exchange(&self, block: &mut Block, meet: &[(usize, usize)]) -> Result<(), CommError> {
        if meet.is_empty() {
            return Ok(());
        }
        let out: Vec<Vec<u8>> = meet
            .iter()
            .map(|&(side, _)| block.edge(SIDES[side]).iter().flat_map(|v| v.to_ne_bytes()).collect())
            .collect();
        let mut into: Vec<Vec<u8>> = out.iter().map(|edge| vec![0; edge.len()]).collect();
        self.comm.overlapped(|pending| {
            for (edge, &(_, rank)) in into.iter_mut().zip(meet) {
                pending.receive(edge, rank, TAG)?;
            }
            for (edge, &(_, rank)) in out.iter().zip(meet) {
                pending.send(edge, rank, TAG)?;
            }
            if self.plan.pace.is_some() { pending.wait_all_asleep(SPIN_TIME, NAP) } else { pending.wait_all() }
        })?;
        for (edge, &(side, _)) in into.iter().zip(meet) {
            let values = edge.as_chunks::<8>().0.iter().map(|b| f64::from_ne_bytes(*b));
            block.set_border(SIDES[side], values);
        }
        Ok(())
    }
}

/// Limits a rank to a number of points per second by sleeping after each iteration. After a sleep that was too long,
/// the next sleep is shorter.
struct Pace {
    seconds_per_point: f64,
    begun: Instant,
    debt: f64,
}

impl Pace {
    fn new(points_per_second: f64) -> Self {
        Self { seconds_per_point: 1.0 / points_per_second, begun: Instant::now(), debt: 0.0 }
    }
    fn begin(&mut self) {
        self.begun = Instant::now();
    }
    fn end(&mut self, points: usize) {
        let wanted = points as f64 * self.seconds_per_point - self.debt;
        let left = wanted - self.begun.elapsed().as_secs_f64();
        if left > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(left));
        }
        self.debt = self.begun.elapsed().as_secs_f64() - wanted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_chosen_by_what_an_exchange_costs() {
        let known = [1, 2, 4, 8, 16, 32].map(|p| (p, 1000 + 20 * (p - 1)));
        assert_eq!(choose_period(&known, 1e-3, 0.0), 1);
        assert_eq!(choose_period(&known, 1e-3, 1.0), 32);
        // (980 + 20 p) (1 + 1 / p) has its minimum at p = sqrt(980 / 20) = 7, which lies between two known periods.
        assert_eq!(choose_period(&known, 1e-3, 1e-3), 7);
        assert_eq!(choose_period(&[(1, 100)], 1e-3, 1.0), 1);
        let steep = [(1, 100), (2, 1000), (4, 5000)];
        assert_eq!(choose_period(&steep, 1e-3, 1e-3), 1);
    }

    #[test]
    fn a_cache_boundary_is_reported_only_if_the_ratios_differ_significantly() {
        // An earlier version reported a cache boundary for the ratios 0.994 and 1.767, although there was no
        // boundary.
        let of = |ratios: &[f64]| Summary::of(ratios, 0.95);
        let wide = of(&[0.6, 0.994, 1.4, 0.9, 1.7, 0.8, 1.8]);
        let high = of(&[1.1, 1.767, 1.9, 0.9, 1.8, 1.7, 2.0]);
        assert_eq!(crossed(&wide, &high), Some(false));
        assert_eq!(crossed(&of(&[0.994]), &of(&[1.767])), None, "one repetition says nothing");
        let (two, three) = (of(&[2.0, 2.01, 2.02, 1.99, 1.98, 2.0, 2.0]), of(&[3.0, 3.1, 3.0, 2.9, 3.0, 3.0, 3.1]));
        assert_eq!(crossed(&two, &three), Some(true));
        let near = of(&[2.1, 2.11, 2.1, 2.12, 2.11, 2.1, 2.1]);
        assert_eq!(crossed(&two, &near), Some(false), "5 % are no boundary");
    }
}
