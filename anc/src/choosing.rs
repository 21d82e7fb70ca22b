//! The choice of codecs in one flush. Uses the decisions of earlier checkpoints, and makes the decisions for the next
//! checkpoint.

use mcrengine::classify::VariableClass;
use mcrengine::codec::{
    Basis, Coded, Deciding, Decision, Decisions, Profile, Reason, StoreRate, shared_name, since_name,
};
use mcrengine::ids::CheckpointId;
use mcrengine::manifest::Manifest;
use mcrengine::plan::SegmentPlan;
use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The choices of one flush. Several threads share these choices.
pub struct Choosing<'a> {
    classes: &'a [VariableClass],
    before: Decisions,
    store: Option<StoreRate>,
    clock: Box<dyn Fn() -> Duration + Sync>,
    deciding: Option<Mutex<Deciding>>,
}

impl<'a> Choosing<'a> {
    /// Starts with the decisions of the group's newest checkpoint, if the newest checkpoint was written with the same
    /// profile.
    pub fn new(
        classes: &'a [VariableClass],
        profile: &Profile,
        newest: Option<&Manifest>,
        store: Option<StoreRate>,
    ) -> Self {
        let newest = newest.filter(|newest| profile.is_measured() && newest.profile == profile.to_string());
        let before = newest.map_or_else(Decisions::default, |newest| Decisions::new(newest.decisions.clone()));
        let began = Instant::now();
        let deciding = profile.is_measured().then(Mutex::default);
        Self { classes, before, store, clock: Box::new(move || began.elapsed()), deciding }
    }

    /// The basis of the choice for a segment. `looks_back` means that an older checkpoint has bytes of the segment.
    /// Decisions with and without an older checkpoint are kept separately. Thereby a checkpoint that is coded without
    /// older checkpoints does not change the decisions for the other checkpoints.
    pub fn basis(&self, segment: &SegmentPlan, looks_back: bool) -> Basis<'_> {
        let kept = self.before.kept(&self.class(segment, looks_back), self.store);
        Basis { kept, store: self.store, clock: &*self.clock, older: None }
    }

    /// Notes the codec that coded a segment.
    pub fn note(&self, segment: &SegmentPlan, looks_back: bool, nth: usize, coded: &Coded) {
        if looks_back && coded.reason == Reason::Only {
            return; // an earlier checkpoint decided to code this class without a base, and this decision stays valid
        }
        if let Some(deciding) = &self.deciding {
            let raw_bytes = segment.raw_bytes.0 as usize; // at most 1 GiB
            let mut deciding = deciding.lock().unwrap_or_else(PoisonError::into_inner);
            deciding.note(&self.class(segment, looks_back), nth, raw_bytes, coded);
        }
    }

    /// The decisions for the manifest.
    pub fn finish(self, checkpoint: &CheckpointId) -> Vec<Decision> {
        let Some(deciding) = self.deciding else { return Vec::new() };
        let deciding = deciding.into_inner().unwrap_or_else(PoisonError::into_inner);
        deciding.finish(&self.before, checkpoint, self.store)
    }

    fn class(&self, segment: &SegmentPlan, looks_back: bool) -> Cow<'a, str> {
        let class: Cow<'a, str> = match segment.class.and_then(|class| self.classes.get(class as usize)) {
            Some(class) => Cow::Borrowed(&class.key),
            None => Cow::Owned(shared_name(segment.role, &segment.element)),
        };
        if looks_back { Cow::Owned(since_name(&class)) } else { class }
    }
}
