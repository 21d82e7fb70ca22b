//! The figures of `mcr bench schemes`.

use super::schemes_report::Report;
use super::series::{Point, Series, scheme_name};
use crate::plot::{self, Figure, Scale, short_bytes, write};
use std::path::Path;

/// The label of the vertical axis.
const RATIO: &str = "raw bytes for each stored byte";

/// Writes one file for each figure that has data. Creates the directory.
pub fn write_all(dir: &Path, report: &Report) -> anyhow::Result<()> {
    write(dir, &figures(report))
}

fn figures(report: &Report) -> Vec<(&'static str, Figure)> {
    let value = |point: &Point| plot::Point::from(point.ratio());
    let lines = |figure: &[Series]| -> Vec<(String, Vec<plot::Point>)> {
        figure.iter().map(|line| (line.name.clone(), line.points.iter().map(value).collect())).collect()
    };
    let places = |figure: &[Series], of: &dyn Fn(&Point) -> String| -> Vec<String> {
        figure.first().map(|line| line.points.iter().map(of).collect()).unwrap_or_default()
    };
    let largest = report.figure_6.first().map_or(0, |(_, point)| point.cell.group_size);
    let size = |point: &Point| point.cell.group_size.to_string();
    let block = |point: &Point| point.cell.block_bytes.map_or(String::new(), |block| short_bytes(block.get().into()));
    let of_pass = |pass: u32| report.figure_6.iter().filter(move |(passes, _)| *passes == pass);
    // Each scheme of the paper has two bars. Each of our profiles codes once, and has one bar.
    let ours = &report.figure_6_ours;
    let none = |count: usize| std::iter::repeat_n(plot::Point::Nothing, count);
    let pass = |pass: u32| of_pass(pass).map(|(_, point)| value(point)).chain(none(ours.len())).collect();
    let profiles = none(of_pass(1).count()).chain(ours.iter().map(|(_, point)| value(point))).collect();
    let schemes = of_pass(1).map(|(_, point)| scheme_name(point.cell.scheme).to_owned());
    let checkpoint = &report.looked.checkpoint;
    let source = |figure: u32| format!("as Figure {figure} of mcrEngine, SC12");
    let scale = Scale::Linear;
    let figure =
        |title, below, places, lines, bars| Figure { title, below, left: RATIO, places, lines, bars, base: 1.0, scale };
    let mut all = vec![
        (
            "figure-6.svg",
            figure(
                format!("{checkpoint}: one pass and two, GROUP_SIZE {largest} ({})", source(6)),
                "scheme",
                schemes.chain(ours.iter().map(|(name, _)| name.clone())).collect(),
                vec![
                    ("single".to_owned(), pass(1)),
                    ("double".to_owned(), pass(2)),
                    ("scheme Aware with our profile".to_owned(), profiles),
                ],
                true,
            ),
        ),
        (
            "figure-7.svg",
            figure(
                format!("{checkpoint}: ratio over group size ({})", source(7)),
                "GROUP_SIZE, ranks",
                places(&report.figure_7, &size),
                lines(&report.figure_7),
                false,
            ),
        ),
        (
            "figure-8.svg",
            figure(
                format!("{checkpoint}: ratio over block size, GROUP_SIZE {largest} ({})", source(8)),
                "size of a block",
                places(&report.figure_8, &block),
                lines(&report.figure_8),
                false,
            ),
        ),
    ];
    if report.figure_9.iter().any(|line| !line.points.is_empty()) {
        let title = format!("Ratio from checkpoint to checkpoint, GROUP_SIZE {largest} ({})", source(9));
        let labels = places(&report.figure_9, &|point| point.checkpoint.clone());
        all.push(("figure-9.svg", figure(title, "checkpoint", labels, lines(&report.figure_9), false)));
    }
    all
}
