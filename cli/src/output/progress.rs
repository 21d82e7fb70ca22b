//! Progress of a command: a bar on a terminal, and otherwise a line every ten seconds.

use super::{human_rate, human_time, is_quiet, printable, tell};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use mcr_anc::observe::Observer;
use mcrengine::units::{RawBytes, StoredBytes, human_bytes};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two lines if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The finished part below which no time left is shown.
const LEFT_FROM_PERCENT: u64 = 10;
/// Time over which the recent rate is measured. The time left is shown only if the recent rate and the average rate
/// differ by at most a factor of [`RATES_FACTOR`].
const RECENT: Duration = Duration::from_secs(10);
const RATES_FACTOR: f64 = 2.0;
/// Least time between two remembered samples, so that at most about 20 samples are remembered.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// The progress of a command, on standard error.
///
/// On a terminal, a bar shows the stage, the rate and the time left, from the first second. Otherwise, a line with
/// these values is printed every ten seconds. Only if the total is known from the start ([`Progress::expect`]), a
/// percentage and the time left are shown, so a percentage never becomes smaller.
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
    /// Bytes that the last pass has finished. The last pass takes the most time, so the time left depends on its rate.
    last_pass_bytes: AtomicU64,
    /// Number of times that each byte is counted, for example 2 if a byte is counted when it is read and when it is
    /// coded.
    passes: AtomicU64,
    stage: Mutex<String>,
    /// The bytes of the last pass at earlier times. The first sample is about [`RECENT`] old.
    samples: Mutex<VecDeque<(Duration, u64)>>,
}

impl State {
    /// All bytes, and the finished bytes, each counted once. All bytes are 0 if the total is not known.
    fn bytes(&self) -> [u64; 2] {
        let passes = self.passes.load(Ordering::Relaxed).max(1);
        let (total, done) = (self.total_bytes.load(Ordering::Relaxed), self.done_bytes.load(Ordering::Relaxed));
        [total / passes, if total == 0 { done } else { done.min(total) / passes }]
    }

    /// A line like `saving DD0007: 42 %, 1.20 GiB of 2.80 GiB, 310 MiB/s, 5.3 s left`. `elapsed`: the time since the
    /// start.
    fn line(&self, elapsed: Duration) -> String {
        let [total, done] = self.bytes();
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let name = if stage.is_empty() { self.what.to_owned() } else { format!("{} {stage}", self.what) };
        if total == 0 && done == 0 {
            return format!("{name}: {} so far", human_time(elapsed));
        }
        if total == 0 {
            let rate = human_rate(done, elapsed);
            return format!("{name}: {}, {rate}, {} so far", human_bytes(done), human_time(elapsed));
        }
        let left = self.time_left(elapsed).map_or(String::new(), |left| format!(", {} left", human_time(left)));
        format!(
            "{name}: {} %, {} of {}, {}{left}",
            percent(done, total),
            human_bytes(done),
            human_bytes(total),
            human_rate(done, elapsed)
        )
    }

    /// The time left, if it can be estimated.
    fn time_left(&self, elapsed: Duration) -> Option<Duration> {
        let [total, _] = self.bytes();
        let done = self.last_pass_bytes.load(Ordering::Relaxed).min(total);
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        while samples.get(1).is_some_and(|(at, _)| *at + RECENT <= elapsed) {
            samples.pop_front();
        }
        let (since, before) = samples.front().copied().unwrap_or_default();
        if samples.back().is_none_or(|(at, _)| *at + SAMPLE_EVERY <= elapsed) {
            samples.push_back((elapsed, done));
        }
        let recent = rate(done.saturating_sub(before), elapsed.saturating_sub(since));
        let is_steady = match (recent, rate(done, elapsed)) {
            (Some(recent), Some(mean)) => recent <= mean * RATES_FACTOR && mean <= recent * RATES_FACTOR,
            _ => false,
        };
        time_left(done, total, elapsed).filter(|_| is_steady)
    }
}

/// Bytes per second. `None` if no time has passed.
fn rate(bytes: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| bytes as f64 / time.as_secs_f64())
}

/// The finished part in percent, rounded down, so that 100 % means that everything is finished.
fn percent(done: u64, total: u64) -> u64 {
    (u128::from(done) * 100 / u128::from(total.max(1))) as u64
}

/// The time for the remaining bytes at the average rate up to now. `None` if too little is finished to know the rate.
fn time_left(done: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    let left = total.checked_sub(done)?;
    (done > 0 && percent(done, total) >= LEFT_FROM_PERCENT).then(|| elapsed.mul_f64(left as f64 / done as f64))
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
            last_pass_bytes: AtomicU64::new(0),
            passes: AtomicU64::new(1),
            stage: Mutex::default(),
            samples: Mutex::new(VecDeque::from([(Duration::ZERO, 0)])),
        });
        let is_hidden = is_json || is_quiet();
        let is_terminal = std::io::stderr().is_terminal();
        let lines = (!is_hidden && !is_terminal).then(|| print_lines(Arc::clone(&state), LINE_EVERY));
        let bar = match is_hidden || !is_terminal {
            true => ProgressBar::hidden(),
            false => ProgressBar::no_length(), // with the length 0, the bar would show 100 %
        };
        // The length of the bar depends on the width of the terminal. A long stage is cut at the end of the line.
        let template = "{prefix:>9} [{bar:20}] {share:>5} {rate} {left} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            // The rate is the average over the whole time. An average over the last moments would be 0 while a large
            // segment is encoded. An error of `write_str` only shortens the text.
            let of_bar = Arc::clone(&state);
            let share = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
                let [total, done] = of_bar.bytes();
                let _ = if total > 0 { write!(to, "{} %", percent(done, total)) } else { Ok(()) };
            };
            let of_bar = Arc::clone(&state);
            let rate = move |bar: &ProgressState, to: &mut dyn std::fmt::Write| {
                let [total, done] = of_bar.bytes();
                let _ = if total > 0 || done > 0 { to.write_str(&human_rate(done, bar.elapsed())) } else { Ok(()) };
            };
            let of_bar = Arc::clone(&state);
            let left = move |bar: &ProgressState, to: &mut dyn std::fmt::Write| {
                let _ = to.write_str(&match of_bar.time_left(bar.elapsed()) {
                    Some(left) => format!("{} left", human_time(left)),
                    None => human_time(bar.elapsed()),
                });
            };
            let style = style.with_key("share", share).with_key("rate", rate).with_key("left", left);
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what);
        if !bar.is_hidden() {
            bar.tick(); // the bar is there before the first byte is done
            bar.enable_steady_tick(Duration::from_secs(1)); // so that the times are updated
        }
        Self { bar, state, lines }
    }

    /// Sets the total number of bytes. Each byte is counted `passes` times before it is finished: in the last pass by
    /// [`Observer::segment`], and in earlier passes by [`Progress::done`].
    pub fn expect(&self, bytes: u64, passes: u64) {
        let all = bytes.saturating_mul(passes);
        self.state.passes.store(passes, Ordering::Relaxed);
        self.state.total_bytes.store(all, Ordering::Relaxed);
        self.bar.set_length(all.max(1));
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

    /// Adds bytes that a pass has finished. If there are several passes, this is not the last pass.
    pub fn done(&self, bytes: u64) {
        if self.state.passes.load(Ordering::Relaxed) <= 1 {
            self.state.last_pass_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.count(bytes);
    }

    fn count(&self, bytes: u64) {
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
    fn segment(&self, raw_bytes: RawBytes, _: StoredBytes) {
        self.state.last_pass_bytes.fetch_add(raw_bytes.0, Ordering::Relaxed);
        self.count(raw_bytes.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

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
            "saving DD0007\\x0a: 25 %, 25.00 MiB of 100.00 MiB, 2.50 MiB/s",
            "what is read is not coded yet, and coding may be slower"
        );
        progress.segment(RawBytes(50 << 20), StoredBytes(1));
        assert_eq!(
            progress.state.line(ten),
            "saving DD0007\\x0a: 50 %, 50.00 MiB of 100.00 MiB, 5.00 MiB/s, 10.00 s left"
        );
        progress.done(50 << 20);
        progress.segment(RawBytes(200 << 20), StoredBytes(1));
        let line = progress.state.line(ten);
        assert!(line.contains("100 %, 100.00 MiB of 100.00 MiB") && line.ends_with(", 0.00 s left"), "{line}");
    }

    #[test]
    fn the_finished_part_is_100_percent_only_at_the_end() {
        assert_eq!(
            [percent(0, 0), percent(999, 1000), percent(1000, 1000), percent(u64::MAX, u64::MAX)],
            [0, 99, 100, 100]
        );
        assert_eq!([time_left(0, 10, SECOND), time_left(9, 100, SECOND)], [None, None]);
        assert_eq!(time_left(5, 10, SECOND), Some(SECOND));
    }

    #[test]
    fn no_time_left_is_shown_while_the_recent_rate_is_far_from_the_average() {
        let progress = Progress::new("verifying", true);
        progress.expect(1000, 1);
        let done_until = |seconds: u32, bytes: u64| {
            progress.done(bytes);
            progress.state.time_left(SECOND * seconds)
        };
        assert_eq!(done_until(10, 400), Some(SECOND * 15));
        assert_eq!(done_until(20, 100), None, "10 bytes a second, and 25 on average");
        assert_eq!(done_until(30, 200), Some(SECOND * 90 / 7));
        assert!(progress.state.samples.lock().expect("not poisoned").len() <= 21);
    }

    #[test]
    fn without_a_total_that_is_known_from_the_start_there_is_no_percentage() {
        let progress = Progress::new("measuring", true);
        progress.message("fast".into());
        progress.planned(3, RawBytes(100 << 20));
        progress.segment(RawBytes(50 << 20), StoredBytes(1));
        assert_eq!(progress.state.line(SECOND * 10), "measuring fast: 50.00 MiB, 5.00 MiB/s, 10.00 s so far");
    }

    #[test]
    fn the_thread_with_the_lines_ends_with_the_progress() {
        let state = Arc::clone(&Progress::new("saving", true).state);
        let (stop, thread) = print_lines(state, Duration::from_secs(3600));
        drop(stop);
        thread.join().expect("the thread ends at once");
    }
}
