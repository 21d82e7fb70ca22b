//! `mcr bench schemes`: computes the tables and figures of the mcrEngine paper (SC12) from the user's own
//! checkpoints.
//!
//! The schemes are as in the paper (section VI). Agnostic and Agnostic-Block are compressed once, with gzip. Aware
//! and Aware-Block are compressed twice: with FPC, fpzip or a Lempel-Ziv coder, then with gzip. The block schemes use
//! the best block size. A ratio is the bytes of the files divided by the bytes of the containers, including index and
//! skeletons. The containers are equal to the containers of `mcr save --no-reuse`. Unlike in the paper, each segment
//! of at most 4 MiB is encoded separately, including the second pass of gzip.

use super::input::{Captured, Checkpoint, Deadline, capture_ranks, checkpoints, sampled_ranks, wanted};
use super::measure::{Bench, Coder};
use super::paper::{characteristics, improvements};
use super::schemes_report::{self, Report};
use super::series::{Cell, Point, Series, scheme_name};
use super::{Bounds, Looked, budget, schemes_plot};
use crate::args::BenchSchemesArgs;
use crate::common::threads_of;
use crate::exit::Exit;
use crate::output::{Progress, print, print_json};
use anyhow::{Context, bail};
use mcr_anc::budget::Budget;
use mcr_cnc::capture::CaptureMode;
use mcrengine::codec::Profile;
use mcrengine::plan::{PlanOptions, Scheme};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of checkpoints in the series. If there are more checkpoints, evenly spread checkpoints are chosen.
const SERIES_MAX: usize = 32;

pub fn run(args: BenchSchemesArgs) -> anyhow::Result<ExitCode> {
    let (started, input) = (Instant::now(), &args.input);
    let budget = budget(input, args.profiles.iter())?;
    let threads = threads_of(args.threads);
    let deadline = Deadline::after(input.time_limit);
    let (dir, checkpoints) = checkpoints(input)?;
    let at = wanted(&checkpoints, input.checkpoint.as_ref())?;
    if args.block_sizes.is_empty() {
        bail!("--block-sizes must name at least one");
    }
    let checkpoint = &checkpoints[at];
    let asked = args.group_sizes.iter().map(|size| size.get()).max().context("--group-sizes must name at least one")?;
    let chosen = sampled(checkpoint, asked, args.sample);
    // A group size above the number of ranks means one group of all ranks.
    let mut group_sizes: Vec<u32> = args.group_sizes.iter().map(|size| size.get().min(chosen.len() as u32)).collect();
    group_sizes.sort_unstable();
    group_sizes.dedup();
    let largest = group_sizes.last().copied().unwrap_or(1);

    let progress = Progress::new("measuring", input.json);
    let job = Job { dir: &dir, threads, budget: &budget, deadline, progress: &progress };
    let Some(files) = job.read(checkpoint, &chosen)? else {
        bail!("--time-limit: {} s had passed before the files were read", input.time_limit);
    };
    let mut of = Measured { job: &job, files: &files, label: checkpoint.label.to_string(), known: HashMap::new() };

    let mut blocks = args.block_sizes.clone();
    blocks.sort_unstable();
    blocks.dedup();
    let (figure_8, best_blocks) = figure_8(&mut of, &blocks, largest)?;
    let figure_6 = figure_6(&mut of, best_blocks, largest)?;
    let lines = lines(&args.profiles, best_blocks);
    let figure_6_ours = (lines.iter().skip(Scheme::ALL.len()))
        .map(|(name, line)| Ok((name.clone(), of.point(Cell { group_size: largest, ..line.clone() })?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let of_line = |(name, line): &(String, Cell), of: &mut Measured<'_>| -> anyhow::Result<Series> {
        let points = group_sizes.iter().map(|&group_size| of.point(Cell { group_size, ..line.clone() }));
        Ok(Series { name: name.clone(), points: points.collect::<anyhow::Result<_>>()? })
    };
    let figure_7 = lines.iter().map(|line| of_line(line, &mut of)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut figure_9: Vec<Series> =
        lines.iter().map(|(name, _)| Series { name: name.clone(), points: Vec::new() }).collect();
    let shown = if checkpoints.len() > 1 { spread(checkpoints.len(), SERIES_MAX) } else { Vec::new() };
    for &nth in &shown {
        let this = &checkpoints[nth];
        let mut measure = |of: &mut Measured<'_>| -> anyhow::Result<()> {
            for ((_, line), series) in lines.iter().zip(&mut figure_9) {
                series.points.push(of.point(Cell { group_size: largest, ..line.clone() })?);
            }
            Ok(())
        };
        if nth == at {
            measure(&mut of)?;
        } else if let Some(files) = job.read(this, &sampled(this, asked, args.sample))? {
            measure(&mut Measured { job: &job, files: &files, label: this.label.to_string(), known: HashMap::new() })?;
        }
    }
    drop(progress);

    let in_figures = [&figure_7, &figure_8, &figure_9].into_iter().flatten().flat_map(|line| &line.points);
    let is_complete = (in_figures.chain(figure_6.iter().map(|(_, point)| point)))
        .all(|point| point.stored_bytes.is_some())
        && figure_9.iter().all(|line| line.points.len() == shown.len());
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
        figure_6_ours,
        figure_7,
        figure_8,
        figure_9,
        checkpoints_left_out: checkpoints.len().saturating_sub(SERIES_MAX),
        best_blocks,
    };
    let draw = || args.plots.as_ref().map_or(Ok(()), |plots| schemes_plot::write_all(plots, &report));
    match input.json {
        // The output is one object, so an error must come first.
        true => draw().and_then(|()| print_json(&schemes_report::json(&report)))?,
        false => print(&schemes_report::text(&report)).and_then(|()| draw())?,
    }
    Ok(if is_complete { Exit::Done } else { Exit::Partly }.into())
}

/// The coders that the paper uses for a scheme's segments, with one pass and with two passes.
fn passes(scheme: Scheme) -> [Coder; 2] {
    let paper = |double| Coder::Profile(Profile::Paper { double });
    match scheme.takes_files_apart() {
        false => [Coder::Profile(Profile::Gzip), Coder::GzipTwice],
        true => [paper(false), paper(true)],
    }
}

/// One pass for the agnostic schemes, two passes for the other schemes (section VI-A).
fn as_published(scheme: Scheme) -> Coder {
    let [single, double] = passes(scheme);
    if scheme.takes_files_apart() { double } else { single }
}

/// The block size of a scheme. `blocks` has the block sizes of Agnostic-Block and of Aware-Block.
fn block_bytes(scheme: Scheme, blocks: [NonZeroU32; 2]) -> Option<NonZeroU32> {
    match scheme {
        Scheme::AgnosticBlock => Some(blocks[0]),
        Scheme::AwareBlock => Some(blocks[1]),
        Scheme::Agnostic | Scheme::Aware => None,
    }
}

/// The lines of figures 7 and 9: the paper's schemes, then the scheme Aware with the given profiles.
fn lines(profiles: &[Profile], blocks: [NonZeroU32; 2]) -> Vec<(String, Cell)> {
    let cell = |scheme, coder| Cell { scheme, coder, group_size: 1, block_bytes: block_bytes(scheme, blocks) };
    let of_paper = Scheme::ALL.map(|scheme| (scheme_name(scheme).to_owned(), cell(scheme, as_published(scheme))));
    let ours = profiles
        .iter()
        .map(|profile| (format!("{profile} (ours)"), cell(Scheme::Aware, Coder::Profile(profile.clone()))));
    of_paper.into_iter().chain(ours).collect()
}

/// Ratios by block size. Also returns the best block size of each scheme.
fn figure_8(
    of: &mut Measured<'_>,
    blocks: &[NonZeroU32],
    group_size: u32,
) -> anyhow::Result<(Vec<Series>, [NonZeroU32; 2])> {
    let (mut figure, mut best) = (Vec::new(), [blocks[0]; 2]);
    for (scheme, best) in [Scheme::AgnosticBlock, Scheme::AwareBlock].into_iter().zip(&mut best) {
        let cell = |block| Cell { scheme, coder: as_published(scheme), group_size, block_bytes: Some(block) };
        let points = blocks.iter().map(|&block| of.point(cell(block))).collect::<anyhow::Result<Vec<_>>>()?;
        let least = points.iter().filter(|point| point.stored_bytes.is_some()).min_by_key(|point| point.stored_bytes);
        *best = least.and_then(|point| point.cell.block_bytes).unwrap_or(blocks[0]);
        figure.push(Series { name: scheme_name(scheme).into(), points });
    }
    Ok((figure, best))
}

/// Ratios with one pass and with two passes.
fn figure_6(of: &mut Measured<'_>, blocks: [NonZeroU32; 2], group_size: u32) -> anyhow::Result<Vec<(u32, Point)>> {
    let mut figure = Vec::new();
    for scheme in [Scheme::Agnostic, Scheme::Aware, Scheme::AwareBlock] {
        for (nth, coder) in (1..).zip(passes(scheme)) {
            let cell = Cell { scheme, coder, group_size, block_bytes: block_bytes(scheme, blocks) };
            figure.push((nth, of.point(cell)?));
        }
    }
    Ok(figure)
}

fn sampled(checkpoint: &Checkpoint, group_size: u32, sample_bytes: u64) -> Vec<u32> {
    let mut bytes_of = vec![0; checkpoint.ranks as usize];
    checkpoint.files.iter().for_each(|(rank, _, bytes)| bytes_of[rank.0 as usize] += bytes);
    sampled_ranks(&bytes_of, group_size, sample_bytes)
}

/// Indices of at most `most` evenly spread items. The last item is included.
fn spread(things: usize, most: usize) -> Vec<usize> {
    let n = things.min(most);
    (1..=n).map(|i| i * things / n - 1).collect()
}

/// The captured files of a checkpoint, once for each capture mode. `whole` has whole files, for the agnostic schemes.
/// `apart` has files that are split into variables, for the other schemes. `with_filters` is for profiles that remove
/// HDF5 filters only if the chunks become much shorter.
struct Files {
    whole: Captured,
    apart: Captured,
    /// `None` if this capture would be equal to `apart`.
    with_filters: Option<Captured>,
}

impl Files {
    fn of(&self, scheme: Scheme, coder: &Coder) -> &Captured {
        match coder.mode(scheme) {
            CaptureMode::Whole => &self.whole,
            CaptureMode::Apart => &self.apart,
            CaptureMode::ApartLeavingFilters => self.with_filters.as_ref().unwrap_or(&self.apart),
        }
    }
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
        let Some(apart) = read(CaptureMode::Apart)? else { return Ok(None) };
        if !apart.has_filters() {
            return Ok(Some(Files { whole, apart, with_filters: None }));
        }
        Ok(read(CaptureMode::ApartLeavingFilters)?.map(|with_filters| Files {
            whole,
            apart,
            with_filters: Some(with_filters),
        }))
    }
}

/// The measurements of one checkpoint. Nothing is measured twice.
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
        let captured = self.files.of(cell.scheme, &cell.coder);
        let mut options = PlanOptions { scheme: cell.scheme, ..cell.coder.plan(budget.total_bytes()) };
        if let Some(block_bytes) = cell.block_bytes {
            options.block_bytes = block_bytes;
        }
        progress.message(format!("{}, {} in groups of {}", self.label, cell.scheme.name(), cell.group_size));
        let file_bytes = captured.file_bytes();
        let bench = Bench::new(dir, captured, *threads, budget);
        let done = |bytes| progress.done(bytes);
        let stored_bytes = bench.stored_bytes(cell.group_size, options, &cell.coder, *deadline, done)?;
        let point = Point { cell: cell.clone(), checkpoint: self.label.clone(), file_bytes, stored_bytes };
        self.known.insert(cell, point.clone());
        Ok(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_is_shown_in_part_with_its_end() {
        assert_eq!(spread(3, 8), [0, 1, 2]);
        assert_eq!(spread(10, 4), [1, 4, 6, 9]);
        assert_eq!(spread(0, 4), [0usize; 0]);
    }
}
