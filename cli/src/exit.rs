//! The exit status of all commands. README.md and deploy/README.md repeat these numbers, and docs/exit-codes.md has a
//! table, which a test compares with the texts below. `--help` prints the texts. In the manual pages, the first line
//! of a text becomes a list.

use crate::refused::{NoIdentity, NotPermitted, WrongSetting};
use std::process::ExitCode;

/// Exit status of daemons and of `mcr flush`: not all written files are committed. Also the exit status of `mcr run`
/// if the newest checkpoint is doubtful.
pub const NOT_COMMITTED: u8 = 5;

/// The exit status of every command. A script may rely on these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything that was found is saved, verified, restored or printed.
    Done = 0,
    /// Nothing was done, or the result could not be written.
    Failed = 1,
    /// `restart`: an older checkpoint than the wanted checkpoint was restored.
    Older = 2,
    /// `restart`: there is no complete checkpoint.
    NewRun = 3,
    /// Only a part was done. The last line of the output names the missing part.
    Partly = 4,
    /// The process has no permission to use a file, or other users could change the file. The number is from
    /// sysexits.h.
    NotPermitted = 77,
    /// The configuration cannot be used. The number is from sysexits.h.
    Configuration = 78,
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

impl Exit {
    /// The exit status of a command that ended with this error.
    pub fn of_error(error: &anyhow::Error) -> Self {
        if error.is::<NotPermitted>() {
            Self::NotPermitted
        } else if error.is::<NoIdentity>() || error.is::<WrongSetting>() {
            Self::Configuration
        } else {
            Self::Failed
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Text for `mcr --help`.
pub const EVERY_COMMAND: &str = "Exit status: 0 done, 1 failed, 2 an older or a doubtful checkpoint was restored, 3 \
    there is no complete checkpoint (a new run), 4 only a part was done, 5 not all files are committed, 77 other \
    users could change the store or the key, 78 the configuration of a daemon cannot be used, or a connection needs a \
    certificate that is missing or cannot be used (mcr cert init).\n\n\
    A wrong command line ends with 1. mcr COMMAND --help lists the exit statuses of a command.";
/// Text for `mcr save --help`.
pub const SAVE: &str = "Exit status: 0 all that was found is saved, 1 nothing is saved, or the result could not be \
    printed, 4 partly: some checkpoints or files are not saved, or the newest checkpoint is doubtful, and the last \
    line names them, 77 other users could change the store.";
/// Text for `mcr restart --help`.
pub const RESTART: &str = "Exit status: 0 restored, 1 failed, 2 restored an older checkpoint than asked for, or \
    than uncommitted files that were moved aside and may be whole, a doubtful one, one that is marked as bad, or \
    (without --checkpoint) one that was set aside, 3 there is no complete checkpoint (a new run), 77 with \
    --aggregators: other users could read or change the key, 78 with --aggregators: the command has no certificate \
    that it can use (mcr cert init).";
/// Text for `mcr list --help` and `mcr stats --help`.
pub const JOBS: &str =
    "Exit status: 0 done, 1 failed, 4 partly: some jobs could not be read, and the last line names them.";
/// Text for `mcr verify --help`.
pub const VERIFY: &str = "Exit status: 0 every checkpoint is good, or good again after --repair, 1 a checkpoint is \
    damaged, or there is none, 4 partly: all complete checkpoints are good, and some are not complete, 77 with \
    --repair: other users could change the store.";
/// Text for `mcr cnc --help`.
pub const AGENT: &str = "Exit status: 0 all files are committed, 1 the agent did not start, 5 not all files are \
    committed (the last log lines name them), 77 other users could read or change the key, 78 the configuration cannot \
    be used, or the agent has no certificate that it can use (mcr cert init).";
/// Text for `mcr anc --help`.
pub const AGGREGATOR: &str = "Exit status: 0 all files are committed, 1 the aggregator did not start, 5 not all \
    files are committed (the last log lines name them), 77 other users could change the store or the key, 78 the \
    configuration cannot be used, or the aggregator has no certificate that it can use (mcr cert init).";
/// Text for `mcr run --help`.
pub const RUN: &str = "Exit status: 0 all files are committed, 1 mcr did not start, 5 not all files are committed, \
    or the newest checkpoint is doubtful, 77 other users could change the store, 78 the configuration cannot be \
    used.\n\n\
    With -- COMMAND, the exit status of mcr is the exit status of COMMAND: 128 plus the signal's number if a signal \
    ended COMMAND, 126 or 127 if COMMAND cannot be started. Exit status 5: COMMAND succeeded, but not all of its \
    files were committed, or the newest checkpoint is doubtful.";
/// Text for `mcr flush --help`.
pub const FLUSH: &str = "Exit status: 0 all files are committed, 1 no agent was reached, 5 not all files are \
    committed.";
/// Text for `mcr node --help`.
pub const NODE: &str = "Exit status: 1 the daemon did not start, or its socket failed, 77 the daemon is not root, and \
    --own is not given, 78 the user of --gate-user (MCR_GATE_USER) does not exist.";
/// Text for `mcr gate --help`.
pub const GATE: &str = "Exit status: 0 the gate was ended by a signal, 1 the gate did not start, 77 other users \
    could read or change its key, 78 the cluster's file cannot be used, or the gate has no key that it can use.";
/// Text for `mcr metrics --help`.
pub const METRICS: &str = "Exit status: 1 the address cannot be used. The command ends by a signal.";
/// Text for `mcr node check --help`.
pub const NODE_CHECK: &str = "Exit status: 0 every check is ok, 1 a check printed \"warning\" or \"wrong\".";
/// Text for `mcr job --help`.
pub const JOB: &str = "Exit status: 0 done, 1 failed. begin and end always exit with 0.";
/// Text for `mcr job begin --help` and `mcr job end --help`.
pub const HOOK: &str = "Exit status: 0 always, so that SLURM never drains the node.";
/// Text for `mcr status --help`.
pub const STATUS: &str = "Exit status: 0 every aggregator answered, or a signal ended --watch, --follow or --serve, 1 \
    none answered, or the page cannot be served, 4 partly: some did not answer, 77 other users could read or change \
    the key, 78 the command has no certificate that it can use (mcr cert init).";
/// Text for `mcr bench --help`.
pub const BENCH: &str = "Exit status: 0 everything was measured, 1 failed, 4 partly: the time \
    limit was reached before everything was measured.";
/// Text for `mcr cert --help`.
pub const CERT: &str = "Exit status: 0 done, 1 failed, 77 other users could read or change the key.";
/// Text for commands that either do everything or nothing.
pub const ALL_OR_NOTHING: &str = "Exit status: 0 done, 1 failed.";

/// The statuses of a list like `Exit status: 0 done, 1 failed.`, each with its meaning.
pub fn statuses(list: &str) -> Vec<(&str, String)> {
    let list = list.trim_start_matches("Exit status: ").trim_end_matches('.');
    let mut statuses: Vec<(&str, String)> = Vec::new();
    for part in list.split(", ") {
        let begun = part.split_once(' ').filter(|(number, _)| number.parse::<u8>().is_ok());
        match (begun, statuses.last_mut()) {
            (Some((number, meaning)), _) => statuses.push((number, meaning.to_owned())),
            (None, Some((_, meaning))) => *meaning += &format!(", {part}"),
            (None, None) => {}
        }
    }
    statuses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partly_is_neither_success_nor_failure() {
        let all = [Exit::of(2, false), Exit::of(2, true), Exit::of(0, true), Exit::of(0, false)];
        assert_eq!(all.map(|exit| exit as u8), [0, 4, 1, 1]);
    }
}
