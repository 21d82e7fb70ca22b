//! The map of an HDF5 file: which bytes of it are raw data of which dataset. The one folder that knows HDF5.
//!
//! A map is a hint, never a promise. Whoever uses it checks that its extents are disjoint and inside the file
//! ([`FileMap::check`]), and everything that is in no extent is skeleton; so a wrong map costs compression and no byte.
//!
//! - `classic.rs` reads the format itself, in safe Rust, as far as simulations use it: microseconds a dataset.
//! - `library.rs` asks the HDF5 library, which knows every feature there is, but may crash or hang on a damaged file.
//! - `worker.rs` therefore runs the library in processes of its own, under a deadline and a memory limit.
//! - `datatype.rs` turns HDF5's datatype messages into element types, for both.

mod classic;
mod datatype;
mod library;
mod reader;
mod worker;

pub use classic::Classic;
pub use library::Library;
pub use worker::{MapWorker, WORKER_ARGUMENT, worker_main};

use datatype::DataType;
use mcrengine::header::{
    DIMENSIONS_MAX, ElementType, Extent, FILTERED_CHUNK_MAX, FILTERS_MAX, FileHeader, Filter, Role, Shape,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The raw data of a file's datasets, by path. What is in no extent is skeleton.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMap {
    /// Arrays and stored chunks, by path; each has at least one extent.
    pub variables: Vec<MappedVariable>,
}

/// One dataset, or the chunks of one that cannot be taken out of their filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedVariable {
    /// [`Role::Array`] or [`Role::StoredChunks`].
    pub role: Role,
    /// HDF5's path of the dataset, the first by name if it has several.
    pub path: Box<str>,
    /// Type of its elements.
    pub element: ElementType,
    /// Its dimensions, those of an array type appended.
    pub shape: Shape,
    /// Dimensions of its chunks, in the same way; none if it is in one run.
    pub chunk: Shape,
    /// Filters of each extent.
    pub filters: Box<[Filter]>,
    /// In the order of the raw bytes.
    pub extents: Vec<Extent>,
}

/// Why a file has no map. The file is opaque then; nothing is lost by it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum H5Error {
    /// No HDF5 signature at any of the places where one may be.
    #[error("not an HDF5 file")]
    NotHdf5,
    /// The own parser met something that it leaves to the library.
    #[error("{what} at byte {at}")]
    NotClassic {
        /// What it met.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// The HDF5 library did not take it.
    #[error("the HDF5 library refused it: {what}")]
    Library {
        /// The call that failed.
        what: &'static str,
    },
    /// Two extents share a byte, or one passes the end of the file.
    #[error("{path}: its data {what} at byte {at}")]
    Extent {
        /// The dataset.
        path: Box<str>,
        /// What is wrong.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// More datasets, chunks or bytes of metadata than we are willing to hold.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The process that asks the library crashed, hung or could not be started.
    #[error("{path}: the process that maps it {what}", path = .path.display())]
    Worker {
        /// The file.
        path: PathBuf,
        /// What happened to it.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The file could not be read.
    #[error("reading its metadata")]
    Io(#[from] io::Error),
}

/// A file that is to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct MapInput<'a> {
    /// Its name, for who must open it anew.
    pub path: &'a Path,
    /// It, open for reading.
    pub file: &'a File,
    /// Its length.
    pub bytes: u64,
    /// All of it, if it is in memory already.
    pub whole: Option<&'a [u8]>,
}

/// Who gives maps.
pub trait MapSource: Send + Sync {
    /// The map of a file.
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error>;
}

/// The most datasets of one file; one with more is opaque.
pub const DATASETS_MAX: usize = 1 << 20;
/// The most chunks of one file; one with more is opaque. They take 24 bytes each while it is mapped.
pub const CHUNKS_MAX: usize = 4 << 20;
/// The most extents of one file, after chunks that follow each other were joined; one with more is opaque. They take
/// some 100 bytes each until the file is described.
pub const EXTENTS_MAX: usize = 1 << 20;

/// The maps that production uses: the own parser, and where that does not understand the file, the library's process.
pub struct Maps {
    worker: MapWorker,
}

impl Maps {
    /// The library's process is this program with the argument [`WORKER_ARGUMENT`].
    pub fn new() -> Self {
        Self { worker: MapWorker::new() }
    }

    /// The library's process is started by this command, whose `main` must call [`worker_main`].
    pub fn with_command(command: impl Fn() -> io::Result<Command> + Send + Sync + 'static) -> Self {
        Self { worker: MapWorker::with_command(command) }
    }
}

impl Default for Maps {
    fn default() -> Self {
        Self::new()
    }
}

impl MapSource for Maps {
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error> {
        match Classic.map(input) {
            Err(H5Error::NotClassic { .. }) => self.worker.map(input),
            known => known,
        }
    }
}

/// The eight bytes that begin a superblock.
pub const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";

/// Where the superblock is: at 0, 512, 1024, 2048, ... behind a user block; `None` if the file is not HDF5.
/// What is in memory already is not read.
pub fn superblock_offset(file: &File, bytes: u64, whole: Option<&[u8]>) -> io::Result<Option<u64>> {
    let mut at = 0;
    while at + SIGNATURE.len() as u64 <= bytes {
        let mut found = [0; SIGNATURE.len()];
        match whole.and_then(|w| w.get(usize::try_from(at).ok()?..)?.first_chunk()) {
            Some(bytes) => found = *bytes,
            None => file.read_exact_at(&mut found, at)?,
        }
        if found == SIGNATURE {
            return Ok(Some(at));
        }
        at = (at * 2).max(512);
    }
    Ok(None)
}

impl FileMap {
    /// Sorts the variables by path, and checks that their extents are disjoint and within the file.
    fn finish(mut variables: Vec<MappedVariable>, bytes: u64) -> Result<Self, H5Error> {
        variables.retain(|v| !v.extents.is_empty());
        let order = |v: &MappedVariable| (v.role == Role::StoredChunks, v.extents[0].offset);
        variables.sort_unstable_by(|a, b| a.path.cmp(&b.path).then_with(|| order(a).cmp(&order(b))));
        let map = Self { variables };
        map.check(bytes)?;
        Ok(map)
    }

    /// Whether the extents are not too many, not empty, disjoint and within a file of this length.
    pub fn check(&self, bytes: u64) -> Result<(), H5Error> {
        let extents = self.variables.iter().map(|v| v.extents.len()).sum();
        if extents > EXTENTS_MAX {
            return Err(H5Error::TooMany { what: "extents", limit: EXTENTS_MAX as u64 });
        }
        let mut runs: Vec<(u64, u64, usize)> = Vec::with_capacity(extents);
        for (v, variable) in self.variables.iter().enumerate() {
            runs.extend(variable.extents.iter().map(|e| (e.offset, e.stored_bytes, v)));
        }
        runs.sort_unstable();
        let mut end = 0;
        for (offset, len, v) in runs {
            let wrong = |what| H5Error::Extent { path: self.variables[v].path.clone(), what, at: offset };
            if len == 0 {
                return Err(wrong("has no bytes"));
            }
            if offset < end {
                return Err(wrong("overlaps other data"));
            }
            end = match offset.checked_add(len) {
                Some(end) if end <= bytes => end,
                _ => return Err(wrong("passes the end of the file")),
            };
        }
        Ok(())
    }

    /// The runs `(offset, bytes)` of all extents, sorted.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> =
            self.variables.iter().flat_map(|v| &v.extents).map(|e| (e.offset, e.stored_bytes)).collect();
        runs.sort_unstable();
        runs
    }

    /// The extents of the skeleton of a file of this length.
    pub fn skeleton(&self, bytes: u64) -> Box<[Extent]> {
        FileHeader::gaps(&self.runs(), bytes)
    }
}

/// Appends a name. Bytes that are no UTF-8 become U+FFFD and two digits each, so that different names stay different.
fn push_name(path: &mut String, name: &[u8]) {
    for piece in name.utf8_chunks() {
        path.push_str(piece.valid());
        path.extend(piece.invalid().iter().map(|byte| format!("\u{fffd}{byte:02x}")));
    }
}

/// A chunk as the index of a dataset names it.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// From byte 0 of the file.
    offset: u64,
    stored_bytes: u64,
    /// Bit n: filter n was left out for this chunk.
    filter_mask: u32,
}

/// One filter of HDF5's pipeline: its number, and its first parameter if it has one.
type PipelineFilter = (u16, Option<u32>);

/// Our filters for a pipeline, or `None` if one of them cannot be put back on.
fn known_filters(pipeline: &[PipelineFilter]) -> Option<Box<[Filter]>> {
    let known = |&(id, parameter): &PipelineFilter| match (id, parameter) {
        (1, Some(level @ 0..=9)) => Some(Filter::Deflate { level: level as u8 }),
        (2, Some(width)) if width > 0 => Some(Filter::Shuffle { width }),
        (3, _) => Some(Filter::Fletcher32),
        _ => None,
    };
    if pipeline.len() > FILTERS_MAX {
        return None;
    }
    pipeline.iter().map(known).collect()
}

/// The dimensions of a variable: the dataset's, then its array type's.
fn shape(dims: &[u64], datatype_dims: &[u64]) -> Shape {
    if dims.len() + datatype_dims.len() <= DIMENSIONS_MAX {
        return Shape([dims, datatype_dims].concat().into());
    }
    let elements = dims.iter().chain(datatype_dims).fold(1u64, |n, &d| n.saturating_mul(d));
    Shape([elements].into())
}

/// A dataset in one run of bytes.
fn contiguous(path: &str, datatype: &DataType, dims: &[u64], offset: u64, bytes: u64) -> Option<MappedVariable> {
    let extent = Extent { offset, stored_bytes: bytes, raw_bytes: bytes };
    (bytes > 0).then(|| MappedVariable {
        role: Role::Array,
        path: path.into(),
        element: datatype.element_for(bytes),
        shape: shape(dims, &datatype.dims),
        chunk: Shape::default(),
        filters: [].into(),
        extents: vec![extent],
    })
}

/// A dataset in chunks, in the order of its index: the ones that all filters were applied to, and the others.
fn chunked(
    path: &str,
    datatype: &DataType,
    dims: &[u64],
    (chunk_dims, chunk_raw_bytes): (&[u64], u64),
    pipeline: &[PipelineFilter],
    chunks: &[Chunk],
) -> impl Iterator<Item = MappedVariable> + use<> {
    let filters = known_filters(pipeline).filter(|f| f.is_empty() || chunk_raw_bytes <= FILTERED_CHUNK_MAX);
    let least_stored_bytes = least_stored_bytes(chunk_raw_bytes, filters.as_deref().unwrap_or_default(), chunks);
    let (mut array, mut stored) = (Vec::new(), Vec::new());
    for chunk in chunks.iter().filter(|c| c.stored_bytes > 0) {
        let as_stored =
            Extent { offset: chunk.offset, stored_bytes: chunk.stored_bytes, raw_bytes: chunk.stored_bytes };
        match &filters {
            Some(filters) if filters.is_empty() && chunk.stored_bytes == chunk_raw_bytes => {
                push_run(&mut array, as_stored);
            }
            Some(filters)
                if !filters.is_empty()
                    && chunk.filter_mask == 0
                    && (least_stored_bytes..=FILTERED_CHUNK_MAX).contains(&chunk.stored_bytes) =>
            {
                array.push(Extent { raw_bytes: chunk_raw_bytes, ..as_stored });
            }
            _ => push_run(&mut stored, as_stored),
        }
    }
    let stored_bytes = stored.iter().map(|e: &Extent| e.stored_bytes).fold(0, u64::saturating_add);
    let array = MappedVariable {
        role: Role::Array,
        path: path.into(),
        element: datatype.element_for(chunk_raw_bytes),
        shape: shape(dims, &datatype.dims),
        chunk: shape(chunk_dims, &datatype.dims),
        filters: filters.unwrap_or_default(),
        extents: array,
    };
    let stored = MappedVariable {
        role: Role::StoredChunks,
        path: path.into(),
        element: ElementType::Bytes,
        shape: Shape([stored_bytes].into()),
        chunk: Shape::default(),
        filters: [].into(),
        extents: stored,
    };
    [array, stored].into_iter().filter(|v| !v.extents.is_empty())
}

/// A chunk inflates too much if it has more raw bytes than this for each stored byte. Where all bytes are the same,
/// zlib's stored bytes give 229 raw ones each at level 1, and up to 1,032 at levels 2 to 9.
const INFLATION_MAX: u64 = 200;

/// The fewest stored bytes of a chunk whose filters are taken off.
///
/// Raw bytes are what coding and restoring cost, and stored bytes are what the application wrote: a file of 2 MB can
/// hold 2 GiB of zeros. Chunks that inflate too much are therefore kept as they are stored where they hold half of the
/// raw bytes or more. Where they hold less, all filters are taken off, which at most doubles the cost, and the array
/// stays whole.
fn least_stored_bytes(chunk_raw_bytes: u64, filters: &[Filter], chunks: &[Chunk]) -> u64 {
    let least = chunk_raw_bytes.div_ceil(INFLATION_MAX);
    let inflated = chunks.iter().filter(|c| c.filter_mask == 0 && (1..least).contains(&c.stored_bytes)).count();
    if !filters.is_empty() && inflated > 0 && inflated * 2 >= chunks.len() { least } else { 0 }
}

/// Appends a run without filters; one that goes on where the last one ended makes it longer.
fn push_run(extents: &mut Vec<Extent>, run: Extent) {
    match extents.last_mut() {
        Some(last) if last.offset.checked_add(last.stored_bytes) == Some(run.offset) => {
            last.stored_bytes = last.stored_bytes.saturating_add(run.stored_bytes);
            last.raw_bytes = last.stored_bytes;
        }
        _ => extents.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(runs: &[(u64, u64)]) -> Result<FileMap, H5Error> {
        let any = DataType { element: ElementType::F64, dims: Vec::new() };
        let variable = |&(offset, bytes): &(u64, u64)| MappedVariable {
            extents: vec![Extent { offset, stored_bytes: bytes, raw_bytes: bytes }],
            ..contiguous("/x", &any, &[1], 0, 8).expect("has bytes")
        };
        FileMap::finish(runs.iter().map(variable).collect(), 100)
    }

    #[test]
    fn data_that_overlaps_or_passes_the_end_makes_no_map() {
        assert!(map(&[(0, 50), (50, 50)]).is_ok());
        for bad in [&[(0, 51), (50, 50)][..], &[(50, 51)], &[(u64::MAX, 2)], &[(10, 5), (10, 5)], &[(3, 0)]] {
            assert!(map(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn chunks_after_each_other_are_one_extent_and_those_a_filter_left_out_are_stored() {
        let any = DataType { element: ElementType::F64, dims: Vec::new() };
        let chunk = |offset, filter_mask| Chunk { offset, stored_bytes: 80, filter_mask };
        let plain: Vec<_> =
            chunked("/x", &any, &[20], (&[10], 80), &[], &[chunk(100, 0), chunk(180, 0), chunk(20, 0)]).collect();
        assert_eq!(plain.len(), 1);
        assert_eq!(plain[0].extents.iter().map(|e| e.raw_bytes).collect::<Vec<_>>(), [160, 80]);
        let deflate = [(1, Some(6))];
        let mixed: Vec<_> =
            chunked("/x", &any, &[20], (&[10], 90), &deflate, &[chunk(100, 0), chunk(180, 1)]).collect();
        assert_eq!(mixed.iter().map(|v| v.role).collect::<Vec<_>>(), [Role::Array, Role::StoredChunks]);
        let unknown: Vec<_> = chunked("/x", &any, &[20], (&[10], 90), &[(32000, None)], &[chunk(100, 0)]).collect();
        assert_eq!(unknown.iter().map(|v| v.role).collect::<Vec<_>>(), [Role::StoredChunks]);
    }

    #[test]
    fn chunks_that_inflate_too_much_stay_as_they_are_stored_where_they_are_half_of_the_data() {
        let any = DataType { element: ElementType::F64, dims: Vec::new() };
        // Raw bytes that are taken out of their filters, and stored bytes that are kept, of chunks of so many stored
        // bytes.
        let taken = |pipeline: &[PipelineFilter], stored_bytes: &[u64]| {
            let place = |(nth, &stored_bytes)| Chunk { offset: 100_000 * nth as u64, stored_bytes, filter_mask: 0 };
            let chunks: Vec<_> = stored_bytes.iter().enumerate().map(place).collect();
            let found: Vec<_> = chunked("/x", &any, &[5000], (&[1000], 8000), pipeline, &chunks).collect();
            [Role::Array, Role::StoredChunks].map(|role| {
                let extents = found.iter().filter(|v| v.role == role).flat_map(|v| &v.extents);
                extents.map(|e| e.raw_bytes).sum::<u64>()
            })
        };
        let deflate = [(1, Some(6))];
        assert_eq!(taken(&deflate, &[39, 39, 39]), [0, 117], "205 raw bytes for each stored one");
        assert_eq!(taken(&deflate, &[40, 40, 40]), [24_000, 0], "200 raw bytes for each stored one");
        assert_eq!(taken(&deflate, &[8, 8, 4000, 4000]), [16_000, 16], "half of the data");
        assert_eq!(taken(&deflate, &[8, 8, 4000, 4000, 4000]), [40_000, 0], "less than half");
        assert_eq!(taken(&[(2, Some(8)), (1, Some(1))], &[8, 8]), [0, 16], "behind two filters");
    }
}
