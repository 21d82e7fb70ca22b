//! `mpib p2p`: measures round trips between all n (n-1) / 2 pairs of ranks, with error bars.

use super::room::sizes_fit;
use super::{Failure, Output, Repetitions, all_fit, at_least, bytes, context, hosts};
use clap::{Args, ValueEnum};
use mpib::comm::Comm;
use mpib::p2p::{Order, Stream, all_pairs};
use mpib::report::{Report, Row, people};
use mpib::stats::StoppingRule;

#[derive(Args)]
pub struct Options {
    /// Bytes of the message, separated by commas
    #[arg(long, value_parser = bytes, value_delimiter = ',', default_values_t = [0, 1024, 65536, 1 << 20])]
    sizes: Vec<usize>,
    /// Bytes of the answer; default: the bytes of the message
    #[arg(long, value_parser = bytes)]
    back: Option<usize>,
    /// Measure pairs one after the other, or as many disjoint pairs as possible at the same time
    #[arg(long, value_enum, default_value_t = OrderName::Parallel)]
    order: OrderName,
    /// Also measure the bandwidth of a stream of messages between ranks 0 and 1
    #[arg(long)]
    stream: bool,
    #[command(flatten)]
    repetitions: Repetitions,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum OrderName {
    Sequential,
    Parallel,
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    options.output.check(comm, &[])?;
    let rule = options.repetitions.rule()?;
    at_least(comm, 2, "a round trip")?;
    let back: Vec<usize> = options.back.iter().copied().collect();
    all_fit(&options.sizes, 2)?;
    all_fit(&back, 2)?;
    // A rank has a message in each direction, or the sender or the receiver of a stream has up to two messages.
    sizes_fit(comm, &options.sizes, |size, _| size.saturating_add(options.back.unwrap_or(size).max(size)))?;
    let order = match options.order {
        OrderName::Sequential => Order::Sequential,
        OrderName::Parallel => Order::Parallel,
    };
    let n = comm.size();
    let title = format!("Round trips between all pairs of {n} ranks");
    let journal = options.output.journal(comm, title.clone(), rule)?;
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    for &size in &options.sizes {
        let pairs = all_pairs(comm, order, size, options.back.unwrap_or(size), &rule)?;
        let index = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        for ((i, j), summary) in index.zip(pairs.values) {
            let row = Row::new(format!("round-trip/{i}-{j}"), size, summary, &rule);
            journal.add(&row);
            rows.push(row);
        }
    }
    if options.stream {
        let hosts = hosts(comm)?;
        for &size in options.sizes.iter().filter(|&&s| s > 0) {
            let messages = (64usize << 20).div_ceil(size).clamp(64, 4096);
            let mut times = Vec::new();
            let mut stream = Stream::new(comm, 0, 1, size, hosts[0] == hosts[1]);
            for _ in 0..7 {
                comm.barrier()?;
                let mut seconds = [stream.seconds(comm, messages)?];
                comm.broadcast(&mut seconds, 0)?;
                times.push(seconds[0] / messages as f64);
            }
            let fixed = StoppingRule { confidence: rule.confidence, ..StoppingRule::fixed(times.len() - 1) };
            let seconds = fixed.summary(&times[1..]);
            notes.push(format!(
                "stream 0-1, {size} bytes: {} a message, {:.1} MB/s",
                people(seconds.median),
                size as f64 / seconds.median / 1e6
            ));
            rows.push(Row::new("stream/0-1", size, seconds, &StoppingRule { estimate: rule.estimate, ..fixed }));
        }
    }
    let report = Report { title, context: context(comm, None, &[])?, rule, rows, notes, ..Report::default() };
    journal.end();
    options.output.write(comm, &report)
}
