//! `mcr verify`: reads checkpoints whole and proves that every file would come back.

use crate::args::VerifyArgs;
use crate::common::{one_job, open_store};
use crate::output::{human_rate, human_time, print, print_json};
use mcrengine::manifest;
use mcrengine::verify::verify;
use std::process::ExitCode;
use std::time::Instant;

pub fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let job = one_job(&store, &args.store)?;
    let ids = match &args.checkpoint {
        Some(id) => vec![id.clone()],
        None => manifest::list(&store, &job)?
            .into_iter()
            .filter(|state| state.is_complete())
            .map(|state| state.id)
            .collect(),
    };
    let (mut good, mut lines) = (true, Vec::new());
    for id in ids {
        let started = Instant::now();
        let report = verify(&store, &job, &id, args.budget_mib << 20);
        let elapsed = started.elapsed();
        good &= report.is_good();
        let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        if args.json {
            lines.push(serde_json::json!({
                "job": job, "checkpoint": id, "good": report.is_good(), "problems": problems, "groups": report.groups, "files": report.files,
                "segments": report.segments, "raw_bytes": report.raw_bytes, "stored_bytes": report.stored_bytes,
                "elapsed_ms": elapsed.as_millis() as u64,
            }));
            continue;
        }
        let verdict = if report.is_good() { "good" } else { "DAMAGED" };
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
