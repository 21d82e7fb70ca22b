//! `mcr cat`: the bytes of one file.

use super::args::CatArgs;
use super::ls::described;
use super::open::{Opened, reader_of_file};
use crate::output::{check_out, print_json, write_out};
use anyhow::{Context, bail};
use mcrengine::header::FileKind;
use mcrengine::image::FileReader;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

pub fn run(args: CatArgs) -> anyhow::Result<ExitCode> {
    let opened = Opened::new(&args.store, &args.checkpoint)?;
    let asked = args.file.as_bytes();
    let has_file =
        |manifest: &&mcrengine::manifest::Manifest| manifest.files.iter().any(|file| file.path.as_bytes() == asked);
    let (id, name) = (&opened.state.id, args.file.display());
    let manifest = opened.manifests.iter().find(has_file);
    let manifest = manifest.with_context(|| format!("{id} has no file {name}; `mcr ls {id}` lists all"))?;
    let set = opened.set(manifest.group)?;
    let file = set.index().files().iter().position(|file| file.path.as_bytes() == asked);
    let file = file.with_context(|| format!("{name} is in the manifest of {id}, but not in the container"))? as u32;
    let mut reader = FileReader::new(reader_of_file(set, file, args.budget_mib << 20)?, file)
        .with_context(|| format!("{id} has no file {name}"))?;
    if args.json {
        print_json(&described(reader.header(), None))?;
        return Ok(ExitCode::SUCCESS);
    }
    if reader.header().kind == FileKind::Directory {
        bail!("{name} is a directory");
    }
    check_out()?;
    reader.read_all(|part| write_out(part).map_err(anyhow::Error::from))?;
    Ok(ExitCode::SUCCESS)
}
