//! The command `mpib`, which adds options and reports to the library. mpib runs under mpirun.

mod commands;

use clap::Parser;
use commands::{Command, Failure};
use mpib::comm::Comm;
use std::io::Write;
use std::process::ExitCode;

/// Measures transfer paths: MPI timing with error bars, multi-lane scatter and gather, and the coupled-cluster
/// benchmark. Run mpib under mpirun with one rank for each node or core to measure.
#[derive(Parser)]
#[command(name = "mpib", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Exit codes: 0 success; 1 failure during the run; 2 invalid input.
fn main() -> ExitCode {
    let arguments = Arguments::try_parse();
    // `merge` only reads files, so it needs no MPI and runs on any node.
    if let Ok(Arguments { command: Command::Merge(options) }) = &arguments {
        return match commands::merge::run(options) {
            Ok(text) => {
                std::io::stdout().write_all(text.as_bytes()).ok(); // the reader may have exited
                ExitCode::SUCCESS
            }
            Err(Failure::Input(text) | Failure::Output(text)) => {
                eprintln!("mpib: {text}");
                ExitCode::from(2)
            }
            Err(Failure::Comm(error)) => {
                eprintln!("mpib: {error}");
                ExitCode::from(1)
            }
        };
    }
    if arguments.as_ref().is_ok_and(|arguments| arguments.command.forces_algorithms()) {
        mpib::open_mpi::allow_forcing();
    }
    let Some(universe) = mpi::initialize() else {
        eprintln!("mpib: MPI does not start");
        return ExitCode::from(1);
    };
    let world = universe.world();
    let comm = match Comm::of(&world) {
        Ok(comm) => comm,
        Err(error) => {
            eprintln!("mpib: {error}");
            return ExitCode::from(1);
        }
    };
    let outcome = match arguments {
        Ok(arguments) => commands::run(&comm, arguments.command),
        Err(error) if error.use_stderr() => Err(Failure::Input(error.to_string().trim_end().to_string())),
        Err(help) => Ok(help.to_string()), // --help and --version
    };
    let code = match outcome {
        Ok(text) => {
            // An error is ignored, because the reader of the output may have exited.
            if comm.rank() == 0 {
                std::io::stdout().write_all(text.as_bytes()).ok();
            }
            0
        }
        // All ranks find the same error in the same arguments. Rank 0 prints the error, and all ranks end as MPI
        // requires.
        Err(Failure::Input(text)) => {
            if comm.rank() == 0 {
                eprintln!("{}{text}", if text.starts_with("error:") { "" } else { "mpib: " });
            }
            2
        }
        Err(Failure::Output(text)) => {
            if comm.rank() == 0 {
                eprintln!("mpib: {text}");
            }
            1
        }
        // The other ranks may wait for this rank, so this rank must end all ranks.
        Err(Failure::Comm(error)) => {
            eprintln!("mpib: rank {}: {error}", comm.rank());
            comm.abort(1)
        }
    };
    comm.barrier().ok(); // no rank may end while other ranks still communicate
    ExitCode::from(code)
}
