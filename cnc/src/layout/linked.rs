//! Finds symbolic links that have the name of a rank's file and lead to a file elsewhere. Only links to directories are
//! followed, so the content of such a file is not saved.

use super::Layout;
use super::walk::Listing;
use mcrengine::ids::{CheckpointId, FilePath, Rank};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A symbolic link in place of a rank's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    /// The checkpoint that the name shows.
    pub checkpoint: CheckpointId,
    /// The rank that the name shows. Rank 0 if the name shows no rank.
    pub rank: Rank,
    /// The link, relative to the listed directory.
    pub link: PathBuf,
    /// When the file to which the link leads was written.
    pub modified: SystemTime,
    /// Whether the checkpoint has files of other ranks, but no file of this rank.
    pub is_missing: bool,
}

/// The links of a listing of `root` that lead to files elsewhere, and that the layout takes for files of checkpoints.
pub fn linked(listing: &Listing, layout: &Layout, root: &Path) -> Vec<Linked> {
    if listing.links.is_empty() {
        return Vec::new();
    }
    let real = root.canonicalize().into_iter();
    let searched: Vec<PathBuf> = real.chain(listing.through.iter().map(|(_, real)| real.clone())).collect();
    let placed = listing.files.iter().filter_map(|path| layout.place(path));
    let placed: BTreeSet<(CheckpointId, Rank)> =
        placed.map(|placed| (placed.checkpoint, placed.rank.unwrap_or(Rank(0)))).collect();
    let leads_out = |link: &PathBuf| {
        let (name, path) = (root.join(link), FilePath::new(link.as_os_str().as_bytes()).ok()?);
        let (of, about, end) = (layout.place(&path)?, name.metadata().ok()?, name.canonicalize().ok()?);
        if !about.is_file() || searched.iter().any(|searched| end.starts_with(searched)) {
            return None;
        }
        let (checkpoint, rank) = (of.checkpoint, of.rank.unwrap_or(Rank(0)));
        let has_files = placed.range((checkpoint.clone(), Rank(0))..).next().is_some_and(|(of, _)| *of == checkpoint);
        let is_missing = has_files && !placed.contains(&(checkpoint.clone(), rank));
        Some(Linked { checkpoint, rank, link: link.clone(), modified: about.modified().ok()?, is_missing })
    };
    listing.links.iter().filter_map(leads_out).collect()
}
