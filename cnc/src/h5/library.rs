//! Maps a file with the HDF5 library. Only this source file calls the library.
//!
//! A file is opened read-only and without file locks, so that the application is not disturbed. The library has a
//! global lock, so only one thread at a time can use it. The library may crash or hang if a file is hostile.
//! Therefore programs call the library only in the process of `worker.rs`.

#![expect(unsafe_code, reason = "calls of the HDF5 C library")]

use super::datatype::{self, DataType, Parsed};
use super::{CHUNKS_MAX, Chunk, DATASETS_MAX, FileMap, H5Error, MapInput, MapSource, MappedVariable, PipelineFilter};
use hdf5_sys::h5::{H5_index_t, H5_iter_order_t, H5open, haddr_t, hsize_t};
use hdf5_sys::h5d::{
    H5D_layout_t, H5Dchunk_iter, H5Dget_create_plist, H5Dget_offset, H5Dget_space, H5Dget_storage_size, H5Dget_type,
};
use hdf5_sys::h5e::{H5E_DEFAULT, H5Eset_auto2};
use hdf5_sys::h5f::{H5F_ACC_RDONLY, H5F_close_degree_t, H5Fopen};
use hdf5_sys::h5i::{H5Idec_ref, hid_t};
use hdf5_sys::h5o::{H5O_INFO_BASIC, H5O_info2_t, H5O_token_t, H5O_type_t, H5Oopen_by_token, H5Ovisit3};
use hdf5_sys::h5p::{
    H5P_CLS_FILE_ACCESS, H5P_DEFAULT, H5Pcreate, H5Pget_chunk, H5Pget_external_count, H5Pget_filter2, H5Pget_layout,
    H5Pget_nfilters, H5Pset_fclose_degree, H5Pset_file_locking,
};
use hdf5_sys::h5s::{H5Sget_simple_extent_dims, H5Sget_simple_extent_ndims};
use hdf5_sys::h5t::H5Tencode;
use mcrengine::header::DIMENSIONS_MAX;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// The HDF5 library, called in this process.
pub struct Library;

impl MapSource for Library {
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error> {
        let _one_at_a_time = hdf5_sys::LOCK.lock();
        let file = open(input.path)?;
        let mut variables = Vec::new();
        for (path, token) in datasets(&file)? {
            // If the library cannot open or describe a dataset, the dataset belongs to the skeleton.
            if let Ok(found) = dataset(&file, &path, token) {
                variables.extend(found);
            }
        }
        FileMap::finish(variables, input.bytes)
    }
}

/// The id of an object of the library. This value holds one reference to the object.
struct Id(hid_t);

impl Id {
    fn new(id: hid_t, what: &'static str) -> Result<Self, H5Error> {
        if id < 0 { Err(H5Error::Library { what }) } else { Ok(Self(id)) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the library returned this id, and this value holds one reference to it.
        unsafe { H5Idec_ref(self.0) };
    }
}

fn done(status: c_int, what: &'static str) -> Result<(), H5Error> {
    if status < 0 { Err(H5Error::Library { what }) } else { Ok(()) }
}

fn open(path: &Path) -> Result<Id, H5Error> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| H5Error::Library { what: "a NUL in the path" })?;
    // SAFETY: the caller holds the library's lock. The name ends in NUL and outlives the calls. A null handler turns
    // the library's error messages off.
    unsafe {
        done(H5open(), "H5open")?;
        done(H5Eset_auto2(H5E_DEFAULT, None, ptr::null_mut()), "H5Eset_auto2")?;
        let access = Id::new(H5Pcreate(*H5P_CLS_FILE_ACCESS), "H5Pcreate")?;
        done(H5Pset_file_locking(access.0, 0, 1), "H5Pset_file_locking")?;
        done(H5Pset_fclose_degree(access.0, H5F_close_degree_t::H5F_CLOSE_STRONG), "H5Pset_fclose_degree")?;
        Id::new(H5Fopen(name.as_ptr(), H5F_ACC_RDONLY, access.0), "H5Fopen")
    }
}

/// Returns each dataset that hard links reach, depth first and in the order of names. Each dataset is returned once.
fn datasets(file: &Id) -> Result<Vec<(Box<str>, H5O_token_t)>, H5Error> {
    struct Visit {
        found: Vec<(Box<str>, H5O_token_t)>,
        too_many: bool,
    }
    extern "C" fn visit(_: hid_t, name: *const c_char, info: *const H5O_info2_t, state: *mut c_void) -> c_int {
        // SAFETY: the library passes the pointer to `state` from below, a name that ends in NUL, and a valid info.
        // These three values are alive during this call, and no other code uses `state` during this call.
        let (state, name, info) = unsafe { (&mut *state.cast::<Visit>(), CStr::from_ptr(name), &*info) };
        if info.type_ == H5O_type_t::H5O_TYPE_DATASET {
            state.too_many = state.found.len() >= DATASETS_MAX;
            if state.too_many {
                return 1;
            }
            let mut path = String::from("/");
            super::push_name(&mut path, name.to_bytes());
            state.found.push((path.into(), info.token));
        }
        0
    }
    let mut state = Visit { found: Vec::new(), too_many: false };
    // SAFETY: `visit` has the required signature and does not panic. `state` outlives the call.
    let status = unsafe {
        H5Ovisit3(
            file.0,
            H5_index_t::H5_INDEX_NAME,
            H5_iter_order_t::H5_ITER_INC,
            Some(visit),
            ptr::from_mut(&mut state).cast(),
            H5O_INFO_BASIC,
        )
    };
    if state.too_many {
        return Err(H5Error::TooMany { what: "datasets", limit: DATASETS_MAX as u64 });
    }
    done(status, "H5Ovisit")?;
    Ok(state.found)
}

fn dataset(file: &Id, path: &str, token: H5O_token_t) -> Result<Vec<MappedVariable>, H5Error> {
    // SAFETY: the id in `file` is valid while `file` exists, and the caller holds the library's lock.
    let dataset = unsafe { Id::new(H5Oopen_by_token(file.0, token), "H5Oopen_by_token")? };
    // SAFETY: the id in `dataset` is valid while `dataset` exists, and the caller holds the library's lock.
    let creation = unsafe { Id::new(H5Dget_create_plist(dataset.0), "H5Dget_create_plist")? };
    // SAFETY: the id in `creation` is valid while `creation` exists, and the caller holds the library's lock.
    match unsafe { H5Pget_layout(creation.0) } {
        H5D_layout_t::H5D_CONTIGUOUS => {
            // SAFETY: the ids in `dataset` and `creation` are valid while these values exist, and the caller holds
            // the library's lock.
            let (offset, bytes, external) = unsafe {
                (H5Dget_offset(dataset.0), H5Dget_storage_size(dataset.0), H5Pget_external_count(creation.0))
            };
            if offset == haddr_t::MAX || external != 0 {
                return Ok(Vec::new());
            }
            let Some(datatype) = datatype_of(&dataset)? else { return Ok(Vec::new()) };
            let dims = dims_of(&dataset)?;
            Ok(super::contiguous(path, &datatype.0, &dims, offset, bytes).into_iter().collect())
        }
        H5D_layout_t::H5D_CHUNKED => {
            let Some((datatype, width)) = datatype_of(&dataset)? else { return Ok(Vec::new()) };
            let dims = dims_of(&dataset)?;
            let mut chunk_dims = [0 as hsize_t; DIMENSIONS_MAX];
            // SAFETY: the second argument is the length of `chunk_dims`, and the id is valid.
            let rank = unsafe { H5Pget_chunk(creation.0, chunk_dims.len() as c_int, chunk_dims.as_mut_ptr()) };
            let rank = usize::try_from(rank).map_err(|_| H5Error::Library { what: "H5Pget_chunk" })?;
            let chunk_raw_bytes = chunk_dims.iter().take(rank).fold(u64::from(width), |n, &d| n.saturating_mul(d));
            let (pipeline, chunks) = (pipeline_of(&creation)?, chunks_of(&dataset)?);
            Ok(super::chunked(
                path,
                &datatype,
                &dims,
                &chunk_dims[..rank.min(DIMENSIONS_MAX)],
                chunk_raw_bytes,
                &pipeline,
                &chunks,
            )
            .collect())
        }
        // Compact data is in the object header. Virtual datasets have no data in this file.
        _ => Ok(Vec::new()),
    }
}

/// The type and the width of one element. `None` if the data only refers to other parts of the file, or if the type
/// is not supported. Such a dataset belongs to the skeleton.
fn datatype_of(dataset: &Id) -> Result<Option<(DataType, u32)>, H5Error> {
    // SAFETY: `encoded` has the length `len` that is passed to the call, and the ids are valid. The caller holds the
    // library's lock.
    let encoded = unsafe {
        let datatype = Id::new(H5Dget_type(dataset.0), "H5Dget_type")?;
        let mut len = 0;
        done(H5Tencode(datatype.0, ptr::null_mut(), &mut len), "H5Tencode")?;
        let mut encoded = vec![0u8; len];
        done(H5Tencode(datatype.0, encoded.as_mut_ptr().cast(), &mut len), "H5Tencode")?;
        encoded
    };
    // The library puts two bytes before the datatype message.
    let message = encoded.get(2..).unwrap_or_default();
    Ok(match (datatype::parse(message), datatype::message_width(message)) {
        (Some(Parsed::Data(datatype)), Some(width)) => Some((datatype, width)),
        _ => None,
    })
}

fn dims_of(dataset: &Id) -> Result<Vec<u64>, H5Error> {
    let mut dims = [0 as hsize_t; DIMENSIONS_MAX];
    // SAFETY: the length of `dims` is DIMENSIONS_MAX, and the rank is compared with it before the call. The ids are
    // valid.
    let rank = unsafe {
        let space = Id::new(H5Dget_space(dataset.0), "H5Dget_space")?;
        let rank = H5Sget_simple_extent_ndims(space.0);
        if rank > DIMENSIONS_MAX as c_int {
            return Err(H5Error::Library { what: "a dataspace has more than 32 dimensions" });
        }
        H5Sget_simple_extent_dims(space.0, dims.as_mut_ptr(), ptr::null_mut())
    };
    match usize::try_from(rank) {
        Ok(rank) => Ok(dims[..rank].to_vec()),
        Err(_) => Err(H5Error::Library { what: "H5Sget_simple_extent_dims" }),
    }
}

fn pipeline_of(creation: &Id) -> Result<Vec<PipelineFilter>, H5Error> {
    // SAFETY: the id in `creation` is valid while `creation` exists, and the caller holds the library's lock.
    let count = unsafe { H5Pget_nfilters(creation.0) };
    done(count, "H5Pget_nfilters")?;
    (0..count.unsigned_abs())
        .map(|nth| {
            let (mut flags, mut parameters, mut config) = (0, [0 as c_uint; 8], 0);
            let mut parameters_len = parameters.len();
            // SAFETY: the call writes at most `parameters_len` values, which is the length of `parameters`. No name
            // is requested. The id is valid.
            let id = unsafe {
                H5Pget_filter2(
                    creation.0,
                    nth,
                    &mut flags,
                    &mut parameters_len,
                    parameters.as_mut_ptr(),
                    0,
                    ptr::null_mut(),
                    &mut config,
                )
            };
            match u16::try_from(id) {
                Ok(id) => Ok((id, (parameters_len > 0).then_some(parameters[0]))),
                Err(_) => Err(H5Error::Library { what: "H5Pget_filter" }),
            }
        })
        .collect()
}

/// The allocated chunks in the order of the index, which is the order of the chunks in the array.
fn chunks_of(dataset: &Id) -> Result<Vec<Chunk>, H5Error> {
    unsafe extern "C" fn visit(
        _: *const hsize_t,
        filter_mask: c_uint,
        offset: haddr_t,
        stored_bytes: hsize_t,
        chunks: *mut c_void,
    ) -> c_int {
        // SAFETY: the library passes the pointer to `chunks` from below. `chunks` is alive during this call, and no
        // other code uses it during this call.
        let chunks = unsafe { &mut *chunks.cast::<Vec<Chunk>>() };
        if chunks.len() >= CHUNKS_MAX {
            return 1;
        }
        if offset != haddr_t::MAX {
            chunks.push(Chunk { offset, stored_bytes, filter_mask });
        }
        0
    }
    let mut chunks: Vec<Chunk> = Vec::new();
    // SAFETY: `visit` has the required signature and does not panic. `chunks` outlives the call, and the id is valid.
    let status = unsafe { H5Dchunk_iter(dataset.0, H5P_DEFAULT, Some(visit), ptr::from_mut(&mut chunks).cast()) };
    match status {
        0 => Ok(chunks),
        1.. => Err(H5Error::TooMany { what: "chunks", limit: CHUNKS_MAX as u64 }),
        _ => Err(H5Error::Library { what: "H5Dchunk_iter" }),
    }
}
