//! Tests files with large numbers of links, chunks and datasets. The parser in `classic.rs` must read all indices of
//! these files like the library.

use crate::support::{MAPS, described, round_trip};
use crate::write::{FileOptions, Space, Writer, set, smooth};
use crate::{NEW, OLD, UNLIMITED};
use hdf5_sys::h5t::*;
use mcr_cnc::capture::{CaptureMode, capture};
use mcr_cnc::h5::{Classic, FileMap, Library, MapInput, MapSource};
use mcrengine::ids::{FilePath, Rank};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Returns the map of the parser in `classic.rs`. The map must be equal to the library's map.
fn own_map(path: &Path) -> FileMap {
    let file = File::open(path).expect("open");
    let bytes = file.metadata().expect("metadata").len();
    let input = MapInput { path, file: &file, bytes, whole: None };
    let ours = Classic.map(&input).expect("the own parser reads the file");
    let theirs = Library.map(&input).expect("the library reads the file");
    assert_eq!(ours.variables.len(), theirs.variables.len(), "variables of the own parser and of the library");
    for (our, their) in ours.variables.iter().zip(&theirs.variables) {
        assert_eq!(our.path, their.path);
        let differs = our.extents.iter().zip(&their.extents).position(|(a, b)| a != b);
        assert_eq!((our.extents.len(), differs), (their.extents.len(), None), "extents of {}", our.path);
        assert_eq!(our, their);
    }
    ours
}

fn written(options: FileOptions, write: impl FnOnce(&Writer)) -> (tempfile::TempDir, FileMap) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("f.h5");
    let writer = Writer::new(&path, options);
    write(&writer);
    drop(writer);
    let map = own_map(&path);
    (directory, map)
}

fn extents(map: &FileMap, path: &str) -> usize {
    map.variables.iter().filter(|v| &*v.path == path).map(|v| v.extents.len()).sum()
}

#[test]
fn arrays_of_chunks_in_pages_and_super_blocks_are_read_and_so_are_their_gaps() {
    let byte = *H5T_STD_I8LE;
    let (directory, map) = written(NEW, |w| {
        let fletcher = |list| {
            set::chunk(&[2])(list);
            set::fletcher32()(list);
        };
        let fixed = Space::Simple(&[9_000]);
        w.dataset("/fixed", byte, fixed, set::chunk(&[2]), Some(&smooth(9_000)));
        w.dataset("/fixed behind a filter", byte, fixed, fletcher, Some(&smooth(9_000)));
        w.dataset("/fixed, partly", byte, fixed, fletcher, None);
        w.write_first("/fixed, partly", byte, 5_000, &smooth(300), 300);
        w.write_first("/fixed, partly", byte, 8_990, &smooth(10), 10);
        let growing = Space::Growing(&[9_000], &[UNLIMITED]);
        w.dataset("/growing", byte, growing, set::chunk(&[2]), Some(&smooth(9_000)));
        w.dataset("/growing behind a filter", byte, growing, fletcher, Some(&smooth(9_000)));
        // The dataset is long enough to need super blocks whose data blocks have pages.
        let far = Space::Growing(&[1_000_000], &[UNLIMITED]);
        w.dataset("/growing, partly", byte, far, fletcher, None);
        for from in [0, 7, 50, 999, 4_000, 262_000, 270_000, 400_000, 999_990] {
            w.write_first("/growing, partly", byte, from, &smooth(10), 10);
        }
        w.dataset("/cut", byte, growing, fletcher, Some(&smooth(9_000)));
        w.resize("/cut", &[3_001]);
        let matrix = Space::Growing(&[30, 40], &[UNLIMITED, 60]);
        w.dataset("/slow", byte, matrix, set::chunk(&[4, 4]), Some(&smooth(1_200)));
        let matrix = Space::Growing(&[30, 40], &[60, UNLIMITED]);
        w.dataset("/fast", byte, matrix, set::chunk(&[4, 4]), Some(&smooth(1_200)));
        let early = |list| {
            set::chunk(&[4, 4])(list);
            set::early()(list);
        };
        let growing = Space::Growing(&[10, 9], &[10, 17]);
        w.dataset("/all in place", byte, growing, early, Some(&smooth(90)));
    });
    assert_eq!(extents(&map, "/fixed behind a filter"), 4_500);
    assert_eq!(extents(&map, "/fixed, partly"), 155);
    assert_eq!(extents(&map, "/growing behind a filter"), 4_500);
    assert_eq!(extents(&map, "/growing, partly"), 45, "two runs share a chunk, and one run begins within a chunk");
    assert_eq!(extents(&map, "/cut"), 1_501);
    round_trip(directory.path(), "f.h5", &Classic, 100_000);
}

#[test]
fn trees_of_chunks_with_inner_nodes_are_read() {
    let byte = *H5T_STD_I8LE;
    for options in [OLD, NEW] {
        let (directory, map) = written(options, |w| {
            let fletcher = |list| {
                set::chunk(&[1, 1])(list);
                set::fletcher32()(list);
            };
            let growing = Space::Growing(&[100, 200], &[UNLIMITED, UNLIMITED]);
            w.dataset("/x", byte, growing, fletcher, Some(&smooth(20_000)));
            let growing = Space::Growing(&[30, 20], &[UNLIMITED, UNLIMITED]);
            w.dataset("/y", byte, growing, set::chunk(&[1, 1]), Some(&smooth(600)));
            w.resize("/y", &[7, 5]);
        });
        assert_eq!(extents(&map, "/x"), 20_000);
        round_trip(directory.path(), "f.h5", &Classic, 100_000);
    }
}

#[test]
fn groups_whose_links_fill_a_heap_of_many_blocks_are_walked() {
    for (links, options) in [(9usize, NEW), (6_000, NEW), (6_000, OLD)] {
        let (_directory, map) = written(options, |w| {
            w.dataset("/x", *H5T_STD_I8LE, Space::Simple(&[3]), set::nothing, Some(&smooth(3)));
            w.group("/many", |_| {});
            for nth in 0..links {
                let name = format!("/many/{:0>150}", nth * 7919 % links);
                match nth % 1000 {
                    5 => w.dataset(&name, *H5T_STD_I8LE, Space::Simple(&[3]), set::nothing, Some(&smooth(3))),
                    _ if nth % 2 == 0 => w.soft_link("/x", &name),
                    _ => w.hard_link("/x", &name),
                }
            }
        });
        let here = map.variables.iter().filter(|v| v.path.starts_with("/many/")).count();
        assert_eq!(here, links.div_ceil(1000) + 1, "{links} links, newest format: {}", options.latest);
    }
}

#[test]
fn a_hundred_thousand_little_datasets_are_described_in_a_moment() {
    let (directory, map) = written(OLD, |w| {
        for nth in 0..100_000 {
            let name = format!("/Grid{:05}/{}", nth / 100, nth % 100);
            w.dataset(&name, *H5T_IEEE_F64LE, Space::Simple(&[4]), set::nothing, Some(&smooth(32)));
        }
    });
    assert_eq!(map.variables.len(), 100_000);
    let start = Instant::now();
    let name = FilePath::new(&b"f.h5"[..]).expect("valid");
    let captured = capture(directory.path(), &name, Rank(0), CaptureMode::Apart, &Classic).expect("captured");
    assert_eq!(captured.header.variables.len(), 100_001);
    assert!(start.elapsed() < Duration::from_secs(10), "the capture took {:?}", start.elapsed());
}

#[test]
fn the_own_parser_reads_a_group_of_many_thousand_datasets_whatever_the_order_of_their_names() {
    for options in [OLD, NEW] {
        let (_directory, map) = written(options, |w| {
            for nth in 0..30_000u32 {
                // The order of the names differs from the order of the datasets.
                let name = format!("/many/{:08x}", nth.wrapping_mul(2_654_435_761));
                w.dataset(&name, *H5T_IEEE_F64LE, Space::Simple(&[4]), set::nothing, Some(&smooth(32)));
            }
            w.hard_link("/many/00000000", "/many/0");
            w.hard_link("/many", "/again");
        });
        assert_eq!(map.variables.len(), 30_000);
        assert_eq!(&*map.variables[0].path, "/again/0", "the path of a dataset is the first of its names");
    }
}

#[test]
fn names_of_any_bytes_stay_different_names() {
    for options in [OLD, NEW] {
        let (directory, map) = written(options, |w| {
            for (nth, name) in
                [&b"/a\xff"[..], b"/a\xfe", b"/a\nb", b"/\xc3", b"/\xc3\xbc", b"/a b\t"].iter().enumerate()
            {
                let bytes = smooth(8 * (nth + 1));
                w.dataset_named(name, *H5T_IEEE_F64LE, Space::Simple(&[nth as u64 + 1]), set::nothing, Some(&bytes));
            }
        });
        let mut paths: Vec<&str> = map.variables.iter().map(|v| &*v.path).collect();
        paths.dedup();
        assert_eq!(paths, ["/a\nb", "/a b\t", "/a\u{fffd}fe", "/a\u{fffd}ff", "/\u{fc}", "/\u{fffd}c3"]);
        let header = round_trip(directory.path(), "f.h5", &*MAPS, 1000);
        assert_eq!(described(&header, "/a\u{fffd}ff"), ["Array F64LE [1] []"]);
    }
}

#[test]
fn four_million_chunks_are_one_array() {
    let (_directory, map) = written(NEW, |w| {
        let early = |list| {
            set::chunk(&[1])(list);
            set::early()(list);
        };
        w.dataset("/x", *H5T_STD_I8LE, Space::Simple(&[4_000_000]), early, None);
    });
    assert_eq!(extents(&map, "/x"), 1, "adjacent chunks are one extent");
}
