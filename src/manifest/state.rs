//! The state of a checkpoint, as its manifests show it.

use super::files::FileTotals;
use super::format::{Manifest, Place};
use crate::container::ContainerRef;
use crate::ids::CheckpointId;
use crate::incarnation::{Incarnation, Line};
use crate::plan::Scheme;
use crate::units::{RawBytes, StoredBytes};
use serde::Serialize;

/// A checkpoint as its directory shows it, complete or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointState {
    /// Name of the checkpoint.
    pub id: CheckpointId,
    /// The place in the order of checkpoints. The newest file of all groups determines the place. `None` if no
    /// manifest can be read.
    pub place: Option<Place>,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Number of groups of the checkpoint once it is complete.
    pub groups: u32,
    /// Number of ranks in each group. The last group may have fewer ranks.
    pub group_size: u32,
    /// How the variables were merged.
    pub scheme: Scheme,
    /// The compression profile by which codecs were chosen.
    pub profile: String,
    /// Number of files in the committed groups.
    pub files: u64,
    /// Total length of the files in the committed groups. Compression ratios are relative to this length.
    pub file_bytes: u64,
    /// Raw bytes of the variables of the committed groups.
    pub raw_bytes: RawBytes,
    /// Total length of the containers.
    pub stored_bytes: StoredBytes,
    /// Time at which the last committed group was committed, in milliseconds since 1970; 0 if no group is committed.
    pub created_unix_ms: u64,
    /// The longest time that a group took, in milliseconds.
    pub elapsed_ms: u64,
    /// The older containers to which the groups refer, without repetition.
    pub references: Vec<ContainerRef>,
    /// Why the checkpoint is not complete. The list is empty if the checkpoint is complete.
    pub problems: Vec<String>,
    /// Whether the checkpoint was pruned. A pruned checkpoint is listed only because other checkpoints refer to its
    /// containers.
    pub is_pruned: bool,
    /// Whether a committed part of the checkpoint is damaged, or a container that a manifest names is missing. A
    /// group without manifest and container was never committed, so a missing group does not count as damage.
    pub is_damaged: bool,
    /// Whether the directory shows that a group was not committed: a group has neither a manifest nor a container, or
    /// the directory contains the temporary file of a writer. `false` does not mean that all groups are committed.
    pub is_unfinished: bool,
    /// What is uncertain about the files of the checkpoint, and why; `None` if there is no doubt.
    pub doubt: Option<String>,
    /// Whether a newer incarnation began before all groups of the checkpoint were committed. Such a checkpoint never
    /// becomes complete.
    pub is_dead: bool,
    /// Whether the newest incarnation continued from an older checkpoint although this checkpoint was complete.
    pub is_set_aside: bool,
    /// Whether a part of the checkpoint could not be read this time, or needs a newer build of this program. Such a
    /// checkpoint may be complete or incomplete.
    pub is_unreadable: bool,
    /// Why the checkpoint was marked as bad ([`mark_bad`](crate::marks::mark_bad)); `None` if the checkpoint was not
    /// marked.
    pub bad: Option<String>,
    /// The damage that a reader found and that the metadata do not show
    /// ([`mark_damaged`](crate::marks::mark_damaged)); `None` if no reader found damage.
    pub found_damaged: Option<String>,
}

/// The state of a checkpoint as a restart sees it, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// All groups are committed, and according to the metadata the checkpoint can be restored.
    Complete,
    /// The checkpoint can be restored but was marked as bad. A restart uses such a checkpoint only if the user names
    /// the checkpoint.
    Bad,
    /// At least one group was not committed.
    Incomplete,
    /// The checkpoint was committed and cannot be restored, because a part of it is missing, cut or changed.
    Damaged,
    /// A part of the checkpoint cannot be read at present. The checkpoint may be complete, so a restart must not use
    /// an older checkpoint instead, and prune must not remove the checkpoint.
    Unreadable,
    /// Prune removed the checkpoint. Only containers to which other checkpoints refer remain.
    Pruned,
    /// A newer incarnation began before the checkpoint was complete. The checkpoint never becomes complete.
    Dead,
}

impl Condition {
    /// The word that `mcr list` prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Bad => "bad",
            Self::Incomplete => "incomplete",
            Self::Damaged => "damaged",
            Self::Unreadable => "unreadable",
            Self::Pruned => "pruned",
            Self::Dead => "dead",
        }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl CheckpointState {
    /// Whether the checkpoint exists (as docs/format/manifest.md defines it) and can be restored according to its
    /// metadata. The result is also true for checkpoints that were marked as bad; [`CheckpointState::condition`]
    /// distinguishes complete and bad checkpoints.
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }

    /// The condition of the checkpoint, in one word.
    pub fn condition(&self) -> Condition {
        match () {
            () if self.is_pruned => Condition::Pruned,
            () if self.is_unreadable => Condition::Unreadable,
            () if self.is_damaged => Condition::Damaged,
            () if self.is_dead => Condition::Dead,
            () if !self.problems.is_empty() => Condition::Incomplete,
            () if self.bad.is_some() => Condition::Bad,
            () => Condition::Complete,
        }
    }
}

impl CheckpointState {
    pub(crate) fn agrees(&self, manifest: &Manifest<FileTotals>) -> bool {
        (self.ranks, self.groups, self.group_size) == (manifest.ranks, manifest.groups, manifest.group_size)
            && self.place.is_none_or(|place| place.incarnation == manifest.incarnation)
    }

    /// Marks the checkpoint as set aside or dead. `next` is the incarnation after the checkpoint's own incarnation,
    /// and `line` are the incarnations from which the newest incarnation descends.
    pub(super) fn judge(&mut self, place: Place, next: Option<&Incarnation>, line: &Line<'_>) {
        let Some(next) = next else { return };
        self.is_dead = next.is_death_of(&self.id, place);
        self.is_set_aside = !self.is_dead && line.set_aside_by(place).is_some();
        if self.is_dead {
            self.problems
                .push(format!("it was incomplete when {} began, so it never becomes complete", next.describe()));
        }
    }

    pub(crate) fn add(&mut self, manifest: Manifest<FileTotals>) {
        self.place = self.place.max(Some(manifest.place()));
        self.files += manifest.files.files;
        self.file_bytes = self.file_bytes.saturating_add(manifest.files.bytes);
        (self.ranks, self.groups, self.group_size) = (manifest.ranks, manifest.groups, manifest.group_size);
        self.scheme = manifest.scheme;
        self.profile = manifest.profile;
        self.raw_bytes.0 = self.raw_bytes.0.saturating_add(manifest.raw_bytes.0);
        self.stored_bytes.0 = self.stored_bytes.0.saturating_add(manifest.stored_bytes.0);
        self.created_unix_ms = self.created_unix_ms.max(manifest.created_unix_ms);
        self.elapsed_ms = self.elapsed_ms.max(manifest.elapsed_ms);
        self.references.extend(manifest.references);
        self.doubt = self.doubt.take().or(manifest.doubt.map(|doubt| doubt.why));
    }
}

/// The state of a checkpoint before any of its files was read.
pub(crate) fn unknown_state(id: &CheckpointId) -> CheckpointState {
    CheckpointState {
        id: id.clone(),
        place: None,
        ranks: 0,
        groups: 0,
        group_size: 0,
        scheme: Scheme::default(),
        profile: String::new(),
        files: 0,
        file_bytes: 0,
        raw_bytes: RawBytes(0),
        stored_bytes: StoredBytes(0),
        created_unix_ms: 0,
        elapsed_ms: 0,
        references: Vec::new(),
        problems: Vec::new(),
        is_pruned: false,
        is_damaged: false,
        is_unfinished: false,
        doubt: None,
        is_dead: false,
        is_set_aside: false,
        is_unreadable: false,
        bad: None,
        found_damaged: None,
    }
}
