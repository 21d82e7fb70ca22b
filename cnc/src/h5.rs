//! The map of an HDF5 file: which bytes of the file are raw data of which dataset. All HDF5 parsing is in this
//! folder.
//!
//! A map is only a hint. The code that uses a map checks that the extents are disjoint and inside the file
//! ([`FileMap::check`]). All bytes outside of the extents belong to the skeleton. So with a wrong map the file
//! compresses worse, but no byte is lost.
//!
//! - `classic.rs` reads the part of the format that simulations use, in safe Rust. The parser takes 1/21 to 1/7 of
//!   the time of the library's process (docs/decisions/0028-own-parser-for-hdf5.md).
//! - `library.rs` calls the HDF5 library. The library supports every feature, but may crash or hang on a damaged
//!   file.
//! - `worker.rs` therefore runs the library in separate processes, with a deadline and a memory limit.
//! - `maps.rs` chooses between `classic.rs` and `worker.rs`.
//! - `superblock.rs` finds the superblock, and compares the length of the file with the length in the superblock.
//! - `datatype.rs` converts HDF5's datatype messages to element types. `classic.rs` and `library.rs` use
//!   `datatype.rs`.
//! - `arrays.rs` reads and writes whole datasets, for `mcr extract`.

mod arrays;
mod classic;
mod datatype;
mod library;
mod maps;
mod reader;
mod superblock;
mod worker;

pub use arrays::{Array, ArrayError, Arrays, NewArrays, Numbers};
pub use classic::Classic;
pub use library::Library;
pub use maps::Maps;
pub use superblock::{End, SIGNATURE, hdf5_end, superblock_offset};
pub use worker::{MapWorker, WORKER_ARGUMENT, worker_main};

use datatype::DataType;
use mcrengine::header::{
    DIMENSIONS_MAX, ElementType, Extent, FILTERED_CHUNK_MAX, FILTERS_MAX, FileHeader, Filter, Role, Shape,
};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The raw data of a file's datasets. All bytes outside of the extents belong to the skeleton.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMap {
    /// Arrays and stored chunks, sorted by path. Each variable has at least one extent.
    pub variables: Vec<MappedVariable>,
}

/// One dataset, or the chunks of a dataset whose filters cannot be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedVariable {
    /// [`Role::Array`] or [`Role::StoredChunks`].
    pub role: Role,
    /// The dataset's path in HDF5. If a dataset has several paths, this is the first path in the order of names.
    pub path: Box<str>,
    /// Type of the dataset's elements.
    pub element: ElementType,
    /// Dimensions of the dataset, followed by the dimensions of an array type.
    pub shape: Shape,
    /// Dimensions of a chunk, followed by the dimensions of an array type. Empty for a contiguous dataset.
    pub chunk: Shape,
    /// Filters that were applied to each extent.
    pub filters: Box<[Filter]>,
    /// The extents, in the order of the raw bytes.
    pub extents: Vec<Extent>,
}

/// Why a file has no map. Such a file is saved as one opaque variable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum H5Error {
    /// No possible offset of a superblock has an HDF5 signature.
    #[error("not an HDF5 file")]
    NotHdf5,
    /// The parser in `classic.rs` found a part of the format that only the library can read.
    #[error("{what} at byte {at}")]
    NotClassic {
        /// What the parser found.
        what: &'static str,
        /// Offset in the file.
        at: u64,
    },
    /// The HDF5 library rejected the file.
    #[error("the HDF5 library refused the file: {what}")]
    Library {
        /// The call that failed.
        what: &'static str,
    },
    /// Two extents overlap, or an extent is empty or passes the end of the file.
    #[error("dataset {path}: an extent {what} at byte {at}")]
    Extent {
        /// The dataset.
        path: Box<str>,
        /// Description of the error.
        what: &'static str,
        /// Offset in the file.
        at: u64,
    },
    /// There are more datasets, chunks or bytes of metadata than the limit allows.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The kind of items, for example datasets or chunks.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The process that runs the library crashed, hung or could not be started.
    #[error("{path}: the process that maps the file {what}", path = .path.display())]
    Worker {
        /// The file.
        path: PathBuf,
        /// What happened to the process.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file could not be read.
    #[error("reading the HDF5 metadata of the file")]
    Io(#[from] io::Error),
}

/// A file to map.
#[derive(Clone, Copy, Debug)]
pub struct MapInput<'a> {
    /// Path of the file, for a process that must open the file again.
    pub path: &'a Path,
    /// The file, open for reading.
    pub file: &'a File,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// The content of the file, if it is already in memory.
    pub whole: Option<&'a [u8]>,
}

/// A source of maps.
pub trait MapSource: Send + Sync {
    /// The map of a file.
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error>;
}

/// Maximum number of datasets in a file. A file with more datasets is opaque.
pub const DATASETS_MAX: usize = 1 << 20;
/// Maximum number of chunks in a file. A file with more chunks is opaque. Each chunk takes 24 bytes of memory while
/// the file is mapped.
pub const CHUNKS_MAX: usize = 4 << 20;
/// Maximum number of extents in a file, after adjacent chunks were joined. A file with more extents is opaque. Each
/// extent takes about 100 bytes of memory until the file is described.
pub const EXTENTS_MAX: usize = 1 << 20;

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

    /// Checks the number of extents. Also checks that no extent is empty, and that the extents are disjoint and
    /// within a file of this length.
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

    /// All extents as pairs of offset and length in bytes, sorted by offset.
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

/// Appends a name. Each byte that is not UTF-8 becomes U+FFFD and two hexadecimal digits, so that different names
/// stay different.
fn push_name(path: &mut String, name: &[u8]) {
    for piece in name.utf8_chunks() {
        path.push_str(piece.valid());
        path.extend(piece.invalid().iter().map(|byte| format!("\u{fffd}{byte:02x}")));
    }
}

/// A chunk, as the index of its dataset describes it.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Offset in the file.
    offset: u64,
    stored_bytes: u64,
    /// Bit n is set if filter n was not applied to this chunk.
    filter_mask: u32,
}

/// One filter of HDF5's pipeline: its number and its first parameter. `None` if the filter has no parameter.
type PipelineFilter = (u16, Option<u32>);

/// The filters of a pipeline. `None` if one of the filters cannot be applied again.
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

/// The dimensions of a variable: the dimensions of the dataset, then the dimensions of its array type. If there are
/// too many dimensions, the number of elements is the only dimension.
fn shape(dims: &[u64], datatype_dims: &[u64]) -> Shape {
    if dims.len() + datatype_dims.len() <= DIMENSIONS_MAX {
        return Shape([dims, datatype_dims].concat().into());
    }
    let elements = dims.iter().chain(datatype_dims).fold(1u64, |n, &d| n.saturating_mul(d));
    Shape([elements].into())
}

/// The variable of a contiguous dataset. `None` if the dataset has no bytes.
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

/// The variables of a chunked dataset: one variable for the chunks whose filters can be removed, and one variable for
/// the other chunks. Both variables keep the order of the dataset's chunk index.
fn chunked(
    path: &str,
    datatype: &DataType,
    dims: &[u64],
    chunk_dims: &[u64],
    chunk_raw_bytes: u64,
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

/// Maximum raw bytes for each stored byte of a chunk. If all bytes are equal, zlib stores one byte for 229 raw bytes
/// at level 1, and for up to 1,032 raw bytes at levels 2 to 9.
const INFLATION_MAX_FACTOR: u64 = 200;

/// Minimum stored bytes of a chunk whose filters are removed.
///
/// The cost of compressing and restoring depends on the raw bytes, but the application wrote only the stored bytes. A
/// file of 2 MB can hold 2 GiB of zeros. Therefore chunks that inflate by more than [`INFLATION_MAX_FACTOR`] keep
/// their filters, if they are at least half of the chunks. If fewer chunks inflate so strongly, all filters are
/// removed. Removing all filters at most doubles the cost, and the array stays complete.
fn least_stored_bytes(chunk_raw_bytes: u64, filters: &[Filter], chunks: &[Chunk]) -> u64 {
    let least = chunk_raw_bytes.div_ceil(INFLATION_MAX_FACTOR);
    let inflated = chunks.iter().filter(|c| c.filter_mask == 0 && (1..least).contains(&c.stored_bytes)).count();
    if !filters.is_empty() && inflated > 0 && inflated * 2 >= chunks.len() { least } else { 0 }
}

/// Appends an extent without filters. If the extent begins where the last extent ends, both are joined to one extent.
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
            assert!(map(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn chunks_after_each_other_are_one_extent_and_those_a_filter_left_out_are_stored() {
        let any = DataType { element: ElementType::F64, dims: Vec::new() };
        let chunk = |offset, filter_mask| Chunk { offset, stored_bytes: 80, filter_mask };
        let plain: Vec<_> =
            chunked("/x", &any, &[20], &[10], 80, &[], &[chunk(100, 0), chunk(180, 0), chunk(20, 0)]).collect();
        assert_eq!(plain.len(), 1);
        assert_eq!(plain[0].extents.iter().map(|e| e.raw_bytes).collect::<Vec<_>>(), [160, 80]);
        let deflate = [(1, Some(6))];
        let mixed: Vec<_> = chunked("/x", &any, &[20], &[10], 90, &deflate, &[chunk(100, 0), chunk(180, 1)]).collect();
        assert_eq!(mixed.iter().map(|v| v.role).collect::<Vec<_>>(), [Role::Array, Role::StoredChunks]);
        let unknown: Vec<_> = chunked("/x", &any, &[20], &[10], 90, &[(32000, None)], &[chunk(100, 0)]).collect();
        assert_eq!(unknown.iter().map(|v| v.role).collect::<Vec<_>>(), [Role::StoredChunks]);
    }

    #[test]
    fn chunks_that_inflate_too_much_stay_as_they_are_stored_where_they_are_half_of_the_data() {
        let any = DataType { element: ElementType::F64, dims: Vec::new() };
        // For chunks of these stored lengths: the number of raw bytes of chunks whose filters were removed, and the
        // number of stored bytes of the other chunks.
        let taken = |pipeline: &[PipelineFilter], stored_bytes: &[u64]| {
            let place = |(nth, &stored_bytes)| Chunk { offset: 100_000 * nth as u64, stored_bytes, filter_mask: 0 };
            let chunks: Vec<_> = stored_bytes.iter().enumerate().map(place).collect();
            let found: Vec<_> = chunked("/x", &any, &[5000], &[1000], 8000, pipeline, &chunks).collect();
            [Role::Array, Role::StoredChunks].map(|role| {
                let extents = found.iter().filter(|v| v.role == role).flat_map(|v| &v.extents);
                extents.map(|e| e.raw_bytes).sum::<u64>()
            })
        };
        let deflate = [(1, Some(6))];
        assert_eq!(taken(&deflate, &[39, 39, 39]), [0, 117], "205 raw bytes for each stored byte");
        assert_eq!(taken(&deflate, &[40, 40, 40]), [24_000, 0], "200 raw bytes for each stored byte");
        assert_eq!(taken(&deflate, &[8, 8, 4000, 4000]), [16_000, 16], "half of the data");
        assert_eq!(taken(&deflate, &[8, 8, 4000, 4000, 4000]), [40_000, 0], "less than half");
        assert_eq!(taken(&[(2, Some(8)), (1, Some(1))], &[8, 8]), [0, 16], "behind two filters");
    }
}
