//! Damages every part of a store in several ways, then lists, opens and verifies the store. The allowed results are
//! the right bytes, an error that says which part is damaged, or an older checkpoint. Wrong bytes and panics are
//! never allowed.

#[path = "../support/group.rs"]
mod support;

mod mutate;
mod parity;
mod records;

use mcrengine::container::{ContainerReader, ContainerSet, ReadError, ReadOrder, SegmentBuffer, SegmentTask};
use mcrengine::ids::GroupId;
use mcrengine::manifest::{list, newest_restorable};
use mcrengine::store::{Advice, MemoryStore, Survival};
use mcrengine::units::RawBytes;
use mcrengine::verify::{VerifyOptions, verify};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::*;

/// A part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartOf {
    Header,
    Segment,
    Index,
    Trailer,
    Manifest,
    /// The container of the older checkpoint, to which the newer checkpoint refers.
    Older,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Missing,
    Cut,
    Flipped,
    /// The bytes of the same part in an earlier version of the same checkpoint.
    Stale,
    /// The undamaged bytes of another group.
    Foreign,
}

/// The operation that notices the damage first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Noticed {
    List,
    Open,
    Verify,
}

fn whole() -> MemoryStore {
    let store = MemoryStore::new();
    flush_step(&store, 1, None).expect("writes");
    flush_step(&store, 2, Some(1)).expect("writes");
    store
}

/// Checkpoints with the same names, but different bytes.
fn other_run() -> MemoryStore {
    let store = MemoryStore::new();
    let mut how = how(2);
    how.chain = mcrengine::codec::Chain::raw();
    for id in [1, 2] {
        for number in [0, 1] {
            let group = group(number * 2..number * 2 + 2, id + 5);
            let reuse = mcrengine::reuse::ReuseIndex::empty();
            flush(&store, &step_id(id), GroupId(number), &group, &how, &reuse).expect("writes");
        }
    }
    store
}

fn path(part: PartOf, group: u32) -> PathBuf {
    match part {
        PartOf::Manifest => format!("wave/DD0002/group-{group:04}.manifest").into(),
        PartOf::Older => format!("wave/DD0001/group-{group:04}.mcr").into(),
        _ => format!("wave/DD0002/group-{group:04}.mcr").into(),
    }
}

/// Range of bytes of the part in its file.
fn range(store: &MemoryStore, part: PartOf, len: usize) -> std::ops::Range<usize> {
    let reader = ContainerReader::open(store, &job(), &step_id(2), GroupId(1)).expect("opens");
    let segment = &reader.index().segments()[1];
    let index = reader.index().segments().last().map_or(32, |s| s.offset + 72 + s.stored_bytes.0) as usize;
    match part {
        PartOf::Header => 0..32,
        PartOf::Segment => segment.offset as usize..(segment.offset + 72 + segment.stored_bytes.0) as usize,
        PartOf::Index => index..len - 48,
        PartOf::Trailer => len - 48..len,
        PartOf::Manifest => 0..len,
        PartOf::Older => {
            // A segment that the newer checkpoint needs.
            let set = ContainerSet::open(store, &job(), &step_id(2), GroupId(1)).expect("opens");
            let task = set
                .tasks(|_| true)
                .into_iter()
                .find(|task| task.container == 1)
                .expect("the newer checkpoint refers to it");
            let segment = &set.readers()[1].index().segments()[task.segment as usize];
            segment.offset as usize..(segment.offset + 72 + segment.stored_bytes.0) as usize
        }
    }
}

/// The bytes of the file with the damage. `Stale` and `Foreign` replace only the bytes of the part.
fn damaged(store: &MemoryStore, part: PartOf, damage: Damage) -> Option<Vec<u8>> {
    let bytes = store.get(&path(part, 1)).expect("there");
    let range = range(store, part, bytes.len());
    let from_another = |other: Vec<u8>| {
        let is_whole = matches!(part, PartOf::Manifest | PartOf::Older);
        let is_tail = matches!(part, PartOf::Index | PartOf::Trailer);
        match (is_whole, is_tail) {
            (true, _) => other,
            (_, true) => {
                let keep = range.end - range.start;
                let at = other.len() - (bytes.len() - range.start);
                [&bytes[..range.start], &other[at..at + keep], &bytes[range.end..]].concat()
            }
            _ => [&bytes[..range.start], &other[range.clone()], &bytes[range.end..]].concat(),
        }
    };
    match damage {
        Damage::Missing => None,
        Damage::Cut => Some(bytes[..(range.start + range.end) / 2].to_vec()),
        Damage::Flipped => {
            let mut bytes = bytes;
            bytes[(range.start + range.end) / 2] ^= 0x10;
            Some(bytes)
        }
        Damage::Stale => Some(from_another(other_run().get(&path(part, 1)).expect("there"))),
        Damage::Foreign => Some(from_another(store.get(&path(part, 0)).expect("there"))),
    }
}

#[test]
fn every_damage_to_every_part_is_noticed() {
    use Damage::*;
    use PartOf::*;
    let store = whole();
    for part in [Header, Segment, Index, Trailer, Manifest, Older] {
        for damage in [Missing, Cut, Flipped, Stale, Foreign] {
            let at = format!("{part:?} {damage:?}");
            let expected = match (part, damage) {
                // All containers of a version have the same header.
                (Header, Stale | Foreign) => continue,
                // The stale manifest is valid too. Only the comparison with the container shows that the manifest is
                // wrong.
                (Manifest, Stale) => Noticed::Open,
                (Manifest, _) => Noticed::List,
                // Listing examines only the names and lengths of containers.
                (_, Missing | Cut) => Noticed::List,
                (Segment, Flipped | Stale | Foreign) => Noticed::Verify,
                (Older, Flipped) => Noticed::Verify,
                _ => Noticed::Open,
            };
            let after = store.crash(Survival::Everything);
            let path = path(part, 1);
            match damaged(&store, part, damage) {
                None => mcrengine::store::Store::remove_file(&after, &path).expect("removes"),
                Some(bytes) => after.put(&path, &bytes),
            }
            let listed = list(&after, &job()).expect("one damaged checkpoint does not hide the others");
            let is_listed = listed.iter().any(|state| state.id == step_id(2) && state.is_complete());
            let opened = ContainerSet::open(&after, &job(), &step_id(2), GroupId(1)).map(|_| ());
            let report = verify(&after, &job(), &step_id(2), VERIFYING, &|_| ());
            assert!(!report.is_good(), "{at}: verify always notices the damage");
            let first = match (is_listed, &opened) {
                (false, _) => Noticed::List,
                (true, Err(_)) => Noticed::Open,
                (true, Ok(())) => Noticed::Verify,
            };
            // If the stale or foreign part has another length, an earlier operation may notice the damage.
            assert!(first <= expected, "{at}: {first:?}, not {expected:?}: {opened:?} {:?}", report.problems);
            if let Err(error) = &opened {
                assert_eq!(error.advice(), Advice::OlderCheckpoint, "{at}: {error}");
                let name = path.file_stem().and_then(|n| n.to_str()).expect("a name");
                assert!(error.to_string().contains(name), "{at}: {error} does not name the group");
            }
            assert!(report.problems.iter().all(|p| p.advice == Advice::OlderCheckpoint), "{at}: {:?}", report.problems);
            // The undamaged parts can still be read.
            if part != Older {
                let older = verify(&after, &job(), &step_id(1), VERIFYING, &|_| ());
                assert!(older.is_good(), "{at}: {:?}", older.problems);
                let mut restorable = newest_restorable(&after, &job()).expect("lists");
                assert!(restorable.any(|state| state.id == step_id(1)), "{at}");
            }
        }
    }
}

#[test]
fn every_damage_to_what_a_checkpoint_is_coded_with_is_noticed() {
    use Damage::*;
    let store = MemoryStore::new();
    flush_step(&store, 1, None).expect("writes");
    flush_step_since(&store, 2, 1).expect("writes");
    flush_step_since(&store, 3, 2).expect("writes");
    let base = || {
        let set = ContainerSet::open(&store, &job(), &step_id(3), GroupId(1)).expect("opens");
        set.index().segments().iter().find_map(|segment| segment.base()).expect("a segment has a base")
    };
    let path = Path::new("wave/DD0001/group-0001.mcr");
    let bytes = store.get(path).expect("there");
    let older = ContainerReader::open(&store, &job(), &step_id(1), GroupId(1)).expect("opens");
    let segment = &older.index().segments()[base().segment as usize];
    let range = segment.offset as usize..(segment.offset + 72 + segment.stored_bytes.0) as usize;
    let stale = {
        let other = MemoryStore::new();
        let how = how(1);
        for number in [0, 1] {
            let group = group(number * 2..number * 2 + 2, 9);
            let reuse = mcrengine::reuse::ReuseIndex::empty();
            flush(&other, &step_id(1), GroupId(number), &group, &how, &reuse).expect("writes");
        }
        other.get(path).expect("there")
    };
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        Some(bytes)
    };
    let damages = [
        (Missing, None),
        (Cut, Some(bytes[..(range.start + range.end) / 2].to_vec())),
        (Flipped, flipped(range.start + 20)),
        (Flipped, flipped((range.start + 72 + range.end) / 2)),
        (Stale, Some(stale)),
        (Foreign, store.get(Path::new("wave/DD0001/group-0000.mcr"))),
    ];
    for (damage, bytes) in damages {
        let after = store.crash(Survival::Everything);
        match bytes {
            None => mcrengine::store::Store::remove_file(&after, path).expect("removes"),
            Some(bytes) => after.put(path, &bytes),
        }
        for step in [2, 3] {
            let report = verify(&after, &job(), &step_id(step), VERIFYING, &|_| ());
            assert!(!report.is_good(), "{damage:?}: DD{step:04} cannot be restored");
            assert!(report.problems.iter().all(|p| p.advice == Advice::OlderCheckpoint), "{:?}", report.problems);
            assert!(report.problems[0].what.contains("DD0001"), "{damage:?}: {:?}", report.problems[0]);
        }
    }
    for step in [1, 2, 3] {
        assert!(
            verify(&store, &job(), &step_id(step), VERIFYING, &|_| ()).is_good(),
            "the checkpoint is complete before the damage"
        );
    }
}

#[test]
fn a_segment_that_was_written_anew_is_not_taken_for_the_one_that_was_coded_with() {
    // The base is a segment with valid checksums that decodes to other bytes. Only the digest of the segment shows
    // the difference.
    let store = MemoryStore::new();
    flush_step(&store, 1, None).expect("writes");
    flush_step_since(&store, 2, 1).expect("writes");
    let set = ContainerSet::open(&store, &job(), &step_id(2), GroupId(0)).expect("opens");
    let base = set.index().segments().iter().find_map(|segment| segment.base()).expect("a segment has a base");
    let path = Path::new("wave/DD0001/group-0000.mcr");
    let mut bytes = store.get(path).expect("there");
    let entry = set.readers()[1].index().segments()[base.segment as usize].clone();
    // Stored bytes of the same length that decode to other bytes.
    let other =
        entry.chain.encode(&vec![7; entry.raw_bytes.0 as usize], &[], &mut Default::default()).expect("encodes");
    assert!(other.len() as u64 <= entry.stored_bytes.0);
    // zstd allows skippable frames after the data, so the length can stay the same.
    let mut stored = other;
    let gap = entry.stored_bytes.0 as usize - stored.len();
    stored.extend(0x184D_2A50u32.to_le_bytes());
    stored.extend((gap as u32 - 8).to_le_bytes());
    stored.resize(entry.stored_bytes.0 as usize, 0);
    let at = entry.offset as usize;
    bytes[at + 72..at + 72 + stored.len()].copy_from_slice(&stored);
    bytes[at + 24..at + 28].copy_from_slice(&crc32c::crc32c(&stored).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[at..at + 68]).to_le_bytes();
    bytes[at + 68..at + 72].copy_from_slice(&crc);
    store.put(path, &bytes);
    let report = verify(&store, &job(), &step_id(2), VERIFYING, &|_| ());
    assert!(!report.is_good() && report.problems.iter().all(|p| p.advice == Advice::OlderCheckpoint));
}

#[test]
fn a_report_is_the_same_with_any_memory_and_any_number_of_threads() {
    let store = whole();
    let path = Path::new("wave/DD0002/group-0001.mcr");
    let whole = store.get(path).expect("there");
    let mut flipped = whole.clone();
    flipped[whole.len() / 4] ^= 1; // this byte is in a segment
    for (bytes, is_good) in [(&whole, true), (&flipped, false)] {
        store.put(path, bytes);
        let reports = [(1, 1), (1 << 20, 1), (1 << 20, 2), (1 << 20, 5)].map(|(memory_bytes, threads)| {
            let done = std::sync::atomic::AtomicU64::new(0);
            let progress = |raw: RawBytes| {
                done.fetch_add(raw.0, std::sync::atomic::Ordering::Relaxed);
            };
            let report = verify(&store, &job(), &step_id(2), VerifyOptions { memory_bytes, threads }, &progress);
            assert_eq!(report.raw_bytes.0, done.into_inner(), "the progress reports add up to all bytes");
            report
        });
        assert_eq!(reports[0].is_good(), is_good);
        assert!(reports.iter().all(|report| *report == reports[0]), "{reports:?}");
    }
}

#[test]
fn every_cut_of_a_container_is_noticed() {
    let store = whole();
    let path = Path::new("wave/DD0002/group-0001.mcr");
    let bytes = store.get(path).expect("there");
    for len in 0..bytes.len() {
        store.put(path, &bytes[..len]);
        let error = ContainerReader::open(&store, &job(), &step_id(2), GroupId(1)).map(|_| ()).expect_err("cut");
        assert_eq!(error.advice(), Advice::OlderCheckpoint, "{len} of {} bytes: {error}", bytes.len());
    }
}

#[test]
fn every_cut_and_every_flipped_bit_of_a_manifest_is_noticed() {
    let store = whole();
    let path = Path::new("wave/DD0002/group-0001.manifest");
    let bytes = store.get(path).expect("there");
    let parse = |bytes: &[u8]| mcrengine::manifest::Manifest::parse(bytes, path);
    parse(&bytes).expect("whole");
    for len in 0..bytes.len() {
        parse(&bytes[..len]).expect_err("cut");
    }
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        parse(&flipped).expect_err("flipped");
    }
}

#[test]
fn every_flipped_bit_of_a_container_is_noticed_before_wrong_bytes_are_given() {
    let store = MemoryStore::new();
    let mut how = how(1);
    (how.draft.ranks, how.draft.group_size) = (1, 1);
    let group = group(0..1, 1);
    flush(&store, &step_id(1), GroupId(0), &group, &how, &mcrengine::reuse::ReuseIndex::empty()).expect("writes");
    let path = Path::new("wave/DD0001/group-0000.mcr");
    let bytes = store.get(path).expect("there");
    for at in (0..bytes.len()).step_by(7).chain(0..300).chain(bytes.len() - 300..bytes.len()) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        store.put(path, &flipped);
        let Ok(set) = ContainerSet::open(&store, &job(), &step_id(1), GroupId(0)) else { continue };
        let (set, mut failed) = (Arc::new(set), false);
        let tasks = set.tasks(|_| true);
        let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, 1, ReadOrder::Announced).expect("a buffer");
        for task in &tasks {
            let result = segments.run(task, 1, |variable, offset, bytes| {
                let from = offset as usize;
                assert_eq!(bytes, &group.raw(variable)[from..from + bytes.len()], "byte {at}: wrong bytes");
                Ok::<(), ReadError>(())
            });
            failed |= result.is_err();
        }
        // The checksum of the header also covers the flags and reserved bytes that a reader ignores.
        assert!(failed, "byte {at} of {}", bytes.len());
    }
}

#[test]
fn formats_of_the_future_ask_for_an_upgrade() {
    let store = whole();
    let path = Path::new("wave/DD0002/group-0001.mcr");
    let mut bytes = store.get(path).expect("there");
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..28]).to_le_bytes();
    bytes[28..32].copy_from_slice(&crc);
    store.put(path, &bytes);
    let error = ContainerReader::open(&store, &job(), &step_id(2), GroupId(1)).map(|_| ()).expect_err("too new");
    assert_eq!(
        (error.advice(), matches!(error, ReadError::TooNew { found: 2, newest: 1, .. })),
        (Advice::Upgrade, true)
    );

    let path = Path::new("wave/DD0002/group-0001.manifest");
    let text = String::from_utf8(store.get(path).expect("there")).expect("text");
    let text = text.replacen("mcr-manifest 1", "mcr-manifest 7", 1);
    assert!(text.starts_with("mcr-manifest 7"));
    let error = mcrengine::manifest::Manifest::parse(text.as_bytes(), path).expect_err("too new");
    assert_eq!(error.advice(), Advice::Upgrade, "{error}");
}

#[test]
fn a_damaged_segment_is_read_once_however_many_variables_need_it() {
    let store = whole();
    let path = Path::new("wave/DD0002/group-0001.mcr");
    let mut bytes = store.get(path).expect("there");
    let at = bytes.len() / 4;
    bytes[at] ^= 1; // this byte is in a segment
    store.put(path, &bytes);
    let set = Arc::new(ContainerSet::open(&store, &job(), &step_id(2), GroupId(1)).expect("opens"));
    let tasks = set.tasks(|_| true);
    let run_all = |buffer: &SegmentBuffer| {
        let failed = |task: &&SegmentTask| buffer.run(task, 1, |_, _, _| Ok::<_, ReadError>(())).is_err();
        (tasks.iter().filter(failed).count(), buffer.counters().calls)
    };
    for (order, is_read_again) in [(ReadOrder::Announced, false), (ReadOrder::Unknown, true)] {
        let buffer = SegmentBuffer::new(Arc::clone(&set), &tasks, 1 << 20, order).expect("a buffer");
        let (failed, calls) = run_all(&buffer);
        let (failed_again, calls_of_both) = run_all(&buffer);
        assert!(failed > 0 && failed_again == failed, "{order:?}: {failed}, {failed_again}");
        assert_eq!(calls_of_both == 2 * calls, is_read_again, "{order:?}: {calls}, then {calls_of_both}");
    }
}
