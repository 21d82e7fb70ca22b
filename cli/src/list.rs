//! `mcr list`: the checkpoints of a store, newest first.

use crate::args::ListArgs;
use crate::common::{no_checkpoint_of, open_store};
use crate::output::{Table, human_time, print, print_json, ratio, utc};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::store::Store;
use mcrengine::units::human_bytes;
use std::process::ExitCode;
use std::time::Duration;

pub fn run(args: ListArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let jobs = match &args.store.job {
        Some(job) => vec![job.clone()],
        None => manifest::jobs(&store)?,
    };
    let (mut lines, mut table) = (
        Vec::new(),
        Table::new(&[
            "job",
            "checkpoint",
            "state",
            ">ranks",
            ">files",
            ">bytes",
            ">stored",
            ">ratio",
            ">took",
            "saved (UTC)",
        ]),
    );
    for job in &jobs {
        let states = manifest::list(&store as &dyn Store, job)?;
        let count = states.len();
        // The place in the order of the job, the oldest being 1.
        let placed = states.into_iter().enumerate().map(|(nth, state)| (count - nth, state));
        for (place, state) in placed.filter(|(_, state)| args.all || !state.is_pruned) {
            table.row([
                job.to_string(),
                state.id.to_string(),
                match &state {
                    state if state.is_complete() && state.doubt.is_some() => "doubtful".to_owned(),
                    state if state.is_complete() && state.is_set_aside => "set aside".to_owned(),
                    state => state.condition().to_string(),
                },
                state.ranks.to_string(),
                state.files.to_string(),
                human_bytes(state.file_bytes),
                human_bytes(state.stored_bytes.0),
                format!("{:.3}", ratio(state.file_bytes, state.stored_bytes.0)),
                human_time(Duration::from_millis(state.elapsed_ms)),
                if state.created_unix_ms > 0 { utc(state.created_unix_ms) } else { "-".to_owned() },
            ]);
            lines.push(to_json(job.as_str(), place, &state));
        }
    }
    // A name that is not there beside others that are is misspelt.
    if let (Some(job), true) = (&args.store.job, lines.is_empty())
        && let Some(message) = no_checkpoint_of(&store, &args.store, job)?
        && !manifest::jobs(&store)?.is_empty()
    {
        anyhow::bail!("{message}");
    }
    if args.json {
        print_json(&lines)?;
    } else if lines.is_empty() {
        print("no checkpoint\n")?;
    } else {
        print(&table.render())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(job: &str, place: usize, state: &CheckpointState) -> serde_json::Value {
    serde_json::json!({
        "job": job,
        "checkpoint": state.id,
        "state": state.condition(),
        "complete": state.is_complete(),
        "pruned": state.is_pruned,
        "damaged": state.is_damaged,
        "unreadable": state.is_unreadable,
        "bad": state.bad,
        "problems": state.problems,
        "sequence": place,
        "incarnation": state.place.map(|place| place.incarnation),
        "written_unix_ms": state.place.map(|place| place.written_unix_ms),
        "doubt": state.doubt,
        "dead": state.is_dead,
        "set_aside": state.is_set_aside,
        "ranks": state.ranks,
        "groups": state.groups,
        "group_size": state.group_size,
        "files": state.files,
        "file_bytes": state.file_bytes,
        "raw_bytes": state.raw_bytes,
        "stored_bytes": state.stored_bytes,
        "created_unix_ms": state.created_unix_ms,
        "elapsed_ms": state.elapsed_ms,
        "scheme": state.scheme.name(),
        "profile": state.profile,
    })
}
