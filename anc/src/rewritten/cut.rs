//! Finds files that were probably cut, because their writer was killed, from the lengths in earlier contents.

use mcrengine::header::FileHeader;
use mcrengine::ids::Rank;
use mcrengine::manifest::Manifest;

/// A file that has fewer bytes than before, and the reason for doubt. There is doubt if the last two contents without
/// doubt have the same length of the file, or if all other files kept their lengths. A file whose content shows its
/// length, as HDF5 does, is not considered. `own` has the earlier contents under the same name, the oldest first.
pub(crate) fn cut(own: &[Manifest], files: &[FileHeader]) -> Option<(Rank, String)> {
    let mut sure = own.iter().rev().filter(|own| own.doubt.is_none());
    let (last, before) = (sure.next()?, sure.next());
    let bytes_in = |of: &Manifest, file: &FileHeader| {
        of.files.iter().find(|then| (&then.path, then.rank) == (&file.path, file.rank)).map(|then| then.bytes)
    };
    let files = || files.iter().filter(|file| file.kind.is_regular());
    let is_shorter = |file: &&FileHeader| bytes_in(last, file).is_some_and(|bytes| file.bytes < bytes);
    let mut shorter = files().filter(|file| is_shorter(file) && file.variables.len() <= 1);
    let (cut, more) = (shorter.next()?, shorter.next());
    let others = || files().filter(|file| file.path != cut.path);
    let have_others_kept = others().next().is_some() && others().all(|file| bytes_in(last, file) == Some(file.bytes));
    let was = bytes_in(last, cut)?;
    let is_regular = before.is_some_and(|before| bytes_in(before, cut) == Some(was));
    (is_regular || more.is_none() && have_others_kept).then(|| {
        let why = format!(
            "{} has {} bytes, and had {was} in {}: it is uncertain whether its writer wrote all bytes",
            cut.path, cut.bytes, last.checkpoint
        );
        (cut.rank, why)
    })
}
