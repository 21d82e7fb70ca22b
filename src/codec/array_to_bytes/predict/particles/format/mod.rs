//! What a decoder needs of rows with numbers.

pub(crate) mod curve;
pub(crate) mod older_rows;
pub(crate) mod row_order;
pub(crate) mod table;
