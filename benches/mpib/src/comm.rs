//! Safe wrappers of the MPI calls that mpib needs. Only this file, [`files`] and [`control`] use `mpi::ffi`.
//!
//! Collective operations take elements of any type with an MPI datatype and without padding ([`Element`]). Messages
//! between two ranks are bytes (`bytemuck::cast_slice` converts elements to bytes without a copy). A communicator is
//! duplicated first, so that messages of this library and of the calling program cannot be confused. MPI errors are
//! returned instead of ending the program. The interface of rsmpi has no predefined attributes and no variable-length
//! list of requests, so this file calls the C functions.
#![expect(unsafe_code, reason = "calls of the MPI library; each block states its requirements")]

pub mod control;
pub mod files;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::traits::Equivalence;
use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// An error of MPI, or an unexpected message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// An MPI call failed.
    #[error("{call}: {text}")]
    Mpi {
        /// The call.
        call: &'static str,
        /// The error text of MPI.
        text: String,
    },
    /// More numbers than MPI can count.
    #[error("{0} elements in one call; the maximum of MPI is {max}", max = c_int::MAX)]
    TooLong(usize),
    /// A message with a wrong length arrived.
    #[error("rank {from} sent {found} bytes, expected {expected}")]
    Length {
        /// Sender of the message.
        from: usize,
        /// Length of the message in bytes.
        found: usize,
        /// Expected length of the message in bytes.
        expected: usize,
    },
    /// An error of a file or a socket on this rank only.
    #[error("{0}")]
    Beside(String),
    /// An error of one rank that was sent to all ranks.
    #[error("{0}")]
    Told(String),
}

type Result<T, E = CommError> = std::result::Result<T, E>;

/// An element of a buffer: a number, or a struct that has an MPI datatype (`Equivalence`) and no padding (`Pod`).
///
/// Blocks are sent as bytes, because an algorithm combines blocks for several ranks into one message. So all bytes of
/// an element must be initialised, and all combinations of bytes must be valid. The compiler checks this by `Pod`.
/// Sums and maxima use the MPI datatype. All ranks must have the same representation of numbers.
pub trait Element: Equivalence + Pod {}
impl<T: Equivalence + Pod> Element for T {}

/// Lengths in bytes of blocks with these numbers of elements.
pub(crate) fn in_bytes<T>(lens: &[usize]) -> Cow<'_, [usize]> {
    match size_of::<T>() {
        1 => Cow::Borrowed(lens),
        bytes => Cow::Owned(lens.iter().map(|len| len * bytes).collect()),
    }
}

fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; 4096]; // MPI_MAX_ERROR_STRING is 256 to 1024 bytes in known libraries
    let mut len = 0;
    // SAFETY: the buffer is longer than any error string of MPI, and `len` is a valid place for its length.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len) };
    let len = usize::try_from(len).unwrap_or(0).min(text.len());
    Err(CommError::Mpi { call, text: String::from_utf8_lossy(&text[..len]).into_owned() })
}

fn count(bytes: usize) -> Result<c_int> {
    c_int::try_from(bytes).map_err(|_| CommError::TooLong(bytes))
}

/// The lengths as MPI's counts, and the places of consecutive blocks with these lengths.
fn counts_and_places(lens: &[usize]) -> Result<(Vec<c_int>, Vec<c_int>)> {
    let mut at = 0;
    let mut places = Vec::with_capacity(lens.len());
    for len in lens {
        places.push(count(at)?);
        at += len;
    }
    Ok((lens.iter().map(|&len| count(len)).collect::<Result<_>>()?, places))
}

/// Tag of the messages that replace MPI_Scatterv and MPI_Gatherv beyond 2 GiB.
const LONG_TAG: u16 = 50;
/// Bytes of one element of a long message.
const UNIT_BYTES: usize = 1 << 20;

/// The length of a message as MPI counts it. MPI counts elements in C's int. A message with more bytes is sent as one
/// element of a type that is as long as the message.
struct Length {
    count: c_int,
    kind: ffi::MPI_Datatype,
    made: bool,
}

impl Length {
    fn of(bytes: usize) -> Result<Self> {
        match c_int::try_from(bytes) {
            // SAFETY: the handle is a constant of the MPI library.
            Ok(count) => Ok(Self { count, kind: unsafe { ffi::RSMPI_UINT8_T }, made: false }),
            Err(_) => Self::long(bytes),
        }
    }

    fn long(bytes: usize) -> Result<Self> {
        let (units, rest) = (count(bytes / UNIT_BYTES)?, count(bytes % UNIT_BYTES)?);
        let first = bytes / UNIT_BYTES * UNIT_BYTES;
        // SAFETY: the handles are constants of the MPI library or are made here. The three arrays have two elements
        // each. MPI allows a program to free a type that other types are made of.
        unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            let (mut unit, mut body, mut kind) = (byte, byte, byte);
            check("MPI_Type_contiguous", ffi::MPI_Type_contiguous(count(UNIT_BYTES)?, byte, &mut unit))?;
            check("MPI_Type_contiguous", ffi::MPI_Type_contiguous(units, unit, &mut body))?;
            let places: [ffi::MPI_Aint; 2] = [0, first as ffi::MPI_Aint];
            let (lens, kinds) = ([1, rest], [body, byte]);
            let made = ffi::MPI_Type_create_struct(2, lens.as_ptr(), places.as_ptr(), kinds.as_ptr(), &mut kind);
            ffi::MPI_Type_free(&mut unit);
            ffi::MPI_Type_free(&mut body);
            check("MPI_Type_create_struct", made)?;
            check("MPI_Type_commit", ffi::MPI_Type_commit(&mut kind))?;
            Ok(Self { count: 1, kind, made: true })
        }
    }
}

impl Drop for Length {
    fn drop(&mut self) {
        if self.made {
            // SAFETY: this value made the type. MPI keeps the type until the messages in flight have ended.
            unsafe { ffi::MPI_Type_free(&mut self.kind) };
        }
    }
}

/// The address of a slice. For an empty slice, this function returns null, because Rust's address of an empty slice
/// may be 1, which is MPI_IN_PLACE in Open MPI.
fn place<T>(slice: &[T]) -> *const c_void {
    if slice.is_empty() { ptr::null() } else { slice.as_ptr().cast() }
}

fn place_mut<T>(slice: &mut [T]) -> *mut c_void {
    if slice.is_empty() { ptr::null_mut() } else { slice.as_mut_ptr().cast() }
}

fn wait_for(requests: &mut [ffi::MPI_Request]) -> Result<()> {
    // SAFETY: the slice contains as many requests as the call gets, and each of them is active or null.
    check("MPI_Waitall", unsafe {
        ffi::MPI_Waitall(int(requests.len()), requests.as_mut_ptr(), ffi::RSMPI_STATUSES_IGNORE)
    })
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX) // MPI rejects a rank that is too large
}

/// A duplicated communicator. All ranks must call a collective method, and a send needs a matching receive, as MPI
/// specifies for the called functions.
pub struct Comm {
    raw: ffi::MPI_Comm,
    rank: usize,
    size: usize,
}

/// Seconds on this rank's clock since a fixed but unknown moment.
pub fn wtime() -> f64 {
    // SAFETY: the call takes no arguments, and MPI is initialised while a `Comm` exists.
    unsafe { ffi::RSMPI_Wtime() }
}

impl Comm {
    /// Duplicates a communicator. All of its ranks must call this function.
    pub fn of(communicator: &impl AsRaw<Raw = ffi::MPI_Comm>) -> Result<Self> {
        let mut raw = communicator.as_raw();
        // SAFETY: the communicator is borrowed and therefore valid, and `raw` is a valid place for the new handle.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(communicator.as_raw(), &mut raw) })?;
        Self::adopt(raw)
    }

    /// Duplicates this communicator, so that messages of both communicators cannot be confused. All ranks must call
    /// this function.
    pub fn duplicate(&self) -> Result<Self> {
        let mut raw = self.raw;
        // SAFETY: `self.raw` is valid until `self` is dropped, and `raw` is a valid place for the new handle.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(self.raw, &mut raw) })?;
        Self::adopt(raw)
    }

    fn adopt(raw: ffi::MPI_Comm) -> Result<Self> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the handle is valid and owned by this function, and both pointers are valid places for an int.
        unsafe {
            check("MPI_Comm_set_errhandler", ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN))?;
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(raw, &mut rank))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(raw, &mut size))?;
        }
        Ok(Self { raw, rank: rank.unsigned_abs() as usize, size: size.unsigned_abs() as usize })
    }

    /// A communicator of the ranks that pass the same `color`, in the order of this communicator. All ranks must call
    /// this function.
    pub fn split(&self, color: u16) -> Result<Self> {
        let mut raw = self.raw;
        // SAFETY: `self.raw` is valid, and `raw` is a valid place for the new handle.
        check("MPI_Comm_split", unsafe {
            ffi::MPI_Comm_split(self.raw, c_int::from(color), int(self.rank), &mut raw)
        })?;
        Self::adopt(raw)
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether MPI states that all ranks have a common clock (MPI_WTIME_IS_GLOBAL).
    pub fn wtime_is_global(&self) -> bool {
        let mut value: *mut c_int = ptr::null_mut();
        let mut found = 0;
        // SAFETY: the communicator is valid. A predefined attribute that is set is a pointer to an int that lives as
        // long as MPI.
        unsafe {
            let key = ffi::MPI_WTIME_IS_GLOBAL as c_int;
            let code = ffi::MPI_Comm_get_attr(self.raw, key, ptr::from_mut(&mut value).cast::<c_void>(), &mut found);
            code == ffi::MPI_SUCCESS as c_int && found != 0 && !value.is_null() && *value != 0
        }
    }

    /// Ends all ranks at once.
    pub fn abort(&self, code: u8) -> ! {
        // SAFETY: the communicator is valid.
        unsafe { ffi::MPI_Abort(self.raw, c_int::from(code)) };
        std::process::exit(i32::from(code))
    }

    /// Sends, and blocks until `bytes` may be used again.
    pub fn send(&self, bytes: &[u8], to: usize, tag: u16) -> Result<()> {
        let (len, to, tag) = (Length::of(bytes.len())?, int(to), c_int::from(tag));
        // SAFETY: the buffer has `len` readable bytes during the call.
        check("MPI_Send", unsafe { ffi::MPI_Send(place(bytes), len.count, len.kind, to, tag, self.raw) })
    }

    /// Receives one message that fills all of `bytes`. Another length is an error.
    pub fn receive(&self, bytes: &mut [u8], from: usize, tag: u16) -> Result<()> {
        let len = Length::of(bytes.len())?;
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        let mut found = 0;
        // SAFETY: the buffer has `len` writable bytes during the call, and MPI fills the status if it succeeds.
        unsafe {
            let (from, tag) = (int(from), c_int::from(tag));
            check(
                "MPI_Recv",
                ffi::MPI_Recv(place_mut(bytes), len.count, len.kind, from, tag, self.raw, status.as_mut_ptr()),
            )?;
            check("MPI_Get_elements_x", ffi::MPI_Get_elements_x(status.as_ptr(), len.kind, &mut found))?;
        }
        let found = usize::try_from(found).unwrap_or(0);
        if found == bytes.len() { Ok(()) } else { Err(CommError::Length { from, found, expected: bytes.len() }) }
    }

    /// Like [`Comm::receive`], for a sender that is known to send the right number of bytes, as in a timed loop. The
    /// length is not queried from MPI, because the query takes a twentieth of the time of a short message. A shorter
    /// message is not detected; a longer message is an error.
    pub fn receive_known(&self, bytes: &mut [u8], from: usize, tag: u16) -> Result<()> {
        let (len, from, tag) = (Length::of(bytes.len())?, int(from), c_int::from(tag));
        // SAFETY: the buffer has `len` writable bytes during the call.
        check("MPI_Recv", unsafe {
            ffi::MPI_Recv(place_mut(bytes), len.count, len.kind, from, tag, self.raw, ffi::RSMPI_STATUS_IGNORE)
        })
    }

    /// Waits until all ranks have called this method.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the communicator is valid.
        check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.raw) })
    }

    /// Sends the root's elements to all ranks.
    pub fn broadcast<T: Element>(&self, elements: &mut [T], root: usize) -> Result<()> {
        let bytes: &mut [u8] = cast_slice_mut(elements);
        let len = Length::of(bytes.len())?;
        // SAFETY: the buffer has `len` bytes during the call, and it is writable.
        check("MPI_Bcast", unsafe { ffi::MPI_Bcast(place_mut(bytes), len.count, len.kind, int(root), self.raw) })
    }

    /// The numbers of all ranks, in rank order, on every rank.
    pub fn all_numbers(&self, number: f64) -> Result<Vec<f64>> {
        let mut all = vec![0.0f64; self.size];
        // SAFETY: each rank sends one double, and `all` has room for `size` doubles.
        check("MPI_Allgather", unsafe {
            let (from, to) = (ptr::from_ref(&number).cast(), place_mut(&mut all));
            ffi::MPI_Allgather(from, 1, ffi::RSMPI_DOUBLE, to, 1, ffi::RSMPI_DOUBLE, self.raw)
        })?;
        Ok(all)
    }

    /// The maximum over all ranks, element by element, on every rank.
    pub fn all_max<T: Element>(&self, numbers: &mut [T]) -> Result<()> {
        let mine = numbers.to_vec();
        let (len, kind) = (count(mine.len())?, T::equivalent_datatype());
        // SAFETY: both buffers have `len` elements of this datatype.
        check("MPI_Allreduce", unsafe {
            let (from, to) = (place(&mine), place_mut(numbers));
            ffi::MPI_Allreduce(from, to, len, kind.as_raw(), ffi::RSMPI_MAX, self.raw)
        })
    }

    /// The sum over all ranks, element by element, at the root. At the root, `into` must be as long as `numbers`.
    pub fn reduce_sum<T: Element>(&self, numbers: &[T], into: &mut [T], root: usize) -> Result<()> {
        assert!(self.rank != root || into.len() == numbers.len(), "{} sums of {}", into.len(), numbers.len());
        let (len, kind) = (count(numbers.len())?, T::equivalent_datatype());
        // SAFETY: `numbers` has `len` elements of this datatype, and so has `into` at the root. MPI writes to `into`
        // only there.
        check("MPI_Reduce", unsafe {
            let (from, to) = (place(numbers), place_mut(into));
            ffi::MPI_Reduce(from, to, len, kind.as_raw(), ffi::RSMPI_SUM, int(root), self.raw)
        })
    }

    /// Sends one block to each rank. At the root, `blocks` is `size` times as long as `mine`.
    pub fn scatter<T: Element>(&self, blocks: &[T], mine: &mut [T], root: usize) -> Result<()> {
        let (blocks, mine): (&[u8], &mut [u8]) = (cast_slice(blocks), cast_slice_mut(mine));
        assert!(self.rank != root || blocks.len() == mine.len() * self.size, "{} bytes of blocks", blocks.len());
        let Length { count, kind, .. } = &Length::of(mine.len())?;
        // SAFETY: the root's buffer has `size` blocks of `count` elements, and `mine` has one block.
        check("MPI_Scatter", unsafe {
            let (from, to) = (place(blocks), place_mut(mine));
            ffi::MPI_Scatter(from, *count, *kind, to, *count, *kind, int(root), self.raw)
        })
    }

    /// The inverse of [`Comm::scatter`].
    pub fn gather<T: Element>(&self, mine: &[T], blocks: &mut [T], root: usize) -> Result<()> {
        let (mine, blocks): (&[u8], &mut [u8]) = (cast_slice(mine), cast_slice_mut(blocks));
        assert!(self.rank != root || blocks.len() == mine.len() * self.size, "{} bytes of blocks", blocks.len());
        let Length { count, kind, .. } = &Length::of(mine.len())?;
        // SAFETY: the root's buffer has `size` blocks of `count` elements, and `mine` has one block.
        check("MPI_Gather", unsafe {
            let (from, to) = (place(mine), place_mut(blocks));
            ffi::MPI_Gather(from, *count, *kind, to, *count, *kind, int(root), self.raw)
        })
    }

    /// Sends one block of `lens[rank]` elements to each rank. The root's `blocks` contains the blocks of all ranks, one
    /// after the other.
    pub fn scatter_varying<T: Element>(&self, blocks: &[T], lens: &[usize], mine: &mut [T], root: usize) -> Result<()> {
        let (blocks, lens, mine): (&[u8], _, &mut [u8]) =
            (cast_slice(blocks), &*in_bytes::<T>(lens), cast_slice_mut(mine));
        let Some((lens, places)) = self.layout(lens, blocks.len(), mine.len(), root) else {
            return self.scatter_one_by_one(blocks, lens, mine, root);
        };
        // SAFETY: `layout` has compared the lengths and places with the buffers.
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
    pub fn gather_varying<T: Element>(&self, mine: &[T], lens: &[usize], blocks: &mut [T], root: usize) -> Result<()> {
        let (mine, lens, blocks): (&[u8], _, &mut [u8]) =
            (cast_slice(mine), &*in_bytes::<T>(lens), cast_slice_mut(blocks));
        let Some((lens, places)) = self.layout(lens, blocks.len(), mine.len(), root) else {
            return self.gather_one_by_one(mine, lens, blocks, root);
        };
        // SAFETY: `layout` has compared the lengths and places with the buffers.
        check("MPI_Gatherv", unsafe {
            let (from, to, byte) = (place(mine), place_mut(blocks), ffi::RSMPI_UINT8_T);
            ffi::MPI_Gatherv(from, lens[self.rank], byte, to, lens.as_ptr(), places.as_ptr(), byte, int(root), self.raw)
        })
    }

    /// Lengths and places as MPI_Scatterv and MPI_Gatherv need them. `None` if one of them does not fit C's int.
    fn layout(&self, lens: &[usize], blocks: usize, mine: usize, root: usize) -> Option<(Vec<c_int>, Vec<c_int>)> {
        assert_eq!((lens.len(), lens[self.rank]), (self.size, mine), "lengths of all ranks");
        assert!(self.rank != root || blocks == lens.iter().sum::<usize>(), "{blocks} bytes at the root");
        let places = lens.iter().scan(0, |at, len| {
            *at += len;
            Some(*at - len)
        });
        let places: Option<Vec<_>> = places.map(|place| c_int::try_from(place).ok()).collect();
        let lens: Option<Vec<_>> = lens.iter().map(|&len| c_int::try_from(len).ok()).collect();
        lens.zip(places)
    }

    /// A scatter by one message to each rank, because MPI_Scatterv cannot address more than 2 GiB.
    fn scatter_one_by_one(&self, blocks: &[u8], lens: &[usize], mine: &mut [u8], root: usize) -> Result<()> {
        if self.rank != root {
            return self.receive(mine, root, LONG_TAG);
        }
        let mut rest = blocks;
        self.overlapped(|pending| {
            for (rank, &len) in lens.iter().enumerate() {
                let block = rest.split_off(..len).unwrap_or_default();
                if rank == root {
                    mine.copy_from_slice(block);
                } else {
                    pending.send(block, rank, LONG_TAG)?;
                }
            }
            Ok(())
        })
    }

    /// The inverse of [`Comm::scatter_one_by_one`].
    fn gather_one_by_one(&self, mine: &[u8], lens: &[usize], blocks: &mut [u8], root: usize) -> Result<()> {
        if self.rank != root {
            return self.send(mine, root, LONG_TAG);
        }
        let mut rest = blocks;
        self.overlapped(|pending| {
            for (rank, &len) in lens.iter().enumerate() {
                let block = rest.split_off_mut(..len).unwrap_or_default();
                if rank == root {
                    block.copy_from_slice(mine);
                } else {
                    pending.receive(block, rank, LONG_TAG)?;
                }
            }
            Ok(())
        })
    }

    /// The blocks of all ranks, in rank order, on every rank.
    pub fn all_gather<T: Element>(&self, mine: &[T], blocks: &mut [T]) -> Result<()> {
        let (mine, blocks): (&[u8], &mut [u8]) = (cast_slice(mine), cast_slice_mut(blocks));
        assert_eq!(blocks.len(), mine.len() * self.size, "blocks of all ranks");
        let Length { count, kind, .. } = &Length::of(mine.len())?;
        // SAFETY: `mine` has one block of `count` elements, and `blocks` has room for `size` of these blocks.
        check("MPI_Allgather", unsafe {
            let (from, to) = (place(mine), place_mut(blocks));
            ffi::MPI_Allgather(from, *count, *kind, to, *count, *kind, self.raw)
        })
    }

    /// Block j of rank i becomes block i of rank j.
    pub fn all_to_all<T: Element>(&self, out: &[T], blocks: &mut [T]) -> Result<()> {
        let (out, blocks): (&[u8], &mut [u8]) = (cast_slice(out), cast_slice_mut(blocks));
        assert!(out.len() == blocks.len() && out.len().is_multiple_of(self.size), "{} bytes out", out.len());
        let Length { count, kind, .. } = &Length::of(out.len() / self.size)?;
        // SAFETY: both buffers have `size` blocks of `count` elements.
        check("MPI_Alltoall", unsafe {
            let (from, to) = (place(out), place_mut(blocks));
            ffi::MPI_Alltoall(from, *count, *kind, to, *count, *kind, self.raw)
        })
    }

    /// The sum over all ranks, element by element, on every rank. `into` must be as long as `numbers`.
    pub fn all_reduce_sum<T: Element>(&self, numbers: &[T], into: &mut [T]) -> Result<()> {
        assert_eq!(into.len(), numbers.len(), "sums");
        let (len, kind) = (count(numbers.len())?, T::equivalent_datatype());
        // SAFETY: both buffers have `len` elements of this datatype.
        check("MPI_Allreduce", unsafe {
            let (from, to) = (place(numbers), place_mut(into));
            ffi::MPI_Allreduce(from, to, len, kind.as_raw(), ffi::RSMPI_SUM, self.raw)
        })
    }

    /// The sum over all ranks, element by element, of which rank r gets block r. `numbers` has one block for each
    /// rank, with the length of `into`.
    pub fn reduce_scatter_sum<T: Element>(&self, numbers: &[T], into: &mut [T]) -> Result<()> {
        assert_eq!(numbers.len(), into.len() * self.size, "blocks of all ranks");
        let (len, kind) = (count(into.len())?, T::equivalent_datatype());
        // SAFETY: `numbers` has `size` blocks of `len` elements of this datatype, and `into` has one.
        check("MPI_Reduce_scatter_block", unsafe {
            let (from, to) = (place(numbers), place_mut(into));
            ffi::MPI_Reduce_scatter_block(from, to, len, kind.as_raw(), ffi::RSMPI_SUM, self.raw)
        })
    }

    /// Like [`Comm::reduce_scatter_sum`] for blocks of different lengths: rank r gets `lens[r]` elements.
    pub fn reduce_scatter_varying_sum<T: Element>(&self, numbers: &[T], lens: &[usize], into: &mut [T]) -> Result<()> {
        assert!(lens.len() == self.size && numbers.len() == lens.iter().sum::<usize>(), "{} numbers", numbers.len());
        assert_eq!(into.len(), lens[self.rank], "own block");
        let lens = lens.iter().map(|&len| count(len)).collect::<Result<Vec<_>>>()?;
        let kind = T::equivalent_datatype();
        // SAFETY: `numbers` has the blocks of all ranks, whose lengths are in `lens`, and `into` has the own block.
        check("MPI_Reduce_scatter", unsafe {
            let (from, to) = (place(numbers), place_mut(into));
            ffi::MPI_Reduce_scatter(from, to, lens.as_ptr(), kind.as_raw(), ffi::RSMPI_SUM, self.raw)
        })
    }

    /// The sum over the ranks before this rank, element by element. `into` must be as long as `numbers`. On rank 0,
    /// the values of `into` have no meaning.
    pub fn exclusive_scan_sum<T: Element>(&self, numbers: &[T], into: &mut [T]) -> Result<()> {
        assert_eq!(into.len(), numbers.len(), "sums");
        let (len, kind) = (count(numbers.len())?, T::equivalent_datatype());
        // SAFETY: both buffers have `len` elements of this datatype.
        check("MPI_Exscan", unsafe {
            let (from, to) = (place(numbers), place_mut(into));
            ffi::MPI_Exscan(from, to, len, kind.as_raw(), ffi::RSMPI_SUM, self.raw)
        })
    }

    /// The sum over the ranks up to this rank, element by element. `into` must be as long as `numbers`.
    pub fn scan_sum<T: Element>(&self, numbers: &[T], into: &mut [T]) -> Result<()> {
        assert_eq!(into.len(), numbers.len(), "sums");
        let (len, kind) = (count(numbers.len())?, T::equivalent_datatype());
        // SAFETY: both buffers have `len` elements of this datatype.
        check("MPI_Scan", unsafe {
            let (from, to) = (place(numbers), place_mut(into));
            ffi::MPI_Scan(from, to, len, kind.as_raw(), ffi::RSMPI_SUM, self.raw)
        })
    }

    /// Like [`Comm::all_gather`] for blocks of different lengths. All blocks together have less than 2 GiB.
    pub fn all_gather_varying<T: Element>(&self, mine: &[T], lens: &[usize], blocks: &mut [T]) -> Result<()> {
        let (mine, lens, blocks): (&[u8], _, &mut [u8]) =
            (cast_slice(mine), &*in_bytes::<T>(lens), cast_slice_mut(blocks));
        assert!(lens.len() == self.size && blocks.len() == lens.iter().sum::<usize>(), "{} bytes", blocks.len());
        assert_eq!(mine.len(), lens[self.rank], "own block");
        let (counts, places) = counts_and_places(lens)?;
        // SAFETY: `blocks` has room for the blocks of all ranks, at the given places, and `mine` has the own block.
        check("MPI_Allgatherv", unsafe {
            let (from, to, kind) = (place(mine), place_mut(blocks), ffi::RSMPI_UINT8_T);
            let (counts, places) = (counts.as_ptr(), places.as_ptr());
            ffi::MPI_Allgatherv(from, count(mine.len())?, kind, to, counts, places, kind, self.raw)
        })
    }

    /// Like [`Comm::all_to_all`] for blocks of different lengths: `out_lens` has the length of the block for each
    /// rank, and `lens` has the length of the block from each rank. The blocks together have less than 2 GiB.
    pub fn all_to_all_varying<T: Element>(
        &self,
        out: &[T],
        out_lens: &[usize],
        blocks: &mut [T],
        lens: &[usize],
    ) -> Result<()> {
        let (out, blocks): (&[u8], &mut [u8]) = (cast_slice(out), cast_slice_mut(blocks));
        let (out_lens, lens) = (&*in_bytes::<T>(out_lens), &*in_bytes::<T>(lens));
        assert!(out_lens.len() == self.size && out.len() == out_lens.iter().sum::<usize>(), "{} bytes out", out.len());
        assert!(lens.len() == self.size && blocks.len() == lens.iter().sum::<usize>(), "{} bytes", blocks.len());
        let (out_counts, out_places) = counts_and_places(out_lens)?;
        let (counts, places) = counts_and_places(lens)?;
        // SAFETY: both buffers have room for the blocks of these lengths, at the given places.
        check("MPI_Alltoallv", unsafe {
            let (from, to, kind) = (place(out), place_mut(blocks), ffi::RSMPI_UINT8_T);
            let (out_counts, out_places) = (out_counts.as_ptr(), out_places.as_ptr());
            let (counts, places) = (counts.as_ptr(), places.as_ptr());
            ffi::MPI_Alltoallv(from, out_counts, out_places, kind, to, counts, places, kind, self.raw)
        })
    }

    /// The bytes of all ranks, of any length, on every rank. All ranks must call this function.
    pub fn all_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lens: Vec<usize> = self.all_numbers(mine.len() as f64)?.into_iter().map(|n| n as usize).collect();
        let mut all = vec![0; lens.iter().sum()];
        self.gather_varying(mine, &lens, if self.rank == 0 { &mut all } else { &mut [] }, 0)?;
        self.broadcast(&mut all, 0)?;
        let mut rest = all.as_slice();
        Ok(lens.iter().map(|&len| rest.split_off(..len).unwrap_or_default().to_vec()).collect())
    }

    /// Returns the value of `mine` if it is `Ok` on all ranks. An error on one rank becomes an error on all ranks.
    /// All ranks must call this function.
    pub fn agree<T>(&self, mine: Result<T, String>) -> Result<T> {
        let told = self.all_bytes(mine.as_ref().err().map_or(&[][..], |e| e.as_bytes()))?;
        if let Some(first) = told.iter().find(|t| !t.is_empty()) {
            return Err(CommError::Told(String::from_utf8_lossy(first).into_owned()));
        }
        mine.map_err(CommError::Told)
    }

    /// Sends the same bytes `messages` times, with at most `window` messages in flight.
    pub fn send_stream(&self, bytes: &[u8], messages: usize, window: usize, to: usize, tag: u16) -> Result<()> {
        let (len, to, tag) = (Length::of(bytes.len())?, int(to), c_int::from(tag));
        let from = place(bytes);
        self.ring(messages, window, |_, request| {
            // SAFETY: the bytes are borrowed until `ring` has waited for all messages, and nothing writes to them
            // meanwhile.
            check("MPI_Isend", unsafe { ffi::MPI_Isend(from, len.count, len.kind, to, tag, self.raw, request) })
        })
    }

    /// Receives `messages` messages of `bytes` each into the slots of `buffer`, one slot after the other. All slots
    /// wait for messages at the same time.
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
        let (len, from, tag) = (Length::of(bytes)?, int(from), c_int::from(tag));
        let start = buffer.as_mut_ptr();
        self.ring(messages, slots, |slot, request| {
            // SAFETY: a slot is used again only after its message has ended. The buffer is borrowed exclusively until
            // `ring` has waited for all messages. No slot is shorter than a message, and all slots lie within the
            // buffer.
            check("MPI_Irecv", unsafe {
                let into = start.add(slot * slot_bytes).cast();
                ffi::MPI_Irecv(into, len.count, len.kind, from, tag, self.raw, request)
            })
        })
    }

    /// Starts `messages` messages, of which at most `window` are in flight. `begin` starts a message in a place of
    /// the window. A place is used again after its message has ended. The function waits for half of a window at a
    /// time, because each wait takes as long as a short message. All messages have ended when this function returns.
    fn ring(
        &self,
        messages: usize,
        window: usize,
        begin: impl Fn(usize, &mut ffi::MPI_Request) -> Result<()>,
    ) -> Result<()> {
        // SAFETY: the handle is a constant of the MPI library.
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
        let ended = wait_for(&mut requests); // wait even after an error, because the borrow of the buffers ends here
        begun.and(ended)
    }

    /// Runs `work` while messages are in flight. All messages have ended when this function returns.
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
        // SAFETY: this value owns the handle. After MPI_Finalize the handle does not exist, so the handle is not
        // freed.
        unsafe {
            ffi::MPI_Finalized(&mut finalized);
            if finalized == 0 {
                ffi::MPI_Comm_free(&mut self.raw);
            }
        }
    }
}

/// Messages in flight. This value exists only inside [`Comm::overlapped`], which waits for all messages before the
/// borrow `'b` of their buffers ends.
pub struct Pending<'c, 'b> {
    comm: &'c Comm,
    requests: Vec<ffi::MPI_Request>,
    open: usize,
    buffers: PhantomData<&'b mut [u8]>,
}

/// Number of a message, in the order in which messages were started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageIndex(pub usize);

impl<'b> Pending<'_, 'b> {
    /// Starts to send.
    pub fn send(&mut self, bytes: &'b [u8], to: usize, tag: u16) -> Result<MessageIndex> {
        self.begin("MPI_Isend", bytes, to, tag, ffi::MPI_Isend)
    }

    /// Starts to send a message, which ends only after the receiver has started to receive.
    pub fn send_synchronously(&mut self, bytes: &'b [u8], to: usize, tag: u16) -> Result<MessageIndex> {
        self.begin("MPI_Issend", bytes, to, tag, ffi::MPI_Issend)
    }

    /// Starts to send to a rank. The caller must ensure that the rank has already started to receive.
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
        // SAFETY: the handle is a constant of the MPI library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (len, to, tag) = (Length::of(bytes.len())?, int(to), c_int::from(tag));
        // SAFETY: the buffer is borrowed for `'b`, and this request ends before `'b` does.
        check(call, unsafe { isend(place(bytes), len.count, len.kind, to, tag, self.comm.raw, &mut request) })?;
        Ok(self.keep(request))
    }

    /// Starts to receive at most `bytes.len()` bytes.
    pub fn receive(&mut self, bytes: &'b mut [u8], from: usize, tag: u16) -> Result<MessageIndex> {
        // SAFETY: the handle is a constant of the MPI library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (len, from, tag) = (Length::of(bytes.len())?, int(from), c_int::from(tag));
        // SAFETY: the buffer is borrowed exclusively for `'b`, and this request ends before `'b` does.
        check("MPI_Irecv", unsafe {
            ffi::MPI_Irecv(place_mut(bytes), len.count, len.kind, from, tag, self.comm.raw, &mut request)
        })?;
        Ok(self.keep(request))
    }

    fn keep(&mut self, request: ffi::MPI_Request) -> MessageIndex {
        self.requests.push(request);
        self.open += 1;
        MessageIndex(self.requests.len() - 1)
    }

    /// Waits until one of the messages has ended. `None` if all messages have ended.
    pub fn wait_any(&mut self) -> Result<Option<MessageIndex>> {
        if self.open == 0 {
            return Ok(None);
        }
        let mut index = 0;
        // SAFETY: the slice contains as many requests as the call gets, each active or null. MPI sets the ended
        // request to null.
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
        // SAFETY: the handle is a constant of the MPI library, and the request is active or null.
        unsafe {
            if *request != ffi::RSMPI_REQUEST_NULL {
                self.open -= 1;
            }
            check("MPI_Wait", ffi::MPI_Wait(request, ffi::RSMPI_STATUS_IGNORE))
        }
    }

    /// Waits for all messages.
    pub fn wait_all(&mut self) -> Result<()> {
        self.open = 0;
        wait_for(&mut self.requests)
    }

    /// Like [`Pending::wait_all`], but yields the processor between checks. After the time `patience`, sleeps for
    /// `nap` between checks. If ranks share cores, a spinning rank would slow down the working ranks.
    pub fn wait_all_asleep(&mut self, patience: Duration, nap: Duration) -> Result<()> {
        let begun = std::time::Instant::now();
        loop {
            let mut ended = 0;
            // SAFETY: the slice contains as many requests as the call gets, each active or null.
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
        // Requests are left only after a panic in `work`. The requests must end before the buffers are freed.
        if self.open > 0 {
            self.wait_all().ok();
        }
    }
}
