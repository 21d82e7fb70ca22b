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

/// Words of [`CHECKPOINT_WORDS`] that name a kind of file, and no step. The number after such a word may be the number
/// of a rank, as in `step_100/state_3.dat`.
const KIND_WORDS: &[&[u8]] =
    &[b"dump", b"restart", b"rst", b"snapshot", b"snap", b"frame", b"state", b"save", b"output"];

/// Words of [`CHECKPOINT_WORDS`] before the number of a time step.
const TIME_WORDS: &[&[u8]] =
    &[b"it", b"iter", b"iteration", b"step", b"ts", b"t", b"time", b"cycle", b"day", b"year", b"epoch"];

/// Words of [`TIME_WORDS`] and `cp`, with which the name of a directory may mean something else than one checkpoint:
/// `t2` may be a trial, and an epoch may have several checkpoints.
const LOOSE_WORDS: &[&[u8]] = &[b"t", b"ts", b"cp", b"day", b"year", b"epoch"];

pub(super) fn is_of_kind(word: &[u8]) -> bool {
    KIND_WORDS.contains(&word)
}

pub(super) fn is_of_time(word: &[u8]) -> bool {
    TIME_WORDS.contains(&word)
}

/// Whether a directory with a number after this word is one checkpoint, such as `ckpt_10`.
pub(super) fn is_of_step_directory(word: &[u8]) -> bool {
    CHECKPOINT_WORDS.contains(&word) && !is_of_kind(word) && !LOOSE_WORDS.contains(&word)
}

/// Whether a number after this word may be something else than a step: `T300` and `T350` may be two temperatures.
pub(super) fn is_loose(word: &[u8]) -> bool {
    LOOSE_WORDS.contains(&word)
}

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

/// Endings of the names of pictures and films.
const IMAGES: [&[u8]; 8] = [b".png", b".jpg", b".jpeg", b".gif", b".pdf", b".eps", b".svg", b".mp4"];

/// Endings of the names of tables that people make from checkpoints.
const TABLES: [&[u8]; 3] = [b".txt", b".csv", b".html"];

fn ends_with(name: &[u8], ends: &[&[u8]]) -> bool {
    let name = name.to_ascii_lowercase();
    ends.iter().any(|end| name.ends_with(end))
}

/// Whether a file is a picture or a film. No code restarts from such a file.
pub(super) fn is_image(name: &[u8]) -> bool {
    ends_with(name, &IMAGES)
}

/// Whether a file is a picture, a film or a table.
pub(super) fn is_picture(name: &[u8]) -> bool {
    is_image(name) || ends_with(name, &TABLES)
}
