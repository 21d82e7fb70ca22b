//! Captures and restores every kind of file byte for byte, and checks that each file is split into variables as far
//! as possible.
//!
//! There is one test for each kind. Most files are written through the HDF5 library. Some files need features that
//! this build of the library lacks (szip, LZF, netCDF-4, HDF5 2). These files are in `tests/data/h5`, with the script
//! that made them.

mod corpus;
mod damage;
mod large;
mod restore;
mod support;
mod write;

use hdf5_sys::h5t::*;
use mcr_cnc::capture::{CaptureMode, capture};
use mcr_cnc::h5::{Classic, H5Error, Library, MapInput, MapSource};
use mcr_cnc::restart::FileRestorer;
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::header::{FileHeader, Role};
use mcrengine::ids::{FilePath, Rank};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use support::{MAPS, described, round_trip, round_trip_as};
use write::{FileOptions, Space, Writer, make, set, smooth};

const NEW: FileOptions = FileOptions { latest: true, user_block: 0, address_bytes: 0 };
const OLD: FileOptions = FileOptions { latest: false, user_block: 0, address_bytes: 0 };
const UNLIMITED: u64 = u64::MAX;

/// Captures a file and restores it from small pieces. Checks that the parser in `classic.rs` and the library return
/// the same map.
fn proved(root: &Path, name: &str) -> FileHeader {
    let path = root.join(name);
    let file = File::open(&path).expect("open");
    let bytes = file.metadata().expect("metadata").len();
    let input = MapInput { path: &path, file: &file, bytes, whole: None };
    let library = Library.map(&input);
    match Classic.map(&input) {
        Err(H5Error::NotClassic { what, .. }) if library.is_err() => eprintln!("{name} has no map: {what}"),
        ours => assert_eq!(ours.ok(), library.ok(), "{name}: own parser (left), library (right)"),
    }
    round_trip(root, name, &*MAPS, 1000)
}

/// Writes a file, checks it with [`proved`], and returns its description.
fn kind(options: FileOptions, write: impl FnOnce(&Writer)) -> FileHeader {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let writer = Writer::new(&directory.path().join("f.h5"), options);
    write(&writer);
    drop(writer);
    let header = proved(directory.path(), "f.h5");
    assert_eq!(header.variables[0].role, Role::Skeleton, "the structure of the file should have been found");
    header
}

/// Checks the description of one dataset: role, type, shape and filters of each of its variables.
#[track_caller]
fn is(header: &FileHeader, path: &str, expected: &[&str]) {
    assert_eq!(described(header, path), expected, "{path}");
}

#[test]
fn every_number_in_both_byte_orders_is_an_array_of_its_type() {
    let types = [
        ("I8", *H5T_STD_I8LE, 1),
        ("U8", *H5T_STD_U8BE, 1),
        ("I16LE", *H5T_STD_I16LE, 2),
        ("I16BE", *H5T_STD_I16BE, 2),
        ("U32LE", *H5T_STD_U32LE, 4),
        ("U32BE", *H5T_STD_U32BE, 4),
        ("I64LE", *H5T_STD_I64LE, 8),
        ("U64BE", *H5T_STD_U64BE, 8),
        ("F16LE", make::half(), 2),
        ("F32LE", *H5T_IEEE_F32LE, 4),
        ("F32BE", *H5T_IEEE_F32BE, 4),
        ("F64LE", *H5T_IEEE_F64LE, 8),
        ("F64BE", *H5T_IEEE_F64BE, 8),
        ("X16", *H5T_NATIVE_LDOUBLE, 16),
        ("X3", make::wide_integer(3), 3),
        ("U16LE", *H5T_STD_B16LE, 2),
        ("X12", make::string(12), 12),
        ("X5", make::opaque(5), 5),
        ("I32BE", make::enumeration(*H5T_STD_I32BE), 4),
    ];
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            for (nth, (name, datatype, width)) in types.iter().enumerate() {
                let bytes = smooth(15 * width);
                w.dataset(&format!("/{nth} {name}"), *datatype, Space::Simple(&[3, 5]), set::nothing, Some(&bytes));
            }
        });
        for (nth, (name, ..)) in types.iter().enumerate() {
            is(&header, &format!("/{nth} {name}"), &[&format!("Array {name} [3, 5] []")]);
        }
    }
}

#[test]
fn a_record_is_its_members_and_an_array_type_adds_dimensions() {
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            let inner = make::compound(24, &[("b", 16, *H5T_STD_I32BE), ("a", 0, *H5T_IEEE_F64LE)]);
            let array = make::array(*H5T_IEEE_F32LE, &[2, 3]);
            let outer = make::compound(
                80,
                &[
                    ("in", 40, inner),
                    ("x", 0, *H5T_IEEE_F64LE),
                    ("v", 12, array),
                    ("flag", 8, make::enumeration(*H5T_STD_I8LE)),
                ],
            );
            w.dataset("/particles", outer, Space::Simple(&[50]), set::nothing, Some(&smooth(4000)));
            w.dataset(
                "/tensor",
                make::array(*H5T_IEEE_F64LE, &[3, 3]),
                Space::Simple(&[4]),
                set::nothing,
                Some(&smooth(288)),
            );
            w.commit_type("/named", outer);
            w.dataset("/late", outer, Space::Simple(&[2]), set::nothing, Some(&smooth(160)));
        });
        let record = "C80[0:F64LEx1 8:I8x1 12:F32LEx6 40:F64LEx1 56:I32BEx1]";
        is(&header, "/particles", &[&format!("Array {record} [50] []")]);
        is(&header, "/late", &[&format!("Array {record} [2] []")]);
        is(&header, "/tensor", &["Array F64LE [4, 3, 3] []"]);
    }
}

#[test]
fn what_only_points_elsewhere_stays_in_the_skeleton() {
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            w.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[4]), set::nothing, Some(&smooth(32)));
            let texts = [c"one".as_ptr(), c"three and more".as_ptr()].map(|p| (p as usize).to_ne_bytes()).concat();
            w.dataset("/strings", make::string(usize::MAX), Space::Simple(&[2]), set::nothing, Some(&texts));
            let numbers = smooth(24);
            let list = [3usize, numbers.as_ptr() as usize].map(usize::to_ne_bytes).concat();
            let lists = make::variable_length(*H5T_IEEE_F64LE);
            w.dataset("/lists", lists, Space::Simple(&[1]), set::nothing, Some(&list));
            let within = make::compound(24, &[("x", 0, *H5T_IEEE_F64LE), ("list", 8, lists)]);
            w.dataset("/within", within, Space::Simple(&[1]), set::nothing, Some(&[&smooth(8)[..], &list].concat()));
            let reference = w.object_reference("/x");
            w.dataset("/references", *H5T_STD_REF_OBJ, Space::Simple(&[1]), set::nothing, Some(&reference));
        });
        is(&header, "/x", &["Array F64LE [4] []"]);
        assert_eq!(header.variables.len(), 2, "{:?}", header.variables);
    }
}

#[test]
fn every_index_of_chunks_gives_all_chunks() {
    let chunked = |w: &Writer, name: &str, space, chunk| {
        w.dataset(name, *H5T_IEEE_F64LE, space, set::chunk(chunk), Some(&smooth(100 * 8)));
        let deflated = |list| {
            set::chunk(chunk)(list);
            set::shuffle()(list);
            set::deflate(6)(list);
        };
        w.dataset(&format!("{name} deflated"), *H5T_IEEE_F64LE, space, deflated, Some(&smooth(100 * 8)));
    };
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            chunked(w, "/single", Space::Simple(&[10, 10]), &[10, 10]);
            chunked(w, "/fixed", Space::Simple(&[10, 10]), &[4, 4]);
            chunked(w, "/extensible", Space::Growing(&[10, 10], &[10, UNLIMITED]), &[4, 4]);
            chunked(w, "/tree", Space::Growing(&[10, 10], &[UNLIMITED, UNLIMITED]), &[4, 4]);
            let early = |list| {
                set::chunk(&[4, 4])(list);
                set::early()(list);
            };
            w.dataset("/implicit", *H5T_IEEE_F64LE, Space::Simple(&[10, 10]), early, Some(&smooth(800)));
        });
        for (name, chunks) in [("single", 1u64), ("fixed", 9), ("extensible", 9), ("tree", 9), ("implicit", 9)] {
            let chunk_bytes = if chunks == 1 { 800 } else { 128 };
            let of = |path: &str| header.variables.iter().find(|v| &*v.path == path).expect(name).raw_bytes.0;
            assert_eq!(of(&format!("/{name}")), chunks * chunk_bytes, "{name}, newest format: {}", options.latest);
            if name != "implicit" {
                assert_eq!(of(&format!("/{name} deflated")), chunks * chunk_bytes, "{name} deflated");
                let filters = "[Shuffle { width: 8 }, Deflate { level: 6 }]";
                is(&header, &format!("/{name} deflated"), &[&format!("Array F64LE [10, 10] {filters}")]);
            }
        }
    }
}

#[test]
fn many_chunks_in_any_order_of_writing_come_back_in_the_order_of_the_array() {
    for options in [OLD, NEW] {
        kind(options, |w| {
            let growing = Space::Growing(&[6400], &[UNLIMITED]);
            w.dataset("/x", *H5T_IEEE_F64LE, growing, set::chunk(&[16]), None);
            for nth in (0..400).rev() {
                w.write_first("/x", *H5T_IEEE_F64LE, (nth * 7 % 400) * 16, &smooth(128), 16);
            }
            w.resize("/x", &[3000]);
        });
    }
}

#[test]
fn filters_come_off_and_what_cannot_be_put_back_stays_as_it_stands() {
    let unknown = write::register_unknown_filter();
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            let with = |name: &str, datatype, set: &dyn Fn(i64)| {
                let both = |list| {
                    set::chunk(&[30])(list);
                    set(list);
                };
                w.dataset(name, datatype, Space::Simple(&[100]), both, Some(&smooth(800)[..100 * width(datatype)]));
            };
            with("/deflate", *H5T_IEEE_F64LE, &set::deflate(9));
            with("/stored", *H5T_IEEE_F64LE, &set::deflate(0));
            with("/shuffle", *H5T_IEEE_F32BE, &set::shuffle());
            with("/fletcher32", *H5T_STD_I16LE, &set::fletcher32());
            with("/all", *H5T_IEEE_F64LE, &|list| {
                set::fletcher32()(list);
                set::shuffle()(list);
                set::deflate(1)(list);
                set::fletcher32()(list);
            });
            with("/nbit", *H5T_STD_I32LE, &set::nbit());
            with("/scale offset", *H5T_STD_I32LE, &set::scale_offset());
            with("/unknown", *H5T_IEEE_F64LE, &set::filter(unknown));
            with("/unknown and known", *H5T_IEEE_F64LE, &|list| {
                set::filter(unknown)(list);
                set::deflate(6)(list);
            });
        });
        is(&header, "/deflate", &["Array F64LE [100] [Deflate { level: 9 }]"]);
        is(&header, "/stored", &["Array F64LE [100] [Deflate { level: 0 }]"]);
        is(&header, "/shuffle", &["Array F32BE [100] [Shuffle { width: 4 }]"]);
        is(&header, "/fletcher32", &["Array I16LE [100] [Fletcher32]"]);
        is(
            &header,
            "/all",
            &["Array F64LE [100] [Fletcher32, Shuffle { width: 8 }, Deflate { level: 1 }, Fletcher32]"],
        );
        for opaque in ["/nbit", "/scale offset", "/unknown", "/unknown and known"] {
            let found = described(&header, opaque);
            assert!(found.len() == 1 && found[0].starts_with("StoredChunks B1 ["), "{opaque}: {found:?}");
        }
    }
}

#[test]
fn leaving_filters_still_removes_filters_that_keep_chunks_much_longer() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let writer = Writer::new(&directory.path().join("f.h5"), OLD);
    let deflated = |list| {
        set::chunk(&[1000])(list);
        set::deflate(4)(list);
    };
    let mut state = 1u64;
    let rough: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    })
    .take(5000)
    .flatten()
    .collect();
    let counted: Vec<u8> = (0..5000).flat_map(|n| (f64::from(n) * 1.25).to_le_bytes()).collect();
    writer.dataset("/counted", *H5T_IEEE_F64LE, Space::Simple(&[5000]), deflated, Some(&counted));
    writer.dataset("/rough", *H5T_IEEE_F64LE, Space::Simple(&[5000]), deflated, Some(&rough));
    drop(writer);
    let taken = |mode| round_trip_as(directory.path(), "f.h5", (mode, &*MAPS), 1000);
    let number = ["Array F64LE [5000] [Deflate { level: 4 }]"];
    let all = taken(CaptureMode::Apart);
    is(&all, "/counted", &number);
    is(&all, "/rough", &number);
    let with_filters = taken(CaptureMode::ApartLeavingFilters);
    is(&with_filters, "/counted", &number);
    let rough = described(&with_filters, "/rough");
    assert!(rough.len() == 1 && rough[0].starts_with("StoredChunks B1 ["), "{rough:?}");
}

/// Length in bytes of one element of a datatype.
fn width(datatype: i64) -> usize {
    // SAFETY: the call only reads the size of a datatype, which is valid.
    #[expect(unsafe_code, reason = "a call of the HDF5 C library")]
    unsafe {
        H5Tget_size(datatype)
    }
}

#[test]
fn a_deflated_dataset_of_real_length_is_one_array_of_numbers() {
    for level in [1, 4, 6, 9] {
        let header = kind(OLD, |w| {
            let deflated = |list| {
                set::chunk(&[20_000])(list);
                set::shuffle()(list);
                set::deflate(level)(list);
            };
            w.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[100_000]), deflated, Some(&smooth(800_000)));
        });
        let filters = format!("[Shuffle {{ width: 8 }}, Deflate {{ level: {level} }}]");
        is(&header, "/x", &[&format!("Array F64LE [100000] {filters}")]);
    }
}

#[test]
fn a_chunk_that_another_zlib_wrote_is_stored_and_the_others_are_numbers() {
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            let deflated = |list| {
                set::chunk(&[100])(list);
                set::deflate(6)(list);
            };
            w.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[400]), deflated, Some(&smooth(3200)));
            // A zlib stream of stored blocks is valid, but level 6 never produces it.
            let raw = smooth(800);
            let other = mcrengine::filter::put_on(&[mcrengine::header::Filter::Deflate { level: 0 }], &raw);
            w.write_chunk("/x", 0, &[100], &other.expect("deflates"));
            // The filter was not applied to this chunk.
            w.write_chunk("/x", 1, &[200], &raw);
        });
        let found = described(&header, "/x");
        assert_eq!(found[0], "Array F64LE [400] [Deflate { level: 6 }]");
        assert!(found[1..].iter().all(|v| v.starts_with("StoredChunks B1 [")), "{found:?}");
        let raw: u64 = header.variables.iter().filter(|v| v.role == Role::Array).map(|v| v.raw_bytes.0).sum();
        assert_eq!(raw, 1600, "two of four chunks are an array");
    }
}

#[test]
fn chunks_that_another_zlib_wrote_are_given_up_after_a_few() {
    use mcrengine::header::Filter;
    let raw = smooth(8000);
    let by = |level| mcrengine::filter::put_on(&[Filter::Deflate { level }], &raw).expect("deflates");
    // Level 1 stands for another zlib: the streams of level 1 are valid, but differ from the streams of level 6.
    let (other, classic) = (by(1), by(6));
    let write = |w: &Writer, name: &str, others: std::ops::Range<u64>| {
        let deflated = |list| {
            set::chunk(&[1000])(list);
            set::deflate(6)(list);
        };
        w.dataset(name, *H5T_IEEE_F64LE, Space::Simple(&[20_000]), deflated, None);
        for nth in 0..20 {
            let stored = if others.contains(&nth) { &other } else { &classic };
            w.write_chunk(name, 0, &[nth * 1000], stored);
        }
    };
    let array = |header: &FileHeader, path: &str| {
        let arrays = header.variables.iter().filter(|v| &*v.path == path && v.role == Role::Array);
        arrays.map(|v| v.extents.len()).sum::<usize>()
    };
    let header = kind(OLD, |w| {
        write(w, "/a", 5..7);
        write(w, "/b", 0..2);
        write(w, "/c", 0..20);
        write(w, "/d", 20..20);
    });
    assert_eq!(array(&header, "/a"), 18, "two failed chunks among many do not end the attempts");
    assert_eq!(array(&header, "/b"), 0, "after two failed chunks, no more chunks are tried");
    assert_eq!(array(&header, "/c"), 0);
    assert_eq!(array(&header, "/d"), 0, "after two failed variables, no more variables are tried");
    let header = kind(OLD, |w| {
        write(w, "/a", 0..20);
        write(w, "/b", 20..20);
        write(w, "/c", 0..20);
        write(w, "/d", 20..20);
    });
    assert_eq!(array(&header, "/b") + array(&header, "/d"), 40, "one failed variable does not end the attempts");
}

#[test]
fn edge_chunks_without_filters_are_stored() {
    let header = kind(NEW, |w| {
        let edges = |list| {
            set::chunk(&[64])(list);
            set::edges_unfiltered()(list);
            set::deflate(6)(list);
        };
        w.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[100]), edges, Some(&smooth(800)));
    });
    assert_eq!(described(&header, "/x").len(), 2, "{:?}", described(&header, "/x"));
}

#[test]
fn data_that_is_nowhere_or_in_the_header_makes_no_variable() {
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            let double = *H5T_IEEE_F64LE;
            w.dataset("/compact", double, Space::Simple(&[10]), set::compact(), Some(&smooth(80)));
            w.dataset("/never allocated", double, Space::Simple(&[10]), set::nothing, None);
            w.dataset("/never allocated chunks", double, Space::Simple(&[10]), set::chunk(&[5]), None);
            w.dataset("/empty", double, Space::Simple(&[0, 7]), set::nothing, None);
            w.dataset("/null", double, Space::Null, set::nothing, None);
            w.dataset("/scalar", double, Space::Scalar, set::nothing, Some(&smooth(8)));
            w.dataset("/partly", double, Space::Growing(&[100], &[UNLIMITED]), set::chunk(&[10]), None);
            w.write_first("/partly", double, 50, &smooth(80), 10);
            let elsewhere = set::external("elsewhere.raw", 80);
            w.dataset("/external", double, Space::Simple(&[10]), elsewhere, None);
        });
        is(&header, "/scalar", &["Array F64LE [] []"]);
        is(&header, "/partly", &["Array F64LE [100] []"]);
        assert_eq!(header.variables.iter().filter(|v| v.role == Role::Array).count(), 2);
    }
}

#[test]
fn virtual_datasets_stay_and_their_sources_are_files_like_others() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = Writer::new(&directory.path().join("source.h5"), NEW);
    source.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[10]), set::nothing, Some(&smooth(80)));
    drop(source);
    let writer = Writer::new(&directory.path().join("virtual.h5"), NEW);
    let from = set::mapped_from("source.h5", 10);
    writer.dataset("/v", *H5T_IEEE_F64LE, Space::Simple(&[10]), from, None);
    writer.dataset("/here", *H5T_IEEE_F64LE, Space::Simple(&[10]), set::nothing, Some(&smooth(80)));
    drop(writer);
    let header = proved(directory.path(), "virtual.h5");
    assert!(described(&header, "/v").is_empty());
    is(&header, "/here", &["Array F64LE [10] []"]);
    is(&proved(directory.path(), "source.h5"), "/x", &["Array F64LE [10] []"]);
}

#[test]
fn links_of_every_kind_lead_to_each_dataset_once() {
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            let double = *H5T_IEEE_F64LE;
            w.dataset("/b/c/deep", double, Space::Simple(&[4]), set::nothing, Some(&smooth(32)));
            w.dataset("/z", double, Space::Simple(&[4]), set::nothing, Some(&smooth(32)));
            w.hard_link("/z", "/b/also z");
            w.hard_link("/b", "/b/c/cycle");
            w.hard_link("/", "/b/root");
            w.soft_link("/z", "/a soft");
            w.soft_link("/nowhere", "/dangling");
            w.external_link("other.h5", "/x", "/outside");
        });
        let paths: Vec<&str> = header.variables[1..].iter().map(|v| &*v.path).collect();
        assert_eq!(paths, ["/b/also z", "/b/c/deep"], "newest format: {}", options.latest);
    }
}

#[test]
fn groups_of_a_thousand_links_and_many_attributes_are_walked() {
    for options in [OLD, NEW] {
        let header = kind(options, |w| {
            w.group("/many", |_| {});
            w.group("/heap", |list| {
                if options.latest {
                    set::dense_links()(list)
                }
            });
            w.group("/ordered", set::link_order());
            for nth in 0..1000 {
                let name = format!("/many/dataset number {}", nth * 7919 % 1000);
                w.dataset(&name, *H5T_STD_I32LE, Space::Simple(&[3]), set::nothing, Some(&smooth(12)));
            }
            for nth in 0..4 {
                for group in ["heap", "ordered"] {
                    let name = format!("/{group}/{nth}");
                    w.dataset(&name, *H5T_STD_I32LE, Space::Simple(&[3]), set::nothing, Some(&smooth(12)));
                }
            }
            for nth in 0..40 {
                w.attribute("/many", &format!("attribute {nth}"));
                w.attribute("/many/dataset number 1", &format!("attribute {nth}"));
            }
        });
        assert_eq!(header.variables.len(), 1 + 1008);
    }
}

#[test]
fn a_user_block_moves_every_address() {
    for user_block in [512, 4096] {
        for options in [OLD, NEW] {
            let header = kind(FileOptions { user_block, ..options }, |w| {
                w.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[10]), set::nothing, Some(&smooth(80)));
                let deflated = |list| {
                    set::chunk(&[10])(list);
                    set::deflate(6)(list);
                };
                w.dataset("/y", *H5T_IEEE_F64LE, Space::Simple(&[50]), deflated, Some(&smooth(400)));
            });
            is(&header, "/x", &["Array F64LE [10] []"]);
            is(&header, "/y", &["Array F64LE [50] [Deflate { level: 6 }]"]);
        }
    }
}

#[test]
fn addresses_of_four_bytes_are_read() {
    for options in [OLD, NEW] {
        let header = kind(FileOptions { address_bytes: 4, ..options }, |w| {
            w.dataset("/g/x", *H5T_IEEE_F64LE, Space::Simple(&[10]), set::nothing, Some(&smooth(80)));
            w.dataset("/g/y", *H5T_IEEE_F64LE, Space::Simple(&[100]), set::chunk(&[10]), Some(&smooth(800)));
        });
        is(&header, "/g/x", &["Array F64LE [10] []"]);
        is(&header, "/g/y", &["Array F64LE [100] []"]);
    }
}

#[test]
fn a_file_that_is_open_for_writing_comes_back_as_it_stands() {
    for (options, swmr) in [(OLD, false), (NEW, false), (NEW, true)] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let writer = Writer::new(&directory.path().join("f.h5"), options);
        writer.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[10]), set::nothing, Some(&smooth(80)));
        let growing = Space::Growing(&[50], &[UNLIMITED]);
        writer.dataset("/y", *H5T_IEEE_F64LE, growing, set::chunk(&[10]), Some(&smooth(400)));
        if swmr {
            writer.start_swmr();
        }
        writer.flush();
        // The copy is like a file whose writer was killed. The original is read while its writer has it open.
        std::fs::copy(directory.path().join("f.h5"), directory.path().join("copy.h5")).expect("copy");
        round_trip(directory.path(), "f.h5", &*MAPS, 1000);
        drop(writer);
        round_trip(directory.path(), "copy.h5", &*MAPS, 1000);
    }
}

#[test]
fn a_dataset_above_four_gibibytes_keeps_its_place_and_the_file_its_holes() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let writer = Writer::new(&directory.path().join("f.h5"), OLD);
    let elements = (4u64 << 30) / 8 + 1000;
    writer.dataset("/huge", *H5T_IEEE_F64LE, Space::Simple(&[elements]), set::nothing, None);
    writer.write_first("/huge", *H5T_IEEE_F64LE, elements - 10, &smooth(80), 10);
    writer.dataset("/after", *H5T_IEEE_F64LE, Space::Simple(&[10]), set::nothing, Some(&smooth(80)));
    drop(writer);
    let path = directory.path().join("f.h5");
    assert!(path.metadata().expect("metadata").blocks() * 512 < 64 << 20, "the written file should have a hole");

    let (name, to) = (FilePath::new(&b"f.h5"[..]).expect("valid"), directory.path().join("to"));
    let captured = capture(directory.path(), &name, Rank(0), CaptureMode::Apart, &*MAPS).expect("captured");
    let header = Arc::new(captured.header);
    is(&header, "/huge", &[&format!("Array F64LE [{elements}] []")]);
    let after = header.variables.iter().find(|v| &*v.path == "/after").expect("it is an array");
    assert!(after.extents[0].offset > 4 << 30);

    let source = OpenFile::new(directory.path(), Arc::clone(&header), captured.fingerprint, &Descriptors::new(1));
    let restorer = FileRestorer::create(&to, Arc::clone(&header)).expect("created");
    let mut piece = vec![0; 16 << 20];
    for (v, variable) in header.variables.iter().enumerate() {
        for at in (0..variable.raw_bytes.0).step_by(piece.len()) {
            let piece = &mut piece[..(variable.raw_bytes.0 - at).min(16 << 20) as usize];
            // The bytes of the hole are zeros, so they are not read. Skipping the hole saves most of the time of the
            // test.
            piece.fill(0);
            if variable.raw_bytes.0 - at <= 16 << 20 {
                source.read_raw(v, at, piece).expect("read");
            }
            restorer.write(v, at, piece).expect("written");
        }
    }
    restorer.finish(false).expect("identical");
    let restored = to.join("f.h5").metadata().expect("metadata");
    assert_eq!(restored.len(), header.bytes);
    assert!(restored.blocks() * 512 < 64 << 20, "the restored file should also have the hole");
}

#[test]
fn files_of_other_libraries_come_back() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/h5");
    let mut names: Vec<String> = std::fs::read_dir(&data)
        .expect("tests/data/h5")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter(|name| name.ends_with(".h5") || name.ends_with(".nc"))
        .collect();
    names.sort();
    let expected = ["hdf5-2.h5", "lzf.h5", "netcdf3.nc", "netcdf4.nc", "szip.h5", "types.h5"];
    assert_eq!(names, expected, "a file has no test, or is missing");
    let proved = |name: &str| proved(&data, name);
    let stored = |header: &FileHeader| {
        let one = |v: &&mcrengine::header::VariableHeader| v.role == Role::StoredChunks;
        header.variables.iter().filter(one).map(|v| v.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(stored(&proved("szip.h5")), ["/szip", "/szip shuffled"]);
    assert_eq!(stored(&proved("lzf.h5")), ["/lzf", "/lzf shuffled"]);
    let netcdf = proved("netcdf4.nc");
    is(&netcdf, "/temperature", &["Array F32LE [4, 6, 8] [Shuffle { width: 4 }, Deflate { level: 4 }]"]);
    is(&netcdf, "/forecast/pressure", &["Array F64LE [6, 8] []"]);
    let types = proved("types.h5");
    is(&types, "/f16", &["Array F16LE [9] []"]);
    is(&types, "/bool", &["Array I8 [9] []"]);
    is(&types, "/complex", &["Array C16[0:F64LEx1 8:F64LEx1] [9] []"]);
    is(&types, "/long double", &["Array X16 [9] []"]);
    assert_eq!(proved("netcdf3.nc").variables[0].role, Role::WholeFile);
    // The HDF5 library of these tests does not support the newest layout of chunks.
    let newest = round_trip(&data, "hdf5-2.h5", &Classic, 1000);
    is(&newest, "/contiguous", &["Array F64LE [100] []"]);
    is(&newest, "/chunked", &["Array F64LE [1000] [Deflate { level: 4 }]"]);
}
