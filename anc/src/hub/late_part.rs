//! Handles ranks that write a further part of a step after a quiet time, for example an application that opens its
//! files once for each dataset.
//!
//! If the names of the checkpoints have numbers, each step has its own name, and files that change later belong to
//! the same step. The committed content then lacks a part of its step: it is marked as doubtful at once. The unchanged
//! ranks are asked to announce their files again, so that all files of the step are committed under the next name
//! (`ID~2`). In a job with several groups no rank is asked, and the step is committed again only if all ranks write a
//! further part.
//!
//! An application that overwrites a name, or several names in turn, must not be treated like this: its files that did
//! not change belong to the step before. Therefore only files that became longer count.

use super::Hub;
use super::gather::{Gather, Seen};
use crate::fetch::Announced;
use crate::group::{Key, Phase};
use crate::instance::may_be_reused;
use mcr_proto::v1;
use mcrengine::ids::{CheckpointId, Rank, shape_of};
use mcrengine::marks::mark_doubtful;
use std::sync::Arc;

/// Whether files of a rank that changed after their announcement belong to the announced step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SameStep {
    /// The files belong to the same step: the application uses each name for one step.
    Yes,
    /// The name has a number, but there is no second name that shows whether the application counts its steps.
    Perhaps,
    /// The application overwrites names, or the files belong to an earlier incarnation, or the rank is new.
    No,
}

/// Whether all changed files of a rank are longer than before. An application that computes a step again normally
/// writes files of the same length.
fn has_grown(last: &Seen, announced: &Announced) -> bool {
    let mut has_grown = false;
    for file in announced.files.iter().filter(|file| !file.kind.is_companion()) {
        match last.files.iter().find(|(path, ..)| *path == file.path) {
            Some((_, digest, _)) if *digest == file.digest => {}
            Some((_, _, bytes)) if file.bytes <= *bytes => return false,
            _ => has_grown = true,
        }
    }
    has_grown
}

/// Whether two names of one group differ only in their numbers.
fn are_siblings(one: &Key, other: &Key) -> bool {
    other.job == one.job
        && other.group == one.group
        && other.label != one.label
        && shape_of(other.label.label()) == shape_of(one.label.label())
}

impl Hub {
    /// Whether a new announcement of a rank belongs to the step of its last announcement under the same name.
    pub(super) fn same_step(&self, key: &Key, rank: Rank, announced: &Announced) -> SameStep {
        let Some(last) = self.gathers.get(key).and_then(|gather| gather.last.get(&rank)) else { return SameStep::No };
        let began_ns = self.shared.currents.began_ns(&key.job);
        if may_be_reused(&key.label)
            || !has_grown(last, announced)
            || last.written_ns.zip(began_ns).is_some_and(|(was, began)| was < began)
        {
            return SameStep::No;
        }
        let mut same = SameStep::Perhaps;
        for (_, sibling) in self.gathers.iter().filter(|(other, _)| are_siblings(key, other)) {
            // If the application wrote another name after the last announcement, it uses the names in turn.
            if sibling.written_ns() > last.modified_ns {
                return SameStep::No;
            }
            same = SameStep::Yes;
        }
        same
    }

    /// Handles a further part of a step whose content `id` is committed. `rank` is the rank that wrote the part.
    pub(super) fn further_part(&mut self, key: &Key, id: CheckpointId, same_step: SameStep, rank: Rank) {
        let Some(gather) = self.gathers.get_mut(key) else { return };
        gather.may_complete = Some(id);
        if same_step == SameStep::Yes {
            self.complete_step(key, Some(rank)); // otherwise the other ranks may overwrite their files too
        }
    }

    /// Completes the steps whose application is now known to use each name for one step, because it wrote files with
    /// the name `key` later, at `written_unix_ns`.
    pub(super) fn complete_siblings(&mut self, key: &Key, written_unix_ns: i64) {
        let waits = |gather: &Gather| {
            gather.may_complete.is_some() && !gather.is_late_part && gather.written_ns() <= written_unix_ns
        };
        let siblings = self.gathers.iter().filter(|(other, gather)| are_siblings(key, other) && waits(gather));
        for sibling in siblings.map(|(other, _)| other.clone()).collect::<Vec<_>>() {
            self.complete_step(&sibling, None);
        }
    }

    /// Marks the committed content as doubtful, and asks for the announcements of the missing ranks. `rank` is a rank
    /// that announces now.
    fn complete_step(&mut self, key: &Key, rank: Option<Rank>) {
        let Some(gather) = self.gathers.get_mut(key) else { return };
        let Phase::Gathering { missing, .. } = &gather.phase else { return };
        if gather.grouping.groups() > 1 {
            // The unchanged groups would have to commit again, too. Ranks that all write further parts need no request.
            return self.doubt_part(key);
        }
        gather.is_late_part = true;
        gather.overwritten.clear(); // no rank has overwritten a step
        tracing::warn!(
            job = %key.job, checkpoint = %key.label, group = key.group.0,
            "the application wrote into the files of this step after the commit: all files of the step are saved again"
        );
        for rank in missing.iter().filter(|missing| Some(**missing) != rank) {
            let again = v1::Again { label: key.label.to_string(), rank: rank.0 };
            for agent in self.agents.values().filter(|agent| agent.job == key.job && agent.ranks.contains(rank)) {
                agent.link.send(v1::to_agent::Message::Again(again.clone()));
            }
        }
        self.doubt_part(key);
    }

    /// Marks the content that may lack a part of its step as doubtful. Does nothing if there is no such content, or if
    /// it has the mark already.
    pub(super) fn doubt_part(&mut self, key: &Key) {
        let Some(id) = self.gathers.get_mut(key).and_then(|gather| gather.may_complete.take()) else { return };
        let why = "the application wrote into its files after the commit: it is uncertain whether the checkpoint has \
                   all bytes of its step";
        tracing::warn!(job = %key.job, checkpoint = %id, why, "an older checkpoint is doubtful");
        let (store, job) = (Arc::clone(&self.store), key.job.clone());
        self.own_threads.run("marking a checkpoint as doubtful", move || Ok(mark_doubtful(&*store, &job, &id, why)?));
    }
}
