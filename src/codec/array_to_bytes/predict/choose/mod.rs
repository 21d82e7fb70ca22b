//! The decisions of the encoder. Decisions may change at any time, because `format/` decodes every choice.

pub(crate) mod alike;
pub(crate) mod code_column;
pub(crate) mod code_numbers;
pub(crate) mod column;
pub(crate) mod column_data;
pub(crate) mod components;
pub(crate) mod effort;
pub(crate) mod encode;
pub(crate) mod find_copies;
pub(crate) mod find_nested;
pub(crate) mod find_records;
pub(crate) mod find_strides;
pub(crate) mod fit;
pub(crate) mod groups;
pub(crate) mod known;
pub(crate) mod limits;
pub(crate) mod order;
pub(crate) mod pipeline;
pub(crate) mod slabs;
pub(crate) mod stencil;
pub(crate) mod weights;
