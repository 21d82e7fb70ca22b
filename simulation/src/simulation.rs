//! A simulated job: its ranks write checkpoints of small files, and real daemons save them in a store in memory.

use crate::daemons::{SimulatedAgent, SimulatedAggregator};
use crate::rank_file::RankFile;
use crate::store::{Counts, SimulatedStore};
use anyhow::{Context, bail};
use mcrengine::container::{checkpoint_dir, container_path};
use mcrengine::header::FileKind;
use mcrengine::ids::{CheckpointId, Digest, FilePath, GroupId, Grouping, JobId, Rank};
use mcrengine::manifest::{
    MANIFEST_VERSION, Manifest, ManifestContainer, ManifestFile, has_all_manifests, manifest_name, state,
};
use mcrengine::plan::Scheme;
use mcrengine::units::{RawBytes, StoredBytes};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// Bytes of each rank's file in the checkpoints that are stored before the job begins.
const FILE_BYTES: usize = 4096;
/// Maximum time for one step.
const STEP_MAX: Duration = Duration::from_secs(600);
/// Time between two looks at the store.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time from the last file of a step until daemons die.
const FAILS_AFTER: Duration = Duration::from_millis(200);
/// The daemons have finished a step when the store had no operation for this time, or for the time that the step
/// took, whichever is longer. An aggregator that waits for other groups doubles its waits.
const QUIET: Duration = Duration::from_millis(800);

/// The size of a simulated job.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of ranks in each group.
    pub group_size: u32,
    /// Number of ranks of each node. Each node has an agent.
    pub ranks_of_node: u32,
    /// Number of aggregators.
    pub aggregators: u32,
    /// Number of checkpoints that are in the store before the job begins.
    pub stored: u32,
    /// Time that each operation on the store takes.
    pub delay: Duration,
}

impl Setup {
    /// Number of groups.
    pub fn groups(&self) -> u32 {
        self.ranks.div_ceil(self.group_size)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.ranks.div_ceil(self.ranks_of_node)
    }
}

/// The cost of one checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Operations of all aggregators on the store.
    pub counts: Counts,
    /// Operations of the aggregator that made the most operations.
    pub busiest: u64,
    /// Time from the last file until the checkpoint was complete in the store.
    pub commit: Duration,
    /// Processor time of all daemons and of the store.
    pub cpu: Duration,
    /// Processor time of the runtime threads of the aggregator that needed the most.
    pub aggregator_cpu: Duration,
    /// Processor time of the runtime threads of the agent that needed the most.
    pub agent_cpu: Duration,
    /// Bytes between agents and aggregators, in both directions, without the bytes of the files.
    pub wire_bytes: u64,
}

/// What fails while a step is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Some ranks never write their files of the step.
    Ranks,
    /// An aggregator dies, and is started again.
    Aggregator,
    /// All daemons die, and are started again.
    All,
}

/// All failures.
pub const FAILURES: [Failure; 3] = [Failure::Ranks, Failure::Aggregator, Failure::All];

impl Failure {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks-failed",
            Self::Aggregator => "aggregator-lost",
            Self::All => "all-restarted",
        }
    }
}

/// A running job.
pub struct Simulation {
    setup: Setup,
    file: RankFile,
    /// The directories of the nodes.
    _dir: TempDir,
    store: SimulatedStore,
    aggregators: Vec<SimulatedAggregator>,
    agents: Vec<SimulatedAgent>,
    /// The operations of the daemons from their start until the first step.
    pub start: Counts,
    _proxies: Runtime,
}

fn job() -> JobId {
    "job".parse().expect("the name of a job")
}

fn step_id(step: u32) -> CheckpointId {
    format!("s{step}").parse().expect("the name of a checkpoint")
}

impl Simulation {
    /// Starts all daemons. Each rank writes a file like `file`.
    pub fn start(setup: Setup, file: RankFile) -> anyhow::Result<Self> {
        let below = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("mcr-scale.").tempdir_in(below)?;
        let store = SimulatedStore::new(setup.delay);
        for older in 0..setup.stored {
            store_checkpoint(&store, &setup, older);
        }
        let proxies = Builder::new_multi_thread().worker_threads(2).thread_name("wire").enable_all().build()?;
        let start = |nth| SimulatedAggregator::start(nth, setup.group_size, store.for_another(), &proxies);
        let aggregators: Vec<_> = (0..setup.aggregators as usize).map(start).collect::<Result<_, _>>()?;
        let addresses: Vec<&str> = aggregators.iter().map(|aggregator| aggregator.address.as_str()).collect();
        let agent = |node: u32| {
            let ranks = node * setup.ranks_of_node..((node + 1) * setup.ranks_of_node).min(setup.ranks);
            SimulatedAgent::start(node, ranks, setup.ranks, setup.group_size, dir.path(), &addresses)
        };
        let agents = (0..setup.nodes()).map(agent).collect::<Result<_, _>>()?;
        let start = Counts::default();
        let mut this = Self { setup, file, _dir: dir, store, aggregators, agents, start, _proxies: proxies };
        this.await_quiet(QUIET);
        this.start = this.counts();
        Ok(this)
    }

    /// The operations of all aggregators so far.
    fn counts(&self) -> Counts {
        self.aggregators.iter().fold(Counts::default(), |sum, aggregator| sum.plus(&aggregator.counts()))
    }

    /// Waits until the store had no operation for this time.
    fn await_quiet(&self, quiet: Duration) {
        let (mut counts, mut since) = (self.counts(), Instant::now());
        while since.elapsed() < quiet {
            std::thread::sleep(LOOK_EVERY);
            let now = self.counts();
            if now != counts {
                (counts, since) = (now, Instant::now());
            }
        }
    }

    /// The ranks for which `writes` is true write their files of a step.
    pub fn write(&self, step: u32, writes: impl Fn(u32) -> bool) -> std::io::Result<u64> {
        let mut bytes = 0;
        for agent in &self.agents {
            for rank in agent.ranks.clone().filter(|rank| writes(*rank)) {
                let values = self.file.of(rank, step);
                bytes += values.len() as u64;
                std::fs::write(agent.watch.join(format!("{}.r{rank}", step_id(step))), values)?;
            }
        }
        Ok(bytes)
    }

    /// Waits until a step is complete in the store.
    pub fn await_complete(&self, step: u32) -> anyhow::Result<()> {
        let (store, began) = (self.store.without_delay(), Instant::now());
        let (job, id) = (job(), step_id(step));
        let has_all = || has_all_manifests(&store, &job, &id, self.setup.groups()).unwrap_or(false);
        while !(has_all() && state(&store, &job, &id).is_ok_and(|state| state.is_complete())) {
            if began.elapsed() > STEP_MAX {
                let problems = state(&store, &job, &id).map(|state| state.problems.join("; "));
                bail!("step {step} is not complete after {} s: {problems:?}", STEP_MAX.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// All ranks write a step. Returns the cost of saving the step.
    pub fn step(&self, step: u32) -> anyhow::Result<Cost> {
        let each = || self.aggregators.iter().map(SimulatedAggregator::counts).collect::<Vec<_>>();
        let wire = || self.aggregators.iter().map(SimulatedAggregator::wire_bytes).sum::<u64>();
        let (before, wire_before, cpu_before, threads_before) = (each(), wire(), cpu(), thread_cpu());
        let bytes = self.write(step, |_| true).context("cannot write the files of the ranks")?;
        let wrote = Instant::now();
        self.await_complete(step)?;
        let commit = wrote.elapsed();
        self.await_quiet(QUIET.max(commit));
        let of_each: Vec<Counts> = each().iter().zip(&before).map(|(after, before)| after.since(before)).collect();
        let threads = thread_cpu();
        let busiest_thread = |prefix: &str| {
            let of = |(name, after): (&String, &Duration)| {
                after.saturating_sub(threads_before.get(name).copied().unwrap_or_default())
            };
            threads.iter().filter(|(name, _)| name.starts_with(prefix)).map(of).max().unwrap_or_default()
        };
        Ok(Cost {
            counts: of_each.iter().fold(Counts::default(), Counts::plus),
            busiest: of_each.iter().map(Counts::operations).max().unwrap_or(0),
            commit,
            cpu: cpu().saturating_sub(cpu_before),
            aggregator_cpu: busiest_thread("anc-"),
            agent_cpu: busiest_thread("cnc-"),
            wire_bytes: (wire() - wire_before).saturating_sub(bytes),
        })
    }

    /// Saves a step while something fails. Returns the cost of the step. The step of [`Failure::Ranks`] never becomes
    /// complete, so the cost is the cost of this step and of the next step, which becomes complete.
    pub fn step_with(&mut self, step: u32, failure: Failure) -> anyhow::Result<Cost> {
        let before = self.counts();
        let began = Instant::now();
        match failure {
            Failure::Ranks => {
                // The first rank of every 16th group writes nothing.
                let fails = self.setup.group_size.saturating_mul(16);
                self.write(step, |rank| rank % fails != 0)?;
                std::thread::sleep(QUIET);
                self.write(step + 1, |_| true)?;
            }
            Failure::Aggregator => {
                self.write(step, |_| true)?;
                std::thread::sleep(FAILS_AFTER);
                let Some(first) = self.aggregators.first_mut() else { bail!("there is no aggregator") };
                first.kill();
                std::thread::sleep(FAILS_AFTER);
                first.start_again()?;
            }
            Failure::All => {
                self.write(step, |_| true)?;
                std::thread::sleep(FAILS_AFTER);
                self.aggregators.iter_mut().for_each(SimulatedAggregator::kill);
                self.agents.iter_mut().for_each(SimulatedAgent::kill);
                self.aggregators.iter_mut().try_for_each(SimulatedAggregator::start_again)?;
                self.agents.iter_mut().try_for_each(SimulatedAgent::start_again)?;
            }
        }
        self.await_complete(if failure == Failure::Ranks { step + 1 } else { step })?;
        let commit = began.elapsed();
        self.await_quiet(QUIET);
        if failure == Failure::Ranks
            && state(&self.store.without_delay(), &job(), &step_id(step)).is_ok_and(|state| state.is_complete())
        {
            bail!("step {step} is complete, although ranks did not write their files");
        }
        Ok(Cost { counts: self.counts().since(&before), commit, ..Cost::default() })
    }

    /// Ends all daemons.
    pub fn end(mut self) {
        self.agents.iter_mut().for_each(SimulatedAgent::end);
        self.aggregators.iter_mut().for_each(SimulatedAggregator::end);
    }
}

/// Puts a complete checkpoint, older than all steps, into the store.
fn store_checkpoint(store: &SimulatedStore, setup: &Setup, older: u32) {
    let (job, id) = (job(), format!("old{older}").parse::<CheckpointId>().expect("the name of a checkpoint"));
    let grouping = Grouping::new(setup.ranks, setup.group_size).expect("ranks and groups");
    for group in (0..grouping.groups()).map(GroupId) {
        let ranks = grouping.ranks_of(group);
        let file = |rank: u32| ManifestFile {
            path: FilePath::new(format!("{id}.r{rank}").into_bytes()).expect("a path"),
            rank: Rank(rank),
            bytes: FILE_BYTES as u64,
            kind: FileKind::Regular,
            modified_ns: i64::from(older) * 1_000_000,
            digest: Digest::of(&[]),
        };
        let path = container_path(&job, &id, group);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let (digest, index_digest) = (Digest::of(&[]), Digest::of(&[]));
        let manifest = Manifest {
            job: job.clone(),
            checkpoint: id.clone(),
            incarnation: 0,
            ranks: setup.ranks,
            groups: grouping.groups(),
            group_size: setup.group_size,
            group,
            first_rank: Rank(ranks.start),
            rank_count: ranks.end - ranks.start,
            scheme: Scheme::default(),
            profile: "balanced".into(),
            written_unix_ms: i64::from(older),
            first_unix_ms: None,
            doubt: None,
            created_unix_ms: u64::from(older),
            elapsed_ms: 1,
            raw_bytes: RawBytes(u64::from(ranks.end - ranks.start) * FILE_BYTES as u64),
            stored_bytes: StoredBytes(1),
            container: ManifestContainer { name, bytes: 1, digest, index_digest },
            references: Vec::new(),
            referred: Vec::new(),
            in_a_row: 0,
            decisions: Vec::new(),
            files: ranks.map(file).collect::<Vec<_>>(),
        };
        let json = serde_json::to_string_pretty(&manifest).expect("a manifest is text");
        let text = format!("mcr-manifest {MANIFEST_VERSION}\n{json}\n");
        let digest = Digest::of(text.as_bytes());
        store.put(&checkpoint_dir(&job, &id).join(manifest_name(group)), format!("{text}blake3 {digest}\n").into());
        store.put(&path, vec![0]);
    }
}

/// Processor time of this process.
fn cpu() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
    };
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |usage| time(usage.user_time()) + time(usage.system_time()))
}

/// Processor time of the threads with each name.
fn thread_cpu() -> std::collections::BTreeMap<String, Duration> {
    let mut all = std::collections::BTreeMap::new();
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return all };
    for task in tasks.flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
        // The first number of schedstat is the time on a processor, in nanoseconds.
        let ns = read("schedstat").and_then(|text| text.split(' ').next()?.parse().ok());
        if let (Some(name), Some(ns)) = (read("comm"), ns) {
            *all.entry(name.trim().to_owned()).or_default() += Duration::from_nanos(ns);
        }
    }
    all
}
