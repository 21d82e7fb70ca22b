//! Checks before a measurement whether the bytes of the measurement fit into memory and into the directories.

use super::{Failure, hosts};
use mpib::collectives::operation::Kind;
use mpib::comm::Comm;
use mpib::paths::piece_bytes;
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

/// The gathers of a measurement.
pub struct Gathers<'g> {
    /// Bytes of each rank.
    pub block_bytes: usize,
    /// Maximum bytes of an aggregator's buffer.
    pub buffer_bytes: usize,
    /// The group sizes, which are measured one after the other.
    pub groups: &'g [usize],
    /// Whether some gathers are binomial trees, in which ranks pass on the blocks of other ranks.
    pub trees: bool,
    /// Whether some gathers use lanes, in which some ranks collect the blocks of other ranks.
    pub lanes: bool,
}

impl Gathers<'_> {
    /// Bytes of the blocks and buffers of the ranks of one host. A group may have ranks of several hosts, so the
    /// aggregator's buffer can have more bytes than all blocks of its host.
    fn bytes_of_host(&self, ranks: usize, is_here: impl Fn(usize) -> bool) -> usize {
        let here = (0..ranks).filter(|&rank| is_here(rank));
        let of_group = |&group: &usize| {
            let buffer = |rank: usize| {
                let (first, index) = (rank / group * group, rank % group);
                let size = group.min(ranks - first);
                let held = match index {
                    0 => size,
                    // Any rank may collect the blocks of a lane: at most the blocks of the other site.
                    _ if self.lanes => size.div_ceil(2),
                    // The part of the tree that sends its blocks through this rank.
                    _ if self.trees => (1 << index.trailing_zeros()).min(size - index),
                    _ => 0,
                };
                piece_bytes(self.block_bytes, size, self.buffer_bytes).saturating_mul(held)
            };
            here.clone().map(buffer).fold(0, usize::saturating_add)
        };
        let buffers = self.groups.iter().map(of_group).max().unwrap_or(0);
        self.block_bytes.saturating_mul(here.clone().count()).saturating_add(buffers)
    }
}

/// Rejects blocks that do not fit into the memory of a host: each rank has its block, and an aggregator also has a
/// buffer. Each host counts its own ranks, also if their groups have ranks of other hosts. All ranks must call this
/// function.
pub fn memory_suffices(comm: &Comm, gathers: &Gathers) -> Result<(), Failure> {
    host_suffices(comm, &format!("--bytes {}", gathers.block_bytes), |hosts, mine| {
        gathers.bytes_of_host(hosts.len(), |rank| hosts[rank] == *mine)
    })
}

/// Rejects sizes whose buffers do not fit into the memory of a host. `of_rank` returns the bytes of all buffers of a
/// rank for a size. All ranks must call this function.
pub fn sizes_fit(comm: &Comm, sizes: &[usize], of_rank: impl Fn(usize, usize) -> usize) -> Result<(), Failure> {
    let Some(largest) = sizes.iter().copied().max() else { return Ok(()) };
    ranks_fit(comm, &format!("--sizes {largest}"), |rank| of_rank(largest, rank))
}

/// Operations of a measurement.
pub struct Operations<'o> {
    /// The operations, which are measured one after the other.
    pub kinds: &'o [Kind],
    /// The root of all operations.
    pub root: usize,
    /// Whether some implementations are functions of MPI.
    pub native: bool,
    /// Whether ranks pass on the blocks of other ranks in some implementations.
    pub passes_on: bool,
}

impl Operations<'_> {
    /// Rejects sizes whose buffers do not fit into the memory of a host, and sizes that a function of MPI cannot
    /// count. All ranks must call this function.
    pub fn fit(&self, comm: &Comm, sizes: &[usize]) -> Result<(), Failure> {
        let n = comm.size();
        let largest = sizes.iter().copied().max().unwrap_or(0);
        for kind in self.kinds {
            if let Some((call, bytes)) = kind.too_long(largest, n).filter(|_| self.native) {
                return Err(Failure::Input(format!(
                    "--sizes {largest}: the blocks of {} on {n} ranks have {}, and {call} counts at most 2.1 GB",
                    kind.name(),
                    gigabytes(bytes as u64)
                )));
            }
            let index = |rank: usize| (rank + n - self.root) % n;
            sizes_fit(comm, sizes, |size, rank| kind.bytes_of_rank(size, n, index(rank), self.passes_on))?;
        }
        Ok(())
    }
}

/// Rejects a measurement whose buffers do not fit into the memory of a host. `of_rank` returns the bytes of all
/// buffers of a rank. All ranks must call this function.
pub fn ranks_fit(comm: &Comm, option: &str, of_rank: impl Fn(usize) -> usize) -> Result<(), Failure> {
    host_suffices(comm, option, |hosts, mine| {
        (0..hosts.len()).filter(|&rank| hosts[rank] == *mine).map(&of_rank).fold(0, usize::saturating_add)
    })
}

/// Compares the memory that is available on this host with the bytes that its ranks need. `needed` gets the host of
/// each rank, and this host.
fn host_suffices(comm: &Comm, option: &str, needed: impl FnOnce(&[String], &String) -> usize) -> Result<(), Failure> {
    let hosts = hosts(comm)?;
    let mine = &hosts[comm.rank()];
    let here = hosts.iter().filter(|h| *h == mine).count();
    let needed = needed(&hosts, mine);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok()).map(|kib| kib << 10);
    let fits = match available.filter(|&available| needed > available) {
        None => Ok(()),
        Some(available) => Err(format!(
            "{option}: the {here} ranks of host {mine} need {}, and {} are available",
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
    fn an_aggregator_needs_its_buffer_also_if_the_other_ranks_of_its_group_are_on_other_hosts() {
        const MIB: usize = 1 << 20;
        let of = |groups, trees| {
            let (block_bytes, buffer_bytes) = (87 * MIB, 256 * MIB);
            Gathers { block_bytes, buffer_bytes, groups, trees, lanes: false }
        };
        // One host has all 32 ranks: their blocks and one buffer.
        assert_eq!(of(&[32], false).bytes_of_host(32, |_| true), (32 * 87 + 256) * MIB);
        // Each host has one rank. An earlier version counted a buffer of one block for the first host.
        assert_eq!(of(&[32], false).bytes_of_host(32, |rank| rank == 0), (87 + 256) * MIB);
        assert_eq!(of(&[32], false).bytes_of_host(32, |rank| rank == 5), 87 * MIB);
        // Two groups of two hosts each; the last group has one rank.
        let two = |rank: usize| rank < 2 || rank == 4;
        assert_eq!(of(&[2, 4], false).bytes_of_host(5, two), (3 * 87 + 256 + 87) * MIB);
        // In a binomial tree, rank 16 passes on the blocks of a half of its group.
        assert_eq!(of(&[32], true).bytes_of_host(32, |rank| rank == 16), (87 + 128) * MIB);
        assert_eq!(of(&[32], true).bytes_of_host(32, |rank| rank == 1), (87 + 8) * MIB);
    }

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
