//! Particles: rows with identification numbers. The rows are sorted by number, and the original order is stored
//! separately.
//!
//! The other folders of `predict` use only these names:
//!
//! | | the encoder | both, as bytes | the decoder |
//! |---|---|---|---|
//! | a [`Table`]: the groups whose rows have numbers, and the places of these rows | [`find_tables`] | [`write_tables`], [`read_tables`] | |
//! | the rows of an older segment whose numbers occur in the table | [`known_rows`] | in the table | [`fill_known_rows`] |
//! | the original order of the rows | [`encode_orders`] | | [`decode_orders`] |
//!
//! The layout of a segment holds its tables. The places of a table become a column like any other column, and this
//! column is marked as placed. A placed column with a [`Wrap`] holds periodic positions.

mod choose;
mod format;

pub(super) use choose::code_order::encode_orders;
pub(super) use choose::find_older_rows::find as known_rows;
pub(super) use choose::find_tables::find as find_tables;
pub(super) use format::row_order::decode_orders;
pub(super) use format::table::{
    Table, Wrap, fill_by_number as fill_known_rows, read as read_tables, write as write_tables,
};
