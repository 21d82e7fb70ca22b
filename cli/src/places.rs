//! The places that the checkpoints of one `mcr save` get in the order of the job's checkpoints.

use mcrengine::ids::{CheckpointId, GroupId, JobId, natural_cmp};
use mcrengine::incarnation::Incarnation;
use mcrengine::manifest::{self, Place};
use mcrengine::store::Store;

/// Names say in which order checkpoints were written, unless the times of files contradict them by this much: files
/// that were copied without their times are this close together.
const CONTRADICTION_MS: i64 = 60_000;

/// The places in the order of checkpoints that those of one command get, and what the store held as the newest before.
pub struct Places {
    incarnation: u32,
    /// The record of the incarnation.
    record: Option<Incarnation>,
    newest: Option<(CheckpointId, Place)>,
    last: Option<Place>,
}

impl Places {
    /// For one command: the incarnation that it saves for, and the newest checkpoint in the store.
    pub fn new(record: Option<Incarnation>, newest: Option<(CheckpointId, Place)>) -> Self {
        Self { incarnation: record.as_ref().map_or(0, |record| record.number), record, newest, last: None }
    }

    /// The place of the next checkpoint, in the order of the command. Where some of it is in the store already, its
    /// place is known; so two who save the same at once give the same places. `is_of_before`: the files were there
    /// before the incarnation began, or are copies of such files.
    pub fn next(&mut self, id: &CheckpointId, written_unix_ms: i64, is_of_before: bool, begun: Option<Place>) -> Place {
        let older =
            self.record.as_ref().filter(|_| is_of_before).and_then(|record| record.place_of_older(written_unix_ms));
        let mut place = begun.or(older).unwrap_or(Place { incarnation: self.incarnation, written_unix_ms });
        if begun.is_none() && older.is_none() {
            // The order of the command: by the names, where times do not contradict them.
            if let Some(last) = self.last {
                place.written_unix_ms = place.written_unix_ms.max(last.written_unix_ms + 1);
            } else if let Some((newest, at)) = &self.newest
                && at.incarnation == place.incarnation
                && is_before(id, newest)
                && (0..CONTRADICTION_MS).contains(&(place.written_unix_ms - at.written_unix_ms))
            {
                place.written_unix_ms = at.written_unix_ms - 1;
            }
        }
        self.last = self.last.max(Some(place));
        place
    }
}

/// Whether two names differ by their numbers alone and the first has the smaller one. A name that was used twice says
/// nothing.
fn is_before(id: &CheckpointId, other: &CheckpointId) -> bool {
    let shape = |id: &CheckpointId| {
        let mut shape: Vec<u8> = Vec::new();
        for byte in id.label().bytes() {
            match byte.is_ascii_digit() {
                true if shape.last() == Some(&b'#') => {}
                true => shape.push(b'#'),
                false => shape.push(byte),
            }
        }
        shape
    };
    id.generation() == 1
        && other.generation() == 1
        && shape(id) == shape(other)
        && natural_cmp(id.as_str().as_bytes(), other.as_str().as_bytes()).is_lt()
}

/// The newest checkpoint of a job, as its first group tells.
pub fn newest_saved(store: &dyn Store, job: &JobId) -> anyhow::Result<Option<(CheckpointId, Place)>> {
    let newest = manifest::newest_of_group(store, job, GroupId(0), None)?;
    Ok(newest.map(|manifest| (manifest.checkpoint.clone(), manifest.place())))
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
        assert_eq!(after("it_4", 4000), at(4000));
    }
}
