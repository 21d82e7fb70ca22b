//! Elements that are exact or near copies of earlier elements: the source of each copy, and the remaining elements,
//! which are coded.

use super::numbers::Elements;
use crate::codec::array_to_bytes::varint::take;
use std::ops::Range;

/// The minimum number of elements of a run.
pub(crate) const RUN_MIN: usize = 4;

/// The source of a copied element: its place plus one, or 0 if the element is not copied. If the top bit is set, the
/// copy has the opposite sign.
pub(crate) type Source = u32;

pub(crate) const TURNED: u32 = 1 << 31;

/// A run: copied elements whose sources have a constant step. The step is 1 or -1 in this file, and any step in
/// `strides.rs`.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub at: u32,
    pub length: u32,
    /// The source of the first element.
    pub from: u32,
    /// The step from each source to the next source.
    pub step: i32,
    pub is_turned: bool,
}

impl Run {
    pub(crate) fn places(&self) -> Range<usize> {
        self.at as usize..self.at as usize + self.length as usize
    }

    /// The source of the element `nth` places after the first element. The element may be before or after the run.
    pub(crate) fn source(&self, nth: i64) -> i64 {
        i64::from(self.from) + i64::from(self.step) * nth
    }

    /// The source that the element after the run would have if the run were longer.
    pub(crate) fn end(&self) -> i64 {
        self.source(self.length.into())
    }

    pub(crate) fn fill(&self, froms: &mut [Source]) {
        let turned = if self.is_turned { TURNED } else { 0 };
        (0..).zip(&mut froms[self.places()]).for_each(|(n, place)| *place = (self.source(n) as Source + 1) | turned);
    }

    /// Cuts the run into pieces that do not cross borders. The borders are in increasing order.
    pub(crate) fn cut(self, borders: &[usize], mut piece: impl FnMut(Self)) {
        let inside = borders.partition_point(|&border| border <= self.at as usize);
        let mut rest = self;
        for border in borders[inside..].iter().map(|&border| border as u32).take_while(|&b| b < self.at + self.length) {
            let length = border - rest.at;
            piece(Self { length, ..rest });
            rest = Self { at: border, from: rest.source(length.into()) as u32, length: rest.length - length, ..rest };
        }
        piece(rest);
    }
}

/// Kind of an element: an exact copy.
pub(crate) const COPIED: u8 = 0;
/// Kind of an element: computed from its block of nested grids.
pub(crate) const DERIVED: u8 = 1;
/// Kind of an element: a near copy.
pub(crate) const NEAR: u8 = 2;
/// Kind of an element: neither copied nor computed.
pub(crate) const LITERAL: u8 = 3;

/// The kind of each element of a column, and the sources of copies.
pub(crate) struct Marks<'a> {
    exact: &'a [Source],
    near: &'a [Source],
    /// The computable cells of the column. Empty if no cell is computable.
    pub cells: &'a [u32],
    /// For each element of the column, one of the constants above.
    pub kinds: Vec<u8>,
}

impl<'a> Marks<'a> {
    /// The marks of the column whose elements are at the places `own`.
    pub(crate) fn new([exact, near]: [&'a [Source]; 2], cells: &'a [u32], own: Range<usize>) -> Self {
        let mut kinds = match near.get(own.clone()) {
            Some(near) => near.iter().map(|&from| if from == 0 { LITERAL } else { NEAR }).collect(),
            None => vec![LITERAL; own.len()],
        };
        kinds.iter_mut().zip(cells).filter(|(_, cell)| **cell != 0).for_each(|(kind, _)| *kind = DERIVED);
        if let Some(exact) = exact.get(own) {
            kinds.iter_mut().zip(exact).for_each(|(kind, &from)| *kind = if from == 0 { *kind } else { COPIED });
        }
        Self { exact, near, cells, kinds }
    }

    /// These marks, but with other near copies.
    pub(crate) fn with_near(&self, near: &'a [Source], own: Range<usize>) -> Self {
        Self::new([self.exact, near], self.cells, own)
    }

    /// Copies `count` elements to the places from `at` on.
    pub(crate) fn copy(&self, mut at: usize, count: usize, bits: &mut [u64], elements: Elements) {
        let mut froms = &self.exact[at..at + count];
        while let [first, ..] = froms {
            // Usually the elements are one run without sign changes. One copy of memory is enough for such a run.
            let run = froms.iter().zip(*first..).take_while(|(from, next)| *from == next).count();
            let source = (*first & !TURNED) as usize - 1;
            if *first & TURNED == 0 && source + run <= at {
                bits.copy_within(source..source + run, at);
            } else {
                (at..).zip(&froms[..run]).for_each(|(at, &from)| bits[at] = copied(from, bits, elements));
            }
            (at, froms) = (at + run, &froms[run..]);
        }
    }

    /// Restores near copies at the places from `at` on. `off` holds the differences between copies and sources, in
    /// representable numbers.
    pub(crate) fn copy_nearly(&self, at: usize, off: &[i64], bits: &mut [u64], elements: Elements) {
        for (at, &off) in (at..).zip(off) {
            bits[at] = elements.unordered(elements.ordered(copied(self.near[at], bits, elements)).wrapping_add(off));
        }
    }

    /// The source of a near copy.
    #[inline(always)]
    pub(crate) fn near_source(&self, at: usize, bits: &[u64], elements: Elements) -> u64 {
        copied(self.near[at], bits, elements)
    }

    pub(crate) fn count(&self, kind: u8) -> usize {
        // The count of each chunk fits in a byte, so the compiler can compare many elements at a time.
        let of = |some: &[u8]| some.iter().map(|&own| u8::from(own == kind)).sum::<u8>();
        self.kinds.chunks(usize::from(u8::MAX)).map(|some| usize::from(of(some))).sum()
    }

    /// The indices in the column of the elements of this kind.
    pub(crate) fn all(&self, kind: u8) -> impl Iterator<Item = usize> {
        self.kinds.iter().enumerate().filter(move |(_, own)| **own == kind).map(|(n, _)| n)
    }
}

#[inline(always)]
fn copied(from: Source, bits: &[u64], elements: Elements) -> u64 {
    let source = bits[(from & !TURNED) as usize - 1];
    if from & TURNED != 0 { elements.negated(source) } else { source }
}

/// Maps a signed number to an unsigned number. Numbers near 0 stay small.
pub(crate) fn zigzag(n: i64) -> usize {
    ((n << 1) ^ (n >> 63)) as usize
}

/// The inverse of [`zigzag`].
pub(crate) fn unzigzag(n: usize) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Writes the sources of all copies to `froms`, from the lists of skips, lengths and sources. The first `known`
/// elements are not copies. `expected` is the expected first source. Returns `None` if the lists are not valid.
pub(crate) fn places(
    froms: &mut [Source],
    known: usize,
    mut expected: i64,
    count: usize,
    mut skips: &[u8],
    mut lengths: &[u8],
    mut from_bytes: &[u8],
) -> Option<()> {
    let mut at = known;
    for _ in 0..count {
        let skip = take(&mut skips)?;
        at = at.checked_add(skip)?;
        expected += skip as i64;
        let length = take(&mut lengths)?;
        let (direction, turned) = (if length & 2 == 0 { 1i64 } else { -1 }, if length & 1 == 0 { 0 } else { TURNED });
        let length = (length >> 2) + RUN_MIN;
        let from = expected.checked_add(unzigzag(take(&mut from_bytes)?))?;
        let run = froms.get_mut(at..at.checked_add(length)?)?;
        let mut source = from;
        for (i, place) in run.iter_mut().enumerate() {
            if source < 0 || source >= (at + i) as i64 {
                return None;
            }
            *place = (source as u32 + 1) | turned;
            source += direction;
        }
        (at, expected) = (at + length, source);
    }
    (skips.is_empty() && lengths.is_empty() && from_bytes.is_empty()).then_some(())
}
