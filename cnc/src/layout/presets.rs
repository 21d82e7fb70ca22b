//! Layouts of widely used applications, from their documentation and from real checkpoints.

use super::{Beside, Layout, NOTHING_BESIDE, Pattern};
use mcrengine::ids::FilePath;

/// One preset.
struct Preset {
    name: &'static str,
    /// Words of the file names: each file name of the preset contains one of these words. In a word, `^` means a
    /// capital letter and `#` means a digit. Empty if the names have no word in common. Searching for a word is
    /// faster than compiling the patterns.
    words: &'static [&'static str],
    /// Globs for [`Layout::from_patterns`]. The most specific glob comes first.
    patterns: &'static [&'static str],
    first_rank: u32,
    /// Whether the names are distinctive enough for a guess.
    telling: bool,
}

/// The presets. The most distinctive preset comes first. A guess uses the first preset that fits.
#[rustfmt::skip]
const TABLE: &[Preset] = &[
    // DD0007/DD0007.cpu0003, DD0007/DD0007.hierarchy, RD0002/RD0002.boundary.hdf, DD0007/DD0007
    Preset { name: "enzo", words: &["^^####"], first_rank: 0, telling: true, patterns: &[
        "**/{checkpoint:[A-Z]{2}[0-9]{4,}}.cpu{rank}",
        "**/{checkpoint:[A-Z]{2}[0-9]{4,}}",
        "**/{checkpoint:[A-Z]{2}[0-9]{4,}}.*",
    ]},
    // Carpet first writes `checkpoint.chkpt.tmp.it_...`, which is not a checkpoint, and then renames the file.
    Preset { name: "cactus", words: &[".chkpt"], first_rank: 0, telling: true, patterns: &[
        r"**/{checkpoint:[^/]+\.chkpt(?:_ID)?\.it_[0-9]+}.file_{rank}.h5",
        r"**/{checkpoint:[^/]+\.chkpt(?:_ID)?\.it_[0-9]+}.h5",
    ]},
    Preset { name: "smilei", words: &["dump-"], first_rank: 0, telling: true, patterns: &[
        "**/{checkpoint:dump-[0-9]{5}}-{rank:[0-9]{10}}.h5",
    ]},
    // Snapshots in one or several files, and restart files that GADGET overwrites: `restartfiles/restart.3`, or
    // `restart.3` for GADGET-2. In a guess, the number is a rank only if no rank is missing. If a rank is missing,
    // the number is a time step of LAMMPS.
    Preset { name: "gadget", words: &["snap", "restart"], first_rank: 0, telling: true, patterns: &[
        "**/{checkpoint:snap(?:shot)?_[0-9]{3,}}.{rank}{,.hdf5}",
        "**/{checkpoint:snap(?:shot)?_[0-9]{3,}}{,.hdf5}",
        "**/{checkpoint:(?:bak-)?restart}.{rank}",
    ]},
    // The suffix of four or more digits is the rank, if io_form_restart = 102. The nests d01, d02, ... belong to one
    // checkpoint.
    Preset { name: "wrf", words: &["wrfrst_d"], first_rank: 0, telling: true, patterns: &[
        "**/wrfrst_d[0-9][0-9]_{checkpoint:[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}[:_][0-9]{2}[:_][0-9]{2}}_{rank:[0-9]{4,6}}",
        "**/wrfrst_d[0-9][0-9]_{checkpoint:[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}[:_][0-9]{2}[:_][0-9]{2}}",
    ]},
    // checkpoints_s26/checkpoints_s26_p3.h5, and checkpoints_s26.h5, which combines the files of all ranks
    Preset { name: "dedalus", words: &[".h5"], first_rank: 0, telling: true, patterns: &[
        "**/{checkpoint:[^/]+_s[0-9]+}/{checkpoint}_p{rank}.h5",
        "**/{checkpoint:[^/]+_s[0-9]+}.h5",
    ]},
    // output_00080/amr_00080.out00001; the ranks count from 1
    Preset { name: "ramses", words: &["output_"], first_rank: 1, telling: true, patterns: &[
        "**/{checkpoint:output_[0-9]{5}}/*.out{rank:[0-9]{5,6}}",
        "**/{checkpoint:output_[0-9]{5}}/**",
    ]},
    // processor3/0.5/U, where the time 0.5 is the checkpoint; processors4/0.5/U in the collated format
    Preset { name: "openfoam", words: &["processor"], first_rank: 0, telling: true, patterns: &[
        r"**/processor{rank}/{checkpoint:[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?}/**",
        r"**/processors[0-9]*/{checkpoint:[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?}/**",
    ]},
    // pickup.0000072000.data, pickup_seaice.ckptA.data; with one file for each tile pickup.ckptA.001.002.data. A rank
    // has one tile or several, so the numbers of the tiles are not the ranks.
    Preset { name: "mitgcm", words: &["pickup"], first_rank: 0, telling: true, patterns: &[
        r"**/pickup*.{checkpoint:(?:[0-9]{10}|ckpt[AB])}.{data,meta}",
        r"**/pickup*.{checkpoint:(?:[0-9]{10}|ckpt[AB])}.[0-9][0-9][0-9].[0-9][0-9][0-9].{data,meta}",
    ]},
    // basename_s0003_hdf5_chk_0012 for one of several files, basename_hdf5_chk_0012 for a single file
    Preset { name: "flash", words: &["_chk_"], first_rank: 0, telling: true, patterns: &[
        "**/*_s{rank:[0-9]{4}}_{checkpoint:(?:hdf5|ncmpi)_chk_[0-9]{4}}",
        "**/*{checkpoint:(?:hdf5|ncmpi)_chk_[0-9]{4}}",
    ]},
    // eddy_uv0.f00012: the digit before the dot is the number of the writer; rs6eddy_uv0.f00001, see `SETS`
    Preset { name: "nek5000", words: &[".f"], first_rank: 0, telling: true, patterns: &[
        r"**/*{rank:[0-9]}.{checkpoint:f[0-9]{5}}",
    ]},
    // data.0003.dbl, rho.0003.dbl.h5; the double and the float outputs are counted separately
    Preset { name: "pluto", words: &[".dbl", ".flt"], first_rank: 0, telling: true, patterns: &[
        r"**/*.{checkpoint:[0-9]{4}\.(?:dbl|flt)}{,.h5}",
    ]},
    // chk00010/Level_0/Cell_D_00003, chk00010/Header; AMReX writes chk00010.temp and renames the directory
    Preset { name: "amrex", words: &["chk"], first_rank: 0, telling: true, patterns: &[
        "**/{checkpoint:chk[^/.]*[0-9]{5,}}/**/*_D_{rank:[0-9]{5}}",
        "**/{checkpoint:chk[^/.]*[0-9]{5,}}/**",
    ]},
    // b.e21.cam.r.0001-02-01-00000.nc, b.e21.clm2.rh0.0001-02-01-00000.nc: the models of one date belong together.
    // Nearly the same names in E3SM: case.mpaso.rst.0001-02-01_00000.nc.
    Preset { name: "cesm", words: &[".r"], first_rank: 0, telling: true, patterns: &[
        "**/*.r*.{checkpoint:[0-9]{4,6}-[0-9]{2}-[0-9]{2}[-_][0-9]{5}}{,.nc,.bin}",
    ]},
    Preset { name: "chombo", words: &["d.hdf5"], first_rank: 0, telling: true, patterns: &[
        "**/{checkpoint:[^/]*[0-9]{4,}}.{1d,2d,3d}.hdf5",
    ]},
    // Athena++: blast.00010.rst. Athena 4 with MPI: rank 0 writes id0/blast.0010.rst, and rank 3 writes
    // id3/blast-id3.0010.rst.
    Preset { name: "athena", words: &[".rst"], first_rank: 0, telling: true, patterns: &[
        r"**/id{rank}/*.{checkpoint:[0-9]{4}\.rst}",
        r"**/{checkpoint:[^/]+\.(?:[0-9]{5}|final)}.rst",
    ]},
    // If the name in the input script contains `%`: melt.1800.11.restart and restart.1700.base. If the name does not
    // contain `%`: poly.restart.1700. The number after the step is the number of the file. With `fileper` this number
    // is not the rank, but increases with the rank. Other codes overwrite one restart.h5, but the number in
    // restart.3.h5 may be a rank.
    Preset { name: "lammps", words: &[], first_rank: 0, telling: true, patterns: &[
        "**/{checkpoint:[^/]*[0-9]}.{rank}{,.restart,.rst}",
        "**/{checkpoint:[^/]*[0-9]}.base{,.restart,.rst}",
        "**/{checkpoint:[^/]*[0-9]}.{restart,rst}",
        "**/{checkpoint:[^/]*restart(?:[^/]*[^/0-9A-Za-z])?[0-9]+}",
        "**/{checkpoint:[^/0-9]*restart[^/0-9]*[0-9]}",
    ]},
    Preset { name: "gromacs", words: &[".cpt"], first_rank: 0, telling: true, patterns: &["**/{checkpoint}.cpt"] },
    // With replicas, output/3/fold.job0.3.restart.coor: the files of all replicas are one checkpoint.
    Preset { name: "namd", words: &[".restart"], first_rank: 0, telling: true, patterns: &[
        r"**/{checkpoint:[^/]+\.job[0-9]+}.[0-9]*.restart.{coor,vel,xsc}",
        r"**/{checkpoint:[^/]+\.restart(?:\.[0-9]+)?}.{coor,vel,xsc}",
    ]},
    // `directories`: each directory is a checkpoint. `files`: each file is a checkpoint.
    Preset { name: "directories", words: &[], first_rank: 0, telling: false, patterns: &["{checkpoint}/**"] },
    Preset { name: "files", words: &[], first_rank: 0, telling: false, patterns: &["**/{checkpoint}"] },
];

/// Names of a fixed number of files that a code overwrites in turn: the preset, the checkpoint, and a regular
/// expression for its files. A full restart of Nek5000 needs the fields of the last 2, 3 or 4 time steps. Nek5000
/// writes two sets of such files in turn; `rs6` means two sets of three files.
#[rustfmt::skip]
const SETS: &[(&str, &str, &str)] = &[
    ("nek5000", "rs4-1", r"(?:.*/)?rs4[^/]*(?P<rank>[0-9])\.f0000[12]"),
    ("nek5000", "rs4-2", r"(?:.*/)?rs4[^/]*(?P<rank>[0-9])\.f0000[34]"),
    ("nek5000", "rs6-1", r"(?:.*/)?rs6[^/]*(?P<rank>[0-9])\.f0000[1-3]"),
    ("nek5000", "rs6-2", r"(?:.*/)?rs6[^/]*(?P<rank>[0-9])\.f0000[4-6]"),
    ("nek5000", "rs8-1", r"(?:.*/)?rs8[^/]*(?P<rank>[0-9])\.f0000[1-4]"),
    ("nek5000", "rs8-2", r"(?:.*/)?rs8[^/]*(?P<rank>[0-9])\.f0000[5-8]"),
];

/// For a preset: the files beside its checkpoints, see [`Layout::attends`] and [`Layout::may_leave`]. PLUTO adds an
/// entry for each output to `dbl.out` and `restart.out`, and needs these files and the grid for a restart. OpenFOAM
/// makes `processor3` from its inputs before the run, and writes outputs for analysis to `postProcessing`.
const BESIDE: &[(&str, Beside)] = &[
    (
        "pluto",
        Beside {
            attendants: &["dbl.out", "flt.out", "dbl.h5.out", "flt.h5.out", "restart.out", "grid.out"],
            ..NOTHING_BESIDE
        },
    ),
    (
        "openfoam",
        Beside { inputs: &["constant", "system", "0", "0.orig", "dynamicCode", "postProcessing"], ..NOTHING_BESIDE },
    ),
];

/// An example name for each preset. If the preset has ranks, the name has a rank.
#[rustfmt::skip]
const SHOWN: &[(&str, &str)] = &[
    ("enzo", "DD0007/DD0007.cpu0003"),
    ("cactus", "checkpoint.chkpt.it_1024.file_3.h5"),
    ("smilei", "checkpoints/dump-00002-0000000003.h5"),
    ("gadget", "snapdir_012/snapshot_012.3.hdf5"),
    ("wrf", "wrfrst_d01_2000-01-24_12:00:00_0003"),
    ("dedalus", "checkpoints_s26/checkpoints_s26_p3.h5"),
    ("ramses", "output_00080/amr_00080.out00004"),
    ("openfoam", "processor3/0.5/U"),
    ("mitgcm", "pickup.ckptA.001.002.data"),
    ("flash", "sedov_s0003_hdf5_chk_0012"),
    ("nek5000", "A03/rs6turb3.f00001"),
    ("pluto", "data.0003.dbl"),
    ("amrex", "chk00010/Level_0/Cell_D_00003"),
    ("cesm", "b.e21.cam.r.0001-02-01-00000.nc"),
    ("chombo", "chk000100.2d.hdf5"),
    ("athena", "id3/blast-id3.0010.rst"),
    ("lammps", "restart.1700.3"),
    ("gromacs", "state.cpt"),
    ("namd", "run.restart.coor"),
    ("directories", "step_100/a/b.dat"),
    ("files", "ckpt/state_100.npz"),
];

/// The example name of a preset.
pub(super) fn example(name: &str) -> &'static str {
    SHOWN.iter().find(|(preset, _)| *preset == name).map_or("", |(_, example)| *example)
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|preset| preset.name)
}

/// The presets that a guess may choose for these names. The most distinctive preset comes first.
pub(super) fn telling(paths: &[&FilePath]) -> impl Iterator<Item = Layout> {
    TABLE.iter().filter(|preset| preset.telling && preset.words_are_in(paths)).map(make)
}

impl Preset {
    fn words_are_in(&self, paths: &[&FilePath]) -> bool {
        let is_like = |byte: &u8, like: u8| match like {
            b'^' => byte.is_ascii_uppercase(),
            b'#' => byte.is_ascii_digit(),
            like => *byte == like,
        };
        let is_word = |some: &[u8], word: &str| some.iter().zip(word.bytes()).all(|(byte, like)| is_like(byte, like));
        let has = |path: &[u8], word: &str| path.windows(word.len()).any(|some| is_word(some, word));
        let has_one = |path: &&FilePath| self.words.iter().any(|word| has(path.as_bytes(), word));
        self.words.is_empty() || paths.iter().any(has_one)
    }
}

pub(super) fn get(name: &str) -> Option<Layout> {
    TABLE.iter().find(|preset| preset.name == name).map(make)
}

fn make(preset: &Preset) -> Layout {
    let mut layout = Layout::from_patterns(preset.patterns, preset.first_rank).expect("every preset is valid");
    let sets = SETS.iter().filter(|(name, _, _)| *name == preset.name).map(|(_, label, regex)| {
        let label = label.parse().expect("every label is valid");
        Pattern::constant(regex, label, preset.first_rank).expect("every expression is valid")
    });
    layout.patterns.splice(0..0, sets);
    layout.name = preset.name.to_owned();
    layout.beside = beside(preset.name);
    // The other presets name the files of a code, and so leave out temporary names by themselves.
    if preset.telling { layout } else { layout.without_temporary() }
}

/// The files beside the checkpoints of a preset's code.
pub(super) fn beside(name: &str) -> &'static Beside {
    BESIDE.iter().find(|(preset, _)| *preset == name).map_or(&NOTHING_BESIDE, |(_, beside)| beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples: preset, path, label, rank. An empty label means that the file belongs to no checkpoint.
    #[rustfmt::skip]
    const EXAMPLES: &[(&str, &str, &str, Option<u32>)] = &[
        ("enzo", "DD0007/DD0007.cpu0003", "DD0007", Some(3)),
        ("enzo", "DD0007/DD0007.hierarchy", "DD0007", None),
        ("enzo", "DD0007/DD0007.boundary.hdf", "DD0007", None),
        ("enzo", "RD0002/RD0002", "RD0002", None),
        ("enzo", "OutputLog", "", None),
        ("cactus", "checkpoint.chkpt.it_1024.file_3.h5", "checkpoint.chkpt.it_1024", Some(3)),
        ("cactus", "run/checkpoint.chkpt.it_1024.h5", "checkpoint.chkpt.it_1024", None),
        ("cactus", "checkpoint.chkpt.tmp.it_1024.file_3.h5", "", None),
        ("smilei", "checkpoints/dump-00002-0000000003.h5", "dump-00002", Some(3)),
        ("smilei", "checkpoints/00001/dump-00002-0000000030.h5", "dump-00002", Some(30)),
        ("mitgcm", "pickup.ckptA.001.002.data", "ckptA", None),
        ("mitgcm", "run/pickup_seaice.0000072000.meta", "0000072000", None),
        ("mitgcm", "T.0000072000.data", "", None),
        ("namd", "output/3/fold.job0.3.restart.coor", "fold.job0", None),
        ("gadget", "snapshot_012.3.hdf5", "snapshot_012", Some(3)),
        ("gadget", "snapdir_012/snapshot_012.13.hdf5", "snapshot_012", Some(13)),
        ("gadget", "snapshot_012.hdf5", "snapshot_012", None),
        ("gadget", "restartfiles/restart.3", "restart", Some(3)),
        ("wrf", "wrfrst_d01_2000-01-24_12:00:00_0003", "2000-01-24_12:00:00", Some(3)),
        ("wrf", "wrfrst_d02_2000-01-24_12:00:00", "2000-01-24_12:00:00", None),
        ("wrf", "wrfrst_d01_2000-01-24_12_00_00", "2000-01-24_12_00_00", None),
        ("wrf", "wrfout_d01_2000-01-24_12:00:00", "", None),
        ("dedalus", "checkpoints_s26/checkpoints_s26_p3.h5", "checkpoints_s26", Some(3)),
        ("dedalus", "checkpoints/checkpoints_s26/checkpoints_s26_p13.h5", "checkpoints_s26", Some(13)),
        ("dedalus", "checkpoints_s26.h5", "checkpoints_s26", None),
        ("ramses", "output_00080/amr_00080.out00001", "output_00080", Some(0)),
        ("ramses", "output_00080/hydro_00080.out00016", "output_00080", Some(15)),
        ("ramses", "output_00080/info_00080.txt", "output_00080", None),
        ("openfoam", "processor3/0.5/U", "0.5", Some(3)),
        ("openfoam", "processor12/1e-05/uniform/time", "1e-05", Some(12)),
        ("openfoam", "processor3/constant/polyMesh/points", "", None),
        ("openfoam", "processors4/0.5/U", "0.5", None),
        ("flash", "sedov_hdf5_chk_0012", "hdf5_chk_0012", None),
        ("flash", "sedov_s0003_hdf5_chk_0012", "hdf5_chk_0012", Some(3)),
        ("flash", "sedov_hdf5_plt_cnt_0012", "", None),
        ("gadget", "restartfiles/bak-restart.3", "bak-restart", Some(3)),
        ("gadget", "output/restart.3", "restart", Some(3)),
        ("nek5000", "eddy_uv0.f00012", "f00012", Some(0)),
        ("nek5000", "A03/rs6turb3.f00001", "rs6-1", Some(3)),
        ("nek5000", "rs6turb0.f00004", "rs6-2", Some(0)),
        ("nek5000", "rs8turb0.f00004", "rs8-1", Some(0)),
        ("nek5000", "eddy_uv.re2", "", None),
        ("pluto", "data.0003.dbl", "0003.dbl", None),
        ("pluto", "out/rho.0003.dbl.h5", "0003.dbl", None),
        ("pluto", "dbl.out", "", None),
        ("amrex", "chk00010/Level_0/Cell_D_00003", "chk00010", Some(3)),
        ("amrex", "chk_run00010/Header", "chk_run00010", None),
        ("amrex", "chk00010.temp/Header", "", None),
        ("chombo", "chk000100.2d.hdf5", "chk000100", None),
        ("athena", "blast.00010.rst", "blast.00010", None),
        ("athena", "blast.final.rst", "blast.final", None),
        ("athena", "id0/blast.0010.rst", "0010.rst", Some(0)),
        ("athena", "id3/blast-id3.0010.rst", "0010.rst", Some(3)),
        ("cesm", "b.e21.cam.r.0001-02-01-00000.nc", "0001-02-01-00000", None),
        ("cesm", "run/b.e21.clm2.rh0.0001-02-01-00000.nc", "0001-02-01-00000", None),
        ("cesm", "case.mpaso.rst.0001-02-01_00000.nc", "0001-02-01_00000", None),
        ("cesm", "b.e21.cam.h0.0001-02.nc", "", None),
        ("lammps", "restart.1700.3", "restart.1700", Some(3)),
        ("lammps", "restart.1700.base", "restart.1700", None),
        ("lammps", "melt.1800.11.restart", "melt.1800", Some(11)),
        ("lammps", "melt.1800.base.restart", "melt.1800", None),
        ("lammps", "poly.restart.1700", "poly.restart.1700", None),
        ("gromacs", "state.cpt", "state", None),
        ("gromacs", "traj.trr", "", None),
        ("namd", "run.restart.coor", "run.restart", None),
        ("namd", "run.restart.coor.old", "", None),
        ("directories", "step_100/a/b.dat", "step_100", None),
        ("directories", "log.txt", "", None),
        ("files", "ckpt/state_100.npz", "state_100.npz", None),
    ];

    #[test]
    fn every_preset_places_the_names_its_code_writes() {
        for &(name, path, label, rank) in EXAMPLES {
            let layout = get(name).expect(name);
            let placed = layout.place(&FilePath::new(path.as_bytes()).expect("valid"));
            let found = placed.as_ref().map_or(("", None), |p| (p.checkpoint.as_str(), p.rank.map(|r| r.0)));
            assert_eq!(found, (label, rank), "{name}: {path}");
            let preset = TABLE.iter().find(|preset| preset.name == name).expect(name);
            let path = FilePath::new(path.as_bytes()).expect("valid");
            assert!(label.is_empty() || preset.words_are_in(&[&path]), "{name}: {path} contains no word of the preset");
        }
        for name in names() {
            assert!(EXAMPLES.iter().any(|example| example.0 == name), "{name} has no example");
            let shown = FilePath::new(example(name).as_bytes()).expect("each preset has an example name");
            let placed = get(name).expect(name).place(&shown).unwrap_or_else(|| panic!("{name}: {shown}"));
            let has_rank = EXAMPLES.iter().any(|example| example.0 == name && example.3.is_some());
            assert_eq!(placed.rank, has_rank.then_some(mcrengine::ids::Rank(3)), "{name}: {shown}");
        }
    }
}
