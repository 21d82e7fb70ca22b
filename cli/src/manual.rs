//! `mcr manual DIR`: the manual pages and the shell completions, made from the definition of the command line.
//!
//! Packages contain these files. The directories below DIR are the directories of /usr/share.

use crate::args::{Cli, ManualArgs};
use crate::exit::statuses;
use crate::help::{Example, GROUPS, examples_of, exit_text};
use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::Path;
use std::process::ExitCode;

/// The file with the completions for each shell, in the directory where the shell looks for it.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/mcr"),
    (Shell::Zsh, "zsh/site-functions/_mcr"),
    (Shell::Fish, "fish/vendor_completions.d/mcr.fish"),
];

pub fn run(args: ManualArgs) -> anyhow::Result<ExitCode> {
    for page in pages()? {
        write(&args.dir.join("man/man1").join(page.file), &page.text)?;
    }
    for (shell, file) in COMPLETIONS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut shown(&Cli::command()), "mcr", &mut text);
        write(&args.dir.join(file), &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A command without its hidden subcommands. clap cannot remove a subcommand, and clap_complete shows hidden ones.
fn shown(command: &Command) -> Command {
    let name = command.get_name().to_owned();
    let bare = Command::new(name).args(command.get_arguments().cloned());
    let bare = command.get_version().into_iter().fold(bare, |bare, version| bare.version(version.to_owned()));
    let bare = command.get_about().into_iter().fold(bare, |bare, about| bare.about(about.clone()));
    bare.subcommands(shown_subcommands(command).map(shown))
}

fn write(file: &Path, text: &[u8]) -> anyhow::Result<()> {
    let dir = file.parent().expect("the file is below a directory");
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    std::fs::write(file, text).with_context(|| format!("{}: cannot be written", file.display()))
}

/// A manual page.
struct Page {
    /// Name of the file, for example `mcr-config-check.1`.
    file: String,
    /// The source text for man.
    text: Vec<u8>,
}

/// A page for `mcr` and for each subcommand, except hidden subcommands.
fn pages() -> anyhow::Result<Vec<Page>> {
    let mut pages = Vec::new();
    add_pages(&documented(), None, &mut pages)?;
    Ok(pages)
}

/// The definition of the command line as the manual pages show it.
fn documented() -> Command {
    // clap_mangen does not show aliases.
    fn with_aliases(command: Command) -> Command {
        let command = command.mut_args(|arg| match (arg.get_visible_aliases(), arg.get_help()) {
            (Some(aliases), Some(help)) if !aliases.is_empty() => {
                let text = format!("{help} [alias: --{}]", aliases.join(", --"));
                arg.help(text)
            }
            _ => arg,
        });
        command.mut_subcommands(with_aliases)
    }
    let mut command = with_aliases(Cli::command()).disable_help_subcommand(true);
    command.build();
    command
}

/// Adds the page of a command, and then the pages of its subcommands. A subcommand without a text about its exit
/// status gets the text of its parent command.
fn add_pages(command: &Command, parents_exit: Option<&str>, pages: &mut Vec<Page>) -> anyhow::Result<()> {
    let exit = exit_text(command);
    let exit = exit.as_deref().or(parents_exit);
    // roff omits an empty date, and man would use the next word as the date.
    let man = Man::new(command.clone()).date("\"\"").source(concat!("mcrEngine ", env!("CARGO_PKG_VERSION")));
    let man = man.manual("mcrEngine manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis_section(command, &mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let mut rest = Roff::new();
    let name = display_name(command);
    match name.split_once('-') {
        None => grouped_subcommands(command, &mut rest),
        Some(_) if shown_subcommands(command).next().is_some() => man.render_subcommands_section(&mut text)?,
        Some(_) => {}
    }
    let path = name.split_once('-').map_or(String::new(), |(_, path)| path.replace('-', " "));
    examples_section(examples_of(&path), &mut rest);
    if let Some(exit) = exit {
        exit_status(exit, &mut rest);
    }
    if let Some((parent, _)) = name.rsplit_once('-') {
        rest.control("SH", ["SEE ALSO"]);
        rest.text([bold(parent), roman("(1)")]);
    }
    rest.to_writer(&mut text)?;
    pages.push(Page { file: man.get_filename(), text });
    shown_subcommands(command).try_for_each(|sub| add_pages(sub, exit, pages))
}

/// The usage as `--help` shows it. The section that clap_mangen writes has no values of options.
fn synopsis_section(command: &Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let mut section = Roff::new();
    section.control("SH", ["SYNOPSIS"]);
    section.control("nf", []);
    section.text(usage.lines().map(|line| roman(line.trim())).collect::<Vec<_>>());
    section.control("fi", []);
    section.to_writer(text)
}

fn shown_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// Name of the page, for example `mcr-config-check`.
fn display_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The section with the commands of `mcr`, in the groups of `mcr --help`.
fn grouped_subcommands(command: &Command, page: &mut Roff) {
    page.control("SH", ["COMMANDS"]);
    for group in GROUPS {
        page.control("SS", [group.heading]);
        for sub in group.commands.iter().filter_map(|name| command.find_subcommand(name)) {
            page.control("TP", []);
            page.text([roman(format!("{}(1)", display_name(sub)))]);
            page.text([roman(sub.get_about().map(ToString::to_string).unwrap_or_default())]);
        }
    }
}

/// The section with the examples of a command.
fn examples_section(examples: &[Example], page: &mut Roff) {
    if !examples.is_empty() {
        page.control("SH", ["EXAMPLES"]);
    }
    for Example { command, what } in examples {
        page.control("TP", []);
        page.text([bold(*command)]);
        page.text([roman(*what)]);
    }
}

/// The section about the exit status, from a text of exit.rs.
fn exit_status(text: &str, page: &mut Roff) {
    page.control("SH", ["EXIT STATUS"]);
    let mut paragraphs = text.split("\n\n");
    let list = paragraphs.next().unwrap_or_default();
    for (number, meaning) in statuses(list) {
        page.control("TP", []);
        page.text([bold(number)]);
        page.text([roman(meaning)]);
    }
    for paragraph in paragraphs {
        if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
            page.control("SH", ["EXAMPLES"]);
            for example in examples.lines() {
                page.control("PP", []);
                page.text([roman(example.trim())]);
            }
            continue;
        }
        page.control("PP", []);
        page.text([roman(paragraph)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command and all subcommands that are not hidden.
    fn all(command: &Command) -> Vec<&Command> {
        std::iter::once(command).chain(shown_subcommands(command).flat_map(all)).collect()
    }

    fn page_of(command: &Command) -> String {
        let file = format!("{}.1", display_name(command));
        let page = pages().expect("rendered").into_iter().find(|page| page.file == file);
        let text = page.unwrap_or_else(|| panic!("{file} is missing")).text;
        // roff writes an apostrophe and a minus with a backslash.
        String::from_utf8(text).expect("UTF-8").replace(r"\*(Aq", "'").replace('\\', "")
    }

    #[test]
    fn every_command_and_every_option_has_a_help_text_and_is_in_a_manual_page() {
        let root = documented();
        for command in all(&root) {
            let name = display_name(command);
            let page = page_of(command);
            let about = command.get_about().unwrap_or_else(|| panic!("{name} has no help text")).to_string();
            assert!(page.contains(&format!("{name} - {about}")), "{name}: {page}");
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let id = argument.get_id();
                let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
                let help = help.unwrap_or_else(|| panic!("{name}: {id} has no help text"));
                let shown = match argument.get_long() {
                    Some(long) => format!("fB--{long}fR"),
                    None => argument.get_value_names().map_or(id.to_string(), |names| names.join(" ")),
                };
                let options = page.split_once(".SH OPTIONS").expect("options").1;
                assert!(options.contains(&shown) && options.contains(&help), "{name}: {id}: {page}");
            }
            for subcommand in shown_subcommands(command) {
                assert!(page.contains(&format!("{}(1)", display_name(subcommand))), "{name}: {page}");
            }
        }
    }

    #[test]
    fn the_synopsis_names_the_values_of_arguments_as_the_help_does() {
        let root = documented();
        let page = page_of(root.find_subcommand("save").expect("a command"));
        let synopsis = page.split_once(".SH SYNOPSIS\n").expect("a synopsis").1.split(".SH").next().unwrap_or_default();
        assert!(synopsis.contains("mcr save [OPTIONS] --store <DIR> <DIR>"), "{synopsis}");
    }

    #[test]
    fn every_manual_page_has_the_exit_statuses_of_its_command() {
        let root = documented();
        for command in all(&root) {
            let page = page_of(command);
            let (_, exit) =
                page.split_once(".SH \"EXIT STATUS\"\n").unwrap_or_else(|| panic!("no exit status: {page}"));
            assert!(exit.contains("fB0fR") || exit.contains("fB1fR"), "{exit}");
        }
        let verify = root.find_subcommand("verify").expect("a command");
        let meanings = statuses(crate::exit::VERIFY);
        assert_eq!(meanings[1], ("1", "a checkpoint is damaged, or there is none".to_owned()));
        assert_eq!(meanings.len(), 4);
        assert!(page_of(verify).contains(&meanings[2].1));
    }

    #[test]
    fn every_manual_page_has_the_examples_of_its_command() {
        let root = documented();
        for command in all(&root) {
            let page = page_of(command);
            let (_, examples) = page.split_once(".SH EXAMPLES\n").unwrap_or_else(|| panic!("no example: {page}"));
            let path = display_name(command).replace('-', " ");
            let path = path.strip_prefix("mcr").expect("a command of mcr").trim_start();
            for Example { command, what } in examples_of(path) {
                assert!(examples.contains(&format!(".TP\nfB{command}fR\n{what}\n")), "{command}: {examples}");
            }
        }
    }

    #[test]
    fn manual_pages_and_completions_are_written_below_the_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        run(ManualArgs { dir: dir.path().to_owned() }).expect("written");
        let pages = std::fs::read_dir(dir.path().join("man/man1")).expect("a directory").count();
        assert_eq!(pages, all(&documented()).len());
        for (shell, file) in COMPLETIONS {
            let text = std::fs::read_to_string(dir.path().join(file)).expect("written");
            assert!(text.contains("give-up-after"), "{shell}: {text}");
        }
    }
}
