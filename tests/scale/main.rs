//! What does a checkpoint of many ranks cost the store and the daemons? The number of ranks goes up to the 15,408
//! ranks of the mcrEngine paper (SC12, section V).
//!
//! One process runs real agents and real aggregators, which are connected by gRPC on loopback. Each agent watches the
//! directory of one node, and there is one aggregator for 8 nodes. The store is in memory, and counts its operations:
//! writes, opened or examined files, and names in listings. The ranks write small files, so the cost depends on the
//! number of ranks and groups, and not on the number of bytes. The test also measures the time from the last file of
//! a step until the checkpoint is complete in the store.
//!
//! The test compares two small jobs. To measure other numbers of ranks with groups of 32 ranks:
//! `MCR_SCALE_RANKS=256,1024,4096,15408 cargo test --release -p mcr-cli --test scale -- --nocapture`.
//! MCR_BENCH_REPETITIONS sets the number of measured steps (default 5).

use mcr_anc::Aggregator;
use mcr_anc::config::AncOptions;
use mcr_cnc::agent::{Agent, DrainOrder, Processes};
use mcr_cnc::config::CncOptions;
use mcr_test_support::measure::{Sample, process_status, repetitions};
use mcrengine::ids::JobId;
use mcrengine::manifest::state;
use mcrengine::store::{Fault, FaultyStore, MemoryStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ranks of one node. All agents run as one user, and each agent needs one inotify instance. By default, Linux
/// permits 128 inotify instances for each user. With this number of ranks, 15,408 ranks need 81 agents.
const RANKS_OF_NODE: u32 = 192;
const NODES_OF_AGGREGATOR: usize = 8;
/// Bytes of each rank's file.
const FILE_BYTES: usize = 4096;

#[test]
fn the_operations_on_the_store_for_each_group_do_not_depend_on_the_number_of_groups() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if let Ok(numbers) = std::env::var("MCR_SCALE_RANKS") {
        println!("medians of {} checkpoints", repetitions(5));
        println!(
            "  ranks groups |  writes  opened   listed | of each group | s to the commit, CPU s, CPU ms of each group"
        );
        for ranks in numbers.split(',').map(|ranks| ranks.parse().expect("a number of ranks")) {
            runtime.block_on(measure(ranks, 32, repetitions(5)));
        }
        return;
    }
    let few = runtime.block_on(measure(16, 4, 2));
    let many = runtime.block_on(measure(256, 4, 2));
    for (what, few, many) in [("writes", few[0], many[0]), ("opened files", few[1], many[1])] {
        assert!(many <= 1.3 * few + 2.0, "{what} for each group: {few} with 4 groups, {many} with 64 groups");
    }
}

struct Cost {
    counts: [u64; 3],
    cpu_ms: u64,
}

fn cost(store: &FaultyStore) -> Cost {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).expect("known");
    let ms = |time: nix::sys::time::TimeVal| time.tv_sec() as u64 * 1000 + time.tv_usec() as u64 / 1000;
    Cost {
        counts: [store.operations(), store.opened(), store.listed()],
        cpu_ms: ms(usage.user_time()) + ms(usage.system_time()),
    }
}

/// Saves some steps of a job. Returns the operations for each group: writes, opened files, names in listings.
async fn measure(ranks: u32, group_size: u32, steps: usize) -> [f64; 3] {
    let below = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    let dir = tempfile::tempdir_in(below).expect("a directory");
    let store = FaultyStore::new(MemoryStore::new(), Fault::None);
    let nodes: Vec<_> = (0..ranks.div_ceil(RANKS_OF_NODE))
        .map(|node| (node, dir.path().join(format!("node{node}")), dir.path().join(format!("state{node}"))))
        .collect();
    let mut aggregators = Vec::new();
    for _ in 0..nodes.len().div_ceil(NODES_OF_AGGREGATOR) {
        let text = format!("store = \"/none\"\nlisten = \"127.0.0.1:0\"\ngroup-size = {group_size}\nthreads = 1\n");
        let config = toml::from_str::<AncOptions>(&text).expect("valid").check().expect("valid");
        aggregators.push(Aggregator::start(config, Arc::new(store.clone())).await.expect("it starts"));
    }
    let addresses: Vec<&str> = aggregators.iter().map(|aggregator| aggregator.address.as_str()).collect();
    let mut agents = Vec::new();
    for (node, watch, state) in &nodes {
        std::fs::create_dir(watch).expect("made");
        let (first, last) = (node * RANKS_OF_NODE, ((node + 1) * RANKS_OF_NODE).min(ranks) - 1);
        let text = format!(
            "job = \"job\"\nnode = \"n{node}\"\nwatch = {watch:?}\nstate-file = {state:?}\naggregators = {addresses:?}\n\
             ranks = {ranks}\nlocal-ranks = \"{first}-{last}\"\ngroup-size = {group_size}\ncapture-threads = 1\n\
             quiet-ms = 50\ncheckpoint-quiet-ms = 100\nlayout = \"{{checkpoint}}.r{{rank}}\"\n"
        );
        let config = toml::from_str::<CncOptions>(&text).expect("valid").check().expect("valid");
        let (layout, _) = config.resolve_layout(false).expect("a layout");
        agents.push(Agent::start(config, layout).expect("it starts"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut counts, mut seconds, mut cpu) = ([(); 3].map(|()| Sample::new()), Sample::new(), Sample::new());
    let groups = u64::from(ranks.div_ceil(group_size));
    for step in 0..=steps {
        let label = format!("s{step}");
        let before = cost(&store);
        let began = Instant::now();
        let (nodes, of_step) = (nodes.clone(), label.clone());
        let write = move || {
            for (node, watch, _) in &nodes {
                for rank in node * RANKS_OF_NODE..((node + 1) * RANKS_OF_NODE).min(ranks) {
                    let values =
                        (0..FILE_BYTES / 8).flat_map(|n| (f64::from(rank) + (n * (step + 1)) as f64).to_le_bytes());
                    std::fs::write(watch.join(format!("{of_step}.r{rank}")), values.collect::<Vec<u8>>())
                        .expect("written");
                }
            }
        };
        tokio::task::spawn_blocking(write).await.expect("written");
        let (job, id): (JobId, _) = ("job".parse().expect("valid"), label.parse().expect("valid"));
        let (wrote, inner) = (Instant::now(), store.inner().clone());
        while !state(&inner, &job, &id).is_ok_and(|state| state.is_complete()) {
            assert!(
                began.elapsed() < Duration::from_secs(600),
                "step {step} is not complete: {:?}",
                state(&inner, &job, &id).map(|s| s.problems)
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let took = wrote.elapsed();
        tokio::time::sleep(Duration::from_secs(1)).await; // until the agents have got their answers
        let after = cost(&store);
        if step > 0 {
            for (sample, (after, before)) in counts.iter_mut().zip(after.counts.iter().zip(before.counts)) {
                sample.push((after - before) as f64);
            }
            seconds.push(took.as_secs_f64());
            cpu.push((after.cpu_ms - before.cpu_ms) as f64);
        }
    }
    let of = counts.map(|sample| sample.median());
    let each = of.map(|count| count / groups as f64);
    println!(
        "{ranks:7} {groups:6} | {:7} {:7} {:7} | {:5.1} {:5.1} {:5.1} | {:.2} s, {:.2} s, {:.2} ms; {} MiB",
        of[0],
        of[1],
        of[2],
        each[0],
        each[1],
        each[2],
        seconds.median(),
        cpu.median() / 1000.0,
        cpu.median() / groups as f64,
        process_status(std::process::id(), "VmHWM").unwrap_or(0) >> 10,
    );
    let until = Instant::now() + Duration::from_secs(20);
    for agent in agents {
        agent.drain(DrainOrder { until: until.into(), processes: Processes::MayRun }).await;
    }
    for aggregator in aggregators {
        aggregator.drain(until).await;
    }
    each
}
