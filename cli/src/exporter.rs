//! `mcr metrics`: serves the metrics of `mcr node`.
//!
//! The daemon `mcr node` runs as root, and has no port. This daemon has a port and no privilege: it asks `mcr node` at
//! the socket.

use crate::advice::Advised;
use crate::args::MetricsArgs;
use crate::logging::start_logging_and_counting;
use crate::metrics::{UserNames, node_text, serve};
use crate::page::PageSlot;
use mcr_node::client::{SOCKET, ask};
use mcr_node::metrics::Page;
use mcr_node::protocol::{Reply, Request};
use sd_notify::NotifyState;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum time to wait for the answer of `mcr node`.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn run(args: MetricsArgs) -> anyhow::Result<ExitCode> {
    let metrics = start_logging_and_counting(args.log_json);
    let (socket, names, answers) = (args.node.run_dir.join(SOCKET), UserNames::default(), AtomicBool::new(true));
    let text = move |format| {
        let page = page_of(&socket);
        let answered = page.is_ok();
        // The log gets one line when `mcr node` stops answering, and one line when `mcr node` answers again.
        if answers.swap(answered, Ordering::Relaxed) != answered {
            match &page {
                Ok(_) => tracing::info!(socket = %socket.display(), "mcr node answers again"),
                Err(why) => tracing::warn!(socket = %socket.display(), why, "mcr node does not answer"),
            }
        }
        node_text(&metrics, page.ok().as_ref(), &names, format)
    };
    let address = serve(args.listen, text, PageSlot::default()).map_err(|error| {
        let what = format!("listening on {}: {error}", args.listen);
        Advised::new(what, "name an address of this node and a free port with --listen")
    })?;
    tracing::info!(%address, "metrics are served");
    let _ = sd_notify::notify(&[NotifyState::Ready]); // fails if systemd did not start this daemon
    loop {
        std::thread::park(); // a signal ends the process
    }
}

fn page_of(socket: &Path) -> Result<Page, String> {
    match ask(socket, &Request::Metrics, PATIENCE) {
        Ok(Reply::Metrics(page)) => Ok(*page),
        Ok(Reply::Refused(why)) => Err(why),
        Ok(other) => Err(format!("it answers {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}
