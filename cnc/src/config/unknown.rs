//! Unknown keys of a configuration file, and the known keys that the operator probably meant.

use serde::de::DeserializeOwned;
use serde_value::DeserializerError;
use std::path::PathBuf;

/// An unknown key, and the known key that the operator probably meant.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: unknown key {key:?} in {table}; {}", file.display(), way_out(near.as_deref(), known))]
pub struct UnknownKey {
    /// The configuration file.
    pub file: PathBuf,
    /// Line number, starting at 1.
    pub line: usize,
    /// The key as written.
    pub key: String,
    /// The table that contains the key: `[cnc]`, or `the top of the file`.
    pub table: String,
    /// The known key with the most similar spelling.
    pub near: Option<String>,
    /// All known keys.
    pub known: Vec<String>,
}

fn way_out(near: Option<&str>, known: &[String]) -> String {
    match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("the keys are {}", known.join(", ")),
    }
}

/// The unknown key that makes a configuration invalid, and the known keys of its table. The error of the crate `toml`
/// contains the keys only in its text. Therefore the configuration is deserialized again by a crate whose error has
/// the keys as values.
pub(super) fn unknown_key<T: DeserializeOwned>(text: &str) -> Option<(String, Vec<String>)> {
    let values: serde_value::Value = toml::from_str(text).ok()?;
    match values.deserialize_into::<T>() {
        Err(DeserializerError::UnknownField(key, known)) => {
            Some((key, known.iter().map(|key| (*key).to_owned()).collect()))
        }
        _ => None,
    }
}

/// The known name with the most similar spelling. `None` if no name is similar enough.
pub fn nearest(name: &str, known: &[String]) -> Option<String> {
    let plain = |name: &str| name.to_lowercase().replace('_', "-");
    let likeness = |other: &&String| strsim::jaro_winkler(&plain(name), &plain(other));
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) > 0.75).then(|| best.clone())
}

/// The header of the table that contains this line. If the line is a header, the table above it contains the line.
pub(super) fn table_at(text: &str, line: usize) -> String {
    let name = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    if let Some(name) = name.strip_prefix('[').and_then(|name| name.split(']').next()) {
        let above = name.trim_start_matches('[').rsplit_once('.').map(|(above, _)| format!("[{above}]"));
        return above.unwrap_or_else(|| "the top of the file".to_owned());
    }
    let headers = text.lines().take(line).filter(|line| line.trim_start().starts_with('['));
    let header = headers.last().and_then(|line| line.split(']').next());
    header.map_or_else(|| "the top of the file".to_owned(), |header| format!("{}]", header.trim()))
}
