//! Handles files and links that match no pattern of the layout, see [`crate::companions`].

use super::kernel::Change;
use super::{Core, WatchEvent};
use crate::companions::{Beside, Companion, Surroundings, gather, is_pointer_name, lowest_rank, resolve};
use crate::layout::walk::Through;
use crate::settle::{Hint, ReadyRank};
use crate::timeline::Timeline;
use mcrengine::ids::{FilePath, Rank};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maximum number of remembered symbolic links.
const LINKS_MAX: usize = 4096;
/// Identifies the message for a late pointer file. A pointer file is late if its checkpoint was already reported.
const LATE: &str = "late";
const TOO_MANY_LINKS: &str = "more than 4096 symbolic links; the links above this number are not saved";

impl Core {
    /// The companions of a rank. Companions that cannot be saved are reported, but each reason is reported only once.
    /// `beside` keeps what was read for other ranks at the same time.
    pub(super) fn companions(&mut self, ready: &ReadyRank, timeline: &Timeline, beside: &mut Beside) -> Vec<Companion> {
        let files: Vec<FilePath> = ready.files.iter().map(|file| file.path.clone()).collect();
        let label = &ready.checkpoint;
        let surroundings = Surroundings { timeline, links: &self.links, versions: &self.versions };
        let gathered = gather(&self.root, &self.layout, label, &files, ready.rank, surroundings, beside);
        for lost in gathered.lost {
            if self.told_lost.insert(lost.why) {
                self.tell(WatchEvent::Trouble(format!("{label}: {lost}")));
            }
        }
        gathered.found
    }

    /// Handles a link or a pointer file. Returns whether the change needs no further handling.
    pub(super) fn on_link_or_pointer(&mut self, path: &Path, change: Change) -> bool {
        if change == Change::Gone {
            self.links.remove(path);
            let was_through = self.through.remove(path);
            if was_through {
                self.forget_below(path);
            }
            return was_through;
        }
        let name = path.file_name().unwrap_or_default().as_bytes();
        let is_link = self.root.join(path).is_symlink();
        if is_link {
            self.saw_link(path);
        }
        if is_link && Through::new(&self.root).is_open(path) {
            self.walk(path, Hint::Scan);
            return true;
        }
        let is_pointer = match is_link {
            true => self.leads_to_checkpoint(path),
            // The creation of a pointer file is ignored, because its content is written later.
            false => {
                let is_placed =
                    || FilePath::new(path.as_os_str().as_bytes()).is_ok_and(|path| self.layout.place(&path).is_some());
                let is_known = is_pointer_name(name) || self.layout.attends(name);
                change != Change::Created && is_known && !is_placed()
            }
        };
        if is_pointer {
            self.versions.note(&self.root, &self.layout, path);
        }
        let rank = if is_pointer { self.rank_beside(path) } else { None };
        let late = rank.and_then(|rank| self.readiness.pointer_written(self.now_ms(), path, rank));
        if let Some(label) = late.filter(|_| self.told_lost.insert(LATE)) {
            self.tell(WatchEvent::Trouble(format!(
                "{}: written after {label} was announced, so that {label} may be stored without it, and without the \
                 pointer files and links that follow it. For later checkpoints the agent waits for each pointer file \
                 and link that it has seen with an earlier checkpoint, if it is written within half of doubt-quiet-ms",
                path.display()
            )));
        }
        is_link
    }

    /// Remembers a link. The target of the link is read when a checkpoint is ready.
    pub(super) fn saw_link(&mut self, path: &Path) {
        if self.links.len() < LINKS_MAX {
            self.links.insert(path.to_owned());
        } else if !self.links.contains(path) && self.told_lost.insert(TOO_MANY_LINKS) {
            self.tell(WatchEvent::Trouble(format!("{}: {TOO_MANY_LINKS}", path.display())));
        }
    }

    /// The rank that waits for a pointer file or a link: the lowest rank with files in or below its directory. `None`
    /// if another agent has the files of this rank.
    fn rank_beside(&self, path: &Path) -> Option<Rank> {
        let dir = path.parent().unwrap_or(Path::new(""));
        let first = FilePath::new(dir.as_os_str().as_bytes()).ok();
        let all = match &first {
            Some(first) => self.files.range(first..),
            None => self.files.range::<FilePath, _>(..),
        };
        let beside = all.take_while(|(path, _)| path.as_bytes().starts_with(dir.as_os_str().as_bytes()));
        let mut lowest = None::<Rank>;
        for (_, tracked) in beside.filter(|(path, _)| path.as_path().starts_with(dir)) {
            lowest = lowest.into_iter().chain(tracked.placed.rank).min();
            if lowest == Some(Rank(0)) {
                break;
            }
        }
        let rank = lowest.unwrap_or(Rank(0));
        // If the agent does not watch all ranks, only the file system shows the files of other ranks.
        let is_lowest =
            || lowest_rank(&self.root, &self.layout, None, dir, &BTreeSet::new()).is_none_or(|lowest| lowest >= rank);
        (rank == Rank(0) || is_lowest()).then_some(rank)
    }

    fn leads_to_checkpoint(&self, link: &Path) -> bool {
        let end = resolve(&self.root, link).and_then(|end| FilePath::new(end.as_os_str().as_bytes()).ok());
        end.is_some_and(|end| {
            let first = self.files.range(&end..).next();
            first.is_some_and(|(path, _)| path.as_path().starts_with(end.as_path()))
        })
    }
}
