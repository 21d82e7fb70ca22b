//! `mcr ls`: the files of a checkpoint, and their variables.

use super::args::LsArgs;
use super::open::Opened;
use crate::exit::Exit;
use crate::output::{Table, print, print_json, utc};
use anyhow::bail;
use mcrengine::container::{ContainerReader, VariableReader};
use mcrengine::header::{FileHeader, FileKind, Role, VariableHeader};
use mcrengine::image::FileReader;
use std::process::ExitCode;

pub fn run(args: LsArgs) -> anyhow::Result<ExitCode> {
    let opened = Opened::new(&args.store, &args.checkpoint)?;
    let mut table = match args.variables {
        true => Table::new(&["~file", ">rank", "~variable", "type", "shape", ">bytes"]),
        false => Table::new(&["mode", ">rank", ">bytes", "modified (UTC)", "~file"]),
    };
    let (mut listed, mut values) = (0, Vec::new());
    for manifest in &opened.manifests {
        let reader = ContainerReader::open(&opened.store, &opened.job, &opened.state.id, manifest.group)?;
        let is_asked = |file: &&FileHeader| args.files.is_empty() || args.files.iter().any(|g| g.is_for(&file.path));
        for (number, file) in (0..).zip(reader.index().files()).filter(|(_, file)| is_asked(file)) {
            listed += 1;
            let link = match file.kind {
                FileKind::SymbolicLink => Some(link_of(&opened, manifest.group, number)?),
                _ => None,
            };
            if args.json {
                values.push(described(file, link.as_deref()));
            } else if args.variables {
                file.variables.iter().for_each(|variable| table.row(variable_row(file, variable)));
            } else {
                table.row(file_row(file, link.as_deref()));
            }
        }
    }
    if listed == 0 && !args.files.is_empty() {
        bail!("{} has no file that the pattern names; `mcr ls {}` lists all", opened.state.id, opened.state.id);
    }
    if args.json {
        let (job, id) = (&opened.job, &opened.state.id);
        print_json(&serde_json::json!({ "job": job, "checkpoint": id, "files": values }))?;
    } else {
        print(&table.render())?;
    }
    Ok(Exit::of(1, !opened.state.is_complete()).into())
}

/// The text of a symbolic link.
fn link_of(opened: &Opened, group: mcrengine::ids::GroupId, file: u32) -> anyhow::Result<String> {
    let reader: VariableReader = super::open::reader_of_file(opened.set(group)?, file, 1 << 20)?;
    let mut text = Vec::new();
    if let Some(mut file) = FileReader::new(reader, file) {
        file.read_all(|part| {
            text.extend_from_slice(part);
            Ok::<(), mcrengine::container::ReadError>(())
        })?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn file_row(file: &FileHeader, link: Option<&str>) -> [String; 5] {
    let name = match link {
        Some(link) => format!("{} -> {link}", file.path),
        None => file.path.to_string(),
    };
    let modified = utc(u64::try_from(file.modified_ns / 1_000_000).unwrap_or(0));
    [mode_of(file), file.rank.0.to_string(), file.bytes.to_string(), modified, name]
}

fn variable_row(file: &FileHeader, variable: &VariableHeader) -> [String; 6] {
    [
        file.path.to_string(),
        file.rank.0.to_string(),
        name_of(variable).to_owned(),
        variable.element.to_string(),
        shape_of(&variable.shape.0),
        variable.raw_bytes.0.to_string(),
    ]
}

/// The name of a variable. Variables without a path are named by their role.
pub fn name_of(variable: &VariableHeader) -> &str {
    match variable.role {
        Role::Skeleton => "(skeleton)",
        Role::WholeFile => "(whole file)",
        Role::Array | Role::StoredChunks => &variable.path,
    }
}

/// The role of a variable, for `--json`.
fn role_of(variable: &VariableHeader) -> &'static str {
    match variable.role {
        Role::Skeleton => "skeleton",
        Role::WholeFile => "whole-file",
        Role::Array => "array",
        Role::StoredChunks => "stored-chunks",
    }
}

/// The dimensions of an array, as `64 x 64`.
pub fn shape_of(shape: &[u64]) -> String {
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ")
}

/// A file, for `--json`.
pub fn described(file: &FileHeader, link: Option<&str>) -> serde_json::Value {
    let variable = |variable: &VariableHeader| {
        serde_json::json!({
            "path": variable.path, "role": role_of(variable), "element": variable.element.to_string(),
            "shape": variable.shape.0, "raw_bytes": variable.raw_bytes, "filters": variable.filters.len(),
        })
    };
    serde_json::json!({
        "path": file.path.to_string(), "rank": file.rank.0, "bytes": file.bytes, "kind": file.kind,
        "mode": file.mode, "modified_ns": file.modified_ns, "digest": file.digest.to_hex(), "link": link,
        "variables": file.variables.iter().map(variable).collect::<Vec<_>>(),
    })
}

/// Kind and permission bits, as `ls -l` shows them.
fn mode_of(file: &FileHeader) -> String {
    let kind = match file.kind {
        FileKind::Directory => 'd',
        FileKind::SymbolicLink => 'l',
        FileKind::Regular | FileKind::Pointer | FileKind::HardLink(_) => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate().map(|(n, c)| if file.mode >> (8 - n) & 1 == 1 { c } else { '-' });
    std::iter::once(kind).chain(bits).collect()
}
