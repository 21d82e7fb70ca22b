//! The format and the files of a report, and the report of a command that is interrupted.

use super::{Failure, context};
use clap::{Args, ValueEnum};
use mpib::comm::Comm;
use mpib::report::{Format, Report, Row};
use mpib::stats::StoppingRule;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Format and destination of the report.
#[derive(Args, Clone)]
pub struct Output {
    /// Format of the printed report
    #[arg(long, value_enum, default_value_t = FormatName::Table)]
    format: FormatName,
    /// Also write a file, in the format of its extension: .json .csv .svg .gp .txt; may be given several times
    #[arg(long, short, value_name = "FILE")]
    output: Vec<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FormatName {
    /// A table for reading
    Table,
    /// CSV for spreadsheets
    Csv,
    /// JSON with all data and the context
    Json,
}

impl Output {
    /// Rejects unknown extensions, and files that cannot be written, before anything is measured. `more` are files of
    /// other options. All ranks must call this function.
    pub fn check(&self, comm: &Comm, more: &[&Path]) -> Result<(), Failure> {
        self.output.iter().try_for_each(|path| format_of(path).map(|_| ()))?;
        let paths = || self.output.iter().map(PathBuf::as_path).chain(more.iter().copied());
        let tried = if comm.rank() == 0 { paths().try_for_each(try_to_write) } else { Ok(()) };
        comm.agree(tried).map_err(|error| Failure::Input(error.to_string()))
    }

    /// Creates the directory of figures, and rejects a directory in which `file` cannot be written, before anything is
    /// measured. All ranks must call this function.
    pub fn check_figures(&self, comm: &Comm, directory: &Path, file: &str) -> Result<(), Failure> {
        let made = std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()));
        let made = if comm.rank() == 0 { made } else { Ok(()) };
        comm.agree(made).map_err(|error| Failure::Input(error.to_string()))?;
        self.check(comm, &[&directory.join(file)])
    }

    /// Starts the journal of a command. All ranks must call this function.
    pub fn journal(&self, comm: &Comm, title: String, rule: StoppingRule) -> Result<Journal, Failure> {
        let notes = vec!["incomplete: the command had not ended".into()];
        let report = Report { title, context: context(comm, None, &[])?, rule, notes, ..Report::default() };
        if comm.rank() != 0 {
            // Open MPI kills rank 0 as soon as another rank ends, so the other ranks give rank 0 time to write.
            on_signal(|| std::thread::sleep(OTHERS_WAIT));
            return Ok(Journal(None));
        }
        // A pipe gets only the complete report.
        let regular = self.output.iter().filter(|path| path.is_file() || !path.exists());
        let files = regular.filter_map(|path| Some((path.clone(), format_of(path).ok()?))).collect();
        let state = State { report, files, written: Instant::now(), cost: Duration::ZERO, over: false };
        let state = Arc::new(Mutex::new(state));
        let format = self.format();
        let so_far = Arc::clone(&state);
        on_signal(move || {
            let mut state = lock(&so_far);
            if !state.over {
                let mut out = std::io::stdout();
                out.write_all(state.report.write(format).as_bytes()).and_then(|()| out.flush()).ok();
                state.write().ok(); // an error cannot be reported any more
            }
        });
        Ok(Journal(Some(state)))
    }

    fn format(&self) -> Format {
        match self.format {
            FormatName::Table => Format::Table,
            FormatName::Csv => Format::Csv,
            FormatName::Json => Format::Json,
        }
    }

    /// Writes the files. Returns the text to print. All ranks must call this function.
    pub fn write(&self, comm: &Comm, report: &Report) -> Result<String, Failure> {
        self.write_with(comm, report, &[])
    }

    /// Like [`Output::write`], and also writes the files in `more`.
    pub fn write_with(&self, comm: &Comm, report: &Report, more: &[(PathBuf, String)]) -> Result<String, Failure> {
        let write = || -> Result<(), String> {
            let own = self.output.iter().filter_map(|p| Some((p.clone(), report.write(format_of(p).ok()?))));
            for (path, text) in own.chain(more.iter().cloned()) {
                replace(&path, &text).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            Ok(())
        };
        comm.agree(if comm.rank() == 0 { write() } else { Ok(()) })?;
        Ok(report.write(self.format()))
    }
}

fn format_of(path: &Path) -> Result<Format, Failure> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => Ok(Format::Json),
        Some("csv") => Ok(Format::Csv),
        Some("svg") => Ok(Format::Svg),
        Some("gp") => Ok(Format::Gnuplot),
        Some("txt") => Ok(Format::Table),
        _ => {
            Err(Failure::Input(format!("--output {}: the ending must be .json .csv .svg .gp or .txt", path.display())))
        }
    }
}

/// Time that the other ranks wait after a signal. Open MPI kills all ranks after one second.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// Starts a thread that calls a function after SIGTERM or Ctrl-C, and then ends the process. If the thread cannot be
/// started, the files still contain the results so far.
fn on_signal(act: impl FnOnce() + Send + 'static) {
    if let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) {
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                act();
                std::process::exit(128 + signal);
            }
        });
    }
}

/// Creates a file if it does not exist, and removes it again.
fn try_to_write(path: &Path) -> Result<(), String> {
    let exists = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| format!("{}: {error}", path.display()))?;
    if !exists {
        std::fs::remove_file(path).ok(); // an empty file does no harm
    }
    Ok(())
}

/// The results so far, on rank 0. The journal writes these results to the files of `-o` while the command runs, so
/// that no result is lost if the command is killed. After SIGTERM or Ctrl-C, the journal also prints the results.
#[derive(Clone)]
pub struct Journal(Option<Arc<Mutex<State>>>);

struct State {
    report: Report,
    files: Vec<(PathBuf, Format)>,
    written: Instant,
    /// Duration of the last writing.
    cost: Duration,
    /// Whether the complete report is being written.
    over: bool,
}

/// Writing the results so far takes at most about 1 / WRITING_DIVISOR of the time.
const WRITING_DIVISOR: u32 = 100;

impl Journal {
    /// Adds a result.
    pub fn add(&self, row: &Row) {
        let Some(state) = &self.0 else { return };
        let mut state = lock(state);
        state.report.rows.push(row.clone());
        state.write_sometimes();
    }

    /// Adds a result, or replaces the earlier result of the same operation and size, which had fewer repetitions.
    pub fn put(&self, row: &Row) {
        let Some(state) = &self.0 else { return };
        let same = |r: &&mut Row| (&r.operation, r.block_bytes) == (&row.operation, row.block_bytes);
        let mut state = lock(state);
        match state.report.rows.iter_mut().find(same) {
            Some(earlier) => *earlier = row.clone(),
            None => state.report.rows.push(row.clone()),
        }
        state.write_sometimes();
    }

    /// From now on, the complete report replaces the results so far.
    pub fn end(&self) {
        if let Some(state) = &self.0 {
            lock(state).over = true;
        }
    }
}

impl State {
    /// Writes the results so far, except shortly after the last writing.
    fn write_sometimes(&mut self) {
        if self.written.elapsed() >= self.cost * WRITING_DIVISOR {
            self.write().ok(); // the complete report may still be written
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        let begun = Instant::now();
        for (path, format) in &self.files {
            replace(path, &self.report.write(*format))?;
        }
        (self.written, self.cost) = (Instant::now(), begun.elapsed());
        Ok(())
    }
}

/// Replaces a file as a whole, so that a complete file exists at any time. Only regular files are replaced.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    if path.exists() && !path.is_file() {
        return std::fs::write(path, text);
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}", std::process::id()));
    let next = path.with_file_name(name);
    std::fs::write(&next, text)?;
    std::fs::rename(&next, path)
}

fn lock(state: &Arc<Mutex<State>>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
