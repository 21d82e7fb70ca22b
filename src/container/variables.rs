//! Reads any bytes of any variable of a group.

use super::segments::{DecodedInUse, ReadOrder, SegmentBuffer};
use super::set::{ContainerSet, SegmentKey};
use crate::classify::VariableRef;
use crate::error::ReadError;
use std::sync::Arc;

/// Reads any bytes of any variable of a group. Readers made by [`VariableReader::beside`] share one buffer of decoded
/// segments. The reader keeps the segment that it used last.
pub struct VariableReader {
    segments: Arc<SegmentBuffer>,
    /// Number of threads that a codec may use.
    threads: usize,
    last: Option<(SegmentKey, DecodedInUse)>,
}

/// A part of a variable, and the segment that has the bytes of this part.
struct Part {
    key: SegmentKey,
    /// Number of the piece in its segment, and offset of the part in the piece.
    piece: usize,
    at: usize,
    /// Offset of the part in the variable.
    offset: u64,
    bytes: usize,
}

impl VariableReader {
    /// A reader of all variables of a group. Keeps at most `bytes` bytes of decoded segments, or more if one segment
    /// and its base need more.
    pub fn new(set: Arc<ContainerSet>, bytes: u64) -> Result<Self, ReadError> {
        let tasks = set.tasks(|_| true);
        Ok(Self::of(Arc::new(SegmentBuffer::new(set, &tasks, bytes, ReadOrder::Unknown)?)))
    }

    /// A reader of the variables that are in the segments of the buffer.
    pub fn of(segments: Arc<SegmentBuffer>) -> Self {
        Self { segments, threads: 1, last: None }
    }

    /// Makes a reader for another thread, with the same buffer. The codecs of the new reader may use `threads`
    /// threads.
    pub fn beside(&self, threads: usize) -> Self {
        Self { segments: Arc::clone(&self.segments), threads, last: None }
    }

    /// The containers from which this reader reads.
    pub fn set(&self) -> &Arc<ContainerSet> {
        self.segments.set()
    }

    /// The buffer of decoded segments.
    pub fn segments(&self) -> &Arc<SegmentBuffer> {
        &self.segments
    }

    /// Fills `into` with raw bytes of a variable, starting at `offset`.
    pub fn read(&mut self, variable: VariableRef, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
        for part in parts(self.segments.set(), variable, offset, into.len() as u64)? {
            if self.last.as_ref().is_none_or(|(key, _)| *key != part.key) {
                let to = (part.offset - offset) as usize;
                if self.segments.spooled(part.key, part.piece, part.at, &mut into[to..to + part.bytes]) {
                    continue;
                }
                self.last = None; // the other segment must not be in use while this thread waits
                self.last = Some((part.key, self.segments.decoded(part.key, self.threads)?));
            }
            if let Some((_, decoded)) = &self.last {
                let to = (part.offset - offset) as usize;
                let from = decoded.part(part.piece, part.at..part.at + part.bytes);
                into[to..to + part.bytes].copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// Gives back the segment that was used last.
    pub fn rest(&mut self) {
        self.last = None;
    }
}

/// Calls `each` for the segment of each part that [`VariableReader::read`] would read for these bytes, in the order
/// of reading.
pub(crate) fn segments_of(
    set: &ContainerSet,
    variable: VariableRef,
    offset: u64,
    bytes: u64,
    mut each: impl FnMut(SegmentKey),
) {
    parts(set, variable, offset, bytes).into_iter().flatten().for_each(|part| each(part.key));
}

/// Divides a run of a variable's bytes into parts, one for each piece that has some of the bytes.
fn parts(set: &ContainerSet, variable: VariableRef, offset: u64, bytes: u64) -> Result<Vec<Part>, ReadError> {
    let refuse = |what: &str| set.readers()[0].invalid("the request", what.into());
    let header = set.index().variable(variable).ok_or_else(|| refuse("there is no such variable"))?;
    let end = offset.checked_add(bytes).filter(|&end| end <= header.raw_bytes.0);
    let end = end.ok_or_else(|| refuse("it extends past the end of the variable"))?;
    let (container, source) = set.holder(variable).ok_or_else(|| refuse("there is no such variable"))?;
    let index = set.readers()[container as usize].index();
    let part = |(segment, at): (u32, usize)| {
        let piece = index.all_pieces()[at];
        let (from, to) = (piece.offset.max(offset), (piece.offset + piece.bytes).min(end));
        (from < to).then(|| Part {
            key: SegmentKey { container, segment },
            piece: at - index.segments()[segment as usize].pieces.start,
            at: (from - piece.offset) as usize,
            offset: from,
            bytes: (to - from) as usize,
        })
    };
    Ok(index.pieces_of(source).filter_map(part).collect())
}
