//! Tables that fit the terminal.

use super::{has_colours, out_width, printable, printable_lines, write_out};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};
use std::fmt::Write;

/// A table with headings.
///
/// A heading may begin with marks. `>`: a column of numbers, aligned to the right. `?`: an optional column. An
/// optional column is left out if all of its cells are empty (`""`, `-`, `0 B`), or if the terminal is too narrow.
/// The last optional column is left out first, and a line below the table names such columns. `~`: a column of text,
/// whose cells continue on the next line if the terminal is too narrow. `!`: the last of the columns that name a row.
///
/// If the table is still too wide, the table is printed in parts below each other. Each part repeats the columns that
/// name a row. Without a mark, these are the first column, or the first two columns if only the first column has
/// numbers. If standard output is not a terminal, the width of a table is not limited.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// Row, column and colour of painted cells.
    painted: Vec<(usize, usize, Paint)>,
}

struct Column {
    title: String,
    is_number: bool,
    is_optional: bool,
    is_text: bool,
    names_row: bool,
}

/// The colour of a word on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// A good state.
    Good,
    /// A state that the user should check.
    Doubtful,
    /// Something is lost or has failed.
    Bad,
}

impl Paint {
    /// The escape sequence that begins the colour.
    fn begin(self) -> &'static str {
        match self {
            Self::Good => "\x1b[32m",
            Self::Doubtful => "\x1b[33m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// Ends a colour.
const END: &str = "\x1b[0m";
/// Characters without width, which mark a painted cell until the table has its final width. No cell of a user
/// contains these characters, because [`Table::row`] replaces them.
const MARKS: [(char, Paint); 3] = [('\u{2061}', Paint::Good), ('\u{2062}', Paint::Doubtful), ('\u{2063}', Paint::Bad)];
const MARK_END: char = '\u{2064}';

/// Number of blanks between two columns.
const GAP: usize = 2;
/// Minimum width of a column of text.
const TEXT_MIN: usize = 16;

impl Table {
    /// A table with these headings and their marks.
    pub fn new(headings: &[impl AsRef<str>]) -> Self {
        let column = |heading: &str| {
            let title = heading.trim_start_matches(['>', '?', '~', '!']);
            let marks = &heading[..heading.len() - title.len()];
            Column {
                title: title.to_owned(),
                is_number: marks.contains('>'),
                is_optional: marks.contains('?'),
                is_text: marks.contains('~'),
                names_row: marks.contains('!'),
            }
        };
        let columns = headings.iter().map(|heading| column(heading.as_ref())).collect();
        Self { columns, rows: Vec::new(), painted: Vec::new() }
    }

    /// Adds a row with a cell for each heading. Cells may contain any text, because [`printable`] replaces control
    /// characters.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let is_mark = |c: char| c == MARK_END || MARKS.iter().any(|(mark, _)| c == *mark);
        let cell = |cell: String| printable(&cell).replace(is_mark, "\u{fffd}");
        self.rows.push(cells.into_iter().map(cell).collect());
    }

    /// Paints a cell of the last row.
    pub fn paint(&mut self, column: usize, paint: Paint) {
        self.painted.push((self.rows.len().saturating_sub(1), column, paint));
    }

    /// Prints the table to standard output, with colours if standard output is a terminal.
    pub fn print(&self) -> anyhow::Result<()> {
        self.print_with("")
    }

    /// Prints the table and lines below it with one write. Therefore a reader that exits after the first line
    /// (`| head -1`) never makes the command fail at random.
    pub fn print_with(&self, below: &str) -> anyhow::Result<()> {
        let text = self.finished(out_width(), has_colours()) + &printable_lines(below);
        write_out(text.as_bytes())?;
        Ok(())
    }

    /// The table as text without colours, for the width of the terminal. Each line ends with a line feed.
    pub fn render(&self) -> String {
        self.finished(out_width(), false)
    }

    /// The table with lines of at most `width` characters. `None`: the lines may have any length.
    fn finished(&self, width: Option<usize>, has_colours: bool) -> String {
        let parts = self.parts(width);
        let mut text = self.marked(&parts, width);
        if let Some(width) = width {
            text.push_str(&self.left_out(&parts, width));
        }
        for (mark, paint) in MARKS {
            text = text.replace(mark, if has_colours { paint.begin() } else { "" });
        }
        text.replace(MARK_END, if has_colours { END } else { "" })
    }

    /// The lines of the table for a terminal of this width. Each line is divided into pieces with different colours.
    pub fn pieces(&self, width: usize) -> Vec<Vec<(String, Option<Paint>)>> {
        let of_line = |line: &str| {
            let (mut pieces, mut text, mut paint) = (Vec::new(), String::new(), None);
            for c in line.chars() {
                let begun = MARKS.iter().find(|(mark, _)| *mark == c).map(|(_, paint)| *paint);
                if begun.is_none() && c != MARK_END {
                    text.push(c);
                    continue;
                }
                pieces.push((std::mem::take(&mut text), paint));
                paint = begun;
            }
            pieces.push((text, paint));
            pieces.retain(|(text, _)| !text.is_empty());
            pieces
        };
        self.marked(&self.parts(Some(width)), Some(width)).lines().map(of_line).collect()
    }

    /// The table with marks around its painted cells.
    fn marked(&self, parts: &[Vec<usize>], width: Option<usize>) -> String {
        let mut cells = self.rows.clone();
        for (row, column, paint) in &self.painted {
            let mark = MARKS.iter().find(|(_, of)| of == paint).map_or(MARK_END, |(mark, _)| *mark);
            if let Some(cell) = cells.get_mut(*row).and_then(|row| row.get_mut(*column)) {
                *cell = format!("{mark}{cell}{MARK_END}");
            }
        }
        let count = parts.len();
        let mut text = String::new();
        for (nth, part) in parts.iter().enumerate() {
            self.add_part(part, &cells, width, &mut text);
            if nth + 1 < count {
                text.push('\n');
            }
        }
        text
    }

    /// Lines of at most `width` characters that name the columns for which the terminal is too narrow; empty if there
    /// are none. A longer name has a line of its own.
    fn left_out(&self, parts: &[Vec<usize>], width: usize) -> String {
        let shown = parts.concat();
        let missing: Vec<usize> = self.parts(None).concat().into_iter().filter(|c| !shown.contains(c)).collect();
        let Some(last) = missing.last() else { return String::new() };
        let mut lines = vec!["(too narrow for:".to_owned()];
        for c in &missing {
            let name = format!("{}{}", self.columns[*c].title, if c == last { ")" } else { "," });
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + name.chars().count() <= width => *line += &format!(" {name}"),
                _ => lines.push(name),
            }
        }
        lines.join("\n") + "\n"
    }

    /// The columns of each part.
    fn parts(&self, width: Option<usize>) -> Vec<Vec<usize>> {
        let is_empty = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.all(|cell| ["", "-", "0 B"].contains(&cell.as_str()))
        };
        let mut shown: Vec<usize> =
            (0..self.columns.len()).filter(|c| !(self.columns[*c].is_optional && is_empty(*c))).collect();
        let Some(width) = width else { return vec![shown] };
        let widths = self.widths();
        while self.least(&shown, &widths) > width {
            let Some(last) = shown.iter().rposition(|c| self.columns[*c].is_optional) else { break };
            shown.remove(last);
        }
        if self.least(&shown, &widths) <= width {
            return vec![shown];
        }
        // Without a mark, each part has the columns up to the first column without numbers.
        let first_text = || shown.iter().position(|c| !self.columns[*c].is_number).filter(|at| *at < 2);
        let key = shown.iter().position(|c| self.columns[*c].names_row).or_else(first_text).unwrap_or(0);
        let (key, rest) = shown.split_at((key + 1).min(shown.len()));
        let mut parts = vec![key.to_vec()];
        for column in rest {
            let part = parts.last_mut().expect("there is a part");
            let more = [part.as_slice(), &[*column]].concat();
            match self.least(&more, &widths) > width && part.len() > key.len() {
                true => parts.push([key, &[*column]].concat()),
                false => *part = more,
            }
        }
        parts
    }

    /// The width of each column if no cell is broken.
    fn widths(&self) -> Vec<usize> {
        let plain = self.plain(&(0..self.columns.len()).collect::<Vec<_>>(), &self.rows);
        plain.column_max_content_widths().iter().map(|width| usize::from(*width)).collect()
    }

    /// The minimum width of a table with these columns.
    fn least(&self, shown: &[usize], widths: &[usize]) -> usize {
        let of = |c: usize| if self.columns[c].is_text { widths[c].min(TEXT_MIN) } else { widths[c] };
        shown.iter().map(|c| of(*c) + GAP).sum::<usize>().saturating_sub(GAP)
    }

    /// A table of the library `comfy_table` with these columns, whose width is not limited.
    fn plain(&self, shown: &[usize], rows: &[Vec<String>]) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(shown.iter().map(|c| &self.columns[*c].title));
        for row in rows {
            table.add_row(shown.iter().map(|c| row.get(*c).map_or("", String::as_str)));
        }
        for (nth, column) in shown.iter().enumerate() {
            let is_last = nth + 1 == shown.len();
            if let Some(of_table) = table.column_mut(nth) {
                of_table.set_padding((0, if is_last { 0 } else { GAP as u16 }));
                if self.columns[*column].is_number {
                    of_table.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table
    }

    fn add_part(&self, shown: &[usize], cells: &[Vec<String>], width: Option<usize>, text: &mut String) {
        let mut table = self.plain(shown, cells);
        let widths = self.widths();
        if let Some(width) = width {
            let texts: Vec<usize> = shown.iter().copied().filter(|c| self.columns[*c].is_text).collect();
            let fixed: usize = shown.iter().filter(|c| !texts.contains(c)).map(|c| widths[*c]).sum();
            let gaps = GAP * shown.len().saturating_sub(1);
            let natural: Vec<usize> = texts.iter().map(|c| widths[*c]).collect();
            let given = shared_out(width.saturating_sub(fixed + gaps), &natural);
            if given != natural {
                table.set_content_arrangement(ContentArrangement::Dynamic);
                table.set_width(
                    u16::try_from(width.max(fixed + gaps + given.iter().sum::<usize>())).unwrap_or(u16::MAX),
                );
                for (nth, c) in shown.iter().enumerate() {
                    let columns = match texts.iter().position(|text| text == c) {
                        Some(at) => given[at],
                        None => widths[*c],
                    };
                    let padding = if nth + 1 == shown.len() { 0 } else { GAP };
                    let columns = u16::try_from(columns + padding).unwrap_or(u16::MAX);
                    if let Some(column) = table.column_mut(nth) {
                        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(columns)));
                    }
                }
            }
        }
        for line in table.lines() {
            let _ = writeln!(text, "{}", line.trim_end()); // writing to a String cannot fail
        }
    }
}

/// Divides a width among columns of text. A column gets at most its natural width.
fn shared_out(width: usize, natural: &[usize]) -> Vec<usize> {
    let mut given = natural.to_vec();
    let mut order: Vec<usize> = (0..natural.len()).collect();
    order.sort_by_key(|at| natural[*at]);
    let mut left = width;
    for (nth, at) in order.iter().enumerate() {
        given[*at] = natural[*at].min((left / (natural.len() - nth)).max(1));
        left = left.saturating_sub(given[*at]);
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn a_table_lines_up() {
        let mut table = Table::new(&["checkpoint", ">raw"]);
        table.row(["it_1".into(), "10 B".into()]);
        table.row(["a".into(), "1.00 KiB".into()]);
        assert_eq!(table.render(), "checkpoint       raw\nit_1            10 B\na           1.00 KiB\n");
    }

    #[test]
    fn control_characters_in_a_cell_are_shown_as_text() {
        let mut table = Table::new(&["file"]);
        table.row(["n\nl\u{2063}".into()]);
        assert_eq!(table.render(), "file\nn\\x0al\u{fffd}\n");
    }

    #[test]
    fn optional_columns_that_are_empty_are_left_out() {
        let mut table = Table::new(&["class", "?>reused", "?>shared", ">raw"]);
        table.row(["a".into(), "0 B".into(), "1 B".into(), "0 B".into()]);
        table.row(["b".into(), "-".into(), "0 B".into(), "0 B".into()]);
        assert_eq!(table.render(), "class  shared  raw\na         1 B  0 B\nb         0 B  0 B\n");
    }

    #[test]
    fn a_narrow_terminal_first_breaks_text_and_then_costs_optional_columns() {
        let mut table = Table::new(&["id", "~why", ">bytes", "?>rate", "?>took"]);
        table.row(["it_1".into(), "because it is so much smaller".into(), "10 B".into(), "9 B/s".into(), "2 s".into()]);
        let whole = "id    why                            bytes   rate  took\n\
                     it_1  because it is so much smaller   10 B  9 B/s   2 s\n";
        assert_eq!(table.finished(None, false), whole);
        assert_eq!(table.finished(Some(55), false), whole);
        assert_eq!(
            table.finished(Some(50), false),
            "id    why                       bytes   rate  took\nit_1  because it is so much      10 B  9 B/s   2 s\n      \
             smaller\n"
        );
        assert_eq!(
            table.finished(Some(30), false),
            "id    why                bytes\nit_1  because it is so    10 B\n      much smaller\n\
             (too narrow for: rate, took)\n"
        );
    }

    #[test]
    fn a_table_that_is_too_wide_is_printed_in_parts_with_the_first_column() {
        let names: Vec<String> = (0..20).map(|n| format!(">codec-{n:02}")).collect();
        let headings: Vec<&str> = ["class"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let mut table = Table::new(&headings);
        table.row(["pressure".into()].into_iter().chain((0..20).map(|n| n.to_string())));
        assert_eq!(table.finished(None, false).lines().count(), 2);
        let text = table.finished(Some(80), false);
        assert!(widest(&text) <= 80, "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("pressure")).count(), 3, "{text}");
        for name in names {
            assert!(text.contains(&name[1..]), "{text}");
        }
    }

    #[test]
    fn each_part_of_a_table_repeats_all_columns_that_name_a_row() {
        let mut table = Table::new(&["job", "!checkpoint", ">ranks", ">bytes", ">stored"]);
        table.row(["wave", "step_0000001", "4", "10.0 MiB", "5.0 MiB"].map(str::to_owned));
        let text = table.finished(Some(36), false);
        let expected = "job   checkpoint    ranks     bytes\nwave  step_0000001      4  10.0 MiB\n\n\
                        job   checkpoint     stored\nwave  step_0000001  5.0 MiB\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn every_table_fits_any_width_if_no_column_alone_is_wider() {
        let mut table = Table::new(&[">#", "job", "~files", ">bytes", "~what", "?>took", "state"]);
        for n in 0..5 {
            let long = "a/very/long/path/without/any/blank.".repeat(n + 1);
            table.row([
                n.to_string(),
                "wave".into(),
                long,
                "10.0 MiB".into(),
                "some words ".repeat(n * 3),
                "-".into(),
                "ok".into(),
            ]);
        }
        for width in 30..240 {
            let text = table.finished(Some(width), false);
            assert!(widest(&text) <= width, "{width}: {text}");
            assert!(text.contains("10.0 MiB") && text.contains("wave"), "{width}: {text}");
        }
    }

    #[test]
    fn colours_change_no_width_and_are_only_in_the_painted_cell() {
        let mut table = Table::new(&["state", ">n"]);
        table.row(["damaged".into(), "1".into()]);
        table.paint(0, Paint::Bad);
        table.row(["complete".into(), "10".into()]);
        assert_eq!(table.finished(None, false), "state      n\ndamaged    1\ncomplete  10\n");
        assert_eq!(table.finished(None, true), "state      n\n\x1b[31mdamaged\x1b[0m    1\ncomplete  10\n");
        let plain = |text: &str| (text.to_owned(), None);
        let damaged = vec![("damaged".to_owned(), Some(Paint::Bad)), plain("    1")];
        assert_eq!(table.pieces(80), [vec![plain("state      n")], damaged, vec![plain("complete  10")]]);
    }
}
