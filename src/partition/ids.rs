//! The names of partitions, sub-buffers and chains of calls.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The position of a partition in the [`super::PartitionList`] (section 5.2). The paper reserves partition 0 for
    /// resident code. Here, resident code has no number.
    PartitionId
);
number!(
    /// The position of a sub-buffer in the partition buffer (sections 5.4 and 6).
    SubBufferId
);
number!(
    /// A chain of calls with a partition stack (section 5.3). The paper has one chain. A program with several threads
    /// has one chain for each thread.
    ChainId
);

impl PartitionId {
    /// The number as an index of the partition list.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl SubBufferId {
    /// The number as an index of the list of sub-buffers.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}
