//! Open MPI's own algorithms of its component `tuned`, by their numbers.
//!
//! A communicator has the algorithm that the variable `coll_tuned_OPERATION_algorithm` names when the communicator is
//! made. So a program can force an algorithm while it runs: it sets the variable by MPI_T, duplicates the
//! communicator, and resets the variable.

use crate::collectives::Result;
use crate::collectives::kind::Kind;
use crate::comm::control::{Control, Value, set_variable_alone};
use crate::comm::{Comm, CommError};

/// Prefix of the names of these implementations. The number of the algorithm follows.
pub const PREFIX: &str = "open-mpi-";

/// The operation's name in Open MPI's variables. `None` if Open MPI has only one algorithm.
fn variable(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Scatter => "scatter",
        Kind::Gather => "gather",
        Kind::Broadcast => "bcast",
        Kind::Reduce => "reduce",
        Kind::AllGather => "allgather",
        Kind::AllGatherVarying => "allgatherv",
        Kind::AllToAll => "alltoall",
        Kind::AllToAllVarying => "alltoallv",
        Kind::AllReduce => "allreduce",
        Kind::ReduceScatter => "reduce_scatter_block",
        Kind::ReduceScatterVarying => "reduce_scatter",
        Kind::Scan => "scan",
        Kind::ExclusiveScan => "exscan",
        Kind::Barrier => "barrier",
        Kind::ScatterVarying | Kind::GatherVarying => return None,
    })
}

fn control(kind: Kind) -> Option<Control> {
    Control::find(&format!("coll_tuned_{}_algorithm", variable(kind)?))
}

/// The algorithms of this MPI library for an operation on `ranks` ranks. Empty if the library is not Open MPI, or if
/// this version cannot change the operation's variable while a program runs (Open MPI 4.1: allgatherv).
pub fn algorithms(kind: Kind, ranks: usize) -> Vec<Value> {
    let writable = control(kind).filter(Control::is_writable);
    let values = writable.map(|control| control.values().to_vec()).unwrap_or_default();
    values.into_iter().filter(|v| v.number > 0 && (ranks == 2 || !v.name.starts_with("two_proc"))).collect()
}

/// The names of these algorithms as implementations, for example `open-mpi-6`.
pub fn implementations(kind: Kind, ranks: usize) -> Vec<String> {
    algorithms(kind, ranks).iter().map(|v| format!("{PREFIX}{}", v.number)).collect()
}

/// The number in the name of an implementation of this module.
pub fn number(implementation: &str) -> Option<u32> {
    implementation.strip_prefix(PREFIX)?.parse().ok()
}

/// The variable without which Open MPI ignores forced algorithms. Open MPI reads this variable only once.
const DYNAMIC_RULES: &str = "coll_tuned_use_dynamic_rules";

/// Lets this process force algorithms. Call this function before MPI starts and before other threads start. Without a
/// forced algorithm or a rules file, Open MPI's decisions are not changed.
pub fn allow_forcing() {
    let name = format!("OMPI_MCA_{DYNAMIC_RULES}");
    if std::env::var_os(&name).is_none() {
        set_variable_alone(&name, "1");
    }
}

/// A duplicate of the communicator on which the operation has this algorithm. All ranks must call this function. If a
/// rank cannot force the algorithm, all ranks get an error.
pub fn forced(comm: &Comm, kind: Kind, algorithm: u32) -> Result<Comm> {
    let set = || -> std::result::Result<(Control, i32), String> {
        let allowed = Control::find(DYNAMIC_RULES).and_then(|rules| rules.read().ok());
        if allowed != Some(1) {
            return Err(format!(
                "{PREFIX}{algorithm} needs Open MPI with OMPI_MCA_{DYNAMIC_RULES}=1 in the environment"
            ));
        }
        let control = control(kind).ok_or_else(|| format!("Open MPI has no algorithms for {}", kind.name()))?;
        let failed = |error: CommError| format!("{} of {PREFIX}{algorithm}: {error}", kind.name());
        let old = control.read().map_err(failed)?;
        control.write(i32::try_from(algorithm).unwrap_or(i32::MAX)).map_err(failed)?;
        Ok((control, old))
    };
    let (control, old) = comm.agree(set())?;
    let made = comm.duplicate();
    control.write(old)?;
    made
}
