//! Tests: what is guessed for whole run directories of common codes, with their inputs, logs and outputs.

use super::{Layout, Listing, Rest, guess};
use mcrengine::ids::FilePath;
use std::path::Path;

/// A run directory. Each file has 6000 bytes.
#[derive(Default)]
struct Run(Vec<(String, u64)>);

impl Run {
    /// Adds files that were written at this second. `#` in a name is a number from 0 to `count` - 1.
    fn with(mut self, second: u64, count: usize, name: &str) -> Self {
        self.0.extend((0..count).map(|number| (name.replace('#', &number.to_string()), second)));
        self
    }

    fn guess(&self) -> (Layout, Option<String>, Vec<String>) {
        let times = self.0.iter().map(|(name, second)| (name.as_str(), second * 1000, second * 1000));
        let listing = Listing { bytes: vec![6000; self.0.len()], ..Listing::of_times(times) };
        let (layout, explanation) = guess(&listing, Path::new("/data/run7"), Rest::IsTaken, None);
        let placed: Vec<&FilePath> = listing.files.iter().filter(|path| layout.place(path).is_some()).collect();
        (layout, explanation.asks, placed.into_iter().map(ToString::to_string).collect())
    }
}

#[test]
fn the_number_of_a_rank_is_no_checkpoint_of_that_number() {
    let mom = Run::default().with(10, 1, "MOM_input").with(10, 1, "input.nml").with(500, 4, "RESTART/MOM.res.nc.000#");
    let mom = mom.with(500, 4, "RESTART/ice.res.nc.000#").with(400, 4, "19000101.ocean_month.nc.000#");
    let (_, asks, placed) = mom.guess();
    assert!(asks.is_some() || placed.len() == 14, "outputs alone are no checkpoint: {placed:?}");
}

#[test]
fn inputs_of_openfoam_are_no_reason_to_ask() {
    let case =
        Run::default().with(10, 1, "0/U").with(10, 1, "constant/polyMesh/points").with(10, 1, "system/fvSchemes");
    let case =
        case.with(20, 4, "processor#/constant/polyMesh/points").with(20, 4, "processor#/constant/polyMesh/faces");
    let case = case.with(100, 4, "processor#/0.1/U").with(200, 4, "processor#/0.2/U").with(200, 1, "log.icoFoam");
    let (layout, asks, placed) = case.guess();
    assert_eq!((layout.name(), asks, placed.len()), ("openfoam", None, 8));
}

#[test]
fn logs_of_all_ranks_are_no_reason_to_ask() {
    let wrf = Run::default().with(900, 8, "rsl.out.000#").with(900, 8, "rsl.error.000#");
    let wrf = wrf.with(100, 1, "wrfrst_d01_2000-01-24_06:00:00").with(500, 1, "wrfrst_d01_2000-01-24_12:00:00");
    let (layout, asks, placed) = wrf.guess();
    assert_eq!((layout.name(), asks, placed.len()), ("wrf", None, 2));
}

#[test]
fn more_files_may_be_left_out_if_the_code_itself_names_its_restart_files() {
    let run = |what: &str| {
        let run = Run::default().with(10, 1, "namelist_cfg").with(900, 4, "O2_5d_00010101_00010110_grid_T_000#.nc");
        let steps = [(240, 100), (480, 400), (720, 700)];
        steps.iter().fold(run, |run, (step, at)| run.with(*at, 4, &format!("O2_{step:08}_{what}_000#.nc")))
    };
    let (_, asks, placed) = run("restart").with(900, 4, "output.abort_000#.nc").guess();
    assert_eq!((asks, placed.len()), (None, 12));
    let (_, asks, _) = run("fields").with(900, 4, "output.abort_000#.nc").guess();
    assert!(asks.is_some(), "no name says which files are the restart files");
}
