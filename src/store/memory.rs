//! A store in memory for tests, which distinguishes synced from unsynced data.
//!
//! The store keeps two states: the data that a running program sees, and the data that would survive a power failure.
//! Bytes enter the second state when a file is synced. Names enter the second state when a directory is synced.

use super::{Entry, Stat, Store, StoreError, StoredFile, TempFile};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A store in memory. A clone refers to the same data.
#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

/// How much of the unsynced data survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// No unsynced data.
    Synced,
    /// All unsynced data.
    Everything,
    /// Some operations on names and some first bytes of files, which the seed chooses.
    Some(u64),
}

#[derive(Default)]
struct State {
    nodes: Vec<Node>,
    /// The names that a running program sees, and the names that are durable. The root is in neither map.
    seen: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    /// Operations on names since the last sync of the directory of the name, the oldest first.
    pending: Vec<Pending>,
    temps: u64,
}

struct Node {
    is_dir: bool,
    bytes: Vec<u8>,
    synced: Vec<u8>,
    made: Instant,
}

/// An operation on a name. Without `node`, the name was removed. With `from`, a file or directory was renamed from
/// `from` to `path`.
struct Pending {
    path: PathBuf,
    from: Option<PathBuf>,
    node: Option<usize>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store as it would be after a power failure at this moment.
    pub fn crash(&self, survival: Survival) -> Self {
        let state = self.state();
        let mut random = match survival {
            Survival::Some(seed) => seed,
            Survival::Synced | Survival::Everything => 0,
        };
        let mut keep = |of: usize| match survival {
            Survival::Synced => 0,
            Survival::Everything => of,
            Survival::Some(_) => {
                // Knuth's MMIX generator. The high bits are random enough to choose the surviving data.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize % (of + 1)
            }
        };
        let mut names = state.durable.clone();
        for change in &state.pending {
            if keep(1) == 1 {
                change.from.as_ref().map(|from| names.remove(from));
                match change.node {
                    Some(node) => names.insert(change.path.clone(), node),
                    None => names.remove(&change.path),
                };
            }
        }
        let node = |node: &Node| {
            let common = node.synced.len().min(node.bytes.len());
            let kept = common + keep(node.bytes.len() - common);
            let bytes = match survival {
                Survival::Synced => node.synced.clone(),
                _ => node.bytes[..kept].to_vec(),
            };
            Node { is_dir: node.is_dir, synced: bytes.clone(), bytes, made: node.made }
        };
        let nodes = state.nodes.iter().map(node).collect();
        // A name below a directory that did not survive cannot be reached.
        let reachable = |path: &Path| path.ancestors().skip(1).all(|p| p == Path::new("") || names.contains_key(p));
        let seen: BTreeMap<PathBuf, usize> =
            names.iter().filter(|(path, _)| reachable(path)).map(|(path, &node)| (path.clone(), node)).collect();
        let after = State { nodes, durable: seen.clone(), seen, pending: Vec::new(), temps: state.temps };
        Self { state: Arc::new(Mutex::new(after)) }
    }

    /// Replaces the bytes of a file, or creates the file, durably. Tests damage a store with this function.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let node = state.nodes.len();
        state.nodes.push(Node { is_dir: false, bytes: bytes.into(), synced: bytes.into(), made: Instant::now() });
        state.seen.insert(path.into(), node);
        state.durable.insert(path.into(), node);
    }

    /// All bytes of a file.
    pub fn get(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        let node = &state.nodes[*state.seen.get(path)?];
        (!node.is_dir).then(|| node.bytes.clone())
    }

    /// The path of every file, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        let state = self.state();
        state.seen.iter().filter(|(_, node)| !state.nodes[**node].is_dir).map(|(path, _)| path.clone()).collect()
    }
}

/// Gives the names inside a renamed directory their new paths.
fn move_below(names: &mut BTreeMap<PathBuf, usize>, from: &Path, to: &Path) {
    let below: Vec<PathBuf> = names.keys().filter(|path| path.starts_with(from) && *path != from).cloned().collect();
    for path in below {
        if let (Some(node), Ok(rest)) = (names.remove(&path), path.strip_prefix(from)) {
            names.insert(to.join(rest), node);
        }
    }
}

fn failed(path: &Path, what: &'static str, kind: io::ErrorKind) -> StoreError {
    StoreError::Io { path: path.into(), what, source: kind.into() }
}

impl State {
    fn check_parent(&self, path: &Path, what: &'static str) -> Result<(), StoreError> {
        match path.parent() {
            Some(parent) if parent == Path::new("") => Ok(()),
            Some(parent) if self.seen.get(parent).is_some_and(|&node| self.nodes[node].is_dir) => Ok(()),
            _ => Err(failed(path, what, io::ErrorKind::NotFound)),
        }
    }

    fn create(&mut self, path: PathBuf, is_dir: bool) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node { is_dir, bytes: Vec::new(), synced: Vec::new(), made: Instant::now() });
        self.seen.insert(path.clone(), node);
        self.pending.push(Pending { path, from: None, node: Some(node) });
        node
    }

    fn remove(&mut self, path: &Path) {
        if self.seen.remove(path).is_some() {
            self.pending.push(Pending { path: path.into(), from: None, node: None });
        }
    }

    fn below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = (&'a Path, usize)> {
        self.seen.iter().filter(move |(path, _)| path.parent() == Some(dir)).map(|(path, &node)| (path.as_path(), node))
    }
}

impl Store for MemoryStore {
    fn root(&self) -> &Path {
        Path::new("memory")
    }

    fn create_dir(&self, dir: &Path) -> Result<bool, StoreError> {
        let mut state = self.state();
        state.check_parent(dir, "creating the directory")?;
        match state.seen.get(dir).map(|&node| state.nodes[node].is_dir) {
            Some(true) => Ok(false),
            Some(false) => Err(failed(dir, "creating the directory", io::ErrorKind::AlreadyExists)),
            None => {
                state.create(dir.into(), true);
                Ok(true)
            }
        }
    }

    fn create_temp(&self, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError> {
        let mut state = self.state();
        state.temps += 1;
        let path = dir.join(format!(".{name}.{}", state.temps));
        state.check_parent(&path, "creating the file")?;
        let node = state.create(path.clone(), false);
        Ok(Box::new(MemoryTemp { store: self.clone(), node, path }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let mut state = self.state();
        state.check_parent(to, "renaming into place")?;
        let node = state.seen.remove(from).ok_or_else(|| failed(to, "renaming into place", io::ErrorKind::NotFound))?;
        if state.below(to).next().is_some() {
            state.seen.insert(from.into(), node);
            return Err(failed(to, "renaming into place", io::ErrorKind::DirectoryNotEmpty));
        }
        state.seen.insert(to.into(), node);
        move_below(&mut state.seen, from, to);
        for change in &mut state.pending {
            if let Ok(below) = change.path.strip_prefix(from)
                && below != Path::new("")
            {
                change.path = to.join(below);
            }
        }
        state.pending.push(Pending { path: to.into(), from: Some(from.into()), node: Some(node) });
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, StoreError> {
        if self.state().seen.contains_key(to) {
            return Ok(false);
        }
        self.rename(from, to).map(|()| true)
    }

    fn age(&self, path: &Path) -> Result<Duration, StoreError> {
        let state = self.state();
        let node = state.seen.get(path).ok_or_else(|| failed(path, "reading its age", io::ErrorKind::NotFound))?;
        Ok(state.nodes[*node].made.elapsed())
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        let mut state = self.state();
        if dir != Path::new("") && !state.seen.contains_key(dir) {
            return Err(failed(dir, "syncing the directory", io::ErrorKind::NotFound));
        }
        let (synced, pending): (Vec<Pending>, Vec<Pending>) =
            std::mem::take(&mut state.pending).into_iter().partition(|change| change.path.parent() == Some(dir));
        state.pending = pending;
        for change in synced {
            if let Some(from) = change.from {
                state.durable.remove(&from);
                move_below(&mut state.durable, &from, &change.path);
            }
            match change.node {
                Some(node) => state.durable.insert(change.path, node),
                None => state.durable.remove(&change.path),
            };
        }
        Ok(())
    }

    fn open(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError> {
        let bytes = self.get(path).ok_or_else(|| failed(path, "opening", io::ErrorKind::NotFound))?;
        Ok(Box::new(MemoryFile(Arc::new(bytes))))
    }

    fn stat(&self, path: &Path) -> Result<Stat, StoreError> {
        let state = self.state();
        let node = state.seen.get(path).ok_or_else(|| failed(path, "looking at", io::ErrorKind::NotFound))?;
        let node = &state.nodes[*node];
        Ok(Stat { bytes: node.bytes.len() as u64, modified_unix_ms: None, is_dir: node.is_dir })
    }

    fn list_dir(&self, dir: &Path) -> Result<Vec<Entry>, StoreError> {
        let state = self.state();
        if dir != Path::new("") && !state.seen.get(dir).is_some_and(|&node| state.nodes[node].is_dir) {
            return Err(failed(dir, "listing", io::ErrorKind::NotFound));
        }
        let entry = |(path, node): (&Path, usize)| {
            let name = path.file_name()?.to_str()?.to_owned();
            Some(Entry { name, is_dir: state.nodes[node].is_dir })
        };
        let mut entries: Vec<Entry> = state.below(dir).filter_map(entry).collect();
        entries.sort();
        Ok(entries)
    }

    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        let mut state = self.state();
        match state.seen.get(path).map(|&node| state.nodes[node].is_dir) {
            Some(true) => Err(failed(path, "removing", io::ErrorKind::IsADirectory)),
            _ => {
                state.remove(path);
                Ok(())
            }
        }
    }

    fn remove_dir(&self, dir: &Path) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.seen.get(dir).is_some_and(|&node| !state.nodes[node].is_dir) {
            return Err(failed(dir, "removing the directory", io::ErrorKind::NotADirectory));
        }
        if state.below(dir).next().is_some() {
            return Err(failed(dir, "removing the directory", io::ErrorKind::DirectoryNotEmpty));
        }
        state.remove(dir);
        Ok(())
    }
}

struct MemoryTemp {
    store: MemoryStore,
    node: usize,
    path: PathBuf,
}

impl TempFile for MemoryTemp {
    fn path(&self) -> &Path {
        &self.path
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.store.state().nodes[self.node].bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let mut state = self.store.state();
        let node = &mut state.nodes[self.node];
        node.synced.clone_from(&node.bytes);
        Ok(())
    }
}

impl Drop for MemoryTemp {
    fn drop(&mut self) {
        let mut state = self.store.state();
        if state.seen.get(&self.path) == Some(&self.node) {
            state.remove(&self.path);
        }
    }
}

/// An open file whose bytes are in memory.
pub struct MemoryFile(pub Arc<Vec<u8>>);

impl StoredFile for MemoryFile {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let run = usize::try_from(offset).ok().and_then(|at| self.0.get(at..at.checked_add(into.len())?));
        into.copy_from_slice(run.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
