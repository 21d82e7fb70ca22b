//! Compares the ranks that were found in different templates.

use super::{RankSlot, SLOTS_MAX, Template, number};
use std::collections::BTreeMap;

/// Removes ranks that contradict the main template. The main template is the template with the most names, but a
/// template whose rank follows a word for ranks is preferred. A number that is not the rank in the main template is
/// not the rank in other templates with the same beginning (`d1/params.txt`, `d2/params.txt` next to `d1/p0`,
/// `d1/p1`).
pub(super) fn drop_contradictions(templates: &[Template<'_>], ranks: &mut [Option<RankSlot>]) {
    let ranked = templates.iter().zip(ranks.iter()).filter_map(|(t, rank)| rank.clone().map(|rank| (t, rank)));
    let Some((main, main_rank)) = ranked.max_by_key(|(t, rank)| (t.word(rank.slot), t.rows.len())) else { return };
    for (template, rank) in templates.iter().zip(ranks) {
        let contradicts = |rank: &RankSlot| {
            let until = &template.text[..=template.position(rank.slot)];
            main.text.starts_with(until) && !main_rank.linked.contains(&rank.slot)
        };
        if rank.as_ref().is_some_and(contradicts) {
            *rank = None;
        }
    }
}

/// Finds ranks in templates with few names. A number is the rank if it fits the rank of another template. This means
/// that the same letters are before both numbers, and that the number is in the range of the other template's ranks.
pub(super) fn adopt(templates: &[Template<'_>], ranks: &mut [Option<RankSlot>]) {
    let known: BTreeMap<Vec<u8>, (u64, u64)> = templates
        .iter()
        .zip(ranks.iter())
        .filter_map(|(template, rank)| rank.as_ref().map(|rank| (template, rank)))
        .filter(|(template, rank)| template.lead(rank.slot).iter().any(u8::is_ascii_alphabetic))
        .map(|(template, rank)| (template.lead(rank.slot).to_vec(), (rank.first, rank.ranks)))
        .collect();
    for (template, rank) in templates.iter().zip(ranks).filter(|(_, rank)| rank.is_none()) {
        *rank = (0..template.slots().min(SLOTS_MAX)).rev().find_map(|slot| {
            let &(first, ranks) = known.get(template.lead(slot))?;
            let fits = template.rows.iter().all(|row| (first..first + ranks).contains(&number(row[slot])));
            fits.then(|| RankSlot { slot, linked: template.linked(slot), first, ranks })
        });
    }
}
