//! The wire, nothing else: generated messages, their limits, and the conversion of headers to checked types.

pub mod convert;

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
/// The largest encoded announcement of one rank, in bytes.
pub const ANNOUNCEMENT_BYTES_MAX: u64 = 256 << 20;
/// Raw bytes that one fetch may ask for.
pub const FETCH_BYTES_MAX: u64 = 64 << 20;
/// An agent says this often, in seconds, that it is there, and the aggregator answers: the only wake-up of a session at rest.
pub const HEARTBEAT_SECONDS: u64 = 10;
/// A side that has heard nothing for this long, in seconds, ends the session.
pub const SILENCE_SECONDS: u64 = 30;
/// Name and version of this software, for people.
pub const SOFTWARE: &str = concat!("mcrengine ", env!("CARGO_PKG_VERSION"));
