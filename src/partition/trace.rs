//! Recorded calls and returns of partitions, as a text.
//!
//! The text is UTF-8. Each line is one record, and spaces separate the words of a line:
//!
//! ```text
//! mcr-partitions 1          the first line: the kind of the file, and its version
//! partition BYTES           a partition of BYTES bytes. The first partition has number 0. Partitions precede calls
//! call PARTITION [CHAIN]    a call of a partition. Each thread of the program has a chain. CHAIN is 0 by default
//! return [CHAIN]            the return from the last call of the chain
//! # TEXT                    a comment; empty lines are ignored too
//! ```

use super::error::PartitionError;
use super::ids::{ChainId, PartitionId};
use super::list::{PARTITIONS_MAX, PartitionList};
use super::manager::CHAINS_MAX;
use super::stack::DEPTH_MAX;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

/// Maximum number of calls and returns of a trace.
pub const EVENTS_MAX: usize = 1 << 24;

const FIRST_LINE: &str = "mcr-partitions 1";

/// A call or a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The running partition of a chain calls a partition.
    Call {
        /// The chain.
        chain: ChainId,
        /// The called partition.
        partition: PartitionId,
    },
    /// The running partition of a chain returns to its caller.
    Return {
        /// The chain.
        chain: ChainId,
    },
}

/// Partitions, and calls and returns of these partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    partitions: PartitionList,
    events: Vec<TraceEvent>,
}

/// Why a trace is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The first line is missing.
    #[error("the first line is not {FIRST_LINE:?}")]
    NoTrace,
    /// A line cannot be read.
    #[error("line {line}: {text:?} is not a record of a trace")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The line, shortened to 80 characters.
        text: String,
    },
    /// An event is not possible, such as a return without a call.
    #[error("event {event}: {source}")]
    Event {
        /// The number of the event, from 1.
        event: usize,
        /// The cause.
        source: PartitionError,
    },
    /// There are too many partitions or events.
    #[error(transparent)]
    TooMany(#[from] PartitionError),
}

impl Trace {
    /// A trace of these events. Each partition must be in the list, and each return needs a call.
    pub fn new(partitions: PartitionList, events: Vec<TraceEvent>) -> Result<Self, TraceError> {
        let check = |what, found: usize, most: usize| match found > most {
            true => Err(PartitionError::TooMany { what, found: found as u64, most: most as u64 }),
            false => Ok(()),
        };
        check("events", events.len(), EVENTS_MAX)?;
        let mut depths: HashMap<ChainId, usize> = HashMap::new();
        let mut apply = |event: &TraceEvent| match *event {
            TraceEvent::Call { chain, partition } => {
                partitions.get(partition)?;
                let depth = depths.entry(chain).or_default();
                *depth += 1;
                check("calls that have not returned", *depth, DEPTH_MAX)?;
                check("chains", depths.len(), CHAINS_MAX)
            }
            TraceEvent::Return { chain } => match depths.get_mut(&chain) {
                Some(depth) if *depth > 0 => {
                    *depth -= 1;
                    Ok(())
                }
                _ => Err(PartitionError::NothingToReturn(chain)),
            },
        };
        for (event, of) in (1..).zip(&events) {
            apply(of).map_err(|source| TraceError::Event { event, source })?;
        }
        Ok(Self { partitions, events })
    }

    /// Reads the text of a trace.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut lines = (1..).zip(text.lines());
        if lines.next().map(|(_, line)| line.trim_end()) != Some(FIRST_LINE) {
            return Err(TraceError::NoTrace);
        }
        let (mut lengths, mut events) = (Vec::new(), Vec::new());
        for (line, record) in lines {
            let words: Vec<&str> = record.split_whitespace().take(4).collect();
            let number = |word: &str| word.parse::<u32>().ok();
            let event = match words.as_slice() {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                ["partition", bytes] if events.is_empty() && lengths.len() < PARTITIONS_MAX => {
                    lengths.extend(bytes.parse::<u64>().ok());
                    bytes.parse::<u64>().ok().map(|_| None)
                }
                ["call", partition] => number(partition).map(|n| Some((ChainId(0), Some(PartitionId(n))))),
                ["call", partition, chain] => {
                    let both = number(chain).zip(number(partition));
                    both.map(|(chain, n)| Some((ChainId(chain), Some(PartitionId(n)))))
                }
                ["return"] => Some(Some((ChainId(0), None))),
                ["return", chain] => number(chain).map(|chain| Some((ChainId(chain), None))),
                _ => None,
            };
            match event {
                None => return Err(TraceError::Line { line, text: record.chars().take(80).collect() }),
                Some(None) => {}
                Some(Some((chain, Some(partition)))) => events.push(TraceEvent::Call { chain, partition }),
                Some(Some((chain, None))) => events.push(TraceEvent::Return { chain }),
            }
        }
        Self::new(PartitionList::of_lengths(lengths)?, events)
    }

    /// The partitions.
    pub fn partitions(&self) -> &PartitionList {
        &self.partitions
    }

    /// The calls and returns.
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// The partitions in the order of their uses: each called partition, and each partition to which a call returns.
    /// [`super::LookAhead`] needs the partitions in this order.
    pub fn uses(&self) -> Vec<PartitionId> {
        let mut stacks: HashMap<ChainId, Vec<PartitionId>> = HashMap::new();
        let used = |event: &TraceEvent| match *event {
            TraceEvent::Call { chain, partition } => {
                stacks.entry(chain).or_default().push(partition);
                Some(partition)
            }
            TraceEvent::Return { chain } => {
                let stack = stacks.entry(chain).or_default();
                stack.pop();
                stack.last().copied()
            }
        };
        self.events.iter().filter_map(used).collect()
    }
}

/// Writes a trace while a program runs. The writer keeps nothing in memory, so the output should be buffered.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the first line and the lengths of the partitions.
    pub fn new(mut out: W, partitions: &PartitionList) -> std::io::Result<Self> {
        writeln!(out, "{FIRST_LINE}")?;
        for (_, partition) in partitions.iter() {
            writeln!(out, "partition {}", partition.bytes)?;
        }
        Ok(Self { out })
    }

    /// Writes a call or a return.
    pub fn write(&mut self, event: TraceEvent) -> std::io::Result<()> {
        match event {
            TraceEvent::Call { chain: ChainId(0), partition } => writeln!(self.out, "call {partition}"),
            TraceEvent::Call { chain, partition } => writeln!(self.out, "call {partition} {chain}"),
            TraceEvent::Return { chain: ChainId(0) } => writeln!(self.out, "return"),
            TraceEvent::Return { chain } => writeln!(self.out, "return {chain}"),
        }
    }

    /// Flushes the output, and returns the output.
    pub fn finish(mut self) -> std::io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Events of several buffers, one after the other, which become one trace.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    lengths: Vec<u64>,
    events: Vec<TraceEvent>,
}

impl Recording {
    /// Adds the events of a buffer, as [`super::SharedBuffer::recorded`] returns them. The partitions of the buffer
    /// get new numbers, and calls that are not over return at the end. Events above [`EVENTS_MAX`] are left out.
    pub fn add(&mut self, (list, events): &(PartitionList, Vec<TraceEvent>)) {
        let before = self.lengths.len() as u32; // a list is shorter than 2^32
        self.lengths.extend(list.iter().map(|(_, partition)| partition.bytes));
        let renumbered = events.iter().map(|event| match *event {
            TraceEvent::Call { chain, partition: PartitionId(n) } => {
                TraceEvent::Call { chain, partition: PartitionId(before + n) }
            }
            TraceEvent::Return { chain } => TraceEvent::Return { chain },
        });
        let room = EVENTS_MAX - self.events.len().min(EVENTS_MAX);
        let begin = self.events.len();
        self.events.extend(renumbered.take(room));
        let mut open: BTreeMap<ChainId, usize> = BTreeMap::new();
        for event in &self.events[begin..] {
            match *event {
                TraceEvent::Call { chain, .. } => *open.entry(chain).or_default() += 1,
                TraceEvent::Return { chain } => {
                    let depth = open.entry(chain).or_default();
                    *depth = depth.saturating_sub(1);
                }
            }
        }
        for (chain, depth) in open {
            self.events.extend(std::iter::repeat_n(TraceEvent::Return { chain }, depth));
        }
        if self.events.len() > EVENTS_MAX {
            self.events.truncate(begin);
        }
    }

    /// Writes the trace.
    pub fn write<W: Write>(&self, out: W) -> std::io::Result<()> {
        let list = PartitionList::of_lengths(self.lengths.iter().copied()).map_err(std::io::Error::other)?;
        let mut writer = TraceWriter::new(out, &list)?;
        self.events.iter().try_for_each(|event| writer.write(*event))?;
        writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(chain: u32, partition: u32) -> TraceEvent {
        TraceEvent::Call { chain: ChainId(chain), partition: PartitionId(partition) }
    }

    fn return_of(chain: u32) -> TraceEvent {
        TraceEvent::Return { chain: ChainId(chain) }
    }

    #[test]
    fn a_written_trace_is_read_as_the_same_trace() {
        let partitions = PartitionList::of_lengths([0, 33_554_432, 7]).expect("three");
        let events = vec![call(0, 1), call(3, 2), call(0, 0), return_of(3), return_of(0), call(3, 1)];
        let trace = Trace::new(partitions.clone(), events.clone()).expect("valid");
        let mut writer = TraceWriter::new(Vec::new(), &partitions).expect("written");
        events.iter().for_each(|event| writer.write(*event).expect("written"));
        let text = String::from_utf8(writer.finish().expect("written")).expect("UTF-8");
        let expected = "mcr-partitions 1\npartition 0\npartition 33554432\npartition 7\n\
            call 1\ncall 2 3\ncall 0\nreturn 3\nreturn\ncall 1 3\n";
        assert_eq!(text, expected);
        assert_eq!(Trace::parse(&text), Ok(trace.clone()));
        assert_eq!(Trace::parse(&text.replace('\n', "\n\n# comment\r\n")), Ok(trace.clone()));
        assert_eq!(trace.uses(), [1, 2, 0, 1, 1].map(PartitionId), "a return to resident code uses no partition");
    }

    #[test]
    fn a_recording_of_several_buffers_is_a_trace_even_if_calls_were_not_over() {
        let list = PartitionList::of_lengths([1, 2]).expect("two");
        let mut recording = Recording::default();
        recording.add(&(list.clone(), vec![call(0, 0), call(0, 1), return_of(0), call(7, 0)]));
        recording.add(&(list, vec![call(0, 1), return_of(0)]));
        let mut text = Vec::new();
        recording.write(&mut text).expect("written");
        let trace = Trace::parse(&String::from_utf8(text).expect("UTF-8")).expect("a trace");
        assert_eq!(trace.uses(), [0, 1, 0, 0, 3].map(PartitionId), "a return is a use of the caller");
    }

    #[test]
    fn a_text_that_is_not_a_trace_is_refused_with_its_line() {
        let error = |text: &str| Trace::parse(text).expect_err("not a trace").to_string();
        assert_eq!(error(""), "the first line is not \"mcr-partitions 1\"");
        assert_eq!(error("mcr-partitions 2\n"), "the first line is not \"mcr-partitions 1\"");
        for line in ["call", "call x", "call 0 0 0", "return 0 0", "return -1", "partition", "partition 1 2"] {
            let text = format!("mcr-partitions 1\npartition 5\n{line}\n");
            assert_eq!(error(&text), format!("line 3: {line:?} is not a record of a trace"));
        }
        let late = "mcr-partitions 1\npartition 5\ncall 0\npartition 5";
        assert!(error(late).starts_with("line 4"), "partitions come before calls");
        let text = "mcr-partitions 1\npartition 5\ncall 0\nreturn\nreturn";
        assert_eq!(error(text), "event 3: chain 0 has no call from which it could return");
        let text = "mcr-partitions 1\npartition 5\ncall 1";
        assert_eq!(error(text), "event 1: partition 1 is not in the list of 1 partitions");
        let text = format!("mcr-partitions 1\n{}", "x".repeat(1 << 20));
        assert!(error(&text).len() < 200);
    }
}
