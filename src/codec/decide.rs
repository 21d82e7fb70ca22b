//! What a choice rests on, why it was made, and how it is kept from one checkpoint to the next.
//!
//! **Kept.** What a class got in one checkpoint it gets in the next without being measured again, since neighbouring
//! checkpoints are alike. It is measured anew where a segment's stored bytes are more than 10 % off what they were
//! when it was decided (at once, for that segment: the paper saw ratios drop by 20 to 50 % after the first
//! checkpoint), after [`KEPT_CHECKPOINTS_MAX`] checkpoints, and when the store's rate has doubled or halved.
//! Decisions are in the manifest of each group ([`Manifest::decisions`](crate::manifest::Manifest::decisions)), so
//! they outlive the aggregator.
//!
//! **The store's speed.** Where it is known how fast the store takes bytes, the candidate with the least time wins:
//! time to code, shared by all cores, and time to write what is left. A fast store so leads to LZ4, or to nothing at
//! all for what hardly shrinks, a slow one to stronger chains. Where it is not known, the fewest bytes win, and the
//! choice depends on the bytes alone.

use super::{Chain, CodecId, Older, Step};
use crate::header::{ElementType, Role};
use crate::ids::CheckpointId;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// For so many checkpoints a decision stays, at most.
pub const KEPT_CHECKPOINTS_MAX: u32 = 16;
/// And so many where nothing made it smaller: raw bytes never look different.
const KEPT_RAW_CHECKPOINTS_MAX: u32 = 4;
/// Decisions that a manifest records at most: those of the largest classes.
pub const DECISIONS_MAX: usize = 64;
/// The longest name of a class with a decision, and the longest reason, in bytes.
const TEXT_BYTES_MAX: usize = 300;

/// What it costs to name an older segment, in bytes, and what less is not worth it.
const OLDER_BYTES: usize = 256;

/// How fast the store takes bytes, and on how many cores segments are coded at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRate {
    /// Bytes that it takes in a second.
    pub bytes_per_s: u64,
    /// Segments that are coded at a time.
    pub cores: u32,
}

impl StoreRate {
    /// Time to code and to write, where coding takes one core so long.
    pub fn time(&self, coding: Duration, stored_bytes: u64) -> Duration {
        let writing_ns = u128::from(stored_bytes) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1));
        coding / self.cores.max(1) + Duration::from_nanos(u64::try_from(writing_ns).unwrap_or(u64::MAX / 2))
    }
}

/// What a choice rests on beside the segment itself.
#[derive(Clone, Copy)]
pub struct Basis<'a> {
    /// What was decided before.
    pub kept: Option<&'a Decision>,
    /// How fast the store is, where that is to count.
    pub store: Option<StoreRate>,
    /// Time since any moment; only asked where the store counts.
    pub clock: &'a dyn Fn() -> Duration,
    /// What an older checkpoint has of the segment, where that may be used.
    pub older: Option<&'a Arc<Older>>,
}

impl Basis<'_> {
    /// The bytes alone.
    pub const NOTHING: Basis<'static> = Basis { kept: None, store: None, clock: &|| Duration::ZERO, older: None };

    pub(super) fn now(&self) -> Duration {
        if self.store.is_some() { (self.clock)() } else { Duration::ZERO }
    }

    /// What is to be least. An older segment must bring something: a restart then reads and decodes two.
    pub(super) fn cost(&self, trial: &Trial) -> u128 {
        let more = if trial.chain.needs_older() { trial.stored_bytes * 3 / 97 + OLDER_BYTES } else { 0 };
        let stored_bytes = trial.stored_bytes + more;
        match self.store {
            Some(store) => store.time(trial.coding, stored_bytes as u64).as_nanos(),
            None => stored_bytes as u128,
        }
    }
}

/// What one candidate gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Which one.
    pub chain: Chain,
    /// Bytes that it left of the sample.
    pub stored_bytes: usize,
    /// How long it took one core; zero where only bytes count.
    pub coding: Duration,
}

/// Why a segment got its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The profile has no other for this type.
    Only,
    /// All elements are the same.
    Constant,
    /// It was decided in an older checkpoint, and brings what it brought then.
    Kept,
    /// So many of a thousand runs of elements were there before.
    Repeats(usize),
    /// These were tried.
    Tried {
        /// Bytes that they were tried on.
        sample_bytes: usize,
        /// What each gave.
        trials: Vec<Trial>,
    },
    /// The chain that was chosen failed its check.
    Failed,
}

impl Reason {
    /// Whether something had to be measured.
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
            Self::Repeats(per_mille) => write!(f, "{}.{} % of it occurs before", per_mille / 10, per_mille % 10),
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
            Self::Failed => f.write_str("the chosen one failed its check"),
        }
    }
}

/// What stands for the class in decisions on segments that several classes share.
pub fn shared_name(role: Role, element: &ElementType) -> String {
    let role = match role {
        Role::Skeleton => "skeletons",
        Role::Array => "arrays",
        Role::StoredChunks => "stored chunks",
        Role::WholeFile => "files",
    };
    format!("shared {role} {element}")
}

/// What stands for a class in decisions on segments that an older checkpoint may tell.
pub fn since_name(class: &str) -> String {
    format!("{class}, since the checkpoint before")
}

/// What a segment became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// How.
    pub chain: Chain,
    /// Its stored bytes, never more than the raw ones.
    pub stored: Vec<u8>,
    /// Why so.
    pub reason: Reason,
}

/// What was decided for a class, as a manifest records it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Decision {
    /// The class, or what the segments hold that several classes share.
    pub class: String,
    /// The chain, each step as its number and parameter: `1:0 16:8 18:1`.
    pub chain: String,
    /// In which checkpoint it was decided.
    pub since: CheckpointId,
    /// Checkpoints that took it over since.
    pub kept: u32,
    /// Stored bytes of a million raw ones, the least and the most of a segment when it was decided.
    pub stored_ppm: (u32, u32),
    /// For people.
    pub why: String,
    /// How fast the store was then, where that counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_mib_per_s: Option<u64>,
}

impl Decision {
    /// The chain, if this build knows it.
    pub fn chain(&self) -> Option<Chain> {
        let step = |text: &str| {
            let (codec, param) = text.split_once(':')?;
            Some(Step { codec: CodecId(codec.parse().ok()?), param: param.parse().ok()? })
        };
        let steps: Option<Vec<Step>> = self.chain.split(' ').take(super::STEPS_MAX + 1).map(step).collect();
        Chain::new(&steps?).ok()
    }

    /// Whether a segment that its chain coded is what it was when it was decided.
    pub(super) fn expects(&self, raw_bytes: usize, stored_bytes: usize) -> bool {
        let (raw, stored) = (raw_bytes.max(1) as u64, stored_bytes as u64);
        // A few bytes more or less of very little are no change of character.
        let slack = raw / 1000 + 64;
        let of = |ppm: u32| raw * u64::from(ppm) / 1_000_000; // at most 1 GiB times 2^32
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

/// What the checkpoint before decided.
#[derive(Clone, Debug, Default)]
pub struct Decisions(BTreeMap<String, Decision>);

impl Decisions {
    /// Of a manifest of the same group and profile.
    pub fn new(recorded: Vec<Decision>) -> Self {
        Self(recorded.into_iter().take(DECISIONS_MAX).map(|decision| (decision.class.clone(), decision)).collect())
    }

    /// What a class keeps, unless it is due to be measured again.
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

/// One segment that was coded.
struct Note {
    segment: usize,
    raw_bytes: u64,
    stored_ppm: u32,
    chain: Chain,
    reason: Reason,
}

/// Gathers what the segments of a checkpoint got; they may come in any order.
#[derive(Default)]
pub struct Deciding(BTreeMap<String, Vec<Note>>);

impl Deciding {
    /// Takes down what a segment of a class got.
    pub fn note(&mut self, class: &str, segment: usize, raw_bytes: usize, coded: &Coded) {
        if class.len() > TEXT_BYTES_MAX {
            return;
        }
        let stored_ppm = (coded.stored.len() as u64 * 1_000_000 / raw_bytes.max(1) as u64) as u32; // not longer than raw
        let (chain, reason) = (coded.chain.clone(), coded.reason.clone());
        let note = Note { segment, raw_bytes: raw_bytes as u64, stored_ppm, chain, reason };
        match self.0.get_mut(class) {
            Some(notes) => notes.push(note),
            None => drop(self.0.insert(class.to_owned(), vec![note])),
        }
    }

    /// The decisions of this checkpoint: those that were kept, those that are new, and those of classes of which
    /// nothing was stored.
    pub fn finish(self, before: &Decisions, checkpoint: &CheckpointId, store: Option<StoreRate>) -> Vec<Decision> {
        let older = |class: &str| {
            let older = before.0.get(class)?;
            Some(Decision { kept: older.kept.saturating_add(1), ..older.clone() })
        };
        let mut all: Vec<(u64, Decision)> = Vec::new();
        for (class, mut notes) in self.0.into_iter() {
            notes.sort_by_key(|note| note.segment);
            let raw_bytes = notes.iter().map(|note| note.raw_bytes).sum();
            // Constant segments say nothing about the others.
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

/// What most of the class's bytes got, with the reason of the first that was measured.
fn decided(class: String, notes: &[&Note], checkpoint: &CheckpointId, store: Option<StoreRate>) -> Option<Decision> {
    let bytes_of = |chain: &Chain| notes.iter().filter(|n| n.chain == *chain).map(|n| n.raw_bytes).sum::<u64>();
    // Of equals the first.
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
        name.parse().expect("a name")
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
        assert_eq!(best(StoreRate { cores: 16, ..slow }), Some(1_000_000), "more cores, stronger chains");
        assert_eq!(Basis::NOTHING.cost(&strong), 1_000_000, "bytes alone");
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
            assert!(decisions.kept("a", at(100)).is_some(), "after {n}");
            let mut deciding = Deciding::default();
            deciding.note("a", 0, 1000, &coded(Chain::zstd(3), 505, Reason::Kept));
            decisions = Decisions::new(deciding.finish(&decisions, &id("later"), at(100)));
        }
        assert!(decisions.kept("a", at(100)).is_none(), "it is measured again");
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
        assert!(decision.expects(100, 100), "a few bytes are no change");
    }

    #[test]
    fn a_class_gets_what_most_of_its_bytes_got_and_one_without_bytes_stays() {
        let mut deciding = Deciding::default();
        deciding.note("a", 2, 1000, &coded(Chain::lz4(), 500, measured()));
        deciding.note("a", 0, 1500, &coded(Chain::zstd(3), 500, Reason::Repeats(123)));
        deciding.note("a", 1, 9000, &coded(Chain::runs(8).expect("a width"), 4, Reason::Constant));
        deciding.note("b", 3, 10, &coded(Chain::zstd(1), 5, Reason::Only));
        deciding.note(&"long".repeat(100), 4, 10, &coded(Chain::zstd(1), 5, Reason::Only));
        let first = deciding.finish(&Decisions::default(), &id("c0"), None);
        let shown: Vec<_> = first.iter().map(|d| (d.class.as_str(), d.chain.as_str(), d.why.as_str())).collect();
        assert_eq!(shown, [("a", "1:0 18:3", "12.3 % of it occurs before"), ("b", "1:0 18:1", "only candidate")]);
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
