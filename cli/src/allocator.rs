//! The allocator of the command: the system's, and for the large buffers of a short command a region of huge pages, as long
//! as those are had quickly.
//!
//! A page of new memory costs a virtual machine 1 to 2 µs, and a save touches thousands of them once. In pieces of 2 MiB it
//! costs a fifth of that, unless the host has taken back what was free for some seconds: then a piece takes 2 to 3 ms, several
//! times as long as its small pages would. Nobody can ask beforehand, so the pieces are timed, and no further one is taken once
//! they have taken longer, all together, than small pages would.
//!
//! Zeros are what new memory has, so that they need not be written to it: long buffers of zeros are had from the other end of the
//! region, untouched, and some of them stay so.

#![expect(
    unsafe_code,
    reason = "an allocator hands out pointers; the calls of the system that it needs have no safe form"
)]

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use nix::time::{ClockId, clock_gettime};
use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use talc::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

/// Memory comes from the system, and large buffers from the region once there is one and as far as it has room.
pub struct Allocator;

/// Shorter buffers are the system's: those of a thread are soon used again by it.
const LARGE_BYTES: usize = 32 << 10;
/// What the region grows by.
const PIECE_BYTES: usize = 2 << 20;
/// The most that it grows to.
const REGION_BYTES: usize = 256 << 20;
/// Zeros of at least so many bytes are had from the kernel, as they are touched, and not written: some are never touched.
const ZEROED_BYTES: usize = 1 << 20;
/// So many buffers of them at a time.
const ZEROED_MAX: usize = 16;
/// What they are multiples of.
const PAGE_BYTES: usize = 4 << 10;
/// Pieces that are taken while the command begins, which is the work of one core.
const FIRST_PIECES: usize = 6;
/// The most that a piece may take on the average, of processor time: what its 512 small pages take where they are had quickly.
const QUICK: Duration = Duration::from_micros(600);

static REGION: Mutex<Option<Region>> = Mutex::new(None);
/// Where the region begins; 0 while there is none. It never moves and never goes.
static BEGIN: AtomicUsize = AtomicUsize::new(0);

/// From now on large buffers come from huge pages, where they are had quickly. For a command that ends soon: what the region
/// has taken it keeps. Elsewhere than on a system with huge pages it does next to nothing.
pub fn expect_large_buffers() {
    let Some(region) = Region::reserve(QUICK) else { return };
    let begin = region.begin.as_ptr() as usize;
    *lock() = Some(region);
    BEGIN.store(begin, Ordering::Release);
    let take = || {
        // The lock is open between two of them, for whoever allocates.
        let more = || lock().as_mut().is_some_and(Region::grow);
        (0..FIRST_PIECES).all(|_| more())
    };
    // Where no thread can be had, pieces are taken when they are needed, and whoever needs threads says so.
    if mcrengine::codec::cores() > 1 {
        let _ = std::thread::Builder::new().name("allocator".into()).spawn(take);
    }
}

fn lock() -> MutexGuard<'static, Option<Region>> {
    // Nothing under this lock panics.
    REGION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Address space whose front is memory that `talc` gives out, and whose back is given out once, as it comes from the kernel.
struct Region {
    talc: Talc<Manual, DefaultBinning>,
    begin: NonNull<u8>,
    /// As far as `talc` has it; where it begins before the first piece.
    end: NonNull<u8>,
    taken_bytes: usize,
    /// From its end down, given out as zeros.
    untouched_bytes: usize,
    /// Where those buffers begin that have not gone back to `talc`, and how long they are.
    untouched: [(usize, usize); ZEROED_MAX],
    quick: Duration,
    /// By how much the pieces were quicker, all together.
    saved: Duration,
    /// They were not.
    is_slow: bool,
}

// SAFETY: its memory is the process's, not a thread's, and nothing else points into it but what it gave out.
unsafe impl Send for Region {}

impl Region {
    /// Address space without memory, for pieces that take no longer than `quick` on the average.
    fn reserve(quick: Duration) -> Option<Self> {
        let len = NonZeroUsize::new(REGION_BYTES + PIECE_BYTES)?; // so that the first piece can begin at a multiple of its length
        let (prot, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE);
        // SAFETY: the kernel chooses a place where nothing is.
        let map = unsafe { mmap_anonymous(None, len, prot, flags) }.ok()?.cast::<u8>();
        let before = map.as_ptr().align_offset(PIECE_BYTES).min(PIECE_BYTES);
        // SAFETY: at most PIECE_BYTES from the front of a mapping that is longer.
        let begin = unsafe { map.add(before) };
        // SAFETY: all of it was mapped above, and nothing is in it yet.
        unsafe { madvise(begin.cast(), REGION_BYTES, MmapAdvise::MADV_HUGEPAGE) }.ok()?;
        Some(Self {
            talc: Talc::new(Manual),
            begin,
            end: begin,
            taken_bytes: 0,
            untouched_bytes: 0,
            untouched: [(0, 0); ZEROED_MAX],
            quick,
            saved: Duration::ZERO,
            is_slow: false,
        })
    }

    fn room(&self) -> usize {
        REGION_BYTES - self.taken_bytes - self.untouched_bytes
    }

    /// Takes a piece more. False where they have been slow, and where there is no room.
    fn grow(&mut self) -> bool {
        if self.is_slow || PIECE_BYTES > self.room() {
            return false;
        }
        let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
        let begun = now();
        // SAFETY: within the mapping, which is longer by at least `room()`; `talc` has nothing from here on.
        let piece = unsafe {
            let piece = self.begin.add(self.taken_bytes);
            piece.write_volatile(0); // the kernel finds the memory now
            piece
        };
        let left = self.saved.saturating_add(self.quick).checked_sub(now().saturating_sub(begun));
        (self.saved, self.is_slow) = (left.unwrap_or_default(), left.is_none());
        // SAFETY: the piece is part of the mapping, nobody else writes to it, and it follows what `talc` has.
        let end = match self.taken_bytes {
            0 => unsafe { self.talc.claim(piece.as_ptr(), PIECE_BYTES) },
            _ => Some(unsafe { self.talc.extend(self.end, piece.add(PIECE_BYTES).as_ptr()) }),
        };
        self.end = end.unwrap_or(self.begin);
        self.taken_bytes += PIECE_BYTES;
        self.is_slow |= end.is_none(); // never: the first piece has room for what `talc` notes in it
        true
    }

    /// Memory for a buffer, or null. The layout is not empty.
    fn allocate(&mut self, layout: Layout) -> *mut u8 {
        loop {
            // SAFETY: the layout is not empty.
            match unsafe { self.talc.try_allocate(layout) } {
                Some(found) => return found.as_ptr(),
                None if layout.size() > REGION_BYTES || !self.grow() => return null_mut(),
                None => {}
            }
        }
    }

    /// Memory for a long buffer that nobody has written to, or null.
    fn allocate_untouched(&mut self, layout: Layout) -> *mut u8 {
        let bytes = layout.size().next_multiple_of(PAGE_BYTES); // no layout comes near the greatest number
        let may_be = !self.is_slow && layout.align() <= PAGE_BYTES && bytes <= self.room();
        let Some(free) = self.untouched.iter_mut().find(|(begin, _)| may_be && *begin == 0) else { return null_mut() };
        self.untouched_bytes += bytes;
        // SAFETY: within the mapping, behind what `talc` has; it begins at a multiple of PAGE_BYTES, since the region does.
        let found = unsafe { self.begin.add(REGION_BYTES - self.untouched_bytes) }.as_ptr();
        *free = (found as usize, bytes);
        found
    }

    /// Where in `untouched` a buffer is, if it came from there and has not gone back.
    fn untouched_at(&self, ptr: *mut u8) -> Option<usize> {
        self.untouched.iter().position(|(begin, _)| *begin == ptr as usize)
    }

    fn deallocate(&mut self, ptr: *mut u8, layout: Layout) {
        let Some(ptr) = NonNull::new(ptr) else { return };
        match self.untouched_at(ptr.as_ptr()) {
            // SAFETY: it was given out with this layout, by `talc`, as all that is not in `untouched`.
            None => unsafe { self.talc.deallocate(ptr.as_ptr(), layout) },
            Some(at) => {
                let (_, bytes) = std::mem::take(&mut self.untouched[at]);
                // SAFETY: so many bytes of the mapping, which nobody has any more. Where `talc` does not want them they are lost.
                let _ = unsafe { self.talc.claim(ptr.as_ptr(), bytes) };
            }
        }
    }

    /// Whether a buffer is as long as that now, where it is.
    fn resize(&mut self, ptr: *mut u8, layout: Layout, new_size: usize) -> bool {
        match self.untouched_at(ptr) {
            // SAFETY: as in `deallocate`.
            None => unsafe { self.talc.try_realloc_in_place(ptr, layout, new_size) },
            Some(at) => new_size <= self.untouched[at].1,
        }
    }
}

/// Whether it was given out by the region.
fn is_of_region(ptr: *mut u8) -> bool {
    let begin = BEGIN.load(Ordering::Acquire);
    begin != 0 && (ptr as usize).wrapping_sub(begin) < REGION_BYTES
}

/// Memory for a large buffer, or null: then it is the system's.
fn large(layout: Layout) -> *mut u8 {
    if layout.size() < LARGE_BYTES || BEGIN.load(Ordering::Acquire) == 0 {
        return null_mut();
    }
    lock().as_mut().map_or(null_mut(), |region| region.allocate(layout))
}

/// Memory for a large buffer of zeros, or null, and whether the zeros have still to be written. What was used before is used again
/// first, so that a long command takes no more than it needs at a time.
fn large_zeroed(layout: Layout) -> (*mut u8, bool) {
    if layout.size() >= ZEROED_BYTES
        && BEGIN.load(Ordering::Acquire) != 0
        && let Some(region) = lock().as_mut()
    {
        // SAFETY: the layout is not empty.
        if let Some(found) = unsafe { region.talc.try_allocate(layout) } {
            return (found.as_ptr(), true);
        }
        let untouched = region.allocate_untouched(layout);
        if !untouched.is_null() {
            return (untouched, false);
        }
    }
    (large(layout), true)
}

// SAFETY: all memory comes from `System`, from `talc`, both of which keep to the contract, or from the region's back, each part of
// which is given out once before it is `talc`'s; each goes back to where it came from, since no address of the region is ever the
// system's.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match large(layout) {
            // SAFETY: the caller's promise.
            none if none.is_null() => unsafe { System.alloc(layout) },
            found => found,
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match large_zeroed(layout) {
            // SAFETY: the caller's promise.
            (none, _) if none.is_null() => unsafe { System.alloc_zeroed(layout) },
            (found, false) => found,
            (found, true) => {
                // SAFETY: it is so long, and nobody else has it.
                unsafe { found.write_bytes(0, layout.size()) };
                found
            }
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if !is_of_region(ptr) {
            // SAFETY: the caller's promise, and the system gave it out.
            return unsafe { System.dealloc(ptr, layout) };
        }
        if let Some(region) = lock().as_mut() {
            region.deallocate(ptr, layout);
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !is_of_region(ptr) {
            // SAFETY: the caller's promise, and the system gave it out.
            return unsafe { System.realloc(ptr, layout, new_size) };
        }
        if lock().as_mut().is_some_and(|region| region.resize(ptr, layout, new_size)) {
            return ptr;
        }
        // SAFETY: the caller promises that the new size is valid with this alignment; the old buffer is so long, and another.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(ptr, layout.size().min(new_size));
                self.dealloc(ptr, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_slow_pieces_a_region_takes_no_more() {
        let mut region = Region::reserve(Duration::ZERO).expect("address space");
        let layout = |bytes| Layout::from_size_align(bytes, 8).expect("valid");
        assert!(!region.allocate(layout(LARGE_BYTES)).is_null(), "what was taken is used");
        assert!(region.is_slow && region.taken_bytes == PIECE_BYTES);
        assert!(region.allocate(layout(PIECE_BYTES)).is_null() && region.taken_bytes == PIECE_BYTES);
        // What earlier ones saved is there to be lost.
        let mut region = Region::reserve(Duration::MAX).expect("address space");
        assert!(region.grow());
        region.quick = Duration::ZERO;
        assert!(region.grow() && !region.is_slow && region.saved < Duration::MAX);
        region.saved = Duration::ZERO;
        assert!(region.grow() && region.is_slow && !region.grow());
    }

    #[test]
    fn a_region_ends_where_it_was_said_to_end() {
        let mut region = Region::reserve(Duration::MAX).expect("address space");
        let layout = Layout::from_size_align(REGION_BYTES / 2 + PIECE_BYTES, 8).expect("valid");
        let first = region.allocate(layout);
        assert!(!first.is_null() && region.allocate(layout).is_null());
        assert!(region.taken_bytes <= REGION_BYTES);
        // SAFETY: it was given out above, with this layout.
        unsafe { region.talc.deallocate(first, layout) };
        assert!(!region.allocate(layout).is_null(), "used again");
    }

    #[test]
    fn long_zeros_are_had_untouched_as_far_as_there_is_room_and_are_used_again() {
        let mut region = Region::reserve(Duration::MAX).expect("address space");
        let layout = |bytes| Layout::from_size_align(bytes, 8).expect("valid");
        let long = layout(ZEROED_BYTES + 1);
        let all: Vec<*mut u8> = (0..ZEROED_MAX).map(|_| region.allocate_untouched(long)).collect();
        assert!(all.iter().all(|found| !found.is_null()) && region.taken_bytes == 0);
        assert!(region.allocate_untouched(long).is_null(), "so many at a time");
        for (fill, &buffer) in (1u8..).zip(&all) {
            // SAFETY: it is so long, and nobody else has it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, long.size()) };
            assert!(bytes.iter().all(|byte| *byte == 0), "nobody else wrote to it");
            bytes.fill(fill);
        }
        assert!(region.resize(all[0], long, ZEROED_BYTES) && !region.resize(all[0], long, 2 * ZEROED_BYTES));
        region.deallocate(all[0], layout(ZEROED_BYTES));
        region.deallocate(all[5], long);
        // SAFETY: the layout is not empty.
        let again = [(); 2].map(|()| unsafe { region.talc.try_allocate(layout(ZEROED_BYTES)) });
        let again = again.map(|found| found.expect("what went back").as_ptr() as usize);
        let within = |at: usize, buffer: *mut u8| (buffer as usize..buffer as usize + long.size()).contains(&at);
        assert!(again.iter().all(|&at| within(at, all[0]) || within(at, all[5])));
        // SAFETY: as above.
        assert!(unsafe { region.talc.try_allocate(layout(ZEROED_BYTES)) }.is_none(), "nothing else went back");

        let rest = region.room();
        assert!(region.allocate_untouched(layout(rest + 1)).is_null());
        assert!(!region.allocate_untouched(layout(rest)).is_null() && region.room() == 0 && !region.grow());
    }

    /// The only test that installs a region; the allocator of this process is not the system's alone any more from then on.
    #[test]
    fn buffers_keep_what_is_in_them_however_they_are_made_and_changed() {
        expect_large_buffers();
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut of_region = 0;
        let mut buffers: Vec<(u8, Vec<u8>)> = Vec::new();
        for step in 0..2000_u64 {
            let (fill, bytes) = (step as u8, next(3 * LARGE_BYTES as u64) as usize);
            match next(4) {
                0 => {
                    let zeroed = vec![0; if step % 16 == 0 { ZEROED_BYTES + bytes } else { bytes }];
                    assert!(zeroed.iter().all(|byte| *byte == 0));
                    buffers.push((0, zeroed));
                }
                1 if buffers.len() > 20 => {
                    let (fill, buffer) = buffers.swap_remove(next(20) as usize);
                    assert!(buffer.iter().all(|byte| *byte == fill), "step {step}");
                }
                2 if !buffers.is_empty() => {
                    let nth = next(buffers.len() as u64) as usize;
                    let (fill, buffer) = &mut buffers[nth];
                    buffer.resize(bytes, *fill);
                    buffer.shrink_to_fit();
                }
                _ => buffers.push((fill, std::iter::repeat_n(fill, bytes).collect())),
            }
            of_region += usize::from(buffers.last_mut().is_some_and(|(_, last)| is_of_region(last.as_mut_ptr())));
        }
        assert!(buffers.iter().all(|(fill, buffer)| buffer.iter().all(|byte| byte == fill)));
        assert!(of_region > 0 || BEGIN.load(Ordering::Acquire) == 0, "none came from the region");
    }
}
