//! The way back of a restart: from the aggregator of each group to the ranks of the group, over plain TCP.

use super::{Links, Noise, Operation, Result, TcpGather, beside, noise, piece_bytes};
use crate::collectives::operation::Flow;
use crate::comm::Comm;
use std::io::{Read, Write};

/// A scatter of each group over plain TCP connections, which stay open: the first rank of the group sends a block to
/// each other rank. This scatter does not use MPI.
pub struct TcpScatter {
    links: Links,
    group: Comm,
    group_size: usize,
    buffer_bytes: usize,
    is_right: bool,
}

impl TcpScatter {
    /// Connects the ranks of each group. A rank receives its block in pieces, so that the pieces of a group have at
    /// most `buffer_bytes` bytes. All ranks must call this function. If one rank cannot connect, all ranks get an
    /// error.
    pub fn new(comm: &Comm, group_size: usize, buffer_bytes: usize) -> Result<Self> {
        let TcpGather { group, links, .. } = TcpGather::new(comm, group_size, buffer_bytes)?;
        Ok(Self { links, group, group_size, buffer_bytes, is_right: true })
    }

    fn scatter(&mut self, compare: bool) -> std::io::Result<bool> {
        let Links { leads, links, out, into } = &mut self.links;
        if *leads {
            let out = &out[..];
            // Each link has a thread, because an aggregator also serves all links at the same time.
            return std::thread::scope(|scope| {
                let send = |link: &mut std::net::TcpStream| {
                    link.write_all(out)?;
                    // The operation ends only after the rank has received everything.
                    link.read_exact(&mut [0])
                };
                let threads: Vec<_> = links.iter_mut().map(|link| scope.spawn(move || send(link))).collect();
                threads.into_iter().try_fold(true, |_, thread| {
                    thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())).map(|()| true)
                })
            });
        }
        let (Some(link), Some(buffer)) = (links.first_mut(), into.first_mut()) else { return Ok(true) };
        let (mut left, mut right, mut noise) = (out.len(), true, Noise::of(0));
        while left > 0 {
            let some = left.min(buffer.len());
            link.read_exact(&mut buffer[..some])?;
            right &= !compare || noise.continues_with(&buffer[..some]);
            left -= some;
        }
        link.write_all(&[0]).map(|()| right)
    }
}

impl Operation for TcpScatter {
    fn name(&self) -> String {
        format!("scatter/tcp, groups of {}", self.group_size)
    }
    fn flow(&self) -> Flow {
        Flow::Symmetric
    }
    fn prepare(&mut self, _: &Comm, block_bytes: usize) -> Result<()> {
        self.links.out = noise(0, block_bytes);
        let piece = piece_bytes(block_bytes, self.group.size(), self.buffer_bytes).max(1);
        self.links.into = if self.links.leads { Vec::new() } else { vec![vec![0; piece]] };
        Ok(())
    }
    fn run(&mut self, _: &Comm) -> Result<()> {
        self.scatter(false).map(|_| ()).map_err(|error| beside("TCP", error))
    }
    /// The result of the last [`Operation::check`], because the pieces replace each other.
    fn is_right(&self, _: &Comm) -> bool {
        self.is_right
    }
    fn check(&mut self, _: &Comm) -> Result<bool> {
        self.is_right = self.scatter(true).map_err(|error| beside("TCP", error))?;
        Ok(self.is_right)
    }
}
