//! The report of `mcr bench scale` for people.

use super::{Operations, Point, Report};
use crate::output::{Table, counted, human_time};
use mcrengine::units::human_bytes;
use std::fmt::Write;
use std::time::Duration;

fn time(ms: f64) -> String {
    human_time(Duration::from_secs_f64(ms / 1e3))
}

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = format!(
        "Medians of {} of each job, groups of {}, files of {}, {} us for each operation on the store\n\n\
         Operations on the store for each group and checkpoint\n{}",
        counted(report.steps, "checkpoint"),
        counted(report.group_size, "rank"),
        human_bytes(report.file_bytes),
        report.delay_us,
        operations(report).render()
    );
    // Writing to a String cannot fail.
    let _ = write!(text, "\nTime, processor time, memory and network of each checkpoint\n{}", times(report).render());
    if report.points.iter().any(|point| !point.failures.is_empty()) {
        let _ = write!(
            text,
            "\nFailures: time and operations until a checkpoint is complete\n{}",
            failures(report).render()
        );
    }
    text
}

fn names(point: &Point) -> [String; 3] {
    [point.ranks.to_string(), point.aggregators.to_string(), point.stored_checkpoints.to_string()]
}

fn counts(of: &Operations) -> [String; 5] {
    [of.changes(), of.open, of.stat, of.list, of.names].map(|count| format!("{count:.1}"))
}

fn operations(report: &Report) -> Table {
    let mut table = Table::new(&[
        ">ranks",
        ">aggregators",
        "!>stored",
        ">changes",
        ">opens",
        ">stats",
        ">listings",
        ">names",
        ">first step",
    ]);
    for point in &report.points {
        let first = &point.first_operations_per_group;
        let first = first.changes() + first.open + first.stat + first.list;
        table.row(names(point).into_iter().chain(counts(&point.operations_per_group)).chain([format!("{first:.1}")]));
    }
    table
}

fn times(report: &Report) -> Table {
    let mut table = Table::new(&[
        ">ranks",
        ">aggregators",
        "!>stored",
        ">commit",
        ">CPU per group",
        ">busiest aggregator",
        ">busiest agent",
        ">operations of the busiest",
        ">wire per rank",
        ">memory",
    ]);
    for point in &report.points {
        let cells = [
            time(point.commit_ms),
            time(point.cpu_ms / f64::from(point.groups)),
            time(point.aggregator_cpu_ms),
            time(point.agent_cpu_ms),
            format!("{:.0}", point.busiest_operations),
            point.wire_bytes_per_rank.map_or("-".to_owned(), |bytes| human_bytes(bytes as u64)),
            point.memory_bytes.map_or("-".to_owned(), human_bytes),
        ];
        table.row(names(point).into_iter().chain(cells));
    }
    table
}

fn failures(report: &Report) -> Table {
    let mut table = Table::new(&[
        ">ranks",
        ">aggregators",
        "!>stored",
        "failure",
        ">time",
        ">changes",
        ">opens",
        ">stats",
        ">listings",
        ">names",
    ]);
    for point in &report.points {
        for failed in &point.failures {
            let what = [failed.failure.to_owned(), time(failed.recovery_ms)];
            table.row(names(point).into_iter().chain(what).chain(counts(&failed.operations_per_group)));
        }
    }
    table
}
