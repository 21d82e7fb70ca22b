//! `mpib tune`: measures Open MPI's own algorithms of all operations for several numbers of ranks, and writes one
//! rules file.

use super::collective::KindName;
use super::room::Operations;
use super::{Failure, Output, TimingOptions, all_fit, at_least, bytes, context};
use clap::Args;
use mpib::collectives::operation::{KINDS, Kind, Setting};
use mpib::comm::{Comm, CommError};
use mpib::open_mpi;
use mpib::report::{Report, Row};
use mpib::rules::{self, Chosen};
use mpib::stats::Summary;
use mpib::timing::{Timer, Timing};
use mpib::tune::{Candidates, Measured, TuneError, estimate};
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    /// The rules file, for Open MPI's coll_tuned_dynamic_rules_filename
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Operations, separated by commas; default: all operations that can have rules
    #[arg(long, value_enum, value_delimiter = ',')]
    operations: Vec<KindName>,
    /// Numbers of ranks of the communicators, separated by commas; default: all ranks
    #[arg(long, value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Block sizes, separated by commas
    #[arg(long, value_parser = bytes, value_delimiter = ',', default_values_t = [64, 1024, 16384, 262_144])]
    sizes: Vec<usize>,
    /// Add sizes where another algorithm becomes the fastest
    #[arg(long)]
    adaptive: bool,
    #[command(flatten)]
    timing: TimingOptions,
    #[command(flatten)]
    output: Output,
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    options.output.check(comm, &[&options.rules])?;
    let timing = options.timing.timing(comm.size())?;
    at_least(comm, 2, "a collective operation")?;
    all_fit(&options.sizes, comm.size())?;
    let mut counts = if options.ranks.is_empty() { vec![comm.size()] } else { options.ranks.clone() };
    counts.sort_unstable();
    counts.dedup();
    if let Some(wrong) = counts.iter().find(|&&ranks| ranks < 2 || ranks > comm.size()) {
        return Err(Failure::Input(format!(
            "--ranks {wrong}: it must be from 2 to {}, the number of ranks",
            comm.size()
        )));
    }
    let has_rules = |kind: &Kind| rules::Collective::of(kind.name()).is_some();
    let kinds: Vec<Kind> = if options.operations.is_empty() {
        KINDS.into_iter().filter(has_rules).collect()
    } else {
        options.operations.iter().map(|name| name.0).collect()
    };
    if let Some(kind) = kinds.iter().find(|kind| !has_rules(kind)) {
        return Err(Failure::Input(format!("--operations {}: Open MPI has no rules for it", kind.name())));
    }
    // In some versions of Open MPI, the algorithms of some operations cannot be forced.
    let (kinds, unforced): (Vec<Kind>, Vec<Kind>) =
        kinds.into_iter().partition(|&kind| !open_mpi::implementations(kind, comm.size()).is_empty());
    Operations { kinds: &kinds, root: 0, native: true, passes_on: true }.fit(comm, &options.sizes)?;
    if kinds.is_empty() {
        return Err(Failure::Input("this MPI library has no algorithms of Open MPI that a program can choose".into()));
    }
    let title = format!("Algorithms of Open MPI for {} operations", kinds.len());
    let journal = options.output.journal(comm, title.clone(), timing.rule)?;
    let (mut rows, mut notes, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
    for &ranks in &counts {
        let part = comm.rank() < ranks;
        let some = comm.split(u16::from(part))?;
        for &kind in &kinds {
            let so_far = journal.clone();
            let report = move |operation: &str, bytes: usize, seconds: &Summary| {
                so_far.add(&row(operation, ranks, bytes, seconds, &timing));
            };
            let found = if part { measure(&some, kind, options, &timing, report) } else { Ok(None) };
            let found = match found {
                // Only this rank has the error. Other ranks may wait for this rank and cannot be informed.
                Err(TuneError::Comm(error)) if !matches!(error, CommError::Told(_)) => return Err(error.into()),
                found => comm.agree(found.map_err(|e| e.to_string()))?,
            };
            let Some(found) = found else { continue };
            for (operation, bytes, seconds) in found.measured {
                rows.push(row(&operation, ranks, bytes, &seconds, &timing));
            }
            notes.push(found.note);
            chosen.extend(found.chosen);
        }
    }
    notes.extend(unforced.iter().map(|kind| {
        format!("{}: not measured, because a program cannot choose its algorithm in this version", kind.name())
    }));
    let found = serde_json::json!({ "timing": timing });
    let context = context(comm, None, &[])?;
    let report = Report { title, context, rule: timing.rule, rows, notes, found, ..Report::default() };
    journal.end();
    options.output.write_with(comm, &report, &[(options.rules.clone(), rules::write(chosen))])
}

/// A row of the report. The name says how many ranks the communicator has.
fn row(operation: &str, ranks: usize, bytes: usize, seconds: &Summary, timing: &Timing) -> Row {
    Row::new(format!("{operation}, {ranks} ranks"), bytes, seconds.clone(), &timing.rule)
}

struct Found {
    measured: Measured,
    chosen: Option<Chosen>,
    note: String,
}

/// Measures one operation on all ranks of the communicator. `report` gets the name of each series, its block size and
/// its times.
fn measure(
    comm: &Comm,
    kind: Kind,
    options: &Options,
    timing: &Timing,
    report: impl FnMut(&str, usize, &Summary) + 'static,
) -> Result<Option<Found>, TuneError> {
    let mut timer = Timer::new(comm)?;
    timer.report_to(report);
    let algorithms = open_mpi::algorithms(kind, comm.size());
    let names: Vec<String> =
        ["native".to_string()].into_iter().chain(open_mpi::implementations(kind, comm.size())).collect();
    let mut sizes = options.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    if kind == Kind::Barrier {
        sizes.truncate(1);
    }
    let setting = Setting::default();
    let of = Candidates { kind, names: &names, setting: &setting };
    let (estimates, measured) = estimate(comm, &mut timer, of, &sizes, timing, if options.adaptive { 8 } else { 0 })?;
    let library = mpi::environment::library_version().unwrap_or_default();
    let chosen = estimates.chosen(comm.size(), &library);
    let said = |number: u32| {
        let name = algorithms.iter().find(|a| u32::try_from(a.number) == Ok(number)).map(|a| a.name.as_str());
        name.map_or("Open MPI's choice".to_string(), |name| format!("{number} ({name})"))
    };
    let rules = chosen.iter().flat_map(|c| &c.rules);
    let rules: Vec<_> = rules.map(|r| format!("from {} bytes: {}", r.from_block_bytes, said(r.algorithm))).collect();
    let note = format!("{} on {} ranks: {}", kind.name(), comm.size(), rules.join("; "));
    Ok(Some(Found { measured, chosen, note }))
}
