//! Piece lists: which pieces a segment has. Nearly all lists follow a rule, so they are written in few bytes. See
//! "Piece lists" in docs/format/container.md.

use super::columns::{Column, Cursor, Parsed};
use super::index::PIECES_MAX;
use super::layout::SEGMENT_RAW_MAX;
use crate::classify::VariableRef;
use crate::plan::Piece;

const EXPLICIT: u64 = 1;
const CAP: u64 = 2;
const LAST: u64 = 4;

/// For each variable, the number of bytes that are not in a piece yet. The index is the position in the piece order.
pub(super) struct Remaining(Vec<u64>);

impl Remaining {
    /// Starts without any piece. `raw_bytes` gives the raw length of each variable.
    pub(super) fn new(raw_bytes: impl Iterator<Item = u64>) -> Self {
        Self(raw_bytes.collect())
    }

    /// Whether every byte is in a piece.
    pub(super) fn is_nothing(&self) -> bool {
        self.0.iter().all(|&n| n == 0)
    }
}

/// Writes the pieces of one segment. `ordinal` gives the position of a variable in the piece order. `next` is the
/// position after the last piece of the previous segment. Fails if a piece does not begin where the previous piece of
/// the same variable ended.
pub(super) fn write(
    column: &mut Column,
    pieces: &[Piece],
    ordinal: impl Fn(VariableRef) -> Option<usize>,
    total: impl Fn(usize) -> u64,
    remaining: &mut Remaining,
    next: &mut usize,
) -> Result<(), &'static str> {
    let mut runs: Vec<(usize, u64)> = Vec::new();
    let mut available = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let at = ordinal(piece.variable).ok_or("a piece belongs to a variable that is not stored here")?;
        let left = remaining.0[at];
        if piece.offset != total(at) - left || piece.bytes == 0 || piece.bytes > left {
            return Err("a piece does not begin where the previous piece of its variable ends");
        }
        remaining.0[at] -= piece.bytes;
        available.push(left);
        match runs.last_mut() {
            Some((first, count)) if *first + *count as usize == at => *count += 1,
            _ => runs.push((at, 1)),
        }
    }
    let (cap, last, explicit) = lengths(pieces, &available);
    let flags = if explicit { EXPLICIT } else { u64::from(cap.is_some()) * CAP + u64::from(last.is_some()) * LAST };
    column.number(flags);
    column.number(runs.len() as u64);
    for (first, count) in runs {
        column.delta(first as u64, *next as u64);
        column.number(count - 1);
        *next = first + count as usize;
    }
    if explicit {
        pieces.iter().for_each(|piece| column.number(piece.bytes));
    } else {
        cap.into_iter().chain(last).for_each(|n| column.number(n));
    }
    Ok(())
}

/// Finds the rule that gives the lengths of the pieces. Returns the maximum length of a piece, the length of the last
/// piece if the length differs from the rule, and whether all lengths must be listed because they follow no rule.
/// Without a maximum (`None`), each piece has all remaining bytes of its variable.
fn lengths(pieces: &[Piece], available: &[u64]) -> (Option<u64>, Option<u64>, bool) {
    let Some((last, others)) = pieces.split_last() else { return (None, None, false) };
    let cap = (others.iter().zip(available).any(|(piece, &left)| piece.bytes != left))
        .then(|| others.iter().map(|piece| piece.bytes).max().unwrap_or(0));
    let rule = |left: u64| left.min(cap.unwrap_or(u64::MAX));
    let explicit = others.iter().zip(available).any(|(piece, &left)| piece.bytes != rule(left));
    let last_by_rule = last.bytes == rule(available[others.len()]);
    (cap, (!last_by_rule).then_some(last.bytes), explicit)
}

/// Reads the pieces of one segment, as [`write`] wrote them. Returns the raw bytes of the segment.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    order: &[VariableRef],
    total: impl Fn(usize) -> u64,
    remaining: &mut Remaining,
    next: &mut usize,
    pieces: &mut Vec<Piece>,
) -> Parsed<u64> {
    let flags = cursor.number()?;
    if flags > CAP + LAST || (flags & EXPLICIT != 0 && flags != EXPLICIT) {
        return cursor.bad("a piece list is of an unknown kind");
    }
    let start = pieces.len();
    for _ in 0..cursor.count(2)? {
        let first = cursor.delta(*next as u64)?;
        let count = cursor.number()?.saturating_add(1);
        let run = usize::try_from(first).ok().zip(usize::try_from(count).ok());
        let run = run.and_then(|(first, count)| Some((first, first.checked_add(count).filter(|&n| n <= order.len())?)));
        let Some((first, end)) = run else { return cursor.bad("a piece belongs to no variable") };
        if pieces.len() as u64 + (end - first) as u64 > PIECES_MAX {
            return cursor.bad("there are more than 2^24 pieces");
        }
        // The length of each piece is set below. Until then, the field `offset` of the piece holds the position in
        // the piece order.
        pieces.extend((first..end).map(|at| Piece { variable: order[at], offset: at as u64, bytes: 0 }));
        *next = end;
    }
    let cap = if flags & CAP != 0 { cursor.number()? } else { u64::MAX };
    let last = if flags & LAST != 0 { Some(cursor.number()?) } else { None };
    let count = pieces.len() - start;
    let mut sum = 0u64;
    for (i, piece) in pieces[start..].iter_mut().enumerate() {
        let at = piece.offset as usize;
        let left = remaining.0[at];
        piece.bytes = match last {
            _ if flags & EXPLICIT != 0 => cursor.number()?,
            Some(last) if i + 1 == count => last,
            _ => left.min(cap),
        };
        if piece.bytes == 0 || piece.bytes > left {
            return cursor.bad("a piece has no bytes, or more bytes than remain of its variable");
        }
        piece.offset = total(at) - left;
        remaining.0[at] = left - piece.bytes;
        sum = sum.saturating_add(piece.bytes);
    }
    match sum {
        0 => cursor.bad("a segment has no bytes"),
        sum if sum > SEGMENT_RAW_MAX => cursor.bad("a segment has more than 1024 MiB of raw bytes"),
        sum => Ok(sum),
    }
}
