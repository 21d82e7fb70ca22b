//! Makes a large checkpoint from a small real one. Each file is the file of one rank, and copies of the files are the
//! files of further ranks. In the copies, every floating-point number is multiplied by a random factor near 1.

use crate::generate::file_name;
use mcr_test_support::{Random, bytes_below, files_below};
use std::path::{Path, PathBuf};

/// Standard deviation of the random factors.
const NOISE: f64 = 1e-3;

/// The HDF5 files of the newest dump of a set, in the order of their names.
pub fn newest_dump(set: &Path) -> Vec<PathBuf> {
    let mut dumps: Vec<PathBuf> = std::fs::read_dir(set).into_iter().flatten().flatten().map(|e| e.path()).collect();
    dumps.sort();
    let below = dumps.last().map(|dump| files_below(dump)).unwrap_or_default();
    let mut files: Vec<PathBuf> =
        below.into_iter().map(|(_, path)| path).filter(|path| hdf5::File::open(path).is_ok()).collect();
    files.sort();
    files
}

/// Writes ranks until all files together have at least `bytes`. Returns the number of ranks.
pub fn write(dump: &[PathBuf], bytes: u64, seed: u64, to: &Path) -> hdf5::Result<u32> {
    let mut random = Random::new(seed);
    for copy in 0.. {
        for (nth, file) in dump.iter().enumerate() {
            let target = to.join(file_name(1, (copy * dump.len() + nth) as u32));
            std::fs::copy(file, &target)
                .map_err(|error| hdf5::Error::from(format!("{}: {error}", target.display())))?;
            if copy > 0 {
                let file = hdf5::File::open_rw(&target)?;
                perturb(&file, &mut random)?;
                file.close()?;
            }
        }
        if bytes_below(to) >= bytes || dump.is_empty() {
            return Ok(((copy + 1) * dump.len()) as u32);
        }
    }
    unreachable!("a number of copies is enough")
}

/// Multiplies every floating-point number of every dataset by a random factor.
fn perturb(group: &hdf5::Group, random: &mut Random) -> hdf5::Result<()> {
    for dataset in group.datasets()? {
        let data_type = dataset.dtype()?;
        if data_type.is::<f32>() || data_type.is::<f64>() {
            let mut values: Vec<f64> = dataset.read_raw()?;
            values.iter_mut().for_each(|value| *value *= 1.0 + NOISE * noise(random));
            dataset.as_writer().write_raw(&values)?;
        }
    }
    group.groups()?.iter().try_for_each(|inner| perturb(inner, random))
}

/// A random number with a mean of 0 and a standard deviation of about 1: the sum of twelve numbers from -0.5 to 0.5.
fn noise(random: &mut Random) -> f64 {
    (0..12).map(|_| (random.next_bits() >> 11) as f64 / (1u64 << 53) as f64 - 0.5).sum()
}
