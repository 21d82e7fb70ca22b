//! Unknown keys of a configuration file, and the known keys that the operator probably meant.

use serde::de::DeserializeOwned;
use serde_value::DeserializerError;
use std::path::{Path, PathBuf};

/// An unknown key, and the known key that the operator probably meant.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}:{line}: unknown key {key:?} in {table}; {}{}",
    file.display(), way_out(near.as_deref(), known), rest(near.as_deref(), others)
)]
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
    /// The other unknown keys of the file. The other unknown keys have no others.
    pub others: Vec<UnknownKey>,
}

/// The texts of the other unknown keys. A text that ends with a question needs no separator.
fn rest(near: Option<&str>, others: &[UnknownKey]) -> String {
    let (mut text, mut is_question) = (String::new(), near.is_some());
    for other in others {
        text.push_str(if is_question { " " } else { "; " });
        text.push_str(&other.to_string());
        is_question = other.near.is_some();
    }
    text
}

fn way_out(near: Option<&str>, known: &[String]) -> String {
    match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("the keys are {}", known.join(", ")),
    }
}

/// Maximum number of unknown keys that an error names.
const UNKNOWN_MAX: usize = 16;

/// All unknown keys of a configuration: the first one, with the others. `None` if the first error is no unknown key.
pub(super) fn unknown_keys<T: DeserializeOwned>(text: &str, file: &Path) -> Option<UnknownKey> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let mut found: Vec<UnknownKey> = Vec::new();
    while found.len() < UNKNOWN_MAX {
        let rest = lines.join("\n");
        let Some(error) = toml::from_str::<T>(&rest).err() else { break };
        let Some((key, known)) = unknown_key::<T>(&rest) else { break };
        let has_key = |line: &usize| lines.get(*line - 1).is_some_and(|text| text.contains(&key));
        let begins = |text: &&str| text.trim_start().starts_with(&key);
        // If a file has several unknown keys, the two parsers may find different ones first.
        let line = Some(line_of(&rest, &error)).filter(has_key).or(lines.iter().position(begins).map(|at| at + 1));
        let line = line.unwrap_or(1);
        let (near, table, file) = (nearest(&key, &known), table_at(text, line), file.to_owned());
        found.push(UnknownKey { file, line, key, table, near, known, others: Vec::new() });
        // The search goes on without this line. A table is not searched, because its keys are unknown too.
        match lines.get_mut(line - 1) {
            Some(text) if !text.is_empty() && !text.trim_start().starts_with('[') => *text = "",
            _ => break,
        }
    }
    found.sort_by_key(|unknown| unknown.line);
    let mut found = found.into_iter();
    let first = found.next()?;
    Some(UnknownKey { others: found.collect(), ..first })
}

/// The line of an error, starting at 1.
pub(super) fn line_of(text: &str, error: &toml::de::Error) -> usize {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1
}

/// The unknown key that makes a configuration invalid, and the known keys of its table. The error of the crate `toml`
/// contains the keys only in its text. Therefore the configuration is deserialized again by a crate whose error has
/// the keys as values.
fn unknown_key<T: DeserializeOwned>(text: &str) -> Option<(String, Vec<String>)> {
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
fn table_at(text: &str, line: usize) -> String {
    let name = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    if let Some(name) = name.strip_prefix('[').and_then(|name| name.split(']').next()) {
        let above = name.trim_start_matches('[').rsplit_once('.').map(|(above, _)| format!("[{above}]"));
        return above.unwrap_or_else(|| "the top of the file".to_owned());
    }
    let headers = text.lines().take(line).filter(|line| line.trim_start().starts_with('['));
    let header = headers.last().and_then(|line| line.split(']').next());
    header.map_or_else(|| "the top of the file".to_owned(), |header| format!("{}]", header.trim()))
}
