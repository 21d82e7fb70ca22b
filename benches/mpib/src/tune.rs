//! Finds and uses the fastest implementation for each message size. `Opt_Scatter` of the original library, MPIBlib,
//! does the same for scatter.

use crate::collectives::operation::{self, Collective, Kind, Operation, Setting, SettingError};
use crate::collectives::{self, Algorithm, Element, Result};
use crate::comm::{Comm, CommError, in_bytes};
use crate::models::lanes::{Direction, MARGIN};
use crate::open_mpi;
use crate::origin::{Misfit, Origin};
use crate::pathfinder::{PathError, measure_paths};
use crate::rules::{Chosen, Collective as Ruled, Rule};
use crate::sizes::interpolate;
use crate::stats::Summary;
use crate::timing::{Timer, Timing};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Times of several implementations of one operation at several sizes. The times can be stored as JSON for the next
/// run. [`Optimal`] refuses estimates that do not fit its run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimates {
    /// The operation, for example `scatter`.
    pub operation: String,
    /// For each implementation: its name, and pairs of block size in bytes and time in seconds, in ascending order of
    /// sizes.
    pub curves: Vec<(String, Vec<(usize, f64)>)>,
    /// The run that measured these times.
    pub origin: Origin,
}

impl Estimates {
    /// The implementation with the smallest time at `block_bytes`, interpolated linearly between the measured sizes.
    /// MPIBlib took the best implementation at the next smaller size, which is wrong after a crossing of the curves.
    pub fn best(&self, block_bytes: usize) -> Option<&str> {
        let time = |curve: &[(usize, f64)]| interpolate(curve, block_bytes);
        self.curves
            .iter()
            .filter(|(_, curve)| !curve.is_empty())
            .min_by(|(_, a), (_, b)| time(a).total_cmp(&time(b)))
            .map(|(name, _)| name.as_str())
    }

    /// Sizes halfway between two measured sizes that have different best implementations. One more measurement is
    /// most useful at these sizes.
    pub fn doubtful_sizes(&self, min_gap_bytes: usize) -> Vec<usize> {
        let sizes: Vec<_> = self.curves.first().map(|(_, c)| c.iter().map(|p| p.0).collect()).unwrap_or_default();
        let doubtful = |w: &&[usize]| w[1] - w[0] >= 2 * min_gap_bytes.max(1) && self.best(w[0]) != self.best(w[1]);
        sizes.windows(2).filter(doubtful).map(|w| w[0] + (w[1] - w[0]) / 2).collect()
    }

    /// The estimates of the implementations that Open MPI has. If Open MPI's own algorithms were measured, only these
    /// algorithms and `native` are kept, without this library's implementations of the same algorithms.
    fn known_to(&self, collective: Ruled) -> Self {
        let own = self.curves.iter().any(|(name, _)| open_mpi::number(name).is_some());
        let has = |(name, _): &&(String, _)| {
            let counts = !own || name == "native" || open_mpi::number(name).is_some();
            counts && collective.algorithm(name).is_some()
        };
        let curves = self.curves.iter().filter(has).cloned().collect();
        Self { operation: self.operation.clone(), curves, origin: self.origin.clone() }
    }

    /// Rules for communicators of `ranks` ranks, from the implementations that this version of Open MPI has. `None`
    /// if the operation has no rules or no such implementation was measured.
    pub fn chosen(&self, ranks: usize, library: &str) -> Option<Chosen> {
        let collective = Ruled::of(&self.operation)?;
        let rules = if collective.has_one_rule(library) { self.rule_for_all() } else { self.rules() };
        Some(Chosen { collective, ranks, rules: rules.filter(|rules| !rules.is_empty())? })
    }

    /// One rule for operations of which Open MPI does not compare the sizes: the implementation with the smallest
    /// mean slowdown, relative to the best implementation at each size.
    pub fn rule_for_all(&self) -> Option<Vec<Rule>> {
        let collective = Ruled::of(&self.operation)?;
        let known = self.known_to(collective);
        let slower = |(_, curve): &&(String, Vec<(usize, f64)>)| -> f64 {
            let best = |size| known.curves.iter().map(|(_, c)| interpolate(c, size)).fold(f64::INFINITY, f64::min);
            curve.iter().map(|&(size, time)| (time / best(size)).ln()).sum::<f64>()
        };
        let (name, _) = known.curves.iter().min_by(|a, b| slower(a).total_cmp(&slower(b)))?;
        Some(vec![Rule { from_block_bytes: 0, algorithm: collective.algorithm(name)? }])
    }

    /// Rules for Open MPI, from the implementations that Open MPI has.
    pub fn rules(&self) -> Option<Vec<Rule>> {
        let collective = Ruled::of(&self.operation)?;
        let known = self.known_to(collective);
        let sizes = known.curves.first()?.1.iter().map(|p| p.0);
        let rule = |size| Some(Rule { from_block_bytes: size, algorithm: collective.algorithm(known.best(size)?)? });
        Some(sizes.filter_map(rule).collect())
    }
}

/// The implementations to compare.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    /// The operation.
    pub kind: Kind,
    /// Names of the implementations.
    pub names: &'a [String],
    /// Root and sites.
    pub setting: &'a Setting,
}

/// Name, block size and times of all measurements, sorted by name and size.
pub type Measured = Vec<(String, usize, Summary)>;

/// Measures all candidates at `sizes`, and then between sizes with different best implementations, in at most
/// `rounds` rounds. All ranks must call this function.
pub fn estimate(
    comm: &Comm,
    timer: &mut Timer,
    of: Candidates<'_>,
    sizes: &[usize],
    how: &Timing,
    rounds: usize,
) -> Result<(Estimates, Measured), TuneError> {
    let Candidates { kind, names, setting } = of;
    let curves = names.iter().map(|n| (n.clone(), Vec::new())).collect();
    let mut estimates = Estimates { operation: kind.name().into(), curves, origin: Origin::of(comm, setting)? };
    // A forced algorithm of Open MPI needs a communicator, so each operation is created only once.
    let create =
        |name: &String| Ok(Collective::new(kind, name, setting, comm.size())?.with_fresh_buffers(how.fresh_buffers));
    let mut operations = names.iter().map(create).collect::<Result<Vec<_>, SettingError>>()?;
    let mut all = Vec::new();
    let mut next = sizes.to_vec();
    for _ in 0..=rounds {
        for &size in &next {
            // All implementations are measured at one size before the next size, so that a disturbance affects all
            // implementations.
            for ((_, curve), operation) in estimates.curves.iter_mut().zip(&mut operations) {
                let summary = timer.measure(operation, size, how)?;
                let mut wrong = [f64::from(u8::from(!operation.check(comm)?))];
                comm.all_max(&mut wrong)?;
                if wrong[0] != 0.0 {
                    return Err(TuneError::Wrong { operation: operation.name(), block_bytes: size });
                }
                curve.push((size, summary.value(how.rule.estimate)));
                all.push((operation.name(), size, summary));
                operation.prepare(comm, 0)?; // frees the buffers
            }
        }
        estimates.curves.iter_mut().for_each(|(_, curve)| curve.sort_by_key(|p| p.0));
        next = estimates.doubtful_sizes(64);
        if next.is_empty() {
            break;
        }
    }
    all.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    Ok((estimates, all))
}

/// The reason why there are no estimates, or why estimates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// MPI failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The caller's input is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The links between two sites cannot be measured.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The estimates were measured in a run of another kind.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The estimates are of another operation.
    #[error("these are estimates of {found:?}; estimates of {needed:?} are needed")]
    Operation {
        /// The operation of the estimates.
        found: String,
        /// The operation that is needed.
        needed: &'static str,
    },
    /// An implementation moved wrong bytes. All ranks get this error.
    #[error("{operation} with {block_bytes} bytes: wrong bytes; leave it out with --impl")]
    Wrong {
        /// The operation and its implementation.
        operation: String,
        /// Bytes of a block.
        block_bytes: usize,
    },
}

/// A scatter and a gather that use the fastest implementation for each size, for blocks of elements of any type.
pub struct Optimal {
    /// Estimates of scatter and gather. Without estimates, the measured links choose ([`operation::AUTO`]).
    estimates: Option<[Estimates; 2]>,
    setting: Setting,
    ranks: usize,
    /// The algorithms for blocks of equal length, by direction and block size in bytes, because creating an algorithm
    /// may take longer than a short operation.
    known: Mutex<BTreeMap<(Direction, usize), Arc<Algorithm>>>,
}

/// Maximum number of algorithms that an [`Optimal`] keeps.
const KNOWN_MAX: usize = 256;

impl Optimal {
    /// Uses estimates that were measured now or stored by an earlier run. Estimates are refused if they do not fit
    /// this run ([`Origin::fits`]), or if they name an implementation that does not exist here. Algorithms that Open
    /// MPI must be forced to use (`open-mpi-1` and so on) are ignored.
    ///
    /// All ranks must call this function with the same setting. The estimates of rank 0 count on all ranks, so only
    /// rank 0 needs to read a file; the other ranks may pass [`Estimates::default`].
    pub fn new(comm: &Comm, scatter: Estimates, gather: Estimates, setting: Setting) -> Result<Self, TuneError> {
        let here = Origin::of(comm, &setting)?;
        let told = |error: serde_json::Error| CommError::Told(format!("estimates: {error}"));
        let mut text = serde_json::to_vec(&[scatter, gather]).map_err(told)?;
        text = comm.all_bytes(if comm.rank() == 0 { &text } else { &[] })?.swap_remove(0);
        let mut estimates: [Estimates; 2] = serde_json::from_slice(&text).map_err(told)?;
        for (estimates, kind) in estimates.iter_mut().zip([Kind::Scatter, Kind::Gather]) {
            if estimates.operation != kind.name() {
                return Err(TuneError::Operation { found: estimates.operation.clone(), needed: kind.name() });
            }
            estimates.origin.fits(&here)?;
            estimates.curves.retain(|(name, _)| open_mpi::number(name).is_none());
            for (name, _) in &estimates.curves {
                Collective::new(kind, name, &setting, comm.size())?;
            }
        }
        Ok(Self { estimates: Some(estimates), setting, ranks: comm.size(), known: Mutex::default() })
    }

    /// The multi-lane algorithm between two sites (T. Chiba, T. Endo, S. Matsuoka): measures the links, and chooses
    /// the number of lanes for each size by the model of the links. `sites` has the site of each rank, for example
    /// from [`crate::sites::find`]. The bandwidths are measured with messages of `bytes` bytes, which should be about
    /// as long as a block, and with `reps` repetitions (usually [`crate::pathfinder::RATE_REPS`]). All ranks must call
    /// this function with the same arguments.
    pub fn auto(comm: &Comm, sites: &[usize], root: usize, bytes: usize, reps: usize) -> Result<Self, PathError> {
        let paths = Some(measure_paths(comm, sites, root, bytes, reps)?);
        let setting = Setting { root, sites: sites.to_vec(), paths, ..Setting::default() };
        Ok(Self { estimates: None, setting, ranks: comm.size(), known: Mutex::default() })
    }

    /// The root, the sites, and the measured links.
    pub fn setting(&self) -> &Setting {
        &self.setting
    }

    /// The name of the implementation for blocks of this length, for example `binomial` or `lanes-4`.
    pub fn implementation(&self, direction: Direction, block_bytes: usize) -> String {
        let name = match &self.estimates {
            Some([scatter, gather]) => {
                let estimates = if direction == Direction::Scatter { scatter } else { gather };
                estimates.best(block_bytes).unwrap_or("native")
            }
            None => operation::AUTO,
        };
        match &self.setting.paths {
            Some(paths) if name == operation::AUTO => paths.choose(direction, block_bytes, MARGIN).name(),
            _ => name.into(),
        }
    }

    /// Replaces MPI_Scatter, with blocks of equal length. At the root, `blocks` is as many times as long as `mine` as
    /// there are ranks.
    pub fn scatter<T: Element>(&self, comm: &Comm, blocks: &[T], mine: &mut [T]) -> Result<()> {
        let how = self.for_equal(Direction::Scatter, size_of_val(mine));
        collectives::scatter(comm, &how, blocks, &vec![mine.len(); comm.size()], mine, self.setting.root)
    }

    /// Replaces MPI_Gather, with blocks of equal length.
    pub fn gather<T: Element>(&self, comm: &Comm, mine: &[T], blocks: &mut [T]) -> Result<()> {
        let how = self.for_equal(Direction::Gather, size_of_val(mine));
        collectives::gather(comm, &how, mine, &vec![mine.len(); comm.size()], blocks, self.setting.root)
    }

    /// Replaces MPI_Scatterv: rank r gets `lens[r]` elements. Every rank must know all lengths. The implementation is
    /// chosen by the mean length.
    pub fn scatter_varying<T: Element>(&self, comm: &Comm, blocks: &[T], lens: &[usize], mine: &mut [T]) -> Result<()> {
        let how = self.create(Direction::Scatter, &in_bytes::<T>(lens));
        collectives::scatter(comm, &how, blocks, lens, mine, self.setting.root)
    }

    /// The inverse of [`Optimal::scatter_varying`]; replaces MPI_Gatherv.
    pub fn gather_varying<T: Element>(&self, comm: &Comm, mine: &[T], lens: &[usize], blocks: &mut [T]) -> Result<()> {
        let how = self.create(Direction::Gather, &in_bytes::<T>(lens));
        collectives::gather(comm, &how, mine, lens, blocks, self.setting.root)
    }

    fn for_equal(&self, direction: Direction, block_bytes: usize) -> Arc<Algorithm> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX && !known.contains_key(&(direction, block_bytes)) {
            known.clear();
        }
        let create = || Arc::new(self.create(direction, &vec![block_bytes; self.ranks]));
        Arc::clone(known.entry((direction, block_bytes)).or_insert_with(create))
    }

    /// The algorithm for blocks of these lengths in bytes.
    fn create(&self, direction: Direction, lens: &[usize]) -> Algorithm {
        let mean = lens.iter().sum::<usize>().div_ceil(lens.len().max(1));
        let name = self.implementation(direction, mean);
        // `new` and `auto` have rejected all names without an algorithm but `native`.
        operation::named(&name, direction, lens, &self.setting).unwrap_or(Algorithm::Native)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_between_sizes_are_never_more_than_5_percent_slower_than_the_best_fixed_choice() {
        // Binomial is best for short blocks, linear for long blocks, and one curve has a jump at its rendezvous size.
        type Curve = (&'static str, fn(f64) -> f64);
        let truth: [Curve; 3] = [
            ("linear", |m| 7.0e-5 + 7.0 * m * 1e-9),
            ("binomial", |m| 3.0e-5 + 12.0 * m * 1e-9),
            ("native", |m| if m < 5000.0 { 4.5e-5 + 7.5 * m * 1e-9 } else { 9e-5 + 7.5 * m * 1e-9 }),
        ];
        let curve = |time: fn(f64) -> f64, sizes: &[usize]| sizes.iter().map(|&s| (s, time(s as f64))).collect();
        let mut sizes = crate::sizes::powers_of_two(0, 1 << 20);
        let mut found = Estimates::default();
        for _ in 0..8 {
            found.curves = truth.iter().map(|(name, time)| (name.to_string(), curve(*time, &sizes))).collect();
            let more = found.doubtful_sizes(64);
            sizes.extend(more);
            sizes.sort_unstable();
        }
        let mut worst: f64 = 1.0;
        for size in (0..1 << 20).step_by(97) {
            let chosen = found.best(size).expect("three curves");
            let time = |name: &str| truth.iter().find(|t| t.0 == name).expect("a curve").1(size as f64);
            let best = truth.iter().map(|t| t.1(size as f64)).fold(f64::MAX, f64::min);
            worst = worst.max(time(chosen) / best);
        }
        assert!(worst <= 1.05, "{worst}");
        assert_eq!((found.best(0), found.best(1 << 20)), (Some("binomial"), Some("linear")));
    }

    #[test]
    fn stored_estimates_without_their_origin_are_refused() {
        let stored = serde_json::to_value(Estimates::default()).expect("JSON");
        assert!(serde_json::from_value::<Estimates>(stored.clone()).is_ok());
        let mut old = stored;
        old.as_object_mut().expect("an object").remove("origin");
        let error = serde_json::from_value::<Estimates>(old).expect_err("the file of an earlier version");
        assert!(error.to_string().contains("origin"), "{error}");
    }

    #[test]
    fn rules_name_only_what_open_mpi_can_do() {
        let estimates = Estimates {
            operation: "scatter".into(),
            curves: vec![
                ("lanes-2".into(), vec![(0, 1.0), (1024, 1.0)]),
                ("linear".into(), vec![(0, 9.0), (1024, 2.0)]),
                ("binomial".into(), vec![(0, 8.0), (1024, 3.0)]),
            ],
            origin: Origin::default(),
        };
        let numbers = |rules: Vec<Rule>| rules.iter().map(|r| (r.from_block_bytes, r.algorithm)).collect::<Vec<_>>();
        assert_eq!(numbers(estimates.rules().expect("scatter has rules")), [(0, 2), (1024, 1)]);
        // At the two sizes, linear takes 9/8 and 1 times the time of the best implementation, and binomial takes 1
        // and 3/2 times.
        assert_eq!(numbers(estimates.rule_for_all().expect("scatter has rules")), [(0, 1)]);
        let mut own = estimates;
        own.curves.push(("open-mpi-3".into(), vec![(0, 20.0), (1024, 20.0)]));
        assert_eq!(numbers(own.rules().expect("rules")), [(0, 3), (1024, 3)], "only Open MPI's own algorithms count");
        let old = own.chosen(4, "Open MPI v4.1.4, package").expect("rules");
        assert_eq!((old.ranks, numbers(old.rules)), (4, vec![(0, 3)]));
    }
}
