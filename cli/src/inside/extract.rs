//! `mcr extract`: one variable of all ranks, as a NumPy array or an HDF5 file.
//!
//! A sparse file is made from the skeleton and the wanted variables of each file, and the HDF5 library reads the
//! datasets from it.

use super::args::ExtractArgs;
use super::ls::shape_of;
use super::npy;
use super::open::{Opened, reader_of};
use super::sparse::Sparse;
use crate::advice::{Advised, At, full_disk_in, message_of};
use crate::output::{Table, counted, name_of, print, print_json, printed};
use crate::ranks::RankSet;
use anyhow::{Context, bail};
use globset::{GlobBuilder, GlobMatcher};
use mcr_cnc::h5::{Array, Arrays, NewArrays};
use mcrengine::classify::VariableRef;
use mcrengine::container::{ContainerSet, VariableReader};
use mcrengine::header::Role;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// A variable of a file.
#[derive(serde::Serialize)]
struct Piece {
    rank: u32,
    file: String,
    variable: String,
    shape: Vec<u64>,
    /// Index in the first dimension of the array at which the piece begins. In an HDF5 file: the path of the dataset.
    at: Place,
    #[serde(skip)]
    raw_bytes: u64,
    /// Whether the chunks are stored as they are in the file. The variable's header then has the number of stored
    /// bytes instead of the shape.
    #[serde(skip)]
    has_stored_chunks: bool,
    #[serde(skip)]
    at_variable: (usize, VariableRef),
}

#[derive(serde::Serialize)]
#[serde(untagged)]
enum Place {
    Index(u64),
    Dataset(String),
}

/// How pieces become one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joined {
    /// The pieces have equal shapes. A new first dimension counts the pieces.
    Stacked,
    /// The pieces differ only in their first dimension.
    Appended,
    /// The pieces differ. The array has one dimension with all elements.
    Flat,
}

impl Joined {
    fn of(shapes: &[&[u64]]) -> Self {
        let Some(first) = shapes.first() else { return Self::Flat };
        if shapes.iter().all(|shape| shape == first) {
            return Self::Stacked;
        }
        let is_like = |shape: &&&[u64]| !shape.is_empty() && !first.is_empty() && shape[1..] == first[1..];
        if shapes.iter().filter(is_like).count() == shapes.len() { Self::Appended } else { Self::Flat }
    }

    /// The shape of the array, and the index in the first dimension at which each piece begins.
    fn shape(self, shapes: &[&[u64]]) -> (Vec<u64>, Vec<u64>) {
        let length = |shape: &[u64]| match self {
            Self::Stacked => 1,
            Self::Appended => shape[0],
            Self::Flat => shape.iter().product(),
        };
        let (mut begins, mut end) = (Vec::new(), 0);
        for shape in shapes {
            begins.push(end);
            end += length(shape);
        }
        let rest = match (self, shapes.first()) {
            (Self::Stacked, Some(first)) => first,
            (Self::Appended, Some(first)) => &first[1..],
            _ => &[][..],
        };
        (std::iter::once(end).chain(rest.iter().copied()).collect(), begins)
    }

    /// The name in the output for people.
    fn name(self) -> &'static str {
        match self {
            Self::Stacked => "stacked: the first dimension counts the pieces",
            Self::Appended => "appended along the first dimension",
            Self::Flat => "flat: the pieces have different shapes",
        }
    }

    /// The name as one word, for `--json`.
    fn word(self) -> &'static str {
        match self {
            Self::Stacked => "stacked",
            Self::Appended => "appended",
            Self::Flat => "flat",
        }
    }
}

pub fn run(args: ExtractArgs) -> anyhow::Result<ExitCode> {
    let is_npy = match args.to.extension().and_then(|end| end.to_str()) {
        Some("npy") => true,
        Some("h5" | "hdf5") => false,
        _ => {
            let what = format!("--to {}: the name must end with .npy or .h5", name_of(&args.to));
            return Err(Advised::new(what, "give a name with one of these ends").at(&args.to).into());
        }
    };
    if let Ok(found) = args.to.symlink_metadata() {
        let kind = if found.is_dir() { "directory" } else { "file" };
        let what = format!("--to {}: the {kind} exists already", name_of(&args.to));
        return Err(Advised::new(what, "give another name").at(&args.to).into());
    }
    let directory = args.to.parent().filter(|directory| !directory.as_os_str().is_empty());
    if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
        let what = format!("--to {}: there is no directory {}", name_of(&args.to), name_of(directory));
        return Err(Advised::new(what, "make this directory, or name another path").at(&args.to).into());
    }
    let patterns = args.variable.iter().map(|text| pattern(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let opened = Opened::whole(&args.store, &args.checkpoint)?;
    if !opened.state.is_complete() {
        bail!("{} is not complete, so a variable of all ranks cannot be extracted", opened.state.id);
    }
    if let Some(highest) = args.ranks.as_ref().map(RankSet::highest)
        && highest.0 >= opened.state.ranks
    {
        let (id, ranks) = (&opened.state.id, opened.state.ranks);
        let what = format!("--ranks names {highest}, but {id} has {}", counted(ranks, "rank"));
        return Err(Advised::new(what, format!("name ranks from 0 to {}", ranks.saturating_sub(1))).into());
    }
    let sets = opened.manifests.iter().map(|manifest| opened.set(manifest.group)).collect::<Result<Vec<_>, _>>()?;
    let mut pieces = pieces(&sets, &patterns, &args);
    if pieces.is_empty() {
        let (id, all) = (&opened.state.id, args.variable.join(" "));
        let of = if args.ranks.is_some() { " in the ranks of --ranks" } else { "" };
        bail!("{id} has no array {all}{of}; `mcr ls {id} --variables` and `mcr show {id}` list what is there");
    }
    if let Some(large) = pieces.iter().find(|piece| piece.raw_bytes > args.budget_mib << 20) {
        let (name, mib) = (&large.variable, large.raw_bytes.div_ceil(1 << 20));
        bail!("{name} of {} has {mib} MiB; give --budget-mib {mib} or more", large.file);
    }
    let made = match is_npy {
        true => write_npy(&sets, &mut pieces, &args).map(Some),
        false => write_h5(&sets, &mut pieces, &args).map(|()| None),
    };
    if made.is_err() {
        let _ = std::fs::remove_file(&args.to);
    }
    let made = made.map_err(|error| of_full_disk(error, &args.to))?;
    printed(report(&opened, &pieces, made, &args), || Some(format!("{} IS written", name_of(&args.to))))?;
    Ok(ExitCode::SUCCESS)
}

/// The error of a file that cannot be written because its file system is full. Other errors are returned unchanged. The
/// HDF5 library gives the reason only as a text.
fn of_full_disk(error: anyhow::Error, to: &Path) -> anyhow::Error {
    let Some(reason) = full_disk_in(&message_of(&error)) else { return error };
    let what = format!("{}: cannot be written: {reason}", name_of(to));
    Advised::new(what, "free space, or give another directory").at(to).into()
}

fn pattern(text: &str) -> anyhow::Result<GlobMatcher> {
    let glob = GlobBuilder::new(text.trim_start_matches('/')).literal_separator(true).build();
    Ok(glob.with_context(|| format!("--variable {text}"))?.compile_matcher())
}

/// The wanted arrays, by group, then by file.
fn pieces(sets: &[Arc<ContainerSet>], patterns: &[GlobMatcher], args: &ExtractArgs) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (group, set) in sets.iter().enumerate() {
        for (at, header) in set.index().variables() {
            let file = &set.index().files()[at.file as usize];
            let name = header.path.trim_start_matches('/');
            let is_array = matches!(header.role, Role::Array | Role::StoredChunks);
            let is_wanted = args.ranks.as_ref().is_none_or(|ranks| ranks.contains(file.rank));
            if is_array && is_wanted && file.kind.is_regular() && patterns.iter().any(|glob| glob.is_match(name)) {
                pieces.push(Piece {
                    rank: file.rank.0,
                    file: file.path.to_string(),
                    variable: header.path.to_string(),
                    shape: header.shape.0.to_vec(),
                    at: Place::Index(0),
                    raw_bytes: header.raw_bytes.0,
                    has_stored_chunks: header.role == Role::StoredChunks,
                    at_variable: (group, at),
                });
            }
        }
    }
    pieces
}

/// Reads all pieces in their order. Only the pieces of one file are on the disk at the same time.
struct Reading<'a> {
    sets: &'a [Arc<ContainerSet>],
    args: &'a ExtractArgs,
    left: VecDeque<&'a Piece>,
    /// Group, file and variable of all pieces.
    wanted: BTreeSet<(usize, u32, u32)>,
    /// The open sparse file with its arrays. The two numbers are the group and the file whose variables it has.
    open: Option<((usize, u32), Arrays, Sparse)>,
    /// A group and its reader.
    reader: Option<(usize, VariableReader)>,
}

impl<'a> Reading<'a> {
    fn new(sets: &'a [Arc<ContainerSet>], args: &'a ExtractArgs, pieces: &'a [Piece]) -> Self {
        let wanted = pieces.iter().map(|piece| {
            let (group, VariableRef { file, variable }) = piece.at_variable;
            (group, file, variable)
        });
        Self { sets, args, left: pieces.iter().collect(), wanted: wanted.collect(), open: None, reader: None }
    }

    fn next(&mut self) -> anyhow::Result<Option<(&'a Piece, Array)>> {
        let Some(piece) = self.left.pop_front() else { return Ok(None) };
        let (group, at) = piece.at_variable;
        if self.open.as_ref().is_none_or(|(open, ..)| *open != (group, at.file)) {
            self.open = None;
            let of_file = self.wanted.range((group, at.file, 0)..=(group, at.file, u32::MAX));
            let variables: Vec<u32> = of_file.map(|(_, _, variable)| *variable).collect();
            if self.reader.as_ref().is_none_or(|(of, _)| *of != group) {
                self.reader = Some((group, self.reader_of(group)?));
            }
            let Some((_, reader)) = &mut self.reader else { return Ok(None) };
            let sparse = Sparse::new(beside(&self.args.to), reader, at.file, &variables)
                .with_context(|| format!("{}: its variables cannot be read", piece.file))?;
            let arrays = Arrays::open(&sparse.path).with_context(|| piece.file.clone())?;
            self.open = Some(((group, at.file), arrays, sparse));
        }
        let Some((_, arrays, _)) = &self.open else { return Ok(None) };
        let array = arrays.read(&piece.variable);
        let array = array.with_context(|| format!("{}: {} cannot be read", piece.file, piece.variable))?;
        Ok(Some((piece, array)))
    }

    /// A reader of the wanted variables of a group, and of the skeletons of their files.
    fn reader_of(&self, group: usize) -> anyhow::Result<VariableReader> {
        let set = &self.sets[group];
        let tasks = set.tasks(|at| {
            let of_file = (group, at.file, 0)..=(group, at.file, u32::MAX);
            let is_skeleton = at.of(set.index().files()).role == Role::Skeleton;
            self.wanted.contains(&(group, at.file, at.variable))
                || is_skeleton && self.wanted.range(of_file).next().is_some()
        });
        reader_of(Arc::clone(set), &tasks, self.args.budget_mib << 20)
    }
}

/// The path of a temporary file in the same directory.
fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn write_npy(
    sets: &[Arc<ContainerSet>],
    pieces: &mut [Piece],
    args: &ExtractArgs,
) -> anyhow::Result<(Joined, Vec<u64>)> {
    // The header comes first in the file, so all shapes must be known before.
    if pieces.iter().any(|piece| piece.has_stored_chunks) {
        let (mut reading, mut shapes) = (Reading::new(sets, args, pieces), Vec::new());
        while let Some((_, array)) = reading.next()? {
            shapes.push(array.shape);
        }
        drop(reading);
        set_shapes(pieces, shapes);
    }
    let shapes: Vec<&[u64]> = pieces.iter().map(|piece| &*piece.shape).collect();
    let joined = Joined::of(&shapes);
    let (shape, begins) = joined.shape(&shapes);
    {
        let mut reading = Reading::new(sets, args, pieces);
        let mut next = reading.next()?;
        let descr = next.as_ref().map_or("<f8", |(_, array)| array.numbers.descr());
        let out = File::options().write(true).create_new(true).open(&args.to);
        let out = out.with_context(|| At::new(&args.to, "cannot be created"))?;
        let mut out = BufWriter::new(out);
        out.write_all(&npy::header(descr, &shape))?;
        while let Some((piece, array)) = next.take() {
            let (name, found) = (&piece.variable, array.numbers.descr());
            if found != descr {
                bail!("{name} of {} has the type {found}, others have {descr}; use --to FILE.h5", piece.file);
            }
            if array.shape.iter().product::<u64>() != piece.shape.iter().product::<u64>() {
                let (read, listed) = (shape_of(&array.shape), shape_of(&piece.shape));
                bail!("{name} of {} has the shape {read} in the file, and {listed} in the index", piece.file);
            }
            out.write_all(&array.numbers.to_le_bytes())?;
            next = reading.next()?;
        }
        out.flush()?;
    }
    pieces.iter_mut().zip(begins).for_each(|(piece, begin)| piece.at = Place::Index(begin));
    Ok((joined, shape))
}

fn write_h5(sets: &[Arc<ContainerSet>], pieces: &mut [Piece], args: &ExtractArgs) -> anyhow::Result<()> {
    let name = |piece: &Piece| format!("{}/{}", piece.file.trim_matches('/'), piece.variable.trim_start_matches('/'));
    let out = NewArrays::create(&args.to).with_context(|| At::new(&args.to, "cannot be created"))?;
    let (mut reading, mut shapes) = (Reading::new(sets, args, pieces), Vec::new());
    while let Some((piece, array)) = reading.next()? {
        out.add(&name(piece), &array, piece.rank).with_context(|| format!("{}: cannot be written", name(piece)))?;
        shapes.push(array.shape);
    }
    drop(reading);
    out.finish().with_context(|| At::new(&args.to, "cannot be written"))?;
    set_shapes(pieces, shapes);
    pieces.iter_mut().for_each(|piece| piece.at = Place::Dataset(name(piece)));
    Ok(())
}

fn set_shapes(pieces: &mut [Piece], shapes: Vec<Vec<u64>>) {
    pieces.iter_mut().zip(shapes).for_each(|(piece, shape)| piece.shape = shape);
}

fn report(
    opened: &Opened,
    pieces: &[Piece],
    joined: Option<(Joined, Vec<u64>)>,
    args: &ExtractArgs,
) -> anyhow::Result<()> {
    let id = &opened.state.id;
    if args.json {
        return print_json(&serde_json::json!({
            "job": opened.job, "checkpoint": id, "file": name_of(&args.to), "pieces": pieces,
            "shape": joined.as_ref().map(|(_, shape)| shape), "joined": joined.as_ref().map(|(how, _)| how.word()),
        }));
    }
    let mut table = Table::new(&[">rank", "file", "variable", "shape", "at"]);
    for piece in pieces {
        let at = match &piece.at {
            Place::Index(index) => index.to_string(),
            Place::Dataset(path) => path.clone(),
        };
        table.row([piece.rank.to_string(), piece.file.clone(), piece.variable.clone(), shape_of(&piece.shape), at]);
    }
    print(&table.render())?;
    let how = joined.map(|(how, shape)| format!(", an array of {} ({})", shape_of(&shape), how.name()));
    let count = counted(pieces.len() as u64, "piece");
    print(&format!("{count} of {id} to {}{}\n", args.to.display(), how.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_stacked_appended_or_made_flat() {
        let joined = |shapes: &[&[u64]]| {
            let how = Joined::of(shapes);
            (how, how.shape(shapes))
        };
        assert_eq!(joined(&[&[2, 3], &[2, 3]]), (Joined::Stacked, (vec![2, 2, 3], vec![0, 1])));
        assert_eq!(joined(&[&[2, 3], &[4, 3]]), (Joined::Appended, (vec![6, 3], vec![0, 2])));
        assert_eq!(joined(&[&[2, 3], &[3, 2]]), (Joined::Flat, (vec![12], vec![0, 6])));
        assert_eq!(joined(&[&[], &[]]), (Joined::Stacked, (vec![2], vec![0, 1])));
        assert_eq!(joined(&[&[], &[5]]), (Joined::Flat, (vec![6], vec![0, 1])));
    }
}
