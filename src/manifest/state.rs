//! What is known of a checkpoint from its manifests.

use super::{FileTotals, Manifest, Place};
use crate::container::ContainerRef;
use crate::ids::CheckpointId;
use crate::incarnation::Incarnation;
use crate::plan::Scheme;
use crate::units::{RawBytes, StoredBytes};
use serde::Serialize;

/// A checkpoint as its directory shows it, complete or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointState {
    /// Its name.
    pub id: CheckpointId,
    /// Where it stands in the order of checkpoints: its newest file of all groups. `None` where no manifest can be
    /// read.
    pub place: Option<Place>,
    /// Ranks of the job.
    pub ranks: u32,
    /// Groups it has when complete.
    pub groups: u32,
    /// Ranks of each group but perhaps the last.
    pub group_size: u32,
    /// How the variables were put together.
    pub scheme: Scheme,
    /// How codecs were chosen.
    pub profile: String,
    /// Files of the groups that are there.
    pub files: u64,
    /// Bytes of those files: what a ratio of compression compares with.
    pub file_bytes: u64,
    /// Bytes of their variables.
    pub raw_bytes: RawBytes,
    /// Bytes of their containers.
    pub stored_bytes: StoredBytes,
    /// The first of their commits, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The longest that a group took.
    pub elapsed_ms: u64,
    /// The older containers they refer to, without repetition.
    pub references: Vec<ContainerRef>,
    /// Why it is not complete; nothing if it is.
    pub problems: Vec<String>,
    /// Whether it was pruned, and stands here only for what others refer to.
    pub is_pruned: bool,
    /// Whether something of it is there that cannot be used, or a container is missing that a manifest names: unlike
    /// a group that is missing, it was committed once.
    pub is_damaged: bool,
    /// Why it cannot be known that all of its files are of one step, if it cannot.
    pub doubt: Option<String>,
    /// Whether a newer incarnation began before all of its groups were committed: it never becomes complete.
    pub is_dead: bool,
    /// Whether the newest incarnation went on from an older checkpoint although this one was whole.
    pub is_set_aside: bool,
    /// Whether something of it could not be read just now, or asks for a newer build: it may be whole, and nobody
    /// knows.
    pub is_unreadable: bool,
    /// Why somebody marked it as bad ([`mark_bad`](crate::marks::mark_bad)), if somebody did.
    pub bad: Option<String>,
    /// What damage a reader found that metadata do not show ([`mark_damaged`](crate::marks::mark_damaged)), if one did.
    pub found_damaged: Option<String>,
}

/// In one word, what a checkpoint is for a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// It exists, and metadata says that it can be restored.
    Complete,
    /// It can be restored, and somebody marked it as bad: only who asks for it gets it.
    Bad,
    /// A group was not committed.
    Incomplete,
    /// It was committed and cannot be restored: something is missing, cut or changed.
    Damaged,
    /// Something of it cannot be read just now. It may be whole: this is no reason to take an older one, nor to
    /// remove it.
    Unreadable,
    /// It was removed by prune; containers that others refer to are left.
    Pruned,
    /// A newer incarnation began before it was whole: it never becomes complete.
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
    /// Whether it exists, in the sense of FORMAT.md, and can be restored as far as metadata tells. One that was
    /// marked as bad is complete too: [`CheckpointState::condition`] tells them apart.
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }

    /// What it is, in one word.
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

    /// What the next incarnation and the newest one mean for it.
    pub(super) fn judge(&mut self, place: Place, next: Option<&Incarnation>, newest: Option<&Incarnation>) {
        self.is_set_aside = newest.is_some_and(|newest| newest.sets_aside(&self.id));
        let Some(next) = next else { return };
        self.is_dead = next.is_death_of(&self.id, place);
        if self.is_dead {
            self.problems.push(format!("{} began before it was whole, so it never becomes whole", next.describe()));
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
        self.created_unix_ms = self.created_unix_ms.min(manifest.created_unix_ms);
        self.elapsed_ms = self.elapsed_ms.max(manifest.elapsed_ms);
        self.references.extend(manifest.references);
        self.doubt = self.doubt.take().or(manifest.doubt);
    }
}

/// A checkpoint of which nothing is known yet.
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
        created_unix_ms: u64::MAX,
        elapsed_ms: 0,
        references: Vec::new(),
        problems: Vec::new(),
        is_pruned: false,
        is_damaged: false,
        doubt: None,
        is_dead: false,
        is_set_aside: false,
        is_unreadable: false,
        bad: None,
        found_damaged: None,
    }
}
