//! The types of errors that decide the exit status of a command.

use std::path::{Path, PathBuf};

/// This process has no permission to use a file or a directory, or other users could change it. The command ends with
/// [`crate::exit::Exit::NotPermitted`].
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotPermitted {
    /// The text of the error, with what the user can do.
    pub why: String,
    /// The file or directory of the error.
    pub path: Option<PathBuf>,
}

impl NotPermitted {
    /// An error with this text.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), path: None }
    }

    /// Names the file or directory of the error.
    pub fn at(self, path: &Path) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }
}

/// A connection needs TLS, and this process has no usable certificate. The command ends with
/// [`crate::exit::Exit::Configuration`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoIdentity(pub String);

/// A setting of a daemon cannot be used. The command ends with [`crate::exit::Exit::Configuration`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongSetting(pub String);
