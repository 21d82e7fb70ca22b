//! Random numbers that a seed determines.

/// Knuth's MMIX generator (TAOCP, volume 2, 3.3.4). The high bits are random enough for tests.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this state.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits. The low bits have short periods.
    pub const fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }

    /// A number below `n`, which is at most 2^31. The result is 0 if `n` is 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        let high = self.next_bits() >> 33;
        if n == 0 { 0 } else { high % n }
    }

    /// An index below `len`, which is at most 2^31. The result is 0 if `len` is 0.
    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A byte.
    pub const fn byte(&mut self) -> u8 {
        (self.next_bits() >> 56) as u8
    }
}
