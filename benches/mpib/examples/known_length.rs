//! Checks each timing method with each isolation by operations of known length, one for each flow of data: in each
//! operation, the first rank ends after 2 ms, and the last rank after 10 ms. Prints one line for each measurement:
//! flow, method, isolation, and the smallest and the median time in milliseconds.
//!
//!     mpirun -n 3 target/debug/examples/known_length

use mpib::collectives::Result;
use mpib::collectives::operation::{Flow, Operation};
use mpib::comm::Comm;
use mpib::stats::StoppingRule;
use mpib::timing::{Isolation, Method, Timer, Timing};
use std::time::{Duration, Instant};

const TAG: u16 = 7;
/// Length of the operation on rank 0.
const FIRST: Duration = Duration::from_millis(2);
/// Length of the operation on the last rank, and therefore of the whole operation.
const LAST: Duration = Duration::from_millis(10);

/// An operation whose last rank takes the time [`LAST`].
struct Known(Flow);

impl Operation for Known {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }
    fn flow(&self) -> Flow {
        self.0
    }
    fn prepare(&mut self, _: &Comm, _: usize) -> Result<()> {
        Ok(())
    }
    fn run(&mut self, comm: &Comm) -> Result<()> {
        let (me, last) = (comm.rank(), comm.size() - 1);
        match self.0 {
            // The other ranks start when the root's message arrives.
            Flow::From(root) if me == root => {
                (0..=last).filter(|&r| r != root).try_for_each(|rank| comm.send(&[], rank, TAG))?;
                sleep(FIRST);
            }
            Flow::From(root) => {
                comm.receive(&mut [], root, TAG)?;
                sleep(if me == last { LAST } else { FIRST });
            }
            // The root ends when the message of the last rank has arrived.
            Flow::To(root) if me == root => {
                (0..=last).filter(|&r| r != root).try_for_each(|rank| comm.receive(&mut [], rank, TAG))?;
            }
            Flow::To(root) => {
                sleep(if me == last { LAST } else { FIRST });
                comm.send(&[], root, TAG)?;
            }
            Flow::Symmetric => sleep(if me == last { LAST } else { FIRST }),
        }
        Ok(())
    }
    fn is_right(&self, _: &Comm) -> bool {
        true
    }
}

/// Sleeps, and checks the time afterwards, because a sleep may end early by the resolution of the clock.
fn sleep(time: Duration) {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let comm = Comm::of(&universe.world())?;
    let mut timer = Timer::new(&comm)?;
    let isolations =
        [Isolation::Barrier, Isolation::Reduce, Isolation::PointToPoint, Isolation::StartTime, Isolation::Pipelined];
    for flow in [Flow::From(0), Flow::To(0), Flow::Symmetric] {
        for method in [Method::Global, Method::Maximum, Method::Root, Method::Specific] {
            for isolation in isolations {
                let how = Timing { method, isolation, rule: StoppingRule::fixed(7), warm_up: 1, ..Timing::default() };
                if how.check(comm.size()).is_err() {
                    continue;
                }
                let seconds = timer.measure(&mut Known(flow), 0, &how)?;
                if comm.rank() == 0 {
                    println!("{flow:?} {method:?} {isolation:?} {:.3} {:.3}", 1e3 * seconds.min, 1e3 * seconds.median);
                }
            }
        }
    }
    Ok(())
}
