//! The two sides of `mcr diff`: the files of a checkpoint, or the files of a directory.

use super::open::{Opened, reader_of};
use super::sparse::Sparse;
use crate::advice::{Advised, At};
use crate::output::name_of;
use anyhow::Context;
use mcr_cnc::capture::{CaptureMode, capture};
use mcr_cnc::h5::{Array, Arrays, Maps};
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::classify::VariableRef;
use mcrengine::codec::Profile;
use mcrengine::container::{ContainerSet, VariableReader};
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{FilePath, Rank, shape_of};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the files of a side are.
pub enum Side {
    Stored(Stored),
    Directory(PathBuf, Vec<OpenFile<Arc<FileHeader>>>),
}

/// The groups of a checkpoint.
pub struct Stored {
    sets: Vec<Arc<ContainerSet>>,
    /// The class of each variable, for each group.
    classes: Vec<HashMap<VariableRef, u32>>,
    /// The reader of the group that was read last.
    reader: Option<(usize, Box<VariableReader>)>,
    bytes: u64,
}

impl Stored {
    /// The reader of a group.
    fn reader(&mut self, group: usize) -> anyhow::Result<&mut VariableReader> {
        let known = self.reader.take().filter(|(of, _)| *of == group); // the memory of another group is free first
        let reader = match known {
            Some((_, reader)) => reader,
            None => {
                let set = &self.sets[group];
                Box::new(reader_of(Arc::clone(set), &set.tasks(|_| true), self.bytes)?)
            }
        };
        Ok(&mut self.reader.insert((group, reader)).1)
    }
}

/// Place of a file in its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePlace {
    pub group: usize,
    pub file: u32,
}

impl Side {
    /// The committed groups of a checkpoint.
    pub fn of_checkpoint(opened: &Opened, bytes: u64) -> anyhow::Result<Self> {
        let sets: Vec<_> =
            opened.manifests.iter().map(|manifest| opened.set(manifest.group)).collect::<Result<_, _>>()?;
        let classes = sets.iter().map(|set| {
            let numbered = (0..).zip(set.index().classes());
            numbered.flat_map(|(number, class)| class.members.iter().map(move |member| (*member, number))).collect()
        });
        let classes = classes.collect();
        Ok(Self::Stored(Stored { sets, classes, reader: None, bytes }))
    }

    /// The files of a directory that have the paths of the other side. Missing files are left out.
    pub fn of_directory(dir: &Path, like: &Opened, other: &Self) -> anyhow::Result<Self> {
        match dir.metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let what = format!("{}: it is not a directory", name_of(dir));
                return Err(Advised::new(what, "name a directory, or the ID of a checkpoint").at(dir).into());
            }
            Err(error) => return Err(error).context(At::new(dir, "the directory cannot be read")),
        }
        let profile: Profile = like.state.profile.parse().unwrap_or(Profile::Fast);
        let mode = CaptureMode::of(like.state.scheme, &profile);
        let (maps, descriptors, mut files) = (Maps::new(), Descriptors::new(64), Vec::new());
        for header in other.places().into_iter().map(|place| other.header(place)) {
            let path = dir.join(header.path.as_path());
            if !header.kind.is_file() || !path.is_file() {
                continue;
            }
            let captured = capture(dir, &header.path, header.rank, mode, &maps);
            let captured = captured.with_context(|| At::new(&path, "cannot be read"))?;
            files.push(OpenFile::new(dir, Arc::new(captured.header), captured.fingerprint, &descriptors));
        }
        Ok(Self::Directory(dir.into(), files))
    }

    /// The places of all files.
    pub fn places(&self) -> Vec<FilePlace> {
        let of_group = |group: usize, files: usize| (0..files as u32).map(move |file| FilePlace { group, file });
        match self {
            Self::Stored(Stored { sets, .. }) => {
                let groups = sets.iter().enumerate();
                groups.flat_map(|(group, set)| of_group(group, set.index().files().len())).collect()
            }
            Self::Directory(_, files) => of_group(0, files.len()).collect(),
        }
    }

    /// The description of a file.
    pub fn header(&self, at: FilePlace) -> &FileHeader {
        match self {
            Self::Stored(stored) => &stored.sets[at.group].index().files()[at.file as usize],
            Self::Directory(_, files) => files[at.file as usize].header(),
        }
    }

    /// The place of the file that has the bytes of this file: of a hard link, the file that it names.
    pub fn content_of(&self, at: FilePlace) -> FilePlace {
        match self.header(at).kind {
            FileKind::HardLink(before) => FilePlace { file: at.file.saturating_sub(before.get()), ..at },
            _ => at,
        }
    }

    /// The key of the class of a variable; empty if the variable has no class.
    pub fn class(&self, at: FilePlace, variable: u32) -> &str {
        let Self::Stored(stored) = self else { return "" };
        let class = stored.classes[at.group].get(&VariableRef { file: at.file, variable });
        let class = class.and_then(|class| stored.sets[at.group].index().classes().get(*class as usize));
        class.map_or("", |class| &class.key)
    }

    /// Reads a dataset with the HDF5 library, which removes all filters. `None` if the dataset is not an array of
    /// numbers, is in several variables, or has more than `most` bytes. `scratch` is the path of a temporary file.
    pub fn decoded(
        &mut self,
        at: FilePlace,
        variable: u32,
        most: u64,
        scratch: &Path,
    ) -> anyhow::Result<Option<Array>> {
        let variables = &self.header(at).variables;
        let Some(name) = variables.get(variable as usize).map(|of| of.path.clone()) else { return Ok(None) };
        if variables.iter().filter(|other| other.path == name).count() > 1 {
            return Ok(None);
        }
        let read = |path: &Path| {
            let arrays = Arrays::open(path).ok()?;
            arrays.bytes(&name).ok().filter(|bytes| *bytes <= most)?;
            arrays.read(&name).ok()
        };
        match self {
            Self::Stored(stored) => {
                let sparse = Sparse::new(scratch.into(), stored.reader(at.group)?, at.file, &[variable])?;
                Ok(read(&sparse.path))
            }
            Self::Directory(dir, files) => Ok(read(&dir.join(files[at.file as usize].header().path.as_path()))),
        }
    }

    /// Fills `into` with raw bytes of a variable.
    pub fn read(&mut self, at: FilePlace, variable: u32, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        match self {
            Self::Stored(stored) => {
                let reader = stored.reader(at.group)?;
                Ok(reader.read(VariableRef { file: at.file, variable }, offset, into)?)
            }
            Self::Directory(_, files) => Ok(files[at.file as usize].read_raw(variable as usize, offset, into)?),
        }
    }
}

/// The files of both sides that belong together, and the files of only one side.
#[derive(Debug, Default)]
pub struct Paired {
    pub both: Vec<(FilePlace, FilePlace)>,
    pub only_a: Vec<FilePlace>,
    pub only_b: Vec<FilePlace>,
}

/// Files of one side whose paths differ only in numbers.
type Files = Vec<(FilePath, FilePlace)>;

/// Pairs the files of both sides. Files with the same path belong together. Of the other files, two files belong
/// together if their paths differ only in numbers, such as the number of the step, and if their ranks are equal.
pub fn paired((side_a, a): (&Side, &[FilePlace]), (side_b, b): (&Side, &[FilePlace])) -> Paired {
    let path = |side: &'_ Side, place: FilePlace| side.header(place).path.clone();
    let of_b: HashMap<FilePath, FilePlace> = b.iter().map(|place| (path(side_b, *place), *place)).collect();
    let same = |place: &FilePlace| of_b.get(&path(side_a, *place)).map(|other| (*place, *other));
    let mut paired = Paired { both: a.iter().filter_map(same).collect(), ..Paired::default() };
    let mut similar: BTreeMap<(Rank, Vec<u8>), [Files; 2]> = BTreeMap::new();
    let taken: [std::collections::BTreeSet<FilePlace>; 2] =
        [paired.both.iter().map(|(a, _)| *a).collect(), paired.both.iter().map(|(_, b)| *b).collect()];
    for (nth, (side, places)) in [(side_a, a), (side_b, b)].into_iter().enumerate() {
        for place in places.iter().filter(|place| !taken[nth].contains(place)) {
            let (rank, path) = (side.header(*place).rank, path(side, *place));
            let shape = shape_of(&path.to_string());
            similar.entry((rank, shape)).or_default()[nth].push((path, *place));
        }
    }
    for [mut of_a, mut of_b] in similar.into_values() {
        of_a.sort_unstable();
        of_b.sort_unstable();
        let both = of_a.len().min(of_b.len());
        paired.both.extend(of_a.iter().zip(&of_b).map(|((_, a), (_, b))| (*a, *b)));
        paired.only_a.extend(of_a[both..].iter().map(|(_, place)| *place));
        paired.only_b.extend(of_b[both..].iter().map(|(_, place)| *place));
    }
    paired.both.sort_unstable();
    paired
}
