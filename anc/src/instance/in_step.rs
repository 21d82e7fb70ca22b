//! Compares the times at which the ranks of a group wrote their files with these times in an earlier content.
//!
//! In each step, the ranks write their files in about the same order, and after about the same time. If one rank has
//! files of step 5 and another rank has files of step 4, the time between their files differs by a whole step from this
//! time in an earlier content. This difference does not depend on how late a rank writes in each step. So a late rank
//! does not look like a rank with files of the step before, even if the late rank writes nearer to the next step.

use super::steps::{ONE_STEP_MS, STEPS_MISSED_MAX, Written, reuse_of, usual_step_ms};
use mcrengine::ids::{CheckpointId, Rank};
use mcrengine::manifest::{Doubt, Manifest};
use std::collections::BTreeMap;

/// How far the files of a group's ranks are behind, compared with an earlier content.
pub(super) struct InStep<'a> {
    /// The earlier content. `None`: the first files of this run, which may not be committed.
    then: Option<&'a CheckpointId>,
    is_of_run: bool,
    /// A step is not shorter, in milliseconds.
    step_ms: i64,
    /// For each rank, the time by which its files are too old, in milliseconds. The rank that is most ahead has 0.
    behind_ms: BTreeMap<Rank, i64>,
    /// Two ranks that wrote a different number of contents since, with these numbers.
    uneven: Option<[(Rank, i64); 2]>,
}

impl<'a> InStep<'a> {
    /// Compares with the newest content of this run without doubt. If there is none, compares with the first files that
    /// the ranks wrote in this run, or with a content of an earlier run. `own` has the contents that this group
    /// committed under the name, the oldest first. `None` if there is no such content with files of all ranks, or if
    /// the length of a step is not known.
    pub(super) fn of(own: &'a [Manifest], written: Written<'_>) -> Option<Self> {
        let step_ms = shortest_step_ms(own, written)?;
        let sure = || own.iter().rev().filter(|own| own.doubt.is_none());
        let of_run = sure().find(|own| own.incarnation == written.incarnation);
        let has_firsts = written.ranks_ms.iter().all(|(rank, _)| written.firsts_ms.contains_key(rank));
        let (then, then_ms) = match of_run {
            Some(then) => (Some(then), ranks_ms(then)),
            None if has_firsts => (None, written.firsts_ms.clone()),
            None => sure().next().map(|then| (Some(then), ranks_ms(then)))?,
        };
        let is_of_run = then.is_none_or(|then| then.incarnation == written.incarnation);
        let since = |(rank, now_ms): &(Rank, i64)| Some((*rank, now_ms.saturating_sub(*then_ms.get(rank)?)));
        let since_ms = written.ranks_ms.iter().map(since).collect::<Option<BTreeMap<_, _>>>()?;
        let most_ms = since_ms.values().copied().max()?;
        let uneven = uneven(&since_ms, written).filter(|_| is_of_run);
        let behind_ms = since_ms.into_iter().map(|(rank, ms)| (rank, most_ms.saturating_sub(ms))).collect();
        Some(Self { then: then.map(|then| &then.checkpoint), is_of_run, step_ms, behind_ms, uneven })
    }

    /// Whether the files of a rank belong to the step of the rank that is most ahead.
    pub(super) fn has(&self, rank: Rank) -> bool {
        let is_in_time = |behind_ms: &i64| behind_ms.saturating_mul(2) < self.step_ms;
        self.uneven.is_none() && self.behind_ms.get(&rank).is_some_and(is_in_time)
    }

    /// The ranks with files of an earlier step, and the reasons. New files are awaited for two steps. If the ranks
    /// write at other times since then, the files are taken, and are doubtful.
    pub(super) fn awaited(&self, written: Written<'_>) -> Vec<(Rank, String)> {
        let may_wait = self.is_of_run && !written.is_final && !written.is_of_one_agent;
        if !may_wait || written.refused_ms >= self.step_ms.saturating_mul(2) {
            return Vec::new();
        }
        let why = |behind_ms: i64| {
            format!(
                "compared with {}, its files were written {:.1} s too early: they are of an earlier step; new files \
                 are awaited",
                self.then(),
                behind_ms as f64 / 1000.0
            )
        };
        let late = self.behind_ms.iter().filter(|(_, behind_ms)| self.is_late(**behind_ms));
        late.map(|(rank, behind_ms)| (*rank, why(*behind_ms))).collect()
    }

    fn then(&self) -> &str {
        self.then.map_or("the first files of this run", CheckpointId::as_str)
    }

    fn is_late(&self, behind_ms: i64) -> bool {
        behind_ms >= LATE_MIN_MS && behind_ms.saturating_mul(2) >= self.step_ms
    }

    fn doubt(&self, reuse: &str) -> Option<Doubt> {
        let then = self.then();
        if let Some([(fewer, few), (more, many)]) = self.uneven {
            return Some(Doubt::of_step(format!(
                "{reuse}; by the times of the files, {fewer} wrote {few} times since {then}, and {more} {many} times: \
                 it is uncertain whether the files are of one step"
            )));
        }
        let (rank, behind_ms) = self.behind_ms.iter().max_by_key(|(_, ms)| **ms)?;
        self.is_late(*behind_ms).then(|| {
            Doubt::of_step(format!(
                "{reuse}; compared with {then}, {rank} wrote its files {:.1} s too early, and a step may take only \
                 {:.1} s: it is uncertain whether the files are of one step",
                *behind_ms as f64 / 1000.0,
                self.step_ms as f64 / 1000.0
            ))
        })
    }
}

/// Two ranks that wrote a different number of contents, as the length of their last steps shows. Only ranks are
/// compared whose steps have similar lengths, because some ranks may write several times in a step. After many steps,
/// the length of the last step does not show their number. `since_ms`: the time since an earlier content.
fn uneven(since_ms: &BTreeMap<Rank, i64>, written: Written<'_>) -> Option<[(Rank, i64); 2]> {
    let counted = written.intervals_ms.iter().filter_map(|(rank, step_ms)| {
        let since_ms = *since_ms.get(rank)?;
        let steps = since_ms.saturating_add(step_ms / 2).checked_div(*step_ms)?;
        let rest_ms = since_ms.saturating_sub(steps.saturating_mul(*step_ms)).saturating_abs();
        let is_clear = rest_ms <= step_ms / 6 && *step_ms > ONE_STEP_MS && steps <= STEPS_MISSED_MAX;
        is_clear.then_some((steps, *rank, *step_ms))
    });
    let counted: Vec<_> = counted.collect();
    let ((few, fewer, a_ms), (many, more, b_ms)) = (counted.iter().min()?, counted.iter().max()?);
    let are_alike = (a_ms.min(b_ms)).saturating_mul(3) >= a_ms.max(b_ms).saturating_mul(2);
    (few < many && are_alike).then_some([(*fewer, *few), (*more, *many)])
}

/// The reason why it is uncertain whether the files of all ranks are of one step. There is doubt if a rank is behind by
/// half a step or more, or if ranks wrote a different number of contents since an earlier content. If no earlier
/// content shows at which times the ranks write, there is doubt if the application has already written its files again,
/// and the ranks wrote their files far apart. `None` if there is no doubt.
pub(super) fn doubt_of_rank(label: &CheckpointId, own: &[Manifest], written: Written<'_>) -> Option<Doubt> {
    let reuse = reuse_of(label, own, written).filter(|_| !written.is_of_one_agent)?;
    if let Some(in_step) = InStep::of(own, written) {
        return in_step.doubt(&reuse);
    }
    let interval_ms = written.interval_ms().filter(|_| own.iter().all(|own| own.doubt.is_some()))?;
    let oldest_ms = written.ranks_ms.iter().map(|(_, ms)| *ms).min()?;
    let apart_ms = written.newest_ms.saturating_sub(oldest_ms);
    (apart_ms > ONE_STEP_MS && apart_ms.saturating_mul(AMBIGUOUS) >= interval_ms).then(|| {
        Doubt::of_step(format!(
            "{reuse}; files were written again before the first checkpoint was committed, and the ranks wrote their \
             files {:.1} s apart: it is uncertain whether the files are of one step",
            apart_ms as f64 / 1000.0
        ))
    })
}

/// A rank that is behind by a shorter time is not late, in milliseconds.
const LATE_MIN_MS: i64 = 400;
/// Ranks wrote far apart if this number of such times is longer than a step.
const AMBIGUOUS: i64 = 5;

/// When each rank wrote its newest file, in milliseconds since 1970.
pub(super) fn ranks_ms(of: &Manifest) -> BTreeMap<Rank, i64> {
    let mut ranks_ms = BTreeMap::new();
    for file in of.files.iter().filter(|file| file.kind.is_regular()) {
        let newest_ms = ranks_ms.entry(file.rank).or_insert(i64::MIN);
        *newest_ms = (*newest_ms).max(file.modified_ns / 1_000_000);
    }
    ranks_ms
}

/// The shortest time that a step may take, in milliseconds. If only one content of this run is committed, steps may
/// have been missed since. `None` if nothing is known.
fn shortest_step_ms(own: &[Manifest], written: Written<'_>) -> Option<i64> {
    let last = own.last().filter(|last| last.incarnation == written.incarnation);
    let since_last_ms = last.map(|last| written.newest_ms.saturating_sub(last.written_unix_ms));
    let known = [usual_step_ms(own), written.interval_ms()].into_iter().flatten().min();
    known.or(since_last_ms.map(|since_last_ms| since_last_ms / STEPS_MISSED_MAX)).filter(|step_ms| *step_ms > 0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::steps::tests::WRITTEN;
    use super::*;
    use crate::hub::tests::manifest_of;
    use mcrengine::header::FileKind;
    use mcrengine::ids::{Digest, FilePath};
    use mcrengine::manifest::ManifestFile;

    /// A content of two ranks, and the times of their files in milliseconds.
    pub(in super::super) fn content(nth: u32, ranks_ms: [i64; 2]) -> Manifest {
        let id: CheckpointId = format!("restart.h5~{nth}").parse().expect("valid");
        let file = |(rank, ms): (u32, i64)| ManifestFile {
            path: FilePath::new(format!("restart.{rank}").as_bytes()).expect("valid"),
            rank: Rank(rank),
            bytes: 1,
            kind: FileKind::Regular,
            modified_ns: ms * 1_000_000,
            digest: Digest([0; 32]),
        };
        let files = [(0, ranks_ms[0]), (1, ranks_ms[1])].map(file).into();
        Manifest { files, written_unix_ms: ranks_ms[0].max(ranks_ms[1]), ..manifest_of(&id) }
    }

    fn doubt(own: &[Manifest], now_ms: [i64; 2], interval_ms: Option<i64>) -> bool {
        doubt_with(own, now_ms, &interval_ms.map_or(vec![], |ms| vec![(Rank(0), ms), (Rank(1), ms)]))
    }

    fn doubt_with(own: &[Manifest], now_ms: [i64; 2], intervals_ms: &[(Rank, i64)]) -> bool {
        let ranks_ms = [(Rank(0), now_ms[0]), (Rank(1), now_ms[1])];
        let written = Written { newest_ms: now_ms[0].max(now_ms[1]), ranks_ms: &ranks_ms, intervals_ms, ..WRITTEN };
        doubt_of_rank(&"restart.h5".parse().expect("valid"), own, written).is_some()
    }

    #[test]
    fn a_rank_that_is_a_step_behind_is_doubtful_even_if_steps_were_missed() {
        // A step takes 3 s, and rank 1 writes its files 1.5 s or 0.1 s after rank 0.
        for late_ms in [1_500, 100] {
            let first = [content(1, [0, late_ms])];
            for missed in 1..8 {
                let [before, now] = [missed * 3_000, (missed + 1) * 3_000];
                for interval_ms in [None, Some(3_000)] {
                    assert!(doubt(&first, [now, before + late_ms], interval_ms), "{missed} missed, {late_ms}");
                    assert!(!doubt(&first, [now, now + late_ms], interval_ms), "{missed} missed, {late_ms}");
                }
            }
        }
        let known = [content(1, [0, 100]), content(2, [3_000, 3_100])];
        assert!(doubt(&known, [120_000, 117_100], None), "many steps were missed");
        assert!(!doubt(&known, [120_000, 121_100], None), "the rank needed a second more");
    }

    #[test]
    fn ranks_that_do_not_wait_for_each_other_are_doubtful_when_one_has_written_more_often() {
        // Rank 0 writes every 1.9 s, and rank 1 every 1.5 s.
        let at = |step_0: i64, step_1: i64| [step_0 * 1_900, step_1 * 1_500];
        let then = [content(1, at(0, 0)), content(2, at(1, 1))];
        let doubt = |steps: [i64; 2]| doubt_with(&then, at(steps[0], steps[1]), &[(Rank(0), 1_900), (Rank(1), 1_500)]);
        assert!(!doubt([2, 2]));
        assert!(doubt([3, 4]) && doubt([4, 5]) && doubt([8, 10]));
        // If a rank writes two times in each step, the numbers show nothing.
        assert!(!doubt_with(&then, [4_900, 4_500], &[(Rank(0), 3_000), (Rank(1), 1_500)]));
    }

    #[test]
    fn files_of_an_earlier_step_are_awaited_for_two_steps_also_before_the_first_commit() {
        // Rank 1 writes 2.7 s after rank 0, and the next step begins 0.3 s later.
        let firsts_ms = [(Rank(0), 0), (Rank(1), 2_700)].into();
        let intervals_ms = [(Rank(0), 3_000)];
        let awaited = |now_ms: [i64; 2], refused_ms: i64| {
            let ranks_ms = [(Rank(0), now_ms[0]), (Rank(1), now_ms[1])];
            let newest_ms = now_ms[0].max(now_ms[1]);
            let written = Written {
                newest_ms,
                ranks_ms: &ranks_ms,
                intervals_ms: &intervals_ms,
                firsts_ms: &firsts_ms,
                refused_ms,
                ..WRITTEN
            };
            let in_step = InStep::of(&[], written).expect("the length of a step is known");
            let label = "restart.h5".parse().expect("valid");
            let awaited: Vec<u32> = in_step.awaited(written).into_iter().map(|(rank, _)| rank.0).collect();
            (awaited, doubt_of_rank(&label, &[], written).is_some())
        };
        assert_eq!(awaited([3_000, 2_700], 0), (vec![1], true), "step 2 of rank 0, and step 1 of rank 1");
        assert_eq!(awaited([3_000, 2_700], 6_000), (vec![], true), "new files were awaited for two steps");
        assert_eq!(awaited([3_000, 5_700], 0), (vec![], false));
    }

    #[test]
    fn ranks_that_wrote_far_apart_before_the_first_commit_are_doubtful_if_files_were_already_written_again() {
        assert!(doubt(&[], [3_000, 1_500], Some(3_000)) && doubt(&[], [3_000, 4_500], Some(3_000)));
        assert!(!doubt(&[], [3_000, 4_500], None), "each file was written once");
        assert!(!doubt(&[], [3_000, 4_500], Some(60_000)), "the pause is far longer");
        let doubtful = Manifest { doubt: Some(Doubt::of_step(String::new())), ..content(1, [0, 1_500]) };
        assert!(doubt(&[doubtful], [6_000, 4_500], Some(3_000)), "no content is without doubt");
    }
}
