//! Checks before a measurement whether the bytes of the measurement fit into memory and into the directories.

use super::{Failure, hosts};
use mpib::comm::Comm;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes in one directory at the same time, as seen from one rank.
pub struct Need<'p> {
    /// The option that names the directory.
    pub option: &'static str,
    /// The directory.
    pub directory: &'p Path,
    /// Bytes of all ranks that share the directory.
    pub bytes: usize,
}

/// Rejects directories that do not exist or have too little free space. Each item of `steps` is a step of the
/// measurement; the files of a step are removed before the next step. Quotas are not checked. All ranks must call
/// this function.
pub fn directories_suffice(comm: &Comm, steps: &[Vec<Need>]) -> Result<(), Failure> {
    let fits = steps.iter().try_for_each(|step| step_fits(step));
    comm.agree(fits).map_err(|error| Failure::Input(error.to_string()))
}

fn step_fits(step: &[Need]) -> Result<(), String> {
    let device = |need: &Need| {
        let found = std::fs::metadata(need.directory);
        found.map(|m| m.dev()).map_err(|e| format!("{} {}: {e}", need.option, need.directory.display()))
    };
    let devices = step.iter().map(device).collect::<Result<Vec<_>, _>>()?;
    for (need, own) in step.iter().zip(&devices) {
        // Directories on one file system share its free space.
        let together = step.iter().zip(&devices).filter(|(_, other)| *other == own);
        let needed = together.fold(0usize, |sum, (other, _)| sum.saturating_add(other.bytes));
        if let Some(free) = free_bytes(need.directory).filter(|&free| needed as u64 > free) {
            return Err(format!(
                "{} {}: the files need {}, and {} are free",
                need.option,
                need.directory.display(),
                gigabytes(needed as u64),
                gigabytes(free)
            ));
        }
    }
    Ok(())
}

/// Free bytes for this user. `None` if the file system does not report a size.
fn free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Rejects blocks that do not fit into the memory of a host: each rank has its block, and may also need an
/// aggregator's buffer, because in some gathers a rank passes on the blocks of other ranks. All ranks must call this
/// function.
pub fn memory_suffices(comm: &Comm, bytes: usize, buffer_bytes: usize) -> Result<(), Failure> {
    let hosts = hosts(comm)?;
    let mine = &hosts[comm.rank()];
    let here = hosts.iter().filter(|h| *h == mine).count();
    // This sum assumes that the buffers of a host hold at most as many bytes as the blocks of the ranks on this host.
    let blocks = bytes.saturating_mul(here);
    let needed = blocks.saturating_add(buffer_bytes.saturating_mul(here).min(blocks));
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok()).map(|kib| kib << 10);
    let fits = match available.filter(|&available| needed > available) {
        None => Ok(()),
        Some(available) => Err(format!(
            "--bytes {bytes}: the {here} ranks of host {mine} need {}, and {} are available",
            gigabytes(needed as u64),
            gigabytes(available as u64)
        )),
    };
    comm.agree(fits).map_err(|error| Failure::Input(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_file_system_share_its_free_space() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let free = free_bytes(directory.path()).expect("a file system with a size") as usize;
        let need = |option, bytes| Need { option, directory: directory.path(), bytes };
        assert_eq!(step_fits(&[need("--pfs", free / 4), need("--memory", free / 4)]), Ok(()));
        let said = step_fits(&[need("--pfs", free / 4), need("--memory", free)]).expect_err("too many bytes");
        assert!(said.starts_with("--pfs ") && said.ends_with(" are free"), "{said}");
        let missing = directory.path().join("missing");
        let said = step_fits(&[Need { option: "--local", directory: &missing, bytes: 1 }]).expect_err("no directory");
        assert!(said.starts_with("--local ") && said.contains("No such file"), "{said}");
    }
}
