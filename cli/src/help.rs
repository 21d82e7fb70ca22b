//! The definition of the command line with all texts of `--help`: the groups of commands, examples, and exit
//! statuses.
//!
//! `mcr --help` lists the commands by the user's purpose. The help of each command ends with examples and with the
//! exit statuses. The manual pages show the same texts.

mod examples;

pub use examples::{Example, examples_of};

use crate::args::Cli;
use clap::{Command, CommandFactory};

/// Commands with one purpose.
pub struct Group {
    /// The purpose, as a heading.
    pub heading: &'static str,
    /// Names of the commands. The most frequently used command comes first.
    pub commands: &'static [&'static str],
}

/// The groups of `mcr --help`. Each command that is not hidden is in one group.
pub const GROUPS: &[Group] = &[
    Group { heading: "Save and restore", commands: &["run", "restart", "save", "copy", "prune", "flush"] },
    Group {
        heading: "Look at checkpoints and jobs",
        commands: &[
            "list", "show", "ls", "cat", "extract", "diff", "mount", "verify", "stats", "advise", "status", "layouts",
        ],
    },
    Group { heading: "Run daemons", commands: &["cnc", "anc", "node", "gate", "metrics"] },
    Group { heading: "Set up a cluster", commands: &["job", "config", "cert"] },
    Group { heading: "Measure", commands: &["bench"] },
];

/// The definition of the command line, with all texts of `--help`.
pub fn command() -> Command {
    let command = with_ends(Cli::command(), "", None);
    let template = template(&command);
    command.help_template(template)
}

/// Adds examples and exit statuses to the help of a command and of all its subcommands. A subcommand without a text
/// about its exit status gets the text of its parent command. `path`: the words after `mcr` that name the command,
/// such as `node check`; empty for `mcr` itself.
fn with_ends(command: Command, path: &str, parents_exit: Option<&str>) -> Command {
    let exit = exit_text(&command).or(parents_exit.map(str::to_owned));
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |sub| with_ends(sub, path.trim_start(), exit.as_deref()))
    });
    // Without this setting, `--keep -1` would be two options.
    let command = command.mut_args(|arg| match !arg.is_positional() && arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    let examples = examples_of(path);
    let list = examples.iter().map(|Example { command, what }| format!("  {command}\n      {what}\n"));
    let list: String = list.collect();
    let text = match (list.is_empty(), exit) {
        (true, exit) => exit.unwrap_or_default(),
        (false, exit) => format!("Examples:\n{list}\n{}", exit.unwrap_or_default()),
    };
    command.after_help(text.clone()).after_long_help(text)
}

/// The text about the exit status, which the definition of the command line has after the options.
pub fn exit_text(command: &Command) -> Option<String> {
    command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string)
}

/// The template of `mcr --help`, with the list of commands.
fn template(command: &Command) -> String {
    let style = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut list = String::new();
    let mut add = |heading: &str, commands: &[&Command]| {
        list.push_str(&format!("{style}{heading}:{style:#}\n"));
        for sub in commands {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            list.push_str(&format!("  {literal}{:<WIDTH$}{literal:#}  {about}\n", sub.get_name()));
        }
        list.push('\n');
    };
    for group in GROUPS {
        let commands: Vec<&Command> = group.commands.iter().filter_map(|name| command.find_subcommand(name)).collect();
        add(group.heading, &commands);
    }
    let is_listed = |name: &str| GROUPS.iter().any(|group| group.commands.contains(&name));
    let others: Vec<&Command> =
        command.get_subcommands().filter(|sub| !sub.is_hide_set() && !is_listed(sub.get_name())).collect();
    if !others.is_empty() {
        add("Others", &others);
    }
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{style}Options:{style:#}\n{{options}}{{after-help}}"
    )
}

/// Width of the longest name of a command.
const WIDTH: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All commands that are not hidden, with their paths below `mcr`.
    fn all(command: &Command, path: &str) -> Vec<(String, Command)> {
        let subs = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
        let below = subs.flat_map(|sub| all(sub, format!("{path} {}", sub.get_name()).trim_start()));
        std::iter::once((path.to_owned(), command.clone())).chain(below).collect()
    }

    fn help_of(command: &Command) -> String {
        command.clone().term_width(80).render_long_help().to_string()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group_and_the_list_fits_80_columns() {
        let root = command();
        let names: BTreeSet<&str> =
            root.get_subcommands().filter(|sub| !sub.is_hide_set()).map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), names, "GROUPS in help.rs");
        assert_eq!(grouped.len(), names.len(), "a command is in two groups");
        assert!(names.iter().all(|name| name.len() <= WIDTH));
        let help = help_of(&root);
        for group in GROUPS {
            assert!(help.contains(&format!("\n{}:\n", group.heading)), "{help}");
        }
        for name in names {
            let about = root.find_subcommand(name).and_then(Command::get_about).expect("a text").to_string();
            assert!(help.contains(&format!("  {name:<WIDTH$}  {about}\n")), "{name}: {help}");
        }
        let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }

    #[test]
    fn every_command_has_two_examples_which_the_command_line_accepts() {
        for (path, command) in all(&command(), "") {
            let examples = examples_of(&path);
            assert!(examples.len() >= 2, "mcr {path} has {} examples", examples.len());
            let help = help_of(&command);
            for Example { command: line, what } in examples {
                assert!(line.split_whitespace().count() > 1 && !what.is_empty(), "{line}");
                assert!(line.contains(&format!("mcr {path}")), "{line} is no example of mcr {path}");
                assert!(help.contains(&format!("  {line}\n      {what}\n")), "mcr {path}: {help}");
                let words = words(line.split(" > ").next().expect("a command"));
                if let Err(error) = Cli::command().try_get_matches_from(&words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    /// The words of a command line, as a shell reads them.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut is_quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match (c, is_quoted) {
                ('\'', _) => is_quoted = !is_quoted,
                (' ', false) => words.push(String::new()),
                (c, _) => words.last_mut().expect("a word").push(c),
            }
        }
        words
    }

    #[test]
    fn every_example_of_a_run_without_a_file_names_the_job_the_store_and_the_directory() {
        for (path, _) in all(&command(), "") {
            for Example { command: line, .. } in examples_of(&path) {
                if line.starts_with("mcr run ") && !line.contains("--config") {
                    let is_whole = ["--job ", "--store ", "--watch "].iter().all(|option| line.contains(option));
                    assert!(is_whole, "mcr {path}: {line}");
                }
            }
        }
    }

    #[test]
    fn every_help_has_the_exit_statuses() {
        for (path, command) in all(&command(), "") {
            let help = help_of(&command);
            assert!(help.contains("Exit status: "), "mcr {path}: {help}");
        }
    }

    /// The table of docs/exit-codes.md.
    fn exit_table() -> String {
        let mut table = "| command | exit code | meaning |\n|---|---:|---|\n".to_owned();
        let mut last = None;
        for (path, command) in all(&Cli::command(), "") {
            // A command without a separate text has the text of its parent command.
            let Some(text) = exit_text(&command).filter(|_| !path.is_empty()) else { continue };
            for (code, meaning) in crate::exit::statuses(text.split("\n\n").next().expect("a list")) {
                let name = if last.as_ref() == Some(&path) { String::new() } else { format!("`mcr {path}`") };
                table.push_str(&format!("| {name} | {code} | {meaning} |\n"));
                last = Some(path.clone());
            }
        }
        table
    }

    #[test]
    fn the_document_has_the_exit_statuses_of_all_commands() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/exit-codes.md");
        let text = std::fs::read_to_string(file).expect("read");
        let (before, _) = text.split_once("| command |").expect("a table");
        let expected = format!("{before}{}", exit_table());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, expected).expect("written");
        } else {
            assert_eq!(text, expected, "UPDATE_DOCS=1 cargo test -p mcr-cli --bin mcr writes the table again");
        }
    }

    #[test]
    fn no_example_is_of_a_command_that_does_not_exist() {
        let all = command(); // with the hidden commands, which have examples too
        for path in examples::paths().filter(|path| !path.is_empty()) {
            let found = path.split(' ').try_fold(&all, |of, name| of.find_subcommand(name));
            assert!(found.is_some(), "mcr {path}");
        }
    }
}
