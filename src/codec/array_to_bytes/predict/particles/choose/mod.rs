//! The decisions of the encoder about tables, whose rows have identification numbers.

pub(crate) mod code_order;
pub(crate) mod find_curve;
pub(crate) mod find_older_rows;
pub(crate) mod find_tables;
