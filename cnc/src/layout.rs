//! Decides which files form a checkpoint. A layout maps a path below the watched directory to a checkpoint's label
//! and a rank.
//!
//! A layout is a list of patterns. The first pattern that matches a path decides. A pattern is a glob with named
//! parts (`**/{checkpoint}.cpu{rank}`), or a regular expression with the groups `checkpoint` and `rank`. Globs and
//! regular expressions match the bytes of the whole path. [`presets`] has the patterns of widely used applications.
//! [`guess`] guesses patterns from file names, and [`walk`] finds the files below a directory.

pub mod guess;
mod linked;
mod mixed;
pub mod of_job;
pub mod pointers;
pub mod presets;
pub mod walk;

pub use guess::{Explanation, MaybeShared, Unplaced};
pub use linked::{Linked, linked};
pub use mixed::mixed;
pub use walk::{CheckpointLabel, Labelled, Listing, Scan, ScanError, ScanLimits, Skipped, list, scan, sort};

use mcrengine::ids::{CheckpointId, FilePath, NameError, RANKS_MAX, Rank};
use regex::bytes::{Captures, Regex, RegexBuilder};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Which files form a checkpoint, and to which rank each file belongs.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Name of the layout: a preset's name, `patterns`, `guessed`, ...
    name: String,
    patterns: Vec<Pattern>,
    /// A file whose existence marks its checkpoint as complete.
    marker: Option<Pattern>,
    files_per_rank: Option<u32>,
    /// Whether files with temporary names belong to no checkpoint, see [`pointers::is_temporary`]. Patterns that a user
    /// wrote decide alone.
    skips_temporary: bool,
    beside: &'static Beside,
}

/// The files of a code that lie beside its checkpoints.
#[derive(Debug)]
struct Beside {
    /// Names of small files without which the code cannot restart from a checkpoint. The code uses the same files for
    /// all checkpoints, so they are saved with each checkpoint.
    attendants: &'static [&'static str],
    /// Names of directories of the code's inputs, without which a checkpoint is whole.
    inputs: &'static [&'static str],
}

/// No files.
const NOTHING_BESIDE: Beside = Beside { attendants: &[], inputs: &[] };

/// The checkpoint and the rank of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The application's name of the checkpoint.
    pub checkpoint: CheckpointId,
    /// The rank. Ranks start at 0 here, even if the application's ranks start at 1. `None` if the file belongs to no
    /// single rank, such as a parameter file. Such a file is saved with rank 0.
    pub rank: Option<Rank>,
}

/// Maximum number of patterns in a layout.
pub const PATTERNS_MAX: usize = 256;
/// Maximum length of a pattern in bytes, as the operator wrote it.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// Why a layout was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There is no pattern.
    #[error("the layout has no patterns; write at least one pattern, such as \"{{checkpoint}}/rank{{rank}}.h5\"")]
    Empty,
    /// There are more than [`PATTERNS_MAX`] patterns.
    #[error("the layout has {0} patterns; at most {PATTERNS_MAX} are allowed")]
    TooMany(usize),
    /// A pattern has more than [`PATTERN_BYTES_MAX`] bytes.
    #[error("a pattern has {0} bytes; at most {PATTERN_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// A glob is invalid.
    #[error("pattern {pattern:?}: {what}")]
    Glob {
        /// The glob as written.
        pattern: String,
        /// The error in the pattern, and how to correct it.
        what: String,
    },
    /// A regular expression is invalid.
    #[error("regular expression {pattern:?}: {what}")]
    Regex {
        /// The expression as written.
        pattern: String,
        /// The message of the parser.
        what: String,
    },
    /// The pattern has no part for the checkpoint, so it does not assign files to checkpoints.
    #[error("pattern {pattern:?} has no part named \"checkpoint\"; write {{checkpoint}}, or (?P<checkpoint>...)")]
    NoCheckpoint {
        /// The pattern as written.
        pattern: String,
    },
    /// The name is neither a preset nor a pattern.
    #[error(
        "there is no layout {name:?}; {} presets are {}",
        nearest(near),
        presets::names().collect::<Vec<_>>().join(", ")
    )]
    NoPreset {
        /// The name as written.
        name: String,
        /// The name of the preset with the most similar name.
        near: Option<&'static str>,
    },
}

/// The question for the nearest name, if there is one, and the begin of the next sentence.
fn nearest(near: &Option<&'static str>) -> String {
    near.map_or_else(|| "the".to_owned(), |near| format!("did you mean {near:?}? The"))
}

/// The positions of the label and the rank in a path, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Within {
    /// Position of the label. `None` if the pattern gives the same label to all files, so that the path has no label.
    pub(crate) label: Option<std::ops::Range<usize>>,
    pub(crate) rank: Option<std::ops::Range<usize>>,
}

/// One pattern of a layout.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// The pattern as written in the configuration.
    text: String,
    regex: Regex,
    /// The checkpoint of every matching file, if the regular expression contains no label.
    constant: Option<CheckpointId>,
    /// The text before the label in the name of the checkpoint, as `step_` for a file `header.300` of `step_300`.
    before_label: String,
    /// The number of the application's first rank, 0 or 1.
    first_rank: u32,
    /// Whether matching files belong to no checkpoint.
    is_refusal: bool,
}

impl Layout {
    /// The preset of this name. `None` if there is no preset of this name.
    pub fn preset(name: &str) -> Option<Self> {
        presets::get(name)
    }

    /// The names of all presets.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        presets::names()
    }

    /// A file name as an example for the preset of this name. Empty if there is no preset of this name.
    pub fn preset_example(name: &str) -> &'static str {
        presets::example(name)
    }

    /// The patterns, as globs or regular expressions. The first pattern that matches a path decides.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.patterns.iter().map(|pattern| pattern.text.as_str())
    }

    /// The preset of this name, or an error that names the most similar preset.
    pub fn named(name: &str) -> Result<Self, LayoutError> {
        Self::preset(name).ok_or_else(|| LayoutError::NoPreset {
            name: name.to_owned(),
            near: presets::names()
                .map(|preset| (strsim::jaro_winkler(preset, name), preset))
                .filter(|(likeness, _)| *likeness > 0.75)
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .map(|(_, preset)| preset),
        })
    }

    /// Creates a layout from globs with named parts:
    ///
    /// | part | matches |
    /// |---|---|
    /// | `{checkpoint}` | the label without `/`, as short as possible; repeated parts must be equal |
    /// | `{rank}` | the rank's digits |
    /// | `{checkpoint:REGEX}`, `{rank:REGEX}` | the label or the rank, restricted to the regular expression |
    /// | `{a,b}` | one of these texts |
    /// | `*`, `?`, `[a-z]` | any bytes, one byte, one of these bytes; never `/` |
    /// | `**/` | any directories, or none |
    /// | `**` at the end | everything below |
    ///
    /// The expression of a label may contain `/`: `{checkpoint:[0-9]{4}/[0-9]{2}}` finds the label `2026/01`, which is
    /// checkpoint `2026-01` in the store.
    ///
    /// `first_rank` is the number of the application's first rank: 0, or 1 for applications that count from 1.
    pub fn from_patterns<S: AsRef<str>>(patterns: &[S], first_rank: u32) -> Result<Self, LayoutError> {
        let patterns = patterns.iter().map(|p| Pattern::from_glob(p.as_ref(), first_rank));
        Self::new("patterns", patterns.collect::<Result<_, _>>()?)
    }

    /// Creates a layout from regular expressions with the groups `checkpoint` and `rank`. If the files belong to no
    /// single rank, the group `rank` is missing. Each expression must match the whole path.
    pub fn from_regexes<S: AsRef<str>>(regexes: &[S], first_rank: u32) -> Result<Self, LayoutError> {
        let patterns = regexes.iter().map(|r| Pattern::from_regex(r.as_ref(), first_rank));
        Self::new("regex", patterns.collect::<Result<_, _>>()?)
    }

    /// A layout with one directory for each checkpoint. The first component of a path is the label.
    pub fn directories() -> Self {
        presets::get("directories").expect("a preset of this name is in the table")
    }

    /// A layout in which all files belong to this checkpoint and to no single rank.
    pub fn single(checkpoint: CheckpointId) -> Self {
        Self::new("single", vec![Pattern::everything(checkpoint)]).expect("a layout with one pattern is valid")
    }

    /// Adds a marker file. A checkpoint is complete when a file that matches this glob has settled. The glob contains
    /// `{checkpoint}` but not `{rank}`.
    pub fn with_marker(mut self, glob: &str) -> Result<Self, LayoutError> {
        self.marker = Some(Pattern::from_glob(glob, 0)?);
        Ok(self)
    }

    /// Sets the number of files of a rank. A rank is complete when this number of its files has settled.
    pub fn with_files_per_rank(mut self, files: u32) -> Self {
        self.files_per_rank = Some(files);
        self
    }

    /// Guesses a layout from the names of the files below `directory`. If a guess covers too few files, all files
    /// form one checkpoint that is named after the directory, or [`Explanation::asks`] contains a question for the
    /// user. `ranks` is the number of ranks, if it is known.
    pub fn guess(listing: &Listing, directory: &std::path::Path, ranks: Option<u32>) -> (Self, Explanation) {
        guess::guess(listing, directory, guess::Rest::IsTaken, ranks)
    }

    /// Guesses a layout like [`Layout::guess`], but while the application runs. Files whose names do not show a
    /// checkpoint belong to no checkpoint, even if there is only one checkpoint so far.
    pub fn guess_while_running(
        listing: &Listing,
        directory: &std::path::Path,
        ranks: Option<u32>,
    ) -> (Self, Explanation) {
        guess::guess(listing, directory, guess::Rest::IsLeft, ranks)
    }

    /// The files that belong to no checkpoint of this layout, except logs and pointer files. `None` if there are no
    /// such files.
    pub fn unplaced(&self, listing: &Listing) -> Option<Unplaced> {
        guess::unplaced(self, listing)
    }

    /// Two files of different directories that would be the same file of a checkpoint, although the layout places only
    /// one of them. The text is a question for the user. `None` if there are no such files.
    pub fn two_runs(&self, listing: &Listing) -> Option<String> {
        guess::elsewhere(self, &listing.files)
    }

    /// A layout in which all files form one checkpoint that is named after the directory.
    pub fn whole(directory: &std::path::Path) -> Self {
        Self::single(guess::label_of_directory(directory))
    }

    pub(crate) fn new(name: &str, patterns: Vec<Pattern>) -> Result<Self, LayoutError> {
        match patterns.len() {
            0 => Err(LayoutError::Empty),
            n if n > PATTERNS_MAX => Err(LayoutError::TooMany(n)),
            _ => Ok(Self {
                name: name.to_owned(),
                patterns,
                marker: None,
                files_per_rank: None,
                skips_temporary: false,
                beside: &NOTHING_BESIDE,
            }),
        }
    }

    /// The same layout, in which files with temporary names belong to no checkpoint.
    pub(crate) fn without_temporary(mut self) -> Self {
        self.skips_temporary = true;
        self
    }

    /// Whether a path belongs to no checkpoint because of its name alone.
    fn is_skipped(&self, path: &FilePath) -> bool {
        let path = path.as_bytes();
        is_of_a_store(path)
            || of_job::is_settings(path)
            || of_job::is_batch_output(path)
            || self.skips_temporary && pointers::is_temporary(path)
    }

    pub(crate) fn push(&mut self, pattern: Pattern) {
        self.patterns.push(pattern);
    }

    /// The checkpoint and the rank of a file. `None` if the file belongs to no checkpoint.
    pub fn place(&self, path: &FilePath) -> Option<Placed> {
        if self.is_skipped(path) {
            return None;
        }
        self.first_match(path)
            .map(|(placed, _)| placed)
            .or_else(|| self.marked(path).map(|checkpoint| Placed { checkpoint, rank: None }))
    }

    /// Whether file names contain the number of a rank. If file names contain no such number, all files of a
    /// checkpoint belong to rank 0.
    pub fn has_ranks(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern.regex.capture_names().flatten().any(|name| name == "rank"))
    }

    /// The checkpoint and the rank of a file, and their positions in the path.
    pub(crate) fn place_within(&self, path: &FilePath) -> Option<(Placed, Within)> {
        if self.is_skipped(path) {
            return None;
        }
        self.first_match(path)
    }

    /// The result of the first pattern that matches.
    fn first_match(&self, path: &FilePath) -> Option<(Placed, Within)> {
        let result = |pattern: &Pattern| match pattern.is_refusal {
            true => pattern.regex.is_match(path.as_bytes()).then_some(None),
            false => pattern.place_within(path.as_bytes()).map(Some),
        };
        self.patterns.iter().find_map(result).flatten()
    }

    /// The own directory of a file's checkpoint. The name of this directory is the checkpoint's label, so the
    /// directory contains only this checkpoint. The empty path is the watched directory. `None` if files of several
    /// checkpoints share a directory.
    pub fn own_directory(&self, path: &FilePath) -> Option<std::path::PathBuf> {
        let (_, within) = self.place_within(path)?;
        let Some(label) = within.label else { return Some(std::path::PathBuf::new()) };
        let bytes = path.as_bytes();
        let directory = |end: usize| std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&bytes[..end]));
        if let Some(end) = bytes[label.end..].iter().position(|&b| b == b'/') {
            return Some(directory(label.end + end));
        }
        // The label is the name of the file, as in Enzo's `DD0007/DD0007.cpu0003`.
        let above = directory(bytes.iter().rposition(|&b| b == b'/')?);
        (above.file_name()?.as_bytes() == &bytes[label]).then_some(above)
    }

    /// The checkpoint that this file marks as complete.
    pub fn marked(&self, path: &FilePath) -> Option<CheckpointId> {
        self.marker.as_ref()?.place(path.as_bytes()).map(|placed| placed.checkpoint)
    }

    /// Whether a file of this name is saved with each checkpoint in its directory, although it belongs to no single
    /// checkpoint.
    pub fn attends(&self, name: &[u8]) -> bool {
        self.beside.attendants.iter().any(|attendant| attendant.as_bytes() == name)
    }

    /// Whether a checkpoint is whole without this file: it belongs to no checkpoint, and is a log, an older copy, an
    /// output for analysis or an input.
    pub fn may_leave(&self, path: &FilePath) -> bool {
        let is_input = |name: &[u8]| self.beside.inputs.iter().any(|input| input.as_bytes() == name);
        let mut directories = path.as_bytes().split(|&byte| byte == b'/').rev().skip(1);
        self.place(path).is_none() && (pointers::may_be_left(path.as_bytes()) || directories.any(is_input))
    }

    /// Whether a checkpoint is complete only when its marker file exists.
    pub fn has_marker(&self) -> bool {
        self.marker.is_some()
    }

    /// Number of files of a complete rank. `None` if the number is unknown.
    pub fn files_per_rank(&self) -> Option<u32> {
        self.files_per_rank
    }

    /// Name of the layout: a preset's name, `patterns`, `regex`, `guessed`, `single`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Writes the patterns, one on each line, as in the configuration.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pattern) in self.patterns.iter().enumerate() {
            let first = if pattern.first_rank == 1 { " (ranks from 1)" } else { "" };
            write!(f, "{}{}{first}", if i == 0 { "" } else { "\n" }, pattern.text)?;
        }
        Ok(())
    }
}

/// Whether a path belongs to mcrEngine. Such a path has a component with a name that mcrEngine uses.
pub fn is_ours(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').any(is_own_name)
}

/// Whether mcrEngine uses this name in directories of the application. All other names belong to the application,
/// even if they begin with `.mcr`.
pub fn is_own_name(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b".mcr-") else { return false };
    let number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    // The other own names are the names of the lock, the record of restored files, the directories for moved files,
    // and the journal of a publication.
    let numbered = |prefix: &[u8]| rest.strip_prefix(prefix).is_some_and(|n| n.first().is_some_and(u8::is_ascii_digit));
    // The temporary name of the agent's state file: `.mcr-state-NAME-PID.tmp`.
    let state = rest.strip_prefix(b"state-").and_then(|rest| rest.strip_suffix(b".tmp"));
    let state = state.and_then(|rest| rest.iter().rposition(|&b| b == b'-').map(|dash| &rest[dash + 1..]));
    rest == b"lock"
        || rest == b"restored"
        || numbered(b"aside-")
        || rest.strip_prefix(b"publish-").is_some_and(|n| !n.is_empty())
        || state.is_some_and(number)
        || is_of_a_restart(rest)
}

/// Whether this is the name of a temporary file of a restart without the prefix `.mcr-`: `restart-PLACE-PID-N.tmp` or
/// `restart-PLACE-PID-N.spill`, see `restart/leftovers.rs`.
fn is_of_a_restart(rest: &[u8]) -> bool {
    let stem = rest.strip_suffix(b".tmp").or_else(|| rest.strip_suffix(b".spill"));
    let Some(stem) = stem.and_then(|stem| stem.strip_prefix(b"restart-")) else { return false };
    let parts: Vec<_> = stem.split(|&b| b == b'-').collect();
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let is_place =
        |part: &[u8]| part.len() == 16 && part.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    matches!(parts[..], [place, pid, nth] if is_place(place) && is_number(pid) && is_number(nth))
}

/// Whether this is the path of a container, its parity or a manifest. A store may lie below the application's
/// directory. The files of a store must not be saved again.
pub(crate) fn is_of_a_store(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let number = name
        .strip_prefix(b"group-")
        .and_then(|rest| [&b".mcr"[..], b".mcr.parity", b".manifest"].iter().find_map(|end| rest.strip_suffix(*end)));
    number.is_some_and(|digits| digits.len() >= 4 && digits.iter().all(u8::is_ascii_digit))
}

/// Prefix of the names of repeated groups. The text of a repeated group must be equal to the text of the group
/// `checkpoint`.
const REPEATED_LABEL_PREFIX: &str = "checkpoint_";

impl Pattern {
    pub(crate) fn from_glob(glob: &str, first_rank: u32) -> Result<Self, LayoutError> {
        let refuse = |what: &str| LayoutError::Glob { pattern: glob.to_owned(), what: what.to_owned() };
        if glob.len() > PATTERN_BYTES_MAX {
            return Err(LayoutError::TooLong(glob.len()));
        }
        let regex = glob_to_regex(glob).map_err(|what| refuse(&what))?;
        let made = Self::compile(glob, &regex, first_rank).map_err(|what| refuse(&what))?;
        made.checked()
    }

    pub(crate) fn from_regex(regex: &str, first_rank: u32) -> Result<Self, LayoutError> {
        if regex.len() > PATTERN_BYTES_MAX {
            return Err(LayoutError::TooLong(regex.len()));
        }
        let refuse = |what| LayoutError::Regex { pattern: regex.to_owned(), what };
        Self::compile(regex, regex, first_rank).map_err(refuse)?.checked()
    }

    /// Makes a pattern for names without a label. All matching files belong to the given checkpoint.
    pub(crate) fn constant(regex: &str, checkpoint: CheckpointId, first_rank: u32) -> Result<Self, LayoutError> {
        let refuse = |what| LayoutError::Regex { pattern: regex.to_owned(), what };
        let mut made = Self::compile(regex, regex, first_rank).map_err(refuse)?;
        made.text = format!("{regex} (is checkpoint {checkpoint})");
        made.constant = Some(checkpoint);
        Ok(made)
    }

    /// Makes a pattern for names that have only the number of the checkpoint. `before`: the text before this number in
    /// the name of the checkpoint.
    pub(crate) fn of_number(regex: &str, before: &str) -> Result<Self, LayoutError> {
        let made = Self::from_regex(regex, 0)?;
        Ok(Self { text: format!("{regex} (is in checkpoint {before}#)"), before_label: before.to_owned(), ..made })
    }

    /// Makes a pattern for names that belong to no checkpoint. `None` if the expression is invalid.
    pub(crate) fn refusal(regex: &str) -> Option<Self> {
        let made = Self::compile(&format!("{regex} (is in no checkpoint)"), regex, 0).ok()?;
        Some(Self { is_refusal: true, ..made })
    }

    pub(crate) fn everything(checkpoint: CheckpointId) -> Self {
        Self::constant(".*", checkpoint, 0).expect("the expression is valid")
    }

    fn compile(text: &str, regex: &str, first_rank: u32) -> Result<Self, String> {
        let regex = build(&format!("^(?:{regex})$")).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "the compiled pattern is too large; write a simpler pattern".to_owned(),
            other => other.to_string(),
        })?;
        Ok(Self {
            text: text.to_owned(),
            regex,
            constant: None,
            before_label: String::new(),
            first_rank,
            is_refusal: false,
        })
    }

    fn checked(self) -> Result<Self, LayoutError> {
        match self.regex.capture_names().flatten().any(|name| name == "checkpoint") {
            true => Ok(self),
            false => Err(LayoutError::NoCheckpoint { pattern: self.text }),
        }
    }

    fn place(&self, path: &[u8]) -> Option<Placed> {
        self.place_within(path).map(|(placed, _)| placed)
    }

    fn place_within(&self, path: &[u8]) -> Option<(Placed, Within)> {
        let found = self.regex.captures(path)?;
        let rank = match found.name("rank") {
            None => None,
            Some(digits) => {
                let number: u32 = std::str::from_utf8(digits.as_bytes()).ok()?.parse().ok()?;
                Some(Rank(number.checked_sub(self.first_rank).filter(|&rank| rank < RANKS_MAX)?))
            }
        };
        let checkpoint = match &self.constant {
            Some(constant) => constant.clone(),
            None => self.label(&found)?,
        };
        let range = |name| found.name(name).map(|group| group.range());
        let label = range("checkpoint").filter(|_| self.constant.is_none());
        Some((Placed { checkpoint, rank }, Within { label, rank: range("rank") }))
    }

    fn label(&self, found: &Captures<'_>) -> Option<CheckpointId> {
        let label = found.name("checkpoint")?.as_bytes();
        let same = self.regex.capture_names().flatten().filter(|name| name.starts_with(REPEATED_LABEL_PREFIX));
        let all_same = same.filter_map(|name| found.name(name)).all(|group| group.as_bytes() == label);
        all_same.then(|| label_of(&[self.before_label.as_bytes(), label].concat()).ok()).flatten()
    }
}

/// Converts a label to a name in the store. Control characters, and bytes that are not UTF-8, are written as escapes
/// such as `\xe9`. A label of several directories, such as `2026/01`, becomes `2026-01`. The first letter of the label
/// `latest` is escaped, because on a command line `latest` means the newest checkpoint.
pub(crate) fn label_of(bytes: &[u8]) -> Result<CheckpointId, NameError> {
    let label = match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    };
    let label = label.replace('/', "-");
    if let Some(rest) = label.strip_prefix('.') {
        return format!(r"\x2e{rest}").parse(); // the name of a directory in the store never begins with a dot
    }
    if label == "latest" {
        return r"\x6catest".parse();
    }
    match (label.parse::<CheckpointId>()?, label.rsplit_once('~')) {
        // The label has the form of a name that mcrEngine gives to a second checkpoint with the same label. Therefore
        // the `~` is escaped.
        (id, Some((before, after))) if id.label() != label => format!(r"{before}\x7e{after}").parse(),
        (id, _) => Ok(id),
    }
}

fn build(regex: &str) -> Result<Regex, regex::Error> {
    // Patterns match bytes and not characters, because file names may not be UTF-8. The limits restrict the memory
    // that one pattern needs.
    RegexBuilder::new(regex)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(1 << 20)
        .dfa_size_limit(1 << 20)
        .build()
}

fn glob_to_regex(glob: &str) -> Result<String, String> {
    let mut out = String::with_capacity(glob.len() * 2);
    let mut checkpoints = 0u32;
    let mut ranks = 0u32;
    let mut rest = glob;
    while let Some(next) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("**/") {
            out.push_str("(?:[^/]+/)*");
            rest = after;
        } else if rest == "**" {
            out.push_str(".+");
            rest = "";
        } else if next == '*' {
            out.push_str("[^/]*");
            rest = rest.trim_start_matches('*');
        } else if next == '?' {
            out.push_str("[^/]");
            rest = &rest[1..];
        } else if next == '[' {
            let end = rest[2.min(rest.len())..].find(']').ok_or("'[' without ']'; a literal '[' is written [[]")? + 2;
            let (not, inside) = match rest[1..end].strip_prefix(['!', '^']) {
                Some(inside) => ("^/", inside),
                None => ("", &rest[1..end]),
            };
            out.push_str(&format!("[{not}{}]", inside.replace('\\', "\\\\").replace('[', "\\[").replace('&', "\\&")));
            rest = &rest[end + 1..];
        } else if next == '{' {
            let end = closing_brace(rest).ok_or("'{' without '}'; a literal '{' is written [{]")?;
            let (name, narrow) = match rest[1..end].split_once(':') {
                Some((name, narrow)) => (name, Some(narrow)),
                None => (&rest[1..end], None),
            };
            match name {
                "checkpoint" => {
                    checkpoints += 1;
                    let group = if checkpoints == 1 {
                        "checkpoint".into()
                    } else {
                        format!("{REPEATED_LABEL_PREFIX}{checkpoints}")
                    };
                    out.push_str(&format!("(?P<{group}>{})", narrow.unwrap_or("[^/]+?")));
                }
                "rank" => {
                    ranks += 1;
                    if ranks > 1 {
                        return Err("{rank} occurs twice; write * for the second".into());
                    }
                    out.push_str(&format!("(?P<rank>{})", narrow.unwrap_or("[0-9]{1,9}")));
                }
                _ if rest[..end].contains(',') => {
                    let texts: Vec<_> = rest[1..end].split(',').map(regex::escape).collect();
                    out.push_str(&format!("(?:{})", texts.join("|")));
                }
                _ => {
                    let name = &rest[..=end];
                    return Err(format!("unknown placeholder {name}; use {{checkpoint}}, {{rank}} or {{a,b,c}}"));
                }
            }
            rest = &rest[end + 1..];
        } else {
            let literal = &rest[..next.len_utf8()];
            out.push_str(&regex::escape(literal));
            rest = &rest[literal.len()..];
        }
    }
    Ok(out)
}

/// The position of the brace that closes the first brace of the text. Braces between the two braces may be part of a
/// regular expression, and must be balanced.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FilePath {
        FilePath::new(text.as_bytes()).expect("a relative path")
    }

    fn place(layout: &Layout, text: &str) -> Option<(String, Option<u32>)> {
        layout.place(&path(text)).map(|p| (p.checkpoint.to_string(), p.rank.map(|r| r.0)))
    }

    #[test]
    fn a_label_that_stands_twice_must_be_the_same_twice() {
        let layout = Layout::from_patterns(&["{checkpoint}/{checkpoint}.cpu{rank}"], 0).expect("valid");
        assert_eq!(place(&layout, "DD0007/DD0007.cpu0003"), Some(("DD0007".into(), Some(3))));
        assert_eq!(place(&layout, "DD0007/DD0008.cpu0003"), None);
        assert_eq!(place(&layout, "x/DD0007/DD0007.cpu0003"), None, "the whole path must match");
        assert_eq!(place(&layout, "DD0007/DD0007.cpu"), None);
    }

    #[test]
    fn globs_mean_what_the_table_says() {
        type Expected = Option<(&'static str, Option<u32>)>;
        let cases: &[(&str, &str, Expected)] = &[
            ("**/{checkpoint}.{rank}.h5", "a/b/s_1.3.h5", Some(("s_1", Some(3)))),
            ("**/{checkpoint}.{rank}.h5", "s_1.3.h5", Some(("s_1", Some(3)))),
            ("**/{checkpoint}.{rank}.h5", "s_1.3.h5x", None),
            ("{checkpoint}/**", "t1/a/b/c", Some(("t1", None))),
            ("{checkpoint}/**", "t1", None),
            ("{checkpoint}/*.bin", "t1/a/x.bin", None),
            ("{checkpoint}/[ab]?.bin", "t1/bz.bin", Some(("t1", None))),
            ("{checkpoint}/[!ab]?.bin", "t1/bz.bin", None),
            ("{checkpoint:t[0-9]{2}}_{a,bc}", "t12_bc", Some(("t12", None))),
            ("{checkpoint:t[0-9]{2}}_{a,bc}", "t123_bc", None),
            ("{checkpoint}.x+{rank}", "a.x+4", Some(("a", Some(4)))),
            ("{checkpoint}.r{rank}", "a.r4294967295", None),
        ];
        for (glob, text, expected) in cases {
            let layout = Layout::from_patterns(&[glob], 0).expect(glob);
            let expected = expected.map(|(label, rank)| (label.to_owned(), rank));
            assert_eq!(place(&layout, text), expected, "{glob} on {text}");
        }
    }

    #[test]
    fn the_first_pattern_that_matches_decides() {
        let layout = Layout::from_patterns(&["{checkpoint}.cpu{rank}", "{checkpoint}.*"], 1).expect("valid");
        assert_eq!(place(&layout, "a.cpu1"), Some(("a".into(), Some(0))), "ranks count from 1 here");
        assert_eq!(place(&layout, "a.hierarchy"), Some(("a".into(), None)));
        assert_eq!(place(&layout, "a.cpu0"), Some(("a".into(), None)), "0 is not a rank if ranks count from 1");
    }

    #[test]
    fn paths_need_not_be_utf_8() {
        let layout = Layout::from_patterns(&["{checkpoint}/r{rank}"], 0).expect("valid");
        let placed = layout.place(&FilePath::new(&b"caf\xe9/r2"[..]).expect("valid")).expect("it matches");
        assert_eq!((placed.checkpoint.as_str(), placed.rank), ("caf\\xe9", Some(Rank(2))));
    }

    #[test]
    fn containers_their_parity_and_manifests_are_files_of_a_store() {
        for name in ["group-0000.mcr", "a/group-12345.mcr.parity", "a/b/group-0007.manifest"] {
            assert!(is_of_a_store(name.as_bytes()), "{name}");
        }
        for name in ["group-0000.parity", "group-000.mcr", "group-0000.mcr.parity2", "group-0000.mcr/x"] {
            assert!(!is_of_a_store(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn only_exactly_our_own_names_are_ours() {
        for name in [
            ".mcr-lock",
            ".mcr-restored",
            ".mcr-aside-1",
            ".mcr-publish-1",
            ".mcr-state-agent.state-123.tmp",
            ".mcr-restart-0123456789abcdef-1-2.tmp",
        ] {
            assert!(is_ours(name.as_bytes()) && is_ours(format!("a/{name}/b").as_bytes()), "{name}");
        }
        for name in
            [".mcr", ".mcrc", ".mcr-inputs", ".mcr-r1.tmp", ".mcr-locks", "x.mcr-lock", ".mcr-aside-", ".mcr-aside-old"]
        {
            assert!(!is_ours(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_marker_belongs_to_its_checkpoint() {
        let layout = Layout::from_patterns(&["{checkpoint}/r{rank}"], 0).expect("valid");
        let layout = layout.with_marker("{checkpoint}/DONE").expect("valid");
        assert_eq!(layout.marked(&path("t1/DONE")).expect("marks").as_str(), "t1");
        assert_eq!(place(&layout, "t1/DONE"), Some(("t1".into(), None)));
        assert_eq!(layout.marked(&path("t1/r0")), None);
    }

    #[test]
    fn a_checkpoint_whose_name_has_control_characters_is_named_by_their_escapes() {
        let layout = Layout::from_patterns(&["{checkpoint}/r{rank}"], 0).expect("valid");
        assert_eq!(place(&layout, "t\n1/r0"), Some((r"t\n1".into(), Some(0))));
        assert_eq!(place(&layout, "t\u{1b}2/r1"), Some((r"t\x1b2".into(), Some(1))));
        assert_eq!(place(&layout, ".hidden/r1"), Some((r"\x2ehidden".into(), Some(1))));
        assert_eq!(place(&layout, "t~2/r1"), Some((r"t\x7e2".into(), Some(1))));
        assert_eq!(place(&layout, "t~x/r1"), Some(("t~x".into(), Some(1))));
        // On a command line, `latest` is a word for the newest checkpoint.
        assert_eq!(place(&layout, "latest/r1"), Some((r"\x6catest".into(), Some(1))));
    }

    #[test]
    fn refusals_name_the_pattern_and_the_way_out() {
        for (bad, word) in [
            ("", "checkpoint"),
            ("a/{rank}", "{checkpoint}"),
            ("{checkpoint}/{rank}{rank}", "twice"),
            ("{checkpoint", "[{]"),
            ("{checkpoint}[a", "[[]"),
            ("{checkpoint}{step}", "unknown placeholder {step}"),
            ("{checkpoint:(}", "unclosed"),
        ] {
            let error = Layout::from_patterns(&[bad], 0).expect_err(bad).to_string();
            assert!(error.contains(word) && error.contains(bad), "{error}");
        }
        assert!(Layout::from_patterns::<&str>(&[], 0).is_err());
        assert!(Layout::from_regexes(&["(?P<rank>[0-9]+)"], 0).is_err());
        let error = Layout::named("enzzo").expect_err("no such preset").to_string();
        assert!(error.contains("\"enzzo\"; did you mean \"enzo\"? The presets are "), "{error}");
        let error = Layout::named("0123456789").expect_err("no such preset").to_string();
        assert!(error.contains("\"0123456789\"; the presets are "), "{error}");
    }

    #[test]
    fn no_name_makes_a_layout_panic() {
        use proptest::prelude::*;
        let layouts: Vec<_> = Layout::preset_names().map(|name| Layout::preset(name).expect(name)).collect();
        proptest!(|(bytes in proptest::collection::vec(any::<u8>(), 1..80))| {
            if let Ok(path) = FilePath::new(bytes) {
                for layout in &layouts {
                    let _ = layout.place(&path);
                }
            }
        });
        proptest!(|(glob in "[a{}\\[\\]*?:,/()r]{0,20}|\\{checkpoint(:[a-z(){}]{0,8})?\\}[a\\[\\]{}*]{0,6}")| {
            let _ = Layout::from_patterns(&[glob], 0);
        });
    }
}
