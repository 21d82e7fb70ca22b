//! Why something could not be encoded or decoded.

/// The most raw bytes of a segment that [`Chain::encode`] takes, and that [`Chain::decode`] gives.
pub const SEGMENT_BYTES_MAX: usize = 1 << 30;

/// Why something could not be encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A chain names a codec that this build does not have.
    #[error("codec {codec} is not known to this build")]
    Unknown {
        /// Its number.
        codec: u16,
    },
    /// A parameter is out of range.
    #[error("codec {codec}: parameter {param:#x} is not valid")]
    Param {
        /// Which codec.
        codec: &'static str,
        /// The parameter found.
        param: u32,
    },
    /// A chain is cut short, too long, or not one array-to-bytes codec with bytes-to-bytes codecs after it.
    #[error("not a chain of codecs: {what}")]
    Chain {
        /// Which rule is broken.
        what: &'static str,
    },
    /// The stored bytes cannot have come from this codec.
    #[error("codec {codec}: the stored bytes are damaged: {what}")]
    Damaged {
        /// Which codec noticed.
        codec: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// The stored bytes decode to another length than the segment has.
    #[error("the stored bytes decode to {found} bytes instead of {expected}")]
    Length {
        /// Bytes that came out, or that would have.
        found: usize,
        /// Bytes that the caller expects.
        expected: usize,
    },
    /// The chain needs an older segment, and nobody gave it one.
    #[error("codec since: it is decoded with an older segment, which is not named")]
    NothingOlder,
    /// A segment above [`SEGMENT_BYTES_MAX`].
    #[error("a segment of {found} raw bytes; at most {SEGMENT_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        found: usize,
    },
    /// A library refused.
    #[error("codec {codec} failed")]
    Library {
        /// Which codec.
        codec: &'static str,
        /// What the library said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
