//! Formats an error and its causes as one line of text.

use std::error::Error;

/// The error's text, then the text of each of its causes, with ": " between them.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
