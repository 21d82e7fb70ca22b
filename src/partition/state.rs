//! The four states of a partition, and the transitions between them.
//!
//! Source: section 6 and Table 2. The text has one gap: it says that an in-active partition may become evicted or
//! EWOR, but not that a call makes it active again. This transition follows from Table 2 ("Active: partition is
//! loaded and it is currently in use"), because otherwise no call could find its partition in the buffer.

/// The state of a partition (Table 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// In main memory. The partition was never loaded, or it was evicted and no call returns to it.
    Evicted,
    /// In a sub-buffer, and in use.
    Active,
    /// In a sub-buffer, and not in use.
    Inactive,
    /// EWOR, *evicted with the opportunity of reuse*: in main memory, and a call will return to it.
    EvictedForReuse,
}

/// What happens to a partition (section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A call or a return needs the partition. A partition that is not in a sub-buffer is loaded.
    Used,
    /// Another partition is needed, and this partition keeps its sub-buffer.
    Left,
    /// Another partition takes the sub-buffer of this partition.
    Replaced {
        /// Whether the partition stack contains the partition.
        on_return_path: bool,
    },
}

impl State {
    /// The four states, in the order of Table 2.
    pub const ALL: [Self; 4] = [Self::Evicted, Self::Active, Self::Inactive, Self::EvictedForReuse];

    /// The next state; `None` if the event cannot happen in this state.
    ///
    /// | state | used | left | replaced | replaced, on the return path |
    /// |---|---|---|---|---|
    /// | evicted | active | | | |
    /// | active | active | in-active | evicted | EWOR |
    /// | in-active | active | | evicted | EWOR |
    /// | EWOR | active | | | |
    pub fn after(self, event: Event) -> Option<Self> {
        match (self, event) {
            (_, Event::Used) => Some(Self::Active),
            (Self::Active, Event::Left) => Some(Self::Inactive),
            (Self::Active | Self::Inactive, Event::Replaced { on_return_path: false }) => Some(Self::Evicted),
            (Self::Active | Self::Inactive, Event::Replaced { on_return_path: true }) => Some(Self::EvictedForReuse),
            (Self::Evicted | Self::Inactive | Self::EvictedForReuse, Event::Left) => None,
            (Self::Evicted | Self::EvictedForReuse, Event::Replaced { .. }) => None,
        }
    }

    /// Whether the partition is in a sub-buffer (column *Location* of Table 2).
    pub fn is_resident(self) -> bool {
        matches!(self, Self::Active | Self::Inactive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transitions_are_exactly_the_transitions_of_section_6() {
        use Event::*;
        use State::*;
        let (free, on_path) = (Replaced { on_return_path: false }, Replaced { on_return_path: true });
        // One line for each sentence of section 6. All other pairs of state and event are impossible.
        let paper = [
            (Evicted, Used, Active), // "When a partition is used, the partition is loaded and becomes active."
            (Active, Used, Active),  // a partition calls itself
            (Active, Left, Inactive), // "if a new partition is needed and this one [...] is not replaced"
            (Active, free, Evicted), // "if it [is] replaced and it doesn't belong to the return path"
            (Active, on_path, EvictedForReuse), // "EWOR, [if] kicked out but it lies on the return path"
            (Inactive, free, Evicted), // "An in-active partition may transition to evicted ..."
            (Inactive, on_path, EvictedForReuse), // "... and EWOR under the same conditions"
            (Inactive, Used, Active), // Table 2: "Active: Partition is loaded and it is currently in use"
            (EvictedForReuse, Used, Active), // "An EWOR partition can only transition to an active partition."
        ];
        for state in State::ALL {
            for event in [Used, Left, free, on_path] {
                let next = paper.iter().find(|(from, by, _)| (*from, *by) == (state, event)).map(|(.., to)| *to);
                assert_eq!(state.after(event), next, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn only_active_and_in_active_partitions_are_in_local_memory() {
        let local = State::ALL.map(State::is_resident);
        assert_eq!(local, [false, true, true, false], "column Location of Table 2");
    }
}
