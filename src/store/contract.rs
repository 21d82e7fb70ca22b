//! The tests that every store must pass. A new implementation of a store must run these tests.

use super::*;

fn write(store: &dyn Store, path: &str, bytes: &[u8]) {
    let path = Path::new(path);
    let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
    let mut temp = store.create_temp(path.parent().expect("a parent"), name).expect("temp");
    let (first, second) = bytes.split_at(bytes.len() / 2);
    temp.append(first).expect("append");
    temp.append(second).expect("append");
    temp.sync().expect("sync");
    store.rename(temp.path(), path).expect("rename");
    store.sync_dir(path.parent().expect("a parent")).expect("sync");
}

fn names(store: &dyn Store, dir: &str) -> Vec<String> {
    store.list_dir(Path::new(dir)).expect("list").into_iter().map(|entry| entry.name).collect()
}

fn read(store: &dyn Store, path: &str) -> Vec<u8> {
    let file = store.open(Path::new(path)).expect("open");
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes).expect("read");
    bytes
}

fn suite(store: &dyn Store) {
    assert!(names(store, "").is_empty(), "a new store is empty");
    create_dirs(store, Path::new("job/one")).expect("dirs");
    create_dirs(store, Path::new("job/one")).expect("creating an existing directory is no error");
    assert!(!store.create_dir(Path::new("job")).expect("there"));
    assert!(store.create_dir(Path::new("no/parent")).expect_err("must fail").is_not_found());
    assert!(store.create_temp(Path::new("no"), "x").map(|_| ()).expect_err("must fail").is_not_found());

    write(store, "job/one/b", b"hello world");
    write(store, "job/one/a", b"");
    assert_eq!(names(store, "job/one"), ["a", "b"], "sorted, and no temporary name is left");
    assert_eq!(store.list_dir(Path::new("job")).expect("list"), [Entry { name: "one".into(), is_dir: true }]);
    assert_eq!(read(store, "job/one/b"), b"hello world");
    assert_eq!(store.open(Path::new("job/one/a")).expect("open").len(), 0);

    let (of_file, of_dir) = (store.stat(Path::new("job/one/b")), store.stat(Path::new("job/one")));
    assert_eq!(of_file.map(|stat| (stat.bytes, stat.is_dir)).expect("stat"), (11, false));
    assert!(of_dir.expect("stat").is_dir);
    assert!(store.stat(Path::new("job/one/none")).expect_err("must fail").is_not_found());

    let file = store.open(Path::new("job/one/b")).expect("open");
    let mut part = [0; 5];
    file.read_at(6, &mut part).expect("read");
    assert_eq!(&part, b"world");
    for beyond in [7, 11, 1 << 40] {
        let error = file.read_at(beyond, &mut part).expect_err("past the end");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    write(store, "job/one/b", b"second");
    assert_eq!(read(store, "job/one/b"), b"second", "renaming replaces");

    let mut one = store.create_temp(Path::new("job"), "x").expect("temp");
    let two = store.create_temp(Path::new("job"), "x").expect("two temporary files of one name have different paths");
    assert_ne!(one.path(), two.path());
    one.append(b"not finished").expect("append");
    assert!(names(store, "job").iter().filter(|name| !visible(name)).count() == 2);
    drop((one, two));
    assert_eq!(names(store, "job"), ["one"], "a dropped temporary file is removed");

    for (name, expected) in [("new", true), ("new", false), ("one/b", false)] {
        let mut temp = store.create_temp(Path::new("job"), "x").expect("temp");
        temp.append(if expected { b"first" } else { b"later" }).expect("append");
        assert_eq!(store.rename_new(temp.path(), &Path::new("job").join(name)).expect("tried"), expected, "{name}");
    }
    assert_eq!(read(store, "job/new"), b"first", "the first one stays");
    assert!(store.age(Path::new("job/new")).expect("its age").as_secs() < 600);
    assert!(store.age(Path::new("job/none")).expect_err("must fail").is_not_found());
    store.remove_file(Path::new("job/new")).expect("remove");

    create_dirs(store, Path::new("moved")).expect("dirs");
    write(store, "moved/f", b"inside");
    store.rename(Path::new("moved"), Path::new("job/moved")).expect("a directory can be renamed");
    assert_eq!((names(store, ""), read(store, "job/moved/f")), (vec!["job".to_owned()], b"inside".to_vec()));
    create_dirs(store, Path::new("moved")).expect("dirs");
    store.rename(Path::new("moved"), Path::new("job/moved")).expect_err("it is not empty");
    store.remove_dir(Path::new("moved")).expect("remove");
    store.remove_file(Path::new("job/moved/f")).expect("remove");
    store.remove_dir(Path::new("job/moved")).expect("remove");

    assert!(store.open(Path::new("job/one/none")).map(|_| ()).expect_err("must fail").is_not_found());
    assert!(store.open(Path::new("job/one")).is_err(), "a directory is no file");
    assert!(store.list_dir(Path::new("none")).expect_err("must fail").is_not_found());
    assert!(store.rename(Path::new("job/none"), Path::new("job/other")).expect_err("must fail").is_not_found());
    assert!(store.sync_dir(Path::new("none")).expect_err("must fail").is_not_found());
    assert!(store.remove_dir(Path::new("job/one")).is_err(), "it is not empty");
    assert!(store.remove_file(Path::new("job/one")).is_err(), "it is a directory");
    for _ in 0..2 {
        store.remove_file(Path::new("job/one/a")).expect("removing twice is removing once");
        store.remove_file(Path::new("job/one/b")).expect("remove");
        store.remove_dir(Path::new("job/one")).expect("remove");
    }
    assert!(names(store, "job").is_empty());
}

#[test]
fn a_directory_keeps_the_contract() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().expect("temp dir");
    let store = PosixStore::create(temp.path().join("a/store")).expect("create");
    suite(&store);
    write(&store, "f", b"x");
    store.create_dir(Path::new("d")).expect("create");
    let mode = |name: &str| std::fs::metadata(store.root().join(name)).expect("stat").permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("d"), mode("f")), (0o700, 0o700, 0o600), "no other user can read a checkpoint");
    assert!(PosixStore::open(temp.path().join("none")).expect_err("must fail").is_not_found());
    assert!(PosixStore::open(store.root().join("f")).is_err(), "a file is no store");
}

#[test]
fn the_memory_store_keeps_the_contract() {
    suite(&MemoryStore::new());
}

#[test]
fn a_faulty_store_without_a_fault_keeps_the_contract() {
    suite(&FaultyStore::new(MemoryStore::new(), Fault::None));
}

#[test]
fn what_was_synced_survives_and_nothing_else_must() {
    let store = MemoryStore::new();
    create_dirs(&store, Path::new("d")).expect("dirs");
    write(&store, "d/kept", b"kept");
    store.create_dir(Path::new("lost")).expect("create");
    let mut temp = store.create_temp(Path::new("d"), "half").expect("temp");
    temp.append(b"not synced").expect("append");
    store.rename(temp.path(), Path::new("d/half")).expect("rename");
    store.remove_file(Path::new("d/kept")).expect("remove");

    let after = store.crash(Survival::Synced);
    assert_eq!(after.paths(), [PathBuf::from("d/kept")], "neither the removal nor the new name was synced");
    assert_eq!(read(&after, "d/kept"), b"kept");
    assert_eq!(names(&after, ""), ["d"]);
    let after = store.crash(Survival::Everything);
    assert_eq!(after.paths(), [PathBuf::from("d/half")]);
    assert_eq!(read(&after, "d/half"), b"not synced");

    store.sync_dir(Path::new("d")).expect("sync");
    let after = store.crash(Survival::Synced);
    assert_eq!(read(&after, "d/half"), b"", "the name was synced, its bytes were not");
    let lengths = (0..64).map(|seed| read(&store.crash(Survival::Some(seed)), "d/half").len());
    assert!(lengths.collect::<std::collections::BTreeSet<_>>().len() > 5, "different seeds keep different lengths");
}

#[test]
fn a_full_disk_keeps_half_of_a_write_and_still_removes() {
    let store = FaultyStore::new(MemoryStore::new(), Fault::Full { from: 2 });
    store.create_dir(Path::new("d")).expect("create");
    let mut temp = store.create_temp(Path::new("d"), "x").expect("temp");
    let error = temp.append(b"12345678").expect_err("full");
    assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
    assert_eq!(store.inner().get(temp.path()).expect("there"), b"1234");
    drop(temp);
    assert!(store.inner().paths().is_empty());
}
