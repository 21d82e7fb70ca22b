//! The report of `mcr advise` for people.

use super::choices::{Choice, Choices};
use super::history::{Measured, Restarts};
use super::sample::Sample;
use super::{Advice, Line, by};
use crate::output::{Table, counted, human_time, print};
use mcrengine::units::human_bytes;
use std::fmt::Write;
use std::time::Duration;

fn time(ms: u64) -> String {
    human_time(Duration::from_millis(ms))
}

/// Prints the whole report.
pub fn print_all(advice: &Advice<'_>, lines: &[Line]) -> anyhow::Result<()> {
    print(&times(advice))?;
    let mut table =
        Table::new(&["interval", ">between", ">lost time", ">stored/day", ">in 1 day", ">in 7 days", ">in 30 days"]);
    for line in lines {
        let lost = format!("{:.2} %", line.lost_percent);
        let after = line.kept.iter().map(|kept| kept.stored_bytes.map_or("-".to_owned(), human_bytes));
        let first = [by(line).to_owned(), time(line.interval_ms), lost, human_bytes(line.bytes_per_day)];
        table.row(first.into_iter().chain(after));
    }
    table.print()?;
    let mut notes = String::new();
    notes.push_str(match advice.rules.is_empty() {
        true => "No checkpoint is removed, because no rule of retention is set (--keep, or keep in mcr.toml).\n",
        false => "Containers of removed checkpoints that other checkpoints need are not counted.\n",
    });
    if let (Some(ms), false) = (advice.measured.interval_ms, lines.iter().any(|line| line.formula == "in-use")) {
        let _ = writeln!(
            notes,
            "There is no row for the interval in use: two checkpoints are {} apart, and one takes {} to write\n\
             (--write-seconds).",
            time(ms),
            human_time(Duration::from_secs_f64(advice.times.write_s))
        );
    }
    let shortest = lines.iter().map(|line| line.interval_ms).min().unwrap_or(0);
    if advice.measured.flush_ms > shortest {
        let _ = writeln!(
            notes,
            "The aggregators need {} for a checkpoint, so a shorter interval lets checkpoints wait.",
            time(advice.measured.flush_ms)
        );
    }
    match &advice.choices {
        None => notes.push_str("--measure also measures other profiles, group sizes and numbers of aggregators.\n"),
        Some((sample, choices)) => return print(&format!("\n{notes}\n{}", measured(advice, sample, choices))),
    }
    print(&format!("\n{notes}"))
}

/// The times on which the intervals depend, and where each time comes from.
fn times(advice: &Advice<'_>) -> String {
    let Advice { args, job, measured, restarts, times, .. } = advice;
    let mut text = match measured.count {
        1 => format!("job {job}, the newest complete checkpoint:\n"),
        n => format!("job {job}, the newest {}, medians:\n", counted(n as u64, "complete checkpoint")),
    };
    text.push_str(&failures(args.mtbf, restarts, times.mtbf_s));
    match (args.write_seconds, measured.write_ms) {
        (Some(given), _) => text.push_str(&format!("  write    {given} s, as given\n")),
        (None, Some(ms)) => text.push_str(&format!(
            "  write    {}, from the first to the last file; the application\n           \
             may stop longer (--write-seconds)\n",
            time(ms)
        )),
        (None, None) => {}
    }
    let Measured { commit_ms, flush_ms, restart_ms, file_bytes, stored_bytes, .. } = measured;
    text.push_str(&match measured.saved_later {
        false => format!("  commit   {} after the last file was written\n", time(*commit_ms)),
        true => {
            format!("  commit   {}, as the flush: they were saved long after they were written\n", time(*commit_ms))
        }
    });
    text.push_str(&format!("  flush    {} for {}\n", time(*flush_ms), human_bytes(*file_bytes)));
    text.push_str(&format!("  stored   {} for each checkpoint\n", human_bytes(*stored_bytes)));
    text.push_str(&match (args.restart_seconds, restart_ms) {
        (Some(given), _) => format!("  restart  {given} s, as given\n"),
        (None, Some(ms)) => format!(
            "  restart  {} in mcr restart; the wait for nodes is not counted\n           (--restart-seconds)\n",
            time(*ms)
        ),
        (None, None) => "The time of a restart is not counted (--restart-seconds).\n".to_owned(),
    });
    text + "\n"
}

fn failures(given: Option<f64>, restarts: &Restarts, mtbf_s: f64) -> String {
    let between = human_time(Duration::from_secs_f64(mtbf_s));
    match given {
        Some(_) => format!("  failures one in {between}, as given\n"),
        None => format!(
            "  failures one in {between}: {} in {}. Each restart counts as\n           a failure, also after a \
             planned end of the job (--mtbf)\n",
            counted(restarts.count, "restart"),
            time(restarts.computed_ms)
        ),
    }
}

/// The choices that were measured on a sample.
fn measured(advice: &Advice<'_>, sample: &Sample, choices: &Choices) -> String {
    let options = &advice.args.measure;
    let mut text = format!(
        "Measured on checkpoint {}: {} of {}, {}; about {} for each line (--sample)\n",
        advice.checkpoint,
        sample.measured_ranks,
        counted(sample.ranks, "rank"),
        human_bytes(sample.measured_file_bytes),
        human_bytes(options.sample.min(sample.measured_file_bytes)),
    );
    let mut part = |heading: &str, choices: &[Choice], name: &dyn Fn(&Choice) -> String| {
        let _ = write!(text, "\n{}", table(heading, choices, name).render()); // writing to a String cannot fail
    };
    part("profile", &choices.profiles, &|choice| choice.profile.to_string());
    part("group size", &choices.group_sizes, &|choice| choice.group_size.to_string());
    part("aggregators", &choices.aggregators, &|choice| choice.aggregators.to_string());
    let (aggregators, threads) = (u64::from(options.aggregators.get()), advice.threads);
    let _ = write!(
        text,
        "\nCoding, decoding: {} with {} each (--aggregators, --threads).\n\
         The network and the file system are not measured here; mpib measures them.\n\
         One aggregator codes the whole of a group. The interval is that of Daly, or\n\
         the time to code a checkpoint if this is longer. The lost time uses the\n\
         measured times of commit and restart, changed by the difference in coding.\n\
         Each checkpoint is coded by itself: a store that reuses older bytes has less.\n",
        counted(aggregators, "aggregator"),
        counted(threads, "thread"),
    );
    if !sample.too_large.is_empty() {
        let sizes = sample.too_large.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let ranks = counted(sample.measured_ranks, "rank");
        let _ = writeln!(text, "Group size {sizes}: not measured, because the sample has only {ranks}.");
    }
    if !sample.is_complete() {
        text.push_str("PARTLY: time limit reached (--time-limit); unmeasured cells show \"-\".\n");
    }
    text
}

fn table(heading: &str, choices: &[Choice], name: &dyn Fn(&Choice) -> String) -> Table {
    let headings = [heading, ">ratio", ">stored", ">coding", ">decoding", ">interval", ">lost time"];
    let mut table = Table::new(&headings);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for choice in choices {
        table.row([
            format!("{}{}", name(choice), if choice.in_use { " (in use)" } else { "" }),
            or_none(choice.ratio.map(|ratio| format!("{ratio:.3}"))),
            or_none(choice.stored_bytes.map(human_bytes)),
            or_none(choice.coding_ms.map(time)),
            or_none(choice.decoding_ms.map(time)),
            or_none(choice.interval_ms.map(time)),
            or_none(choice.lost_percent.map(|percent| format!("{percent:.2} %"))),
        ]);
    }
    table
}
