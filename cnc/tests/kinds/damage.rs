//! Damaged and hostile files: whatever the map of one says, its bytes come back.

use crate::support::{MAPS, round_trip, worker_command};
use crate::write::{FileOptions, Space, Writer, make, set, smooth};
use hdf5_sys::h5t::*;
use mcr_cnc::h5::{Classic, FileMap, H5Error, MapInput, MapSource, MapWorker};
use mcrengine::header::{ElementType, Extent, Role, Shape};
use proptest::prelude::*;

/// A small file with much metadata.
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
    writer.hard_link("/g", "/h/cycle");
    writer.attribute("/g", "attribute");
    drop(writer);
    std::fs::read(&path).expect("read")
}

fn samples() -> [Vec<u8>; 2] {
    [false, true].map(|latest| sample(FileOptions { latest, user_block: 0, address_bytes: 0 }))
}

fn comes_back(bytes: &[u8], maps: &dyn MapSource) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("f.h5"), bytes).expect("write");
    round_trip(directory.path(), "f.h5", maps, 500);
}

#[test]
fn a_file_cut_short_anywhere_comes_back() {
    for whole in samples() {
        for len in (0..whole.len()).step_by(37) {
            comes_back(&whole[..len], &Classic);
        }
        for len in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
            comes_back(&whole[..len], &*MAPS);
        }
    }
}

#[test]
fn garbage_behind_a_right_signature_comes_back() {
    for (nth, len) in [8usize, 9, 48, 96, 513, 5000].into_iter().enumerate() {
        let mut state = nth as u64 + 1;
        let mut garbage: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        garbage[..8].copy_from_slice(b"\x89HDF\r\n\x1a\n");
        comes_back(&garbage, &*MAPS);
        // A superblock of a known version, then garbage.
        garbage.iter_mut().skip(8).take(5).for_each(|b| *b = 0);
        comes_back(&garbage, &*MAPS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn any_changed_bytes_come_back(
        latest in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        thread_local!(static SAMPLES: [Vec<u8>; 2] = samples());
        let mut bytes = SAMPLES.with(|s| s[usize::from(latest)].clone());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        comes_back(&bytes, &Classic);
    }
}

#[test]
fn the_library_may_meet_any_changed_byte_in_its_own_process() {
    let worker = MapWorker::with_command(worker_command);
    for whole in samples() {
        for nth in 0..60 {
            let mut bytes = whole.clone();
            let at = nth * 1597 % bytes.len();
            bytes[at] ^= 0xff;
            comes_back(&bytes, &worker);
        }
    }
}

/// A source of maps that lies.
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
