//! Finds and uses the fastest implementation for each message size. `Opt_Scatter` of the original library, MPIBlib,
//! does the same for scatter.

use crate::collectives::operation::{self, Collective, Kind, Operation, Setting, SettingError};
use crate::collectives::{self, Algorithm, Result};
use crate::comm::Comm;
use crate::models::lanes::Direction;
use crate::open_mpi;
use crate::rules::{Chosen, Collective as Ruled, Rule};
use crate::sizes::interpolate;
use crate::stats::Summary;
use crate::timing::{Timer, Timing};
use serde::{Deserialize, Serialize};

/// Times of several implementations of one operation at several sizes. The times can be stored as JSON for the next
/// run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimates {
    /// The operation, for example `scatter`.
    pub operation: String,
    /// For each implementation: its name, and pairs of block size in bytes and time in seconds, in ascending order of
    /// sizes.
    pub curves: Vec<(String, Vec<(usize, f64)>)>,
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
        Self { operation: self.operation.clone(), curves: self.curves.iter().filter(has).cloned().collect() }
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
    let mut estimates =
        Estimates { operation: kind.name().into(), curves: names.iter().map(|n| (n.clone(), Vec::new())).collect() };
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

/// The reason why there are no estimates.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// MPI failed.
    #[error(transparent)]
    Comm(#[from] crate::comm::CommError),
    /// The caller's input is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// An implementation moved wrong bytes. All ranks get this error.
    #[error("{operation} with {block_bytes} bytes: wrong bytes; leave it out with --impl")]
    Wrong {
        /// The operation and its implementation.
        operation: String,
        /// Bytes of a block.
        block_bytes: usize,
    },
}

/// A scatter and a gather that use the fastest implementation for each size.
pub struct Optimal {
    scatter: Estimates,
    gather: Estimates,
    setting: Setting,
}

impl Optimal {
    /// Uses estimates that were measured now or stored by an earlier run.
    pub fn new(scatter: Estimates, gather: Estimates, setting: Setting) -> Self {
        Self { scatter, gather, setting }
    }

    /// Replaces MPI_Scatter, with blocks of equal length.
    pub fn scatter(&self, comm: &Comm, blocks: &[u8], mine: &mut [u8]) -> Result<()> {
        let lens = vec![mine.len(); comm.size()];
        collectives::scatter(
            comm,
            &self.algorithm(Direction::Scatter, &self.scatter, &lens),
            blocks,
            &lens,
            mine,
            self.setting.root,
        )
    }

    /// Replaces MPI_Gather, with blocks of equal length.
    pub fn gather(&self, comm: &Comm, mine: &[u8], blocks: &mut [u8]) -> Result<()> {
        let lens = vec![mine.len(); comm.size()];
        collectives::gather(
            comm,
            &self.algorithm(Direction::Gather, &self.gather, &lens),
            mine,
            &lens,
            blocks,
            self.setting.root,
        )
    }

    fn algorithm(&self, direction: Direction, estimates: &Estimates, lens: &[usize]) -> Algorithm {
        let (ranks, root) = (lens.len(), self.setting.root);
        let name = estimates.best(lens[root]).unwrap_or("native");
        operation::named(name, direction, lens, &self.setting).unwrap_or_else(|| {
            debug_assert!(name == "native", "{name} of {ranks} ranks");
            Algorithm::Native
        })
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
    fn rules_name_only_what_open_mpi_can_do() {
        let estimates = Estimates {
            operation: "scatter".into(),
            curves: vec![
                ("lanes-2".into(), vec![(0, 1.0), (1024, 1.0)]),
                ("linear".into(), vec![(0, 9.0), (1024, 2.0)]),
                ("binomial".into(), vec![(0, 8.0), (1024, 3.0)]),
            ],
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
