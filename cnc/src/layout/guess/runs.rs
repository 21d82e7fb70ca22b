//! Checks that files with the same label come from one run. For example, `runA/rst.2.0` and `runB/rst.2.0` are not
//! one checkpoint.
//!
//! The directories before the label distinguish the runs. Several directories belong to one run if they contain
//! different kinds of files (`mesh/m_2.h5`, `data/d_2.h5`), if their numbers correspond to ranks
//! (`00000/dump-2-0.h5`, `00001/dump-2-9.h5`), or if their numbers are numbers of parts of the state
//! (`level_0/d_2.0`).

use super::beside::is_beside_states;
use super::{RANK_WORDS, SLOT, Template, Word, is_temporary, tokenize};
use crate::layout::{Layout, Within};
use mcrengine::ids::{CheckpointId, FilePath, Rank};
use std::collections::{BTreeMap, BTreeSet};

/// The files of one label below one directory.
#[derive(Default)]
struct Part<'a> {
    /// For each file: the rest of its path, its rank if the path has a rank, and the whole path.
    files: BTreeMap<&'a [u8], (Option<Rank>, &'a FilePath)>,
}

/// Presets whose directories each contain the files of some ranks, such as `A03/rs6turb3.f00001`.
const DIRECTORIES_OF_RANKS: &[&str] = &["smilei", "nek5000"];

/// If the layout would combine several runs into one checkpoint, returns a text for the user. The text has the reason
/// and the options that help.
pub(super) fn mixed(layout: &Layout, paths: &[&FilePath]) -> Option<String> {
    let mut labels: BTreeMap<CheckpointId, BTreeMap<Vec<u8>, Part<'_>>> = BTreeMap::new();
    for path in paths {
        let Some((placed, Within { label: Some(label), rank })) = layout.place_within(path) else { continue };
        let bytes = path.as_bytes();
        let below = bytes[..label.start].iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        let mut directory = bytes[..below].to_vec();
        if let Some(rank) = rank.filter(|rank| rank.end <= below) {
            directory.splice(rank, [SLOT]);
        }
        let directory = without_parts(&directory);
        let part = labels.entry(placed.checkpoint).or_default().entry(directory).or_default();
        part.files.insert(&bytes[below..], (placed.rank, path));
    }
    let of_ranks = DIRECTORIES_OF_RANKS.contains(&layout.name());
    labels.into_iter().find_map(|(label, parts)| {
        let (one, other) = conflict(&parts)?;
        (!are_of_ranks(&parts, of_ranks)).then(|| question(one, other, &label))
    })
}

pub(super) fn question(one: &FilePath, other: &FilePath, label: &CheckpointId) -> String {
    format!(
        "{one} and {other} both look like files of checkpoint {label}, and seem to come from two runs. Save \
         each run separately, with its own directory and --job; or say with --layout which files belong \
         together: a pattern with {{checkpoint}} and {{rank}}, or \"single\" for all files as one checkpoint"
    )
}

/// Like [`mixed`], for files that the layout leaves out because they have the names of ranks' files in another
/// directory.
pub(in crate::layout) fn elsewhere(layout: &Layout, paths: &[FilePath]) -> Option<String> {
    let mut placed: BTreeMap<&[u8], (&FilePath, CheckpointId)> = BTreeMap::new();
    for path in paths {
        if let Some((of_path, Within { label: Some(label), rank: Some(rank) })) = layout.place_within(path) {
            let first = label.start.min(rank.start);
            let below = path.as_bytes()[..first].iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
            placed.entry(&path.as_bytes()[below..]).or_insert((path, of_path.checkpoint));
        }
    }
    let is_left =
        |path: &&FilePath| layout.place(path).is_none() && !is_beside_states(path) && !is_temporary(path.as_bytes());
    paths.iter().filter(is_left).find_map(|path| {
        let bytes = path.as_bytes();
        let starts = std::iter::once(0).chain((1..bytes.len()).filter(|&at| bytes[at - 1] == b'/'));
        let (one, label) = starts.filter_map(|start| placed.get(&bytes[start..])).next()?;
        Some(question(one, path, label))
    })
}

/// Replaces the numbers of parts of the state in the name of a directory with [`SLOT`].
fn without_parts(directory: &[u8]) -> Vec<u8> {
    let (text, digits) = tokenize(directory);
    let template = Template::new(text);
    let (mut slot, mut out) = (0, Vec::with_capacity(directory.len()));
    for &byte in &template.text {
        match digits.get(slot) {
            Some(digits) if byte == SLOT => {
                match template.word(slot) {
                    Word::Part => out.push(SLOT),
                    _ => out.extend_from_slice(digits),
                }
                slot += 1;
            }
            _ => out.push(byte),
        }
    }
    out
}

/// Two files that cannot belong to one checkpoint, unless their directories correspond to ranks.
fn conflict<'a>(parts: &BTreeMap<Vec<u8>, Part<'a>>) -> Option<(&'a FilePath, &'a FilePath)> {
    if parts.len() < 2 {
        return None;
    }
    // Two files in two directories conflict if they have the same path within the directories. Two files also
    // conflict if they are of the same kind and have different ranks.
    let mut paths: BTreeMap<&[u8], &FilePath> = BTreeMap::new();
    let mut kinds: BTreeMap<Vec<u8>, &FilePath> = BTreeMap::new();
    for part in parts.values() {
        for (below, (_, path)) in &part.files {
            if let Some(other) = paths.insert(below, path) {
                return Some((other, path));
            }
        }
        let ranked = part.files.iter().filter(|(_, (rank, _))| rank.is_some());
        let own: BTreeMap<Vec<u8>, &FilePath> = ranked.map(|(below, (_, path))| (tokenize(below).0, *path)).collect();
        for (kind, path) in own {
            if let Some(other) = kinds.insert(kind, path) {
                return Some((other, path));
            }
        }
    }
    None
}

/// Whether the directories correspond to ranks. The names of the directories must differ only in numbers. Each number
/// must follow a word for ranks, or be the whole name. No rank may be in two directories.
fn are_of_ranks(parts: &BTreeMap<Vec<u8>, Part<'_>>, known: bool) -> bool {
    let templates: BTreeSet<Vec<u8>> = parts.keys().map(|directory| tokenize(directory).0).collect();
    let (Some(template), 1) = (templates.first(), templates.len()) else { return false };
    let says_ranks = |at: usize| {
        let end = template[..at].iter().rposition(|b| !matches!(b, b'_' | b'-' | b'.')).map_or(0, |last| last + 1);
        let start = template[..end].iter().rposition(|b| !b.is_ascii_alphabetic()).map_or(0, |before| before + 1);
        let word = template[start..end].to_ascii_lowercase();
        RANK_WORDS.contains(&&word[..]) || [&b"node"[..], b"host"].contains(&&word[..])
    };
    let mut numbers = template.iter().enumerate().filter(|(_, b)| **b == SLOT).map(|(at, _)| at);
    let is_number = |directory: &Vec<u8>| {
        let mut components = directory.split(|&b| b == b'/').filter(|c| !c.is_empty());
        components.next_back().is_some_and(|last| last.iter().all(u8::is_ascii_digit))
    };
    let mut seen: BTreeSet<Rank> = BTreeSet::new();
    let are_apart = parts.values().all(|part| {
        let own: BTreeSet<Rank> = part.files.values().filter_map(|(rank, _)| *rank).collect();
        let is_new = !own.is_empty() && own.is_disjoint(&seen);
        seen.extend(own);
        is_new
    });
    are_apart && (known || numbers.any(says_ranks) || parts.keys().all(is_number))
}
