//! A group: arrays of one class that become columns in the same way, with their layout in a segment.

/// The extents of an array: the number of elements along each of at most three dimensions, slowest dimension first.
/// If an array has more dimensions, the first extent is the product of the slowest dimensions.
pub(crate) type Dims = [usize; 3];

/// How arrays become columns. `Plain` leaves the arrays unchanged. `Lanes(n)` splits records of `n` components into
/// one column for each component. `Join(axis)` joins slabs of one domain along `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Lanes(usize),
    /// Grids of points. Each place of a row has `lanes` components. `together` elements of one component are
    /// contiguous; 0 means all elements of an array.
    Points {
        lanes: usize,
        together: usize,
    },
    Join(usize),
}

/// Arrays of one class that become columns in the same way, with their layout in the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub kind: Kind,
    /// Extents of the chunks in which each array is stored; `None` if an array is stored row by row.
    pub chunk: Option<Dims>,
    pub arrays: Vec<Dims>,
    /// Whether the elements are integers in a segment of floating-point numbers. Only the encoder uses this field.
    pub is_integer: bool,
    /// The table to whose rows the elements of this group belong.
    pub table: Option<usize>,
}

impl Group {
    pub(crate) fn new(kind: Kind, chunk: Option<Dims>, arrays: Vec<Dims>) -> Self {
        Self { kind, chunk, arrays, is_integer: false, table: None }
    }

    pub(crate) fn elements(&self) -> Option<usize> {
        self.arrays.iter().try_fold(0usize, |sum, dims| sum.checked_add(product(dims)?))
    }

    pub(crate) fn lanes(&self) -> usize {
        if let Kind::Lanes(lanes) | Kind::Points { lanes, .. } = self.kind { lanes } else { 1 }
    }
}

pub(crate) fn product(dims: &Dims) -> Option<usize> {
    dims.iter().try_fold(1usize, |a, &n| a.checked_mul(n))
}

/// Reduces extents to three: extents of 1 are removed, and all extents before the last two are multiplied into one.
pub(crate) fn collapse(dims: &[usize]) -> Dims {
    let mut wide: Vec<usize> = dims.iter().copied().filter(|&n| n > 1).collect();
    while wide.len() > 3 {
        let first = wide.remove(0);
        wide[0] = wide[0].saturating_mul(first);
    }
    let mut found = [1; 3];
    found[3 - wide.len()..].copy_from_slice(&wide);
    found
}

pub(crate) fn fits(dims: &Dims, chunk: Option<Dims>) -> bool {
    chunk.is_none_or(|chunk| dims.iter().zip(chunk).all(|(&n, c)| c > 0 && n % c == 0))
}
