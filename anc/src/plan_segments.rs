//! The plan of one flush: which bytes belong to which segment, and with which older segment each segment may be
//! coded.

use mcrengine::bases::{Base, Bases};
use mcrengine::classify::{VariableClass, VariableRef};
use mcrengine::codec::{Chain, Profile};
use mcrengine::container::{REFERENCES_MAX, Source};
use mcrengine::header::{ElementType, FileHeader, Role};
use mcrengine::plan::{PlanOptions, SegmentPlan, plan};
use std::collections::HashSet;

/// The input and the limits of a plan.
pub struct PlanRequest<'a> {
    /// The files of the group.
    pub files: &'a [FileHeader],
    /// The variables of the files, by class.
    pub classes: &'a [VariableClass],
    /// The merge scheme, and the lengths of blocks and segments.
    pub options: &'a PlanOptions,
    /// How segments are coded.
    pub profile: &'a Profile,
    /// Memory for coding, in bytes.
    pub budget_bytes: u64,
}

/// A plan.
pub struct PlannedSegments {
    /// The segments, in the order of the container.
    pub segments: Vec<SegmentPlan>,
    /// For each segment the older segment (base) with which it may be coded. Empty if there are no bases.
    pub bases: Vec<Option<Base>>,
    /// Variables for which the container has a reference instead of bytes.
    pub reused: Vec<(VariableRef, Source)>,
}

/// Maximum number of times that segments are planned again because a base lacked expected bytes.
const ROUNDS_MAX: u32 = 3;

/// Plans the segments of all variables that are not reused, and finds a base for each segment.
///
/// A variable that did not change is normally reused. If a base predicts the variable, the variable is planned
/// instead. Coded with the base, the variable takes almost no bytes. The variable also helps to predict the other
/// variables of the segment.
pub fn plan_segments(
    request: &PlanRequest<'_>,
    reused: Vec<(VariableRef, Source)>,
    bases: Option<&mut Bases>,
) -> PlannedSegments {
    let Some(bases) = bases.filter(|bases| can_name_all(bases, &reused)) else {
        return PlannedSegments { segments: request.plan(&reused), bases: Vec::new(), reused };
    };
    let changing = changing_elements(request.files, &reused);
    let is_predicted = |(at, source): &(VariableRef, Source)| {
        let element = &at.of(request.files).element;
        has_difference(element) && changing.contains(&element) && bases.may_predict(*at, source)
    };
    let (mut predicted, mut reused): (Vec<_>, Vec<_>) = reused.into_iter().partition(is_predicted);
    let mut rounds = 0;
    loop {
        let segments = request.plan(&reused);
        let found: Vec<Option<Base>> = segments.iter().map(|segment| request.base(bases, segment)).collect();
        // If a predicted variable is not completely in the base of its segment, the variable would be stored twice.
        let missing = not_in_bases(&segments, &found);
        if !predicted.iter().any(|(at, _)| missing.contains(at)) {
            return PlannedSegments { segments, bases: found, reused };
        }
        let is_reused = |(at, _): &(VariableRef, Source)| missing.contains(at) || rounds == ROUNDS_MAX;
        let (back, rest): (Vec<_>, Vec<_>) = predicted.into_iter().partition(is_reused);
        reused.extend(back);
        predicted = rest;
        rounds += 1;
    }
}

impl PlanRequest<'_> {
    fn plan(&self, reused: &[(VariableRef, Source)]) -> Vec<SegmentPlan> {
        let skip: HashSet<VariableRef> = reused.iter().map(|(variable, _)| *variable).collect();
        plan(self.files, self.classes, self.options, |variable| skip.contains(&variable))
    }

    fn base(&self, bases: &Bases, segment: &SegmentPlan) -> Option<Base> {
        // A coder needs the segment and the older segment in memory at the same time.
        let fits = |base: &Base| {
            let older_bytes = base.raw_bytes.0 * self.profile.memory_per_older_byte();
            older_bytes + segment.raw_bytes.0 * self.profile.memory_per_raw_byte() <= self.budget_bytes
        };
        bases.find(segment).filter(|base| has_difference(&segment.element) && fits(base))
    }
}

/// Whether the new container would refer to at most [`REFERENCES_MAX`] older containers.
fn can_name_all(bases: &Bases, reused: &[(VariableRef, Source)]) -> bool {
    let sources = reused.iter().filter_map(|(_, source)| match source {
        Source::External { container, .. } => Some(container),
        Source::SameAs(_) => None,
    });
    let named: HashSet<_> = sources.chain(bases.containers()).collect();
    named.len() <= REFERENCES_MAX
}

/// Whether elements of this type can be coded with older elements.
fn has_difference(element: &ElementType) -> bool {
    Chain::since(element, 1).is_some()
}

/// The element types of the arrays that changed. A base does not help to code variables of other types.
fn changing_elements<'a>(files: &'a [FileHeader], reused: &[(VariableRef, Source)]) -> Vec<&'a ElementType> {
    let is_reused: HashSet<VariableRef> = reused.iter().map(|(at, _)| *at).collect();
    let mut changing: Vec<&ElementType> = Vec::new();
    for (f, file) in (0u32..).zip(files) {
        for (v, header) in (0u32..).zip(&file.variables) {
            let at = VariableRef { file: f, variable: v };
            if !is_reused.contains(&at) && header.role == Role::Array && !changing.contains(&&header.element) {
                changing.push(&header.element);
            }
        }
    }
    changing
}

/// The variables that are not completely in the base of their segment.
fn not_in_bases(segments: &[SegmentPlan], found: &[Option<Base>]) -> HashSet<VariableRef> {
    let mut missing = HashSet::new();
    for (segment, base) in segments.iter().zip(found) {
        let places = base.as_ref().map_or(&[][..], |base| &base.places);
        for (n, piece) in segment.pieces.iter().enumerate() {
            if places.get(n).is_none_or(|place| (place.bytes as u64) < piece.bytes) {
                missing.insert(piece.variable);
            }
        }
    }
    missing
}
