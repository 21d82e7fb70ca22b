//! What does a checkpoint of many ranks cost the store and the daemons? The number of ranks goes up to the 15,408
//! ranks of the mcrEngine paper (SC12, section V).
//!
//! One process runs real agents and real aggregators, which are connected by gRPC on loopback. Each agent watches the
//! directory of one node. The store is in memory, and counts its operations. The ranks write small files, so the cost
//! depends on the number of ranks and groups, and not on the number of bytes. The test also measures the time from
//! the last file of a step until the checkpoint is complete in the store.
//!
//! The test compares two small jobs. To measure other numbers of ranks with groups of 32 ranks:
//! `MCR_SCALE_RANKS=256,1024,4096,15408 cargo test --release -p mcr-simulation --test scale -- --nocapture`.
//! MCR_SCALE_AGGREGATORS sets the number of aggregators (default: one for 8 nodes; `groups`: one for each group),
//! MCR_SCALE_STORED the number of stored checkpoints, MCR_SCALE_DELAY_US the time of each operation on the store in
//! microseconds, and MCR_BENCH_REPETITIONS the number of measured steps (default 5).

use mcr_simulation::rank_file::RankFile;
use mcr_simulation::simulation::{Cost, Setup, Simulation};
use mcr_simulation::store::KINDS;
use mcr_test_support::measure::{Sample, process_status, repetitions};
use std::time::Duration;

/// Ranks of one node. All agents run as one user, and each agent needs one inotify instance. By default, Linux
/// permits 128 inotify instances for each user. With this number of ranks, 15,408 ranks need 81 agents.
const RANKS_OF_NODE: u32 = 192;
const NODES_OF_AGGREGATOR: u32 = 8;

fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn the_operations_on_the_store_for_each_group_do_not_depend_on_the_number_of_groups() {
    if let Ok(numbers) = std::env::var("MCR_SCALE_RANKS") {
        for ranks in numbers.split(',').map(|ranks| ranks.parse().expect("a number of ranks")) {
            let mut setup = Setup {
                ranks,
                group_size: number("MCR_SCALE_GROUP_SIZE").unwrap_or(32),
                ranks_of_node: RANKS_OF_NODE,
                aggregators: ranks.div_ceil(RANKS_OF_NODE * NODES_OF_AGGREGATOR),
                stored: number("MCR_SCALE_STORED").unwrap_or(0),
                delay: Duration::from_micros(number("MCR_SCALE_DELAY_US").unwrap_or(0).into()),
            };
            setup.aggregators = match std::env::var("MCR_SCALE_AGGREGATORS").as_deref() {
                Ok("groups") => setup.groups(),
                _ => number("MCR_SCALE_AGGREGATORS").unwrap_or(setup.aggregators),
            };
            measure(setup, repetitions(5));
        }
        return;
    }
    let job = |groups: u32, aggregators: u32| Setup {
        ranks: 4 * groups,
        group_size: 4,
        ranks_of_node: RANKS_OF_NODE,
        aggregators,
        stored: 0,
        delay: Duration::ZERO,
    };
    let jobs = [job(4, 1), job(64, 1), job(4, 4), job(64, 64)];
    let [few, many, few_each, many_each] = std::thread::scope(|scope| {
        let running = jobs.map(|job| scope.spawn(move || measure(job, 1)));
        running.map(|job| job.join().expect("measured"))
    });
    for (nth, kind) in KINDS.iter().enumerate() {
        let (few, many) = (few[nth], many[nth]);
        assert!(many <= 1.3 * few + 2.0, "{kind:?} for each group: {few} with 4 groups, {many} with 64 groups");
        // The number of manifests that a process looks at grows with the logarithm of the number of groups.
        let (few, many) = (few_each[nth], many_each[nth]);
        assert!(many <= 1.3 * few + 6.0, "{kind:?} for each group: {few} with 4 aggregators, {many} with 64");
    }
    // Each group lists the directory of the checkpoint once.
    for names in [many[KINDS.len()], many_each[KINDS.len()]] {
        assert!(names <= 2.0 * 64.0, "{names} names in the listings for each group, with 64 groups");
    }
}

/// Saves some steps of a job, and prints the medians for each group.
fn measure(setup: Setup, steps: usize) -> Vec<f64> {
    let simulation = Simulation::start(setup, RankFile::numbers()).expect("it starts");
    let first = simulation.step(0).expect("saved");
    let costs: Vec<Cost> = (1..=steps).map(|step| simulation.step(step as u32).expect("saved")).collect();
    let groups = f64::from(setup.groups());
    let median = |of: &dyn Fn(&Cost) -> f64| {
        let mut sample = Sample::new();
        costs.iter().for_each(|cost| sample.push(of(cost)));
        sample.median()
    };
    let mut each: Vec<f64> = KINDS.iter().map(|kind| median(&|cost| cost.counts.of(*kind) as f64) / groups).collect();
    each.push(median(&|cost| cost.counts.names as f64) / groups);
    print!("{:6} ranks {:4} groups {:3} aggregators:", setup.ranks, setup.groups(), setup.aggregators);
    for (kind, count) in KINDS.iter().zip(&each) {
        print!(" {kind:?} {count:.1}");
    }
    println!(
        " names {:.1} | busiest {:.0} | commit {:.2} s, cpu {:.2} s, anc {:.0} ms, cnc {:.0} ms, wire {:.0} B/rank; \
         first: {:.1} ops, {:.1} names a group; {} MiB",
        each[KINDS.len()],
        median(&|cost| cost.busiest as f64),
        median(&|cost| cost.commit.as_secs_f64()),
        median(&|cost| cost.cpu.as_secs_f64()),
        median(&|cost| cost.aggregator_cpu.as_secs_f64() * 1e3),
        median(&|cost| cost.agent_cpu.as_secs_f64() * 1e3),
        median(&|cost| cost.wire_bytes as f64) / f64::from(setup.ranks),
        first.counts.operations() as f64 / groups,
        first.counts.names as f64 / groups,
        process_status(std::process::id(), "VmHWM").unwrap_or(0) >> 10,
    );
    simulation.end();
    each
}
