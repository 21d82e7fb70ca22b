//! `mcr`: the binary of mcrEngine, which has all commands and both daemons.

/// Replaces the standard macro, which panics if standard error cannot be written, and prints control characters of
/// names.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::tell_line(&format!($($text)*)) };
}

mod args;
mod bench;
mod child;
mod common;
mod config;
mod daemon;
mod decide;
mod exit;
mod flush;
mod found;
mod list;
mod local;
mod output;
mod places;
mod prepare;
mod prune;
mod remote;
mod restart;
mod restorers;
mod save;
mod show;
mod status;
mod verify;

use args::{Cli, Command};
use clap::Parser;
use exit::Exit;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // In this mode the process reads the maps of HDF5 files for its parent process. This check must come first.
    if std::env::args().nth(1).as_deref() == Some(mcr_cnc::h5::WORKER_ARGUMENT) {
        return mcr_cnc::h5::worker_main();
    }
    survive_file_size_limit();
    raise_open_files();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // clap would exit with 2. But exit status 2 of `mcr restart` means that an older checkpoint was restored.
        Err(error) => {
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            if let (Err(why), false) = (&printed, error.use_stderr()) {
                output::tell(format!("standard output cannot be written: {why}"));
            }
            return if error.use_stderr() || printed.is_err() { Exit::Failed } else { Exit::Done }.into();
        }
    };
    let result = match cli.command {
        Command::Save(args) => save::run(args),
        Command::Restart(args) => restart::run(args),
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Prune(args) => prune::run(args),
        Command::Cnc(args) => daemon::run_cnc(args),
        Command::Anc(args) => daemon::run_anc(args),
        Command::Run(args) => daemon::run_both(args),
        Command::Flush(args) => flush::run(args),
        Command::Status(args) => status::run(args),
        Command::Config(args) => config::run(args),
        Command::Bench(args) => bench::run(args),
    };
    result.unwrap_or_else(|error| {
        output::tell_error(&error);
        Exit::Failed.into()
    })
}

/// Makes a file that reaches `ulimit -f` an error of the write, which is reported. Otherwise the process would end
/// silently.
#[expect(unsafe_code, reason = "no safe call sets the action of a signal")]
fn survive_file_size_limit() {
    // SAFETY: no handler is installed, and no thread runs yet. If the call fails, SIGXFSZ keeps its default action.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

/// Raises the limit of open files as far as the system allows. A checkpoint may have thousands of files, and a
/// restart holds the files of a group open.
fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        child::remember_open_files(soft);
        // If the limit cannot be raised, it stays as it is. A lack of descriptors is reported when a file cannot be
        // opened.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
