//! MPI, as little of it as we need, behind safe calls: the only file that knows `mpi::ffi`.
//!
//! Messages are bytes. A communicator is duplicated on the way in, so that our messages never meet those of the program that
//! calls us, and errors come back instead of ending it. rsmpi's own interface has no predefined attributes and no requests
//! in a list of changing length, hence the calls below it.
#![expect(unsafe_code, reason = "calls of the C library; each block says what MPI relies on")]

use mpi::ffi;
use mpi::raw::AsRaw;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// What MPI, or a message that is not what it should be, makes fail.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A call of MPI's failed.
    #[error("{call}: {text}")]
    Mpi {
        /// The call.
        call: &'static str,
        /// What MPI says of it.
        text: String,
    },
    /// More than one MPI message takes.
    #[error("a message of {0} bytes; MPI takes at most {MAX_MESSAGE_BYTES}")]
    TooLong(usize),
    /// Something else came.
    #[error("from rank {from} came {found} bytes, expected {expected}")]
    Length {
        /// Its sender.
        from: usize,
        /// Its length.
        found: usize,
        /// The length it should have.
        expected: usize,
    },
    /// A file or a socket, on this rank alone.
    #[error("{0}")]
    Beside(String),
    /// What all ranks were told by one that found it.
    #[error("{0}")]
    Told(String),
}

/// MPI counts in C's int.
pub const MAX_MESSAGE_BYTES: usize = c_int::MAX as usize;

type Result<T, E = CommError> = std::result::Result<T, E>;

fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; 4096]; // MPI_MAX_ERROR_STRING is 256 to 1024 in the libraries we know
    let mut len = 0;
    // SAFETY: the buffer is longer than any error string; MPI writes its length.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len) };
    let len = usize::try_from(len).unwrap_or(0).min(text.len());
    Err(CommError::Mpi { call, text: String::from_utf8_lossy(&text[..len]).into_owned() })
}

fn count(bytes: usize) -> Result<c_int> {
    c_int::try_from(bytes).map_err(|_| CommError::TooLong(bytes))
}

fn counts(bytes: &[usize]) -> Result<Vec<c_int>> {
    bytes.iter().map(|&b| count(b)).collect()
}

/// Rust's empty slices of bytes stand at address 1, which is Open MPI's MPI_IN_PLACE; null is nothing special to any MPI.
fn place<T>(slice: &[T]) -> *const c_void {
    if slice.is_empty() { ptr::null() } else { slice.as_ptr().cast() }
}

fn place_mut<T>(slice: &mut [T]) -> *mut c_void {
    if slice.is_empty() { ptr::null_mut() } else { slice.as_mut_ptr().cast() }
}

fn wait_for(requests: &mut [ffi::MPI_Request]) -> Result<()> {
    // SAFETY: as many live or null requests as we say.
    check("MPI_Waitall", unsafe {
        ffi::MPI_Waitall(int(requests.len()), requests.as_mut_ptr(), ffi::RSMPI_STATUSES_IGNORE)
    })
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX) // a rank beyond int: MPI refuses it
}

/// A communicator of our own. All calls are collective or matched as MPI has it.
pub struct Comm {
    raw: ffi::MPI_Comm,
    rank: usize,
    size: usize,
}

/// Seconds on this rank's clock, from a fixed but unknown moment.
pub fn wtime() -> f64 {
    // SAFETY: takes nothing, and MPI is initialised wherever a `Comm` is.
    unsafe { ffi::RSMPI_Wtime() }
}

impl Comm {
    /// A duplicate of any communicator, of which all ranks must call this.
    pub fn of(communicator: &impl AsRaw<Raw = ffi::MPI_Comm>) -> Result<Self> {
        let mut raw = communicator.as_raw();
        // SAFETY: the borrowed communicator is valid; MPI writes the new handle.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(communicator.as_raw(), &mut raw) })?;
        Self::adopt(raw)
    }

    /// Another one of the same ranks; messages on it never meet ours.
    pub fn duplicate(&self) -> Result<Self> {
        let mut raw = self.raw;
        // SAFETY: ours is valid until dropped; MPI writes the new handle.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(self.raw, &mut raw) })?;
        Self::adopt(raw)
    }

    fn adopt(raw: ffi::MPI_Comm) -> Result<Self> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the handle is valid and ours alone, and MPI writes two ints.
        unsafe {
            check("MPI_Comm_set_errhandler", ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN))?;
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(raw, &mut rank))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(raw, &mut size))?;
        }
        Ok(Self { raw, rank: rank.unsigned_abs() as usize, size: size.unsigned_abs() as usize })
    }

    /// Those ranks that give the same `color`, in the order of their ranks here. Collective.
    pub fn split(&self, color: u16) -> Result<Self> {
        let mut raw = self.raw;
        // SAFETY: ours is valid; MPI writes the new handle.
        check("MPI_Comm_split", unsafe {
            ffi::MPI_Comm_split(self.raw, c_int::from(color), int(self.rank), &mut raw)
        })?;
        Self::adopt(raw)
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// All processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether MPI says that the clocks of all ranks are one (MPI_WTIME_IS_GLOBAL).
    pub fn wtime_is_global(&self) -> bool {
        let mut value: *mut c_int = ptr::null_mut();
        let mut found = 0;
        // SAFETY: predefined attributes that are set are pointers to an int that lives as long as MPI.
        unsafe {
            let key = ffi::MPI_WTIME_IS_GLOBAL as c_int;
            let code = ffi::MPI_Comm_get_attr(self.raw, key, ptr::from_mut(&mut value).cast::<c_void>(), &mut found);
            code == ffi::MPI_SUCCESS as c_int && found != 0 && !value.is_null() && *value != 0
        }
    }

    /// Ends all ranks, without waiting for them.
    pub fn abort(&self, code: u8) -> ! {
        // SAFETY: our communicator is valid.
        unsafe { ffi::MPI_Abort(self.raw, c_int::from(code)) };
        std::process::exit(i32::from(code))
    }

    /// Blocks until `bytes` may be used again.
    pub fn send(&self, bytes: &[u8], to: usize, tag: u16) -> Result<()> {
        let (len, to, tag) = (count(bytes.len())?, int(to), c_int::from(tag));
        // SAFETY: the buffer is `len` readable bytes for the time of the call.
        check("MPI_Send", unsafe { ffi::MPI_Send(place(bytes), len, ffi::RSMPI_UINT8_T, to, tag, self.raw) })
    }

    /// Fills all of `bytes` from one message, or fails.
    pub fn receive(&self, bytes: &mut [u8], from: usize, tag: u16) -> Result<()> {
        let len = count(bytes.len())?;
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        let mut found = 0;
        // SAFETY: the buffer is `len` writable bytes for the time of the call; MPI fills the status where it succeeds.
        unsafe {
            let (from, tag) = (int(from), c_int::from(tag));
            check(
                "MPI_Recv",
                ffi::MPI_Recv(place_mut(bytes), len, ffi::RSMPI_UINT8_T, from, tag, self.raw, status.as_mut_ptr()),
            )?;
            check("MPI_Get_count", ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut found))?;
        }
        let found = found.unsigned_abs() as usize;
        if found == bytes.len() { Ok(()) } else { Err(CommError::Length { from, found, expected: bytes.len() }) }
    }

    /// The same where the other side is known to send as many bytes, as in a loop that is timed: asking MPI how many came
    /// takes a twentieth of a short message's time. Fewer of them are not noticed; more are an error.
    pub fn receive_known(&self, bytes: &mut [u8], from: usize, tag: u16) -> Result<()> {
        let (len, from, tag) = (count(bytes.len())?, int(from), c_int::from(tag));
        // SAFETY: the buffer is `len` writable bytes for the time of the call.
        check("MPI_Recv", unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            ffi::MPI_Recv(place_mut(bytes), len, byte, from, tag, self.raw, ffi::RSMPI_STATUS_IGNORE)
        })
    }

    /// Waits for all ranks.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: our communicator is valid.
        check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.raw) })
    }

    /// The root's bytes for everybody.
    pub fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        let len = count(bytes.len())?;
        // SAFETY: the buffer is `len` bytes, writable where MPI writes.
        check("MPI_Bcast", unsafe { ffi::MPI_Bcast(place_mut(bytes), len, ffi::RSMPI_UINT8_T, int(root), self.raw) })
    }

    /// Numbers of the root's for everybody.
    pub fn broadcast_numbers(&self, numbers: &mut [f64], root: usize) -> Result<()> {
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.broadcast(&mut bytes, root)?;
        for (number, chunk) in numbers.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *number = f64::from_ne_bytes(*chunk);
        }
        Ok(())
    }

    /// Everybody's number, in rank order, on every rank.
    pub fn all_numbers(&self, number: f64) -> Result<Vec<f64>> {
        let mut all = vec![0.0f64; self.size];
        // SAFETY: one double is sent by each rank, and there is room for `size` of them.
        check("MPI_Allgather", unsafe {
            let (from, to) = (ptr::from_ref(&number).cast(), place_mut(&mut all));
            ffi::MPI_Allgather(from, 1, ffi::RSMPI_DOUBLE, to, 1, ffi::RSMPI_DOUBLE, self.raw)
        })?;
        Ok(all)
    }

    /// The largest of all ranks, place by place, on every rank.
    pub fn all_max(&self, numbers: &mut [f64]) -> Result<()> {
        let mine = numbers.to_vec();
        let len = count(mine.len())?;
        // SAFETY: both buffers hold `len` doubles.
        check("MPI_Allreduce", unsafe {
            let (from, to) = (place(&mine), place_mut(numbers));
            ffi::MPI_Allreduce(from, to, len, ffi::RSMPI_DOUBLE, ffi::RSMPI_MAX, self.raw)
        })
    }

    /// The sum over all ranks, place by place, at the root; `into` there as long as `numbers`.
    pub fn reduce_sum(&self, numbers: &[f64], into: &mut [f64], root: usize) -> Result<()> {
        assert!(self.rank != root || into.len() == numbers.len(), "{} sums of {}", into.len(), numbers.len());
        let len = count(numbers.len())?;
        // SAFETY: `numbers` holds `len` doubles, and so does `into` at the root, the only rank where MPI writes it.
        check("MPI_Reduce", unsafe {
            let (from, to) = (place(numbers), place_mut(into));
            ffi::MPI_Reduce(from, to, len, ffi::RSMPI_DOUBLE, ffi::RSMPI_SUM, int(root), self.raw)
        })
    }

    /// A block for every rank from the root's `blocks`, which is `size` times as long as `mine` there.
    pub fn scatter(&self, blocks: &[u8], mine: &mut [u8], root: usize) -> Result<()> {
        assert!(self.rank != root || blocks.len() == mine.len() * self.size, "{} blocks bytes", blocks.len());
        let len = count(mine.len())?;
        // SAFETY: the root's buffer holds `size` blocks of `len` bytes, ours one.
        check("MPI_Scatter", unsafe {
            let (from, to, byte) = (place(blocks), place_mut(mine), ffi::RSMPI_UINT8_T);
            ffi::MPI_Scatter(from, len, byte, to, len, byte, int(root), self.raw)
        })
    }

    /// The inverse of [`Comm::scatter`].
    pub fn gather(&self, mine: &[u8], blocks: &mut [u8], root: usize) -> Result<()> {
        assert!(self.rank != root || blocks.len() == mine.len() * self.size, "{} blocks bytes", blocks.len());
        let len = count(mine.len())?;
        // SAFETY: the root's buffer holds `size` blocks of `len` bytes, ours one.
        check("MPI_Gather", unsafe {
            let (from, to, byte) = (place(mine), place_mut(blocks), ffi::RSMPI_UINT8_T);
            ffi::MPI_Gather(from, len, byte, to, len, byte, int(root), self.raw)
        })
    }

    /// Blocks of `lens` bytes, one after the other in the root's `blocks`.
    pub fn scatter_varying(&self, blocks: &[u8], lens: &[usize], mine: &mut [u8], root: usize) -> Result<()> {
        let (lens, places) = self.layout(lens, blocks.len(), mine.len(), root)?;
        // SAFETY: `layout` compared lengths and places with the buffers.
        check("MPI_Scatterv", unsafe {
            let (from, to, byte) = (place(blocks), place_mut(mine), ffi::RSMPI_UINT8_T);
            ffi::MPI_Scatterv(
                from,
                lens.as_ptr(),
                places.as_ptr(),
                byte,
                to,
                lens[self.rank],
                byte,
                int(root),
                self.raw,
            )
        })
    }

    /// The inverse of [`Comm::scatter_varying`].
    pub fn gather_varying(&self, mine: &[u8], lens: &[usize], blocks: &mut [u8], root: usize) -> Result<()> {
        let (lens, places) = self.layout(lens, blocks.len(), mine.len(), root)?;
        // SAFETY: `layout` compared lengths and places with the buffers.
        check("MPI_Gatherv", unsafe {
            let (from, to, byte) = (place(mine), place_mut(blocks), ffi::RSMPI_UINT8_T);
            ffi::MPI_Gatherv(from, lens[self.rank], byte, to, lens.as_ptr(), places.as_ptr(), byte, int(root), self.raw)
        })
    }

    fn layout(&self, lens: &[usize], blocks: usize, mine: usize, root: usize) -> Result<(Vec<c_int>, Vec<c_int>)> {
        assert_eq!((lens.len(), lens[self.rank]), (self.size, mine), "lengths of all ranks");
        assert!(self.rank != root || blocks == lens.iter().sum::<usize>(), "{blocks} bytes at the root");
        let places: Vec<_> = lens
            .iter()
            .scan(0, |at, len| {
                *at += len;
                Some(*at - len)
            })
            .collect();
        Ok((counts(lens)?, counts(&places)?))
    }

    /// Everybody's block, in rank order, on every rank.
    pub fn all_gather(&self, mine: &[u8], blocks: &mut [u8]) -> Result<()> {
        assert_eq!(blocks.len(), mine.len() * self.size, "blocks of all ranks");
        let len = count(mine.len())?;
        // SAFETY: there is room for `size` blocks of `len` bytes.
        check("MPI_Allgather", unsafe {
            let (from, to, byte) = (place(mine), place_mut(blocks), ffi::RSMPI_UINT8_T);
            ffi::MPI_Allgather(from, len, byte, to, len, byte, self.raw)
        })
    }

    /// Block j of rank i becomes block i of rank j.
    pub fn all_to_all(&self, out: &[u8], blocks: &mut [u8]) -> Result<()> {
        assert!(out.len() == blocks.len() && out.len().is_multiple_of(self.size), "{} bytes out", out.len());
        let len = count(out.len() / self.size)?;
        // SAFETY: both buffers hold `size` blocks of `len` bytes.
        check("MPI_Alltoall", unsafe {
            let (from, to, byte) = (place(out), place_mut(blocks), ffi::RSMPI_UINT8_T);
            ffi::MPI_Alltoall(from, len, byte, to, len, byte, self.raw)
        })
    }

    /// Everybody's bytes, of any length, on every rank.
    pub fn all_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lens: Vec<usize> = self.all_numbers(mine.len() as f64)?.into_iter().map(|n| n as usize).collect();
        let mut all = vec![0; lens.iter().sum()];
        self.gather_varying(mine, &lens, if self.rank == 0 { &mut all } else { &mut [] }, 0)?;
        self.broadcast(&mut all, 0)?;
        let mut rest = all.as_slice();
        Ok(lens.iter().map(|&len| rest.split_off(..len).unwrap_or_default().to_vec()).collect())
    }

    /// Runs `work` where the root is, and tells everybody how it went: an error there is an error everywhere.
    pub fn agree<T>(&self, mine: Result<T, String>) -> Result<T> {
        let told = self.all_bytes(mine.as_ref().err().map_or(&[][..], |e| e.as_bytes()))?;
        if let Some(first) = told.iter().find(|t| !t.is_empty()) {
            return Err(CommError::Told(String::from_utf8_lossy(first).into_owned()));
        }
        mine.map_err(CommError::Told)
    }

    /// Sends the same bytes so many times, with at most `window` messages under way.
    pub fn send_stream(&self, bytes: &[u8], messages: usize, window: usize, to: usize, tag: u16) -> Result<()> {
        let (len, to, tag) = (count(bytes.len())?, int(to), c_int::from(tag));
        let from = place(bytes);
        self.ring(messages, window, |_, request| {
            // SAFETY: the bytes are borrowed until `ring` has waited for all messages, and nobody writes to them.
            check("MPI_Isend", unsafe { ffi::MPI_Isend(from, len, ffi::RSMPI_UINT8_T, to, tag, self.raw, request) })
        })
    }

    /// Receives so many messages of `bytes` each, into the slots of `buffer` in turn, all of which wait for a message.
    pub fn receive_stream(
        &self,
        buffer: &mut [u8],
        slot_bytes: usize,
        bytes: usize,
        messages: usize,
        from: usize,
        tag: u16,
    ) -> Result<()> {
        let slots = buffer.len().checked_div(slot_bytes).unwrap_or(1).max(1);
        let room = slot_bytes.min(buffer.len());
        assert!(bytes <= room && slot_bytes * slots <= buffer.len(), "{bytes} bytes in {slots} slots of {room}");
        let (len, from, tag) = (count(bytes)?, int(from), c_int::from(tag));
        let start = buffer.as_mut_ptr();
        self.ring(messages, slots, |slot, request| {
            // SAFETY: a slot is used again only when its message has ended, and the buffer is borrowed, alone, until `ring` has
            // waited for all of them. No slot is shorter than a message, and all lie within the buffer.
            check("MPI_Irecv", unsafe {
                let into = start.add(slot * slot_bytes).cast();
                ffi::MPI_Irecv(into, len, ffi::RSMPI_UINT8_T, from, tag, self.raw, request)
            })
        })
    }

    /// Begins `messages` messages, of which at most `window` are under way: a place in the window is used again when its
    /// message has ended. `begin` is told the place. Waits for half of a window at a time, since a call costs as much as a
    /// short message. All have ended when this returns.
    fn ring(
        &self,
        messages: usize,
        window: usize,
        begin: impl Fn(usize, &mut ffi::MPI_Request) -> Result<()>,
    ) -> Result<()> {
        // SAFETY: the handle is a constant of the library.
        let mut requests = vec![unsafe { ffi::RSMPI_REQUEST_NULL }; window.clamp(1, messages.max(1))];
        let half = requests.len().div_ceil(2);
        let mut begin_all = || -> Result<()> {
            let (mut left, mut used) = (messages, false);
            loop {
                for (places, first) in requests.chunks_mut(half).zip([0, half]) {
                    if used {
                        wait_for(places)?;
                    }
                    for (request, place) in places.iter_mut().zip(first..).take(left) {
                        begin(place, request)?;
                        left -= 1;
                    }
                    if left == 0 {
                        return Ok(());
                    }
                }
                used = true;
            }
        };
        let begun = begin_all();
        let ended = wait_for(&mut requests); // in any case: the buffers are borrowed no longer than this
        begun.and(ended)
    }

    /// Messages under way while `work` does something else. All of them have ended when this returns.
    pub fn overlapped<'b, R>(&self, work: impl FnOnce(&mut Pending<'_, 'b>) -> Result<R>) -> Result<R> {
        let mut pending = Pending { comm: self, requests: Vec::new(), open: 0, buffers: PhantomData };
        let result = work(&mut pending);
        let ended = pending.wait_all();
        let value = result?;
        ended?;
        Ok(value)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        let mut finalized = 0;
        // SAFETY: the handle is ours alone; after MPI_Finalize it is gone already.
        unsafe {
            ffi::MPI_Finalized(&mut finalized);
            if finalized == 0 {
                ffi::MPI_Comm_free(&mut self.raw);
            }
        }
    }
}

/// Messages that have begun and may not have ended. Lives inside [`Comm::overlapped`] only, which waits for all of them
/// before the buffers, borrowed for `'b`, are anybody's again.
pub struct Pending<'c, 'b> {
    comm: &'c Comm,
    requests: Vec<ffi::MPI_Request>,
    open: usize,
    buffers: PhantomData<&'b mut [u8]>,
}

/// Which begun message, in the order in which they were begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageIndex(pub usize);

impl<'b> Pending<'_, 'b> {
    /// Begins to send.
    pub fn send(&mut self, bytes: &'b [u8], to: usize, tag: u16) -> Result<MessageIndex> {
        self.begin("MPI_Isend", bytes, to, tag, ffi::MPI_Isend)
    }

    /// Begins to send, and ends only when the receiver has begun to receive.
    pub fn send_synchronously(&mut self, bytes: &'b [u8], to: usize, tag: u16) -> Result<MessageIndex> {
        self.begin("MPI_Issend", bytes, to, tag, ffi::MPI_Issend)
    }

    /// Begins to send to one who is known to have begun to receive; anything else is an error of the caller's.
    pub fn send_ready(&mut self, bytes: &'b [u8], to: usize, tag: u16) -> Result<MessageIndex> {
        self.begin("MPI_Irsend", bytes, to, tag, ffi::MPI_Irsend)
    }

    fn begin(
        &mut self,
        call: &'static str,
        bytes: &'b [u8],
        to: usize,
        tag: u16,
        isend: unsafe extern "C" fn(
            *const c_void,
            c_int,
            ffi::MPI_Datatype,
            c_int,
            c_int,
            ffi::MPI_Comm,
            *mut ffi::MPI_Request,
        ) -> c_int,
    ) -> Result<MessageIndex> {
        // SAFETY: the handle is a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (len, to, tag) = (count(bytes.len())?, int(to), c_int::from(tag));
        // SAFETY: the buffer is borrowed for 'b, and this request ends before 'b does.
        check(call, unsafe { isend(place(bytes), len, ffi::RSMPI_UINT8_T, to, tag, self.comm.raw, &mut request) })?;
        Ok(self.keep(request))
    }

    /// Begins to receive at most as many bytes as there is room for.
    pub fn receive(&mut self, bytes: &'b mut [u8], from: usize, tag: u16) -> Result<MessageIndex> {
        // SAFETY: the handle is a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (len, from, tag) = (count(bytes.len())?, int(from), c_int::from(tag));
        // SAFETY: the buffer is borrowed, alone, for 'b, and this request ends before 'b does.
        check("MPI_Irecv", unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            ffi::MPI_Irecv(place_mut(bytes), len, byte, from, tag, self.comm.raw, &mut request)
        })?;
        Ok(self.keep(request))
    }

    fn keep(&mut self, request: ffi::MPI_Request) -> MessageIndex {
        self.requests.push(request);
        self.open += 1;
        MessageIndex(self.requests.len() - 1)
    }

    /// Waits until one of the messages has ended; `None` when all had.
    pub fn wait_any(&mut self) -> Result<Option<MessageIndex>> {
        if self.open == 0 {
            return Ok(None);
        }
        let mut index = 0;
        // SAFETY: as many live or null requests as we say; MPI nulls the one that ended.
        check("MPI_Waitany", unsafe {
            let (n, all) = (int(self.requests.len()), self.requests.as_mut_ptr());
            ffi::MPI_Waitany(n, all, &mut index, ffi::RSMPI_STATUS_IGNORE)
        })?;
        self.open -= 1;
        Ok(usize::try_from(index).ok().map(MessageIndex))
    }

    /// Waits for one message, which may have ended before.
    pub fn wait(&mut self, message: MessageIndex) -> Result<()> {
        let request = &mut self.requests[message.0];
        // SAFETY: the handle is a constant of the library, and the request live or null.
        unsafe {
            if *request != ffi::RSMPI_REQUEST_NULL {
                self.open -= 1;
            }
            check("MPI_Wait", ffi::MPI_Wait(request, ffi::RSMPI_STATUS_IGNORE))
        }
    }

    /// Waits for all of them.
    pub fn wait_all(&mut self) -> Result<()> {
        self.open = 0;
        wait_for(&mut self.requests)
    }

    /// The same, giving the processor away between looks, and asleep for a `nap` each time once `patience` is over: where
    /// ranks share cores, who spins takes the time of who works.
    pub fn wait_all_asleep(&mut self, patience: Duration, nap: Duration) -> Result<()> {
        let begun = std::time::Instant::now();
        loop {
            let mut ended = 0;
            // SAFETY: as many live or null requests as we say.
            check("MPI_Testall", unsafe {
                let (n, all) = (int(self.requests.len()), self.requests.as_mut_ptr());
                ffi::MPI_Testall(n, all, &mut ended, ffi::RSMPI_STATUSES_IGNORE)
            })?;
            if ended != 0 {
                self.open = 0;
                return Ok(());
            }
            if begun.elapsed() < patience { std::thread::yield_now() } else { std::thread::sleep(nap) }
        }
    }
}

impl Drop for Pending<'_, '_> {
    fn drop(&mut self) {
        // Only after a panic in `work` is anything left here; the buffers must not go before the messages.
        if self.open > 0 {
            self.wait_all().ok();
        }
    }
}
