//! A store in memory that counts its operations, and delays each operation as a parallel file system does.
//!
//! All aggregators of a simulation share the files. Each aggregator counts its own operations. Unlike
//! [`MemoryStore`](mcrengine::store::MemoryStore), which keeps two states of all names, this store lists a directory
//! in a time that does not depend on the other directories, and lets a process die.

use mcrengine::store::{Entry, MemoryFile, Stat, Store, StoreError, StoredFile, TempFile};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of names that a parallel file system returns for one request of a listing.
const NAMES_OF_REQUEST: usize = 1000;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Creates a file or a directory.
    Create,
    /// Appends bytes to a file.
    Write,
    /// Syncs a file or a directory.
    Sync,
    /// Renames a file.
    Rename,
    /// Removes a file or a directory.
    Remove,
    /// Opens a file to read it.
    Open,
    /// Examines a file without opening it, including its lock and its age.
    Stat,
    /// Lists a directory.
    List,
}

/// All kinds of operations, in the order of their counts.
pub const KINDS: [Kind; 8] =
    [Kind::Create, Kind::Write, Kind::Sync, Kind::Rename, Kind::Remove, Kind::Open, Kind::Stat, Kind::List];

/// Numbers of operations of each kind, and of names in all listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    kinds: [u64; KINDS.len()],
    /// Total number of names in all listings.
    pub names: u64,
}

impl Counts {
    /// Number of operations of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.kinds[kind as usize]
    }

    /// Number of operations of all kinds.
    pub fn operations(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// The operations since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut kinds = self.kinds;
        kinds.iter_mut().zip(earlier.kinds).for_each(|(count, earlier)| *count -= earlier);
        Self { kinds, names: self.names - earlier.names }
    }

    /// The sum of two numbers of operations.
    pub fn plus(self, other: &Self) -> Self {
        let mut kinds = self.kinds;
        kinds.iter_mut().zip(other.kinds).for_each(|(count, other)| *count += other);
        Self { kinds, names: self.names + other.names }
    }
}

#[derive(Default)]
struct Counters {
    kinds: [AtomicU64; KINDS.len()],
    names: AtomicU64,
}

/// A directory: its files, and its subdirectories, which are `None`.
type Directory = BTreeMap<String, Option<Arc<Node>>>;

struct Node {
    bytes: Mutex<Arc<Vec<u8>>>,
    made: Instant,
    /// Whether a temporary file holds the node, and whether the process of this temporary file was killed.
    is_held: AtomicBool,
    is_holder_dead: Arc<AtomicBool>,
}

impl Node {
    fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire) && !self.is_holder_dead.load(Ordering::Acquire)
    }
}

/// The view of one aggregator on the store.
#[derive(Clone)]
pub struct SimulatedStore {
    directories: Arc<Mutex<HashMap<PathBuf, Directory>>>,
    unique: Arc<AtomicU64>,
    counters: Arc<Counters>,
    delay: Duration,
    /// Whether the process of this view was killed.
    is_dead: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(path: &Path, what: &'static str, kind: io::ErrorKind) -> StoreError {
    StoreError::Io { path: path.into(), what, source: kind.into() }
}

fn split(path: &Path) -> (PathBuf, String) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    (path.parent().unwrap_or(Path::new("")).into(), name.to_owned())
}

impl SimulatedStore {
    /// An empty store. Each operation takes the time `delay`.
    pub fn new(delay: Duration) -> Self {
        let directories = HashMap::from([(PathBuf::new(), Directory::new())]);
        let (unique, counters, is_dead) = Default::default();
        Self { directories: Arc::new(Mutex::new(directories)), unique, counters, delay, is_dead }
    }

    /// The same store, with its own count of operations.
    pub fn for_another(&self) -> Self {
        Self { counters: Arc::default(), is_dead: Arc::default(), ..self.clone() }
    }

    /// The same store, with its own count of operations and without delay.
    pub fn without_delay(&self) -> Self {
        Self { delay: Duration::ZERO, ..self.for_another() }
    }

    /// Lets all later operations fail, as if the process had died. The files of the process stay, and are not held.
    pub fn kill(&self) {
        self.is_dead.store(true, Ordering::Release);
    }

    /// The same store for the next process, which continues the count of operations.
    pub fn for_next_process(&self) -> Self {
        Self { is_dead: Arc::default(), ..self.clone() }
    }

    /// The operations so far.
    pub fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts { kinds: self.counters.kinds.each_ref().map(load), names: load(&self.counters.names) }
    }

    /// Creates a file and the directories on the path to it. Counts nothing.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        let mut directories = lock(&self.directories);
        let mut at = path;
        let mut node = Some(node_of(bytes, false, Arc::default()));
        loop {
            let (dir, name) = split(at);
            let is_known = directories.contains_key(&dir);
            directories.entry(dir).or_default().insert(name, node.take());
            match at.parent() {
                Some(parent) if !is_known && parent != Path::new("") => at = parent,
                _ => return,
            }
        }
    }

    /// Counts and delays an operation. Fails if the process of this view was killed.
    fn count(&self, kind: Kind, path: &Path) -> Result<(), StoreError> {
        self.count_names(kind, path, 0)
    }

    fn count_names(&self, kind: Kind, path: &Path, names: usize) -> Result<(), StoreError> {
        if self.is_dead.load(Ordering::Acquire) {
            return Err(failed(path, "using the store after the end of the process", io::ErrorKind::NotConnected));
        }
        self.counters.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.counters.names.fetch_add(names as u64, Ordering::Relaxed);
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay * (1 + (names / NAMES_OF_REQUEST) as u32));
        }
        Ok(())
    }

    fn node(&self, path: &Path, what: &'static str) -> Result<Option<Arc<Node>>, StoreError> {
        let (dir, name) = split(path);
        let found = lock(&self.directories).get(&dir).and_then(|dir| dir.get(&name).cloned());
        found.ok_or_else(|| failed(path, what, io::ErrorKind::NotFound))
    }

    fn file(&self, path: &Path, what: &'static str) -> Result<Arc<Node>, StoreError> {
        self.node(path, what)?.ok_or_else(|| failed(path, what, io::ErrorKind::IsADirectory))
    }
}

fn node_of(bytes: Vec<u8>, is_held: bool, is_holder_dead: Arc<AtomicBool>) -> Arc<Node> {
    Arc::new(Node {
        bytes: Mutex::new(Arc::new(bytes)),
        made: Instant::now(),
        is_held: AtomicBool::new(is_held),
        is_holder_dead,
    })
}

impl Store for SimulatedStore {
    fn root(&self) -> &Path {
        Path::new("simulated")
    }

    fn create_dir(&self, dir: &Path) -> Result<bool, StoreError> {
        self.count(Kind::Create, dir)?;
        let (parent, name) = split(dir);
        let mut directories = lock(&self.directories);
        let Some(above) = directories.get_mut(&parent) else {
            return Err(failed(dir, "creating the directory", io::ErrorKind::NotFound));
        };
        match above.get(&name) {
            Some(None) => return Ok(false),
            Some(Some(_)) => return Err(failed(dir, "creating the directory", io::ErrorKind::AlreadyExists)),
            None => above.insert(name, None),
        };
        directories.insert(dir.into(), Directory::new());
        Ok(true)
    }

    fn create_temp(&self, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError> {
        self.count(Kind::Create, dir)?;
        let name = format!(".{name}.{:016x}", self.unique.fetch_add(1, Ordering::Relaxed));
        let path = dir.join(&name);
        let node = node_of(Vec::new(), true, Arc::clone(&self.is_dead));
        match lock(&self.directories).get_mut(dir) {
            Some(files) => files.insert(name, Some(Arc::clone(&node))),
            None => return Err(failed(&path, "creating the file", io::ErrorKind::NotFound)),
        };
        Ok(Box::new(SimulatedTemp { store: self.clone(), node, path }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.count(Kind::Rename, to)?;
        let not_found = || failed(to, "renaming into place", io::ErrorKind::NotFound);
        let mut directories = lock(&self.directories);
        let (dir, name) = split(from);
        let node = directories.get_mut(&dir).and_then(|files| files.remove(&name)).ok_or_else(not_found)?;
        if node.is_none() {
            let files = directories.remove(from).ok_or_else(not_found)?;
            directories.insert(to.into(), files);
        }
        let (dir, name) = split(to);
        directories.get_mut(&dir).ok_or_else(not_found)?.insert(name, node);
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, StoreError> {
        self.count(Kind::Rename, to)?;
        let mut directories = lock(&self.directories);
        let not_found = || failed(to, "renaming to a free name", io::ErrorKind::NotFound);
        let ((from_dir, from_name), (dir, name)) = (split(from), split(to));
        if directories.get(&dir).is_some_and(|files| files.contains_key(&name)) {
            return Ok(false);
        }
        let node = directories.get_mut(&from_dir).and_then(|files| files.remove(&from_name)).ok_or_else(not_found)?;
        directories.get_mut(&dir).ok_or_else(not_found)?.insert(name, node);
        Ok(true)
    }

    fn age(&self, path: &Path) -> Result<Duration, StoreError> {
        self.count(Kind::Stat, path)?;
        Ok(self.file(path, "reading its age")?.made.elapsed())
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        self.count(Kind::Sync, dir)?;
        match lock(&self.directories).contains_key(dir) {
            true => Ok(()),
            false => Err(failed(dir, "syncing the directory", io::ErrorKind::NotFound)),
        }
    }

    fn open(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError> {
        self.count(Kind::Open, path)?;
        let bytes = Arc::clone(&lock(&self.file(path, "opening")?.bytes));
        Ok(Box::new(MemoryFile(bytes)))
    }

    fn stat(&self, path: &Path) -> Result<Stat, StoreError> {
        self.count(Kind::Stat, path)?;
        let node = self.node(path, "looking at")?;
        let bytes = node.as_ref().map_or(0, |node| lock(&node.bytes).len() as u64);
        Ok(Stat { bytes, modified_unix_ms: None, is_dir: node.is_none() })
    }

    fn list_dir(&self, dir: &Path) -> Result<Vec<Entry>, StoreError> {
        let entry = |(name, node): (&String, &Option<Arc<Node>>)| Entry { name: name.clone(), is_dir: node.is_none() };
        let entries: Option<Vec<Entry>> = lock(&self.directories).get(dir).map(|dir| dir.iter().map(entry).collect());
        self.count_names(Kind::List, dir, entries.as_ref().map_or(0, Vec::len))?;
        entries.ok_or_else(|| failed(dir, "listing", io::ErrorKind::NotFound))
    }

    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        self.count(Kind::Remove, path)?;
        let (dir, name) = split(path);
        if let Some(files) = lock(&self.directories).get_mut(&dir) {
            files.remove(&name);
        }
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> Result<(), StoreError> {
        self.count(Kind::Remove, dir)?;
        let mut directories = lock(&self.directories);
        if directories.get(dir).is_some_and(|files| !files.is_empty()) {
            return Err(failed(dir, "removing the directory", io::ErrorKind::DirectoryNotEmpty));
        }
        directories.remove(dir);
        let (parent, name) = split(dir);
        if let Some(files) = directories.get_mut(&parent) {
            files.remove(&name);
        }
        Ok(())
    }

    fn is_held(&self, path: &Path) -> bool {
        let is_alive = self.count(Kind::Stat, path).is_ok();
        is_alive && self.node(path, "looking at").ok().flatten().is_some_and(|node| node.is_held())
    }
}

struct SimulatedTemp {
    store: SimulatedStore,
    node: Arc<Node>,
    path: PathBuf,
}

impl TempFile for SimulatedTemp {
    fn path(&self) -> &Path {
        &self.path
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.store.count(Kind::Write, &self.path)?;
        Arc::make_mut(&mut lock(&self.node.bytes)).extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.store.count(Kind::Sync, &self.path)
    }
}

impl Drop for SimulatedTemp {
    fn drop(&mut self) {
        if self.store.is_dead.load(Ordering::Acquire) {
            return; // a dead process removes nothing
        }
        self.node.is_held.store(false, Ordering::Release);
        let (dir, name) = split(&self.path);
        if let Some(files) = lock(&self.store.directories).get_mut(&dir)
            && files.get(&name).is_some_and(|node| node.as_ref().is_some_and(|node| Arc::ptr_eq(node, &self.node)))
        {
            files.remove(&name);
        }
    }
}
