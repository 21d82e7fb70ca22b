//! The interval between checkpoints by Young and by Daly. All times are in seconds.
//!
//! John W. Young: A first order approximation to the optimum checkpoint interval, 1974. J. T. Daly: A higher order
//! estimate of the optimum checkpoint interval for restart dumps, 2006.

/// The times on which the best interval depends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Time for which the application stops to write a checkpoint.
    pub write_s: f64,
    /// Mean time between failures.
    pub mtbf_s: f64,
    /// Time from a failure until the application computes again.
    pub restart_s: f64,
    /// Time from the writing of a checkpoint until a restart can use it.
    pub commit_s: f64,
}

impl Times {
    /// The interval by Young: the time to compute between two checkpoints.
    pub fn young_s(&self) -> f64 {
        (2.0 * self.write_s * self.mtbf_s).sqrt()
    }

    /// The interval by Daly. If writing takes more than twice the time between failures, the formula does not apply,
    /// and the interval is the time between failures.
    pub fn daly_s(&self) -> f64 {
        if self.write_s >= 2.0 * self.mtbf_s {
            return self.mtbf_s;
        }
        let part = self.write_s / (2.0 * self.mtbf_s);
        self.young_s() * (1.0 + part.sqrt() / 3.0 + part / 9.0) - self.write_s
    }

    /// The share of the whole time that is lost with this interval, from 0 to 1. Lost time is the time to write
    /// checkpoints, to compute again what a failure destroyed, and to restart. The formula is Daly's model of the
    /// whole time, except that each failure also costs the time of a commit.
    pub fn lost_share(&self, interval_s: f64) -> f64 {
        let per_failure = ((self.restart_s + self.commit_s) / self.mtbf_s).exp();
        let whole_s = self.mtbf_s * per_failure * ((interval_s + self.write_s) / self.mtbf_s).exp_m1();
        // If nothing can be computed between two failures, `whole_s` is infinite, and the share is 1.
        1.0 - interval_s / whole_s
    }

    /// [`Self::lost_share`] in percent.
    pub fn lost_percent(&self, interval_s: f64) -> f64 {
        100.0 * self.lost_share(interval_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { write_s: 60.0, mtbf_s: 86_400.0, restart_s: 0.0, commit_s: 0.0 };

    #[test]
    fn the_intervals_are_those_of_the_formulas() {
        assert!((TIMES.young_s() - 3219.94).abs() < 0.01, "{}", TIMES.young_s());
        assert!((TIMES.daly_s() - 3180.06).abs() < 0.01, "{}", TIMES.daly_s());
        let hopeless = Times { write_s: 200.0, mtbf_s: 100.0, ..TIMES };
        assert_eq!(hopeless.daly_s(), 100.0);
    }

    #[test]
    fn the_interval_by_daly_loses_less_than_shorter_and_longer_intervals() {
        for write_s in [1.0, 60.0, 1800.0] {
            let times = Times { write_s, restart_s: 300.0, commit_s: 20.0, ..TIMES };
            let best = times.lost_share(times.daly_s());
            for factor in [0.5, 0.8, 1.25, 2.0] {
                assert!(best < times.lost_share(times.daly_s() * factor), "{write_s} {factor}");
            }
            assert!(best > 0.0 && best < 1.0);
        }
    }

    #[test]
    fn restarts_and_commits_cost_time_and_a_job_that_always_fails_loses_everything() {
        let slow = Times { restart_s: 600.0, commit_s: 60.0, ..TIMES };
        assert!(slow.lost_share(3000.0) > TIMES.lost_share(3000.0));
        let hopeless = Times { write_s: 1e6, mtbf_s: 10.0, ..TIMES };
        assert!(hopeless.lost_share(hopeless.daly_s()) > 0.999_999);
    }
}
