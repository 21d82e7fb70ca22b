//! `mcr gate`: lets jobs of other nodes use aggregators on this node.
//!
//! The gate runs on an aggregator node, without privileges. No other daemon of this node listens on the network,
//! except the aggregators. The gate learns the user of an agent from the agent's certificate, and asks `mcr node` on
//! this node to start an aggregator as this user. The protocol is in proto/mcr/gate/v1/gate.proto.

mod door;
mod memory;
mod refusals;
mod service;

use crate::args::GateArgs;
use crate::cert::authority_in;
use crate::daemon::within_runtime;
use crate::refused::{NoIdentity, NotPermitted};
use crate::settings::{GateOptions, cluster_has_tls, gate_options};
use crate::signals::Signals;
use anyhow::Context;
use door::{Door, incoming};
use mcr_node::client::{SOCKET, ask};
use mcr_node::protocol::{Reply, Request};
use mcr_proto::GATE_MESSAGE_BYTES_MAX;
use mcr_proto::gate::gate_server::GateServer;
use mcr_proto::tls::gate::GateDoor;
use memory::Memory;
use refusals::Refusals;
use sd_notify::NotifyState;
use service::Service;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to wait until `mcr node` has read the certificates of a user.
const CERTIFICATES_MAX: Duration = Duration::from_secs(4);
/// Maximum time in which the gate answers a call.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Maximum age of a connection: the gate then closes the connection. An agent makes few calls over a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
/// Maximum number of calls at the same time over one connection.
const CALLS_MAX: usize = 4;

pub fn run(args: GateArgs) -> anyhow::Result<ExitCode> {
    let options = gate_options()?;
    args.log.start(options.metrics_address()?, false);
    if !cluster_has_tls()? {
        return Err(NoIdentity("a gate needs TLS, but the cluster's file has tls = \"off\"".into()).into());
    }
    let socket = args.node.run_dir.join(SOCKET);
    let tls = door_of(&options, &socket)?;
    let memory = Memory::open(&args.state).with_context(|| args.state.display().to_string())?;
    within_runtime(async {
        let mut signals = Signals::new()?;
        let listener = tokio::net::TcpListener::bind(&options.listen)
            .await
            .with_context(|| format!("listening on {}", options.listen))?;
        let address = listener.local_addr()?;
        let refusals = Arc::new(Refusals::default());
        let service = Service::new(options, socket, memory, Arc::clone(&refusals));
        let service = GateServer::new(service)
            .max_decoding_message_size(GATE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GATE_MESSAGE_BYTES_MAX);
        let serving = tonic::transport::Server::builder()
            .timeout(CALL_MAX)
            .max_connection_age(CONNECTION_MAX)
            .max_connection_age_grace(CALL_MAX)
            .concurrency_limit_per_connection(CALLS_MAX)
            .max_concurrent_streams(CALLS_MAX as u32)
            .add_service(service)
            .serve_with_incoming(incoming(listener, Door::new(tls, refusals)));
        tracing::info!(%address, "gate listens");
        let _ = sd_notify::notify(&[NotifyState::Ready]); // fails if systemd did not start the gate
        tokio::select! {
            served = serving => served.context("the gate")?,
            () = signals.next() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Decides which clients may connect. `socket`: the socket of `mcr node`, which reads the users' certificates.
fn door_of(options: &GateOptions, socket: &Path) -> anyhow::Result<Arc<GateDoor>> {
    let (directory, socket) = (options.directory.clone(), socket.to_owned());
    // If the files cannot be read at the start, the type of the error decides the exit status.
    if authority_in(&directory)?.is_none() {
        let dir = directory.display();
        let why = format!("there is no {dir}/cluster.key; as the user of the gate: mcr cert init --dir {dir}");
        return Err(NoIdentity(why).into());
    }
    let source = move || match authority_in(&directory) {
        Ok(Some(files)) => Ok(files),
        Ok(None) => Err(format!("there is no {}/cluster.key", directory.display())),
        Err(error) => Err(format!("{error:#}")),
    };
    let users = move |uid| match ask(&socket, &Request::Certificates { uid }, CERTIFICATES_MAX) {
        Ok(Reply::Certificates(text)) => Ok(text),
        Ok(Reply::Refused(why)) => Err(why),
        Ok(other) => Err(format!("mcr node answered {other:?}")),
        Err(error) => Err(format!("mcr node does not answer at {}: {error}", socket.display())),
    };
    let door = GateDoor::new(Box::new(source), Box::new(users)).map_err(|why| match why.contains("other users") {
        true => anyhow::Error::from(NotPermitted::new(why)),
        false => NoIdentity(why).into(),
    });
    Ok(Arc::new(door?))
}
