//! The code that a decoder needs for rows that each have a number.

pub(crate) mod curve;
pub(crate) mod older_rows;
pub(crate) mod row_order;
pub(crate) mod table;
