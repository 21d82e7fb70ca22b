//! Moves and adds numbers of several types by each implementation, and compares the results.
//!
//!     mpirun -n 5 target/debug/examples/typed_buffers 0-2/3-4

use mpib::collectives::operation::{Kind, Setting, named};
use mpib::collectives::tree::Tree;
use mpib::collectives::{self, Algorithm, Element};
use mpib::comm::Comm;
use mpib::pathfinder::measure_paths;
use mpib::sites;
use std::fmt::Debug;
use std::ops::AddAssign;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// An error unless the values are equal.
fn equal<T: PartialEq + Debug>(what: &str, found: &[T], wanted: &[T]) -> Result<()> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, not {wanted:?}").into()) }
}

/// `value` converts a small number to the type.
fn moves<T: Element + PartialEq + Debug>(comm: &Comm, setting: &Setting, value: fn(u8) -> T) -> Result<usize> {
    let (me, n, root) = (comm.rank(), comm.size(), setting.root);
    let lens: Vec<usize> = (0..n).map(|rank| 3 * rank % 4).collect();
    let bytes: Vec<usize> = lens.iter().map(|len| len * size_of::<T>()).collect();
    let block = |rank: usize| (0..lens[rank]).map(move |at| value((10 * rank + at) as u8)).collect::<Vec<_>>();
    let all: Vec<T> = (0..n).flat_map(block).collect();
    let at_root = if me == root { all.as_slice() } else { &[] };
    let names = Kind::Scatter.implementations(1);
    for name in &names {
        let algorithm = |kind: Kind| {
            let direction = kind.direction().ok_or("not a scatter or gather")?;
            Ok::<_, Box<dyn std::error::Error>>(named(name, direction, &bytes, setting).unwrap_or(Algorithm::Native))
        };
        let mut mine = vec![T::zeroed(); lens[me]];
        collectives::scatter(comm, &algorithm(Kind::Scatter)?, at_root, &lens, &mut mine, root)?;
        equal(&format!("scatter by {name}"), &mine, &block(me))?;
        let mut back = vec![T::zeroed(); at_root.len()];
        collectives::gather(comm, &algorithm(Kind::Gather)?, &mine, &lens, &mut back, root)?;
        equal(&format!("gather by {name}"), &back, at_root)?;
    }
    let mut everywhere = vec![T::zeroed(); all.len()];
    comm.all_gather_varying(&block(me), &lens, &mut everywhere)?;
    equal("allgatherv", &everywhere, &all)?;
    let mut sent = if me == root { all.clone() } else { vec![T::zeroed(); all.len()] };
    collectives::broadcast_along(comm, &Tree::binomial_from(n, root), &mut sent)?;
    equal("broadcast", &sent, &all)?;
    let out: Vec<T> = (0..n).map(|to| value((10 * me + to) as u8)).collect();
    let wanted: Vec<T> = (0..n).map(|from| value((10 * from + me) as u8)).collect();
    let mut into = vec![T::zeroed(); n];
    comm.all_to_all(&out, &mut into)?;
    equal("alltoall by the MPI library", &into, &wanted)?;
    into.fill(T::zeroed());
    collectives::all_to_all_at_once(comm, &out, &mut into)?;
    equal("alltoall", &into, &wanted)?;
    Ok(names.len())
}

fn sums<T: Element + AddAssign + PartialEq + Debug>(comm: &Comm, value: fn(u8) -> T) -> Result<()> {
    let (me, n, len) = (comm.rank(), comm.size(), 3);
    let numbers = |rank: usize| (0..len).map(move |at| value((rank + at) as u8)).collect::<Vec<T>>();
    let sum_of = |ranks: usize| {
        let mut sum = vec![T::zeroed(); len];
        (0..ranks).for_each(|rank| sum.iter_mut().zip(numbers(rank)).for_each(|(sum, number)| *sum += number));
        sum
    };
    let (mine, mut into) = (numbers(me), vec![T::zeroed(); len]);
    comm.all_reduce_sum(&mine, &mut into)?;
    equal("allreduce by the MPI library", &into, &sum_of(n))?;
    collectives::all_reduce_doubling(comm, &mine, &mut into)?;
    equal("allreduce", &into, &sum_of(n))?;
    comm.scan_sum(&mine, &mut into)?;
    equal("scan by the MPI library", &into, &sum_of(me + 1))?;
    collectives::scan_linear(comm, &mine, &mut into)?;
    equal("scan", &into, &sum_of(me + 1))?;
    collectives::reduce_along(comm, &Tree::binomial_from(n, 0), &mine, &mut into)?;
    if me == 0 { equal("reduce", &into, &sum_of(n)) } else { Ok(()) }
}

fn main() -> Result<()> {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let comm = Comm::of(&universe.world())?;
    let text = std::env::args().nth(1).ok_or("the argument is the ranks of both sites, for example 0-2/3-4")?;
    let sites = sites::from_ranks(&text, comm.size())?;
    let root = comm.size() - 1;
    let paths = Some(measure_paths(&comm, &sites, root, 1000, 1)?);
    let setting = Setting { root, sites, paths, ..Setting::default() };
    let mut tried = moves(&comm, &setting, f64::from)?;
    tried += moves(&comm, &setting, u16::from)?;
    tried += moves(&comm, &setting, i64::from)?;
    tried += moves(&comm, &setting, |n| n)?;
    sums(&comm, f32::from)?;
    sums(&comm, i32::from)?;
    sums(&comm, u64::from)?;
    if comm.rank() == 0 {
        println!("{tried} scatters and gathers of four types, and sums of three types, are right");
    }
    Ok(())
}
