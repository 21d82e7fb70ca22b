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
