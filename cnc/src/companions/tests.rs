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
