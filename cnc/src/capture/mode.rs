//! How files are split into variables.

use mcrengine::codec::Profile;
use mcrengine::plan::Scheme;

/// How files are split into variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Each file is one opaque variable. The Agnostic schemes need this mode.
    Whole,
    /// HDF5 files are split into skeleton and variables, and filters are removed from chunks.
    Apart,
    /// HDF5 files are split as in [`CaptureMode::Apart`], but filters are removed only from variables that compress
    /// much better without filters. This mode is for fast profiles. The mode saves time, because checking that the
    /// filters can be applied again takes longer than the whole compression by a fast codec.
    ApartLeavingFilters,
}

impl CaptureMode {
    /// The mode for a scheme and a profile.
    pub fn of(scheme: Scheme, profile: &Profile) -> Self {
        Self::wanted(scheme.takes_files_apart(), profile.leaves_filters())
    }

    /// The mode for the two flags that an aggregator sends.
    pub fn wanted(take_apart: bool, leave_filters: bool) -> Self {
        match (take_apart, leave_filters) {
            (true, true) => Self::ApartLeavingFilters,
            (true, false) => Self::Apart,
            (false, _) => Self::Whole,
        }
    }
}
