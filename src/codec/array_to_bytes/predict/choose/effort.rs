//! The effort of the encoder: all options of the encoder, in two settings. Decoded data does not depend on the
//! effort.

use super::super::format::linear::SIXTHS;

/// The effort of coding numbers ([`super::code_numbers`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumbersEffort {
    /// Level of pcodec, 1 to 12.
    pub pco_level: usize,
    /// Level of zstd for bytes of equal significance.
    pub zstd_level: i32,
    /// Whether each way is tried on all numbers, even if the way does not help on a sample.
    pub is_thorough: bool,
}

/// The effort that is enough to compare two predictions.
pub(crate) const ESTIMATE: NumbersEffort = NumbersEffort { pco_level: 4, zstd_level: 1, is_thorough: false };

/// The neighbours that may predict an element: all neighbours within `near` steps along each axis, and neighbours
/// along one axis within `far` steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stencil {
    pub near: i8,
    pub far: i8,
}

/// The sizes of samples for fitting weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Samples {
    /// The number of places on which terms are selected.
    pub select: usize,
    /// The number of places on which weights are fitted.
    pub fit: usize,
    /// How many times weights are fitted. Each fit uses the errors of the previous fit.
    pub fit_times: usize,
}

/// The effort of the search for copies of earlier elements ([`super::find_copies`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CopiesEffort {
    /// The number of earlier places that are compared with each window.
    pub depth: usize,
    /// The share of windows that are looked up is 1 divided by this divisor, a power of 2.
    pub window_divisor: u32,
    /// The share of windows that are sampled to find repeating blocks is 1 divided by this divisor, a power of 2.
    pub block_divisor: u32,
    /// Whether blocks are searched even if a sample shows few repeats.
    pub is_thorough: bool,
    /// Wide copies are searched only under two conditions. The first condition: more than 1 / `wide_window_divisor`
    /// of the sampled windows have a wide match but no near match.
    pub wide_window_divisor: f64,
    /// The second condition: prediction by the wide match leaves at least this many bits per element fewer than
    /// prediction by the previous elements.
    pub wide_gain_bits: f64,
    /// Copies with steps are searched only if at least this percentage of the sampled values occurs twice.
    pub stride_min_percent: usize,
}

/// All options of the encoder.
#[derive(Debug, PartialEq)]
pub(crate) struct Effort {
    /// Level of zstd for the header.
    pub header_zstd_level: i32,
    pub numbers: NumbersEffort,
    pub copies: CopiesEffort,
    /// Whether columns are ordered so that columns that are predicted well by other columns come last. If false,
    /// columns with the same arrays are next to each other.
    pub orders_columns: bool,
    /// Whether weights are fitted for columns of particles.
    pub fits_particles: bool,
    /// Whether copies are searched even if most elements belong to particles.
    pub searches_particles: bool,
    /// The maximum number of columns with the same arrays in which nested grids are searched.
    pub nested_tries_max: usize,
    /// Whether a column is coded with all candidate predictors, and the shortest code is used. If false, a sample
    /// decides.
    pub codes_all_ways: bool,
    /// In columns of many elements, weights are fitted on a share of the units: 1 divided by this divisor, a power of
    /// 2.
    pub unit_divisor: usize,
    /// Whether weights are fitted again to the elements of a column that wide copies do not predict.
    pub refits_after_wide: bool,
    /// Whether units of a column may have different weights.
    pub has_unit_weights: bool,
    /// The exponents of powers of other columns that may predict, in sixths.
    pub sixths: &'static [i8],
    /// On grids, the maximum number of columns just before a column whose powers may predict the column.
    pub power_columns_max: usize,
    /// For particles, the maximum number of columns just before a column whose powers may predict the column.
    pub power_columns_of_particles_max: usize,
    /// Whether the index along an axis may predict any column. If false, the index may predict only periodic
    /// positions.
    pub has_index_terms: bool,
    /// Whether the columns just before a column may predict a place by the values at neighbours of the place.
    pub has_terms_around: bool,
    /// The neighbours in arrays of one or two dimensions.
    pub stencil: Stencil,
    /// The neighbours in arrays of three dimensions.
    pub stencil_of_3d: Stencil,
    pub samples: Samples,
    /// The maximum number of terms of a fitted prediction.
    pub terms_max: usize,
    /// When all neighbours are fitted at once, at most this many ways to weight the errors are tried.
    pub stencil_ways_max: usize,
    /// A fit of all neighbours is used only if it leaves less than this share of the bits that the selected terms
    /// leave.
    pub stencil_max_share: f64,
}

impl Effort {
    /// The effort whose number in the parameter of the codec is `number`, 1 or 2.
    pub(crate) fn of(number: u32) -> &'static Self {
        if number > 1 { &HARD } else { &QUICK }
    }
}

/// The effort of the profile `balanced`.
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
    sixths: &[-6, -3, 3], // only powers without cube roots, because cube roots are slow
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
/// The effort of the profile `max`.
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
/// A small set of neighbours. At both efforts, the changes of these neighbours since an older checkpoint may predict
/// a value.
pub(crate) const SMALL_STENCIL: Stencil = Stencil { near: 2, far: 3 };
/// The small set of neighbours for arrays of three dimensions.
pub(crate) const SMALL_STENCIL_OF_3D: Stencil = Stencil { near: 1, far: 1 };
