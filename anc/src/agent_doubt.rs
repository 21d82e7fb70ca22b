//! The doubts of agents, in words for users.

use crate::fetch::{self, LeftOut};
use mcrengine::ids::Rank;
use mcrengine::manifest::Doubt;

/// The doubt about a checkpoint with an HDF5 file that is longer than its superblock states. `whose` comes after the
/// words "an HDF5 file".
pub fn not_closed(whose: &str) -> String {
    format!(
        "an HDF5 file {whose} is longer than its superblock says, as after the death of a process that had not closed \
         the file: it is uncertain whether the file is whole"
    )
}

/// The doubt of an agent about the files of a rank, as the manifest has it.
pub(crate) fn doubt_of_agent(rank: Rank, doubt: fetch::Doubt) -> Doubt {
    Doubt::of_files(match doubt {
        fetch::Doubt::Rewriting => {
            return Doubt::of_step(format!(
                "the code was writing its files again under the same names when the files of {rank} were taken, and \
                 their times do not show which files belong to one step: it is uncertain whether the files are of one \
                 step"
            ));
        }
        fetch::Doubt::Fewer => format!(
            "{rank} has fewer files or bytes than in the checkpoints before, and wrote no more: it is uncertain \
             whether the checkpoint has all files of its step, and whether these files are whole"
        ),
        fetch::Doubt::Counted => {
            return Doubt::of_ranks(
                "the number of ranks was counted in the files after the application had ended, and nothing showed that \
                 it had succeeded: it is uncertain whether all ranks wrote their files. Give --ranks"
                    .to_owned(),
            );
        }
        fetch::Doubt::FoundAfterEnd => {
            "the file names show no checkpoints, so the files were saved only after the application had ended, and \
             nothing showed that it had succeeded: it is uncertain whether the files are whole and of one step. Give \
             --layout, for example --layout single"
                .to_owned()
        }
        fetch::Doubt::LastWritten => format!(
            "the application failed within a second after it had written a file of {rank}, and neither the content of \
             the file nor the checkpoint before shows how long the file must be: it is uncertain whether the file is \
             whole"
        ),
        fetch::Doubt::NotClosed => not_closed(&format!("of {rank}")),
        fetch::Doubt::Deleted => format!(
            "the application wrote files of {rank} again after the files of this checkpoint were committed and \
             deleted: it is uncertain whether the files have the deleted bytes too. Set delete-after-commit = false"
        ),
        fetch::Doubt::LeftOut(LeftOut { files, of_files, bytes, of_bytes }) => {
            let many = match (u128::from(bytes) * 100).checked_div(u128::from(of_bytes)) {
                Some(percent) => format!("{files} of {of_files} files ({percent} % of the bytes)"),
                None => "many files".to_owned(), // an older agent sends no numbers
            };
            format!(
                "the layout was guessed from the file names, and {many} that the application wrote belong to no \
                 checkpoint of this layout: it is uncertain whether the checkpoint has all files of its step. The \
                 log of the agent names a file; give --layout"
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doubt_about_files_that_the_layout_leaves_out_says_how_many_they_are() {
        let of = |left_out| doubt_of_agent(Rank(0), fetch::Doubt::LeftOut(left_out)).why;
        let numbers = LeftOut { files: 3, of_files: 6, bytes: 40, of_bytes: 100 };
        assert!(of(numbers).contains("and 3 of 6 files (40 % of the bytes) that the application wrote"));
        assert!(of(LeftOut::default()).contains("and many files that the application wrote"));
    }
}
