//! Progress of a command: a bar on a terminal, and otherwise a line every ten seconds.

use super::{human_rate, human_time, is_quiet, printable, tell};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use mcr_anc::observe::Observer;
use mcrengine::units::{RawBytes, StoredBytes, human_bytes};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two lines if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The progress of a command, on standard error.
///
/// On a terminal, a bar shows the stage, the rate and the time left, from the first second. Otherwise, a line with
/// these values is printed every ten seconds.
pub struct Progress {
    bar: ProgressBar,
    state: Arc<State>,
    /// The thread that prints lines, and a channel whose end stops the thread.
    lines: Option<(Sender<()>, JoinHandle<()>)>,
}

/// The progress up to now.
#[derive(Debug)]
struct State {
    what: &'static str,
    started: Instant,
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
    /// Whether [`Progress::expect`] set the total. If not, each plan adds its bytes to the total.
    is_known: AtomicBool,
    /// Number of times that each byte is counted, for example 2 if a byte is counted when it is read and when it is
    /// coded.
    passes: AtomicU64,
    stage: Mutex<String>,
}

impl State {
    /// All bytes, and the finished bytes, each counted once.
    fn bytes(&self) -> [u64; 2] {
        let passes = self.passes.load(Ordering::Relaxed).max(1);
        let (total, done) = (self.total_bytes.load(Ordering::Relaxed), self.done_bytes.load(Ordering::Relaxed));
        [total / passes, done.min(total) / passes]
    }

    /// A line like `saving DD0007: 42 %, 1.20 GiB of 2.80 GiB, 310 MiB/s, 5.3 s left`. `elapsed`: the time since the
    /// start.
    fn line(&self, elapsed: Duration) -> String {
        let [total, done] = self.bytes();
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let name = if stage.is_empty() { self.what.to_owned() } else { format!("{} {stage}", self.what) };
        if total == 0 {
            return format!("{name}: {} so far", human_time(elapsed));
        }
        let left = time_left(done, total, elapsed).map_or(String::new(), |left| format!(", {} left", human_time(left)));
        format!(
            "{name}: {} %, {} of {}, {}{left}",
            percent(done, total),
            human_bytes(done),
            human_bytes(total),
            human_rate(done, elapsed)
        )
    }
}

/// The finished part in percent, rounded down, so that 100 % means that everything is finished.
fn percent(done: u64, total: u64) -> u64 {
    (u128::from(done) * 100 / u128::from(total.max(1))) as u64
}

/// The time for the remaining bytes at the average rate up to now. `None` if the rate is not known yet.
fn time_left(done: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    let left = total.checked_sub(done)?;
    (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64))
}

impl Progress {
    /// The progress of a command that does `what`, for example `saving`. Nothing is shown if `is_json` is true, or
    /// with `--quiet`.
    pub fn new(what: &'static str, is_json: bool) -> Self {
        let state = Arc::new(State {
            what,
            started: Instant::now(),
            total_bytes: AtomicU64::new(0),
            done_bytes: AtomicU64::new(0),
            is_known: AtomicBool::new(false),
            passes: AtomicU64::new(1),
            stage: Mutex::default(),
        });
        let is_hidden = is_json || is_quiet();
        let is_terminal = std::io::stderr().is_terminal();
        let lines = (!is_hidden && !is_terminal).then(|| print_lines(Arc::clone(&state), LINE_EVERY));
        let bar = match is_hidden || !is_terminal {
            true => ProgressBar::hidden(),
            false => ProgressBar::no_length(), // with the length 0, the bar would show 100 %
        };
        // The length of the bar depends on the width of the terminal. A long stage is cut at the end of the line.
        let template = "{prefix:>9} [{bar:20}] {percent:>3} % {rate} {left} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            // The rate is the average over the whole time. An average over the last moments would be 0 while a large
            // segment is encoded. An error of `write_str` only shortens the text.
            let of_bar = Arc::clone(&state);
            let rate = move |bar: &ProgressState, to: &mut dyn std::fmt::Write| {
                let [total, done] = of_bar.bytes();
                let _ = if total > 0 { to.write_str(&human_rate(done, bar.elapsed())) } else { Ok(()) };
            };
            let of_bar = Arc::clone(&state);
            let left = move |bar: &ProgressState, to: &mut dyn std::fmt::Write| {
                let [total, done] = of_bar.bytes();
                let _ = to.write_str(&match time_left(done, total, bar.elapsed()) {
                    Some(left) => format!("{} left", human_time(left)),
                    None => human_time(bar.elapsed()),
                });
            };
            let style = style.with_key("rate", rate).with_key("left", left);
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what);
        if !bar.is_hidden() {
            bar.tick(); // the bar is there before the first byte is done
            bar.enable_steady_tick(Duration::from_secs(1)); // so that the times are updated
        }
        Self { bar, state, lines }
    }

    /// Sets the total number of bytes. Each byte is counted `passes` times before it is finished.
    pub fn expect(&self, bytes: u64, passes: u64) {
        self.state.passes.store(passes, Ordering::Relaxed);
        self.add(bytes.saturating_mul(passes));
        self.state.is_known.store(true, Ordering::Relaxed);
    }

    /// Removes the bar from the terminal.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows the stage of the current work, for example the name of a checkpoint.
    pub fn message(&self, stage: String) {
        let stage = printable(&stage).into_owned();
        *self.state.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage.clone();
        self.bar.set_message(stage);
    }

    /// Adds bytes to the total, if [`Self::expect`] did not set the total.
    pub fn add(&self, bytes: u64) {
        if self.state.is_known.load(Ordering::Relaxed) {
            return;
        }
        let before = self.state.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bar.set_length(before.saturating_add(bytes).max(1));
    }

    /// Adds finished bytes.
    pub fn done(&self, bytes: u64) {
        self.state.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(bytes);
    }
}

/// Starts a thread that prints a line in each interval `every`, until the returned sender is dropped.
fn print_lines(state: Arc<State>, every: Duration) -> (Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = channel();
    let thread = std::thread::spawn(move || {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
            tell(state.line(state.started.elapsed()));
        }
    });
    (stop, thread)
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if let Some((stop, thread)) = self.lines.take() {
            drop(stop);
            let _ = thread.join(); // a panic in the thread was reported already
        }
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
    fn a_line_names_the_stage_the_rate_and_the_time_left() {
        let progress = Progress::new("saving", true);
        let ten = Duration::from_secs(10);
        assert_eq!(progress.state.line(ten), "saving: 10.00 s so far");
        progress.expect(100 << 20, 2);
        progress.message("DD0007\n".into());
        assert_eq!(progress.state.line(ten), "saving DD0007\\x0a: 0 %, 0 B of 100.00 MiB, 0 B/s");
        progress.done(50 << 20);
        assert_eq!(
            progress.state.line(ten),
            "saving DD0007\\x0a: 25 %, 25.00 MiB of 100.00 MiB, 2.50 MiB/s, 30.00 s left"
        );
        progress.planned(1, RawBytes(1 << 30));
        progress.done(200 << 20);
        let line = progress.state.line(ten);
        assert!(line.contains("100 %, 100.00 MiB of 100.00 MiB") && line.ends_with(", 0.00 s left"), "{line}");
    }

    #[test]
    fn the_finished_part_is_100_percent_only_at_the_end() {
        assert_eq!(
            [percent(0, 0), percent(999, 1000), percent(1000, 1000), percent(u64::MAX, u64::MAX)],
            [0, 99, 100, 100]
        );
        assert_eq!(time_left(0, 10, Duration::from_secs(1)), None);
        assert_eq!(time_left(5, 10, Duration::from_secs(1)), Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_thread_with_the_lines_ends_with_the_progress() {
        let state = Arc::clone(&Progress::new("saving", true).state);
        let (stop, thread) = print_lines(state, Duration::from_secs(3600));
        drop(stop);
        thread.join().expect("the thread ends at once");
    }
}
