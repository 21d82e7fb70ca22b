//! Measures the time of an operation of all ranks: isolated, repeated until the error is small enough, by a chosen
//! method.

use crate::clock::Clock;
use crate::collectives::Result;
use crate::collectives::operation::{Flow, Operation};
use crate::comm::{Comm, CommError, wtime};
use crate::stats::{Estimate, MAX_REPS, RuleError, Series, StoppingRule, Summary, median};
use serde::{Deserialize, Serialize};

/// The time that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// From the start of the first rank to the end of the last rank, on synchronised clocks: the exact definition of
    /// the time.
    Global,
    /// The longest of the times that the ranks measured, each on its own clock.
    Maximum,
    /// The root's time. Other ranks may end later than the root in scatter, in broadcast, and in all symmetric
    /// operations, whose root is rank 0. In these operations, the root waits for confirmations of the other ranks,
    /// and the time of the confirmations alone is subtracted. The result is at least the root's time without
    /// confirmations.
    Root,
    /// From single tasks, after B. de Supinski and N. Karonis, "Accurately measuring MPI broadcasts in a
    /// computational grid" (HPDC 1999). For each rank in turn, the root measures the time until this rank answers,
    /// minus half of a round trip. The times of the slowest task are the times of the operation. The slowest task is
    /// the task with the largest estimate: the maximum of all tasks in each repetition would be too large by noise.
    /// For a gather, the rank starts after a message of the root. No clock is needed, and the isolation has no
    /// effect. Symmetric operations cannot be divided into such tasks, so `Maximum` is used.
    Specific,
}

/// How a repetition is isolated from the next repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// MPI_Barrier.
    Barrier,
    /// An MPI_Reduce of one number to rank 0, and a broadcast of the result.
    Reduce,
    /// Empty messages to rank 0 and back.
    PointToPoint,
    /// All ranks start at a common time on synchronised clocks. A repetition in which a rank is late is discarded.
    StartTime,
    /// No isolation: repetitions overlap, as in a loop of a program.
    Pipelined,
}

/// All parameters of a measurement except the operation and the size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The time that is reported.
    pub method: Method,
    /// The isolation of repetitions.
    pub isolation: Isolation,
    /// When repetitions end.
    pub rule: StoppingRule,
    /// Number of repetitions before the measurement.
    pub warm_up: usize,
    /// Whether each repetition uses other buffers.
    pub fresh_buffers: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            method: Method::Maximum,
            isolation: Isolation::Barrier,
            rule: StoppingRule::default(),
            warm_up: 3,
            fresh_buffers: false,
        }
    }
}

/// Why a measurement is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TimingError {
    /// The rule for the end of repetitions is invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// Global times need isolated repetitions.
    #[error(
        "method global needs isolated repetitions: with isolation pipelined, the first rank starts a repetition while \
         other ranks still run earlier ones, and the time from the first start to the last end contains all of them"
    )]
    GlobalPipelined,
    /// The warm-up would not end.
    #[error("warm-up is {0}; at most {MAX_REPS} repetitions are allowed")]
    WarmUp(usize),
    /// The times of all tasks would not fit into memory.
    #[error(
        "method specific keeps max-reps x ranks times, here {reps} x {ranks}; at most {MAX_TASK_TIMES} are allowed"
    )]
    Tasks {
        /// `max_reps`
        reps: usize,
        /// Number of ranks.
        ranks: usize,
    },
}

/// Maximum number of times that the method [`Method::Specific`] keeps: 800 MB.
const MAX_TASK_TIMES: usize = 100_000_000;

impl Timing {
    /// Rejects combinations that cannot be measured on this number of ranks.
    pub fn check(&self, ranks: usize) -> Result<(), TimingError> {
        self.rule.check()?;
        match *self {
            Self { method: Method::Global, isolation: Isolation::Pipelined, .. } => Err(TimingError::GlobalPipelined),
            Self { warm_up, .. } if warm_up > MAX_REPS => Err(TimingError::WarmUp(warm_up)),
            Self { method: Method::Specific, rule: StoppingRule { max_reps: reps, .. }, .. }
                if reps.saturating_mul(ranks) > MAX_TASK_TIMES =>
            {
                Err(TimingError::Tasks { reps, ranks })
            }
            _ => Ok(()),
        }
    }
}

/// Times operations on one communicator, with synchronised clocks of all ranks.
pub struct Timer {
    comm: Comm,
    clock: Clock,
    start_slack_seconds: f64,
    report: Option<Box<Listener>>,
}

/// A function that gets the name of an operation, its block size, and its times.
type Listener = dyn FnMut(&str, usize, &Summary);

const TAG: u16 = 300;
/// A rank that starts more than this time after the common time makes the repetition invalid.
const LATE_SECONDS: f64 = 10e-6;

impl Timer {
    /// A timer for the ranks of `comm`. All ranks must call this function and all methods.
    pub fn new(comm: &Comm) -> Result<Self> {
        let comm = comm.duplicate()?;
        let clock = Clock::synchronised(&comm)?;
        Ok(Self { comm, clock, start_slack_seconds: 1e-4, report: None })
    }

    /// The clock for global times.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Calls a function at the end of each measurement, for example to keep results if a later measurement fails.
    pub fn report_to(&mut self, report: impl FnMut(&str, usize, &Summary) + 'static) {
        self.report = Some(Box::new(report));
    }

    /// Prepares `operation` for `block_bytes`, warms up, and repeats it until the rule is satisfied. Every rank gets
    /// the same summary.
    pub fn measure(&mut self, operation: &mut dyn Operation, block_bytes: usize, how: &Timing) -> Result<Summary> {
        how.check(self.comm.size()).map_err(|e| CommError::Told(e.to_string()))?;
        operation.prepare(&self.comm, block_bytes)?;
        let mut series = Series::new(&how.rule);
        for _ in 0..how.warm_up {
            operation.ready()?;
            operation.run(&self.comm)?;
        }
        self.comm.barrier()?;
        let specific = how.method == Method::Specific && operation.flow() != Flow::Symmetric;
        let mut samples = Vec::new();
        let mut tasks: Vec<Vec<f64>> = vec![Vec::new(); self.comm.size() - 1];
        loop {
            // One rank decides, because machines may round differently.
            let mut more = [series.next(&samples) as f64];
            self.comm.broadcast(&mut more, 0)?;
            if more[0] == 0.0 {
                let summary = how.rule.summary(&samples);
                if let Some(report) = &mut self.report {
                    report(&operation.name(), block_bytes, &summary);
                }
                return Ok(summary);
            }
            let more = (more[0] as usize).min(4096); // limits the time between checks, and the root's memory
            if specific && !tasks.is_empty() {
                for (task, times) in tasks.iter_mut().zip(self.tasks(operation, how, more)?) {
                    task.extend(times);
                }
                samples = slowest(&tasks, how.rule.estimate).to_vec();
            } else {
                samples.extend(self.repetitions(operation, how, more)?);
            }
        }
    }

    /// Measures `reps` repetitions. The result is the same on all ranks.
    fn repetitions(&mut self, operation: &mut dyn Operation, how: &Timing, reps: usize) -> Result<Vec<f64>> {
        let needs_clock = how.method == Method::Global || how.isolation == Isolation::StartTime;
        let confirm = match (how.method, operation.flow()) {
            (Method::Root, Flow::From(root)) => Some((root, self.confirmation_seconds(root)?)),
            // The root of a symmetric operation may end first too.
            (Method::Root, Flow::Symmetric) => Some((0, self.confirmation_seconds(0)?)),
            _ => None,
        };
        let mut good = Vec::new();
        while good.len() < reps {
            if needs_clock {
                self.clock.keep(&self.comm)?;
            }
            let wanted = reps - good.len();
            // Three numbers for each repetition: the end and minus the start, in seconds, and 1 if a rank was late.
            // One maximum over all ranks then gives the last end, the first start, and whether any rank was late.
            let mut ends = Vec::with_capacity(3 * wanted);
            let me = self.comm.rank();
            let seen_by = match (how.method, operation.flow()) {
                (Method::Root, Flow::From(root) | Flow::To(root)) => Some(root),
                (Method::Root, Flow::Symmetric) => Some(0),
                _ => None,
            };
            for _ in 0..wanted {
                if how.fresh_buffers {
                    operation.freshen();
                }
                operation.ready()?;
                let late = self.isolate(how.isolation)?;
                let start = wtime();
                operation.run(&self.comm)?;
                let end = wtime();
                if let Some((root, confirming)) = confirm {
                    self.confirm(root)?;
                    let confirmed = wtime() - confirming;
                    ends.push(end.max(confirmed) - start);
                    ends.push(0.0);
                } else if how.method == Method::Global {
                    ends.push(self.clock.global(end));
                    ends.push(-self.clock.global(start));
                } else {
                    ends.push(end - start);
                    ends.push(0.0);
                }
                ends.push(f64::from(u8::from(late)));
                if seen_by.is_some_and(|r| r != me) {
                    let at = ends.len() - 3;
                    ends[at] = f64::NEG_INFINITY;
                }
            }
            self.comm.all_max(&mut ends)?;
            let on_time: Vec<f64> =
                ends.as_chunks::<3>().0.iter().filter(|[.., late]| *late == 0.0).map(|[e, s, _]| e + s).collect();
            if 2 * on_time.len() < wanted {
                // More than half of the repetitions had a late rank: use a later start, up to a limit above which
                // waiting does not help.
                self.start_slack_seconds = (2.0 * self.start_slack_seconds).min(0.1);
                if self.start_slack_seconds >= 0.1 {
                    good.extend(ends.as_chunks::<3>().0.iter().map(|[e, s, _]| e + s));
                    continue;
                }
            }
            good.extend(on_time);
        }
        good.truncate(reps);
        Ok(good)
    }

    /// Waits until all ranks may start. Returns whether this rank was late.
    fn isolate(&self, isolation: Isolation) -> Result<bool> {
        let (comm, me) = (&self.comm, self.comm.rank());
        match isolation {
            Isolation::Barrier => comm.barrier()?,
            Isolation::Reduce => {
                let mut sum = [0.0];
                comm.reduce_sum(&[1.0], &mut sum, 0)?;
                comm.broadcast(&mut sum, 0)?;
            }
            Isolation::PointToPoint if me == 0 => {
                for rank in 1..comm.size() {
                    comm.receive(&mut [], rank, TAG)?;
                }
                for rank in 1..comm.size() {
                    comm.send(&[], rank, TAG)?;
                }
            }
            Isolation::PointToPoint => {
                comm.send(&[], 0, TAG)?;
                comm.receive(&mut [], 0, TAG)?;
            }
            Isolation::StartTime => {
                comm.barrier()?;
                let mut start = [self.clock.now() + self.start_slack_seconds];
                comm.broadcast(&mut start, 0)?;
                loop {
                    match start[0] - self.clock.now() {
                        left if left <= 0.0 => return Ok(-left > LATE_SECONDS),
                        // If ranks share cores, other ranks need the core to reach the start.
                        left if left > 50e-6 => std::thread::yield_now(),
                        _ => std::hint::spin_loop(),
                    }
                }
            }
            Isolation::Pipelined => {}
        }
        Ok(false)
    }

    fn confirm(&self, root: usize) -> Result<()> {
        if self.comm.rank() != root {
            return self.comm.send(&[], root, TAG);
        }
        (0..self.comm.size()).filter(|&r| r != root).try_for_each(|rank| self.comm.receive(&mut [], rank, TAG))
    }

    /// Time of the confirmations alone at the root, in seconds: the median of several measurements.
    fn confirmation_seconds(&self, root: usize) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..11 {
            self.comm.barrier()?;
            let start = wtime();
            self.confirm(root)?;
            times.push(wtime() - start);
        }
        Ok(median(&times))
    }

    /// Measures each single task `reps` times: one list of times for each rank that is not the root. The result is
    /// the same on all ranks.
    fn tasks(&mut self, operation: &mut dyn Operation, how: &Timing, reps: usize) -> Result<Vec<Vec<f64>>> {
        let (comm, me) = (&self.comm, self.comm.rank());
        let (root, gathers) = match operation.flow() {
            Flow::From(root) => (root, false),
            Flow::To(root) => (root, true),
            Flow::Symmetric => (0, true),
        };
        let mut all = Vec::with_capacity(comm.size() - 1);
        for other in (0..comm.size()).filter(|&r| r != root) {
            let mut trips = [0.0; 11];
            for trip in &mut trips {
                let start = wtime();
                if me == root {
                    comm.send(&[], other, TAG)?;
                    comm.receive(&mut [], other, TAG)?;
                } else if me == other {
                    comm.receive(&mut [], root, TAG)?;
                    comm.send(&[], root, TAG)?;
                }
                *trip = wtime() - start;
            }
            let one_way = median(&trips) / 2.0;
            let mut times = Vec::with_capacity(reps);
            for _ in 0..reps {
                if how.fresh_buffers {
                    operation.freshen();
                }
                operation.ready()?;
                let start = wtime();
                if gathers && me == root {
                    comm.send(&[], other, TAG)?;
                } else if gathers && me == other {
                    comm.receive(&mut [], root, TAG)?;
                }
                operation.run(comm)?;
                if !gathers && me == other {
                    comm.send(&[], root, TAG)?;
                } else if !gathers && me == root {
                    comm.receive(&mut [], other, TAG)?;
                }
                times.push(wtime() - start - one_way);
            }
            if me != root {
                times.fill(f64::NEG_INFINITY);
            }
            // All other ranks wait here, because a rank without a task could continue with later repetitions. The
            // wait is not timed.
            comm.all_max(&mut times)?;
            all.push(times);
        }
        Ok(all)
    }
}

/// The times of the task with the largest estimate.
fn slowest(tasks: &[Vec<f64>], estimate: Estimate) -> &[f64] {
    let value = |times: &[f64]| match estimate {
        Estimate::Median => median(times),
        Estimate::Mean => times.iter().sum::<f64>() / times.len().max(1) as f64,
    };
    let largest = tasks.iter().max_by(|a, b| value(a).total_cmp(&value(b)));
    largest.map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_times_of_pipelined_repetitions_are_refused() {
        let how = Timing { method: Method::Global, isolation: Isolation::Pipelined, ..Timing::default() };
        assert_eq!(how.check(2), Err(TimingError::GlobalPipelined));
        assert_eq!(Timing { method: Method::Maximum, ..how }.check(2), Ok(()));
        let many = Timing { method: Method::Specific, rule: StoppingRule::fixed(1_000_000), ..Timing::default() };
        assert_eq!(many.check(1000), Err(TimingError::Tasks { reps: 1_000_000, ranks: 1000 }));
    }

    #[test]
    fn the_time_of_tasks_is_that_of_the_slowest_task_and_not_the_largest_of_each_repetition() {
        let tasks = [vec![1.0, 1.0, 9.0], vec![9.0, 2.0, 2.0], vec![1.5, 8.0, 1.5]];
        assert_eq!(slowest(&tasks, Estimate::Median), [9.0, 2.0, 2.0]);
    }
}
