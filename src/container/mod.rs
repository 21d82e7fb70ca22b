#![doc = include_str!("../../docs/format/container.md")]

mod columns;
mod decode;
mod decoding;
mod encode;
mod index;
pub mod layout;
mod pieces;
mod reader;
mod repacked;
mod repacked_tail;
mod segments;
mod set;
mod variables;
mod writer;

pub use crate::error::ReadError;
pub use decoding::DecodingMemory;
pub use index::{
    BaseRef, BaseSegment, ContainerRef, Contents, Dependency, EXTENTS_MAX, Index, NO_DIGEST, PIECES_MAX, Placement,
    REFERENCES_MAX, SegmentEntry, Source, StoredSegment, VARIABLES_MAX,
};
pub use layout::{DIGEST_BYTES_MIN, INDEX_RAW_MAX, SEGMENT_RAW_MAX, VERSION};
pub use reader::{ContainerReader, parse_index, parse_segment_header};
pub(crate) use repacked::{Kept, KeptSegment};
pub(crate) use repacked_tail::repacked_tail;
pub use segments::{ReadOrder, SegmentBuffer, Spool, TaskQueue};
pub(crate) use set::SegmentKey;
pub use set::{ContainerSet, Delivery, SegmentTask};
pub use variables::VariableReader;
pub(crate) use variables::segments_of;
pub use writer::{ContainerSummary, ContainerWriter, SealedContainer, UnsealedContainer, UnsyncedDirs};

use crate::ids::{CheckpointId, GroupId, JobId};
use std::path::PathBuf;

/// The directory of a checkpoint, from the root of the store.
pub fn checkpoint_dir(job: &JobId, checkpoint: &CheckpointId) -> PathBuf {
    PathBuf::from(job.as_str()).join(checkpoint.as_str())
}

/// The name of a group's container in the directory of its checkpoint.
pub fn container_name(group: GroupId) -> String {
    format!("group-{:04}.mcr", group.0)
}

/// The path of a container, from the root of the store.
pub fn container_path(job: &JobId, checkpoint: &CheckpointId, group: GroupId) -> PathBuf {
    checkpoint_dir(job, checkpoint).join(container_name(group))
}
