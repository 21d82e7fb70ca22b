//! Tests that damaged and hostile files are restored byte for byte, even if their map is wrong.

use crate::support::{MAPS, round_trip, worker_command};
use crate::write::{FileOptions, Space, Writer, make, set, smooth};
use crate::{NEW, UNLIMITED};
use hdf5_sys::h5t::*;
use mcr_cnc::h5::{Classic, FileMap, H5Error, MapInput, MapSource, MapWorker};
use mcr_test_support::Random;
use mcrengine::header::{ElementType, Extent, Role, Shape};
use mcrengine::ids::Digest;
use proptest::prelude::*;
use std::fs::File;
use std::path::Path;

/// A short file with much metadata.
fn sample(options: FileOptions) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("f.h5");
    let writer = Writer::new(&path, options);
    writer.dataset("/g/x", *H5T_IEEE_F64LE, Space::Simple(&[20]), set::nothing, Some(&smooth(160)));
    let deflated = |list| {
        set::chunk(&[10])(list);
        set::shuffle()(list);
        set::deflate(6)(list);
    };
    writer.dataset("/g/deflated", *H5T_IEEE_F64LE, Space::Simple(&[40]), deflated, Some(&smooth(320)));
    let record = make::compound(24, &[("a", 0, *H5T_IEEE_F64LE), ("b", 8, make::array(*H5T_STD_I32LE, &[2]))]);
    writer.dataset("/h/record", record, Space::Simple(&[5]), set::nothing, Some(&smooth(120)));
    let byte = *H5T_STD_I8LE;
    for (nth, most) in [[6, 6], [UNLIMITED, 6], [UNLIMITED, UNLIMITED]].iter().enumerate() {
        let fletcher = |list| {
            set::chunk(&[2, 2])(list);
            set::fletcher32()(list);
        };
        writer.dataset(
            &format!("/i/{nth}"),
            byte,
            Space::Growing(&[6, 6], most),
            set::chunk(&[2, 2]),
            Some(&smooth(36)),
        );
        writer.dataset(&format!("/i/{nth}f"), byte, Space::Growing(&[6, 6], most), fletcher, Some(&smooth(36)));
    }
    writer.group("/dense", |list| {
        if options.latest {
            set::dense_links()(list)
        }
    });
    for nth in 0..4 {
        writer.hard_link("/g", &format!("/dense/{nth}"));
    }
    writer.hard_link("/g", "/h/cycle");
    writer.attribute("/g", "attribute");
    drop(writer);
    std::fs::read(&path).expect("read")
}

fn samples() -> [Vec<u8>; 2] {
    [false, true].map(|latest| sample(FileOptions { latest, user_block: 0, address_bytes: 0 }))
}

fn comes_back(bytes: &[u8], maps: &dyn MapSource) {
    all_come_back(&[bytes], maps);
}

/// Writes all files first, and then captures the files, because a file must be at rest before its capture.
fn all_come_back(files: &[&[u8]], maps: &dyn MapSource) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (nth, bytes) in files.iter().enumerate() {
        std::fs::write(directory.path().join(nth.to_string()), bytes).expect("write");
    }
    for nth in 0..files.len() {
        round_trip(directory.path(), &nth.to_string(), maps, 500);
    }
}

#[test]
fn a_file_cut_short_anywhere_comes_back() {
    for whole in samples() {
        let cut = |lens: &mut dyn Iterator<Item = usize>| lens.map(|len| &whole[..len]).collect::<Vec<_>>();
        all_come_back(&cut(&mut (0..whole.len()).step_by(37)), &Classic);
        let lens = [0, 7, 8, 100, whole.len() / 2, whole.len() - 1];
        all_come_back(&cut(&mut lens.into_iter()), &*MAPS);
    }
}

#[test]
fn garbage_behind_a_right_signature_comes_back() {
    for (nth, len) in [8usize, 9, 48, 96, 513, 5000].into_iter().enumerate() {
        let mut random = Random::new(nth as u64 + 1);
        let mut garbage: Vec<u8> = (0..len).map(|_| random.byte()).collect();
        garbage[..8].copy_from_slice(b"\x89HDF\r\n\x1a\n");
        comes_back(&garbage, &*MAPS);
        // The file has the signature, a known version of the superblock, and then garbage.
        garbage.iter_mut().skip(8).take(5).for_each(|b| *b = 0);
        comes_back(&garbage, &*MAPS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_changed_bytes_come_back(
        latest in any::<bool>(),
        files in prop::collection::vec(changes(), 8),
    ) {
        thread_local!(static SAMPLES: [Vec<u8>; 2] = samples());
        let whole = SAMPLES.with(|s| s[usize::from(latest)].clone());
        let files: Vec<_> = files.into_iter().map(|changes| changed(whole.clone(), changes)).collect();
        all_come_back(&files.iter().map(Vec::as_slice).collect::<Vec<_>>(), &Classic);
    }

}

proptest! {
    // More cases are possible here, because no file is captured.
    #![proptest_config(ProptestConfig { cases: 16 * ProptestConfig::default().cases, ..ProptestConfig::default() })]
    #[test]
    fn any_changed_metadata_ends_in_a_map_within_the_file_or_an_error(
        latest in any::<bool>(),
        changes in changes(),
    ) {
        thread_local!(static SAMPLES: [Vec<u8>; 2] = samples());
        let bytes = changed(SAMPLES.with(|s| s[usize::from(latest)].clone()), changes);
        let file = tempfile::tempfile().expect("a temporary file");
        std::io::Write::write_all(&mut &file, &bytes).expect("written");
        let len = bytes.len() as u64;
        let input = MapInput { path: Path::new("f.h5"), file: &file, bytes: len, whole: Some(&bytes) };
        if let Ok(map) = Classic.map(&input) {
            prop_assert!(map.check(len).is_ok());
        }
    }
}

#[test]
fn every_changed_byte_of_a_dense_group_ends_in_a_map_within_the_file_or_an_error() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("f.h5");
    let writer = Writer::new(&path, NEW);
    writer.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[4]), set::nothing, Some(&smooth(32)));
    // This number of links needs a heap with a table of blocks, and a B-tree of two levels.
    for nth in 0..300 {
        writer.hard_link("/x", &format!("/{nth:0>40}"));
    }
    drop(writer);
    let mut bytes = std::fs::read(&path).expect("read");
    let file = File::open(&path).expect("open");
    let len = bytes.len() as u64;
    let map = |bytes: &[u8]| Classic.map(&MapInput { path: &path, file: &file, bytes: len, whole: Some(bytes) });
    assert_eq!(map(&bytes).expect("a valid file").variables.len(), 1);
    let (mut maps, mut errors) = (0, 0);
    for signature in [b"FRHP", b"FHIB", b"FHDB", b"BTHD", b"BTIN", b"BTLF"] {
        let at = bytes.windows(4).position(|four| four == signature).expect("the group has this structure");
        for at in at..at + 180 {
            let was = bytes[at];
            for value in [0, 1, 0x7f, 0xff, was ^ 1, was.wrapping_add(8)] {
                bytes[at] = value;
                match map(&bytes) {
                    Ok(map) => {
                        map.check(len).expect("a map without an error is valid");
                        maps += 1;
                    }
                    Err(H5Error::NotClassic { .. }) => errors += 1,
                    Err(error) => panic!("byte {at} changed to {value}: {error}"),
                }
            }
            bytes[at] = was;
        }
    }
    assert!(maps > 1000 && errors > 200, "{maps} maps and {errors} errors");
}

type Changes = Vec<(prop::sample::Index, u8)>;

/// Positions of bytes, and the new values of these bytes.
fn changes() -> impl Strategy<Value = Changes> {
    let value = prop_oneof![any::<u8>(), Just(0), Just(0xff), 1u8..4];
    prop::collection::vec((any::<prop::sample::Index>(), value), 1..20)
}

/// Changes only bytes that are not raw data of an array, because raw data may have any value.
fn changed(mut bytes: Vec<u8>, changes: Changes) -> Vec<u8> {
    thread_local!(static METADATA: std::cell::RefCell<std::collections::HashMap<Digest, Vec<usize>>> = Default::default());
    let places = METADATA.with_borrow_mut(|known| {
        let places = || metadata_of(&bytes);
        known.entry(Digest::of(&bytes)).or_insert_with(places).clone()
    });
    for (at, value) in changes {
        bytes[places[at.index(places.len())]] = value;
    }
    bytes
}

fn metadata_of(bytes: &[u8]) -> Vec<usize> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    std::io::Write::write_all(&mut file, bytes).expect("written");
    let len = bytes.len() as u64;
    let map = Classic.map(&MapInput { path: Path::new("f.h5"), file: &file, bytes: len, whole: Some(bytes) });
    let skeleton = map.expect("a valid file").skeleton(len);
    // Runs of zeros are mostly unused space.
    let used = |at: &usize| bytes[at.saturating_sub(8)..(*at + 9).min(bytes.len())].iter().any(|&b| b != 0);
    skeleton.iter().flat_map(|e| e.offset as usize..(e.offset + e.stored_bytes) as usize).filter(used).collect()
}

#[test]
fn the_library_may_meet_any_changed_byte_in_its_own_process() {
    let worker = MapWorker::with_command(worker_command);
    for whole in samples() {
        let changed = |nth: usize| {
            let mut bytes = whole.clone();
            let at = nth * 1597 % bytes.len();
            bytes[at] ^= 0xff;
            bytes
        };
        let files: Vec<_> = (0..60).map(changed).collect();
        all_come_back(&files.iter().map(Vec::as_slice).collect::<Vec<_>>(), &worker);
    }
}

/// A source of wrong maps.
struct Liar(FileMap);

impl MapSource for Liar {
    fn map(&self, _: &MapInput<'_>) -> Result<FileMap, H5Error> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_map_that_overlaps_or_names_filters_that_are_none_costs_no_byte() {
    use mcr_cnc::h5::MappedVariable;
    use mcrengine::header::Filter;
    let variable = |path: &str, offset, filters: &[Filter]| MappedVariable {
        role: Role::Array,
        path: path.into(),
        element: ElementType::F64,
        shape: Shape([10].into()),
        chunk: Default::default(),
        filters: filters.into(),
        extents: vec![Extent { offset, stored_bytes: 80, raw_bytes: if filters.is_empty() { 80 } else { 800 } }],
    };
    let bytes = smooth(4000);
    let deflate = [Filter::Deflate { level: 6 }];
    for variables in [
        vec![variable("/a", 100, &[]), variable("/b", 150, &[])],
        vec![variable("/a", 100, &deflate), variable("/b", 800, &[])],
        vec![variable("/a", 3990, &[])],
        vec![variable("/a", u64::MAX, &[])],
    ] {
        comes_back(&bytes, &Liar(FileMap { variables }));
    }
}

#[test]
fn a_file_of_more_pieces_than_we_hold_is_one_piece() {
    use mcr_cnc::h5::{EXTENTS_MAX, MappedVariable};
    let variable = |pieces: usize| MappedVariable {
        role: Role::Array,
        path: "/x".into(),
        element: ElementType::Bytes,
        shape: Shape([pieces as u64].into()),
        chunk: Default::default(),
        filters: [].into(),
        extents: (0..pieces as u64).map(|nth| Extent { offset: 2 * nth, stored_bytes: 1, raw_bytes: 1 }).collect(),
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("f"), vec![7; 2 * EXTENTS_MAX + 2]).expect("write");
    for (pieces, role) in [(EXTENTS_MAX, Role::Skeleton), (EXTENTS_MAX + 1, Role::WholeFile)] {
        let liar = Liar(FileMap { variables: vec![variable(pieces)] });
        let header = round_trip(directory.path(), "f", &liar, 1 << 20);
        assert_eq!(header.variables[0].role, role, "{pieces} pieces");
    }
}

#[test]
fn several_files_are_mapped_at_once_and_by_four_processes_at_most() {
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;
    let started = Arc::new((Mutex::new(0), Condvar::new()));
    let here = Arc::clone(&started);
    let worker = MapWorker::with_command(move || {
        let (count, more) = &*here;
        let mut count = count.lock().expect("not poisoned");
        *count += 1;
        more.notify_all();
        // If files were mapped one after the other, no second process would start while the first process waits.
        drop(more.wait_timeout_while(count, Duration::from_secs(10), |count| *count < 2));
        worker_command()
    });
    let whole = &samples()[0];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("f.h5");
    std::fs::write(&path, whole).expect("write");
    let file = std::fs::File::open(&path).expect("open");
    let input = MapInput { path: &path, file: &file, bytes: whole.len() as u64, whole: None };
    let expected = Classic.map(&input).expect("a valid file");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(worker.map(&input).expect("a map"), expected)));
        }
    });
    let count = *started.0.lock().expect("not poisoned");
    assert!((2..=4).contains(&count), "{count} processes were started");
}
