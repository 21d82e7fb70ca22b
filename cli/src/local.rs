//! Files of this machine as the source of a flush. `mcr save` needs no network.

use mcr_anc::source::{FetchError, Source, Wanted};
use mcr_cnc::source::OpenFile;
use mcrengine::error_chain::error_chain;
use mcrengine::header::FileHeader;

/// The captured files of a group, in the order of the flush.
pub struct LocalSource<'a> {
    /// The captured files.
    pub files: Vec<OpenFile<&'a FileHeader>>,
    /// Maximum number of reads at the same time.
    pub threads: usize,
}

impl Source for LocalSource<'_> {
    fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError> {
        for (nth, run) in wanted.iter_mut().enumerate() {
            let file = &self.files[run.variable.file as usize];
            file.read_raw(run.variable.variable as usize, run.offset, run.into).map_err(|error| {
                let (rank, file) = (file.header().rank, file.header().path.to_string());
                match error.is_transient() {
                    true => FetchError::Changed { rank, file },
                    false => FetchError::Lost { rank, reason: error_chain(&error) },
                }
            })?;
            filled(nth, run.into);
        }
        Ok(())
    }

    fn is_checked(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(OpenFile::has_image)
    }

    fn parallel(&self) -> usize {
        if self.files.iter().all(OpenFile::has_image) { 0 } else { self.threads }
    }
}
