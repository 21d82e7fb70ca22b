//! The gates that each start of a job uses. The gate writes its choices to files, so that the next process of the
//! gate knows the choices too.

use mcr_proto::gate::Agreement;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Maximum number of remembered starts of one user. The oldest start is forgotten first.
const OF_USER_MAX: usize = 256;
/// Maximum number of remembered starts of all users.
const ALL_MAX: usize = 16 << 10;

/// The directory with one file for each remembered start.
#[derive(Debug)]
pub struct Memory {
    dir: PathBuf,
    /// Held while a file is written.
    writing: Mutex<()>,
}

/// The content of the file of a start, see [`Agreement`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    places: u32,
    gates: Vec<String>,
}

impl Memory {
    /// Creates the directory, with mode 0700, if it does not exist.
    pub fn open(dir: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned(), writing: Mutex::default() })
    }

    /// The remembered agreement for a start of a user's job. `key` identifies the start and consists of hexadecimal
    /// digits.
    pub fn get(&self, uid: u32, key: &str) -> Option<Agreement> {
        let text = std::fs::read(self.path(uid, key)).ok()?;
        let Remembered { places, gates } = serde_json::from_slice(&text).ok()?;
        Some(Agreement { places, gates })
    }

    /// Remembers the proposal, unless an agreement for this start is known. Returns the agreement.
    pub fn agree(&self, uid: u32, key: &str, proposal: Agreement) -> io::Result<Agreement> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.get(uid, key) {
            return Ok(known);
        }
        self.make_room(uid)?;
        let path = self.path(uid, key);
        let temporary = path.with_extension("new");
        let Agreement { places, gates } = proposal.clone();
        std::fs::write(&temporary, serde_json::to_vec(&Remembered { places, gates })?)?;
        std::fs::rename(temporary, path)?;
        Ok(proposal)
    }

    fn path(&self, uid: u32, key: &str) -> PathBuf {
        self.dir.join(format!("{uid}-{key}.json"))
    }

    fn make_room(&self, uid: u32) -> io::Result<()> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let written = entry.metadata().and_then(|about| about.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            all.push((written, entry.path()));
        }
        let begin = format!("{uid}-");
        let is_own = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begin));
        let own = all.iter().filter(|(_, path)| is_own(path));
        let oldest_own = (own.clone().count() >= OF_USER_MAX).then(|| own.min()).flatten();
        let oldest = (all.len() >= ALL_MAX).then(|| all.iter().min()).flatten();
        oldest_own.or(oldest).map_or(Ok(()), |(_, path)| std::fs::remove_file(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_proposal_wins_outlives_the_gate_and_belongs_to_its_user() {
        let dir = tempfile::tempdir().expect("a directory");
        let memory = Memory::open(&dir.path().join("state")).expect("opened");
        let one = Agreement { places: 1, gates: vec!["a:1".into()] };
        let two = Agreement { places: 2, gates: vec!["b:1".into(), "a:1".into()] };
        assert_eq!(memory.get(6001, "0a"), None);
        assert_eq!(memory.agree(6001, "0a", one.clone()).expect("written"), one);
        assert_eq!(memory.agree(6001, "0a", two.clone()).expect("written"), one);
        assert_eq!(memory.agree(6002, "0a", two.clone()).expect("written"), two);
        let next = Memory::open(&dir.path().join("state")).expect("opened");
        assert_eq!((next.get(6001, "0a"), next.get(6002, "0a"), next.get(6001, "0b")), (Some(one), Some(two), None));
    }

    #[test]
    fn a_user_with_many_starts_makes_no_other_user_be_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let memory = Memory::open(dir.path()).expect("opened");
        let one = Agreement { places: 1, gates: vec!["a:1".into()] };
        memory.agree(6002, "0a", one.clone()).expect("written");
        for n in 0..OF_USER_MAX + 9 {
            memory.agree(6001, &format!("{n:04x}"), one.clone()).expect("written");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), OF_USER_MAX + 1);
        assert_eq!((memory.get(6002, "0a"), memory.get(6001, "0000")), (Some(one), None));
    }
}
