//! The exit status of all commands. README.md, deploy/README.md and the `--help` texts repeat this table.

use std::process::ExitCode;

/// The exit status of every command. A script may rely on these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything that was found is saved, verified, restored or printed.
    Done = 0,
    /// Nothing was done, or its result could not be written.
    Failed = 1,
    /// `restart`: an older checkpoint than asked for was restored.
    Older = 2,
    /// `restart`: there is no complete checkpoint.
    NewRun = 3,
    /// Only a part was done. The last line names what is missing.
    Partly = 4,
}

impl Exit {
    /// The exit status if `done` items were done, and `is_missing` says whether any item is missing.
    pub fn of(done: usize, is_missing: bool) -> Self {
        match (done, is_missing) {
            (0, _) => Self::Failed,
            (_, true) => Self::Partly,
            (_, false) => Self::Done,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// For `mcr save --help`.
pub const SAVE: &str = "Exit status: 0 all that was found is saved, 1 nothing is saved, 4 partly: some checkpoints or files \
    are not saved, and the last line names them.";
/// For `mcr verify --help`.
pub const VERIFY: &str = "Exit status: 0 every checkpoint is good, 1 a checkpoint is damaged, or there is none, 4 partly: \
    all complete checkpoints are good, and some are not complete.";
/// For `mcr status --help`.
pub const STATUS: &str = "Exit status: 0 every aggregator answered, 1 none answered, 4 partly: some did not answer.";
/// For `mcr bench --help`.
pub const BENCH: &str = "Exit status: 0 everything was measured, 1 failed, 4 partly: the time \
    limit was reached before everything was measured.";
/// For commands that either do everything or nothing.
pub const ALL_OR_NOTHING: &str = "Exit status: 0 done, 1 failed.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partly_is_neither_success_nor_failure() {
        let all = [Exit::of(2, false), Exit::of(2, true), Exit::of(0, true), Exit::of(0, false)];
        assert_eq!(all.map(|exit| exit as u8), [0, 4, 1, 1]);
    }
}
