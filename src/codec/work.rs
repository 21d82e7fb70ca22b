//! Memory that codecs keep between segments.

use super::Older;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

/// Buffers and contexts that a worker thread uses for one segment after the other. Each worker thread has a separate
/// `Scratch`. The size of a `Scratch` is at most a small multiple of the bytes of the largest segment so far.
#[derive(Default)]
pub struct Scratch {
    pub(super) front: Vec<u8>,
    pub(super) back: Vec<u8>,
    /// The table with which `repeats_per_mille` finds repeats.
    pub(super) seen: Vec<u32>,
    pub(super) work: Work,
}

/// The part of [`Scratch`] that codecs use.
#[derive(Default)]
pub struct Work {
    /// Buffers and contexts of the codecs, found by their type.
    kept: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
    /// Number of threads that a codec may use, including the caller. With 0 or 1, only the calling thread works.
    pub(super) threads: usize,
    /// The older segment for codec `since`.
    pub(super) older: Option<Arc<Older>>,
}

impl Work {
    /// The buffers or contexts of a codec: kept from an earlier call, or new on the first call.
    pub(super) fn kept<T: Any + Default + Send + Sync>(&mut self) -> &mut T {
        let kept = self.kept.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(T::default()));
        kept.downcast_mut().expect("each value is stored under its own type")
    }
}

impl Scratch {
    /// Sets the number of threads that a codec may use, including the caller. The results do not depend on this
    /// number.
    pub fn set_threads(&mut self, threads: usize) {
        self.work.threads = threads;
    }

    /// Sets the older segment for codec `since`. The codec uses this older segment until the next call of
    /// `set_older`.
    pub fn set_older(&mut self, older: Option<Arc<Older>>) {
        self.work.older = older;
    }
}

/// Makes `buffer` exactly `bytes` long without clearing its old contents. The caller must overwrite every byte.
pub(crate) fn resize_for_overwrite(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.capacity() < bytes {
        *buffer = vec![0; bytes]; // the system gives zeroed pages, so no page is written twice
    } else if buffer.len() > bytes {
        buffer.truncate(bytes);
    } else {
        buffer.resize(bytes, 0);
    }
}
