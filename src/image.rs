//! Reads any bytes of a file of a checkpoint. The file is not restored: its bytes are put together from the raw bytes
//! of its variables, as a restart would write them.

use crate::classify::VariableRef;
use crate::container::{ReadError, VariableReader, segments_of};
use crate::filter::put_on;
use crate::gathered::Gathered;
use crate::header::FileHeader;
use crate::ids::Digest;
use std::ops::Range;

/// Reads any bytes of one file.
pub struct FileReader {
    reader: VariableReader,
    file: u32,
    /// The runs of the file in the order of their offsets. The runs cover each byte of the file once.
    runs: Vec<FileRun>,
    /// The filtered chunk that was used last: its run, and its bytes in the file.
    chunk: Option<(usize, Vec<u8>)>,
}

/// A run of bytes of a file, and the raw bytes of a variable from which the run is made.
struct FileRun {
    /// Place in the file.
    place: Range<u64>,
    variable: u32,
    raw_offset: u64,
    raw_bytes: u64,
}

impl FileReader {
    /// Reads the file with this number in the index of the reader's containers. `None` if there is no such file.
    pub fn new(reader: VariableReader, file: u32) -> Option<Self> {
        let mut runs = Vec::new();
        for (variable, of) in (0..).zip(&reader.set().index().files().get(file as usize)?.variables) {
            let mut raw_offset = 0;
            for extent in &of.extents {
                let place = extent.offset..extent.offset + extent.stored_bytes;
                runs.push(FileRun { place, variable, raw_offset, raw_bytes: extent.raw_bytes });
                raw_offset += extent.raw_bytes;
            }
        }
        runs.sort_by_key(|run| (run.place.start, run.place.end));
        Some(Self { reader, file, runs, chunk: None })
    }

    /// The description of the file.
    pub fn header(&self) -> &FileHeader {
        &self.reader.set().index().files()[self.file as usize] // the file was found when this reader was made
    }

    /// Fills `into` with the bytes of the file that begin at `offset`. Fails if the file is shorter.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let end = offset.saturating_add(into.len() as u64);
        if end > self.header().bytes {
            return Err(self.invalid(format!("byte {end} is beyond the end of the file")));
        }
        let mut nth = self.runs.partition_point(|run| run.place.end <= offset);
        let mut at = offset;
        while at < end {
            let Some(run) = self.runs.get(nth) else { return Err(self.invalid(format!("byte {at} is missing"))) };
            let (from, to) = (at.max(run.place.start), end.min(run.place.end));
            if from > at {
                return Err(self.invalid(format!("byte {at} is missing")));
            }
            self.read_run(nth, from, &mut into[(from - offset) as usize..(to.max(from) - offset) as usize])?;
            at = to.max(from);
            nth += 1;
        }
        Ok(())
    }

    /// Reads the whole file in steps. Calls `each` for each step. The digest of the file is compared at the end.
    pub fn read_all<E: From<ReadError>>(&mut self, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        const STEP_BYTES: u64 = 1 << 20;
        let (bytes, recorded) = (self.header().bytes, self.header().digest);
        let (mut hasher, mut buffer) = (Gathered::default(), vec![0; STEP_BYTES.min(bytes) as usize]);
        let mut at = 0;
        while at < bytes {
            let part = &mut buffer[..STEP_BYTES.min(bytes - at) as usize];
            self.read(at, part)?;
            hasher.push(part);
            each(part)?;
            at += part.len() as u64;
        }
        let found: Digest = hasher.finish();
        if found != recorded {
            let (path, what) = (self.container(), format!("file {}", self.header().path));
            return Err(ReadError::Digest { path, what, found, recorded }.into());
        }
        Ok(())
    }

    /// The numbers of the segments that a reader needs next, if the reader goes on at `offset`. The result has at most
    /// `most` numbers, and is empty if the next segments begin far behind `offset`.
    pub fn upcoming(&self, offset: u64, most: usize) -> Vec<u32> {
        /// Number of runs that are looked at. Small chunks have many runs.
        const RUNS_MAX: usize = 512;
        let (segments, mut found) = (self.reader.segments(), Vec::new());
        let first = self.runs.partition_point(|run| run.place.end <= offset);
        for run in self.runs[first..].iter().take(RUNS_MAX) {
            let at = VariableRef { file: self.file, variable: run.variable };
            let is_filtered = !self.header().variables[run.variable as usize].filters.is_empty();
            let skipped = if is_filtered { 0 } else { offset.saturating_sub(run.place.start).min(run.raw_bytes) };
            segments_of(segments.set(), at, run.raw_offset + skipped, run.raw_bytes - skipped, |key| {
                if found.len() < most
                    && let Some(number) = segments.number_of(key)
                    && !found.contains(&number)
                {
                    found.push(number);
                }
            });
            if found.len() == most {
                break;
            }
        }
        found
    }

    /// The reader of the variables.
    pub fn reader(&self) -> &VariableReader {
        &self.reader
    }

    /// Memory of the filtered chunk that was used last, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.chunk.as_ref().map_or(0, |(_, chunk)| chunk.capacity() as u64)
    }

    /// Gives back the segment that was used last.
    pub fn rest(&mut self) {
        self.reader.rest();
    }

    /// Reads a part of one run. `from` is an offset in the file.
    fn read_run(&mut self, nth: usize, from: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let FileRun { place, variable, raw_offset, raw_bytes } = &self.runs[nth];
        let (within, at) = (from - place.start, VariableRef { file: self.file, variable: *variable });
        if self.header().variables[*variable as usize].filters.is_empty() {
            return self.reader.read(at, raw_offset + within, into);
        }
        if self.chunk.as_ref().is_none_or(|(last, _)| *last != nth) {
            // A filtered chunk has at most 64 MiB, as was checked when the index was read.
            let mut raw = vec![0; *raw_bytes as usize];
            self.reader.read(at, *raw_offset, &mut raw)?;
            let filtered = put_on(&self.header().variables[*variable as usize].filters, &raw);
            let filtered = filtered.map_err(|error| self.invalid(error.to_string()))?;
            let (found, expected) = (filtered.len() as u64, place.end - place.start);
            if found != expected {
                return Err(self.invalid(format!("a chunk has {found} bytes after its filters, not {expected}")));
            }
            self.chunk = Some((nth, filtered));
        }
        if let Some((_, chunk)) = &self.chunk {
            into.copy_from_slice(&chunk[within as usize..within as usize + into.len()]);
        }
        Ok(())
    }

    fn container(&self) -> std::path::PathBuf {
        self.reader.set().readers()[0].path().into()
    }

    fn invalid(&self, what: String) -> ReadError {
        let what = format!("{}: {what}", self.header().path);
        ReadError::Invalid { path: self.container(), part: "a file", what }
    }
}
