//! Runs the application as a child of `mcr run -- COMMAND`, with the same limits and signals as if the caller of mcr
//! had started the application directly.

use crate::left_running;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigHandler, Signal, kill, killpg, signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpgrp};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::oneshot;

/// The limit of open files before mcr raised it.
static OPEN_FILES: OnceLock<rlim_t> = OnceLock::new();

/// Records the limit of open files that a child process must get.
pub fn remember_open_files(soft: rlim_t) {
    let _ = OPEN_FILES.set(soft);
}

/// A running application. The application has a separate process group, so that signals reach all of its processes.
/// If the application shares a terminal with mcr, the application stays in mcr's process group, and the terminal
/// sends signals directly to the application.
pub struct Application {
    id: Pid,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
    has_terminal: bool,
}

impl Application {
    /// Starts the application with the standard streams, limits and signals that mcr got from its caller. `watch`: the
    /// watched directory, for [`left_running`].
    pub fn start(command: &[OsString], watch: &Path) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let has_terminal = is_in_foreground();
        let mut started = Command::new(program);
        started.args(arguments).stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        if let Some(value) = left_running::value(watch) {
            started.env(left_running::VARIABLE, value);
        }
        if !has_terminal {
            started.process_group(0);
        }
        // A process whose parent has ended becomes a child of mcr, although it has a separate process group.
        if let Err(error) = set_child_subreaper(true) {
            tracing::debug!(%error, "processes that leave the command's process group will not be noticed");
        }
        let mut child = as_we_were_started(|| started.spawn())?;
        let id = Pid::from_raw(i32::try_from(child.id()).map_err(|_| io::ErrorKind::InvalidData)?);
        std::thread::Builder::new().name("orphans".into()).spawn(move || {
            loop {
                std::thread::sleep(REAPED_EVERY);
                reap_orphans(id);
            }
        })?;
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name("command".into()).spawn(move || drop(end.send(child.wait())))?;
        Ok(Self { id, ended, has_terminal })
    }

    /// Waits until the application ends. Must be called only once.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.ended).await.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }

    /// Sends a signal to all processes of the application, or only to the process of the command if the application
    /// shares mcr's process group. In this case, SIGINT and SIGHUP are not sent, because the terminal has sent these
    /// signals to all processes. SIGUSR1 and SIGUSR2 are sent only to the process of the command, because these
    /// signals would end other processes, which have no handlers for them.
    pub fn signal(&self, signal: Signal) {
        let _ = match (self.has_terminal, signal) {
            (true, Signal::SIGINT | Signal::SIGHUP) => Ok(()),
            (true, _) | (_, Signal::SIGUSR1 | Signal::SIGUSR2) => kill(self.id, signal),
            (false, _) => killpg(self.id, signal),
        };
    }

    /// Whether no process of the application is left: neither in the application's process group, nor among the
    /// processes that left this group and whose parents have ended. If the application shares the process group of
    /// mcr, the group is not examined.
    pub fn is_gone(&self) -> bool {
        let is_group_gone = self.has_terminal || killpg(self.id, None) == Err(Errno::ESRCH);
        is_group_gone && !orphans(self.id).iter().any(|orphan| orphan.is_running)
    }
}

/// A process of the application that has become a child of mcr.
struct Orphan {
    id: Pid,
    /// Whether the process has not ended.
    is_running: bool,
}

/// Interval at which ended orphans are removed from the system's table of processes.
const REAPED_EVERY: Duration = Duration::from_secs(30);

/// The children of mcr that have another process group, except the command itself. The processes that mcr starts for
/// itself have mcr's process group.
fn orphans(command: Pid) -> Vec<Orphan> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<i32> =
        children.flat_map(|ids| ids.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
    let orphan = |id: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let (state, group) = (fields.next()?, fields.nth(1)?.parse().ok()?);
        let is_own = Pid::from_raw(group) == getpgrp() || Pid::from_raw(id) == command;
        (!is_own).then(|| Orphan { id: Pid::from_raw(id), is_running: !matches!(state, "Z" | "X") })
    };
    children.into_iter().filter_map(orphan).collect()
}

/// Removes ended orphans from the system's table of processes.
fn reap_orphans(command: Pid) {
    for orphan in orphans(command).iter().filter(|orphan| !orphan.is_running) {
        let _ = waitpid(orphan.id, Some(WaitPidFlag::WNOHANG));
    }
}

/// Whether the process group of mcr is the terminal's foreground group, which receives the signals of the terminal's
/// keys.
fn is_in_foreground() -> bool {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return false };
    // The fields after the name, which may contain any character: state, parent, group, session, terminal, foreground
    // group of the terminal.
    let owner = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(5));
    owner.and_then(|owner| owner.parse().ok()) == Some(getpgrp().as_raw())
}

/// The exit status that a shell would report.
pub fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Calls `start` with the original limit of open files and the default action for SIGXFSZ. This function is needed
/// because mcr raises the limit and ignores the signal, and a child process would inherit both. After `start`, mcr
/// has the raised limit and ignores the signal again.
#[expect(unsafe_code, reason = "no safe call sets the action of a signal")]
fn as_we_were_started<T>(start: impl FnOnce() -> T) -> T {
    let raised = OPEN_FILES.get().and_then(|soft| {
        let (now, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        setrlimit(Resource::RLIMIT_NOFILE, *soft, hard).ok().map(|()| (now, hard))
    });
    // SAFETY: `signal` is unsafe because a handler might not be async-signal-safe. This call only restores the
    // default action.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) };
    let started = start();
    // SAFETY: `signal` is unsafe because a handler might not be async-signal-safe. This call only ignores the signal
    // again.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    if let Some((soft, hard)) = raised {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft, hard);
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_a_signal_ended_has_the_status_that_a_shell_gives() {
        for (wait_status, code) in [(0, 0), (3 << 8, 3), (9, 137), (15, 143), (255 << 8, 255)] {
            assert_eq!(code_of(ExitStatus::from_raw(wait_status)), code);
        }
    }
}
