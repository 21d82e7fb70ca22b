//! The code that a decoder needs, and the encoder's exact inverse of this code. Stored files must stay readable, so
//! no change may alter the meaning of stored bytes. This folder does not refer to the decisions of the encoder.

pub(crate) mod copies;
pub(crate) mod decode;
pub(crate) mod group;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod nested;
pub(crate) mod numbers;
pub(crate) mod older;
pub(crate) mod param;
pub(crate) mod predictor;
pub(crate) mod records;
pub(crate) mod residual;
pub(crate) mod strides;
