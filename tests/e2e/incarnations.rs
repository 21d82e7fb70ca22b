//! Tests which checkpoint is the newest, which checkpoints are complete, and which restart decides. The order of
//! checkpoints is the order in which the application wrote them. This order does not depend on the order of the
//! commits or on clocks.

use crate::support::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

mod by_hand;
mod parts;
mod passed_over;
mod rewriting;
mod saving;

/// Four ranks in one directory that two nodes see, two groups, and at most two aggregators.
struct Site {
    dir: TempDir,
    aggregators: Vec<Daemon>,
    addresses: Vec<String>,
    agents: Vec<Daemon>,
}

const RANKS: u32 = 4;
const QUICK: &str = "quiet-ms = 20\ncheckpoint-quiet-ms = 40\nreconnect-min-ms = 50\nreconnect-max-seconds = 1";

impl Site {
    fn empty() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("run")).expect("made");
        make_store(&dir.path().join("store"));
        Self { dir, aggregators: Vec::new(), addresses: Vec::new(), agents: Vec::new() }
    }

    fn new() -> Self {
        let mut site = Self::empty();
        (0..2).for_each(|_| site.start_aggregator("127.0.0.1:0"));
        (0..2).for_each(|node| site.start_agent(node, "ranks = 4"));
        site
    }

    fn start_aggregator(&mut self, listen: &str) {
        let (name, store) = (format!("a{}", self.aggregators.len()), self.store());
        let config = self.path(&format!("{name}.toml"));
        let text = format!("[anc]\nstore = {store:?}\nlisten = {listen:?}\ngroup-size = 2\nthreads = 1\n");
        std::fs::write(&config, text).expect("written");
        let daemon = Daemon::start(mcr().env("MCR_LOG", LOG_OF_GROUPS).arg("anc").arg("--config").arg(&config));
        self.addresses.push(daemon.address());
        self.aggregators.push(daemon);
    }

    fn start_agent(&mut self, node: u32, more: &str) {
        self.start_agent_of(&self.run_dir(), &format!("n{node}"), node, more);
    }

    fn start_agent_of(&mut self, watch: &Path, name: &str, node: u32, more: &str) {
        let layout = if more.contains("layout") { "" } else { "layout = \"{checkpoint}/rank_{rank}.dat\"" };
        let more =
            format!("group-size = 2\nlocal-ranks = \"{}-{}\"\n{layout}\n{QUICK}\n{more}", 2 * node, 2 * node + 1);
        self.agents.push(Daemon::agent(self.dir.path(), name, watch, &self.addresses, &more));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn store(&self) -> PathBuf {
        self.path("store")
    }
    fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    fn write(&self, run: u32, step: u32, ranks: impl IntoIterator<Item = u32>) {
        ranks.into_iter().for_each(|rank| write_file(&self.run_dir(), run, step, rank, None));
    }

    fn complete(&self) -> BTreeSet<String> {
        let all = list(&self.store());
        let complete = all.into_iter().filter(|c| c["complete"] == true);
        complete.map(|c| c["checkpoint"].as_str().expect("a name").to_owned()).collect()
    }

    fn wait_group(&self, checkpoint: &str, group: u32) {
        let manifest = self.store().join(format!("job/{checkpoint}/group-{group:04}.manifest"));
        wait_for(&format!("{}", manifest.display()), Duration::from_secs(30), || manifest.exists().then_some(()));
    }

    /// Restores into a new directory. Returns the (run, step) of each file.
    fn restart(&self, more: &[&str], expected: i32) -> (BTreeSet<(u32, u32)>, String) {
        static BACK: AtomicU32 = AtomicU32::new(0);
        let to = self.path(&format!("back{}", BACK.fetch_add(1, Ordering::Relaxed)));
        let mut command = mcr();
        command.arg("restart").args(["--job", "job"]).arg("--store").arg(self.store()).arg("--to").arg(&to).args(more);
        let output = run(&mut command, expected);
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let found = if to.exists() { contents(&to) } else { Default::default() };
        let of = found.iter().filter(|(path, _)| path.to_string_lossy().ends_with(".dat")).map(|(_, bytes)| of(bytes));
        (of.collect(), said)
    }
}

fn write_file(dir: &Path, run: u32, step: u32, rank: u32, ahead: Option<Duration>) {
    let dir = dir.join(format!("it_{step:06}"));
    std::fs::create_dir_all(&dir).expect("made");
    let temporary = dir.join(format!(".t{rank}"));
    std::fs::write(&temporary, bytes_of(run, step, rank)).expect("written");
    if let Some(ahead) = ahead {
        let file = std::fs::File::options().write(true).open(&temporary).expect("opened");
        file.set_modified(SystemTime::now() + ahead).expect("set");
    }
    std::fs::rename(&temporary, dir.join(format!("rank_{rank}.dat"))).expect("renamed");
}

fn bytes_of(run: u32, step: u32, rank: u32) -> Vec<u8> {
    let mut bytes = [run, step, rank].map(u32::to_le_bytes).concat();
    bytes.extend((0..3000u32).flat_map(|i| (i * (rank + 1) + step * 7 + run).to_le_bytes()));
    bytes
}

fn of(bytes: &[u8]) -> (u32, u32) {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (run, step, rank) = (number(0), number(4), number(8));
    assert!(bytes == bytes_of(run, step, rank), "a restored file is not what was written");
    (run, step)
}

fn id(step: u32) -> String {
    format!("it_{step:06}")
}

#[test]
fn the_newest_is_what_was_written_last_also_where_an_earlier_step_is_committed_later() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    let address = site.addresses[0].clone();
    site.aggregators.pop().expect("one").kill();
    // The aggregator starts again after ranks 0 and 1 have written step 5, and all ranks have written step 6.
    (0..2).for_each(|node| site.start_agent(node, "ranks = 4"));
    site.write(1, 5, 0..2);
    std::thread::sleep(Duration::from_millis(20)); // so that the times of the files differ
    site.write(1, 6, 0..RANKS);
    site.start_aggregator(&address);
    wait_complete(&site.store(), &id(6));
    site.write(1, 5, 2..RANKS);
    let (before, _) = site.restart(&["--copy"], 0);
    assert_eq!(before, [(1, 6)].into());
    // Ranks 2 and 3 wrote step 5 after step 6, so step 5 is the newest checkpoint when it is complete.
    wait_complete(&site.store(), &id(5));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 5)].into());
}

#[test]
fn steps_that_wait_for_their_aggregator_keep_their_order_in_list_restart_and_prune() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    let address = site.addresses[0].clone();
    site.aggregators.pop().expect("one").kill();
    (0..2).for_each(|node| site.start_agent(node, "ranks = 4"));
    // Five steps wait for the aggregator, which then commits the steps in any order.
    for step in 1..=5 {
        site.write(1, step, 0..RANKS);
        std::thread::sleep(Duration::from_millis(20)); // so that the times of the files differ
    }
    site.start_aggregator(&address);
    for step in 1..=5 {
        wait_complete(&site.store(), &id(step));
    }
    let order: Vec<_> =
        list(&site.store()).iter().map(|c| c["checkpoint"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(order, (1..=5).rev().map(id).collect::<Vec<_>>());
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 5)].into());
    run(mcr().args(["prune", "--keep", "1", "--store"]).arg(site.store()), 0);
    assert_eq!(site.complete(), [id(5)].into());
}

#[test]
fn an_earlier_step_that_is_saved_later_by_hand_does_not_become_the_newest() {
    let site = Site::empty();
    for step in [5, 4] {
        let _ = std::fs::remove_dir_all(site.run_dir());
        site.write(1, step, 0..RANKS);
        let layout = "{checkpoint}/rank_{rank}.dat";
        let mut save = mcr();
        save.arg("save").arg(site.run_dir()).args(["--layout", layout, "--job", "job", "--group-size", "2", "--store"]);
        run(save.arg(site.store()), 0);
    }
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 5)].into());
}

#[test]
fn both_nodes_restart_from_one_checkpoint_although_a_newer_one_is_committed_between() {
    let mut site = Site::new();
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    let aggregator = site.aggregators[1].id().to_string();
    let signal = |name: &str| run(std::process::Command::new("kill").args([name, &aggregator]), 0);
    signal("-STOP");
    site.write(1, 2, 0..RANKS);
    site.wait_group(&id(2), 0);
    let (first, said) = site.restart(&["--ranks", "0-1"], 0);
    assert_eq!(first, [(1, 1)].into(), "{said}");
    signal("-CONT");
    site.aggregators[1].wait_for_log("flush failed");
    let (second, said) = site.restart(&["--ranks", "2-3"], 0);
    assert_eq!(second, [(1, 1)].into(), "{said}");
    assert_eq!(site.complete(), [id(1)].into(), "what was incomplete when it was decided never becomes complete");
    // The next run saves its own step 2, even while the daemons of the previous run are alive.
    site.write(2, 2, 0..RANKS);
    let newest = wait_for("step 2 of the next run", Duration::from_secs(30), || {
        site.complete().into_iter().find(|id| id.starts_with("it_000002"))
    });
    let (third, _) = site.restart(&["--copy", "--checkpoint", &newest], 0);
    assert_eq!(third, [(2, 2)].into());
    site.agents.clear();
}

#[test]
fn a_node_that_cannot_read_what_was_decided_fails_and_the_next_restart_of_all_takes_an_older_one() {
    let site = Site::empty();
    (1..=2).for_each(|step| site.write(1, step, 0..RANKS));
    let mut save = mcr();
    save.arg("save").arg(site.run_dir()).args(["--layout", "{checkpoint}/rank_{rank}.dat", "--job", "job"]);
    run(save.args(["--group-size", "2", "--no-reuse", "--store"]).arg(site.store()), 0);
    let container = site.store().join("job/it_000002/group-0001.mcr");
    let mut bytes = std::fs::read(&container).expect("read");
    let middle = bytes.len() / 3;
    bytes[middle] ^= 4;
    std::fs::write(&container, bytes).expect("written");
    assert_eq!(site.restart(&["--ranks", "0-1"], 0).0, [(1, 2)].into());
    let (second, said) = site.restart(&["--ranks", "2-3"], 1);
    assert!(second.is_empty() && said.contains("continues from it_000002") && said.contains("on all nodes"), "{said}");
    // The next restarts on both nodes skip the checkpoint that one node could not read.
    assert_eq!(site.restart(&["--ranks", "0-1"], 2).0, [(1, 1)].into());
    assert_eq!(site.restart(&["--ranks", "2-3"], 2).0, [(1, 1)].into());
}

#[test]
fn a_dead_runs_half_is_not_completed_by_the_next_run_whatever_the_times_of_its_files_say() {
    for ahead in [Duration::ZERO, Duration::from_secs(60)] {
        let site = Site::new();
        site.write(1, 1, 0..RANKS);
        wait_complete(&site.store(), &id(1));
        (0..2).for_each(|rank| write_file(&site.run_dir(), 1, 2, rank, Some(ahead)));
        site.wait_group(&id(2), 0);
        site.restart(&[], 0);
        (2..4).for_each(|rank| write_file(&site.run_dir(), 2, 2, rank, Some(ahead)));
        site.aggregators[1].wait_for_log("committed group job=job checkpoint=it_000002");
        assert_eq!(site.complete(), [id(1)].into(), "files {ahead:?} ahead");
        // When the next run has written all files of step 2, step 2 is complete.
        (0..2).for_each(|rank| write_file(&site.run_dir(), 2, 2, rank, Some(ahead)));
        wait_for("step 2", Duration::from_secs(30), || (site.complete().len() == 2).then_some(()));
        assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into(), "files {ahead:?} ahead");
    }
}

#[test]
fn what_was_announced_before_a_restart_and_flushed_after_it_is_not_taken_for_the_next_run() {
    let site = Site::new();
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    let aggregator = site.aggregators[0].id().to_string();
    run(std::process::Command::new("kill").args(["-STOP", &aggregator]), 0);
    site.write(1, 2, 0..2);
    // The agent has announced its files, but the stopped aggregator has not read the announcement.
    std::thread::sleep(Duration::from_millis(500));
    site.restart(&[], 0);
    site.write(2, 2, 2..4);
    site.aggregators[1].wait_for_log("committed group job=job checkpoint=it_000002");
    run(std::process::Command::new("kill").args(["-CONT", &aggregator]), 0);
    site.aggregators[0].wait_for_log("belong to the run before");
    assert_eq!(site.complete(), [id(1)].into());
    site.write(2, 2, 0..2);
    wait_complete(&site.store(), &id(2));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into());
}

#[test]
fn what_a_dead_run_announced_before_its_first_commit_is_not_mixed_with_the_new_run() {
    let site = Site::new();
    let aggregators = site.aggregators.iter().map(|aggregator| aggregator.id().to_string());
    let signal = |signal: &str| {
        aggregators.clone().for_each(|id| drop(run(Command::new("kill").args([signal, &id]), 0)));
    };
    signal("-STOP");
    site.write(1, 1, 0..2);
    // The agent has announced its files, but the stopped aggregators have not read the announcement.
    std::thread::sleep(Duration::from_millis(500));
    let (_, said) = site.restart(&[], 3);
    assert!(said.contains("new run"), "{said}");
    assert_eq!(std::fs::read_dir(site.store()).expect("lists").count(), 1, "only the hidden record of the decision");
    signal("-CONT");
    site.write(2, 1, 2..4);
    site.aggregators[1].wait_for_log("committed group job=job checkpoint=it_000001");
    site.aggregators[0].wait_for_log("belong to the run before");
    assert_eq!(site.complete(), [].into());
    site.write(2, 1, 0..2);
    wait_complete(&site.store(), &id(1));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 1)].into());
}

#[test]
fn an_older_incarnation_is_told_by_whom_it_was_fenced_and_commits_nothing_more() {
    let mut site = Site::empty();
    (0..2).for_each(|_| site.start_aggregator("127.0.0.1:0"));
    let other = site.path("other");
    std::fs::create_dir(&other).expect("made");
    (0..2).for_each(|node| site.start_agent(node, "ranks = 4\nincarnation = \"first\""));
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    for node in 0..2 {
        site.start_agent_of(&other, &format!("m{node}"), node, "ranks = 4\nincarnation = \"second\"");
        site.agents.last().expect("started").wait_for_log("session began");
    }
    site.write(1, 2, 0..RANKS);
    (0..RANKS).for_each(|rank| write_file(&other, 2, 2, rank, None));
    wait_for("step 2 of the second job", Duration::from_secs(30), || (site.complete().len() == 2).then_some(()));
    let line = site.agents[0].wait_for_log("is over: incarnation 2 (second");
    assert!(line.contains("incarnation 1 (first"), "{line}");
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into());
    // A restart of the first job is refused too, because its start is over. A restart without identity only copies
    // files.
    let (_, said) = site.restart(&["--incarnation", "first"], 1);
    assert!(said.contains("is over") && said.contains("--copy"), "{said}");
    let (_, said) = site.restart(&[], 0);
    assert!(said.contains("it only copied files and recorded no decision"), "{said}");
    assert_eq!(std::fs::read_dir(site.store().join("job/.incarnations")).expect("lists").count(), 2);
}

#[test]
fn an_aggregator_of_an_older_incarnation_names_what_it_did_not_commit_and_gives_5() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    (0..2).for_each(|node| site.start_agent(node, "ranks = 4\nincarnation = \"first\""));
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    site.restart(&["--incarnation", "second"], 0);
    site.write(1, 2, 0..RANKS);
    for group in 0..2 {
        site.aggregators[0].wait_for_log(&format!("checkpoint=it_000002 group={group} kind=\"fenced\""));
    }
    let aggregator = site.aggregators.remove(0);
    aggregator.signal("TERM");
    let (status, log) = aggregator.end();
    assert_eq!(status, Some(5), "{log}");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("ERROR not committed")).collect();
    assert_eq!(lines.len(), 2, "one for each group: {log}");
    assert!(lines.iter().all(|line| line.contains("it_000002") && line.contains("is over")), "{log}");
}

#[test]
fn looking_beside_a_living_job_changes_nothing_for_it() {
    let site = Site::new();
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    site.write(1, 2, 0..2);
    site.wait_group(&id(2), 0);
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 1)].into());
    site.write(1, 2, 2..RANKS);
    wait_complete(&site.store(), &id(2));
}

#[test]
fn agents_that_disagree_on_the_number_of_ranks_are_told_and_nothing_is_saved() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    site.start_agent(0, "ranks = 4");
    site.start_agent(1, "ranks = 8");
    site.agents.iter().for_each(|agent| drop(agent.wait_for_log("session began")));
    site.write(1, 1, 0..RANKS);
    let line = site.aggregators[0].wait_for_log("disagree on its number of ranks");
    assert!(line.contains("4 (node") && line.contains("8 (node") && line.contains("NOT SAVED"), "{line}");
    assert_eq!(site.complete(), BTreeSet::new());
}

#[test]
fn a_checkpoint_with_files_of_ranks_that_were_not_taken_is_never_complete() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    // The agent gets SLURM_NTASKS=2, as in a SLURM step with one task for each node. The application has four ranks.
    let config = site.path("n0.toml");
    let text = format!(
        "[cnc]\njob = \"job\"\nwatch = {:?}\nstate-file = {:?}\naggregators = {:?}\ngroup-size = 2\nlayout = \
         \"{{checkpoint}}/rank_{{rank}}.dat\"\n{QUICK}\n",
        site.run_dir(),
        site.path("n0.state"),
        site.addresses
    );
    std::fs::write(&config, text).expect("written");
    site.agents.push(Daemon::start(mcr().arg("cnc").arg("--config").arg(&config).env("SLURM_NTASKS", "2")));
    site.write(1, 1, 0..RANKS);
    let line = site.agents[0].wait_for_log("NOT SAVED");
    assert!(line.contains("ranks = 2 (from SLURM_NTASKS) means ranks 0 to 1; set ranks"), "{line}");
    wait_for("the mark", Duration::from_secs(30), || site.store().join("job/it_000001/spoiled").exists().then_some(()));
    site.write(1, 2, 0..RANKS);
    wait_for("the second mark", Duration::from_secs(30), || {
        site.store().join("job/it_000002/spoiled").exists().then_some(())
    });
    assert_eq!(site.complete(), BTreeSet::new());
    let (none, said) = site.restart(&["--copy"], 3);
    assert!(none.is_empty() && said.contains("NOT SAVED"), "{said}");
}

#[test]
fn a_start_with_too_small_a_number_of_ranks_spoils_no_checkpoint_of_the_start_before() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    let agent = |site: &Site, name: &str, ranks: u32| {
        let more = format!("group-size = 2\nlayout = \"{{checkpoint}}/rank_{{rank}}.dat\"\n{QUICK}\nranks = {ranks}");
        Daemon::agent(site.dir.path(), name, &site.run_dir(), &site.addresses, &more)
    };
    let first = agent(&site, "first", 4);
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    drop(first);
    let second = agent(&site, "second", 2);
    second.wait_for_log("NOT SAVED");
    // The second start writes the step again, and another step. Neither step is complete without ranks 2 and 3.
    site.write(2, 1, 0..RANKS);
    site.write(2, 2, 0..RANKS);
    for spoiled in ["it_000001~2", "it_000002"] {
        let mark = site.store().join("job").join(spoiled).join("spoiled");
        wait_for(spoiled, Duration::from_secs(30), || mark.exists().then_some(()));
    }
    assert_eq!(site.complete(), [id(1)].into());
    assert_eq!(site.restart(&["--copy", "--checkpoint", &id(1)], 0).0, [(1, 1)].into());
}

#[test]
fn an_agent_that_cannot_know_the_number_of_ranks_says_so_when_it_starts() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    site.start_agent(0, "");
    let line = site.agents[0].wait_for_log("number of ranks unknown");
    assert!(line.contains("SLURM_NTASKS"), "{line}");
}

#[test]
fn a_code_that_overwrites_one_name_gets_one_step_or_the_other_after_its_daemons_were_killed() {
    for state_is_lost in [false, true] {
        let mut site = Site::empty();
        let write = |site: &Site, step: u32, rank: u32| {
            std::fs::write(site.run_dir().join(format!("restart.rank_{rank}.dat")), bytes_of(1, step, rank))
                .expect("written");
        };
        let start = |site: &mut Site| {
            site.addresses.clear();
            site.start_aggregator("127.0.0.1:0");
            site.start_agent(0, "ranks = 2\nlayout = \"{checkpoint}.rank_{rank}.dat\"");
        };
        start(&mut site);
        (0..2).for_each(|rank| write(&site, 1, rank));
        wait_complete(&site.store(), "restart");
        site.agents.pop().expect("one").kill();
        site.aggregators.pop().expect("one").kill();
        if state_is_lost {
            // An agent that is killed early has not written its state file.
            let _ = std::fs::remove_file(site.path("n0.state"));
        }
        // Writing a step takes longer than the daemons need to start.
        std::thread::sleep(Duration::from_secs(4));
        write(&site, 2, 0);
        start(&mut site);
        if state_is_lost {
            site.aggregators[0].wait_for_log("these files are already in the store");
        } else {
            site.agents[0].wait_for_log("session began");
        }
        assert_eq!(site.complete(), ["restart".to_owned()].into());
        write(&site, 2, 1);
        wait_complete(&site.store(), "restart~2");
        assert_eq!(site.restart(&["--copy"], 0).0, [(1, 2)].into());
    }
}

#[test]
fn files_copied_with_times_of_an_earlier_step_never_make_two_steps_one_checkpoint_without_a_warning() {
    const STEP: Duration = Duration::from_secs(2);
    let mut site = Site::empty();
    (0..2).for_each(|_| site.start_aggregator("127.0.0.1:0"));
    (0..2).for_each(|node| site.start_agent(node, "ranks = 4\nlayout = \"{checkpoint}.rank_{rank}.dat\""));
    site.agents.iter().for_each(|agent| drop(agent.wait_for_log("session began")));
    for step in 1..=4 {
        for rank in 0..RANKS {
            let temporary = site.path("temporary");
            std::fs::write(&temporary, bytes_of(1, step, rank)).expect("written");
            if rank >= 2 {
                // The files of the second node look like files of an earlier step, as after `rsync -t`.
                let file = std::fs::File::options().write(true).open(&temporary).expect("opened");
                file.set_modified(SystemTime::now() - STEP * 7 / 5).expect("set");
            }
            std::fs::rename(&temporary, site.run_dir().join(format!("restart.rank_{rank}.dat"))).expect("renamed");
        }
        std::thread::sleep(STEP);
    }
    for agent in site.agents.drain(..) {
        agent.stop();
    }
    let all = list(&site.store());
    let (doubtful, whole): (Vec<_>, Vec<_>) =
        all.iter().filter(|c| c["complete"] == true).partition(|c| c["doubt"].is_string());
    for checkpoint in whole {
        let name = checkpoint["checkpoint"].as_str().expect("a name");
        let (steps, said) = site.restart(&["--copy", "--checkpoint", name], 0);
        assert_eq!(steps.len(), 1, "{name}: {said}");
    }
    let why = doubtful.first().map(|c| c["doubt"].as_str().expect("text")).expect("a doubtful checkpoint");
    assert!(why.contains("earlier than the files' last change"), "{why}");
}

#[test]
fn a_node_whose_clock_is_behind_saves_one_checkpoint_with_the_others_after_a_restart() {
    let site = Site::new();
    let write = |run: u32, step: u32| {
        site.write(run, step, 0..2);
        for rank in 2..RANKS {
            let dir = site.run_dir().join(id(step));
            let temporary = dir.join(format!(".t{rank}"));
            std::fs::write(&temporary, bytes_of(run, step, rank)).expect("written");
            let file = std::fs::File::options().write(true).open(&temporary).expect("opened");
            file.set_modified(SystemTime::now() - Duration::from_secs(20)).expect("set");
            std::fs::rename(&temporary, dir.join(format!("rank_{rank}.dat"))).expect("renamed");
        }
    };
    write(1, 1);
    wait_complete(&site.store(), &id(1));
    assert_eq!(site.restart(&[], 0).0, [(1, 1)].into());
    // The files of ranks 2 and 3 look older than the newest restored file, like copies of an earlier step.
    write(2, 2);
    wait_complete(&site.store(), &id(2));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into());
}

#[test]
fn two_jobs_of_one_name_never_mix_and_both_are_told() {
    let mut site = Site::empty();
    (0..2).for_each(|_| site.start_aggregator("127.0.0.1:0"));
    let other = site.path("other");
    std::fs::create_dir(&other).expect("made");
    (0..2).for_each(|node| site.start_agent(node, "ranks = 4"));
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    (0..2).for_each(|node| site.start_agent_of(&other, &format!("m{node}"), node, "ranks = 4"));
    site.aggregators.iter().for_each(|aggregator| drop(aggregator.wait_for_log("two jobs have the name job")));
    site.write(1, 2, 0..RANKS);
    (0..RANKS).for_each(|rank| write_file(&other, 2, 2, rank, None));
    let told = |agent: &Daemon| agent.wait_for_log("NOT SAVED: two jobs have the name job");
    let line = told(&site.agents[0]);
    assert!(line.contains("/run ") && line.contains("/other"), "{line}");
    told(&site.agents[2]);
    assert_eq!(site.complete(), [id(1)].into());
    // After one of the jobs has ended, the next checkpoints of the other job are saved.
    site.agents.truncate(2);
    site.write(1, 3, 0..RANKS);
    wait_complete(&site.store(), &id(3));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 3)].into());
    for checkpoint in site.complete() {
        let (of, _) = site.restart(&["--copy", "--checkpoint", &checkpoint], 0);
        assert_eq!(of.len(), 1, "{checkpoint} is of two runs: {of:?}");
    }
}

#[test]
fn of_two_runs_of_one_name_with_an_aggregator_each_the_second_saves_nothing_until_the_first_has_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let start = |name: &str| {
        let watch = dir.path().join(name);
        std::fs::create_dir(&watch).expect("made");
        let mut command = mcr();
        command.arg("run").arg("--watch").arg(&watch).args(["--create", "--job", "job", "--ranks", "2", "--store"]);
        command.arg(&store).args(["--layout", "{checkpoint}/rank_{rank}.dat", "--state"]);
        let daemon = Daemon::start(command.arg(dir.path().join(format!("{name}.state"))));
        daemon.wait_for_log("session began");
        (daemon, watch)
    };
    let ((first, one), (second, two)) = (start("one"), start("two"));
    let write = |watch: &Path, run, step| (0..2).for_each(|rank| write_file(watch, run, step, rank, None));
    let complete = || list(&store).iter().filter(|c| c["complete"] == true).count();
    write(&one, 1, 1);
    wait_complete(&store, &id(1));
    write(&two, 2, 2);
    let line = second.wait_for_log("two runs have the name job");
    assert!(line.contains(&first.id().to_string()) && line.contains("--job"), "{line}");
    write(&one, 1, 2);
    wait_for("the first run goes on", Duration::from_secs(20), || (complete() == 2).then_some(()));
    assert_eq!(first.stop(), Some(0));
    // The second agent must announce again after some seconds.
    wait_for("the second run goes on", Duration::from_secs(40), || (complete() == 3).then_some(()));
    assert_eq!(second.stop(), Some(0));
}

/// Saves step 1 and one group of step 2, and restores step 1.
fn restarted_after_half_of_step_2() -> Site {
    let site = Site::new();
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    site.write(1, 2, 0..2);
    site.wait_group(&id(2), 0);
    assert_eq!(site.restart(&[], 0).0, [(1, 1)].into());
    site
}

#[test]
fn the_first_step_after_a_restart_is_complete_although_the_run_before_had_begun_it_and_its_ranks_take_their_time() {
    let site = restarted_after_half_of_step_2();
    // The pauses are longer than the time between the previous run and the restart. Ranks 0 and 1 belong to one
    // group.
    for (ranks, pause_ms) in [(2..RANKS, 1500), (0..1, 4000), (1..2, 0)] {
        site.write(2, 2, ranks);
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    wait_complete(&site.store(), &format!("{}~2", id(2)));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into());
}

/// Starts `mcr run` in a directory, with the aggregator in the same process.
fn start_run(site: &Site, watch: &Path, name: &str, identity: Option<&str>) -> Daemon {
    std::fs::create_dir_all(watch).expect("made");
    let mut command = mcr();
    command.args([
        "run",
        "--job",
        "job",
        "--ranks",
        "4",
        "--group-size",
        "2",
        "--layout",
        "{checkpoint}/rank_{rank}.dat",
    ]);
    command.arg("--store").arg(site.store()).arg("--watch").arg(watch).arg("--state").arg(site.path(name));
    if let Some(identity) = identity {
        command.env("MCR_INCARNATION", identity);
    }
    let daemon = Daemon::start(&mut command);
    daemon.wait_for_log("session began");
    daemon
}

#[test]
fn a_restart_of_another_start_beside_a_living_mcr_run_says_that_nothing_more_of_that_run_is_saved() {
    let site = Site::empty();
    let running = start_run(&site, &site.run_dir(), "state", Some("one"));
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    wait_for("the file that says that it lives", Duration::from_secs(10), || {
        let held = std::fs::read_dir(site.store().join("job/.holders")).expect("readable");
        held.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(".run.")).then_some(())
    });
    assert!(!site.restart(&["--incarnation", "two", "--copy"], 0).1.contains("NOTHING more"));
    site.write(1, 2, 0..RANKS);
    wait_complete(&site.store(), &id(2));
    let (_, said) = site.restart(&["--incarnation", "two"], 0);
    let first = said.lines().find(|line| line.starts_with("mcr: "));
    assert!(first.is_some_and(|line| line.contains("NOTHING more of that run is saved")), "{said}");
    site.write(1, 3, 0..RANKS);
    running.wait_for_log("is over: incarnation 2");
}

#[test]
fn a_restart_into_another_directory_beside_a_living_mcr_run_only_looks_and_says_so() {
    let site = Site::empty();
    let running = start_run(&site, &site.run_dir(), "state", None);
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    wait_for("the file that says that it lives", Duration::from_secs(10), || {
        let held = std::fs::read_dir(site.store().join("job/.holders")).expect("readable");
        held.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(".run.")).then_some(())
    });
    site.write(1, 2, 0..2);
    site.wait_group(&id(2), 0);
    let (found, said) = site.restart(&[], 0);
    assert_eq!(found, [(1, 1)].into());
    assert!(said.contains("it only copied files and recorded no decision"), "{said}");
    site.write(1, 2, 2..RANKS);
    wait_complete(&site.store(), &id(2));
    // The application is restarted in the watched directory.
    site.write(1, 3, 0..2);
    site.wait_group(&id(3), 0);
    let to = site.run_dir();
    let output = run(mcr().args(["restart", "--job", "job", "--store"]).arg(site.store()).arg("--to").arg(&to), 0);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("only copied files"), "{said}");
    assert!(said.contains("was saving job job when this restart began"), "{said}");
    assert!(
        said.contains("the run after this restart may not be saved, and what it writes may be saved as a part of"),
        "{said}"
    );
    assert!(!said.contains("NOTHING more") && said.contains("use --copy"), "{said}");
    site.write(2, 3, 2..RANKS);
    site.write(2, 3, 0..2);
    wait_complete(&site.store(), &format!("{}~2", id(3)));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 3)].into());
    assert!(!site.complete().contains(&id(3)), "half of it is of the run before");
    running.kill();
    // All processes of the job have ended.
    let (found, said) = site.restart(&[], 0);
    assert_eq!(found, [(2, 3)].into());
    assert!(!said.contains("only copied files"), "{said}");
}

#[test]
fn a_run_elsewhere_never_completes_what_the_dead_run_before_it_left_half() {
    for (identity, signal) in [(None, "TERM"), (Some("7"), "KILL")] {
        let site = Site::empty();
        let other = site.path("other");
        let first = start_run(&site, &site.run_dir(), "first", identity);
        site.write(1, 1, 0..RANKS);
        wait_complete(&site.store(), &id(1));
        site.write(1, 2, 0..2);
        site.wait_group(&id(2), 0);
        first.signal(signal);
        first.end();
        // The next run is started by hand in another directory, without a restart.
        let second = start_run(&site, &other, "second", identity);
        std::thread::sleep(Duration::from_millis(50)); // times of files may be a few ms behind the clock
        (2..RANKS).for_each(|rank| write_file(&other, 2, 2, rank, None));
        let line = second.wait_for_log("another incarnation of the job began");
        assert!(line.contains(&id(2)), "{line}");
        (0..2).for_each(|rank| write_file(&other, 2, 2, rank, None));
        wait_complete(&site.store(), &format!("{}~2", id(2)));
        assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into(), "{identity:?} {signal}");
        assert!(!site.complete().contains(&id(2)), "half of it is of the run before");
        second.signal("TERM");
        let (status, log) = second.end();
        assert_eq!(status, Some(0), "{log}");
    }
}

#[test]
fn a_run_that_begins_again_in_its_directory_completes_what_it_left_half() {
    let site = Site::empty();
    let first = start_run(&site, &site.run_dir(), "state", None);
    site.write(1, 1, 0..2);
    site.wait_group(&id(1), 0);
    first.kill();
    let link = site.path("link");
    std::os::unix::fs::symlink(site.run_dir(), &link).expect("made");
    let _second = start_run(&site, &link, "state", None);
    site.write(1, 1, 2..RANKS);
    wait_complete(&site.store(), &id(1));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 1)].into());
}

#[test]
fn an_old_checkpoint_that_is_copied_beside_a_living_run_does_not_become_the_newest() {
    let site = Site::empty();
    let archive = site.path("archive");
    (0..RANKS).for_each(|rank| write_file(&archive, 1, 1, rank, None));
    std::thread::sleep(Duration::from_millis(1500));
    let first = start_run(&site, &site.run_dir(), "state", None);
    site.write(1, 3, 0..RANKS);
    wait_complete(&site.store(), &id(3));
    first.signal("TERM");
    assert_eq!(first.end().0, Some(0));
    let mut restart = mcr();
    restart.args(["restart", "--job", "job", "--store"]).arg(site.store()).arg("--to").arg(site.run_dir());
    run(&mut restart, 0);
    let _second = start_run(&site, &site.run_dir(), "state", None);
    run(Command::new("cp").arg("-a").arg(archive.join(id(1))).arg(site.run_dir()), 0);
    wait_complete(&site.store(), &id(1));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 3)].into());
    site.write(1, 4, 0..RANKS);
    wait_complete(&site.store(), &id(4));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 4)].into());
}

#[test]
fn two_runs_of_one_name_and_identity_with_an_aggregator_each_never_mix() {
    let site = Site::empty();
    let other = site.path("other");
    let first = start_run(&site, &site.run_dir(), "first", Some("7"));
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    let second = start_run(&site, &other, "second", Some("7"));
    (0..2).for_each(|rank| write_file(&other, 2, 2, rank, None));
    let line = second.wait_for_log("two runs have the name job");
    assert!(line.contains("The second run is not saved until the first ends"), "{line}");
    site.write(1, 2, 2..RANKS);
    (2..RANKS).for_each(|rank| write_file(&other, 2, 2, rank, None));
    site.write(1, 2, 0..2);
    wait_complete(&site.store(), &id(2));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 2)].into());
    first.signal("TERM");
    let (status, log) = first.end();
    assert_eq!(status, Some(0), "{log}");
    (0..RANKS).for_each(|rank| write_file(&other, 2, 3, rank, None));
    wait_complete(&site.store(), &id(3));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 3)].into());
}

#[test]
fn what_was_committed_from_two_jobs_of_one_name_before_that_was_found_is_no_checkpoint() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    let other = site.path("other");
    std::fs::create_dir(&other).expect("made");
    for (watch, name) in [(site.run_dir(), "x"), (other.clone(), "y")] {
        // The configurations of both agents do not name the ranks of the node.
        let more = format!(
            "ranks = 4\ngroup-size = 2\nlayout = \"{{checkpoint}}/rank_{{rank}}.dat\"\nincarnation = \"i\"\n{QUICK}"
        );
        let agent = Daemon::agent(site.dir.path(), name, &watch, &site.addresses, &more);
        agent.wait_for_log("session began");
        site.agents.push(agent);
    }
    site.write(1, 2, 0..2);
    (2..RANKS).for_each(|rank| write_file(&other, 2, 2, rank, None));
    wait_complete(&site.store(), &id(2));
    (0..2).for_each(|rank| write_file(&other, 2, 2, rank, None));
    let line = site.aggregators[0].wait_for_log("marked as incomplete");
    assert!(line.contains(&id(2)), "{line}");
    wait_for("the mark", Duration::from_secs(10), || site.complete().is_empty().then_some(()));
    // After one agent has ended, the files of the other agent are saved.
    site.agents.remove(0).kill();
    (0..RANKS).for_each(|rank| write_file(&other, 2, 3, rank, None));
    wait_complete(&site.store(), &id(3));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 3)].into());
}

#[test]
fn a_copy_that_is_restored_below_the_watched_directory_is_part_of_no_checkpoint() {
    let site = Site::empty();
    // The layout is guessed, so all directories below the current directory are watched.
    site.write(1, 1, 0..RANKS);
    let mut command = mcr();
    command.args(["run", "--job", "job", "--ranks", "4", "--store"]).arg(site.store());
    let daemon = Daemon::start(command.arg("--watch").arg(site.run_dir()).arg("--state").arg(site.path("state")));
    wait_complete(&site.store(), &id(1));
    for to in [site.run_dir().join("check"), site.run_dir().join(id(1)).join("check")] {
        let mut restart = mcr();
        restart.args(["restart", "--copy", "--job", "job", "--store"]).arg(site.store()).arg("--to").arg(to);
        run(&mut restart, 0);
    }
    std::thread::sleep(Duration::from_secs(2));
    for step in 2..5 {
        site.write(1, step, 0..RANKS);
        wait_complete(&site.store(), &id(step));
    }
    assert_eq!(site.complete(), (1..5).map(id).collect());
    daemon.signal("TERM");
    let (status, log) = daemon.end();
    assert_eq!(status, Some(0), "{log}");
}

#[test]
fn a_straggler_of_the_dead_run_does_not_fence_the_new_run() {
    let mut site = Site::empty();
    (0..2).for_each(|_| site.start_aggregator("127.0.0.1:0"));
    let other = site.path("other");
    std::fs::create_dir(&other).expect("made");
    for node in 0..2 {
        site.start_agent_of(&other, &format!("m{node}"), node, "ranks = 4\nincarnation = \"first\"");
        site.agents.last().expect("started").wait_for_log("session began");
    }
    (0..2).for_each(|rank| write_file(&other, 1, 1, rank, None));
    site.restart(&["--incarnation", "second"], 3);
    (0..2).for_each(|node| site.start_agent(node, "ranks = 4\nincarnation = \"second\""));
    (2..4).for_each(|rank| write_file(&other, 1, 1, rank, None));
    site.agents[0].wait_for_log("is over: incarnation");
    site.write(2, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    site.write(2, 2, 0..RANKS);
    wait_complete(&site.store(), &id(2));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into());
}

#[test]
fn two_runs_of_one_name_and_identity_never_hold_a_group_each() {
    let site = Site::empty();
    let other = site.path("other");
    let first = start_run(&site, &site.run_dir(), "first", Some("7"));
    let second = start_run(&site, &other, "second", Some("7"));
    site.write(1, 1, 0..2);
    site.wait_group(&id(1), 0);
    (2..RANKS).for_each(|rank| write_file(&other, 2, 1, rank, None));
    second.wait_for_log("two runs have the name job");
    site.write(1, 1, 2..RANKS);
    (0..2).for_each(|rank| write_file(&other, 2, 1, rank, None));
    wait_complete(&site.store(), &id(1));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 1)].into());
    first.kill();
    (0..RANKS).for_each(|rank| write_file(&other, 2, 2, rank, None));
    wait_complete(&site.store(), &id(2));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into());
}
