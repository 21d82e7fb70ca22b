//! Compares the checkpoint of a damaged manifest with the checkpoint of the same name in another store.
//!
//! A manifest has no parity, so a repair takes the manifest of another store. Two stores may have different
//! checkpoints of one name: of two runs, or of two steps of a code that overwrites its files. A repair must not mix
//! them. So everything that can still be read here is compared with the manifests there.

use super::route::Route;
use crate::container::{ContainerReader, container_path};
use crate::ids::{CheckpointId, Digest, GroupId};
use crate::manifest::{self, FileTotals, Manifest, read_head, readable_bytes};
use crate::parity;

/// The result of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sameness {
    /// At least one group is the same, and none differs.
    Same,
    /// The checkpoints differ. The text says in what.
    Differs(String),
    /// Nothing of the checkpoint can be read here.
    Unknown,
}

/// Compares all groups of a checkpoint that can be read in both stores.
pub(super) fn compare(route: &Route<'_>, id: &CheckpointId, groups: u32) -> Sameness {
    let (from, to) = (route.from, route.to);
    // Newer checkpoints name the containers to which they refer.
    let named = manifest::list(to.store, to.job).unwrap_or_default();
    let named: Vec<_> = named.iter().flat_map(|state| &state.references).filter(|one| one.checkpoint == *id).collect();
    let mut result = Sameness::Unknown;
    for group in (0..groups).map(GroupId) {
        let Ok(theirs) = read_head(from.store, from.job, id, group) else { continue };
        let referred = named.iter().filter(|one| one.group == group).map(|one| one.index_digest);
        match compare_group(route, &theirs, referred) {
            Sameness::Differs(what) => return Sameness::Differs(what),
            Sameness::Same => result = Sameness::Same,
            Sameness::Unknown => {}
        }
    }
    result
}

/// Compares one group. `named_here` has the digests by which newer checkpoints here name the container of the group.
fn compare_group(
    route: &Route<'_>,
    theirs: &Manifest<FileTotals>,
    named_here: impl Iterator<Item = Digest>,
) -> Sameness {
    let (to, id, group) = (route.to, &theirs.checkpoint, theirs.group);
    let own = match read_head(to.store, to.job, id, group) {
        Ok(ours) => {
            if let Some(what) = difference(&ours, theirs) {
                return Sameness::Differs(what);
            }
            Sameness::Same
        }
        Err(_) => Sameness::Unknown,
    };
    let wanted = theirs.container.index_digest;
    let mut found: Vec<Digest> = named_here.collect();
    found.extend(ContainerReader::open(to.store, to.job, id, group).map(|container| container.index_digest()));
    found.extend(parity::index_digest_of(to.store, &container_path(to.job, id, group)));
    if found.iter().any(|digest| *digest != wanted) {
        return Sameness::Differs(format!("the container of {group} here has other files than the one there"));
    }
    match found.is_empty() && own == Sameness::Unknown {
        false => Sameness::Same,
        // The damage usually leaves most lines of a manifest as they were.
        true if names_container(route, theirs) => Sameness::Same,
        true => Sameness::Unknown,
    }
}

/// Why two readable manifests do not describe the same group; `None` if they do.
fn difference(ours: &Manifest<FileTotals>, theirs: &Manifest<FileTotals>) -> Option<String> {
    let (here, there) = (ours.place(), theirs.place());
    let group = theirs.group;
    match () {
        () if here.incarnation != there.incarnation => {
            Some(format!("{group} was saved by incarnation {} there and {} here", there.incarnation, here.incarnation))
        }
        () if here.written_unix_ms != there.written_unix_ms => {
            let (way, ms) = match there.written_unix_ms.saturating_sub(here.written_unix_ms) {
                later if later > 0 => ("after", later),
                earlier => ("before", earlier.saturating_neg()),
            };
            let seconds = ms as f64 / 1000.0;
            Some(format!("the files of {group} there were written {seconds:.3} s {way} the files here"))
        }
        () if (ours.ranks, ours.group_size) != (theirs.ranks, theirs.group_size) => Some(format!(
            "it has {} ranks in groups of {} there, and {} ranks in groups of {} here",
            theirs.ranks, theirs.group_size, ours.ranks, ours.group_size
        )),
        () if ours.container != theirs.container => Some(format!("the container of {group} is another one there")),
        () => None,
    }
}

/// Whether the damaged manifest here still has one of the digests of the container.
fn names_container(route: &Route<'_>, theirs: &Manifest<FileTotals>) -> bool {
    let to = route.to;
    let text = readable_bytes(to.store, to.job, &theirs.checkpoint, theirs.group);
    let digests = [theirs.container.index_digest, theirs.container.digest].map(|digest| digest.to_hex());
    let has = |text: &[u8], hex: &str| text.windows(hex.len()).any(|window| window == hex.as_bytes());
    text.is_some_and(|text| digests.iter().any(|hex| has(&text, hex)))
}
