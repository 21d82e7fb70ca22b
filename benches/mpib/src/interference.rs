//! What a checkpoint costs the application that keeps running: operations of the application are timed alone, while
//! the groups gather, and while agents and aggregators save a checkpoint.

use crate::collectives::Result;
use crate::collectives::operation::{Flow, Operation};
use crate::comm::{Comm, wtime};
use crate::daemons::Stream;
use crate::paths::TcpGather;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const TAG: u16 = 700;

/// The halo exchange of a one-dimensional decomposition: each rank exchanges a block with the previous and the next
/// rank. Rank 0 follows the last rank.
pub struct Halo {
    out: [Vec<u8>; 2],
    into: [Vec<u8>; 2],
}

impl Halo {
    /// A halo exchange that has no buffers until [`Operation::prepare`].
    pub fn new() -> Self {
        Self { out: Default::default(), into: Default::default() }
    }
}

impl Default for Halo {
    fn default() -> Self {
        Self::new()
    }
}

impl Operation for Halo {
    fn name(&self) -> String {
        "halo exchange".into()
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, comm: &Comm, block_bytes: usize) -> Result<()> {
        // The byte says from which rank the block is, and to which side it is sent.
        self.out = [0, 1].map(|side| vec![(2 * comm.rank() + side) as u8; block_bytes]);
        self.into = [0, 1].map(|_| vec![0; block_bytes]);
        Ok(())
    }
    fn run(&mut self, comm: &Comm) -> Result<()> {
        let (me, n) = (comm.rank(), comm.size());
        let (before, after) = ((me + n - 1) % n, (me + 1) % n);
        let [from_before, from_after] = &mut self.into;
        let [to_before, to_after] = &self.out;
        comm.overlapped(|pending| {
            pending.receive(from_before, before, TAG + 1)?;
            pending.receive(from_after, after, TAG)?;
            pending.send(to_before, before, TAG)?;
            pending.send(to_after, after, TAG + 1).map(|_| ())
        })
    }
    fn is_right(&self, comm: &Comm) -> bool {
        let (me, n) = (comm.rank(), comm.size());
        let expected = [2 * ((me + n - 1) % n) + 1, 2 * ((me + 1) % n)].map(|byte| byte as u8);
        self.into.iter().zip(expected).all(|(block, byte)| block.iter().all(|found| *found == byte))
    }
}

/// Gathers of a group over TCP, one after the other, in a thread of each rank.
pub struct TcpLoad {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<u64>>>,
}

impl TcpLoad {
    /// Starts the gathers of blocks of `block_bytes`. All ranks must call this function.
    pub fn start(comm: &Comm, group_size: usize, buffer_bytes: usize, block_bytes: usize) -> Result<Self> {
        let mut gather = TcpGather::new(comm, group_size, buffer_bytes)?;
        gather.prepare(comm, block_bytes)?;
        let ends = Arc::new(AtomicBool::new(false));
        let mut links = gather.into_links();
        let asked = Arc::clone(&ends);
        let thread = std::thread::spawn(move || links.repeat(|| asked.load(Ordering::Relaxed)));
        comm.barrier()?;
        Ok(Self { ends, thread: Some(thread) })
    }

    /// Ends the gathers, and returns their number. All ranks must call this function.
    pub fn stop(mut self) -> std::io::Result<u64> {
        self.ends.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map_or(Ok(0), |thread| thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
    }
}

/// The times of an operation while a load runs.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// The mean time in seconds of the repetitions in each part of the measurement. A load has phases that are longer
    /// than an operation. So single repetitions are not independent, but the means of parts are independent.
    pub means: Vec<f64>,
    /// The longest time in seconds of a repetition.
    pub longest: f64,
    /// Number of repetitions.
    pub repetitions: usize,
    /// Seconds until each checkpoint was committed.
    pub commit_seconds: Vec<f64>,
}

impl Beside {
    /// Repeats the operation until `open` returns false on all ranks. The time of a repetition is the longest time of
    /// all ranks, after a barrier.
    fn add_part(
        &mut self,
        comm: &Comm,
        operation: &mut dyn Operation,
        mut open: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let (mut sum, mut count) = (0.0, 0);
        loop {
            comm.barrier()?;
            let begun = wtime();
            operation.run(comm)?;
            let mut both = [wtime() - begun, f64::from(u8::from(open()?))];
            comm.all_max(&mut both)?;
            let [seconds, goes_on] = both;
            sum += seconds;
            count += 1;
            self.longest = self.longest.max(seconds);
            if goes_on == 0.0 {
                self.means.push(sum / f64::from(count));
                self.repetitions += count as usize;
                return Ok(());
            }
        }
    }
}

/// Repeats an operation in `parts` parts of `part_seconds` each. All ranks must call this function.
pub fn for_some_time(
    comm: &Comm,
    operation: &mut dyn Operation,
    block_bytes: usize,
    parts: usize,
    part_seconds: f64,
) -> Result<Beside> {
    operation.prepare(comm, block_bytes)?;
    operation.run(comm)?;
    let mut found = Beside::default();
    for _ in 0..parts {
        let begun = wtime();
        // One rank decides, because clocks differ.
        found.add_part(comm, operation, || Ok(comm.rank() == 0 && wtime() - begun < part_seconds))?;
    }
    Ok(found)
}

/// Repeats an operation while agents and aggregators save checkpoints, one after the other. Each checkpoint is a
/// part. All ranks must call this function.
pub fn while_saving(
    comm: &Comm,
    stream: &mut Stream,
    operation: &mut dyn Operation,
    block_bytes: usize,
    checkpoints: usize,
) -> Result<Beside> {
    operation.prepare(comm, block_bytes)?;
    operation.run(comm)?;
    let mut found = Beside::default();
    for _ in 0..checkpoints {
        // The files are complete before the measurement, because applications write them without MPI operations.
        stream.ready()?;
        comm.barrier()?;
        let begun = wtime();
        stream.publish()?;
        found.add_part(comm, operation, || stream.is_committed().map(|committed| !committed))?;
        found.commit_seconds.push(wtime() - begun);
    }
    Ok(found)
}
