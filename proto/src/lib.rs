//! The wire, nothing else: generated messages, their limits, and the conversion of headers to checked types.

pub mod clock;
pub mod convert;
pub mod data;

/// Version 1 of the wire.
#[expect(missing_docs, reason = "generated; the .proto file documents it")]
pub mod v1 {
    tonic::include_proto!("mcr.v1");
}

/// The version that [`v1::Hello`] and [`v1::Welcome`] carry.
pub const WIRE_VERSION: u32 = 1;
/// The largest message, in bytes; the transports on both sides refuse more.
pub const MESSAGE_BYTES_MAX: usize = 2 << 20;
/// Payload of one frame at most, in bytes.
pub const FRAME_BYTES: usize = 1 << 20;
/// Payload that a frame has at least unless it is the last of its fetch, in bytes: what arrives is held as it arrived,
/// so a crowd of tiny frames would take far more memory than was asked for.
pub const FRAME_BYTES_MIN: usize = 16 << 10;
/// Payload of an HTTP/2 frame that an aggregator takes, in bytes. Larger ones cost less each, but are gathered first.
pub const HTTP_FRAME_BYTES: u32 = 32 << 10;
/// An encoded announcement of at most so many bytes is sent at once; a longer one once the aggregator has room for it.
pub const ANNOUNCED_AT_ONCE_BYTES: usize = 64 << 10;
/// The largest encoded announcement of one rank, in bytes.
pub const ANNOUNCEMENT_BYTES_MAX: u64 = 256 << 20;
/// Raw bytes that one fetch may ask for.
pub const FETCH_BYTES_MAX: u64 = 64 << 20;
/// An agent that waits for an answer says this often, in seconds, that it is there, and the aggregator answers. One that
/// waits for none says so once, and then nothing: the kernels watch the connection ([`KEEPALIVE_SECONDS`]).
pub const HEARTBEAT_SECONDS: u64 = 10;
/// A side that has heard nothing for this long, in seconds, ends the session, unless the agent is at rest.
pub const SILENCE_SECONDS: u64 = 30;
/// After this long without a byte, in seconds, a kernel asks whether the other one is still there, and again so often ...
pub const KEEPALIVE_SECONDS: (u64, u64) = (30, 10);
/// ... and this many times before it gives the connection up.
pub const KEEPALIVE_RETRIES: u32 = 3;
/// Name and version of this software, for people.
pub const SOFTWARE: &str = concat!("mcrengine ", env!("CARGO_PKG_VERSION"));
