//! The use of the WAN over time, from the byte counters of a network card that carries the WAN, for example of a
//! router. Figures 7 and 8 of the multi-lane paper show this use.

use crate::links::cards;
use crate::models::lanes::Direction;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The counters of the card through which the root's site sends to the other site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// A file like `/proc/net/dev`. `/proc/PID/net/dev` has the cards of the network namespace of a process.
    path: PathBuf,
    /// The name of the card.
    card: String,
}

impl FromStr for Counter {
    type Err = String;

    /// Parses `FILE:CARD`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once(':') {
            Some((path, card)) if !path.is_empty() && !card.is_empty() => {
                Ok(Self { path: path.into(), card: card.into() })
            }
            _ => Err("expected a file and a card, as in /proc/net/dev:eth1".into()),
        }
    }
}

impl Counter {
    /// Reads the bytes that have passed so far. The time of the result is 0.
    pub fn read(&self) -> Result<Sample, String> {
        let table = std::fs::read_to_string(&self.path).map_err(|e| format!("{}: {e}", self.path.display()))?;
        let card = cards::of_table(&table).into_iter().find(|card| card.name == self.card);
        let card = card.ok_or_else(|| format!("{}: there is no card {}", self.path.display(), self.card))?;
        Ok(Sample { seconds: 0.0, from_root_bytes: card.sent_bytes, to_root_bytes: card.received_bytes })
    }

    /// Reads the counter every `interval` while `work` runs, and once before and once after it. The times are seconds
    /// since the first reading. Readings that fail are left out.
    pub fn watch<R>(&self, interval: Duration, work: impl FnOnce() -> R) -> (R, Vec<Sample>) {
        let begun = Instant::now();
        let over = AtomicBool::new(false);
        let read = || self.read().ok().map(|sample| Sample { seconds: begun.elapsed().as_secs_f64(), ..sample });
        let first = read();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut samples = Vec::new();
                while !over.load(Ordering::Relaxed) && samples.len() < SAMPLES_MAX {
                    std::thread::sleep(interval);
                    samples.extend(read());
                }
                samples
            });
            let result = work();
            over.store(true, Ordering::Relaxed);
            let samples = reader.join().unwrap_or_default();
            (result, first.into_iter().chain(samples).chain(read()).collect())
        })
    }
}

/// Maximum number of readings: over an hour with one reading every 5 ms.
const SAMPLES_MAX: usize = 1_000_000;

/// One reading of the counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time since the first reading.
    pub seconds: f64,
    /// Bytes that the root's site has sent to the other site, with all headers.
    pub from_root_bytes: u64,
    /// Bytes that the root's site has received from the other site, with all headers.
    pub to_root_bytes: u64,
}

impl Sample {
    fn bytes(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Scatter => self.from_root_bytes,
            Direction::Gather => self.to_root_bytes,
        }
    }
}

/// The rate in bytes per second in each window of `window_seconds`, in the direction of the blocks. The last window may
/// be incomplete; its rate is also of the whole window, so the sum of all rates is proportional to the bytes. Between
/// two readings, the bytes are taken as evenly distributed.
pub fn rates(samples: &[Sample], direction: Direction, window_seconds: f64) -> Vec<f64> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Vec::new() };
    let passed = |sample: &Sample| sample.bytes(direction).saturating_sub(first.bytes(direction)) as f64;
    // Bytes until a time, interpolated between the readings before and after it.
    let until = |seconds: f64| {
        let after = samples.partition_point(|sample| sample.seconds < seconds);
        match (after.checked_sub(1).and_then(|before| samples.get(before)), samples.get(after)) {
            (Some(before), Some(after)) => {
                let part = (seconds - before.seconds) / (after.seconds - before.seconds);
                passed(before) + part * (passed(after) - passed(before))
            }
            (None, _) => 0.0,
            (Some(last), None) => passed(last),
        }
    };
    let windows = ((last.seconds - first.seconds) / window_seconds).ceil();
    let windows = if windows.is_finite() { windows as usize } else { 0 };
    let ends = (0..=windows.min(SAMPLES_MAX)).map(|i| until(first.seconds + i as f64 * window_seconds));
    let ends: Vec<f64> = ends.collect();
    ends.windows(2).map(|w| (w[1] - w[0]) / window_seconds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, from_root_bytes: u64, to_root_bytes: u64) -> Sample {
        Sample { seconds, from_root_bytes, to_root_bytes }
    }

    #[test]
    fn rates_are_those_of_the_direction_and_add_up_to_the_bytes() {
        // 100 bytes/s from the root for one second, and then 300 bytes/s. 10 bytes/s to the root.
        let samples: Vec<_> = [(0.0, 1000, 7), (0.5, 1050, 12), (1.0, 1100, 17), (1.5, 1250, 22), (2.0, 1400, 27)]
            .map(|(t, out, back)| sample(t, out, back))
            .to_vec();
        assert_eq!(rates(&samples, Direction::Scatter, 0.5), [100.0, 100.0, 300.0, 300.0]);
        assert_eq!(rates(&samples, Direction::Gather, 1.0), [10.0, 10.0]);
        for window in [0.1, 0.3, 0.7, 5.0] {
            let sum: f64 = rates(&samples, Direction::Scatter, window).iter().map(|rate| rate * window).sum();
            assert!((sum - 400.0).abs() < 1e-6, "{window}: {sum}");
        }
    }

    #[test]
    fn readings_at_irregular_times_and_too_few_readings_give_finite_rates() {
        let late = [sample(0.0, 0, 0), sample(0.9, 90, 0), sample(1.0, 200, 0)];
        let found = rates(&late, Direction::Scatter, 0.25);
        assert!(found.len() == 4 && (found[0] - 100.0).abs() < 1e-9, "{found:?}");
        assert_eq!(rates(&[], Direction::Scatter, 0.1), [0.0; 0]);
        assert_eq!(rates(&late[..1], Direction::Scatter, 0.1), [0.0; 0]);
        let reset = [sample(0.0, 500, 0), sample(1.0, 3, 0)];
        assert_eq!(rates(&reset, Direction::Scatter, 1.0), [0.0], "a counter that starts again has no negative rate");
    }

    #[test]
    fn a_counter_is_read_while_work_runs() {
        let counter: Counter = "/proc/net/dev:lo".parse().expect("a file and a card");
        let (result, samples) = counter.watch(Duration::from_millis(1), || {
            let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let mut client = std::net::TcpStream::connect(server.local_addr().expect("bound")).expect("connects");
            let (mut end, _) = server.accept().expect("connects");
            std::io::Write::write_all(&mut client, &[1; 5000]).expect("sends");
            std::io::Read::read_exact(&mut end, &mut [0; 5000]).expect("receives");
            5
        });
        assert_eq!(result, 5);
        let passed = samples[samples.len() - 1].from_root_bytes - samples[0].from_root_bytes;
        assert!(samples.len() >= 2 && passed >= 5000, "{samples:?}");
        assert!(samples.windows(2).all(|w| w[0].seconds <= w[1].seconds), "{samples:?}");
    }

    #[test]
    fn files_and_cards_that_do_not_exist_are_named() {
        for wrong in ["", "eth0", ":eth0", "/proc/net/dev:"] {
            assert!(wrong.parse::<Counter>().is_err(), "{wrong:?}");
        }
        for (wrong, named) in [("/nowhere/dev:eth0", "/nowhere/dev"), ("/proc/net/dev:no-card", "no card no-card")] {
            let counter: Counter = wrong.parse().expect("a file and a card");
            let error = counter.read().expect_err(wrong);
            assert!(error.contains(named), "{error}");
        }
    }
}
