//! Finds the checkpoint that the user means: by its ID, by the beginning of its ID, or by `latest` and `latest~N`.

use crate::advice::Advised;
use crate::output::{counted, note};
use anyhow::bail;
use mcrengine::ids::CheckpointId;
use mcrengine::manifest::{CheckpointState, Condition};

/// Maximum number of IDs in an error message.
const NAMED_MAX: usize = 5;
/// Maximum number of doubtful checkpoints that are skipped in favour of an older checkpoint without doubt.
const DOUBTFUL_SKIPPED_MAX: usize = 3;

/// The ID of the checkpoint that `asked` stands for:
///
/// - the checkpoint with exactly this ID;
/// - `latest`: the newest checkpoint that a restart would restore: a complete checkpoint that is not marked as bad,
///   that no restart has set aside, and that is not doubtful;
/// - `latest~N`: the checkpoint N places before `latest`, counted in the same way;
/// - the only checkpoint whose ID begins with `asked`. The beginning of a number does not stand for the number, so
///   `it_1` never means `it_10`. Otherwise `mcr prune --drop it_1` would delete `it_10` after `it_1` was removed.
///
/// Fails if there is no checkpoint `latest~N`, if several IDs begin with `asked`, or if `asked` ends within the number
/// of an ID. If no ID begins with `asked`, the result is `asked`, and the command reports that this ID does not exist.
/// `all` are the checkpoints of the job, newest first.
pub fn checkpoint_of(all: &[CheckpointState], asked: &CheckpointId) -> anyhow::Result<CheckpointId> {
    let good = all.iter().filter(|state| state.is_complete() && !state.is_set_aside && state.bad.is_none());
    let skips_doubtful = skips_doubtful(good.clone());
    let latest = good.filter(|state| state.doubt.is_none() || !skips_doubtful).map(|state| &state.id);
    let there = all.iter().filter(|state| !state.is_pruned).map(|state| &state.id);
    if all.iter().any(|state| state.id == *asked) {
        return Ok(asked.clone());
    }
    meant(latest, there, asked)
}

/// Whether a checkpoint of this condition cannot be restored, although nobody removed it or marked it.
pub fn is_lost(condition: Condition) -> bool {
    matches!(condition, Condition::Unreadable | Condition::Damaged | Condition::Incomplete)
}

/// Tells that a checkpoint is newer than `chosen`, but has this condition: the newest such checkpoint of `all`, which
/// are the checkpoints of the job, newest first.
pub fn tell_of_newer(all: &[CheckpointState], chosen: &CheckpointId, is_told: impl Fn(Condition) -> bool) {
    let mut newer = all.iter().take_while(|state| state.id != *chosen);
    if let Some(newer) = newer.find(|state| is_told(state.condition())) {
        let why = newer.problems.first().map(|why| format!(": {why}")).unwrap_or_default();
        // Without a manifest, only the time of the directory is known.
        let is = if newer.place.is_some() { "is" } else { "may be" };
        note(format!("{} {is} newer than {chosen}, but {}{why}", newer.id, newer.condition()));
    }
}

/// Whether a restart skips doubtful checkpoints. If all of the newest checkpoints are doubtful, the doubt concerns the
/// application, and not a single step. `states` are the checkpoints that the restart may choose, newest first.
pub fn skips_doubtful<'a>(states: impl Iterator<Item = &'a CheckpointState>) -> bool {
    states.take(DOUBTFUL_SKIPPED_MAX + 1).any(|state| state.doubt.is_none())
}

/// N if `asked` is `latest~N`, 0 if `asked` is `latest`; `None` if `asked` is anything else, or if a checkpoint has
/// this ID.
pub fn steps_before_latest(all: &[CheckpointState], asked: &CheckpointId) -> Option<usize> {
    if all.iter().any(|state| state.id == *asked) {
        return None;
    }
    before_latest(asked.as_str())
}

fn meant<'a>(
    mut latest: impl Iterator<Item = &'a CheckpointId> + Clone,
    there: impl Iterator<Item = &'a CheckpointId>,
    asked: &CheckpointId,
) -> anyhow::Result<CheckpointId> {
    if let Some(before) = before_latest(asked.as_str()) {
        let there = counted(latest.clone().count() as u64, "checkpoint");
        return match latest.nth(before) {
            Some(id) => Ok(id.clone()),
            None => bail!(
                "there is no {asked}: a restart of the job would choose from {there}; `mcr list` shows all checkpoints"
            ),
        };
    }
    let all: Vec<&CheckpointId> = there.filter(|id| id.as_str().starts_with(asked.as_str())).collect();
    let whole: Vec<&CheckpointId> =
        all.iter().copied().filter(|id| is_beginning(asked.as_str(), id.as_str())).collect();
    match (whole.as_slice(), all.as_slice()) {
        ([], []) => Ok(asked.clone()),
        ([one], _) => Ok((*one).clone()),
        ([], [one]) => Err(Advised::new(
            format!("there is no checkpoint {asked}, and a part of a number does not stand for the number in {one}"),
            "give the whole number",
        )
        .into()),
        ([], several) => Err(ambiguous(asked, several, "give the whole number")),
        (several, _) => Err(ambiguous(asked, several, "give more of the ID")),
    }
}

/// The error if several IDs begin with `asked`.
fn ambiguous(asked: &CheckpointId, ids: &[&CheckpointId], advice: &str) -> anyhow::Error {
    let named: Vec<&str> = ids.iter().take(NAMED_MAX).map(|id| id.as_str()).collect();
    let more = if ids.len() > NAMED_MAX { ", ..." } else { "" };
    let what = format!("{asked} is the beginning of {} checkpoints ({}{more})", ids.len(), named.join(", "));
    Advised::new(what, advice).into()
}

/// The number of `latest~N`; 0 for `latest`.
fn before_latest(asked: &str) -> Option<usize> {
    match asked.strip_prefix("latest")? {
        "" => Some(0),
        rest => rest.strip_prefix('~').filter(|n| n.bytes().all(|b| b.is_ascii_digit())).and_then(|n| n.parse().ok()),
    }
}

fn is_beginning(beginning: &str, id: &str) -> bool {
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let rest = id.strip_prefix(beginning);
    rest.is_some_and(|rest| !(is_digit(beginning.chars().last()) && is_digit(rest.chars().next())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(asked: &str) -> Result<String, String> {
        let ids = |names: &[&str]| -> Vec<CheckpointId> { names.iter().map(|n| n.parse().expect("valid")).collect() };
        let (latest, all) = (ids(&["run.it_12", "run.it_10"]), ids(&["run.it_14", "run.it_12", "run.it_10", "end"]));
        let found = meant(latest.iter(), all.iter(), &asked.parse().expect("valid"));
        found.map(|id| id.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn latest_counts_the_checkpoints_that_a_restart_would_choose() {
        assert_eq!(find("latest").as_deref(), Ok("run.it_12"));
        assert_eq!(find("latest~1").as_deref(), Ok("run.it_10"));
        assert_eq!(find("latest~0").as_deref(), Ok("run.it_12"));
        assert!(find("latest~2").expect_err("too far").contains("choose from 2 checkpoints;"));
        let asked = "latest~1".parse().expect("valid");
        let only: CheckpointId = "only".parse().expect("valid");
        let error = meant([&only].into_iter(), [&only].into_iter(), &asked).expect_err("too far");
        assert!(error.to_string().contains("choose from 1 checkpoint;"), "{error}");
        assert_eq!(find("latest~x").as_deref(), Ok("latest~x"), "an ID like others");
    }

    #[test]
    fn the_beginning_of_one_id_stands_for_it_and_of_several_for_none() {
        assert_eq!(find("e").as_deref(), Ok("end"));
        let error = find("run.").expect_err("three");
        assert!(error.contains("the beginning of 3 checkpoints (run.it_14, run.it_12, run.it_10)"), "{error}");
    }

    #[test]
    fn the_beginning_of_a_number_never_stands_for_the_number_and_the_error_names_the_checkpoints() {
        let error = find("run.it_1").expect_err("three");
        let ids = "run.it_14, run.it_12, run.it_10";
        assert_eq!(error, format!("run.it_1 is the beginning of 3 checkpoints ({ids}); give the whole number"));
        let only: CheckpointId = "melt.1700".parse().expect("valid");
        let asked = "melt.17".parse().expect("valid");
        let error = meant([&only].into_iter(), [&only].into_iter(), &asked).expect_err("a part of a number");
        assert!(error.to_string().contains("there is no checkpoint melt.17,"), "{error}");
        assert!(error.to_string().ends_with("in melt.1700; give the whole number"), "{error}");
        assert_eq!(find("run.it_9").as_deref(), Ok("run.it_9"), "no ID begins with it");
    }
}
