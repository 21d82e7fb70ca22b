//! The figures of `mcr bench codecs`.

use super::codecs_report::{Report, sum_of};
use super::profiles::Cell;
use crate::plot::{self, Figure, Point, Scale};
use std::path::Path;

/// Writes a figure of the ratios and a figure of the rates. Creates the directory.
pub fn write_all(dir: &Path, report: &Report) -> anyhow::Result<()> {
    plot::write(dir, &figures(report))
}

fn figures(report: &Report) -> Vec<(&'static str, Figure)> {
    let sum = sum_of(report, "all classes".to_owned(), &report.lines);
    let bars = |value: &dyn Fn(&Cell) -> f64| -> Vec<Point> {
        let measured = |cell: &Option<Cell>| cell.as_ref().filter(|cell| cell.raw_bytes > 0).map(value);
        sum.cells.iter().map(|cell| Point::from(measured(cell))).collect()
    };
    let checkpoint = &report.looked.checkpoint;
    let figure = |what: &str, left, lines, base, scale| Figure {
        title: format!("{checkpoint}: {what}, all classes"),
        below: "codec or profile",
        left,
        places: report.columns.iter().map(|name| (*name).to_owned()).collect(),
        lines,
        bars: true,
        base,
        scale,
    };
    let ratios = vec![("ratio".to_owned(), bars(&Cell::ratio))];
    let rates = vec![
        ("coding".to_owned(), bars(&|cell| cell.rates()[0] / 1e6)),
        ("decoding".to_owned(), bars(&|cell| cell.rates()[1] / 1e6)),
    ];
    vec![
        ("ratios.svg", figure("ratio", "raw bytes for each stored byte", ratios, 1.0, Scale::Linear)),
        ("rates.svg", figure("rate of one core", "raw bytes, MB/s", rates, 0.0, Scale::Log)),
    ]
}
