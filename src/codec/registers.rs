//! Loops that are compiled twice: for every processor, and for processors with AVX2. Both versions produce the same
//! bytes.

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

/// Defines a method that calls the method after the `=`. The called method must be `#[inline(always)]`, so that the
/// method is compiled twice: under the first name for every processor, and under the second name for processors with
/// AVX2.
macro_rules! compiled_twice {
    (
        $(#[$doc:meta])*
        $visible:vis fn $name:ident, $avx2:ident = $here:ident(&self $(, $arg:ident: $type:ty)* $(,)?) $(-> $result:ty)?
    ) => {
        $(#[$doc])*
        $visible fn $name(&self $(, $arg: $type)*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            if $crate::codec::registers::has_avx2() {
                #[expect(unsafe_code, reason = "a function for processors with AVX2 is called")]
                // SAFETY: the processor has AVX2.
                return unsafe { self.$avx2($($arg),*) };
            }
            self.$here($($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $avx2(&self $(, $arg: $type)*) $(-> $result)? {
            self.$here($($arg),*)
        }
    };
}
pub(crate) use compiled_twice;

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        pub(super) static ARE_NARROW: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `work` on this thread as if the processor had no AVX2.
    pub(crate) fn with_narrow_ones<T>(work: impl FnOnce() -> T) -> T {
        ARE_NARROW.set(true);
        let result = work();
        ARE_NARROW.set(false);
        result
    }
}
