//! `mcr`: the binary of mcrEngine, which has all commands and both daemons.

/// Replaces the standard macro. The standard macro panics if standard error cannot be written, and prints control
/// characters of names.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::tell_line(&format!($($text)*)) };
}

mod advice;
mod advise;
mod args;
mod bench;
mod cert;
mod child;
mod common;
mod config;
mod copy;
mod counted;
mod daemon;
mod decide;
mod doubted;
mod exit;
mod exporter;
mod flush;
mod found;
mod gate;
mod gates;
mod globs;
mod guard;
mod help;
mod http;
mod inside;
mod job;
mod keep_args;
mod layouts;
mod left_running;
mod list;
mod local;
mod logging;
mod manual;
mod mendable;
mod metrics;
mod misnamed;
mod mount;
mod names;
mod node;
mod node_agent;
mod node_socket;
mod not_read;
mod orphan;
mod ours;
mod output;
mod overlooked;
mod page;
mod placement;
mod places;
mod plot;
mod prepare;
mod prune;
mod question;
mod ranks;
mod refused;
mod remembered;
mod remote;
mod reporter;
mod restart;
mod restorers;
mod save;
mod series;
mod settings;
mod show;
mod signals;
mod standing;
mod stats;
mod status;
mod store_args;
mod uncommitted;
mod verify;
mod which;
mod worker;

use advice::Advised;
use args::{Cli, Command};
use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use exit::Exit;
use mcr_anc::config::AncConfigError;
use mcr_cnc::config::ConfigError;
use mcr_cnc::layout::LayoutError;
use metrics::WrongMetrics;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use output::NotPrinted;
use settings::{Facts, Settings};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // With this argument, the process reads the structure of HDF5 files for its parent process. This check must come
    // first.
    if std::env::args().nth(1).as_deref() == Some(mcr_cnc::h5::WORKER_ARGUMENT) {
        return mcr_cnc::h5::worker_main();
    }
    survive_file_size_limit();
    raise_open_files();
    let cli = match parse(help::command()) {
        Ok(cli) => Ok(cli),
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => match settings() {
            Ok(Some(settings)) => parse_with(&settings),
            Ok(None) => Err(error),
            Err(error) => return failed(&error, Exit::Failed),
        },
        Err(error) => Err(error),
    };
    let cli = match cli {
        Ok(cli) => cli,
        // clap would exit with 2. But exit status 2 of `mcr restart` means that an older checkpoint was restored.
        Err(error) => {
            if error.use_stderr() && wants_json() {
                output::tell_json(&advice::Told::of_command_line(&error));
            }
            if error.use_stderr() {
                // An error that cannot be printed is still an error.
                let _ = match advice::plain_command_line(&error) {
                    Some(text) => std::io::stderr().write_all(text.as_bytes()),
                    None => error.print(),
                };
                return Exit::Failed.into();
            }
            let print = || error.print().and_then(|()| std::io::stdout().flush()).map_err(NotPrinted);
            return match output::check_out().and_then(|()| print()) {
                Ok(()) => Exit::Done.into(),
                Err(why) => failed(&why.into(), Exit::Failed),
            };
        }
    };
    output::set_verbosity(cli.verbosity.quiet, cli.verbosity.verbose);
    let is_daemon = matches!(cli.command, Command::Cnc(_) | Command::Anc(_) | Command::Run(_) | Command::Gate(_));
    if !is_daemon && !matches!(cli.command, Command::Node(_) | Command::Worker(_) | Command::Metrics(_)) {
        logging::start_logging_of_command();
    }
    let result = match cli.command {
        Command::Save(args) => save::run(args),
        Command::Restart(args) => restart::run(args),
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Ls(args) => inside::ls(args),
        Command::Cat(args) => inside::cat(args),
        Command::Extract(args) => inside::extract(args),
        Command::Diff(args) => inside::diff(args),
        Command::Mount(args) => mount::run(args),
        Command::Prune(args) => prune::run(args),
        Command::Copy(args) => copy::run(args),
        Command::Cnc(args) => daemon::run_cnc(args),
        Command::Anc(args) => daemon::run_anc(args),
        Command::Run(args) => daemon::run_both(args),
        Command::Flush(args) => flush::run(args),
        Command::Status(args) => status::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Advise(args) => advise::run(args),
        Command::Layouts(args) => layouts::run(args),
        Command::Cert(args) => cert::run(args.command),
        Command::Config(args) => config::run(args),
        Command::Job(args) => job::run(args),
        Command::Node(args) => node::run(args),
        Command::Gate(args) => gate::run(args),
        Command::Metrics(args) => exporter::run(args),
        Command::Worker(args) => worker::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Manual(args) => manual::run(args),
    };
    result.unwrap_or_else(|error| {
        let exit = match Exit::of_error(&error) {
            // A supervisor must not start the daemon again.
            Exit::Failed if is_daemon && is_configuration(&error) => Exit::Configuration,
            exit => exit,
        };
        failed(&error, exit)
    })
}

/// Reports the error that ended the command, also as JSON if the user wants JSON.
fn failed(error: &anyhow::Error, exit: Exit) -> ExitCode {
    if error.downcast_ref::<NotPrinted>().is_some_and(NotPrinted::has_no_reader) {
        return exit.into();
    }
    output::tell_error(error);
    if wants_json() {
        output::tell_json(&advice::Told::new(error, exit as u8));
    }
    exit.into()
}

/// Whether the command line has the option --json, also if the command line is wrong otherwise. The command after
/// `--` does not count.
fn wants_json() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

/// Whether the error is about a file or a value of the configuration.
fn is_configuration(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<ConfigError>()
            || cause.is::<AncConfigError>()
            || cause.is::<WrongMetrics>()
            || cause.is::<LayoutError>()
            || cause.downcast_ref::<Advised>().is_some_and(Advised::is_setting)
    })
}

/// Finds the settings of the job in this directory. Creates the store if the user may create it.
fn settings() -> anyhow::Result<Option<Settings>> {
    let settings = Settings::find(&Facts::of_this_process())?;
    if let Some(settings) = &settings {
        settings.check_job()?;
        settings.create_store()?;
    }
    Ok(settings)
}

/// Parses the command line again, with defaults from the settings of the job.
fn parse_with(settings: &Settings) -> Result<Cli, clap::Error> {
    // Name and default of an argument. The text is leaked, because it must live as long as the process.
    let of = |arg: &'static str, table, key| settings.text(table, key).map(|text| (arg, vec![leak(text)]));
    let listed = |arg: &'static str, table, key| {
        let all: Vec<&'static str> = settings.texts(table, key).into_iter().map(leak).collect();
        (!all.is_empty()).then_some((arg, all))
    };
    let known: Vec<_> = [
        of("store", "anc", "store"),
        of("job", "cnc", "job"),
        of("to", "cnc", "watch"),
        listed("layout", "cnc", "layout"),
        listed("aggregators", "cnc", "aggregators"),
        own_aggregator(settings).map(|address| ("aggregators", vec![leak(&address)])),
        settings.is_true("anc", "shared-store").then(|| ("shared_store", vec!["true"])),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut command = help::command();
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |mut sub| {
            for (arg, values) in &known {
                // A restart reads through aggregators only if the user asks for this.
                let is_needed = sub.get_arguments().any(|a| a.get_id() == arg)
                    && (*arg != "aggregators" || sub.get_name() == "status");
                if is_needed {
                    sub = sub.mut_arg(arg, |a| a.required(false).default_values(values.clone()));
                }
            }
            sub
        });
    }
    parse(command)
}

fn parse(mut command: clap::Command) -> Result<Cli, clap::Error> {
    let matches = command.try_get_matches_from_mut(std::env::args_os()).map_err(|error| with_tip(error, &command))?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Adds a tip to the error about an unknown argument: to the command of `mcr run` without `--` before it, and to an
/// option with one wrong, missing, additional or transposed letter. The parser compares options differently: for
/// `--jbo` it suggests `--json`.
fn with_tip(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    if let (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    {
        let tips: Vec<_> = missing.iter().filter_map(|argument| tip_for(argument)).map(Into::into).collect();
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
        return error;
    }
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return error;
    };
    let words = || std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    if !word.starts_with('-') && words().next().is_some_and(|name| name == "run") {
        let tip = format!("write -- before the command: mcr run [OPTIONS] -- {word} ...");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    } else if let Some(option) = word.strip_prefix("--") {
        let used = words().try_fold(command, |used, word| match used.find_subcommand(&word) {
            Some(sub) => Ok(sub),
            None => Err(used),
        });
        let used = used.unwrap_or_else(|used| used);
        let known = used.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long);
        let near = known.filter(|known| known.len() > 2).find(|known| strsim::osa_distance(option, known) == 1);
        if let Some(near) = near.map(|near| format!("--{near}")) {
            error.insert(ContextKind::SuggestedArg, ContextValue::String(near));
        }
    }
    error
}

/// How else a missing argument can be given. `argument` is its text in the usage of a command.
fn tip_for(argument: &str) -> Option<&'static str> {
    if argument.starts_with("--store ") {
        return Some("name the store with --store, with the variable MCR_STORE, or with the key store in mcr.toml");
    }
    argument.starts_with("<ID>").then_some("name checkpoints, such as latest, or copy all of them with --all")
}

/// The address of the aggregator that runs together with the agent of this node, if no aggregator is configured.
fn own_aggregator(settings: &Settings) -> Option<String> {
    if !settings.texts("cnc", "aggregators").is_empty() {
        return None;
    }
    let state_file = settings.config_file().and_then(|file| file.state_file(None)).ok()?;
    let socket = config::aggregator_socket_of(&state_file);
    socket.exists().then(|| mcr_proto::unix::address_of(&socket))
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// Ignores SIGXFSZ. A write beyond the file size limit (`ulimit -f`) then fails with an error, which is reported.
/// Otherwise the signal would end the process silently.
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
        // An error is ignored: a lack of descriptors is reported when a file cannot be opened.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
