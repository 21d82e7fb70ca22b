use super::*;
use crate::layout::{CheckpointLabel, ScanLimits, list};
use std::time::Duration;

#[test]
fn files_that_are_left_out_make_doubt_only_if_they_are_a_large_part_of_the_files_and_of_the_bytes() {
    let layout = Layout::from_patterns(&["turb0.{checkpoint}"], 0).expect("valid");
    let left = |others: &[(&str, u64)]| {
        let placed = [("turb0.f00001", 4000), ("turb0.f00002", 4000)];
        let all = || placed.iter().chain(others);
        let listing = listing_of(&paths(all().map(|(name, _)| *name)));
        let listing = Listing { bytes: all().map(|(_, bytes)| *bytes).collect(), ..listing };
        layout.unplaced(&listing).expect("files are left out")
    };
    let small = left(&[("turb.nek5000", 13)]);
    assert!(small.are_many && !small.makes_doubt, "{small:?}");
    let few = [("x1.dat", 1), ("x2.dat", 1), ("x3.dat", 1)];
    assert!(!left(&few).makes_doubt && left(&[few[0], few[1], ("x3.dat", 9000)]).makes_doubt);
    let large = left(&[("other", 4000)]);
    assert_eq!((large.files, large.of, large.bytes, large.of_bytes, large.makes_doubt), (1, 3, 4000, 12000, true));
    let named_after = left(&[("f00001.part", 1)]);
    assert!(named_after.makes_doubt, "{named_after:?}");
}

type Guessed = BTreeMap<String, (usize, BTreeSet<u32>)>;

fn paths(names: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<FilePath> {
    names.into_iter().map(|name| FilePath::new(name.as_ref().as_bytes()).expect("a relative path")).collect()
}

/// For each label: the number of files, and the ranks.
fn place_all(layout: &Layout, paths: &[FilePath]) -> Guessed {
    let mut found = Guessed::new();
    for placed in paths.iter().filter_map(|path| layout.place(path)) {
        let entry = found.entry(placed.checkpoint.to_string()).or_default();
        entry.0 += 1;
        entry.1.extend(placed.rank.map(|rank| rank.0));
    }
    found
}

/// A listing in which all files have the same length and the same time.
fn listing_of(paths: &[FilePath]) -> Listing {
    let modified = vec![SystemTime::UNIX_EPOCH; paths.len()];
    Listing { files: paths.to_vec(), modified, bytes: vec![1; paths.len()], ..Listing::default() }
}

/// Guesses the layout of files with the same length and the same time.
fn guess_at(paths: &[FilePath], directory: &Path) -> (Layout, Explanation) {
    guess(&listing_of(paths), directory, Rest::IsTaken, None)
}

/// Guesses the layout of files that were written one after the other.
fn guess_in_order(paths: &[FilePath]) -> (Layout, Explanation) {
    let after = |nth: usize| SystemTime::UNIX_EPOCH + Duration::from_secs(nth as u64);
    guess(
        &Listing { modified: (0..paths.len()).map(after).collect(), ..listing_of(paths) },
        Path::new("/data/run7"),
        Rest::IsTaken,
        None,
    )
}

/// Guesses the layout only from numbers, without the presets.
fn by_numbers(paths: &[FilePath]) -> (Layout, Explanation) {
    let all: Vec<_> = paths.iter().collect();
    let (layout, explanation) =
        from_numbers(&all, &Times::default(), &"run7".parse().expect("valid"), None, Rest::IsTaken)
            .expect("the numbers suffice");
    take_the_rest(layout, explanation, &all, Rest::IsTaken)
}

fn expect(labels: &[(&str, usize, u32)]) -> Guessed {
    labels.iter().map(|(label, files, ranks)| ((*label).to_owned(), (*files, (0..*ranks).collect()))).collect()
}

/// File names, and for each label the number of files and the number of ranks.
type Case = (&'static [&'static str], &'static [(&'static str, usize, u32)]);

#[test]
fn a_node_that_has_only_later_ranks_finds_them_if_the_times_show_the_steps() {
    let names = paths((1..=3).flat_map(|step| (4..8).map(move |rank| format!("out_{step}.{rank}"))));
    let after =
        |nth: usize| SystemTime::UNIX_EPOCH + Duration::from_millis(nth as u64 / 4 * 1500 + (nth as u64 * 7) % 4);
    let listing = Listing { modified: (0..names.len()).map(after).collect(), ..listing_of(&names) };
    let (layout, explanation) = guess(&listing, Path::new("/data/run7"), Rest::IsTaken, None);
    assert!(explanation.asks.is_none(), "{explanation:?}");
    let expected = (1..=3).map(|step| (format!("out_{step}"), (4, (4..8).collect()))).collect();
    assert_eq!(place_all(&layout, &names), expected);
}

#[test]
fn a_number_with_gaps_that_may_be_the_rank_or_the_step_is_asked_for_unless_the_times_show_steps() {
    let asks = |names: &[&str]| guess_at(&paths(names), Path::new("/data/run7")).1.asks;
    let question = asks(&["out_1.0", "out_1.1", "out_1.3"]).expect("asks");
    assert!(question.contains("# in out_N.# may be the rank, without the values 2."), "{question}");
    for steps in [&["out_1.0", "out_1.10", "out_1.20"][..], &["out_0", "out_1", "out_3"], &["a_1.5", "a_1.6", "a_1.8"]]
    {
        assert_eq!(asks(steps), None, "{steps:?}");
    }
    assert_eq!(guess_in_order(&paths(["out_1.0", "out_1.1", "out_1.3"])).1.asks, None);
}

#[test]
fn numbers_tell_ranks_from_checkpoints() {
    let cases: &[Case] = &[
        (&["st_10.0.bin", "st_10.1.bin", "st_20.0.bin", "st_20.1.bin"], &[("st_10", 2, 2), ("st_20", 2, 2)]),
        // neither number has gaps, so the last number is the rank
        (&["a-0-0", "a-0-1", "a-1-0", "a-1-1"], &[("a-0", 2, 2), ("a-1", 2, 2)]),
        // neither number has gaps, and a word shows which number is the rank
        (&["rank0/c_0", "rank0/c_1", "rank1/c_0", "rank1/c_1"], &[("c_0", 2, 2), ("c_1", 2, 2)]),
        (
            &["proc1/x_iter0", "proc1/x_iter1", "proc2/x_iter0", "proc2/x_iter1"],
            &[("x_iter0", 2, 2), ("x_iter1", 2, 2)],
        ),
        // ranks that start at 1, several kinds of files, and files without rank, all with the label of the directory
        (
            &["o_8/amr_8.f1", "o_8/amr_8.f2", "o_8/hyd_8.f1", "o_8/hyd_8.f2", "o_8/info_8.txt", "o_8/notes"],
            &[("o_8", 6, 2)],
        ),
        // the newest checkpoint is incomplete
        (&["t5.r0", "t5.r1", "t5.r2", "t6.r1"], &[("t5", 3, 3)]),
        // the digit in an extension is not a number
        (&["s.0.h5", "s.1.h5", "s.2.h5"], &[]),
        // files without rank may contain only the directory's label
        (
            &["d1/ck_1/p0", "d1/ck_1/p1", "d1/params.txt", "d2/ck_2/p0", "d2/ck_2/p1", "d2/params.txt"],
            &[("d1", 3, 2), ("d2", 3, 2)],
        ),
        // one file for each checkpoint
        (
            &["chk_0001.dat", "chk_0002.dat", "chk_0003.dat"],
            &[("chk_0001", 1, 0), ("chk_0002", 1, 0), ("chk_0003", 1, 0)],
        ),
        (&["run.100", "run.200"], &[("run.100", 1, 0), ("run.200", 1, 0)]),
        // this node has ranks 32 and 33
        (&["t7/rank32", "t7/rank33"], &[("t7", 2, 34)]),
    ];
    for (names, expected) in cases {
        let names = paths(*names);
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        let mut found = place_all(&layout, &names);
        let mut expected = expect(expected);
        if names[0].as_bytes() == b"t7/rank32" {
            expected = [("t7".to_owned(), (2, [32, 33].into()))].into();
        } else if names[0].as_bytes() == b"t5.r0" {
            assert_eq!(found.remove("t6"), Some((1, [1].into())), "{explanation}");
        } else if expected.is_empty() {
            expected = expect(&[("run7", 3, 3)]);
        }
        assert_eq!(found, expected, "{names:?}\n{layout}\n{explanation}");
    }
}

#[test]
fn names_without_ranks_are_one_checkpoint_and_the_explanation_says_so() {
    let names = paths(["restart.dat", "mesh/points", "config.ini"]);
    let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
    assert_eq!(place_all(&layout, &names), expect(&[("run7", 3, 0)]));
    assert!(!explanation.certain && explanation.to_string().contains("neither ranks nor checkpoints"), "{explanation}");
    let (layout, _) = guess_at(&[], Path::new("/"));
    assert!(layout.place(&names[0]).is_some(), "an empty directory also has a layout");
}

#[test]
fn the_presets_are_recognised_by_names_alone() {
    let ranks =
        |pattern: &str, n: u32| -> Vec<String> { (0..n).map(|i| pattern.replace('#', &i.to_string())).collect() };
    for (preset, names) in [
        ("enzo", [ranks("DD0007/DD0007.cpu000#", 4), ranks("DD0007/DD0007.hierarchy", 1)].concat()),
        ("cactus", ranks("checkpoint.chkpt.it_1024.file_#.h5", 3)),
        ("smilei", [ranks("dump-00000-000000000#.h5", 3), ranks("dump-00001-000000000#.h5", 3)].concat()),
        ("gadget", ranks("snapshot_012.#.hdf5", 3)),
        ("wrf", ranks("wrfrst_d01_2000-01-24_12:00:00_000#", 3)),
        ("openfoam", [ranks("processor#/0.5/U", 3), ranks("processor#/1/U", 3)].concat()),
        ("dedalus", [ranks("c_s26/c_s26_p#.h5", 3), ranks("c_s26.h5", 1)].concat()),
        ("gadget", ranks("restart.#", 4)),
        ("lammps", ranks("restart.#00", 4)),
        ("lammps", ranks("restart.17#", 3)),
        ("lammps", [ranks("melt.1800.#.restart", 3), ranks("melt.1800.base.restart", 1)].concat()),
        ("flash", ranks("sedov_hdf5_chk_000#", 3)),
    ] {
        assert_eq!(guess_at(&paths(names), Path::new("/data/run7")).0.name(), preset);
    }
}

#[test]
fn what_is_left_over_joins_the_only_checkpoint() {
    let mut names = paths((0..4).map(|i| format!("DD0007/DD0007.cpu000{i}")));
    names.extend(paths(["OutputLog"]));
    let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
    assert_eq!(place_all(&layout, &names), expect(&[("DD0007", 5, 4)]), "{explanation}");
    assert!(explanation.to_string().contains("OutputLog"), "{explanation}");
}

#[test]
fn no_list_of_names_makes_the_guess_panic_or_lose_its_only_checkpoint() {
    use proptest::prelude::*;
    proptest!(|(names in proptest::collection::vec("[ab0-3_./p]{1,12}", 0..12))| {
        let names: Vec<_> = names.iter().filter_map(|name| FilePath::new(name.as_bytes()).ok()).collect();
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        let found = place_all(&layout, &names);
        if !explanation.certain && layout.name() == "single" {
            prop_assert_eq!(found.values().map(|(files, _)| files).sum::<usize>(), names.len());
        }
    });
}

fn numbered(pattern: &str, n: u32) -> Vec<String> {
    (0..n).map(|i| pattern.replace('#', &i.to_string())).collect()
}

/// Names without numbers: `data/a.h5`, `data/b.h5`, ..., `data/ba.h5`.
fn lettered(pattern: &str, n: u32) -> Vec<String> {
    let letters = |i: u32| i.to_string().bytes().map(|b| char::from(b - b'0' + b'a')).collect::<String>();
    (0..n).map(|i| pattern.replace('#', &letters(i))).collect()
}

#[test]
fn a_minority_of_names_with_numbers_does_not_decide_what_is_saved() {
    let few = [numbered("case3/fam_#.h5", 2), numbered("case4/fam_#.h5", 2), lettered("data/#.h5", 40)].concat();
    let chunks = [lettered("run_#.nc", 9), numbered("DD0001/DD0001.cpu000#", 4), numbered("DD0002/DD0002.cpu000#", 4)];
    for names in [few, chunks.concat()] {
        let names = paths(names);
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        let found = place_all(&layout, &names);
        assert_eq!(found.values().map(|(files, _)| files).sum::<usize>(), names.len(), "{layout}\n{explanation}");
        assert_eq!((found.len(), &explanation.asks), (1, &None), "{explanation}");
    }
}

#[test]
fn two_families_of_files_of_the_same_steps_are_one_checkpoint_each_step() {
    for (fields, particles) in [("fields_#.", "particles_#."), ("fields_#_p", "particles_#_p")] {
        let of = |family: &str, step: u32| numbered(&format!("{}#", family.replace('#', &step.to_string())), 4);
        let names: Vec<String> = (1..=3).flat_map(|n| [of(fields, n), of(particles, n)].concat()).collect();
        let names = paths(names);
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        let found = place_all(&layout, &names);
        let is_asked = explanation.asks.is_some();
        assert!(
            is_asked || found.len() == 3 && found.values().all(|(files, _)| *files == 8),
            "{layout}\n{explanation}"
        );
    }
}

#[test]
fn a_file_with_the_name_of_a_checkpoint_that_the_layout_does_not_place_is_asked_about() {
    let ranks = [numbered("rst.100.#", 8), numbered("rst.200.#", 8)].concat();
    let and = |more: &[&str]| {
        let names = ranks.iter().cloned().chain(more.iter().map(|name| (*name).to_owned()));
        guess_at(&paths(names), Path::new("/data/run7")).1.asks
    };
    for shared in ["rst.100", "rst.200.head"] {
        assert!(and(&[shared]).is_some_and(|asks| asks.contains(shared)), "{shared}");
    }
    assert_eq!(and(&["rst.100.png", "rst.100_slice.png", "input.nml", "rst.1000"]), None);
}

#[test]
fn names_that_place_half_of_the_files_or_of_the_bytes_are_asked_about() {
    let dumps = [numbered("DD0001/DD0001.cpu000#", 8), numbered("DD0002/DD0002.cpu000#", 8)].concat();
    let names = paths([dumps, lettered("plots/#.png", 9)].concat());
    let (_, explanation) = guess_at(&names, Path::new("/data/run7"));
    let asks = explanation.asks.expect("16 of 25 are 64 %");
    assert!(asks.contains("enzo place 16 of 25") && asks.contains("9 would be left out (first: plots/a.png"), "{asks}");
    // The same names are used twice. First the remaining files are small, and then the remaining files have most of
    // the bytes.
    let dumps = [numbered("DD0001/DD0001.cpu000#", 8), numbered("DD0002/DD0002.cpu000#", 8)].concat();
    let names = paths([dumps, lettered("log_#", 2)].concat());
    let sized = |of_log: u64| (0..names.len()).map(|i| if i < 16 { 100 } else { of_log }).collect::<Vec<_>>();
    let (layout, explanation) =
        guess(&Listing { bytes: sized(1), ..listing_of(&names) }, Path::new("/data/run7"), Rest::IsTaken, None);
    assert!(explanation.certain && layout.name() == "enzo", "{explanation}");
    assert_eq!(explanation.lines[0], "enzo (2 checkpoints, 16 of 18 files)");
    let (_, explanation) =
        guess(&Listing { bytes: sized(1000), ..listing_of(&names) }, Path::new("/data/run7"), Rest::IsTaken, None);
    assert!(!explanation.certain && explanation.asks.is_some(), "{explanation}");
}

#[test]
fn two_runs_below_one_directory_are_not_one_checkpoint() {
    let two = |a: &str, b: &str| [numbered(a, 4), numbered(b, 2)].concat();
    let halves: Vec<String> = numbered("runA/rst.2.#", 2);
    let others = ["runB/rst.2.2", "runB/rst.2.3"].map(String::from).to_vec();
    for names in [
        two("runA/rst.2.#", "runB/rst.2.#"),
        [two("runA/rst.2.#", "runB/rst.2.#"), numbered("runA/rst.4.#", 4)].concat(),
        [halves, others].concat(),
        two("run1/rst.2.#", "run2/rst.2.#"),
        two("a/snapshot_012.#.hdf5", "b/snapshot_012.#.hdf5"),
        two("density/st_10.#.bin", "velocity/st_10.#.bin"),
        vec!["a/state.cpt".into(), "b/state.cpt".into()],
        // It is unclear which of the two numbers distinguishes the checkpoints.
        ["out_10/sub_0", "out_10/sub_1", "out_20/sub_0", "out_20/sub_1"]
            .iter()
            .flat_map(|directory| numbered(&format!("{directory}/data.#"), 2))
            .collect(),
        two("caseA/processor#/0.5/U", "caseB/processor#/0.5/U"),
    ] {
        let names = paths(names);
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        assert!(explanation.asks.is_some() && !explanation.certain, "{names:?}\n{layout}\n{explanation}");
    }
}

#[test]
fn directories_of_ranks_and_of_kinds_of_files_are_one_checkpoint() {
    for (names, labels) in [
        ([numbered("node0/ck_5.p#", 2), vec!["node1/ck_5.p2".into(), "node1/ck_5.p3".into()]].concat(), 1),
        ([numbered("0/dump-00001-000000000#.h5", 2), vec!["1/dump-00001-0000000002.h5".into()]].concat(), 1),
        ([numbered("amr/amr_8.f#", 3), numbered("hyd/hyd_8.f#", 3)].concat(), 1),
        ([numbered("processor#/0.5/U", 3), numbered("processor#/1/U", 3)].concat(), 2),
        ([numbered("runA/rst.2.#", 3), numbered("runB/rst.4.#", 3)].concat(), 2),
        ([numbered("rank#/c_0", 3), numbered("rank#/c_1", 3)].concat(), 2),
    ] {
        let names = paths(names);
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        assert_eq!(explanation.asks, None, "{names:?}\n{layout}");
        assert_eq!(place_all(&layout, &names).len(), labels, "{names:?}\n{layout}\n{explanation}");
    }
}

/// All combinations of the values of three numbers. The first number changes the slowest.
fn of_three(values: [&[u32]; 3], name: impl Fn(u32, u32, u32) -> String) -> Vec<FilePath> {
    let [a, b, c] = values;
    let all = a.iter().flat_map(|a| b.iter().flat_map(move |b| c.iter().map(move |c| (*a, *b, *c))));
    paths(all.map(|(a, b, c)| name(a, b, c)))
}

#[test]
fn numbers_of_variables_are_not_taken_for_checkpoints() {
    let three =
        |step: &[u32], name: &dyn Fn(u32, u32, u32) -> String| of_three([step, &[0, 1, 2], &[0, 1, 2, 3]], name);
    for step in [&[1][..], &[1, 2], &[10, 20, 30]] {
        for names in [
            three(step, &|s, v, r| format!("step{s}/rank{r}_var{v}.dat")),
            three(step, &|s, v, r| format!("s{s}/proc{r}/field{v}")),
            three(step, &|s, v, r| format!("out_{s}/level_{v}/data.{r}")),
            three(step, &|s, v, r| format!("level_{v}/out_{s}.p{r}")),
            of_three([step, &[0, 1, 2, 3], &[0, 1, 2]], |s, r, v| format!("t{s}_p{r}_{v}")),
            three(step, &|s, v, r| format!("field{v}_step{s}_rank{r}.bin")),
            three(step, &|s, v, r| format!("rank{r}/var{v}_step{s:04}.dat")),
            three(step, &|s, v, r| format!("level_{v}_step_{s}/rank{r}.bin")),
            of_three([step, &[0, 1, 2, 3], &[0, 1, 2]], |s, r, v| format!("s{s}/proc{r}/q{v}")),
        ] {
            let (layout, explanation) = guess_in_order(&names);
            let found = place_all(&layout, &names);
            let files: BTreeSet<_> = found.values().map(|(files, _)| *files).collect();
            assert_eq!((found.len(), files), (step.len(), [12].into()), "{names:?}\n{layout}\n{explanation}");
            assert_eq!(explanation.asks, None, "{names:?}");
        }
    }
}

#[test]
fn names_with_a_number_that_may_be_of_a_variable_are_asked_about() {
    let field_first = |s: &[u32]| of_three([s, &[0, 1, 2], &[0, 1]], |s, f, r| format!("dump_{f}_{s}.{r}"));
    let step_first = |s: &[u32]| of_three([s, &[0, 1, 2], &[0, 1]], |s, f, r| format!("dump_{s}_{f}.{r}"));
    for names in [
        field_first(&[10]),
        field_first(&[10, 20]),
        step_first(&[10]),
        step_first(&[10, 20]),
        of_three([&[1], &[0, 1, 2], &[0, 1]], |s, q, r| format!("s{s}/proc{r}/q{q}")),
        of_three([&[10, 20], &[0, 1, 2], &[0, 1]], |s, v, r| format!("sim.v{v}.it{s}.0000{r}.dat")),
        of_three([&[10], &[0, 1, 2], &[0, 1]], |s, m, r| format!("mem{m}_ckpt_00{s}_000{r}.bin")),
    ] {
        for (layout, explanation) in [guess_in_order(&names), guess_at(&names, Path::new("/data/run7"))] {
            let asks = explanation.asks.unwrap_or_else(|| panic!("{names:?}\n{layout}\n{:?}", explanation.lines));
            assert!(asks.contains("may be the number of a variable") && asks.contains("--layout"), "{asks}");
        }
    }
}

#[test]
fn names_whose_ranks_a_preset_does_not_find_are_not_those_of_its_code() {
    for name in ["ck_010_r#.rst", "restart.10-rank#", "state_10_p#.cpt", "ck_r#_s10.h5", "id#/Blast-id#.0001.rst"] {
        let names = paths(numbered(name, 4));
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        let found = place_all(&layout, &names);
        let ranks: BTreeSet<u32> = (0..4).collect();
        assert!(
            found.len() == 1 && found.values().all(|of| *of == (4, ranks.clone())),
            "{name}: {found:?}\n{explanation}"
        );
    }
    let steps_of_ranks = of_three([&[0, 1, 2, 3], &[0, 1, 2], &[0]], |r, s, _| format!("proc{r}.{s}"));
    let (layout, explanation) = guess_at(&steps_of_ranks, Path::new("/data/run7"));
    let found = place_all(&layout, &steps_of_ranks);
    assert!(explanation.asks.is_some() || found.values().all(|(files, _)| *files >= 4), "{found:?}\n{explanation}");
    let times = ["0", "0.1", "0.2"].map(|time| numbered(&format!("processor#/{time}/U"), 3)).concat();
    assert_eq!(guess_at(&paths(times), Path::new("/data/run7")).0.name(), "openfoam");
}

#[test]
fn an_agent_waits_for_more_files_while_one_checkpoint_has_several_numbers() {
    let first = paths(["s10/r0_0.bin", "s10/r1_0.bin", "s10/r2_0.bin"]);
    let (layout, explanation) = guess_at(&first, Path::new("/data/run7"));
    assert!(!explanation.certain && explanation.awaits_files && explanation.asks.is_none(), "{layout}\n{explanation}");
    let (_, explanation) = guess_at(&paths(["v_0.10.0", "v_0.10.1"]), Path::new("/data/run7"));
    assert!(!explanation.certain && explanation.awaits_files, "{explanation}");
    for names in [numbered("step10/rank#.dat", 3), numbered("out_10.p#", 3), numbered("DD0007/DD0007.cpu000#", 3)] {
        let (_, explanation) = guess_at(&paths(names), Path::new("/data/run7"));
        assert!(explanation.certain, "{explanation}");
    }
}

#[test]
fn numbers_without_words_are_checkpoints_if_their_files_were_written_one_checkpoint_after_the_other() {
    let steps = of_three([&[0, 1, 2], &[0, 1, 2, 3], &[0]], |s, r, _| format!("out_{s}.p{r}"));
    let (layout, explanation) = guess_in_order(&steps);
    assert_eq!((place_all(&layout, &steps).len(), explanation.asks), (3, None), "{layout}");
    let variables = of_three([&[0, 1, 2, 3], &[0, 1, 2], &[0]], |r, v, _| format!("out_{v}.p{r}"));
    let (layout, explanation) = guess_in_order(&variables);
    assert_eq!(place_all(&layout, &variables), expect(&[("run7", 12, 4)]), "{layout}\n{explanation}");
    // Dates have several numbers.
    let dates = of_three([&[1, 2], &[0, 12], &[0, 1]], |d, h, r| format!("chk_2000-01-{d:02}_{h:02}.{r}"));
    let (layout, explanation) = guess_in_order(&dates);
    assert_eq!((place_all(&layout, &dates).len(), explanation.asks), (4, None), "{layout}");
}

/// Name of the data set, number of ranks, and number of files without a rank in each checkpoint.
const CORPUS: &[(&str, u32, usize)] = &[
    ("cactus-qc0-mclachlan", 6, 0),
    ("dedalus-rayleighbenard", 16, 1),
    ("enzo-cosmology", 32, 6),
    ("enzo-implosionamr", 64, 6),
    ("gadget4-cosmosph", 16, 0),
    ("lammps-binarymelt", 16, 1),
];

#[test]
fn real_checkpoints_are_told_apart_by_presets_and_by_numbers() {
    let Some(corpus) = std::env::var_os("MCR_CORPUS") else {
        eprintln!("skipped: MCR_CORPUS names no directory of real checkpoints");
        return;
    };
    for &(set, ranks, others) in CORPUS {
        let root = Path::new(&corpus).join(set);
        let both = list(&root, &ScanLimits::default()).expect(set).files;
        let dumps: BTreeSet<_> = both.iter().filter_map(|path| path.as_path().iter().next()).collect();
        for (directory, files) in std::iter::once((root.clone(), &both))
            .chain(dumps.iter().map(|dump| (root.join(dump), &both)))
            .map(|(directory, _)| (directory.clone(), list(&directory, &ScanLimits::default()).expect(set).files))
        {
            let checkpoints = if directory == root { dumps.len() } else { 1 };
            for (layout, why) in [guess_at(&files, &directory), by_numbers(&files)] {
                let found = place_all(&layout, &files);
                assert_eq!(found.len(), checkpoints, "{}: {found:?}\n{layout}\n{why}", directory.display());
                for (label, (count, seen)) in &found {
                    let expected: BTreeSet<_> = (0..ranks).collect();
                    assert_eq!(seen, &expected, "{label}\n{layout}\n{why}");
                    assert_eq!(*count, ranks as usize + others, "{label}\n{layout}\n{why}");
                }
                let ordered: Vec<_> = found.keys().map(|l| CheckpointLabel(l.parse().expect("valid"))).collect();
                assert!(ordered.is_sorted(), "{ordered:?}");
            }
        }
    }
}

#[test]
fn files_that_differ_in_one_counted_number_and_were_written_at_once_may_be_ranks_and_the_user_is_asked() {
    for names in [
        ["restart/swift_000000.rst", "restart/swift_000001.rst", "restart/swift_000002.rst"],
        ["restart_0.h5", "restart_1.h5", "restart_2.h5"],
        ["run2/restart_0.v3.dat", "run2/restart_1.v3.dat", "run2/restart_2.v3.dat"],
        ["sim.restart.0", "sim.restart.1", "sim.restart.2"],
        ["dump.1", "dump.2", "dump.3"],
        ["chk_00000", "chk_00001", "chk_00002"],
        ["restart.a.0", "restart.a.1", "restart.b.0"],
    ] {
        let paths = paths(names);
        let (layout, explanation) = guess_at(&paths, Path::new("/data/run7"));
        let takes_one_each = place_all(&layout, &paths).len() > 1;
        let asks = explanation.asks.unwrap_or_default();
        assert!(!takes_one_each || asks.contains("they may be the ranks of one checkpoint"), "{names:?}: {asks}");
        // If the files were written one after the other, each file is a checkpoint.
        let (layout, explanation) = guess_in_order(&paths);
        assert!(explanation.asks.is_none() || names[0] == "restart.a.0", "{names:?}: {explanation}");
        assert!(place_all(&layout, &paths).len() == 3 || !explanation.certain, "{names:?}: {explanation}");
    }
    // Numbers with gaps are steps, so the files are checkpoints, whatever the times of the copied files are.
    let steps = paths(["restart.100", "restart.200", "restart.300"]);
    let (_, explanation) = guess_at(&steps, Path::new("/data/run7"));
    assert_eq!((explanation.asks, explanation.certain), (None, true));
}

/// Guesses the layout of files that were written at these times, in seconds since 1970.
fn guess_at_times(names: &[String], seconds: &[u64]) -> (Layout, Explanation) {
    let paths = paths(names);
    let modified = seconds.iter().map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(*at)).collect();
    guess(&Listing { modified, ..listing_of(&paths) }, Path::new("/data/run7"), Rest::IsTaken, None)
}

#[test]
fn a_word_between_two_numbers_names_no_step_if_the_number_before_it_is_written_in_order() {
    for (steps, form) in
        [([1u64, 2, 3], "sim.#.rst.@"), ([10, 20, 30], "sim.#.rst.@"), ([1, 2, 3], "step#_restart_@.h5")]
    {
        let named = |step: u64, rank: u64| form.replace('#', &format!("{step:05}")).replace('@', &rank.to_string());
        let names: Vec<String> = steps.iter().flat_map(|step| (0..4).map(|rank| named(*step, rank))).collect();
        // The ranks write a step within 3 s. One minute passes between two steps.
        let at: Vec<u64> = (0..12).map(|nth| nth / 4 * 60 + nth % 4).collect();
        let (layout, explanation) = guess_at_times(&names, &at);
        assert_eq!(explanation.asks, None, "{form}");
        let found = place_all(&layout, &paths(&names));
        assert!(found.len() == 3 && found.values().all(|(files, ranks)| (*files, ranks.len()) == (4, 4)), "{found:?}");
        // If runs of the same steps follow one after the other, their times do not show which number is the step.
        let at: Vec<u64> = (0..12).map(|nth| nth * 60).collect();
        let asks = guess_at_times(&names, &at).1.asks.unwrap_or_default();
        assert!(asks.contains("which number is the step"), "{form}: {asks}");
    }
}

#[test]
fn a_file_beside_its_numbered_parts_is_one_checkpoint_with_them() {
    let names =
        paths(["m000.full.restart.10", "m000.full.restart.10#0", "m000.full.restart.10#1", "m000.full.restart.10#2"]);
    let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
    assert_eq!(place_all(&layout, &names).len(), 1, "{explanation}");
}

#[test]
fn ranks_that_begin_together_and_end_apart_may_be_ranks() {
    let names = paths(["restart_0.h5", "restart_1.h5", "restart_2.h5"]);
    let listing = listing_of(&names);
    let modified = (0..3).map(|rank| SystemTime::UNIX_EPOCH + Duration::from_secs(rank * 20)).collect();
    let begun = listing.modified.clone();
    let (_, explanation) = guess(&Listing { modified, begun, ..listing }, Path::new("/data/run7"), Rest::IsTaken, None);
    assert!(explanation.asks.unwrap_or_default().contains("they may be the ranks"));
}

#[test]
fn dates_name_checkpoints_and_are_no_ranks() {
    for date in ["2010-10-0#", "2010-10-0#_00.00.00", "0001-0#-01-00000", "2010-10-0#_00:00:00", "2010-10-0#T06:00"] {
        for name in ["restart.{}.nc", "run/b.e21.mod.{}", "{}"] {
            let names = paths((1..5).map(|n| name.replace("{}", &date.replace('#', &n.to_string()))));
            let (layout, explanation) = guess_in_order(&names);
            let found = place_all(&layout, &names);
            assert!(
                found.len() == 4 && found.values().all(|(files, ranks)| *files == 1 && ranks.is_empty()),
                "{names:?}: {found:?}\n{explanation}"
            );
            assert!(explanation.certain, "{names:?}\n{explanation}");
        }
    }
    let ranked: Vec<String> =
        ["2010-10-01", "2010-11-01"].iter().flat_map(|date| numbered(&format!("rst_{date}_00.00.00.#"), 3)).collect();
    let expected = expect(&[("rst_2010-10-01_00.00.00", 3, 3), ("rst_2010-11-01_00.00.00", 3, 3)]);
    assert_eq!(place_all(&guess_in_order(&paths(&ranked)).0, &paths(&ranked)), expected);
    for (names, labels) in [
        (["chk_12:00:00_p#.dat", "chk_12:30:00_p#.dat"], ["chk_12:00:00", "chk_12:30:00"]),
        (["s_20260101T000000Z_r#.dat", "s_20260102T000000Z_r#.dat"], ["s_20260101T000000Z", "s_20260102T000000Z"]),
    ] {
        let names = paths(names.map(|name| numbered(name, 3)).concat());
        let expected = expect(&labels.map(|label| (label, 3, 3)));
        assert_eq!(place_all(&guess_in_order(&names).0, &names), expected);
    }
    // A month is at most 12, so the numbers of this name are no date.
    assert_eq!(dates::date_length(b"2010-13-01"), None);
    assert_eq!(dates::date_length(b"0001-02-01-00000.nc"), Some(16));
    assert_eq!(dates::date_length(b"2010-10-01_00.00.00.3"), Some(19));
    assert_eq!(dates::date_length(b"2010-10-01_123"), Some(10));
}

#[test]
fn a_date_with_the_name_of_its_month_is_one_number() {
    for (names, expected) in [
        (
            of_three([&[1, 2], &[1, 2], &[0, 1]], |day, month, rank| {
                format!("chk_{day:02}-{}-2026_{rank}.dat", ["", "JAN", "FEB"][month as usize])
            }),
            ["01-FEB", "01-JAN", "02-FEB", "02-JAN"].map(|date| format!("chk_{date}-2026")),
        ),
        (
            of_three([&[1, 2], &[1, 2], &[0, 1]], |day, month, rank| {
                format!("{day}-{}-1999/p{rank}.h5", ["", "Jan", "Dec"][month as usize])
            }),
            ["1-Dec", "1-Jan", "2-Dec", "2-Jan"].map(|date| format!("{date}-1999")),
        ),
    ] {
        let expected: Vec<_> = expected.iter().map(|label| (label.as_str(), 2, 2)).collect();
        assert_eq!(place_all(&by_numbers(&names).0, &names), expect(&expected), "{names:?}");
    }
    assert_eq!(dates::date_length(b"01-ABC-2026"), None);
}

#[test]
fn months_in_directories_of_years_are_not_one_checkpoint() {
    let names: Vec<_> = (0..8).map(|n| format!("2026/{:02}/r{}.dat", 1 + n / 4, n % 4)).collect();
    let asks = guess_at(&paths(&names), Path::new("/data/run7")).1.asks.expect("the names do not show a checkpoint");
    assert!(asks.contains("2026/01/r0.dat and 2026/02/r0.dat"), "{asks}");
    // The pattern that the message advises separates the months.
    let layout = Layout::from_patterns(&["{checkpoint:[0-9]{4}/[0-9]{2}}/r{rank}.dat"], 0).expect("valid");
    assert_eq!(place_all(&layout, &paths(&names)), expect(&[("2026-01", 4, 4), ("2026-02", 4, 4)]));
    let days = ["2026/01/15/restart.h5", "2026/01/16/restart.h5"];
    let asks = guess_at(&paths(days), Path::new("/data/run7")).1.asks.expect("the names do not show a checkpoint");
    assert!(asks.contains("look like dates"), "{asks}");
    // These directories are steps and ranks.
    let steps: Vec<_> = (0..8).map(|n| format!("{:04}/{:02}/d.h5", 10 * (1 + n / 4), n % 4)).collect();
    assert_eq!(guess_at(&paths(&steps), Path::new("/data/run7")).1.asks, None);
}

#[test]
fn models_of_one_date_are_one_checkpoint() {
    let names: Vec<String> = ["0001-02-01-00000", "0001-03-01-00000"]
        .iter()
        .flat_map(|date| ["cam.r", "cam.rs", "clm2.rh0", "cpl.r"].map(|model| format!("b.e21.{model}.{date}.nc")))
        .chain(["rpointer.atm".to_owned(), "rpointer.lnd".to_owned()])
        .collect();
    let (layout, explanation) = guess_at(&paths(&names), Path::new("/data/run7"));
    assert_eq!((layout.name(), explanation.asks), ("cesm", None));
    assert_eq!(place_all(&layout, &paths(&names)), expect(&[("0001-02-01-00000", 4, 0), ("0001-03-01-00000", 4, 0)]));
}

/// Guesses with files of the only rank, which were begun at these seconds.
fn guess_of_one_rank(names: &[&str], seconds: &[u64]) -> Guessed {
    let modified = seconds.iter().map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(*s)).collect();
    let listing = Listing { modified, ..listing_of(&paths(names)) };
    let (layout, explanation) = guess(&listing, Path::new("/data/run7"), Rest::IsTaken, Some(1));
    assert_eq!(explanation.asks, None);
    place_all(&layout, &listing.files)
}

#[test]
fn a_number_in_the_files_of_the_only_rank_is_a_step_if_they_were_written_one_after_the_other() {
    let steps = expect(&[("model_1", 1, 0), ("model_2", 1, 0), ("model_3", 1, 0)]);
    assert_eq!(guess_of_one_rank(&["model_1.pt", "model_2.pt", "model_3.pt"], &[0, 5, 10]), steps);
    let whole = expect(&[("run7", 3, 0)]);
    assert_eq!(guess_of_one_rank(&["model_1.pt", "model_2.pt", "model_3.pt"], &[0, 0, 0]), whole);
    // The names of GADGET's ranks, from a code with one rank.
    let steps = expect(&[("restart.0", 1, 0), ("restart.1", 1, 0), ("restart.2", 1, 0)]);
    assert_eq!(guess_of_one_rank(&["restart.0", "restart.1", "restart.2"], &[0, 5, 10]), steps);
    let ranks = expect(&[("st_10", 2, 2), ("st_20", 2, 2)]);
    let names = ["st_10.rank0", "st_10.rank1", "st_20.rank0", "st_20.rank1"];
    assert_eq!(guess_of_one_rank(&names, &[0, 0, 5, 5]), ranks, "the word says that the number is a rank");
}

#[test]
fn directories_of_ranks_of_athena_are_one_run() {
    let step =
        |step: &str| ["id0/Blast.#.rst", "id1/Blast-id1.#.rst", "id2/Blast-id2.#.rst"].map(|n| n.replace('#', step));
    let athena = [step("0001"), step("0002")].concat();
    let (layout, explanation) = guess_at(&paths(&athena), Path::new("/data/run7"));
    assert_eq!((layout.name(), explanation.asks), ("athena", None));
    assert_eq!(place_all(&layout, &paths(&athena)), expect(&[("0001.rst", 3, 3), ("0002.rst", 3, 3)]));
}

#[test]
fn a_log_file_beside_few_files_of_checkpoints_does_not_make_the_guess_doubtful() {
    let names = paths(["state.cpt", "state_prev.cpt", "md.log"]);
    let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
    assert_eq!((layout.name(), explanation.asks), ("gromacs", None));
}

#[test]
fn digits_in_words_are_neither_steps_nor_ranks() {
    let steps = |form: &str, steps: &[u64], ranks: u32| -> Vec<String> {
        let named = |step: &u64| numbered(&form.replace('@', &format!("{step:04}")), ranks);
        steps.iter().flat_map(named).collect()
    };
    // The form of a name, with @ for the step and # for the rank, and the form of the checkpoint's name.
    for (form, label, ranks) in [
        ("Sedov3d_rk2.@.000#.h5", "Sedov3d_rk2.@", 4),
        ("Sedov3d_rk2.@.#", "Sedov3d_rk2.@", 4),
        ("Sedov3d_rk2_@_#.hdf5", "Sedov3d_rk2_@", 2),
        ("run_v2.@.#.dat", "run_v2.@", 4),
        ("v2.@.#", "v2.@", 3),
        ("hdf5_@_p#.bin", "hdf5_@", 3),
        ("sod_s000#_hdf5_chk_@", "hdf5_chk_@", 4),
    ] {
        for written in [&[3][..], &[1, 2, 3], &[10, 20], &[7, 8]] {
            let names = paths(steps(form, written, ranks));
            let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
            let labels: Vec<String> = written.iter().map(|step| label.replace('@', &format!("{step:04}"))).collect();
            let expected: Vec<_> = labels.iter().map(|label| (label.as_str(), ranks as usize, ranks)).collect();
            assert_eq!(place_all(&layout, &names), expect(&expected), "{form}: {written:?}\n{layout}\n{explanation}");
            assert_eq!(explanation.asks, None, "{form}: {written:?}");
            assert!(explanation.certain, "{form}: {written:?}: {explanation}");
        }
    }
    for form in ["sod_hdf5_chk_@", "sod2d_hdf5_chk_@", "run_v2.@.dat", "Sedov3d_rk2.@.h5", "Sedov3d_rk2.@.0003.h5"] {
        for written in [&[10, 20][..], &[10, 20, 30]] {
            let names = paths(steps(form, written, 1));
            let (layout, explanation) = guess_in_order(&names);
            let found = place_all(&layout, &names);
            assert_eq!(found.len(), written.len(), "{form}: {found:?}\n{layout}\n{explanation}");
            assert!(found.values().all(|(files, ranks)| *files == 1 && ranks.is_empty()), "{form}: {found:?}");
            assert_eq!((explanation.asks, explanation.certain), (None, true), "{form}");
        }
    }
    // The first file shows no rank.
    let (_, explanation) = guess_at(&paths(["Sedov3d_rk2.00010.0003.h5"]), Path::new("/data/run7"));
    assert!(!explanation.certain, "{explanation}");
}

#[test]
fn replicas_with_several_files_each_are_asked_about_and_directories_of_steps_are_not() {
    let of = |form: &dyn Fn(u32) -> [String; 2]| paths((0..3).flat_map(form));
    let replicas: [&dyn Fn(u32) -> [String; 2]; 3] = [
        &|n| [format!("run{n}/a.h5"), format!("run{n}/b.h5")],
        &|n| [format!("output/{n}/fold{n}.restart.coor"), format!("output/{n}/fold{n}.restart.vel")],
        &|n| [format!("replica_{n}.coor.h5"), format!("replica_{n}.vel.h5")],
    ];
    for form in replicas {
        let names = of(form);
        let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
        let is_asked = explanation.asks.is_some_and(|asks| asks.contains("they may be the ranks"));
        assert!(is_asked || place_all(&layout, &names).len() == 1, "{names:?}\n{layout}");
    }
    let steps = of(&|n| [format!("chk_{n}/a.h5"), format!("chk_{n}/b.h5")]);
    let (layout, explanation) = guess_at(&steps, Path::new("/data/run7"));
    assert_eq!((place_all(&layout, &steps).len(), explanation.asks), (3, None), "{layout}");
}

#[test]
fn files_with_temporary_names_belong_to_no_checkpoint_of_a_guess() {
    let whole = (1..=2).flat_map(|step| (0..4).map(move |rank| format!("rst.{step}.{rank}")));
    let cut = (0..4).map(|rank| format!("rst.3.{rank}.tmp"));
    let names = paths(whole.chain(cut));
    let (layout, explanation) = guess_in_order(&names);
    assert_eq!(place_all(&layout, &names), expect(&[("rst.1", 4, 4), ("rst.2", 4, 4)]), "{explanation}");
    assert!(explanation.certain, "{explanation}");
    assert!(explanation.to_string().contains("4 files with a temporary name (such as rst.3.0.tmp)"), "{explanation}");
    assert_eq!(layout.unplaced(&listing_of(&names)), None);

    let names = paths(["chk.100/a", "chk.200/a", "300.orbax-checkpoint-tmp-7/a", "chk.300.tmp/a"]);
    let (layout, _) = guess_in_order(&names);
    assert_eq!(place_all(&layout, &names).len(), 2, "{layout}");
    assert!(layout.place(&names[2]).is_none() && layout.place(&names[3]).is_none());
    // The user's patterns decide alone.
    let named = Layout::from_patterns(&["{checkpoint}/**"], 0).expect("valid");
    assert!(named.place(&names[3]).is_some());
    assert!(Layout::directories().place(&names[3]).is_none());
}

#[test]
fn the_files_of_several_time_steps_that_one_restart_needs_are_one_checkpoint() {
    let names = paths((1..=6).map(|nth| format!("rs6turb0.f0000{nth}")));
    let (layout, explanation) = guess_in_order(&names);
    assert_eq!(place_all(&layout, &names), expect(&[("rs6-1", 3, 1), ("rs6-2", 3, 1)]), "{layout}\n{explanation}");
    assert_eq!(explanation.asks, None);
}

#[test]
fn numbered_files_that_were_written_one_after_the_other_are_steps_and_no_ranks() {
    let flash = (0..4)
        .map(|step| format!("sedov_hdf5_chk_{step:04}"))
        .chain((0..6).map(|step| format!("sedov_hdf5_plt_cnt_{step:04}")));
    let names = paths(flash);
    let (layout, explanation) = guess_in_order(&names);
    assert_eq!((layout.name(), place_all(&layout, &names).len(), &explanation.asks), ("flash", 4, &None), "{layout}");
    assert!(!explanation.shows_ranks && layout.unplaced(&listing_of(&names)).is_none(), "{explanation}");
    let fields = (0..4).flat_map(|step| [format!("X_{step:04}"), format!("Y_{step:04}")]);
    let names = paths(fields);
    let (layout, explanation) = guess_in_order(&names);
    let found = place_all(&layout, &names);
    assert!(found.values().all(|(_, ranks)| ranks.is_empty()), "{found:?}\n{layout}\n{explanation}");
    // A job with four ranks may write its four files one after the other.
    let of_ranks = paths((0..4).map(|rank| format!("wave_{rank}")));
    let modified = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(9 * (n + 1));
    let listing = Listing { modified: (0..4).map(modified).collect(), ..listing_of(&of_ranks) };
    let (layout, explanation) = guess(&listing, Path::new("/data/run7"), Rest::IsTaken, Some(4));
    assert_eq!(place_all(&layout, &of_ranks), expect(&[("run7", 4, 4)]), "{layout}\n{explanation}");
    let (layout, explanation) = guess(&listing, Path::new("/data/run7"), Rest::IsTaken, None);
    assert_eq!(place_all(&layout, &of_ranks).len(), 4, "{layout}\n{explanation}");
    // The ranks of a job may also write in turn, each for some seconds, and then there is no pause.
    let in_turn = Listing { begun: (0..4).map(|n| modified(n) - Duration::from_secs(9)).collect(), ..listing };
    let (layout, explanation) = guess(&in_turn, Path::new("/data/run7"), Rest::IsTaken, None);
    assert_eq!(place_all(&layout, &of_ranks), expect(&[("run7", 4, 4)]), "{layout}\n{explanation}");
    // Two files may be two ranks, so an agent waits.
    let two = Listing { modified: (0..2).map(modified).collect(), ..listing_of(&of_ranks[..2]) };
    let (_, explanation) = guess(&two, Path::new("/data/run7"), Rest::IsLeft, None);
    assert!(!explanation.certain && explanation.awaits_files, "{explanation}");
    // Two ranks do not write minutes apart.
    let apart = Listing { modified: vec![modified(0), modified(20)], ..listing_of(&of_ranks[..2]) };
    let (layout, explanation) = guess(&apart, Path::new("/data/run7"), Rest::IsTaken, None);
    let found = place_all(&layout, &of_ranks[..2]);
    assert!(found.len() == 2 && found.values().all(|(_, ranks)| ranks.is_empty()), "{layout}\n{explanation}");
}

#[test]
fn older_copies_that_an_application_keeps_are_neither_ranks_nor_steps() {
    let names = paths(["H2O-1.restart", "H2O-1.restart.bak-1", "H2O-1.restart.bak-2", "H2O-1.restart.bak-3"]);
    for (layout, explanation) in [guess_at(&names, Path::new("/data/run7")), guess_in_order(&names)] {
        let found = place_all(&layout, &names);
        assert!(layout.place(&names[0]).is_some() && found.len() == 1, "{layout}\n{explanation}");
        assert!(found.values().all(|(_, ranks)| ranks.len() <= 1), "{layout}\n{explanation}");
    }
    let ranks = |name: &str| paths((0..4).flat_map(|rank| [format!("{name}{rank}"), format!("{name}{rank}.bak")]));
    let (_, explanation) = guess_at(&ranks("rst."), Path::new("/data/run7"));
    assert!(explanation.asks.is_some_and(|asks| asks.contains("rst.0 and 3 other files")), "as without the copies");
    let names = ranks("proc");
    let (layout, explanation) = guess_at(&names, Path::new("/data/run7"));
    assert_eq!(place_all(&layout, &names), expect(&[("run7", 8, 4)]), "{layout}\n{explanation}");
    let running = guess(&listing_of(&names), Path::new("/data/run7"), Rest::IsLeft, Some(4)).0;
    assert_eq!(running.unplaced(&listing_of(&names)), None, "no checkpoint lacks the older copies");
}

#[test]
fn the_explanation_of_an_empty_directory_says_that_there_are_no_files() {
    let (_, explanation) = guess_at(&[], Path::new("/data/run7"));
    assert_eq!(explanation.lines, ["there are no files yet"]);
}

#[test]
fn the_date_before_the_rank_is_the_name_of_the_checkpoint() {
    for date in ["2026-01-0#T000000", "2026-01-0#T0000Z", "2026-01-0#T00:00:00Z", "2026-01-0#T00-00-00"] {
        for name in ["{}_r#.nc", "rst/{}/r#.nc"] {
            let labels = ["1", "2", "3"].map(|day| date.replace('#', day));
            let names = paths(labels.iter().flat_map(|label| numbered(&name.replace("{}", label), 4)));
            let (layout, explanation) = guess_in_order(&names);
            let expected: Vec<_> = labels.iter().map(|label| (label.as_str(), 4, 4)).collect();
            assert_eq!(place_all(&layout, &names), expect(&expected), "{layout}\n{explanation}");
            assert!(explanation.certain, "{explanation:?}");
        }
    }
    let names = paths((1..4).flat_map(|day| numbered(&format!("2026-01-0{day}T5_r#.nc"), 4)));
    assert!(guess_in_order(&names).1.asks.is_some(), "T5 may be the number of a part");
    assert_eq!(dates::date_length(b"2026-01-04T000000Z_r1"), Some(18));
    assert_eq!(dates::date_length(b"2026-01-04T00000000"), Some(10), "no time has 8 digits");
}

#[test]
fn a_file_that_each_rank_has_written_once_makes_doubt_however_small_its_share_is() {
    let of_step = |step: u32| numbered(&format!("sol{step}_#.h5"), 4);
    let mesh = || numbered("mesh#.h5", 4);
    let guessed = |names: &[FilePath]| guess(&listing_of(names), Path::new("/data/run7"), Rest::IsLeft, Some(4));
    let (layout, explanation) = guessed(&paths(mesh().into_iter().chain(of_step(100))));
    assert!(explanation.lines.iter().all(|line| !line.contains("the rank is # in mesh")), "{explanation}");
    for last in [2, 5, 50] {
        let all = paths(mesh().into_iter().chain((1..=last).flat_map(|nth| of_step(100 * nth))));
        let left = layout.unplaced(&listing_of(&all)).expect("the meshes are left out");
        assert!(left.files == 4 && left.are_many && left.makes_doubt, "{last} steps: {left:?}");
        let certain = guessed(&all);
        assert!(certain.1.lines.iter().any(|line| line.contains("the rank is # in solN_#.h5")), "{}", certain.1);
    }
    let with_logs = paths(numbered("out#.log", 4).into_iter().chain((1..=9).flat_map(of_step)));
    assert_eq!(layout.unplaced(&listing_of(&with_logs)), None, "logs");
}

#[test]
fn a_later_file_of_a_rank_in_another_directory_is_not_a_file_of_rank_0() {
    for form in ["st{}.r#", "st{}/r#.h5", "r#/st{}.h5"] {
        let of_run = |run: &str, steps: std::ops::Range<u32>| -> Vec<String> {
            steps.flat_map(|step| numbered(&format!("{run}/{}", form.replace("{}", &step.to_string())), 2)).collect()
        };
        let first = paths(of_run("min", 1..3));
        let (layout, _) = guess(&listing_of(&first), Path::new("/data/run7"), Rest::IsLeft, None);
        assert_eq!(place_all(&layout, &first).len(), 2, "{layout}");
        let later = paths(of_run("prod", 1..3));
        assert_eq!(place_all(&layout, &later), Guessed::new(), "{layout}");
        let asks = layout.two_runs(&listing_of(&[first.clone(), later].concat())).expect("two runs");
        assert!(asks.contains("both look like files of checkpoint st1"), "{asks}");
        assert_eq!(layout.two_runs(&listing_of(&first)), None);
        let shared = paths(["min/st3", "st3.meta"]);
        assert!(
            shared.iter().all(|path| layout.place(path).is_some()),
            "files of all ranks belong to rank 0\n{layout}"
        );
    }
}

#[test]
fn an_overwritten_file_does_not_show_whether_files_are_ranks_or_steps() {
    let names = paths(["state.0.h5", "state.1.h5"]);
    let at = |second: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    let guessed = |created: [u64; 2]| {
        let written = vec![at(99), at(90)];
        let listing = Listing { created: created.map(at).into(), begun: written.clone(), ..listing_of(&names) };
        guess(&Listing { modified: written, ..listing }, Path::new("/data/run7"), Rest::IsLeft, None).1
    };
    let explanation = guessed([10, 10]);
    assert!(explanation.may_be_ranks && explanation.asks.is_some(), "{explanation:?}");
    assert!(guessed([10, 13]).certain, "steps with names in turn");
}
