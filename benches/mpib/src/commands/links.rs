//! `mpib links`: the bandwidth of each node and of its network cards under incast, outcast, and pairs.

use super::room::sizes_fit;
use super::{Failure, Output, TimingOptions, all_fit, at_least, bytes_not_zero, context, hosts};
use clap::{Args, ValueEnum};
use mpib::collectives::operation::Operation;
use mpib::comm::Comm;
use mpib::links::cards::{self, Card};
use mpib::links::{Messages, Node, Pattern, SHAPES, Shape, nodes, patterns};
use mpib::report::{Report, Row};
use mpib::stats::Summary;
use mpib::timing::Timer;

#[derive(Args)]
pub struct Options {
    /// Patterns to measure, separated by commas; default: all
    #[arg(long, value_enum, value_delimiter = ',')]
    patterns: Vec<ShapeName>,
    /// Bytes of a message, separated by commas; messages below 4 MiB are sent up to 64 times in each repetition
    #[arg(long, value_parser = bytes_not_zero, value_delimiter = ',', default_values_t = [64 << 10, 1 << 20])]
    sizes: Vec<usize>,
    /// Maximum number of nodes to measure; the other nodes also send and receive
    #[arg(long, default_value_t = 8)]
    nodes: usize,
    /// Consecutive ranks that count as a node; default: ranks with the same host name
    #[arg(long, value_name = "RANKS")]
    node_ranks: Option<usize>,
    #[command(flatten)]
    timing: TimingOptions,
    #[command(flatten)]
    output: Output,
}

/// The library's shapes with their names.
#[derive(Clone, Copy)]
struct ShapeName(Shape);

impl ValueEnum for ShapeName {
    fn value_variants<'a>() -> &'a [Self] {
        const { &[ShapeName(SHAPES[0]), ShapeName(SHAPES[1]), ShapeName(SHAPES[2]), ShapeName(SHAPES[3])] }
    }
    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// One pattern at one size.
struct Measured {
    pattern: Pattern,
    bytes: usize,
    messages: usize,
    seconds: Summary,
    /// Bytes per second of all messages together.
    rate: f64,
    /// Bytes of each card of the node in one repetition.
    cards: Vec<Card>,
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    options.output.check(comm, &[])?;
    let timing = options.timing.timing(comm.size())?;
    at_least(comm, 2, "a link")?;
    all_fit(&options.sizes, comm.size())?;
    if options.nodes == 0 {
        return Err(Failure::Input("--nodes is 0; it must be at least 1".into()));
    }
    if options.node_ranks.is_some_and(|n| n == 0 || n > comm.size()) {
        return Err(Failure::Input(format!("--node-ranks must be from 1 to {}, the number of ranks", comm.size())));
    }
    let hosts = hosts(comm)?;
    let nodes = nodes(&hosts, options.node_ranks);
    let mut shapes: Vec<Shape> = options.patterns.iter().map(|name| name.0).collect();
    if shapes.is_empty() {
        shapes = SHAPES.to_vec();
    }
    for pattern in (0..nodes.len().min(options.nodes)).flat_map(|at| patterns(&nodes, at, &shapes)) {
        let messages = Messages::new(pattern);
        sizes_fit(comm, &options.sizes, |size, rank| messages.bytes_of_rank(rank, size))?;
    }
    let title = format!("Links of {} node{} with {} ranks", nodes.len(), plural(nodes.len()), comm.size());
    let journal = options.output.journal(comm, title.clone(), timing.rule)?;
    let mut timer = Timer::new(comm)?;
    let mut rows = Vec::new();
    let mut all: Vec<Measured> = Vec::new();
    for (at, node) in nodes.iter().enumerate().take(options.nodes) {
        for (pattern, &bytes) in
            patterns(&nodes, at, &shapes).iter().flat_map(|p| options.sizes.iter().map(move |s| (p, s)))
        {
            let mut operation = Messages::new(pattern.clone());
            let before = cards::read();
            let seconds = timer.measure(&mut operation, bytes, &timing)?;
            let mut cards = cards::between(&before, &cards::read());
            for card in &mut cards {
                // Each rank has run equally often. The clocks and the isolation add a few bytes.
                card.sent_bytes /= operation.runs().max(1);
                card.received_bytes /= operation.runs().max(1);
            }
            let mut wrong = [f64::from(u8::from(!operation.is_right(comm)))];
            comm.all_max(&mut wrong)?;
            if wrong[0] != 0.0 {
                return Err(Failure::Output(format!("{}: wrong bytes arrived", operation.name())));
            }
            let cards = of_rank(comm, node.ranks[0], &cards)?;
            let row = Row::new(operation.name(), bytes, seconds.clone(), &timing.rule);
            journal.add(&row);
            rows.push(row);
            let rate = operation.bytes_of_a_run(bytes) as f64 / seconds.value(timing.rule.estimate);
            let (pattern, messages) = (pattern.clone(), operation.messages(bytes));
            all.push(Measured { pattern, bytes, messages, seconds, rate, cards });
        }
    }
    let report = Report {
        title,
        context: context(comm, Some(timer.clock()), &[])?,
        rule: timing.rule,
        rows,
        notes: notes(&all, &nodes, options.nodes),
        found: found(&all, timing.rule.estimate),
        ..Report::default()
    };
    journal.end();
    options.output.write(comm, &report)
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The cards that one rank has read, on every rank.
fn of_rank(comm: &Comm, rank: usize, cards: &[Card]) -> Result<Vec<Card>, Failure> {
    let text = serde_json::to_vec(cards).unwrap_or_default();
    let all = comm.all_bytes(if comm.rank() == rank { &text } else { &[] })?;
    Ok(serde_json::from_slice(&all[rank]).unwrap_or_default())
}

fn megabytes(bytes_per_second: f64) -> String {
    format!("{:.1} MB/s", bytes_per_second / 1e6)
}

/// One sentence for each pattern at each size, with the cards that carried at least a tenth of the bytes of a message
/// of each sender. If there are several nodes, the sentences of [`slowest`] follow.
fn notes(all: &[Measured], nodes: &[Node], measured: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for at in all {
        let seconds = at.seconds.median.max(f64::MIN_POSITIVE);
        let carried =
            |card: &&Card| 10.0 * card.sent_bytes.max(card.received_bytes) as f64 >= (at.bytes * at.messages) as f64;
        let cards = at.cards.iter().filter(carried).map(|card| {
            let rate = |bytes: u64| megabytes(bytes as f64 / seconds);
            format!("; card {}: {} out, {} in", card.name, rate(card.sent_bytes), rate(card.received_bytes))
        });
        lines.push(format!(
            "{}, {} bytes: {}{}",
            at.pattern.name(),
            at.bytes,
            megabytes(at.rate),
            cards.collect::<String>()
        ));
    }
    if nodes.len() > 1 {
        lines.extend(slowest(all));
    } else {
        lines.push("all ranks are on one node: these are rates of its memory, not of a network card".into());
    }
    if nodes.len() > measured {
        lines.push(format!("measured: the first {measured} of {} nodes (--nodes)", nodes.len()));
    }
    lines
}

/// The slowest and the fastest node of each shape, width and size that several nodes have.
fn slowest(all: &[Measured]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut seen = Vec::new();
    for at in all {
        let key = (at.pattern.shape, at.pattern.width, at.bytes);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let same = |m: &&Measured| (m.pattern.shape, m.pattern.width, m.bytes) == key;
        let slow = all.iter().filter(same).min_by(|a, b| a.rate.total_cmp(&b.rate));
        let fast = all.iter().filter(same).max_by(|a, b| a.rate.total_cmp(&b.rate));
        let (Some(slow), Some(fast)) = (slow, fast) else { continue };
        if slow.pattern.node != fast.pattern.node {
            lines.push(format!(
                "slowest node at {} of {} and {} bytes: {} with {}; fastest: {} with {}",
                at.pattern.shape.name(),
                at.pattern.width,
                at.bytes,
                slow.pattern.node,
                megabytes(slow.rate),
                fast.pattern.node,
                megabytes(fast.rate)
            ));
        }
    }
    lines
}

fn found(all: &[Measured], estimate: mpib::stats::Estimate) -> serde_json::Value {
    let one = |at: &Measured| {
        let total = at.rate * at.seconds.value(estimate);
        let interval = at.seconds.interval(estimate).map(|i| [total / i.high, total / i.low]);
        serde_json::json!({
            "pattern": at.pattern.shape.name(),
            "node": at.pattern.node,
            "width": at.pattern.width,
            "message_bytes": at.bytes,
            "messages_of_each_sender": at.messages,
            "bytes_per_second": at.rate,
            "interval_bytes_per_second": interval,
            "card_bytes_of_a_repetition": at.cards,
        })
    };
    all.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(node: &str, rate: f64, cards: Vec<Card>) -> Measured {
        let pattern = Pattern { shape: Shape::Incast, node: node.into(), width: 2, edges: Vec::new() };
        Measured { pattern, bytes: 1000, messages: 10, seconds: Summary::of(&[0.001], 0.95), rate, cards }
    }

    fn node(name: &str) -> Node {
        Node { name: name.into(), ranks: vec![0] }
    }

    #[test]
    fn a_card_that_carried_the_messages_is_named_with_its_rate() {
        let card = |name: &str, received_bytes| Card { name: name.into(), sent_bytes: 100, received_bytes };
        let all = [measured("a", 20e6, vec![card("eth0", 21_000), card("eth1", 900)]), measured("b", 10e6, vec![])];
        let lines = notes(&all, &[node("a"), node("b")], 8);
        assert_eq!(lines[0], "incast/a, 2 ranks, 1000 bytes: 20.0 MB/s; card eth0: 0.1 MB/s out, 21.0 MB/s in");
        assert_eq!(lines[1], "incast/b, 2 ranks, 1000 bytes: 10.0 MB/s");
        assert_eq!(lines[2], "slowest node at incast of 2 and 1000 bytes: b with 10.0 MB/s; fastest: a with 20.0 MB/s");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_single_node_and_left_out_nodes_are_said() {
        let lines = notes(&[measured("a", 1e6, vec![])], &[node("a")], 8);
        assert!(lines[1].contains("all ranks are on one node"), "{lines:?}");
        let lines = notes(&[measured("a", 1e6, vec![])], &[node("a"), node("b")], 1);
        assert!(lines[1].contains("the first 1 of 2 nodes"), "{lines:?}");
    }
}
