//! Chooses the *span*: the part of the names that distinguishes the checkpoints. A span is the beginning of a path
//! component up to a number.
//!
//! A number can also be the number of a variable or of another part of the state. If such a number distinguished the
//! checkpoints, each checkpoint would be only a part of a state. Three signs show the meaning of a number:
//!
//! - The word before the number: `step` means checkpoints, and `var` means parts.
//! - The values: the numbers of steps may have gaps (10, 20, 30). The numbers of parts count from 0 or 1 without
//!   gaps.
//! - The times of the files: a checkpoint is written after the previous checkpoint. Parts of one checkpoint are often
//!   written at the same time.
//!
//! If these signs do not decide, the user is asked.

use super::{RankSlot, SLOT, TEMPLATES_MAX, Template, Word, number, show, tokenize};
use mcrengine::ids::CheckpointId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, SystemTime};

/// The span that distinguishes the checkpoints.
pub(super) struct Span {
    pub(super) text: Vec<u8>,
    /// Whether two checkpoints may have the same numbers in the span. If so, the span alone does not distinguish the
    /// checkpoints.
    pub(super) hides: bool,
    /// A question to the user, if the span may distinguish parts of one checkpoint instead of checkpoints.
    pub(super) asks: Option<String>,
}

/// A possible span.
struct Candidate {
    text: Vec<u8>,
    /// Depth of the deepest component that contains the span.
    depth: usize,
    files: usize,
    hides: bool,
    /// Whether the names have other numbers that may distinguish checkpoints.
    has_others: bool,
    /// The values of the span's numbers, and the first and last modification time of the files with these values.
    labels: BTreeMap<Vec<u64>, Option<Range<SystemTime>>>,
}

/// Chooses the span. Spans whose numbers are not numbers of parts are preferred. Among these spans, spans that differ
/// for all checkpoints are preferred, and then the span that the most files contain.
pub(super) fn find_span(templates: &[Template<'_>], ranks: &[Option<RankSlot>]) -> Option<Span> {
    let any_rank = ranks.iter().any(Option::is_some);
    let sources = templates.iter().zip(ranks).filter(|(_, rank)| rank.is_some() || !any_rank).take(TEMPLATES_MAX);
    let mut found: BTreeMap<Vec<u8>, (usize, Word)> = BTreeMap::new();
    for (template, rank) in sources {
        for (depth, last, text) in spans(template, rank.as_ref()) {
            let word = word_of(template, last);
            let (deepest, _) = found.entry(text).or_insert((depth, word));
            *deepest = depth.max(*deepest);
        }
    }
    // A span that ends within a word, such as the date in `2026-01-04T3_r0`, is in no name.
    let is_in_names = |text: &[u8]| templates.iter().zip(ranks).any(|(t, rank)| t.find(text, rank.as_ref()).is_some());
    if found.keys().any(|text| is_in_names(text)) {
        found.retain(|text, _| is_in_names(text));
    }
    let says = found.values().any(|(_, word)| *word == Word::Checkpoint);
    found.retain(|_, (_, word)| !says || *word == Word::Checkpoint);
    let candidates: Vec<Candidate> =
        found.into_iter().map(|(text, (depth, _))| Candidate::new(text, depth, templates, ranks, says)).collect();
    let is_of_parts = |candidate: &Candidate| any_rank && !says && candidate.is_counted() && candidate.overlaps();
    let score = |c: &&Candidate| (!is_of_parts(c), !c.hides, c.files, any_rank || c.varies(), c.depth, c.text.len());
    let best = candidates.iter().max_by_key(score)?;
    if is_of_parts(best) {
        return None;
    }
    let others = || candidates.iter().filter(|other| other.text != best.text);
    let is_only = best.has_others && others().all(is_of_parts) && (best.labels.len() == 1 || best.is_sequential());
    let asks = match () {
        () if best.is_product() || best.has_other_words(templates, ranks) => {
            Some("have several numbers, and one of them")
        }
        () if any_rank && !says && best.is_counted() && best.has_others && !is_only => Some("have a number that"),
        () if any_rank && best.hides && !is_only => Some("have several numbers, and one of them"),
        () => None,
    };
    let asks = asks.map(|what| {
        format!(
            "names of the form {} {what} may be the number of a variable or of another part of the state. Then each \
             checkpoint would be only a part. Say with --layout which number is the step: a pattern with {{checkpoint}} \
             and {{rank}}, in which * stands for other numbers, or \"single\" for all files as one checkpoint",
            show(&best.text, &[])
        )
    });
    Some(Span { text: best.text.clone(), hides: best.hides && !is_only, asks })
}

impl Candidate {
    fn new(text: Vec<u8>, depth: usize, templates: &[Template<'_>], ranks: &[Option<RankSlot>], says: bool) -> Self {
        let mut new = Self { text, depth, files: 0, hides: false, has_others: false, labels: BTreeMap::new() };
        for (template, rank) in templates.iter().zip(ranks) {
            let Some((_, first)) = template.find(&new.text, rank.as_ref()) else { continue };
            let slots = first..first + new.text.iter().filter(|b| **b == SLOT).count();
            new.files += template.rows.len();
            if rank.is_some() {
                // Numbers of parts do not distinguish checkpoints. If some names have words that mean checkpoints,
                // only numbers after such words distinguish checkpoints.
                let counts = |slot: &usize| match word_of(template, *slot) {
                    Word::Checkpoint => true,
                    Word::Part => false,
                    Word::Neutral | Word::Rank => !says,
                };
                let is_rank = |slot: &usize| rank.as_ref().is_some_and(|rank| rank.linked.contains(slot));
                let in_words = template.in_words(rank.as_ref());
                let may_be = |slot: &usize| !is_rank(slot) && !in_words.contains(slot);
                let others: Vec<usize> = (0..template.slots()).filter(may_be).filter(counts).collect();
                let different = |slots: &mut dyn Iterator<Item = usize>| -> usize {
                    let slots: Vec<usize> = slots.collect();
                    let values = |row: &Vec<&[u8]>| slots.iter().map(|&slot| number(row[slot])).collect::<Vec<_>>();
                    template.rows.iter().map(values).collect::<BTreeSet<_>>().len()
                };
                new.hides |= different(&mut slots.clone()) < different(&mut others.iter().copied());
                let is_same = |slot: usize| template.linked(slot).iter().any(|linked| slots.contains(linked));
                new.has_others |= others.iter().any(|&slot| !slots.contains(&slot) && !is_same(slot));
            }
            for (row, modified) in template.rows.iter().zip(&template.modified) {
                let values = row[slots.clone()].iter().map(|digits| number(digits)).collect();
                let times = new.labels.entry(values).or_insert_with(|| modified.map(|time| time..time));
                *times = times.clone().zip(*modified).map(|(times, time)| times.start.min(time)..times.end.max(time));
            }
        }
        new
    }

    /// The values of each number of the span.
    fn values(&self) -> Vec<BTreeSet<u64>> {
        let numbers = self.text.iter().filter(|b| **b == SLOT).count();
        (0..numbers).map(|n| self.labels.keys().filter_map(|values| values.get(n)).copied().collect()).collect()
    }

    /// Whether the last number of the span has several values.
    fn varies(&self) -> bool {
        self.values().last().is_some_and(|values| values.len() > 1)
    }

    /// Whether the last number of the span counts from 0 or 1 without gaps. Numbers of parts never have gaps. Numbers
    /// of steps may have gaps.
    fn is_counted(&self) -> bool {
        self.values().last().is_some_and(is_counted)
    }

    /// Whether the span has two consecutive numbers, one of the two numbers is counted, and most combinations of
    /// their values occur.
    fn is_product(&self) -> bool {
        is_product(&self.text, &self.labels.keys().collect())
    }

    /// Whether the span has a number with a separate meaning before its last number. Such a number has several
    /// values, and a word follows it.
    fn has_other_words(&self, templates: &[Template<'_>], ranks: &[Option<RankSlot>]) -> bool {
        let values = self.values();
        templates.iter().zip(ranks).any(|(template, rank)| {
            let Some((_, first)) = template.find(&self.text, rank.as_ref()) else { return false };
            let mut others = (0..values.len().saturating_sub(1)).filter(|n| values[*n].len() > 1);
            let last = values.last().map_or(0, BTreeSet::len);
            // If the last number distinguishes all labels, the numbers before it do not matter.
            (last == 1 || last < self.labels.len())
                && others.any(|n| template.lead(first + n + 1).iter().any(u8::is_ascii_alphabetic))
        })
    }

    /// The times of the labels, in the order of their first times. Empty if the times are not known.
    fn times(&self) -> Vec<&Range<SystemTime>> {
        let times: Option<Vec<_>> = self.labels.values().map(Option::as_ref).collect();
        let mut times = times.unwrap_or_default();
        times.sort_by_key(|times| times.start);
        times
    }

    /// Whether the files of at least half of the labels were written at the same time as the files of the next label.
    fn overlaps(&self) -> bool {
        let times = self.times();
        let overlaps = times.windows(2).filter(|pair| pair[1].start < pair[0].end).count();
        overlaps > 0 && overlaps * 2 >= times.len() - 1
    }

    /// Whether the files of each label were written before the files of the next label.
    fn is_sequential(&self) -> bool {
        let times = self.times();
        times.len() > 1 && times.windows(2).all(|pair| pair[0].end < pair[1].start)
    }
}

fn is_product(text: &[u8], labels: &BTreeSet<&Vec<u64>>) -> bool {
    let between = text.split(|b| *b == SLOT).nth(1).unwrap_or_default();
    let values = |n: usize| labels.iter().filter_map(|values| values.get(n)).copied().collect::<BTreeSet<u64>>();
    let [first, second] = [values(0), values(1)];
    if first.len() == 1 && begins_in_word(text) {
        return false;
    }
    text.iter().filter(|b| **b == SLOT).count() == 2
        && !between.iter().any(u8::is_ascii_alphabetic)
        && first.len() * second.len() < 2 * labels.len()
        && (is_counted(&first) || is_counted(&second))
}

/// Whether the first number of a text is a part of a word, as in `v2.10` and `hdf5_10`.
fn begins_in_word(text: &[u8]) -> bool {
    let template = Template::new(text.to_vec());
    template.follows_letter(0) && template.word(0) == Word::Neutral
}

/// Minimum time from the first to the last checkpoint of a code that writes one file for each checkpoint.
pub(super) const SERIES_MIN: Duration = Duration::from_secs(1);
/// Two ranks do not pause this long between their files of one checkpoint, so two such files are two steps.
pub(super) const RANKS_APART_MAX: Duration = Duration::from_secs(60);

/// A question to the user, if a number may be the rank although values are missing: `out_1.0`, `out_1.1` and `out_1.3`
/// may be three steps, or a step without its rank 2. Another number must be there that may be the step, more values
/// are there than are missing, and the times do not show that the files are steps.
pub(super) fn rank_with_gaps(template: &Template<'_>) -> Option<String> {
    let is_one = |slot: usize| template.rows.iter().all(|row| row[slot] == template.rows[0][slot]);
    let mut varying = (0..template.slots()).filter(|slot| !is_one(*slot));
    let slot = varying.next().filter(|slot| *slot > 0 && template.word(*slot) != Word::Checkpoint)?;
    let values: BTreeSet<u64> = template.rows.iter().map(|row| number(row[slot])).collect();
    let (first, last) = (*values.first()?, *values.last()?);
    let missing: Vec<u64> = (first..=last).filter(|value| !values.contains(value)).take(values.len()).collect();
    let rank = RankSlot { slot, linked: vec![slot], first, ranks: last - first + 1 };
    let is_it = varying.next().is_none()
        && first <= 1
        && (1..values.len()).contains(&missing.len())
        && template.written_in_order(&rank, SERIES_MIN) <= 2;
    is_it.then(|| {
        format!(
            "the number # in {} may be the rank, without the values {}. Say with --layout whether it is the rank: a \
             pattern with {{checkpoint}} and {{rank}}; if it is the step, a pattern with {{checkpoint}}",
            show(&template.text, &[slot]),
            missing.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        )
    })
}

/// Whether the first and the last of these times are at least [`SERIES_MIN`] apart.
pub(super) fn are_apart(times: &[SystemTime]) -> bool {
    let apart = times.iter().max().zip(times.iter().min()).and_then(|(last, first)| last.duration_since(*first).ok());
    apart.is_none_or(|apart| apart >= SERIES_MIN)
}

/// Whether the labels of a preset have a number that is the number of a rank or of a part. The result is also true if
/// the labels have two consecutive numbers, one of which may be the number of a variable.
pub(super) fn are_of_ranks_or_parts<'a>(labels: impl Iterator<Item = &'a CheckpointId> + Clone) -> bool {
    if are_parts_of_another(labels.clone()) {
        return true;
    }
    let mut templates: BTreeMap<Vec<u8>, Vec<Vec<u64>>> = BTreeMap::new();
    for label in labels {
        let (text, digits) = tokenize(label.as_str().as_bytes());
        templates.entry(text).or_default().push(digits.iter().map(|digits| number(digits)).collect());
    }
    templates.into_iter().any(|(text, labels)| {
        // The numbers of a version or of a time, such as `0.1` and `0.25`, are not two independent numbers.
        let is_time = text.iter().all(|b| [SLOT, b'.'].contains(b));
        let template = Template::new(text);
        let values = |n: usize| labels.iter().filter_map(|label| label.get(n)).copied().collect::<BTreeSet<u64>>();
        let slots = 0..labels[0].len();
        let of_part = |n: usize| values(n).len() > 1 && matches!(template.word(n), Word::Rank | Word::Part);
        // As in `restart.10.dom0`: a later number with its own word counts parts, or no number distinguishes all
        // labels.
        let has_word = |n: usize| n > 0 && template.lead(n).iter().any(u8::is_ascii_alphabetic) && values(n).len() > 1;
        let tells_all = |n: usize| values(n).len() == labels.len();
        let counts_parts = |n: usize| has_word(n) && template.word(n) != Word::Checkpoint && is_counted(&values(n));
        !is_time && is_product(&template.text, &labels.iter().collect())
            || slots.clone().any(of_part)
            || slots.clone().any(counts_parts)
            || slots.clone().any(has_word) && !slots.clone().any(tells_all)
    })
}

/// Whether the labels are those of two families of files that the application writes at the same steps, as `fields_3`
/// and `particles_3`. Then a checkpoint has files of both families.
pub(super) fn are_two_families<'a>(labels: impl Iterator<Item = &'a CheckpointId>) -> bool {
    let mut families: BTreeMap<Vec<u8>, BTreeSet<Vec<u64>>> = BTreeMap::new();
    for label in labels {
        let (text, digits) = tokenize(label.as_str().as_bytes());
        families.entry(text).or_default().insert(digits.iter().map(|digits| number(digits)).collect());
    }
    let numbers: BTreeSet<&BTreeSet<Vec<u64>>> = families.values().collect();
    let has_number = families.values().all(|numbers| numbers.iter().all(|numbers| !numbers.is_empty()));
    families.len() > 1 && has_number && numbers.len() == 1
}

/// Whether some labels consist of another label and the number of a part: `restart.10#0` and `restart.10#1`, if
/// `restart.10` is a label too.
fn are_parts_of_another<'a>(labels: impl Iterator<Item = &'a CheckpointId>) -> bool {
    let labels: BTreeSet<&str> = labels.map(CheckpointId::as_str).collect();
    let mut parts: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for label in &labels {
        let whole = label.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &label.as_bytes()[whole.len()..];
        let whole = whole.trim_end_matches(['#', '.', '_', '-']);
        if whole.ends_with(|c: char| c.is_ascii_digit()) && labels.contains(whole) && !digits.is_empty() {
            parts.entry(whole).or_default().insert(number(digits));
        }
    }
    // Times such as `1`, `1.1` and `1.2` are not numbers of parts.
    let is_time = |label: &&str| label.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    parts.iter().any(|(whole, values)| !is_time(whole) && is_counted(values))
}

/// Whether the only label of a preset has two consecutive numbers, one of which may be the number of a variable.
pub(super) fn may_be_products<'a>(mut labels: impl Iterator<Item = &'a CheckpointId>) -> bool {
    let (Some(label), None) = (labels.next(), labels.next()) else { return false };
    let (text, _) = tokenize(label.as_str().as_bytes());
    let between = text.split(|b| *b == SLOT).nth(1).unwrap_or_default();
    let is_time = text.iter().all(|b| [SLOT, b'.'].contains(b));
    let are_two = text.iter().filter(|b| **b == SLOT).count() == 2;
    are_two && !is_time && !between.iter().any(u8::is_ascii_alphabetic) && !begins_in_word(&text)
}

/// Whether more files may show another span. There is only one label now, and the names have several numbers that may
/// distinguish checkpoints. Every choice of a number gives the same checkpoint now.
pub(super) fn may_change(templates: &[Template<'_>], ranks: &[Option<RankSlot>], span: &[u8]) -> bool {
    templates.iter().zip(ranks).filter(|(_, rank)| rank.is_some()).any(|(template, rank)| {
        let Some((_, first)) = template.find(span, rank.as_ref()) else { return false };
        let slots = first..first + span.iter().filter(|b| **b == SLOT).count();
        let is_rank = |slot: usize| rank.as_ref().is_some_and(|rank| rank.linked.contains(&slot));
        let in_words = template.in_words(rank.as_ref());
        let may_be = |slot: usize| !is_rank(slot) && !in_words.contains(&slot) && word_of(template, slot) != Word::Part;
        let are_two = slots.clone().filter(|slot| !in_words.contains(slot)).count() == 2;
        let is_said = slots.clone().any(|slot| template.word(slot) == Word::Checkpoint);
        let has_one_value = template.rows.iter().all(|row| row[slots.clone()] == template.rows[0][slots.clone()]);
        let is_same = |slot: usize| template.linked(slot).iter().any(|linked| slots.contains(linked));
        let mut outside = (0..template.slots()).filter(|slot| !slots.contains(slot) && may_be(*slot));
        has_one_value && (are_two || !is_said && outside.any(|slot| !is_same(slot)))
    })
}

/// Whether there are at least two values, and the values count from 0 or 1 without gaps.
pub(super) fn is_counted(values: &BTreeSet<u64>) -> bool {
    let dense = values
        .first()
        .zip(values.last())
        .is_some_and(|(first, last)| *first <= 1 && last - first < values.len() as u64);
    values.len() > 1 && dense
}

/// The word that shows the meaning of a number. If a number has no word, such as the second number in `dump_1_10`,
/// the word of the previous number counts.
fn word_of(template: &Template<'_>, slot: usize) -> Word {
    let lead = template.lead(slot);
    let before = template.position(slot) - lead.len();
    let follows = slot > 0 && !lead.is_empty() && before > 0 && template.text[before - 1] == SLOT;
    match follows && !lead.iter().any(u8::is_ascii_alphabetic) {
        true => word_of(template, slot - 1),
        false => template.word(slot),
    }
}

/// All possible spans. A span is the text of a path component from the beginning of the component, or from the end of
/// the rank or of the number of a part, up to and including a number. This number is not the rank, not the number of
/// a part, and not inside a word (as the 5 in `hdf5_chk`). Each span has the depth of its component and its last slot.
fn spans(template: &Template<'_>, rank: Option<&RankSlot>) -> Vec<(usize, usize, Vec<u8>)> {
    let (mut slot, mut start, mut depth, mut spans) = (0, 0, 0, Vec::new());
    let in_words = template.in_words(rank);
    for (at, &byte) in template.text.iter().enumerate() {
        if byte == b'/' {
            (start, depth) = (at + 1, depth + 1);
        } else if byte == SLOT {
            if rank.is_some_and(|rank| rank.linked.contains(&slot)) || word_of(template, slot) == Word::Part {
                start = at + 1;
            } else if !in_words.contains(&slot) {
                let skip = template.text[start..at].iter().take_while(|b| matches!(b, b'_' | b'-' | b'.')).count();
                spans.push((depth, slot, template.text[start + skip..=at].to_vec()));
            }
            slot += 1;
        }
    }
    spans
}
