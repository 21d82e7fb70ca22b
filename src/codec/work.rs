//! What is kept from segment to segment.

use super::Older;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

/// Buffers and contexts that are used again from segment to segment; one per worker thread. Holds at most a few times
/// the largest segment it has seen.
#[derive(Default)]
pub struct Scratch {
    pub(super) front: Vec<u8>,
    pub(super) back: Vec<u8>,
    /// For `choose`.
    pub(super) seen: Vec<u32>,
    pub(super) work: Work,
}

/// The part of [`Scratch`] that codecs use.
#[derive(Default)]
pub struct Work {
    /// The buffers and contexts of each codec that has any, by their type.
    kept: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
    /// Threads that a codec may use beside the caller's; 0 and 1: none.
    pub(super) threads: usize,
    /// What `since` codes and decodes with.
    pub(super) older: Option<Arc<Older>>,
}

impl Work {
    /// The buffers or contexts of a codec: those that it left here, or new ones.
    pub(super) fn kept<T: Any + Default + Send + Sync>(&mut self) -> &mut T {
        let kept = self.kept.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(T::default()));
        kept.downcast_mut().expect("each is stored with its own type")
    }
}

impl Scratch {
    /// Codecs that can may use so many threads, the caller's counted. What they give does not depend on it.
    pub fn set_threads(&mut self, threads: usize) {
        self.work.threads = threads;
    }

    /// What codec `since` codes and decodes with, until it is told otherwise. Nothing keeps it alive longer.
    pub fn set_older(&mut self, older: Option<Arc<Older>>) {
        self.work.older = older;
    }
}

/// Makes `buffer` exactly `bytes` long without clearing what was there; every byte is then written over.
pub(crate) fn resize_for_overwrite(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.capacity() < bytes {
        *buffer = vec![0; bytes]; // new pages are zero already, and touched only once
    } else if buffer.len() > bytes {
        buffer.truncate(bytes);
    } else {
        buffer.resize(bytes, 0);
    }
}
