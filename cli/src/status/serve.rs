//! `mcr status --serve`: the page for a browser.

use super::args::StatusArgs;
use super::asking::ask_again_and_again;
use super::model::Model;
use crate::advice::Advised;
use crate::http;
use crate::output::{note, print};
use crate::page::{Page, Source};
use crate::signals::Signals;
use anyhow::Context;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// Serves the page until a signal arrives. Prints the address of the page.
pub async fn run(args: StatusArgs, listen: SocketAddr, model: Model) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        let what = format!("listening on {listen}: {error}");
        Advised::new(what, "another process may use the port, so give --serve another port, or none")
    })?;
    let address = listener.local_addr()?;
    let model = Arc::new(Mutex::new(model));
    let source = Source::Asked(Arc::clone(&model));
    let page = Page::new(source, args.store.clone()).context("/dev/urandom")?;
    print(&format!("{}\n", page.url(address)))?;
    let port = address.port();
    note(format!(
        "open this address in a browser on this machine; from another machine, first run ssh -L \
         {port}:{address} HOST there. Only who knows the address can see the page. Ctrl-C ends it"
    ));
    tokio::spawn(ask_again_and_again(model, args));
    let page = Arc::new(page);
    let answer = move |question: http::Question| {
        let page = Arc::clone(&page);
        async move { page.answer(&question).await }
    };
    tokio::select! {
        () = http::serve(listener, answer) => {}
        () = signals.next() => {}
    }
    Ok(ExitCode::SUCCESS)
}
