//! `mcr prune`: deletes all but the newest checkpoints, never what a kept one refers to.

use crate::args::PruneArgs;
use crate::common::{one_job, open_store};
use crate::output::{print, print_json};
use mcrengine::manifest::{PruneOptions, prune};
use std::process::ExitCode;

pub fn run(args: PruneArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let job = one_job(&store, &args.store)?;
    let pruned = prune(&store, &job, &PruneOptions { keep: args.keep, incomplete: args.incomplete })?;
    if args.json {
        print_json(&serde_json::json!({ "job": job, "removed": pruned.removed, "kept": pruned.kept, "kept_containers": pruned.kept_containers, "freed_bytes": pruned.freed_bytes }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for id in &pruned.removed {
        print(&format!("removed {id}\n"));
    }
    print(&format!("{} removed, {} kept, {} freed\n", pruned.removed.len(), pruned.kept.len(), mcrengine::units::human_bytes(pruned.freed_bytes)));
    if !pruned.kept_containers.is_empty() {
        print(&format!("{} containers stay, because kept checkpoints refer to them\n", pruned.kept_containers.len()));
    }
    Ok(ExitCode::SUCCESS)
}
