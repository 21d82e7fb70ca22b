//! Prefers restart files to outputs, if the checkpoints of a job are of both kinds. A layout may place both, as
//! `restart/rst_006` and `output/fields_008`, and an application cannot continue from its outputs.

use mcr_cnc::layout::pointers::is_restart_name;
use mcrengine::ids::shape_of;
use mcrengine::manifest::{CheckpointState, Place};

/// The newest restart files may be this number of half intervals old. The interval is the time between them and the
/// restart files before.
const HALF_INTERVALS_MAX: i64 = 3;

/// Moves the restart files to the begin, if the newest checkpoints have names of outputs, and the application still
/// writes restart files. Returns the checkpoints that were before the newest restart files. `newest_first`: complete
/// checkpoints.
pub fn restart_files_first<'a>(newest_first: &mut Vec<&'a CheckpointState>) -> Vec<&'a CheckpointState> {
    let named: Vec<_> = newest_first.iter().map(|state| (state.id.label(), state.place)).collect();
    let outputs = newest_first[..outputs_before(&named)].to_vec();
    if !outputs.is_empty() {
        newest_first.sort_by_key(|state| !is_restart(state.id.label())); // the sort is stable
    }
    outputs
}

fn is_restart(label: &str) -> bool {
    is_restart_name(label.as_bytes())
}

/// The number of outputs before the newest restart files; 0 if the newest checkpoint is to be restored.
fn outputs_before(newest_first: &[(&str, Option<Place>)]) -> usize {
    let mut of_restart = newest_first.iter().enumerate().filter(|(_, (label, _))| is_restart(label));
    let (Some((nth, (last, at))), Some((_, (before, earlier)))) = (of_restart.next(), of_restart.next()) else {
        return 0;
    };
    let (Some(newest), Some(at), Some(earlier)) = (newest_first[0].1, at, earlier) else { return 0 };
    let is_one_run = newest.incarnation == at.incarnation && at.incarnation == earlier.incarnation;
    let since_ms = newest.written_unix_ms.saturating_sub(at.written_unix_ms);
    let interval_ms = at.written_unix_ms.saturating_sub(earlier.written_unix_ms);
    let are_written = since_ms.saturating_mul(2) <= interval_ms.saturating_mul(HALF_INTERVALS_MAX);
    if is_one_run && are_written && shape_of(last) == shape_of(before) { nth } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_files_are_preferred_to_outputs_while_the_application_writes_them() {
        let outputs = |all: &[(&'static str, i64)]| {
            let place = |at: i64| Some(Place { incarnation: 1, written_unix_ms: at });
            outputs_before(&all.iter().rev().map(|(label, at)| (*label, place(*at))).collect::<Vec<_>>())
        };
        let run = [("f_1", 1), ("f_3", 30), ("rst_3", 31), ("f_6", 60), ("rst_6", 61), ("f_7", 70), ("f_8", 80)];
        assert_eq!(outputs(&run), 2);
        assert_eq!(outputs(&run[..5]), 0, "the newest checkpoint is a restart file");
        assert_eq!(outputs(&run[..4]), 0, "one restart file shows no interval");
        let ended = [("rst_1", 10), ("rst_2", 20), ("state_3", 30), ("state_9", 90)];
        assert_eq!(outputs(&ended), 0, "the application writes no more restart files");
        assert_eq!(outputs(&[("a_1", 1), ("b_2", 2), ("a_3", 3)]), 0);
    }
}
