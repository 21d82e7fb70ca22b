//! The picture of `mcr advise`: lost time over the interval, and the growth of the store.

use super::growth::checkpoints_after;
use super::interval::Times;
use super::{Line, by};
use crate::plot::{Curve, Curves, Mark, Quantity, Scale};
use mcrengine::ids::JobId;
use mcrengine::retention::Rules;

/// Number of points of the curve of lost time.
const POINTS: u32 = 120;
/// The lost time is shown for intervals from the shortest advised interval divided by this factor to the longest
/// multiplied by it.
const FACTOR: f64 = 6.0;
const DAYS_MAX: u32 = 30;

/// The SVG text.
pub fn svg(job: &JobId, times: &Times, rules: &Rules, stored_bytes: u64, lines: &[Line]) -> anyhow::Result<String> {
    Curves::svg(&[lost(job, times, lines), growth(job, times, rules, stored_bytes, lines)])
}

fn seconds(line: &Line) -> f64 {
    (line.interval_ms as f64 / 1000.0).max(0.001)
}

fn lost(job: &JobId, times: &Times, lines: &[Line]) -> Curves {
    let intervals = || lines.iter().map(seconds);
    let least = intervals().fold(f64::INFINITY, f64::min) / FACTOR;
    let most = intervals().fold(0.0, f64::max) * FACTOR;
    let step = (most / least).powf(1.0 / f64::from(POINTS));
    let point = |nth: u32| {
        let interval_s = least * step.powi(nth as i32); // at most POINTS
        (interval_s, times.lost_percent(interval_s))
    };
    // The sides of the curve are steep. The marked values shall use most of the height.
    let highest = lines.iter().map(|line| line.lost_percent).fold(0.0, f64::max);
    Curves {
        title: format!("Job {job}: lost time over the interval between checkpoints"),
        labels: ["time between two checkpoints".into(), "lost time".into()],
        quantities: [Quantity::Seconds, Quantity::Percent],
        scale: Scale::Log,
        top: Some((highest * 2.0).max(0.01)),
        curves: vec![Curve { name: "lost time".into(), points: (0..=POINTS).map(point).collect() }],
        marks: lines.iter().map(|line| Mark { name: name_of(line), at: (seconds(line), line.lost_percent) }).collect(),
    }
}

/// The name of an interval with its length, such as `by Daly: 12.0 min`.
fn name_of(line: &Line) -> String {
    let time = crate::output::human_time(std::time::Duration::from_millis(line.interval_ms));
    format!("{}: {time}", by(line))
}

fn growth(job: &JobId, times: &Times, rules: &Rules, stored_bytes: u64, lines: &[Line]) -> Curves {
    let curve = |line: &Line| {
        let period_ms = (seconds(line) + times.write_s) * 1000.0;
        let bytes = |days: u32| {
            let count = if days == 0 { Some(0) } else { checkpoints_after(days, period_ms, rules) };
            Some((f64::from(days), count?.saturating_mul(stored_bytes) as f64))
        };
        Curve { name: name_of(line), points: (0..=DAYS_MAX).filter_map(bytes).collect() }
    };
    let kept = if rules.is_empty() { "no checkpoint is removed" } else { "under the rules of retention" };
    Curves {
        title: format!("Job {job}: growth of the store, {kept}"),
        labels: ["days".into(), "bytes in the store".into()],
        quantities: [Quantity::Number, Quantity::Bytes],
        scale: Scale::Linear,
        top: None,
        curves: lines.iter().map(curve).collect(),
        marks: Vec::new(),
    }
}
