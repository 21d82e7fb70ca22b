//! Words before the numbers in file names, in lower case.

/// Words before the number of a rank.
pub(super) const RANK_WORDS: &[&[u8]] = &[
    b"rank",
    b"proc",
    b"processor",
    b"cpu",
    b"p",
    b"pe",
    b"r",
    b"n",
    b"np",
    b"file",
    b"task",
    b"mpi",
    b"core",
    b"tile",
    b"worker",
    b"part",
    b"domain",
    b"id",
    b"shard",
];

/// Words before the number of a checkpoint.
pub(super) const CHECKPOINT_WORDS: &[&[u8]] = &[
    b"it",
    b"iter",
    b"iteration",
    b"step",
    b"ts",
    b"t",
    b"time",
    b"cycle",
    b"ckpt",
    b"chk",
    b"chkpt",
    b"chkpoint",
    b"chkpnt",
    b"checkpoint",
    b"checkpoints",
    b"cp",
    b"dump",
    b"restart",
    b"rst",
    b"snapshot",
    b"snap",
    b"dd",
    b"rd",
    b"frame",
    b"state",
    b"save",
    b"output",
    b"day",
    b"year",
    b"epoch",
];

/// Words before the number of a part of the state, such as a variable.
pub(super) const PART_WORDS: &[&[u8]] = &[
    b"var",
    b"variable",
    b"field",
    b"comp",
    b"component",
    b"quantity",
    b"array",
    b"tracer",
    b"species",
    b"spec",
    b"moment",
    b"mode",
    b"phase",
    b"material",
    b"channel",
    b"layer",
    b"level",
    b"lev",
    b"grid",
    b"patch",
    b"block",
    b"mesh",
    b"chunk",
    b"slice",
    b"plane",
    b"axis",
    b"dim",
];

/// Endings of the names of pictures, films and tables that people make from checkpoints.
const PICTURES: [&[u8]; 11] =
    [b".png", b".jpg", b".jpeg", b".gif", b".pdf", b".eps", b".svg", b".mp4", b".txt", b".csv", b".html"];

pub(super) fn is_picture(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    PICTURES.iter().any(|end| name.ends_with(end))
}
