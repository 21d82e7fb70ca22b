//! Checkpoints that are predicted from older checkpoints: a field that changes slowly, and particles that move from
//! rank to rank, saved repeatedly by a real process.

use crate::support::*;
use serde_json::Value;
use std::path::Path;

const SIDE: u32 = 20;
const RANKS: u32 = 2;

/// Writes a rough field through which a wave moves slowly, a second field that is a multiple of the first field, and
/// a mesh that does not change.
fn write_slow(dir: &Path, step: u32) {
    for rank in 0..RANKS {
        let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8) / f64::from(1u32 << 24);
        let time = f64::from(step) * 1e-4;
        let cells = SIDE * SIDE * SIDE;
        let at = |n: u32| noise(n + rank * cells) + (f64::from(n / SIDE) * 0.1 - time).sin() * (1.0 + time);
        let density: Vec<f64> = (0..cells).map(at).collect();
        let energy: Vec<f64> = density.iter().zip(0..).map(|(d, n)| d * (2.0 + noise(n + 77) * time)).collect();
        let mesh: Vec<f64> = (0..cells / 2).map(|n| noise(n + 999)).collect();
        let path = dir.join(format!("sim.it_{step}.rank_{rank}.h5"));
        let file = hdf5::File::create(&path).expect("created");
        let shape = [SIDE as usize; 3];
        for (name, values) in [("density", density), ("energy", energy)] {
            let set = file.new_dataset::<f64>().shape(shape).create(name).expect("created");
            set.write_raw(&values).expect("written");
        }
        file.new_dataset_builder().with_data(&mesh).create("mesh").expect("written");
        file.close().expect("closed");
    }
}

/// Writes particles near the points of a lattice, each with a velocity. At every step, different particles are on the
/// second rank.
fn write_particles(dir: &Path, step: u32) {
    let noise = |n: u32| (n.wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 24) as f32 - 0.5;
    let speed = |n: u32| [0, 1, 2].map(|axis| 100.0 * noise(3 * n + axis));
    let place = |n: u32| {
        let (at, speed) = ([n / SIDE / SIDE, n / SIDE % SIDE, n % SIDE], speed(n));
        [0, 1, 2].map(|axis| at[axis] as f32 + noise(7 * n + axis as u32) + speed[axis] * 1e-4 * step as f32)
    };
    for rank in 0..RANKS {
        let is_second = |n: u32| n.wrapping_mul(40_503) >> 4 & 0xFF < 100 + 9 * step;
        let own: Vec<u32> = (0..SIDE * SIDE * SIDE).filter(|&n| is_second(n) == (rank == 1)).collect();
        let file = hdf5::File::create(dir.join(format!("sim.it_{step}.rank_{rank}.h5"))).expect("created");
        let numbers: Vec<u32> = own.iter().map(|n| n + 1).collect();
        file.new_dataset_builder().with_data(&numbers).create("ids").expect("written");
        let positions: Vec<f32> = own.iter().flat_map(|&n| place(n)).collect();
        let speeds: Vec<f32> = own.iter().flat_map(|&n| speed(n)).collect();
        for (name, values) in [("positions", positions), ("speeds", speeds)] {
            let set = file.new_dataset::<f32>().shape([own.len(), 3]).create(name).expect("created");
            set.write_raw(&values).expect("written");
        }
        file.close().expect("closed");
    }
}

/// The name of a checkpoint.
fn name(step: u32) -> String {
    format!("sim.it_{step}")
}

struct Series {
    dir: tempfile::TempDir,
}

impl Series {
    fn new(steps: u32) -> Self {
        Self::of(steps, write_slow)
    }

    fn of(steps: u32, write: fn(&Path, u32)) -> Self {
        let series = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(series.from()).expect("made");
        (0..steps).for_each(|step| write(&series.from(), step));
        series
    }

    fn from(&self) -> std::path::PathBuf {
        self.dir.path().join("from")
    }

    fn store(&self) -> std::path::PathBuf {
        self.dir.path().join("store")
    }

    fn save(&self, more: &[&str]) -> Value {
        let mut command = mcr();
        command.args(["save", "--create"]).arg(self.from()).args(["--job", "j", "--profile", "max"]).args(more);
        run_json(command.arg("--store").arg(self.store()), 0)
    }

    /// The names of the checkpoints from which a checkpoint is predicted.
    fn coded_with(&self, step: u32) -> Vec<String> {
        let mut command = mcr();
        command.arg("show").arg(name(step)).arg("--store").arg(self.store());
        let shown = run_json(&mut command, 0);
        shown["coded_with"].as_object().expect("a table").keys().cloned().collect()
    }

    /// Restores one checkpoint, or an older checkpoint if `status` is 2, and compares its files. Returns the restored
    /// checkpoint.
    fn restore(&self, step: u32, status: i32) -> String {
        let to = self.dir.path().join("to");
        let mut command = mcr();
        command.arg("restart").args(["--copy", "--checkpoint", &name(step), "--store"]).arg(self.store());
        let report = run_json(command.arg("--to").arg(&to), status);
        let found = report["checkpoint"].as_str().expect("a name").to_owned();
        let is_one = |path: &Path| path.to_string_lossy().contains(&format!("{found}."));
        let expected = contents(&self.from()).into_iter().filter(|(path, _)| is_one(path)).collect();
        assert_same_files(&expected, &contents(&to));
        std::fs::remove_dir_all(&to).expect("removed");
        found
    }
}

#[test]
fn a_slow_series_is_coded_with_older_checkpoints_of_which_one_in_three_is_whole() {
    let series = Series::new(6);
    series.save(&["--whole-every", "3"]);
    let expected = [None, Some(0), Some(0), None, Some(3), Some(3)];
    for (step, expected) in (0..).zip(expected) {
        assert_eq!(series.coded_with(step), expected.map(name).into_iter().collect::<Vec<_>>(), "checkpoint {step}");
        assert_eq!(series.restore(step, 0), name(step));
    }
    run(mcr().arg("verify").arg("--store").arg(series.store()), 0);
    let text = run(mcr().args(["show", "sim.it_5", "--store"]).arg(series.store()), 0).stdout;
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("decoded with those of sim.it_3") && text.contains("since(f64"), "{text}");

    // A kept checkpoint can be restored even if all checkpoints from which it is predicted were pruned.
    run(mcr().args(["prune", "--keep", "1", "--store"]).arg(series.store()), 0);
    assert_eq!(list(&series.store()).len(), 1);
    assert_eq!(series.restore(5, 0), "sim.it_5");
    run(mcr().arg("verify").arg("--store").arg(series.store()), 0);
}

#[test]
fn a_damaged_base_costs_all_that_is_coded_with_it_openly() {
    let series = Series::new(6);
    series.save(&["--whole-every", "3"]);
    let path = series.store().join("j/sim.it_3/group-0000.mcr");
    let mut bytes = std::fs::read(&path).expect("there");
    let middle = bytes.len() / 2; // this byte belongs to the numbers
    bytes[middle] ^= 0x40;
    std::fs::write(&path, bytes).expect("written");
    assert_eq!(series.restore(5, 2), "sim.it_2");
    run(mcr().args(["verify", "sim.it_5", "--store"]).arg(series.store()), 1);
    // The next checkpoint is not predicted from a checkpoint that cannot be read.
    write_slow(&series.from(), 6);
    series.save(&["--whole-every", "8"]);
    assert_eq!(series.coded_with(6), Vec::<String>::new());
    assert_eq!(series.restore(6, 0), "sim.it_6");
}

#[test]
fn coding_by_itself_is_what_no_time_asks_for_and_takes_more() {
    let series = Series::new(3);
    let stored = |report: &Value| report["checkpoints"][2]["stored_bytes"].as_u64().expect("a number");
    let with = stored(&series.save(&[]));
    std::fs::remove_dir_all(series.store()).expect("removed");
    let without = stored(&series.save(&["--no-time"]));
    assert!((0..3).all(|step| series.coded_with(step).is_empty()));
    assert!(with * 10 < without * 9, "{with} and {without} bytes");
}

#[test]
fn particles_are_coded_with_where_they_were_on_whatever_rank_that_was() {
    let series = Series::of(3, write_particles);
    let stored = |report: &Value| report["checkpoints"][2]["stored_bytes"].as_u64().expect("a number");
    let with = stored(&series.save(&[]));
    assert_eq!(series.coded_with(2), [name(0)]);
    (0..3).for_each(|step| assert_eq!(series.restore(step, 0), name(step)));
    run(mcr().arg("verify").arg("--store").arg(series.store()), 0);
    std::fs::remove_dir_all(series.store()).expect("removed");
    let without = stored(&series.save(&["--no-time"]));
    assert!(with * 2 < without, "{with} and {without} bytes");
}
