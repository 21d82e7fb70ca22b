//! Decides which files an agent announces if several agents of a job see the same directory.

use crate::state::{get, put};
use mcrengine::ids::Rank;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Minimum time between two searches for the processes of the job, in milliseconds.
const SEARCH_MS: u64 = 1_000;

/// The ranks whose files an agent takes, which means that the agent announces them. The agent that takes rank 0 also
/// takes the files that belong to no single rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnRanks(Own);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Own {
    #[default]
    All,
    Only(Vec<RangeInclusive<u32>>),
    OfNode(Arc<NodeRanks>),
}

/// Whether an agent takes a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The agent takes the rank.
    Yes,
    /// Another agent takes the rank.
    No,
    /// The answer is not yet known. Ask again at this time, in milliseconds.
    AskAgain(u64),
}

impl OwnRanks {
    /// All ranks that the agent finds.
    pub fn all() -> Self {
        Self(Own::All)
    }

    /// Only the given ranks. This choice is needed if several agents see the same directory.
    pub fn only(ranges: Vec<RangeInclusive<u32>>) -> Self {
        Self(Own::Only(ranges))
    }

    /// The ranks of one node of a job. The agent finds these ranks while the job runs.
    pub fn of_node(node: NodeRanks) -> Self {
        Self(Own::OfNode(Arc::new(node)))
    }

    /// The ranks to take in a directory that only this node sees. If the agent takes the ranks of its node
    /// ([`Self::of_node`]), it takes all files here, because no other agent sees this directory.
    #[must_use]
    pub fn in_directory_of_this_node(self) -> Self {
        if matches!(self.0, Own::OfNode(_)) { Self::all() } else { self }
    }

    /// The configured ranks as text, for example `0-31,64-64`. Empty if the configuration does not name ranks.
    pub fn text(&self) -> String {
        let range = |range: &RangeInclusive<u32>| format!("{}-{}", range.start(), range.end());
        match &self.0 {
            Own::Only(ranges) => ranges.iter().map(range).collect::<Vec<_>>().join(","),
            Own::All | Own::OfNode(_) => String::new(),
        }
    }

    /// Whether other agents may take some of the ranks that this agent finds.
    pub(super) fn are_shared(&self) -> bool {
        !matches!(self.0, Own::All)
    }

    /// Whether the agent watches the files of this rank. The agent may watch a file and not take it.
    pub fn watches(&self, rank: Rank) -> bool {
        match &self.0 {
            Own::All | Own::OfNode(_) => true,
            Own::Only(ranges) => ranges.iter().any(|range| range.contains(&rank.0)),
        }
    }

    /// Handles a new file. Searches the processes of the job now, because the writer of the file may end before the
    /// file is at rest.
    pub fn file_found(&self, now_ms: u64) {
        if let Own::OfNode(node) = &self.0 {
            let mut known = node.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.next_search_ms() <= now_ms {
                node.search(&mut known, now_ms);
            }
        }
    }

    /// Whether the agent takes the files of this rank, according to the processes that were found so far.
    pub fn takes(&self, rank: Rank) -> bool {
        match &self.0 {
            Own::OfNode(node) => node.takes(rank),
            Own::All | Own::Only(_) => self.watches(rank),
        }
    }

    /// Asks whether the agent takes the files of this rank. `written_ms` is the time of the last write to the
    /// checkpoint. If no process of the job has a rank, the answer is known `patience_ms` milliseconds after the last
    /// write.
    pub(super) fn ask(&self, rank: Rank, now_ms: u64, written_ms: u64, patience_ms: u64) -> Answer {
        match &self.0 {
            Own::OfNode(node) => node.ask(rank, now_ms, written_ms, patience_ms),
            Own::All | Own::Only(_) if self.watches(rank) => Answer::Yes,
            Own::All | Own::Only(_) => Answer::No,
        }
    }
}

/// The ranks of the processes of a job on one of its nodes.
///
/// The processes are searched after each write of a checkpoint, because a job may start several programs with
/// different ranks. The ranks stay known after the end of the processes. An agent that starts again knows these ranks
/// too ([`NodeRanks::remember`]). If no process has a rank, the nodes of the job share the ranks evenly.
pub struct NodeRanks {
    /// Position of this node in the list of the job's nodes.
    index: u32,
    /// Number of nodes of the job.
    nodes: u32,
    find: Box<dyn Fn() -> BTreeSet<u32> + Send + Sync>,
    memory: Option<(PathBuf, Remembered)>,
    known: Mutex<Known>,
}

/// The ranks of a node, as written to a file next to the state file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    /// The version of the format, always 1.
    version: u32,
    /// The identity of the start of the job. Ranks of another start are not used.
    incarnation: String,
    ranks: BTreeSet<u32>,
}

#[derive(Debug, Default)]
struct Known {
    ranks: BTreeSet<u32>,
    searched_ms: Option<u64>,
}

impl Known {
    fn next_search_ms(&self) -> u64 {
        self.searched_ms.map_or(0, |searched_ms| searched_ms + SEARCH_MS)
    }
}

impl NodeRanks {
    /// Makes the ranks of the node at position `index` in the job's list of `nodes` nodes. `find` searches the job's
    /// processes on this node, and returns their ranks.
    pub fn new(index: u32, nodes: u32, find: impl Fn() -> BTreeSet<u32> + Send + Sync + 'static) -> Self {
        Self { index, nodes: nodes.max(1), find: Box::new(find), memory: None, known: Mutex::default() }
    }

    /// Keeps the ranks in a file. If the file already has ranks of this start of the job, these ranks are the first
    /// known ranks.
    #[must_use]
    pub fn remember(self, file: PathBuf, incarnation: &str) -> Self {
        let none = Remembered { version: 1, incarnation: incarnation.to_owned(), ranks: BTreeSet::new() };
        let read: Option<Remembered> = get(&file).ok().flatten();
        let found = read.filter(|read| Remembered { ranks: BTreeSet::new(), ..read.clone() } == none);
        let known = Known { ranks: found.map(|found| found.ranks).unwrap_or_default(), searched_ms: None };
        Self { memory: Some((file, none)), known: Mutex::new(known), ..self }
    }

    fn write_down(&self, ranks: &BTreeSet<u32>) {
        let Some((file, none)) = &self.memory else { return };
        let remembered = Remembered { ranks: ranks.clone(), ..none.clone() };
        if let Err(error) = put(file, &remembered) {
            tracing::warn!(
                file = %file.display(), %error,
                "the ranks of this node cannot be written; an agent that starts again may not know whose files to save"
            );
        }
    }

    fn takes(&self, rank: Rank) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.ranks.is_empty() { self.has_share_of(rank) } else { known.ranks.contains(&rank.0) }
    }

    fn has_share_of(&self, rank: Rank) -> bool {
        rank.0 % self.nodes == self.index
    }

    fn search(&self, known: &mut Known, now_ms: u64) {
        let found = (self.find)();
        // If some processes have ended, their ranks stay known. Ranks that were not known before belong to another
        // program.
        if !found.is_subset(&known.ranks) {
            tracing::info!(ranks = ?found, "the ranks of this node");
            self.write_down(&found);
            known.ranks = found;
        }
        known.searched_ms = Some(now_ms);
    }

    fn ask(&self, rank: Rank, now_ms: u64, written_ms: u64, patience_ms: u64) -> Answer {
        let answer = |takes| if takes { Answer::Yes } else { Answer::No };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next_search_ms = known.next_search_ms();
        let is_old = known.searched_ms.is_none_or(|searched_ms| searched_ms < written_ms);
        if (is_old || known.ranks.is_empty()) && (next_search_ms <= now_ms || patience_ms == 0) {
            self.search(&mut known, now_ms);
        } else if is_old {
            return Answer::AskAgain(next_search_ms);
        }
        let until_ms = written_ms.saturating_add(patience_ms);
        match known.ranks.is_empty() {
            false => answer(known.ranks.contains(&rank.0)),
            true if now_ms >= until_ms => answer(self.has_share_of(rank)),
            true => Answer::AskAgain(until_ms.min(now_ms + SEARCH_MS)),
        }
    }
}

impl fmt::Debug for NodeRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the ranks of node {} of {}", self.index, self.nodes)
    }
}

impl PartialEq for NodeRanks {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for NodeRanks {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the ranks of the second of three nodes, and the list of its processes.
    fn node() -> (OwnRanks, Arc<Mutex<BTreeSet<u32>>>) {
        let processes: Arc<Mutex<BTreeSet<u32>>> = Arc::default();
        let found = Arc::clone(&processes);
        let find = move || found.lock().expect("no panic").clone();
        (OwnRanks::of_node(NodeRanks::new(1, 3, find)), processes)
    }

    fn answers(own: &OwnRanks, now_ms: u64, written_ms: u64) -> Vec<Answer> {
        (0..4).map(|rank| own.ask(Rank(rank), now_ms, written_ms, 30_000)).collect()
    }

    #[test]
    fn a_node_takes_the_ranks_of_its_processes_and_keeps_them_when_the_processes_end() {
        use Answer::{No, Yes};
        let (own, processes) = node();
        *processes.lock().expect("no panic") = [2, 3].into();
        assert_eq!(answers(&own, 5_000, 4_000), [No, No, Yes, Yes]);
        processes.lock().expect("no panic").clear();
        assert_eq!(answers(&own, 9_000, 8_000), [No, No, Yes, Yes]);
        *processes.lock().expect("no panic") = [3].into();
        assert_eq!(answers(&own, 10_200, 10_100), [No, No, Yes, Yes], "one process has ended, and the other has not");
        // The process of rank 0 ends before its files are at rest.
        *processes.lock().expect("no panic") = [0].into();
        own.file_found(11_500);
        processes.lock().expect("no panic").clear();
        assert_eq!(own.ask(Rank(0), 11_600, 11_500, 30_000), Yes);
        *processes.lock().expect("no panic") = [2, 3].into();
        own.file_found(12_600);
        // The next program of the job has other ranks on this node.
        *processes.lock().expect("no panic") = [1].into();
        assert_eq!(answers(&own, 14_000, 8_000), [No, No, Yes, Yes], "this checkpoint is older than the last search");
        assert_eq!(answers(&own, 14_000, 13_000), [No, Yes, No, No]);
    }

    #[test]
    fn an_agent_that_starts_again_knows_the_ranks_of_its_start_of_the_job_and_of_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("state/melt-n1.ranks");
        let found = |incarnation: &str, ranks: &'static [u32]| {
            let node = NodeRanks::new(1, 3, || ranks.iter().copied().collect()).remember(file.clone(), incarnation);
            (0..4).filter(|rank| node.ask(Rank(*rank), 50_000, 1_000, 0) == Answer::Yes).collect::<Vec<_>>()
        };
        assert_eq!(found("SLURM job 7", &[2, 3]), [2, 3]);
        assert_eq!(found("SLURM job 7", &[]), [2, 3], "the processes have ended");
        assert_eq!(found("SLURM job 7, restart 1", &[]), [1], "the ranks of another start do not count");
        std::fs::write(&file, "{").expect("written");
        assert_eq!(found("SLURM job 7", &[]), [1], "a damaged file counts as missing");
    }

    #[test]
    fn without_a_process_that_has_a_rank_the_nodes_share_the_ranks_after_a_while() {
        use Answer::{AskAgain, No, Yes};
        let (own, processes) = node();
        assert_eq!(own.ask(Rank(1), 5_000, 4_000, 30_000), AskAgain(6_000));
        assert_eq!(own.ask(Rank(1), 5_500, 5_400, 30_000), AskAgain(6_000), "at most one search in each second");
        assert_eq!(answers(&own, 34_000, 4_000), [No, Yes, No, No]);
        assert_eq!(own.ask(Rank(1), 40_000, 39_990, 0), Yes, "without patience at once");
        *processes.lock().expect("no panic") = [0].into();
        assert_eq!(answers(&own, 50_000, 49_000), [Yes, No, No, No]);
    }

    #[test]
    fn configured_ranks_are_known_at_once() {
        let own = OwnRanks::only(vec![1..=2]);
        assert_eq!(answers(&own, 0, 0), [Answer::No, Answer::Yes, Answer::Yes, Answer::No]);
        assert_eq!((own.text().as_str(), OwnRanks::all().text().as_str()), ("1-2", ""));
        assert_eq!(answers(&OwnRanks::all(), 0, 0), [Answer::Yes; 4]);
        assert_eq!(node().0.in_directory_of_this_node(), OwnRanks::all());
    }
}
