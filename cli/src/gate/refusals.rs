//! The log of refused connections and requests. The number of lines for each second is limited.

use mcr_proto::log_limit::LogLimit;

/// Writes one line for each refusal, but at most one line for each second.
#[derive(Debug, Default)]
pub struct Refusals(LogLimit);

impl Refusals {
    /// `peer` is the address of the client. `uid`: the client's user, if the user is known.
    pub fn log(&self, peer: &str, uid: Option<u32>, reason: &str) {
        if let Some(left_out) = self.0.due() {
            tracing::warn!(peer, uid, reason, left_out, "a request is refused");
        }
    }
}
