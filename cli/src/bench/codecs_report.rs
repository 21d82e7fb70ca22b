//! The report of `mcr bench codecs`, for people and as JSON.

use super::profiles::{Cell, ProfileTotal};
use super::{Bounds, Looked, percent};
use crate::output::{Table, human_rate, human_time, ratio};
use mcrengine::codec::Profile;
use mcrengine::header::ElementType;
use mcrengine::units::human_bytes;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// A class of variables of all groups, or a pool of small variables.
pub struct Line {
    pub key: String,
    pub element: ElementType,
    pub variables: u64,
    pub raw_bytes: u64,
    /// One cell for each column. `None` if the codec is not made for the class.
    pub cells: Vec<Option<Cell>>,
    /// Like `cells`. If a codec is not made for the class, the cell has the result of the codec that the column's
    /// profile chose instead.
    pub sums: Vec<Cell>,
}

/// The bytes that a profile would store, and the time that it would take.
pub struct ProfileLine {
    pub profile: Profile,
    /// `None` if the time limit was reached.
    pub measured: Option<ProfileTotal>,
}

/// The data of the report.
pub struct Report {
    pub dir: String,
    pub looked: Looked,
    pub bounds: Bounds,
    pub columns: Vec<&'static str>,
    /// One line for each class or pool, the largest first.
    pub lines: Vec<Line>,
    /// Whether the whole sample of every class was measured. If not, a sum over classes would be a sum over different
    /// data.
    pub are_lines_complete: bool,
    pub profiles: Vec<ProfileLine>,
}

/// Maximum number of characters of the name of a class. The middle of a longer name is left out.
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

/// A number with two decimals below 10, one decimal below 100, and otherwise no decimals: `0.12`, `12.3`, `123`.
fn figure(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Adds several lines up to one line with the given key. A column whose codec is made for no class has no sum, because
/// the sum would be the result of another codec.
fn together(key: String, lines: &[Line], columns: usize) -> Line {
    let mut all = Line {
        key,
        element: ElementType::Bytes,
        variables: 0,
        raw_bytes: 0,
        cells: Vec::new(),
        sums: vec![Cell::default(); columns],
    };
    for line in lines {
        all.variables += line.variables;
        all.raw_bytes += line.raw_bytes;
        all.sums.iter_mut().zip(&line.sums).for_each(|(sum, cell)| sum.add(cell));
    }
    let is_made_for = |n: usize, line: &Line| line.cells.get(n).is_some_and(Option::is_some);
    let total = |(n, sum): (usize, &Cell)| lines.iter().any(|line| is_made_for(n, line)).then(|| sum.clone());
    all.cells = all.sums.iter().enumerate().map(total).collect();
    all
}

/// The measured cells of a line, with their columns.
fn measured(line: &Line) -> impl Iterator<Item = (usize, &Cell)> {
    let known = |cell: &&Cell| cell.raw_bytes > 0;
    line.cells.iter().enumerate().filter_map(move |(n, cell)| Some((n, cell.as_ref().filter(known)?)))
}

/// The column with the highest ratio. If several columns have the highest ratio, the first of these columns.
fn best(line: &Line) -> Option<(usize, &Cell)> {
    measured(line).fold(None, |best, (n, cell)| match best {
        Some((_, most)) if cell.ratio() <= Cell::ratio(most) => best,
        _ => Some((n, cell)),
    })
}

/// Percentage of the raw bytes of a line that was measured. The column with the most measured bytes is used.
fn measured_percent(line: &Line) -> f64 {
    percent(measured(line).map(|(_, cell)| cell.raw_bytes).max().unwrap_or(0), line.raw_bytes)
}

/// Adds several lines up to one line, like [`together`]. If the time limit was reached, the measured parts of the
/// classes do not have the proportions of the data, so a ratio of the sum would be misleading. In this case, the line
/// has no results of codecs.
pub fn sum_of(report: &Report, key: String, lines: &[Line]) -> Line {
    let mut sum = together(key, lines, report.columns.len());
    if !report.are_lines_complete {
        sum.cells.fill(None);
    }
    sum
}

/// The whole report. The `most` largest classes have one line each, and the other classes have one line together.
pub fn text(report: &Report, most: usize) -> String {
    let (first, rest) = report.lines.split_at(most.min(report.lines.len()));
    let columns = report.columns.len();
    let rest = (!rest.is_empty()).then(|| sum_of(report, format!("{} smaller classes", rest.len()), rest));
    let all = sum_of(report, "all classes".into(), &report.lines);
    let numbered = (1..).map(|n: usize| n.to_string()).zip(first);
    let rest = rest.as_ref().map(|line| ("+".to_owned(), line));
    let rows: Vec<(String, &Line)> = numbered.chain(rest).chain([("=".to_owned(), &all)]).collect();

    let share = |line: &Line| match measured_percent(line) {
        share if share > 0.0 => format!("{share:.0} %"),
        _ => "-".to_owned(),
    };
    let mut table =
        Table::new(&[">#", "class", ">variables", ">bytes", ">share", ">measured", "smallest", ">ratio", "fast takes"]);
    let fast = report.columns.iter().position(|name| *name == "fast");
    for (name, line) in &rows {
        let fast = measured(line).find(|(n, _)| Some(*n) == fast);
        table.row([
            name.clone(),
            shortened(&line.key),
            line.variables.to_string(),
            human_bytes(line.raw_bytes),
            format!("{:.1} %", percent(line.raw_bytes, all.raw_bytes)),
            share(line),
            best(line).map_or("-", |(at, _)| report.columns[at]).to_owned(),
            best(line).map_or("-".into(), |(_, cell)| format!("{:.3}", cell.ratio())),
            fast.map_or("-", |(_, cell)| cell.main_chain()).to_owned(),
        ]);
    }
    let mut text = format!("{}\n\n{}", report.looked.sentence(), table.render());

    // The column of the measured share is shown only if a class was measured partly.
    let is_part = rows.iter().any(|(_, line)| measured_percent(line) < 99.95);
    let mut headings = vec![">#".to_owned()];
    headings.extend(is_part.then(|| ">of".to_owned()));
    headings.extend(report.columns.iter().map(|name| format!(">{name}")));
    let mut matrix = |title: &str, value: &dyn Fn(&Cell) -> f64, marks_best: bool| {
        let mut table = Table::new(&headings);
        for (name, line) in &rows {
            let best = best(line).filter(|_| marks_best).map(|(at, _)| at);
            let mut cells = vec!["-".to_owned(); columns];
            for (n, cell) in measured(line) {
                cells[n] = format!("{}{}", figure(value(cell)), if best == Some(n) { "*" } else { "" });
            }
            table.row([name.clone()].into_iter().chain(is_part.then(|| share(line))).chain(cells));
        }
        let _ = write!(text, "\n{title}\n{}", table.render()); // writing to a String cannot fail
    };
    let title = "Raw bytes for each stored byte, of the share that was measured\n\
                 (* the most; \"-\": the codec does not apply. A total uses `fast` for such classes, and is \"-\" if the codec\n\
                 applies to no class)";
    matrix(title, &Cell::ratio, true);
    let title = "Coding, MB/s (10^6 raw bytes a second of processor time, one core)";
    matrix(title, &|cell| cell.rates()[0] / 1e6, false);
    matrix("Decoding, MB/s", &|cell| cell.rates()[1] / 1e6, false);

    let _ = write!(
        text,
        "\nBytes that `mcr save --no-reuse --profile` would store of these {}, with index and skeletons, and the time of\n\
         one core to encode and decode. Reading and writing are not counted. The profiles `balanced` and `max` encode the\n\
         classes of a type together, and predict one class from another; the columns above show each class alone.\n\
         {}\n{}",
        human_bytes(report.looked.measured_file_bytes),
        profiles(report).render(),
        report.bounds.sentence(),
    );
    text
}

fn profiles(report: &Report) -> Table {
    let mut table =
        Table::new(&["profile", ">stores", ">index", ">ratio", ">coding", ">rate", ">decoding", ">rate", ""]);
    for line in &report.profiles {
        let Some(total) = &line.measured else {
            table.row([line.profile.to_string()].into_iter().chain(vec!["-".to_owned(); 7]));
            continue;
        };
        let time = |rate: f64| human_time(Duration::from_secs_f64(total.raw_bytes as f64 / rate.max(1.0)));
        let rate = |rate: f64| human_rate(rate as u64, Duration::from_secs(1));
        let [coding, decoding] = total.rates();
        table.row([
            line.profile.to_string(),
            human_bytes(total.stored_bytes),
            human_bytes(total.index_bytes),
            format!("{:.3}", ratio(report.looked.measured_file_bytes, total.stored_bytes)),
            time(coding),
            rate(coding),
            time(decoding),
            rate(decoding),
            match total.is_exact {
                true => String::new(),
                false => format!("estimated from {:.0} % of the bytes", percent(total.cell.raw_bytes, total.raw_bytes)),
            },
        ]);
    }
    table
}

fn cell_json(cell: &Cell) -> Value {
    let [encode, decode] = cell.rates();
    json!({
        "raw_bytes": cell.raw_bytes, "stored_bytes": cell.stored_bytes, "ratio": cell.ratio(),
        "encode_bytes_per_second": encode, "decode_bytes_per_second": decode, "chains": cell.chains,
    })
}

/// The report as JSON, with exact numbers.
pub fn json(report: &Report) -> Value {
    let named = |line: &Line| -> serde_json::Map<String, Value> {
        measured(line).map(|(n, cell)| (report.columns[n].to_owned(), cell_json(cell))).collect()
    };
    let class = |line: &Line| {
        json!({
            "key": line.key, "element": line.element.to_string(), "variables": line.variables, "raw_bytes": line.raw_bytes,
            "measured_percent": measured_percent(line), "best": best(line).map(|(at, _)| report.columns[at]),
            "codecs": named(line),
        })
    };
    let profile = |line: &ProfileLine| {
        let Some(total) = &line.measured else { return json!({ "profile": line.profile, "stored_bytes": null }) };
        let [encode, decode] = total.rates();
        json!({
            "profile": line.profile, "stored_bytes": total.stored_bytes, "index_bytes": total.index_bytes,
            "raw_bytes": total.raw_bytes, "ratio": ratio(report.looked.measured_file_bytes, total.stored_bytes),
            "is_exact": total.is_exact, "measured_percent": percent(total.cell.raw_bytes, total.raw_bytes), "encode_bytes_per_second": encode, "decode_bytes_per_second": decode,
            "chains": total.cell.chains,
        })
    };
    json!({
        "directory": report.dir, "looked_at": report.looked, "bounds": report.bounds,
        "classes": report.lines.iter().map(class).collect::<Vec<_>>(),
        "all": named(&sum_of(report, String::new(), &report.lines)),
        "profiles": report.profiles.iter().map(profile).collect::<Vec<_>>(),
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
    fn a_ratio_is_shown_with_its_share_and_never_over_other_data() {
        // A class of zeros that was measured completely, and a larger class of noise of which one tenth was measured.
        let line = |key: &str, raw_bytes, measured, stored_bytes| {
            let cell = Cell { raw_bytes: measured, stored_bytes, ..Cell::default() };
            let element = ElementType::Bytes;
            Line {
                key: key.into(),
                element,
                variables: 1,
                raw_bytes,
                cells: vec![Some(cell.clone())],
                sums: vec![cell],
            }
        };
        let looked = super::super::Looked {
            checkpoint: "c".into(),
            ranks: 1,
            files: 1,
            file_bytes: 11_000,
            measured_ranks: 1,
            measured_files: 1,
            measured_file_bytes: 11_000,
        };
        let bounds = super::super::Bounds {
            sample_bytes: 1 << 20,
            time_limit_seconds: 1,
            segment_memory_bytes: 1 << 20,
            threads: 1,
            elapsed_ms: 1000,
            is_complete: false,
        };
        let mut report = Report {
            dir: "d".into(),
            looked,
            bounds,
            columns: vec!["fast"],
            lines: vec![line("noise", 10_000, 1_000, 1_000), line("zeros", 1_000, 1_000, 10)],
            are_lines_complete: false,
            profiles: Vec::new(),
        };
        let shown = text(&report, 12);
        let rows = |text: &str, mark: &str| {
            let of_mark = text.lines().filter(|line| line.trim_start().starts_with(mark));
            of_mark.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert!(rows(&shown, "1 ").iter().all(|row| row.contains("10 %")), "{shown}");
        assert!(rows(&shown, "= ").iter().skip(1).all(|row| row == "= - -"), "{shown}");
        assert!(shown.trim_end().lines().last().is_some_and(|line| line.starts_with("PARTLY: time limit")), "{shown}");
        assert_eq!(json(&report)["all"], serde_json::json!({}));
        report.are_lines_complete = true;
        assert_eq!(json(&report)["all"]["fast"]["raw_bytes"], 2_000);
    }

    #[test]
    fn a_codec_that_is_made_for_no_class_has_no_total() {
        let line = |is_made_for: [bool; 2]| {
            let sum = Cell { raw_bytes: 100, stored_bytes: 50, ..Cell::default() };
            Line {
                key: "class".into(),
                element: ElementType::Bytes,
                variables: 1,
                raw_bytes: 100,
                cells: is_made_for.map(|is_made| is_made.then(|| sum.clone())).into(),
                sums: vec![sum; 2],
            }
        };
        let total = |lines: &[Line]| measured(&together("all".into(), lines, 2)).map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(total(&[line([true, false]), line([true, false])]), [0]);
        assert_eq!(total(&[line([true, false]), line([true, true])]), [0, 1]);
    }

    #[test]
    fn the_best_is_the_first_of_the_smallest_that_were_measured() {
        let cell = |stored_bytes| Some(Cell { raw_bytes: 100, stored_bytes, ..Cell::default() });
        let mut line = together("all".into(), &[], 0);
        line.cells = vec![cell(50), None, cell(20), cell(20), Some(Cell::default())];
        assert_eq!(best(&line).map(|(at, _)| at), Some(2));
        line.cells = vec![None, Some(Cell::default())];
        assert!(best(&line).is_none());
    }
}
