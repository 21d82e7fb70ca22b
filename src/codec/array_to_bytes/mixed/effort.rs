//! How hard the encoder tries: every knob of it, in two settings. What is decoded does not depend on any of them.

/// Bytes between the numbers, up to which they are few.
const BYTES_FEW: usize = 256 << 10;

/// All knobs.
pub(super) struct Effort {
    /// How hard to predict, as the parameter of `predict` stores it.
    pub prediction: u32,
    /// Levels of zstd for the bytes between the numbers, where these are few and where they are many.
    pub few_bytes_zstd_level: u32,
    pub many_bytes_zstd_level: u32,
    /// Level of zstd for numbers, after shuffling.
    pub shuffled_zstd_level: u32,
    /// Level of zstd for numbers as they are, if that is tried.
    pub numbers_zstd_level: Option<u32>,
    /// Whether LZMA is tried.
    pub tries_lzma: bool,
}

impl Effort {
    /// By its number in the parameter of the codec, 1 or 2.
    pub(super) fn of(number: u32) -> &'static Self {
        if number > 1 { &HARD } else { &QUICK }
    }

    /// Level of zstd for this number of bytes between the numbers.
    pub(super) fn zstd_level(&self, bytes: usize) -> u32 {
        if bytes > BYTES_FEW { self.many_bytes_zstd_level } else { self.few_bytes_zstd_level }
    }
}

/// For the profile `balanced`.
const QUICK: Effort = Effort {
    prediction: 1,
    few_bytes_zstd_level: 6,
    many_bytes_zstd_level: 6,
    shuffled_zstd_level: 1,
    numbers_zstd_level: None,
    tries_lzma: false,
};
/// For the profile `max`.
const HARD: Effort = Effort {
    prediction: 2,
    few_bytes_zstd_level: 17,
    many_bytes_zstd_level: 12,
    shuffled_zstd_level: 3,
    numbers_zstd_level: Some(3),
    tries_lzma: true,
};
