//! The log of a process, and the metrics that count its events.

use crate::args::LogArgs;
use crate::metrics::{CountEvents, Format, Metrics, serve};
use crate::output::{Log, Verbosity, note, verbosity};
use crate::page::{PageSlot, Served};
use nix::unistd::{User, geteuid};
use std::net::SocketAddr;
use std::sync::Arc;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

impl LogArgs {
    /// Starts the log of a daemon, and serves metrics if an address for metrics is set. `configured`: the address of
    /// the metrics in the configuration file, which the option and the variable override. A daemon whose metrics
    /// cannot be served logs a warning and runs nevertheless. `has_aggregator`: whether agents connect to this process.
    /// Returns where the page of an aggregator can be shown.
    pub fn start(&self, configured: Option<SocketAddr>, has_aggregator: bool) -> Served {
        let Some((address, metrics)) = self.start_counting(configured, has_aggregator) else {
            return Served::default();
        };
        let page = PageSlot::default();
        let address = serve_metrics(address, move |format| metrics.text(format), Arc::clone(&page));
        Served { address, page }
    }

    /// Starts the log of a daemon. If an address for metrics is set, returns it with the metrics. The caller serves
    /// the metrics ([`serve_metrics`]).
    pub fn start_counting(
        &self,
        configured: Option<SocketAddr>,
        has_aggregator: bool,
    ) -> Option<(SocketAddr, Arc<Metrics>)> {
        let user = || match User::from_uid(geteuid()) {
            Ok(Some(user)) => user.name,
            _ => geteuid().to_string(),
        };
        let metrics = self.metrics.or(configured).map(|address| {
            let metrics = match has_aggregator {
                true => Metrics::new(user()),
                false => Metrics::without_agents(user()),
            };
            (address, Arc::new(metrics))
        });
        start(level(), self.log_json, metrics.as_ref().map(|(_, metrics)| Arc::clone(metrics)));
        metrics
    }
}

/// Serves metrics on a thread, and the page of a daemon that has a page. `text` makes the text of all metrics. Returns
/// the address. If the metrics cannot be served, logs a warning.
pub fn serve_metrics(
    address: SocketAddr,
    text: impl Fn(Format) -> String + Send + Sync + 'static,
    page: PageSlot,
) -> Option<SocketAddr> {
    match serve(address, text, page) {
        Ok(address) => {
            tracing::info!(%address, "metrics are served");
            Some(address)
        }
        Err(error) => {
            tracing::warn!(
                %address, %error,
                "metrics are not served; another process may use the port, so give each daemon another --metrics"
            );
            None
        }
    }
}

/// Starts the log of a process that is not configured by a file. Returns the metrics that count its events.
pub fn start_logging_and_counting(json: bool) -> Arc<Metrics> {
    let metrics = Arc::new(Metrics::new(String::new()));
    start(level(), json, Some(Arc::clone(&metrics)));
    metrics
}

/// With --verbose, writes log lines of a command that is no daemon to standard error.
pub fn start_logging_of_command() {
    match verbosity() {
        Verbosity::Quiet | Verbosity::Normal => {}
        Verbosity::Verbose => start(EnvFilter::new("info"), false, None),
        Verbosity::VeryVerbose => start(EnvFilter::new(OWN_DEBUG), false, None),
    }
}

/// The level of a daemon's log. The options --quiet and --verbose override the variable MCR_LOG. Default: `info`.
fn level() -> EnvFilter {
    match verbosity() {
        Verbosity::Quiet => EnvFilter::new("warn"),
        Verbosity::Normal => of_variable(std::env::var("MCR_LOG").ok().as_deref()),
        Verbosity::Verbose => EnvFilter::new(OWN_DEBUG),
        Verbosity::VeryVerbose => EnvFilter::new("trace"),
    }
}

/// The level that the variable MCR_LOG sets. A value without any level is ignored.
fn of_variable(text: Option<&str>) -> EnvFilter {
    let default = EnvFilter::new("info");
    let Some(text) = text.filter(|text| !text.is_empty()) else { return default };
    let has_level = |part: &str| part.contains(['=', '[']) || part.trim().parse::<LevelFilter>().is_ok();
    match EnvFilter::try_new(text) {
        Ok(filter) if text.split(',').any(has_level) => filter,
        _ => {
            note(format!("MCR_LOG is {text:?}; it must be error, warn, info, debug or trace, so info is used"));
            default
        }
    }
}

/// The lines of this software down to the level `debug`. The libraries for the network write a line for each frame.
const OWN_DEBUG: &str = "info,mcr=debug";

/// The events that metrics count: all events of this software of the level `debug` or higher, and all warnings.
const COUNTED: &str = "warn,mcr=debug";

/// Writes log lines to standard error. `metrics` count the events of [`COUNTED`], whatever the level of the log is.
fn start(level: EnvFilter, json: bool, metrics: Option<Arc<Metrics>>) {
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Log).with_target(false);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match json {
        true => lines.json().with_filter(level).boxed(),
        false => lines.with_ansi(false).with_filter(level).boxed(),
    };
    let counts = metrics.map(|metrics| CountEvents(metrics).with_filter(EnvFilter::new(COUNTED)));
    // A test process may start logging twice. The second call fails, and its error is ignored.
    let _ = tracing_subscriber::registry().with(lines).with(counts).try_init();
}
