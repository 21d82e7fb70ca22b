//! Measured values of benchmarks: repetitions, medians and spread, the status of a process.

use std::time::Duration;

/// Number of repetitions of each measurement: MCR_BENCH_REPETITIONS, or `default`.
pub fn repetitions(default: usize) -> usize {
    let given = std::env::var("MCR_BENCH_REPETITIONS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(default).max(1)
}

/// Whether to measure. `cargo bench` starts a bench with `--bench`, and `cargo test --benches` starts a bench without
/// `--bench`.
pub fn is_asked_for() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Measured values of one quantity.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// A sample without values.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a value.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    /// Adds a time, in milliseconds.
    pub fn push_ms(&mut self, elapsed: Duration) {
        self.push(elapsed.as_secs_f64() * 1e3);
    }

    fn quantile(&self, q: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return f64::NAN };
        let at = q * last as f64;
        let (low, high) = (self.0[at.floor() as usize], self.0[at.ceil() as usize]);
        low + (high - low) * at.fract()
    }

    /// The median. NaN if there are no values.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The median, the quartiles and the extremes.
    pub fn show(&self) -> String {
        let q = |q| self.quantile(q);
        format!("{:.1} [{:.1} to {:.1}; {:.1} to {:.1}]", q(0.5), q(0.25), q(0.75), q(0.0), q(1.0))
    }
}

/// A number from the status of a process, such as `VmHWM` (KiB) or `voluntary_ctxt_switches`. `None` if the process
/// has ended.
pub fn process_status(process: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.split(':').next() == Some(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
