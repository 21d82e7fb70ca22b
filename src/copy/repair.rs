//! Mends damaged files of a checkpoint: containers by their parity, and all files by the intact files of the same
//! name and digest in another store.

use super::container::{check_container, copy_container};
use super::needed::Needed;
use super::plan::{Need, Newer, check_replaceable, expected_text, has_reference};
use super::route::{Route, Side};
use super::same::{Sameness, compare};
use crate::container::{ContainerReader, checkpoint_dir, container_path};
use crate::error::{Advice, CopyError, ReadError, StoreError};
use crate::error_chain::error_chain;
use crate::ids::{CheckpointId, GroupId};
use crate::manifest::{self, CheckpointState, FileTotals, Manifest, manifest_name, manifest_path, read_head};
use crate::parity::{self, MendError, parity_path};
use crate::store::create_dirs;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The files that were replaced.
    pub mended: Vec<MendedFile>,
    /// The damaged files that could not be replaced. Each entry is a sentence that names the file and the reason.
    pub left: Vec<String>,
}

/// A file that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MendedFile {
    /// Path of the file, relative to the store.
    pub path: PathBuf,
    /// Where the bytes of the new file are from.
    pub by: MendedBy,
    /// Number of bytes that were computed, copied or written again.
    pub bytes: u64,
}

/// Where the bytes of a mended file are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MendedBy {
    /// The damaged blocks of a container were computed from its parity.
    Parity,
    /// The file is a copy of the file of another store.
    Copy,
    /// The file is a damaged parity file, which was computed again from its intact container.
    Container,
}

/// What the user can do if nothing mends a file.
const NAME_A_STORE: &str = "name a store that has an intact copy with --from";
/// What the user can do if the other store has another checkpoint of the same name.
const ANOTHER: &str = "name the store of the copy with --from, or copy the other checkpoint to a job with another \
                       name (mcr copy --to-job)";

fn another(id: &CheckpointId, what: &str) -> String {
    format!("not mended: the other store has another checkpoint with the name {id}: {what}")
}

/// Mends the damaged and missing files that a checkpoint of `to` needs. A damaged container is mended by its parity.
/// If the parity cannot mend the container, the container is replaced by the container of `from`. A damaged manifest
/// is replaced by the manifest of `from`. A damaged parity file is computed again if its container is intact.
///
/// The checksums and digests of a new file are verified first. Then one rename replaces the old file, so a failure at
/// any moment leaves the old or the new file. `progress` is called with the number of bytes of each written part.
pub fn repair(
    to: Side<'_>,
    from: Option<Side<'_>>,
    id: &CheckpointId,
    progress: &dyn Fn(u64),
) -> Result<Repaired, CopyError> {
    let state = manifest::state(to.store, to.job, id)?;
    let groups = match (state.groups, from) {
        (0, Some(from)) => manifest::state(from.store, from.job, id)?.groups,
        (groups, _) => groups,
    };
    let mut repair = Repair { to, from, progress, done: Repaired::default(), seen: BTreeSet::new(), same: None };
    if groups == 0 {
        repair.done.left.push(error_chain(&no_copy_of_manifest(to.full(&checkpoint_dir(to.job, id)))));
    }
    for group in (0..groups).map(GroupId) {
        if let Err(error) = repair.group(&state, group) {
            repair.done.left.push(error_chain(&error));
        }
    }
    Ok(repair.done)
}

fn no_copy_of_manifest(path: PathBuf) -> CopyError {
    CopyError::Refused { path, what: "not mended: parity does not cover manifests".into(), way_out: NAME_A_STORE }
}

/// A repair of one checkpoint.
struct Repair<'a> {
    to: Side<'a>,
    from: Option<Side<'a>>,
    progress: &'a dyn Fn(u64),
    done: Repaired,
    /// The containers to which groups refer and that were examined.
    seen: BTreeSet<(CheckpointId, GroupId)>,
    /// Whether the other store has a copy of this checkpoint; `None` if the checkpoints were not compared yet.
    same: Option<Sameness>,
}

impl<'a> Repair<'a> {
    fn route(&self) -> Option<Route<'a>> {
        self.from.map(|from| Route { from, to: self.to })
    }

    fn group(&mut self, state: &CheckpointState, group: GroupId) -> Result<(), CopyError> {
        let (to, id) = (self.to, &state.id);
        let (head, damaged) = match read_head(to.store, to.job, id, group) {
            Ok(head) => (head, None),
            // The group is not committed.
            Err(ReadError::Missing { .. }) => return Ok(()),
            Err(error) if error.advice() == Advice::OlderCheckpoint => {
                let path = to.full(&manifest_path(to.job, id, group));
                let Some(route) = self.route() else { return Err(no_copy_of_manifest(path)) };
                let (head, text) = expected_text(&route, id, group)?;
                self.check_same(&route, state, &head)?;
                (head, Some(text))
            }
            Err(error) => return Err(error.into()),
        };
        let before = self.done.left.len();
        let needed = Needed::Own(head.container.clone());
        let is_whole = is_intact(check_container(to.store, &container_path(to.job, id, group), &needed))?;
        self.container(of(id, group, needed), is_whole);
        for (n, reference) in (0u32..).zip(&head.references) {
            let key = (reference.checkpoint.clone(), reference.group);
            if !self.seen.insert(key) {
                continue;
            }
            let needed = Needed::Reference(reference.index_digest);
            let path = container_path(to.job, &reference.checkpoint, reference.group);
            let newer = Newer { side: to, checkpoint: id, group };
            let is_whole = match check_container(to.store, &path, &needed) {
                Ok(_) => has_reference(&to, newer, n, reference)?,
                Err(error) => is_intact(Err(error))?,
            };
            self.container(of(&reference.checkpoint, reference.group, needed), is_whole);
        }
        match (damaged, self.route()) {
            // A manifest is written only if all files that it names are there.
            (Some(text), Some(route)) if self.done.left.len() == before => {
                replace_manifest(&route, &head, &text, &mut self.done)
            }
            _ => Ok(()),
        }
    }

    /// Fails unless the other store has a copy of this checkpoint, as far as this can be seen from what is readable
    /// here. Otherwise the repair would mix the files of two runs or of two steps.
    fn check_same(
        &mut self,
        route: &Route<'_>,
        state: &CheckpointState,
        theirs: &Manifest<FileTotals>,
    ) -> Result<(), CopyError> {
        let path = route.to.full(&manifest_path(route.to.job, &state.id, theirs.group));
        let refuse = |what: String| Err(CopyError::Refused { path, what, way_out: ANOTHER });
        if state.groups > 0 && !state.agrees(theirs) {
            return refuse(another(&state.id, "the number of ranks, the groups or the incarnation differ"));
        }
        let same = self.same.get_or_insert_with(|| compare(route, &state.id, theirs.groups));
        match same {
            Sameness::Same => Ok(()),
            Sameness::Differs(what) => refuse(another(&state.id, what)),
            Sameness::Unknown => refuse(format!(
                "not mended: nothing that can be read here shows that the other store has a copy of the same {}",
                state.id
            )),
        }
    }

    /// Mends a container if it is damaged, then its parity, and notes the results.
    fn container(&mut self, need: Need, is_whole: bool) {
        let path = container_path(self.to.job, &need.checkpoint, need.group);
        if !is_whole {
            match self.mend(&path, &need) {
                Ok((by, bytes)) => self.done.mended.push(MendedFile { path: path.clone(), by, bytes }),
                Err(reasons) => {
                    self.done.left.push(format!("{}: not mended: {reasons}", path.display()));
                    return;
                }
            }
        }
        if let Err(error) = self.parity(&path, &need.needed) {
            self.done.left.push(format!("{}: not mended: {}", parity_path(&path).display(), error_chain(&error)));
        }
    }

    /// Mends a container. Returns the method, and the number of bytes that were computed or copied. The error is a
    /// sentence with the reasons.
    fn mend(&self, path: &Path, need: &Need) -> Result<(MendedBy, u64), String> {
        let by_parity = match self.by_parity(path, &need.needed) {
            Ok(bytes) => return Ok((MendedBy::Parity, bytes)),
            Err(error) => error_chain(&error),
        };
        let Some(route) = self.route() else { return Err(format!("{by_parity}; {NAME_A_STORE}")) };
        match by_copy(&route, need, self.progress) {
            Ok(bytes) => Ok((MendedBy::Copy, bytes)),
            Err(error) => Err(format!("{by_parity}; and from the other store: {}", error_chain(&error))),
        }
    }

    /// Mends a container by its parity. Returns the number of computed bytes.
    fn by_parity(&self, path: &Path, needed: &Needed) -> Result<u64, MendError> {
        let store = self.to.store;
        let mended = parity::mend(store, path, needed.index_digest(), needed.bytes(), self.progress)?;
        check_container(store, mended.temp.path(), needed)?;
        put(self.to, mended.temp.path(), path)?;
        Ok(mended.bytes)
    }

    /// Computes the parity of an intact container again if the parity file is damaged.
    fn parity(&mut self, path: &Path, needed: &Needed) -> Result<(), StoreError> {
        let store = self.to.store;
        let bytes = store.stat(path)?.bytes;
        if is_intact(parity::check(store, path, needed.index_digest(), bytes).map(|_| bytes))? {
            return Ok(());
        }
        let Some(found) = parity::find(store, path) else { return Ok(()) };
        let percent = parity::percent_of(&found);
        let temp = parity::write(store, path, path, needed.index_digest(), percent, parity::MEMORY_BYTES)?;
        let bytes = store.stat(temp.path())?.bytes;
        let path = parity_path(path);
        put(self.to, temp.path(), &path)?;
        self.done.mended.push(MendedFile { path, by: MendedBy::Container, bytes });
        Ok(())
    }
}

/// Gives a finished file its final name, durably.
fn put(to: Side<'_>, temp: &Path, path: &Path) -> Result<(), StoreError> {
    if to.store.is_held(path) {
        return Err(StoreError::Busy { path: to.full(path) });
    }
    to.store.rename(temp, path)?;
    to.store.sync_dir(path.parent().unwrap_or(Path::new("")))
}

/// Whether a file is intact. A sector that the disk cannot read counts as damage, because a new file gets other
/// sectors. Fails if the file cannot be read at present for another reason.
fn is_intact(checked: Result<u64, ReadError>) -> Result<bool, ReadError> {
    match checked {
        Ok(_) => Ok(true),
        Err(error) if error.advice() == Advice::OlderCheckpoint => Ok(false),
        Err(ReadError::Io { source, .. }) if source.raw_os_error() == Some(nix::libc::EIO) => Ok(false),
        Err(error) => Err(error),
    }
}

fn of(checkpoint: &CheckpointId, group: GroupId, needed: Needed) -> Need {
    Need { checkpoint: checkpoint.clone(), group, bytes: 0, needed }
}

/// Replaces a container by the container of the other store. Returns its length.
fn by_copy(route: &Route<'_>, need: &Need, progress: &dyn Fn(u64)) -> Result<u64, CopyError> {
    let (from, to) = (route.from, route.to);
    let (source, path) =
        (container_path(from.job, &need.checkpoint, need.group), container_path(to.job, &need.checkpoint, need.group));
    let dir = checkpoint_dir(to.job, &need.checkpoint);
    let wanted = need.needed.index_digest();
    let index_digest = |side: Side<'_>| {
        ContainerReader::open(side.store, side.job, &need.checkpoint, need.group).map(|found| found.index_digest())
    };
    if index_digest(from).is_ok_and(|theirs| theirs != wanted) {
        let what = format!("its container of {} has other files", need.group);
        let what = format!("the other store has another checkpoint with the name {}: {what}", need.checkpoint);
        return Err(CopyError::Refused { path: from.full(&source), what, way_out: ANOTHER });
    }
    // A container here that is another one may be needed, unless the manifest beside it names the wanted container.
    let is_named = || {
        let head = read_head(to.store, to.job, &need.checkpoint, need.group);
        head.is_ok_and(|head| head.container.index_digest == wanted)
    };
    if index_digest(to).is_ok_and(|ours| ours != wanted) && !is_named() {
        let what = "it is the container of another checkpoint, and is not replaced".into();
        let way_out = "move it out of the store if it is not needed";
        return Err(CopyError::Refused { path: to.full(&path), what, way_out });
    }
    create_dirs(to.store, &dir)?;
    let copied = copy_container(from.store, &source, &need.needed, to.store, &dir, progress)?;
    check_replaceable(route, need)?;
    put(to, copied.path(), &path)?;
    Ok(check_container(to.store, &path, &need.needed)?)
}

fn replace_manifest(
    route: &Route<'_>,
    head: &Manifest<FileTotals>,
    text: &[u8],
    done: &mut Repaired,
) -> Result<(), CopyError> {
    let to = route.to;
    let dir = checkpoint_dir(to.job, &head.checkpoint);
    let path = manifest_path(to.job, &head.checkpoint, head.group);
    let mut temp = to.store.create_temp(&dir, &manifest_name(head.group))?;
    temp.append(text)?;
    temp.sync()?;
    put(to, temp.path(), &path)?;
    done.mended.push(MendedFile { path, by: MendedBy::Copy, bytes: text.len() as u64 });
    Ok(())
}
