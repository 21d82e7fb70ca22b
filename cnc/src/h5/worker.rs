//! Runs the HDF5 library in a separate process, with a deadline and a memory limit.
//!
//! The library is C code that expects valid files. If a file is damaged, the library may crash, hang or request all
//! memory. In a separate process, such a failure has only one effect: the file is saved without a map. A process is
//! started when a file needs the library. The process exits after some time without requests, so that an idle agent
//! needs little memory.
//!
//! Both sides communicate over one socket, which is the standard input of the process. A request is a path, and a
//! reply is a map. The length of a message precedes the message, in 8 bytes, little-endian. Numbers within a map are
//! LEB128.

use super::library::Library;
use super::{CHUNKS_MAX, DATASETS_MAX, FileMap, H5Error, MapInput, MapSource, MappedVariable};
use mcrengine::header::{ByteOrder, ElementType, Extent, Filter, Member, Role, Shape};
use mcrengine::varint::{VARINT_BYTES_MAX, put_varint, take_varint};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::alarm;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The hidden subcommand of a program. If a program gets this argument, the program must call [`worker_main`].
pub const WORKER_ARGUMENT: &str = "__h5map";

/// Maximum time that the library may need for one file.
const FILE_DEADLINE: Duration = Duration::from_secs(60);
/// Time without a request after which the process exits.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum address space of the process, in bytes.
const MEMORY_MAX_BYTES: u64 = 4 << 30;
/// Maximum length of a reply, in bytes.
const REPLY_MAX_BYTES: u64 = 1 << 30;
/// Maximum length of a path, in bytes.
const PATH_MAX_BYTES: u64 = 1 << 16;

type StartCommand = dyn Fn() -> io::Result<Command> + Send + Sync;

/// Maximum number of processes. If all processes are busy, further files wait.
const PROCESSES_MAX: usize = 4;

/// Makes maps with the HDF5 library, which runs in other processes. Each process handles one file at a time.
pub struct MapWorker {
    command: Box<StartCommand>,
    /// Maximum time to wait for the answer of a process.
    deadline: Duration,
    pool: Mutex<Pool>,
    /// Notified when a process has finished a file.
    done: Condvar,
}

#[derive(Default)]
struct Pool {
    /// Processes without work. The process that worked last is used first. The other processes stay idle and exit.
    idle: Vec<Process>,
    at_work: usize,
}

/// The right to use one process. Dropping this value returns the process to the pool.
struct Turn<'a> {
    worker: &'a MapWorker,
    process: Option<Process>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut pool = self.worker.pool();
        pool.at_work -= 1;
        pool.idle.extend(self.process.take());
        drop(pool);
        self.worker.done.notify_one();
    }
}

/// A running process. Dropping this value closes the socket, and then the process exits. If the process hangs in the
/// library, it ends at its own deadline.
struct Process {
    socket: UnixStream,
}

impl MapWorker {
    /// Uses this program, started with the argument [`WORKER_ARGUMENT`], as the process.
    pub fn new() -> Self {
        Self::with_command(|| {
            // The program is not started by its path, because an upgrade may have replaced the file at this path.
            let mut command = Command::new("/proc/self/exe");
            command.arg(WORKER_ARGUMENT);
            Ok(command)
        })
    }

    /// Starts each process with the given command.
    pub fn with_command(command: impl Fn() -> io::Result<Command> + Send + Sync + 'static) -> Self {
        // The process ends itself at its own deadline, which is 5 s before this deadline.
        let deadline = FILE_DEADLINE + Duration::from_secs(5);
        Self { command: Box::new(command), deadline, pool: Mutex::default(), done: Condvar::new() }
    }

    /// Locks the pool. A panic of another thread leaves the pool in a valid state, so poisoning is ignored.
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a free process. The wait is limited, because the other files have deadlines.
    fn turn(&self) -> Turn<'_> {
        let full = |pool: &mut Pool| pool.at_work >= PROCESSES_MAX;
        let mut pool = self.done.wait_while(self.pool(), full).unwrap_or_else(PoisonError::into_inner);
        pool.at_work += 1;
        Turn { worker: self, process: pool.idle.pop() }
    }

    fn start(&self) -> io::Result<Process> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(self.deadline))?;
        socket.set_write_timeout(Some(self.deadline))?;
        let mut command = (self.command)()?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // A new thread waits for the end of the process, so that no zombie process remains.
        std::thread::Builder::new().name("h5map-wait".into()).stack_size(64 << 10).spawn(move || child.wait())?;
        Ok(Process { socket })
    }
}

impl Default for MapWorker {
    fn default() -> Self {
        Self::new()
    }
}

impl MapSource for MapWorker {
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error> {
        let path = input.path;
        let failed = |what, source| H5Error::Worker { path: path.to_owned(), what, source };
        let mut turn = self.turn();
        loop {
            let left_over = turn.process.is_some();
            let mut process = match turn.process.take() {
                Some(process) => process,
                None => self.start().map_err(|e| failed("did not start", e))?,
            };
            match process.ask(path) {
                Ok(reply) => {
                    let map =
                        decode_reply(&reply).ok_or_else(|| failed("sent no map", io::ErrorKind::InvalidData.into()))?;
                    turn.process = Some(process);
                    let map = map?;
                    map.check(input.bytes)?;
                    return Ok(map);
                }
                // The process was started for an earlier file and may have exited. So the failure of the process does
                // not mean that this file is damaged.
                Err(e) if left_over && !is_timeout(&e) => {}
                Err(e) => return Err(failed("crashed or passed its deadline", e)),
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Process {
    fn ask(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        send(&mut self.socket, path.as_os_str().as_bytes())?;
        receive(&mut self.socket, REPLY_MAX_BYTES)
    }
}

/// The main function of the process that runs the library. Reads paths from the socket on standard input and answers
/// with maps. Returns when the socket is closed or was idle for too long.
///
/// A program must call this function first in `main` if its first argument is [`WORKER_ARGUMENT`].
pub fn worker_main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    setrlimit(Resource::RLIMIT_AS, MEMORY_MAX_BYTES, MEMORY_MAX_BYTES)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_read_timeout(Some(IDLE_TIMEOUT))?;
    let deadline_s = u32::try_from(FILE_DEADLINE.as_secs()).unwrap_or(u32::MAX);
    loop {
        let path = match receive(&mut socket, PATH_MAX_BYTES) {
            Ok(path) => PathBuf::from(std::ffi::OsString::from_vec(path)),
            // The socket was idle for too long, or the other side has closed the socket.
            Err(_) => return Ok(()),
        };
        // The kernel ends this process at the deadline if the library does not return, even if no process waits for
        // the answer.
        alarm::set(deadline_s);
        let map = File::open(&path).map_err(H5Error::from).and_then(|file| {
            let bytes = file.metadata()?.len();
            Library.map(&MapInput { path: &path, file: &file, bytes, whole: None })
        });
        let reply = encode_reply(&map);
        alarm::cancel();
        send(&mut socket, &reply)?;
    }
}

fn send(to: &mut UnixStream, message: &[u8]) -> io::Result<()> {
    to.write_all(&(message.len() as u64).to_le_bytes())?;
    to.write_all(message)
}

/// Receives a message of at most `most` bytes. Memory is allocated only for bytes that have arrived.
fn receive(from: &mut UnixStream, most: u64) -> io::Result<Vec<u8>> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes exceeds {most}")));
    }
    let mut message = Vec::new();
    from.take(len).read_to_end(&mut message)?;
    if (message.len() as u64) < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

/// Encodes a reply: the byte 0 and the map, or only the byte 1 if there is no map. The other side does not need the
/// reason.
fn encode_reply(map: &Result<FileMap, H5Error>) -> Vec<u8> {
    let Ok(map) = map else { return vec![1] };
    let mut out = vec![0];
    number(&mut out, map.variables.len() as u64);
    for v in &map.variables {
        out.push(u8::from(v.role == Role::StoredChunks));
        number(&mut out, v.path.len() as u64);
        out.extend_from_slice(v.path.as_bytes());
        element(&mut out, &v.element);
        number(&mut out, v.shape.0.len() as u64);
        v.shape.0.iter().for_each(|&d| number(&mut out, d));
        number(&mut out, v.chunk.0.len() as u64);
        v.chunk.0.iter().for_each(|&d| number(&mut out, d));
        number(&mut out, v.filters.len() as u64);
        for filter in &v.filters {
            let (kind, value) = match filter {
                Filter::Shuffle { width } => (0, *width),
                Filter::Deflate { level } => (1, u32::from(*level)),
                Filter::Fletcher32 => (2, 0),
            };
            number(&mut out, kind);
            number(&mut out, u64::from(value));
        }
        number(&mut out, v.extents.len() as u64);
        for e in &v.extents {
            number(&mut out, e.offset);
            number(&mut out, e.stored_bytes);
            number(&mut out, e.raw_bytes);
        }
    }
    out
}

fn number(out: &mut Vec<u8>, n: u64) {
    put_varint(n, out);
}

fn element(out: &mut Vec<u8>, e: &ElementType) {
    let big = |order: &ByteOrder| u64::from(*order == ByteOrder::Big);
    match e {
        ElementType::Bytes => number(out, 0),
        ElementType::Int { width, signed, order } => {
            [1, u64::from(*width), u64::from(*signed), big(order)].iter().for_each(|&n| number(out, n));
        }
        ElementType::Float { width, order } => {
            [2, u64::from(*width), big(order)].iter().for_each(|&n| number(out, n));
        }
        ElementType::Fixed { width } => [3, u64::from(*width)].iter().for_each(|&n| number(out, n)),
        ElementType::Compound { width, members } => {
            [4, u64::from(*width), members.len() as u64].iter().for_each(|&n| number(out, n));
            for m in members {
                number(out, u64::from(m.offset));
                number(out, u64::from(m.count));
                element(out, &m.element);
            }
        }
    }
}

/// Decodes a reply. `None` if the reply is invalid. A damaged file may have corrupted the memory of the process.
fn decode_reply(reply: &[u8]) -> Option<Result<FileMap, H5Error>> {
    let mut from = Reader { bytes: reply };
    if from.take(1)? != [0] {
        return Some(Err(H5Error::Library { what: "the library cannot read the file" }));
    }
    let count = from.count(DATASETS_MAX * 2)?;
    let mut variables = Vec::new();
    for _ in 0..count {
        let role = if from.take(1)? == [0] { Role::Array } else { Role::StoredChunks };
        let len = from.count(1 << 20)?;
        let path = std::str::from_utf8(from.take(len)?).ok()?.into();
        let element = from.element(0)?;
        let dims = from.count(mcrengine::header::DIMENSIONS_MAX)?;
        let shape = Shape((0..dims).map(|_| from.number()).collect::<Option<_>>()?);
        let dims = from.count(mcrengine::header::DIMENSIONS_MAX)?;
        let chunk = Shape((0..dims).map(|_| from.number()).collect::<Option<_>>()?);
        let filters = from.count(mcrengine::header::FILTERS_MAX)?;
        let filters = (0..filters).map(|_| from.filter()).collect::<Option<_>>()?;
        let extents = from.count(CHUNKS_MAX)?;
        let extents = (0..extents).map(|_| from.extent()).collect::<Option<_>>()?;
        variables.push(MappedVariable { role, path, element, shape, chunk, filters, extents });
    }
    (from.bytes.is_empty() && variables.iter().all(|v| v.element.is_valid() && !v.extents.is_empty()))
        .then_some(Ok(FileMap { variables }))
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        take_varint(&mut self.bytes, VARINT_BYTES_MAX).ok()
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn count(&mut self, most: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|&n| n <= most)
    }

    fn filter(&mut self) -> Option<Filter> {
        Some(match (self.number()?, self.small()?) {
            (0, width) => Filter::Shuffle { width },
            (1, level) => Filter::Deflate { level: u8::try_from(level).ok()? },
            (2, _) => Filter::Fletcher32,
            _ => return None,
        })
    }

    fn extent(&mut self) -> Option<Extent> {
        Some(Extent { offset: self.number()?, stored_bytes: self.number()?, raw_bytes: self.number()? })
    }

    fn order(&mut self) -> Option<ByteOrder> {
        Some(if self.number()? == 0 { ByteOrder::Little } else { ByteOrder::Big })
    }

    fn element(&mut self, depth: u32) -> Option<ElementType> {
        let width = |n: u32| u8::try_from(n).ok();
        Some(match self.number()? {
            0 => ElementType::Bytes,
            1 => ElementType::Int { width: width(self.small()?)?, signed: self.number()? != 0, order: self.order()? },
            2 => ElementType::Float { width: width(self.small()?)?, order: self.order()? },
            3 => ElementType::Fixed { width: self.small()? },
            4 if depth == 0 => {
                let width = self.small()?;
                let count = self.count(mcrengine::header::MEMBERS_MAX)?;
                let member = |from: &mut Self| {
                    Some(Member { offset: from.small()?, count: from.small()?, element: from.element(1)? })
                };
                ElementType::Compound { width, members: (0..count).map(|_| member(self)).collect::<Option<_>>()? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FileMap {
        let member = |offset, element| Member { offset, count: 2, element };
        let int = ElementType::Int { width: 4, signed: true, order: ByteOrder::Big };
        let members = [member(0, ElementType::F64), member(16, int), member(24, ElementType::Fixed { width: 3 })];
        let elements =
            [ElementType::Bytes, ElementType::F32, ElementType::Compound { width: 32, members: members.into() }];
        let variable = |(nth, element): (usize, ElementType)| MappedVariable {
            role: if nth == 0 { Role::StoredChunks } else { Role::Array },
            path: format!("/gr\u{fc}n/{nth}").into(),
            element,
            shape: Shape([7, u64::MAX].into()),
            chunk: Shape([3].into()),
            filters: [Filter::Shuffle { width: 8 }, Filter::Deflate { level: 9 }, Filter::Fletcher32].into(),
            extents: vec![Extent { offset: 1 << 40, stored_bytes: 300, raw_bytes: 4096 }; nth + 1],
        };
        FileMap { variables: elements.into_iter().enumerate().map(variable).collect() }
    }

    #[test]
    fn a_map_comes_through_the_socket_unchanged_and_a_cut_one_not_at_all() {
        let map = sample();
        let reply = encode_reply(&Ok(map.clone()));
        assert_eq!(decode_reply(&reply).expect("a reply").expect("a map"), map);
        for len in 1..reply.len() {
            assert!(decode_reply(&reply[..len]).is_none(), "{len} of {} bytes were accepted", reply.len());
        }
    }

    #[test]
    fn a_process_that_dies_or_never_answers_makes_an_error_and_no_hang() {
        for (program, deadline_ms) in [("/bin/true", 10_000), ("/bin/cat", 50)] {
            let mut worker = MapWorker::with_command(move || Ok(Command::new(program)));
            worker.deadline = Duration::from_millis(deadline_ms);
            let file = tempfile::tempfile().expect("a temporary file");
            let input = MapInput { path: Path::new("/nowhere"), file: &file, bytes: 0, whole: None };
            let error = worker.map(&input).expect_err("there is no worker");
            assert!(matches!(error, H5Error::Worker { .. }), "{program}: {error}");
        }
    }
}
