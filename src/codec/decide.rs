//! How codecs are chosen: the inputs of a choice, its reason, and how a decision is kept from one checkpoint to the
//! next.
//!
//! **Kept decisions.** A class keeps its chain of codecs in the next checkpoint without a new measurement, because
//! neighbouring checkpoints are similar. A segment is measured again at once if its stored bytes are more than 10 %
//! outside the range recorded with the decision. (The mcrEngine paper saw compression ratios drop by 20 to 50 % after
//! the first checkpoint.) A class is also measured again after [`KEPT_CHECKPOINTS_MAX`] checkpoints, and when the
//! store's rate has doubled or halved. Decisions are recorded in the manifest of each group
//! ([`Manifest::decisions`](crate::manifest::Manifest::decisions)), so the decisions outlive the aggregator.
//!
//! **The store's speed.** If the operator gave the store's speed, the candidate with the least time wins. The time of a
//! candidate is the time to encode, divided by the number of cores, plus the time to write the stored bytes. A fast
//! store therefore leads to LZ4, or to raw bytes where the data hardly shrink. A slow store leads to stronger chains.
//! Otherwise the candidate with the fewest stored bytes wins, and the choice depends on the bytes alone.

use super::{Chain, CodecId, Older, Step};
use crate::header::{ElementType, Role};
use crate::ids::CheckpointId;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// A decision is kept for at most this many checkpoints.
pub const KEPT_CHECKPOINTS_MAX: u32 = 16;
/// A decision for raw bytes is kept for at most this many checkpoints. The limit is lower because the stored size of
/// raw bytes is constant, so the size cannot show that the data changed.
const KEPT_RAW_CHECKPOINTS_MAX: u32 = 4;
/// The most decisions that a manifest records. The decisions of the largest classes are recorded.
pub const DECISIONS_MAX: usize = 64;
/// The most bytes of a reason, and of the name of a class. A class with a longer name gets no decision.
const TEXT_BYTES_MAX: usize = 300;

/// Bytes added to the cost of a chain that needs an older segment. These bytes are the cost of naming the older
/// segment, so a chain that saves fewer bytes is not chosen.
const OLDER_BYTES: usize = 256;

/// How fast the store takes bytes, and how many segments are encoded at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRate {
    /// Bytes that the store takes per second.
    pub bytes_per_s: u64,
    /// Number of segments that are encoded at the same time.
    pub cores: u32,
}

impl StoreRate {
    /// Time to encode a segment and to write it. `coding` is the time that one core needs to encode the segment.
    pub fn time(&self, coding: Duration, stored_bytes: u64) -> Duration {
        let writing_ns = u128::from(stored_bytes) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1));
        coding / self.cores.max(1) + Duration::from_nanos(u64::try_from(writing_ns).unwrap_or(u64::MAX / 2))
    }
}

/// The inputs of a choice, in addition to the segment itself.
#[derive(Clone, Copy)]
pub struct Basis<'a> {
    /// The decision of an earlier checkpoint. `None` if there is no such decision.
    pub kept: Option<&'a Decision>,
    /// The store's speed. `None` if the choice must not depend on the speed.
    pub store: Option<StoreRate>,
    /// The clock: the time since an arbitrary fixed moment. The clock is read only if `store` is set.
    pub clock: &'a dyn Fn() -> Duration,
    /// The bytes of this segment in an older checkpoint. `None` if older bytes must not be used.
    pub older: Option<&'a Arc<Older>>,
}

impl Basis<'_> {
    /// The choice depends on the bytes of the segment alone.
    pub const NOTHING: Basis<'static> = Basis { kept: None, store: None, clock: &|| Duration::ZERO, older: None };

    pub(super) fn now(&self) -> Duration {
        if self.store.is_some() { (self.clock)() } else { Duration::ZERO }
    }

    /// The cost of a candidate; the candidate with the lowest cost wins. A chain that needs an older segment must
    /// save at least 3 %, because a restart then reads and decodes two segments.
    pub(super) fn cost(&self, trial: &Trial) -> u128 {
        let more = if trial.chain.needs_older() { trial.stored_bytes * 3 / 97 + OLDER_BYTES } else { 0 };
        let stored_bytes = trial.stored_bytes + more;
        match self.store {
            Some(store) => store.time(trial.coding, stored_bytes as u64).as_nanos(),
            None => stored_bytes as u128,
        }
    }
}

/// Result of trying one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The candidate.
    pub chain: Chain,
    /// Number of stored bytes of the sample.
    pub stored_bytes: usize,
    /// Time that one core took to encode the sample. Zero if only bytes count.
    pub coding: Duration,
}

/// Why a segment got its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The profile has only one chain for this element type.
    Only,
    /// All elements are equal.
    Constant,
    /// The chain was chosen in an older checkpoint, and the segment's stored size is still in the expected range.
    Kept,
    /// The number of repeats determined the chain, without a trial. The value counts how many of a thousand runs of
    /// elements repeat earlier runs.
    Repeats(usize),
    /// Several chains were tried.
    Tried {
        /// Raw bytes of the sample.
        sample_bytes: usize,
        /// The result of each chain.
        trials: Vec<Trial>,
    },
    /// The chain that was chosen failed its check.
    Failed,
}

impl Reason {
    /// Whether the choice needed a measurement.
    pub fn is_measured(&self) -> bool {
        matches!(self, Self::Repeats(_) | Self::Tried { .. })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("only candidate"),
            Self::Constant => f.write_str("all elements are the same"),
            Self::Kept => f.write_str("kept"),
            Self::Repeats(per_mille) => {
                write!(f, "{}.{} % of the elements repeat earlier elements", per_mille / 10, per_mille % 10)
            }
            Self::Tried { sample_bytes, trials } => {
                f.write_str("measured: ")?;
                for (i, trial) in trials.iter().enumerate() {
                    let ratio = *sample_bytes as f64 / trial.stored_bytes.max(1) as f64;
                    write!(f, "{}{} {ratio:.2}", if i > 0 { ", " } else { "" }, trial.chain)?;
                    if !trial.coding.is_zero() {
                        write!(f, " at {:.0} MB/s", *sample_bytes as f64 / 1e6 / trial.coding.as_secs_f64())?;
                    }
                }
                Ok(())
            }
            Self::Failed => f.write_str("the chosen chain failed its check"),
        }
    }
}

/// The name used in place of a class for decisions on segments that several classes share.
pub fn shared_name(role: Role, element: &ElementType) -> String {
    let role = match role {
        Role::Skeleton => "skeletons",
        Role::Array => "arrays",
        Role::StoredChunks => "stored chunks",
        Role::WholeFile => "files",
    };
    format!("shared {role} {element}")
}

/// The name used in place of a class for decisions on segments that may be coded with an older checkpoint.
pub fn since_name(class: &str) -> String {
    format!("{class}, since the checkpoint before")
}

/// An encoded segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The chain that encoded the segment.
    pub chain: Chain,
    /// The stored bytes, never more than the raw bytes.
    pub stored: Vec<u8>,
    /// Why this chain was chosen.
    pub reason: Reason,
}

/// The decision for one class, as a manifest records it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Decision {
    /// Name of the class. For segments that several classes share, a description of their contents.
    pub class: String,
    /// The chain. Each step is its codec's number and its parameter, for example `1:0 16:8 18:1`.
    pub chain: String,
    /// The checkpoint in which the decision was made.
    pub since: CheckpointId,
    /// Number of later checkpoints that kept the decision.
    pub kept: u32,
    /// The lowest and the highest compressed size of a segment when the decision was made, in stored bytes per
    /// million raw bytes.
    pub stored_ppm: (u32, u32),
    /// The reason, as text for people.
    pub why: String,
    /// The store's speed when the decision was made. `None` if the choice did not depend on the speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_mib_per_s: Option<u64>,
}

impl Decision {
    /// The chain. `None` if a codec of the chain is not in this build.
    pub fn chain(&self) -> Option<Chain> {
        let step = |text: &str| {
            let (codec, param) = text.split_once(':')?;
            Some(Step { codec: CodecId(codec.parse().ok()?), param: param.parse().ok()? })
        };
        let steps: Option<Vec<Step>> = self.chain.split(' ').take(super::STEPS_MAX + 1).map(step).collect();
        Chain::new(&steps?).ok()
    }

    /// Whether the stored size of a segment is still in the range that was recorded with the decision.
    pub(super) fn expects(&self, raw_bytes: usize, stored_bytes: usize) -> bool {
        let (raw, stored) = (raw_bytes.max(1) as u64, stored_bytes as u64);
        // The slack lets very small segments differ by a few bytes.
        let slack = raw / 1000 + 64;
        let of = |ppm: u32| raw * u64::from(ppm) / 1_000_000; // cannot overflow: at most 2^30 times 2^32
        stored <= of(self.stored_ppm.1) * 11 / 10 + slack && stored + slack >= of(self.stored_ppm.0) * 9 / 10
    }
}

fn text_of(chain: &Chain) -> String {
    let mut text = String::new();
    for step in chain.steps() {
        let space = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{space}{}:{}", step.codec.0, step.param); // writing to a String does not fail
    }
    text
}

/// The decisions of the previous checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Decisions(BTreeMap<String, Decision>);

impl Decisions {
    /// Makes the collection from the decisions in a manifest of the same group and profile.
    pub fn new(recorded: Vec<Decision>) -> Self {
        Self(recorded.into_iter().take(DECISIONS_MAX).map(|decision| (decision.class.clone(), decision)).collect())
    }

    /// The decision that a class keeps. `None` if the class must be measured again.
    pub fn kept(&self, class: &str, store: Option<StoreRate>) -> Option<&Decision> {
        let decision = self.0.get(class)?;
        let most =
            if decision.chain == text_of(&Chain::raw()) { KEPT_RAW_CHECKPOINTS_MAX } else { KEPT_CHECKPOINTS_MAX };
        let is_as_fast = match (decision.store_mib_per_s, store.map(mib_per_s)) {
            (None, None) => true,
            (Some(then), Some(now)) => now <= then.saturating_mul(2) && then <= now.saturating_mul(2),
            _ => false,
        };
        (decision.kept < most && is_as_fast).then_some(decision)
    }
}

fn mib_per_s(store: StoreRate) -> u64 {
    store.bytes_per_s >> 20
}

/// The chain, the sizes and the reason of one encoded segment.
struct Note {
    segment: usize,
    raw_bytes: u64,
    stored_ppm: u32,
    chain: Chain,
    reason: Reason,
}

/// Collects how each segment of a checkpoint was encoded. The segments may come in any order.
#[derive(Default)]
pub struct Deciding(BTreeMap<String, Vec<Note>>);

impl Deciding {
    /// Records how a segment of a class was encoded.
    pub fn note(&mut self, class: &str, segment: usize, raw_bytes: usize, coded: &Coded) {
        if class.len() > TEXT_BYTES_MAX {
            return;
        }
        let stored_ppm = (coded.stored.len() as u64 * 1_000_000 / raw_bytes.max(1) as u64) as u32; // at most 10^6
        let (chain, reason) = (coded.chain.clone(), coded.reason.clone());
        let note = Note { segment, raw_bytes: raw_bytes as u64, stored_ppm, chain, reason };
        match self.0.get_mut(class) {
            Some(notes) => notes.push(note),
            None => drop(self.0.insert(class.to_owned(), vec![note])),
        }
    }

    /// The decisions of this checkpoint: kept decisions, new decisions, and the older decisions of classes that
    /// stored no segment in this checkpoint.
    pub fn finish(self, before: &Decisions, checkpoint: &CheckpointId, store: Option<StoreRate>) -> Vec<Decision> {
        let older = |class: &str| {
            let older = before.0.get(class)?;
            Some(Decision { kept: older.kept.saturating_add(1), ..older.clone() })
        };
        let mut all: Vec<(u64, Decision)> = Vec::new();
        for (class, mut notes) in self.0.into_iter() {
            notes.sort_by_key(|note| note.segment);
            let raw_bytes = notes.iter().map(|note| note.raw_bytes).sum();
            // Segments of equal elements say nothing about the other segments of the class.
            let others: Vec<&Note> = notes.iter().filter(|note| note.reason != Reason::Constant).collect();
            let notes = if others.is_empty() { notes.iter().collect() } else { others };
            let is_as_before = |note: &&Note| match note.reason {
                Reason::Kept => true,
                Reason::Constant => before.0.get(&class).is_some_and(|b| b.chain == text_of(&note.chain)),
                _ => false,
            };
            let kept = if notes.iter().all(is_as_before) { older(&class) } else { None };
            all.extend(
                kept.or_else(|| decided(class, &notes, checkpoint, store)).map(|decision| (raw_bytes, decision)),
            );
        }
        let is_there = |class: &str| all.iter().any(|(_, decision)| decision.class == class);
        let absent = before.0.keys().filter(|class| !is_there(class)).filter_map(|class| older(class));
        let absent: Vec<_> = absent.filter(|d| d.kept < KEPT_CHECKPOINTS_MAX).map(|decision| (0, decision)).collect();
        all.extend(absent);
        all.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.class.cmp(&b.1.class)));
        all.into_iter().take(DECISIONS_MAX).map(|(_, decision)| decision).collect()
    }
}

/// The decision for a class: the chain that coded most bytes of the class, with the reason of the first measured
/// segment.
fn decided(class: String, notes: &[&Note], checkpoint: &CheckpointId, store: Option<StoreRate>) -> Option<Decision> {
    let bytes_of = |chain: &Chain| notes.iter().filter(|n| n.chain == *chain).map(|n| n.raw_bytes).sum::<u64>();
    // If two chains coded equally many bytes, the chain of the earlier segment wins.
    let most = notes.iter().rev().max_by_key(|note| bytes_of(&note.chain))?;
    let same = || notes.iter().filter(|note| note.chain == most.chain);
    let reason = same().find(|note| note.reason.is_measured()).unwrap_or(most);
    let mut why = reason.reason.to_string();
    if why.len() > TEXT_BYTES_MAX {
        why.truncate((0..=TEXT_BYTES_MAX).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0));
    }
    let least = same().map(|note| note.stored_ppm).min()?;
    Some(Decision {
        class,
        chain: text_of(&most.chain),
        since: checkpoint.clone(),
        kept: 0,
        stored_ppm: (least, same().map(|note| note.stored_ppm).max()?),
        why,
        store_mib_per_s: store.map(mib_per_s),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> CheckpointId {
        name.parse().expect("a valid name")
    }

    fn coded(chain: Chain, stored_bytes: usize, reason: Reason) -> Coded {
        Coded { chain, stored: vec![0; stored_bytes], reason }
    }

    fn measured() -> Reason {
        Reason::Tried { sample_bytes: 0, trials: Vec::new() }
    }

    #[test]
    fn time_is_coding_on_all_cores_and_writing() {
        let store = StoreRate { bytes_per_s: 500_000_000, cores: 4 };
        assert_eq!(store.time(Duration::from_millis(8), 1_000_000), Duration::from_millis(2 + 2));
        let (fast, slow) =
            (StoreRate { bytes_per_s: 20_000_000_000, cores: 1 }, StoreRate { bytes_per_s: 50_000_000, cores: 1 });
        let trial =
            |ms: u64, stored_bytes| Trial { chain: Chain::raw(), stored_bytes, coding: Duration::from_millis(ms) };
        let (raw, lz4, strong) = (trial(0, 4_000_000), trial(4, 2_000_000), trial(40, 1_000_000));
        let best = |store| {
            let basis = Basis { store: Some(store), ..Basis::NOTHING };
            [&raw, &lz4, &strong].into_iter().min_by_key(|trial| basis.cost(trial)).map(|trial| trial.stored_bytes)
        };
        assert_eq!(best(fast), Some(4_000_000));
        assert_eq!(best(StoreRate { bytes_per_s: 200_000_000, cores: 1 }), Some(2_000_000));
        assert_eq!(best(slow), Some(2_000_000));
        assert_eq!(best(StoreRate { cores: 16, ..slow }), Some(1_000_000), "with more cores, a stronger chain wins");
        assert_eq!(Basis::NOTHING.cost(&strong), 1_000_000, "only bytes count");
    }

    #[test]
    fn a_decision_is_kept_until_it_is_old_or_the_store_has_another_speed() {
        let mut deciding = Deciding::default();
        deciding.note("a", 0, 1000, &coded(Chain::zstd(3), 500, measured()));
        let at = |mib: u64| Some(StoreRate { bytes_per_s: mib << 20, cores: 1 });
        let mut decisions = Decisions::new(deciding.finish(&Decisions::default(), &id("c0"), at(100)));
        assert_eq!(decisions.kept("a", at(190)).and_then(Decision::chain), Some(Chain::zstd(3)));
        assert!(decisions.kept("a", at(201)).is_none() && decisions.kept("a", at(49)).is_none());
        assert!(decisions.kept("a", None).is_none() && decisions.kept("b", at(100)).is_none());
        for n in 1..=KEPT_CHECKPOINTS_MAX {
            assert!(decisions.kept("a", at(100)).is_some(), "after {n} checkpoints");
            let mut deciding = Deciding::default();
            deciding.note("a", 0, 1000, &coded(Chain::zstd(3), 505, Reason::Kept));
            decisions = Decisions::new(deciding.finish(&decisions, &id("later"), at(100)));
        }
        assert!(decisions.kept("a", at(100)).is_none(), "an old decision is measured again");
        let mut deciding = Deciding::default();
        deciding.note("a", 0, 1000, &coded(Chain::zstd(3), 500, measured()));
        let again = deciding.finish(&decisions, &id("again"), at(100));
        assert_eq!((again[0].since.clone(), again[0].kept), (id("again"), 0));
    }

    #[test]
    fn what_brings_less_or_more_than_it_did_is_noticed() {
        let mut deciding = Deciding::default();
        for (n, stored) in [300_000, 500_000].into_iter().enumerate() {
            deciding.note("a", n, 1_000_000, &coded(Chain::zstd(3), stored, measured()));
        }
        let decision = &deciding.finish(&Decisions::default(), &id("c0"), None)[0];
        assert_eq!(decision.stored_ppm, (300_000, 500_000));
        for (stored, is_expected) in
            [(300_000, true), (551_000, true), (552_000, false), (269_000, true), (268_000, false)]
        {
            assert_eq!(decision.expects(1_000_000, stored), is_expected, "{stored}");
        }
        assert!(decision.expects(100, 100), "a difference of a few bytes is ignored");
    }

    #[test]
    fn a_class_gets_what_most_of_its_bytes_got_and_one_without_bytes_stays() {
        let mut deciding = Deciding::default();
        deciding.note("a", 2, 1000, &coded(Chain::lz4(), 500, measured()));
        deciding.note("a", 0, 1500, &coded(Chain::zstd(3), 500, Reason::Repeats(123)));
        deciding.note("a", 1, 9000, &coded(Chain::runs(8).expect("a valid width"), 4, Reason::Constant));
        deciding.note("b", 3, 10, &coded(Chain::zstd(1), 5, Reason::Only));
        deciding.note(&"long".repeat(100), 4, 10, &coded(Chain::zstd(1), 5, Reason::Only));
        let first = deciding.finish(&Decisions::default(), &id("c0"), None);
        let shown: Vec<_> = first.iter().map(|d| (d.class.as_str(), d.chain.as_str(), d.why.as_str())).collect();
        assert_eq!(
            shown,
            [("a", "1:0 18:3", "12.3 % of the elements repeat earlier elements"), ("b", "1:0 18:1", "only candidate")]
        );
        let mut deciding = Deciding::default();
        deciding.note("b", 0, 10, &coded(Chain::zstd(1), 5, Reason::Kept));
        let second = deciding.finish(&Decisions::new(first), &id("c1"), None);
        let shown: Vec<_> = second.iter().map(|d| (d.class.as_str(), d.since.to_string(), d.kept)).collect();
        assert_eq!(shown, [("b", "c0".into(), 1), ("a", "c0".into(), 1)]);
    }

    #[test]
    fn a_chain_that_is_none_is_no_decision() {
        let decision = |chain: &str| Decision {
            class: "a".into(),
            chain: chain.into(),
            since: id("c0"),
            kept: 0,
            stored_ppm: (0, 0),
            why: String::new(),
            store_mib_per_s: None,
        };
        assert_eq!(decision("1:0 16:8 18:1").chain(), Some(Chain::shuffle_zstd(8, 1)));
        for bad in ["", "18:1", "1:0 999:1", "1:0 18:99", "1:0  18:1", "1", "1:0 18:1 18:1 18:1 18:1 18:1 18:1", "-1:0"]
        {
            assert_eq!(decision(bad).chain(), None, "{bad:?}");
        }
    }
}
