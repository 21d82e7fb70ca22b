//! The places of the checkpoints of one `mcr save` in the order of the job's checkpoints.

use mcrengine::ids::{CheckpointId, natural_cmp, shape_of};
use mcrengine::incarnation::Incarnation;
use mcrengine::manifest::Place;

/// If the file times of two checkpoints differ by less than this time, the order of their names is used, because
/// copied files may have the time of the copy. For a larger difference, the order of times is used.
const CONTRADICTION_MS: i64 = 60_000;

/// Gives each checkpoint of one command its place in the order of the job's checkpoints.
pub struct Places {
    incarnation: u32,
    /// The record of the incarnation.
    record: Option<Incarnation>,
    newest: Option<(CheckpointId, Place)>,
    last: Option<Place>,
    /// The newest checkpoint in the store, if the last checkpoint got a place before it because of its name, although
    /// the last checkpoint was written later.
    pub older_than: Option<CheckpointId>,
}

impl Places {
    /// `record` is the incarnation for which the command saves. `newest` is the newest checkpoint in the store.
    pub fn new(record: Option<Incarnation>, newest: Option<(CheckpointId, Place)>) -> Self {
        Self {
            incarnation: record.as_ref().map_or(0, |record| record.number),
            record,
            newest,
            last: None,
            older_than: None,
        }
    }

    /// The place of the next checkpoint that the command saves. If a part of the checkpoint is already in the store,
    /// `begun` is the place of this part. So two commands that save one checkpoint at the same time give this
    /// checkpoint one place. `is_of_before`: the files existed before the incarnation began, or are copies of such
    /// files.
    pub fn next(&mut self, id: &CheckpointId, written_unix_ms: i64, is_of_before: bool, begun: Option<Place>) -> Place {
        let older =
            self.record.as_ref().filter(|_| is_of_before).and_then(|record| record.place_of_older(written_unix_ms));
        self.older_than = None;
        let mut place = begun.or(older).unwrap_or(Place { incarnation: self.incarnation, written_unix_ms });
        if begun.is_none() && older.is_none() {
            // Use the order of the names, unless the times of the files contradict this order.
            if let Some((newest, at)) = &self.newest
                && self.last.is_none_or(|last| last < *at)
                && at.incarnation == place.incarnation
                && is_before(id, newest)
                && (0..CONTRADICTION_MS).contains(&(place.written_unix_ms - at.written_unix_ms))
            {
                self.older_than = (place.written_unix_ms > at.written_unix_ms).then(|| newest.clone());
                // Checkpoints with equal places are ordered by name.
                place.written_unix_ms = at.written_unix_ms - 1;
            } else if let Some(last) = self.last {
                place.written_unix_ms = place.written_unix_ms.max(last.written_unix_ms + 1);
            }
        }
        self.last = self.last.max(Some(place));
        place
    }
}

/// Whether two names differ only by their numbers, and `id` has the smaller number. False if one of the names was
/// used for several checkpoints.
fn is_before(id: &CheckpointId, other: &CheckpointId) -> bool {
    id.generation() == 1
        && other.generation() == 1
        && shape_of(id.label()) == shape_of(other.label())
        && natural_cmp(id.as_str().as_bytes(), other.as_str().as_bytes()).is_lt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_decide_the_order_where_times_do_not_contradict_them() {
        let id = |name: &str| -> CheckpointId { name.parse().expect("valid") };
        let at = |written_unix_ms| Place { incarnation: 0, written_unix_ms };
        let mut places = Places::new(None, None);
        assert_eq!(places.next(&id("it_1"), 1000, false, None), at(1000));
        assert_eq!(places.next(&id("it_2"), 900, false, None), at(1001), "copied without its time");
        assert_eq!(places.next(&id("it_3"), 2000, false, None), at(2000));
        let after = |name, ms| Places::new(None, Some((id("it_5"), at(5000)))).next(&id(name), ms, false, None);
        assert_eq!(after("it_4", 5200), at(4999), "an earlier step that is saved later");
        assert_eq!(after("it_6", 5200), at(5200));
        assert_eq!(after("it_4", 5000 + CONTRADICTION_MS), at(5000 + CONTRADICTION_MS), "written a minute later");
        assert_eq!(after("it_4~2", 5200), at(5200), "the name is used again");
        assert_eq!(after("other_4", 5200), at(5200));
        let mut places = Places::new(None, Some((id("it_5"), at(5000))));
        places.next(&id("it_4"), 5200, false, None);
        assert_eq!(places.older_than, Some(id("it_5")), "`mcr save` prints a note about both");
        let next = ["it_3", "it_4", "it_6"].map(|name| places.next(&id(name), 5300, false, None).written_unix_ms);
        assert_eq!(next, [4999, 4999, 5300], "each smaller step is older, not only the first one");
        assert_eq!(places.next(&id("it_2"), 5400, false, None), at(5400), "written after another of these checkpoints");
        assert_eq!(after("it_4", 4000), at(4000));
    }
}
