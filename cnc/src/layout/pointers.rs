//! Names of pointer files. A pointer file names the newest checkpoint, and is not part of a checkpoint.

/// Maximum length of a pointer file, in bytes.
pub const POINTER_BYTES_MAX: u64 = 64 << 10;

/// Whether applications use this name for pointer files. Examples are CESM's `rpointer.ocn`, MPAS's
/// `restart_timestamp`, `checkpoints.txt`, `latest_checkpoint`, `last.txt` and TensorFlow's `checkpoint`.
pub fn is_pointer_name(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let stem = name.split(|&b| b == b'.').next().unwrap_or(&name);
    let has = |text: &[u8]| name.windows(text.len()).any(|window| window == text);
    let is_list = matches!(stem, b"checkpoint" | b"checkpoints" | b"restart" | b"restarts")
        && matches!(&name[stem.len()..], b"" | b".txt" | b".dat" | b".list" | b".lst" | b".json" | b".info");
    !is_log_name(&name)
        && (has(b"pointer")
            || has(b"latest")
            || name == b"restart_timestamp"
            || stem.starts_with(b"last")
            || name.ends_with(b".last")
            || is_list)
}

/// Whether this is the name of a log file.
pub fn is_log_name(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    [&b".log"[..], b".out", b".err", b".stdout", b".stderr"].iter().any(|end| name.ends_with(end))
}
