//! Tests of `mcr gate`: jobs whose aggregators run on other nodes. In these tests, each node is a set of daemons on
//! this machine, and all daemons belong to one user.

use crate::support::*;
use mcr_proto::gate::gate_client::GateClient;
use mcr_proto::gate::{AgreeRequest, Agreement, LoadRequest, OpenRequest, Start};
use mcr_proto::tls::gate::GateTrust;
use mcr_proto::tls::{Authority, Identity};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// With this line of the cluster's file, an aggregator ends soon after its test, even if the test fails.
const IDLE: &str = "idle-seconds = 20";

/// A cluster with a job of two nodes.
struct Cluster {
    dir: TempDir,
    /// A number that no other test uses, because workers search all processes of this machine for the number.
    job_id: String,
}

/// An aggregator node.
struct Aggregators {
    node: Daemon,
    gate: Daemon,
    /// `HOST:PORT` of the gate.
    address: String,
}

/// A node of the job.
struct Compute<'c> {
    cluster: &'c Cluster,
    name: &'static str,
    daemon: Daemon,
}

impl Cluster {
    fn new(job_id: u32) -> Self {
        let job_id = format!("{}{job_id}", std::process::id());
        let cluster = Self { dir: tempfile::tempdir().expect("a directory"), job_id };
        for dir in ["cert", "gate"] {
            run(mcr().args(["cert", "init", "--dir"]).arg(cluster.path(dir)), 0);
        }
        write_job_files(cluster.dir.path(), &cluster.job_id, "group-size = 2\n");
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a daemon on the node `name`. `cluster_file` and `of_gate` are lines of the cluster's file; `of_gate`
    /// has lines of the table `[gate]`.
    fn daemon(&self, name: &str, cluster_file: &str, of_gate: &str, arguments: &[&str]) -> Daemon {
        let file = self.path(&format!("{name}.toml"));
        let text = format!("{cluster_file}\n[gate]\ndirectory = {:?}\n{of_gate}\n", self.path("gate"));
        std::fs::write(&file, text).expect("written");
        let mut command = mcr();
        command.env("MCR_CLUSTER", file).env("MCR_CERT_DIR", self.path("cert")).env("MCR_TLS", "always");
        command.args(arguments).arg("--run-dir").arg(self.path(&format!("run_{name}")));
        command.env("STATE_DIRECTORY", self.path(&format!("state_{name}")));
        Daemon::start(&mut command)
    }

    /// Starts the daemons of an aggregator node. `ports` are the ports of the node's aggregators.
    fn aggregators(&self, name: &str, ports: &str, of_gate: &str) -> Aggregators {
        let of_gate = format!("listen = \"127.0.0.1:0\"\nports = {ports:?}\n{of_gate}");
        let [node, gate] = [&["node", "--own"][..], &["gate"]]
            .map(|arguments| self.daemon(name, "[anc]\nbudget-mib = 64", &of_gate, arguments));
        node.wait_for_log("serving jobs");
        let line = gate.wait_for_log("gate listens");
        let address = line.split("address=").nth(1).expect("an address").trim().to_owned();
        Aggregators { node, gate, address }
    }

    /// Starts the daemon of a node of the job. The cluster's file of the node names `gates`, and has the lines
    /// `of_gate` in the table `[gate]`.
    fn compute(&self, name: &'static str, gates: &[&Aggregators], of_gate: &str) -> Compute<'_> {
        let gates: Vec<&str> = gates.iter().map(|gate| gate.address.as_str()).collect();
        let file = format!("[cnc]\nshared-directory = true\n[node]\ngates = {gates:?}\naggregators = 1\n");
        let daemon = self.daemon(name, &file, of_gate, &["node", "--own"]);
        daemon.wait_for_log("serving jobs");
        Compute { cluster: self, name, daemon }
    }

    /// The names of the complete checkpoints, the newest checkpoint first.
    fn complete(&self) -> Vec<String> {
        let all = list(&self.path("store"));
        let complete = all.iter().filter(|c| c["complete"] == true);
        complete.map(|c| c["checkpoint"].as_str().expect("a name").to_owned()).collect()
    }

    fn wait_complete(&self, name: &str) {
        wait_for(name, Duration::from_secs(60), || self.complete().iter().any(|found| found == name).then_some(()));
    }

    /// The certificate authority of this user.
    fn authority(&self) -> Authority {
        let read = |name: &str| std::fs::read_to_string(self.path("cert").join(name)).expect("readable");
        Authority { key: read("cluster.key"), certificates: read("cluster.pem") }
    }

    fn settings(&self) -> String {
        format!("store = {:?}\n", self.path("store"))
    }
}

impl Compute<'_> {
    fn job(&self, what: &str) -> Command {
        let mut command = mcr();
        command.args(["job", what, "--run-dir"]).arg(self.cluster.path(&format!("run_{}", self.name)));
        command.env("SLURM_JOB_ID", &self.cluster.job_id).env("SLURM_JOB_UID", nix::unistd::geteuid().to_string());
        command.env("SLURM_JOB_WORK_DIR", self.cluster.path("work")).env("SLURMD_NODENAME", self.name);
        command.env("SLURM_JOB_NUM_NODES", "2").env("SLURM_NODELIST", "n[1-2]").env("SLURM_JOB_NTASKS", "4");
        command.env("SLURM_SCRIPT_CONTEXT", "prolog_slurmd");
        command
    }

    /// Starts a task of the job on this node. The task writes the steps `first` to `last`.
    fn task(&self, rank: u32, first: u32, last: u32) -> Child {
        let script = format!(
            "for step in $(seq {first} {last}); do mkdir -p out/it_$step; \
             echo $step {rank} > out/it_$step/rank_{rank}.dat; sleep 0.4; done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(self.cluster.path("work"));
        command.env("SLURM_JOB_ID", &self.cluster.job_id).env("SLURM_NTASKS", "4").env("SLURM_STEP_ID", "0");
        command.env("SLURM_PROCID", rank.to_string()).env("SLURMD_NODENAME", self.name);
        command.spawn().expect("starts")
    }
}

fn tasks(nodes: &[Compute<'_>; 2], first: u32, last: u32) {
    let mut tasks: Vec<Child> = (0..4).map(|rank| nodes[rank as usize / 2].task(rank, first, last)).collect();
    for task in &mut tasks {
        task.wait().expect("ended");
    }
}

fn begin(nodes: &[Compute<'_>; 2]) {
    for node in nodes {
        run(&mut node.job("begin"), 0);
    }
}

/// Ends the job on both nodes. Fails if an uncommitted file is reported.
fn end(nodes: &[Compute<'_>; 2]) {
    let ends: Vec<Child> = nodes
        .iter()
        .map(|node| node.job("end").stderr(std::process::Stdio::piped()).spawn().expect("starts"))
        .collect();
    for (end, node) in ends.into_iter().zip(nodes) {
        let said = end.wait_with_output().expect("ended").stderr;
        assert_eq!(String::from_utf8_lossy(&said), "", "{}", node.daemon.log());
    }
}

#[test]
fn a_job_of_two_nodes_is_saved_by_a_standing_aggregator_and_restored_byte_for_byte() {
    let cluster = Cluster::new(51);
    let gate = cluster.aggregators("g1", "7411-7414", IDLE);
    let nodes = ["n1", "n2"].map(|name| cluster.compute(name, &[&gate], ""));
    begin(&nodes);
    tasks(&nodes, 1, 3);
    for node in &nodes {
        let shown = aggregators_of_the_job(&cluster.path(&format!("run_{}", node.name)));
        assert_eq!(shown, format!("gates: {}", gate.address));
    }
    end(&nodes);
    assert_eq!(cluster.complete(), ["it_3", "it_2", "it_1"]);
    assert_eq!(gate.gate.log().matches("an aggregator was started").count(), 1, "{}", gate.gate.log());
    for node in &nodes {
        assert!(!node.daemon.log().contains("aggregator listens"), "no aggregator runs on a node of the job");
    }
    gate.node.wait_for_log("the agents of all nodes of the job have left");
    let line = gate.node.wait_for_log("the worker of a job has ended");
    assert!(line.contains("exit status: 0"), "{line}");
    let mut restart = mcr();
    restart.args(["restart", "--copy", "--store"]).arg(cluster.path("store"));
    run(restart.arg("--to").arg(cluster.path("back")), 0);
    assert_same_files(&contents(&cluster.path("work/out/it_3")), &contents(&cluster.path("back/it_3")));
}

#[test]
fn the_agents_of_a_job_go_to_the_next_gate_if_an_aggregator_node_dies() {
    let cluster = Cluster::new(52);
    let gates = [cluster.aggregators("g1", "7421-7424", IDLE), cluster.aggregators("g2", "7431-7434", IDLE)];
    let nodes = ["n1", "n2"].map(|name| cluster.compute(name, &[&gates[0], &gates[1]], ""));
    begin(&nodes);
    // The processes of the job must run until the workers have found these processes.
    tasks(&nodes, 1, 5);
    cluster.wait_complete("it_5");
    let is_used = |gate: &Aggregators| gate.node.log().contains("aggregator listens");
    let (used, other): (Vec<_>, Vec<_>) = gates.into_iter().partition(is_used);
    let ([dead], [other]) = (&used[..], &other[..]) else { panic!("one of two gates is used") };
    // An aggregator node dies, so its daemons and its aggregator are killed.
    dead.gate.signal("KILL");
    dead.node.signal("KILL");
    let aggregator = pid_after(&dead.node.wait_for_log("an aggregator begins"));
    nix::sys::signal::kill(aggregator, nix::sys::signal::Signal::SIGKILL).expect("killed");
    tasks(&nodes, 6, 7);
    cluster.wait_complete("it_7");
    other.node.wait_for_log("aggregator listens");
    tasks(&nodes, 8, 8);
    end(&nodes);
    assert_eq!(cluster.complete()[0], "it_8");
}

#[test]
fn an_agent_that_is_started_again_finds_its_aggregator_although_the_gate_has_died() {
    let cluster = Cluster::new(57);
    let gates = [cluster.aggregators("g1", "7481-7484", IDLE), cluster.aggregators("g2", "7485-7488", IDLE)];
    // If the gate does not answer, an agent tries the ports in its cluster's file.
    let compute = |name| cluster.compute(name, &[&gates[0], &gates[1]], "ports = \"7481-7488\"");
    let nodes = ["n1", "n2"].map(compute);
    begin(&nodes);
    tasks(&nodes, 1, 4);
    cluster.wait_complete("it_4");
    let used = gates.iter().find(|gate| gate.node.log().contains("aggregator listens")).expect("a gate is used");
    used.gate.signal("KILL");
    let worker = pid_after(&nodes[0].daemon.wait_for_log("a job begins"));
    nix::sys::signal::kill(worker, nix::sys::signal::Signal::SIGKILL).expect("killed");
    let mut tasks: Vec<Child> = (0..4).map(|rank| nodes[rank as usize / 2].task(rank, 5, 16)).collect();
    nodes[0].daemon.wait_for_log("a gate does not answer");
    for task in &mut tasks {
        task.wait().expect("ended");
    }
    end(&nodes);
    assert_eq!(cluster.complete()[0], "it_16");
    let begun: usize = gates.iter().map(|gate| gate.node.log().matches("an aggregator begins").count()).sum();
    assert_eq!(begun, 1, "the job has one aggregator for its whole life");
}

/// The process number in a line of the log.
fn pid_after(line: &str) -> nix::unistd::Pid {
    let pid = line.split("pid=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a pid");
    nix::unistd::Pid::from_raw(pid.parse().expect("a number"))
}

/// A client of a gate. Any program of a user can be such a client.
struct Client {
    gate: GateClient<Channel>,
}

impl Client {
    async fn connect(cluster: &Cluster, gate: &Aggregators, authority: &Authority, uid: u32) -> Result<Self, String> {
        let trusted = std::fs::read_to_string(cluster.path("gate/cluster.pem")).expect("readable");
        let identity = Arc::new(Identity::new(authority, uid).expect("an identity"));
        let endpoint = Endpoint::from_shared(format!("http://{}", gate.address)).expect("an address");
        let trust = GateTrust::new(&trusted).expect("trusted");
        let channel = trust.connect(&endpoint, &gate.address, &identity).await.map_err(|error| format!("{error:?}"))?;
        let mut client = Self { gate: GateClient::new(channel) };
        // The handshake of the client ends before the gate checks the client, so only a request shows a refusal.
        client.load().await.map_err(|status| format!("{status:?}"))?;
        Ok(client)
    }

    async fn load(&mut self) -> Result<mcr_proto::gate::LoadReply, Status> {
        self.gate.load(LoadRequest { version: 1, newest_version: 1 }).await.map(tonic::Response::into_inner)
    }

    async fn open(&mut self, job: &str, settings: &str) -> Result<(), Status> {
        let start = Some(Start { job: job.into(), identity: "SLURM job 7".into() });
        let (version, newest_version, nodes, groups, settings) = (1, 1, 2, 3, settings.to_owned());
        let request = OpenRequest { version, newest_version, start, nodes, groups, settings };
        self.gate.open(request).await.map(drop)
    }

    async fn agree(&mut self, gates: Vec<String>) -> Result<Option<Agreement>, Status> {
        let start = Some(Start { job: "melt".into(), identity: "SLURM job 7".into() });
        let proposal = (!gates.is_empty()).then_some(Agreement { places: 1, gates });
        let request = AgreeRequest { version: 1, newest_version: 1, start, proposal };
        Ok(self.gate.agree(request).await?.into_inner().agreement)
    }
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

#[tokio::test]
async fn a_gate_without_room_refuses_with_a_sentence_and_says_its_load() {
    let cluster = Cluster::new(53);
    let gate = cluster.aggregators("g1", "7441-7444", &format!("user-aggregators = 1\n{IDLE}"));
    let mut client = Client::connect(&cluster, &gate, &cluster.authority(), own_uid()).await.expect("connected");
    client.open("melt", &cluster.settings()).await.expect("opened");
    client.open("melt", &cluster.settings()).await.expect("it runs already");
    let refused = client.open("other", &cluster.settings()).await.expect_err("refused");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("1 aggregators of this user run on this node already"), "{refused:?}");
    let line = gate.gate.wait_for_log("a request is refused");
    assert!(line.contains("1 aggregators of this user") && line.contains("peer="), "{line}");
    let load = client.load().await.expect("a load");
    assert_eq!((load.aggregators, load.own_aggregators, load.own_aggregators_max, load.groups), (1, 1, 1, 3));
    assert!(load.free_memory_bytes > 1 << 20);
    // The gate keeps the first proposal for a start of a job, and answers later proposals with the first proposal.
    assert_eq!(client.agree(Vec::new()).await.expect("nothing is known"), None);
    let first = client.agree(vec!["a:1".into(), "b:1".into()]).await.expect("remembered");
    let second = client.agree(vec!["c:1".into()]).await.expect("remembered");
    assert!(first.is_some() && first == second);
}

#[tokio::test]
async fn an_aggregator_that_no_agent_uses_ends() {
    let cluster = Cluster::new(54);
    let gate = cluster.aggregators("g1", "7451-7454", "idle-seconds = 1");
    let mut client = Client::connect(&cluster, &gate, &cluster.authority(), own_uid()).await.expect("connected");
    client.open("melt", &cluster.settings()).await.expect("opened");
    gate.node.wait_for_log("no agent was connected for too long");
    gate.node.wait_for_log("the worker of a job has ended");
    assert_eq!(client.load().await.expect("a load").aggregators, 0);
}

#[tokio::test]
async fn a_client_of_another_cluster_or_with_another_number_gets_nothing() {
    let cluster = Cluster::new(55);
    let gate = cluster.aggregators("g1", "7461-7464", IDLE);
    let other = Authority::make("cluster").expect("made");
    let refused = Client::connect(&cluster, &gate, &other, own_uid()).await.map(drop).expect_err("refused");
    assert!(refused.contains("UnknownCA") || refused.contains("DecryptError"), "{refused}");
    let line = gate.gate.wait_for_log("a request is refused");
    assert!(line.contains("another certificate authority made the certificate of the client"), "{line}");
    // The certificate authority of a user can write any uid into a certificate. The gate accepts a certificate for a
    // uid only if the certificate authority of the user with this uid made the certificate.
    for uid in [own_uid() + 1, 0, u32::MAX].into_iter().filter(|uid| *uid != own_uid()) {
        assert!(Client::connect(&cluster, &gate, &cluster.authority(), uid).await.is_err(), "{uid}");
    }
    assert_eq!(gate.node.log().matches("an aggregator begins").count(), 0);
    // The gate also refuses a client without TLS, and continues to answer other clients.
    drop(
        std::net::TcpStream::connect(&gate.address)
            .and_then(|mut it| std::io::Write::write_all(&mut it, b"GET / HTTP/1.1\n\n")),
    );
    Client::connect(&cluster, &gate, &cluster.authority(), own_uid()).await.expect("connected");
}

#[tokio::test]
async fn a_client_can_set_no_more_than_the_user_of_a_job_and_opens_no_file_of_others() {
    let cluster = Cluster::new(56);
    let gate = cluster.aggregators("g1", "7471-7474", IDLE);
    let mut client = Client::connect(&cluster, &gate, &cluster.authority(), own_uid()).await.expect("connected");
    let store = cluster.settings();
    for (settings, why) in [
        (format!("{store}listen = \"0.0.0.0:22\""), "may not set"),
        (format!("{store}create = true"), "may not set"),
        (format!("{store}budget-mib = 1000000"), "may not set"),
        (format!("{store}watch = \"/etc\""), "may not set"),
        ("store = \"relative\"".to_owned(), "relative path"),
        (String::new(), "name no store"),
        ("store = ".repeat(5000), "more than 16384 bytes"),
        ("[".to_owned(), "not valid TOML"),
    ] {
        let refused = client.open("melt", &settings).await.expect_err(&settings);
        assert!(refused.message().contains(why), "{refused:?}");
    }
    for job in ["../x", "", "a\nb"] {
        assert_eq!(client.open(job, &store).await.expect_err(job).code(), Code::InvalidArgument);
    }
    let long = client.open(&"x".repeat(100_000), &store).await.expect_err("too long");
    assert!(long.message().contains("65536") || long.code() == Code::OutOfRange, "{long:?}");
    assert_eq!(gate.node.log().matches("an aggregator begins").count(), 0);
    // The aggregator refuses a store of another user. Only root can make such a store.
    if nix::unistd::geteuid().is_root() {
        let bobs = cluster.path("bobs");
        make_store(&bobs);
        std::os::unix::fs::chown(&bobs, Some(4_000_001), None).expect("given away");
        client.open("melt", &format!("store = {bobs:?}")).await.expect("the gate opens no path");
        let line = gate.node.wait_for_log("the aggregator is not started");
        assert!(line.contains("it belongs to uid 4000001"), "{line}");
        assert_eq!(std::fs::read_dir(&bobs).expect("readable").count(), 0);
    }
}
