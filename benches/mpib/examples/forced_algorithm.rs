//! Shows that Open MPI really uses a forced algorithm, and only on the communicator for which the algorithm was
//! forced. The sign is an error: the algorithm `two_proc` of MPI_Allgather refuses three ranks.
//!
//! ```text
//! mpirun -n 3 target/debug/examples/forced_algorithm
//! ```

use mpib::collectives::operation::Kind;
use mpib::comm::Comm;
use mpib::open_mpi;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    open_mpi::allow_forcing(); // before MPI starts
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let comm = Comm::of(&universe.world())?;
    if open_mpi::algorithms(Kind::AllGather, 2).is_empty() {
        if comm.rank() == 0 {
            println!("no algorithms can be forced");
        }
        return Ok(());
    }
    let mine = [comm.rank() as u8; 8];
    let all_gather = |comm: &Comm| comm.all_gather(&mine, &mut vec![0; 8 * comm.size()]);
    let mut lines = Vec::new();
    // The list of algorithms for two ranks includes `two_proc`.
    for algorithm in open_mpi::algorithms(Kind::AllGather, 2) {
        let forced = open_mpi::forced(&comm, Kind::AllGather, algorithm.number.unsigned_abs())?;
        let result = all_gather(&forced).map_or_else(|error| error.to_string(), |()| "moves the bytes".into());
        lines.push(format!("{} {}: {result}", algorithm.number, algorithm.name));
    }
    all_gather(&comm)?;
    lines.push("not forced: moves the bytes".into());
    if comm.rank() == 0 {
        println!("{}", lines.join("\n"));
    }
    comm.barrier()?;
    Ok(())
}
