//! The partition stack: which partition called which partition, and from which sub-buffer.
//!
//! Source: section 5.3, and the end of section 6: "the partition stack node must know where the partition originally
//! resided. Thus, this structure must save the sub-buffer id."

use super::ids::{PartitionId, SubBufferId};

/// Maximum number of calls of a chain that have not returned.
pub const DEPTH_MAX: usize = 1 << 16;

/// A partition and the sub-buffer in which the partition runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The partition.
    pub partition: PartitionId,
    /// The sub-buffer in which the partition must resume.
    pub sub_buffer: SubBufferId,
}

/// The partition stack of one chain (section 5.3). Each call pushes a frame with the caller.
#[derive(Clone, Debug, Default)]
pub struct PartitionStack {
    /// The callers. `None` is resident code, which the paper calls partition 0.
    frames: Vec<Option<Placed>>,
    /// The partition that runs; `None` is resident code.
    current: Option<Placed>,
}

impl PartitionStack {
    /// The running partition; `None` if resident code runs.
    pub fn current(&self) -> Option<Placed> {
        self.current
    }

    /// Number of calls that have not returned.
    pub fn depth(&self) -> usize {
        self.frames.len()
    }

    /// The callers of the running partition, the nearest caller last. Resident code is left out.
    pub fn return_path(&self) -> impl Iterator<Item = Placed> {
        self.frames.iter().copied().flatten()
    }

    /// The frame to which the next return goes. The outer `None` means that the stack is empty.
    pub(super) fn top(&self) -> Option<Option<Placed>> {
        self.frames.last().copied()
    }

    /// The running partition calls another partition.
    pub(super) fn push(&mut self, callee: Placed) {
        self.frames.push(self.current.replace(callee));
    }

    /// The running partition returns to its caller.
    pub(super) fn pop(&mut self) {
        self.current = self.frames.pop().flatten();
    }
}
