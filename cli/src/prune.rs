//! `mcr prune`: deletes all but the newest checkpoints, never what a kept one refers to.

use crate::args::PruneArgs;
use crate::common::{one_job, open_store};
use crate::output::{print, print_json};
use mcrengine::prune::{PruneOptions, prune};
use std::process::ExitCode;

pub fn run(args: PruneArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let job = one_job(&store, &args.store)?;
    let pruned =
        prune(&store, &job, &PruneOptions { keep: args.keep, incomplete: args.incomplete, in_flight: Vec::new() })?;
    let still_needed: Vec<String> = pruned.still_needed.iter().map(|(id, group)| format!("{id}, {group}")).collect();
    if args.json {
        let removed = &pruned.checkpoints;
        print_json(
            &serde_json::json!({ "job": job, "removed": removed, "freed_bytes": pruned.freed_bytes, "still_needed": still_needed }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    for id in &pruned.checkpoints {
        print(&format!("removed {id}\n"))?;
    }
    print(&format!("{} checkpoints removed, {} freed\n", pruned.checkpoints.len(), pruned.freed_bytes))?;
    if !still_needed.is_empty() {
        print(&format!("{} containers stay, because kept checkpoints refer to them\n", still_needed.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}
