//! A common time of all ranks, if MPI does not provide one.
//!
//! The method is HCA3 (S. Hunold, A. Carpen-Amarie, "Hierarchical clock synchronization in MPI", Cluster 2018). Ranks
//! that know the common time teach other ranks. The number of ranks that know the time doubles in every round, so all
//! n ranks know the time after log2 n rounds. A rank computes the difference of the clocks from the fastest of
//! several round trips, as in MPIBench and SKaMPI. Clocks also run at different speeds. The speed difference is
//! visible only over some time. So each synchronisation adds a point, and the clock uses the line through the points.

use crate::comm::{Comm, CommError, wtime};
use std::collections::VecDeque;

/// Number of round trips of a synchronisation. Only the fastest round trip counts.
const ROUND_TRIPS: usize = 30;
/// Maximum number of points for the line.
const POINTS: usize = 16;
/// Minimum time between the first and the last point of a line. An error of 1 us in 0.5 s is an error of the speed of
/// 2 ppm.
const BASELINE_SECONDS: f64 = 0.5;
/// Interval between the first synchronisations. A clock without NTP runs too fast or too slow by at most about 50
/// ppm, so the error after 0.1 s is at most 5 us.
const FIRST_INTERVAL_SECONDS: f64 = 0.1;
/// Interval between synchronisations once the speed is known.
const LATER_INTERVAL_SECONDS: f64 = 2.0;
const TAG: u16 = 200;

/// This rank's knowledge of rank 0's time.
#[derive(Debug)]
pub struct Clock {
    /// Whether MPI states that its clock is global. Such a clock needs no synchronisation.
    native: bool,
    points: VecDeque<ClockPoint>,
    line: ClockLine,
    synchronised_at: f64,
    /// Half of the fastest round trip to the teaching rank, in seconds: the maximum error.
    uncertainty: f64,
}

/// A measured difference between rank 0's clock and this rank's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockPoint {
    /// Time on this rank's clock.
    pub local_seconds: f64,
    /// Rank 0's clock minus this rank's clock.
    pub ahead_seconds: f64,
}

/// Rank 0's clock minus this rank's clock, as a line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClockLine {
    /// Time on this rank's clock.
    pub at_seconds: f64,
    /// Rank 0's clock minus this rank's clock at this time.
    pub ahead_seconds: f64,
    /// Change of the difference in seconds per second.
    pub slope: f64,
}

impl ClockLine {
    /// A line through the newest point. The slope is the slope of the least-squares line through all points, or 0 if
    /// the points cover less than `BASELINE_SECONDS`.
    pub fn through(points: &[ClockPoint]) -> Self {
        let Some(last) = points.last() else { return Self::default() };
        let flat = Self { at_seconds: last.local_seconds, ahead_seconds: last.ahead_seconds, slope: 0.0 };
        if last.local_seconds - points[0].local_seconds < BASELINE_SECONDS {
            return flat;
        }
        let n = points.len() as f64;
        let (x, y) = (
            points.iter().map(|p| p.local_seconds).sum::<f64>() / n,
            points.iter().map(|p| p.ahead_seconds).sum::<f64>() / n,
        );
        let slope = points.iter().map(|p| (p.local_seconds - x) * (p.ahead_seconds - y)).sum::<f64>()
            / points.iter().map(|p| (p.local_seconds - x).powi(2)).sum::<f64>();
        Self { slope, ..flat }
    }

    /// Rank 0's time at a time of this rank.
    pub fn global(&self, local: f64) -> f64 {
        local + self.ahead_seconds + self.slope * (local - self.at_seconds)
    }

    /// The inverse of [`ClockLine::global`].
    pub fn local(&self, global: f64) -> f64 {
        self.at_seconds + (global - self.at_seconds - self.ahead_seconds) / (1.0 + self.slope)
    }
}

/// The point of a round trip. `asked` and `answered` are the times of request and answer on this rank's clock.
/// `teacher` is the time between them on the teacher's clock.
fn point(asked: f64, teacher: f64, answered: f64) -> ClockPoint {
    let middle = asked + (answered - asked) / 2.0;
    ClockPoint { local_seconds: middle, ahead_seconds: teacher - middle }
}

impl Clock {
    /// Synchronises all ranks. All ranks must call this function.
    pub fn synchronised(comm: &Comm) -> Result<Self, CommError> {
        let global = comm.all_numbers(f64::from(u8::from(comm.wtime_is_global())))?;
        let mut clock = Self {
            native: global.iter().all(|&g| g == 1.0),
            points: VecDeque::with_capacity(POINTS),
            line: ClockLine::default(),
            synchronised_at: wtime(),
            uncertainty: 0.0,
        };
        clock.synchronise(comm)?;
        Ok(clock)
    }

    /// How the common time is obtained, for the context of a report.
    pub fn describe(&self) -> String {
        if self.native { "global clock of the MPI library".into() } else { "clocks synchronised by round trips".into() }
    }

    /// Rank 0's time.
    pub fn now(&self) -> f64 {
        self.global(wtime())
    }

    /// Rank 0's time at a time of [`wtime`].
    pub fn global(&self, local: f64) -> f64 {
        if self.native { local } else { self.line.global(local) }
    }

    /// Maximum error of this rank's time at the moment of synchronisation, in addition to the error of its teacher.
    pub fn uncertainty_seconds(&self) -> f64 {
        self.uncertainty
    }

    /// Synchronises the clocks of all ranks again if rank 0 finds that the last synchronisation is too old. All ranks
    /// must call this function.
    pub fn keep(&mut self, comm: &Comm) -> Result<(), CommError> {
        if self.native {
            return Ok(());
        }
        // All ranks have the same number of points, and rank 0 decides.
        let known = self.points.len() > 8;
        let interval = if known { LATER_INTERVAL_SECONDS } else { FIRST_INTERVAL_SECONDS };
        let mut due = [f64::from(u8::from(wtime() - self.synchronised_at > interval))];
        comm.broadcast(&mut due, 0)?;
        if due[0] == 1.0 { self.synchronise(comm) } else { Ok(()) }
    }

    /// Synchronises now. Does nothing if the clock is global. All ranks must call this function.
    pub fn synchronise(&mut self, comm: &Comm) -> Result<(), CommError> {
        if self.native {
            return Ok(());
        }
        let (me, n) = (comm.rank(), comm.size());
        let mut gap = n.next_power_of_two() / 2;
        while gap > 0 {
            if me % (2 * gap) == 0 && me + gap < n {
                self.teach(comm, me + gap)?;
            } else if me % (2 * gap) == gap {
                self.learn(comm, me - gap)?;
            }
            gap /= 2;
        }
        if me == 0 {
            self.remember(ClockPoint { local_seconds: wtime(), ahead_seconds: 0.0 });
        }
        self.synchronised_at = wtime();
        Ok(())
    }

    fn teach(&self, comm: &Comm, pupil: usize) -> Result<(), CommError> {
        for _ in 0..ROUND_TRIPS {
            comm.receive(&mut [], pupil, TAG)?;
            comm.send(&self.now().to_ne_bytes(), pupil, TAG)?;
        }
        Ok(())
    }

    fn learn(&mut self, comm: &Comm, teacher: usize) -> Result<(), CommError> {
        let mut best: Option<(f64, ClockPoint)> = None;
        for _ in 0..ROUND_TRIPS {
            let mut time = [0; 8];
            let asked = wtime();
            comm.send(&[], teacher, TAG)?;
            comm.receive(&mut time, teacher, TAG)?;
            let answered = wtime();
            let trip = answered - asked;
            if best.is_none_or(|(quickest, _)| trip < quickest) {
                best = Some((trip, point(asked, f64::from_ne_bytes(time), answered)));
            }
        }
        if let Some((trip, found)) = best {
            self.uncertainty = trip / 2.0;
            self.remember(found);
        }
        Ok(())
    }

    fn remember(&mut self, point: ClockPoint) {
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.line = ClockLine::through(self.points.make_contiguous());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The teacher's clock, if this rank's clock is slow by 40 ppm and started 123.4 s late.
    fn teacher_at(local: f64) -> f64 {
        local * (1.0 + 40e-6) + 123.4
    }

    #[test]
    fn a_clock_that_runs_at_another_speed_is_followed() {
        let mut points = Vec::new();
        let mut random = 1u64;
        for i in 0..16 {
            let asked = 10.0 + f64::from(i) * 0.5;
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (there, back) = (5e-6 + (random >> 44) as f64 * 1e-12, 5e-6); // up to 1 us of asymmetry
            points.push(point(asked, teacher_at(asked + there), asked + there + back));
        }
        let line = ClockLine::through(&points);
        assert!((line.slope - 40e-6).abs() < 1e-6, "{line:?}");
        // Without the slope, the error would be 80 us two seconds later.
        let later = 10.0 + 7.5 + 2.0;
        let off = line.global(later) - teacher_at(later);
        assert!(off.abs() < 4e-6, "off by {off}");
        let back = line.local(line.global(later));
        assert!((back - later).abs() < 1e-9, "{back}");
    }

    #[test]
    fn points_close_together_say_nothing_of_the_speed() {
        let points: Vec<_> =
            (0..5).map(|i| point(f64::from(i) * 1e-3, f64::from(i % 2) * 1e-6, f64::from(i) * 1e-3 + 1e-5)).collect();
        assert_eq!(ClockLine::through(&points).slope, 0.0);
        assert_eq!(ClockLine::through(&[]), ClockLine::default());
    }
}
