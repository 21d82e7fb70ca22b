//! What the network card of a node carries while several ranks of a node communicate: incast (many senders, one
//! receiver: a checkpoint), outcast (one sender, many receivers: a restart), and pairs of ranks of two nodes, in one
//! direction and in both directions at once.
//!
//! Each pattern is a list of messages, and all messages of a pattern are in flight at the same time.

pub mod cards;

use crate::collectives::Result;
use crate::collectives::operation::{Flow, Operation};
use crate::comm::Comm;
use crate::paths::noise;

const TAG: u16 = 600;

/// Bytes that a rank sends to another rank in one repetition, if the messages are shorter. The latency of the first
/// message is then a small part of the time.
const TRAIN_BYTES: usize = 4 << 20;
/// Maximum number of messages from one rank to another rank in one repetition.
const TRAIN_MESSAGES: usize = 64;
/// Maximum bytes of all receive buffers of a rank, unless one message of each sender needs more.
const BUFFERS_BYTES: usize = 256 << 20;

/// A node, with its ranks in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name of the host, or the first and last rank.
    pub name: String,
    /// The ranks.
    pub ranks: Vec<usize>,
}

/// The nodes of the ranks. If `node_ranks` is given, each `node_ranks` consecutive ranks are one node. Otherwise, the
/// ranks with the same host are one node.
pub fn nodes(hosts: &[String], node_ranks: Option<usize>) -> Vec<Node> {
    let mut found: Vec<Node> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        let name = match node_ranks {
            Some(n) => format!("ranks-{}-{}", rank / n * n, ((rank / n + 1) * n).min(hosts.len()) - 1),
            None => host.clone(),
        };
        match found.iter_mut().find(|node| node.name == name) {
            Some(node) => node.ranks.push(rank),
            None => found.push(Node { name, ranks: vec![rank] }),
        }
    }
    found
}

/// A sender and a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
}

/// The kind of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Ranks of other nodes send to the first rank of the node.
    Incast,
    /// The first rank of the node sends to ranks of other nodes.
    Outcast,
    /// Each rank of the node sends to one rank of the next node.
    Pairs,
    /// Each rank of the node and one rank of the next node send to each other.
    PairsBothWays,
}

/// All shapes.
pub const SHAPES: [Shape; 4] = [Shape::Incast, Shape::Outcast, Shape::Pairs, Shape::PairsBothWays];

impl Shape {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Incast => "incast",
            Self::Outcast => "outcast",
            Self::Pairs => "pairs",
            Self::PairsBothWays => "pairs-both-ways",
        }
    }
}

/// Messages that are in flight at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The kind.
    pub shape: Shape,
    /// The node whose link is measured.
    pub node: String,
    /// Number of senders, receivers or pairs.
    pub width: usize,
    /// Sender and receiver of each message.
    pub edges: Vec<Edge>,
}

impl Pattern {
    /// For example `incast/node3, 4 ranks`.
    pub fn name(&self) -> String {
        let what = if matches!(self.shape, Shape::Incast | Shape::Outcast) { "rank" } else { "pair" };
        let s = if self.width == 1 { "" } else { "s" };
        format!("{}/{}, {} {what}{s}", self.shape.name(), self.node, self.width)
    }
}

/// The patterns of a node, with 1, 2, 4 ... and finally all senders, receivers or pairs. With one node, the ranks of
/// this node communicate with each other.
pub fn patterns(nodes: &[Node], at: usize, shapes: &[Shape]) -> Vec<Pattern> {
    let node = &nodes[at];
    let mut found = Vec::new();
    for &shape in shapes {
        let most = edges_of(nodes, at, shape);
        let mut widths: Vec<usize> =
            std::iter::successors(Some(1usize), |w| w.checked_mul(2)).take_while(|&w| w < most.len()).collect();
        widths.extend((!most.is_empty()).then_some(most.len()));
        for width in widths {
            let some = most[..width].iter().copied();
            let edges = match shape {
                Shape::PairsBothWays => some.flat_map(|e| [e, Edge { from: e.to, to: e.from }]).collect(),
                _ => some.collect(),
            };
            found.push(Pattern { shape, node: node.name.clone(), width, edges });
        }
    }
    found
}

/// The edges of the widest pattern. For pairs in both directions, only the edges of one direction.
fn edges_of(nodes: &[Node], at: usize, shape: Shape) -> Vec<Edge> {
    let node = &nodes[at];
    let single = nodes.len() == 1;
    match shape {
        Shape::Incast | Shape::Outcast => {
            let first = node.ranks[0];
            // Take one rank of each node in turn, so that a small width already has senders on several nodes.
            let longest = nodes.iter().map(|n| n.ranks.len()).max().unwrap_or(0);
            let far = (1..nodes.len()).map(|i| &nodes[(at + i) % nodes.len()]).collect::<Vec<_>>();
            let others: Vec<usize> = if single {
                node.ranks[1..].to_vec()
            } else {
                (0..longest).flat_map(|i| far.iter().filter_map(move |n| n.ranks.get(i).copied())).collect()
            };
            let edge = |other| match shape {
                Shape::Incast => Edge { from: other, to: first },
                _ => Edge { from: first, to: other },
            };
            others.into_iter().map(edge).collect()
        }
        Shape::Pairs | Shape::PairsBothWays if single => {
            let (left, right) = node.ranks.split_at(node.ranks.len() / 2);
            left.iter().zip(right).map(|(&from, &to)| Edge { from, to }).collect()
        }
        Shape::Pairs | Shape::PairsBothWays => {
            let next = &nodes[(at + 1) % nodes.len()];
            node.ranks.iter().zip(&next.ranks).map(|(&from, &to)| Edge { from, to }).collect()
        }
    }
}

/// A pattern as an operation. A block is one message. Short messages are sent several times in a repetition.
pub struct Messages {
    pattern: Pattern,
    out: Vec<u8>,
    into: Vec<Vec<u8>>,
    bytes: usize,
    count: usize,
    runs: u64,
}

impl Messages {
    /// The operation of a pattern.
    pub fn new(pattern: Pattern) -> Self {
        Self { pattern, out: Vec::new(), into: Vec::new(), bytes: 0, count: 0, runs: 0 }
    }

    /// The number of messages from one rank to another rank in one repetition, for messages of `bytes`.
    pub fn messages(&self, bytes: usize) -> usize {
        let senders = self.pattern.width.max(1);
        let room = TRAIN_BYTES.min(BUFFERS_BYTES / senders);
        room.checked_div(bytes).unwrap_or(TRAIN_MESSAGES).clamp(1, TRAIN_MESSAGES)
    }

    /// Bytes of all messages of one repetition.
    pub fn bytes_of_a_run(&self, bytes: usize) -> usize {
        self.pattern.edges.len() * self.messages(bytes) * bytes
    }

    /// Bytes of all buffers of a rank, for messages of `bytes`. The check compares each message with a copy.
    pub fn bytes_of_rank(&self, rank: usize, bytes: usize) -> usize {
        let senders = self.senders(rank).count();
        let sends = self.pattern.edges.iter().any(|edge| edge.from == rank);
        let copies = usize::from(sends) + usize::from(senders > 0);
        bytes.saturating_mul(senders * self.messages(bytes) + copies)
    }

    /// The number of repetitions since the operation was prepared, including the warm-up.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    fn senders(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        self.pattern.edges.iter().filter(move |e| e.to == rank).map(|e| e.from)
    }
}

impl Operation for Messages {
    fn name(&self) -> String {
        self.pattern.name()
    }

    fn flow(&self) -> Flow {
        match (self.pattern.shape, self.pattern.edges.first()) {
            (Shape::Incast, Some(edge)) => Flow::To(edge.to),
            (Shape::Outcast, Some(edge)) => Flow::From(edge.from),
            _ => Flow::Symmetric,
        }
    }

    fn prepare(&mut self, comm: &Comm, block_bytes: usize) -> Result<()> {
        (self.bytes, self.count, self.runs) = (block_bytes, self.messages(block_bytes), 0);
        let sends = self.pattern.edges.iter().any(|e| e.from == comm.rank());
        self.out = if sends { noise(comm.rank(), block_bytes) } else { Vec::new() };
        let senders = self.senders(comm.rank()).count();
        self.into = vec![vec![0; block_bytes * self.count]; senders];
        Ok(())
    }

    fn run(&mut self, comm: &Comm) -> Result<()> {
        self.runs += 1;
        let (me, count, bytes) = (comm.rank(), self.count, self.bytes);
        let senders: Vec<usize> = self.senders(me).collect();
        let Self { pattern, out, into, .. } = self;
        let out = &*out;
        comm.overlapped(|pending| {
            let mut rests: Vec<(usize, &mut [u8])> =
                senders.into_iter().zip(into.iter_mut().map(Vec::as_mut_slice)).collect();
            for _ in 0..count {
                for (from, rest) in &mut rests {
                    let place = std::mem::take(rest);
                    let (slot, after) = place.split_at_mut(bytes.min(place.len()));
                    *rest = after;
                    pending.receive(slot, *from, TAG)?;
                }
            }
            for _ in 0..count {
                for edge in pattern.edges.iter().filter(|e| e.from == me) {
                    pending.send(out, edge.to, TAG)?;
                }
            }
            Ok(())
        })
    }

    fn is_right(&self, comm: &Comm) -> bool {
        self.senders(comm.rank()).zip(&self.into).all(|(from, all)| {
            let expected = noise(from, self.bytes);
            self.bytes == 0 || all.chunks(self.bytes).all(|message| message == expected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &str) -> Vec<String> {
        names.split(' ').map(String::from).collect()
    }

    fn pairs(pattern: &Pattern) -> Vec<[usize; 2]> {
        pattern.edges.iter().map(|e| [e.from, e.to]).collect()
    }

    #[test]
    fn ranks_of_one_host_are_one_node_in_any_order() {
        let found = nodes(&hosts("a b a c b"), None);
        let ranks: Vec<_> = found.iter().map(|n| (n.name.as_str(), n.ranks.clone())).collect();
        assert_eq!(ranks, [("a", vec![0, 2]), ("b", vec![1, 4]), ("c", vec![3])]);
        let cut = nodes(&hosts("a a a a a"), Some(2));
        assert_eq!(cut.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["ranks-0-1", "ranks-2-3", "ranks-4-4"]);
    }

    #[test]
    fn an_incast_has_senders_of_all_other_nodes_and_doubles_them() {
        let nodes = nodes(&hosts("a a b b c c"), None);
        let found = patterns(&nodes, 1, &[Shape::Incast]);
        assert_eq!(found.iter().map(|p| p.width).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(pairs(&found[2]), [[4, 2], [0, 2], [5, 2], [1, 2]]);
        assert_eq!(found[1].name(), "incast/b, 2 ranks");
        let back = patterns(&nodes, 1, &[Shape::Outcast]);
        assert_eq!(pairs(&back[1]), [[2, 4], [2, 0]]);
    }

    #[test]
    fn pairs_join_a_node_with_the_next_and_both_ways_have_both_directions() {
        let nodes = nodes(&hosts("a a a b b"), None);
        let one_way = patterns(&nodes, 0, &[Shape::Pairs]);
        assert_eq!(pairs(&one_way[1]), [[0, 3], [1, 4]]);
        let both = patterns(&nodes, 1, &[Shape::PairsBothWays]);
        assert_eq!(pairs(&both[0]), [[3, 0], [0, 3]]);
        assert_eq!(both[1].name(), "pairs-both-ways/b, 2 pairs");
    }

    #[test]
    fn the_ranks_of_a_single_node_communicate_with_each_other() {
        let nodes = nodes(&hosts("a a a a a"), None);
        assert_eq!(pairs(&patterns(&nodes, 0, &[Shape::Incast])[2]), [[1, 0], [2, 0], [3, 0], [4, 0]]);
        assert_eq!(pairs(&patterns(&nodes, 0, &[Shape::Pairs])[1]), [[0, 2], [1, 3]]);
    }

    #[test]
    fn buffers_of_a_receiver_are_bounded() {
        let edges = |n: usize| (1..=n).map(|from| Edge { from, to: 0 }).collect();
        let incast = |n| Messages::new(Pattern { shape: Shape::Incast, node: "a".into(), width: n, edges: edges(n) });
        assert_eq!((incast(4).messages(1 << 20), incast(4).messages(8), incast(4).messages(0)), (4, 64, 64));
        assert_eq!((incast(4).messages(1 << 30), incast(1000).messages(1 << 16)), (1, 4));
        assert_eq!(incast(4).bytes_of_a_run(1 << 20), 16 << 20);
        // Four messages of each of four senders, and a copy for the check; a sender has one message.
        let (receiver, sender) = (incast(4).bytes_of_rank(0, 1 << 20), incast(4).bytes_of_rank(3, 1 << 20));
        assert_eq!((receiver, sender, incast(4).bytes_of_rank(7, 1 << 20)), (17 << 20, 1 << 20, 0));
    }
}
