//! The configuration file. Agents and aggregators share one file.

use crate::args::{ConfigArgs, ConfigCommand};
use crate::metrics::{WrongMetrics, metrics_address};
use crate::output::{name_of, print, print_json};
use crate::refused::WrongSetting;
use anyhow::Context;
use mcr_anc::config::AncOptions;
use mcr_cnc::config::{CncOptions, load_toml};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The shipped configuration file, which has every key with its default and meaning. A test loads this file.
const DEFAULTS: &str = include_str!("../../deploy/config/mcr.toml");

/// A missing option of a command without a configuration file, and what the user can do.
pub const JOB_MISSING: (&str, &str) =
    ("--job is missing", "give --job NAME, the same name for a run and its restarts, or set MCR_JOB");
const WATCH_MISSING: (&str, &str) =
    ("--watch is missing", "give --watch DIRECTORY, where the application writes its checkpoints");
const STORE_MISSING: (&str, &str) =
    ("--store is missing", "give --store DIRECTORY, on the parallel file system, or set MCR_STORE");

/// The file as the user wrote it: `[cnc]` for compute nodes, `[anc]` for aggregator nodes. Each table may be missing.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConfigFile {
    /// The options of agents.
    pub cnc: CncOptions,
    /// The options of aggregators.
    pub anc: AncOptions,
}

impl ConfigFile {
    /// Reads a file. Unknown keys are refused. The error names the nearest known key. The variable MCR_STORE
    /// overrides the file.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let mut file: Self = load_toml(path)?;
        if let Some(store) = std::env::var_os("MCR_STORE").filter(|store| !store.is_empty()) {
            file.anc.store = store.into();
        }
        Ok(file)
    }

    /// Refuses options without a store, a directory or a job. For a command without a configuration file: the error
    /// names the missing option, and no key of a file.
    pub fn check_options(&self) -> Result<(), WrongSetting> {
        let missing = [
            (self.anc.store.as_os_str().is_empty(), STORE_MISSING),
            (self.cnc.watch.is_none(), WATCH_MISSING),
            (self.cnc.job.is_none(), JOB_MISSING),
        ];
        match missing.iter().find(|(is_missing, _)| *is_missing) {
            Some((_, (what, way_out))) => Err(WrongSetting(format!("{what}; {way_out}"))),
            None => Ok(()),
        }
    }

    /// The state file of the agent with this configuration. `job`: the name of the job on the command line.
    pub fn state_file(mut self, job: Option<String>) -> anyhow::Result<PathBuf> {
        // Only the name of the state file is needed. These values are placeholders for the check of the configuration.
        self.cnc.watch.get_or_insert_with(|| Path::new("/").to_owned());
        self.cnc.aggregators = vec!["127.0.0.1:7117".into()];
        self.cnc.job = job.or(self.cnc.job);
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let checked = self.cnc.check_with(&|name| if name == "MCR_JOB" { None } else { environment(name) })?;
        Ok(checked.state_file)
    }

    /// The address at which an agent serves metrics.
    pub fn metrics_of_agent(&self) -> Result<Option<SocketAddr>, WrongMetrics> {
        metrics_address(self.cnc.metrics.as_deref())
    }

    /// The address at which an aggregator serves metrics.
    pub fn metrics_of_aggregator(&self) -> Result<Option<SocketAddr>, WrongMetrics> {
        metrics_address(self.anc.metrics.as_deref())
    }

    /// The address at which a process with an agent and an aggregator serves metrics.
    pub fn metrics_of_both(&self) -> Result<Option<SocketAddr>, WrongMetrics> {
        Ok(self.metrics_of_aggregator()?.or(self.metrics_of_agent()?))
    }
}

pub fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Defaults { json: false } => print(DEFAULTS)?,
        ConfigCommand::Defaults { json: true } => print_json(&serde_json::json!({ "text": DEFAULTS }))?,
        ConfigCommand::Check { file, json } => {
            let tables: toml::Table = load_toml(&file)?;
            let has_daemons = ["cnc", "anc"].iter().any(|table| tables.contains_key(*table));
            if !has_daemons && tables.values().any(|value| !value.is_table()) {
                anyhow::bail!(
                    "{}: it has neither [cnc] nor [anc], so it is no file of daemons; if it has the settings of a job, mcr \
                     job show checks them, in the directory of the job",
                    file.display()
                );
            }
            let config = ConfigFile::load(&file)?;
            config.metrics_of_both().with_context(|| file.display().to_string())?;
            let mut checked = Vec::new();
            if tables.contains_key("cnc") {
                config.cnc.check().with_context(|| file.display().to_string())?;
                checked.push("[cnc]");
            }
            if tables.contains_key("anc") {
                config.anc.check().with_context(|| file.display().to_string())?;
                checked.push("[anc]");
            }
            if checked.is_empty() {
                anyhow::bail!("{}: it has neither [cnc] nor [anc]", file.display());
            }
            if json {
                let tables: Vec<&str> = checked.iter().map(|table| table.trim_matches(['[', ']'])).collect();
                print_json(&serde_json::json!({ "file": name_of(&file), "tables": tables, "good": true }))?;
                return Ok(ExitCode::SUCCESS);
            }
            print(&format!("{}: {} can be used\n", file.display(), checked.join(" and ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The socket of an aggregator that serves only the agent with this state file.
pub fn aggregator_socket_of(state_file: &Path) -> PathBuf {
    let absolute = std::path::absolute(state_file);
    let mut name = absolute.unwrap_or_else(|_| state_file.to_owned()).into_os_string();
    name.push(".aggregator.sock");
    name.into()
}
