//! What `mcr bench schemes` measures: points, and the series of a figure.

use super::measure::Coder;
use mcrengine::plan::Scheme;
use std::num::NonZeroU32;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    pub scheme: Scheme,
    pub coder: Coder,
    pub group_size: u32,
    /// In the block schemes.
    pub block_bytes: Option<NonZeroU32>,
}

/// A measurement; without stored bytes where time was over.
#[derive(Clone, Debug)]
pub struct Point {
    pub cell: Cell,
    pub checkpoint: String,
    pub file_bytes: u64,
    pub stored_bytes: Option<u64>,
}

impl Point {
    pub fn ratio(&self) -> Option<f64> {
        self.stored_bytes.map(|stored| crate::output::ratio(self.file_bytes, stored))
    }
}

/// Points that belong together in a figure.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
}

/// The name of a scheme, as the paper writes it.
pub fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Agnostic => "Agnostic",
        Scheme::AgnosticBlock => "Agnostic-Block",
        Scheme::Aware => "Aware",
        Scheme::AwareBlock => "Aware-Block",
    }
}
