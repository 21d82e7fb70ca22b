//! The report of `mcr bench schemes`, for people and as JSON.

use super::measure::Coder;
use super::paper::{Characteristics, Improvement};
use super::series::{Point, Series, scheme_name};
use super::{Bounds, Looked, percent};
use crate::output::Table;
use mcrengine::units::human_bytes;
use serde_json::{Value, json};
use std::fmt::Write;
use std::num::NonZeroU32;

/// The data of the report.
pub struct Report {
    pub dir: String,
    pub looked: Looked,
    pub bounds: Bounds,
    pub table_3: Characteristics,
    /// Ratios with 1 and 2 passes, for Agnostic, Aware and Aware-Block.
    pub figure_6: Vec<(u32, Point)>,
    /// Ratios of the scheme Aware with profiles of `mcr save`, by the names of their lines in the other figures.
    pub figure_6_ours: Vec<(String, Point)>,
    /// Ratios over group sizes.
    pub figure_7: Vec<Series>,
    /// Ratios over block sizes.
    pub figure_8: Vec<Series>,
    /// Ratios over checkpoints.
    pub figure_9: Vec<Series>,
    /// Improvements of Aware-Block and of Aware.
    pub table_4: Vec<Improvement>,
    /// Number of checkpoints that the series does not contain, because a series has at most `SERIES_MAX` checkpoints.
    pub checkpoints_left_out: usize,
    /// The block sizes with which the block schemes were measured.
    pub best_blocks: [NonZeroU32; 2],
}

/// Table III of the paper as text.
fn characteristics(table: &Characteristics) -> Table {
    let average = |sum: u64, n: u64| sum as f64 / n.max(1) as f64;
    let share = |part| format!("{:.1} %", percent(part, table.variable_bytes));
    let bytes = human_bytes;
    let (least, most) = (bytes(table.rank_bytes_min), bytes(table.rank_bytes_max));
    let rank = bytes(average(table.file_bytes, table.ranks.into()) as u64);
    let (fewest, more) = (table.file_variables_min, table.file_variables_max);
    let rows = [
        ("ranks", table.ranks.to_string()),
        ("files", table.files.to_string()),
        ("of them with unknown structure (not HDF5)", table.opaque_files.to_string()),
        ("total size", bytes(table.file_bytes)),
        ("size of a rank: range, average", format!("{least} to {most}, {rank}")),
        ("variables", table.variables.to_string()),
        (
            "variables of a file: range, average",
            format!("{fewest} to {more}, {:.0}", average(table.variables, table.files)),
        ),
        ("double precision, of the variables' bytes", share(table.double_bytes)),
        ("single precision", share(table.float_bytes)),
        ("other types", share(table.other_bytes)),
        ("metadata, of the files' bytes", format!("{:.1} %", percent(table.skeleton_bytes, table.file_bytes))),
    ];
    let mut table = Table::new(&["characteristic", ">value"]);
    rows.into_iter().for_each(|(name, value)| table.row([name.to_owned(), value]));
    table
}

fn ratio_of(point: &Point) -> String {
    point.ratio().map_or("-".into(), |ratio| format!("{ratio:.3}"))
}

/// A table with a line for each scheme or profile and a column for each point.
fn across(figure: &[Series], first: &str, column: impl Fn(&Point) -> String) -> Table {
    let points = figure.first().map_or(&[][..], |line| &line.points);
    let headings: Vec<String> =
        [first.to_owned()].into_iter().chain(points.iter().map(|point| format!(">{}", column(point)))).collect();
    let mut table = Table::new(&headings);
    for line in figure {
        table.row([line.name.clone()].into_iter().chain(line.points.iter().map(ratio_of)));
    }
    table
}

/// A table with a column for each scheme or profile, and a line for each checkpoint, because there may be many
/// checkpoints.
fn below(figure: &[Series]) -> Table {
    let headings: Vec<String> =
        ["checkpoint".to_owned()].into_iter().chain(figure.iter().map(|line| format!(">{}", line.name))).collect();
    let mut table = Table::new(&headings);
    for (n, point) in figure.first().map_or(&[][..], |line| &line.points).iter().enumerate() {
        let ratios = figure.iter().map(|line| line.points.get(n).map_or("-".into(), ratio_of));
        table.row([point.checkpoint.clone()].into_iter().chain(ratios));
    }
    table
}

/// The whole report.
pub fn text(report: &Report) -> String {
    let largest = report.figure_6.first().map_or(0, |(_, point)| point.cell.group_size);
    let mut text = format!(
        "{}\nNumbers of tables and figures are those of the mcrEngine paper, SC12.\n",
        report.looked.sentence()
    );
    let mut part = |title: String, table: Table| {
        let _ = write!(text, "\n{title}\n{}", table.render()); // writing to a String cannot fail
    };
    part("Table III: characteristics".into(), characteristics(&report.table_3));

    let mut passes = Table::new(&["scheme", ">single", ">double"]);
    for pair in report.figure_6.chunks(2) {
        let ratios = pair.iter().map(|(_, point)| ratio_of(point));
        passes.row([scheme_name(pair[0].1.cell.scheme).to_owned()].into_iter().chain(ratios));
    }
    for (name, point) in &report.figure_6_ours {
        passes.row([name.clone(), ratio_of(point), "-".to_owned()]);
    }
    part(format!("Figure 6: ratio with one pass of compression and with two, GROUP_SIZE {largest}"), passes);

    let [agnostic, aware] = report.best_blocks.map(|block| human_bytes(block.get().into()));
    part(
        format!("Figure 7: ratio over GROUP_SIZE; blocks of {agnostic} (Agnostic-Block) and {aware} (Aware-Block)"),
        across(&report.figure_7, "GROUP_SIZE", |point| point.cell.group_size.to_string()),
    );
    let block = |point: &Point| point.cell.block_bytes.map_or(String::new(), |block| human_bytes(block.get().into()));
    part(
        format!("Figure 8: ratio over the size of blocks, GROUP_SIZE {largest}"),
        across(&report.figure_8, "blocks of", block),
    );
    if report.figure_9.iter().any(|line| !line.points.is_empty()) {
        let left_out = match report.checkpoints_left_out {
            0 => String::new(),
            n => format!("; {n} checkpoints between them are left out"),
        };
        let title = format!("Figure 9: ratio from checkpoint to checkpoint, GROUP_SIZE {largest}{left_out}");
        part(title, below(&report.figure_9));
    }
    let mut gains = Table::new(&["scheme", ">best", ">worst"]);
    for Improvement { scheme, best, worst } in &report.table_4 {
        let gain = |(percent, size): &(f64, u32)| format!("{percent:.2} % ({size})");
        gains.row([scheme_name(*scheme).to_owned(), gain(best), gain(worst)]);
    }
    let title = "Table IV: relative improvement of the ratio over Agnostic, and the GROUP_SIZE where it is";
    part(title.into(), gains);
    let _ = write!(text, "\n{}", report.bounds.sentence());
    text
}

fn coder_name(point: &Point) -> String {
    match &point.cell.coder {
        Coder::Profile(profile) => profile.to_string(),
        Coder::GzipTwice => "gzip-twice".into(),
        Coder::Lz4 => "lz4".into(),
        Coder::Pco => "pco".into(),
        Coder::Bitshuffle => "bits-zstd".into(),
        Coder::Runs => "runs".into(),
    }
}

fn point_json(point: &Point) -> Value {
    json!({
        "checkpoint": point.checkpoint, "scheme": point.cell.scheme.name(), "coder": coder_name(point),
        "group_size": point.cell.group_size, "block_bytes": point.cell.block_bytes, "file_bytes": point.file_bytes,
        "stored_bytes": point.stored_bytes, "ratio": point.ratio(),
    })
}

/// The report as JSON, with exact numbers.
pub fn json(report: &Report) -> Value {
    let figure = |figure: &[Series]| -> Vec<Value> {
        let line = |line: &Series| json!({ "name": line.name, "points": line.points.iter().map(point_json).collect::<Vec<_>>() });
        figure.iter().map(line).collect()
    };
    let gain = |(percent, size): (f64, u32)| json!({ "percent": percent, "group_size": size });
    let improvement = |line: &Improvement| json!({ "scheme": line.scheme.name(), "best": gain(line.best), "worst": gain(line.worst) });
    let passes = |(passes, point): (u32, &Point)| {
        let mut value = point_json(point);
        value["passes"] = passes.into();
        value
    };
    let of_paper = report.figure_6.iter().map(|(passes, point)| (*passes, point));
    let ours = report.figure_6_ours.iter().map(|(_, point)| (1, point));
    json!({
        "directory": report.dir, "looked_at": report.looked, "bounds": report.bounds, "table_3": report.table_3,
        "figure_6": of_paper.chain(ours).map(passes).collect::<Vec<_>>(),
        "figure_7": figure(&report.figure_7), "figure_8": figure(&report.figure_8), "figure_9": figure(&report.figure_9),
        "table_4": report.table_4.iter().map(improvement).collect::<Vec<_>>(),
        "checkpoints_left_out": report.checkpoints_left_out,
    })
}
