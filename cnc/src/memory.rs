//! Returns free memory to the system, so that an idle agent needs little memory.

/// Asks the allocator to return its reserve to the system. Takes milliseconds. Does nothing without glibc.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "glibc's allocator has no safe interface")]
    // SAFETY: malloc_trim takes no pointer and only releases pages of free blocks. glibc locks its arenas itself.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Prepares the allocator for a short command with much work. Memory is reused instead of being returned and
/// requested again, since a new page takes longer than filling it. Does nothing without glibc.
///
/// Huge pages are not requested here. In a virtual machine, memory that was free for seconds may have been returned
/// to the host, and requesting it again in pieces of 2 MiB is slow. A save after a pause took 1.6 to 2.2 times as
/// long with a heap of huge pages. The command's allocator uses some for large buffers, and measures how long they
/// take.
///
/// Not for long-running processes: memory is returned only by [`give_back`].
pub fn expect_bulk() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, c_int};
        // Larger blocks get their own mapping. This is the largest value that glibc accepts.
        const MAPPED_BYTES: c_int = 32 << 20;
        // Minimum growth of the heap.
        const STEP_BYTES: c_int = 4 << 20;
        // One arena for each core, since threads that describe files would wait for each other in one arena. The
        // number is limited, since each arena keeps its free memory.
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
    // SAFETY: mallopt takes no pointer, and glibc locks its own state. If glibc rejects an option, only speed is
    // lost.
    unsafe {
        nix::libc::mallopt(option, value)
    };
}
