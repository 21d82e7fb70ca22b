//! Output for people and scripts: tables, progress bars, and exact numbers with `--json`.

mod progress;
mod table;

pub use progress::Progress;
pub use table::{Paint, Table};

use crate::advice::{Told, message_of, missing_advice};
use anyhow::bail;
use mcr_cnc::layout::LayoutError;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// The amount of output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Results and errors, without progress and notes.
    Quiet,
    Normal,
    /// Like `Normal`, and log lines of the level `info` or higher. A daemon also logs lines of the level `debug`.
    Verbose,
    /// Like `Normal`, and log lines of the level `debug` or higher. A daemon also logs lines of the level `trace`.
    VeryVerbose,
}

static VERBOSITY: AtomicU8 = AtomicU8::new(1);

/// Sets the verbosity of the whole process, from the options --quiet and --verbose.
pub fn set_verbosity(is_quiet: bool, verbose: u8) {
    VERBOSITY.store(if is_quiet { 0 } else { 1 + verbose.min(2) }, Ordering::Relaxed);
}

/// The verbosity of the process.
pub fn verbosity() -> Verbosity {
    match VERBOSITY.load(Ordering::Relaxed) {
        0 => Verbosity::Quiet,
        1 => Verbosity::Normal,
        2 => Verbosity::Verbose,
        _ => Verbosity::VeryVerbose,
    }
}

/// Whether the user wants only results and errors.
pub fn is_quiet() -> bool {
    verbosity() == Verbosity::Quiet
}

/// The width of the terminal behind standard output. `None` if standard output is not a terminal.
fn out_width() -> Option<usize> {
    if cfg!(test) {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Whether standard output is a terminal that shows colours. A variable NO_COLOR that is not empty switches colours
/// off (no-color.org).
pub fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !cfg!(test) && !is_set("NO_COLOR") && !is_dumb && std::io::stdout().is_terminal()
}

/// Replaces control characters, which a terminal would execute. Each byte of a control character (such as a line feed
/// or an escape) becomes `\xNN`, as in a manifest. Text that was already replaced is not changed.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c.is_control() {
            false => shown.push(c),
            true => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| shown.push_str(&escaped(byte))),
        }
    }
    shown.into()
}

fn escaped(byte: u8) -> String {
    format!("\\x{byte:02x}")
}

/// Replaces control characters like [`printable`], but keeps line feeds, which this program wrote itself.
fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// The name of a file or directory as in [`printable`]. A byte that is not UTF-8 becomes `\xNN`.
pub fn name_of(path: &Path) -> String {
    let mut shown = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        shown.push_str(&printable(chunk.valid()));
        chunk.invalid().iter().for_each(|byte| shown.push_str(&escaped(*byte)));
    }
    shown
}

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written")]
pub struct NotPrinted(#[source] pub std::io::Error);

impl NotPrinted {
    /// Whether the reader of the pipe has exited (`| head`). In this case, no error is printed, as in other Unix
    /// commands.
    pub fn has_no_reader(&self) -> bool {
        self.0.kind() == std::io::ErrorKind::BrokenPipe
    }
}

/// Whether standard output was closed when this process started.
static IS_OUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before `main`. Before `main`, the standard library opens /dev/null in place of a closed stream, so that each
/// write would succeed.
#[expect(unsafe_code, reason = "no safe code runs before the standard library opens /dev/null")]
// SAFETY: the C library calls each function of this section once, without arguments that the function needs. The
// function makes two system calls and stores a flag.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK_AT_OUT: extern "C" fn() = {
    extern "C" fn look() {
        let exists = |path: &CStr| access(path, Access::EXISTS).is_ok();
        IS_OUT_CLOSED.store(exists(c"/proc/self/fd") && !exists(c"/proc/self/fd/1"), Ordering::Relaxed);
    }
    look
};

/// Prints lines to standard output. If the lines cannot be written, the command fails, also if the reader of the pipe
/// has exited (`| head`).
pub fn print(text: &str) -> anyhow::Result<()> {
    write_out(printable_lines(text).as_bytes())?;
    Ok(())
}

/// Version of the JSON of all commands. A release that removes a field, or changes the meaning of a field, has a new
/// number. docs/json.md describes the JSON.
pub const JSON_VERSION: u32 = 1;

/// Prints a JSON object on several lines to standard output, with the field `version`.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print_json_text(serde_json::to_string_pretty(&versioned(value)?)?)
}

/// Prints a JSON object on one line to standard output, with the field `version`.
pub fn print_json_line(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print_json_text(json_line(value)?)
}

/// A JSON object on one line, with the field `version`.
pub fn json_line(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&versioned(value)?)?)
}

fn versioned(value: &impl serde::Serialize) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(value)?;
    match &mut value {
        serde_json::Value::Object(fields) => fields.insert("version".to_owned(), JSON_VERSION.into()),
        other => bail!("the JSON of a command is an object, and this is {other}"),
    };
    Ok(value)
}

fn print_json_text(mut text: String) -> anyhow::Result<()> {
    // JSON allows these characters in a text, but some terminals execute them.
    for c in ('\u{7f}'..='\u{9f}').filter(|c| text.contains(*c)).collect::<Vec<_>>() {
        text = text.replace(c, &format!("\\u{:04x}", u32::from(c)));
    }
    text.push('\n');
    write_out(text.as_bytes())?;
    Ok(())
}

/// The word of a state or an outcome in JSON: `set aside` becomes `set-aside`.
pub fn json_word(word: &str) -> String {
    word.replace(' ', "-")
}

/// Writes bytes to standard output.
pub fn write_out(bytes: &[u8]) -> Result<(), NotPrinted> {
    check_out()?;
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(NotPrinted)
}

/// Fails if standard output was closed when this process started (`>&-`).
pub fn check_out() -> Result<(), NotPrinted> {
    match IS_OUT_CLOSED.load(Ordering::Relaxed) {
        true => Err(NotPrinted(Errno::BADF.into())),
        false => Ok(()),
    }
}

/// Adds a line on standard error to a result of printing: if standard output cannot be written, the line says that the
/// work of the command is done nevertheless. `done` is the sentence for this work, `None` if nothing was done.
pub fn printed(result: anyhow::Result<()>, done: impl FnOnce() -> Option<String>) -> anyhow::Result<()> {
    result.inspect_err(|error| {
        if let (true, Some(done)) = (error.is::<NotPrinted>(), done()) {
            tell(format!("{done}; only this result is not printed"));
        }
    })
}

/// Prints one line to standard error. An error while writing is ignored, because it cannot be reported.
pub fn tell(text: impl Display) {
    tell_line(&format!("mcr: {text}"));
}

/// Prints a line to standard error like [`tell`]. The line already begins with `mcr: `.
pub fn tell_line(line: &str) {
    let line = format!("{}\n", printable(line));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints one line to standard error that is neither a result nor an error, except with `--quiet`.
pub fn note(text: impl Display) {
    if !is_quiet() {
        tell(text);
    }
}

/// Prints an error as JSON to standard output. An error while writing is ignored, because the error itself is on
/// standard error.
pub fn tell_json(told: &Told) {
    let _ = print_json(&serde_json::json!({ "error": told }));
}

/// Prints the error that made a command fail. The text has several lines only if the text quotes a configuration or a
/// pattern.
pub fn tell_error(error: &anyhow::Error) {
    let text = message_of(error);
    match error.chain().any(|cause| cause.is::<toml::de::Error>() || cause.is::<LayoutError>()) {
        true => text.lines().enumerate().for_each(|(nth, line)| {
            tell_line(&format!("{}{line}", if nth == 0 { "mcr: " } else { "" }));
        }),
        false => tell(text),
    }
    if let Some(advice) = missing_advice(error) {
        tell(format!("advice: {advice}"));
    }
}

/// Standard error for log lines. [`printable`] replaces control characters in the lines. A line that cannot be
/// written is lost, and the daemon continues without it.
#[derive(Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let end = if text.ends_with('\n') { "\n" } else { "" };
        let shown = format!("{}{end}", printable(text.trim_end_matches('\n')));
        let _ = std::io::stderr().write_all(shown.as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A number with its noun: `1 checkpoint`, `2 checkpoints`.
pub fn counted(n: impl Into<u64>, what: &str) -> String {
    let n = n.into();
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A duration for people: `0.42 s`, `3 min 20 s`.
pub fn human_time(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.2} s", time.as_secs_f64()),
        seconds @ 60..3600 => two_units(seconds, "min", "s"),
        seconds => two_units(seconds / 60, "h", "min"),
    }
}

/// A number of small units as large and small units. A large unit has 60 small units. 0 small units are left out.
fn two_units(small: u64, name_of_large: &str, name_of_small: &str) -> String {
    match small % 60 {
        0 => format!("{} {name_of_large}", small / 60),
        rest => format!("{} {name_of_large} {rest} {name_of_small}", small / 60),
    }
}

/// The text of a value, or `-` if the value was not measured.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A rate for people, such as `1.50 GiB/s`, or `-` if the time is too short to be measured.
pub fn human_rate(bytes: u64, time: Duration) -> String {
    if time < Duration::from_millis(1) {
        return "-".to_owned();
    }
    let per_second = bytes as f64 / time.as_secs_f64();
    format!("{}/s", mcrengine::units::human_bytes(per_second as u64))
}

/// Raw bytes divided by stored bytes.
pub fn ratio(raw: u64, stored: u64) -> f64 {
    if stored == 0 { 1.0 } else { raw as f64 / stored as f64 }
}

/// A point in time, given in milliseconds since 1970, in UTC: `2026-11-20 13:37:05`.
pub fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, of_day) = ((seconds / 86400) as i64, seconds % 86400);
    // Howard Hinnant's algorithm `civil_from_days` converts days since 1970 to year, month and day of the Gregorian
    // calendar.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_makes_a_terminal_do_anything() {
        assert_eq!(printable("a\u{1b}[31mb\nc\td\u{9b}e"), "a\\x1b[31mb\\x0ac\\x09d\\xc2\\x9be");
        assert_eq!(printable("it_1 \u{fc}"), "it_1 \u{fc}");
        assert_eq!(name_of(Path::new(std::ffi::OsStr::from_bytes(b"x\xff\n"))), "x\\xff\\x0a");
        assert_eq!(printable_lines("a\u{7}\nb\n"), "a\\x07\nb\n");
    }

    #[test]
    fn a_duration_has_no_small_unit_that_is_zero() {
        let of = |seconds| human_time(Duration::from_secs(seconds));
        assert_eq!([of(200), of(180), of(86_400), of(7_500)], ["3 min 20 s", "3 min", "24 h", "2 h 5 min"]);
    }

    #[test]
    fn points_in_time_are_right_around_leap_days() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(utc(1_709_251_199_000), "2024-02-29 23:59:59");
        assert_eq!(utc(1_795_181_825_000), "2026-11-20 13:37:05");
    }
}
