//! The files of the ranks. All ranks write the same file, with other numbers: the structure of a real file stays, and
//! the numbers depend on the rank and on the step.

use anyhow::{Context, bail};
use mcr_cnc::capture::{CaptureMode, capture};
use mcr_cnc::h5::Maps;
use mcrengine::header::{ElementType, Role};
use mcrengine::ids::{FilePath, Rank};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Length of the file of numbers, in bytes.
const NUMBERS_BYTES: usize = 4096;
/// Maximum length of a real file, in bytes. Ranks write their files to memory.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A file, and the places of its numbers.
#[derive(Clone, Debug)]
pub struct RankFile {
    bytes: Vec<u8>,
    /// The runs of bytes that have numbers. The runs do not overlap.
    numbers: Vec<Range<usize>>,
    /// Length of each number, in bytes.
    widths: Vec<usize>,
}

impl RankFile {
    /// A file of 4 KiB of double precision numbers.
    pub fn numbers() -> Self {
        let bytes: Vec<u8> = (0..NUMBERS_BYTES / 8).flat_map(|n| (n as f64).to_le_bytes()).collect();
        Self { bytes, numbers: std::iter::once(0..NUMBERS_BYTES).collect(), widths: vec![8] }
    }

    /// A real file, such as a small HDF5 file of a simulation code. Only floating-point numbers without filters differ
    /// between ranks.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.file_name().with_context(|| format!("{}: is not a file", path.display()))?;
        let bytes = std::fs::metadata(path).with_context(|| format!("{}: cannot be read", path.display()))?.len();
        if bytes > FILE_BYTES_MAX {
            bail!("{}: has {bytes} bytes, more than {FILE_BYTES_MAX}", path.display());
        }
        let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        let below = FilePath::new(name.as_bytes())?;
        let header = capture(dir, &below, Rank(0), CaptureMode::Apart, &Maps::new())?.header;
        let (mut numbers, mut widths) = (Vec::new(), Vec::new());
        for variable in header.variables.iter().filter(|variable| variable.filters.is_empty()) {
            let ElementType::Float { width, .. } = variable.element else { continue };
            if variable.role != Role::Array {
                continue;
            }
            for extent in &variable.extents {
                let (first, len) = (usize::try_from(extent.offset)?, usize::try_from(extent.stored_bytes)?);
                numbers.push(first..first + len);
                widths.push(usize::from(width));
            }
        }
        if numbers.is_empty() {
            bail!("{}: has no floating-point numbers without filters", path.display());
        }
        Ok(Self { bytes: std::fs::read(path)?, numbers, widths })
    }

    /// Length of the file, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The file of a rank and step. The lower half of each number differs from the numbers of other ranks and steps.
    pub fn of(&self, rank: u32, step: u32) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let mut random = u64::from(rank) << 32 | u64::from(step);
        for (run, width) in self.numbers.iter().zip(&self.widths) {
            let Some(run) = bytes.get_mut(run.clone()) else { continue };
            for number in run.chunks_exact_mut(*width) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let changed = random.to_be_bytes();
                // Numbers are little-endian on all systems that write such files.
                number.iter_mut().zip(changed).take(width / 2).for_each(|(byte, changed)| *byte ^= changed);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_real_file_differ_between_ranks_and_its_structure_does_not() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/checkpoints/dedalus-rayleighbenard");
        let file = RankFile::read(&dir.join("dump0026/checkpoints_s26/checkpoints_s26_p1.h5")).expect("a file");
        let [one, two, again] = [(1, 0), (2, 0), (1, 0)].map(|(rank, step)| file.of(rank, step));
        assert_eq!(one, again);
        assert_eq!(one.len(), file.len());
        let dir = tempfile::tempdir().expect("a directory");
        let variables = |bytes: &[u8]| {
            std::fs::write(dir.path().join("a.h5"), bytes).expect("written");
            let name = FilePath::new(b"a.h5".as_slice()).expect("a path");
            let captured = capture(dir.path(), &name, Rank(0), CaptureMode::Apart, &Maps::new()).expect("captured");
            captured.header.variables
        };
        let (one, two) = (variables(&one), variables(&two));
        let structure = |all: &[mcrengine::header::VariableHeader]| {
            all.iter().map(|one| (one.path.clone(), one.extents.clone())).collect::<Vec<_>>()
        };
        assert!(one.len() > 2, "{one:?}");
        assert_eq!(structure(&one), structure(&two));
        assert_ne!(one, two);
    }
}
