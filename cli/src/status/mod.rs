//! `mcr status`: asks aggregators which checkpoints they are saving, which are committed, and which problems they
//! have.

pub mod args;
mod asking;
mod find;
mod follow;
pub mod json;
mod live;
pub mod model;
mod screen;
mod serve;
mod view;

use crate::cert::security;
use crate::exit::Exit;
use crate::output::{counted, note, print, print_json, print_json_line};
use crate::signals::Signals;
use args::StatusArgs;
use asking::{NO_ANSWER, ONCE_MAX, REPEATED_MAX, ask_all};
use find::find;
use follow::Follower;
use mcr_proto::tls::says_down;
use model::Model;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use view::{sections, summary};

/// Maximum number of groups that are committed or abandoned, in the output for people.
const RECENT_MAX: usize = 64;

pub fn run(mut args: StatusArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let begun = runtime.block_on(begun(&args));
    if let Some(listen) = args.serve {
        args.store = args.store.or_else(|| std::env::var_os("MCR_STORE").map(PathBuf::from));
        let model = match begun {
            // With a store, the page can show the checkpoints even if no aggregator runs now.
            Err(error) if args.store.is_some() && Exit::of_error(&error) == Exit::Failed => {
                note(format!("{error:#}; the page shows only the store"));
                Model::default()
            }
            begun => begun?,
        };
        let result = runtime.block_on(serve::run(args, listen, model));
        runtime.shutdown_background(); // a thread may hang in the file system of the store
        return result;
    }
    let model = begun?;
    if args.watch && !args.json && std::io::stdout().is_terminal() {
        return live::run(args, model);
    }
    match args.watch || args.follow {
        true => runtime.block_on(print_again_and_again(args, model)),
        false => runtime.block_on(print_once(&args, model)),
    }
}

/// The aggregators to ask. The certificate is checked before any question, because its errors have other exit codes.
async fn begun(args: &StatusArgs) -> anyhow::Result<Model> {
    let found = find(args).await?;
    security(None, &found.aggregators)?;
    let mut model = Model { silent_agents: found.silent_agents, ..Model::default() };
    model.add(&found.aggregators, Instant::now());
    Ok(model)
}

async fn print_once(args: &StatusArgs, mut model: Model) -> anyhow::Result<ExitCode> {
    ask_all(&mut model, ONCE_MAX).await?;
    let now = Instant::now();
    let (asked, answered) = (model.aggregators.len(), model.answered());
    let exit = Exit::of(answered, answered < asked || !model.silent_agents.is_empty());
    if args.json {
        print_json(&json::of_model(&model, now))?;
        return Ok(exit.into());
    }
    print_tables(&model, now)?;
    if answered < asked {
        let silent = model.aggregators.iter().filter_map(|one| Some((one.address.as_str(), one.error.as_deref()?)));
        let (silent, errors): (Vec<&str>, Vec<&str>) = silent.unzip();
        let word = if exit == Exit::Partly { "PARTLY" } else { "FAILED" };
        let advice = advice_for(&errors);
        let (of, silent) = (counted(asked as u64, "aggregator"), silent.join(", "));
        print(&format!("\n{word}: {answered} of {of} answered; no answer from {silent}; {advice}\n"))?;
    }
    Ok(exit.into())
}

/// What to do about aggregators that did not answer for these reasons.
fn advice_for(errors: &[&str]) -> &'static str {
    let is_down = |error: &&str| says_down(error) || error.starts_with(NO_ANSWER);
    match (errors.iter().all(is_down), errors) {
        (true, [_]) => "look at its log, and start it again",
        (true, _) => "look at their logs, and start them again",
        (false, [_]) => "the aggregator may run: the column why says what to correct",
        (false, _) => "the aggregators may run: the column why says what to correct",
    }
}

fn print_tables(model: &Model, now: Instant) -> anyhow::Result<()> {
    for (nth, section) in sections(model, now, RECENT_MAX).iter().enumerate() {
        if nth > 0 {
            print("\n")?;
        }
        section.table.print()?;
        if let Some(note) = &section.note {
            print(&format!("{note}\n"))?;
        }
    }
    Ok(())
}

/// Prints the tables or the JSON in each interval, until a signal arrives. Used for `--watch` if standard output is
/// not a terminal, or with `--json`. With `--follow`, prints the events of the interval.
async fn print_again_and_again(args: StatusArgs, mut model: Model) -> anyhow::Result<ExitCode> {
    let (mut signals, mut follower) = (Signals::new()?, Follower::default());
    let interval = Duration::from_secs(args.interval);
    loop {
        let next = tokio::time::Instant::now() + interval;
        let asked = async {
            asking::refresh(&mut model, &args).await;
            ask_all(&mut model, REPEATED_MAX).await
        };
        tokio::select! {
            asked = asked => asked?,
            () = signals.next() => return Ok(ExitCode::SUCCESS),
        }
        let now = Instant::now();
        if args.follow {
            let news = follower.news(&model, crate::common::now_unix_ms());
            news.iter().try_for_each(print_json_line)?;
        } else if args.json {
            print_json_line(&json::of_model(&model, now))?;
        } else {
            print(&format!("{} UTC: {}\n\n", crate::output::utc(crate::common::now_unix_ms()), summary(&model)))?;
            print_tables(&model, now)?;
            print("\n")?;
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = signals.next() => return Ok(ExitCode::SUCCESS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_aggregator_that_does_not_run_is_to_be_started_again() {
        let down = "n1:7117: connection refused, no process listens there";
        assert_eq!(advice_for(&[down]), "look at its log, and start it again");
        assert_eq!(advice_for(&[down, "no answer within 10 s"]), "look at their logs, and start them again");
        let clock = "n1:7117: by the clock of the aggregator, the certificate of this process has expired; compare the \
                     clocks of both nodes (date)";
        assert_eq!(advice_for(&[clock]), "the aggregator may run: the column why says what to correct");
        assert_eq!(advice_for(&[down, clock]), "the aggregators may run: the column why says what to correct");
    }
}
