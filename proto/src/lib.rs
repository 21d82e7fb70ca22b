//! The protocol between agents and aggregators: generated messages, their limits, and the conversion of messages to
//! checked types.

pub mod clock;
pub mod convert;
pub mod data;
pub mod log_limit;
pub mod tls;
pub mod unix;
pub mod version;

/// The messages of the protocol. [`version`] explains its versions.
#[expect(missing_docs, reason = "generated; the .proto file documents it")]
pub mod v1 {
    tonic::include_proto!("mcr.v1");
}

/// The messages between agents and the gate of an aggregator node.
#[expect(missing_docs, reason = "generated; the .proto file documents it")]
pub mod gate {
    tonic::include_proto!("mcr.gate.v1");
}

/// Maximum length of a request to a gate, in bytes.
pub const GATE_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum length of the settings in a request to a gate, in bytes.
pub const GATE_SETTINGS_BYTES_MAX: usize = 16 << 10;
/// Maximum number of gates of a cluster.
pub const GATES_MAX: usize = 64;
/// Maximum length of a message, in bytes. The receiver rejects longer messages.
pub const MESSAGE_BYTES_MAX: usize = 2 << 20;
/// Maximum payload of a data frame, in bytes.
pub const FRAME_BYTES: usize = 1 << 20;
/// Minimum payload of a data frame in bytes, except for the last frame of a fetch. The receiver keeps payloads in the
/// pieces in which they arrive. A large number of tiny frames would therefore need far more memory than was
/// requested.
pub const FRAME_BYTES_MIN: usize = 16 << 10;
/// Maximum payload of an HTTP/2 frame that an aggregator accepts, in bytes. Larger frames have less overhead, but
/// must be received completely before they are used.
pub const HTTP_FRAME_BYTES: u32 = 32 << 10;
/// Maximum length in bytes of an encoded announcement that is sent at once. A longer announcement is sent when the
/// aggregator has memory for it.
pub const ANNOUNCED_AT_ONCE_BYTES: usize = 64 << 10;
/// Maximum length of the encoded announcement of one rank, in bytes.
pub const ANNOUNCEMENT_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of raw bytes of one fetch.
pub const FETCH_BYTES_MAX: u64 = 64 << 20;
/// Interval in seconds between heartbeats of an agent that waits for an answer. The aggregator answers each
/// heartbeat. An agent that waits for no answer sends one last heartbeat. After this last heartbeat the agent is at
/// rest, and only the operating systems check the connection ([`KEEPALIVE_SECONDS`]). `mcr status` shows such an agent
/// as idle.
pub const HEARTBEAT_SECONDS: u64 = 10;
/// Maximum silence in seconds. A side that receives nothing for this time ends the session, unless the agent is at
/// rest.
pub const SILENCE_SECONDS: u64 = 30;
/// TCP keep-alive, in seconds: time without data before the first probe, and interval between further probes.
pub const KEEPALIVE_SECONDS: (u64, u64) = (30, 10);
/// Number of unanswered keep-alive probes before the kernel closes the connection.
pub const KEEPALIVE_RETRIES: u32 = 3;
/// Name and version of this software, for log messages.
pub const SOFTWARE: &str = concat!("mcrengine ", env!("CARGO_PKG_VERSION"));
