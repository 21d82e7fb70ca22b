//! Writes measured choices as a rules file for Open MPI's `tuned` collectives: `mpirun --mca
//! coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE`.
//!
//! For scatter and gather, Open MPI up to at least 4.1 compares the sizes in the file with the size of one element
//! times the number of ranks, and not with the bytes of the message (`coll_tuned_decision_dynamic.c`). Version 5.0
//! includes the number of elements. In the older versions, only the rule of the smallest size has an effect, in any
//! format of the file. So for the older versions only one rule is written, for all sizes together
//! ([`crate::tune::Estimates::rule_for_all`]).

use std::fmt::Write;

/// A collective operation with its number in Open MPI's `coll_base_functions.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collective {
    /// Number 3.
    AllToAll,
    /// 7
    Broadcast,
    /// 9
    Gather,
    /// 15
    Scatter,
}

impl Collective {
    /// The collective with the given name, for example `scatter/binomial`.
    pub fn of(operation: &str) -> Option<Self> {
        match operation.split('/').next()? {
            "alltoall" => Some(Self::AllToAll),
            "broadcast" => Some(Self::Broadcast),
            "gather" => Some(Self::Gather),
            "scatter" => Some(Self::Scatter),
            _ => None,
        }
    }

    /// Whether this version of Open MPI, given by MPI_Get_library_version, ignores the number of elements in the
    /// comparison. Returns false for other MPI libraries, which cannot use the file.
    pub fn ignores_counts(self, library: &str) -> bool {
        let version = library.split("Open MPI v").nth(1).and_then(|v| v.split('.').next()?.parse::<u32>().ok());
        matches!(self, Self::Gather | Self::Scatter) && version.is_some_and(|major| major < 5)
    }

    fn number(self) -> u32 {
        match self {
            Self::AllToAll => 3,
            Self::Broadcast => 7,
            Self::Gather => 9,
            Self::Scatter => 15,
        }
    }

    /// Open MPI's number of the algorithm of an implementation. For `native`, the number is 0, which lets Open MPI
    /// choose. `None` if Open MPI does not have the algorithm.
    pub fn algorithm(self, implementation: &str) -> Option<u32> {
        match (self, implementation) {
            (_, "native") => Some(0),
            (Self::AllToAll | Self::Broadcast | Self::Gather | Self::Scatter, "linear") => Some(1),
            (Self::Gather | Self::Scatter, "binomial") => Some(2),
            (Self::Broadcast, "binomial") => Some(6),
            (Self::Scatter, "linear-nonblocking") => Some(3),
            _ => None,
        }
    }

    /// The number of bytes that Open MPI compares, for blocks of `block_bytes` on `ranks` ranks.
    fn message_bytes(self, block_bytes: usize, ranks: usize) -> usize {
        match self {
            Self::Broadcast => block_bytes,
            Self::AllToAll | Self::Gather | Self::Scatter => block_bytes.saturating_mul(ranks),
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

/// The content of the file for one communicator size. Open MPI also uses these rules for all other communicator
/// sizes.
pub fn write(ranks: usize, mut chosen: Vec<(Collective, Vec<Rule>)>) -> String {
    chosen.sort_by_key(|(collective, _)| collective.number());
    let mut out = format!("{} # number of collectives\n", chosen.len());
    for (collective, rules) in &mut chosen {
        rules.sort_by_key(|r| r.from_block_bytes);
        rules.dedup_by(|next, before| next.algorithm == before.algorithm);
        if let Some(first) = rules.first_mut() {
            first.from_block_bytes = 0; // Open MPI needs a rule for every size
        }
        let name = format!("{collective:?}").to_lowercase();
        // Writing to a String cannot fail.
        let _ = write!(out, "{} # {name}\n1 # number of communicator sizes\n", collective.number());
        if matches!(collective, Collective::Gather | Collective::Scatter) && rules.len() > 1 {
            out += "# Open MPI before 5.0 ignores the count here, and follows the first rule for every size\n";
        }
        let _ = write!(out, "{ranks} # communicator size\n{} # number of message sizes\n", rules.len());
        for rule in rules {
            let bytes = collective.message_bytes(rule.from_block_bytes, ranks);
            let _ =
                writeln!(out, "{bytes} {} 0 0 # from these bytes: algorithm, fan-out, segment size", rule.algorithm);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_merged_sorted_and_start_at_zero() {
        let rule = |from_block_bytes, algorithm| Rule { from_block_bytes, algorithm };
        let file = write(
            8,
            vec![
                (Collective::Scatter, vec![rule(4096, 1), rule(16, 2), rule(64, 2), rule(8192, 1)]),
                (Collective::Broadcast, vec![rule(1, 6)]),
            ],
        );
        let bare: Vec<_> =
            file.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()).collect();
        assert_eq!(bare, ["2", "7", "1", "8", "1", "0 6 0 0", "15", "1", "8", "2", "0 2 0 0", "32768 1 0 0"], "{file}");
    }

    #[test]
    fn versions_that_ignore_counts_are_known() {
        let old = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022";
        assert!(Collective::Scatter.ignores_counts(old) && Collective::Gather.ignores_counts(old));
        assert!(!Collective::Broadcast.ignores_counts(old) && !Collective::AllToAll.ignores_counts(old));
        assert!(!Collective::Scatter.ignores_counts("Open MPI v5.0.3, package: Open MPI"));
        assert!(!Collective::Scatter.ignores_counts("MPICH Version: 4.0.2"));
    }

    #[test]
    fn only_what_open_mpi_has_becomes_a_rule() {
        assert_eq!(Collective::of("scatter/lanes-3"), Some(Collective::Scatter));
        assert_eq!(Collective::Scatter.algorithm("lanes-3"), None);
        assert_eq!(Collective::Gather.algorithm("linear-nonblocking"), None);
        assert_eq!(Collective::Broadcast.algorithm("binomial"), Some(6));
        assert_eq!(Collective::of("barrier"), None);
    }
}
