//! Reads and writes whole datasets with the HDF5 library, for `mcr extract` and `mcr diff`. Only datasets of numbers
//! are supported.

use hdf5::types::{FloatSize, IntSize, TypeDescriptor};
use hdf5::{Dataset, File, H5Type};
use mcrengine::header::{ByteOrder, ElementType};
use std::path::Path;

/// The numbers of a dataset, in the byte order of the processor.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Signed integers of 8 bits.
    I8(Vec<i8>),
    /// Signed integers of 16 bits.
    I16(Vec<i16>),
    /// Signed integers of 32 bits.
    I32(Vec<i32>),
    /// Signed integers of 64 bits.
    I64(Vec<i64>),
    /// Unsigned integers of 8 bits.
    U8(Vec<u8>),
    /// Unsigned integers of 16 bits.
    U16(Vec<u16>),
    /// Unsigned integers of 32 bits.
    U32(Vec<u32>),
    /// Unsigned integers of 64 bits.
    U64(Vec<u64>),
    /// Floats of 16 or 32 bits.
    F32(Vec<f32>),
    /// Floats of 64 bits.
    F64(Vec<f64>),
}

/// A dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Number of elements in each dimension.
    pub shape: Vec<u64>,
    /// The elements. The index of the last dimension changes fastest.
    pub numbers: Numbers,
}

/// Why an array cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The HDF5 library failed.
    #[error("HDF5: {0}")]
    Library(#[from] hdf5::Error),
    /// The elements are not numbers.
    #[error("elements of the type {0} are not numbers; `mcr cat` gives the whole file")]
    NotNumbers(String),
}

/// Calls a macro for each type of numbers.
macro_rules! for_each_type {
    ($numbers:expr, $values:ident => $body:expr) => {
        match $numbers {
            Numbers::I8($values) => $body,
            Numbers::I16($values) => $body,
            Numbers::I32($values) => $body,
            Numbers::I64($values) => $body,
            Numbers::U8($values) => $body,
            Numbers::U16($values) => $body,
            Numbers::U32($values) => $body,
            Numbers::U64($values) => $body,
            Numbers::F32($values) => $body,
            Numbers::F64($values) => $body,
        }
    };
}

impl Numbers {
    /// NumPy's name of the type.
    pub fn descr(&self) -> &'static str {
        match self {
            Self::I8(_) => "|i1",
            Self::I16(_) => "<i2",
            Self::I32(_) => "<i4",
            Self::I64(_) => "<i8",
            Self::U8(_) => "|u1",
            Self::U16(_) => "<u2",
            Self::U32(_) => "<u4",
            Self::U64(_) => "<u8",
            Self::F32(_) => "<f4",
            Self::F64(_) => "<f8",
        }
    }

    /// The type of the bytes of [`Self::to_le_bytes`].
    pub fn element(&self) -> ElementType {
        let order = ByteOrder::Little;
        let int = |width, signed| ElementType::Int { width, signed, order };
        match self {
            Self::I8(_) => int(1, true),
            Self::I16(_) => int(2, true),
            Self::I32(_) => int(4, true),
            Self::I64(_) => int(8, true),
            Self::U8(_) => int(1, false),
            Self::U16(_) => int(2, false),
            Self::U32(_) => int(4, false),
            Self::U64(_) => int(8, false),
            Self::F32(_) => ElementType::Float { width: 4, order },
            Self::F64(_) => ElementType::Float { width: 8, order },
        }
    }

    /// The bytes of all numbers, least significant byte first.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        for_each_type!(self, values => values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

/// The datasets of a file.
pub struct Arrays(File);

impl Arrays {
    /// Opens a file for reading.
    pub fn open(path: &Path) -> Result<Self, ArrayError> {
        Ok(Self(File::open(path)?))
    }

    /// Length of a dataset in memory, in bytes.
    pub fn bytes(&self, path: &str) -> Result<u64, ArrayError> {
        let dataset = self.0.dataset(path)?;
        Ok((dataset.size() as u64).saturating_mul(dataset.dtype()?.size() as u64))
    }

    /// Reads a dataset.
    pub fn read(&self, path: &str) -> Result<Array, ArrayError> {
        let dataset = self.0.dataset(path)?;
        let shape = dataset.shape().into_iter().map(|n| n as u64).collect();
        Ok(Array { shape, numbers: numbers(&dataset)? })
    }
}

fn numbers(dataset: &Dataset) -> Result<Numbers, ArrayError> {
    let described = dataset.dtype()?.to_descriptor()?;
    let unusual = || Err(ArrayError::NotNumbers(format!("{described:?}")));
    Ok(match &described {
        TypeDescriptor::Integer(size) => match size {
            IntSize::U1 => Numbers::I8(dataset.read_raw()?),
            IntSize::U2 => Numbers::I16(dataset.read_raw()?),
            IntSize::U4 => Numbers::I32(dataset.read_raw()?),
            IntSize::U8 => Numbers::I64(dataset.read_raw()?),
        },
        TypeDescriptor::Unsigned(size) => match size {
            IntSize::U1 => Numbers::U8(dataset.read_raw()?),
            IntSize::U2 => Numbers::U16(dataset.read_raw()?),
            IntSize::U4 => Numbers::U32(dataset.read_raw()?),
            IntSize::U8 => Numbers::U64(dataset.read_raw()?),
        },
        TypeDescriptor::Float(FloatSize::U8) => Numbers::F64(dataset.read_raw()?),
        TypeDescriptor::Float(_) => Numbers::F32(dataset.read_raw()?),
        TypeDescriptor::Boolean => {
            let values: Vec<bool> = dataset.read_raw()?;
            Numbers::U8(values.into_iter().map(u8::from).collect())
        }
        _ => return unusual(),
    })
}

/// A new HDF5 file. An existing file is an error.
pub struct NewArrays(File);

impl NewArrays {
    /// Creates the file.
    pub fn create(path: &Path) -> Result<Self, ArrayError> {
        Ok(Self(File::create_excl(path)?))
    }

    /// Writes everything that the library holds in memory. Without this call, an error is not noticed.
    pub fn finish(self) -> Result<(), ArrayError> {
        self.0.flush()?;
        Ok(self.0.close()?)
    }

    /// Adds a dataset, with the rank as the attribute `rank`. The groups on its path are made.
    pub fn add(&self, path: &str, array: &Array, rank: u32) -> Result<(), ArrayError> {
        for_each_type!(&array.numbers, values => self.add_numbers(path, &array.shape, values, rank))
    }

    fn add_numbers<T: H5Type>(&self, path: &str, shape: &[u64], values: &[T], rank: u32) -> Result<(), ArrayError> {
        let dims: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
        let dataset = self.0.new_dataset::<T>().shape(&dims[..]).create(path)?;
        if !values.is_empty() {
            dataset.write_raw(values)?;
        }
        dataset.new_attr::<u32>().create("rank")?.write_scalar(&rank)?;
        Ok(())
    }
}
