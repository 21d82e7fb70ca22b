//! Uses the library inside a program: times an operation of the program, finds the fastest scatter for each size,
//! stores the estimates, and calls this scatter.
//!
//!     mpirun -n 4 target/debug/examples/opt_scatter

use mpi::traits::Communicator;
use mpib::collectives::Result;
use mpib::collectives::operation::{Flow, Kind, Operation, Setting};
use mpib::comm::Comm;
use mpib::stats::StoppingRule;
use mpib::timing::{Method, Timer, Timing};
use mpib::tune::{Candidates, Estimates, Optimal, TuneError, estimate};
use std::time::Duration;

/// An operation in which the last rank sleeps for 5 ms, and the other ranks do nothing.
struct LastSleeps;

impl Operation for LastSleeps {
    fn name(&self) -> String {
        "last-sleeps/example".into()
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, _: usize) -> Result<()> {
        Ok(())
    }
    fn run(&mut self, comm: &Comm) -> Result<()> {
        if comm.rank() + 1 == comm.size() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
    fn is_right(&self, _: &Comm) -> bool {
        true
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    // Any communicator can be used. This communicator has all ranks in reverse order.
    let world = universe.world();
    let reversed = world
        .split_by_color_with_key(mpi::topology::Color::with_value(1), -world.rank())
        .ok_or("the split excluded this rank")?;
    let comm = Comm::of(&reversed)?;
    let mut timer = Timer::new(&comm)?;

    let rule = StoppingRule::fixed(7);
    for method in [Method::Maximum, Method::Global] {
        let seconds = timer.measure(&mut LastSleeps, 0, &Timing { method, rule, ..Timing::default() })?;
        // With each method, the slowest rank determines the measured time.
        if seconds.min < 5e-3 {
            return Err(format!("{method:?}: {} s for a sleep of 5 ms", seconds.min).into());
        }
    }

    let how = Timing { rule: StoppingRule::fixed(5), ..Timing::default() };
    let setting = Setting::default();
    let mut both = Vec::new();
    for kind in [Kind::Scatter, Kind::Gather] {
        let names = kind.implementations(0);
        let of = Candidates { kind, names: &names, setting: &setting };
        both.push(estimate(&comm, &mut timer, of, &[8, 4096, 65536], &how, 1)?.0);
    }
    let gather = both.pop().unwrap_or_default();
    let scatter = both.pop().unwrap_or_default();
    let chosen = scatter.best(20_000).unwrap_or("-").to_string();

    // A program can store estimates for later runs, for example in a file.
    let stored = serde_json::to_string(&[scatter, gather])?;
    let read = || serde_json::from_str::<[Estimates; 2]>(&stored);
    // Only rank 0 needs the estimates.
    let [scatter, gather] = if comm.rank() == 0 { read()? } else { Default::default() };
    let optimal = Optimal::new(&comm, scatter, gather, setting)?;
    // Estimates of another root, and estimates of another operation, are refused.
    let [scatter, gather] = read()?;
    match Optimal::new(&comm, scatter, gather, Setting { root: 1, ..Setting::default() }) {
        Err(TuneError::Misfit(misfit)) if misfit.what == "root" => {}
        other => return Err(format!("estimates of root 0 for root 1: {:?}", other.map(|_| ())).into()),
    }
    let [scatter, gather] = read()?;
    match Optimal::new(&comm, gather, scatter, Setting::default()) {
        Err(TuneError::Operation { needed: "scatter", .. }) => {}
        other => return Err(format!("estimates of gather for scatter: {:?}", other.map(|_| ())).into()),
    }

    for len in [1, 100, 20_000, 300_000] {
        let all: Vec<u32> = (0..len * comm.size()).map(|at| (at / len + at % 7) as u32).collect();
        let blocks = if comm.rank() == 0 { all.as_slice() } else { &[] };
        let mut mine = vec![0; len];
        optimal.scatter(&comm, blocks, &mut mine)?;
        if mine != all[comm.rank() * len..][..len] {
            return Err(format!("rank {}: a wrong block of {len} numbers", comm.rank()).into());
        }
        let mut back = vec![0; blocks.len()];
        optimal.gather(&comm, &mine, &mut back)?;
        if back != blocks {
            return Err(format!("{len} numbers of each rank did not come back as they were").into());
        }
    }
    if comm.rank() == 0 {
        println!("all right; 20000 bytes are scattered by {chosen}");
    }
    Ok(())
}
