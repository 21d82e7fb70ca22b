//! The texts of errors, for people and as JSON: what failed, where, and what the user can do.

use crate::metrics::WrongMetrics;
use crate::refused::NotPermitted;
use mcr_anc::config::AncConfigError;
use mcr_anc::flush_error::FlushError;
use mcr_cnc::config::{ConfigError, UnknownKey};
use mcr_cnc::layout::LayoutError;
use mcr_cnc::restart::RestoreError;
use mcr_cnc::watch::WatchError;
use mcr_proto::tls::IdentityError;
use mcrengine::container::ReadError;
use mcrengine::copy::CopyError;
use mcrengine::store::{Advice, StoreError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// An error with the advice as a separate text.
#[derive(Debug, thiserror::Error)]
#[error("{what}{between}{advice}")]
pub struct Advised {
    what: String,
    /// The separator between `what` and `advice`.
    between: &'static str,
    advice: String,
    path: Option<PathBuf>,
    /// Whether the error is about a setting in a file.
    is_setting: bool,
}

impl Advised {
    /// An error with what went wrong, and what the user can do. A semicolon separates the two texts.
    pub fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), between: "; ", advice: advice.into(), path: None, is_setting: false }
    }

    /// Declares that the error is about a setting in a file. A daemon then ends with
    /// [`crate::exit::Exit::Configuration`].
    pub fn of_setting(self) -> Self {
        Self { is_setting: true, ..self }
    }

    /// Whether the error is about a setting in a file.
    pub fn is_setting(&self) -> bool {
        self.is_setting
    }

    /// An error whose advice is a separate sentence. A full stop separates the two texts.
    pub fn with_sentence(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { between: ". ", ..Self::new(what, advice) }
    }

    /// Names the file or directory of the error.
    pub fn at(self, path: &Path) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }
}

/// What failed at a file or directory. A context for an error that does not name this path itself.
#[derive(Debug)]
pub struct At {
    path: PathBuf,
    what: &'static str,
}

impl At {
    /// The context `PATH: WHAT`.
    pub fn new(path: &Path, what: &'static str) -> Self {
        Self { path: path.to_owned(), what }
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

/// An error of a command, as text.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Told {
    /// The exit code of the command.
    pub code: u8,
    /// What went wrong, with all causes and without the advice.
    pub message: String,
    /// What the user can do. Never empty.
    pub advice: String,
    /// The file or directory of the error.
    pub path: Option<String>,
}

impl Told {
    /// The texts of an error that ends a command with this exit code.
    pub fn new(error: &anyhow::Error, code: u8) -> Self {
        let message = message_of(error);
        let message = message.strip_suffix('.').filter(|text| !text.ends_with('.')).unwrap_or(&message);
        // The message says more about the error than its number in the system.
        let advice = advice_of(error).or_else(|| remedy_in(message)).or_else(|| of_system_error(error));
        let advice = advice.unwrap_or_else(|| GENERAL_ADVICE.into());
        let path = path_of(error).or_else(|| path_in(message)).map(|path| path.to_string_lossy().into_owned());
        // For people, the message ends with the advice.
        let what = message.strip_suffix(&advice).map(|what| what.trim_end().trim_end_matches([';', '.']));
        let message = what.filter(|what| !what.is_empty()).unwrap_or(message).to_owned();
        Self { code, message, advice, path }
    }
}

impl Told {
    /// The texts of a command line that clap does not accept.
    pub fn of_command_line(error: &clap::Error) -> Self {
        let text = plain_command_line(error).unwrap_or_else(|| error.to_string());
        // The message has more lines if it lists arguments or values. An empty line ends the message.
        let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty() && !line.starts_with("tip: "));
        let whole = lines.collect::<Vec<_>>().join(" ");
        let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
        let advice = tip.unwrap_or("the option --help shows the options of a command");
        let message = whole.strip_prefix("error: ").unwrap_or(&whole).to_owned();
        Self { code: 1, message, advice: advice.to_owned(), path: None }
    }
}

/// The text of a wrong command line without words of the programming language. `None` if the text of the error has no
/// such words.
pub fn plain_command_line(error: &clap::Error) -> Option<String> {
    const WORDS: [(&str, &str); 7] = [
        ("invalid digit found in string", "it must be a whole number, at least 0"),
        ("cannot parse integer from empty string", "it must be a whole number, at least 0"),
        ("number too large to fit in target type", "the number is too large"),
        ("number would be zero for non-zero type", "it must be a whole number, at least 1"),
        ("invalid float literal", "it must be a number"),
        ("invalid socket address syntax", "it must be ADDRESS:PORT, as in 127.0.0.1:7118"),
        (" is not in ", " is not a number from "),
    ];
    let text = error.to_string();
    let has_words = WORDS.iter().any(|(word, _)| text.contains(word));
    let plain = WORDS.iter().fold(text, |text, (word, plain)| text.replace(word, plain));
    has_words.then(|| plain.replace("..=", " to "))
}

/// The advice for an error of a known type. `None` if the text of the error already contains advice: advice follows a
/// semicolon.
pub fn missing_advice(error: &anyhow::Error) -> Option<String> {
    let message = message_of(error);
    let advice = advice_of(error).or_else(|| of_system_error(error));
    advice.filter(|advice| !message.contains("; ") && !message.contains(advice.as_str()))
}

/// The error with all of its causes. A cause is left out if the preceding text already ends with the text of this
/// cause.
pub fn message_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !cause.is_empty() && !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Advice for an error of a known type. `None` if no cause has a known type.
fn advice_of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<Advised>() {
            return Some(error.advice.clone());
        }
        if let Some(error) = cause.downcast_ref::<StoreError>() {
            return Some(match error {
                StoreError::Read(error) => of_read(error),
                error => of_store(error.advice()).into(),
            });
        }
        if let Some(error) = cause.downcast_ref::<ReadError>() {
            return Some(of_read(error));
        }
        if let Some(error) = cause.downcast_ref::<CopyError>() {
            return of_copy(error).map(str::to_owned);
        }
        if let Some(error) = cause.downcast_ref::<ConfigError>() {
            return Some(of_agent_config(error));
        }
        if let Some(error) = cause.downcast_ref::<AncConfigError>() {
            return Some(of_aggregator_config(error));
        }
        if cause.is::<WrongMetrics>() {
            return Some("write an address of this node and a free port, or remove the key metrics".into());
        }
        if let Some(error) = cause.downcast_ref::<LayoutError>() {
            return Some(of_layout(error));
        }
        if let Some(error) = cause.downcast_ref::<IdentityError>() {
            return Some(of_identity(error).into());
        }
        if let Some(error) = cause.downcast_ref::<RestoreError>() {
            return of_restore(error).map(str::to_owned);
        }
        if let Some(WatchError::Directory { .. }) = cause.downcast_ref() {
            return Some("make the directory, or correct watch in the configuration".into());
        }
        if let Some(error) = cause.downcast_ref::<FlushError>() {
            return of_flush(error).map(str::to_owned);
        }
        None
    })
}

/// Advice for an error of the system. `None` if there is no such error, or if it has no advice.
fn of_system_error(error: &anyhow::Error) -> Option<String> {
    let mut errors = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    errors.find_map(|error| of_system(error.kind())).map(str::to_owned)
}

/// The file or directory that an error of a known type names.
pub fn path_of(error: &anyhow::Error) -> Option<PathBuf> {
    if let Some(at) = error.downcast_ref::<At>() {
        return Some(at.path.clone());
    }
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<NotPermitted>() {
            return error.path.clone();
        }
        if let Some(WatchError::Directory { path, .. }) = cause.downcast_ref() {
            return Some(path.clone());
        }
        if let Some(error) = cause.downcast_ref::<RestoreError>() {
            return error.path().map(Path::to_owned);
        }
        if let Some(error) = cause.downcast_ref::<Advised>() {
            return error.path.clone();
        }
        if let Some(error) = cause.downcast_ref::<ConfigError>() {
            return match error {
                ConfigError::Unreadable { file, .. } | ConfigError::Syntax { file, .. } => Some(file.clone()),
                ConfigError::UnknownKey(unknown) => Some(unknown.file.clone()),
                ConfigError::Missing { .. } | ConfigError::Value { .. } | ConfigError::Layout(_) => None,
            };
        }
        if let Some(error) = cause.downcast_ref::<CopyError>() {
            return match error {
                CopyError::Store(error) => path_in_store(error),
                error => error.path().map(Path::to_owned),
            };
        }
        if let Some(error) = cause.downcast_ref::<StoreError>() {
            return path_in_store(error);
        }
        cause.downcast_ref::<ReadError>().map(|error| error.path().to_owned())
    })
}

fn path_in_store(error: &StoreError) -> Option<PathBuf> {
    match error {
        StoreError::Io { path, .. }
        | StoreError::Committed { path }
        | StoreError::Busy { path }
        | StoreError::Contents { path, .. }
        | StoreError::TooLarge { path, .. } => Some(path.clone()),
        StoreError::Read(error) => Some(error.path().to_owned()),
        _ => None,
    }
}

fn of_store(advice: Advice) -> &'static str {
    match advice {
        Advice::Retry => "try again; if the error stays, look at the file system of the store",
        Advice::OlderCheckpoint => "mcr verify shows what is damaged, and mcr restart takes an older checkpoint",
        Advice::Upgrade => "use a newer release of mcr, which can read the file",
        Advice::FreeSpace => "free space in the store's file system, for example with mcr prune, and try again",
        Advice::NewGeneration => "save the checkpoint again, so that it gets another name in the store",
        Advice::Permissions => "give this user access to the path, or name another store with --store",
        Advice::Report => "report this error with the command and its output, because it is a bug of mcr",
    }
}

fn of_copy(error: &CopyError) -> Option<&'static str> {
    match error {
        CopyError::Store(error) => Some(of_store(error.advice())),
        CopyError::Refused { way_out, .. } => Some(way_out),
        _ => None,
    }
}

fn of_agent_config(error: &ConfigError) -> String {
    match error {
        ConfigError::Unreadable { source, .. } => {
            of_system(source.kind()).unwrap_or("name a file of your own that mcr can read").into()
        }
        ConfigError::Syntax { .. } => "correct the line; mcr config defaults prints all keys with their values".into(),
        ConfigError::UnknownKey(unknown) if unknown.others.is_empty() => of_unknown_key(unknown),
        ConfigError::UnknownKey(unknown) => {
            let all = std::iter::once(&**unknown).chain(&unknown.others);
            let all: Vec<String> = all.map(|one| format!("line {}: {}", one.line, of_unknown_key(one))).collect();
            all.join("; ")
        }
        ConfigError::Missing { way_out, .. } => (*way_out).into(),
        ConfigError::Value { way_out, .. } => way_out.clone(),
        ConfigError::Layout(error) => of_layout(error),
    }
}

fn of_read(error: &ReadError) -> String {
    let is_record =
        |path: &Path| path.parent().and_then(Path::to_str).is_some_and(|dir| dir.ends_with(".incarnations"));
    match error.advice() {
        Advice::OlderCheckpoint if is_record(error.path()) && error.is_damage() => {
            "mcr verify --repair writes this small file again; mcr then does not know which checkpoints this start of \
             the job had set aside, so look at mcr list, and name one with mcr restart --checkpoint"
                .into()
        }
        advice => of_store(advice).into(),
    }
}

fn of_unknown_key(unknown: &UnknownKey) -> String {
    match &unknown.near {
        Some(near) => format!("write {near}, or remove the line"),
        None => "remove the line; mcr config defaults prints all keys".into(),
    }
}

fn of_aggregator_config(error: &AncConfigError) -> String {
    error.expected.clone()
}

pub fn of_layout(error: &LayoutError) -> String {
    match error {
        LayoutError::Empty | LayoutError::NoCheckpoint { .. } | LayoutError::Glob { .. } => {
            "write a pattern like {checkpoint}/rank{rank}.h5, or a preset; mcr layouts lists the presets".into()
        }
        LayoutError::TooMany(_) | LayoutError::TooLong(_) => "use fewer and shorter patterns, with * or {a,b}".into(),
        LayoutError::Regex { .. } => "correct the expression at the marked place".into(),
        LayoutError::NoPreset { near: Some(near), .. } => format!("write {near}; mcr layouts lists the presets"),
        LayoutError::NoPreset { near: None, .. } => "mcr layouts lists the presets with examples".into(),
    }
}

pub fn of_identity(error: &IdentityError) -> &'static str {
    match error {
        IdentityError::Name(_) => "give a name of letters, digits and hyphens with --name",
        IdentityError::NoCluster
        | IdentityError::Key(_)
        | IdentityError::Certificates(_)
        | IdentityError::Tls(_)
        | IdentityError::Verifier(_) => {
            "move cluster.key and cluster.pem away, run mcr cert init once, and copy both files to all nodes"
        }
    }
}

fn of_restore(error: &RestoreError) -> Option<&'static str> {
    match error {
        RestoreError::NotADirectory { .. } => Some("replace the link by a directory, or restore to another directory"),
        RestoreError::Digest { .. }
        | RestoreError::Chunk { .. }
        | RestoreError::OutOfRange { .. }
        | RestoreError::Incomplete { .. }
        | RestoreError::Header(_) => {
            Some("mcr verify shows what is damaged, and mcr restart takes an older checkpoint")
        }
        _ => None, // the error of the file system, which is the next cause, has the advice
    }
}

fn of_flush(error: &FlushError) -> Option<&'static str> {
    match error {
        FlushError::Fetch(_) => Some("save again when no process writes to the files"),
        FlushError::Store(_) | FlushError::Read(_) => None, // the next cause has the advice
        FlushError::NotItsTurn => Some("correct the error of the older checkpoint, and save again"),
        FlushError::Unchanged => Some("the flush is tried again by itself"),
        FlushError::Overtaken | FlushError::Stale(_) => Some("save again; the flush then belongs to the new start"),
        FlushError::Held { .. } => Some("give one of the two runs another name with --job"),
        _ => Some("report this error with the command and its output, because it is a bug of mcr"),
    }
}

fn of_system(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NotFound => "check the path; the file or directory does not exist",
        ErrorKind::PermissionDenied => "give this user access to the path, or name another path",
        ErrorKind::ReadOnlyFilesystem => "name a path in a file system that can be written",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "free space in the file system, or raise the limit, and try again"
        }
        ErrorKind::ConnectionRefused => "check the address, and whether the daemon runs there",
        ErrorKind::BrokenPipe => "let the program that reads the output read all of it",
        ErrorKind::TimedOut => "try again; the file system or the network does not answer in time",
        ErrorKind::AlreadyExists => "remove the existing file, or name another path",
        ErrorKind::AddrInUse => "name another port, or end the program that uses this port",
        ErrorKind::AddrNotAvailable => "name an address of this node",
        _ => return None,
    })
}

/// The advice for an error without other advice.
const GENERAL_ADVICE: &str =
    "correct what the message names; the option --help explains the command, and -vv prints log lines";

/// The advice at the end of a message: the text after the last semicolon, or the sentences after the first sentence.
fn remedy_in(message: &str) -> Option<String> {
    let after = |(_, remedy): (&str, &str)| remedy.trim().to_owned();
    if let Some(remedy) = message.rsplit_once("; ").map(after).filter(|remedy| !remedy.is_empty()) {
        return Some(remedy);
    }
    let sentence = message.match_indices(". ").map(|(at, _)| message.split_at(at + 2));
    sentence.map(after).find(|remedy| remedy.starts_with(|letter: char| letter.is_ascii_uppercase()))
}

/// The words in a message for a full file system, as the system and its libraries write them.
pub fn full_disk_in(message: &str) -> Option<&'static str> {
    const WORDS: [&str; 3] = ["No space left on device", "Disk quota exceeded", "File too large"];
    WORDS.into_iter().find(|words| message.contains(words))
}

/// The file or directory with which a message begins, as in `PATH: No such file or directory`.
pub fn path_in(message: &str) -> Option<PathBuf> {
    let path = Path::new(message.split_once(": ")?.0);
    (path.is_absolute() || path.symlink_metadata().is_ok()).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use mcrengine::codec::CodecError;
    use mcrengine::ids::Digest;
    use std::io;

    fn refused() -> io::Error {
        io::Error::from(ErrorKind::PermissionDenied)
    }

    fn path() -> PathBuf {
        "/store/job/1/group-0000.mcr".into()
    }

    fn store_errors() -> Vec<StoreError> {
        let path = path();
        vec![
            StoreError::Io { path: path.clone(), what: "opening the store", source: refused() },
            StoreError::Committed { path: path.clone() },
            StoreError::Busy { path: path.clone() },
            StoreError::Contents { path: path.clone(), what: "two files of one name".into() },
            StoreError::TooLarge { path: path.clone(), what: "files", found: 9, limit: 8 },
            StoreError::Read(ReadError::Missing { path }),
        ]
    }

    fn read_errors() -> Vec<ReadError> {
        let (path, digest, what) = (path(), Digest::of(b""), || "the index".to_owned());
        vec![
            ReadError::Missing { path: path.clone() },
            ReadError::Io { path: path.clone(), offset: 0, len: 8, source: refused() },
            ReadError::Cut { path: path.clone(), what: "the index", needed: 8, found: 4 },
            ReadError::NotOurs { path: path.clone(), what: "the header", at: 0 },
            ReadError::TooNew { path: path.clone(), found: 9, newest: 1 },
            ReadError::Unsupported { path: path.clone(), what: what() },
            ReadError::Damaged { path: path.clone(), part: what(), at: 0, found: 1, recorded: 2 },
            ReadError::Digest { path: path.clone(), what: what(), found: digest, recorded: digest },
            ReadError::Invalid { path: path.clone(), part: "the index", what: what() },
            ReadError::Foreign { path: path.clone(), what: "the job", expected: what(), found: what() },
            ReadError::Codec { path, segment: 1, source: CodecError::Damaged { codec: "zstd", what: "cut short" } },
        ]
    }

    fn copy_errors() -> Vec<CopyError> {
        let way_out = "copy to a job with another name (--to-job)";
        vec![
            CopyError::Store(store_errors().remove(0)),
            CopyError::Refused { path: path(), what: "the destination has another checkpoint".into(), way_out },
        ]
    }

    fn layout_errors() -> Vec<LayoutError> {
        let (pattern, what) = ("a".to_owned(), "unknown placeholder {b}".to_owned());
        vec![
            LayoutError::Empty,
            LayoutError::TooMany(300),
            LayoutError::TooLong(9000),
            LayoutError::Glob { pattern: pattern.clone(), what: what.clone() },
            LayoutError::Regex { pattern: pattern.clone(), what },
            LayoutError::NoCheckpoint { pattern: pattern.clone() },
            LayoutError::NoPreset { name: pattern, near: Some("enzo") },
        ]
    }

    fn config_errors() -> Vec<ConfigError> {
        let file = PathBuf::from("mcr.toml");
        let unknown = |near: Option<&str>| UnknownKey {
            file: "mcr.toml".into(),
            line: 1,
            key: "jop".into(),
            table: "[cnc]".into(),
            near: near.map(str::to_owned),
            known: vec!["job".into()],
            others: Vec::new(),
        };
        vec![
            ConfigError::Unreadable { file: file.clone(), source: refused() },
            ConfigError::Syntax { file, line: 1, what: "expected a value".into() },
            ConfigError::UnknownKey(Box::new(unknown(Some("job")))),
            ConfigError::UnknownKey(Box::new(unknown(None))),
            ConfigError::Missing { key: "job", way_out: "write job = \"NAME\"" },
            ConfigError::Value { key: "ranks", value: "0".into(), way_out: "it must be at least 1".into() },
            ConfigError::Layout(LayoutError::Empty),
        ]
    }

    fn flush_errors() -> Vec<FlushError> {
        let name = || "wave".parse().expect("a name");
        let fetch = mcr_anc::source::FetchError::Changed { rank: mcrengine::ids::Rank(1), file: "a.h5".into() };
        vec![
            FlushError::Fetch(fetch),
            FlushError::Store(store_errors().remove(0)),
            FlushError::Read(read_errors().remove(0)),
            FlushError::Compress(mcr_anc::compress::CompressError::Codec(CodecError::Unknown { codec: 9 })),
            FlushError::NotItsTurn,
            FlushError::Overtaken,
            FlushError::Unchanged,
            FlushError::Stale(vec![(mcrengine::ids::Rank(1), "it is of another step".into())]),
            FlushError::Held { job: name(), who: "node1".into(), other: "node2".into() },
            FlushError::Panicked("index out of range".into()),
        ]
    }

    /// Number of variants of an enum in a source file.
    fn variants(source: &str, name: &str) -> usize {
        let body = source.split_once(&format!("pub enum {name} {{")).expect("an enum").1;
        let body = body.split_once("\n}").expect("an end").0;
        let is_variant =
            |line: &&str| line.starts_with("    ") && line[4..].starts_with(|c: char| c.is_ascii_uppercase());
        body.lines().filter(is_variant).count()
    }

    /// Fails for an error without advice, and for an error whose text repeats a cause.
    fn check(error: anyhow::Error) {
        let told = Told::new(&error, 1);
        assert!(told.advice.len() > 10 && !told.advice.ends_with(['.', ';', ':']), "{told:?}");
        let parts: Vec<&str> = told.message.split(": ").collect();
        let is_doubled = parts.windows(2).any(|two| two[0] == two[1]);
        assert!(!is_doubled && !told.message.contains("; ;"), "{told:?}");
    }

    #[test]
    fn every_error_has_advice_and_names_no_cause_twice() {
        let source = |file: &str| {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
            std::fs::read_to_string(file).expect("read")
        };
        let counted = |file: &str, name: &str, more: usize, checked: usize| {
            assert_eq!(variants(&source(file), name) + more, checked, "a variant of {name} is not checked here");
        };
        counted("src/error.rs", "StoreError", 0, store_errors().len());
        counted("src/error.rs", "ReadError", 0, read_errors().len());
        counted("src/error.rs", "CopyError", 0, copy_errors().len());
        counted("cnc/src/layout.rs", "LayoutError", 0, layout_errors().len());
        counted("cnc/src/config.rs", "ConfigError", 1, config_errors().len());
        counted("anc/src/flush_error.rs", "FlushError", 0, flush_errors().len());
        store_errors().into_iter().for_each(|error| check(error.into()));
        read_errors().into_iter().for_each(|error| check(error.into()));
        copy_errors().into_iter().for_each(|error| check(error.into()));
        layout_errors().into_iter().for_each(|error| check(error.into()));
        config_errors().into_iter().for_each(|error| check(error.into()));
        flush_errors().into_iter().for_each(|error| check(error.into()));
        check(IdentityError::Name("A B".into()).into());
        check(IdentityError::NoCluster.into());
        check(crate::metrics::metrics_address(Some("7118")).expect_err("no address").into());
        check(anyhow::anyhow!("what is wrong"));
        for kind in [ErrorKind::NotFound, ErrorKind::StorageFull, ErrorKind::BrokenPipe, ErrorKind::Other] {
            check(anyhow::Error::from(io::Error::from(kind)).context("standard output cannot be written"));
        }
    }

    #[test]
    fn the_path_of_an_error_is_named_apart() {
        for error in copy_errors() {
            assert_eq!(Told::new(&error.into(), 1).path.as_deref(), path().to_str());
        }
        for error in store_errors() {
            let error = Err::<(), _>(error).context("the list cannot be read").expect_err("an error");
            assert_eq!(Told::new(&error, 1).path.as_deref(), path().to_str(), "{error:#}");
        }
        let error = Advised::new("no store", "name one with --store").at(Path::new("/s"));
        let told = Told::new(&error.into(), 1);
        assert_eq!((told.message.as_str(), told.path.as_deref()), ("no store", Some("/s")));
        assert_eq!(told.advice, "name one with --store");
    }

    #[test]
    fn the_advice_and_the_path_of_an_untyped_error_are_those_of_its_message() {
        let at = |message: &str| Told::new(&anyhow::anyhow!("{message}"), 1);
        let told = at("/data: names place 34 of 35 files (81 %). Say which files form a checkpoint with --layout");
        assert_eq!(told.advice, "Say which files form a checkpoint with --layout");
        assert_eq!(
            (told.message.as_str(), told.path.as_deref()),
            ("/data: names place 34 of 35 files (81 %)", Some("/data"))
        );
        let told = at("the store cannot be used; name another one.");
        assert_eq!((told.message.as_str(), told.advice.as_str()), ("the store cannot be used", "name another one"));
        assert_eq!(told.path, None);
        // The advice of the message is more exact than the advice for the error of the system.
        let missing = anyhow::Error::from(io::Error::from(ErrorKind::NotFound));
        let told = Told::new(&missing.context("/no/dir: it cannot be used; give an empty directory"), 1);
        assert!(told.advice.starts_with("give an empty directory"), "{told:?}");
        let full = anyhow::Error::from(io::Error::from(ErrorKind::StorageFull)).context("/etc/mcr");
        let told = Told::new(&full, 1);
        assert!(told.advice.starts_with("free space") && told.path.as_deref() == Some("/etc/mcr"), "{told:?}");
    }

    #[test]
    fn a_wrong_command_line_names_all_missing_arguments() {
        for (words, expected) in [
            (&["mcr", "list"][..], "the following required arguments were not provided: --store <"),
            (&["mcr", "copy", "--all"], "--from <"),
            (&["mcr", "list", "--sotre", "x"], "unexpected argument '--sotre' found"),
        ] {
            let error = crate::help::command().try_get_matches_from(words).expect_err("it is wrong");
            let told = Told::of_command_line(&error);
            assert!(told.message.contains(expected), "{words:?}: {told:?}");
        }
    }

    #[test]
    fn a_wrong_value_of_an_option_has_a_plain_reason() {
        for (line, expected) in [
            ("mcr bench codecs . --time-limit 0.001", ": it must be a whole number, at least 0"),
            ("mcr bench schemes . --group-sizes 0", ": it must be a whole number, at least 1"),
            ("mcr metrics --listen foo", ": it must be ADDRESS:PORT"),
            ("mcr prune --store s --keep -1", ": \"-1\" must be a number, at least 1"),
            ("mcr advise --store s --mtbf -1", ": it must be a number above 0"),
            ("mcr save . --store s --group-size 99999999999", "99999999999 is not a number from 0 to 4294967295"),
        ] {
            let error = crate::help::command().try_get_matches_from(line.split(' ')).expect_err("it is wrong");
            let message = Told::of_command_line(&error).message;
            assert!(message.starts_with("invalid value '") && message.contains(expected), "{line}: {message}");
        }
    }

    #[test]
    fn a_cause_that_repeats_the_text_before_is_left_out() {
        let error = anyhow::anyhow!("connection refused").context("tcp error: connection refused").context("no answer");
        assert_eq!(message_of(&error), "no answer: tcp error: connection refused");
    }
}
