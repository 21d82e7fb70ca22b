//! The figures of `mcr bench partitions`. The numbers on the horizontal axis are the numbers of the traces in the
//! tables.

use super::report::{buffers, victim_buffers};
use super::{Line, PolicyName, Report};
use crate::bench::plot::Figure;

/// A line of a figure: its name, and a value for each trace.
type Bars = (String, Vec<Option<f64>>);

/// One figure for each figure of the paper from Figure 8 to Figure 12.
pub fn all(report: &Report) -> Vec<(&'static str, Figure)> {
    let most = report.most_sub_buffers();
    let few = victim_buffers(report);
    let values = |value: &dyn Fn(&Line) -> Option<f64>| report.traces.iter().map(value).collect::<Vec<_>>();
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
    let figure = |figure: u32, what: &str, left, lines| Figure {
        title: format!("{what} (as Figure {figure} of CAPSL TM 108)"),
        below: "trace",
        left,
        places: (1..=report.traces.len()).map(|n| n.to_string()).collect(),
        lines,
        bars: true,
    };
    let loads = over_buffers(&|line, n, _| per_100(line, PolicyName::Lru, n, 0));
    let uses = |line: &Line, n, _| line.counters(PolicyName::Lru, n, 0).map(|counters| counters.uses_per_load());
    let title = buffers(most);
    let of_policies = PolicyName::ALL.map(policy).to_vec();
    let both = [PolicyName::Modulus, PolicyName::Lru].map(factor).to_vec();
    vec![
        ("figure-8.svg", figure(8, "Loads, LRU", "loads for each 100 uses", loads)),
        ("figure-9.svg", figure(9, "Time, LRU", "ms", over_buffers(&|line, _, nth| line.replay_ms[nth]))),
        ("figure-10.svg", figure(10, "Uses for each load, LRU", "uses for each load", over_buffers(&uses))),
        ("figure-11.svg", figure(11, &title, "loads for each 100 uses", of_policies)),
        (
            "figure-12.svg",
            figure(12, &format!("Victim cache, {}", buffers(few)), "loads without, divided by loads with", both),
        ),
    ]
}
