//! The code that a decoder needs for tables, whose rows have identification numbers.

pub(crate) mod curve;
pub(crate) mod older_rows;
pub(crate) mod row_order;
pub(crate) mod table;
