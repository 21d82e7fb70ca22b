//! All settings of the encoder, for two efforts. Decoding does not depend on these settings.

/// Limit of the number of bytes between the numbers. Above this limit, zstd uses `many_bytes_zstd_level`.
const BYTES_FEW: usize = 256 << 10;

/// All settings of one effort.
pub(super) struct Effort {
    /// The effort that the parameter of `predict` stores.
    pub prediction: u32,
    /// Levels of zstd for the bytes between the numbers: for at most `BYTES_FEW` bytes, and for more bytes.
    pub few_bytes_zstd_level: u32,
    pub many_bytes_zstd_level: u32,
    /// Level of zstd for shuffled numbers.
    pub shuffled_zstd_level: u32,
    /// Level of zstd for numbers that are not shuffled. `None` if numbers without a shuffle are not tried.
    pub numbers_zstd_level: Option<u32>,
    /// Whether LZMA is tried.
    pub tries_lzma: bool,
}

impl Effort {
    /// The settings for an effort of 1 or 2, as in the parameter of the codec.
    pub(super) fn of(number: u32) -> &'static Self {
        if number > 1 { &HARD } else { &QUICK }
    }

    /// Level of zstd for `bytes` bytes between the numbers.
    pub(super) fn zstd_level(&self, bytes: usize) -> u32 {
        if bytes > BYTES_FEW { self.many_bytes_zstd_level } else { self.few_bytes_zstd_level }
    }
}

/// Settings for the profile `balanced`.
const QUICK: Effort = Effort {
    prediction: 1,
    few_bytes_zstd_level: 6,
    many_bytes_zstd_level: 6,
    shuffled_zstd_level: 1,
    numbers_zstd_level: None,
    tries_lzma: false,
};
/// Settings for the profile `max`.
const HARD: Effort = Effort {
    prediction: 2,
    few_bytes_zstd_level: 17,
    many_bytes_zstd_level: 12,
    shuffled_zstd_level: 3,
    numbers_zstd_level: Some(3),
    tries_lzma: true,
};
