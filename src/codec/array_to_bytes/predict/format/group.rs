//! Arrays of one column as they lie in a segment: a group.

/// Extents in at most three dimensions, slowest first; those of more dimensions are multiplied into the first.
pub(crate) type Dims = [usize; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Lanes(usize),
    /// Grids of points. Each place of a row has `lanes` components. `together` elements of one component lie
    /// together; 0 means all elements of an array.
    Points {
        lanes: usize,
        together: usize,
    },
    Join(usize),
}

/// Arrays of one column, as they lie in the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub kind: Kind,
    /// Extents of the chunks that each array lies in, one after the other; `None` for row after row.
    pub chunk: Option<Dims>,
    pub arrays: Vec<Dims>,
    /// Integers among real numbers; known to the encoder only.
    pub is_integer: bool,
    /// The table whose rows these are.
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

/// Three extents, those before the last two multiplied into one.
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
