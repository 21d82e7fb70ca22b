//! What a flush codes its segments with, of what an older checkpoint has of them.

use crate::flush::Flush;
use mcrengine::bases::{Base, Bases};
use mcrengine::classify::{VariableClass, VariableRef};
use mcrengine::codec::{Basis, Chain, Older, Profile, Scratch};
use mcrengine::container::{BaseSegment, REFERENCES_MAX, Source};
use mcrengine::error_chain::error_chain;
use mcrengine::header::{ElementType, Role};
use mcrengine::manifest::Manifest;
use mcrengine::plan::{SegmentPlan, plan};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Of one flush; asked from several threads.
#[derive(Default)]
pub struct LookingBack {
    bases: Option<Bases>,
    /// For each segment, if there is one.
    found: Vec<Option<Base>>,
    /// In how many checkpoints in a row, the newest being the last, segments had bases.
    before: u32,
    /// The same with this one, as far as it has come.
    in_a_row: AtomicU32,
}

/// How often segments are planned anew, since bases do not tell all that they seemed to.
const ROUNDS_MAX: u32 = 3;

/// An older segment, and how an index names it.
pub type Named = (Arc<Older>, BaseSegment);

impl LookingBack {
    /// After the newest checkpoint of the group. Nothing where the options do not want it, or where it cannot be read:
    /// this saves bytes, it is never a reason to fail.
    ///
    /// Gives the segments too, and what is reused. What did not change is not left out where a base tells it: copied from
    /// there it takes next to nothing, and without it the variables beside it would have fewer to be predicted from.
    pub fn plan(
        flush: &Flush<'_>,
        newest: Option<&Manifest>,
        classes: &[VariableClass],
        reused: Vec<(VariableRef, Source)>,
    ) -> (Self, Vec<SegmentPlan>, Vec<(VariableRef, Source)>) {
        let (files, options) = (&flush.files[..], &flush.options.plan);
        let plan = |reused: &[(VariableRef, Source)]| {
            let skip: HashSet<VariableRef> = reused.iter().map(|(variable, _)| *variable).collect();
            plan(files, classes, options, |variable| skip.contains(&variable))
        };
        let mut back = Self::new(flush, newest, classes);
        let sources = reused.iter().filter_map(|(_, source)| match source {
            Source::External { container, .. } => Some(container),
            Source::SameAs(_) => None,
        });
        let referred_to: HashSet<_> = sources.chain(back.bases.iter().flat_map(Bases::containers)).cloned().collect();
        if referred_to.len() > REFERENCES_MAX {
            back = Self::default(); // one container has no room to name them all
        }
        let Some(bases) = &mut back.bases else {
            let segments = plan(&reused);
            return (back, segments, reused);
        };
        // Where all of a type rests, nothing would gain.
        let is_left_out: HashSet<VariableRef> = reused.iter().map(|(at, _)| *at).collect();
        let mut changes: Vec<&ElementType> = Vec::new();
        for (f, file) in (0u32..).zip(files) {
            for (v, header) in (0u32..).zip(&file.variables) {
                let at = VariableRef { file: f, variable: v };
                if !is_left_out.contains(&at) && header.role == Role::Array && !changes.contains(&&header.element) {
                    changes.push(&header.element);
                }
            }
        }
        let is_one = |at: VariableRef| {
            let element = &at.of(files).element;
            Chain::since(element, 1).is_some() && changes.contains(&element)
        };
        let may_be_told = |(at, source): &(VariableRef, Source)| is_one(*at) && bases.tells(*at, source);
        let (mut told, mut others): (Vec<_>, Vec<_>) = reused.into_iter().partition(may_be_told);
        let mut rounds = 0;
        loop {
            let segments = plan(&others);
            back.find(flush, &segments);
            // All of it must be in the one base of its segment, or it is stored twice.
            let mut is_missing: HashSet<VariableRef> = HashSet::new();
            for (segment, base) in segments.iter().zip(&back.found) {
                let places = base.as_ref().map_or(&[][..], |base| &base.places);
                for (n, piece) in segment.pieces.iter().enumerate() {
                    if places.get(n).is_none_or(|place| (place.bytes as u64) < piece.bytes) {
                        is_missing.insert(piece.variable);
                    }
                }
            }
            let is_back = |(at, _): &(VariableRef, Source)| is_missing.contains(at) || rounds == ROUNDS_MAX;
            let any = told.iter().any(|(at, _)| is_missing.contains(at));
            let (missing, rest): (Vec<_>, Vec<_>) = told.into_iter().partition(|one| any && is_back(one));
            if missing.is_empty() {
                return (back, segments, others);
            }
            others.extend(missing);
            told = rest;
            rounds += 1;
        }
    }

    fn new(flush: &Flush<'_>, newest: Option<&Manifest>, classes: &[VariableClass]) -> Self {
        let options = flush.options;
        let Some(newest) = newest.filter(|_| options.whole_every > 1 && options.profile.looks_back()) else {
            return Self::default();
        };
        let before = newest.in_a_row;
        let may_go_back = before.saturating_add(1) < options.whole_every;
        let bases = match Bases::load(flush.store, &flush.job, newest, &flush.files, classes, may_go_back) {
            Ok(bases) => bases,
            Err(error) => {
                tracing::warn!(checkpoint = %newest.checkpoint, %error, "cannot code with the checkpoint before");
                return Self::default();
            }
        };
        Self { bases: Some(bases), found: Vec::new(), before, in_a_row: AtomicU32::new(0) }
    }

    fn find(&mut self, flush: &Flush<'_>, segments: &[SegmentPlan]) {
        let Some(bases) = &self.bases else { return };
        // Whoever codes needs both segments at a time.
        let fits = |base: &Base, segment: &SegmentPlan| {
            let profile = &flush.options.profile;
            let bytes = base.raw_bytes.0 * profile.memory_per_older_byte();
            bytes + segment.raw_bytes.0 * profile.memory_per_raw_byte() <= flush.budget.total_bytes()
        };
        let find = |segment: &SegmentPlan| {
            let is_one = Chain::since(&segment.element, 1).is_some();
            bases.find(segment).filter(|base| is_one && fits(base, segment))
        };
        self.found = segments.iter().map(find).collect();
    }

    /// Whether there is something for a segment.
    pub fn is_there(&self, nth: usize) -> bool {
        self.found.get(nth).is_some_and(Option::is_some)
    }

    /// Memory that coding a segment takes beside its own, in bytes.
    pub fn memory_bytes(&self, nth: usize, profile: &Profile) -> u64 {
        let base = self.found.get(nth).and_then(Option::as_ref);
        base.map_or(0, |base| base.raw_bytes.0 * profile.memory_per_older_byte())
    }

    /// The same for each raw byte of those that something is there for, in the order of magnitude.
    pub fn memory_per_raw_byte(&self, profile: &Profile) -> u64 {
        if self.found.iter().any(Option::is_some) { profile.memory_per_older_byte() } else { 0 }
    }

    /// The older segment, unless it was decided that this class does without, or it cannot be read.
    pub fn read(&self, nth: usize, basis: &Basis<'_>, scratch: &mut Scratch) -> Option<Named> {
        let base = self.found.get(nth)?.as_ref()?;
        if basis.kept.and_then(|kept| kept.chain()).is_some_and(|chain| !chain.needs_older()) {
            return None;
        }
        match self.bases.as_ref()?.read(base, scratch) {
            Ok((older, named)) => Some((Arc::new(older), named)),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(error, "cannot code a segment with the checkpoint before");
                None
            }
        }
    }

    /// Takes down that a segment was coded with what was found for it.
    pub fn used(&self, nth: usize) {
        let base = self.found.get(nth).and_then(Option::as_ref);
        let in_a_row = if base.is_some_and(|base| base.is_newest) { 1 } else { self.before.saturating_add(1) };
        self.in_a_row.fetch_max(in_a_row, Ordering::Relaxed);
    }

    /// For the manifest.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Ordering::Relaxed)
    }
}
