//! Writes and reads manifests, and finds the newest checkpoint. A manifest is the small file that commits a group.
//!
//! **A checkpoint exists if and only if the valid manifests in its directory cover all of its groups.** There is no
//! other record, no root file and no lock. docs/format/manifest.md describes the text of a manifest.

mod commit;
mod completion;
mod files;
mod format;
mod list;
mod spoiled;
mod state;
mod taken;

pub use commit::{ManifestDraft, UncommittedManifest, commit, write};
pub(crate) use completion::NOTE;
pub use completion::{Completion, has_manifest};
pub use files::{FileTotals, Files};
pub use format::{
    About, Doubt, KnownContainer, MANIFEST_BYTES_MAX, MANIFEST_VERSION, Manifest, ManifestContainer, ManifestFile,
    Place, Referred, age, is_there, manifest_name, manifests, read_manifest,
};
pub(crate) use format::{
    PRUNED, checked_body, group_of_manifest, manifest_path, missing_groups, read_head, read_head_and_text,
    readable_bytes, with_job,
};
pub use list::{
    foreign_job, has_all_manifests, has_checkpoints, jobs, list, list_remembering, list_with_records, newest_of_group,
    newest_restorable, state, unfinished,
};
pub use spoiled::spoil;
pub(crate) use spoiled::{SPOILED, spoiled};
pub(crate) use state::unknown_state;
pub use state::{CheckpointState, Condition};
pub(crate) use taken::check_not_committed;
pub use taken::{has_container, lost, may_be_referred_to};
