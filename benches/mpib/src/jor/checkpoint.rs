//! JOR as an application with checkpoints: each rank writes an HDF5 file after a number of iterations. The names are
//! like those of Carpet: `jor.chkpt.it_ITERATION.file_RANK.h5`. A run starts from the newest iteration of which every
//! rank has a valid file.

use super::Block;
use crate::comm::{Comm, CommError};
use std::path::{Path, PathBuf};

/// Number of checkpoints that are kept for each rank. After a new checkpoint is written, older checkpoints are
/// removed.
const KEPT_CHECKPOINTS: usize = 3;

/// The checkpoints of one rank in a directory.
pub struct Checkpoints {
    directory: PathBuf,
    rank: usize,
}

fn file_error(path: &Path, error: impl std::fmt::Display) -> CommError {
    CommError::Beside(format!("{}: {error}", path.display()))
}

impl Checkpoints {
    /// The checkpoints of this rank, in a directory that must exist.
    pub fn new(directory: &Path, rank: usize) -> Self {
        Self { directory: directory.into(), rank }
    }

    fn path(&self, iteration: usize) -> PathBuf {
        self.directory.join(format!("jor.chkpt.it_{iteration}.file_{}.h5", self.rank))
    }

    /// The iterations of which this rank has a file, in ascending order.
    fn iterations(&self) -> Vec<usize> {
        let end = format!(".file_{}.h5", self.rank);
        let number = |name: &str| name.strip_prefix("jor.chkpt.it_")?.strip_suffix(&end)?.parse().ok();
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut found: Vec<usize> = entries.filter_map(|e| number(e.file_name().to_str()?)).collect();
        found.sort_unstable();
        found
    }

    /// Writes a file under a temporary name and renames it, so that a final name never has an incomplete state.
    pub fn save(&self, iteration: usize, block: &Block) -> Result<(), CommError> {
        let path = self.path(iteration);
        let new_file = path.with_extension("h5.tmp");
        let write = || -> hdf5::Result<()> {
            let file = hdf5::File::create(&new_file)?;
            file.new_dataset_builder().with_data(block.state()).create("values")?;
            file.new_dataset_builder().with_data(&[iteration as u64]).create("iteration")?;
            file.close()
        };
        write().map_err(|e| file_error(&path, e))?;
        std::fs::rename(&new_file, &path).map_err(|e| file_error(&path, e))?;
        let all = self.iterations();
        for &old in &all[..all.len().saturating_sub(KEPT_CHECKPOINTS)] {
            std::fs::remove_file(self.path(old)).ok(); // another process may have removed it
        }
        Ok(())
    }

    /// The values of a file, if it is complete and belongs to this iteration.
    fn load(&self, iteration: usize) -> Option<Vec<f64>> {
        let file = hdf5::File::open(self.path(iteration)).ok()?;
        let number = file.dataset("iteration").ok()?.read_raw::<u64>().ok()?;
        let values = file.dataset("values").ok()?.read_raw::<f64>().ok()?;
        (number == [iteration as u64]).then_some(values)
    }

    /// Loads the newest state that every rank has into `block`. Returns the iteration of this state, or 0 if there is
    /// no such state. All ranks must call this function.
    pub fn newest(&self, comm: &Comm, block: &mut Block) -> Result<usize, CommError> {
        let mine: Vec<u8> = self.iterations().iter().flat_map(|&i| (i as u64).to_ne_bytes()).collect();
        let all = comm.all_bytes(&mine)?;
        let lists: Vec<Vec<u64>> =
            all.iter().map(|b| b.as_chunks::<8>().0.iter().map(|n| u64::from_ne_bytes(*n)).collect()).collect();
        for &iteration in lists[0].iter().rev().filter(|i| lists.iter().all(|list| list.contains(i))) {
            let iteration = usize::try_from(iteration).unwrap_or(usize::MAX);
            let fresh = block.clone();
            let good = self.load(iteration).is_some_and(|state| block.set_state(&state));
            let mut bad = [f64::from(u8::from(!good))];
            comm.all_max(&mut bad)?;
            if bad[0] == 0.0 {
                return Ok(iteration);
            }
            *block = fresh;
        }
        Ok(0)
    }
}
