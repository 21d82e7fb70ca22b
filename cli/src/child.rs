//! The application as a child of `mcr run -- COMMAND`: started as if nobody were between it and its caller.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigHandler, Signal, kill, killpg, signal};
use nix::unistd::{Pid, getpgrp};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use tokio::sync::oneshot;

/// The limit of open files before mcr raised its own.
static OPEN_FILES: OnceLock<rlim_t> = OnceLock::new();

/// Keeps the limit that a child is to have.
pub fn remember_open_files(soft: rlim_t) {
    let _ = OPEN_FILES.set(soft);
}

/// A running application. It has a process group of its own, so that signals reach all of it, unless it shares a terminal
/// with us: then it is in ours, and the terminal's signals reach it by themselves.
pub struct Application {
    id: Pid,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
    has_terminal: bool,
}

impl Application {
    /// Starts it with the standard streams, the limits and the signals that we were started with.
    pub fn start(command: &[OsString]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let has_terminal = is_in_foreground();
        let mut started = Command::new(program);
        started.args(arguments).stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        if !has_terminal {
            started.process_group(0);
        }
        let mut child = as_we_were_started(|| started.spawn())?;
        let id = Pid::from_raw(i32::try_from(child.id()).map_err(|_| io::ErrorKind::InvalidData)?);
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name("command".into()).spawn(move || drop(end.send(child.wait())))?;
        Ok(Self { id, ended, has_terminal })
    }

    /// Until it ends; asked only until then.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.ended).await.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }

    /// Passes a signal on, to all of its processes. One from the terminal has reached it already.
    pub fn signal(&self, signal: Signal) {
        let _ = match (self.has_terminal, signal) {
            (true, Signal::SIGINT) => Ok(()),
            (true, _) => kill(self.id, signal),
            (false, _) => killpg(self.id, signal),
        };
    }

    /// Whether none of its processes is left that stayed in its group.
    pub fn is_gone(&self) -> bool {
        self.has_terminal || killpg(self.id, None) == Err(Errno::ESRCH)
    }
}

/// Whether our process group is the one that the terminal's keys send signals to.
fn is_in_foreground() -> bool {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return false };
    // After the name, which may hold anything: state, parent, group, session, terminal, the terminal's group.
    let owner = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(5));
    owner.and_then(|owner| owner.parse().ok()) == Some(getpgrp().as_raw())
}

/// The exit status that a shell would give for it.
pub fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Our own limit of open files is higher than what we were given, and a file that is too large does not kill us; a child
/// inherits both, so they are put back while it is started.
#[expect(unsafe_code, reason = "no safe call sets what a signal does")]
fn as_we_were_started<T>(start: impl FnOnce() -> T) -> T {
    let raised = OPEN_FILES.get().and_then(|soft| {
        let (now, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        setrlimit(Resource::RLIMIT_NOFILE, *soft, hard).ok().map(|()| (now, hard))
    });
    // SAFETY: no handler is installed, only the default for as long as a process is started.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) };
    let started = start();
    // SAFETY: as above; ignored, as it was before.
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
