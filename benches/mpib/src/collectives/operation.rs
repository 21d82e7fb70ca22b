//! Operations that a timer can measure: prepared for a size, run many times, and checked afterwards.

pub use super::kind::{AUTO, KINDS, Kind};
use super::lanes::Lanes;
use super::tree::Tree;
use super::{Algorithm, Result};
use crate::comm::Comm;
use crate::models::lanes::{Direction, MARGIN, PathModel};
use crate::open_mpi;

/// An operation of all ranks that can be timed. A program may implement this trait for its operations.
pub trait Operation {
    /// For example `scatter/binomial`: the operation, a slash, and the implementation.
    fn name(&self) -> String;

    /// The direction of the data, and the root if the operation has a root.
    fn flow(&self) -> Flow;

    /// Allocates and touches buffers for blocks of `block_bytes`. All ranks call this method before the first `run`,
    /// and again for every size.
    fn prepare(&mut self, comm: &Comm, block_bytes: usize) -> Result<()>;

    /// Prepares one run. The timer calls this method before each run, and does not time the call.
    fn ready(&mut self) -> Result<()> {
        Ok(())
    }

    /// Runs the operation once. All ranks must call this method equally often.
    fn run(&mut self, comm: &Comm) -> Result<()>;

    /// Switches to other buffers, which are not in a cache. This method does nothing if there are no other buffers.
    fn freshen(&mut self) {}

    /// Whether this rank has the right data after a run.
    fn is_right(&self, comm: &Comm) -> bool;

    /// Whether this rank has the right data. An operation that keeps only a part of the data of a run overrides this
    /// method, runs once more, and compares each part. All ranks must call this method.
    fn check(&mut self, comm: &Comm) -> Result<bool> {
        Ok(self.is_right(comm))
    }
}

/// The direction of the data. The direction determines whether a rank can know that the operation has ended on all
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Scatter and broadcast: the root ends before the other ranks.
    From(usize),
    /// Gather and reduce: when the root ends, the operation is complete.
    To(usize),
    /// All-to-all and barrier: no rank is special.
    Symmetric,
}

/// The parameters of a built-in operation.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The rank of the root.
    pub root: usize,
    /// The site of each rank; empty without sites.
    pub sites: Vec<usize>,
    /// Distance of each rank from the root, in seconds or any other unit; empty if unknown.
    pub distances: Vec<f64>,
    /// The measured links between two sites, which the implementation `auto` needs. All ranks must have the same
    /// numbers, as from [`crate::pathfinder::measure_paths`].
    pub paths: Option<PathModel>,
}

/// Why an operation cannot be created.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// There is no implementation of this name.
    #[error("{kind} has no implementation {name:?}; it has {known}")]
    Unknown {
        /// The operation.
        kind: &'static str,
        /// The name given.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// Lanes need two sites, and there may be too many lanes.
    #[error("{name}: {source}")]
    Lanes {
        /// The name given.
        name: String,
        /// The reason.
        source: super::lanes::LanesError,
    },
    /// The implementation `auto` needs measured links.
    #[error("auto needs the measured links between two sites; give the sites")]
    Paths,
    /// There is no rank with this number.
    #[error("the root is rank {root}; there are {ranks} ranks, from 0")]
    Root {
        /// Requested root.
        root: usize,
        /// Number of ranks.
        ranks: usize,
    },
}

/// A built-in operation in one implementation.
pub struct Collective {
    kind: Kind,
    implementation: String,
    setting: Setting,
    how: Option<Algorithm>,
    lens: Vec<usize>,
    /// Several sets of buffers if fresh buffers are requested, otherwise one set.
    sets: Vec<Buffers>,
    fresh_sets: usize,
    at: usize,
    /// A communicator with Open MPI's algorithm of this implementation.
    forced: Option<Comm>,
}

#[derive(Default, Clone)]
struct Buffers {
    out: Vec<u8>,
    into: Vec<u8>,
    numbers: Vec<f64>,
    sums: Vec<f64>,
}

/// Total bytes of all sets of buffers that [`Operation::freshen`] uses; larger than all caches.
const FRESH_BYTES: usize = 256 << 20;

impl Collective {
    /// `name` must be one of [`Kind::implementations`].
    pub fn new(kind: Kind, name: &str, setting: &Setting, ranks: usize) -> Result<Self, SettingError> {
        if setting.root >= ranks {
            return Err(SettingError::Root { root: setting.root, ranks });
        }
        let lanes: Option<usize> = name.strip_prefix("lanes-").and_then(|p| p.parse().ok());
        let open_mpi = open_mpi::implementations(kind, ranks);
        let known = kind.implementations(0).iter().chain(&open_mpi).any(|n| n == name);
        let auto = kind.moves_blocks() && name == AUTO;
        if !(known || auto || kind.moves_blocks() && lanes.is_some()) {
            let mut known = kind.implementations(0);
            known.extend(open_mpi);
            known.extend(kind.moves_blocks().then(|| format!("lanes-1 and so on, {AUTO}")));
            return Err(SettingError::Unknown { kind: kind.name(), name: name.into(), known: known.join(", ") });
        }
        if let Some(lanes) = lanes {
            super::lanes::Lanes::new(&setting.sites, setting.root, lanes)
                .map_err(|source| SettingError::Lanes { name: name.into(), source })?;
        }
        if auto && setting.paths.is_none() {
            return Err(SettingError::Paths);
        }
        Ok(Self {
            kind,
            implementation: name.into(),
            setting: setting.clone(),
            how: None,
            lens: Vec::new(),
            sets: Vec::new(),
            fresh_sets: 1,
            at: 0,
            forced: None,
        })
    }

    /// If `fresh`, each run uses buffers that are not in a cache.
    pub fn with_fresh_buffers(mut self, fresh: bool) -> Self {
        self.fresh_sets = if fresh { usize::MAX } else { 1 };
        self
    }

    /// The algorithm for the current size. The algorithm depends on the lengths of the blocks. `None` for operations
    /// other than scatter and gather.
    fn algorithm(&self) -> Option<Algorithm> {
        // `new` has rejected all unknown names.
        let named = named(&self.implementation, self.kind.direction()?, &self.lens, &self.setting);
        Some(named.unwrap_or(Algorithm::Native))
    }

    fn tree(&self, ranks: usize) -> Option<Tree> {
        match self.implementation.as_str() {
            "linear" => Some(Tree::linear(ranks, self.setting.root)),
            "binomial" => Some(Tree::binomial_from(ranks, self.setting.root)),
            _ => None,
        }
    }
}

/// The algorithm with this name, for blocks of these lengths in bytes. `None` for `native` and for unknown names.
///
/// `auto` is the multi-lane algorithm of the paper with the number of lanes that the measured links choose, or
/// `linear-nonblocking` if lanes bring no gain. The model of the links has blocks of equal length, so `auto` takes the
/// mean length.
pub fn named(name: &str, direction: Direction, lens: &[usize], setting: &Setting) -> Option<Algorithm> {
    let (ranks, root) = (lens.len(), setting.root);
    Some(match name {
        AUTO => {
            let mean = lens.iter().sum::<usize>().div_ceil(ranks.max(1));
            let chosen = setting.paths.as_ref()?.choose(direction, mean, MARGIN);
            return named(&chosen.name(), direction, lens, setting);
        }
        "linear" => Algorithm::Tree(Tree::linear(ranks, root)),
        "linear-nonblocking" => Algorithm::TreeAtOnce(Tree::linear(ranks, root)),
        "linear-ready" => Algorithm::Ready { root },
        "binomial" => Algorithm::Tree(Tree::binomial_from(ranks, root)),
        "traeff" => Algorithm::Tree(Tree::traeff(lens, root)),
        "sorted" if setting.distances.len() == ranks && lens.windows(2).all(|w| w[0] == w[1]) => {
            Algorithm::Tree(Tree::sorted_by(&setting.distances, root))
        }
        "sorted" => Algorithm::Tree(Tree::sorted(lens, root)),
        lanes => Algorithm::Lanes(Lanes::new(&setting.sites, root, lanes.strip_prefix("lanes-")?.parse().ok()?).ok()?),
    })
}

/// The byte at `at` of the block that `from` sends to `to`. Different blocks have different bytes, so that swapped
/// blocks are detected.
fn pattern(from: usize, to: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ from.wrapping_mul(131) ^ to.wrapping_mul(241).wrapping_add(at >> 8)) as u8
}

impl Operation for Collective {
    fn name(&self) -> String {
        format!("{}/{}", self.kind.name(), self.implementation)
    }

    fn flow(&self) -> Flow {
        match self.kind {
            Kind::Scatter | Kind::ScatterVarying | Kind::Broadcast => Flow::From(self.setting.root),
            Kind::Gather | Kind::GatherVarying | Kind::Reduce => Flow::To(self.setting.root),
            Kind::AllGather | Kind::AllGatherVarying | Kind::AllToAll | Kind::AllToAllVarying => Flow::Symmetric,
            Kind::AllReduce | Kind::ReduceScatter | Kind::ReduceScatterVarying => Flow::Symmetric,
            Kind::Scan | Kind::ExclusiveScan | Kind::Barrier => Flow::Symmetric,
        }
    }

    fn prepare(&mut self, comm: &Comm, block_bytes: usize) -> Result<()> {
        let (me, n, root) = (comm.rank(), comm.size(), self.setting.root);
        self.lens = self.kind.lens(block_bytes, n);
        self.how = self.algorithm();
        if let (Some(number), None) = (open_mpi::number(&self.implementation), &self.forced) {
            self.forced = Some(open_mpi::forced(comm, self.kind, number)?);
        }
        let block = |from: usize, to: usize, len: usize| (0..len).map(move |at| pattern(from, to, at));
        let lens = self.lens.clone();
        let to_all = || (0..n).flat_map(|to| block(me, to, lens[to])).collect::<Vec<_>>();
        let total: usize = lens.iter().sum();
        let mut set = Buffers::default();
        match self.kind {
            Kind::Scatter | Kind::ScatterVarying => {
                set.out = if me == root { to_all() } else { Vec::new() };
                set.into = vec![0; lens[me]];
            }
            Kind::Gather | Kind::GatherVarying => {
                set.out = block(me, root, lens[me]).collect();
                set.into = vec![0; if me == root { total } else { 0 }];
            }
            Kind::Broadcast => {
                set.into = if me == root { block(root, 0, block_bytes).collect() } else { vec![0; block_bytes] };
            }
            Kind::Reduce | Kind::AllReduce | Kind::Scan | Kind::ExclusiveScan => {
                set.numbers = (0..block_bytes / 8).map(|at| (me + at % 1000) as f64).collect();
                set.sums = vec![0.0; block_bytes / 8];
            }
            Kind::ReduceScatter => {
                set.numbers = (0..block_bytes / 8 * n).map(|at| (me + at % 1000) as f64).collect();
                // A tree needs room for the sums of all blocks.
                set.sums = vec![0.0; block_bytes / 8 * if self.tree(n).is_some() { n } else { 1 }];
            }
            Kind::ReduceScatterVarying => {
                self.lens.iter_mut().for_each(|len| *len /= 8); // numbers
                let all: usize = self.lens.iter().sum();
                set.numbers = (0..all).map(|at| (me + at % 1000) as f64).collect();
                set.sums = vec![0.0; if self.tree(n).is_some() { all } else { self.lens[me] }];
            }
            Kind::AllGather | Kind::AllGatherVarying => {
                set.out = block(me, 0, lens[me]).collect();
                set.into = vec![0; total];
            }
            Kind::AllToAll => {
                set.out = to_all();
                set.into = vec![0; total];
            }
            Kind::AllToAllVarying => {
                set.out = to_all();
                set.into = vec![0; n * lens[me]];
            }
            Kind::Barrier => {}
        }
        let bytes = set.out.len() + set.into.len() + 8 * (set.numbers.len() + set.sums.len());
        let sets = self.fresh_sets.min(FRESH_BYTES / bytes.max(4096)).clamp(1, 4096);
        self.sets = vec![set; sets];
        self.at = 0;
        Ok(())
    }

    fn freshen(&mut self) {
        self.at = (self.at + 1) % self.sets.len().max(1);
    }

    fn run(&mut self, comm: &Comm) -> Result<()> {
        let (n, root) = (comm.size(), self.setting.root);
        let tree = self.tree(n);
        let Some(set) = self.sets.get_mut(self.at) else { return Ok(()) };
        let comm = self.forced.as_ref().unwrap_or(comm);
        match (self.kind, &self.how, tree) {
            (Kind::Scatter | Kind::ScatterVarying, Some(how), _) => {
                super::scatter(comm, how, &set.out, &self.lens, &mut set.into, root)
            }
            (Kind::Gather | Kind::GatherVarying, Some(how), _) => {
                super::gather(comm, how, &set.out, &self.lens, &mut set.into, root)
            }
            (Kind::Broadcast, _, Some(tree)) => super::broadcast_along(comm, &tree, &mut set.into),
            (Kind::Broadcast, ..) => comm.broadcast(&mut set.into, root),
            (Kind::Reduce, _, Some(tree)) => super::reduce_along(comm, &tree, &set.numbers, &mut set.sums),
            (Kind::Reduce, ..) => comm.reduce_sum(&set.numbers, &mut set.sums, root),
            (Kind::AllReduce, _, Some(tree)) => {
                super::reduce_along(comm, &tree, &set.numbers, &mut set.sums)?;
                super::broadcast_along(comm, &tree, &mut set.sums)
            }
            (Kind::AllReduce, ..) if self.implementation == "recursive-doubling" => {
                super::all_reduce_doubling(comm, &set.numbers, &mut set.sums)
            }
            (Kind::AllReduce, ..) => comm.all_reduce_sum(&set.numbers, &mut set.sums),
            (Kind::ReduceScatter, _, Some(tree)) => {
                super::reduce_along(comm, &tree, &set.numbers, &mut set.sums)?;
                super::scatter_in_place_along(comm, &tree, &mut set.sums)
            }
            (Kind::ReduceScatter, ..) => comm.reduce_scatter_sum(&set.numbers, &mut set.sums),
            (Kind::ReduceScatterVarying, _, Some(tree)) => {
                super::reduce_scatter_varying_along(comm, &tree, &set.numbers, &self.lens, &mut set.sums)
            }
            (Kind::ReduceScatterVarying, ..) => {
                comm.reduce_scatter_varying_sum(&set.numbers, &self.lens, &mut set.sums)
            }
            (Kind::ExclusiveScan, _, Some(_)) => super::exclusive_scan_linear(comm, &set.numbers, &mut set.sums),
            (Kind::ExclusiveScan, ..) => comm.exclusive_scan_sum(&set.numbers, &mut set.sums),
            (Kind::Scan, _, Some(_)) => super::scan_linear(comm, &set.numbers, &mut set.sums),
            (Kind::Scan, ..) => comm.scan_sum(&set.numbers, &mut set.sums),
            (Kind::AllGather | Kind::AllGatherVarying, ..) if self.implementation == "gather-broadcast" => {
                let how = Algorithm::Tree(Tree::binomial_from(n, root));
                super::gather(comm, &how, &set.out, &self.lens, &mut set.into, root)?;
                super::broadcast_along(comm, &Tree::binomial_from(n, root), &mut set.into)
            }
            (Kind::AllGatherVarying, ..) => comm.all_gather_varying(&set.out, &self.lens, &mut set.into),
            (Kind::AllToAllVarying, _, Some(_)) => {
                super::all_to_all_varying_at_once(comm, &set.out, &self.lens, &mut set.into)
            }
            (Kind::AllToAllVarying, ..) => {
                let mine = vec![self.lens[comm.rank()]; n];
                comm.all_to_all_varying(&set.out, &self.lens, &mut set.into, &mine)
            }
            (Kind::AllGather, ..) => comm.all_gather(&set.out, &mut set.into),
            (Kind::AllToAll, _, Some(_)) => super::all_to_all_at_once(comm, &set.out, &mut set.into),
            (Kind::AllToAll, ..) => comm.all_to_all(&set.out, &mut set.into),
            (Kind::Barrier, ..) if self.implementation == "dissemination" => super::disseminate(comm),
            (Kind::Barrier, ..) => comm.barrier(),
            (Kind::Scatter | Kind::ScatterVarying | Kind::Gather | Kind::GatherVarying, None, _) => Ok(()),
        }
    }

    fn is_right(&self, comm: &Comm) -> bool {
        let (me, n, root) = (comm.rank(), comm.size(), self.setting.root);
        let Some(set) = self.sets.get(self.at) else { return false };
        let is = |found: &[u8], from: usize, to: usize| {
            found.iter().enumerate().all(|(at, &byte)| byte == pattern(from, to, at))
        };
        let all = |to: usize| {
            let mut rest = set.into.as_slice();
            rest.len() == self.lens.iter().sum::<usize>()
                && (0..n).all(|from| rest.split_off(..self.lens[from]).is_some_and(|block| is(block, from, to)))
        };
        match self.kind {
            Kind::Scatter | Kind::ScatterVarying => set.into.len() == self.lens[me] && is(&set.into, root, me),
            Kind::Gather | Kind::GatherVarying => me != root || all(root),
            Kind::Broadcast => set.into.len() == self.lens[me] && is(&set.into, root, 0),
            Kind::Reduce => {
                let sum = |at: usize| (0..n).map(|r| (r + at % 1000) as f64).sum::<f64>();
                me != root || set.sums.iter().enumerate().all(|(at, &found)| found == sum(at))
            }
            Kind::ExclusiveScan if me == 0 => true, // MPI does not define the result of rank 0
            Kind::AllReduce | Kind::ReduceScatter | Kind::ReduceScatterVarying | Kind::Scan | Kind::ExclusiveScan => {
                let (first, len) = match self.kind {
                    Kind::ReduceScatter => (set.numbers.len() / n * me, set.numbers.len() / n),
                    Kind::ReduceScatterVarying => (self.lens[..me].iter().sum(), self.lens[me]),
                    _ => (0, set.numbers.len()),
                };
                let ranks = match self.kind {
                    Kind::Scan => me + 1,
                    Kind::ExclusiveScan => me,
                    _ => n,
                };
                let sum = |at: usize| (0..ranks).map(|r| (r + at % 1000) as f64).sum::<f64>();
                set.sums.len() >= len && set.sums[..len].iter().zip(first..).all(|(&found, at)| found == sum(at))
            }
            Kind::AllGather | Kind::AllGatherVarying => all(0),
            Kind::AllToAllVarying => {
                let mut rest = set.into.as_slice();
                (0..n).all(|from| rest.split_off(..self.lens[me]).is_some_and(|block| is(block, from, me)))
            }
            Kind::AllToAll => all(me),
            Kind::Barrier => true,
        }
    }
}
