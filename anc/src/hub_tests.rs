//! Tests of the hub with simulated flushes. The test decides when a flush ends. For every order of events, each
//! committed content must belong to one step.

use super::*;
use crate::fetch::About;
use crate::flush_error::FlushError;
use crate::source::FetchError;
use mcrengine::header::{ElementType, Extent, FileHeader, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath};
use mcrengine::manifest::{Manifest, ManifestContainer};
use mcrengine::plan::Scheme;
use mcrengine::store::MemoryStore;
use mcrengine::units::{RawBytes, StoredBytes};
use proptest::prelude::*;
use std::cell::RefCell;

thread_local! {
    static LAUNCHED: RefCell<VecDeque<FlushWork>> = const { RefCell::new(VecDeque::new()) };
}

const RANKS: u32 = 3;
/// Time between two steps, in nanoseconds. The ranks write one step within 400 s.
const STEP_NS: i64 = 1_000_000_000_000;
const LATER_NS: i64 = 200_000_000_000;

fn job() -> JobId {
    "job".parse().expect("valid")
}

fn label() -> CheckpointId {
    "restart.h5".parse().expect("valid")
}

/// Ranks and their agents. Each rank overwrites one file at every step.
struct Site {
    hub: Hub,
    /// The newest step that each rank has written, and whether the rank's agent has announced this step.
    written: Vec<(u32, bool)>,
    links: Vec<Arc<AgentLink>>,
    sessions: u64,
    announcements: u64,
    commits: u32,
    newest: u32,
    runtime: tokio::runtime::Runtime,
}

impl Site {
    fn new(spread: Duration) -> Self {
        LAUNCHED.with_borrow_mut(VecDeque::clear);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let options = HubOptions {
            flush: FlushOptions::default(),
            group_size: RANKS,
            ranks: None,
            times: Times { gather_ms: 1 << 40, retry_ms: 0 },
            fetch_deadline: Duration::from_secs(1),
            spread,
            flushes: 1,
            keep: Default::default(),
            of_job: None,
            has_agent: false,
        };
        let (mut hub, _, _) = Hub::new(Arc::new(MemoryStore::new()), options, Budget::new(1 << 20));
        hub.launch = |work, _| {
            LAUNCHED.with_borrow_mut(|all| all.push_back(work));
            Ok(())
        };
        let written = vec![(0, true); RANKS as usize];
        let mut site =
            Self { hub, written, links: Vec::new(), sessions: 0, announcements: 0, commits: 0, newest: 0, runtime };
        for rank in 0..RANKS {
            let link = site.open(rank);
            site.links.push(link);
        }
        site
    }

    fn open(&mut self, rank: u32) -> Arc<AgentLink> {
        self.sessions += 1;
        let (out, _) = tokio::sync::mpsc::channel(1);
        let _entered = self.runtime.enter();
        let link = AgentLink::new(self.sessions, format!("node{rank}"), About::default(), out);
        self.hub.handle(HubEvent::Opened { link: Arc::clone(&link), job: job() });
        link
    }

    /// Lets a rank write the next step, if all ranks have written the previous step.
    fn write(&mut self, rank: usize, skip: bool) {
        let slowest = self.written.iter().map(|(step, _)| *step).min().unwrap_or(0);
        let (step, announced) = self.written[rank];
        if step == slowest && (announced || skip) {
            self.written[rank] = (step + 1, false);
        }
    }

    fn announce(&mut self, rank: usize) {
        let (step, _) = self.written[rank];
        if step == 0 {
            return;
        }
        self.written[rank].1 = true;
        self.announcements += 1;
        let announced = Announced {
            link: Arc::clone(&self.links[rank]),
            announce_id: self.announcements,
            files: Arc::new(vec![file(rank as u32, step)]),
            written_unix_ns: file(rank as u32, step).modified_ns,
            changed_clock_ns: 0,
            created_clock_ns: None,
            kept_time_ns: 0,
            doubt: None,
            replaced_clock_ns: None,
            interval_ms: None,
            first_ms: None,
            is_final: false,
            room: None,
        };
        let (job, label, rank) = (job(), label(), Rank(rank as u32));
        self.hub.handle(HubEvent::Announced { announced, job, ranks: RANKS, label, rank });
        self.check();
    }

    fn withdraw(&mut self, rank: usize) {
        let (session, job, label) = (self.links[rank].session, job(), label());
        let (rank, reason) = (Rank(rank as u32), String::new());
        self.hub.handle(HubEvent::Withdrawn { session, job, label, rank, reason });
        self.check();
    }

    fn reconnect(&mut self, rank: usize) {
        let link = self.open(rank as u32);
        let old = std::mem::replace(&mut self.links[rank], link);
        self.hub.handle(HubEvent::Ended { session: old.session });
        self.announce(rank);
    }

    /// Checks that every running flush has all ranks, and that all its files belong to one step.
    fn check(&mut self) {
        LAUNCHED.with_borrow(|all| {
            assert!(all.len() <= 1, "two flushes of one group run at the same time");
            for work in all {
                let steps: Vec<u32> = work.files.iter().map(|file| step_of(file.modified_ns)).collect();
                assert_eq!(steps.len(), RANKS as usize, "a rank is missing");
                assert!(steps.iter().all(|step| *step == steps[0]), "one checkpoint has files of the steps {steps:?}");
            }
        });
    }

    fn end_flush(&mut self, how: u8) {
        let Some(work) = LAUNCHED.with_borrow_mut(VecDeque::pop_front) else { return };
        let step = step_of(work.files[0].modified_ns);
        let result = match how {
            0 => Err(FlushError::Panicked("on purpose".into())),
            n if n < RANKS as u8 + 1 => {
                Err(FlushError::Fetch(FetchError::Changed { rank: Rank(u32::from(n) - 1), file: String::new() }))
            }
            _ => {
                self.commits += 1;
                self.newest = step;
                let id = label().with_generation(self.commits).expect("valid");
                let manifest = manifest_of(&id);
                Ok(Flushed { id, manifest, exists: true, was_there: false })
            }
        };
        let (key, elapsed) = (work.key, Duration::ZERO);
        self.hub.handle(HubEvent::FlushEnded { key, result: Box::new(result), elapsed });
        self.check();
        self.tick();
    }

    fn tick(&mut self) {
        self.hub.tick();
        self.check();
    }

    /// Lets all ranks finish the step, and all agents connect again. No operation fails from now on.
    fn settle(&mut self) {
        (0..RANKS as usize)
            .filter(|rank| !self.written[*rank].1)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|rank| self.announce(rank));
        let last = self.written.iter().map(|(step, _)| *step).max().unwrap_or(0);
        self.written = vec![(last, false); RANKS as usize];
        for _ in 0..3 {
            (0..RANKS as usize).for_each(|rank| self.reconnect(rank));
            for _ in 0..4 {
                self.tick();
                self.end_flush(u8::MAX);
            }
        }
        if last > 0 {
            assert_eq!(self.newest, last, "without further failures, the last step is committed");
        }
    }
}

fn step_of(modified_ns: i64) -> u32 {
    (modified_ns / STEP_NS) as u32
}

fn file(rank: u32, step: u32) -> FileHeader {
    let digest = Digest::of(&[rank as u8, step as u8]);
    FileHeader {
        path: FilePath::new(format!("r{rank}").into_bytes()).expect("valid"),
        rank: Rank(rank),
        bytes: 8,
        kind: Default::default(),
        mode: 0,
        modified_ns: i64::from(step) * STEP_NS + i64::from(rank) * LATER_NS,
        digest,
        variables: vec![VariableHeader {
            role: Role::WholeFile,
            path: "".into(),
            element: ElementType::Bytes,
            shape: Shape([8].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(8),
            digest,
            filters: [].into(),
            extents: [Extent { offset: 0, stored_bytes: 8, raw_bytes: 8 }].into(),
        }],
    }
}

pub(crate) fn manifest_of(id: &CheckpointId) -> Manifest {
    let digest = Digest([0; 32]);
    Manifest {
        job: job(),
        checkpoint: id.clone(),
        incarnation: 0,
        doubt: None,
        ranks: RANKS,
        groups: 1,
        group_size: RANKS,
        group: GroupId(0),
        first_rank: Rank(0),
        rank_count: RANKS,
        scheme: Scheme::default(),
        profile: String::new(),
        written_unix_ms: 0,
        first_unix_ms: None,
        created_unix_ms: 0,
        elapsed_ms: 0,
        in_a_row: 0,
        raw_bytes: RawBytes(0),
        stored_bytes: StoredBytes(0),
        container: ManifestContainer { name: String::new(), bytes: 0, digest, index_digest: digest },
        references: Vec::new(),
        referred: Vec::new(),
        decisions: Vec::new(),
        files: Vec::new(),
    }
}

fn play(site: &mut Site, script: &[(u8, usize)], skip: bool) {
    for (what, rank) in script {
        match what {
            0 | 1 => site.write(*rank, skip),
            2 | 3 => site.announce(*rank),
            4 => site.withdraw(*rank),
            5 => site.reconnect(*rank),
            6 => site.tick(),
            7 => site.end_flush(*rank as u8 + 1),
            8 => site.end_flush(0),
            _ => site.end_flush(u8::MAX),
        }
    }
    site.settle();
}

#[test]
fn a_step_announced_during_a_flush_and_withdrawn_is_not_forgotten() {
    let (write, announce, withdraw, changed) = (0, 2, 4, 7);
    let script = [
        (write, 0),
        (write, 1),
        (write, 2),
        (announce, 0),
        (announce, 2),
        (write, 0),
        (announce, 1),
        // Now the flush of step 1 is running.
        (announce, 0),
        (withdraw, 0),
        (write, 1),
        (write, 2),
        (changed, 0),
        // Rank 0 writes step 3, while the other ranks have announced step 1 and written step 2.
        (write, 0),
    ];
    play(&mut Site::new(Duration::from_secs(1 << 30)), &script, false);
}

#[test]
fn the_checkpoints_that_the_application_wrote_first_make_room_and_not_those_that_arrived_first() {
    let mut site = Site::new(Duration::from_secs(1 << 30));
    let (rank, waiting) = (Rank(0), WAITING_MAX as u32);
    let key = |step: u32| Key { job: job(), group: GroupId(0), label: format!("s{step}").parse().expect("valid") };
    // The newest step arrives first. Each step lacks two ranks.
    for step in [2 * waiting].into_iter().chain(1..=waiting + 1) {
        let announced = Announced {
            link: Arc::clone(&site.links[0]),
            announce_id: u64::from(step),
            files: Arc::new(vec![file(rank.0, step)]),
            written_unix_ns: file(rank.0, step).modified_ns,
            changed_clock_ns: 0,
            created_clock_ns: None,
            kept_time_ns: 0,
            doubt: None,
            replaced_clock_ns: None,
            interval_ms: None,
            first_ms: None,
            is_final: false,
            room: None,
        };
        let (job, label) = (job(), key(step).label);
        site.hub.handle(HubEvent::Announced { announced, job, ranks: RANKS, label, rank });
    }
    let is_waiting = |step: u32| matches!(site.hub.gathers[&key(step)].phase, Phase::Gathering { .. });
    assert!(is_waiting(2 * waiting), "the newest step");
    let steps: Vec<u32> = (1..=waiting + 1).filter(|step| is_waiting(*step)).collect();
    assert_eq!(steps, (3..=waiting + 1).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn one_content_is_one_step_where_steps_are_further_apart_than_the_spread(
        script in prop::collection::vec((0u8..11, 0usize..RANKS as usize), 0..80)
    ) {
        play(&mut Site::new(Duration::from_secs(450)), &script, true);
    }

    #[test]
    fn one_content_is_one_step_where_every_step_was_announced(
        script in prop::collection::vec((0u8..11, 0usize..RANKS as usize), 0..80)
    ) {
        play(&mut Site::new(Duration::from_secs(1 << 30)), &script, false);
    }
}
