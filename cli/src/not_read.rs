//! The error if a checkpoint could not be read, and what the user can do about it.

use crate::advice::{Advised, path_in};

/// The error if a checkpoint was not read because of these problems.
pub fn not_read(what: String, problems: &str, way_out: String) -> anyhow::Error {
    let advised = Advised::with_sentence(what, way_out);
    match path_in(problems) {
        Some(path) => advised.at(&path).into(),
        None => advised.into(),
    }
}

/// What the user can do about these problems of reading.
pub fn way_to_read(problems: &str) -> &'static str {
    match problems.contains("Permission denied") {
        true => "Give this user access to the path",
        false => "Try again",
    }
}
