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
