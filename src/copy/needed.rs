//! The properties by which a copy recognizes a container.

use crate::ids::Digest;
use crate::manifest::ManifestContainer;

/// The properties that a container must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    /// The container of a manifest.
    Own(ManifestContainer),
    /// A container to which a manifest refers.
    Reference(Digest),
}

impl Needed {
    pub(super) fn index_digest(&self) -> Digest {
        match self {
            Self::Own(own) => own.index_digest,
            Self::Reference(digest) => *digest,
        }
    }

    /// Length of the container in bytes, if it is known.
    pub(super) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Own(own) => Some(own.bytes),
            Self::Reference(_) => None,
        }
    }
}
