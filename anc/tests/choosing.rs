//! Tests of several checkpoints in a row: for which segments codecs are measured, which choices are kept, and what
//! the manifest records.

use mcr_anc::budget::Budget;
use mcr_anc::flush::{Flush, FlushOptions, flush_checkpoint};
use mcr_anc::flush_error::FlushError;
use mcr_anc::newest::NewestOfGroups;
use mcr_anc::observe::Observer;
use mcr_anc::source::{FetchError, Source, Wanted};
use mcr_anc::spare::Spare;
use mcrengine::codec::{KEPT_CHECKPOINTS_MAX, Profile, Reason};
use mcrengine::header::{ElementType, Extent, FileHeader, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath, GroupId, Grouping, Rank};
use mcrengine::manifest::{Manifest, newest_restorable};
use mcrengine::store::{Fault, FaultyStore, MemoryStore, Store, Survival};
use mcrengine::units::RawBytes;
use mcrengine::verify::{VerifyOptions, verify};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of fetches of all tests. The flushes of these tests use it as their clock.
static FETCHES: AtomicU64 = AtomicU64::new(0);

struct Memory(Vec<u8>);

impl Source for Memory {
    fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError> {
        FETCHES.fetch_add(1, Ordering::SeqCst);
        for (nth, run) in wanted.iter_mut().enumerate() {
            let from = run.offset as usize;
            run.into.copy_from_slice(&self.0[from..from + run.into.len()]);
            filled(nth, run.into);
        }
        Ok(())
    }
    fn parallel(&self) -> usize {
        1
    }
}

/// Counts segments whose codec was measured, and segments whose codec was kept.
#[derive(Default)]
struct Counter {
    measured: AtomicUsize,
    kept: AtomicUsize,
}

impl Observer for Counter {
    fn chosen(&self, reason: &Reason) {
        let count = match reason {
            Reason::Kept => &self.kept,
            _ => &self.measured,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

struct Series {
    store: Arc<dyn Store>,
    options: FlushOptions,
    steps: u64,
}

impl Series {
    fn new(profile: Profile) -> Self {
        let mut options = FlushOptions { profile, threads: 3, ..FlushOptions::default() };
        options.plan.segment_bytes = 64 << 10;
        Self { store: Arc::new(MemoryStore::new()), options, steps: 0 }
    }

    /// Saves the next checkpoint: one file with one array of doubles. Returns the number of segments whose codec was
    /// measured, the number of segments whose codec was kept, and the manifest.
    fn save(&mut self, values: &[f64]) -> (usize, usize, Manifest) {
        self.try_to_save(values).expect("saved")
    }

    fn try_to_save(&mut self, values: &[f64]) -> Result<(usize, usize, Manifest), FlushError> {
        let raw: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes = raw.len() as u64;
        let variable = VariableHeader {
            role: Role::Array,
            path: "/Density".into(),
            element: ElementType::F64,
            shape: Shape([values.len() as u64].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(bytes),
            digest: Digest::of(&raw),
            filters: [].into(),
            extents: [Extent { offset: 0, stored_bytes: bytes, raw_bytes: bytes }].into(),
        };
        let path = FilePath::new(b"data".to_vec()).expect("a path");
        let (digest, variables) = (Digest::of(&raw), vec![variable]);
        let file = FileHeader {
            path,
            rank: Rank(0),
            bytes,
            kind: Default::default(),
            mode: 0o600,
            modified_ns: 0,
            digest,
            variables,
        };
        let (counter, source) = (Counter::default(), Memory(raw));
        self.steps += 1;
        let flush = Flush {
            store: &*self.store,
            job: "job".parse().expect("a name"),
            checkpoint: format!("c{}", self.steps).parse().expect("a name"),
            group: GroupId(0),
            grouping: Grouping::new(1, 1).expect("one rank"),
            group_size: 1,
            incarnation: 0,
            written_unix_ms: self.steps as i64,
            first_unix_ms: None,
            doubt: None,
            newest: &NewestOfGroups::default(),
            files: Arc::new(vec![file]),
            source: &source,
            options: &self.options,
            budget: &Budget::new(64 << 20),
            spare: &Spare::default(),
            may_commit: &|| Ok(()),
            observer: &counter,
            now_unix_ms: || FETCHES.load(Ordering::SeqCst),
        };
        let manifest = flush_checkpoint(flush)?;
        Ok((counter.measured.into_inner(), counter.kept.into_inner(), manifest))
    }
}

/// Smooth values, different for each seed.
fn wave(seed: u64) -> Vec<f64> {
    (0..40_000).map(|n| 2.0 + ((n as f64) * 0.001 + seed as f64).sin()).collect()
}

/// Random rows of 8 numbers, repeated in random order.
fn repeats(seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let rows: Vec<[f64; 8]> =
        (0..64).map(|_| std::array::from_fn(|_| f64::from_bits(next() << 31 ^ next() | 1 << 62))).collect();
    (0..5000).flat_map(|_| rows[next() as usize % 64]).collect()
}

#[test]
fn the_time_of_a_manifest_is_the_time_of_its_commit_and_not_of_the_begin_of_the_flush() {
    let before = FETCHES.load(Ordering::SeqCst);
    let (_, _, manifest) = Series::new(Profile::Fast).save(&wave(3));
    assert!(manifest.created_unix_ms > before, "{} after {before}", manifest.created_unix_ms);
}

#[test]
fn a_flush_on_several_threads_that_dies_anywhere_leaves_nothing_or_all() {
    let values = wave(1);
    let save = |fault| {
        let store = FaultyStore::new(MemoryStore::new(), fault);
        let mut series = Series::new(Profile::Fast);
        series.store = Arc::new(store.clone());
        (series.try_to_save(&values).map(|_| ()), store)
    };
    let (saved, whole) = save(Fault::None);
    saved.expect("no fault was injected");
    let count = whole.operations();
    assert!(count > 10, "{count} operations");
    let job = "job".parse().expect("a name");
    for before in 0..=count {
        let (saved, store) = save(Fault::Stop { before });
        assert_eq!(saved.is_ok(), before == count, "{before} of {count}: {saved:?}");
        for survival in [Survival::Synced, Survival::Everything].into_iter().chain((1..=10).map(Survival::Some)) {
            let after = store.inner().crash(survival);
            let complete = newest_restorable(&after, &job).expect("the store can be read").count();
            assert!(complete <= 1 && (complete == 1 || saved.is_err()), "{before} of {count}, {survival:?}: {saved:?}");
            if complete == 1 {
                let id = "c1".parse().expect("a name");
                let how = VerifyOptions { memory_bytes: 2 << 20, threads: 1 };
                let report = verify(&after, &job, &id, how, &|_| ());
                assert!(report.is_good(), "{before} of {count}, {survival:?}: {:?}", report.problems);
            }
        }
    }
}

#[test]
fn a_series_that_stays_alike_is_measured_once_until_the_decision_is_old() {
    let mut series = Series::new(Profile::Fast);
    let (measured, kept, first) = series.save(&wave(0));
    assert_eq!((measured, kept), (5, 0));
    let decision = &first.decisions[0];
    assert_eq!((decision.since.to_string(), decision.kept), ("c1".into(), 0));
    assert!(decision.why.starts_with("measured: ") && decision.why.contains("shuffle(8) zstd(1)"), "{}", decision.why);
    for step in 1..=u64::from(KEPT_CHECKPOINTS_MAX) {
        let (measured, kept, manifest) = series.save(&wave(step));
        assert_eq!((measured, kept), (0, 5), "step {step}");
        let later = &manifest.decisions[0];
        assert_eq!((later.since.to_string(), u64::from(later.kept)), ("c1".into(), step));
        assert_eq!((&later.chain, &later.why), (&decision.chain, &decision.why));
    }
    let (measured, kept, manifest) = series.save(&wave(99));
    assert_eq!((measured, kept), (5, 0), "an old decision is measured again");
    assert_eq!(manifest.decisions[0].since, manifest.checkpoint);
}

#[test]
fn a_series_whose_content_changes_its_character_is_decided_anew_at_once() {
    let mut series = Series::new(Profile::Fast);
    series.save(&wave(0));
    assert_eq!(series.save(&wave(1)).0, 0);
    let (measured, _, manifest) = series.save(&repeats(5));
    assert_eq!(measured, 5);
    let decision = &manifest.decisions[0];
    assert_eq!(
        (&*decision.chain, decision.since.clone()),
        ("1:0 18:274", manifest.checkpoint.clone()),
        "{}",
        decision.why
    );
    let (measured, kept, _) = series.save(&repeats(6));
    assert_eq!((measured, kept), (0, 5));
}

#[test]
fn another_profile_or_a_store_of_another_speed_takes_nothing_over() {
    let mut series = Series::new(Profile::Fast);
    series.save(&wave(0));
    // The store is so slow that a delay of some milliseconds on a core does not change any choice.
    series.options.store_bytes_per_s = Some(1 << 20);
    assert_eq!(series.save(&wave(1)).0, 5);
    let (measured, _, manifest) = series.save(&wave(2));
    assert_eq!((measured, manifest.decisions[0].store_mib_per_s), (0, Some(1)));
    series.options.store_bytes_per_s = Some(3 << 20);
    assert_eq!(series.save(&wave(3)).0, 5);
    series.options.profile = Profile::Balanced;
    assert_eq!(series.save(&wave(4)).0, 5);
    series.options.profile = Profile::Zstd { level: 1 };
    assert_eq!(series.save(&wave(5)).2.decisions, [], "this profile makes no decision");
}

#[test]
fn what_is_constant_is_no_decision_about_what_is_not() {
    let mut series = Series::new(Profile::Fast);
    let manifest = series.save(&vec![0.5; 40_000]).2;
    assert_eq!(manifest.decisions[0].why, "all elements are the same");
    assert!(manifest.stored_bytes.0 < 1500, "{}", manifest.stored_bytes);
    let manifest = series.save(&wave(0)).2;
    assert_eq!(manifest.decisions[0].since, manifest.checkpoint);
}
