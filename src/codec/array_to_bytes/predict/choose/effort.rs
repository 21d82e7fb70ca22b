//! How hard the encoder tries: every knob of it, in two settings. What is decoded does not depend on any of them.

use super::super::format::linear::SIXTHS;

/// How numbers are coded ([`super::code_numbers`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumbersEffort {
    /// Level of pcodec, 1 to 12.
    pub pco_level: usize,
    /// Level of zstd for bytes of equal significance.
    pub zstd_level: i32,
    /// Whether each way is tried on all numbers, even if a run of them says that it does not help.
    pub is_thorough: bool,
}

/// Enough to compare two predictions.
pub(crate) const ESTIMATE: NumbersEffort = NumbersEffort { pco_level: 4, zstd_level: 1, is_thorough: false };

/// Which neighbours may predict an element: all within `near` steps along each axis, and those along one axis within
/// `far` steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stencil {
    pub near: i8,
    pub far: i8,
}

/// How places are sampled to fit weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Samples {
    /// Places by which terms are selected.
    pub select: usize,
    /// Places on which weights are fitted.
    pub fit: usize,
    /// How often weights are fitted, each time with the errors of the time before.
    pub fit_times: usize,
}

/// How copies of earlier elements are looked for ([`super::find_copies`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CopiesEffort {
    /// Earlier places that are compared for each window.
    pub depth: usize,
    /// One window in this many is looked up; a power of 2.
    pub window_divisor: u32,
    /// One window in this many says which blocks repeat; a power of 2.
    pub block_divisor: u32,
    /// Whether blocks are searched although a sample says that it does not pay.
    pub is_thorough: bool,
    /// Wide runs are looked for only if one sampled window in this many has a wide match but no near match ...
    pub wide_window_divisor: f64,
    /// ... and the wide match predicts an element by this many bits better than the elements before it do.
    pub wide_gain_bits: f64,
    /// Copies with steps are looked for only if this share of the sampled values occurs twice.
    pub stride_min_percent: usize,
}

/// All knobs.
#[derive(Debug, PartialEq)]
pub(crate) struct Effort {
    /// Level of zstd for the header.
    pub header_zstd_level: i32,
    pub numbers: NumbersEffort,
    pub copies: CopiesEffort,
    /// Whether columns are put in an order in which the best predicted come last. Else those of the same arrays stand
    /// side by side.
    pub orders_columns: bool,
    /// Whether weights are fitted for columns of particles too.
    pub fits_particles: bool,
    /// Whether copies are looked for even if most elements are of particles.
    pub searches_particles: bool,
    /// Columns of the same arrays by which nested grids are looked for, at most.
    pub nested_tries_max: usize,
    /// Whether all ways to predict a column are coded, and the shortest code is taken. Else a sample decides.
    pub codes_all_ways: bool,
    /// In columns of many elements, weights are fitted on one unit in this many; a power of 2.
    pub unit_divisor: usize,
    /// Whether weights are fitted again to what wide runs leave of a column.
    pub refits_after_wide: bool,
    /// Whether units of a column may have different weights.
    pub has_unit_weights: bool,
    /// Powers of other columns that may predict, in sixths.
    pub sixths: &'static [i8],
    /// Columns just before of which powers may predict, at most: on grids, and of particles.
    pub power_columns_max: usize,
    pub power_columns_of_particles_max: usize,
    /// Whether the index along an axis may predict where positions are not periodic too.
    pub has_index_terms: bool,
    /// Whether what lies around the place in the columns just before may predict.
    pub has_terms_around: bool,
    pub stencil: Stencil,
    pub stencil_of_3d: Stencil,
    pub samples: Samples,
    /// Terms of a fitted prediction, at most.
    pub terms_max: usize,
    /// Ways to weigh errors by which all neighbours are fitted at once, at most.
    pub stencil_ways_max: usize,
    /// The share of the bits of fewer terms that all neighbours at once may leave, at most.
    pub stencil_max_share: f64,
}

impl Effort {
    /// By its number in the parameter of the codec, 1 or 2.
    pub(crate) fn of(number: u32) -> &'static Self {
        if number > 1 { &HARD } else { &QUICK }
    }
}

/// For the profile `balanced`.
pub(crate) const QUICK: Effort = Effort {
    header_zstd_level: 3,
    numbers: NumbersEffort { pco_level: 7, zstd_level: 3, is_thorough: false },
    copies: CopiesEffort {
        depth: 4,
        window_divisor: 2,
        block_divisor: 32,
        is_thorough: false,
        wide_window_divisor: 12.0,
        wide_gain_bits: 8.0,
        stride_min_percent: 20,
    },
    orders_columns: false,
    fits_particles: false,
    searches_particles: false,
    nested_tries_max: 1,
    codes_all_ways: false,
    unit_divisor: 8,
    refits_after_wide: false,
    has_unit_weights: false,
    sixths: &[-6, -3, 3], // those that need no cube root, which takes long to compute and to decode
    power_columns_max: 3,
    power_columns_of_particles_max: 3,
    has_index_terms: false,
    has_terms_around: false,
    stencil: SMALL_STENCIL,
    stencil_of_3d: SMALL_STENCIL_OF_3D,
    samples: Samples { select: 1024, fit: 4096, fit_times: 1 },
    terms_max: 8,
    stencil_ways_max: 1,
    stencil_max_share: 0.98,
};
/// For the profile `max`.
pub(crate) const HARD: Effort = Effort {
    header_zstd_level: 19,
    numbers: NumbersEffort { pco_level: 8, zstd_level: 12, is_thorough: true },
    copies: CopiesEffort {
        depth: 32,
        window_divisor: 1,
        block_divisor: 8,
        is_thorough: true,
        wide_window_divisor: 40.0,
        wide_gain_bits: 4.0,
        stride_min_percent: 5,
    },
    orders_columns: true,
    fits_particles: true,
    searches_particles: true,
    nested_tries_max: 4,
    codes_all_ways: true,
    unit_divisor: 1,
    refits_after_wide: true,
    has_unit_weights: true,
    sixths: &SIXTHS,
    power_columns_max: 8,
    power_columns_of_particles_max: 3,
    has_index_terms: true,
    has_terms_around: true,
    stencil: Stencil { near: 3, far: 4 },
    stencil_of_3d: Stencil { near: 1, far: 4 },
    samples: Samples { select: 2048, fit: 1 << 14, fit_times: 3 },
    terms_max: 16,
    stencil_ways_max: usize::MAX,
    stencil_max_share: 0.995,
};
/// The neighbours whose change since an older checkpoint may predict, whatever the effort.
pub(crate) const SMALL_STENCIL: Stencil = Stencil { near: 2, far: 3 };
pub(crate) const SMALL_STENCIL_OF_3D: Stencil = Stencil { near: 1, far: 1 };
