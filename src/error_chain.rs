//! Formats an error and its causes as one line of text.

use std::error::Error;

/// The error's text, then the text of each of its causes, with ": " between them. A cause whose text is already at
/// the end is left out, because some libraries repeat the text of a cause.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let of_cause = cause.to_string();
        if text != of_cause && !text.ends_with(&format!(": {of_cause}")) {
            text.push_str(": ");
            text.push_str(&of_cause);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Outer {
        text: &'static str,
        source: io::Error,
    }

    #[test]
    fn each_cause_is_named_once() {
        let of = |text| error_chain(&Outer { text, source: io::Error::other("no room") });
        assert_eq!(of("writing a"), "writing a: no room");
        assert_eq!(of("writing a: no room"), "writing a: no room");
        assert_eq!(of("no room"), "no room");
        assert_eq!(of("there is no room"), "there is no room: no room");
    }
}
