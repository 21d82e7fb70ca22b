//! `mcr bench schemes`: the tables and figures of the mcrEngine paper (SC12), of the user's own checkpoints.
//!
//! As in the paper (section VI): Agnostic and Agnostic-Block are compressed once, with gzip; Aware and Aware-Block twice, with
//! FPC, fpzip or a Lempel-Ziv coder, and gzip over all of it; the block schemes with the best block size. A ratio is the
//! bytes of the files for each byte of the containers, index and skeletons counted; the files are what `mcr save
//! --no-reuse` would write. Other than there a segment of at most 4 MiB is coded by itself, gzip's second pass too.

use super::input::{Captured, Checkpoint, Deadline, capture_ranks, checkpoints, sampled_ranks, wanted};
use super::measure::{Bench, Coder};
use super::{Bounds, Looked, budget, plot, tables, threads};
use crate::args::BenchSchemesArgs;
use crate::output::{Progress, print, print_json};
use anyhow::{Context, bail};
use mcr_anc::budget::Budget;
use mcr_cnc::capture::CaptureMode;
use mcrengine::codec::Profile;
use mcrengine::header::{ElementType, FileHeader, Role};
use mcrengine::plan::{PlanOptions, Scheme};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// What one measurement is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    pub scheme: Scheme,
    pub coder: Coder,
    pub group_size: u32,
    /// In the block schemes.
    pub block_bytes: Option<NonZeroU32>,
}

/// What came out, or nothing where time was over.
#[derive(Clone, Debug)]
pub struct Point {
    pub cell: Cell,
    pub checkpoint: String,
    pub file_bytes: u64,
    pub stored_bytes: Option<u64>,
}

impl Point {
    pub fn ratio(&self) -> Option<f64> {
        self.stored_bytes.map(|stored| crate::output::ratio(self.file_bytes, stored))
    }
}

/// Points that belong together in a figure.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
}

/// Table III: what a checkpoint is made of.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Characteristics {
    pub ranks: u32,
    pub files: u64,
    pub file_bytes: u64,
    pub rank_bytes_min: u64,
    pub rank_bytes_max: u64,
    pub variables: u64,
    pub file_variables_min: u64,
    pub file_variables_max: u64,
    /// Raw bytes of all variables, the skeletons not counted.
    pub variable_bytes: u64,
    pub double_bytes: u64,
    pub float_bytes: u64,
    pub other_bytes: u64,
    /// Bytes of files that are no variable's: the metadata of HDF5.
    pub skeleton_bytes: u64,
    /// Files that are one run of bytes to us.
    pub opaque_files: u64,
}

/// All that is reported.
pub struct Report {
    pub dir: String,
    pub looked: Looked,
    pub bounds: Bounds,
    pub table_3: Characteristics,
    /// Passes 1 and 2, for Agnostic, Aware and Aware-Block.
    pub figure_6: Vec<(u32, Point)>,
    /// Over group sizes.
    pub figure_7: Vec<Series>,
    /// Over block sizes.
    pub figure_8: Vec<Series>,
    /// Over checkpoints.
    pub figure_9: Vec<Series>,
    /// Aware-Block and Aware.
    pub table_4: Vec<Improvement>,
    /// Checkpoints that the series leaves out.
    pub checkpoints_left_out: usize,
    /// What the block schemes were measured with.
    pub best_blocks: [NonZeroU32; 2],
}

/// Table IV: a line of it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Improvement {
    pub scheme: Scheme,
    /// Percent, and the group size where it is.
    pub best: (f64, u32),
    pub worst: (f64, u32),
}

/// The most checkpoints of the series; of more, some, evenly spread.
const SERIES_MAX: usize = 32;

pub fn run(args: BenchSchemesArgs) -> anyhow::Result<ExitCode> {
    let (started, input) = (Instant::now(), &args.input);
    let budget = budget(input, args.profiles.iter())?;
    let threads = threads(args.threads);
    let deadline = Deadline::after(input.time_limit);
    let (dir, checkpoints) = checkpoints(input)?;
    let at = wanted(&checkpoints, input.checkpoint.as_ref())?;
    if args.block_sizes.is_empty() {
        bail!("--block-sizes must name at least one");
    }
    let checkpoint = &checkpoints[at];
    let asked = args.group_sizes.iter().map(|size| size.get()).max().context("--group-sizes must name at least one")?;
    let chosen = sampled(checkpoint, asked, args.sample);
    // Groups of more ranks than there are, are groups of all.
    let mut group_sizes: Vec<u32> = args.group_sizes.iter().map(|size| size.get().min(chosen.len() as u32)).collect();
    group_sizes.sort_unstable();
    group_sizes.dedup();
    let largest = group_sizes.last().copied().unwrap_or(1);

    let progress = Progress::new("measuring", input.json);
    let job = Job { dir: &dir, threads, budget: &budget, deadline, progress: &progress };
    let Some(files) = job.read(checkpoint, &chosen)? else {
        bail!("--time-limit: {} s were over before the files were read", input.time_limit);
    };
    let mut of = Measured { job: &job, files: &files, label: checkpoint.label.to_string(), known: HashMap::new() };

    let (gzip, double, single) = paper_coders();
    let mut blocks = args.block_sizes.clone();
    blocks.sort_unstable();
    blocks.dedup();
    let block_schemes = [(Scheme::AgnosticBlock, &gzip), (Scheme::AwareBlock, &double)];
    let (mut figure_8, mut best_blocks) = (Vec::new(), [blocks[0]; 2]);
    for ((scheme, coder), best) in block_schemes.into_iter().zip(&mut best_blocks) {
        let cell = |block| Cell { scheme, coder: coder.clone(), group_size: largest, block_bytes: Some(block) };
        let points = blocks.iter().map(|&block| of.point(cell(block))).collect::<anyhow::Result<Vec<_>>>()?;
        let least = points.iter().filter(|point| point.stored_bytes.is_some()).min_by_key(|point| point.stored_bytes);
        *best = least.and_then(|point| point.cell.block_bytes).unwrap_or(blocks[0]);
        figure_8.push(Series { name: scheme_name(scheme).into(), points });
    }
    let block_of = |scheme| match scheme {
        Scheme::AgnosticBlock => Some(best_blocks[0]),
        Scheme::AwareBlock => Some(best_blocks[1]),
        Scheme::Agnostic | Scheme::Aware => None,
    };
    let cell = |scheme, coder: &Coder, group_size| Cell {
        scheme,
        coder: coder.clone(),
        group_size,
        block_bytes: block_of(scheme),
    };

    let mut figure_6 = Vec::new();
    for scheme in [Scheme::Agnostic, Scheme::Aware, Scheme::AwareBlock] {
        let coders = if scheme == Scheme::Agnostic { [&gzip, &Coder::GzipTwice] } else { [&single, &double] };
        for (passes, coder) in (1..).zip(coders) {
            figure_6.push((passes, of.point(cell(scheme, coder, largest))?));
        }
    }
    let of_paper = Scheme::ALL.map(|scheme| (scheme, if scheme.takes_files_apart() { &double } else { &gzip }));
    let ours: Vec<Coder> = args.profiles.iter().cloned().map(Coder::Profile).collect();
    let mut lines: Vec<(String, Scheme, &Coder)> =
        of_paper.iter().map(|(scheme, coder)| (scheme_name(*scheme).to_owned(), *scheme, *coder)).collect();
    lines.extend(
        args.profiles.iter().zip(&ours).map(|(profile, coder)| (format!("{profile} (ours)"), Scheme::Aware, coder)),
    );
    let mut figure_7 = Vec::new();
    for (name, scheme, coder) in &lines {
        let points =
            group_sizes.iter().map(|&size| of.point(cell(*scheme, coder, size))).collect::<anyhow::Result<Vec<_>>>()?;
        figure_7.push(Series { name: name.clone(), points });
    }
    let (mut series, left_out) = (Vec::new(), checkpoints.len().saturating_sub(SERIES_MAX));
    let shown = spread(checkpoints.len(), SERIES_MAX);
    let mut known = vec![Vec::new(); lines.len()];
    for nth in if checkpoints.len() > 1 { shown } else { Vec::new() } {
        let mut measure = |of: &mut Measured<'_>| -> anyhow::Result<()> {
            for ((_, scheme, coder), points) in lines.iter().zip(&mut known) {
                points.push(of.point(cell(*scheme, coder, largest))?);
            }
            Ok(())
        };
        if nth == at {
            measure(&mut of)?;
            continue;
        }
        let this = &checkpoints[nth];
        let Some(files) = job.read(this, &sampled(this, asked, args.sample))? else { continue };
        measure(&mut Measured { job: &job, files: &files, label: this.label.to_string(), known: HashMap::new() })?;
    }
    series.extend(lines.iter().zip(known).map(|((name, ..), points)| Series { name: name.clone(), points }));
    drop(progress);

    let figures = [&figure_7, &figure_8, &series];
    let all = figures.iter().flat_map(|figure| figure.iter()).flat_map(|series| &series.points);
    let is_complete = all.chain(figure_6.iter().map(|(_, point)| point)).all(|point| point.stored_bytes.is_some())
        && series.iter().all(|series| checkpoints.len() < 2 || series.points.len() == checkpoints.len() - left_out);
    let report = Report {
        dir: dir.display().to_string(),
        looked: Looked::new(checkpoint, &files.apart),
        bounds: Bounds {
            sample_bytes: args.sample,
            time_limit_seconds: input.time_limit,
            segment_memory_bytes: budget.total_bytes(),
            threads,
            elapsed_ms: started.elapsed().as_millis() as u64,
            is_complete,
        },
        table_3: characteristics(&files.apart),
        table_4: improvements(&figure_7),
        figure_6,
        figure_7,
        figure_8,
        figure_9: series,
        checkpoints_left_out: left_out,
        best_blocks,
    };
    if let Some(plots) = &args.plots {
        plot::write_all(plots, &report)?;
    }
    match input.json {
        true => print_json(&tables::schemes_json(&report))?,
        false => print(&tables::schemes(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

/// gzip; the paper's chain, with the second pass and without.
fn paper_coders() -> (Coder, Coder, Coder) {
    let paper = |double| Coder::Profile(Profile::Paper { double });
    (Coder::Profile(Profile::Gzip), paper(true), paper(false))
}

/// As the paper writes it.
pub fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Agnostic => "Agnostic",
        Scheme::AgnosticBlock => "Agnostic-Block",
        Scheme::Aware => "Aware",
        Scheme::AwareBlock => "Aware-Block",
    }
}

fn sampled(checkpoint: &Checkpoint, group_size: u32, sample_bytes: u64) -> Vec<u32> {
    let mut bytes_of = vec![0; checkpoint.ranks as usize];
    checkpoint.files.iter().for_each(|(rank, _, bytes)| bytes_of[rank.0 as usize] += bytes);
    sampled_ranks(&bytes_of, group_size, sample_bytes)
}

/// Places of at most so many things, evenly spread, the last one among them.
fn spread(things: usize, most: usize) -> Vec<usize> {
    let n = things.min(most);
    (1..=n).map(|i| i * things / n - 1).collect()
}

/// The files of a checkpoint, whole for the schemes that do not look inside, and taken apart for the others.
struct Files {
    whole: Captured,
    apart: Captured,
}

struct Job<'a> {
    dir: &'a Path,
    threads: usize,
    budget: &'a Arc<Budget>,
    deadline: Deadline,
    progress: &'a Progress,
}

impl Job<'_> {
    fn read(&self, checkpoint: &Checkpoint, ranks: &[u32]) -> anyhow::Result<Option<Files>> {
        self.progress.message(format!("{}, reading", checkpoint.label));
        let read = |mode| capture_ranks(self.dir, checkpoint, ranks, mode, self.threads, self.deadline);
        let Some(whole) = read(CaptureMode::Whole)? else { return Ok(None) };
        Ok(read(CaptureMode::Apart)?.map(|apart| Files { whole, apart }))
    }
}

/// What was measured of one checkpoint; nothing twice.
struct Measured<'a> {
    job: &'a Job<'a>,
    files: &'a Files,
    label: String,
    known: HashMap<Cell, Point>,
}

impl Measured<'_> {
    fn point(&mut self, cell: Cell) -> anyhow::Result<Point> {
        if let Some(known) = self.known.get(&cell) {
            return Ok(known.clone());
        }
        let Job { dir, threads, budget, deadline, progress } = self.job;
        let captured = if cell.scheme.takes_files_apart() { &self.files.apart } else { &self.files.whole };
        let mut options = PlanOptions { scheme: cell.scheme, ..cell.coder.plan() };
        if let Some(block_bytes) = cell.block_bytes {
            options.block_bytes = block_bytes;
        }
        progress.message(format!("{}, {} in groups of {}", self.label, cell.scheme.name(), cell.group_size));
        let file_bytes = captured.file_bytes();
        progress.add(captured.headers.iter().flat_map(|file| &file.variables).map(|v| v.raw_bytes.0).sum());
        let bench = Bench::new(dir, captured, *threads, budget);
        let done = |bytes| progress.done(bytes);
        let stored_bytes = bench.stored_bytes(cell.group_size, options, &cell.coder, *deadline, done)?;
        let point = Point { cell: cell.clone(), checkpoint: self.label.clone(), file_bytes, stored_bytes };
        self.known.insert(cell, point.clone());
        Ok(point)
    }
}

fn characteristics(captured: &Captured) -> Characteristics {
    let mut of_ranks = vec![0u64; captured.ranks as usize];
    let mut table =
        Characteristics { ranks: captured.ranks, files: captured.headers.len() as u64, ..Default::default() };
    let mut counts = Vec::with_capacity(captured.headers.len());
    for FileHeader { rank, bytes, variables, .. } in &captured.headers {
        table.file_bytes += bytes;
        of_ranks[rank.0 as usize] += bytes;
        let mut count = 0;
        for variable in variables {
            let raw_bytes = variable.raw_bytes.0;
            match variable.role {
                Role::Skeleton => table.skeleton_bytes += raw_bytes,
                Role::WholeFile => table.opaque_files += 1,
                Role::Array | Role::StoredChunks => count += 1,
            }
            if variable.role != Role::Skeleton {
                table.variable_bytes += raw_bytes;
                match variable.element {
                    ElementType::Float { width: 8, .. } => table.double_bytes += raw_bytes,
                    ElementType::Float { width: 4, .. } => table.float_bytes += raw_bytes,
                    ElementType::Float { .. }
                    | ElementType::Bytes
                    | ElementType::Int { .. }
                    | ElementType::Fixed { .. }
                    | ElementType::Compound { .. } => table.other_bytes += raw_bytes,
                }
            }
        }
        table.variables += count;
        counts.push(count);
    }
    let ends = |all: &[u64]| (all.iter().copied().min().unwrap_or(0), all.iter().copied().max().unwrap_or(0));
    (table.rank_bytes_min, table.rank_bytes_max) = ends(&of_ranks);
    (table.file_variables_min, table.file_variables_max) = ends(&counts);
    table
}

/// Equation 2 of the paper, for each scheme against Agnostic at the same group size.
fn improvements(figure_7: &[Series]) -> Vec<Improvement> {
    let of = |scheme| figure_7.iter().find(|series| series.name == scheme_name(scheme));
    let Some(agnostic) = of(Scheme::Agnostic) else { return Vec::new() };
    let line = |scheme| {
        let gains: Vec<(f64, u32)> = (of(scheme)?.points.iter().zip(&agnostic.points))
            .filter_map(|(a, b)| Some((relative_improvement(a.ratio()?, b.ratio()?), a.cell.group_size)))
            .collect();
        let best = gains.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let worst = gains.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Improvement { scheme, best, worst })
    };
    [Scheme::AwareBlock, Scheme::Aware].into_iter().filter_map(line).collect()
}

/// In percent.
fn relative_improvement(a: f64, b: f64) -> f64 {
    (a - b) / b * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(scheme: Scheme, stored: &[Option<u64>]) -> Series {
        let point = |(nth, stored_bytes): (usize, &Option<u64>)| Point {
            cell: Cell { scheme, coder: Coder::Lz4, group_size: 1 << nth, block_bytes: None },
            checkpoint: "c".into(),
            file_bytes: 1000,
            stored_bytes: *stored_bytes,
        };
        Series { name: scheme_name(scheme).into(), points: stored.iter().enumerate().map(point).collect() }
    }

    #[test]
    fn improvements_are_those_of_equation_2_at_the_same_group_size() {
        let figure = [
            series(Scheme::Agnostic, &[Some(500), Some(400), Some(400)]),
            series(Scheme::Aware, &[Some(250), Some(320), None]),
            series(Scheme::AwareBlock, &[Some(1000), Some(400), Some(200)]),
        ];
        let found: Vec<_> =
            improvements(&figure).into_iter().map(|line| (line.scheme, line.best, line.worst)).collect();
        let expected = [(Scheme::AwareBlock, (100.0, 4), (-50.0, 1)), (Scheme::Aware, (100.0, 1), (25.0, 2))];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_long_series_is_shown_in_part_with_its_end() {
        assert_eq!(spread(3, 8), [0, 1, 2]);
        assert_eq!(spread(10, 4), [1, 4, 6, 9]);
        assert_eq!(spread(0, 4), [0usize; 0]);
    }
}
