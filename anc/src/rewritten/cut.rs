//! Finds files that were probably cut, because their writer was killed, from the lengths in earlier contents.

use mcrengine::header::FileHeader;
use mcrengine::ids::{FilePath, Rank, shape_of};
use mcrengine::manifest::Manifest;
use std::collections::HashMap;

/// The lengths of the files of a content, in bytes. A file of a checkpoint with another number has the same shape, see
/// [`shape_of`].
struct Lengths<'a> {
    by_path: HashMap<(Rank, &'a FilePath), u64>,
    /// `None`: several files of the rank have this shape.
    by_shape: HashMap<(Rank, Vec<u8>), Option<u64>>,
}

impl<'a> Lengths<'a> {
    fn of(content: &'a Manifest) -> Self {
        let mut by_shape = HashMap::new();
        for file in &content.files {
            let shape = shape_of(&file.path.to_string());
            by_shape.entry((file.rank, shape)).and_modify(|bytes| *bytes = None).or_insert(Some(file.bytes));
        }
        let by_path = content.files.iter().map(|file| ((file.rank, &file.path), file.bytes)).collect();
        Self { by_path, by_shape }
    }

    fn bytes(&self, file: &FileHeader) -> Option<u64> {
        let by_shape = || *self.by_shape.get(&(file.rank, shape_of(&file.path.to_string())))?;
        self.by_path.get(&(file.rank, &file.path)).copied().or_else(by_shape)
    }
}

/// Minimum number of other files with unchanged lengths.
const OTHERS_MIN: usize = 3;

/// A file that has fewer bytes than before, and the reason for doubt. There is doubt if the last two contents without
/// doubt have the same length of the file, or if at least [`OTHERS_MIN`] other files are there and all kept their
/// lengths. A file whose content shows its length, as HDF5 does, is not considered. `own` has the earlier contents, the
/// oldest first.
pub(crate) fn cut(own: &[Manifest], files: &[FileHeader]) -> Option<(Rank, String)> {
    let mut sure = own.iter().rev().filter(|own| own.doubt.is_none());
    let id = &sure.clone().next()?.checkpoint;
    let (last, before) = (sure.next().map(Lengths::of)?, sure.next().map(Lengths::of));
    let files = || files.iter().filter(|file| file.kind.is_regular());
    let is_shorter = |file: &&FileHeader| last.bytes(file).is_some_and(|bytes| file.bytes < bytes);
    let mut shorter = files().filter(|file| is_shorter(file) && file.variables.len() <= 1);
    let (cut, more) = (shorter.next()?, shorter.next());
    let others = || files().filter(|file| file.path != cut.path);
    let have_others_kept = others().count() >= OTHERS_MIN && others().all(|file| last.bytes(file) == Some(file.bytes));
    let was = last.bytes(cut)?;
    let is_regular = before.is_some_and(|before| before.bytes(cut) == Some(was));
    (is_regular || more.is_none() && have_others_kept).then(|| {
        let why = format!(
            "{} has {} bytes, and had {was} in {id}: it is uncertain whether its writer wrote all bytes",
            cut.path, cut.bytes
        );
        (cut.rank, why)
    })
}
