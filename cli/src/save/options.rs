//! Converts the arguments of `mcr save` to options.

use crate::advice::Advised;
use crate::args::SaveArgs;
use crate::common::threads_of;
use crate::output::name_of;
use anyhow::{Context, bail};
use mcr_anc::flush::{FlushOptions, least_budget};
use mcrengine::ids::JobId;
use mcrengine::parity::ParityPercent;
use mcrengine::plan::PlanOptions;
use std::num::NonZeroU32;
use std::path::Path;

/// The job to save: the job that the user named, or the name of the directory.
pub fn job_of(args: &SaveArgs, dir: &Path) -> anyhow::Result<JobId> {
    if let Some(job) = &args.store.job {
        return Ok(job.clone());
    }
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.parse::<JobId>().map_err(|error| {
        let what = format!("{}: the name of this directory is not a valid job name: {error}", name_of(dir));
        Advised::new(what, "give a name with --job").at(dir).into()
    })
}

/// The memory for coding in MiB: the value that the user gave, or the default of the profile.
pub fn budget_mib(args: &SaveArgs) -> u64 {
    args.budget_mib.unwrap_or_else(|| args.profile.budget_mib())
}

/// The options of a flush, from the arguments.
pub fn flush_options(args: &SaveArgs) -> anyhow::Result<FlushOptions> {
    let block_bytes = NonZeroU32::new(args.block_bytes).context("--block-bytes must be at least 1")?;
    let budget_bytes = budget_mib(args).saturating_mul(1 << 20);
    let plan = PlanOptions { scheme: args.scheme, block_bytes, ..PlanOptions::of(&args.profile, budget_bytes) };
    let least_mib = least_budget(plan.segment_bytes, &args.profile).div_ceil(1 << 20);
    if budget_mib(args) < least_mib {
        bail!("--budget-mib is {}; it must be at least {least_mib}", budget_mib(args));
    }
    Ok(FlushOptions {
        plan,
        profile: args.profile.clone(),
        verify: !args.no_verify,
        reuse: !args.no_reuse,
        whole_every: if args.no_time { 1 } else { args.whole_every },
        store_bytes_per_s: args.store_rate.map(|mib| mib << 20),
        parity: ParityPercent::new(args.parity_percent),
        threads: threads_of(args.threads),
        ..FlushOptions::default()
    })
}
