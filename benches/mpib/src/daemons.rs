//! Times a checkpoint through mcrEngine: starts agents and aggregators with the command `mcr`, and stops them at the
//! end. No bytes are stored by reference, so every byte takes the whole path in every repetition.
//!
//! As in production, a node has one agent for all of its ranks, and a group has one aggregator, on the node of its
//! first rank. Each rank has one file in memory. The file contains noise, which is one variable and is saved with the
//! profile `raw`, or the bytes of a real file ([`Load`]). A repetition begins when all ranks rename their files to
//! the names that the agents wait for. The repetition ends when the manifest of the last group exists. By then, the
//! agents have found, read, hashed and sent the files, and the aggregators have checked, merged, written and synced
//! the bytes.

use crate::collectives::Result;
use crate::collectives::operation::{Flow, Operation};
use crate::comm::{Comm, CommError};
use crate::paths::{SILENCE_TIMEOUT, beside, forget, noise, own_ip};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TAG: u16 = 600;
/// The job's name in the store.
const JOB: &str = "mpib";
/// Interval at which a rank checks for its manifest or for a message. The interval is long, because the daemons need
/// the cores.
const NAP: Duration = Duration::from_micros(200);
/// Time of spinning before the first sleep: none, because spinning would take a core from a daemon.
const SPIN_TIME: Duration = Duration::ZERO;
/// Maximum time for a daemon to start, and to end.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a group that must be saved in each second on average, in addition to `SILENCE_TIMEOUT`.
const GROUP_BYTES_PER_SECOND_MIN: usize = 1_000_000;

/// Maximum time until the checkpoint of a group with these bytes is committed. The time grows with the bytes, because
/// a group may have gigabytes, and many groups may share a slow file system.
fn commit_timeout(group_bytes: usize) -> Duration {
    SILENCE_TIMEOUT + Duration::from_secs((group_bytes / GROUP_BYTES_PER_SECOND_MIN) as u64)
}

/// A running daemon and its log file.
struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// `role` is `anc` or `cnc`; `config` is the content of its configuration file.
    fn start(mcr: &Path, role: &str, config: &str, directory: &Path) -> std::io::Result<Self> {
        let file = directory.join(format!("{role}.toml"));
        std::fs::write(&file, config)?;
        let log = directory.join(format!("{role}.log"));
        let mut command = plain_command(mcr);
        // The files contain only noise, so TLS is switched off, and the user needs no key.
        let cluster = directory.join("cluster.toml");
        std::fs::write(&cluster, "tls = \"off\"\n")?;
        std::fs::set_permissions(&cluster, std::fs::Permissions::from_mode(0o600))?;
        command.env("MCR_CLUSTER", cluster);
        command.args([role, "--config"]).arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(File::create(&log)?).spawn()?;
        Ok(Self { child, log })
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns an error with the end of the daemon's log if the daemon has ended.
    fn lives(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(self.failed("a daemon ended")),
        }
    }

    fn failed(&self, what: &str) -> CommError {
        let said = self.said();
        let from = said.trim_end().lines().rev().take(3).collect::<Vec<_>>();
        let end: Vec<_> = from.into_iter().rev().collect();
        CommError::Beside(format!("{what}: {}: {}", self.log.display(), end.join("; ")))
    }

    /// Waits until the aggregator's log contains its address, and returns the address.
    fn address(&mut self) -> Result<String> {
        let begun = Instant::now();
        loop {
            let said = self.said();
            // An incomplete line may end in the middle of a port number.
            let whole = &said[..said.rfind('\n').unwrap_or(0)];
            let line = whole.lines().find(|l| l.contains("aggregator listens"));
            if let Some(address) = line.and_then(|l| l.split("address=").nth(1)) {
                return Ok(address.split_whitespace().next().unwrap_or_default().to_string());
            }
            self.lives()?;
            if begun.elapsed() > DAEMON_TIMEOUT {
                return Err(self.failed("an aggregator does not listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    /// Sends SIGTERM. If the daemon does not end within `DAEMON_TIMEOUT`, kills the daemon.
    fn drop(&mut self) {
        let asked = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let begun = Instant::now();
        while asked.is_ok() && begun.elapsed() < DAEMON_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The paths to use. Files and directories created there are removed at the end.
pub struct Places {
    /// Path of the command `mcr`.
    pub mcr: PathBuf,
    /// A directory in each node's memory for the ranks' files.
    pub memory: PathBuf,
    /// A directory for the containers that is visible to the nodes of the groups' first ranks.
    pub store: PathBuf,
    /// Name of the store in tables.
    pub name: &'static str,
    /// The files, and how they are saved.
    pub load: Load,
}

/// What a [`Stream`] saves, and how.
#[derive(Clone, Debug)]
pub struct Load {
    /// The file of each rank. Empty: each rank has noise.
    pub files: Vec<PathBuf>,
    /// How the aggregators merge, in the words of the key `scheme`.
    pub scheme: String,
    /// How the aggregators compress, in the words of the key `profile`.
    pub profile: String,
    /// Threads of each aggregator; 0: one for each core.
    pub threads: usize,
}

impl Load {
    /// Noise that is not compressed.
    pub fn noise() -> Self {
        Self { files: Vec::new(), scheme: "aware".into(), profile: "raw".into(), threads: 0 }
    }
}

/// A checkpoint of all ranks through agents and aggregators.
pub struct Stream {
    /// Agents must be dropped before their aggregators.
    agent: Option<Daemon>,
    aggregator: Option<Daemon>,
    group: Comm,
    group_size: usize,
    group_index: usize,
    rank: usize,
    name: &'static str,
    mcr: PathBuf,
    /// The watched directory with the files of this node's ranks.
    files: PathBuf,
    store: PathBuf,
    /// Directories that this rank created and must remove.
    own: Vec<PathBuf>,
    load: Load,
    bytes: Vec<u8>,
    checkpoint: u64,
    /// When the last checkpoint got its name.
    published: Instant,
}

impl Stream {
    /// Starts the daemons. `hosts` contains the node of each rank. All ranks must call this function. An error of one
    /// rank is an error on all ranks.
    pub fn new(comm: &Comm, group_size: usize, places: &Places, hosts: &[String]) -> Result<Self> {
        let (rank, n) = (comm.rank(), comm.size());
        let group = comm.split(u16::try_from(rank / group_size).unwrap_or(u16::MAX))?;
        // All created names contain this tag, so that they differ from the names of other runs.
        let tag = std::process::id().to_string();
        let tag = String::from_utf8_lossy(&comm.all_bytes(tag.as_bytes())?[0]).into_owned();
        let tag = format!("mpib-{}-{tag}-{group_size}", places.name.replace('/', "-"));
        let first_here = hosts.iter().position(|h| *h == hosts[rank]).unwrap_or(rank);
        let mut new = Self {
            agent: None,
            aggregator: None,
            group,
            group_size,
            group_index: rank / group_size,
            rank,
            name: places.name,
            mcr: places.mcr.clone(),
            files: places.memory.join(format!("{tag}-node-{first_here}")).join("files"),
            store: places.store.join(format!("{tag}-store")),
            own: Vec::new(),
            load: places.load.clone(),
            bytes: Vec::new(),
            checkpoint: 0,
            published: Instant::now(),
        };
        let said = |e: CommError| e.to_string();
        comm.agree(new.start_aggregator(&places.memory, &tag).map_err(said))?;
        let mine = new.aggregator.as_mut().map(Daemon::address).transpose();
        let mine = comm.agree(mine.map_err(said))?.unwrap_or_default();
        let all = comm.all_bytes(mine.as_bytes())?;
        let addresses: Vec<_> =
            all.iter().filter(|a| !a.is_empty()).map(|a| String::from_utf8_lossy(a).into_owned()).collect();
        let here: Vec<_> = (0..n).filter(|&r| hosts[r] == hosts[rank]).map(|r| r.to_string()).collect();
        let started = if rank == first_here { new.start_agent(&addresses, &here, n) } else { Ok(()) };
        comm.agree(started.map_err(said))?;
        Ok(new)
    }

    fn make(&mut self, directory: &Path) -> Result<()> {
        self.own.push(directory.into());
        std::fs::create_dir_all(directory).map_err(|e| beside(&directory.display().to_string(), e))
    }

    fn start_aggregator(&mut self, memory: &Path, tag: &str) -> Result<()> {
        if self.group.rank() != 0 {
            return Ok(());
        }
        let store = self.store.clone();
        self.make(&store)?;
        let own = memory.join(format!("{tag}-group-{}", self.group_index));
        self.make(&own)?;
        let config = format!(
            "[anc]\nstore = {store:?}\nlisten = \"{}\"\ngroup-size = {}\nscheme = {:?}\nprofile = {:?}\nthreads = {}\n\
             verify = false\nreuse = false\n",
            std::net::SocketAddr::new(own_ip(), 0),
            self.group_size,
            self.load.scheme,
            self.load.profile,
            self.load.threads
        );
        let daemon = Daemon::start(&self.mcr, "anc", &config, &own).map_err(|e| self.no_command(e))?;
        self.aggregator = Some(daemon);
        Ok(())
    }

    fn start_agent(&mut self, addresses: &[String], ranks: &[String], all: usize) -> Result<()> {
        let files = self.files.clone();
        let own = files.parent().unwrap_or(&files).to_path_buf();
        self.make(&own)?;
        self.make(&files)?;
        let config = format!(
            "[cnc]\njob = {JOB:?}\nnode = \"node-{}\"\nwatch = {files:?}\nstate-file = {:?}\naggregators = {addresses:?}\n\
             ranks = {all}\nlocal-ranks = {:?}\ngroup-size = {}\nlayout = \"c{{checkpoint}}.r{{rank}}\"\n\
             quiet-ms = 0\ncheckpoint-quiet-ms = 0\nreconnect-min-ms = 10\n",
            self.rank,
            own.join("state"),
            ranks.join(","),
            self.group_size
        );
        let daemon = Daemon::start(&self.mcr, "cnc", &config, &own).map_err(|e| self.no_command(e))?;
        self.agent = Some(daemon);
        Ok(())
    }

    fn no_command(&self, error: std::io::Error) -> CommError {
        beside(&self.mcr.display().to_string(), error)
    }

    fn hidden(&self) -> PathBuf {
        self.files.with_file_name(format!("next-{}", self.rank))
    }

    fn file(&self, checkpoint: u64) -> PathBuf {
        self.files.join(format!("c{checkpoint}.r{}", self.rank))
    }

    fn committed(&self, checkpoint: u64, end: &str) -> PathBuf {
        self.store.join(JOB).join(checkpoint.to_string()).join(format!("group-{:04}.{end}", self.group_index))
    }

    /// Waits until the checkpoints of all groups exist.
    fn wait_for_all(&self, comm: &Comm) -> Result<()> {
        // No rank may use a barrier here, because a barrier spins and takes a core from the daemons. So the ranks
        // sleep while they wait for messages.
        if self.rank != 0 {
            return comm.overlapped(|pending| {
                if self.group.rank() == 0 {
                    pending.send(&[], 0, TAG)?;
                }
                pending.receive(&mut [], 0, TAG)?;
                pending.wait_all_asleep(SPIN_TIME, NAP)
            });
        }
        comm.overlapped(|pending| {
            let others = (self.group_size..comm.size()).step_by(self.group_size);
            for leader in others {
                pending.receive(&mut [], leader, TAG)?;
            }
            pending.wait_all_asleep(SPIN_TIME, NAP)
        })?;
        (1..comm.size()).try_for_each(|rank| comm.send(&[], rank, TAG))
    }

    /// Waits until this group's checkpoint exists.
    fn wait_for_manifest(&mut self) -> Result<()> {
        while !self.is_committed()? {
            std::thread::sleep(NAP);
        }
        Ok(())
    }
}

impl Operation for Stream {
    fn name(&self) -> String {
        format!("{}, groups of {}", self.name, self.group_size)
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, block_bytes: usize) -> Result<()> {
        self.bytes = match self.load.files.get(self.rank) {
            Some(file) => std::fs::read(file).map_err(|e| beside(&file.display().to_string(), e))?,
            None => noise(self.rank, block_bytes),
        };
        Ok(())
    }
    /// Writes the next file into a directory next to the watched directory, and removes the files of the checkpoint
    /// before the last checkpoint.
    fn ready(&mut self) -> Result<()> {
        if let Some(old) = self.checkpoint.checked_sub(1) {
            std::fs::remove_file(self.file(old)).ok(); // it may not exist yet
            if self.group.rank() == 0 {
                for end in ["mcr", "manifest"] {
                    std::fs::remove_file(self.committed(old, end)).ok();
                }
                // The directory can be removed only after the last group has removed its files.
                std::fs::remove_dir(self.store.join(JOB).join(old.to_string())).ok();
            }
        }
        let path = self.hidden();
        std::fs::write(&path, &self.bytes).map_err(|e| beside(&path.display().to_string(), e))
    }
    fn run(&mut self, comm: &Comm) -> Result<()> {
        self.publish()?;
        if self.group.rank() == 0 {
            self.wait_for_manifest()?;
        }
        self.wait_for_all(comm)
    }
    /// Whether a restart of this group's ranks restores all their bytes.
    fn is_right(&self, _: &Comm) -> bool {
        if self.group.rank() != 0 {
            return true;
        }
        let right = self.restart(&self.back()).is_ok() && self.is_back();
        std::fs::remove_dir_all(self.back()).ok(); // the files are removed also after a failure
        right
    }
}

impl Stream {
    /// Gives the file of the next checkpoint the name for which the agents wait.
    pub fn publish(&mut self) -> Result<()> {
        self.checkpoint += 1;
        self.published = Instant::now();
        let file = self.file(self.checkpoint);
        std::fs::rename(self.hidden(), &file).map_err(|e| beside(&file.display().to_string(), e))
    }

    /// Whether this group's checkpoint exists. Only the first rank of a group checks for the manifest. On other
    /// ranks, the result is true. A daemon that has ended and a checkpoint that takes too long are errors.
    pub fn is_committed(&mut self) -> Result<bool> {
        let manifest = self.committed(self.checkpoint, "manifest");
        if self.group.rank() != 0 || manifest.exists() {
            return Ok(true);
        }
        self.agent.iter_mut().chain(&mut self.aggregator).try_for_each(Daemon::lives)?;
        let limit = commit_timeout(self.bytes.len() * self.group.size());
        if self.published.elapsed() <= limit {
            return Ok(false);
        }
        let what = format!("{} was not written within {} s", manifest.display(), limit.as_secs());
        Err(match &self.aggregator {
            Some(daemon) => daemon.failed(&what),
            None => CommError::Beside(what),
        })
    }

    /// Processor time in seconds that the agents and aggregators of this rank have used.
    pub fn daemons_seconds(&self) -> [f64; 2] {
        [&self.agent, &self.aggregator].map(|daemon| daemon.as_ref().map_or(0.0, |d| processor_seconds(d.child.id())))
    }

    /// The ranks of this group.
    fn ranks(&self) -> std::ops::Range<usize> {
        let first = self.group_index * self.group_size;
        first..first + self.group.size()
    }

    /// The directory for this group's restored files.
    fn back(&self) -> PathBuf {
        self.files.with_file_name(format!("back-{}", self.group_index))
    }

    /// Restores this group's last checkpoint, as at the beginning of a job.
    fn restart(&self, back: &Path) -> std::io::Result<()> {
        let ranks = self.ranks();
        let mut command = Command::new(&self.mcr);
        command.args(["restart", "--copy", "--job", JOB, "--checkpoint", &self.checkpoint.to_string(), "--store"]);
        command.arg(&self.store).arg("--to").arg(back);
        command.args(["--ranks", &format!("{}-{}", ranks.start, ranks.end - 1)]);
        let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if ended.success() { Ok(()) } else { Err(std::io::Error::other(format!("mcr restart: {ended}"))) }
    }

    /// Whether the restored bytes equal the bytes that the ranks wrote.
    fn is_back(&self) -> bool {
        let name = |rank: usize| self.back().join(format!("c{}.r{rank}", self.checkpoint));
        let expected = |rank: usize| match self.load.files.get(rank) {
            Some(file) => std::fs::read(file).ok(),
            None => Some(noise(rank, self.bytes.len())),
        };
        self.ranks().all(|rank| std::fs::read(name(rank)).is_ok_and(|found| Some(found) == expected(rank)))
    }
}

/// Times a restart: the first rank of each group restores all files of its group with `mcr restart` from the
/// containers to its node's memory. The containers are read from the disk if the kernel drops its cached pages.
/// `mcr restart` compares all digests, as in normal use.
pub struct Restart<'s> {
    stream: &'s Stream,
}

impl<'s> Restart<'s> {
    /// Restores the last checkpoint of `stream`, which must exist.
    pub fn of(stream: &'s Stream) -> Self {
        Self { stream }
    }
}

impl Operation for Restart<'_> {
    fn name(&self) -> String {
        let store = if self.stream.name.starts_with("save") { "pfs" } else { "memory" };
        format!("restart/{store}, groups of {}", self.stream.group_size)
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, _: usize) -> Result<()> {
        Ok(())
    }
    fn ready(&mut self) -> Result<()> {
        if self.stream.group.rank() != 0 {
            return Ok(());
        }
        std::fs::remove_dir_all(self.stream.back()).ok(); // it may not exist yet
        let container = self.stream.committed(self.stream.checkpoint, "mcr");
        forget(&container).map_err(|e| beside(&container.display().to_string(), e))
    }
    fn run(&mut self, comm: &Comm) -> Result<()> {
        let back = self.stream.back();
        let mine = if self.stream.group.rank() == 0 { self.stream.restart(&back) } else { Ok(()) };
        let failed = mine.map_err(|e| beside(&back.display().to_string(), e));
        self.stream.wait_for_all(comm)?;
        failed
    }
    fn is_right(&self, _: &Comm) -> bool {
        if self.stream.group.rank() != 0 {
            return true;
        }
        let right = self.stream.is_back();
        std::fs::remove_dir_all(self.stream.back()).ok(); // the stream removes its directory later
        right
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Stop all agents first, so that no agent reports a lost aggregator. After an error there may be no daemon to
        // wait for.
        self.agent = None;
        self.aggregator = None;
        for directory in self.own.drain(..).rev() {
            // Other groups may remove the same store at the same time.
            (0..3).any(|_| std::fs::remove_dir_all(&directory).is_ok() || !directory.exists());
        }
    }
}

/// The command `mcr`. The caller's environment does not configure it.
pub(crate) fn plain_command(mcr: &Path) -> Command {
    let mut command = Command::new(mcr);
    for name in ["MCR_CONFIG", "MCR_STORE", "MCR_JOB", "MCR_AGGREGATORS", "MCR_LOG", "MCR_TLS", "SLURM_NTASKS"] {
        command.env_remove(name);
    }
    command
}

/// Processor time in seconds of a process; 0 if it is unknown. Linux counts in hundredths of a second.
fn processor_seconds(process: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    two_times(&text, 14)
}

/// Processor time in seconds of all ended processes that this process has started.
pub(crate) fn processor_seconds_of_children() -> f64 {
    two_times(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default(), 16)
}

/// The sum of two neighbouring fields of a file `stat`, which are user time and system time. The first field has the
/// number 1.
fn two_times(text: &str, field: usize) -> f64 {
    // The name in brackets, field 2, may contain spaces.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let fields: Vec<f64> = after.split_whitespace().skip(field - 3).take(2).filter_map(|f| f.parse().ok()).collect();
    fields.iter().sum::<f64>() / 100.0
}

/// The path of the command `mcr`: `given`, or the first `mcr` in PATH.
pub fn find_command(given: Option<&Path>) -> Option<PathBuf> {
    let paths = || std::env::var_os("PATH").unwrap_or_default();
    let first = || std::env::split_paths(&paths()).map(|d| d.join("mcr")).find(|p| p.is_file());
    given.map(Path::to_path_buf).or_else(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_checkpoint_grows_with_the_bytes_of_its_group() {
        // An earlier version waited 120 seconds for any number of bytes.
        assert_eq!(commit_timeout(0).as_secs(), 120);
        assert_eq!(commit_timeout(32 * 87_000_000).as_secs(), 120 + 32 * 87);
    }
}
