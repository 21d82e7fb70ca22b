//! The time by which the files of a group are usually newer than the files of the other groups.
//!
//! In each step, the groups write their files in about the same order, and after about the same time. So two contents
//! are of one step if the time between them is the usual time, even if another step is nearer.

use super::steps::{Taken, Written};
use mcrengine::manifest::Manifest;

/// The first files of two groups are of one step only if they were written less than this part of a step apart:
/// numerator and denominator. If the application fails after one of the groups has written its first files, and begins
/// again within the same run, the first files of the other group are at least about a step newer.
const FIRSTS: (i64, i64) = (4, 5);

/// By how many milliseconds the files of this group are usually newer than the files of the other groups. The newest
/// content that the groups have in common shows this time, if it has no doubt. If there is none, the first files of
/// this run show the time. 0 if nothing is known. `step_ms`: the length of a step, if it is known.
pub(super) fn usual_lag_ms(taken: &[Taken], own: &[Manifest], written: Written<'_>, step_ms: Option<i64>) -> i64 {
    let of_run = own.iter().rev().filter(|own| own.incarnation == written.incarnation && own.doubt.is_none());
    let in_common = of_run.filter_map(|own| {
        let other = taken.iter().find(|taken| taken.id == own.checkpoint && !taken.is_doubtful)?;
        Some(own.written_unix_ms.saturating_sub(other.other_ms?))
    });
    let of_firsts = || {
        let first_ms = taken.iter().rev().find_map(|taken| taken.other_first_ms)?;
        let lag_ms = written.first_ms()?.saturating_sub(first_ms);
        let (most, of) = FIRSTS;
        let is_of_one_step = lag_ms.saturating_abs().saturating_mul(of) <= step_ms?.saturating_mul(most);
        is_of_one_step.then_some(lag_ms)
    };
    in_common.into_iter().next().or_else(of_firsts).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::fitting;
    use super::super::steps::tests::{WRITTEN, taken};
    use super::*;
    use crate::hub::tests::manifest_of;
    use mcrengine::ids::Rank;
    use mcrengine::manifest::Doubt;

    /// The contents of the group, written at these times in milliseconds. The first one is doubtful, because no earlier
    /// step showed how long a step takes.
    fn own(at_ms: &[i64]) -> Vec<Manifest> {
        let content = |(nth, at_ms): (usize, &i64)| Manifest {
            written_unix_ms: *at_ms,
            doubt: (nth == 0).then(|| Doubt::of_step(String::new())),
            ..manifest_of(&format!("restart.h5~{}", nth + 2).parse().expect("valid"))
        };
        at_ms.iter().enumerate().map(content).collect()
    }

    fn joined(others_ms: &[(bool, i64)], first_ms: i64, own_ms: &[i64], now_ms: i64) -> Option<String> {
        let all: Vec<_> = others_ms.iter().map(|(ours, ms)| (*ours, Some(*ms))).collect();
        let mut all = taken(&all);
        let own = own(own_ms);
        all.iter_mut().for_each(|taken| taken.other_first_ms = Some(others_ms[0].1));
        all[0].is_doubtful = true;
        let (ranks_ms, firsts_ms) = ([(Rank(0), now_ms)], [(Rank(0), first_ms)].into());
        let written = Written { newest_ms: now_ms, ranks_ms: &ranks_ms, firsts_ms: &firsts_ms, ..WRITTEN };
        fitting(&all, &own, now_ms, written).map(|taken| taken.id.to_string())
    }

    #[test]
    fn a_group_that_writes_two_thirds_of_a_step_after_the_others_joins_their_step() {
        // A step takes 3 s.
        let others = [(true, 0), (false, 3_000)];
        assert_eq!(joined(&others, 2_000, &[2_000], 5_000).as_deref(), Some("restart.h5~3"));
        let others = [(true, 0), (true, 3_000), (false, 6_000), (false, 9_000)];
        let own = [2_000, 5_000];
        assert_eq!(joined(&others, 2_000, &own, 8_000).as_deref(), Some("restart.h5~4"), "step 4 is as near");
        assert_eq!(joined(&others, 2_000, &own, 14_000), None, "the others have not committed step 5 yet");
        // The same groups, seen from the group that writes first.
        let others = [(true, 2_000), (false, 5_000)];
        assert_eq!(joined(&others, 0, &[0], 3_000).as_deref(), Some("restart.h5~3"));
        assert_eq!(joined(&others, 0, &[0], 6_000), None, "step 3 is nearer to step 2 of the others");
    }

    #[test]
    fn first_files_that_are_a_step_apart_do_not_show_when_the_groups_write() {
        // The application failed after the others had written, and began again. Both groups then write together.
        let others = [(true, 0), (false, 10_000), (false, 20_000)];
        assert_eq!(joined(&others, 11_000, &[11_000], 21_000).as_deref(), Some("restart.h5~4"));
    }
}
