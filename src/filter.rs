//! Placeholder with the names that verifying is written against.

use crate::header::Filter;

/// Why filters do not go on.
#[derive(Debug, thiserror::Error)]
#[error("filters are not here")]
pub struct FilterError;

/// Puts filters on.
pub fn put_on(filters: &[Filter], raw: &[u8]) -> Result<Vec<u8>, FilterError> {
    if filters.is_empty() { Ok(raw.to_vec()) } else { Err(FilterError) }
}
