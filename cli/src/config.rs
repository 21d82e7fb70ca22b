//! The configuration file: one for agents and aggregators alike, so that a cluster needs only one.

use crate::args::{ConfigArgs, ConfigCommand};
use crate::output::print;
use anyhow::Context;
use mcr_anc::config::{AncConfig, AncOptions};
use mcr_cnc::config::{CncConfig, CncOptions, parse_toml};
use std::path::Path;
use std::process::ExitCode;

/// The file as written: `[agent]` for compute nodes, `[aggregator]` for aggregator nodes. Each may be left out.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConfigFile {
    /// What agents run with.
    pub agent: CncOptions,
    /// What aggregators run with.
    pub aggregator: AncOptions,
}

impl ConfigFile {
    /// Reads a file; unknown keys are refused, with the nearest known one.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let mut file: Self = parse_toml(&text, path)?;
        if let Some(store) = std::env::var_os("MCR_STORE") {
            file.aggregator.store = store.into();
        }
        if let Ok(job) = std::env::var("MCR_JOB") {
            file.agent.job = job;
        }
        Ok(file)
    }

    /// The checked `[agent]` table.
    pub fn agent(&self) -> anyhow::Result<CncConfig> {
        Ok(self.agent.check()?)
    }

    /// The checked `[aggregator]` table.
    pub fn aggregator(&self) -> anyhow::Result<AncConfig> {
        Ok(self.aggregator.check()?)
    }
}

pub fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Defaults => print(&toml::to_string(&ConfigFile::default())?),
        ConfigCommand::Check { file } => {
            let text = std::fs::read_to_string(&file).with_context(|| format!("{}: cannot be read", file.display()))?;
            let tables: toml::Table = parse_toml(&text, &file)?;
            let config = ConfigFile::load(&file)?;
            let mut checked = Vec::new();
            if tables.contains_key("agent") {
                config.agent().with_context(|| file.display().to_string())?;
                checked.push("[agent]");
            }
            if tables.contains_key("aggregator") {
                config.aggregator().with_context(|| file.display().to_string())?;
                checked.push("[aggregator]");
            }
            if checked.is_empty() {
                anyhow::bail!("{}: it has neither [agent] nor [aggregator]", file.display());
            }
            print(&format!("{}: {} can be used\n", file.display(), checked.join(" and ")));
        }
    }
    Ok(ExitCode::SUCCESS)
}
