//! The reports of `mcr bench`, for people and as JSON.

use super::codecs::{Cell, Line, Report as Codecs};
use super::schemes::{Point, Report as Schemes, Series, scheme_name};
use crate::output::{Table, human_rate, human_time, ratio};
use mcrengine::units::human_bytes;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Characters of a class's name at most; the middle of longer ones is left out.
const NAME_MAX: usize = 48;

fn shortened(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= NAME_MAX {
        return name.to_owned();
    }
    let half = (NAME_MAX - 1) / 2;
    let ends = [&chars[..half], &['…'], &chars[chars.len() - half..]];
    ends.concat().into_iter().collect()
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Three digits that count: `0.12`, `12.3`, `123`.
fn figure(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// The largest classes one by one, the others together.
fn shown(report: &Codecs, most: usize) -> (Vec<&Line>, Option<(usize, u64, u64, Vec<Cell>)>) {
    let (first, rest) = report.lines.split_at(most.min(report.lines.len()));
    if rest.is_empty() {
        return (first.iter().collect(), None);
    }
    let mut cells = vec![Cell::default(); report.columns.len()];
    for line in rest {
        cells.iter_mut().zip(&line.sums).for_each(|(sum, cell)| sum.add(cell));
    }
    let (variables, raw_bytes) = rest.iter().fold((0, 0), |(v, b), line| (v + line.variables, b + line.raw_bytes));
    (first.iter().collect(), Some((rest.len(), variables, raw_bytes, cells)))
}

/// The column with the highest ratio, but for raw.
fn best<'a>(cells: impl Iterator<Item = Option<&'a Cell>>) -> Option<usize> {
    let with_ratio = cells.enumerate().filter_map(|(n, cell)| cell.filter(|c| c.raw_bytes > 0).map(|c| (n, c.ratio())));
    with_ratio
        .fold(None, |best: Option<(usize, f64)>, (n, ratio)| match best {
            Some((_, most)) if ratio <= most => best,
            _ => Some((n, ratio)),
        })
        .map(|(n, _)| n)
}

/// `mcr bench codecs`.
pub fn codecs(report: &Codecs, most: usize) -> String {
    let mut text = format!("{}\n\n", report.looked.sentence());
    let total: u64 = report.lines.iter().map(|line| line.raw_bytes).sum();
    let (first, rest) = shown(report, most);

    let mut table =
        Table::new(&[">#", "class", ">variables", ">bytes", ">share", ">measured", "smallest", ">ratio", "fast takes"]);
    let row = |n: String, name: String, variables: u64, raw_bytes: u64, cells: &[Option<&Cell>]| {
        let best = best(cells.iter().copied());
        let fast = report.columns.iter().position(|name| *name == "fast").and_then(|at| cells[at]);
        let measured = cells.iter().flatten().map(|cell| cell.raw_bytes).max().unwrap_or(0);
        [
            n,
            name,
            variables.to_string(),
            human_bytes(raw_bytes),
            format!("{:.1} %", percent(raw_bytes, total)),
            format!("{:.0} %", percent(measured, raw_bytes)),
            best.map_or("-", |at| report.columns[at]).to_owned(),
            best.and_then(|at| cells[at]).map_or("-".into(), |cell| format!("{:.3}", cell.ratio())),
            fast.map_or(String::new(), |cell| cell.main_chain().to_owned()),
        ]
    };
    let cells_of = |line: &'_ Line| -> Vec<Option<Cell>> { line.cells.clone() };
    for (n, line) in first.iter().enumerate() {
        let cells = cells_of(line);
        let cells: Vec<Option<&Cell>> = cells.iter().map(Option::as_ref).collect();
        table.row(row((n + 1).to_string(), shortened(&line.key), line.variables, line.raw_bytes, &cells));
    }
    if let Some((classes, variables, raw_bytes, cells)) = &rest {
        let cells: Vec<Option<&Cell>> = cells.iter().map(Some).collect();
        table.row(row("+".into(), format!("{classes} smaller classes"), *variables, *raw_bytes, &cells));
    }
    let variables = report.lines.iter().map(|line| line.variables).sum();
    let all: Vec<Option<&Cell>> = report.all.iter().map(Some).collect();
    table.row(row("=".into(), "all classes".into(), variables, total, &all));
    text.push_str(&table.render());

    let mut matrix = |title: &str, value: &dyn Fn(&Cell) -> String, mark: bool| {
        let mut headings = vec![">#".to_owned()];
        headings.extend(report.columns.iter().map(|name| format!(">{name}")));
        let mut rows: Vec<(String, Vec<Option<Cell>>)> =
            first.iter().enumerate().map(|(n, line)| ((n + 1).to_string(), line.cells.clone())).collect();
        if let Some((.., cells)) = &rest {
            rows.push(("+".into(), cells.iter().cloned().map(Some).collect()));
        }
        rows.push(("=".into(), report.all.iter().cloned().map(Some).collect()));
        let cells = rows.into_iter().map(|(name, cells)| {
            let best = if mark { best(cells.iter().map(Option::as_ref)) } else { None };
            let text = |(n, cell): (usize, &Option<Cell>)| match cell.as_ref().filter(|cell| cell.raw_bytes > 0) {
                Some(cell) if best == Some(n) => format!("{}*", value(cell)),
                Some(cell) => value(cell),
                None => "-".into(),
            };
            let texts = cells.iter().enumerate().map(text);
            [name].into_iter().chain(texts).collect::<Vec<String>>()
        });
        let _ = write!(text, "\n{title}\n{}", lined_up(&headings, cells));
    };
    matrix("Raw bytes for each stored byte (* the most)", &|cell| figure(cell.ratio()), true);
    let mb = |rate: f64| figure(rate / 1e6);
    matrix("Coding, MB/s (10^6 raw bytes a second of processor time, one core)", &|cell| mb(cell.rates()[0]), false);
    matrix("Decoding, MB/s", &|cell| mb(cell.rates()[1]), false);

    let mut table =
        Table::new(&["profile", ">stores", ">of it index", ">ratio", ">coding", ">rate", ">decoding", ">rate", ""]);
    for line in &report.profiles {
        let Some(total) = &line.measured else {
            let dash = || "-".to_owned();
            table.row([line.profile.to_string(), dash(), dash(), dash(), dash(), dash(), dash(), dash()]);
            continue;
        };
        let [coding, decoding] = total.cell.rates();
        let time = |rate: f64| Duration::from_secs_f64(total.raw_bytes as f64 / rate.max(1.0));
        table.row([
            line.profile.to_string(),
            human_bytes(total.stored_bytes),
            human_bytes(total.index_bytes),
            format!("{:.3}", ratio(report.looked.measured_file_bytes, total.stored_bytes)),
            human_time(time(coding)),
            human_rate(coding as u64, Duration::from_secs(1)),
            human_time(time(decoding)),
            human_rate(decoding as u64, Duration::from_secs(1)),
            if total.is_exact { String::new() } else { "(from a part of the segments)".into() },
        ]);
    }
    let measured = human_bytes(report.looked.measured_file_bytes);
    let _ = write!(
        text,
        "\nWhat `mcr save --no-reuse --profile` would store of these {measured}, index and skeletons counted, and how long one core \
         codes\nand decodes (reading and writing not counted; `balanced` and `max` code the classes of a type together, so that \
         they\npredict each other; the columns above show them on each class alone)\n{}\n{}",
        table.render(),
        report.bounds.sentence(),
    );
    text
}

/// As [`Table`], with headings that are not known beforehand.
fn lined_up(headings: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let titles: Vec<String> = headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
    let rows: Vec<Vec<String>> = [titles].into_iter().chain(rows).collect();
    let width = |n: usize| rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(n, cell): (usize, &String)| match headings[n].starts_with('>') {
            true => format!("{cell:>width$}", width = widths[n]),
            false => format!("{cell:<width$}", width = widths[n]),
        };
        format!("{}\n", row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn cell_json(cell: &Cell) -> Value {
    let [encode, decode] = cell.rates();
    json!({
        "raw_bytes": cell.raw_bytes, "stored_bytes": cell.stored_bytes, "ratio": cell.ratio(),
        "encode_bytes_per_second": encode, "decode_bytes_per_second": decode, "chains": cell.chains,
    })
}

/// `mcr bench codecs --json`.
pub fn codecs_json(report: &Codecs) -> Value {
    let named = |cells: &mut dyn Iterator<Item = Option<&Cell>>| -> serde_json::Map<String, Value> {
        let measured =
            cells.zip(&report.columns).filter_map(|(cell, name)| Some((*name, cell.filter(|c| c.raw_bytes > 0)?)));
        measured.map(|(name, cell)| (name.to_owned(), cell_json(cell))).collect()
    };
    let class = |line: &Line| {
        json!({
            "key": line.key, "element": line.element.to_string(), "variables": line.variables, "raw_bytes": line.raw_bytes,
            "best": best(line.cells.iter().map(Option::as_ref)).map(|at| report.columns[at]),
            "codecs": named(&mut line.cells.iter().map(Option::as_ref)),
        })
    };
    let profile = |line: &super::codecs::ProfileLine| {
        let Some(total) = &line.measured else { return json!({ "profile": line.profile, "stored_bytes": null }) };
        let [encode, decode] = total.cell.rates();
        json!({
            "profile": line.profile, "stored_bytes": total.stored_bytes, "index_bytes": total.index_bytes,
            "raw_bytes": total.raw_bytes, "ratio": ratio(report.looked.measured_file_bytes, total.stored_bytes),
            "is_exact": total.is_exact, "encode_bytes_per_second": encode, "decode_bytes_per_second": decode,
            "chains": total.cell.chains,
        })
    };
    json!({
        "directory": report.dir, "looked_at": report.looked, "bounds": report.bounds,
        "classes": report.lines.iter().map(class).collect::<Vec<_>>(),
        "all": named(&mut report.all.iter().map(Some)),
        "profiles": report.profiles.iter().map(profile).collect::<Vec<_>>(),
    })
}

/// `mcr bench schemes`.
pub fn schemes(report: &Schemes) -> String {
    let mut text = format!("{}\n", report.looked.sentence());
    let table = &report.table_3;
    let average = |sum: u64, n: u64| sum as f64 / n.max(1) as f64;
    let share = |part| format!("{:.1} %", percent(part, table.variable_bytes));
    let rows = [
        ("ranks", table.ranks.to_string()),
        ("files", table.files.to_string()),
        ("of them opaque (not HDF5)", table.opaque_files.to_string()),
        ("total size", human_bytes(table.file_bytes)),
        (
            "size of a rank: range, average",
            format!(
                "{} to {}, {}",
                human_bytes(table.rank_bytes_min),
                human_bytes(table.rank_bytes_max),
                human_bytes(average(table.file_bytes, table.ranks.into()) as u64)
            ),
        ),
        ("variables", table.variables.to_string()),
        (
            "variables of a file: range, average",
            format!(
                "{} to {}, {:.0}",
                table.file_variables_min,
                table.file_variables_max,
                average(table.variables, table.files)
            ),
        ),
        ("double precision, of the variables' bytes", share(table.double_bytes)),
        ("single precision", share(table.float_bytes)),
        ("other types", share(table.other_bytes)),
        ("metadata, of the files' bytes", format!("{:.1} %", percent(table.skeleton_bytes, table.file_bytes))),
    ];
    text.push_str("\nAs Table III of the mcrEngine paper (SC12): characteristics\n");
    let headings = ["".to_owned(), ">".to_owned()];
    let body = lined_up(&headings, rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]));
    text.push_str(body.trim_start_matches('\n'));

    let largest = report.figure_6.first().map_or(0, |(_, point)| point.cell.group_size);
    let ratio_of = |point: &Point| point.ratio().map_or("-".into(), |ratio| format!("{ratio:.3}"));
    let _ = writeln!(text, "\nAs Figure 6: ratio with one pass of compression and with two, GROUP_SIZE {largest}");
    let rows = report.figure_6.chunks(2).map(|pair| {
        [scheme_name(pair[0].1.cell.scheme).to_owned()]
            .into_iter()
            .chain(pair.iter().map(|(_, p)| ratio_of(p)))
            .collect()
    });
    text.push_str(&lined_up(&["scheme".into(), ">single".into(), ">double".into()], rows));

    let mut figure = |title: String, first: &str, columns: Vec<String>, figure: &[Series]| {
        let headings: Vec<String> =
            [first.to_owned()].into_iter().chain(columns.into_iter().map(|name| format!(">{name}"))).collect();
        let rows =
            figure.iter().map(|line| [line.name.clone()].into_iter().chain(line.points.iter().map(ratio_of)).collect());
        let _ = write!(text, "\n{title}\n{}", lined_up(&headings, rows));
    };
    let columns = |figure: &[Series], of: &dyn Fn(&Point) -> String| -> Vec<String> {
        figure.first().map(|line| line.points.iter().map(of).collect()).unwrap_or_default()
    };
    let [agnostic, aware] = report.best_blocks.map(|block| human_bytes(block.get().into()));
    let size = |point: &Point| point.cell.group_size.to_string();
    figure(
        format!("As Figure 7: ratio over GROUP_SIZE; blocks of {agnostic} (Agnostic-Block) and {aware} (Aware-Block)"),
        "GROUP_SIZE",
        columns(&report.figure_7, &size),
        &report.figure_7,
    );
    let block = |point: &Point| point.cell.block_bytes.map_or(String::new(), |block| human_bytes(block.get().into()));
    figure(
        format!("As Figure 8: ratio over the size of blocks, GROUP_SIZE {largest}"),
        "blocks of",
        columns(&report.figure_8, &block),
        &report.figure_8,
    );
    if report.figure_9.iter().any(|line| !line.points.is_empty()) {
        let left_out = match report.checkpoints_left_out {
            0 => String::new(),
            n => format!("; {n} checkpoints between them are left out"),
        };
        // Many checkpoints stand below each other, the lines beside each other.
        let rows = (0..report.figure_9[0].points.len()).map(|n| {
            let label = report.figure_9[0].points[n].checkpoint.clone();
            [label].into_iter().chain(report.figure_9.iter().map(|line| ratio_of(&line.points[n]))).collect()
        });
        let headings: Vec<String> = ["checkpoint".to_owned()]
            .into_iter()
            .chain(report.figure_9.iter().map(|line| format!(">{}", line.name)))
            .collect();
        let table = lined_up(&headings, rows);
        let _ =
            write!(text, "\nAs Figure 9: ratio from checkpoint to checkpoint, GROUP_SIZE {largest}{left_out}\n{table}");
    }
    let rows = report.table_4.iter().map(|line| {
        let gain = |(percent, size): (f64, u32)| format!("{percent:.2} % ({size})");
        vec![scheme_name(line.scheme).to_owned(), gain(line.best), gain(line.worst)]
    });
    let headings = ["scheme".into(), ">best".into(), ">worst".into()];
    let _ = write!(
        text,
        "\nAs Table IV: relative improvement of the ratio over Agnostic, and the GROUP_SIZE where it is\n{}\n{}",
        lined_up(&headings, rows),
        report.bounds.sentence()
    );
    text
}

fn coder_name(point: &Point) -> String {
    use super::measure::Coder;
    match &point.cell.coder {
        Coder::Profile(profile) => profile.to_string(),
        Coder::GzipTwice => "gzip-twice".into(),
        Coder::Lz4 => "lz4".into(),
    }
}

fn point_json(point: &Point) -> Value {
    json!({
        "checkpoint": point.checkpoint, "scheme": point.cell.scheme.name(), "coder": coder_name(point),
        "group_size": point.cell.group_size, "block_bytes": point.cell.block_bytes, "file_bytes": point.file_bytes,
        "stored_bytes": point.stored_bytes, "ratio": point.ratio(),
    })
}

/// `mcr bench schemes --json`.
pub fn schemes_json(report: &Schemes) -> Value {
    let figure = |figure: &[Series]| -> Vec<Value> {
        let line = |line: &Series| json!({ "name": line.name, "points": line.points.iter().map(point_json).collect::<Vec<_>>() });
        figure.iter().map(line).collect()
    };
    let gain = |(percent, size): (f64, u32)| json!({ "percent": percent, "group_size": size });
    let improvement = |line: &super::schemes::Improvement| json!({ "scheme": line.scheme.name(), "best": gain(line.best), "worst": gain(line.worst) });
    let passes = |(passes, point): &(u32, Point)| {
        let mut value = point_json(point);
        value["passes"] = (*passes).into();
        value
    };
    json!({
        "directory": report.dir, "looked_at": report.looked, "bounds": report.bounds, "table_3": report.table_3,
        "figure_6": report.figure_6.iter().map(passes).collect::<Vec<_>>(),
        "figure_7": figure(&report.figure_7), "figure_8": figure(&report.figure_8), "figure_9": figure(&report.figure_9),
        "table_4": report.table_4.iter().map(improvement).collect::<Vec<_>>(),
        "checkpoints_left_out": report.checkpoints_left_out,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shortened("Density"), "Density");
        let long = "a".repeat(60) + &"b".repeat(60);
        let short = shortened(&long);
        assert!(short.chars().count() <= NAME_MAX && short.starts_with("aaa") && short.ends_with("bbb"), "{short}");
    }

    #[test]
    fn the_best_is_the_first_of_the_smallest_that_were_measured() {
        let cell = |stored_bytes| Cell { raw_bytes: 100, stored_bytes, ..Cell::default() };
        let (a, b, c, none) = (cell(50), cell(20), cell(20), Cell::default());
        assert_eq!(best([Some(&a), None, Some(&b), Some(&c), Some(&none)].into_iter()), Some(2));
        assert_eq!(best([None, Some(&none)].into_iter()), None);
    }
}
