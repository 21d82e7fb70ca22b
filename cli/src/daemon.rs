//! `mcr cnc`, `mcr anc` and `mcr run`: load the configuration, build the daemon, run it, and drain it at the end.

use crate::advice::Advised;
use crate::args::{AncArgs, DaemonArgs, LogArgs, RunArgs};
use crate::cert::security;
use crate::child::{Application, code_of};
use crate::common::{open_own, renamed};
use crate::config::{ConfigFile, aggregator_socket_of};
use crate::counted;
use crate::decide::{FILE_TIME_MARGIN, check_identity_of_run};
use crate::doubted;
use crate::exit::NOT_COMMITTED;
use crate::gates::{Asking, Wish};
use crate::guard::check_store;
use crate::left_running;
use crate::misnamed;
use crate::names;
use crate::node_agent::NodeAgent;
use crate::orphan::{Start, Watch};
use crate::overlooked;
use crate::page::Served;
use crate::placement::Placement;
use crate::question::{self, Question};
use crate::remembered::{self, SavedFiles};
use crate::settings::{DEFAULT, Facts, Settings};
use crate::signals::Signals;
use crate::uncommitted::{report_agent, report_aggregator, state_of};
use anyhow::Context;
use mcr_anc::Aggregator;
use mcr_anc::config::AncConfig;
use mcr_anc::hub::OfJob;
use mcr_anc::incarnation::{Claim, Currents};
use mcr_cnc::agent::{FlushRequest, Processes};
use mcr_cnc::config::{CncConfig, ConfigError, LayoutChoice, LayoutOptions, LayoutTable, real_path};
use mcr_cnc::layout::{Explanation, Layout, list};
use mcr_cnc::settle::{NodeRanks, OwnRanks};
use mcr_node::protocol::Places;
use mcr_proto::tls::needs_tls;
use mcrengine::ids::Rank;
use mcrengine::living::LivingRun;
use mcrengine::store::PosixStore;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An address of this node, with a port that the system picks.
pub const LOOPBACK: &str = "127.0.0.1:0";

pub fn run_cnc(args: DaemonArgs) -> anyhow::Result<ExitCode> {
    let file = ConfigFile::load(&args.config)?;
    args.log.start(file.metrics_of_agent()?, false);
    let mut config = file.cnc.check()?;
    config.security = security(None, &config.aggregators)?;
    warn_of_unknown_ranks(&config);
    within_runtime(async {
        let mut signals = Signals::new()?;
        let mut question = None;
        let (layout, signalled) = tokio::select! {
            layout = agent_layout(&config, None, &mut question) => (layout?, false),
            () = signals.next() => match last_layout(&config, &SavedFiles::default(), false, question)? {
                LastLayout::Layout { layout, .. } => (layout, true),
                LastLayout::Nothing => return Ok(ExitCode::SUCCESS),
                LastLayout::Unknown => return Ok(ExitCode::from(NOT_COMMITTED)),
            },
        };
        let (bound, mut node) = (config.drain, NodeAgent::start(config, layout, None)?);
        if !signalled {
            tokio::select! {
                error = node.look_at_names() => return Err(error),
                () = signals.next() => {}
            }
        }
        let until = Instant::now() + bound;
        let Some((drained, misfit)) = signals.unless_again(node.drain(until, Processes::MayRun)).await else {
            return Ok(at_once());
        };
        let are_few = misnamed::report_misfit(misfit);
        Ok(if report_agent(&drained, None) && are_few { ExitCode::SUCCESS } else { ExitCode::from(NOT_COMMITTED) })
    })
}

pub fn run_anc(args: AncArgs) -> anyhow::Result<ExitCode> {
    let mut file = ConfigFile::load(&args.daemon.config)?;
    file.anc.parity_percent = args.parity_percent.unwrap_or(file.anc.parity_percent);
    let served = args.daemon.log.start(file.metrics_of_aggregator()?, true);
    let mut config = file.anc.check()?;
    config.create |= args.create;
    config.shared_store |= args.shared_store;
    config.security = security(Some(&config.listen), &[])?;
    within_runtime(async {
        let mut signals = Signals::new()?;
        let bound = config.drain;
        let store = config.store.clone();
        let aggregator = start_aggregator(config).await?;
        served.show(&aggregator.address, aggregator.status.clone(), store);
        signals.next().await;
        let until = Instant::now() + bound;
        let Some(drained) = signals.unless_again(aggregator.drain(until)).await else { return Ok(at_once()) };
        Ok(if report_aggregator(&drained) { ExitCode::SUCCESS } else { ExitCode::from(NOT_COMMITTED) })
    })
}

/// The settings of the job, or the defaults if there are no settings, and whether the store of the settings may be
/// created. Also starts the log. `has_name`: the command line names the job.
fn settings_of_the_job(log: &LogArgs, has_name: bool) -> anyhow::Result<(ConfigFile, Served, bool)> {
    let settings = Settings::find(&Facts::of_this_process())?.unwrap_or_default();
    let file = settings.checked()?;
    let served = log.start(file.metrics_of_both()?, true);
    if !has_name && settings.job_is_from() == Some(DEFAULT) {
        tracing::warn!(
            job = settings.text("cnc", "job"),
            "the job has the name of this SLURM job; if you submit the script again, the new job does not find these \
             checkpoints. Write job = \"NAME\" in mcr.toml"
        );
    }
    Ok((file, served, settings.may_create_store()))
}

pub fn run_both(args: RunArgs) -> anyhow::Result<ExitCode> {
    let (mut file, served, may_create) = match &args.config {
        Some(config) => {
            let file = ConfigFile::load(config)?;
            let served = args.log.start(file.metrics_of_both()?, true);
            (file, served, false)
        }
        None => settings_of_the_job(&args.log, args.job.is_some())?,
    };
    // In one process, agent and aggregator use a socket that only this user can open, unless the user names a port.
    let by_socket = args.listen.is_none() && !needs_tls(LOOPBACK);
    file.anc.listen = args.listen.unwrap_or_else(|| LOOPBACK.into());
    // A store of the command line or of MCR_STORE is created only with --create.
    file.anc.create |= args.create || args.store.is_none() && may_create;
    file.anc.store = args.store.unwrap_or(file.anc.store);
    file.anc.shared_store |= args.shared_store;
    file.anc.group_size = args.group_size.unwrap_or(file.anc.group_size);
    file.anc.parity_percent = args.parity_percent.unwrap_or(file.anc.parity_percent);
    let keep = args.keep.rules();
    if !keep.is_empty() {
        file.anc.set_keep(&keep);
    }
    file.cnc.group_size = file.anc.group_size;
    file.cnc.watch = args.watch.or(file.cnc.watch);
    file.cnc.ranks = args.ranks.or(file.cnc.ranks);
    file.cnc.layout = match args.layout.layout.as_slice() {
        [] => file.cnc.layout,
        [name] if !name.contains('{') => LayoutOptions::Named(name.clone()),
        patterns => LayoutOptions::Table(LayoutTable {
            patterns: patterns.to_vec(),
            first_rank: args.layout.first_rank,
            ..LayoutTable::default()
        }),
    };
    if !args.layout.layout.is_empty() {
        check_option_layout(&file.cnc.layout)?;
    }
    file.cnc.state_file = args.state.or(file.cnc.state_file);
    file.cnc.drain_seconds = args.drain_seconds.unwrap_or(file.cnc.drain_seconds);
    // The job's name from the command line, or from the environment through clap, takes precedence.
    file.cnc.job = args.job.or(file.cnc.job);
    if args.config.is_none() {
        file.check_options()?;
    }
    let environment =
        |name: &str| (name != "MCR_JOB").then(|| std::env::var(name).ok()).flatten().filter(|value| !value.is_empty());
    run_in_one_process(file, &environment, &args.command, Life::UntilSignal, Aggregators::Here { by_socket }, &served)
}

/// Checks a layout that was given on the command line. The error names the option, and not the key of a file.
fn check_option_layout(layout: &LayoutOptions) -> anyhow::Result<()> {
    match layout.check() {
        Ok(_) => Ok(()),
        Err(ConfigError::Layout(error)) => Err(anyhow::Error::from(error).context("--layout")),
        Err(error) => Err(error.into()),
    }
}

/// The places of the aggregators that an agent uses.
pub enum Aggregators {
    /// The only aggregator is in this process.
    Here {
        /// Whether the aggregator listens on a socket next to the agent's state file, and not on a port.
        by_socket: bool,
    },
    /// The aggregators run on some nodes of the job.
    InJob {
        /// The nodes with aggregators.
        placement: Placement,
        /// The ranks that this node saves, if they are not configured.
        ranks: NodeRanks,
    },
    /// The aggregators run on nodes that serve all jobs.
    Standing {
        /// The ranks that this node saves, if they are not configured. `None`: all ranks.
        ranks: Option<NodeRanks>,
    },
    /// The aggregators run on aggregator nodes, and the gates of these nodes start the aggregators for this job.
    Gates {
        /// The data with which the agent asks the gates for aggregators.
        wish: Wish,
        /// The ranks that this node saves, if they are not configured. `None`: all ranks.
        ranks: Option<NodeRanks>,
    },
}

impl Aggregators {
    /// Whether an aggregator is in this process.
    fn is_here(&self) -> bool {
        match self {
            Self::Here { .. } => true,
            Self::InJob { placement, .. } => placement.is_aggregator,
            Self::Standing { .. } | Self::Gates { .. } => false,
        }
    }
}

/// The event that ends a process that runs no command.
pub enum Life {
    /// A signal.
    UntilSignal,
    /// A signal, or the end of all processes that would send a signal.
    OfJob(Watch),
    /// The processes of the application have ended already.
    Over,
}

impl Life {
    async fn until_orphaned(&self, start: &Start) {
        match self {
            Self::OfJob(watch) => watch.until_orphaned(start).await,
            Self::UntilSignal | Self::Over => std::future::pending().await,
        }
    }
}

/// Runs the worker of `mcr node` until its job is over.
pub fn run_worker(
    mut file: ConfigFile,
    environment: &dyn Fn(&str) -> Option<String>,
    life: Life,
    aggregators: Aggregators,
) -> anyhow::Result<ExitCode> {
    if matches!(aggregators, Aggregators::Here { .. }) {
        file.anc.listen = LOOPBACK.into();
    }
    run_in_one_process(file, environment, &[], life, aggregators, &Served::default())
}

/// Runs the agent, and the aggregator of this process if there is one, until the command ends. Without a command,
/// runs until the event in `life`. `served`: where the page of the aggregator is shown.
fn run_in_one_process(
    mut file: ConfigFile,
    environment: &dyn Fn(&str) -> Option<String>,
    command: &[OsString],
    life: Life,
    aggregators: Aggregators,
    served: &Served,
) -> anyhow::Result<ExitCode> {
    match &aggregators {
        // The real address is set later. This address is a placeholder for the check of the configuration.
        Aggregators::Here { .. } | Aggregators::Gates { .. } => file.cnc.aggregators = vec!["127.0.0.1:7117".into()],
        Aggregators::InJob { placement, .. } => file.cnc.aggregators.clone_from(&placement.aggregators),
        Aggregators::Standing { .. } => {}
    }
    let mut agent = file.cnc.check_with(environment)?;
    let mut aggregator = aggregators.is_here().then(|| file.anc.check()).transpose()?;
    if let Some(aggregator) = &mut aggregator {
        aggregator.hub.has_agent = true;
    }
    let store = file.anc.store.clone();
    // The agent will record in the store that this run is alive, so the store is checked. A store that does not exist
    // may be created later.
    if !store.as_os_str().is_empty() && store.exists() {
        check_store(&store, file.anc.shared_store)?;
        if let Ok(open) = PosixStore::open(&store) {
            if let Some(renamed) = renamed(&open, &store, &agent.job) {
                return Err(renamed.into());
            }
            check_identity_of_run(&open, &agent.job, &agent.incarnation)?;
        }
    }
    let is_here = matches!(aggregators, Aggregators::Here { .. });
    let mut places = match &aggregators {
        Aggregators::InJob { placement, .. } => Places::InJob(placement.aggregators.clone()),
        Aggregators::Standing { .. } => Places::Configured(agent.aggregators.clone()),
        // For gates, this value is a placeholder until the agent has agreed with the gates.
        Aggregators::Here { .. } | Aggregators::Gates { .. } => Places::Here,
    };
    let by_socket = matches!(aggregators, Aggregators::Here { by_socket: true });
    let mut asking = None;
    let ranks = match aggregators {
        Aggregators::Here { .. } => None,
        Aggregators::Gates { wish, ranks } => {
            agent.own_aggregators = true;
            agent.aggregators.clone_from(&wish.gates);
            asking = Some(Arc::new(Asking::new(wish, &agent)?));
            ranks
        }
        Aggregators::InJob { placement, ranks } => {
            agent.own_aggregators = true;
            if let Some(aggregator) = &mut aggregator {
                let (identity, nodes) = (agent.incarnation.clone(), placement.nodes as usize);
                aggregator.hub.of_job = Some(OfJob { identity, nodes });
            }
            Some(ranks)
        }
        Aggregators::Standing { ranks } => ranks,
    };
    // The agent dials the aggregator in this process at the address on which the aggregator listens.
    let dialled = if is_here { &[] } else { agent.aggregators.as_slice() };
    agent.security = security(aggregator.as_ref().map(|aggregator| &aggregator.listen), dialled)?;
    if let Some(aggregator) = &mut aggregator {
        aggregator.security = agent.security.clone();
    }
    if let (Some(ranks), None) = (ranks, &file.cnc.local_ranks) {
        let file = agent.state_file.with_extension("ranks");
        agent.own = OwnRanks::of_node(ranks.remember(file, &agent.incarnation));
    }
    within_runtime(async {
        let mut signals = match &life {
            Life::UntilSignal => Signals::new()?,
            Life::OfJob(_) | Life::Over => Signals::of_worker()?,
        };
        let living = tokio::spawn(hold_living_run(store.clone(), agent.clone()));
        let (aggregator, _directory) = match aggregator {
            Some(aggregator) if by_socket => {
                let (aggregator, directory) = start_on_socket(aggregator, &agent.state_file).await?;
                (Some(aggregator), directory)
            }
            Some(aggregator) => (Some(start_aggregator(aggregator).await?), None),
            None => (None, None),
        };
        if let (true, Some(aggregator)) = (is_here, &aggregator) {
            served.show(&aggregator.address, aggregator.status.clone(), store.clone());
            agent.aggregators = vec![aggregator.address.clone()];
        }
        let bound = agent.drain;
        let mut is_signalled = false;
        if let Some(asking) = asking {
            let gates = tokio::select! {
                gates = Arc::clone(&asking).agree() => Some(gates),
                () = signals.next() => {
                    is_signalled = true;
                    tokio::time::timeout(bound / 2, asking.agree()).await.ok()
                }
            };
            let Some(gates) = gates else {
                tracing::error!(exit_status = NOT_COMMITTED, "no gate answered: nothing of the job was saved");
                return Ok(ExitCode::from(NOT_COMMITTED));
            };
            agent.aggregators = gates.names();
            agent.finder = Some(Arc::new(gates));
            places = Places::Gates(agent.aggregators.clone());
        }
        if let Life::OfJob(watch) = &life {
            tokio::spawn(watch.clone().report(places, agent.state_file.clone()));
        }
        let start = Start { store: store.clone(), job: agent.job.clone(), identity: agent.incarnation.clone() };
        let has_seen_files = false;
        let mut both = Both {
            config: agent,
            store,
            sees_all_ranks: is_here,
            has_seen_files,
            node: None,
            aggregator,
            question: None,
        };
        let ended = match command.is_empty() {
            false => both.accompany(command, &mut signals, bound).await?,
            true => {
                // Whether the job's processes, which write the files, succeeded is not known, because SLURM also
                // reports success for cancelled jobs.
                let processes = match &life {
                    Life::Over => Processes::Gone,
                    _ if is_signalled && signals.last == Signal::SIGUSR1 => Processes::Gone,
                    _ if is_signalled => Processes::MayRun,
                    life => tokio::select! {
                        error = both.run_agent() => return Err(error),
                        () = life.until_orphaned(&start) => Processes::Gone,
                        () = signals.next() => match signals.last {
                            Signal::SIGUSR1 => Processes::Gone,
                            _ => Processes::MayRun,
                        },
                    },
                };
                Ended { code: 0, until: Instant::now() + bound, processes }
            }
        };
        let Ended { code, until, processes } = ended;
        if until <= Instant::now() {
            return Ok(ExitCode::from(code)); // no daemon was started, or a second signal was received
        }
        let Some(all_committed) = signals.unless_again(both.drain(until, processes)).await else {
            return Ok(at_once());
        };
        living.abort();
        Ok(match (code, all_committed?) {
            (0, false) => ExitCode::from(NOT_COMMITTED),
            (code, _) => ExitCode::from(code),
        })
    })
}

/// Interval of the checks whether the store has a directory of the job.
const JOB_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Keeps a file in the store that shows a restart that this run is alive. The file is removed when the runtime ends.
async fn hold_living_run(store: PathBuf, config: CncConfig) {
    if store.as_os_str().is_empty() {
        return; // only the aggregators know the store
    }
    let run = LivingRun {
        node: config.node,
        process: std::process::id(),
        identity: config.incarnation,
        watch: real_path(&config.watch),
    };
    let (run, job) = (Arc::new(run), config.job);
    loop {
        let (run, store, job) = (Arc::clone(&run), store.clone(), job.clone());
        let hold = move || PosixStore::open(store).and_then(|store| run.hold(&store, &job));
        match tokio::task::spawn_blocking(hold).await {
            Ok(Ok(Some(_held))) => std::future::pending().await,
            // The file could not be written. The next check tries again.
            Ok(Ok(None) | Err(_)) => tokio::time::sleep(JOB_CHECK_INTERVAL).await,
            Err(_) => return,
        }
    }
}

/// The end of the application of `mcr run -- COMMAND`, or of a run without an application.
struct Ended {
    /// Exit status of the application; 0 without an application.
    code: u8,
    /// The time at which mcr must have ended. A time in the past means that mcr ends at once.
    until: Instant,
    processes: Processes,
}

/// Agent and aggregator of `mcr run`.
struct Both {
    config: CncConfig,
    store: PathBuf,
    /// Whether all ranks of the job are on this node, or share one directory.
    sees_all_ranks: bool,
    /// Whether files of checkpoints of this run were there when the agent's layout became known.
    has_seen_files: bool,
    node: Option<NodeAgent>,
    /// The question about the names of the files that was logged before the layout became known.
    question: Option<Question>,
    /// `None`: the aggregators are in other processes.
    aggregator: Option<Aggregator>,
}

impl Both {
    fn must_count_ranks(&self) -> bool {
        self.sees_all_ranks && counted::is_needed(&self.config, &self.store)
    }

    /// Starts the agent once its directory exists and its layout is known.
    async fn start_agent(&mut self) -> anyhow::Result<()> {
        let mut is_told = false;
        while !self.config.watch.is_dir() {
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(
                    watch = %self.config.watch.display(),
                    "the watched directory does not exist; nothing is saved until it does"
                );
            }
            tokio::time::sleep(GUESS_INTERVAL).await;
        }
        let must_count_ranks = self.must_count_ranks();
        if !must_count_ranks {
            warn_of_unknown_ranks(&self.config);
        }
        let store = self.sees_all_ranks.then_some(&*self.store);
        let layout = agent_layout(&self.config, store, &mut self.question).await?;
        if self.sees_all_ranks {
            let (config, layout) = (self.config.clone(), layout.clone());
            let looked = tokio::task::spawn_blocking(move || overlooked::has_written(&config, &layout));
            self.has_seen_files = looked.await.unwrap_or(false);
        }
        if must_count_ranks {
            counted::wait(&mut self.config, &layout).await;
        }
        self.node = Some(NodeAgent::start(self.config.clone(), layout, Some(self.store.clone()))?);
        Ok(())
    }

    /// Starts the agent if it does not run yet, and watches its layout. Returns only if the agent cannot run.
    async fn run_agent(&mut self) -> anyhow::Error {
        if self.node.is_none()
            && let Err(error) = self.start_agent().await
        {
            return error;
        }
        match &mut self.node {
            Some(node) => node.look_at_names().await,
            None => std::future::pending().await,
        }
    }

    /// Begins the incarnation of this start. The incarnation must begin before the application writes its first file:
    /// a file from before this time belongs to the run before.
    async fn begin_incarnation(&self) {
        if self.config.incarnation.is_empty() {
            return; // only a restart begins an incarnation without an identity
        }
        let (store, config) = (self.store.clone(), self.config.clone());
        let begin = move || {
            let Ok(store) = PosixStore::open(&store) else { return };
            let claim = Claim { identity: &config.incarnation, node: &config.node };
            // If the claim is refused, the aggregator refuses the agent too, and the agent logs the reason.
            let _ = Currents::default().admit(&store, &config.job, claim);
        };
        let _ = tokio::task::spawn_blocking(begin).await;
        tokio::time::sleep(FILE_TIME_MARGIN).await;
    }

    /// Runs the application until it ends. Every signal is passed on to the application. After a SIGTERM or SIGINT,
    /// waits at most three quarters of `bound` for the end of the application. The second SIGTERM or SIGINT ends mcr
    /// at once.
    async fn accompany(
        &mut self,
        command: &[OsString],
        signals: &mut Signals,
        bound: Duration,
    ) -> anyhow::Result<Ended> {
        let watch = &self.config.watch;
        std::fs::read_dir(watch).map_err(|error| {
            let what = format!("{}: cannot be watched, and nothing was started: {error}", watch.display());
            Advised::new(what, "make the directory, or correct --watch").at(watch)
        })?;
        left_running::check(watch, "nothing was started", "")?;
        self.config.leave_out = overlooked::left_out(watch, &self.store, &self.config.state_file)?;
        self.config.written_before = overlooked::written_before(&self.config);
        self.begin_incarnation().await;
        // If the layout and the number of ranks are known, the agent starts before the application. Otherwise the
        // agent waits for the names of files.
        let is_known = match &self.config.layout {
            LayoutChoice::Known(layout) => !layout.has_ranks() || !self.must_count_ranks(),
            LayoutChoice::Whole => true,
            LayoutChoice::Guess => false,
        };
        if is_known {
            self.start_agent().await?;
            if let Some(node) = &mut self.node {
                node.watches().await;
            }
        }
        let mut application = match Application::start(command, &self.config.watch) {
            Ok(application) => application,
            Err(error) => {
                let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                tracing::error!(command = name, %error, "the command cannot be started");
                let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
                return Ok(Ended { code, until: Instant::now(), processes: Processes::Gone });
            }
        };
        let mut signalled: Option<Instant> = None;
        let mut flushed = None;
        let mut agent_failed = false;
        let status = loop {
            let half = signalled.filter(|_| flushed.is_none()).map(|at| at + bound / 2);
            let last = signalled.map(|at| at + bound / 4 * 3);
            tokio::select! {
                status = application.wait() => break status.context("waiting for the command")?,
                error = self.run_agent(), if !agent_failed => {
                    tracing::error!(error = format!("{error:#}"), "the agent cannot run; nothing is saved");
                    agent_failed = true;
                }
                () = signals.next_of_all() => {
                    if signals.is_repeated {
                        continue;
                    }
                    application.signal(signals.last);
                    if !signals.is_end() {
                        continue;
                    }
                    if signalled.replace(Instant::now()).is_some() {
                        let _ = at_once();
                        return Ok(Ended { code: NOT_COMMITTED, until: Instant::now(), processes: Processes::MayRun });
                    }
                }
                () = tokio::time::sleep_until(last.unwrap_or_else(Instant::now).into()), if last.is_some() => {
                    tracing::error!(
                        waited_ms = (bound / 4 * 3).as_millis() as u64,
                        "the command has not ended after the signal; mcr commits what was written, and ends without it"
                    );
                    let code = code_of(ExitStatus::from_raw(signals.last as i32));
                    return Ok(Ended { code, until: Instant::now() + bound / 4, processes: Processes::MayRun });
                }
                // The application takes a while to end after the signal. Meanwhile, the files that the application
                // has written so far are committed.
                () = tokio::time::sleep_until(half.unwrap_or_else(Instant::now).into()), if half.is_some() => {
                    // The reply is not used. The receiver is kept because the agent drops a flush without a receiver.
                    let (reply, answer) = tokio::sync::oneshot::channel();
                    flushed = Some(answer);
                    if let Some(node) = &self.node {
                        node.flush(FlushRequest { timeout: bound / 2, reply });
                    }
                }
            }
        };
        let (now, code) = (Instant::now(), code_of(status));
        let until = signalled.map_or(now + bound, |at| (at + bound).max(now + bound / 4));
        tracing::info!(exit_status = code, "the command ended");
        let processes = match (application.is_gone(), code) {
            (true, 0) => Processes::EndedWell,
            // The command ended by itself after the signal, so it has probably finished its files.
            (true, 1..128) if signalled.is_some() && status.code().is_some() => Processes::Gone,
            (true, _) => Processes::Failed,
            (false, _) => {
                tracing::warn!(
                    "processes of the command still run; what they write from now on may not be saved. Let the command \
                     wait for them"
                );
                Processes::MayRun
            }
        };
        Ok(Ended { code, until, processes })
    }

    /// Ends the agent, then the aggregator. Returns whether all written files are committed, and the newest
    /// checkpoint is not doubtful.
    async fn drain(mut self, until: Instant, processes: Processes) -> anyhow::Result<bool> {
        self.config.has_ended_well = processes == Processes::EndedWell;
        if self.node.is_none() && self.config.watch.is_dir() {
            let store = self.sees_all_ranks.then_some(&*self.store);
            let saved = remembered::load(&self.config, store).await;
            let sees_all = self.sees_all_ranks && processes != Processes::MayRun;
            match last_layout(&self.config, &saved, sees_all, self.question.take())? {
                LastLayout::Layout { layout, is_whole } => {
                    let may_have_failed = matches!(processes, Processes::Gone | Processes::Failed);
                    let is_known = self.config.ranks.is_some() || !is_whole;
                    let is_counted = !self.must_count_ranks()
                        || counted::set(&mut self.config, &layout, processes == Processes::EndedWell).await;
                    // The files may be only a part of a checkpoint.
                    self.config.are_ranks_uncertain = may_have_failed
                        && (!is_known || !is_counted && counted::set(&mut self.config, &layout, true).await);
                    self.config.is_after_failure = may_have_failed && is_whole;
                    self.node = Some(NodeAgent::start(self.config.clone(), layout, Some(self.store.clone()))?);
                }
                LastLayout::Nothing => {}
                LastLayout::Unknown => return Ok(false),
            }
        }
        let layout = self.node.as_ref().map(|node| node.layout().clone());
        let (by_agent, misfit) = match self.node.take() {
            Some(node) => {
                let (drained, misfit) = node.drain(until, processes).await;
                (Some(drained), misfit)
            }
            None => (None, names::Misfit::default()),
        };
        let state = match (&by_agent, &self.aggregator) {
            (Some(drained), Some(aggregator)) => state_of(aggregator, drained).await,
            _ => None,
        };
        let by_aggregator = match self.aggregator {
            Some(aggregator) => Some(aggregator.drain(until).await),
            None => None,
        };
        // On several nodes, other nodes may still commit a newer checkpoint.
        let is_sure = !self.sees_all_ranks || doubted::report(&self.config, &self.store, self.has_seen_files);
        let are_named = misnamed::report_misfit(misfit)
            && !misnamed::report_misnamed(&self.config, &self.store)
            && overlooked::report(
                &self.config,
                &self.store,
                layout.as_ref(),
                by_agent.as_ref().map_or(&[], |drained| &drained.unreadable),
            );
        // The agent logs all ranks of this node that are not committed, including ranks that the aggregator lacks.
        Ok(match (by_agent, by_aggregator) {
            (Some(drained), _) if drained != mcr_cnc::agent::Drained::default() => {
                report_agent(&drained, state.as_ref().map(|state| (&self.config.job, state)))
            }
            (_, Some(drained)) => report_aggregator(&drained),
            (Some(drained), None) => report_agent(&drained, None),
            (None, None) => true,
        } && are_named
            && is_sure)
    }
}

/// Logs that a second signal ended the daemon, and returns the exit status.
pub fn at_once() -> ExitCode {
    tracing::error!(exit_status = NOT_COMMITTED, "a second signal: ended at once, without committing the rest");
    ExitCode::from(NOT_COMMITTED)
}

/// Runs `main` to its end. Does not wait for threads that hang in a file system. Such threads end with the process.
pub fn within_runtime(main: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = runtime(2)?;
    let result = runtime.block_on(main);
    runtime.shutdown_background();
    result
}

/// Starts an aggregator that only this user and root can reach. If there can be no socket next to the state file, for
/// example because another process of the job uses this socket, the socket is in a new directory.
async fn start_on_socket(
    mut config: AncConfig,
    state_file: &Path,
) -> anyhow::Result<(Aggregator, Option<SocketDirectory>)> {
    let socket = aggregator_socket_of(state_file);
    config.socket = Some(socket.clone());
    match start_aggregator(config.clone()).await {
        Err(error) if error.is::<std::io::Error>() => {
            let unique = RandomState::new().hash_one(std::process::id());
            let dir = std::env::temp_dir().join(format!("mcr-{unique:016x}"));
            let error = format!("{error:#}");
            tracing::warn!(socket = %socket.display(), error, dir = %dir.display(), "the aggregator uses another socket");
            std::fs::DirBuilder::new().mode(0o700).create(&dir).with_context(|| dir.display().to_string())?;
            let dir = SocketDirectory(dir);
            config.socket = Some(dir.0.join("aggregator.sock"));
            Ok((start_aggregator(config).await?, Some(dir)))
        }
        started => Ok((started?, None)),
    }
}

/// A directory for one socket, which is removed when this value is dropped.
struct SocketDirectory(PathBuf);

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub async fn start_aggregator(config: AncConfig) -> anyhow::Result<Aggregator> {
    let how = ", or --create, or create = true in [anc]";
    let store = open_own(&config.store, config.create, config.shared_store, how)?;
    let listen = match &config.socket {
        Some(socket) => socket.display().to_string(),
        None => config.listen.to_string(),
    };
    Aggregator::start(config, Arc::new(store)).await.with_context(|| format!("listening on {listen}"))
}

/// Interval of the scans of a directory whose file names do not show the layout yet.
const GUESS_INTERVAL: Duration = Duration::from_secs(2);

/// The configured layout. If no layout is configured, waits until the file names show the layout. `store`: the store,
/// if all ranks of the job are on this node. `question`: the question about the names of the files that was logged
/// before.
async fn agent_layout(
    config: &CncConfig,
    store: Option<&Path>,
    question: &mut Option<Question>,
) -> anyhow::Result<Layout> {
    let (mut reported, mut saved) = (None, None);
    loop {
        let (layout, guessed) = config.resolve_layout(false)?;
        let Some(explanation) = guessed else { return Ok(layout) };
        if saved.is_none() {
            saved = Some(remembered::load(config, store).await);
        }
        let guess = (layout, explanation);
        let (layout, mut explanation) = match &saved {
            Some(saved) => saved.keep_while_running(guess, &config.watch, config.ranks),
            None => guess,
        };
        question::keep(config, &layout, &mut explanation, question);
        doubt_other_nodes(config, &layout, &mut explanation);
        if explanation.certain {
            for line in &explanation.lines {
                tracing::warn!(line, "no layout is configured; it was guessed from the file names");
            }
            if let (Some(ranks @ 2..), false) = (config.ranks, explanation.shows_ranks) {
                tracing::warn!(
                    ranks,
                    from = config.ranks_from,
                    "a checkpoint is complete only when all ranks have written, but no file name contains a rank; \
                     if the application writes one file for all ranks, give --ranks 1 or --layout"
                );
            }
            return Ok(layout);
        }
        if reported != Some(explanation.asks.is_some()) {
            reported = Some(explanation.asks.is_some());
            let at_the_end = match explanation.asks {
                None if may_be_whole(config, store.is_some()) => {
                    "; if they never do, all files are saved as one checkpoint at the end; to save them earlier, give \
                     --layout single, or layout = \"single\" in [cnc]"
                }
                _ => "; nothing is saved until they do; name the layout with the key layout in [cnc], or with --layout",
            };
            let why = reason_of(explanation);
            tracing::warn!(
                watch = %config.watch.display(),
                why,
                "no layout is configured, and the file names do not show it yet{at_the_end}"
            );
        }
        tokio::time::sleep(GUESS_INTERVAL).await;
    }
}

/// Whether all files may be saved as one checkpoint, because they belong to one rank.
fn may_be_whole(config: &CncConfig, sees_all_ranks: bool) -> bool {
    config.ranks.map_or(sees_all_ranks, |ranks| ranks == 1) && config.own.watches(Rank(0))
}

/// Logs that the number of ranks of the job is not known.
fn warn_of_unknown_ranks(config: &CncConfig) {
    if config.ranks.is_none() {
        tracing::warn!(
            job = %config.job,
            "number of ranks unknown: the number of the job's newest checkpoint is used; if the job has no checkpoint, \
             nothing is saved; give --ranks, or ranks in [cnc], or SLURM_NTASKS"
        );
    }
}

/// The reason why a guess is not used.
fn reason_of(explanation: Explanation) -> String {
    explanation.asks.or_else(|| explanation.lines.last().cloned()).unwrap_or_default()
}

/// Marks a guess as uncertain if the guess assigns all files to rank 0, but this node does not have rank 0. In this
/// case, each node may have a separate directory with the files of one rank.
fn doubt_other_nodes(config: &CncConfig, layout: &Layout, explanation: &mut Explanation) {
    if explanation.certain && !layout.has_ranks() && !config.own.watches(Rank(0)) {
        explanation.certain = false;
        let why = "no file name shows a rank, so that all files are of rank 0, which is not in local-ranks of this node: \
                   name the layout, with {rank} in it";
        explanation.asks = Some(why.to_owned());
    }
}

/// Makes a runtime. Two threads are enough, because these threads only handle frames and timers. Files, codecs and
/// the store have other threads.
fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(64)
        .enable_all()
        .build();
    runtime.context("starting the network threads")
}

/// The layout of an agent that must end before its layout is known.
enum LastLayout {
    /// `is_whole`: the names show no checkpoints, so all files are one checkpoint.
    Layout { layout: Layout, is_whole: bool },
    /// There are no files of the application.
    Nothing,
    /// There are files, but their names do not show the layout. The log reports these files.
    Unknown,
}

/// The layout at the end of the job. `saved`: the files of the job's newest checkpoints, which the layout must place as
/// they were saved.
fn last_layout(
    config: &CncConfig,
    saved: &SavedFiles,
    sees_all_ranks: bool,
    mut asked: Option<Question>,
) -> anyhow::Result<LastLayout> {
    let (layout, guessed) = config.resolve_layout(true)?;
    let Some(explanation) = guessed else { return Ok(LastLayout::Layout { layout, is_whole: false }) };
    let (layout, mut explanation) = saved.keep((layout, explanation), &config.watch, config.ranks);
    question::keep(config, &layout, &mut explanation, &mut asked);
    doubt_other_nodes(config, &layout, &mut explanation);
    if explanation.certain || explanation.awaits_files {
        return Ok(LastLayout::Layout { layout, is_whole: false });
    }
    let listing = list(&config.watch, &config.scan_limits())?;
    let files = overlooked::of_the_application(listing, &config.watch, None).files.len();
    if files == 0 {
        return Ok(LastLayout::Nothing);
    }
    if explanation.is_whole && may_be_whole(config, sees_all_ranks) {
        tracing::warn!(
            watch = %config.watch.display(), files,
            "no layout is configured, and the file names show no checkpoints: all files are saved as one checkpoint"
        );
        return Ok(LastLayout::Layout { layout, is_whole: true });
    }
    tracing::error!(
        exit_status = NOT_COMMITTED,
        watch = %config.watch.display(), files, why = reason_of(explanation),
        "not committed: no layout is configured, and the names of the files do not show it; name one with the key \
         layout in [cnc], or with --layout, or save them with mcr save"
    );
    Ok(LastLayout::Unknown)
}
