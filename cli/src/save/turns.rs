//! The order in which the groups of one `mcr save` are committed.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Ensures that the checkpoints of a run are committed from the oldest to the newest. Otherwise a command that is
/// stopped could leave an older checkpoint uncommitted. The next command would commit this older checkpoint last, and
/// the older checkpoint would look like the newest checkpoint.
#[derive(Default)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of groups whose turn has ended: committed groups, and groups of failed checkpoints.
    committed: usize,
    /// Whether an error ended the run, so that no further group is committed.
    has_failed: bool,
}

/// The turn of one group. If the turn is dropped and [`Turn::committed`] was not called, an error has ended the run.
/// So if one lane panics, the other lanes do not wait forever.
pub struct Turn<'a> {
    turns: &'a Turns,
    is_committed: bool,
}

impl Turns {
    /// Begins the turn of a group.
    pub fn begin(&self) -> Turn<'_> {
        Turn { turns: self, is_committed: false }
    }

    /// Waits until the turns of this number of groups have ended. Groups are handed out in order, and no group waits
    /// for a younger group, so at least one group always continues. False if an error ended the run.
    pub fn wait(&self, groups: usize) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_waiting = |state: &mut State| state.committed < groups && !state.has_failed;
        let state = self.changed.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner);
        !state.has_failed
    }

    /// Waits for the given time. False if an error ended the run.
    pub fn pause(&self, time: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, time, |state| !state.has_failed);
        !waited.unwrap_or_else(PoisonError::into_inner).0.has_failed
    }
}

impl Turn<'_> {
    /// Ends the turn, because the group is committed or its checkpoint has failed.
    pub fn committed(mut self) {
        self.is_committed = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.is_committed {
            true => state.committed += 1,
            false => state.has_failed = true,
        }
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_waits_for_those_of_older_checkpoints_and_hears_when_one_fails() {
        let turns = Turns::default();
        assert!(turns.wait(0));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.wait(2));
            turns.begin().committed();
            turns.begin().committed();
            assert!(waiting.join().expect("no panic"));
            let waiting = scope.spawn(|| turns.wait(3));
            assert!(turns.pause(Duration::from_millis(1)), "none has failed yet");
            drop(turns.begin());
            assert!(!waiting.join().expect("no panic"));
        });
        assert!(!turns.pause(Duration::from_secs(600)));
        assert!(!turns.wait(1), "nothing is committed after a failure");
    }
}
