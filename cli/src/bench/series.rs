//! The measurements of `mcr bench schemes`: points, and the series of a figure.

use super::measure::Coder;
use mcrengine::plan::Scheme;
use std::num::NonZeroU32;

/// The conditions of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    pub scheme: Scheme,
    pub coder: Coder,
    pub group_size: u32,
    /// The block size, in the block schemes only.
    pub block_bytes: Option<NonZeroU32>,
}

/// A measurement. `stored_bytes` is `None` if the time limit was reached.
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

/// The points of one line in a figure.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
}

/// The name of a scheme in the paper.
pub fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Agnostic => "Agnostic",
        Scheme::AgnosticBlock => "Agnostic-Block",
        Scheme::Aware => "Aware",
        Scheme::AwareBlock => "Aware-Block",
    }
}
