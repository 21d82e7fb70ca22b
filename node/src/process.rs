//! A process, identified by its number and its start time, because the system uses process numbers again.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A process. Unknown keys are ignored, because records contain this type, see [`crate::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Process {
    /// The process number.
    pub pid: i32,
    /// When the process started, in clock ticks since the system was booted.
    pub started_ticks: u64,
}

impl Process {
    /// The process that has this number now. `None` if no process has this number, or if the process has ended and
    /// its parent has not waited for it yet.
    pub fn of(pid: i32) -> Option<Self> {
        Self::read(pid).filter(|(_, has_ended)| !has_ended).map(|(process, _)| process)
    }

    /// A child of this process, if no thread has waited for the child yet. The child may have ended.
    pub fn of_child(pid: i32) -> Option<Self> {
        Self::read(pid).map(|(process, _)| process)
    }

    /// The process, and whether it has ended.
    fn read(pid: i32) -> Option<(Self, bool)> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        parse(&stat).map(|(started_ticks, has_ended)| (Self { pid, started_ticks }, has_ended))
    }

    /// Whether the process is running.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// A descriptor of the process, if the process is running. The descriptor never refers to another process.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        let descriptor = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        self.is_alive().then_some(descriptor)
    }

    /// Sends a signal. Returns `false` if the process has ended.
    pub fn signal(&self, signal: Signal) -> bool {
        self.descriptor().is_some_and(|descriptor| pidfd_send_signal(descriptor, signal).is_ok())
    }

    /// Waits until the process has ended. Returns `false` if the process still runs after the time `most`.
    pub fn wait(&self, most: Duration) -> bool {
        let Some(descriptor) = self.descriptor() else { return true };
        let until = Instant::now() + most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) if left.is_zero() => return false,
                Ok(1..) => return true,
                // The timeout expired, because `poll` limits its length, or a signal interrupted the wait.
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return !self.is_alive(),
            }
        }
    }
}

/// The start time in `/proc/PID/stat`, and whether the process has ended. The state is `Z`, too, if the first thread
/// of a process has ended and another thread waits in the kernel, for example for a file system that does not answer.
/// Such a process has not ended, and waiting for such a process may take for ever.
fn parse(stat: &str) -> Option<(u64, bool)> {
    // The name of the process, in parentheses, may contain spaces and parentheses. The state is field 3.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, threads) = (fields.next()?, fields.nth(16)?.parse::<u32>().ok()?);
    let started_ticks = fields.nth(1)?.parse().ok()?;
    Some((started_ticks, state == "Z" && threads <= 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_has_ended_only_if_all_of_its_threads_have_ended() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) b (c) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 0 4711 99 1 2")
        };
        assert_eq!(parse(&stat("S", 3)), Some((4711, false)));
        assert_eq!(parse(&stat("Z", 1)), Some((4711, true)));
        assert_eq!(parse(&stat("Z", 2)), Some((4711, false)), "a thread waits in the kernel");
        assert_eq!(parse("7 (a) Z 1 2"), None);
    }

    #[test]
    fn a_process_is_known_by_its_start_and_can_be_signalled_and_waited_for() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("starts");
        let process = Process::of(child.id() as i32).expect("it runs");
        assert!(process.is_alive() && !process.wait(Duration::from_millis(30)));
        let other = Process { started_ticks: process.started_ticks + 1, ..process };
        assert!(!other.is_alive() && !other.signal(Signal::KILL) && other.wait(Duration::ZERO));
        assert!(process.is_alive(), "a signal to another process with the same number is not sent");
        assert!(process.signal(Signal::KILL) && process.wait(Duration::from_secs(10)));
        child.wait().expect("waited for");
        assert!(!process.is_alive() && !process.signal(Signal::KILL) && process.wait(Duration::ZERO));
    }
}
