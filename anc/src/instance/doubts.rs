//! The reasons why it is uncertain whether the files of a content are of one step.

use super::in_step::ranks_ms;
use super::steps::{ONE_STEP_MS, Taken, Written, reuse_of, step_ms};
use mcrengine::ids::{CheckpointId, Grouping};
use mcrengine::manifest::{Doubt, Manifest};

/// The reason why it is uncertain whether the files of a first content belong to one step. There is doubt if the
/// application may overwrite the name, no agent was watching while files were written, and the ranks wrote their files
/// far apart. `None` if there is no doubt.
pub(super) fn doubt_of(label: &CheckpointId, written: Written<'_>) -> Option<Doubt> {
    let unseen = written.unseen.filter(|_| !written.is_of_series)?;
    let reuse = reuse_of(label, &[], written)?;
    let oldest_ms = written.ranks_ms.iter().map(|(_, ms)| *ms).min()?;
    let apart_ms = written.newest_ms.saturating_sub(oldest_ms);
    (written.ranks_ms.len() > 1 && apart_ms >= ONE_STEP_MS).then(|| {
        Doubt::of_step(format!(
            "{reuse}; the files of {unseen} were written before an agent watched them, and the ranks wrote their \
             files {:.1} s apart: it is uncertain whether the files are of one step",
            apart_ms as f64 / 1000.0
        ))
    })
}

/// The reason why it is uncertain whether a group belongs to the step of the other groups. There is doubt if the
/// application may overwrite the name, and this run has not yet shown the length of a step, because then a node may
/// have missed a step. If an earlier run has shown the length (`usual_ms`), groups that wrote their files within half
/// a step are of one step. `None` if there is no doubt.
pub(super) fn doubt_of_joining(
    label: &CheckpointId,
    joined: &Taken,
    taken: &[Taken],
    (written, usual_ms): (Written<'_>, Option<i64>),
) -> Option<Doubt> {
    let ours_ms = written.newest_ms;
    let apart_ms = ours_ms.saturating_sub(joined.other_ms?).saturating_abs();
    let is_first = taken.iter().filter(|taken| taken.other_ms.is_some()).count() == 1;
    let reuse = reuse_of(label, &[], written).filter(|_| !written.is_of_series)?;
    let of_one_step_ms = usual_ms.map_or(ONE_STEP_MS, |step_ms| (step_ms / 2).max(ONE_STEP_MS));
    (is_first && apart_ms > of_one_step_ms).then(|| {
        Doubt::of_step(format!(
            "{reuse}, and how long a step of this run takes is not known yet; two groups wrote their files {:.1} s \
             apart: it is uncertain whether the files are of one step",
            apart_ms as f64 / 1000.0
        ))
    })
}

/// The reason why it is uncertain whether this group's files belong to the step of the other groups. There is doubt
/// if the modification times of the files are at least half a step before the time of writing. Copies have such times
/// if a program copied the times of the originals too (`cp -p`, `rsync -t`). `None` if there is no doubt.
pub(super) fn doubt_of_times(
    label: &CheckpointId,
    grouping: Grouping,
    own: &[Manifest],
    written: Written<'_>,
) -> Option<Doubt> {
    let (rank, set_back_ms) = written.set_back?;
    let step_ms = step_ms(own, written.newest_ms).filter(|step_ms| *step_ms > 0)?;
    let reuse = reuse_of(label, own, written)?;
    (grouping.groups() > 1 && set_back_ms >= step_ms / 2).then(|| {
        Doubt::of_step(format!(
            "{reuse}; the modification times of the files of {rank} are {:.1} s earlier than the files' last change, \
             as `cp -p` and `rsync -t` leave them, and a step takes about {:.1} s: it is uncertain whether the files \
             of all groups are of one step",
            set_back_ms as f64 / 1000.0,
            step_ms as f64 / 1000.0
        ))
    })
}

/// The reason why it is uncertain whether the files of all ranks are of one step. In the first content of this run or
/// of the first run, ranks or groups wrote their files a third of a step apart or more, and now they wrote their files
/// in another order. Then the files of two steps may be nearer in time than the files of one step. `None` if there is
/// no doubt.
pub(super) fn doubt_of_lag(
    label: &CheckpointId,
    own: &[Manifest],
    (taken, joined): (&[Taken], Option<&Taken>),
    written: Written<'_>,
) -> Option<Doubt> {
    let is_of_run = |own: &&Manifest| own.incarnation == written.incarnation;
    // If the length of a step is known from earlier runs, the first content of this run may have files of two steps.
    let firsts = [own.iter().find(is_of_run), own.iter().find(|own| !is_of_run(own) && own.doubt.is_none())];
    let lags = firsts.into_iter().flatten().filter_map(|first| Some((lag_ms(first, (taken, joined), written)?, first)));
    let (lag_ms, first) = lags.max_by_key(|(lag_ms, _)| *lag_ms)?;
    let step_ms = step_ms(own, written.newest_ms).into_iter().chain(written.interval_ms()).min()?;
    // If contents are missing, the time between two contents is longer than a step.
    let is_long = lag_ms > ONE_STEP_MS && lag_ms.saturating_mul(3) >= step_ms && lag_ms < step_ms;
    let reuse = reuse_of(label, own, written)?;
    is_long.then(|| {
        Doubt::of_step(format!(
            "{reuse}; the ranks wrote the files of {} {:.1} s apart, and now in another order: it is uncertain \
             whether the files are of one step",
            first.checkpoint,
            lag_ms as f64 / 1000.0
        ))
    })
}

/// The time from the first to the last files of an earlier content, in milliseconds, if other ranks or groups were the
/// last ones then.
fn lag_ms(first: &Manifest, (taken, joined): (&[Taken], Option<&Taken>), written: Written<'_>) -> Option<i64> {
    let ranks_ms = ranks_ms(first);
    let last_now = written.ranks_ms.iter().max_by_key(|(_, ms)| *ms)?.0;
    let (last_then, last_ms) = ranks_ms.iter().max_by_key(|(_, ms)| **ms)?;
    let of_ranks_ms =
        ranks_ms.values().min().filter(|_| last_now != *last_then).map(|first_ms| last_ms.saturating_sub(*first_ms));
    let others_then = taken.iter().find(|taken| taken.id == first.checkpoint).and_then(|taken| taken.other_ms);
    let of_groups_ms = others_then.zip(joined.and_then(|joined| joined.other_ms)).and_then(|(then_ms, now_ms)| {
        let then_ms = then_ms.saturating_sub(first.written_unix_ms);
        let now_ms = now_ms.saturating_sub(written.newest_ms);
        (then_ms.signum() != now_ms.signum()).then_some(then_ms.saturating_abs())
    });
    of_ranks_ms.into_iter().chain(of_groups_ms).max()
}

/// The reason why it is uncertain whether this group's files belong to the step of the other groups. There is doubt if
/// the time from the files of the other groups to the files of this group differs by a third of a step or more from
/// this time in the first or in the last content that they have in common. Nodes that do not wait for each other drift
/// apart, until the files of different steps are nearest in time. Then the next contents are doubtful, too, until this
/// time differs from that of the last content without doubt by less than a sixth of a step. `None` if there is no
/// doubt.
pub(super) fn doubt_of_drift(
    label: &CheckpointId,
    own: &[Manifest],
    (taken, joined): (&[Taken], Option<&Taken>),
    written: Written<'_>,
) -> Option<Doubt> {
    let now_ms = written.newest_ms.saturating_sub(joined?.other_ms?);
    let change_ms = |then_ms: i64| now_ms.saturating_sub(then_ms).saturating_abs();
    let of_run = own.iter().filter(|own| own.incarnation == written.incarnation);
    let before: Vec<(i64, bool)> = of_run
        .filter_map(|own| {
            let other = taken.iter().find(|taken| taken.id == own.checkpoint)?;
            let is_doubtful = own.doubt.is_some() || other.is_doubtful;
            Some((own.written_unix_ms.saturating_sub(other.other_ms?), is_doubtful))
        })
        .collect();
    let (first_ms, (last_ms, is_doubtful)) = (before.first()?.0, *before.last()?);
    let sure_ms = before.iter().rev().find(|(_, is_doubtful)| !is_doubtful).map(|(ms, _)| *ms);
    let step_ms = step_ms(own, written.newest_ms).filter(|step_ms| *step_ms > 0)?;
    let is_still = |sure_ms: &i64| is_doubtful && change_ms(*sure_ms).saturating_mul(6) >= step_ms;
    let is_changed = |then_ms: &i64| {
        let change_ms = change_ms(*then_ms);
        change_ms >= DRIFT_MIN_MS && change_ms.saturating_mul(3) >= step_ms
    };
    let last_ms = sure_ms.unwrap_or(last_ms);
    let then_ms = sure_ms.filter(is_still).or_else(|| [last_ms, first_ms].into_iter().find(is_changed))?;
    reuse_of(label, own, written).map(|reuse| {
        Doubt::of_step(format!(
            "{reuse}; the files of this group differ by {:+.1} s from those of the other groups, and by {:+.1} s in \
             an earlier step, and a step takes about {:.1} s: it is uncertain whether the files of all groups are of \
             one step",
            now_ms as f64 / 1000.0,
            then_ms as f64 / 1000.0,
            step_ms as f64 / 1000.0
        ))
    })
}

/// A smaller change of the time between the files of two groups is no reason for doubt.
const DRIFT_MIN_MS: i64 = 500;

#[cfg(test)]
mod tests {
    use super::super::in_step::tests::content;
    use super::super::steps::tests::{WRITTEN, taken};
    use super::*;
    use crate::hub::tests::manifest_of;
    use mcrengine::ids::Rank;

    /// A content of this group, written at this time in milliseconds.
    fn own(nth: usize, at_ms: i64) -> Manifest {
        let id = format!("restart.h5~{}", nth + 2).parse().expect("valid");
        Manifest { written_unix_ms: at_ms, ..manifest_of(&id) }
    }

    #[test]
    fn ranks_that_wrote_in_another_order_in_the_first_run_are_doubtful_after_a_restart() {
        // A step takes 3 s. In the first run, rank 1 wrote its files 2 s after rank 0.
        let of_first_run = [content(1, [0, 2_000]), content(2, [3_000, 5_000])];
        let doubt = |ranks_ms: [i64; 2], of_first_run: &[Manifest]| {
            let ranks_ms = [(Rank(0), ranks_ms[0]), (Rank(1), ranks_ms[1])];
            let newest_ms = ranks_ms[0].1.max(ranks_ms[1].1);
            let written = Written { incarnation: 1, newest_ms, ranks_ms: &ranks_ms, ..WRITTEN };
            doubt_of_lag(&"restart.h5".parse().expect("valid"), of_first_run, (&[], None), written).is_some()
        };
        assert!(doubt([33_000, 32_000], &of_first_run), "step 11 of rank 0 and step 10 of rank 1");
        assert!(!doubt([30_000, 32_000], &of_first_run), "the same order");
        let quick = [content(1, [0, 100]), content(2, [3_000, 3_100])];
        assert!(!doubt([33_000, 32_900], &quick), "no rank was late");
        let doubtful = of_first_run.map(|own| Manifest { doubt: Some(Doubt::of_step(String::new())), ..own });
        assert!(!doubt([33_000, 32_000], &doubtful), "the order of a doubtful content is not known");
    }

    #[test]
    fn groups_that_drift_apart_are_doubtful_when_the_next_step_of_one_is_nearer() {
        // The group writes every 6 s and the other group every 8 s.
        let doubt = |others_ms: [i64; 3], ours_ms: [i64; 3]| {
            let all = taken(&others_ms.map(|ms| (false, Some(ms))));
            let before: Vec<Manifest> = (0..2).map(|nth| own(nth, ours_ms[nth])).collect();
            let written = Written { newest_ms: ours_ms[2], ..WRITTEN };
            doubt_of_drift(&"restart.h5".parse().expect("valid"), &before, (&all, all.last()), written).is_some()
        };
        assert!(doubt([2_000, 10_000, 10_000], [0, 6_000, 12_000]), "step 2 of the others, step 3 of this group");
        assert!(!doubt([2_000, 8_000, 14_000], [0, 6_000, 12_000]), "the others write 2 s later in each step");
        assert!(!doubt([2_000, 8_500, 14_500], [0, 6_000, 12_000]), "a step took a little longer");
        assert!(doubt([2_000, 6_000, 10_000], [0, 6_000, 12_000]), "the others are now before this group");
        // After a doubtful content, the next one is doubtful unless the time is again that of the content before.
        let doubt = |others_ms: [i64; 3]| {
            let mut all = taken(&others_ms.map(|ms| (false, Some(ms))));
            all[1].is_doubtful = true;
            let before = [own(0, 0), own(1, 6_000)];
            let written = Written { newest_ms: 12_000, ..WRITTEN };
            doubt_of_drift(&"restart.h5".parse().expect("valid"), &before, (&all, all.last()), written).is_some()
        };
        assert!(doubt([1_000, 4_800, 12_000]) && !doubt([1_000, 4_800, 12_900]));
    }
}
