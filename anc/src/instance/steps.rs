//! The times at which contents were written, and the length of a step.

use crate::fetch;
use mcrengine::ids::{CheckpointId, Rank};
use mcrengine::manifest::Manifest;
use std::collections::BTreeMap;
use std::time::Duration;

/// When the files of a flush were written.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// Maximum time between the writing of the first and of the last file of one checkpoint.
    pub spread: Duration,
    /// Files that were written before this time, in milliseconds since 1970, belong to a content that has been
    /// overwritten.
    pub not_before_ms: Option<i64>,
    /// The incarnation that wrote the files. One checkpoint never contains groups of two incarnations.
    pub incarnation: u32,
    /// When the newest of the group's files was written, in milliseconds since 1970.
    pub newest_ms: i64,
    /// When the newest file of each rank was written, in milliseconds since 1970.
    pub ranks_ms: &'a [(Rank, i64)],
    /// A rank whose agent doubts that the files are all files of one step, and the reason. `None` if there is none.
    pub doubtful: Option<(Rank, fetch::Doubt)>,
    /// Whether a rank wrote a further part of its step after the commit. The files of the other ranks then belong to
    /// the same step, although they did not change.
    pub is_late_part: bool,
    /// Whether the application had ended with success before the files of each rank were read. Then no file is
    /// written again, and it is no reason for doubt that the times do not show which files a step rewrites.
    pub is_final: bool,
    /// Whether the application had ended with success before the files of one of the ranks were read.
    pub has_ended: bool,
    /// Whether the caller can wait and ask again.
    pub may_wait: bool,
    /// Whether the incarnation began without a restart, and all files were created while their agents were watching. A
    /// content of an earlier incarnation with the same bytes is then another content.
    pub is_anew: bool,
    /// A rank whose files existed before its agent began to watch. `None` if there is none.
    pub unseen: Option<Rank>,
    /// For each rank that has written its files again in this run: the time from the content before to this content, in
    /// milliseconds, as the agent saw it.
    pub intervals_ms: &'a [(Rank, i64)],
    /// For each rank whose agent was there: when its first content of this run was written, in milliseconds since 1970.
    pub firsts_ms: &'a BTreeMap<Rank, i64>,
    /// For how long the files of some ranks have been refused, in milliseconds.
    pub refused_ms: i64,
    /// Whether the newest checkpoint of the group has another name, which differs only in its numbers.
    pub is_of_series: bool,
    /// Whether one agent announced all ranks of the group. Such an agent has already compared their times.
    pub is_of_one_agent: bool,
    /// A rank whose files have modification times before their last change, and the difference in milliseconds. Of
    /// several such ranks, the rank with the largest difference is used. Ranks whose files existed before their agent
    /// began to watch are not considered.
    pub set_back: Option<(Rank, i64)>,
}

impl Written<'_> {
    /// When the last of the ranks wrote its first content of this run, in milliseconds since 1970. `None` if it is
    /// unknown for a rank.
    pub fn first_ms(&self) -> Option<i64> {
        let firsts = self.ranks_ms.iter().map(|(rank, _)| self.firsts_ms.get(rank).copied());
        firsts.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// The shortest time from a content of a rank to the rank's next content, in milliseconds. `None` if it is unknown.
    pub(super) fn interval_ms(&self) -> Option<i64> {
        self.intervals_ms.iter().map(|(_, ms)| *ms).min()
    }
}

/// A checkpoint name that is in use. `ours` says whether this group cannot use the name, for example because this
/// group has already used the name. `other_ms` is the time when another group's files under this name were written,
/// `other_first_ms` the time when that group wrote its first files of this run, and `is_doubtful` whether the manifest
/// of that group has a doubt.
pub(super) struct Taken {
    pub(super) id: CheckpointId,
    pub(super) ours: bool,
    pub(super) other_ms: Option<i64>,
    pub(super) other_first_ms: Option<i64>,
    pub(super) is_doubtful: bool,
}

/// If the first contents of two groups under one name were written at most this number of milliseconds apart, they
/// belong to one step without doubt.
pub(super) const ONE_STEP_MS: i64 = 1000;
/// Maximum age of the last committed step, in steps. The length of a step is not used if more steps were missed.
pub(super) const STEPS_MISSED_MAX: i64 = 10;
/// Maximum number of previous steps from which the length of a step is computed.
const STEPS_MAX: usize = 8;

/// The length of a step in milliseconds: the median of the previous steps. If the time since the last committed step
/// is shorter than the median, or if there are no previous steps, the result is the time since the last committed
/// step. The result is this time, too, if more than [`STEPS_MISSED_MAX`] steps were missed. `own` has the contents
/// that this group committed under the name, the oldest first. Returns `None` if this group has not committed any
/// content under the name.
pub(super) fn step_ms(own: &[Manifest], newest_ms: i64) -> Option<i64> {
    let since_last_ms = newest_ms.saturating_sub(own.last()?.written_unix_ms);
    let usual = usual_step_ms(own).filter(|length| since_last_ms <= length.saturating_mul(STEPS_MISSED_MAX));
    Some(usual.map_or(since_last_ms, |usual| since_last_ms.min(usual)))
}

/// The median of the previous steps, in milliseconds. `None` if no run has committed two contents.
pub(super) fn usual_step_ms(own: &[Manifest]) -> Option<i64> {
    let mut lengths: Vec<i64> = (own.windows(2).rev().take(STEPS_MAX))
        .filter(|pair| pair[0].incarnation == pair[1].incarnation)
        .map(|pair| pair[1].written_unix_ms - pair[0].written_unix_ms)
        .filter(|length| *length > 0)
        .collect();
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied()
}

/// File name extensions that contain a digit.
const EXTENSIONS: [&str; 12] =
    [".h5", ".hdf5", ".he5", ".h4", ".hdf4", ".nc3", ".nc4", ".bp3", ".bp4", ".bp5", ".mat5", ".xdmf3"];

/// Words that may stand directly before the number of a step, as in `step12`.
const STEP_WORDS: [&str; 32] = [
    "chk",
    "checkpoint",
    "chkpt",
    "ck",
    "ckpt",
    "cp",
    "cpt",
    "cycle",
    "data",
    "day",
    "dd",
    "dump",
    "epoch",
    "frame",
    "gen",
    "it",
    "iter",
    "iteration",
    "out",
    "output",
    "plt",
    "rd",
    "restart",
    "rst",
    "save",
    "snap",
    "snapshot",
    "state",
    "step",
    "time",
    "ts",
    "year",
];

/// A number with fewer digits belongs to the name if it stands directly at a word, as in `wave2` or `h2o`.
const STEP_DIGITS: usize = 3;

/// Whether the application may overwrite a checkpoint of this name. A name without the number of a step counts as a
/// name that may be overwritten.
pub fn may_be_reused(label: &CheckpointId) -> bool {
    let name = label.label();
    let stem = EXTENSIONS.iter().find_map(|extension| name.strip_suffix(extension)).unwrap_or(name);
    let mut rest = stem;
    while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
        let end = rest[begin..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |len| begin + len);
        let before = rest[..begin].rsplit(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("");
        let is_at_a_word = rest[end..].starts_with(|c: char| c.is_ascii_alphabetic());
        let is_of_word = before.len() > 1 && !STEP_WORDS.contains(&before.to_ascii_lowercase().as_str());
        if end - begin >= STEP_DIGITS || !is_of_word && !is_at_a_word {
            return false;
        }
        rest = &rest[end..];
    }
    true
}

/// The beginning of a doubt: why the application may overwrite the files of this name. `None` if it does not overwrite
/// them, as far as is known. `own`: the contents that this group committed under the name.
pub(super) fn reuse_of(label: &CheckpointId, own: &[Manifest], written: Written<'_>) -> Option<String> {
    let is_again = |own: &Manifest| own.incarnation == written.incarnation;
    match () {
        () if may_be_reused(label) => {
            Some(format!("the name {label} has no number of a step, so the code may overwrite it"))
        }
        () if !written.is_late_part && own.iter().any(is_again) => {
            Some(format!("the code overwrites the files of {label}"))
        }
        () => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn a_number_that_belongs_to_a_word_is_no_number_of_a_step() {
        let may_be_reused = |name: &str| may_be_reused(&name.parse().expect("valid"));
        for name in ["restart", "restart.h5", "wave2", "run5", "h2o", "proj7.old", "state_2d", "model-fp16.h5"] {
            assert!(may_be_reused(name), "{name}");
        }
        for name in ["ck_17", "ck17", "DD0018", "it_4.h5", "4", "t5", "wave_2", "plt00010", "run5_step12", "step3d.7"] {
            assert!(!may_be_reused(name), "{name}");
        }
    }

    pub(in super::super) fn taken(all: &[(bool, Option<i64>)]) -> Vec<Taken> {
        let id = |i: usize| format!("restart.h5~{}", i + 2).parse().expect("valid");
        let taken = |(i, (ours, other_ms)): (usize, &(bool, Option<i64>))| Taken {
            id: id(i),
            ours: *ours,
            other_ms: *other_ms,
            other_first_ms: None,
            is_doubtful: false,
        };
        all.iter().enumerate().map(taken).collect()
    }

    pub(in super::super) const WRITTEN: Written<'static> = Written {
        spread: Duration::from_secs(600),
        not_before_ms: None,
        incarnation: 0,
        newest_ms: 0,
        ranks_ms: &[],
        doubtful: None,
        is_late_part: false,
        is_final: false,
        has_ended: false,
        may_wait: false,
        is_anew: false,
        unseen: None,
        intervals_ms: &[],
        firsts_ms: &BTreeMap::new(),
        refused_ms: 0,
        is_of_series: false,
        is_of_one_agent: false,
        set_back: None,
    };
}
