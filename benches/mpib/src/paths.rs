//! The transfer paths of a checkpoint, as operations that can be timed: from all ranks to the aggregators of their
//! groups, and from ranks or aggregators to files.
//!
//! A group consists of GROUP_SIZE consecutive ranks, and its first rank acts as its aggregator. So N ranks have
//! ceil(N / GROUP_SIZE) aggregators. All groups work at the same time.

pub mod back;
pub mod shared;

use crate::collectives::operation::{Collective, Flow, Kind, Operation, Setting, named};
use crate::collectives::{self, Algorithm, Result};
use crate::comm::{Comm, CommError};
use crate::models::lanes::Direction;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A peer that sends nothing for this time counts as dead.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum time until all connections are established. All ranks start at the same time, so a rank that connects
/// later counts as failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of one read or write.
const PIECE_BYTES: usize = 1 << 20;

/// Minimum bytes of a rank in one piece of a gather, also if the buffer is too small for all ranks of a group.
const PIECE_BYTES_MIN: usize = 4096;

pub(crate) fn beside(what: &str, error: std::io::Error) -> CommError {
    CommError::Beside(format!("{what}: {error}"))
}

/// Incompressible bytes, which depend only on the rank (xorshift64*, S. Vigna).
struct Noise(u64);

impl Noise {
    fn of(rank: usize) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ (rank as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    /// The next bytes. All lengths but the last must be multiples of 8.
    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            word.copy_from_slice(&self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_ne_bytes()[..word.len()]);
        }
    }

    /// Whether `found` are the next bytes.
    fn continues_with(&mut self, found: &[u8]) -> bool {
        let mut expected = [0; 4096];
        found.chunks(expected.len()).fold(true, |right, part| {
            let expected = &mut expected[..part.len()];
            self.fill(expected);
            right && expected == part
        })
    }
}

/// The first `len` bytes of a rank's noise.
pub(crate) fn noise(rank: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Noise::of(rank).fill(&mut bytes);
    bytes
}

/// Bytes of each rank in one piece, so that the pieces of a group fit into an aggregator's buffer: a multiple of 8.
pub fn piece_bytes(block_bytes: usize, group: usize, buffer_bytes: usize) -> usize {
    let most = (buffer_bytes / group.max(1)).max(PIECE_BYTES_MIN) / 8 * 8;
    block_bytes.min(most)
}

/// MPI gathers of all groups at the same time. If the blocks of a group are larger than the aggregator's buffer, they
/// are gathered in pieces, as mcrEngine does, and each piece replaces the piece before.
pub struct GroupGather {
    group: Comm,
    implementation: String,
    setting: Setting,
    group_size: usize,
    buffer_bytes: usize,
    piece_bytes: usize,
    out: Vec<u8>,
    /// The pieces of all ranks of the group, at its first rank.
    into: Vec<u8>,
}

impl GroupGather {
    /// `implementation` is the name of an implementation of [`Kind::Gather`]. `sites` is empty or contains the site
    /// of each rank of `comm`. An aggregator's buffer has at most `buffer_bytes` bytes. All ranks must call this
    /// function. `None` on all ranks if the implementation does not fit every group, for example lanes within one
    /// site.
    pub fn new(
        comm: &Comm,
        group_size: usize,
        implementation: &str,
        sites: &[usize],
        buffer_bytes: usize,
    ) -> Result<Option<Self>> {
        let first = comm.rank() / group_size * group_size;
        let group = comm.split(u16::try_from(comm.rank() / group_size).unwrap_or(u16::MAX))?;
        let sites = sites.iter().skip(first).take(group.size()).copied().collect();
        let setting = Setting { sites, ..Setting::default() };
        let fits = Collective::new(Kind::Gather, implementation, &setting, group.size()).is_ok();
        let mut missing = [f64::from(u8::from(!fits))];
        comm.all_max(&mut missing)?;
        let implementation = implementation.into();
        let (out, into) = (Vec::new(), Vec::new());
        let new = Self { group, implementation, setting, group_size, buffer_bytes, piece_bytes: 0, out, into };
        Ok((missing[0] == 0.0).then_some(new))
    }

    /// Gathers all pieces. `look` gets the number of bytes of a piece, and the pieces of all ranks at the first rank.
    fn gather(&mut self, mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        let ranks = self.group.size();
        let Self { out, into, piece_bytes, .. } = self;
        for piece in out.chunks((*piece_bytes).max(1)) {
            let lens = vec![piece.len(); ranks];
            let how = named(&self.implementation, Direction::Gather, &lens, &self.setting).unwrap_or(Algorithm::Native);
            let all = if self.group.rank() == 0 { &mut into[..piece.len() * ranks] } else { &mut [][..] };
            collectives::gather(&self.group, &how, piece, &lens, all, 0)?;
            look(piece.len(), all);
        }
        Ok(())
    }
}

impl Operation for GroupGather {
    fn name(&self) -> String {
        format!("gather/{}, groups of {}", self.implementation, self.group_size)
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, block_bytes: usize) -> Result<()> {
        let ranks = self.group.size();
        self.out = noise(self.group.rank(), block_bytes);
        self.piece_bytes = piece_bytes(block_bytes, ranks, self.buffer_bytes);
        self.into = vec![0; if self.group.rank() == 0 { self.piece_bytes * ranks } else { 0 }];
        Ok(())
    }
    fn run(&mut self, _: &Comm) -> Result<()> {
        self.gather(|_, _| {})
    }
    /// If the block of each rank is one piece, compares the pieces in the buffer. Otherwise only [`Operation::check`]
    /// compares bytes, because the pieces replace each other.
    fn is_right(&self, _: &Comm) -> bool {
        self.out.len() > self.piece_bytes || self.group.rank() != 0 || {
            let blocks = self.into.chunks(self.piece_bytes.max(1)).zip(0..);
            blocks.into_iter().all(|(block, rank)| Noise::of(rank).continues_with(block))
        }
    }
    fn check(&mut self, _: &Comm) -> Result<bool> {
        let mut noises: Vec<_> = (0..self.group.size()).map(Noise::of).collect();
        let mut right = true;
        self.gather(|len, all| {
            let blocks = all.chunks(len.max(1)).zip(&mut noises);
            right &= blocks.fold(true, |right, (block, noise)| noise.continues_with(block) && right);
        })?;
        Ok(right)
    }
}

/// A gather of each group over plain TCP connections, which stay open. This gather does not use MPI.
pub struct TcpGather {
    group: Comm,
    group_size: usize,
    buffer_bytes: usize,
    links: Links,
}

/// The connections of a rank, and its buffers.
pub(crate) struct Links {
    leads: bool,
    /// At the first rank of a group: connections to all other ranks, in the order of ranks. At the other ranks: a
    /// connection to the first rank.
    links: Vec<TcpStream>,
    out: Vec<u8>,
    /// At the first rank of a group: a receive buffer of one piece for every other rank.
    into: Vec<Vec<u8>>,
}

/// The answer of an aggregator at the end of a gather: another gather follows, or this gather was the last gather.
const NEXT: u8 = 1;
const LAST: u8 = 2;

impl TcpGather {
    /// Connects the ranks of each group. An aggregator's buffer has at most `buffer_bytes` bytes. All ranks must call
    /// this function. If one rank cannot connect, all ranks get an error.
    pub fn new(comm: &Comm, group_size: usize, buffer_bytes: usize) -> Result<Self> {
        let group = comm.split(u16::try_from(comm.rank() / group_size).unwrap_or(u16::MAX))?;
        let leads = group.rank() == 0;
        let listener = if leads { listen().map(Some) } else { Ok(None) };
        let listener = comm.agree(listener.map_err(|e| format!("TCP: {e}")))?;
        let address = listener.as_ref().map(|(_, address)| address.to_string()).unwrap_or_default();
        let address = String::from_utf8_lossy(&group.all_bytes(address.as_bytes())?[0]).into_owned();
        let links = match listener {
            Some((listener, _)) => accept_all(&listener, group.size()),
            None => connect(&address, group.rank()).map(|link| vec![link]),
        };
        let links = comm.agree(links.map_err(|e| format!("TCP to {address}: {e}")))?;
        let links = Links { leads, links, out: Vec::new(), into: Vec::new() };
        Ok(Self { group, group_size, buffer_bytes, links })
    }

    /// Gathers once. Returns false if `compare` is set and a byte is wrong.
    fn gather(&mut self, compare: bool) -> Result<bool> {
        self.links.gather(compare, NEXT).map(|(right, _)| right).map_err(|error| beside("TCP", error))
    }

    /// Gives away the connections, so that a thread without MPI can gather.
    pub(crate) fn into_links(self) -> Links {
        self.links
    }
}

impl Links {
    /// Repeats the gather until `ends` returns true on the first rank of the group. Returns the number of gathers.
    pub(crate) fn repeat(&mut self, ends: impl Fn() -> bool) -> std::io::Result<u64> {
        let mut count = 0;
        if self.links.is_empty() {
            return Ok(0); // a group of one rank
        }
        loop {
            let answer = if ends() { LAST } else { NEXT };
            let (_, answer) = self.gather(false, answer)?;
            count += 1;
            if answer == LAST {
                return Ok(count);
            }
        }
    }

    /// Gathers once. At the end, the first rank sends `answer` to the other ranks. Returns false if `compare` is set
    /// and a byte is wrong, and returns the answer.
    fn gather(&mut self, compare: bool, answer: u8) -> std::io::Result<(bool, u8)> {
        let block_bytes = self.out.len();
        if !self.leads {
            let Some(link) = self.links.first_mut() else { return Ok((true, LAST)) };
            link.write_all(&self.out)?;
            // The operation ends only after the aggregator has received everything.
            let mut answer = [0];
            return link.read_exact(&mut answer).map(|()| (true, answer[0]));
        }
        // Each link has a thread, because an aggregator also serves all links at the same time.
        let gathered: std::io::Result<bool> = std::thread::scope(|scope| {
            let links = self.links.iter_mut().zip(&mut self.into).zip(1..);
            let threads: Vec<_> = links
                .map(|((link, buffer), rank)| {
                    scope.spawn(move || -> std::io::Result<bool> {
                        let (mut left, mut right, mut noise) = (block_bytes, true, Noise::of(rank));
                        while left > 0 {
                            let some = left.min(buffer.len());
                            link.read_exact(&mut buffer[..some])?;
                            right &= !compare || noise.continues_with(&buffer[..some]);
                            left -= some;
                        }
                        link.write_all(&[answer]).map(|()| right)
                    })
                })
                .collect();
            threads.into_iter().try_fold(true, |right, thread| {
                let found = thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))?;
                Ok(right && found)
            })
        });
        gathered.map(|right| (right, answer))
    }
}

/// Listens at an address that other hosts can reach: the address of the host's name, else the address of the default
/// route, else the lowest address of a network card, else the loopback address.
fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((own_ip(), 0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The address for [`listen`].
pub(crate) fn own_ip() -> IpAddr {
    let named = mpi::environment::processor_name().ok().and_then(|n| (n.as_str(), 0).to_socket_addrs().ok()?.next());
    let way_out = || -> Option<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?; // an address reserved for documentation; nothing is sent
        Some(socket.local_addr().ok()?.ip())
    };
    let ip = named.map(|a| a.ip()).filter(|ip| !ip.is_loopback()).or_else(way_out).or_else(card_address);
    ip.unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

/// The lowest address in Linux' table of local addresses.
fn card_address() -> Option<IpAddr> {
    own_address(&std::fs::read_to_string("/proc/net/fib_trie").ok()?)
}

/// The lowest address in the text `table`, except loopback addresses. Each address is on the line before the line
/// that marks the address as local.
fn own_address(table: &str) -> Option<IpAddr> {
    let lines: Vec<_> = table.lines().collect();
    let own = lines.windows(2).filter(|w| w[1].contains("32 host LOCAL"));
    let addresses = own.filter_map(|w| w[0].split_whitespace().last()?.parse::<IpAddr>().ok());
    addresses.filter(|ip| !ip.is_loopback()).min()
}

/// Accepts the links of ranks 1, 2 ... in any order. Each link begins with the number of its rank. Fails after a
/// timeout.
fn accept_all(listener: &TcpListener, ranks: usize) -> std::io::Result<Vec<TcpStream>> {
    listener.set_nonblocking(true)?;
    let begun = std::time::Instant::now();
    let mut links: Vec<Option<TcpStream>> = (1..ranks).map(|_| None).collect();
    while links.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((mut link, _)) => {
                link.set_nonblocking(false)?;
                ready(&link)?;
                let mut word = [0; 8];
                link.read_exact(&mut word)?;
                let rank = usize::try_from(u64::from_le_bytes(word)).unwrap_or(0);
                // A connection from an unknown program is dropped.
                if let Some(place) = rank.checked_sub(1).and_then(|r| links.get_mut(r)) {
                    *place = Some(link);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if begun.elapsed() > CONNECT_TIMEOUT {
                    return Err(std::io::Error::new(
                        std::io::ErrorKind::TimedOut,
                        "not all ranks of the group connected in time",
                    ));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(links.into_iter().flatten().collect())
}

fn connect(address: &str, rank: usize) -> std::io::Result<TcpStream> {
    let address: SocketAddr = address
        .parse()
        .map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidData, "the aggregator has no address"))?;
    let mut link = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    ready(&link)?;
    link.write_all(&(rank as u64).to_le_bytes())?;
    Ok(link)
}

fn ready(link: &TcpStream) -> std::io::Result<()> {
    link.set_nodelay(true)?;
    link.set_read_timeout(Some(SILENCE_TIMEOUT))?;
    link.set_write_timeout(Some(SILENCE_TIMEOUT))
}

impl Operation for TcpGather {
    fn name(&self) -> String {
        format!("gather/tcp, groups of {}", self.group_size)
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, block_bytes: usize) -> Result<()> {
        self.links.out = noise(self.group.rank(), block_bytes);
        let piece = piece_bytes(block_bytes, self.group.size(), self.buffer_bytes);
        self.links.into = self.links.links.iter().map(|_| vec![0; piece]).collect();
        Ok(())
    }
    fn run(&mut self, _: &Comm) -> Result<()> {
        self.gather(false).map(|_| ())
    }
    /// Only [`Operation::check`] compares bytes, because the pieces replace each other.
    fn is_right(&self, _: &Comm) -> bool {
        true
    }
    fn check(&mut self, _: &Comm) -> Result<bool> {
        self.gather(true)
    }
}

/// Writes and syncs files. If `group_size` is 1, every rank writes one file. Otherwise, the first rank of every group
/// writes one file for the whole group.
pub struct WriteFiles {
    what: String,
    directory: PathBuf,
    /// If 1, every rank writes its own file. If more than 1, the first rank of each group writes the bytes of the
    /// group.
    group_size: usize,
    rank: usize,
    /// Compression ratio: raw bytes divided by written bytes.
    ratio: f64,
    bytes: Vec<u8>,
    times: usize,
}

impl WriteFiles {
    /// `what` is the name of the path, for example `pfs`. All ranks check that they can write to the directory. All
    /// ranks must call this function.
    pub fn new(comm: &Comm, what: &str, directory: &Path, group_size: usize) -> Result<Self> {
        let rank = comm.rank();
        let (what, directory) = (what.into(), directory.into());
        let new = Self { what, directory, group_size, rank, ratio: 1.0, bytes: Vec::new(), times: 0 };
        let tried = File::create(new.path()).map(|_| ()).and_then(|()| std::fs::remove_file(new.path()));
        comm.agree(tried.map_err(|e| format!("{}: {e}", new.path().display())))?;
        Ok(new)
    }

    /// Divides the number of written bytes by `ratio`, to imitate compression. The factor is at least 1, and at least
    /// one byte is written for each rank.
    pub fn compressed(mut self, ratio: f64) -> Self {
        self.ratio = ratio.max(1.0);
        self
    }

    fn path(&self) -> PathBuf {
        self.directory.join(format!("mpib-paths-{}-{}", self.what, self.rank))
    }

    fn writes(&self) -> bool {
        self.rank.is_multiple_of(self.group_size)
    }

    /// Reads the whole file in pieces, each into `buffer`. Returns false if `compare` is set and a byte is wrong.
    fn read(&self, buffer: &mut [u8], compare: bool) -> std::io::Result<bool> {
        let mut file = File::open(self.path())?;
        let mut right = true;
        for _ in 0..self.times {
            for piece in self.bytes.chunks(buffer.len().max(1)) {
                let into = &mut buffer[..piece.len()];
                file.read_exact(into)?;
                right &= !compare || into == piece;
            }
        }
        let end = !compare || file.read(&mut [0])? == 0;
        Ok(right && end)
    }
}

impl Operation for WriteFiles {
    fn name(&self) -> String {
        match self.group_size {
            1 => format!("write/{}, every rank", self.what),
            size => format!("write/{}, one of {size}", self.what),
        }
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, comm: &Comm, block_bytes: usize) -> Result<()> {
        let stored = ((block_bytes as f64 / self.ratio).ceil() as usize).clamp(1, block_bytes.max(1));
        self.bytes = if self.writes() { noise(self.rank, stored) } else { Vec::new() };
        self.times = self.group_size.min(comm.size() - self.rank);
        Ok(())
    }
    fn run(&mut self, _: &Comm) -> Result<()> {
        if !self.writes() {
            return Ok(());
        }
        let write = || -> std::io::Result<()> {
            let mut file = File::create(self.path())?;
            for _ in 0..self.times {
                self.bytes.chunks(PIECE_BYTES).try_for_each(|piece| file.write_all(piece))?;
            }
            file.sync_all()
        };
        write().map_err(|e| beside(&self.path().display().to_string(), e))
    }
    fn is_right(&self, _: &Comm) -> bool {
        !self.writes() || self.read(&mut vec![0; PIECE_BYTES], true).unwrap_or(false)
    }
}

impl Drop for WriteFiles {
    fn drop(&mut self) {
        std::fs::remove_file(self.path()).ok(); // the file may not exist
    }
}

/// Reads the files again, as a restart does. If the kernel drops its cached pages, the files are read from the disk.
pub struct ReadFiles {
    files: WriteFiles,
    into: Vec<u8>,
}

impl ReadFiles {
    /// Reads the files that `files` writes. The files are written once before the first reading.
    pub fn of(files: WriteFiles) -> Self {
        Self { files, into: Vec::new() }
    }

    fn failed(&self, error: std::io::Error) -> CommError {
        beside(&self.files.path().display().to_string(), error)
    }
}

/// Asks the kernel to drop the cached pages of a file, which must be on the disk. The kernel may ignore the request.
pub(crate) fn forget(path: &Path) -> std::io::Result<()> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).ok();
    Ok(())
}

impl Operation for ReadFiles {
    fn name(&self) -> String {
        self.files.name().replacen("write/", "read/", 1)
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, comm: &Comm, block_bytes: usize) -> Result<()> {
        self.files.prepare(comm, block_bytes)?;
        self.files.run(comm)?;
        self.into = vec![0; PIECE_BYTES];
        Ok(())
    }
    fn ready(&mut self) -> Result<()> {
        if self.files.writes() { forget(&self.files.path()).map_err(|e| self.failed(e)) } else { Ok(()) }
    }
    fn run(&mut self, _: &Comm) -> Result<()> {
        if !self.files.writes() {
            return Ok(());
        }
        let read = self.files.read(&mut self.into, false);
        read.map(|_| ()).map_err(|e| self.failed(e))
    }
    fn is_right(&self, comm: &Comm) -> bool {
        self.files.is_right(comm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_address_is_found_where_no_name_resolves() {
        let table = "Main:\n  +-- 10.77.0.0/24 2 0 2\n     |-- 10.77.0.0\n        /24 link UNICAST\n     |-- 10.77.0.1\n        \
                     /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        assert_eq!(own_address(table), Some(IpAddr::from([10, 77, 0, 1])));
        assert_eq!(own_address("     |-- 127.0.0.1\n        /32 host LOCAL\n"), None);
    }

    #[test]
    fn pieces_of_a_group_fit_into_the_buffer() {
        let (mb, gib) = (87_000_000, 1 << 30);
        assert_eq!(piece_bytes(1000, 32, gib), 1000);
        for (group, buffer) in [(32, gib), (1000, 256 << 20), (3, 100_000)] {
            let piece = piece_bytes(mb, group, buffer);
            assert!(piece * group <= buffer && piece.is_multiple_of(8), "{piece} x {group} in {buffer}");
        }
        assert_eq!(piece_bytes(mb, 1_000_000, 1 << 20), PIECE_BYTES_MIN);
        let whole = noise(3, 1003);
        let mut again = Noise::of(3);
        assert!(again.continues_with(&whole[..496]) && again.continues_with(&whole[496..]));
        assert!(!Noise::of(4).continues_with(&whole));
    }

    #[test]
    fn noise_is_a_ranks_own_and_always_the_same() {
        assert_eq!(noise(3, 1000), noise(3, 1000));
        assert_ne!(noise(3, 1000), noise(4, 1000));
        assert_eq!(noise(0, 13).len(), 13);
        let mut seen = [0u32; 256];
        noise(1, 1 << 16).iter().for_each(|&b| seen[usize::from(b)] += 1);
        assert!(seen.iter().all(|&n| (150..370).contains(&n)), "every byte about equally often: {seen:?}");
    }
}
