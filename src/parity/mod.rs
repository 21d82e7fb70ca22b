//! Parity of containers: extra bytes from which lost or changed bytes of a container are computed again.
//!
//! The parity of the container `group-0000.mcr` is in the file `group-0000.mcr.parity` of the same directory. The
//! container does not depend on this file. docs/format/parity.md describes the bytes.
//!
//! A container is divided into blocks of 4 KiB. Blocks that are far apart form a stripe, and each stripe has parity
//! blocks. So a hole of up to `percent` per cent of the container damages only a few blocks of each stripe. A checksum
//! of each block shows which blocks are damaged.
//!
//! - [`write()`] computes the parity of a container that is finished, and reads the container once.
//! - [`check`] verifies a parity file without reading the container.
//! - [`mend`] writes a whole copy of a damaged container.

mod blocks;
mod encode;
mod format;
mod mend;
mod reader;

pub use encode::{MEMORY_BYTES, write};
pub use format::{Geometry, HEADER_LEN, ParityHeader, ParityPercent, parse_header};
pub use mend::{MendError, Mended, mend};
pub(crate) use reader::index_digest_of;
pub use reader::{Found, check, find, percent_of};

use std::path::{Path, PathBuf};

/// The end of the name of a parity file. The name begins with the name of the container.
pub const SUFFIX: &str = ".parity";

/// The path of the parity file of a container.
pub fn parity_path(container: &Path) -> PathBuf {
    let mut path = container.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

#[cfg(test)]
mod tests;
