//! Particles: rows with numbers, put in the order of these, and the order that they came in.
//!
//! The rest of `predict` knows no more of them than is named here:
//!
//! | | the encoder | both, as bytes | the decoder |
//! |---|---|---|---|
//! | which groups are rows with numbers, and the places of these: a [`Table`] | [`find_tables`] | [`write_tables`], [`read_tables`] | |
//! | which rows of an older segment have the same numbers | [`known_rows`] | in the table | [`fill_known_rows`] |
//! | the order that the rows came in | [`encode_orders`] | | [`decode_orders`] |
//!
//! The layout of a segment holds its tables. It makes a column of the places of a table like any other column, but
//! marks it as placed; its [`Wrap`], if it has one, says that its positions are periodic.

mod choose;
mod format;

pub(super) use choose::code_order::encode_orders;
pub(super) use choose::find_older_rows::find as known_rows;
pub(super) use choose::find_tables::find as find_tables;
pub(super) use format::row_order::decode_orders;
pub(super) use format::table::{
    Table, Wrap, fill_by_number as fill_known_rows, read as read_tables, write as write_tables,
};
