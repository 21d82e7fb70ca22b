//! `mcr bench partitions`: computes Figures 8 to 12 of the paper on the partition manager (CAPSL Technical Memo 108).
//! The measured policies are the two policies of the paper and two other policies. The traces are generated or
//! recorded.

mod cases;
mod figures;
mod report;

use super::partition_args::BenchPartitionsArgs;
use crate::exit::Exit;
use crate::output::{print, print_json};
use anyhow::{Context, bail};
use mcrengine::partition::{
    BufferLayout, ClockPro, Counters, Loader, LookAhead, Lru, Modulus, Partition, PartitionBuffer, PartitionError,
    PartitionId, Policy, Trace, TraceEvent, VictimLimits, replay,
};
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Maximum length of the file of a trace.
const TRACE_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of columns in a table. Each column is for one number of sub-buffers.
const COLUMNS_MAX: usize = 6;
/// Maximum number of bytes that a trace may load to be timed.
const TIMED_BYTES_MAX: u64 = 1 << 30;
/// Time for which the replay that copies bytes is repeated. The time of the fastest repetition is reported.
const TIMED_FOR: Duration = Duration::from_millis(10);

/// The measured policies, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    Modulus,
    Lru,
    ClockPro,
    LookAhead,
}

impl PolicyName {
    const ALL: [Self; 4] = [Self::Modulus, Self::Lru, Self::ClockPro, Self::LookAhead];

    fn name(self) -> &'static str {
        match self {
            Self::Modulus => "Modulus",
            Self::Lru => "LRU",
            Self::ClockPro => "Clock-PRO",
            Self::LookAhead => "look-ahead",
        }
    }

    fn make(self, trace: &Trace, sub_buffers: usize) -> Box<dyn Policy> {
        match self {
            Self::Modulus => Box::new(Modulus::new()),
            Self::Lru => Box::new(Lru::new()),
            Self::ClockPro => Box::new(ClockPro::new(sub_buffers)),
            Self::LookAhead => Box::new(LookAhead::new(trace.uses())),
        }
    }
}

/// The result of one policy with one buffer.
#[derive(Clone, Debug, serde::Serialize)]
struct Played {
    policy: PolicyName,
    sub_buffers: usize,
    /// Maximum number of copies in the victim cache.
    victims: usize,
    /// `None` if the trace has more chains than the buffer has sub-buffers.
    counters: Option<Counters>,
}

/// The results of a trace.
#[derive(Clone, Debug, serde::Serialize)]
struct Line {
    name: String,
    about: String,
    partitions: usize,
    calls: u64,
    /// Number of calls, plus the number of returns to a partition.
    uses: u64,
    played: Vec<Played>,
    /// For each number of sub-buffers: the time of a replay with LRU that copies all bytes, in ms.
    replay_ms: Vec<Option<f64>>,
}

impl Line {
    fn counters(&self, policy: PolicyName, sub_buffers: usize, victims: usize) -> Option<Counters> {
        let is_same = |p: &&Played| (p.policy, p.sub_buffers, p.victims) == (policy, sub_buffers, victims);
        self.played.iter().find(is_same).and_then(|played| played.counters)
    }

    fn loads(&self, policy: PolicyName, sub_buffers: usize, victims: usize) -> Option<u64> {
        self.counters(policy, sub_buffers, victims).map(|counters| counters.loads)
    }
}

/// The data of the report.
#[derive(Clone, Debug, serde::Serialize)]
struct Report {
    seed: u64,
    sub_buffers: Vec<usize>,
    /// Number of copies in the victim cache of Figure 12.
    victims: usize,
    traces: Vec<Line>,
}

impl Report {
    /// The number of sub-buffers for Figures 11 and 12: the largest number in the list.
    fn most_sub_buffers(&self) -> usize {
        self.sub_buffers.last().copied().unwrap_or(1)
    }
}

pub fn run(args: BenchPartitionsArgs) -> anyhow::Result<ExitCode> {
    let mut sub_buffers: Vec<usize> = args.sub_buffers.iter().map(|n| n.get()).collect();
    sub_buffers.sort_unstable();
    sub_buffers.dedup();
    if sub_buffers.len() > COLUMNS_MAX {
        bail!("--sub-buffers has {} numbers; at most {COLUMNS_MAX} fit into a table", sub_buffers.len());
    }
    if args.victims == 0 {
        bail!("--victims must be at least 1");
    }
    let mut lines = Vec::new();
    if !args.only_traces {
        for case in cases::all(args.seed)? {
            lines.push(measure(case.name.into(), case.about.into(), &case.trace, &sub_buffers, args.victims)?);
        }
    }
    for path in &args.trace {
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let trace = read_trace(path)?;
        lines.push(measure(name, path.display().to_string(), &trace, &sub_buffers, args.victims)?);
    }
    let report = Report { seed: args.seed, sub_buffers, victims: args.victims, traces: lines };
    let draw = || args.plots.as_ref().map_or(Ok(()), |plots| crate::plot::write(plots, &figures::all(&report)));
    match args.json {
        // The output is one object, so an error must come first.
        true => draw().and_then(|()| print_json(&report))?,
        false => print(&report::text(&report)).and_then(|()| draw())?,
    }
    Ok(Exit::Done.into())
}

fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("{}: cannot be opened", path.display()))?;
    let read = file.take(TRACE_BYTES_MAX + 1).read_to_string(&mut text);
    read.with_context(|| format!("{}: cannot be read", path.display()))?;
    if text.len() as u64 > TRACE_BYTES_MAX {
        bail!("{}: has more than {TRACE_BYTES_MAX} bytes", path.display());
    }
    Trace::parse(&text).with_context(|| path.display().to_string())
}

fn measure(name: String, about: String, trace: &Trace, columns: &[usize], victims: usize) -> anyhow::Result<Line> {
    let longest = trace.partitions().longest_bytes();
    let (mut played, mut replay_ms) = (Vec::new(), Vec::new());
    for &n in columns {
        let layout = BufferLayout::equal(longest.saturating_mul(n as u64), n)?;
        for policy in PolicyName::ALL {
            for entries in [0, victims] {
                let limits = VictimLimits { entries, bytes: u64::MAX };
                let counters = match replay(trace, &layout, policy.make(trace, n), limits) {
                    Ok(counters) => Some(counters),
                    Err(PartitionError::NoRoom { .. } | PartitionError::PlaceInUse { .. }) => None,
                    Err(error) => return Err(error).with_context(|| name.clone()),
                };
                played.push(Played { policy, sub_buffers: n, victims: entries, counters });
            }
        }
        let is_lru = |p: &&Played| (p.policy, p.sub_buffers, p.victims) == (PolicyName::Lru, n, 0);
        let counters = played.iter().find(is_lru).and_then(|played| played.counters);
        replay_ms.push(timed(trace, &layout, counters)?);
    }
    let is_call = |event: &&TraceEvent| matches!(event, TraceEvent::Call { .. });
    let calls = trace.events().iter().filter(is_call).count() as u64;
    let (partitions, uses) = (trace.partitions().len(), trace.uses().len() as u64);
    Ok(Line { name, about, partitions, calls, uses, played, replay_ms })
}

/// Loads a partition by copying bytes from memory, as a DMA transfer does.
struct Copies(Vec<u8>);

impl Loader for Copies {
    type Error = std::convert::Infallible;

    fn load(&mut self, _: PartitionId, _: Partition, _: Option<&[u8]>, into: &mut [u8]) -> Result<(), Self::Error> {
        into.copy_from_slice(&self.0[..into.len()]);
        Ok(())
    }
}

/// The time of a replay that copies all bytes, in ms. `None` if the replay would copy more than [`TIMED_BYTES_MAX`]
/// bytes, or if the trace has more than one chain of calls. A trace has one chain of calls for each thread.
fn timed(trace: &Trace, layout: &BufferLayout, counters: Option<Counters>) -> anyhow::Result<Option<f64>> {
    let chain_of = |event: &TraceEvent| {
        let (TraceEvent::Call { chain, .. } | TraceEvent::Return { chain }) = *event;
        chain
    };
    let first = trace.events().first().map(chain_of);
    let is_one_chain = trace.events().iter().all(|event| Some(chain_of(event)) == first);
    let bytes = counters.map_or(u64::MAX, |counters| counters.loaded_bytes.max(layout.bytes()));
    if !is_one_chain || bytes > TIMED_BYTES_MAX {
        return Ok(None);
    }
    let source = vec![0x5a; trace.partitions().longest_bytes() as usize]; // at most TIMED_BYTES_MAX
    let (started, mut best) = (Instant::now(), Duration::MAX);
    while best == Duration::MAX || started.elapsed() < TIMED_FOR {
        let (list, limits) = (trace.partitions().clone(), VictimLimits::NONE);
        let loader = Copies(source.clone());
        let mut buffer = PartitionBuffer::new(list, layout.clone(), Lru::new(), limits, loader)?;
        let begin = Instant::now();
        for event in trace.events() {
            match *event {
                TraceEvent::Call { partition, .. } => buffer.call(partition).map(|_| ())?,
                TraceEvent::Return { .. } => buffer.return_to_caller().map(|_| ())?,
            }
        }
        best = best.min(begin.elapsed());
    }
    Ok(Some(best.as_secs_f64() * 1e3))
}
