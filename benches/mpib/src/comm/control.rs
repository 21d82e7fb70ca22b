//! Control variables of the MPI library (MPI_T), for example Open MPI's MCA variables.
#![expect(unsafe_code, reason = "calls of the MPI library; each block states its requirements")]

use super::{Result, check};
use mpi::ffi;
use std::ffi::{CString, c_char, c_int};
use std::ptr;

/// Maximum length of the name of a value.
const NAME_BYTES: usize = 256;
/// Maximum number of named values of a variable.
const VALUES_MAX: c_int = 256;

/// A value that a variable can have, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub number: i32,
    /// Name of the value in the MPI library.
    pub name: String,
}

/// An integer or boolean variable of the MPI library in this process.
pub struct Control {
    handle: ffi::MPI_T_cvar_handle,
    is_bool: bool,
    is_writable: bool,
    values: Vec<Value>,
}

/// Sets an environment variable of this process, if the process has a single thread.
pub fn set_variable_alone(name: &str, value: &str) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).map(str::trim);
    if threads == Some("1") {
        // SAFETY: no other thread exists that could read the environment at the same time.
        unsafe { std::env::set_var(name, value) };
    }
}

/// A session of the tool interface. MPI counts how often the interface is initialised and finalised.
struct Session;

impl Session {
    fn begin() -> Option<Self> {
        let mut provided = 0;
        // SAFETY: `provided` is a valid place for an int. MPI allows this call at any time and repeatedly.
        let code = unsafe { ffi::MPI_T_init_thread(ffi::RSMPI_THREAD_SINGLE, &mut provided) };
        (code == ffi::MPI_SUCCESS as c_int).then_some(Self)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: each session was begun once.
        unsafe { ffi::MPI_T_finalize() };
    }
}

impl Control {
    /// The variable with this name. `None` if the MPI library has no such variable, or if it is not a single integer
    /// or boolean.
    pub fn find(name: &str) -> Option<Self> {
        let session = Session::begin()?;
        let name = CString::new(name).ok()?;
        let ok = |code: c_int| (code == ffi::MPI_SUCCESS as c_int).then_some(());
        // SAFETY: the name ends with a zero byte, and all other pointers are valid places for the results of the
        // calls. MPI allows null pointers for names and descriptions that the caller does not need. A variable
        // without a bound object needs no object.
        unsafe {
            let mut index = 0;
            ok(ffi::MPI_T_cvar_get_index(name.as_ptr(), &mut index))?;
            let (mut name_len, mut text_len, mut verbosity, mut bind, mut scope) = (0, 0, 0, 0, 0);
            let mut kind = ffi::RSMPI_DATATYPE_NULL;
            let mut names: ffi::MPI_T_enum = std::mem::zeroed();
            ok(ffi::MPI_T_cvar_get_info(
                index,
                ptr::null_mut(),
                &mut name_len,
                &mut verbosity,
                &mut kind,
                &mut names,
                ptr::null_mut(),
                &mut text_len,
                &mut bind,
                &mut scope,
            ))?;
            let mut bytes = 0;
            ok(ffi::MPI_Type_size(kind, &mut bytes))?;
            let is_bool = bytes == 1;
            if !(is_bool || bytes as usize == size_of::<c_int>()) {
                return None;
            }
            let mut handle: ffi::MPI_T_cvar_handle = std::mem::zeroed();
            let mut count = 0;
            ok(ffi::MPI_T_cvar_handle_alloc(index, ptr::null_mut(), &mut handle, &mut count))?;
            // The session stays open until the variable is dropped.
            std::mem::forget(session);
            let fixed = [ffi::MPI_T_SCOPE_CONSTANT as c_int, ffi::MPI_T_SCOPE_READONLY as c_int];
            let found = Self { handle, is_bool, is_writable: !fixed.contains(&scope), values: values(names) };
            (count == 1).then_some(found)
        }
    }

    /// The values that have names.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Whether a program may change the variable while it runs.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Reads the variable.
    pub fn read(&self) -> Result<i32> {
        let (mut number, mut byte) = (0 as c_int, 0u8);
        let place = if self.is_bool { ptr::from_mut(&mut byte).cast() } else { ptr::from_mut(&mut number).cast() };
        // SAFETY: the place is as long as the variable.
        check("MPI_T_cvar_read", unsafe { ffi::MPI_T_cvar_read(self.handle, place) })?;
        Ok(if self.is_bool { i32::from(byte) } else { number })
    }

    /// Changes the variable.
    pub fn write(&self, number: i32) -> Result<()> {
        let byte = u8::from(number != 0);
        let place = if self.is_bool { ptr::from_ref(&byte).cast() } else { ptr::from_ref(&number).cast() };
        // SAFETY: the place is as long as the variable.
        check("MPI_T_cvar_write", unsafe { ffi::MPI_T_cvar_write(self.handle, place) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, and the session that `find` began.
        unsafe { ffi::MPI_T_cvar_handle_free(&mut self.handle) };
        drop(Session);
    }
}

/// The named values of an enumeration. Empty if the variable has none.
fn values(names: ffi::MPI_T_enum) -> Vec<Value> {
    let mut count = 0;
    let mut len = 0;
    // SAFETY: MPI returned the handle, and rejects the handle of a variable without names. The places are valid.
    let code = unsafe { ffi::MPI_T_enum_get_info(names, &mut count, ptr::null_mut(), &mut len) };
    if code != ffi::MPI_SUCCESS as c_int {
        return Vec::new();
    }
    let item = |index| {
        let mut text: [c_char; NAME_BYTES] = [0; NAME_BYTES];
        let (mut number, mut len) = (0, NAME_BYTES as c_int);
        // SAFETY: the text has `len` places, and MPI ends it with a zero byte.
        let code = unsafe { ffi::MPI_T_enum_get_item(names, index, &mut number, text.as_mut_ptr(), &mut len) };
        let name: Vec<u8> = text.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        (code == ffi::MPI_SUCCESS as c_int).then(|| Value { number, name: String::from_utf8_lossy(&name).into_owned() })
    };
    (0..count.clamp(0, VALUES_MAX)).filter_map(item).collect()
}
