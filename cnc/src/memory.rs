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
/// and asked for anew, since a new page costs more than filling it. Elsewhere than with glibc it does nothing.
///
/// No huge pages are asked for here: what has been free for seconds in a virtual machine may be with its host again, and is had
/// back slowly in pieces of 2 MiB. A save after a pause took 1.6 to 2.2 times as long with a heap of them. The command's
/// allocator has some for large buffers, and looks how long they take.
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
        // One for each core, since threads that describe files wait for each other in one; few, since each keeps what is
        // free in it for itself.
        const ARENAS_MAX: usize = 8;
        let cores = mcrengine::codec::cores();
        set(M_ARENA_MAX, cores.clamp(1, ARENAS_MAX) as c_int);
        set(M_TRIM_THRESHOLD, c_int::MAX);
        set(M_MMAP_THRESHOLD, MAPPED_BYTES);
        set(M_TOP_PAD, STEP_BYTES);
    }
}

#[cfg(target_env = "gnu")]
fn set(option: nix::libc::c_int, value: nix::libc::c_int) {
    #[expect(unsafe_code, reason = "glibc's allocator has no safe interface")]
    // SAFETY: mallopt takes no pointer, and glibc locks its own state. An option that it refuses costs time only.
    unsafe {
        nix::libc::mallopt(option, value)
    };
}
