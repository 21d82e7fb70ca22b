//! Finds names with two numbers that are probably a step and a rank, although neither number counts from 0 or 1
//! without gaps. For example, only each fourth rank writes a file: `ckpt_100.0`, `ckpt_100.4`, `ckpt_200.0` and
//! `ckpt_200.4`.
//!
//! The values form a *grid*: with most values of one number, all values of the other number occur. If each file were a
//! checkpoint, each checkpoint would be only a part of a state. Therefore the user is asked. If the files were written
//! one after the other, with pauses, each file may be a checkpoint.

use super::{SLOT, Template, Word, number, show, steps};
use std::collections::BTreeSet;
use std::time::SystemTime;

/// Maximum number of values that a question names.
const SHOWN_MAX: usize = 4;

/// The question for the user, if the numbers of a template without a rank are probably steps and ranks. `span`: the
/// form of the names of checkpoints.
pub(super) fn asks(templates: &[Template<'_>], span: &[u8]) -> Option<String> {
    templates.iter().find_map(|template| {
        let (step, rank) = step_and_rank(template, span)?;
        let values: BTreeSet<u64> = template.rows.iter().map(|row| number(row[rank])).collect();
        let shown: Vec<String> = values.iter().take(SHOWN_MAX).map(u64::to_string).collect();
        let more = if values.len() > SHOWN_MAX { ", ..." } else { "" };
        Some(format!(
            "the number # in {} may be the rank, with the values {}{more}. Say with --layout which files form a \
             checkpoint: a pattern with {{checkpoint}} and {{rank}}; if the numbers of the ranks have gaps because \
             some ranks write no file, a pattern with * for the rank, such as {}; if each file is a checkpoint, a \
             pattern without {{rank}}",
            show(&template.text, &[rank]),
            shown.join(", "),
            pattern(template, step)
        ))
    })
}

/// The slots of the step and of the rank, if the numbers of a template are probably a step and a rank.
fn step_and_rank(template: &Template<'_>, span: &[u8]) -> Option<(usize, usize)> {
    let (_, first) = template.find(span, None)?;
    let of_span = first..first + span.iter().filter(|b| **b == SLOT).count();
    let is_in_span = |slot: usize| template.linked(slot).iter().any(|linked| of_span.contains(linked));
    match varying(template)[..] {
        [one, other] => {
            let (step, rank) = match (template.in_order(one).is_some(), template.in_order(other).is_some()) {
                (false, true) => (other, one),
                _ => (one, other),
            };
            let is_known = match (is_in_span(one), is_in_span(other)) {
                (true, true) => template.word(other) == Word::Checkpoint,
                (false, false) => true,
                (true, false) => is_step_and_part(template, one, other),
                (false, true) => is_step_and_part(template, other, one),
            };
            (!is_known && is_grid(template, one, other) && !are_apart(template)).then_some((step, rank))
        }
        // There is one step. Only a word such as `ckpt` shows that the number before the ranks is the step.
        [rank] if rank > 0 && is_in_span(rank) => {
            let step = rank - 1;
            let begins_low = template.rows.iter().any(|row| number(row[rank]) <= 1);
            let is_it = template.word(step) == Word::Checkpoint
                && template.word(rank) == Word::Neutral
                && is_in_span(step)
                && begins_low
                && !steps::are_apart(&begun(template));
            is_it.then_some((step, rank))
        }
        _ => None,
    }
}

/// Whether later files may show that one of two numbers is the rank: the names have a number with several values and
/// another number with one value, and the files were begun at once, as the files of ranks are.
pub(super) fn may_become_one(templates: &[Template<'_>], span: &[u8]) -> bool {
    templates.iter().filter(|template| template.find(span, None).is_some()).any(|template| {
        let in_words = template.in_words(None);
        let has_one_value = |slot: &usize| template.rows.iter().all(|row| row[*slot] == template.rows[0][*slot]);
        let may_be = |slot: &usize| !in_words.contains(slot) && template.word(*slot) != Word::Part;
        let mut others = (0..template.slots()).filter(has_one_value).filter(may_be);
        varying(template).len() == 1 && others.next().is_some() && !steps::are_apart(&begun(template))
    })
}

/// The slots with several values. Of slots that always contain the same number, only the first slot is there.
fn varying(template: &Template<'_>) -> Vec<usize> {
    let varies = |slot: &usize| template.rows.iter().any(|row| row[*slot] != template.rows[0][*slot]);
    (0..template.slots()).filter(varies).filter(|slot| template.linked(*slot).first() == Some(slot)).collect()
}

/// Whether words show that the number that names the checkpoints is a step, or that the other number is of a rank or of
/// a part of the checkpoint.
fn is_step_and_part(template: &Template<'_>, step: usize, part: usize) -> bool {
    template.word(step) == Word::Checkpoint || matches!(template.word(part), Word::Part | Word::Rank)
}

fn is_grid(template: &Template<'_>, one: usize, other: usize) -> bool {
    let values = |slot: usize| template.rows.iter().map(|row| number(row[slot])).collect::<BTreeSet<_>>().len();
    let pairs: BTreeSet<_> = template.rows.iter().map(|row| (number(row[one]), number(row[other]))).collect();
    values(one).saturating_mul(values(other)) < 2 * pairs.len()
}

/// When the files of the template were begun. Empty if a time is unknown.
fn begun(template: &Template<'_>) -> Vec<SystemTime> {
    template.begun.iter().copied().collect::<Option<_>>().unwrap_or_default()
}

/// Whether there was a pause of at least [`steps::SERIES_MIN`] between any two files. False if a time is unknown.
fn are_apart(template: &Template<'_>) -> bool {
    let times = template.begun.iter().zip(&template.modified).map(|(begun, ended)| Some(((*begun)?, (*ended)?)));
    let Some(mut times) = times.collect::<Option<Vec<_>>>() else { return false };
    times.sort_unstable();
    times.windows(2).all(|pair| pair[0].1 + steps::SERIES_MIN <= pair[1].0)
}

/// A pattern in which the number of the step is the checkpoint, and all other numbers are `*`.
pub(super) fn pattern(template: &Template<'_>, step: usize) -> String {
    let (mut slot, mut out) = (0, Vec::new());
    for &byte in &template.text {
        match byte {
            SLOT if slot == step => out.extend_from_slice(b"{checkpoint}"),
            SLOT => out.push(b'*'),
            _ => out.push(byte),
        }
        slot += usize::from(byte == SLOT);
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::layout::{Explanation, Layout, Listing};
    use std::path::Path;

    /// Guesses the layout of files with a name, and the second in which each file was written.
    fn guess(files: &[(String, u64)]) -> (Layout, Explanation) {
        let listing = Listing::of_times(files.iter().map(|(name, at)| (name.as_str(), at * 1000, at * 1000)));
        Layout::guess_while_running(&listing, Path::new("/data/run7"), None)
    }

    /// The files of steps. `form` has `S` for the step and `R` for the rank.
    fn files(form: &str, steps: &[u64], ranks: &[u64]) -> Vec<(String, u64)> {
        let name = |step: u64, rank: u64| form.replace('S', &step.to_string()).replace('R', &rank.to_string());
        let of_step =
            |(nth, step): (usize, &u64)| ranks.iter().map(move |rank| (name(*step, *rank), 3 * nth as u64)).collect();
        steps.iter().enumerate().flat_map(|step| -> Vec<_> { of_step(step) }).collect()
    }

    #[test]
    fn files_of_ranks_with_gaps_are_not_checkpoints_of_one_rank_each() {
        for (form, ranks) in [
            ("ckpt_S.R.h5", &[0, 4, 8][..]),
            ("ckpt_S_R", &[0, 2, 4, 6]),
            ("ckpt_S.R", &[0, 1, 3]),
            ("f_S_R", &[16, 32, 48]),
            ("fS/io.R", &[0, 16]),
            ("f_R_S", &[10, 20, 30]),
        ] {
            for steps in [&[100, 200, 300][..], &[100, 200]] {
                let (_, explanation) = guess(&files(form, steps, ranks));
                let asks = explanation.asks.unwrap_or_default();
                assert!(asks.contains("--layout") && !explanation.certain, "{form} {ranks:?}: {asks}");
            }
            let mut killed = files(form, &[100, 200, 300], ranks);
            killed.pop();
            assert!(guess(&killed).1.asks.is_some(), "{form} {ranks:?}: the last step has not all files");
            let (_, first) = guess(&files(form, &[100], ranks));
            assert!(!first.certain, "{form} {ranks:?}: with one step, more files may show the rank");
        }
        let (_, explanation) = guess(&files("ckpt_S.R.h5", &[100, 200], &[0, 4, 8]));
        let asks = explanation.asks.expect("asks");
        assert!(asks.contains("# in ckpt_N.#.h5") && asks.contains("such as ckpt_{checkpoint}.*.h5"), "{asks}");
    }

    #[test]
    fn files_with_two_numbers_that_were_written_one_after_the_other_are_a_series() {
        let files = files("out_S_R.h5", &[100, 200], &[10, 20]).into_iter().zip(0..);
        let (_, explanation) = guess(&files.map(|((name, _), nth)| (name, 2 * nth)).collect::<Vec<_>>());
        assert!(explanation.asks.is_none() && explanation.certain, "{explanation:?}");
    }
}
