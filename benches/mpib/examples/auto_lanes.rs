//! Scatters and gathers numbers between two sites. The number of lanes is chosen for each size by the measured links.
//!
//!     mpirun -n 8 target/debug/examples/auto_lanes 0-3/4-7
//!
//! Without an argument, the sites are found by round trips.

use mpib::comm::Comm;
use mpib::models::lanes::Direction;
use mpib::pathfinder::RATE_REPS;
use mpib::sites;
use mpib::tune::Optimal;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let comm = Comm::of(&universe.world())?;
    let (me, n, root) = (comm.rank(), comm.size(), 0);
    let sites = match std::env::args().nth(1) {
        Some(text) => sites::from_ranks(&text, n)?,
        None => sites::find(&comm)?,
    };
    let lanes = Optimal::auto(&comm, &sites, root, 256 << 10, RATE_REPS)?;

    for len in [1, 1000, 100_000] {
        let all: Vec<f64> = (0..len * n).map(|at| at as f64 / 3.0).collect();
        let blocks = if me == root { all.as_slice() } else { &[] };
        let mut mine = vec![0.0; len];
        lanes.scatter(&comm, blocks, &mut mine)?;
        if mine != all[me * len..][..len] {
            return Err(format!("rank {me} has a wrong block of {len} numbers").into());
        }
        let mut back = vec![0.0; blocks.len()];
        lanes.gather(&comm, &mine, &mut back)?;
        if back != blocks {
            return Err(format!("{len} numbers of each rank did not come back as they were").into());
        }
        if me == root {
            let [out, home] = [Direction::Scatter, Direction::Gather].map(|way| lanes.implementation(way, 8 * len));
            println!("{len} numbers of each rank: scattered by {out}, gathered by {home}");
        }
    }

    // Blocks of different lengths: rank r has r numbers.
    let lens: Vec<usize> = (0..n).collect();
    let all: Vec<u16> = (0..n).flat_map(|rank| vec![rank as u16; rank]).collect();
    let mut mine = vec![0; lens[me]];
    lanes.scatter_varying(&comm, if me == root { &all } else { &[] }, &lens, &mut mine)?;
    let mut back = vec![0; if me == root { all.len() } else { 0 }];
    lanes.gather_varying(&comm, &mine, &lens, &mut back)?;
    if mine != vec![me as u16; me] || me == root && back != all {
        return Err(format!("rank {me} has wrong blocks of different lengths").into());
    }
    Ok(())
}
