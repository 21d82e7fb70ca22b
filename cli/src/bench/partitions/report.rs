//! The report of `mcr bench partitions` for people. Each line has at most 80 characters.

use super::{Line, PolicyName, Report};
use crate::output::Table;
use std::fmt::Write;

/// Maximum number of characters of the name of a trace.
const NAME_MAX: usize = 16;
/// Maximum number of characters of the description of a trace.
const ABOUT_MAX: usize = 44;

fn shown<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or("-".to_owned(), format)
}

fn first_chars(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = format!("Traces (seed {})\n{}", report.seed, traces(report).render());
    let mut section = |title: &str, table: Table| {
        let _ = write!(text, "\n{title}\n{}", table.render()); // writing to a String cannot fail
    };
    let most = report.most_sub_buffers();
    section(
        "Figure 8: loads, policy LRU",
        over_buffers(report, |line, n, _| shown(line.loads(PolicyName::Lru, n, 0), |loads| loads.to_string())),
    );
    section(
        "Figure 9: time of a replay that copies all bytes, ms, policy LRU",
        over_buffers(report, |line, _, nth| shown(line.replay_ms[nth], |ms| format!("{ms:.3}"))),
    );
    section(
        "Figure 10: calls and returns for each load, policy LRU",
        over_buffers(report, |line, n, _| {
            shown(line.counters(PolicyName::Lru, n, 0), |counters| format!("{:.2}", counters.uses_per_load()))
        }),
    );
    section(
        &format!("Figure 11: loads with {}\n(* the fewest of the three policies without look-ahead)", buffers(most)),
        policies(report),
    );
    section(
        &format!(
            "Figure 12: loads without and with a victim cache of {}, {}",
            if report.victims == 1 { "1 copy".to_owned() } else { format!("{} copies", report.victims) },
            buffers(victim_buffers(report))
        ),
        victims(report),
    );
    text
}

/// The number of sub-buffers for Figure 12: the smallest measured number above 1. The paper's smallest divided buffer
/// has 2 sub-buffers.
pub fn victim_buffers(report: &Report) -> usize {
    report.sub_buffers.iter().copied().find(|n| *n >= 2).unwrap_or(report.most_sub_buffers())
}

/// A number of sub-buffers in words.
pub fn buffers(n: usize) -> String {
    if n == 1 { "1 sub-buffer".to_owned() } else { format!("{n} sub-buffers") }
}

/// The lines with their numbers, from 1.
fn numbered(report: &Report) -> impl Iterator<Item = (String, &Line)> {
    (1usize..).map(|n| n.to_string()).zip(&report.traces)
}

fn traces(report: &Report) -> Table {
    let mut table = Table::new(&[">#", "trace", ">parts", ">uses", "program"]);
    for (n, line) in numbered(report) {
        let about = first_chars(&line.about, ABOUT_MAX);
        table.row([n, first_chars(&line.name, NAME_MAX), line.partitions.to_string(), line.uses.to_string(), about]);
    }
    table
}

fn over_buffers(report: &Report, cell: impl Fn(&Line, usize, usize) -> String) -> Table {
    let mut headings = vec![">#".to_owned(), "trace".to_owned()];
    headings.extend(report.sub_buffers.iter().map(|n| format!(">{n} sub")));
    let mut table = Table::new(&headings);
    for (number, line) in numbered(report) {
        let cells = report.sub_buffers.iter().enumerate().map(|(nth, n)| cell(line, *n, nth));
        table.row([number, first_chars(&line.name, NAME_MAX)].into_iter().chain(cells));
    }
    table
}

fn policies(report: &Report) -> Table {
    let mut headings = vec![">#".to_owned(), "trace".to_owned()];
    headings.extend(PolicyName::ALL.map(|policy| format!(">{}", policy.name())));
    let mut table = Table::new(&headings);
    for (number, line) in numbered(report) {
        let loads = PolicyName::ALL.map(|policy| (policy, line.loads(policy, report.most_sub_buffers(), 0)));
        let online = loads.iter().filter(|(policy, _)| *policy != PolicyName::LookAhead);
        let (least, largest) = (online.clone().filter_map(|l| l.1).min(), online.filter_map(|l| l.1).max());
        let cell = |(policy, loads): &(PolicyName, Option<u64>)| {
            let is_best = *policy != PolicyName::LookAhead && *loads == least && least < largest;
            format!("{}{}", shown(*loads, |loads| loads.to_string()), if is_best { "*" } else { " " })
        };
        table.row([number, first_chars(&line.name, NAME_MAX)].into_iter().chain(loads.iter().map(cell)));
    }
    table
}

fn victims(report: &Report) -> Table {
    let n = victim_buffers(report);
    let headings = [">#", "trace", ">Modulus", ">with", ">factor", ">LRU", ">with", ">factor"];
    let mut table = Table::new(&headings);
    for (number, line) in numbered(report) {
        let cells = [PolicyName::Modulus, PolicyName::Lru].into_iter().flat_map(|policy| {
            let (without, with) = (line.loads(policy, n, 0), line.loads(policy, n, report.victims));
            let factor = without.zip(with).map(|(without, with)| without as f64 / with.max(1) as f64);
            let loads = |loads| shown(loads, |loads: u64| loads.to_string());
            [loads(without), loads(with), shown(factor, |factor| format!("{factor:.1}"))]
        });
        table.row([number, first_chars(&line.name, NAME_MAX)].into_iter().chain(cells));
    }
    table
}
