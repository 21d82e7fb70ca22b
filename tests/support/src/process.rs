//! A process that does not outlive its test.

use std::io;
use std::process::{Child, Command, ExitStatus};

/// A running process. The process is killed when this value is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Starts a process.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends the signal with this name, such as `TERM`. Returns whether the signal was sent.
    pub fn signal(&self, name: &str) -> bool {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        sent.is_ok_and(|status| status.success())
    }

    /// Sends the signal with this name, and waits until the process ends.
    pub fn end(mut self, signal: &str) -> io::Result<ExitStatus> {
        self.signal(signal);
        self.0.wait()
    }

    /// Sends SIGKILL and waits for the end. The process finishes nothing and reports nothing.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.kill();
    }
}
