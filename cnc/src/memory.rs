//! Memory that is free goes back to the system, so that an agent at rest is small again after work.

/// Asks the allocator to return what it holds in reserve. Takes milliseconds; elsewhere than with glibc it does nothing.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "glibc's allocator has no safe interface")]
    // SAFETY: malloc_trim takes no pointer and only releases pages of free blocks; glibc locks its own arenas.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Prepares the allocator for a short command that does much at once: memory is used again instead of being given back
/// and asked for anew, and the heap begins with huge pages, since a new page costs more than filling it. Elsewhere than
/// with glibc it does nothing.
///
/// Not for what runs for long: nothing that was taken is given back but by [`give_back`].
pub fn expect_bulk() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, c_int};
        // Larger blocks are mapped for themselves: the most that glibc takes.
        const MAPPED_BYTES: c_int = 32 << 20;
        // What the heap grows by at least.
        const STEP_BYTES: c_int = 4 << 20;
        // Few, since each keeps what is free in it for itself, and only the first has huge pages; two threads seldom wait
        // for each other in one.
        const ARENAS_MAX: usize = 8;
        const THREADS_PER_ARENA: usize = 2;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = cores.div_ceil(THREADS_PER_ARENA).clamp(1, ARENAS_MAX) as c_int;
        set(M_ARENA_MAX, arenas);
        set(M_TRIM_THRESHOLD, c_int::MAX);
        set(M_MMAP_THRESHOLD, MAPPED_BYTES);
        set(M_TOP_PAD, HUGE_BYTES);
        begin_with_huge_pages();
        set(M_TOP_PAD, STEP_BYTES);
    }
}

/// Room, not memory: a page is taken when something is first written there.
#[cfg(target_env = "gnu")]
const HUGE_BYTES: nix::libc::c_int = 128 << 20;

#[cfg(target_env = "gnu")]
fn set(option: nix::libc::c_int, value: nix::libc::c_int) {
    #[expect(unsafe_code, reason = "glibc's allocator has no safe interface")]
    // SAFETY: mallopt takes no pointer, and glibc locks its own state. An option that it refuses costs time only.
    unsafe {
        nix::libc::mallopt(option, value)
    };
}

/// Lets the heap grow by what M_TOP_PAD says, and asks the kernel for huge pages there. A kernel without them refuses,
/// which costs time only.
#[cfg(target_env = "gnu")]
fn begin_with_huge_pages() {
    let end = || {
        #[expect(unsafe_code, reason = "the end of the heap has no safe interface")]
        // SAFETY: by 0 it moves nothing; it tells where the heap ends.
        unsafe {
            nix::libc::sbrk(0)
        }
    };
    let from = end();
    // Of more than is free in the heap, so that it has to grow.
    let room = Vec::<u8>::with_capacity(1 << 20);
    drop(std::hint::black_box(room));
    let grown = (end() as usize).saturating_sub(from as usize);
    let before_page = (from as usize).next_multiple_of(HUGE_PAGE_BYTES) - from as usize;
    if grown > before_page && grown <= 2 * HUGE_BYTES as usize {
        #[expect(unsafe_code, reason = "advice on memory has no safe interface")]
        // SAFETY: the range lies within what the heap has just grown by, and advice changes no byte of it.
        unsafe {
            nix::libc::madvise(from.wrapping_byte_add(before_page), grown - before_page, nix::libc::MADV_HUGEPAGE)
        };
    }
}

/// Advice has to begin with a page; with a huge one, none is in part outside.
#[cfg(target_env = "gnu")]
const HUGE_PAGE_BYTES: usize = 2 << 20;
