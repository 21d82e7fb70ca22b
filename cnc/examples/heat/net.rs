//! The connections between neighbouring ranks: Unix-domain sockets in a directory that all ranks know.

use crate::Failure;
use crate::solver::{Exchange, Grid};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum time that a rank waits for a neighbour, at the start and within a step.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAGIC: u64 = u64::from_le_bytes(*b"heat-1\r\n");

/// The kind of a message. If a rank receives a message of an unexpected kind, the rank and its neighbour are at
/// different places of the algorithm.
#[derive(Clone, Copy)]
enum Tag {
    Halo = 1,
    Up = 2,
    Down = 3,
}

/// The connection to one neighbour.
struct Link {
    stream: UnixStream,
    rank: u32,
    neighbour: u32,
    buffer: Vec<u8>,
}

impl Link {
    fn send(&mut self, tag: Tag, numbers: &[f64]) -> Result<(), Failure> {
        self.buffer.clear();
        self.buffer.extend((tag as u64).to_le_bytes());
        numbers.iter().for_each(|n| self.buffer.extend(n.to_le_bytes()));
        self.stream.write_all(&self.buffer).map_err(|source| self.lost("sending to", source))
    }

    fn receive(&mut self, tag: Tag, numbers: &mut [f64]) -> Result<(), Failure> {
        self.buffer.resize(8 + size_of_val(numbers), 0);
        let read = self.stream.read_exact(&mut self.buffer);
        read.map_err(|source| self.lost("waiting for", source))?;
        let (head, body) = self.buffer.split_at(8);
        if head != (tag as u64).to_le_bytes() {
            return Err(self.lost("listening to", io::Error::other("the neighbour is in another part of the step")));
        }
        for (number, bytes) in numbers.iter_mut().zip(body.as_chunks::<8>().0) {
            *number = f64::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn lost(&self, doing: &'static str, source: io::Error) -> Failure {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof, WouldBlock};
        let source = match source.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => io::Error::new(source.kind(), "the neighbour has ended"),
            WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "the neighbour sent nothing for 60 s"),
            _ => source,
        };
        Failure::Neighbour { rank: self.rank, neighbour: self.neighbour, doing, source }
    }
}

/// A rank's two neighbours.
pub struct Neighbours {
    rank: u32,
    below: Option<Link>,
    above: Option<Link>,
}

impl Neighbours {
    /// Connects to both neighbours through `rendezvous`. `ranks` and `grid` must be the same on all ranks.
    pub fn meet(rendezvous: &Path, rank: u32, ranks: u32, grid: Grid) -> Result<Self, Failure> {
        let deadline = Instant::now() + NEIGHBOUR_TIMEOUT;
        let socket_of = |rank: u32| rendezvous.join(format!("rank_{rank}.sock"));
        let trouble = |neighbour: u32| move |source| Failure::Neighbour { rank, neighbour, doing: "meeting", source };
        let link = |stream: UnixStream, neighbour: u32| -> io::Result<Link> {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(NEIGHBOUR_TIMEOUT))?;
            stream.set_write_timeout(Some(NEIGHBOUR_TIMEOUT))?;
            Ok(Link { stream, rank, neighbour, buffer: Vec::new() })
        };
        let listener = (rank + 1 < ranks).then(|| listen(&socket_of(rank))).transpose().map_err(trouble(rank + 1))?;
        let mut below = match rank.checked_sub(1) {
            Some(lower) => {
                let stream = retry(deadline, || UnixStream::connect(socket_of(lower)));
                Some(stream.and_then(|s| link(s, lower)).map_err(trouble(lower))?)
            }
            None => None,
        };
        if let Some(below) = &mut below {
            below.send_hello(ranks, grid).map_err(trouble(rank - 1))?;
        }
        let mut above = match &listener {
            Some(listener) => {
                let stream = retry(deadline, || listener.accept().map(|(stream, _)| stream));
                Some(stream.and_then(|s| link(s, rank + 1)).map_err(trouble(rank + 1))?)
            }
            None => None,
        };
        if let Some(above) = &mut above {
            above.send_hello(ranks, grid).map_err(trouble(rank + 1))?;
            above.check_hello(ranks, grid)?;
        }
        if let Some(below) = &mut below {
            below.check_hello(ranks, grid)?;
        }
        Ok(Self { rank, below, above })
    }

    /// Passes a number from rank 0 up to the last rank. Each rank combines the received number with its own number.
    /// Then the result is passed down to all ranks.
    fn fold(&mut self, mine: impl FnOnce(f64) -> f64, start: f64) -> Result<f64, Failure> {
        let mut number = [start];
        if let Some(below) = &mut self.below {
            below.receive(Tag::Up, &mut number)?;
        }
        number[0] = mine(number[0]);
        if let Some(above) = &mut self.above {
            above.send(Tag::Up, &number)?;
            above.receive(Tag::Down, &mut number)?;
        }
        if let Some(below) = &mut self.below {
            below.send(Tag::Down, &number)?;
        }
        Ok(number[0])
    }

    /// The minimum of the numbers of all ranks.
    pub fn min(&mut self, mine: f64) -> Result<f64, Failure> {
        self.fold(|so_far| so_far.min(mine), f64::INFINITY)
    }
}

impl Link {
    fn hello(rank: u32, ranks: u32, grid: Grid) -> Vec<u8> {
        let numbers = [MAGIC, u64::from(rank), u64::from(ranks), grid.nx as u64, grid.ny as u64, grid.nz as u64];
        numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    fn send_hello(&mut self, ranks: u32, grid: Grid) -> io::Result<()> {
        self.stream.write_all(&Self::hello(self.rank, ranks, grid))
    }

    fn check_hello(&mut self, ranks: u32, grid: Grid) -> Result<(), Failure> {
        let expected = Self::hello(self.neighbour, ranks, grid);
        let mut found = vec![0; expected.len()];
        let read = self.stream.read_exact(&mut found);
        read.map_err(|source| self.lost("meeting", source))?;
        if found != expected {
            let source = io::Error::other("the neighbour was started with another number of ranks or another grid");
            return Err(self.lost("meeting", source));
        }
        Ok(())
    }
}

impl Exchange for Neighbours {
    fn halo(&mut self, first: &[f64], last: &[f64], below: &mut [f64], above: &mut [f64]) -> Result<(), Failure> {
        // While one of two neighbours sends, the other neighbour receives. Therefore a plane may be larger than a
        // socket's buffer. The pairs (0, 1), (2, 3), ... exchange at the same time, and then the pairs (1, 2), (3,
        // 4), ...
        for turn in 0..2 {
            if (self.rank + turn).is_multiple_of(2) {
                if let Some(link) = &mut self.above {
                    link.send(Tag::Halo, last)?;
                    link.receive(Tag::Halo, above)?;
                }
            } else if let Some(link) = &mut self.below {
                link.receive(Tag::Halo, below)?;
                link.send(Tag::Halo, first)?;
            }
        }
        Ok(())
    }

    fn sum(&mut self, parts: &[f64]) -> Result<f64, Failure> {
        self.fold(|so_far| parts.iter().fold(so_far, |sum, part| sum + part), 0.0)
    }
}

fn listen(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {} // a killed run may have left the socket
    }
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Repeats the attempt to connect until the other side is ready.
fn retry(deadline: Instant, mut attempt: impl FnMut() -> io::Result<UnixStream>) -> io::Result<UnixStream> {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    loop {
        match attempt() {
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound | WouldBlock) => {
                if Instant::now() > deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the neighbour did not start in time"));
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            done => return done,
        }
    }
}
