//! Errors of encoding and decoding.

/// The most raw bytes of a segment that a chain encodes or decodes.
pub const SEGMENT_BYTES_MAX: usize = 1 << 30;

/// Why a segment or a chain could not be encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A chain names a codec that this build does not have.
    #[error("codec {codec} is not known to this build")]
    Unknown {
        /// Number of the codec.
        codec: u16,
    },
    /// A parameter is out of range.
    #[error("codec {codec}: parameter {param:#x} is not valid")]
    Param {
        /// Name of the codec.
        codec: &'static str,
        /// The invalid parameter.
        param: u32,
    },
    /// A chain ends too early, is too long, or is not one array-to-bytes codec followed by bytes-to-bytes codecs.
    #[error("not a chain of codecs: {what}")]
    Chain {
        /// The rule that the chain breaks.
        what: &'static str,
    },
    /// This codec cannot have written the stored bytes.
    #[error("codec {codec}: the stored bytes are damaged: {what}")]
    Damaged {
        /// Name of the codec that noticed the damage.
        codec: &'static str,
        /// What is wrong with the stored bytes.
        what: &'static str,
    },
    /// The stored bytes decode to more or fewer bytes than the segment has.
    #[error("the stored bytes decode to {found} bytes instead of {expected}")]
    Length {
        /// Number of bytes that were decoded, or that decoding would give.
        found: usize,
        /// Number of bytes that the caller expects.
        expected: usize,
    },
    /// The chain needs an older segment, but the caller gave no older segment.
    #[error("codec since: the chain needs an older segment, but none was given")]
    NothingOlder,
    /// A segment is longer than [`SEGMENT_BYTES_MAX`].
    #[error("the segment has {found} raw bytes; at most {SEGMENT_BYTES_MAX} are allowed")]
    TooLong {
        /// Raw bytes of the segment.
        found: usize,
    },
    /// The library of a codec returned an error.
    #[error("the library of codec {codec} returned an error")]
    Library {
        /// Name of the codec.
        codec: &'static str,
        /// The error of the library.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
