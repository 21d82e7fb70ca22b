//! The command `mpib`: the library, with options and reports. Run it under mpirun.

mod commands;

use clap::Parser;
use commands::{Command, Failure};
use mpib::comm::Comm;
use std::io::Write;
use std::process::ExitCode;

/// What transfer paths give: MPI timing with error bars, multi-lane scatter and gather, and the coupled-cluster benchmark.
/// Run it under mpirun, one rank for each place of interest.
#[derive(Parser)]
#[command(name = "mpib", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// 0: done; 1: something failed on the way; 2: what was asked for cannot be.
fn main() -> ExitCode {
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
    let outcome = match Arguments::try_parse() {
        Ok(arguments) => commands::run(&comm, arguments.command),
        Err(error) if error.use_stderr() => Err(Failure::Input(error.to_string().trim_end().to_string())),
        Err(help) => Ok(help.to_string()), // --help and --version
    };
    let code = match outcome {
        Ok(text) => {
            // a reader that has gone away is no failure of ours
            if comm.rank() == 0 {
                std::io::stdout().write_all(text.as_bytes()).ok();
            }
            0
        }
        // found by all ranks alike, from the same words: one of them says it, and all end as MPI wants it
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
        // a rank alone cannot end the others' waiting in any other way
        Err(Failure::Comm(error)) => {
            eprintln!("mpib: rank {}: {error}", comm.rank());
            comm.abort(1)
        }
    };
    comm.barrier().ok(); // nobody leaves with an error while others still talk
    ExitCode::from(code)
}
