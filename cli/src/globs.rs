//! Patterns for the files of a checkpoint.

use globset::{GlobBuilder, GlobMatcher};
use mcrengine::ids::FilePath;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A pattern. A pattern without a slash is compared with the name of a file in any directory. A pattern with a slash
/// is compared with the whole path. In such a pattern, `**` stands for any directories.
#[derive(Clone, Debug)]
pub struct FileGlob {
    matcher: GlobMatcher,
    is_path: bool,
}

impl FileGlob {
    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, String> {
        let glob = GlobBuilder::new(text).literal_separator(true).build().map_err(|error| error.to_string())?;
        Ok(Self { matcher: glob.compile_matcher(), is_path: text.contains('/') })
    }

    /// Whether the pattern is for this file.
    pub fn is_for(&self, path: &FilePath) -> bool {
        let path = Path::new(OsStr::from_bytes(path.as_bytes()));
        let compared = if self.is_path { Some(path.as_os_str()) } else { path.file_name() };
        compared.is_some_and(|compared| self.matcher.is_match(compared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_a_slash_is_for_names_and_a_pattern_with_a_slash_for_paths() {
        let is_for = |glob: &str, path: &str| {
            let path = FilePath::new(path.as_bytes().to_vec()).expect("valid");
            FileGlob::parse(glob).expect("valid").is_for(&path)
        };
        assert!(is_for("*.h5", "a.h5") && is_for("*.h5", "out/deep/a.h5") && !is_for("*.h5", "a.h5.txt"));
        assert!(is_for("out/*.h5", "out/a.h5") && !is_for("out/*.h5", "out/deep/a.h5") && is_for("out/**", "out/d/a"));
        assert!(is_for("rank_{0,17}.*", "rank_17.dat") && !is_for("rank_{0,17}.*", "rank_1.dat"));
        assert!(FileGlob::parse("[").is_err());
    }
}
