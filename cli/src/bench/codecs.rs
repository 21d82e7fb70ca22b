//! `mcr bench codecs`: each codec on each class of variables of a checkpoint.
//!
//! Classes are cut and merged as in the scheme Aware. Small variables, which a save would put into one pool, form
//! classes here. A rate is the number of raw bytes for each second of processor time of one core, from memory to
//! memory. The times to encode and to decode are each the median of several repetitions. Every encoded segment is
//! decoded and compared.

use super::codecs_plot;
use super::codecs_report::{self, Line, ProfileLine, Report};
use super::input::{Deadline, capture_ranks, checkpoints, sampled_ranks, wanted};
use super::measure::{Bench, Coder, Item, Planned, all_items};
use super::profiles::{Cell, Limits, key_of, measure_profile, part, timed_cell};
use super::{Bounds, Looked, budget};
use crate::args::BenchCodecsArgs;
use crate::common::threads_of;
use crate::exit::Exit;
use crate::output::{Progress, print, print_json};
use anyhow::bail;
use mcr_cnc::capture::CaptureMode;
use mcrengine::codec::Profile;
use mcrengine::header::ElementType;
use mcrengine::plan::PlanOptions;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

/// A column of the report: a profile with its name from `mcr save --profile`, or a codec that is only used as a part
/// of profiles.
struct Column {
    name: &'static str,
    coder: Coder,
    /// The element types for which the codec is made. Classes of other types are encoded with another codec, which
    /// the column's profile chooses. The result of the other codec is not shown in this column.
    takes: fn(&ElementType) -> bool,
}

const fn any(_: &ElementType) -> bool {
    true
}

fn columns() -> Vec<Column> {
    let shuffled: fn(&ElementType) -> bool = |element| (2..=64).contains(&element.width());
    let doubles: fn(&ElementType) -> bool = |element| matches!(element, ElementType::Float { width: 8, .. });
    let floats: fn(&ElementType) -> bool = |element| matches!(element, ElementType::Float { width: 4 | 8, .. });
    let numbers: fn(&ElementType) -> bool = |element| match element {
        ElementType::Float { width, .. } => matches!(*width, 4 | 8),
        ElementType::Int { width, .. } => matches!(*width, 2 | 4 | 8),
        ElementType::Bytes | ElementType::Fixed { .. } | ElementType::Compound { .. } => false,
    };
    let column = |name, profile, takes| Column { name, coder: Coder::Profile(profile), takes };
    vec![
        column("raw", Profile::Raw, any),
        column("gzip", Profile::Gzip, any),
        Column { name: "lz4", coder: Coder::Lz4, takes: any },
        column("zstd-1", Profile::Zstd { level: 1 }, any),
        column("zstd-3", Profile::Zstd { level: 3 }, any),
        column("zstd-9", Profile::Zstd { level: 9 }, any),
        column("zstd-19", Profile::Zstd { level: 19 }, any),
        column("shuf-zstd", Profile::ShuffleZstd { level: 1 }, shuffled),
        Column { name: "bits-zstd", coder: Coder::Bitshuffle, takes: shuffled },
        Column { name: "runs", coder: Coder::Runs, takes: any },
        Column { name: "pco", coder: Coder::Pco, takes: numbers },
        column("fpc", Profile::Fpc { level: 16 }, doubles),
        column("fpzip", Profile::Fpzip, floats),
        column("paper", Profile::Paper { double: true }, any),
        column("fast", Profile::Fast, any),
        column("balanced", Profile::Balanced, any),
        column("max", Profile::Max, any),
    ]
}

pub fn run(args: BenchCodecsArgs) -> anyhow::Result<ExitCode> {
    let (started, input) = (Instant::now(), &args.input);
    if args.repetitions == 0 {
        bail!("--repetitions must be at least 1");
    }
    let columns = columns();
    let profiles = columns.iter().filter_map(|column| match &column.coder {
        Coder::Profile(profile) if !profile.is_together() => Some(profile),
        _ => None,
    });
    let budget = budget(input, args.profiles.iter().chain(profiles))?;
    let deadline = Deadline::after(input.time_limit);
    let (dir, checkpoints) = checkpoints(input)?;
    let checkpoint = &checkpoints[wanted(&checkpoints, input.checkpoint.as_ref())?];
    let mut bytes_of = vec![0; checkpoint.ranks as usize];
    checkpoint.files.iter().for_each(|(rank, _, bytes)| bytes_of[rank.0 as usize] += bytes);
    let ranks = sampled_ranks(&bytes_of, args.group_size.get(), args.sample);
    let threads = threads_of(args.threads);
    let reading = threads_of(0);
    let read = |mode| match capture_ranks(&dir, checkpoint, &ranks, mode, reading, deadline)? {
        Some(captured) => Ok(captured),
        None => bail!("--time-limit: {} s had passed before the files were read", input.time_limit),
    };
    let captured = read(CaptureMode::Apart)?;
    let with_filters = captured.has_filters().then(|| read(CaptureMode::ApartLeavingFilters)).transpose()?;
    let bench = Bench::new(&dir, &captured, threads, &budget);
    let bench_with_filters = Bench::new(&dir, with_filters.as_ref().unwrap_or(&captured), threads, &budget);
    let progress = Progress::new("measuring", input.json);
    let job = Job { bench, bench_with_filters, args: &args, progress: &progress };

    let plan = PlanOptions::default();
    let groups = job.bench.plan(args.group_size.get(), plan)?;
    // The profiles are measured first and may take half of the time, because users choose a profile.
    let half = deadline.half();
    let profiles: Vec<ProfileLine> =
        args.profiles.iter().map(|profile| job.profile(profile, half)).collect::<anyhow::Result<_>>()?;
    let (lines, are_complete) = job.lines(&groups, &columns, deadline)?;
    drop(job);
    drop(progress);
    let is_complete = are_complete && profiles.iter().all(|line| line.measured.is_some());
    let report = Report {
        dir: dir.display().to_string(),
        looked: Looked::new(checkpoint, &captured),
        bounds: Bounds {
            sample_bytes: args.sample,
            time_limit_seconds: input.time_limit,
            segment_memory_bytes: budget.total_bytes(),
            threads,
            elapsed_ms: started.elapsed().as_millis() as u64,
            is_complete,
        },
        columns: columns.iter().map(|column| column.name).collect(),
        lines,
        are_lines_complete: are_complete,
        profiles,
    };
    let draw = || args.plots.as_ref().map_or(Ok(()), |plots| codecs_plot::write_all(plots, &report));
    match input.json {
        // The output is one object, so an error must come first.
        true => draw().and_then(|()| print_json(&codecs_report::json(&report)))?,
        false => print(&codecs_report::text(&report, args.classes)).and_then(|()| draw())?,
    }
    Ok(if is_complete { Exit::Done } else { Exit::Partly }.into())
}

struct Job<'a> {
    bench: Bench<'a>,
    /// The files, captured for profiles that remove HDF5 filters only if the chunks become much shorter.
    bench_with_filters: Bench<'a>,
    args: &'a BenchCodecsArgs,
    progress: &'a Progress,
}

impl Job<'_> {
    /// Measures every class with every codec. Returns whether the time was sufficient. The measured share of the
    /// segments of a class is the share of the sample in the checkpoint. The measured segments are evenly spread.
    fn lines(
        &self,
        groups: &[Planned<'_>],
        columns: &[Column],
        deadline: Deadline,
    ) -> anyhow::Result<(Vec<Line>, bool)> {
        let mut lines: BTreeMap<String, (Line, Vec<Item>)> = BTreeMap::new();
        for item in all_items(groups) {
            let (group, segment) = (&groups[item.group], &groups[item.group].segments[item.segment]);
            let key = key_of(group, item.segment);
            let (line, items) = lines.entry(key.clone()).or_insert_with(|| {
                let (element, sums) = (segment.element.clone(), vec![Cell::default(); columns.len()]);
                (Line { key, element, variables: 0, raw_bytes: 0, cells: Vec::new(), sums }, Vec::new())
            });
            line.variables += segment.pieces.iter().filter(|piece| piece.offset == 0).count() as u64;
            line.raw_bytes += segment.raw_bytes.0;
            items.push(item);
        }
        let mut lines: Vec<(Line, Vec<Item>)> = lines.into_values().collect();
        lines.sort_by(|(a, _), (b, _)| b.raw_bytes.cmp(&a.raw_bytes).then_with(|| a.key.cmp(&b.key)));

        let total: u64 = lines.iter().map(|(line, _)| line.raw_bytes).sum();
        let mut rounds: Vec<(usize, usize, Item)> = Vec::new();
        for (n, (_, items)) in lines.iter().enumerate() {
            let chosen = part(items.len(), self.args.sample, total);
            rounds.extend(chosen.enumerate().map(|(round, at)| (round, n, items[at])));
        }
        // Measure one segment of every class in turn, and begin with the largest class, so that similar shares of all
        // classes are measured if the time limit is reached.
        rounds.sort_by_key(|(round, n, _)| (*round, *n));
        let items: Vec<Item> = rounds.iter().map(|(_, _, item)| *item).collect();
        self.progress.message("each codec on each class".into());
        // The segments of a single class are short, so predicting codecs also need at most this memory.
        let memory = columns.iter().map(|column| column.coder.memory_per_raw_byte()).max().unwrap_or(1);
        let cells = self.bench.each(groups, &items, memory, deadline, |group, segment, raw, scratch| {
            let mut cells = Vec::with_capacity(columns.len());
            for column in columns {
                if deadline.is_over() {
                    return Ok(None); // a segment counts for every codec or for no codec, so that codecs can be compared
                }
                cells.push(timed_cell(&column.coder, segment, group.files, raw, self.args.repetitions, scratch)?.0);
            }
            self.progress.done(raw.len() as u64);
            Ok(Some(cells))
        })?;
        let cells: Vec<Option<Vec<Cell>>> = cells.into_iter().map(Option::flatten).collect();
        let are_complete = cells.iter().all(Option::is_some);
        for ((_, n, _), cells) in rounds.iter().zip(cells) {
            let sums = &mut lines[*n].0.sums;
            sums.iter_mut().zip(cells.iter().flatten()).for_each(|(sum, cell)| sum.add(cell));
        }
        let finished = |(mut line, _): (Line, Vec<Item>)| {
            let own = |(column, sum): (&Column, &Cell)| (column.takes)(&line.element).then(|| sum.clone());
            line.cells = columns.iter().zip(&line.sums).map(own).collect();
            line
        };
        Ok((lines.into_iter().map(finished).collect(), are_complete))
    }

    /// Measures a profile on the whole checkpoint, with the same plan as in a save.
    fn profile(&self, profile: &Profile, deadline: Deadline) -> anyhow::Result<ProfileLine> {
        let bench = if profile.leaves_filters() { &self.bench_with_filters } else { &self.bench };
        // If a rank is larger than the sample, only some of its segments are measured.
        let sample_bytes = self.args.sample.saturating_mul(2);
        let limits = Limits { sample_bytes, repetitions: self.args.repetitions, deadline };
        let measured = measure_profile(bench, profile, self.args.group_size.get(), limits, self.progress)?;
        Ok(ProfileLine { profile: profile.clone(), measured })
    }
}
