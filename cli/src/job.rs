//! `mcr job show`: the settings of the job in this directory, and where each value comes from.

use crate::args::{JobArgs, JobCommand};
use crate::output::{Table, print, print_json};
use crate::settings::{Setting, Settings};
use anyhow::bail;
use std::process::ExitCode;

pub fn run(args: JobArgs) -> anyhow::Result<ExitCode> {
    let JobCommand::Show { json } = args.command;
    let Some(settings) = Settings::find()? else {
        bail!(
            "there is no mcr.toml in this directory (or, within a SLURM job, in the directory of the job), and no \
             /etc/mcr/mcr.toml"
        );
    };
    settings.config_file()?;
    if json {
        let shown = |(key, setting): (&str, &Setting)| {
            (key.to_owned(), serde_json::json!({ "value": setting.value, "from": setting.from }))
        };
        print_json(&settings.by_key().into_iter().map(shown).collect::<serde_json::Map<_, _>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["key", "value", "from"]);
    for (key, setting) in settings.by_key() {
        table.row([key.to_owned(), setting.value.to_string(), setting.from.clone()]);
    }
    print(&table.render())?;
    Ok(ExitCode::SUCCESS)
}
