//! The picture of `mcr bench scale`: curves over the number of ranks, and over the number of stored checkpoints.

use super::{Point, Report};
use crate::plot::{Curve, Curves, Quantity, Scale};

/// A quantity over which curves are drawn.
type Across = (&'static str, fn(&Point) -> f64);
/// A quantity of a curve.
type Value = (&'static str, fn(&Point) -> f64);

const ACROSS: [Across; 2] = [
    ("ranks", |point| f64::from(point.ranks)),
    // The axis is logarithmic, so 0 stored checkpoints are drawn at 1.
    ("stored checkpoints", |point| f64::from(point.stored_checkpoints.max(1))),
];

/// The curves of all panels as one SVG text. A quantity with only one value has no panels.
pub fn svg(report: &Report) -> anyhow::Result<String> {
    let mut panels = Vec::new();
    for across in ACROSS {
        let first = report.points.first().map(across.1);
        if report.points.iter().map(across.1).all(|value| Some(value) == first) && !panels.is_empty() {
            continue;
        }
        panels.extend(panels_across(report, across));
    }
    Curves::svg(&panels)
}

fn panels_across(report: &Report, (below, across): Across) -> [Curves; 4] {
    let panel = |title: &str, left: &str, quantity: Quantity, values: &[Value]| {
        let curve = |(name, value): &Value| {
            let mut points: Vec<(f64, f64)> = report.points.iter().map(|point| (across(point), value(point))).collect();
            points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            Curve { name: (*name).to_owned(), points }
        };
        Curves {
            title: format!("{title} over {below}"),
            labels: [below.to_owned(), left.to_owned()],
            quantities: [Quantity::Number, quantity],
            scale: Scale::Log,
            top: None,
            curves: values.iter().map(curve).collect(),
            marks: Vec::new(),
        }
    };
    [
        panel(
            "Operations on the store",
            "operations of each group",
            Quantity::Number,
            &[
                ("changes", |point| point.operations_per_group.changes()),
                ("opens", |point| point.operations_per_group.open),
                ("stats", |point| point.operations_per_group.stat),
                ("listings", |point| point.operations_per_group.list),
            ],
        ),
        panel(
            "Names in listings",
            "names of each group",
            Quantity::Number,
            &[("names", |point| point.operations_per_group.names)],
        ),
        panel(
            "Memory of all daemons",
            "memory",
            Quantity::Bytes,
            &[("memory", |point| point.memory_bytes.unwrap_or(0) as f64)],
        ),
        panel(
            "Time from the last file to the commit",
            "time",
            Quantity::Seconds,
            &[("time", |point| point.commit_ms / 1e3)],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::scale::Operations;
    use mcr_simulation::store::Counts;

    #[test]
    fn the_picture_has_panels_over_ranks_and_over_stored_checkpoints() {
        let operations = Operations::new(&Counts::default(), 1);
        let point = |ranks: u32, stored_checkpoints: u32| Point {
            ranks,
            groups: 1,
            nodes: 1,
            aggregators: 1,
            stored_checkpoints,
            operations_per_group: operations,
            first_operations_per_group: operations,
            busiest_operations: 1.0,
            commit_ms: 20.0,
            cpu_ms: 1.0,
            aggregator_cpu_ms: 1.0,
            agent_cpu_ms: 1.0,
            wire_bytes_per_rank: None,
            memory_bytes: None,
            failures: Vec::new(),
        };
        let report = |points: Vec<Point>| Report { group_size: 32, steps: 1, delay_us: 0, file_bytes: 4096, points };
        let only_ranks = svg(&report(vec![point(32, 0), point(64, 0)])).expect("drawn");
        assert!(only_ranks.contains("over ranks") && !only_ranks.contains("over stored"), "{only_ranks}");
        let both = svg(&report(vec![point(32, 0), point(64, 100)])).expect("drawn");
        assert!(both.contains("over ranks") && both.contains("over stored checkpoints"), "{both}");
    }
}
