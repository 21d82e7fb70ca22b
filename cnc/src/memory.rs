//! Returns free memory to the system, so that an idle agent needs little memory.

/// Makes the allocator return its free memory to the system. Takes milliseconds. Does nothing if the C library is not
/// glibc.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "glibc's allocator has no safe interface")]
    // SAFETY: malloc_trim takes no pointer and only releases pages of free blocks. glibc locks its arenas itself.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
