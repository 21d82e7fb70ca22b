//! Which loops may take more numbers at a time than every processor can. They give the same bytes either way.

/// Whether the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_avx2() -> bool {
    #[cfg(test)]
    if tests::ARE_NARROW.get() {
        return false;
    }
    is_x86_feature_detected!("avx2")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        pub(super) static ARE_NARROW: Cell<bool> = const { Cell::new(false) };
    }

    /// Does it on this thread as a processor without wide registers does.
    pub(crate) fn with_narrow_ones<T>(work: impl FnOnce() -> T) -> T {
        ARE_NARROW.set(true);
        let result = work();
        ARE_NARROW.set(false);
        result
    }
}
