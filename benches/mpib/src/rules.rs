//! Writes measured choices as a rules file for Open MPI's `tuned` collectives: `mpirun --mca
//! coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE`.
//!
//! Open MPI compares the sizes in the file with a number of bytes that depends on the operation
//! (`coll_tuned_decision_dynamic.c`). For some operations, this number does not depend on the message. For scan and
//! exscan, and before version 5.0 for scatter and gather, the number is the size of one element times the number of
//! ranks. For barrier and alltoallv, the number is 0. For allgatherv, the number is all bytes or the mean block,
//! depending on the version. For these operations only one rule is written, for all sizes together
//! ([`crate::tune::Estimates::rule_for_all`]).

use crate::collectives::operation::Kind;
use crate::open_mpi;
use std::fmt::Write;

/// An operation that can have rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    kind: Kind,
    /// Open MPI's number of the operation in `coll_base_functions.h`.
    number: u32,
}

impl Collective {
    /// The collective of an operation or of one of its implementations, for example `scatter/binomial`.
    pub fn of(operation: &str) -> Option<Self> {
        let name = operation.split('/').next()?;
        let kind = crate::collectives::operation::KINDS.into_iter().find(|kind| kind.name() == name)?;
        let number = match kind {
            Kind::AllGather => 0,
            Kind::AllGatherVarying => 1,
            Kind::AllReduce => 2,
            Kind::AllToAll => 3,
            Kind::AllToAllVarying => 4,
            Kind::Barrier => 6,
            Kind::Broadcast => 7,
            Kind::ExclusiveScan => 8,
            Kind::Gather => 9,
            Kind::Reduce => 11,
            Kind::ReduceScatterVarying => 12, // MPI_Reduce_scatter
            Kind::ReduceScatter => 13,        // MPI_Reduce_scatter_block
            Kind::Scan => 14,
            Kind::Scatter => 15,
            Kind::ScatterVarying | Kind::GatherVarying => return None,
        };
        Some(Self { kind, number })
    }

    /// Whether this version of Open MPI, given by MPI_Get_library_version, uses one rule for all sizes. Returns false
    /// for other MPI libraries, which cannot use the file.
    pub fn has_one_rule(self, library: &str) -> bool {
        let version = library.split("Open MPI v").nth(1).and_then(|v| v.split('.').next()?.parse::<u32>().ok());
        let blocks = [Kind::AllGatherVarying, Kind::AllToAllVarying].contains(&self.kind);
        let always = blocks || [Kind::Barrier, Kind::Scan, Kind::ExclusiveScan].contains(&self.kind);
        let old = [Kind::Gather, Kind::Scatter].contains(&self.kind);
        version.is_some_and(|major| always || old && major < 5)
    }

    /// Open MPI's number of the algorithm of an implementation. For `native`, the number is 0, which lets Open MPI
    /// choose. `None` if Open MPI does not have the algorithm.
    pub fn algorithm(self, implementation: &str) -> Option<u32> {
        match (self.kind, implementation) {
            (_, "native") => Some(0),
            (Kind::AllToAll | Kind::Broadcast | Kind::Gather | Kind::Scatter, "linear") => Some(1),
            (Kind::Gather | Kind::Scatter, "binomial") => Some(2),
            (Kind::Broadcast, "binomial") => Some(6),
            (Kind::Scatter, "linear-nonblocking") => Some(3),
            (_, name) => open_mpi::number(name),
        }
    }

    /// The number of bytes that Open MPI compares, for blocks of `block_bytes` on `ranks` ranks.
    fn message_bytes(self, block_bytes: usize, ranks: usize) -> usize {
        match self.kind {
            Kind::AllToAll | Kind::AllGather | Kind::Gather | Kind::Scatter | Kind::ReduceScatter => {
                block_bytes.saturating_mul(ranks)
            }
            Kind::ReduceScatterVarying => self.kind.lens(block_bytes, ranks).into_iter().fold(0, usize::saturating_add),
            _ => block_bytes,
        }
    }
}

/// The algorithm for blocks of at least a certain size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The smallest block size of this rule.
    pub from_block_bytes: usize,
    /// Open MPI's number of the algorithm.
    pub algorithm: u32,
}

/// The rules of one operation for communicators of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The operation.
    pub collective: Collective,
    /// The number of ranks of the communicators.
    pub ranks: usize,
    /// The rules, in any order.
    pub rules: Vec<Rule>,
}

/// The content of the file. For a number of ranks that the file does not have, Open MPI uses the rules of the next
/// smaller number. If no number is smaller, Open MPI uses the rules of the smallest number.
pub fn write(mut chosen: Vec<Chosen>) -> String {
    chosen.sort_by_key(|c| (c.collective.number, c.ranks));
    let mut numbers: Vec<u32> = chosen.iter().map(|c| c.collective.number).collect();
    numbers.dedup();
    let mut out = format!("{} # number of collectives\n", numbers.len());
    for number in numbers {
        let sizes: Vec<&mut Chosen> = chosen.iter_mut().filter(|c| c.collective.number == number).collect();
        let name = sizes.first().map_or("", |c| c.collective.kind.name());
        // Writing to a String cannot fail.
        let _ = write!(out, "{number} # {name}\n{} # number of communicator sizes\n", sizes.len());
        for Chosen { collective, ranks, rules } in sizes {
            rules.sort_by_key(|r| r.from_block_bytes);
            rules.dedup_by(|next, before| next.algorithm == before.algorithm);
            if let Some(first) = rules.first_mut() {
                first.from_block_bytes = 0; // Open MPI needs a rule for every size
            }
            let _ = write!(out, "{ranks} # communicator size\n{} # number of message sizes\n", rules.len());
            for rule in rules {
                let bytes = collective.message_bytes(rule.from_block_bytes, *ranks);
                let _ = writeln!(
                    out,
                    "{bytes} {} 0 0 # from these bytes: algorithm, fan-out, segment size",
                    rule.algorithm
                );
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collective(name: &str) -> Collective {
        Collective::of(name).expect("has rules")
    }

    #[test]
    fn rules_of_several_operations_and_communicator_sizes_are_sorted_and_start_at_zero() {
        let rule = |from_block_bytes, algorithm| Rule { from_block_bytes, algorithm };
        let chosen = |name: &str, ranks, rules| Chosen { collective: collective(name), ranks, rules };
        let file = write(vec![
            chosen("scatter", 8, vec![rule(4096, 1), rule(16, 2), rule(64, 2), rule(8192, 1)]),
            chosen("broadcast", 8, vec![rule(1, 6)]),
            chosen("broadcast", 2, vec![rule(1, 1), rule(100, 3)]),
        ]);
        let bare: Vec<_> =
            file.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()).collect();
        let broadcast = ["7", "2", "2", "2", "0 1 0 0", "100 3 0 0", "8", "1", "0 6 0 0"];
        let scatter = ["15", "1", "8", "2", "0 2 0 0", "32768 1 0 0"];
        assert_eq!(bare, [&["2"][..], &broadcast, &scatter].concat(), "{file}");
        // Open MPI compares the bytes of all blocks: 0, 500, 1000 and 1500.
        let file = write(vec![chosen("reduce_scatterv", 4, vec![rule(0, 1), rule(1000, 3)])]);
        assert!(file.starts_with("1 # number of collectives\n12 # reduce_scatterv\n"), "{file}");
        assert!(file.contains("\n3000 3 0 0 #"), "{file}");
    }

    #[test]
    fn operations_whose_sizes_are_not_compared_have_one_rule() {
        let old = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022";
        let new = "Open MPI v5.0.3, package: Open MPI";
        for (name, is_one) in [
            ("scatter", (true, false)),
            ("gather", (true, false)),
            ("broadcast", (false, false)),
            ("alltoall", (false, false)),
            ("scan", (true, true)),
            ("exscan", (true, true)),
            ("reduce_scatterv", (false, false)),
            ("barrier", (true, true)),
        ] {
            let one = |library| collective(name).has_one_rule(library);
            assert_eq!((one(old), one(new)), is_one, "{name}");
            assert!(!one("MPICH Version: 4.0.2"));
        }
    }

    #[test]
    fn only_what_open_mpi_has_becomes_a_rule() {
        assert_eq!(collective("scatter/lanes-3"), collective("scatter"));
        assert_eq!(collective("scatter").algorithm("lanes-3"), None);
        assert_eq!(collective("gather").algorithm("linear-nonblocking"), None);
        assert_eq!(collective("broadcast").algorithm("binomial"), Some(6));
        assert_eq!(collective("allreduce").algorithm("recursive-doubling"), None, "measured is not Open MPI's own");
        assert_eq!(collective("allreduce").algorithm("open-mpi-4"), Some(4));
        assert_eq!(Collective::of("scatterv"), None);
    }
}
