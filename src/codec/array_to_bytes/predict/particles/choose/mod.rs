//! The decisions of the encoder about rows that each have a number.

pub(crate) mod code_order;
pub(crate) mod find_curve;
pub(crate) mod find_older_rows;
pub(crate) mod find_tables;
