//! `mpib model`: fits the models' parameters from round trips, trains and point-to-two experiments, and compares
//! their predictions of a linear scatter with measured times.

use super::room::sizes_fit;
use super::{Failure, Output, Repetitions, all_fit, at_least, bytes_not_zero, context, rate};
use clap::Args;
use mpib::collectives::operation::{Collective, Kind, Setting};
use mpib::comm::Comm;
use mpib::models::{Hockney, Lmo, LogGp, PairMatrix};
use mpib::p2p::{Order, all_pairs, point_to_two, train};
use mpib::report::{Report, Row, people};
use mpib::timing::{Timer, Timing};

#[derive(Args)]
pub struct Options {
    /// Message sizes in addition to the empty message, separated by commas; the LMO model uses the largest size
    #[arg(long, value_parser = bytes_not_zero, value_delimiter = ',', default_values_t = [4096, 262_144, 1 << 20])]
    sizes: Vec<usize>,
    /// Number of messages in a train, for LogGP
    #[arg(long, default_value_t = 8)]
    train: usize,
    /// The two ranks of the trains, for LogGP
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1], value_name = "RANK,RANK")]
    pair: Vec<usize>,
    /// Number of point-to-two experiments of each rank, for LMO
    #[arg(long, default_value_t = 3)]
    triples: usize,
    #[command(flatten)]
    repetitions: Repetitions,
    #[command(flatten)]
    output: Output,
}

/// Number of point-to-two experiments of each kind. The median is used.
const TRIPLES: usize = 11;
/// Number of trains of each kind. The median is used.
const TRAINS: usize = 21;

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    options.output.check(comm, &[])?;
    let rule = options.repetitions.rule()?;
    at_least(comm, 2, "a model of messages")?;
    all_fit(&options.sizes, comm.size())?;
    // The linear scatter needs the most memory.
    let bytes_of = |size: usize, rank| Kind::Scatter.bytes_of_rank(size, comm.size(), rank, false);
    sizes_fit(comm, &options.sizes, bytes_of)?;
    if !(2..=1024).contains(&options.train) {
        return Err(Failure::Input(format!("--train is {}; it must be 2 to 1024", options.train)));
    }
    let n = comm.size();
    let &[first, second] = &options.pair[..] else {
        return Err(Failure::Input(format!("--pair is {:?}; it must be two ranks, as in 0,1", options.pair)));
    };
    if first == second || first.max(second) >= n {
        return Err(Failure::Input(format!("--pair is {first},{second}; it must be two different ranks out of {n}")));
    }
    let mut sizes = options.sizes.clone();
    sizes.push(0);
    sizes.sort_unstable();
    sizes.dedup();
    let largest = sizes.last().copied().unwrap_or(1);
    let title = format!("Models of {n} ranks");
    let journal = options.output.journal(comm, title.clone(), rule)?;
    let mut rows: Vec<Row> = Vec::new();
    // The answer is empty, so its time is half of an empty round trip. The rest of a round trip is the one-way time
    // of the message.
    let mut trips = Vec::new();
    for &size in &sizes {
        let found = all_pairs(comm, Order::Parallel, size, 0, &rule)?;
        let index = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        let from = rows.len();
        rows.extend(
            index
                .zip(&found.values)
                .map(|((i, j), summary)| Row::new(format!("one-way/{i}-{j}"), size, summary.clone(), &rule)),
        );
        rows[from..].iter().for_each(|row| journal.add(row));
        trips.push(PairMatrix::new(n, |i, j| found.get(i, j).value(rule.estimate)));
    }
    let pairs = PairMatrix::new(n, |i, j| {
        let empty = *trips[0].get(i, j) / 2.0;
        let way =
            |(&size, times): (&usize, &PairMatrix<f64>)| (size, (*times.get(i, j) - empty).max(f64::MIN_POSITIVE));
        Hockney::from_ends(&sizes.iter().zip(&trips).map(way).collect::<Vec<_>>())
    });
    let mean = Hockney::mean_of(&pairs);
    let lmo = if n >= 3 {
        let twos = point_to_two(comm, largest, options.triples.max(1), rule.max_reps.min(TRIPLES))?;
        let (empty, loaded) = (&trips[0], &trips[trips.len() - 1]);
        let per_byte = PairMatrix::new(n, |i, j| pairs.get(i, j).seconds_per_byte);
        Some(Lmo::fit(largest, empty, loaded, &per_byte, &twos))
    } else {
        None
    };
    let mut trains = Vec::new();
    // Trains of one byte, and of all larger sizes.
    let mut lengths = vec![1];
    lengths.extend(sizes.iter().copied().filter(|&s| s > 1));
    let reps = rule.max_reps.min(TRAINS);
    for bytes in lengths {
        let (mut mine, messages) = ([0.0; 4], options.train);
        if [first, second].contains(&comm.rank()) {
            let t = train(comm, first, second, bytes, messages, reps, bytes == 1)?;
            mine = [t.single_seconds, t.back_to_back_seconds, t.delay_seconds, t.delayed_seconds];
        }
        comm.broadcast(&mut mine, first)?;
        let [single_seconds, back_to_back_seconds, delay_seconds, delayed_seconds] = mine;
        trains.push(mpib::models::Train {
            bytes,
            messages,
            single_seconds,
            back_to_back_seconds,
            delay_seconds,
            delayed_seconds,
        });
    }
    let loggp = LogGp::fit(&trains);
    let mut timer = Timer::new(comm)?;
    // In Hockney's model the blocks follow each other. In LMO the blocks overlap, except for the root's part.
    let mut scatter = |name: &str| -> Result<mpib::stats::Summary, Failure> {
        let mut linear = Collective::new(Kind::Scatter, name, &Setting::default(), n).map_err(Failure::input)?;
        Ok(timer.measure(&mut linear, largest, &Timing { rule, ..Timing::default() })?)
    };
    let (in_turn, at_once) = (scatter("linear")?, scatter("linear-nonblocking")?);
    let mut notes = vec![
        format!(
            "Hockney, mean of all pairs: latency {}, {}",
            people(mean.latency_seconds),
            rate(1.0 / mean.seconds_per_byte)
        ),
        format!(
            "LogGP, ranks {first} and {second}: L {}, o {}, g {}, G {:.4} ns/B",
            people(loggp.latency_seconds),
            people(loggp.overhead_seconds),
            people(loggp.gap_seconds),
            loggp.seconds_per_byte * 1e9
        ),
    ];
    for (i, j) in (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).take(64) {
        let h = pairs.get(i, j);
        notes.push(format!(
            "Hockney {i}-{j}: latency {}, {}",
            people(h.latency_seconds),
            rate(1.0 / h.seconds_per_byte)
        ));
    }
    if let Some(lmo) = &lmo {
        let ranks = lmo.processing_seconds.iter().zip(&lmo.processing_seconds_per_byte).enumerate();
        notes.extend(ranks.map(|(i, (c, t))| format!("LMO rank {i}: C {}, t {:.4} ns/B", people(*c), t * 1e9)));
    }
    notes.push(format!(
        "linear scatter of {largest} bytes: measured {}, Hockney {}",
        people(in_turn.value(rule.estimate)),
        people(mean.linear_scatter_seconds(n, largest)),
    ));
    if let Some(lmo) = &lmo {
        notes.push(format!(
            "linear scatter with all messages in flight: measured {}, LMO {}",
            people(at_once.value(rule.estimate)),
            people(lmo.linear_scatter_seconds(0, largest))
        ));
    }
    for (name, seconds) in [("linear", in_turn), ("linear-nonblocking", at_once)] {
        rows.push(Row::new(format!("scatter/{name}"), largest, seconds, &rule));
    }
    let report = Report {
        title,
        context: context(comm, Some(timer.clock()), &[])?,
        rule,
        rows,
        notes,
        found: serde_json::json!({ "hockney": mean, "hockney_pairs": pairs, "loggp": loggp, "lmo": lmo, "trains": trains }),
        ..Report::default()
    };
    journal.end();
    options.output.write(comm, &report)
}
