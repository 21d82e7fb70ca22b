//! `mcr verify`: reads checkpoints whole and proves that every file would come back.

use crate::args::VerifyArgs;
use crate::common::{one_job, open_store, threads_of};
use crate::output::{Progress, human_rate, human_time, print, print_json};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::verify::{VerifyOptions, verify};
use std::process::ExitCode;
use std::time::Instant;

pub fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let job = one_job(&store, &args.store)?;
    let states = match &args.checkpoint {
        Some(id) => vec![manifest::state(&store, &job, id)?],
        None => manifest::list(&store, &job)?
            .into_iter()
            .filter(|state| state.is_complete() || ((state.is_damaged || state.is_unreadable) && !state.is_pruned))
            .collect(),
    };
    if let (Some(id), [state]) = (&args.checkpoint, states.as_slice())
        && state.is_pruned
    {
        anyhow::bail!(
            "{id} was removed by prune; containers that other checkpoints refer to are all that is left of it"
        );
    }
    if states.is_empty() && !args.json {
        print("no complete checkpoint\n");
    }
    let (mut good, mut lines) = (true, Vec::new());
    for CheckpointState { id, raw_bytes, is_unreadable, .. } in states {
        let started = Instant::now();
        let progress = Progress::new("verifying", args.json);
        progress.message(id.to_string());
        progress.add(raw_bytes.0);
        let options = VerifyOptions { cache_bytes: args.budget_mib << 20, threads: threads_of(args.threads) };
        let report = verify(&store, &job, &id, options, &|raw_bytes| progress.done(raw_bytes.0));
        drop(progress);
        let elapsed = started.elapsed();
        good &= report.is_good();
        let mut problems: Vec<String> = (report.problems.iter())
            .map(|problem| match problem.group {
                Some(group) => format!("group-{:04}: {}", group.0, problem.what),
                None => problem.what.clone(),
            })
            .collect();
        // One damaged segment is found again by every file that it holds bytes of.
        problems.dedup();
        if args.json {
            lines.push(serde_json::json!({
                "job": job, "checkpoint": id, "good": report.is_good(), "problems": problems, "groups": report.groups, "files": report.files,
                "segments": report.segments, "raw_bytes": report.raw_bytes, "stored_bytes": report.stored_bytes,
                "elapsed_ms": elapsed.as_millis() as u64,
            }));
            continue;
        }
        let verdict = match (report.is_good(), is_unreadable) {
            (true, _) => "good",
            (false, true) => "CANNOT BE READ just now",
            (false, false) => "DAMAGED",
        };
        print(&format!(
            "{id}: {verdict}; {} files of {} groups, {} segments, {} in {} ({})\n",
            report.files,
            report.groups,
            report.segments,
            mcrengine::units::human_bytes(report.raw_bytes.0),
            human_time(elapsed),
            human_rate(report.raw_bytes.0, elapsed),
        ));
        problems.iter().for_each(|problem| print(&format!("  {problem}\n")));
    }
    if args.json {
        print_json(&lines)?;
    } else if !good {
        print("`mcr restart` passes over a damaged checkpoint and restores the newest good one\n");
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
