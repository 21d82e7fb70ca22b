//! Names that show that a file is no part of a state: names of pointer files, logs, outputs for analysis, older copies
//! and unfinished files. A pointer file names the newest checkpoint.

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

/// Whether this is the name of a log file, such as `run.log` and `log.lammps`. Each rank may have a log: WRF's
/// `rsl.out.0003`, MITgcm's `STDOUT.0003`.
pub fn is_log_name(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let of_rank = name.iter().rposition(|&b| b == b'.').filter(|dot| {
        let rank = &name[dot + 1..];
        !rank.is_empty() && rank.iter().all(u8::is_ascii_digit)
    });
    let stem = of_rank.map_or(&name[..], |dot| &name[..dot]);
    [&b".log"[..], b".out", b".err", b".stdout", b".stderr"].iter().any(|end| name.ends_with(end))
        || [&b".log"[..], b".stdout", b".stderr"].iter().any(|end| stem.ends_with(end))
        || name.starts_with(b"log.")
        || [&b"rsl.out"[..], b"rsl.error", b"stdout", b"stderr"].contains(&stem)
}

/// Whether this is the name of an output for analysis, from which no code restarts: plot files of FLASH, AMReX and
/// Athena++, diagnostics of WarpX, histories and means of ROMS and WRF, files for visualization programs.
fn is_product_name(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let has = |text: &[u8]| name.windows(text.len()).any(|window| window == text);
    let is_numbered =
        |text: &[u8]| name.strip_prefix(text).is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit));
    let ends: [&[u8]; 8] = [b".vtk", b".vtu", b".pvtu", b".pvd", b".xdmf", b".xmf", b".visit", b".athdf"];
    ends.iter().any(|end| name.ends_with(end))
        || [&b"_plt_cnt_"[..], b"_forced_plt_", b"_his_", b"_avg_"].iter().any(|word| has(word))
        || name.starts_with(b"wrfout_d")
        || is_numbered(b"plt")
        || is_numbered(b"diag")
}

/// Whether a checkpoint is whole without the file of this path: a log, an older copy of another file, or an output for
/// analysis. All files below a directory such as `plt00010` are outputs.
pub fn may_be_left(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    is_log_name(name) || is_backup_name(name) || path.split(|&b| b == b'/').any(is_product_name)
}

/// Whether the name of the file says that it is a restart file, or the name of a directory with a number:
/// `wrfrst_d01_...`, `blast.final.rst`, `chk00010/Header`. A directory without a number, such as `checkpoints`, may
/// have other files too.
pub fn is_restart_name(path: &[u8]) -> bool {
    let path = path.to_ascii_lowercase();
    let mut components = path.rsplit(|&b| b == b'/').enumerate();
    components.any(|(nth, name)| {
        let mut words = name.split(|b| !b.is_ascii_alphabetic());
        (nth == 0 || name.iter().any(u8::is_ascii_digit)) && words.any(|word| RESTART_WORDS.contains(&word))
    })
}

/// Words in the names of restart files, in lower case.
const RESTART_WORDS: [&[u8]; 12] = [
    b"restart",
    b"restarts",
    b"rst",
    b"wrfrst",
    b"chk",
    b"chkpt",
    b"chkpoint",
    b"ckpt",
    b"cpt",
    b"checkpoint",
    b"checkpoints",
    b"pickup",
];

/// Whether this is the name of an older copy that the application keeps: `name.bak`, `name.bak-2`, `name.old`.
fn is_backup_name(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let end = name.iter().rposition(|b| !b.is_ascii_digit()).map_or(0, |last| last + 1);
    // Only `bak` has a number: the number of a file such as `snapshot.old3` may be a rank.
    let (stem, has_number) = (&name[..end], end < name.len());
    let stem = stem.strip_suffix(b"-").or_else(|| stem.strip_suffix(b"_")).unwrap_or(stem);
    let ends: &[&[u8]] = if has_number { &[b".bak"] } else { &[b".bak", b".old"] };
    ends.iter().any(|end| stem.ends_with(end) && stem.len() > end.len())
}

/// Whether a path has a name that applications use for a file that is not yet whole. When the file is whole, the
/// application renames it. There are four forms: `rst.5.tmp`, `rst.5.temp`, `rst.5.partial` and `rst.5.incomplete`; the
/// word `tmp` between separators in a name with a number, as in `checkpoint.chkpt.tmp.it_5` and `tmp-checkpoint-500`;
/// a name that begins with `.tmp`; and `.nfs` with digits, the name of a file that was removed while it was open. A
/// directory may have such a name too, but the names `tmp` and `tmp_out` are names of usual directories.
pub fn is_temporary(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').any(is_temporary_name)
}

fn is_temporary_name(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let has_digit = || name.iter().any(u8::is_ascii_digit);
    let ends = [&b".tmp"[..], b".temp", b".partial", b".incomplete"];
    let mut words = name.split(|b| matches!(b, b'.' | b'-' | b'_'));
    ends.iter().any(|end| name.ends_with(end) && name.len() > end.len())
        || name.starts_with(b".tmp")
        || has_digit() && words.any(|word| word == b"tmp") && !is_only_tmp(&name)
        || name.strip_prefix(b".nfs").is_some_and(|id| id.len() >= 8 && id.iter().all(u8::is_ascii_hexdigit))
}

/// Whether a name has only the word `tmp` and digits, as in `tmp`, `tmp.3` and `tmp_2`.
fn is_only_tmp(name: &[u8]) -> bool {
    name.strip_prefix(b"tmp").is_some_and(|rest| rest.iter().all(|b| b.is_ascii_digit() || b".-_".contains(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_waits_to_be_renamed_is_temporary_and_a_usual_directory_is_not() {
        let temporary = [
            "rst.5.0.tmp",
            "state.h5.partial",
            "chk00010.temp/Header",
            "5.orbax-checkpoint-tmp-17/params",
            "tmp-checkpoint-500/model.bin",
            "checkpoint.chkpt.tmp.it_5.file_0.h5",
            ".tmp_ab12",
            ".nfs000000000123abcd",
            "out/rst_5.h5.tmp.3",
        ];
        for path in temporary {
            assert!(is_temporary(path.as_bytes()), "{path}");
        }
        let usual = [
            "tmp/pwscf.save/charge-density.hdf5",
            "tmp_2/rst.0",
            "tmp_out/rst.5",
            "temp_0005.h5",
            "atmp.5",
            "template.5",
            ".tm",
            "rst.5.0",
            "tmp",
            "temperature.dat",
            "part_5.part",
        ];
        for path in usual {
            assert!(!is_temporary(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_log_of_a_rank_or_of_a_program_is_a_log() {
        for name in ["rsl.out.0003", "rsl.error.0003", "STDOUT.0003", "run.log.2", "log.lammps", "log.icoFoam", "a.err"]
        {
            assert!(is_log_name(name.as_bytes()), "{name}");
        }
        for name in ["state.out.0003", "amr_00080.out00004", "log", "catalog.3", "rsl", "restart.3", "run.error.2"] {
            assert!(!is_log_name(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn outputs_for_analysis_are_no_states() {
        for name in [
            "sedov_hdf5_plt_cnt_0003",
            "plt00010",
            "wrfout_d01_2000-01-24",
            "blast.out1.00003.athdf",
            "a.3.vtk",
            "diag1000100",
        ] {
            assert!(is_product_name(name.as_bytes()), "{name}");
        }
        for name in ["sedov_hdf5_chk_0003", "chk00010", "wrfrst_d01_2000-01-24", "blast.00003.rst", "history.3", "plt"]
        {
            assert!(!is_product_name(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_names_of_restart_files_have_words_that_say_so() {
        for path in ["wrfrst_d01_2000-01-24", "Blast.final.rst", "chk00010/Header", "restart.3", "a_hdf5_chk_0003"] {
            assert!(is_restart_name(path.as_bytes()), "{path}");
        }
        for path in ["wrfout_d01_2000-01-24", "first.dat", "burst_5", "checkpoints/meta.json", "dump.100", "chkdsk"] {
            assert!(!is_restart_name(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn an_older_copy_has_a_name_of_its_own() {
        for name in ["H2O-1.restart.bak-1", "H2O.restart.bak", "restart.3.bak2", "state.h5.old", "a.BAK_3"] {
            assert!(is_backup_name(name.as_bytes()), "{name}");
        }
        for name in [".bak", "bak-restart.3", "old", "threshold.5", "snapshot.old3", "rst.5"] {
            assert!(!is_backup_name(name.as_bytes()), "{name}");
        }
    }
}
