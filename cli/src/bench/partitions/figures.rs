//! The figures of `mcr bench partitions`.

use super::report::{buffers, victim_buffers};
use super::{Line, PolicyName, Report};
use crate::plot::{Figure, Point, Scale};

/// A line of a figure: its name, and a value for each trace.
type Bars = (String, Vec<Point>);

/// One figure for each figure of the paper from Figure 8 to Figure 12.
pub fn all(report: &Report) -> Vec<(&'static str, Figure)> {
    let most = report.most_sub_buffers();
    let few = victim_buffers(report);
    let values =
        |value: &dyn Fn(&Line) -> Option<f64>| report.traces.iter().map(|line| value(line).into()).collect::<Vec<_>>();
    let over_buffers = |value: &dyn Fn(&Line, usize, usize) -> Option<f64>| -> Vec<Bars> {
        let bars = |(nth, n): (usize, &usize)| (buffers(*n), values(&|line| value(line, *n, nth)));
        report.sub_buffers.iter().enumerate().map(bars).collect()
    };
    let per_100 = |line: &Line, policy, n, victims| {
        line.loads(policy, n, victims).map(|loads| 100.0 * loads as f64 / line.uses.max(1) as f64)
    };
    let policy = |policy: PolicyName| (policy.name().to_owned(), values(&|line| per_100(line, policy, most, 0)));
    let factor = |policy: PolicyName| {
        let of = |line: &Line| {
            let (without, with) = (line.loads(policy, few, 0)?, line.loads(policy, few, report.victims)?);
            Some(without as f64 / with.max(1) as f64)
        };
        (policy.name().to_owned(), values(&of))
    };
    let figure = |figure: u32, what: &str, left, lines, scale| Figure {
        title: format!("{what} (as Figure {figure} of CAPSL TM 108)"),
        below: "trace",
        left,
        places: report.traces.iter().map(|line| line.name.clone()).collect(),
        lines,
        bars: true,
        base: 0.0,
        scale,
    };
    let loads = over_buffers(&|line, n, _| per_100(line, PolicyName::Lru, n, 0));
    let uses = |line: &Line, n, _| line.counters(PolicyName::Lru, n, 0).map(|counters| counters.uses_per_load());
    let title = buffers(most);
    let of_policies = PolicyName::ALL.map(policy).to_vec();
    let both = [PolicyName::Modulus, PolicyName::Lru].map(factor).to_vec();
    let (linear, log) = (Scale::Linear, Scale::Log);
    // The times, the uses for each load and the factors of different traces differ by orders of magnitude.
    let times = over_buffers(&|line, _, nth| line.replay_ms[nth]);
    let victims = format!("Loads without divided by loads with a victim cache, {}", buffers(few));
    vec![
        ("figure-8.svg", figure(8, "Loads, LRU", "loads for each 100 uses", loads, linear)),
        ("figure-9.svg", figure(9, "Time of a replay, LRU", "ms, logarithmic", times, log)),
        ("figure-10.svg", figure(10, "Uses for each load, LRU", "uses, logarithmic", over_buffers(&uses), log)),
        ("figure-11.svg", figure(11, &format!("Loads, {title}"), "loads for each 100 uses", of_policies, linear)),
        ("figure-12.svg", figure(12, &victims, "factor, logarithmic", both, log)),
    ]
}
