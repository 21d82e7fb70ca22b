//! The settings of a job: the cluster's file, then the user's file `mcr.toml`, then the job's comment, then
//! variables.
//!
//! The cluster's file is `/etc/mcr/mcr.toml` and belongs to the administrator. The cluster's file has the tables
//! `[cnc]` and `[anc]` of every configuration file, and a table `[limits]`, which limits the values of the user's
//! file and of the comment. The user's file is `mcr.toml` in the directory of the job. The user's file has a few keys
//! without a table ([`UserFile`]). The comment is the text of SLURM's `sbatch --comment` ([`comment::JobComment`]).
//! The user's file overrides the cluster's file, the comment overrides both files, and variables override the
//! comment. All commands resolve the settings here, so a restart finds the store to which the agents save.

use self::comment::COMMENT;
use crate::advice::{Advised, of_layout};
use crate::config::ConfigFile;
use crate::metrics::metrics_address;
use anyhow::{Context, bail};
use mcr_anc::config::Listen;
use mcr_cnc::config::{ConfigError, is_host_and_port, load_found_toml, load_toml, nearest, plain_words};
use mcr_cnc::state::{AgentState, Loaded};
use mcr_proto::GATES_MAX;
use mcrengine::ids::JobId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

mod comment;
mod facts;
mod gate;

pub use comment::JobComment;
pub use facts::Facts;
pub use gate::GateOptions;
pub use mcr_cnc::layout::of_job::USER_FILE;

/// Default path of the cluster's file. The variable `MCR_CLUSTER` names another file.
pub const CLUSTER_FILE: &str = "/etc/mcr/mcr.toml";
/// Source of a value that is set in no file and no variable.
pub const DEFAULT: &str = "default";

/// Defines the user's file, and the table of each key.
macro_rules! user_file {
    ($($(#[$doc:meta])* $key:ident: $($table:literal)+,)*) => {
        /// The user's file. Only the cluster's file may have other keys.
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        struct UserFile {
            $($(#[$doc])* $key: Option<Value>,)*
        }

        impl UserFile {
            /// All keys, with the tables to which they belong.
            const KEYS: &[(&str, &[&str])] = &[$((stringify!($key), &[$($table),+]),)*];

            fn values(self) -> Vec<(String, Value)> {
                let all = [$((stringify!($key), self.$key),)*];
                all.into_iter().filter_map(|(key, value)| Some((key.replace('_', "-"), value?))).collect()
            }
        }
    };
}

user_file! {
    /// Name of the job, which may contain variables, see [`facts::Facts::expand`].
    job: "cnc",
    /// The watched directory, relative to the directory of the file. The path may contain variables.
    watch: "cnc",
    /// The directory of the containers. The path may contain variables.
    store: "anc",
    /// Whether a group shares the store.
    shared_store: "anc",
    layout: "cnc",
    ranks: "cnc" "anc",
    local_ranks: "cnc",
    group_size: "cnc" "anc",
    delete_after_commit: "cnc",
    /// Number of aggregators of a job with several nodes.
    aggregators: "node",
    quiet_ms: "cnc",
    scan_quiet_ms: "cnc",
    doubt_quiet_ms: "cnc",
    checkpoint_quiet_ms: "cnc",
    rescan_seconds: "cnc",
    profile: "anc",
    scheme: "anc",
    parity_percent: "anc",
    keep: "anc",
    keep_within: "anc",
    keep_hourly: "anc",
    keep_daily: "anc",
    keep_weekly: "anc",
    keep_monthly: "anc",
}

/// Keys whose values may contain variables.
const EXPANDED: [(&str, &str); 4] = [("cnc", "job"), ("cnc", "watch"), ("cnc", "state-file"), ("anc", "store")];

/// The cluster's file.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ClusterFile {
    /// Whether agents and aggregators on different nodes use TLS. Default: `on`.
    tls: Tls,
    cnc: Table,
    anc: Table,
    /// See [`NodeOptions`].
    node: Table,
    /// See [`GateOptions`].
    gate: GateOptions,
    /// Limits for keys of the user's file: the largest number, or the list of permitted texts. A text `abc*` permits
    /// every text that begins with `abc`.
    limits: Table,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Tls {
    #[default]
    On,
    Off,
}

/// The path of the cluster's file, which need not exist.
pub fn cluster_path() -> PathBuf {
    std::env::var_os("MCR_CLUSTER").map_or_else(|| PathBuf::from(CLUSTER_FILE), PathBuf::from)
}

/// The path of the cluster's file, if the file exists.
fn cluster_file() -> Option<PathBuf> {
    Some(cluster_path()).filter(|path| path.exists())
}

/// Whether agents and aggregators on different nodes use TLS. Only the cluster's file can switch TLS off.
pub fn cluster_has_tls() -> anyhow::Result<bool> {
    let Some(file) = cluster_file() else { return Ok(true) };
    check_owner(&file)?;
    Ok(load_toml::<ClusterFile>(&file)?.tls == Tls::On)
}

/// The options of gates. Only the cluster's file can set these options.
pub fn gate_options() -> anyhow::Result<GateOptions> {
    let Some(file) = cluster_file() else { return Ok(GateOptions::default()) };
    check_owner(&file)?;
    load_toml::<ClusterFile>(&file)?.gate.check().with_context(|| format!("{}: [gate]", file.display()))
}

/// The address at which `mcr node` serves metrics. Only the cluster's file can set this address.
pub fn node_metrics() -> anyhow::Result<Option<SocketAddr>> {
    let Some(file) = cluster_file() else { return Ok(None) };
    let mut settings = Settings::default();
    settings.add_cluster(&file)?;
    Ok(metrics_address(settings.node_options()?.metrics.as_deref())?)
}

/// A value, and the file or variable that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub value: Value,
    pub from: String,
}

/// The settings of a job.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The table (`cnc`, `anc`, `node` or `job`) and the key of each value.
    values: BTreeMap<(String, String), Setting>,
}

impl Settings {
    /// The configuration for this process: the file that [`Settings::find`] finds. `None` if there is none.
    pub fn find_config() -> anyhow::Result<Option<ConfigFile>> {
        Self::find(&Facts::of_this_process())?.map(|settings| settings.config_file()).transpose()
    }

    /// Finds and resolves the settings. `None` if there is neither a cluster's file nor a user's file nor a comment.
    pub fn find(facts: &Facts) -> anyhow::Result<Option<Self>> {
        let cluster = cluster_file();
        let user = facts.directories.iter().map(|dir| dir.join(USER_FILE)).find(|file| file.exists());
        if cluster.is_none() && user.is_none() && facts.comment.is_none() {
            return Ok(None);
        }
        Self::resolve(cluster.as_deref(), user.as_deref(), facts).map(Some)
    }

    fn resolve(cluster: Option<&Path>, user: Option<&Path>, facts: &Facts) -> anyhow::Result<Self> {
        let mut settings = Self::default();
        // A requeued job keeps its number. A job that is submitted again gets a new number, so its checkpoints are
        // found only if the file names the job.
        if facts.is_job() {
            settings.set("cnc", "job", "%u-%j".into(), DEFAULT);
        }
        // Without a user's file and a comment, the current directory may be any directory, so files are not restored
        // into it.
        if user.is_some() || facts.comment.is_some() {
            settings.set("cnc", "watch", ".".into(), DEFAULT);
        }
        let mut limits = Table::new();
        if let Some(file) = cluster {
            limits = settings.add_cluster(file)?;
        }
        let of_comment = facts.comment.as_ref().map(|comment| Path::new(&comment.work_dir));
        let directory = user.and_then(Path::parent).or(of_comment).map_or_else(|| facts.directory(), Path::to_owned);
        if let Some(file) = user {
            settings.add_user(file, &limits)?;
        }
        if let Some(comment) = &facts.comment {
            settings.add_comment(&JobComment::parse(&comment.words)?, &limits)?;
        }
        for (table, key, variable) in [("anc", "store", "MCR_STORE"), ("cnc", "job", "MCR_JOB")] {
            if let Some(value) = facts.variable(variable) {
                settings.set(table, key, value.into(), variable);
            }
        }
        settings.expand(facts, &directory)?;
        Ok(settings)
    }

    /// The settings of an aggregator for a job on other nodes. `text` has the keys of a user's file that concern
    /// aggregators, with their values. `facts` is about the user. Fails if the cluster's file of this node does not
    /// permit a value.
    pub fn of_gate(text: &str, facts: &Facts) -> anyhow::Result<ConfigFile> {
        const FROM: &str = "the settings of the agent";
        let mut settings = Self::default();
        let limits = cluster_file().map_or(Ok(Table::new()), |file| settings.add_cluster(&file))?;
        let own_store = settings.text("anc", "store").and_then(|store| facts.expand(store).ok());
        let values: Table = text.parse().map_err(|_| anyhow::anyhow!("{FROM} are not valid TOML"))?;
        for (key, value) in values {
            if !tables_of(&key).is_some_and(|tables| tables.contains(&ANC)) {
                bail!("{FROM} have the key {key:?}, which an agent may not set");
            }
            match (key.as_str(), value.as_str()) {
                ("store", None) => bail!("{FROM}: the value of store is not a text; write it in quotes"),
                ("store", Some(store)) if !Path::new(store).is_absolute() => {
                    bail!("{FROM}: store = {store:?} is a relative path");
                }
                // A store from the cluster's file needs no permission.
                ("store", Some(store)) if Some(store) == own_store.as_deref() => {}
                _ => check_limit(&key, &value, FROM, &expanded(&limits, facts))?,
            }
            settings.set(ANC, &key, value, FROM);
        }
        if settings.text(ANC, "store").is_none() {
            bail!("{FROM} name no store");
        }
        settings.config_file().context(FROM)
    }

    /// The settings of an aggregator as text for [`Settings::of_gate`].
    pub fn for_gate(&self) -> String {
        let of_anc = self
            .values
            .iter()
            .filter(|((table, key), _)| table == ANC && tables_of(key).is_some_and(|tables| tables.contains(&ANC)));
        let table: Table = of_anc.map(|((_, key), setting)| (key.clone(), setting.value.clone())).collect();
        table.to_string()
    }

    /// Source of the name of the job.
    pub fn job_is_from(&self) -> Option<&str> {
        self.values.get(&("cnc".to_owned(), "job".to_owned())).map(|setting| setting.from.as_str())
    }

    fn set(&mut self, table: &str, key: &str, value: Value, from: &str) {
        self.values.insert((table.to_owned(), key.to_owned()), Setting { value, from: from.to_owned() });
    }

    fn add_cluster(&mut self, file: &Path) -> anyhow::Result<Table> {
        check_owner(file)?;
        let ClusterFile { tls: _, gate: _, cnc, anc, node, limits } = load_toml(file)?;
        for key in limits.keys() {
            if tables_of(key).is_none() {
                let known: Vec<String> = UserFile::KEYS.iter().map(|(key, _)| key.replace('_', "-")).collect();
                let near = nearest(key, &known).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                bail!("{}: [limits] has the key {key:?}, which is no key of the user's file{near}", file.display());
            }
        }
        for (table, values) in [("cnc", cnc), ("anc", anc), (NODE, node)] {
            values.into_iter().for_each(|(key, value)| self.set(table, &key, value, &file.display().to_string()));
        }
        self.config_file()?;
        self.check_node_options(&file.display().to_string())?;
        Ok(limits)
    }

    fn add_user(&mut self, file: &Path, limits: &Table) -> anyhow::Result<()> {
        let from = file.display().to_string();
        let text: Table = load_found_toml(file)?;
        // A file with the tables of agents and aggregators is a whole configuration file.
        if text.contains_key("cnc") || text.contains_key("anc") {
            let _: ConfigFile = load_found_toml(file)?;
            for (table, values) in text {
                let Value::Table(values) = values else { continue };
                for (key, value) in values {
                    check_limit(&key, &value, &from, limits)?;
                    self.set(&table, &key, value, &from);
                }
            }
            return Ok(());
        }
        let values = load_found_toml::<UserFile>(file)?.values();
        values.into_iter().try_for_each(|(key, value)| self.set_by_user(&key, value, &from, limits))?;
        self.config_file()?;
        self.check_node_options(&from)
    }

    fn add_comment(&mut self, comment: &JobComment, limits: &Table) -> anyhow::Result<()> {
        for (key, value) in [("job", &comment.job), ("watch", &comment.watch)] {
            if let Some(value) = value {
                self.set_by_user(key, value.as_str().into(), COMMENT, limits)?;
            }
        }
        if comment.is_off {
            self.set(JOB, "off", true.into(), COMMENT);
        }
        Ok(())
    }

    fn set_by_user(&mut self, key: &str, value: Value, from: &str, limits: &Table) -> anyhow::Result<()> {
        check_limit(key, &value, from, limits)?;
        if key == "aggregators" && !self.texts("cnc", key).is_empty() {
            let what = format!("{key} = {value}, but the cluster's file names the aggregators");
            return Err(wrong(from, from, &what, "remove the line"));
        }
        for table in tables_of(key).unwrap_or_default() {
            self.set(table, key, value.clone(), from);
        }
        Ok(())
    }

    fn expand(&mut self, facts: &Facts, directory: &Path) -> anyhow::Result<()> {
        for (table, key) in EXPANDED {
            let Some(setting) = self.values.get_mut(&(table.to_owned(), key.to_owned())) else { continue };
            let Value::String(text) = &setting.value else { continue };
            let mut text = facts.expand(text).with_context(|| format!("{}: {key} = {text:?}", setting.from))?;
            if key == "watch" {
                let watched: PathBuf = directory.join(text).components().collect();
                let Some(path) = watched.to_str() else {
                    bail!("the watched directory {} has a name that is not UTF-8; rename it", watched.display());
                };
                text = path.to_owned();
            } else if key == "store" && !Path::new(&text).is_absolute() {
                let what = format!("store = {text:?} is a relative path");
                return Err(wrong(&place_of(table, key, setting), &setting.from, &what, "write it from the root"));
            }
            setting.value = Value::String(text);
        }
        Ok(())
    }

    /// Creates the directory of the store, with mode 0700, if the user may create it.
    pub fn create_store(&self) -> anyhow::Result<()> {
        let Some(store) = self.text("anc", "store").map(Path::new) else { return Ok(()) };
        if store.exists() || !self.may_create_store() {
            return Ok(());
        }
        std::fs::DirBuilder::new().mode(0o700).create(store).with_context(|| store.display().to_string())
    }

    /// Whether the directory of the store may be created: a file names the store, the parent directory belongs to the
    /// user, and nothing was ever saved to the store. If the agent's state file names a committed checkpoint, the store
    /// existed before, and now its file system is probably not mounted.
    pub fn may_create_store(&self) -> bool {
        let store = self.values.get(&(ANC.to_owned(), "store".to_owned()));
        let of_file = store.filter(|store| Path::new(&store.from).is_absolute()).and_then(|store| store.value.as_str());
        of_file.is_some_and(|store| may_create(Path::new(store))) && !self.has_saved()
    }

    /// Whether the agent's state file on this node names a committed checkpoint of the job.
    fn has_saved(&self) -> bool {
        let job = self.text("cnc", "job").and_then(|job| job.parse::<JobId>().ok());
        let file = self.config_file().and_then(|file| file.state_file(None)).ok();
        let state = job.zip(file).map(|(job, file)| AgentState::load(&file, &job));
        matches!(state, Some(Loaded::Found(AgentState { committed: Some(_), .. })))
    }

    /// A value as text. `None` if the value is not set or is not a text.
    pub fn text(&self, table: &str, key: &str) -> Option<&str> {
        self.values.get(&(table.to_owned(), key.to_owned()))?.value.as_str()
    }

    /// Whether a value is `true`.
    pub fn is_true(&self, table: &str, key: &str) -> bool {
        self.values
            .get(&(table.to_owned(), key.to_owned()))
            .is_some_and(|setting| setting.value == Value::Boolean(true))
    }

    /// A value that is a list of texts, or one text.
    pub fn texts(&self, table: &str, key: &str) -> Vec<&str> {
        match self.values.get(&(table.to_owned(), key.to_owned())).map(|setting| &setting.value) {
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(one)) => vec![one],
            _ => Vec::new(),
        }
    }

    /// All values, sorted by key. A key with different values in several tables is shown as `TABLE.KEY`.
    pub fn by_key(&self) -> BTreeMap<String, &Setting> {
        let differs = |key: &str, setting: &Setting| {
            self.values.iter().any(|((_, other), value)| other == key && value != setting)
        };
        let shown = |((table, key), setting): (&(String, String), _)| match differs(key, setting) {
            true => (format!("{table}.{key}"), setting),
            false => (key.clone(), setting),
        };
        self.values.iter().map(shown).collect()
    }

    /// Where the aggregators run for a job that `mcr node` saves. The number of nodes of the job may not be known
    /// yet.
    pub fn aggregator_places(&self) -> Setting {
        let listed = |table: &str, key| {
            let setting = self.values.get(&(table.to_owned(), String::from(key)))?;
            let all = self.texts(table, key);
            (!all.is_empty()).then(|| (all.join(" "), setting.from.clone()))
        };
        let (value, from) = match (listed("cnc", "aggregators"), listed(NODE, "gates")) {
            (Some((all, from)), _) => (format!("configured: {all}"), from),
            (None, Some((all, from))) => (format!("gates: {all}"), from),
            (None, None) => ("nodes of the job".to_owned(), "default".to_owned()),
        };
        Setting { value: Value::String(value), from }
    }

    /// The options of the aggregators that run on nodes of the job.
    pub fn node_options(&self) -> anyhow::Result<NodeOptions> {
        self.parsed::<OfNode>(&[NODE])?.node.check()
    }

    /// `from`: the file that was read last.
    fn check_node_options(&self, from: &str) -> anyhow::Result<()> {
        self.parsed::<OfNode>(&[NODE])?.node.check().map(drop).with_context(|| from.to_owned())
    }

    /// The options of agents and aggregators. The types of all values are checked, but not the values, see
    /// [`Settings::checked`].
    pub fn config_file(&self) -> anyhow::Result<ConfigFile> {
        self.parsed(&["cnc", ANC])
    }

    /// The values of these tables. The error names the first key whose value has a wrong type.
    fn parsed<T: serde::de::DeserializeOwned>(&self, tables: &[&str]) -> anyhow::Result<T> {
        let values = || self.values.iter().filter(|((table, _), _)| tables.contains(&table.as_str()));
        let mut file = Table::new();
        for ((table, key), setting) in values() {
            if let Value::Table(table) = file.entry(table).or_insert_with(|| Value::Table(Table::new())) {
                table.insert(key.to_owned(), setting.value.clone());
            }
        }
        let error = match file.try_into::<T>() {
            Ok(parsed) => return Ok(parsed),
            Err(error) => error,
        };
        // The error does not name the key. Therefore each key is parsed alone.
        for ((table, key), setting) in values() {
            let value = Table::from_iter([(key.clone(), setting.value.clone())]);
            if let Err(error) = Table::from_iter([(table.clone(), Value::Table(value))]).try_into::<T>() {
                let what = format!("{key}: {}", plain_words(error.message()));
                let way_out = "correct the value; mcr config defaults prints all keys with their values";
                return Err(wrong(&place_of(table, key, setting), &setting.from, &what, way_out));
            }
        }
        bail!(plain_words(error.message()))
    }

    /// Refuses a name that no job can have.
    pub fn check_job(&self) -> anyhow::Result<()> {
        let Some(setting) = self.values.get(&("cnc".to_owned(), "job".to_owned())) else { return Ok(()) };
        match setting.value.as_str().map(str::parse::<JobId>) {
            Some(Err(error)) => {
                let what = format!("job is {}", setting.value);
                let way_out = format!("it names a directory in the store: {error}");
                Err(wrong(&place_of("cnc", "job", setting), &setting.from, &what, &way_out))
            }
            _ => Ok(()),
        }
    }

    /// The options of agents and aggregators like [`Settings::config_file`]. Also refuses wrong values. A missing
    /// value is no error, because the command line may set it.
    pub fn checked(&self) -> anyhow::Result<ConfigFile> {
        let file = self.config_file()?;
        let (mut cnc, mut anc) = (file.cnc.clone(), file.anc.clone());
        cnc.job.get_or_insert_with(|| "job".into());
        cnc.watch.get_or_insert_with(|| "/".into());
        if cnc.aggregators.is_empty() {
            cnc.aggregators = vec!["127.0.0.1:7117".into()];
        }
        if anc.store.as_os_str().is_empty() {
            anc.store = "/".into();
        }
        let of_agent = match cnc.check() {
            Err(ConfigError::Value { key, value, way_out }) => Some(("cnc", key, format!("is {value}"), way_out)),
            Err(ConfigError::Layout(error)) => {
                Some(("cnc", "layout", format!("cannot be used: {error}"), of_layout(&error)))
            }
            _ => None,
        };
        let of_aggregator =
            anc.check().err().map(|error| (ANC, error.key, format!("is {}", error.found), error.expected));
        for (table, key, what, way_out) in [of_agent, of_aggregator].into_iter().flatten() {
            let key = key.strip_prefix("anc.").unwrap_or(key);
            let of_file = key.split('.').next().unwrap_or(key);
            // A value from another variable is not one of these settings.
            let Some(setting) = self.values.get(&(table.to_owned(), of_file.to_owned())) else { continue };
            let place = place_of(table, of_file, setting);
            return Err(wrong(&place, &setting.from, &format!("{key} {what}"), &way_out));
        }
        Ok(file)
    }
}

/// The table [`NodeOptions`] in a file.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct OfNode {
    node: NodeOptions,
}

/// The place of a setting: `FILE:LINE`, or the source of the setting if it is not a line of a file.
fn place_of(table: &str, key: &str, setting: &Setting) -> String {
    let text = match Path::new(&setting.from).is_absolute() {
        true => std::fs::read_to_string(&setting.from).unwrap_or_default(),
        false => String::new(),
    };
    let mut of_table = "";
    for (line, number) in text.lines().map(str::trim_start).zip(1..) {
        if let Some(header) = line.strip_prefix('[') {
            of_table = header.split(']').next().unwrap_or_default();
        } else if (of_table.is_empty() || of_table == table)
            && line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        {
            return format!("{}:{number}", setting.from);
        }
    }
    setting.from.clone()
}

/// The limits, in which the variables in the permitted stores have the values of one user. A store whose variables
/// cannot be replaced is not permitted.
fn expanded(limits: &Table, facts: &Facts) -> Table {
    let mut limits = limits.clone();
    if let Some(Value::Array(stores)) = limits.get_mut("store") {
        let one = |store: &Value| Some(Value::String(facts.expand(store.as_str()?).ok()?));
        *stores = stores.iter().filter_map(one).collect();
    }
    limits
}

/// Name of the table of [`NodeOptions`].
const NODE: &str = "node";
/// Name of the table of the key `off`, which only a comment can set.
const JOB: &str = "job";
/// Name of the table of aggregators.
const ANC: &str = "anc";

/// The table `[node]` of the cluster's file: the aggregators of jobs with several nodes, which `mcr node` saves.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeOptions {
    /// Number of aggregators of a job. Default: one aggregator for every 8 nodes.
    pub aggregators: Option<u32>,
    /// The ports on which aggregators listen, as `FIRST-LAST`. Aggregators of different jobs on one node use
    /// different ports. Default 7117-7180.
    pub ports: String,
    /// Host name or address of a node. `%n` is SLURM's name of the node. Default `%n`.
    pub address: String,
    /// `HOST:PORT` of the gate of each aggregator node. With gates, no aggregator runs on the nodes of a job.
    /// Default: none.
    pub gates: Vec<String>,
    /// `ADDRESS:PORT` at which `mcr node` serves metrics for Prometheus. Default: none.
    pub metrics: Option<String>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self { aggregators: None, ports: "7117-7180".into(), address: "%n".into(), gates: Vec::new(), metrics: None }
    }
}

impl NodeOptions {
    /// Host name or address of a node.
    pub fn address_of(&self, node: &str) -> String {
        self.address.replace("%n", node)
    }

    fn check(self) -> anyhow::Result<Self> {
        if self.aggregators == Some(0) {
            bail!("aggregators = 0; it must be at least 1");
        }
        if Listen::parse(&format!("0.0.0.0:{}", self.ports)).is_none_or(|listen| listen.ports.contains(&0)) {
            bail!("ports = {:?}; it must be FIRST-LAST, as in \"7117-7180\"", self.ports);
        }
        if self.address.is_empty() {
            bail!("address is empty; it must be a host name or an address, in which %n is SLURM's name of the node");
        }
        if let Some(wrong) = self.gates.iter().find(|gate| !is_host_and_port(gate)) {
            bail!("gates has {wrong:?}; each must be HOST:PORT, as in \"agg0:7117\"");
        }
        if self.gates.len() > GATES_MAX {
            bail!("gates has {} addresses; at most {GATES_MAX} are possible", self.gates.len());
        }
        metrics_address(self.metrics.as_deref())?;
        Ok(self)
    }
}

/// Whether the store's directory may be created. Its parent directory must exist and belong to the user. If the file
/// system is not mounted, the parent directory belongs to root, and the result is false.
pub fn may_create(store: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    store.parent().and_then(|parent| parent.metadata().ok()).is_some_and(|about| about.is_dir() && about.uid() == own)
}

/// The tables to which a key of the user's file belongs.
fn tables_of(key: &str) -> Option<&'static [&'static str]> {
    UserFile::KEYS.iter().find(|(name, _)| name.replace('_', "-") == key).map(|(_, tables)| *tables)
}

/// Refuses a cluster's file that another user can change, because the settings in this file apply to all users.
fn check_owner(file: &Path) -> anyhow::Result<()> {
    let about = std::fs::metadata(file).with_context(|| file.display().to_string())?;
    let own = nix::unistd::geteuid().as_raw();
    if ![0, own].contains(&about.uid()) || about.mode() & 0o022 != 0 {
        bail!(
            "{}: it belongs to user {} and has mode {:04o}; it must belong to root, and no other user may write to it",
            file.display(),
            about.uid(),
            about.mode() & 0o7777
        );
    }
    Ok(())
}

/// Refuses a value of the user's file that the cluster's file does not permit.
fn check_limit(key: &str, value: &Value, from: &str, limits: &Table) -> anyhow::Result<()> {
    match limits.get(key) {
        Some(limit) if !is_within(value, limit) => {
            let what = format!("{key} = {value}, but the cluster's file permits only {limit} ([limits])");
            Err(wrong(from, from, &what, "write a permitted value, or remove the line"))
        }
        _ => Ok(()),
    }
}

/// The error for a wrong setting. `place` is the beginning of the message. `from` is the file, or describes another
/// source of the setting.
fn wrong(place: &str, from: &str, what: &str, advice: &str) -> anyhow::Error {
    let error = Advised::new(format!("{place}: {what}"), advice).of_setting();
    let file = Path::new(from);
    if file.is_absolute() { error.at(file).into() } else { error.into() }
}

fn is_within(value: &Value, limit: &Value) -> bool {
    match (value, limit) {
        (Value::Integer(value), Value::Integer(most)) => value <= most,
        (Value::String(text), Value::Array(permitted)) => {
            permitted.iter().filter_map(Value::as_str).any(|permitted| match permitted.strip_suffix('*') {
                Some(begin) => text.starts_with(begin) && !text.contains(".."),
                None => text == permitted,
            })
        }
        (value, limit) => value == limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(variables: &[(&str, &str)]) -> Facts {
        Facts::of(
            &|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()),
            "alice",
            6001,
        )
    }

    fn resolve(cluster: &str, user: &str, facts: &Facts) -> anyhow::Result<(Settings, tempfile::TempDir)> {
        let dir = tempfile::tempdir().expect("a directory");
        let [of_cluster, of_user] = [("cluster.toml", cluster), ("mcr.toml", user)].map(|(name, text)| {
            let file = dir.path().join(name);
            std::fs::write(&file, text).expect("written");
            file
        });
        Settings::resolve(Some(&of_cluster), Some(&of_user), facts).map(|settings| (settings, dir))
    }

    fn refusal(cluster: &str, user: &str, facts: &Facts) -> String {
        format!("{:#}", resolve(cluster, user, facts).map(drop).expect_err("refused"))
    }

    const CLUSTER: &str = "[cnc]\naggregators = [\"agg0:7117\"]\n[anc]\nstore = \"/lustre/%u/mcr\"\nprofile = \"fast\"\n\
                           [limits]\nprofile = [\"fast\", \"balanced\"]\nkeep = 10\nstore = [\"/lustre/%u/*\"]\n";

    #[test]
    fn a_later_layer_overrides_an_earlier_one_and_says_where_its_value_comes_from() {
        let facts = facts(&[("SLURM_JOB_ID", "7"), ("PART", "b")]);
        let user = "profile = \"balanced\"\nwatch = \"out_${PART}\"\ngroup-size = 8\nkeep = 5\n";
        let (settings, dir) = resolve(CLUSTER, user, &facts).expect("resolved");
        let of = |table, key| settings.text(table, key).map(str::to_owned);
        assert_eq!(of("cnc", "job").as_deref(), Some("alice-7"));
        assert_eq!(of("anc", "store").as_deref(), Some("/lustre/alice/mcr"));
        assert_eq!(of("cnc", "watch"), Some(dir.path().join("out_b").display().to_string()));
        let from = |key: &str| settings.by_key().get(key).map(|setting| setting.from.clone());
        assert!(from("store").is_some_and(|from| from.ends_with("cluster.toml")));
        assert!(from("profile").is_some_and(|from| from.ends_with("mcr.toml")));
        assert_eq!(from("job").as_deref(), Some(DEFAULT));
        let file = settings.config_file().expect("options");
        assert_eq!((file.cnc.group_size, file.anc.group_size, file.anc.keep), (8, 8, 5));
        assert_eq!(file.cnc.aggregators, ["agg0:7117"]);
    }

    #[test]
    fn a_watched_directory_whose_name_is_not_utf_8_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().expect("a directory");
        let work_dir = dir.path().join(std::ffi::OsStr::from_bytes(b"not-\xff"));
        std::fs::create_dir(&work_dir).expect("made");
        std::fs::write(work_dir.join(USER_FILE), "job = \"melt\"\n").expect("written");
        let error = Settings::resolve(None, Some(&work_dir.join(USER_FILE)), &facts(&[])).map(drop);
        assert!(format!("{:#}", error.expect_err("refused")).contains("not UTF-8; rename it"));
    }

    #[test]
    fn what_the_cluster_does_not_permit_is_refused_with_what_it_permits() {
        let facts = facts(&[]);
        assert!(refusal(CLUSTER, "profile = \"max\"", &facts).contains("permits only [\"fast\", \"balanced\"]"));
        assert!(refusal(CLUSTER, "keep = 11", &facts).contains("keep = 11, but the cluster's file permits only 10"));
        assert!(refusal(CLUSTER, "store = \"/home/x\"", &facts).contains("/lustre/%u/*"));
        assert!(refusal(CLUSTER, "store = \"/lustre/%u/../bob\"", &facts).contains("permits only"));
        assert!(resolve(CLUSTER, "store = \"/lustre/%u/other\"\nkeep = 10", &facts).is_ok());
        // The limits also apply to a whole configuration file.
        assert!(
            refusal(CLUSTER, "[anc]\nkeep = 11", &facts).contains("keep = 11, but the cluster's file permits only 10")
        );
        let text = refusal("[limits]\nproflie = [\"fast\"]\n", "", &facts);
        assert!(text.contains("did you mean \"profile\"?"), "{text}");
    }

    #[test]
    fn keys_of_the_administrator_are_refused_in_the_users_file_and_misspelt_keys_have_a_suggestion() {
        let facts = facts(&[]);
        assert!(refusal("", "profil = \"max\"", &facts).contains("mcr.toml:1: unknown key \"profil\""));
        assert!(refusal("", "profil = \"max\"", &facts).contains("did you mean \"profile\"?"));
        assert!(refusal("", "listen = \"0.0.0.0:1\"", &facts).contains("unknown key \"listen\""));
        let text = refusal("", "profile = \"fast\"\nkeep = \"many\"", &facts);
        assert!(
            text.contains("mcr.toml:2: keep: the value is the text \"many\", and it must be a whole number"),
            "{text}"
        );
        let text = refusal("", "aggregators = \"x\"", &facts);
        assert!(text.contains("mcr.toml:1: aggregators: the value is the text") && text.matches(".toml").count() == 1);
        assert!(refusal("", "store = \"here\"", &facts).contains("is a relative path"));
        // A whole configuration file is used without changes.
        let (settings, _dir) = resolve("", "[anc]\nstore = \"/s\"\nthreads = 2\n", &facts).expect("resolved");
        assert_eq!(settings.config_file().expect("options").anc.threads, 2);
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_file_line_and_key_and_a_missing_one_is_not() {
        let facts = facts(&[("SLURM_JOB_ID", "7")]);
        let refusal = |user: &str| {
            let (settings, _dir) = resolve("", user, &facts).expect("resolved");
            settings.checked().map(drop).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(refusal("keep = 2\n"), Ok(()));
        for (user, expected) in [
            ("keep = 2\ngroup-size = 0\n", "mcr.toml:2: group-size is 0; it must be "),
            ("layout = \"foo\"\n", "mcr.toml:1: layout cannot be used: "),
            ("keep-within = \"2x\"\n", "mcr.toml:1: keep-within is 2x; "),
            ("[anc]\nstore = \"/s\"\nparity-percent = 200\n", "mcr.toml:3: parity-percent is 200; "),
            ("job = \"a/b\"\n", "mcr.toml:1: job is \"a/b\"; it names a directory in the store: "),
        ] {
            let text = refusal(user).expect_err("refused");
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn values_of_the_job_are_text_and_never_change_another_key() {
        let hostile = "x\"\nstore = \"/bob\"\n$(id)`id`";
        let facts = facts(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", hostile)]);
        let (settings, _dir) = resolve(CLUSTER, "job = \"%x\"", &facts).expect("resolved");
        assert_eq!(settings.text("cnc", "job"), Some(hostile));
        assert_eq!(settings.text("anc", "store"), Some("/lustre/alice/mcr"));
        assert!(settings.config_file().expect("options").cnc.check().is_err(), "such a name is refused later");
    }

    /// Settings of a job with these words in its comment, in the work directory /home/alice.
    fn with_comment(cluster: &str, user: Option<&str>, words: &str) -> anyhow::Result<Settings> {
        let comment = mcr_node::comment::Comment { uid: 6001, words: words.into(), work_dir: "/home/alice".into() };
        let mut facts = facts(&[("SLURM_JOB_ID", "7"), ("PART", "b")]);
        facts.comment = Some(comment);
        let dir = tempfile::tempdir().expect("a directory");
        let [of_cluster, of_user] = ["cluster.toml", "mcr.toml"].map(|name| dir.path().join(name));
        std::fs::write(&of_cluster, cluster).expect("written");
        if let Some(user) = user {
            std::fs::write(&of_user, user).expect("written");
        }
        Settings::resolve(Some(&of_cluster), user.map(|_| of_user.as_path()), &facts)
    }

    #[test]
    fn a_comment_overrides_the_users_file_and_sets_only_its_own_keys() {
        let settings = with_comment(CLUSTER, Some("job = \"a\"\nwatch = \"out\"\nkeep = 5\n"), "mcr:job=melt_${PART}");
        let settings = settings.expect("resolved");
        assert_eq!(settings.text("cnc", "job"), Some("melt_b"));
        assert_eq!(settings.job_is_from(), Some("--comment"));
        assert!(settings.by_key()["watch"].from.ends_with("mcr.toml") && settings.by_key()["keep"].value == 5.into());
        // Without a file of the user, directories are relative to the work directory.
        for (words, watch) in
            [("mcr:job=x", "/home/alice"), ("mcr:watch=out", "/home/alice/out"), ("mcr:watch=/tmp/o", "/tmp/o")]
        {
            let settings = with_comment(CLUSTER, None, words).expect("resolved");
            assert_eq!(settings.text("cnc", "watch"), Some(watch), "{words}");
            assert!(!settings.by_key().contains_key("off"));
        }
        let settings = with_comment(CLUSTER, None, "mcr:off").expect("resolved");
        assert_eq!(settings.by_key()["off"].from, "--comment");
        assert_eq!(settings.config_file().expect("options").cnc.job.as_deref(), Some("alice-7"));
        // The comment is text: it cannot end a value and begin another key.
        let hostile = "mcr:job=x\"\u{b}store=\"/bob\"$(id)`id`";
        let settings = with_comment(CLUSTER, None, hostile).expect("resolved");
        assert_eq!(settings.text("cnc", "job"), hostile.strip_prefix("mcr:job="));
        assert_eq!(settings.text("anc", "store"), Some("/lustre/alice/mcr"));
        assert!(settings.config_file().expect("options").cnc.check().is_err(), "such a name is refused later");
        // The limits of the cluster's file apply.
        let limited = format!("{CLUSTER}watch = [\"out*\"]\n");
        let error = with_comment(&limited, None, "mcr:watch=/etc").map(drop).expect_err("refused").to_string();
        assert!(error.starts_with("--comment: watch = \"/etc\", but the cluster's file permits only"), "{error}");
    }

    #[test]
    fn an_agent_sends_only_what_a_user_may_set_and_a_gate_accepts_nothing_else() {
        let facts = facts(&[]);
        let user = "watch = \"out\"\nstore = \"/lustre/%u/x\"\nkeep = 5\nquiet-ms = 7\ngroup-size = 4\n";
        let (settings, _dir) = resolve("[anc]\nthreads = 3\n", user, &facts).expect("resolved");
        let text = settings.for_gate();
        assert_eq!(text, "group-size = 4\nkeep = 5\nstore = \"/lustre/alice/x\"\n");
        let file = Settings::of_gate(&text, &facts).expect("accepted");
        assert_eq!((file.anc.group_size, file.anc.keep), (4, 5));
        for (text, why) in [
            ("listen = \"0.0.0.0:22\"\nstore = \"/s\"", "\"listen\", which an agent may not set"),
            ("create = true\nstore = \"/s\"", "\"create\""),
            ("budget-mib = 100000\nstore = \"/s\"", "\"budget-mib\""),
            ("watch = \"/etc\"\nstore = \"/s\"", "\"watch\""),
            ("store = \"s\"", "relative path"),
            ("keep = 1", "name no store"),
            ("keep = \"x\"\nstore = \"/s\"", "the settings of the agent"),
            ("\u{0}", "not valid TOML"),
        ] {
            let refused = Settings::of_gate(text, &facts).map(drop).expect_err(text);
            assert!(format!("{refused:#}").contains(why), "{text}: {refused:#}");
        }
        // Only the stores of the user in the certificate are permitted.
        let limits: Table = "store = [\"/lustre/%u/*\"]".parse().expect("TOML");
        let limits = expanded(&limits, &facts);
        assert!(check_limit("store", &"/lustre/alice/x".into(), "", &limits).is_ok());
        assert!(check_limit("store", &"/lustre/bob/x".into(), "", &limits).is_err());
    }

    #[test]
    fn every_setting_of_the_shipped_cluster_file_is_known_and_shows_its_default() {
        let shipped = include_str!("../../deploy/config/cluster.toml");
        let set = |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).map(str::to_owned);
        let text: Vec<String> = shipped.lines().filter_map(set).collect();
        let (settings, dir) = resolve(&text.join("\n"), "", &facts(&[("SLURM_JOB_ID", "7")])).expect("resolved");
        assert_eq!(settings.node_options().expect("valid").gates, ["agg0:7117", "agg1:7117"]);
        let file: ClusterFile = load_toml(&dir.path().join("cluster.toml")).expect("read");
        // The address of the metrics is an example.
        assert_eq!(file.gate, GateOptions { metrics: file.gate.metrics.clone(), ..GateOptions::default() });
    }

    #[test]
    fn a_cluster_file_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("cluster.toml");
        std::fs::write(&file, "").expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o664)).expect("set");
        let error = Settings::resolve(Some(&file), None, &facts(&[])).map(drop).expect_err("refused");
        assert!(error.to_string().contains("has mode 0664"), "{error}");
    }
}
