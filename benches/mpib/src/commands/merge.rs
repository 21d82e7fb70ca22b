//! `mpib merge`: merges the reports of several launches of one command. This command needs neither mpirun nor ranks.

use super::{Failure, FormatName};
use clap::Args;
use mpib::merge::merge;
use mpib::report::Report;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    /// Reports of the same command: files that the option -o FILE.json of the command has written
    #[arg(required = true, value_name = "FILE.json")]
    reports: Vec<PathBuf>,
    /// Format of the printed result
    #[arg(long, value_enum, default_value_t = FormatName::Table)]
    format: FormatName,
}

pub fn run(options: &Options) -> Result<String, Failure> {
    let mut reports = Vec::new();
    for path in &options.reports {
        let text = std::fs::read_to_string(path).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
        let report: Report = serde_json::from_str(&text)
            .map_err(|e| Failure::Input(format!("{}: not a report of mpib: {e}", path.display())))?;
        reports.push((path.display().to_string(), report));
    }
    let merged = merge(&reports).map_err(Failure::input)?;
    Ok(match options.format {
        FormatName::Table => merged.table(),
        FormatName::Csv => merged.csv(),
        FormatName::Json => serde_json::to_string_pretty(&merged).map_err(Failure::input)? + "\n",
    })
}
