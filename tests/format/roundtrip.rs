//! Every byte of every variable can be read again, for any group and with each way of reading.

use super::support::*;
use mcrengine::classify::VariableRef;
use mcrengine::codec::Chain;
use mcrengine::container::*;
use mcrengine::header::*;
use mcrengine::ids::{Digest, GroupId};
use mcrengine::manifest::{self, read_manifest};
use mcrengine::plan::{PlanOptions, Scheme};
use mcrengine::prune::{PruneOptions, prune};
use mcrengine::reuse::{ReuseIndex, reusable};
use mcrengine::store::{MemoryStore, PosixStore, Store, StoreError};
use mcrengine::verify::verify;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

fn element() -> impl Strategy<Value = ElementType> {
    let order = prop_oneof![Just(ByteOrder::Little), Just(ByteOrder::Big)];
    let member = |offset, count, element| Member { offset, count, element };
    prop_oneof![
        Just(ElementType::Bytes),
        (prop::sample::select(vec![1u8, 2, 4, 8]), any::<bool>(), order.clone())
            .prop_map(|(width, signed, order)| ElementType::Int { width, signed, order }),
        (prop::sample::select(vec![2u8, 4, 8]), order).prop_map(|(width, order)| ElementType::Float { width, order }),
        (1u32..40).prop_map(|width| ElementType::Fixed { width }),
        Just(ElementType::Compound {
            width: 24,
            members: vec![member(0, 1, ElementType::F64), member(8, 3, ElementType::F32)].into(),
        }),
    ]
}

/// Names, lengths and contents come from small sets, so that classes have several members and bytes repeat.
fn part() -> impl Strategy<Value = Part> {
    let name = prop::sample::select(vec!["/Grid1/Density", "/Grid22/Density", "/Time", "/\u{fc}/x", "/Grid1/Velocity"]);
    let len = prop::sample::select(vec![0usize, 8, 96, 100, 800, 4095, 4096, 5000, 9000]);
    (name, element(), len, 0u64..3, prop::collection::vec(0usize..5000, 0..4)).prop_map(
        |(path, element, len, seed, mut at)| {
            at.iter_mut().for_each(|n| *n = (*n).min(len));
            at.push(len);
            at.sort_unstable();
            let cuts = at.iter().scan(0, |before, n| Some(*n - std::mem::replace(before, *n))).collect();
            Part { path: path.into(), element, raw: bytes(len, seed), cuts, filters: vec![] }
        },
    )
}

fn any_group() -> impl Strategy<Value = Group> {
    prop::collection::vec(prop::collection::vec(part(), 0..6), 0..5).prop_map(|ranks| {
        let mut group = Group { files: Vec::new(), raw: Vec::new() };
        for (i, parts) in ranks.into_iter().enumerate() {
            let (header, raw) = file(&format!("out/f.{i}"), i as u32 / 3, parts);
            group.files.push(header);
            group.raw.push(raw);
        }
        group
    })
}

/// The headers of `group` as an index returns them: short variables have no digest.
fn as_read(files: &[FileHeader]) -> Vec<FileHeader> {
    let mut files = files.to_vec();
    for variable in files.iter_mut().flat_map(|file| &mut file.variables) {
        if variable.raw_bytes.0 < DIGEST_BYTES_MIN {
            variable.digest = NO_DIGEST;
        }
    }
    files
}

fn check(store: &MemoryStore, id: &str, group: &Group) -> Result<(), TestCaseError> {
    let set = ContainerSet::open(store, &job(), &checkpoint(id), GroupId(0)).expect("opens");
    let set = Arc::new(set);
    prop_assert_eq!(set.index().files(), as_read(&group.files));
    // Read piece by piece, through a buffer with room for at most two segments.
    let mut rebuilt: HashMap<VariableRef, Vec<u8>> = HashMap::new();
    let tasks = set.tasks(|_| true);
    let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, 1000, ReadOrder::Announced).expect("a buffer");
    let queue = segments.queue(&tasks);
    while let Some(task) = queue.take() {
        let put = |at: VariableRef, offset: u64, bytes: &[u8]| {
            let whole = rebuilt.entry(at).or_insert_with(|| vec![0; group.raw(at).len()]);
            whole[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            Ok::<(), ReadError>(())
        };
        segments.run(task, 1, put).expect("runs");
    }
    prop_assert_eq!(segments.counters().loads, tasks.len() as u64);
    // Read any range, with a buffer that holds almost nothing.
    let mut reader = VariableReader::new(Arc::clone(&set), 1000).expect("a buffer");
    for at in group.variables() {
        let raw = group.raw(at);
        prop_assert_eq!(rebuilt.get(&at).map_or(&[][..], Vec::as_slice), raw);
        let (from, to) = (raw.len() / 3, raw.len() - raw.len() / 4);
        let mut part = vec![0; to - from];
        reader.read(at, from as u64, &mut part).expect("reads");
        prop_assert_eq!(&part, &raw[from..to]);
        prop_assert!(reader.read(at, 1, &mut vec![0; raw.len()]).is_err(), "beyond the end");
    }
    let report = verify(store, &job(), &checkpoint(id), VERIFYING, &|_| ());
    prop_assert!(report.is_good(), "{:?}", report.problems);
    prop_assert_eq!(report.files, group.files.len() as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_of_every_variable_comes_back(
        (group, next) in (any_group(), any_group()),
        scheme in prop::sample::select(Scheme::ALL.to_vec()),
        segment_bytes in prop::sample::select(vec![1024u64, 8192, 1 << 20]),
        small_class_bytes in prop::sample::select(vec![0u64, 2000]),
        is_raw in any::<bool>(),
    ) {
        let store = MemoryStore::new();
        let mut how = how_in(scheme, 1);
        how.options = PlanOptions { segment_bytes, small_class_bytes, ..how.options };
        how.chain = if is_raw { Chain::raw() } else { Chain::zstd(1) };
        (how.draft.ranks, how.draft.group_size) = (2, 2);
        let manifest = flush(&store, &checkpoint("a"), GroupId(0), &group, &how, &ReuseIndex::empty()).expect("writes");
        check(&store, "a", &group)?;
        prop_assert_eq!(read_manifest(&store, &job(), &checkpoint("a"), GroupId(0)).expect("reads"), manifest.clone());

        // Checkpoint b refers to checkpoint a. The next checkpoint refers to a and to b directly, and no reference
        // leads to another reference.
        let reuse = ReuseIndex::load(&store, &job(), &manifest).expect("loads");
        how.draft.written_unix_ms += 1;
        let second = flush(&store, &checkpoint("b"), GroupId(0), &next, &how, &reuse).expect("writes");
        check(&store, "b", &next)?;
        let reuse = ReuseIndex::load(&store, &job(), &second).expect("loads");
        let third = flush(&store, &checkpoint("c"), GroupId(0), &next, &how, &reuse).expect("writes");
        check(&store, "c", &next)?;
        let mut both = second.references.clone();
        both.extend(third.references.iter().filter(|r| r.checkpoint == checkpoint("b")).cloned());
        prop_assert!(third.references.iter().all(|r| both.contains(r)));
        prop_assert!(third.container.bytes <= second.container.bytes + 600, "nothing that was there is stored again");
    }

    /// The index must keep filters, several extents of filtered chunks, and stored lengths that differ from raw
    /// lengths, although these files cannot be reassembled.
    #[test]
    fn the_index_keeps_every_field(
        chunks in prop::collection::vec((0u64..5000, 1u64..3000), 1..6),
        filters in prop::collection::vec(prop_oneof![
            (1u32..9).prop_map(|width| Filter::Shuffle { width }),
            (0u8..10).prop_map(|level| Filter::Deflate { level }),
            Just(Filter::Fletcher32),
        ], 1..4),
        dims in prop::collection::vec(any::<u64>(), 0..33),
        (mode, modified_ns, rank) in (any::<u32>(), any::<i64>(), 0u32..2),
        role in prop::sample::select(vec![Role::Array, Role::StoredChunks, Role::WholeFile, Role::Skeleton]),
        element in element(),
    ) {
        let (mut header, mut raw) = file("f", rank, vec![]);
        let mut extents: Vec<Extent> = Vec::new();
        let mut end = header.bytes;
        for (raw_bytes, stored_bytes) in chunks {
            extents.push(Extent { offset: end, stored_bytes, raw_bytes });
            end += stored_bytes;
        }
        extents.reverse(); // the chunks of a variable are in another order than in the file
        let bytes: Vec<u8> = bytes(extents.iter().map(|e| e.raw_bytes).sum::<u64>() as usize, 3);
        (header.bytes, header.mode, header.modified_ns) = (end, mode, modified_ns);
        header.variables.push(VariableHeader {
            role, element, path: "/chunked".into(),
            shape: Shape(dims.into()),
            chunk: Default::default(),
            raw_bytes: mcrengine::units::RawBytes(bytes.len() as u64),
            digest: Digest::of(&bytes),
            filters: filters.into(),
            extents: extents.into(),
        });
        raw[0].truncate(21);
        raw.push(bytes);
        let group = Group { files: vec![header], raw: vec![raw] };
        let store = MemoryStore::new();
        let sealed = write(&store, &checkpoint("a"), GroupId(0), &group, &how(1), &ReuseIndex::empty()).expect("writes");
        let reader = ContainerReader::open(&store, &job(), &checkpoint("a"), GroupId(0)).expect("opens");
        prop_assert_eq!(reader.index().files(), as_read(&group.files));
        prop_assert_eq!(reader.index(), sealed.summary().index());
        let frame = (sealed.summary().bytes(), sealed.summary().digest());
        prop_assert_eq!((reader.bytes(), reader.frame_digest().expect("reads")), frame);
    }
}

#[test]
fn contents_that_contradict_themselves_are_refused_before_anything_gets_a_final_name() {
    type Spoil = fn(&mut Contents);
    let spoils: [(&str, Spoil); 7] = [
        ("a class has a member that does not exist", |c| c.classes[0].members[0].file = 9),
        ("in no segment", |c| {
            c.reused.retain(|(_, source)| !matches!(source, Source::SameAs(_)));
        }),
        ("once each", |c| c.classes[1].members.swap(0, 1)),
        ("do not cover", |c| Arc::make_mut(&mut c.files)[1].variables[1].extents[0].offset += 1),
        ("itself equals a third", |c| {
            let first = c.reused[0].0;
            c.reused[0].1 = Source::SameAs(first);
        }),
        ("a variable of 4096 bytes or more has no digest", |c| {
            Arc::make_mut(&mut c.files)[0].variables[1].digest = NO_DIGEST
        }),
        ("cannot be written", |c| Arc::make_mut(&mut c.files)[0].variables[1].shape = Shape(vec![1; 33].into())),
    ];
    for (expected, spoil) in spoils {
        let store = MemoryStore::new();
        let group = group(0..2, 1);
        let mut contents = Contents {
            scheme: Scheme::Aware,
            block_bytes: 0,
            classes: mcrengine::classify::classify(&group.files, &Default::default()),
            files: group.files.clone().into(),
            reused: reusable(&group.files, &ReuseIndex::empty()),
        };
        let reused = contents.reused.clone();
        let skip = |at| reused.iter().any(|(r, _)| *r == at);
        let plans = mcrengine::plan::plan(&group.files, &contents.classes, &how(1).options, skip);
        let mut writer = ContainerWriter::create(&store, &job(), &checkpoint("a"), GroupId(0)).expect("creates");
        for plan in &plans {
            let stored = vec![0; plan.raw_bytes.0 as usize];
            writer
                .append(plan, &StoredSegment { chain: Chain::raw(), raw_bytes: plan.raw_bytes, stored, base: None })
                .expect("ok");
        }
        spoil(&mut contents);
        let error = writer.seal(&store, contents).map(|_| ()).expect_err(expected);
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert!(store.paths().is_empty(), "{expected}");
    }
}

#[test]
fn a_group_is_committed_once() {
    let store = MemoryStore::new();
    let one = group(0..2, 1);
    flush(&store, &checkpoint("a"), GroupId(0), &one, &how(1), &ReuseIndex::empty()).expect("writes");
    let before = store.get(std::path::Path::new("wave/a/group-0000.mcr"));
    let again = flush(&store, &checkpoint("a"), GroupId(0), &group(0..2, 2), &how(1), &ReuseIndex::empty());
    assert!(matches!(again, Err(StoreError::Committed { .. })), "{again:?}");
    assert_eq!(store.get(std::path::Path::new("wave/a/group-0000.mcr")), before);
    // A container that was sealed but not committed is replaced.
    let sealed = write(&store, &checkpoint("a"), GroupId(1), &group(2..4, 1), &how(1), &ReuseIndex::empty());
    let stale = sealed.expect("writes");
    let manifest = flush(&store, &checkpoint("a"), GroupId(1), &group(2..4, 2), &how(1), &ReuseIndex::empty());
    assert_eq!(manifest.expect("writes").files[0].path.as_bytes(), b"DD0002/data.cpu0002");
    assert!(matches!(commit_sealed(&store, stale, &how(1)), Err(StoreError::Committed { .. })), "a late writer loses");
}

#[test]
fn a_checkpoint_was_committed_when_its_last_group_was() {
    let (store, id) = (MemoryStore::new(), checkpoint("a"));
    let created = || manifest::state(&store, &job(), &id).expect("read").created_unix_ms;
    flush(&store, &id, GroupId(0), &group(0..2, 1), &how(7), &ReuseIndex::empty()).expect("writes");
    assert_eq!(created(), how(7).draft.created_unix_ms);
    let mut later = how(7);
    later.draft.created_unix_ms += 90_000;
    flush(&store, &id, GroupId(1), &group(2..4, 1), &later, &ReuseIndex::empty()).expect("writes");
    assert_eq!(created(), later.draft.created_unix_ms);
}

#[test]
fn a_manifest_of_another_container_commits_nothing() {
    let store = MemoryStore::new();
    let [one, other] = [(0, 0..2), (1, 2..4)].map(|(number, ranks)| {
        write(&store, &checkpoint("a"), GroupId(number), &group(ranks, 1), &how(1), &ReuseIndex::empty())
            .expect("writes")
    });
    let manifest = manifest::write(&store, other.summary(), how(1).draft).expect("writes");
    let error = manifest::commit(&store, one, manifest).expect_err("they do not belong together");
    assert!(error.to_string().contains("does not describe the container that was sealed"), "{error}");
    let left: Vec<String> = store.paths().iter().map(|path| path.display().to_string()).collect();
    assert!(left.iter().all(|path| path.ends_with(".mcr")), "{left:?}");
}

#[test]
fn a_group_is_written_anew_where_its_container_has_gone_or_has_no_index_left() {
    let store = MemoryStore::new();
    let id = checkpoint("a");
    let write = |step| flush(&store, &id, GroupId(0), &group(0..2, step), &how(1), &ReuseIndex::empty());
    let path = std::path::Path::new("wave/a/group-0000.mcr");
    let manifest = write(1).expect("writes");
    assert!(manifest::has_container(&store, &manifest).expect("looks"));
    let whole = store.get(path).expect("there");
    let mut flipped = whole.clone();
    flipped[whole.len() - 60] ^= 1; // in the index
    for damaged in [None, Some(&whole[..whole.len() - 1]), Some(&flipped[..])] {
        match damaged {
            None => mcrengine::store::Store::remove_file(&store, path).expect("removes"),
            Some(bytes) => store.put(path, bytes),
        }
        assert!(!manifest::has_container(&store, &manifest).expect("looks"));
        // A writer of the same bytes repairs the container. Then a writer of other bytes is refused.
        assert!(matches!(write(1), Err(StoreError::Committed { .. })));
        assert_eq!(store.get(path), Some(whole.clone()));
        assert!(matches!(write(2), Err(StoreError::Committed { .. })), "what is whole stays");
    }
    store.put(path, &flipped);
    let other = write(2).expect("replaces what could not be restored");
    assert!(manifest::has_container(&store, &other).expect("looks"));
    let report = verify(&store, &job(), &id, VERIFYING, &|_| ());
    assert!(!report.problems.iter().any(|problem| problem.group == Some(GroupId(0))), "{:?}", report.problems);
}

#[test]
fn what_a_killed_writer_left_is_removed_by_the_next_of_its_group() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = PosixStore::create(dir.path()).expect("a store");
    let id = checkpoint("a");
    drop(ContainerWriter::create(&store, &job(), &id, GroupId(0)).expect("makes the directory"));
    let left = [".group-0000.mcr.00", ".group-0000.manifest.00", ".group-0001.manifest.00"];
    for name in left {
        std::fs::write(dir.path().join("wave/a").join(name), "left").expect("writes");
    }
    flush(&store, &id, GroupId(0), &group(0..2, 1), &how(1), &ReuseIndex::empty()).expect("writes");
    let is_there = left.map(|name| dir.path().join("wave/a").join(name).exists());
    assert_eq!(is_there, [false, false, true], "that of another group is not ours to remove");
}

#[test]
fn of_two_writers_of_one_group_the_later_is_turned_away_and_the_committed_container_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    // Two stores use the same directory, like two processes.
    let (store, other) = [(); 2].map(|()| PosixStore::create(dir.path()).expect("a store")).into();
    let id = checkpoint("a");
    let create = || ContainerWriter::create(&other, &job(), &id, GroupId(0)).map(|_| ());
    let write = || write(&store, &id, GroupId(0), &group(0..2, 1), &how(1), &ReuseIndex::empty()).expect("writes");
    let names = || store.list_dir(std::path::Path::new("wave/a")).expect("listed").len();

    let writing = ContainerWriter::create(&store, &job(), &id, GroupId(0)).expect("creates");
    assert!(matches!(create(), Err(StoreError::Busy { .. })), "while the first one writes");
    assert_eq!(names(), 1, "the first one's file is still there, and nothing of the second");
    // A newer complete checkpoint exists, so checkpoint a looks as if a crash had left it incomplete.
    flush(&store, &checkpoint("b"), GroupId(0), &group(0..2, 1), &how(1), &ReuseIndex::empty()).expect("writes");
    flush(&store, &checkpoint("b"), GroupId(1), &group(2..4, 1), &how(1), &ReuseIndex::empty()).expect("writes");
    let options = PruneOptions {
        keep: mcrengine::retention::Rules { last: 1, ..Default::default() },
        incomplete: true,
        ..PruneOptions::default()
    };
    assert!(manifest::state(&store, &job(), &checkpoint("b")).expect("read").is_complete());
    prune(&other, &job(), &options).expect("prunes");
    assert_eq!(names(), 1, "what is being written stays");
    drop(writing);
    prune(&other, &job(), &options).expect("prunes");
    assert!(!dir.path().join("wave/a").exists(), "and what nobody writes goes");
    let sealed = write();
    assert!(matches!(create(), Err(StoreError::Busy { .. })), "while it has a final name and no manifest");
    drop(sealed);
    let sealed = write();
    commit_sealed(&store, sealed, &how(1)).expect("commits");
    assert!(matches!(create(), Err(StoreError::Committed { .. })), "{:?}", create());
    assert_eq!(names(), 2, "container and manifest");
    let report = verify(&store, &job(), &id, VERIFYING, &|_| ());
    assert!(!report.problems.iter().any(|problem| problem.group.is_some()), "{:?}", report.problems);
}
