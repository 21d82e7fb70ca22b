//! Answers the calls of agents to the gate.

use super::door::Client;
use super::memory::Memory;
use super::refusals::Refusals;
use crate::gates::SPARE_MIB;
use crate::settings::{Facts, GateOptions, Settings};
use crate::standing::Order;
use mcr_cnc::config::is_host_and_port;
use mcr_node::client::ask;
use mcr_node::protocol::{Reply, Request as NodeRequest, Standing, StandingLine};
use mcr_proto::gate::gate_server::Gate;
use mcr_proto::gate::{AgreeReply, AgreeRequest, Agreement, LoadReply, LoadRequest, OpenReply, OpenRequest, Start};
use mcr_proto::version::{GATE_VERSIONS, choose, named, offered};
use mcr_proto::{GATE_SETTINGS_BYTES_MAX, GATES_MAX, SOFTWARE};
use mcrengine::ids::{Digest, JobId};
use mcrengine::incarnation::IDENTITY_BYTES_MAX;
use nix::unistd::{Uid, User};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tonic::{Request, Response, Status};

/// Maximum time to wait for a reply of `mcr node`.
const NODE_MAX: Duration = Duration::from_secs(3);
/// Maximum number of requests to `mcr node` at the same time.
const NODE_REQUESTS_MAX: usize = 6;
/// Maximum number of nodes of a job.
const NODES_MAX: u32 = 1 << 20;
/// Maximum length of the address `HOST:PORT` of a gate, in bytes.
const ADDRESS_BYTES_MAX: usize = 262;
/// Length of the key that identifies a start of a job, in hexadecimal digits.
const KEY_DIGITS: usize = 32;

pub struct Service {
    options: GateOptions,
    /// The socket of `mcr node`.
    socket: PathBuf,
    memory: Arc<Memory>,
    refusals: Arc<Refusals>,
    requests: Semaphore,
    /// Held from counting the running aggregators until the start of a new aggregator, so that two requests at the
    /// same time cannot exceed the limits.
    opening: Mutex<()>,
}

impl Service {
    pub fn new(options: GateOptions, socket: PathBuf, memory: Memory, refusals: Arc<Refusals>) -> Self {
        let requests = Semaphore::new(NODE_REQUESTS_MAX);
        Self { options, socket, memory: Arc::new(memory), refusals, requests, opening: Mutex::default() }
    }

    /// Sends a request to `mcr node`. A refusal becomes an error.
    async fn ask(&self, request: NodeRequest) -> Result<Reply, Status> {
        let _room = self.requests.acquire().await;
        let socket = self.socket.clone();
        match tokio::task::spawn_blocking(move || ask(&socket, &request, NODE_MAX)).await {
            Ok(Ok(Reply::Refused(why))) => Err(Status::failed_precondition(format!("mcr node: {why}"))),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                let why = format!("mcr node does not answer at {}: {error}", self.socket.display());
                Err(Status::unavailable(why))
            }
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }

    /// The aggregators that run on this node.
    async fn running(&self) -> Result<Vec<StandingLine>, Status> {
        match self.ask(NodeRequest::Standing).await? {
            Reply::Standing(all) => Ok(all),
            other => Err(Status::internal(format!("mcr node answered {other:?}"))),
        }
    }

    fn load_of(&self, uid: u32, version: u32, running: &[StandingLine]) -> LoadReply {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        LoadReply {
            version,
            software: SOFTWARE.into(),
            aggregators: count(running.len()),
            aggregators_max: self.options.aggregators,
            own_aggregators: count(running.iter().filter(|line| line.uid == uid).count()),
            own_aggregators_max: self.options.user_aggregators,
            groups: running.iter().fold(0, |sum, line| sum.saturating_add(line.groups)),
            free_memory_bytes: free_memory_bytes(running).unwrap_or(0),
        }
    }

    async fn agreed(&self, client: &Client, request: AgreeRequest) -> Result<AgreeReply, Status> {
        let version = chosen(request.version, request.newest_version)?;
        let (_, key) = start_of(request.start)?;
        let proposal = request.proposal.map(checked).transpose()?;
        let (memory, uid) = (Arc::clone(&self.memory), client.uid);
        let agree = move || match proposal {
            Some(proposal) => memory.agree(uid, &key, proposal).map(Some),
            None => Ok(memory.get(uid, &key)),
        };
        match tokio::task::spawn_blocking(agree).await {
            Ok(Ok(agreement)) => Ok(AgreeReply { version, agreement }),
            Ok(Err(error)) => Err(Status::internal(format!("the gate cannot remember: {error}"))),
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }

    async fn opened(&self, client: &Client, request: OpenRequest) -> Result<OpenReply, Status> {
        let version = chosen(request.version, request.newest_version)?;
        let (start, key) = start_of(request.start)?;
        if !(1..=NODES_MAX).contains(&request.nodes) {
            return Err(Status::invalid_argument(format!("nodes is {}; it must be 1 to {NODES_MAX}", request.nodes)));
        }
        if request.settings.len() > GATE_SETTINGS_BYTES_MAX {
            let why = format!("the settings have more than {GATE_SETTINGS_BYTES_MAX} bytes");
            return Err(Status::invalid_argument(why));
        }
        let (first, last) = self.options.port_range().unwrap_or_default();
        let reply = OpenReply { version, first_port: first.into(), last_port: last.into() };
        let runs = |running: &[StandingLine]| running.iter().any(|line| line.uid == client.uid && line.key == key);
        if runs(&self.running().await?) {
            return Ok(reply);
        }
        let (uid, settings) = (client.uid, request.settings.clone());
        let budget = tokio::task::spawn_blocking(move || budget_mib(uid, &settings)).await;
        let budget_mib = budget
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        let _opening = self.opening.lock().await;
        let running = self.running().await?;
        if runs(&running) {
            return Ok(reply);
        }
        if let Some(why) = full(&self.load_of(client.uid, version, &running), budget_mib) {
            return Err(Status::resource_exhausted(why));
        }
        let order = Order { identity: start.identity, nodes: request.nodes, settings: request.settings };
        let settings = serde_json::to_string(&order).map_err(|error| Status::internal(error.to_string()))?;
        let standing = Standing { key, uid: client.uid, groups: request.groups, budget_mib, settings };
        self.ask(NodeRequest::Stand(standing)).await?;
        tracing::info!(uid = client.uid, peer = client.peer, job = start.job, "an aggregator was started");
        Ok(reply)
    }

    /// Converts a result to the answer of a call. Logs an error.
    fn answer<T>(&self, client: &Client, result: Result<T, Status>) -> Result<Response<T>, Status> {
        if let Err(status) = &result {
            self.refusals.log(&client.peer, Some(client.uid), status.message());
        }
        result.map(Response::new)
    }
}

#[tonic::async_trait]
impl Gate for Service {
    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<LoadReply>, Status> {
        let client = client_of(&request)?;
        let LoadRequest { version, newest_version } = request.into_inner();
        let result = async {
            let version = chosen(version, newest_version)?;
            Ok(self.load_of(client.uid, version, &self.running().await?))
        };
        self.answer(&client, result.await)
    }

    async fn agree(&self, request: Request<AgreeRequest>) -> Result<Response<AgreeReply>, Status> {
        let client = client_of(&request)?;
        self.answer(&client, self.agreed(&client, request.into_inner()).await)
    }

    async fn open(&self, request: Request<OpenRequest>) -> Result<Response<OpenReply>, Status> {
        let client = client_of(&request)?;
        self.answer(&client, self.opened(&client, request.into_inner()).await)
    }
}

fn client_of<T>(request: &Request<T>) -> Result<Client, Status> {
    let client = request.extensions().get::<Client>().cloned();
    client.ok_or_else(|| Status::unauthenticated("the user of the connection is not known"))
}

fn chosen(oldest: u32, newest: u32) -> Result<u32, Status> {
    let theirs = offered(oldest, newest);
    choose(&GATE_VERSIONS, &theirs).ok_or_else(|| {
        let (theirs, ours) = (named(&theirs), named(&GATE_VERSIONS));
        Status::failed_precondition(format!(
            "the caller speaks {theirs} of the protocol of gates, and this gate ({SOFTWARE}) {ours}: install the \
             newer release everywhere"
        ))
    })
}

/// Checks the start in a request. Returns the start and its key.
fn start_of(start: Option<Start>) -> Result<(Start, String), Status> {
    let start = start.ok_or_else(|| Status::invalid_argument("the request names no start of a job"))?;
    if let Err(error) = start.job.parse::<JobId>() {
        return Err(Status::invalid_argument(format!("the name of the job is refused: {error}")));
    }
    let identity = &start.identity;
    if !(1..=IDENTITY_BYTES_MAX).contains(&identity.len()) || identity.chars().any(char::is_control) {
        let why = format!(
            "the identity of the start must have 1 to {IDENTITY_BYTES_MAX} bytes, all of them \
             printable"
        );
        return Err(Status::invalid_argument(why));
    }
    let mut key = Digest::of(format!("{}\0{identity}", start.job).as_bytes()).to_hex();
    key.truncate(KEY_DIGITS);
    Ok((start, key))
}

fn checked(agreement: Agreement) -> Result<Agreement, Status> {
    let Agreement { places, gates } = &agreement;
    let is_address = |gate: &String| gate.len() <= ADDRESS_BYTES_MAX && is_host_and_port(gate);
    match (1..=GATES_MAX).contains(&gates.len()) && (1..=gates.len()).contains(&(*places as usize)) {
        true if gates.iter().all(is_address) => Ok(agreement),
        _ => {
            let why =
                format!("a proposal must have 1 to {GATES_MAX} addresses of gates, and no more places than gates");
            Err(Status::invalid_argument(why))
        }
    }
}

/// Memory that an aggregator with these settings may use, in MiB. Opens no file or directory that the settings
/// name.
fn budget_mib(uid: u32, settings: &str) -> anyhow::Result<u64> {
    let user = User::from_uid(Uid::from_raw(uid))?.map_or_else(|| uid.to_string(), |user| user.name);
    let facts = Facts::of_job(BTreeMap::new(), user, uid, Path::new("/"));
    Ok(Settings::of_gate(settings, &facts)?.anc.check()?.budget_bytes >> 20)
}

/// The reason why this node has no room for another aggregator. `None` if there is room.
fn full(load: &LoadReply, budget_mib: u64) -> Option<String> {
    let free_mib = load.free_memory_bytes >> 20;
    if load.aggregators >= load.aggregators_max {
        Some(format!("{} aggregators run on this node already, its maximum", load.aggregators))
    } else if load.own_aggregators >= load.own_aggregators_max {
        let own = load.own_aggregators;
        Some(format!("{own} aggregators of this user run on this node already, which is the maximum"))
    } else if free_mib < budget_mib + SPARE_MIB {
        Some(format!("this node has {free_mib} MiB of free memory, and the aggregator may use {budget_mib} MiB"))
    } else {
        None
    }
}

/// Memory in bytes that is available on this node, and not promised to a running aggregator.
fn free_memory_bytes(running: &[StandingLine]) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib_of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let promised_mib = running.iter().fold(0u64, |sum, line| sum.saturating_add(line.budget_mib));
    let not_promised_kib = kib_of("MemTotal:")?.saturating_sub(promised_mib.saturating_mul(1024));
    kib_of("MemAvailable:")?.min(not_promised_kib).checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_node_says_what_it_lacks() {
        let load = LoadReply {
            aggregators: 3,
            aggregators_max: 4,
            own_aggregators: 1,
            own_aggregators_max: 2,
            free_memory_bytes: 400 << 20,
            ..LoadReply::default()
        };
        assert_eq!(full(&load, 256), None);
        let full = |load: LoadReply, budget| full(&load, budget).expect("full");
        assert!(full(LoadReply { aggregators: 4, ..load.clone() }, 1).contains("4 aggregators run on this node"));
        assert!(full(LoadReply { own_aggregators: 2, ..load.clone() }, 1).contains("2 aggregators of this user"));
        assert!(full(load, 512).contains("400 MiB of free memory, and the aggregator may use 512 MiB"));
        let promised = |budget_mib| {
            let line = StandingLine { key: String::new(), uid: 1, groups: 1, budget_mib, pid: 1 };
            free_memory_bytes(&[line]).expect("/proc/meminfo")
        };
        assert!(promised(1) > 1 << 20 && promised(1 << 40) == 0, "an aggregator may use its whole budget later");
    }

    #[test]
    fn a_caller_of_other_versions_reads_what_to_do() {
        assert_eq!((chosen(1, 0).expect("chosen"), chosen(1, 9).expect("chosen")), (1, 1));
        let refused = chosen(2, 3).expect_err("refused");
        assert!(
            refused.message().contains("speaks versions 2 to 3") && refused.message().contains("install the newer")
        );
    }

    #[test]
    fn a_start_needs_a_name_of_a_job_and_a_printable_identity() {
        let of = |job: &str, identity: &str| {
            start_of(Some(Start { job: job.into(), identity: identity.into() })).map(|(_, key)| key)
        };
        let key = of("melt", "SLURM job 7").expect("valid");
        assert!(key.len() == KEY_DIGITS && key != of("melt", "SLURM job 8").expect("valid"));
        for (job, identity) in [("../x", "a"), ("", "a"), ("a", ""), ("a", "x\ny"), ("a", &"x".repeat(999))] {
            assert!(of(job, identity).is_err(), "{job:?} {identity:?}");
        }
        assert!(start_of(None).is_err());
    }

    #[test]
    fn a_proposal_has_addresses_of_gates_only() {
        let of = |places, gates: &[&str]| {
            checked(Agreement { places, gates: gates.iter().map(|gate| (*gate).to_owned()).collect() })
        };
        assert!(of(2, &["a:1", "b:7117"]).is_ok());
        let many = vec!["a:1"; GATES_MAX + 1];
        for (places, gates) in [(0, &["a:1"][..]), (2, &["a:1"]), (1, &[]), (1, &["a:1-9"]), (1, &["/etc"]), (1, &many)]
        {
            assert!(of(places, gates).is_err(), "{places} {gates:?}");
        }
        let long = format!("{}:1", "a".repeat(300));
        assert!(of(1, &[&long]).is_err());
    }
}
