//! Finds variables that need not be stored again, because the previous checkpoint or another rank has the same bytes.

use crate::classify::VariableRef;
use crate::container::{
    ContainerReader, ContainerRef, DIGEST_BYTES_MIN, Index, Placement, REFERENCES_MAX, ReadError, Source,
};
use crate::header::FileHeader;
use crate::ids::{Digest, JobId};
use crate::manifest::Manifest;
use crate::store::Store;
use crate::units::RawBytes;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of consecutive checkpoints that may refer to one container. Therefore a damaged bit in the
/// container spoils at most this many other checkpoints.
pub const DEPENDENTS_MAX: u32 = 8;

/// The variables that the previous checkpoint of a group holds, by digest.
#[derive(Clone, Debug, Default)]
pub struct ReuseIndex {
    containers: Vec<Arc<ContainerRef>>,
    by_digest: HashMap<Digest, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    container: u32,
    at: VariableRef,
    raw_bytes: RawBytes,
}

impl ReuseIndex {
    /// An index without any variable.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The variables that a committed group holds, in its own container or by reference. Each entry names the
    /// container that stores the bytes.
    ///
    /// A container may refer to at most 16 older containers. If there are more than 16 older containers, the
    /// containers that save the fewest bytes are left out, and their variables are stored again. Therefore the number
    /// of references stays limited, and after some time prune can remove old containers. A container on which
    /// [`DEPENDENTS_MAX`] checkpoints depend is left out too.
    pub fn load(store: &dyn Store, job: &JobId, manifest: &Manifest) -> Result<Self, ReadError> {
        let reader = ContainerReader::open(store, job, &manifest.checkpoint, manifest.group)?;
        let (recorded, found) = (manifest.container.index_digest, reader.index_digest());
        if recorded != found {
            let (path, expected, found) = (reader.path().into(), recorded.to_hex(), found.to_hex());
            return Err(ReadError::Foreign { path, what: "the digest of its index", expected, found });
        }
        let index = reader.index();
        let own = Arc::new(ContainerRef {
            checkpoint: manifest.checkpoint.clone(),
            group: manifest.group,
            digest: manifest.container.digest,
            index_digest: manifest.container.index_digest,
        });
        let containers: Vec<_> = [own].into_iter().chain(index.references().iter().cloned()).collect();
        let mut brings = vec![0u64; containers.len()];
        let mut by_digest = HashMap::new();
        for (variable, header) in index.variables().filter(|(_, header)| header.raw_bytes.0 >= DIGEST_BYTES_MIN) {
            let (container, at) = match index.placement(variable) {
                // A variable in a segment with a base is left out, because a reader of this variable would need a
                // second older container.
                Some(Placement::Pieces) if is_coded_since(index, variable) => continue,
                Some(Placement::Pieces) => (0, variable),
                Some(Placement::External { reference, at }) => (reference + 1, at),
                Some(Placement::SameAs(_)) | None => continue, // the equal variable is in the list
            };
            let held = Held { container, at, raw_bytes: header.raw_bytes };
            if by_digest.insert(header.digest, held).is_none() {
                let brings = &mut brings[container as usize];
                *brings = brings.saturating_add(header.raw_bytes.0);
            }
        }
        let known = manifest.known_containers();
        let is_full = |container: &ContainerRef| {
            known.iter().any(|known| known.container == *container && known.dependents >= DEPENDENTS_MAX)
        };
        by_digest.retain(|_, held| !is_full(&containers[held.container as usize]));
        if containers.len() > REFERENCES_MAX {
            // The group's own container is the newest container, and is never left out.
            let mut others: Vec<usize> = (1..containers.len()).collect();
            others.sort_by_key(|&i| std::cmp::Reverse(brings[i]));
            let dropped = &others[REFERENCES_MAX - 1..];
            by_digest.retain(|_, held| !dropped.contains(&(held.container as usize)));
        }
        Ok(Self { containers, by_digest })
    }

    /// The place of stored bytes with this digest and length. `None` if no stored variable has this digest and
    /// length.
    pub fn source(&self, digest: &Digest, raw_bytes: RawBytes) -> Option<Source> {
        let held = self.by_digest.get(digest).filter(|held| held.raw_bytes == raw_bytes)?;
        let container = Arc::clone(&self.containers[held.container as usize]);
        Some(Source::External { container, at: held.at })
    }

    /// Number of variables in the index.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether the index has no variable.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }
}

/// Whether a part of a variable is in a segment that has a base.
fn is_coded_since(index: &Index, variable: VariableRef) -> bool {
    index.pieces_of(variable).any(|(segment, _)| !index.segments()[segment as usize].dependencies.is_empty())
}

/// The variables that a group need not store, because an older container or another variable of the group has the
/// same bytes. The result determines the argument `skip` of [`plan`](crate::plan::plan), and
/// [`Contents::reused`](crate::container::Contents::reused).
pub fn reusable(files: &[FileHeader], reuse: &ReuseIndex) -> Vec<(VariableRef, Source)> {
    let mut found = Vec::new();
    let mut seen: HashMap<(Digest, RawBytes), VariableRef> = HashMap::new();
    for (f, file) in files.iter().enumerate() {
        for (v, header) in file.variables.iter().enumerate() {
            if header.raw_bytes.0 < DIGEST_BYTES_MIN {
                continue;
            }
            let at = VariableRef { file: f as u32, variable: v as u32 };
            if let Some(target) = seen.get(&(header.digest, header.raw_bytes)) {
                found.push((at, Source::SameAs(*target)));
                continue;
            }
            seen.insert((header.digest, header.raw_bytes), at);
            if let Some(source) = reuse.source(&header.digest, header.raw_bytes) {
                found.push((at, source));
            }
        }
    }
    found
}
