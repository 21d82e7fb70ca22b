//! How a store grows with an interval and with rules of retention.

use mcrengine::retention::Rules;

const DAY_MS: f64 = 86_400_000.0;
/// Maximum number of checkpoints to which the rules are applied, which limits memory and time.
const TRIED_MAX: f64 = 200_000.0;

/// Number of checkpoints on disk after a number of days. `None` if there are rules, and more than `TRIED_MAX`
/// checkpoints would be written in this time.
pub fn checkpoints_after(days: u32, interval_ms: f64, rules: &Rules) -> Option<u64> {
    let count = (f64::from(days) * DAY_MS / interval_ms).floor().max(1.0);
    if rules.is_empty() {
        return Some(count as u64);
    }
    if count > TRIED_MAX {
        return None;
    }
    let count = count as u32;
    // 1 January 2001 is a Monday, and the first day of a month.
    const BEGIN_UNIX_MS: f64 = 978_307_200_000.0;
    let time = |nth: u32| (BEGIN_UNIX_MS + f64::from(nth) * interval_ms) as i64;
    let times: Vec<i64> = (1..=count).rev().map(time).collect();
    Some(rules.keep(&times).into_iter().filter(|kept| *kept).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: f64 = 3_600_000.0;

    #[test]
    fn without_rules_a_store_grows_for_ever_and_with_rules_it_does_not() {
        assert_eq!(checkpoints_after(30, HOUR_MS, &Rules::default()), Some(720));
        let last = Rules { last: 3, ..Rules::default() };
        assert_eq!([1, 7, 30].map(|days| checkpoints_after(days, HOUR_MS, &last)), [Some(3); 3]);
        let daily = Rules { last: 2, daily: 7, ..Rules::default() };
        let after = [1, 30].map(|days| checkpoints_after(days, HOUR_MS, &daily));
        assert!(after[0] < after[1] && after[1].is_some_and(|count| (7..=8).contains(&count)), "{after:?}");
    }

    #[test]
    fn a_number_of_checkpoints_that_is_too_large_is_unknown() {
        let rules = Rules { last: 3, ..Rules::default() };
        assert_eq!(checkpoints_after(30, 1.0, &rules), None);
        assert_eq!(checkpoints_after(1, 1e12, &rules), Some(1));
    }
}
