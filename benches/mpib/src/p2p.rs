//! Messages between two ranks: round trips of all pairs, streams, trains, and experiments with a third rank.

use crate::collectives::Result;
use crate::comm::{Comm, wtime};
use crate::models::{PairMatrix, PointToTwo, Train};
use crate::schedule::{Triple, rounds_of_pairs, rounds_of_triples};
use crate::stats::{Series, StoppingRule, Summary};
use std::time::{Duration, Instant};

const TAG: u16 = 400;

/// Buffers begin at a page boundary. If the MPI library copies between the memories of two processes, a message that
/// begins inside a page touches one page more. At 4 to 16 KiB, the bandwidth of such a message is 10 % lower.
const PAGE_BYTES: usize = 4096;

/// A buffer that begins at a page boundary. All bytes are written once, so that no page is allocated during a
/// measurement.
struct Pages {
    whole: Vec<u8>,
    start: usize,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let whole = vec![1u8; bytes + PAGE_BYTES];
        // If `align_offset` fails, the buffer is not aligned.
        let start = whole.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Self { whole, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let end = self.whole.len() - PAGE_BYTES + self.start;
        &mut self.whole[self.start..end]
    }
}

/// Maximum number of values of all pairs that every rank gets in the summaries.
const SHARED_SAMPLES: usize = 1_000_000;

/// Which pairs measure at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One pair at a time, while all other ranks wait.
    Sequential,
    /// As many disjoint pairs as possible. For a switched network, the results are right, and the measurement of n
    /// ranks is n/2 times as fast.
    Parallel,
}

/// Round trips between all pairs, with a message of the given length in each direction. Every rank gets all
/// summaries. All ranks must call this function.
pub fn all_pairs(
    comm: &Comm,
    order: Order,
    there_bytes: usize,
    back_bytes: usize,
    rule: &StoppingRule,
) -> Result<PairMatrix<Summary>> {
    let n = comm.size();
    let mut mine: Vec<(usize, Summary)> = Vec::new();
    for round in rounds_of_pairs(n) {
        let groups: Vec<Vec<(usize, usize)>> = match order {
            Order::Parallel => vec![round],
            Order::Sequential => round.into_iter().map(|pair| vec![pair]).collect(),
        };
        for pairs in groups {
            comm.barrier()?;
            if let Some(&(i, j)) = pairs.iter().find(|(i, j)| [*i, *j].contains(&comm.rank())) {
                let samples = round_trips(comm, i, j, there_bytes, back_bytes, rule)?;
                if comm.rank() == i {
                    let mut summary = rule.summary(&samples);
                    summary.samples.truncate(SHARED_SAMPLES / (n * (n - 1) / 2));
                    mine.push((PairMatrix::<()>::index(n, i, j), summary));
                }
            }
        }
    }
    share(comm, n, mine)
}

/// Sends the results of each rank to all ranks.
fn share(comm: &Comm, n: usize, mine: Vec<(usize, Summary)>) -> Result<PairMatrix<Summary>> {
    let text = serde_json::to_vec(&mine).map_err(|e| crate::comm::CommError::Told(e.to_string()))?;
    let mut all: Vec<(usize, Summary)> = Vec::new();
    for part in comm.all_bytes(&text)? {
        let part: Vec<(usize, Summary)> =
            serde_json::from_slice(&part).map_err(|e| crate::comm::CommError::Told(e.to_string()))?;
        all.extend(part);
    }
    all.sort_by_key(|(index, _)| *index);
    Ok(PairMatrix { ranks: n, values: all.into_iter().map(|(_, summary)| summary).collect() })
}

/// Time in seconds that reading the clock takes: about a twentieth of a short round trip within a node. Each measured
/// difference of two readings contains this time.
fn clock_seconds() -> f64 {
    let readings: Vec<f64> = (0..1001).map(|_| wtime()).collect();
    crate::stats::median(&readings.windows(2).map(|w| w[1] - w[0]).collect::<Vec<_>>())
}

/// Round trips between the ranks `i` and `j`. `i` measures and decides when to stop. Both ranks must call this
/// function. Only `i` gets times, from which the time of reading the clock is subtracted.
pub fn round_trips(
    comm: &Comm,
    i: usize,
    j: usize,
    there_bytes: usize,
    back_bytes: usize,
    rule: &StoppingRule,
) -> Result<Vec<f64>> {
    let (mut there, mut back) = (Pages::new(there_bytes), Pages::new(back_bytes));
    let (there, back) = (there.bytes(), back.bytes());
    let mut samples = Vec::new();
    let first = comm.rank() == i;
    let other = if first { j } else { i };
    let clock = if first { clock_seconds() } else { 0.0 };
    let mut warm_up = 3;
    let mut series = Series::new(rule);
    loop {
        let mut more = if first { series.next(&samples) as u64 } else { 0 };
        let mut word = more.to_ne_bytes();
        if first {
            comm.send(&word, other, TAG)?;
        } else {
            comm.receive(&mut word, other, TAG)?;
            more = u64::from_ne_bytes(word);
        }
        if more == 0 {
            return Ok(samples);
        }
        samples.reserve((more + warm_up) as usize);
        for trip in 0..more + warm_up {
            // The length of the first messages is checked.
            let receive = if trip < warm_up { Comm::receive } else { Comm::receive_known };
            if first {
                let start = wtime();
                comm.send(there, other, TAG)?;
                receive(comm, back, other, TAG)?;
                samples.push((wtime() - start - clock).max(f64::MIN_POSITIVE));
            } else {
                receive(comm, there, other, TAG)?;
                comm.send(back, other, TAG)?;
            }
        }
        if first {
            samples.drain(samples.len() - (more + warm_up) as usize..samples.len() - more as usize);
        }
        warm_up = 0;
    }
}

/// Maximum bytes of all receive buffers of a stream. The buffers should fit into the cache of one core.
const BUFFERS_BYTES: usize = 128 << 10;
/// Length from which, on one host, a message takes far longer than the handshake before the message.
const LONG_BYTES: usize = 256 << 10;
/// Maximum number of messages in flight. At least two messages are in flight, so that the receiver already waits for
/// the next message while a message arrives.
const WINDOW: usize = 64;

/// A stream of messages of one size from one rank to another rank. The buffers of the stream are allocated before the
/// measurement.
pub struct Stream {
    from: usize,
    to: usize,
    bytes: usize,
    slot_bytes: usize,
    beside: bool,
    buffer: Pages,
}

impl Stream {
    /// Allocates the buffers: one message at `from`, several slots at `to`, and none on other ranks.
    ///
    /// If both ranks are on the same host (`beside`), the receiver confirms each window, as in osu_bw. Without the
    /// confirmations, a fast sender fills the library's queue for short messages, and messages of 16 to 64 bytes
    /// reach only 0.7 to 0.9 of the bandwidth. On the same host, long messages are sent one after the other: a
    /// handshake takes almost no time, and two large buffers may not fit into the cache together. Between hosts,
    /// confirmations and single messages would wait for the latency of the network.
    pub fn new(comm: &Comm, from: usize, to: usize, bytes: usize, beside: bool) -> Self {
        let least = if beside && bytes >= LONG_BYTES { 1 } else { 2 };
        let slots = BUFFERS_BYTES.checked_div(bytes).unwrap_or(WINDOW).clamp(least, WINDOW);
        let slot_bytes = if bytes < PAGE_BYTES { bytes } else { bytes.next_multiple_of(PAGE_BYTES) };
        let buffer = match comm.rank() {
            rank if rank == from => bytes,
            rank if rank == to => slot_bytes * slots,
            _ => 0,
        };
        Self { from, to, bytes, slot_bytes, beside, buffer: Pages::new(buffer) }
    }

    /// Time in seconds until all messages have arrived and a final answer is back. Both ranks must call this method;
    /// other pairs may call it at the same time. On other ranks, the result is 0.
    pub fn seconds(&mut self, comm: &Comm, messages: usize) -> Result<f64> {
        let &mut Self { from, to, bytes, slot_bytes, beside, ref mut buffer } = self;
        let buffer = buffer.bytes();
        let at_a_time = if beside { WINDOW } else { messages };
        let start = wtime();
        let mut left = messages;
        while left > 0 {
            let some = left.min(at_a_time);
            if comm.rank() == from {
                comm.send_stream(buffer, some, WINDOW, to, TAG)?;
                comm.receive_known(&mut [], to, TAG)?;
            } else if comm.rank() == to {
                comm.receive_stream(buffer, slot_bytes, bytes, some, from, TAG)?;
                comm.send(&[], from, TAG)?;
            } else {
                return Ok(0.0);
            }
            left -= some;
        }
        Ok(wtime() - start)
    }
}

/// Bandwidth in bytes per second of the slowest of `pairs` while all pairs send: the median of `reps` measurements.
/// The bandwidth is computed from the difference between a stream and a stream of twice as many messages. So
/// latencies, handshakes and first bursts, which are equal in both streams, cancel out. All ranks must call this
/// function; ranks in no pair wait.
pub fn streams(comm: &Comm, pairs: &[(usize, usize)], bytes: usize, messages: usize, reps: usize) -> Result<f64> {
    let mut rates = Vec::with_capacity(reps);
    let pair = pairs.iter().find(|(i, j)| [*i, *j].contains(&comm.rank()));
    let mut stream = pair.map(|&(i, j)| Stream::new(comm, i, j, bytes, false));
    for _ in 0..reps + 1 {
        let mut seconds = [0.0; 2];
        for (seconds, messages) in seconds.iter_mut().zip([messages, 2 * messages]) {
            comm.barrier()?;
            if let Some(stream) = &mut stream {
                let found = stream.seconds(comm, messages)?;
                if comm.rank() == stream.from {
                    *seconds = found;
                }
            }
        }
        comm.all_max(&mut seconds)?;
        let [once, twice] = seconds;
        // If the difference is too small, other work has disturbed a stream. Then only the longer stream counts.
        let more = if twice > 1.2 * once { twice - once } else { twice / 2.0 };
        rates.push((bytes * messages) as f64 / more.max(f64::MIN_POSITIVE));
    }
    Ok(crate::stats::median(&rates[1..])) // the first measurement fills TCP's windows
}

/// The direction of the messages between one rank and several other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// From the one rank to the others.
    Out,
    /// From the others to the one rank.
    In,
}

/// Total bandwidth in bytes per second between `one` and all ranks in `others` at the same time. `empty_seconds`, the
/// time of an empty round trip, is subtracted from the measured time. The result is the median of `reps`
/// measurements. All ranks must call this function.
pub fn fan(
    comm: &Comm,
    direction: Fan,
    one: usize,
    others: &[usize],
    bytes: usize,
    reps: usize,
    empty_seconds: f64,
) -> Result<f64> {
    // A message of the one rank to each other rank is answered. One of both messages is empty.
    let (there, back) = if direction == Fan::Out { (bytes, 0) } else { (0, bytes) };
    let out = vec![1u8; if comm.rank() == one { there } else { back }];
    let mut rates = Vec::with_capacity(reps);
    for _ in 0..reps + 1 {
        comm.barrier()?;
        let mut seconds = [0.0];
        if comm.rank() == one {
            let mut into = vec![vec![1u8; back]; others.len()];
            let start = wtime();
            comm.overlapped(|pending| {
                for (into, &rank) in into.iter_mut().zip(others) {
                    pending.receive(into, rank, TAG)?;
                }
                others.iter().try_for_each(|&rank| pending.send(&out, rank, TAG).map(|_| ()))
            })?;
            seconds[0] = wtime() - start;
        } else if others.contains(&comm.rank()) {
            comm.receive(&mut vec![1u8; there], one, TAG)?;
            comm.send(&out, one, TAG)?;
        }
        comm.all_max(&mut seconds)?;
        rates.push((bytes * others.len()) as f64 / (seconds[0] - empty_seconds).max(f64::MIN_POSITIVE));
    }
    Ok(crate::stats::median(&rates[1..]))
}

/// Waits for the time `delay`. Sleeps if the time is long, because spinning takes a core from other ranks. Returns
/// the waited time in seconds.
fn wait(delay: Duration) -> f64 {
    const SPIN: Duration = Duration::from_micros(500);
    let start = Instant::now();
    if delay > 2 * SPIN {
        std::thread::sleep(delay - SPIN);
    }
    while start.elapsed() < delay {
        std::hint::spin_loop();
    }
    start.elapsed().as_secs_f64()
}

/// Round trips after trains of messages from `i` to `j`, for LogGP. Delayed trains are included if `delayed`. Both
/// ranks must call this function; only `i` gets times.
pub fn train(
    comm: &Comm,
    i: usize,
    j: usize,
    bytes: usize,
    messages: usize,
    reps: usize,
    delayed: bool,
) -> Result<Train> {
    let mut buffer = Pages::new(bytes);
    let buffer = buffer.bytes();
    let mut one = |n: usize, delay: Duration| -> Result<f64> {
        let mut times = Vec::with_capacity(reps);
        for _ in 0..reps + 1 {
            if comm.rank() == i {
                let (mut idle, wanted) = (0.0, delay.as_secs_f64() * (n - 1) as f64);
                let start = wtime();
                for k in 0..n {
                    comm.send(buffer, j, TAG)?;
                    if k + 1 < n && !delay.is_zero() {
                        idle += wait(delay);
                    }
                }
                comm.receive(buffer, j, TAG)?;
                times.push(wtime() - start - idle + wanted);
            } else {
                for _ in 0..n {
                    comm.receive(buffer, i, TAG)?;
                }
                comm.send(buffer, i, TAG)?;
            }
        }
        Ok(if comm.rank() == i { crate::stats::median(&times[1..]) } else { 0.0 })
    };
    let single_seconds = one(1, Duration::ZERO)?;
    let back_to_back_seconds = one(messages, Duration::ZERO)?;
    // The delay is longer than any gap, but not longer than necessary.
    let delay = Duration::from_secs_f64(if delayed { single_seconds.clamp(0.0, 1.0) } else { 0.0 });
    let delayed_seconds = if delayed { one(messages, delay)? } else { back_to_back_seconds };
    let delay_seconds = delay.as_secs_f64();
    Ok(Train { bytes, messages, single_seconds, back_to_back_seconds, delay_seconds, delayed_seconds })
}

/// The fastest empty round trip between two ranks in seconds, on every rank. The fastest is used, because
/// disturbances only make round trips slower. All ranks must call this function.
pub fn quickest_round_trip(comm: &Comm, i: usize, j: usize) -> Result<f64> {
    let mut quickest = [0.0];
    if [i, j].contains(&comm.rank()) {
        let trips = round_trips(comm, i, j, 0, 0, &StoppingRule::fixed(50))?;
        quickest[0] = trips.into_iter().fold(f64::INFINITY, f64::min);
    }
    comm.broadcast(&mut quickest, i)?;
    Ok(quickest[0])
}

/// Point-to-two experiments: `each` experiments for every rank if possible. Experiments without common ranks run at
/// the same time. Every rank gets all results. All ranks must call this function.
pub fn point_to_two(comm: &Comm, bytes: usize, each: usize, reps: usize) -> Result<Vec<PointToTwo>> {
    let rounds = rounds_of_triples(comm.size(), each);
    let mut mine = Vec::new();
    for round in &rounds {
        comm.barrier()?;
        let Some(triple) = round.iter().find(|t| t.from == comm.rank() || t.to.contains(&comm.rank())) else {
            continue;
        };
        let empty_seconds = triple_seconds(comm, triple, 0, reps)?;
        let loaded_seconds = triple_seconds(comm, triple, bytes, reps)?;
        if comm.rank() == triple.from {
            mine.push(PointToTwo { from: triple.from, to: triple.to, empty_seconds, loaded_seconds });
        }
    }
    let text = serde_json::to_vec(&mine).map_err(|e| crate::comm::CommError::Told(e.to_string()))?;
    let mut all = Vec::new();
    for part in comm.all_bytes(&text)? {
        let part: Vec<PointToTwo> =
            serde_json::from_slice(&part).map_err(|e| crate::comm::CommError::Told(e.to_string()))?;
        all.extend(part);
    }
    Ok(all)
}

fn triple_seconds(comm: &Comm, triple: &Triple, bytes: usize, reps: usize) -> Result<f64> {
    let mut times = Vec::with_capacity(reps);
    let mut buffer = Pages::new(bytes);
    let buffer = buffer.bytes();
    for _ in 0..reps + 2 {
        if comm.rank() == triple.from {
            let start = wtime();
            // Both messages are sent at the same time. Otherwise the measured time would include waiting for the
            // first message.
            comm.overlapped(|pending| {
                for to in triple.to {
                    pending.receive(&mut [], to, TAG)?;
                }
                for to in triple.to {
                    pending.send(buffer, to, TAG)?;
                }
                Ok(())
            })?;
            times.push(wtime() - start);
        } else {
            comm.receive(buffer, triple.from, TAG)?;
            comm.send(&[], triple.from, TAG)?;
        }
    }
    Ok(if times.is_empty() { 0.0 } else { crate::stats::median(&times[2..]) })
}
