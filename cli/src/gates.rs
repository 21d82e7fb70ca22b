//! The agent's side of gates: chooses the gates of a start of a job, and finds the aggregators of this start.
//!
//! All agents of a start compute the same order of the gates, from a hash of the start. An agent calls the gates in
//! this order until two gates have answered. A gate answers with the agreement of this start (which gates to use), if
//! the gate has one. If neither gate has an agreement, the agent proposes an agreement, in which the gates with the
//! least load come first. The first of the two gates remembers the first proposal for the start. The agents copy this
//! agreement to the second gate.

use crate::cert::security;
use crate::refused::NoIdentity;
use crate::settings::GateOptions;
use mcr_cnc::config::{CncConfig, is_host_and_port};
use mcr_cnc::finder::{Finder, Later};
use mcr_proto::gate::gate_client::GateClient;
use mcr_proto::gate::{AgreeRequest, Agreement, LoadReply, LoadRequest, OpenRequest, Start};
use mcr_proto::tls::gate::GateTrust;
use mcr_proto::tls::{Identity, Other, Security, sentence_of};
use mcr_proto::version::GATE_VERSIONS;
use mcr_proto::{GATE_MESSAGE_BYTES_MAX, GATES_MAX};
use mcrengine::error_chain::error_chain;
use mcrengine::ids::Digest;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Maximum time to connect to a gate.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Maximum time to wait for the answer of a gate.
const CALL_MAX: Duration = Duration::from_secs(12);
/// Time between two attempts to agree.
const AGAIN: Duration = Duration::from_secs(2);
/// Number of gates that remember an agreement.
const HOMES: usize = 2;
/// Number of nodes that share one aggregator, if the number of aggregators is not configured.
const NODES_PER_AGGREGATOR: usize = 8;

/// The data with which a worker asks the gates for aggregators.
#[derive(Clone, Debug)]
pub struct Wish {
    /// `HOST:PORT` of each gate.
    pub gates: Vec<String>,
    /// The options of gates in the cluster's file.
    pub options: GateOptions,
    /// Number of nodes of the job.
    pub nodes: u32,
    /// The configured number of aggregators.
    pub aggregators: Option<u32>,
    /// Memory that each aggregator may use, in bytes.
    pub budget_bytes: u64,
    /// The settings of the aggregators, as text for [`OpenRequest::settings`].
    pub settings: String,
}

/// The data for requests to the gates. These data are known before the agreement.
pub struct Asking {
    wish: Wish,
    start: Start,
    /// Number of groups of the job, if the number of ranks is known.
    groups: Option<u32>,
    identity: Arc<Identity>,
}

/// The gates that a start of a job uses.
pub struct Gates {
    asking: Arc<Asking>,
    agreement: Agreement,
    /// The reason in the last warning. A warning with the same reason is not repeated.
    told: Mutex<String>,
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates").field("agreement", &self.agreement).finish_non_exhaustive()
    }
}

/// The reason why a gate did not fulfil a request.
enum Failure {
    /// The gate did not answer, or the answer cannot be used.
    Unreachable(String),
    /// The gate answered with a refusal.
    Refused(String),
}

impl Failure {
    fn of(status: &Status) -> Self {
        match status.code() {
            Code::ResourceExhausted | Code::InvalidArgument | Code::FailedPrecondition | Code::PermissionDenied => {
                Self::Refused(status.message().to_owned())
            }
            _ => Self::Unreachable(sentence_of(status, Other::Gate)),
        }
    }

    fn reason(self) -> String {
        match self {
            Self::Unreachable(reason) | Self::Refused(reason) => reason,
        }
    }
}

impl Asking {
    pub fn new(wish: Wish, agent: &CncConfig) -> anyhow::Result<Self> {
        let Security::Tls(identity) = security(None, &wish.gates)? else {
            let why = "gates need TLS, but the cluster's file has tls = \"off\", or a gate has a loopback address";
            return Err(NoIdentity(why.into()).into());
        };
        let start = Start { job: agent.job.to_string(), identity: agent.incarnation.clone() };
        let groups = agent.ranks.map(|ranks| ranks.div_ceil(agent.group_size.max(1)));
        Ok(Self { wish, start, groups, identity })
    }

    /// Finds the agreement that all agents of this start use. Tries again until there is an agreement that can be
    /// used.
    pub async fn agree(self: Arc<Self>) -> Gates {
        let mut told = String::new();
        loop {
            match self.try_to_agree().await {
                Ok(agreement) => {
                    let gates = agreement.gates.join(" ");
                    tracing::info!(aggregators = agreement.places, gates, "the gates of the job are known");
                    return Gates { asking: self, agreement, told: Mutex::default() };
                }
                Err(why) if why != told => {
                    tracing::warn!(why, "nothing is saved until a gate answers");
                    told = why;
                }
                Err(_) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn try_to_agree(self: &Arc<Self>) -> Result<Agreement, String> {
        let order = in_order(&self.start, &self.wish.gates);
        let (mut asked, mut reasons) = (Vec::new(), Vec::new());
        for gate in &order {
            match self.ask_agreement(gate, None).await {
                Ok(known) => asked.push((gate, known)),
                Err(failure) => reasons.push(format!("{gate}: {}", failure.reason())),
            }
            if asked.len() == HOMES {
                break;
            }
        }
        let Some((home, at_home)) = asked.first() else {
            return Err(format!("no gate answers ({})", reasons.join("; ")));
        };
        let known = asked.iter().find_map(|(_, known)| known.clone());
        let agreement = match at_home {
            Some(agreement) => agreement.clone(),
            None => {
                let proposal = match known {
                    Some(known) => known,
                    None => self.proposal(order.clone()).await,
                };
                let agreed = self.ask_agreement(home, Some(proposal)).await.map_err(Failure::reason)?;
                agreed.ok_or("the gate remembered nothing")?
            }
        };
        for (gate, _) in asked.iter().skip(1).filter(|(_, known)| known.is_none()) {
            // If the first gate never answers again, agents ask the second gate, and must get the same agreement.
            let _ = self.ask_agreement(gate, Some(agreement.clone())).await;
        }
        let Agreement { places, gates } = &agreement;
        let is_usable = (1..=gates.len()).contains(&(*places as usize)) && gates.len() <= GATES_MAX;
        match is_usable && gates.iter().all(|gate| is_host_and_port(gate)) {
            true => Ok(agreement),
            false => Err(format!("{home} remembers an agreement that cannot be used")),
        }
    }

    async fn proposal(self: &Arc<Self>, order: Vec<String>) -> Agreement {
        let asked: Vec<_> = order
            .into_iter()
            .map(|gate| {
                let asking = Arc::clone(self);
                tokio::spawn(async move { (asking.load(&gate).await.ok(), gate) })
            })
            .collect();
        let mut loads = Vec::new();
        for asked in asked {
            if let Ok((load, gate)) = asked.await {
                loads.push((gate, load));
            }
        }
        let nodes = self.wish.nodes as usize;
        let wanted = self.wish.aggregators.map_or(nodes.div_ceil(NODES_PER_AGGREGATOR), |number| number as usize);
        propose(loads, wanted.min(self.groups.map_or(usize::MAX, |groups| groups as usize)), self.wish.budget_bytes)
    }

    async fn client(&self, gate: &str) -> Result<GateClient<Channel>, Failure> {
        let unreachable = |why: String| Failure::Unreachable(why);
        let file = self.wish.options.directory.join("cluster.pem");
        let text = tokio::fs::read_to_string(&file).await;
        let text = text
            .map_err(|error| unreachable(format!("{}: {error}; copy it from the node of the gate", file.display())))?;
        let trust = GateTrust::new(&text);
        let trust = trust.map_err(|error| unreachable(format!("{}: {}", file.display(), error_chain(&error))))?;
        let endpoint =
            Endpoint::from_shared(format!("http://{gate}")).map_err(|error| unreachable(error.to_string()))?;
        let connected = tokio::time::timeout(CONNECT_MAX, trust.connect(&endpoint, gate, &self.identity)).await;
        let channel = connected
            .map_err(|_| unreachable(format!("no connection within {} s", CONNECT_MAX.as_secs())))?
            .map_err(|error| unreachable(sentence_of(&error, Other::Gate)))?;
        Ok(GateClient::new(channel)
            .max_decoding_message_size(GATE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GATE_MESSAGE_BYTES_MAX))
    }

    async fn load(&self, gate: &str) -> Result<LoadReply, Failure> {
        let (version, newest_version) = versions();
        let mut client = self.client(gate).await?;
        answer(client.load(request(LoadRequest { version, newest_version }))).await
    }

    async fn ask_agreement(&self, gate: &str, proposal: Option<Agreement>) -> Result<Option<Agreement>, Failure> {
        let (version, newest_version) = versions();
        let start = Some(self.start.clone());
        let mut client = self.client(gate).await?;
        let reply = answer(client.agree(request(AgreeRequest { version, newest_version, start, proposal }))).await?;
        Ok(reply.agreement)
    }

    /// Asks a gate to start the aggregator. Returns the first and the last port on which the aggregator may listen.
    /// `groups`: the number of groups that the aggregator will serve.
    async fn open(&self, gate: &str, groups: u32) -> Result<(u16, u16), Failure> {
        let (version, newest_version) = versions();
        let (start, nodes) = (Some(self.start.clone()), self.wish.nodes);
        let settings = self.wish.settings.clone();
        let mut client = self.client(gate).await?;
        let call = client.open(request(OpenRequest { version, newest_version, start, nodes, groups, settings }));
        let reply = answer(call).await?;
        let ports = u16::try_from(reply.first_port).ok().zip(u16::try_from(reply.last_port).ok());
        let valid = ports.filter(|(first, last)| (1..=*last).contains(first));
        valid.ok_or_else(|| Failure::Unreachable("the gate named no ports".to_owned()))
    }
}

fn versions() -> (u32, u32) {
    (*GATE_VERSIONS.start(), *GATE_VERSIONS.end())
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_MAX);
    request
}

async fn answer<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Failure> {
    match tokio::time::timeout(CALL_MAX, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Failure::of(&status)),
        Err(_) => Err(Failure::Unreachable(format!("no answer within {} s", CALL_MAX.as_secs()))),
    }
}

/// Memory that must stay free on the node of a gate in addition to the budget of a new aggregator, in MiB.
pub const SPARE_MIB: u64 = 64;

/// The gates in the order of a start. All agents of the start compute the same order. Different starts compute
/// different orders (rendezvous hashing).
fn in_order(start: &Start, gates: &[String]) -> Vec<String> {
    let weight = |gate: &String| Digest::of(format!("{}\0{}\0{gate}", start.job, start.identity).as_bytes()).0;
    let mut order = gates.to_vec();
    order.sort_by_cached_key(weight);
    order.dedup();
    order
}

/// Sorts the gates by their load. Full gates, and then gates that did not answer, come last. `wanted`: the number of
/// aggregators to ask for.
fn propose(loads: Vec<(String, Option<LoadReply>)>, wanted: usize, budget_bytes: u64) -> Agreement {
    let has_room = |load: &LoadReply| {
        load.aggregators < load.aggregators_max
            && load.own_aggregators < load.own_aggregators_max
            && load.free_memory_bytes >= budget_bytes + (SPARE_MIB << 20)
    };
    let rooms = loads.iter().flat_map(|(_, load)| load).filter(|load| has_room(load)).count();
    let places = u32::try_from(wanted.min(rooms).max(1)).unwrap_or(1);
    let mut gates = loads;
    // The sort is stable, so gates with equal load keep the order of the start.
    gates.sort_by_key(|(_, load)| match load {
        Some(load) => (u8::from(!has_room(load)), load.groups, load.aggregators),
        None => (2, 0, 0),
    });
    Agreement { places, gates: gates.into_iter().map(|(gate, _)| gate).collect() }
}

impl Gates {
    /// A name for the aggregator of each place, for log messages. A place is an index below [`Agreement::places`].
    pub fn names(&self) -> Vec<String> {
        self.agreement.gates.iter().take(self.agreement.places as usize).cloned().collect()
    }

    /// Number of groups of a place; 0 if unknown.
    fn groups_of(&self, place: usize) -> u32 {
        let (Ok(place), Some(groups)) = (u32::try_from(place), self.asking.groups) else { return 0 };
        groups.saturating_sub(place).div_ceil(self.agreement.places.max(1))
    }
}

impl Finder for Gates {
    fn gates(&self) -> usize {
        self.agreement.gates.len()
    }

    fn find(&self, link: usize, nth: usize) -> Later<'_, Result<String, String>> {
        Box::pin(async move {
            let gate = &self.agreement.gates[(link + nth) % self.agreement.gates.len()];
            let host = gate.rsplit_once(':').map_or(gate.as_str(), |(host, _)| host);
            match self.asking.open(gate, self.groups_of(link)).await {
                Ok((first, last)) => Ok(format!("{host}:{first}-{last}")),
                Err(Failure::Refused(why)) => Err(format!("{gate}: {why}")),
                // The aggregator may run even if its gate does not run.
                Err(Failure::Unreachable(why)) => {
                    let why = format!("{gate}: {why}");
                    let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                    if *told != why {
                        tracing::warn!(why, "a gate does not answer");
                        *told = why;
                    }
                    Ok(format!("{host}:{}", self.asking.wish.options.ports))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(groups: u32, free_mib: u64) -> Option<LoadReply> {
        let (aggregators_max, own_aggregators_max, free_memory_bytes) = (4, 2, free_mib << 20);
        Some(LoadReply { aggregators_max, own_aggregators_max, groups, free_memory_bytes, ..LoadReply::default() })
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn every_agent_of_a_start_has_the_same_order_and_starts_are_spread_over_the_gates() {
        let gates = names(&["a:1", "b:1", "c:1", "d:1"]);
        let mut first = std::collections::BTreeMap::new();
        for job in 0..400 {
            let start = Start { job: "melt".into(), identity: format!("SLURM job {job}") };
            let order = in_order(&start, &gates);
            let mut reversed = gates.clone();
            reversed.reverse();
            assert_eq!(order, in_order(&start, &reversed));
            // Adding or removing a gate does not change the order of the remaining gates.
            let without: Vec<_> = order.iter().filter(|gate| *gate != "b:1").cloned().collect();
            assert_eq!(without, in_order(&start, &names(&["a:1", "c:1", "d:1"])));
            *first.entry(order[0].clone()).or_insert(0) += 1;
        }
        assert!(first.len() == 4 && first.values().all(|number| (50..150).contains(number)), "{first:?}");
    }

    #[test]
    fn the_least_loaded_gates_with_room_are_chosen_and_the_others_are_for_failures() {
        let gates = |loads: &[(&str, Option<LoadReply>)]| -> Vec<_> {
            loads.iter().map(|(gate, load)| ((*gate).to_owned(), load.clone())).collect()
        };
        let loads = gates(&[
            ("dead", None),
            ("busy", load(9, 999)),
            ("small", load(0, 100)),
            ("x", load(2, 999)),
            ("y", load(2, 999)),
        ]);
        let chosen = propose(loads.clone(), 2, 256 << 20);
        assert_eq!((chosen.places, chosen.gates), (2, names(&["x", "y", "busy", "small", "dead"])));
        // The proposal has at most one aggregator for each gate with room, and at least one aggregator.
        assert_eq!(propose(loads.clone(), 9, 256 << 20).places, 3);
        assert_eq!(propose(loads.clone(), 9, 1 << 40).places, 1);
        assert_eq!(propose(loads, 0, 0).places, 1);
        assert_eq!(propose(gates(&[("dead", None)]), 4, 0), Agreement { places: 1, gates: names(&["dead"]) });
    }
}
