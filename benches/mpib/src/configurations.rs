//! The steps of a checkpoint and of a restart in the configurations of mcrEngine's paper (table V), as operations
//! that can be timed, and the computation of the same steps at the size of the paper ([`full`]).
//!
//! The files are files of a real application, because their content decides the compression ratio and the time of the
//! compression. The command `mcr` merges and compresses the files of each group from memory to memory. All groups
//! work at the same time. With the profile `raw`, `mcr` does everything but compress, so the difference between
//! another profile and `raw` is the time of the compression.

pub mod full;

use crate::collectives::Result;
use crate::collectives::operation::{Flow, Operation};
use crate::comm::{Comm, CommError};
use crate::daemons::{plain_command, processor_seconds_of_children};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const TAG: u16 = 800;
/// The job's name in the stores.
const JOB: &str = "mpib";
/// Interval at which a waiting rank checks for messages. A rank that spins would take a core from `mcr`.
const NAP: Duration = Duration::from_micros(200);

/// The names of the files of a rank, with a place for the number of the rank: `{rank}`, or `{rank:4}` for a number of
/// at least four digits.
#[derive(Clone, Debug, PartialEq)]
pub struct FileNames {
    before: String,
    digits: usize,
    after: String,
}

impl FileNames {
    /// Reads a name. The error is a sentence.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let missing = || format!("{text:?} has no {{rank}}, the place of the rank's number");
        let (before, rest) = text.split_once("{rank").ok_or_else(missing)?;
        let (digits, after) = rest.split_once('}').ok_or_else(missing)?;
        let digits = match digits.strip_prefix(':') {
            None if digits.is_empty() => Some(1),
            None => None,
            Some(digits) => digits.parse().ok().filter(|digits| (1..=20).contains(digits)),
        };
        let digits = digits.ok_or_else(|| format!("{text:?}: write {{rank}}, or {{rank:4}} for four digits"))?;
        Ok(Self { before: before.into(), digits, after: after.into() })
    }

    /// The file of a rank.
    pub fn of(&self, rank: usize) -> PathBuf {
        PathBuf::from(format!("{}{rank:0width$}{}", self.before, self.after, width = self.digits))
    }
}

/// Copies of the files of a group in the memory of the node of its first rank.
pub struct Staged {
    mcr: PathBuf,
    /// Threads of each `mcr`.
    threads: usize,
    /// Number of ranks of this group.
    ranks: usize,
    /// Number of ranks of a group.
    group_size: usize,
    leads: bool,
    /// Number of files of a rank.
    files_of_rank: usize,
    directory: PathBuf,
    /// Bytes of all files of this group.
    bytes: u64,
}

/// The command `mcr`, and how the files are staged for it.
pub struct Staging<'p> {
    /// Path of the command `mcr`.
    pub mcr: &'p Path,
    /// Threads of each `mcr`.
    pub threads: usize,
    /// A directory in each node's memory.
    pub memory: &'p Path,
    /// The names of the files of a rank.
    pub files: &'p [FileNames],
    /// Number of rank 0 in the names.
    pub first_rank: usize,
}

impl Staged {
    /// Copies the files of groups of `group_size` ranks. All ranks must call this function. An error of one rank is
    /// an error on all ranks.
    pub fn new(comm: &Comm, staging: &Staging, group_size: usize) -> Result<Self> {
        let (rank, n) = (comm.rank(), comm.size());
        let tag = String::from_utf8_lossy(&comm.all_bytes(std::process::id().to_string().as_bytes())?[0]).into_owned();
        let mut new = Self {
            mcr: staging.mcr.into(),
            threads: staging.threads,
            ranks: group_size.min(n - rank),
            group_size,
            leads: rank.is_multiple_of(group_size),
            files_of_rank: staging.files.len(),
            directory: staging.memory.join(format!("mpib-configurations-{tag}-{group_size}-{rank}")),
            bytes: 0,
        };
        let copied = new.copy(staging, rank);
        comm.agree(copied)?;
        Ok(new)
    }

    fn copy(&mut self, staging: &Staging, first: usize) -> std::result::Result<(), String> {
        if !self.leads {
            return Ok(());
        }
        let files = self.files();
        std::fs::create_dir_all(&files).map_err(|e| format!("{}: {e}", files.display()))?;
        for rank in 0..self.ranks {
            for (nth, names) in staging.files.iter().enumerate() {
                let from = names.of(staging.first_rank + first + rank);
                let copied = std::fs::copy(&from, files.join(name(nth, rank)));
                self.bytes +=
                    copied.map_err(|e| format!("the file of rank {}: {}: {e}", first + rank, from.display()))?;
            }
        }
        Ok(())
    }

    /// Bytes of all files of this rank's group; 0 if this rank is not the first rank of its group.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// Names of all files of this group.
    fn names(&self) -> impl Iterator<Item = String> {
        (0..self.ranks).flat_map(|rank| (0..self.files_of_rank).map(move |nth| name(nth, rank)))
    }
}

/// Name of a staged file.
fn name(nth: usize, rank: usize) -> String {
    format!("c1.f{nth}.r{rank}")
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.leads {
            std::fs::remove_dir_all(&self.directory).ok(); // it may not exist
        }
    }
}

/// How the variables of a group are merged and compressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coding<'n> {
    /// Scheme of merging, in the words of `mcr save --scheme`.
    pub scheme: &'n str,
    /// Compression, in the words of `mcr save --profile`.
    pub profile: &'n str,
}

/// Merges, and perhaps compresses, the files of each group with `mcr save`, from memory to a store in memory.
pub struct Save<'s> {
    staged: &'s Staged,
    coding: Coding<'s>,
    store: PathBuf,
    stored_bytes: u64,
    processor_seconds: f64,
    runs: usize,
}

impl<'s> Save<'s> {
    /// Each coding of one [`Staged`] has its own store.
    pub fn new(staged: &'s Staged, coding: Coding<'s>) -> Self {
        let store = staged.directory.join(format!("store-{}-{}", coding.scheme, coding.profile));
        Self { staged, coding, store, stored_bytes: 0, processor_seconds: 0.0, runs: 0 }
    }

    /// Length of this group's container after a run; 0 if this rank is not the first rank of its group.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Processor time in seconds of one run on this rank.
    pub fn processor_seconds(&self) -> f64 {
        self.processor_seconds / self.runs.max(1) as f64
    }

    fn save(&self) -> std::result::Result<u64, String> {
        let Self { staged, coding, store, .. } = self;
        let mut command = plain_command(&staged.mcr);
        command.args(["save", "--json", "--quiet", "--create", "--no-verify", "--no-reuse", "--job", JOB]);
        command.args(["--scheme", coding.scheme, "--profile", coding.profile]);
        command.args(["--group-size", &staged.ranks.to_string(), "--ranks", &staged.ranks.to_string()]);
        command.args(["--threads", &staged.threads.to_string()]);
        for nth in 0..staged.files_of_rank {
            command.args(["--layout", &format!("c{{checkpoint}}.f{nth}.r{{rank}}")]);
        }
        command.arg("--store").arg(store).arg(staged.files());
        let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", staged.mcr.display()))?;
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let bytes = said["checkpoints"][0]["stored_bytes"].as_u64();
        match bytes.filter(|_| output.status.success()) {
            Some(bytes) => Ok(bytes),
            None => {
                let text =
                    [&output.stderr[..], &output.stdout[..]].map(|text| String::from_utf8_lossy(text).into_owned());
                let text = text.iter().map(|text| text.trim()).find(|text| !text.is_empty()).unwrap_or_default();
                Err(format!("mcr save --profile {}: {}: {text}", coding.profile, output.status))
            }
        }
    }
}

impl Operation for Save<'_> {
    fn name(&self) -> String {
        format!("save/{}, {}, groups of {}", self.coding.scheme, self.coding.profile, self.staged.group_size)
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, _: usize) -> Result<()> {
        Ok(())
    }
    fn ready(&mut self) -> Result<()> {
        if self.staged.leads {
            std::fs::remove_dir_all(&self.store).ok(); // it does not exist before the first run
        }
        Ok(())
    }
    fn run(&mut self, comm: &Comm) -> Result<()> {
        let before = processor_seconds_of_children();
        let saved = if self.staged.leads { self.save() } else { Ok(0) };
        self.processor_seconds += processor_seconds_of_children() - before;
        self.runs += 1;
        wait_asleep(comm)?;
        self.stored_bytes = saved.map_err(CommError::Beside)?;
        Ok(())
    }
    /// Only a restart compares bytes: [`Restore`].
    fn is_right(&self, _: &Comm) -> bool {
        !self.staged.leads || self.stored_bytes > 0
    }
}

/// Decompresses and splits the container of each group with `mcr restart`, from the store of a [`Save`] to files in
/// memory. `mcr restart` compares all digests, as in normal use.
pub struct Restore<'s> {
    staged: &'s Staged,
    name: String,
    store: PathBuf,
    processor_seconds: f64,
    runs: usize,
}

impl<'s> Restore<'s> {
    /// Restores the checkpoint of the last run of `save`.
    pub fn of(save: &Save<'s>) -> Self {
        let name = save.name().replacen("save/", "restart/", 1);
        Self { staged: save.staged, name, store: save.store.clone(), processor_seconds: 0.0, runs: 0 }
    }

    /// Processor time in seconds of one run on this rank.
    pub fn processor_seconds(&self) -> f64 {
        self.processor_seconds / self.runs.max(1) as f64
    }

    fn back(&self) -> PathBuf {
        self.staged.directory.join("back")
    }

    fn restore(&self) -> std::result::Result<(), String> {
        let mut command = plain_command(&self.staged.mcr);
        command.args(["restart", "--quiet", "--copy", "--no-sync", "--job", JOB]);
        command.args(["--threads", &self.staged.threads.to_string(), "--store"]).arg(&self.store);
        command.arg("--to").arg(self.back());
        let output =
            command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", self.staged.mcr.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("mcr restart: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

impl Operation for Restore<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, _: usize) -> Result<()> {
        Ok(())
    }
    fn ready(&mut self) -> Result<()> {
        if self.staged.leads {
            std::fs::remove_dir_all(self.back()).ok(); // it may not exist yet
        }
        Ok(())
    }
    fn run(&mut self, comm: &Comm) -> Result<()> {
        let before = processor_seconds_of_children();
        let restored = if self.staged.leads { self.restore() } else { Ok(()) };
        self.processor_seconds += processor_seconds_of_children() - before;
        self.runs += 1;
        wait_asleep(comm)?;
        restored.map_err(CommError::Beside)
    }
    /// Whether the restored files equal the files of the application.
    fn is_right(&self, _: &Comm) -> bool {
        let same = |name: String| {
            let [was, is] = [self.staged.files(), self.back()].map(|directory| std::fs::read(directory.join(&name)));
            was.is_ok_and(|was| is.is_ok_and(|is| was == is))
        };
        let right = !self.staged.leads || self.staged.names().all(same);
        if self.staged.leads {
            std::fs::remove_dir_all(self.back()).ok(); // the whole directory is removed later
        }
        right
    }
}

/// Waits for all ranks. A barrier would spin, and take a core from `mcr`.
fn wait_asleep(comm: &Comm) -> Result<()> {
    if comm.rank() != 0 {
        return comm.overlapped(|pending| {
            pending.send(&[], 0, TAG)?;
            pending.receive(&mut [], 0, TAG)?;
            pending.wait_all_asleep(Duration::ZERO, NAP)
        });
    }
    comm.overlapped(|pending| {
        for rank in 1..comm.size() {
            pending.receive(&mut [], rank, TAG)?;
        }
        pending.wait_all_asleep(Duration::ZERO, NAP)
    })?;
    (1..comm.size()).try_for_each(|rank| comm.send(&[], rank, TAG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_have_a_place_for_the_number_of_the_rank() {
        let of = |text: &str, rank| FileNames::parse(text).map(|names| names.of(rank).display().to_string());
        assert_eq!(of("run/out.{rank}.h5", 12), Ok("run/out.12.h5".into()));
        assert_eq!(of("DD0001/data.cpu{rank:4}", 12), Ok("DD0001/data.cpu0012".into()));
        for bad in
            ["run/out.h5", "out.{rank", "out.{rank:}", "out.{rank:x}", "out.{rank:0}", "out.{rank:99}", "{ranks}"]
        {
            assert!(of(bad, 0).is_err(), "{bad:?}");
        }
    }
}
