//! Copies one container, and compares every byte with a checksum on the way.

use super::needed::Needed;
use crate::container::ContainerReader;
use crate::error::{CopyError, ReadError};
use crate::ids::Digest;
use crate::store::{Store, TempFile};
use std::path::Path;

/// Opens a container and compares its length and its index digest with the expected values.
pub(super) fn open_needed(store: &dyn Store, path: &Path, needed: &Needed) -> Result<ContainerReader, ReadError> {
    let file = store.open(path).map_err(ReadError::from_store)?;
    let reader = ContainerReader::from_file(file, store.root().join(path))?;
    let foreign = |what, expected: String, found: String| {
        Err(ReadError::Foreign { path: reader.path().into(), what, expected, found })
    };
    if reader.index_digest() != needed.index_digest() {
        let (expected, found) = (needed.index_digest().to_hex(), reader.index_digest().to_hex());
        return foreign("the digest of its index", expected, found);
    }
    match needed {
        Needed::Own(own) if own.bytes != reader.bytes() => {
            foreign("its length", own.bytes.to_string(), reader.bytes().to_string())
        }
        _ => Ok(reader),
    }
}

/// Compares the digest of the frame with the expected value. The frame of an older container may differ, because
/// prune may have repacked the container.
pub(super) fn check_frame(reader: &ContainerReader, found: Digest, needed: &Needed) -> Result<(), ReadError> {
    match needed {
        Needed::Own(own) if own.digest != found => {
            let (path, what) = (reader.path().into(), "the frame of the container".into());
            Err(ReadError::Digest { path, what, found, recorded: own.digest })
        }
        _ => Ok(()),
    }
}

/// Reads all bytes of a container, and compares every checksum. Returns the length.
pub(super) fn check_container(store: &dyn Store, path: &Path, needed: &Needed) -> Result<u64, ReadError> {
    let reader = open_needed(store, path, needed)?;
    let frame = reader.read_all(|_| Ok::<_, ReadError>(()))?;
    check_frame(&reader, frame, needed)?;
    Ok(reader.bytes())
}

/// Copies a container to a temporary file in a directory. The copy is durable. The checksums of all segments are
/// compared with the bytes that are copied, and the copy is opened again.
pub(super) fn copy_container(
    from: &dyn Store,
    path: &Path,
    needed: &Needed,
    to: &dyn Store,
    dir: &Path,
    progress: &dyn Fn(u64),
) -> Result<Box<dyn TempFile>, CopyError> {
    let reader = open_needed(from, path, needed)?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut temp = to.create_temp(dir, name)?;
    let frame = reader.read_all(|part| {
        temp.append(part)?;
        progress(part.len() as u64);
        Ok::<_, CopyError>(())
    })?;
    check_frame(&reader, frame, needed)?;
    temp.sync()?;
    let copy = open_needed(to, temp.path(), needed)?;
    let (expected, found) = (reader.bytes(), copy.bytes());
    if found != expected {
        let (path, what) = (copy.path().into(), "its length");
        let (expected, found) = (expected.to_string(), found.to_string());
        return Err(ReadError::Foreign { path, what, expected, found }.into());
    }
    Ok(temp)
}
