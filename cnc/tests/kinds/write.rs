//! Writes short HDF5 files of every kind through the library.

#![expect(unsafe_code, reason = "calls of the HDF5 C library")]

use hdf5_sys::h5::{H5open, hsize_t};
use hdf5_sys::h5a::{H5Aclose, H5Acreate2, H5Awrite};
use hdf5_sys::h5d::{H5Dclose, H5Dcreate2, H5Dopen2, H5Dset_extent, H5Dwrite, H5Dwrite_chunk};
use hdf5_sys::h5f::{H5F_ACC_TRUNC, H5F_close_degree_t, H5F_libver_t, H5F_scope_t, H5Fclose, H5Fcreate, H5Fflush};
use hdf5_sys::h5g::{H5Gclose, H5Gcreate2};
use hdf5_sys::h5i::hid_t;
use hdf5_sys::h5l::{H5Lcreate_external, H5Lcreate_hard, H5Lcreate_soft};
use hdf5_sys::h5p::*;
use hdf5_sys::h5s::{H5S_ALL, H5S_class_t, H5S_seloper_t, H5Sclose, H5Screate, H5Screate_simple, H5Sselect_hyperslab};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// A new file, open for writing. This value holds the library's lock.
pub struct Writer {
    file: hid_t,
    _lock: Box<dyn std::any::Any>,
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

fn ok<T: Copy + Into<i64>>(status: T) -> T {
    assert!(status.into() >= 0, "the HDF5 library refused a call");
    status
}

/// Options for the format of a file.
#[derive(Clone, Copy, Default)]
pub struct FileOptions {
    /// Whether to use the newest format instead of the oldest format.
    pub latest: bool,
    /// Length in bytes of the user block before the superblock.
    pub user_block: u64,
    /// Length of an address in bytes. 0 means 8 bytes.
    pub address_bytes: usize,
}

/// Dimensions of a dataset.
#[derive(Clone, Copy)]
pub enum Space<'a> {
    Null,
    Scalar,
    Simple(&'a [u64]),
    /// Present and maximum dimensions (`u64::MAX`: unlimited).
    Growing(&'a [u64], &'a [u64]),
}

/// Numbers that compress by a realistic amount.
pub fn smooth(bytes: usize) -> Vec<u8> {
    let value = |i: usize| (i as f64 * 0.01).sin() * 1e3 + (i * 7919 % 13) as f64;
    (0..bytes.div_ceil(8)).flat_map(|i| value(i).to_le_bytes()).take(bytes).collect()
}

impl Writer {
    pub fn new(path: &Path, options: FileOptions) -> Self {
        let lock = Box::new(hdf5_sys::LOCK.lock());
        let name = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: all arguments are valid during the calls, and the library's lock is held.
        let file = unsafe {
            ok(H5open());
            let access = ok(H5Pcreate(*H5P_CLS_FILE_ACCESS));
            let creation = ok(H5Pcreate(*H5P_CLS_FILE_CREATE));
            ok(H5Pset_file_locking(access, 0, 1));
            ok(H5Pset_fclose_degree(access, H5F_close_degree_t::H5F_CLOSE_STRONG));
            let low = if options.latest { H5F_libver_t::H5F_LIBVER_V114 } else { H5F_libver_t::H5F_LIBVER_EARLIEST };
            ok(H5Pset_libver_bounds(access, low, H5F_libver_t::H5F_LIBVER_V114));
            if options.user_block > 0 {
                ok(H5Pset_userblock(creation, options.user_block));
            }
            if options.address_bytes > 0 {
                ok(H5Pset_sizes(creation, options.address_bytes, options.address_bytes));
            }
            let file = ok(H5Fcreate(name.as_ptr(), H5F_ACC_TRUNC, creation, access));
            H5Pclose(access);
            H5Pclose(creation);
            file
        };
        Self { file, _lock: lock }
    }

    /// Adds a dataset and writes all its elements. `bytes` has the elements in the dataset's type.
    pub fn dataset(
        &self,
        name: &str,
        datatype: hid_t,
        space: Space<'_>,
        set: impl FnOnce(hid_t),
        bytes: Option<&[u8]>,
    ) {
        self.dataset_named(name.as_bytes(), datatype, space, set, bytes);
    }

    /// Adds a dataset like [`Writer::dataset`]. The name of the dataset may not be UTF-8.
    pub fn dataset_named(
        &self,
        name: &[u8],
        datatype: hid_t,
        space: Space<'_>,
        set: impl FnOnce(hid_t),
        bytes: Option<&[u8]>,
    ) {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: all arguments are valid during the calls, the library's lock is held, and `bytes` contains all
        // elements.
        unsafe {
            let space = match space {
                Space::Null => H5Screate(H5S_class_t::H5S_NULL),
                Space::Scalar => H5Screate(H5S_class_t::H5S_SCALAR),
                Space::Simple(dims) => H5Screate_simple(dims.len() as i32, dims.as_ptr(), ptr::null()),
                Space::Growing(dims, most) => H5Screate_simple(dims.len() as i32, dims.as_ptr(), most.as_ptr()),
            };
            let creation = ok(H5Pcreate(*H5P_CLS_DATASET_CREATE));
            set(creation);
            let links = ok(H5Pcreate(*H5P_CLS_LINK_CREATE));
            ok(H5Pset_create_intermediate_group(links, 1));
            let dataset = ok(H5Dcreate2(self.file, name.as_ptr(), datatype, ok(space), links, creation, H5P_DEFAULT));
            if let Some(bytes) = bytes {
                ok(H5Dwrite(dataset, datatype, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.as_ptr().cast()));
            }
            H5Dclose(dataset);
            H5Sclose(space);
            H5Pclose(creation);
            H5Pclose(links);
        }
    }

    /// Writes `elements` elements of a one-dimensional dataset, beginning at `from`.
    pub fn write_first(&self, name: &str, datatype: hid_t, from: u64, bytes: &[u8], elements: u64) {
        // SAFETY: all ids and strings are valid during the calls, the library's lock is held, and `bytes` contains
        // `elements` elements.
        unsafe {
            let dataset = ok(H5Dopen2(self.file, c(name).as_ptr(), H5P_DEFAULT));
            let space = ok(hdf5_sys::h5d::H5Dget_space(dataset));
            let memory = ok(H5Screate_simple(1, &elements, ptr::null()));
            let select = H5S_seloper_t::H5S_SELECT_SET;
            ok(H5Sselect_hyperslab(space, select, &from, ptr::null(), &elements, ptr::null()));
            ok(H5Dwrite(dataset, datatype, memory, space, H5P_DEFAULT, bytes.as_ptr().cast()));
            H5Sclose(memory);
            H5Sclose(space);
            H5Dclose(dataset);
        }
    }

    /// Writes a chunk in its stored form.
    pub fn write_chunk(&self, name: &str, filter_mask: u32, offset: &[u64], stored: &[u8]) {
        // SAFETY: all ids and strings are valid during the calls, the library's lock is held, and the chunk's length
        // is passed along.
        unsafe {
            let dataset = ok(H5Dopen2(self.file, c(name).as_ptr(), H5P_DEFAULT));
            ok(H5Dwrite_chunk(
                dataset,
                H5P_DEFAULT,
                filter_mask,
                offset.as_ptr(),
                stored.len(),
                stored.as_ptr().cast(),
            ));
            H5Dclose(dataset);
        }
    }

    pub fn resize(&self, name: &str, dims: &[u64]) {
        // SAFETY: all ids and strings are valid during the calls, and the library's lock is held.
        unsafe {
            let dataset = ok(H5Dopen2(self.file, c(name).as_ptr(), H5P_DEFAULT));
            ok(H5Dset_extent(dataset, dims.as_ptr()));
            H5Dclose(dataset);
        }
    }

    pub fn group(&self, name: &str, set: impl FnOnce(hid_t)) {
        // SAFETY: all ids and strings are valid during the calls, and the library's lock is held.
        unsafe {
            let creation = ok(H5Pcreate(*H5P_CLS_GROUP_CREATE));
            set(creation);
            let group = ok(H5Gcreate2(self.file, c(name).as_ptr(), H5P_DEFAULT, creation, H5P_DEFAULT));
            H5Gclose(group);
            H5Pclose(creation);
        }
    }

    pub fn hard_link(&self, to: &str, name: &str) {
        let (to, name) = (c(to), c(name));
        // SAFETY: the file and both strings are valid during the call, and the library's lock is held.
        unsafe {
            ok(H5Lcreate_hard(self.file, to.as_ptr(), self.file, name.as_ptr(), H5P_DEFAULT, H5P_DEFAULT));
        }
    }

    pub fn soft_link(&self, to: &str, name: &str) {
        let (to, name) = (c(to), c(name));
        // SAFETY: the file and both strings are valid during the call, and the library's lock is held.
        unsafe { ok(H5Lcreate_soft(to.as_ptr(), self.file, name.as_ptr(), H5P_DEFAULT, H5P_DEFAULT)) };
    }

    pub fn external_link(&self, file: &str, to: &str, name: &str) {
        let (file, to, name) = (c(file), c(to), c(name));
        // SAFETY: the file and all strings are valid during the call, and the library's lock is held.
        unsafe {
            ok(H5Lcreate_external(file.as_ptr(), to.as_ptr(), self.file, name.as_ptr(), H5P_DEFAULT, H5P_DEFAULT));
        }
    }

    /// Adds an attribute of eight doubles to the object of this name.
    pub fn attribute(&self, object: &str, name: &str) {
        let (object, name) = (c(object), c(name));
        // SAFETY: all ids and strings are valid during the calls, the library's lock is held, and the buffer has
        // eight doubles.
        unsafe {
            let object = ok(hdf5_sys::h5o::H5Oopen(self.file, object.as_ptr(), H5P_DEFAULT));
            let space = ok(H5Screate_simple(1, &8, ptr::null()));
            let double = *hdf5_sys::h5t::H5T_IEEE_F64LE;
            let attribute = ok(H5Acreate2(object, name.as_ptr(), double, space, H5P_DEFAULT, H5P_DEFAULT));
            ok(H5Awrite(attribute, double, smooth(64).as_ptr().cast()));
            H5Aclose(attribute);
            H5Sclose(space);
            hdf5_sys::h5o::H5Oclose(object);
        }
    }

    pub fn commit_type(&self, name: &str, datatype: hid_t) {
        let name = c(name);
        // SAFETY: the file, the datatype and the string are valid during the call, and the library's lock is held.
        unsafe {
            ok(hdf5_sys::h5t::H5Tcommit2(self.file, name.as_ptr(), datatype, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        }
    }

    /// The bytes of a reference to an object.
    pub fn object_reference(&self, name: &str) -> [u8; 8] {
        let (name, mut reference) = (c(name), [0u8; 8]);
        let kind = hdf5_sys::h5r::H5R_type_t::H5R_OBJECT1;
        // SAFETY: the file and the string are valid, the lock is held, and `reference` has the 8 bytes of an object
        // reference.
        unsafe { ok(hdf5_sys::h5r::H5Rcreate(reference.as_mut_ptr().cast(), self.file, name.as_ptr(), kind, -1)) };
        reference
    }

    /// Writes all buffered data to the file, and leaves the file open.
    pub fn flush(&self) {
        // SAFETY: the id is valid, and the library's lock is held.
        unsafe { ok(H5Fflush(self.file, H5F_scope_t::H5F_SCOPE_GLOBAL)) };
    }

    /// Starts the mode in which other processes may read the file while this process writes it.
    pub fn start_swmr(&self) {
        // SAFETY: the id is valid, and the library's lock is held.
        unsafe { ok(hdf5_sys::h5f::H5Fstart_swmr_write(self.file)) };
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // SAFETY: this value owns the id, and the library's lock is held.
        unsafe { H5Fclose(self.file) };
    }
}

/// Functions that set properties of datasets.
pub mod set {
    use super::*;
    use hdf5_sys::h5d::{H5D_alloc_time_t, H5D_layout_t};
    use hdf5_sys::h5z::H5Z_SO_scale_type_t;

    pub fn nothing(_: hid_t) {}

    macro_rules! property {
        ($name:ident($($argument:ident: $kind:ty),*) $call:expr) => {
            pub fn $name($($argument: $kind),*) -> impl Fn(hid_t) {
                move |list| {
                    // SAFETY: the list and the arguments are valid during the call, and the library's lock is held.
                    unsafe { ok::<i32>(($call)(list)) };
                }
            }
        };
    }
    property!(chunk(dims: &'static [u64]) |list| H5Pset_chunk(list, dims.len() as i32, dims.as_ptr()));
    property!(deflate(level: u32) |list| H5Pset_deflate(list, level));
    property!(shuffle() | list | H5Pset_shuffle(list));
    property!(fletcher32() | list | H5Pset_fletcher32(list));
    property!(nbit() | list | H5Pset_nbit(list));
    property!(scale_offset() | list | H5Pset_scaleoffset(list, H5Z_SO_scale_type_t::H5Z_SO_INT, 0));
    property!(compact() | list | H5Pset_layout(list, H5D_layout_t::H5D_COMPACT));
    property!(early() | list | H5Pset_alloc_time(list, H5D_alloc_time_t::H5D_ALLOC_TIME_EARLY));
    property!(filter(id: i32) |list| H5Pset_filter(list, id, 0, 0, ptr::null()));
    property!(edges_unfiltered() | list | H5Pset_chunk_opts(list, 2));
    property!(dense_links() | list | H5Pset_link_phase_change(list, 0, 0));
    property!(link_order() | list | H5Pset_link_creation_order(list, 3));
    property!(external(file: &'static str, bytes: u64) |list| H5Pset_external(list, c(file).as_ptr(), 0, bytes));

    /// Maps the dataset to `/x` of another file, which has `elements` elements.
    pub fn mapped_from(file: &'static str, elements: u64) -> impl Fn(hid_t) {
        move |list| {
            // SAFETY: all ids, strings and dimensions are valid during the calls, and the library's lock is held.
            unsafe {
                let space = ok(H5Screate_simple(1, &elements as *const hsize_t, ptr::null()));
                ok(H5Pset_virtual(list, space, c(file).as_ptr(), c("/x").as_ptr(), space));
                H5Sclose(space);
            }
        }
    }
}

/// Functions that create datatypes.
pub mod make {
    use super::*;
    use hdf5_sys::h5t::*;

    pub fn compound(width: usize, members: &[(&str, usize, hid_t)]) -> hid_t {
        // SAFETY: all datatypes and strings are valid during the calls, and the library's lock is held.
        unsafe {
            let datatype = ok(H5Tcreate(H5T_class_t::H5T_COMPOUND, width));
            for (name, offset, member) in members {
                ok(H5Tinsert(datatype, c(name).as_ptr(), *offset, *member));
            }
            datatype
        }
    }

    pub fn array(base: hid_t, dims: &[u64]) -> hid_t {
        // SAFETY: `base` is valid and `dims` has the given length during the call, and the library's lock is held.
        unsafe { ok(H5Tarray_create2(base, dims.len() as u32, dims.as_ptr())) }
    }

    pub fn variable_length(base: hid_t) -> hid_t {
        // SAFETY: `base` is valid during the call, and the library's lock is held.
        unsafe { ok(H5Tvlen_create(base)) }
    }

    /// A string of `width` bytes. If `width` is `usize::MAX`, the length is variable.
    pub fn string(width: usize) -> hid_t {
        // SAFETY: the datatypes are valid during the calls, and the library's lock is held.
        unsafe {
            let datatype = ok(H5Tcopy(*H5T_C_S1));
            ok(H5Tset_size(datatype, width));
            datatype
        }
    }

    pub fn opaque(width: usize) -> hid_t {
        // SAFETY: the datatype and the string are valid during the calls, and the library's lock is held.
        unsafe {
            let datatype = ok(H5Tcreate(H5T_class_t::H5T_OPAQUE, width));
            ok(H5Tset_tag(datatype, c("a tag of any kind").as_ptr()));
            datatype
        }
    }

    /// The type that h5py uses for a bool.
    pub fn enumeration(base: hid_t) -> hid_t {
        // SAFETY: all arguments are valid during the calls, the lock is held, and the values have the width of the
        // widest base.
        unsafe {
            let datatype = ok(H5Tenum_create(base));
            ok(H5Tenum_insert(datatype, c("FALSE").as_ptr(), 0u64.to_ne_bytes().as_ptr().cast()));
            ok(H5Tenum_insert(datatype, c("TRUE").as_ptr(), (u64::MAX / 255).to_ne_bytes().as_ptr().cast()));
            datatype
        }
    }

    pub fn half() -> hid_t {
        // SAFETY: the datatypes are valid during the calls, the lock is held, and the fields have the places and
        // widths of binary16.
        unsafe {
            let datatype = ok(H5Tcopy(*H5T_IEEE_F32LE));
            ok(H5Tset_fields(datatype, 15, 10, 5, 0, 10));
            ok(H5Tset_size(datatype, 2));
            ok(H5Tset_ebias(datatype, 15));
            datatype
        }
    }

    /// An integer of an unusual width.
    pub fn wide_integer(bytes: usize) -> hid_t {
        // SAFETY: the datatypes are valid during the calls, and the library's lock is held.
        unsafe {
            let datatype = ok(H5Tcopy(*H5T_STD_I64LE));
            ok(H5Tset_size(datatype, bytes));
            datatype
        }
    }
}

/// Registers a filter that mcrEngine does not support. The filter inverts all bits of each byte.
pub fn register_unknown_filter() -> i32 {
    use hdf5_sys::h5z::{H5Z_class2_t, H5Zregister};
    use std::ffi::{c_uint, c_void};
    unsafe extern "C" fn turn(
        _: c_uint,
        _: usize,
        _: *const c_uint,
        bytes: usize,
        _: *mut usize,
        buffer: *mut *mut c_void,
    ) -> usize {
        // SAFETY: the library passes a buffer that has at least `bytes` bytes and that nothing else uses meanwhile.
        unsafe { std::slice::from_raw_parts_mut((*buffer).cast::<u8>(), bytes) }.iter_mut().for_each(|b| *b = !*b);
        bytes
    }
    let class = H5Z_class2_t {
        version: 1,
        id: 300,
        encoder_present: 1,
        decoder_present: 1,
        name: c"turn".as_ptr(),
        can_apply: None,
        set_local: None,
        filter: Some(turn),
    };
    let _lock = hdf5_sys::LOCK.lock();
    // SAFETY: the library copies the class during the call.
    unsafe {
        ok(H5open());
        ok(H5Zregister(ptr::from_ref(&class).cast()));
    }
    class.id
}
