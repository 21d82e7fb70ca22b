//! The checkpoints of this application: one HDF5 file for each rank and step, `heat.it_000120.rank_3.h5`. Like most
//! applications, this application writes the file directly under its final name. If a rank is killed while it is
//! writing, an incomplete file remains. [`read`] detects an incomplete file.

use crate::Failure;
use crate::solver::{Block, Grid};
use hdf5::{Dataset, File, H5Type};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Path of a rank's file of a step.
pub fn path(dir: &Path, step: u64, rank: u32) -> PathBuf {
    dir.join(format!("heat.it_{step:06}.rank_{rank}.h5"))
}

/// The steps for which this rank has a complete or incomplete file, newest first.
pub fn steps(dir: &Path, rank: u32) -> Result<Vec<u64>, Failure> {
    let trouble = |source| Failure::File { path: dir.to_owned(), doing: "reading the directory", source };
    let mut steps = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(trouble)? {
        let name = entry.map_err(trouble)?.file_name();
        let step = name
            .to_str()
            .and_then(|name| name.strip_prefix("heat.it_")?.strip_suffix(&format!(".rank_{rank}.h5")))
            .and_then(|digits| digits.parse::<u64>().ok());
        steps.extend(step);
    }
    steps.sort_unstable_by(|a, b| b.cmp(a));
    Ok(steps)
}

/// Writes a block. The file is complete when this function returns.
pub fn write(dir: &Path, rank: u32, ranks: u32, block: &Block) -> Result<(), Failure> {
    let path = path(dir, block.step, rank);
    let trouble = |source| Failure::Hdf5 { path: path.clone(), doing: "writing", source };
    write_file(&path, rank, ranks, block).map_err(trouble)
}

fn write_file(path: &Path, rank: u32, ranks: u32, block: &Block) -> hdf5::Result<()> {
    let file = File::create(path)?;
    let Grid { nx, ny, nz } = block.grid;
    let shape = (block.planes.len(), ny, nx);
    attribute(&file, "step", block.step)?;
    attribute(&file, "time", block.step as f64 * block.dt())?;
    attribute(&file, "rank", rank)?;
    attribute(&file, "ranks", ranks)?;
    attribute(&file, "first_plane", block.planes.start as u64)?;
    file.new_attr::<u64>().shape(3).create("grid")?.write(&[nz as u64, ny as u64, nx as u64])?;

    let state = file.create_group("state")?;
    let temperature = state.new_dataset::<f64>().shape(shape).create("temperature")?;
    temperature.write_raw(&block.temperature[block.own()])?;
    attribute(&temperature, "mean", block.mean)?;
    state.new_dataset::<i32>().shape(shape).create("melted_step")?.write_raw(&block.melted_step)?;
    state.new_dataset::<f64>().create("regulator_integral")?.write_scalar(&block.integral)?;
    file.create_group("material")?
        .new_dataset::<f32>()
        .shape(shape)
        .create("conductivity")?
        .write_raw(&block.conductivity[block.own()])?;
    // This dataset is only for inspection. The dataset is compressed, as in many applications.
    file.create_group("diagnostics")?
        .new_dataset::<f32>()
        .chunk((1, ny, nx))
        .shuffle()
        .deflate(4)
        .shape(shape)
        .create("vertical_flux")?
        .write_raw(&block.vertical_flux())?;
    file.close()
}

fn attribute<T: H5Type>(on: &hdf5::Location, name: &str, value: T) -> hdf5::Result<()> {
    on.new_attr::<T>().create(name)?.write_scalar(&value)
}

/// Reads the block of a rank. The error says why the file cannot be used. First compares the attributes of the file
/// with this run.
pub fn read(dir: &Path, step: u64, rank: u32, ranks: u32, grid: Grid, planes: Range<usize>) -> Result<Block, Failure> {
    let path = path(dir, step, rank);
    let trouble = |source| Failure::Hdf5 { path: path.clone(), doing: "reading", source };
    let file = File::open(&path).map_err(trouble)?;
    let number = |name: &str| file.attr(name)?.read_scalar::<u64>();
    let run = (step, u64::from(rank), u64::from(ranks), planes.start as u64);
    let found = number("step")
        .and_then(|step| Ok((step, number("rank")?, number("ranks")?, number("first_plane")?)))
        .map_err(trouble)?;
    if found != run {
        return Err(Failure::OtherRun { path, found: format!("{found:?}"), expected: format!("{run:?}") });
    }
    read_state(&file, Block::cold(grid, planes), step).map_err(trouble)
}

fn read_state(file: &File, mut block: Block, step: u64) -> hdf5::Result<Block> {
    let shape = [block.planes.len(), block.grid.ny, block.grid.nx];
    let sized = |name: &str| -> hdf5::Result<Dataset> {
        let dataset = file.dataset(name)?;
        match dataset.shape() == shape {
            true => Ok(dataset),
            false => Err(format!("{name} has {:?} cells, not {shape:?}", dataset.shape()).into()),
        }
    };
    let own = block.own();
    let temperature = sized("state/temperature")?;
    block.temperature[own.clone()].copy_from_slice(&temperature.read_raw()?);
    block.mean = temperature.attr("mean")?.read_scalar()?;
    block.melted_step = sized("state/melted_step")?.read_raw()?;
    block.conductivity[own].copy_from_slice(&sized("material/conductivity")?.read_raw::<f32>()?);
    block.integral = file.dataset("state/regulator_integral")?.read_scalar()?;
    block.step = step;
    Ok(block)
}
