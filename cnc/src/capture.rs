//! Describes one file of a checkpoint: splits the file into a skeleton and variables, and computes the digest of each
//! part.
//!
//! The file is opened read-only and is never locked. One pass reads the file from front to back through one bounded
//! buffer. The pass computes the digest of the file and of the variables whose extents are in file order. Other
//! variables, and chunks with filters, are read a second time. The filters of a chunk are removed only if applying
//! them again reproduces the stored bytes. A file whose structure cannot be read becomes one opaque variable. A
//! capture fails only if the file cannot be read, or if the file changes during the capture.

use crate::fingerprint::Fingerprint;
use crate::h5::{End, FileMap, MapInput, MapSource, MappedVariable, hdf5_end};
use digests::{PENDING, digests};
use filters::filtered;
use input::Input;
use mcrengine::codec::Scratch;
use mcrengine::header::{ElementType, Extent, FileHeader, Filter, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath, Rank};
use mcrengine::units::RawBytes;
use rest::rested;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use tracing::debug;

mod digests;
mod error;
mod filters;
mod image;
mod input;
mod mode;
mod rest;
mod verdicts;
pub use error::CaptureError;
pub(crate) use error::changed_if_short;
pub use image::Image;
pub use mode::CaptureMode;
pub(crate) use rest::{metadata, open};
pub use verdicts::Verdicts;

/// A file that was read completely and did not change while it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFile {
    /// The description of the file. The description has passed [`FileHeader::check`].
    pub header: FileHeader,
    /// Fingerprint of the described content.
    pub fingerprint: Fingerprint,
    /// When the file was created, in nanoseconds since 1970. `None` if the file system does not record it.
    pub created_ns: Option<i64>,
    /// Whether the file is HDF5 and longer than its superblock states, see [`End::Longer`].
    pub is_longer: bool,
}

/// Maximum number of consecutive variables for which no chunk could be described without its filters. When this
/// number is reached, no further variables of the file with the same filters are tried.
const FAILED_VARIABLES_MAX: u32 = 2;

fn created_ns(metadata: &std::fs::Metadata) -> Option<i64> {
    let since_1970 = metadata.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since_1970.as_nanos()).ok()
}

/// Reads a file below `root` and describes it.
pub fn capture(
    root: &Path,
    path: &FilePath,
    rank: Rank,
    mode: CaptureMode,
    maps: &dyn MapSource,
) -> Result<CapturedFile, CaptureError> {
    capture_keeping(root, path, rank, mode, &Verdicts::default(), maps, &mut |_| false).map(|(file, _)| file)
}

/// Captures a file like [`capture`], but uses the verdicts from other files, and can also return the bytes of a short
/// file. `keep` is called with a number of bytes, and returns whether these bytes stay in memory. `keep` is called
/// first for the bytes of the file, and then for the raw bytes of each variable whose filters are removed.
///
/// If the bytes are kept, variables shorter than [`DIGEST_BYTES_MIN`] get [`NO_DIGEST`], as in a container's index.
/// The bytes of such variables are never read a second time, so they need no digest. Thousands of short digests would
/// take longer than all long digests together.
///
/// [`DIGEST_BYTES_MIN`]: mcrengine::container::DIGEST_BYTES_MIN
/// [`NO_DIGEST`]: mcrengine::container::NO_DIGEST
pub fn capture_keeping(
    root: &Path,
    path: &FilePath,
    rank: Rank,
    mode: CaptureMode,
    verdicts: &Verdicts,
    maps: &dyn MapSource,
    keep: &mut dyn FnMut(u64) -> bool,
) -> Result<(CapturedFile, Option<Image>), CaptureError> {
    let name = root.join(path.as_path());
    let file = open(&name)?;
    let metadata = rested(&file, &name)?;
    let fingerprint = Fingerprint::of(&metadata);
    let is_longer =
        hdf5_end(path, fingerprint.bytes, |at, into| file.read_at(into, at)).is_ok_and(|end| end == End::Longer);
    let mut input = Input::new(&file, &metadata, keep).map_err(|e| changed_if_short(e, &name))?;
    let map = match mode {
        CaptureMode::Whole => None,
        CaptureMode::Apart | CaptureMode::ApartLeavingFilters => {
            let whole = input.whole.as_deref();
            maps.map(&MapInput { path: &name, file: &file, bytes: fingerprint.bytes, whole })
                .and_then(|map| map.check(fingerprint.bytes).map(|()| map))
                // A file without a map becomes one opaque variable, whatever the reason is.
                .inspect_err(|error| debug!(file = %name.display(), %error, "described a file as one opaque variable"))
                .ok()
        }
    };
    let (digest, variables) = match map {
        Some(map) => taken_apart(&mut input, map, mode, verdicts),
        None => input.digest().map(|digest| (digest, vec![whole(digest, fingerprint.bytes)])),
    }
    .map_err(|e| changed_if_short(e, &name))?;
    if Fingerprint::of(&self::metadata(&file, &name)?) != fingerprint {
        return Err(CaptureError::Changed { path: name });
    }
    let mut header = FileHeader {
        path: path.clone(),
        rank,
        bytes: fingerprint.bytes,
        kind: Default::default(),
        mode: metadata.mode() & 0o7777,
        modified_ns: fingerprint.modified_ns,
        digest,
        variables,
    };
    let mut chunks = std::mem::take(&mut input.chunks);
    if header.check().is_err() {
        header.variables = vec![whole(digest, fingerprint.bytes)];
        chunks.clear();
    }
    let image = input.whole.take_if(|_| input.keep.is_some()).map(|bytes| Image { bytes, chunks });
    Ok((CapturedFile { header, fingerprint, created_ns: created_ns(&metadata), is_longer }, image))
}

/// The only variable of a file that is not split. The digest of this variable is the digest of the file.
pub(crate) fn whole(digest: Digest, bytes: u64) -> VariableHeader {
    let all = Extent { offset: 0, stored_bytes: bytes, raw_bytes: bytes };
    VariableHeader {
        role: Role::WholeFile,
        path: "".into(),
        element: ElementType::Bytes,
        shape: Shape([bytes].into()),
        chunk: Default::default(),
        raw_bytes: RawBytes(bytes),
        digest,
        filters: [].into(),
        extents: if bytes == 0 { [].into() } else { [all].into() },
    }
}

/// Returns the digest of the file, and its variables with their digests: first the skeleton, then the arrays by path.
fn taken_apart(
    input: &mut Input<'_>,
    map: FileMap,
    mode: CaptureMode,
    verdicts: &Verdicts,
) -> io::Result<(Digest, Vec<VariableHeader>)> {
    let skeleton = map.skeleton(input.bytes);
    let skeleton_bytes = skeleton.iter().map(|e| e.raw_bytes).sum();
    let mut variables = Vec::with_capacity(map.variables.len() + 1);
    variables.push(VariableHeader {
        role: Role::Skeleton,
        path: "".into(),
        element: ElementType::Bytes,
        shape: Shape([skeleton_bytes].into()),
        chunk: Default::default(),
        raw_bytes: RawBytes(skeleton_bytes),
        digest: PENDING,
        filters: [].into(),
        extents: skeleton,
    });
    // For each list of filters: the number of consecutive variables for which no chunk could be described without its
    // filters.
    let mut failed: HashMap<Box<[Filter]>, u32> = HashMap::new();
    let mut scratch = Scratch::default();
    for mapped in map.variables {
        if mapped.filters.is_empty() {
            variables.push(unfiltered(mapped));
            continue;
        }
        let failed = failed.entry(mapped.filters.clone()).or_default();
        let mode = if *failed < FAILED_VARIABLES_MAX { mode } else { CaptureMode::Whole };
        match filtered(input, mapped, mode, verdicts, &mut variables, &mut scratch)? {
            true => *failed = 0,
            false => *failed += 1,
        }
    }
    let digest = digests(input, &mut variables)?;
    Ok((digest, variables))
}

fn unfiltered(mapped: MappedVariable) -> VariableHeader {
    let raw_bytes = RawBytes(mapped.extents.iter().map(|e| e.raw_bytes).sum());
    VariableHeader {
        role: mapped.role,
        path: mapped.path,
        element: mapped.element,
        shape: mapped.shape,
        chunk: mapped.chunk,
        raw_bytes,
        digest: PENDING,
        filters: [].into(),
        extents: mapped.extents.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::container::NO_DIGEST;
    use mcrengine::filter;

    #[test]
    fn a_file_whose_bytes_are_kept_is_the_same_but_for_the_digests_of_short_variables() {
        /// A source of maps with one variable of 4095 bytes and one variable of 4096 bytes.
        struct Two;
        impl MapSource for Two {
            fn map(&self, _: &MapInput<'_>) -> Result<FileMap, crate::h5::H5Error> {
                let variable = |path: &str, offset, bytes| MappedVariable {
                    role: Role::Array,
                    path: path.into(),
                    element: ElementType::Bytes,
                    shape: Shape([bytes].into()),
                    chunk: Default::default(),
                    filters: [].into(),
                    extents: vec![Extent { offset, stored_bytes: bytes, raw_bytes: bytes }],
                };
                Ok(FileMap { variables: vec![variable("/a", 10, 4095), variable("/b", 4200, 4096)] })
            }
        }
        let root = tempfile::tempdir().expect("a directory");
        let bytes: Vec<u8> = (0..10_000u32).map(|i| ((i * i) >> 3) as u8).collect();
        std::fs::write(root.path().join("f"), &bytes).expect("written");
        let path = FilePath::new(&b"f"[..]).expect("valid");
        let capture = |keep: bool| {
            let (mode, verdicts) = (CaptureMode::Apart, Verdicts::default());
            capture_keeping(root.path(), &path, Rank(0), mode, &verdicts, &Two, &mut |_| keep).expect("captured")
        };
        let ((all, none), (mut kept, image)) = (capture(false), capture(true));
        assert_eq!((none, image), (None, Some(Image { bytes: bytes.clone(), chunks: HashMap::new() })));
        assert_eq!(all.header.variables[1].digest, Digest::of(&bytes[10..4105]));
        let digests: Vec<_> = kept.header.variables.iter().map(|v| v.digest).collect();
        assert_eq!(digests, [NO_DIGEST, NO_DIGEST, Digest::of(&bytes[4200..8296])], "the skeleton is short too");
        for (variable, whole) in kept.header.variables.iter_mut().zip(&all.header.variables) {
            variable.digest = whole.digest;
        }
        assert_eq!(kept, all);
    }

    #[test]
    fn chunks_that_came_out_of_filters_are_kept_as_far_as_there_is_room_and_nothing_is_read_again() {
        /// A source of maps with two deflated chunks of 6000 raw bytes each. The field is the stored length of the
        /// first chunk in bytes. The first chunk begins at offset 0.
        struct Two(u64);
        impl MapSource for Two {
            fn map(&self, input: &MapInput<'_>) -> Result<FileMap, crate::h5::H5Error> {
                let extent = |offset, stored_bytes| Extent { offset, stored_bytes, raw_bytes: 6000 };
                let variable = MappedVariable {
                    role: Role::Array,
                    path: "/rho".into(),
                    element: ElementType::F64,
                    shape: Shape([1500].into()),
                    chunk: Shape([750].into()),
                    filters: [Filter::Deflate { level: 6 }].into(),
                    extents: vec![extent(0, self.0), extent(self.0, input.bytes - self.0)],
                };
                Ok(FileMap { variables: vec![variable] })
            }
        }
        let raw: Vec<u8> = (0..1500).flat_map(|i| (f64::from(i) * 0.1).to_le_bytes()).collect();
        let stored: Vec<Vec<u8>> = (raw.chunks(6000))
            .map(|chunk| filter::put_on(&[Filter::Deflate { level: 6 }], chunk).expect("deflated"))
            .collect();
        let (root, path) = (tempfile::tempdir().expect("a directory"), FilePath::new(&b"f"[..]).expect("valid"));
        let (bytes, map) = (stored.concat(), Two(stored[0].len() as u64));
        let room = bytes.len() as u64 + 12_000;
        for (room, chunks) in [(room, 2), (room - 1, 0)] {
            std::fs::write(root.path().join("f"), &bytes).expect("written");
            let mut left = room;
            let mut keep = |bytes| left.checked_sub(bytes).map(|rest| left = rest).is_some();
            let (mode, verdicts) = (CaptureMode::Apart, Verdicts::default());
            let captured = capture_keeping(root.path(), &path, Rank(0), mode, &verdicts, &map, &mut keep);
            let (CapturedFile { header, fingerprint, .. }, image) = captured.expect("captured");
            let image = image.expect("there is room for the file");
            assert_eq!(image.chunks.values().map(Vec::len).sum::<usize>(), chunks, "with room for {room}");
            assert_eq!(header.variables.last().map(|array| array.raw_bytes.0), Some(12_000));
            std::fs::remove_file(root.path().join("f")).expect("removed");
            let array = header.variables.len() - 1;
            let descriptors = crate::source::Descriptors::new(1);
            let open = crate::source::OpenFile::new(root.path(), &header, fingerprint, &descriptors);
            let mut found = vec![0; 9000];
            open.with_image(Some(image.into())).read_raw(array, 1000, &mut found).expect("in memory");
            assert_eq!(found, raw[1000..10_000]);
        }
    }

    #[test]
    fn leaving_filters_the_first_rank_decides_for_all_whether_filters_are_removed() {
        /// A source of maps for a file that consists of one deflated chunk.
        struct Deflated(&'static str, u64);
        impl MapSource for Deflated {
            fn map(&self, input: &MapInput<'_>) -> Result<FileMap, crate::h5::H5Error> {
                let Self(path, raw_bytes) = *self;
                let variable = MappedVariable {
                    role: Role::Array,
                    path: path.into(),
                    element: ElementType::F64,
                    shape: Shape([raw_bytes / 8].into()),
                    chunk: Shape([raw_bytes / 8].into()),
                    filters: [Filter::Deflate { level: 6 }].into(),
                    extents: vec![Extent { offset: 0, stored_bytes: input.bytes, raw_bytes }],
                };
                Ok(FileMap { variables: vec![variable] })
            }
        }
        let smooth = |n: usize| -> Vec<u8> { (0..n).flat_map(|i| (1e3 + i as f64).to_le_bytes()).collect() };
        let rough = |n: usize| -> Vec<u8> {
            let random = (0..n as u64).map(|i| i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
            random.flat_map(|x| x.wrapping_mul(x | 1).to_le_bytes()).collect()
        };
        let root = tempfile::tempdir().expect("a directory");
        let name = FilePath::new(&b"f"[..]).expect("valid");
        let is_taken_off = |path, raw: Vec<u8>, verdicts: &Verdicts| {
            let stored = filter::put_on(&[Filter::Deflate { level: 6 }], &raw).expect("deflated");
            std::fs::write(root.path().join("f"), &stored).expect("written");
            let (mode, map) = (CaptureMode::ApartLeavingFilters, Deflated(path, raw.len() as u64));
            let captured = capture_keeping(root.path(), &name, Rank(0), mode, verdicts, &map, &mut |_| false);
            let (file, _) = captured.expect("captured");
            file.header.variables.iter().any(|variable| variable.role == Role::Array)
        };
        assert!(!is_taken_off("/rho", rough(2000), &Verdicts::default()), "rough data keeps its filters");
        let verdicts = Verdicts::default();
        assert!(is_taken_off("/rho", smooth(2000), &verdicts), "smooth data compresses much better without filters");
        assert!(is_taken_off("/rho", rough(2000), &verdicts), "the verdict of the rank before is reused");
        assert!(!is_taken_off("/e", rough(2000), &verdicts), "a dataset with another name has no verdict yet");
        assert!(!is_taken_off("/e", smooth(2000), &verdicts), "the verdict of the rank before is reused");
        assert!(!is_taken_off("/rho", rough(6000), &verdicts), "a verdict does not apply to a much longer dataset");
        let uses = (0..Verdicts::USES + 1).filter(|_| !is_taken_off("/e", smooth(2000), &verdicts)).count();
        assert_eq!(uses as u32, Verdicts::USES - 1, "after USES uses, the first of them above, it is sampled again");
    }
}
