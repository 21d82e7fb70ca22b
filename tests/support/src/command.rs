//! Functions that run the command under test.

use std::process::{Command, Output};

/// Removes the variables of mcrEngine and of SLURM from the environment of a command, because they would change its
/// behaviour.
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("MCR_") || name.starts_with("SLURM_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end. Prints its output if the exit status is not the expected exit status.
pub fn run(command: &mut Command, expected: i32) -> Output {
    let output = command.output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(
        output.status.code(),
        Some(expected),
        "{command:?}\nstdout:\n{}\nstderr:\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Runs a command with `--json`. Returns its standard output.
pub fn run_json(command: &mut Command, expected: i32) -> serde_json::Value {
    let output = run(command.arg("--json"), expected);
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}
