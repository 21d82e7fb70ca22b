//! What a decoder needs, and its exact inverse. The bytes that it reads are there for good, so nothing here may
//! change what they mean. Nothing here knows the encoder.

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
