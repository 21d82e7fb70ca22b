//! What people and scripts see: tables, progress bars, exact figures under `--json`.

use indicatif::{ProgressBar, ProgressStyle};
use mcr_anc::observe::Observer;
use mcrengine::units::{RawBytes, StoredBytes};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Rows under headings; numbers to the right.
pub struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; those that begin with `>` are columns of numbers.
    pub fn new(headings: &[impl AsRef<str>]) -> Self {
        Self { headings: headings.iter().map(|heading| heading.as_ref().to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row, with a cell for each heading.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as text, each line ended.
    pub fn render(&self) -> String {
        let titles: Vec<&str> = self.headings.iter().map(|h| h.trim_start_matches('>')).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..titles.len()).map(width).collect();
        let line = |cells: &[&str]| {
            let cell = |(i, text): (usize, &&str)| match self.headings[i].starts_with('>') {
                true => format!("{text:>width$}", width = widths[i]),
                false => format!("{text:<width$}", width = widths[i]),
            };
            let joined: Vec<String> = cells.iter().enumerate().map(cell).collect();
            format!("{}\n", joined.join("  ").trim_end())
        };
        let mut text = line(&titles);
        for row in &self.rows {
            text.push_str(&line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        text
    }
}

/// Prints to standard output; a reader that has gone away (`| head`) is no error.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// One JSON value, on one line or several, to standard output.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?));
    Ok(())
}

/// A duration for people: `0.42 s`, `3 min 20 s`.
pub fn human_time(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.2} s", time.as_secs_f64()),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A rate for people.
pub fn human_rate(bytes: u64, time: Duration) -> String {
    let per_second = bytes as f64 / time.as_secs_f64().max(1e-9);
    format!("{}/s", mcrengine::units::human_bytes(per_second as u64))
}

/// Raw bytes for each stored byte.
pub fn ratio(raw: u64, stored: u64) -> f64 {
    if stored == 0 { 1.0 } else { raw as f64 / stored as f64 }
}

/// A point in time, given in milliseconds since 1970, in UTC: `2026-11-20 13:37:05`.
pub fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, of_day) = ((seconds / 86400) as i64, seconds % 86400);
    // Howard Hinnant's civil_from_days: days since 1970 to year, month and day of the Gregorian calendar.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// A progress bar at a terminal, nothing elsewhere.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar with a word before it; hidden where standard error is no terminal, or with `quiet`.
    pub fn new(what: &'static str, quiet: bool) -> Self {
        let bar = match quiet || !std::io::stderr().is_terminal() {
            true => ProgressBar::hidden(),
            false => ProgressBar::new(0),
        };
        let template = "{prefix:>9} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what);
        Self { bar }
    }

    /// Takes the bar off the terminal.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// What is being worked on.
    pub fn message(&self, message: String) {
        self.bar.set_message(message);
    }

    /// So many bytes more are to be done.
    pub fn add(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// So many bytes are done.
    pub fn done(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn planned(&self, _: usize, raw_bytes: RawBytes) {
        self.add(raw_bytes.0);
    }

    fn segment(&self, raw_bytes: RawBytes, _: StoredBytes) {
        self.done(raw_bytes.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up() {
        let mut table = Table::new(&["checkpoint", ">raw"]);
        table.row(["it_1".into(), "10 B".into()]);
        table.row(["a".into(), "1.00 KiB".into()]);
        assert_eq!(table.render(), "checkpoint       raw\nit_1            10 B\na           1.00 KiB\n");
    }

    #[test]
    fn points_in_time_are_right_around_leap_days() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(utc(1_709_251_199_000), "2024-02-29 23:59:59");
        assert_eq!(utc(1_795_181_825_000), "2026-11-20 13:37:05");
    }
}
