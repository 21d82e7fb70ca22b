//! Tests that the cost of a checkpoint for each group does not grow with the number of groups. `mcr bench scale`
//! measures the same simulation with other numbers of ranks.
//!
//! One process runs real agents and real aggregators, which are connected by gRPC on loopback. Each agent watches the
//! directory of one node. The store is in memory, and counts its operations. The ranks write small files, so the cost
//! depends on the number of ranks and groups, and not on the number of bytes.

use mcr_simulation::rank_file::RankFile;
use mcr_simulation::simulation::{Setup, Simulation};
use mcr_simulation::store::{Counts, KINDS};
use std::time::Duration;

#[test]
fn the_operations_on_the_store_for_each_group_do_not_depend_on_the_number_of_groups() {
    let job = |groups: u32, aggregators: u32| Setup {
        ranks: 4 * groups,
        group_size: 4,
        ranks_of_node: 192,
        aggregators,
        stored: 0,
        delay: Duration::ZERO,
    };
    let jobs = [job(4, 1), job(64, 1), job(4, 4), job(64, 64)];
    let [few, many, few_each, many_each] = std::thread::scope(|scope| {
        let running = jobs.map(|job| scope.spawn(move || operations_of_a_step(job)));
        running.map(|job| job.join().expect("measured"))
    });
    for kind in KINDS {
        let each = |counts: &Counts, groups: f64| counts.of(kind) as f64 / groups;
        let (few, many) = (each(&few, 4.0), each(&many, 64.0));
        assert!(many <= 1.3 * few + 2.0, "{kind:?} for each group: {few} with 4 groups, {many} with 64 groups");
        // The number of manifests that a process looks at grows with the logarithm of the number of groups.
        let (few, many) = (each(&few_each, 4.0), each(&many_each, 64.0));
        assert!(many <= 1.3 * few + 6.0, "{kind:?} for each group: {few} with 4 aggregators, {many} with 64");
    }
    // Each group lists the directory of the checkpoint once.
    for counts in [many, many_each] {
        let names = counts.names as f64 / 64.0;
        assert!(names <= 2.0 * 64.0, "{names} names in the listings for each group, with 64 groups");
    }
}

/// The operations of all aggregators while a job saves its second step.
fn operations_of_a_step(setup: Setup) -> Counts {
    let simulation = Simulation::start(setup, RankFile::numbers()).expect("it starts");
    simulation.step(0).expect("saved");
    let counts = simulation.step(1).expect("saved").counts;
    simulation.end();
    counts
}
