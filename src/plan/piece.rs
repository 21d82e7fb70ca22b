//! A run of a variable's raw bytes, and a function that fills segments with runs.

use crate::classify::VariableRef;

/// A run of one variable's raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The variable.
    pub variable: VariableRef,
    /// Offset of the first byte in the variable's raw bytes.
    pub offset: u64,
    /// Number of bytes; never 0.
    pub bytes: u64,
}

/// Fills segments one after the other. A piece that does not fit is cut, and its rest begins the next segment.
pub(crate) fn concatenated(pieces: &[Piece], segment_bytes: u64, mut emit: impl FnMut(Vec<Piece>)) {
    let mut open: Vec<Piece> = Vec::new();
    let mut room = segment_bytes;
    for piece in pieces {
        let (mut offset, mut left) = (piece.offset, piece.bytes);
        while left > 0 {
            let bytes = left.min(room);
            open.push(Piece { variable: piece.variable, offset, bytes });
            (offset, left, room) = (offset + bytes, left - bytes, room - bytes);
            if room == 0 {
                emit(std::mem::take(&mut open));
                room = segment_bytes;
            }
        }
    }
    if !open.is_empty() {
        emit(open);
    }
}
