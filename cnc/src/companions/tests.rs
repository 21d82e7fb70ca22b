use super::*;
use crate::layout::list;

#[test]
fn a_pointer_that_names_a_checkpoint_that_is_not_known_yet_belongs_to_no_older_checkpoint() {
    let root = tempfile::tempdir().expect("a directory");
    let layout = Layout::from_patterns(&["{checkpoint}.{rank}"], 0).expect("valid");
    let id = |step: u32| -> CheckpointId { format!("chk_{step}").parse().expect("valid") };
    let path = |step: u32| FilePath::new(format!("chk_{step}.0").into_bytes()).expect("valid");
    [1, 3, 30]
        .iter()
        .for_each(|step| std::fs::write(root.path().join(path(*step).as_path()), "state").expect("written"));
    let has_pointer = |text: &str, known: &[u32]| {
        std::fs::write(root.path().join("checkpoints.txt"), text).expect("written");
        let mut timeline = Timeline::default();
        known.iter().for_each(|step| timeline.add(&id(*step), i64::from(*step)));
        let links = BTreeSet::new();
        let versions = Versions::default();
        let surroundings = Surroundings { timeline: &timeline, links: &links, versions: &versions };
        let found = gather(root.path(), &layout, &id(1), &[path(1)], Rank(0), surroundings, &mut Beside::default());
        found.found.iter().any(|one| one.path.name() == b"checkpoints.txt")
    };
    assert!(has_pointer("chk_1\n", &[1]) && has_pointer("1\n", &[1]) && has_pointer("no name\n", &[1]));
    assert!(!has_pointer("chk_2\n", &[1]), "the pointer was written before the files of its checkpoint");
    assert!(!has_pointer("chk_3\n", &[1]) && !has_pointer("chk_3\n", &[1, 3]) && !has_pointer("./chk_30\n", &[1]));
}

#[test]
fn a_checkpoint_gets_the_pointers_of_its_own_time_although_the_application_has_written_newer_ones() {
    let root = tempfile::tempdir().expect("a directory");
    let at = |name: &str| root.path().join(name);
    let layout = Layout::from_patterns(&["DD{checkpoint}/data.{rank}"], 0).expect("valid");
    let (mut versions, mut timeline, mut list) = (Versions::default(), Timeline::default(), String::new());
    let id = |step: u32| -> CheckpointId { format!("000{step}").parse().expect("valid") };
    let file = |step: u32| format!("DD000{step}/data.0");
    for step in 1..=3 {
        std::fs::create_dir(at(&format!("DD000{step}"))).expect("made");
        std::fs::write(at(&file(step)), "state").expect("written");
        let stat = std::fs::metadata(at(&file(step))).expect("there");
        // The files of the newest step are not settled yet.
        if step < 3 {
            timeline.add(&id(step), Fingerprint::of(&stat).written_ns());
        }
        list += &format!("DD000{step}\n");
        std::fs::write(at("checkpoints.txt"), &list).expect("written");
        std::fs::write(at("rpointer"), format!("no name {step}")).expect("written");
        let _ = std::fs::remove_file(at("latest"));
        std::os::unix::fs::symlink(format!("DD000{step}"), at("latest")).expect("made");
        for name in ["checkpoints.txt", "rpointer", "latest"] {
            versions.note(root.path(), &layout, Path::new(name));
        }
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    let links = BTreeSet::new();
    let of = |step: u32, versions: &Versions| -> Vec<(String, String)> {
        let surroundings = Surroundings { timeline: &timeline, links: &links, versions };
        let files = [FilePath::new(file(step).into_bytes()).expect("valid")];
        let found = gather(root.path(), &layout, &id(step), &files, Rank(0), surroundings, &mut Beside::default());
        let beside = found.found.iter().filter(|one| one.kind != FileKind::Directory);
        let text = |one: &Companion| String::from_utf8_lossy(&one.content).into_owned();
        beside.map(|one| (one.path.to_string(), text(one))).collect()
    };
    for step in 1..=2 {
        let list: String = (1..=step).map(|step| format!("DD000{step}\n")).collect();
        let expected =
            [("checkpoints.txt", list), ("latest", format!("DD000{step}")), ("rpointer", format!("no name {step}"))];
        assert_eq!(of(step, &versions), expected.map(|(name, text)| (name.to_owned(), text)), "{step}");
    }
    // Without the earlier contents, no checkpoint gets a pointer that names a newer one.
    assert_eq!(of(1, &Versions::default()), []);
    for _ in 0..100 {
        versions.note(root.path(), &layout, Path::new("latest"));
    }
    assert!(versions.0.values().all(|versions| versions.len() <= VERSIONS_MAX));
}

#[test]
fn a_checkpoint_that_is_written_again_under_its_name_gets_the_pointer_of_its_last_content() {
    let root = tempfile::tempdir().expect("a directory");
    let at = |name: &str| root.path().join(name);
    let layout = Layout::from_patterns(&["{checkpoint}.{rank}"], 0).expect("valid");
    let (mut versions, mut timeline) = (Versions::default(), Timeline::default());
    let (id, file) = ("state".parse().expect("valid"), FilePath::new(&b"state.0"[..]).expect("valid"));
    let (links, step) = (BTreeSet::new(), std::time::Duration::from_millis(30));
    let pointer_of = |versions: &Versions, timeline: &Timeline| {
        let surroundings = Surroundings { timeline, links: &links, versions };
        let files = [file.clone()];
        let found = gather(root.path(), &layout, &id, &files, Rank(0), surroundings, &mut Beside::default());
        let pointer = found.found.into_iter().find(|one| one.path.name() == b"restart_timestamp");
        pointer.map(|one| String::from_utf8_lossy(&one.content).into_owned())
    };
    for time in 1..=3 {
        std::fs::write(at("state.0"), format!("state {time}")).expect("written");
        let stat = std::fs::metadata(at("state.0")).expect("there");
        timeline.add(&id, Fingerprint::of(&stat).written_ns());
        std::thread::sleep(step);
        std::fs::write(at("restart_timestamp"), format!("time {time}")).expect("written");
        versions.note(root.path(), &layout, Path::new("restart_timestamp"));
        std::thread::sleep(step);
        assert_eq!(pointer_of(&versions, &timeline), Some(format!("time {time}")));
    }
    // The next pointer is written before the checkpoint is saved.
    std::fs::write(at("restart_timestamp"), "time 4").expect("written");
    assert_eq!(pointer_of(&versions, &timeline).as_deref(), Some("time 3"));
    std::fs::write(at("state.0"), "state 4").expect("written");
    assert_eq!(pointer_of(&versions, &timeline).as_deref(), Some("time 4"), "the last one, without a later one");
}

#[test]
fn a_file_that_names_checkpoints_is_not_left_out_of_them() {
    let root = tempfile::tempdir().expect("a directory");
    for (path, text) in [
        ("DD0001/a", "state"),
        ("DD0002/a", "state"),
        ("OutputLog", "DD0001/a\n./DD0002/a\n"),
        ("newest", "DD0002\n"),
        ("notes", "some words about DD0002\n"),
        ("other/newest", "DD0002\n"),
    ] {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    let layout = Layout::from_patterns(&["{checkpoint}/a"], 0).expect("valid");
    let mut listing = list(root.path(), &ScanLimits::default()).expect("listed");
    leave_out_pointers(&mut listing, root.path(), &layout);
    let left: Vec<_> = listing.files.iter().map(ToString::to_string).collect();
    assert_eq!(left, ["DD0001/a", "DD0002/a", "notes", "other/newest"]);
}

/// A directory with these files, and the times at which their checkpoints began, 30 ms after each other.
fn written(layout: &Layout, files: &[(&str, &str)]) -> (tempfile::TempDir, Timeline) {
    let (root, mut timeline) = (tempfile::tempdir().expect("a directory"), Timeline::default());
    for (name, text) in files {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        std::fs::write(&path, text).expect("written");
        if let Some(placed) = layout.place(&FilePath::new(name.as_bytes()).expect("valid")) {
            timeline.add(&placed.checkpoint, Fingerprint::of(&std::fs::metadata(&path).expect("there")).written_ns());
        }
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    (root, timeline)
}

/// The pointer files that are saved with these files of a rank, with their ranks.
fn pointers(root: &Path, layout: &Layout, timeline: &Timeline, files: &[&str], rank: u32) -> Vec<(String, u32)> {
    let files: Vec<FilePath> = files.iter().map(|file| FilePath::new(file.as_bytes()).expect("valid")).collect();
    let label = layout.place(&files[0]).expect("of a checkpoint").checkpoint;
    let (links, versions) = (BTreeSet::new(), Versions::default());
    let surroundings = Surroundings { timeline, links: &links, versions: &versions };
    let found = gather(root, layout, &label, &files, Rank(rank), surroundings, &mut Beside::default()).found;
    let pointers = found.into_iter().filter(|one| one.kind == FileKind::Pointer);
    pointers.map(|one| (one.path.to_string(), one.rank.0)).collect()
}

#[test]
fn each_rank_directory_and_each_local_disk_has_a_pointer_file_that_is_saved() {
    let layout = Layout::from_patterns(&["rank{rank}/step_{checkpoint}.dat"], 0).expect("valid");
    let mut files = vec![("latest".to_owned(), "step_1.dat".to_owned())];
    for (step, rank) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        files.push((format!("rank{rank}/step_{step}.dat"), "state".into()));
        files.push((format!("rank{rank}/latest"), format!("step_{step}.dat")));
    }
    files.push(("latest".to_owned(), "rank0/step_2.dat".to_owned()));
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let (root, timeline) = written(&layout, &files);
    let of = |files: &[&str], rank| pointers(root.path(), &layout, &timeline, files, rank);
    let (first, second) = ("rank0/step_2.dat", "rank1/step_2.dat");
    assert_eq!(of(&[first], 0), [("latest".to_owned(), 0), ("rank0/latest".to_owned(), 0)]);
    assert_eq!(of(&[second], 1), [("rank1/latest".to_owned(), 1)]);
    assert_eq!(of(&["rank1/step_1.dat"], 1), [], "it names the other step");
    let all = [("latest".to_owned(), 0), ("rank0/latest".to_owned(), 0), ("rank1/latest".to_owned(), 1)];
    assert_eq!(of(&[first, second], 0), all, "all ranks at once");

    let layout = Layout::from_patterns(&["st{checkpoint}.r{rank}"], 0).expect("valid");
    let (node, timeline) = written(&layout, &[("st1.r2", "state"), ("st1.r3", "state"), ("latest", "of this node")]);
    let of = |file: &str, rank| pointers(node.path(), &layout, &timeline, &[file], rank);
    assert_eq!(of("st1.r2", 2), [("latest".to_owned(), 2)], "no lower rank has files on this disk");
    assert_eq!(of("st1.r3", 3), []);
    std::fs::write(node.path().join("st1.r0"), "state").expect("written");
    assert_eq!(of("st1.r2", 2), [], "the agent of rank 0 saves it");

    // A file that belongs to no single rank is saved with rank 0, also if it is in the directory of another rank.
    let layout = Layout::from_patterns(&["r{rank}/s_{checkpoint}.dat", "**/s_{checkpoint}.json"], 0).expect("valid");
    let files = [("r0/s_1.dat", "state"), ("r1/s_1.dat", "state"), ("r1/s_1.json", "state"), ("r1/latest", "s_1.dat")];
    let (root, timeline) = written(&layout, &files);
    let of = |files: &[&str], rank| pointers(root.path(), &layout, &timeline, files, rank);
    assert_eq!(of(&["r0/s_1.dat", "r1/s_1.json"], 0), []);
    assert_eq!(of(&["r1/s_1.dat"], 1), [("r1/latest".to_owned(), 1)]);
    assert_eq!(of(&files.map(|(name, _)| name)[..3], 0), [("r1/latest".to_owned(), 1)]);
}

#[test]
fn a_file_with_the_name_of_a_pointer_file_in_the_directory_of_a_checkpoint_is_saved_with_it() {
    let layout = Layout::from_patterns(&["step{checkpoint}/state.{rank}"], 0).expect("valid");
    let files = [
        ("step1/state.0", "state"),
        ("step2/checkpoint.json", "after step1"),
        ("step2/notes", "step2"),
        ("step2/state.0", "state"),
    ];
    let (root, timeline) = written(&layout, &files);
    let found = pointers(root.path(), &layout, &timeline, &["step2/state.0"], 0);
    assert_eq!(found, [("step2/checkpoint.json".to_owned(), 0)]);
    // If the layout has only one checkpoint, the whole directory belongs to this checkpoint.
    let names = ["notes.txt", "restart.txt", "state.r0", "state.r1", "latest"];
    let (root, timeline) = written(&layout, &names.map(|name| (name, "run4")));
    let listing = list(root.path(), &ScanLimits::default()).expect("listed");
    let (layout, _) = Layout::guess_while_running(&listing, Path::new("/data/run5"), Some(2));
    let found = pointers(root.path(), &layout, &timeline, &["state.r0"], 0);
    assert_eq!(found, [("latest".to_owned(), 0), ("restart.txt".to_owned(), 0)], "also if written before the state");
}
