//! The rules that decide which checkpoints of a list are kept. The rules are similar to the rules of restic. This
//! module reads no store.

use crate::ids::{CheckpointId, shape_of};
use crate::manifest::{CheckpointState, Condition, Place};
use std::collections::{BTreeMap, BTreeSet};

/// The rules by which checkpoints are kept. A checkpoint is kept if at least one rule keeps the checkpoint. A rule
/// with the value 0 keeps no checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Keep this number of the newest checkpoints.
    pub last: u32,
    /// Keep all checkpoints that were written at most this many milliseconds before the newest checkpoint.
    pub within_ms: u64,
    /// Keep the newest checkpoint of each hour, for this number of hours. Hours without a checkpoint are not counted.
    pub hourly: u32,
    /// Keep the newest checkpoint of each day (UTC), for this number of days. Days without a checkpoint are not
    /// counted.
    pub daily: u32,
    /// Keep the newest checkpoint of each week, which begins on Monday, for this number of weeks. Weeks without a
    /// checkpoint are not counted.
    pub weekly: u32,
    /// Keep the newest checkpoint of each month, for this number of months. Months without a checkpoint are not
    /// counted.
    pub monthly: u32,
}

/// One rule during its application. The first value is the number of checkpoints that the rule may still keep. The
/// function gives the number of the hour, day, week or month of a time. The last value is the number of the hour,
/// day, week or month of the checkpoint that the rule kept last.
type Bucket = (u32, fn(i64) -> i64, Option<i64>);

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

impl Rules {
    /// Whether no rule is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Decides which checkpoints are kept. `times_unix_ms` has the time of each checkpoint in milliseconds since
    /// 1970, newest first, in the order of [`list`](crate::manifest::list). The newest checkpoint is always kept. As
    /// in restic, a rule also keeps the oldest checkpoint if the rule has kept fewer checkpoints than its number.
    pub fn keep(&self, times_unix_ms: &[i64]) -> Vec<bool> {
        let newest = times_unix_ms.first().copied().unwrap_or(0);
        let mut buckets: [Bucket; 4] = [
            (self.hourly, |ms| ms.div_euclid(HOUR_MS), None),
            (self.daily, |ms| ms.div_euclid(DAY_MS), None),
            // 1 January 1970 was a Thursday.
            (self.weekly, |ms| (ms.div_euclid(DAY_MS) + 3).div_euclid(7), None),
            (self.monthly, month_of, None),
        ];
        let mut kept = Vec::with_capacity(times_unix_ms.len());
        for (n, &time) in times_unix_ms.iter().enumerate() {
            let is_oldest = n + 1 == times_unix_ms.len();
            let age_ms = newest.saturating_sub(time);
            let is_within = self.within_ms > 0 && age_ms <= i64::try_from(self.within_ms).unwrap_or(i64::MAX);
            let mut keep = n == 0 || n < self.last as usize || is_within;
            for (left, bucket, seen) in &mut buckets {
                let of = bucket(time);
                if *left > 0 && (*seen != Some(of) || is_oldest) {
                    (*left, *seen, keep) = (*left - 1, Some(of), true);
                }
            }
            kept.push(keep);
        }
        kept
    }

    /// The checkpoints to remove. `states` are sorted, the newest first. The rules count only checkpoints that a
    /// restart uses even if the user does not name them. Therefore the rules do not count checkpoints that are bad,
    /// set aside, doubtful, found damaged, or restored too often (`too_often`). If no checkpoint is left, the rules
    /// count all complete checkpoints that are not set aside. If again no checkpoint is left, the rules count all
    /// complete checkpoints. A complete or bad checkpoint that is not counted is removed if it is older than all
    /// checkpoints of its series that the rules keep.
    ///
    /// The rules apply to each series separately. Names of one series differ only in their numbers, as
    /// `checkpoints_s1` and `checkpoints_s2`. Without this separation, many files `analysis_s7` would displace the
    /// few checkpoints from which the application can continue.
    pub fn gone(&self, states: &[CheckpointState], too_often: Option<&CheckpointId>) -> Vec<CheckpointId> {
        let is_complete = |state: &&CheckpointState| state.condition() == Condition::Complete;
        let is_taken = |state: &&CheckpointState| is_counted(state) && too_often != Some(&state.id);
        let mut good: Vec<&CheckpointState> = states.iter().filter(is_taken).collect();
        if good.is_empty() {
            good = states.iter().filter(is_complete).filter(|state| !state.is_set_aside).collect();
        }
        if good.is_empty() {
            good = states.iter().filter(is_complete).collect();
        }
        // The series of the counted checkpoints, each sorted with the newest first.
        let shapes = shared_shapes(&good);
        let series_of = |id: &CheckpointId| Some(shape_of(id.label())).filter(|shape| shapes.contains(shape));
        let mut series: BTreeMap<Option<Vec<u8>>, Vec<&CheckpointState>> = BTreeMap::new();
        for state in good {
            series.entry(series_of(&state.id)).or_default().push(state);
        }
        let mut counted = BTreeMap::new();
        for states in series.values() {
            let time = |state: &&CheckpointState| state.place.map_or(0, |place| place.written_unix_ms);
            let kept = self.keep(&states.iter().map(time).collect::<Vec<i64>>());
            counted.extend(states.iter().map(|state| &state.id).zip(kept));
        }
        // For each series, the position in `states` of the oldest checkpoint that the rules keep.
        let mut oldest_kept = BTreeMap::new();
        for (n, state) in states.iter().enumerate().filter(|(_, state)| counted.get(&state.id) == Some(&true)) {
            oldest_kept.insert(series_of(&state.id), n);
        }
        let oldest = oldest_kept.values().max().copied();
        let is_older_than_all_kept = |n: usize, id: &CheckpointId| {
            oldest_kept.get(&series_of(id)).copied().or(oldest).is_some_and(|kept| n > kept)
        };
        let goes = |(n, state): &(usize, &CheckpointState)| match (state.condition(), counted.get(&state.id)) {
            (Condition::Complete, Some(stays)) => !stays,
            (Condition::Complete | Condition::Bad, None) => is_older_than_all_kept(*n, &state.id),
            _ => false,
        };
        states.iter().enumerate().filter(goes).map(|(_, state)| state.id.clone()).collect()
    }

    /// Whether the rules would remove a complete checkpoint with this name and time, if it was saved now. `states`: as
    /// in [`Self::gone`]. False if no checkpoint counts yet.
    pub fn would_remove(&self, states: &mut Vec<CheckpointState>, id: &CheckpointId, written_unix_ms: i64) -> bool {
        let like = states.iter().find(|state| is_counted(state));
        let Some((like, place)) = like.and_then(|like| Some((like.clone(), like.place?))) else { return false };
        let place = Place { written_unix_ms, ..place };
        let at = states.iter().position(|state| state.place < Some(place)).unwrap_or(states.len());
        states.insert(at, CheckpointState { id: id.clone(), place: Some(place), ..like });
        let is_removed = self.gone(states, None).contains(id);
        states.remove(at);
        is_removed
    }
}

/// Whether a restart uses the checkpoint even if the user does not name it, so that the rules count it.
fn is_counted(state: &CheckpointState) -> bool {
    state.condition() == Condition::Complete
        && !state.is_set_aside
        && state.doubt.is_none()
        && state.found_damaged.is_none()
}

/// The shapes, with `#` for each number, of names that form a series: at least two checkpoints have this shape, and
/// the shape has a number. Checkpoints of all other shapes are one more series.
fn shared_shapes(states: &[&CheckpointState]) -> BTreeSet<Vec<u8>> {
    let mut counts: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for state in states {
        *counts.entry(shape_of(state.id.label())).or_default() += 1;
    }
    counts.into_iter().filter(|(shape, count)| *count > 1 && shape.contains(&b'#')).map(|(shape, _)| shape).collect()
}

/// Number of months since year 0. The algorithm is `civil_from_days` by Howard Hinnant.
fn month_of(unix_ms: i64) -> i64 {
    let z = unix_ms.div_euclid(DAY_MS) + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2)) * 12 + month
}

/// Parses a duration such as `2h`, `30min`, `1d12h`, `6w`, `3m` or `1y`. Returns milliseconds. As in restic, `m` is a
/// month. In durations, a month has 30 days, and a year has 365 days.
pub fn duration_ms(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a duration; write for example 45s, 30min, 2h, 1d12h, 6w, 3m (months) or 1y");
    let (mut sum, mut rest) = (0u64, text.trim());
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let after = &rest[digits..];
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let seconds: u64 = match &after[..letters] {
            "s" => 1,
            "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            "m" => 30 * 86_400,
            "y" => 365 * 86_400,
            _ => return Err(wrong()),
        };
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let part = number.checked_mul(seconds * 1000).ok_or_else(wrong)?;
        sum = sum.checked_add(part).ok_or_else(wrong)?;
        rest = &after[letters..];
    }
    match sum {
        0 => Err(wrong()),
        sum => Ok(sum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::unknown_state;
    use proptest::prelude::*;

    /// Times that lie the given number of hours before noon of a Wednesday, the 18th of a month.
    fn ago(hours: &[i64]) -> Vec<i64> {
        hours.iter().map(|h| 1_795_003_200_000 - h * HOUR_MS).collect()
    }

    fn kept(rules: &Rules, hours: &[i64]) -> Vec<i64> {
        hours.iter().zip(rules.keep(&ago(hours))).filter(|(_, kept)| *kept).map(|(h, _)| *h).collect()
    }

    #[test]
    fn each_rule_keeps_the_newest_of_its_hours_days_weeks_and_months() {
        let hours = [0, 1, 2, 11, 13, 25, 49, 24 * 8, 24 * 20, 24 * 45];
        let of = |rules: Rules| kept(&rules, &hours);
        assert_eq!(of(Rules { last: 3, ..Rules::default() }), [0, 1, 2]);
        assert_eq!(of(Rules { within_ms: 11 * HOUR_MS as u64, ..Rules::default() }), [0, 1, 2, 11]);
        assert_eq!(of(Rules { hourly: 2, ..Rules::default() }), [0, 1]);
        assert_eq!(of(Rules { daily: 3, ..Rules::default() }), [0, 13, 25 + 24]);
        assert_eq!(of(Rules { weekly: 2, ..Rules::default() }), [0, 24 * 8]);
        assert_eq!(of(Rules { monthly: 2, ..Rules::default() }), [0, 24 * 20]);
        assert_eq!(of(Rules { monthly: 9, ..Rules::default() }), [0, 24 * 20, 24 * 45], "the oldest is kept too");
        assert_eq!(of(Rules::default()), [0], "the newest checkpoint is always kept");
    }

    #[test]
    fn each_series_of_names_keeps_its_newest() {
        let gone = |keep: u32, names: &[&str]| -> Vec<String> {
            let rules = Rules { last: keep, ..Rules::default() };
            let states: Vec<CheckpointState> =
                names.iter().map(|name| unknown_state(&name.parse().expect("valid"))).collect();
            rules.gone(&states, None).iter().map(ToString::to_string).collect()
        };
        let names = ["analysis_s9", "analysis_s8", "checkpoints_s2", "analysis_s7", "checkpoints_s1"];
        assert_eq!(gone(1, &names), ["analysis_s8", "analysis_s7", "checkpoints_s1"]);
        assert_eq!(gone(2, &names), ["analysis_s7"]);
        let overwritten = ["a~2", "b", "a"];
        assert_eq!(gone(1, &overwritten), ["b", "a"], "names without a number are one series");
        let apart = ["x3f", "y7", "z4c"];
        assert_eq!(gone(1, &apart), ["y7", "z4c"], "names of which no two are alike are one series");
    }

    #[test]
    fn durations_are_read_and_nonsense_is_refused() {
        let ok = [("45s", 45), ("30min", 1800), ("2h", 7200), ("1d12h", 129_600), ("6w", 3_628_800), ("1m", 2_592_000)];
        for (text, seconds) in ok {
            assert_eq!(duration_ms(text), Ok(seconds * 1000), "{text}");
        }
        for text in ["", "h", "2", "2x", "-1h", "1.5h", "0s", "99999999999999999y", "2 h"] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_rule_removes_the_newest_and_more_is_kept_by_more_rules(
            mut hours in prop::collection::vec(0i64..5000, 1..40), last in 0u32..5, within in 0u64..100,
            numbers in prop::array::uniform4(0u32..5),
        ) {
            hours.sort_unstable();
            let [hourly, daily, weekly, monthly] = numbers;
            let rules = Rules { last, within_ms: within * HOUR_MS as u64, hourly, daily, weekly, monthly };
            let all = rules.keep(&ago(&hours));
            prop_assert!(all[0]);
            let one_by_one = [
                Rules { last, ..Rules::default() }, Rules { within_ms: rules.within_ms, ..Rules::default() },
                Rules { hourly, ..Rules::default() }, Rules { daily, ..Rules::default() },
                Rules { weekly, ..Rules::default() }, Rules { monthly, ..Rules::default() },
            ].map(|rule| rule.keep(&ago(&hours)));
            for n in 0..hours.len() {
                prop_assert_eq!(all[n], one_by_one.iter().any(|kept| kept[n]), "a checkpoint stays if one rule keeps it");
            }
            let most = last as usize + within as usize + 2 + numbers.iter().map(|n| *n as usize + 1).sum::<usize>();
            if within == 0 {
                prop_assert!(all.iter().filter(|kept| **kept).count() <= most);
            }
        }
    }
}
