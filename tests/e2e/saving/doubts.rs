//! Tests which checkpoints `mcr save` saves as doubtful, because their files differ from the files of the other steps.

use super::*;

impl Site {
    /// Writes a file `seconds` after the beginning of the run, which began ten hours ago.
    fn write_at(&self, seconds: f64, name: &str, bytes: usize) {
        self.write(name, &vec![7; bytes]);
        let began = std::time::SystemTime::now() - Duration::from_secs(36_000);
        let file = std::fs::File::options().write(true).open(self.data().join(name)).expect("opened");
        file.set_modified(began + Duration::from_secs_f64(seconds)).expect("set");
    }

    /// Saves the directory. The newest checkpoint must become doubtful with this reason, the exit status must say so,
    /// and a restart must restore an older checkpoint.
    fn is_doubtful(&self, label: &str, why: &str) {
        let (out, err) = self.save(&[], 4);
        assert!(
            last_line(&out).contains(&format!("the newest, {label}, is doubtful: a restart takes an older")),
            "{out}"
        );
        assert!(err.contains(&format!("{label} is doubtful: ")) && err.contains(why), "{why}: {err}");
        let restart = |more: &[&str]| {
            let to = self.dir.path().join("to");
            let _ = std::fs::remove_dir_all(&to);
            let mut command = mcr();
            command.args(["restart", "--copy", "--store"]).arg(self.store()).arg("--to").arg(&to).args(more);
            said(&run(&mut command, 2)).0
        };
        let out = restart(&[]);
        assert!(last_line(&out).contains(&format!("this is OLDER than {label}")), "{out}");
        let out = restart(&["--checkpoint", label]);
        let last = last_line(&out);
        assert!(last.starts_with(&format!("{label} is DOUBTFUL: ")) && last.contains(why), "{out}");
    }

    /// Saves the directory without a doubt.
    fn is_certain(&self, more: &[&str]) {
        let (out, err) = self.save(more, 0);
        assert!(!err.contains("doubtful"), "{out}{err}");
        assert!(!self.back().is_empty());
    }
}

/// Three steps of four ranks, with 3000 bytes in each file. `bytes` are the lengths of the files of the last step.
fn three_steps(bytes: [usize; 4]) -> Site {
    let site = Site::new();
    for step in 1..=3 {
        for (rank, bytes) in bytes.into_iter().enumerate() {
            let seconds = f64::from(step) * 60.0 + rank as f64 * 0.05;
            site.write_at(seconds, &format!("ckpt_{step}00/r{rank}.dat"), if step < 3 { 3000 } else { bytes });
        }
    }
    site
}

#[test]
fn a_newest_step_with_empty_or_cut_files_is_doubtful_at_any_age() {
    three_steps([3000, 3000, 0, 0]).is_doubtful("ckpt_300", "ckpt_300/r2.dat is empty, and ckpt_200/r2.dat has 3000");
    three_steps([3000, 3000, 100, 100]).is_doubtful("ckpt_300", "ckpt_300/r2.dat has 100 bytes, and the same file");
    three_steps([0; 4]).is_doubtful("ckpt_300", "all of its files are empty");
    three_steps([3000; 4]).is_certain(&[]);
}

#[test]
fn a_kind_of_file_that_each_earlier_step_has_is_missed_although_one_step_has_a_file_more() {
    let site = Site::new();
    for step in 0..5 {
        let seconds = f64::from(step) * 60.0;
        (0..4).for_each(|rank| site.write_at(seconds, &format!("DD000{step}/data000{step}.cpu000{rank}"), 3000));
        let more = ["", ".boundary", ".hierarchy", ".initial"].into_iter().take(if step == 0 { 4 } else { 3 });
        let more = more.filter(|end| step < 4 || *end != ".hierarchy");
        more.for_each(|end| site.write_at(seconds + 1.0, &format!("DD000{step}/data000{step}{end}"), 900));
    }
    site.is_doubtful("DD0004", "it has no file like DD0003/data0003.hierarchy");

    let site = Site::new();
    for step in 1..=5 {
        let files = ["model.pt", "optimizer.pt", "rng.pt", "config.json"];
        let count = [0, 4, 3, 3, 3, 1][step];
        let names = files.into_iter().take(count).map(|file| format!("checkpoint-{step}00/{file}"));
        names.for_each(|name| site.write_at(step as f64 * 60.0, &name, 3000));
    }
    site.is_doubtful("checkpoint-500", "it has no file like checkpoint-400/");
}

#[test]
fn numbers_and_lengths_of_files_that_differ_from_step_to_step_make_no_doubt() {
    let site = Site::new();
    for (step, grids) in [3u32, 6, 5, 4, 2].into_iter().enumerate() {
        let write = |name: String, bytes| site.write_at(step as f64 * 60.0, &format!("chk000{step}0/{name}"), bytes);
        for grid in 0..grids {
            write(format!("Level_{}/Cell_D_0000{grid}", grid / 3), (900 + 100 * grid + 7 * grids) as usize);
        }
        (0..3).for_each(|level| write(format!("Level_{level}/Cell_H"), 200 + step));
        write("Header".to_owned(), 700);
    }
    site.is_certain(&["--layout", "directories"]);
}

/// Three steps of eight ranks. The files of half of the ranks of the last step are written `late` seconds later.
fn two_halves(late: f64) -> Site {
    let site = Site::new();
    for step in 1..=3 {
        for rank in 0..8 {
            let late = if step == 3 && rank < 4 { late } else { 0.0 };
            let seconds = f64::from(step) * 60.0 + f64::from(rank) * 0.05;
            site.write_at(seconds + late, &format!("ck_{step}00/r{rank}.dat"), 3000);
        }
    }
    site
}

#[test]
fn a_numbered_checkpoint_whose_ranks_wrote_much_further_apart_than_in_other_steps_is_doubtful() {
    two_halves(12_000.0).is_doubtful("ck_300", "the files are probably of two runs");
    two_halves(20.0).is_certain(&[]);

    // The agent knows it too. With more than `spread-seconds`, it would wait for new files.
    let site = two_halves(400.0);
    let (store, watch) = (site.dir.path().join("store2"), site.data());
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &store, "");
    let more = "ranks = 8\nlayout = \"{checkpoint}/r{rank}.dat\"";
    let _agent = Daemon::agent(site.dir.path(), "n1", &watch, &[address], more);
    for (id, is_doubtful) in [("ck_300", true), ("ck_200", false)] {
        wait_complete(&store, id);
        let state = list(&store).into_iter().find(|state| state["checkpoint"] == id).expect("listed");
        assert_eq!(state["doubt"].is_string(), is_doubtful, "{state}");
    }
}

#[test]
fn a_step_that_regularly_takes_minutes_is_certain() {
    let site = Site::new();
    for step in 1..=3u32 {
        for rank in 0..4u32 {
            let seconds = f64::from(step * 1000 + rank * (40 + 30 * step));
            site.write_at(seconds, &format!("ck_{step}00/r{rank}.dat"), 3000);
        }
    }
    site.is_certain(&[]);
}

#[test]
fn logs_and_parameter_files_outside_of_the_directory_of_the_ranks_files_make_no_doubt() {
    let restart_files = |late: f64| {
        let site = Site::new();
        for rank in 0..4 {
            let late = if rank == 3 { late } else { 0.0 };
            site.write_at(300.0 + f64::from(rank) * 0.05 + late, &format!("restartfiles/restart.{rank}"), 3000);
        }
        site.write_at(340.0, "energy.txt", 900);
        site.write_at(0.0, "param.txt", 500);
        site
    };
    restart_files(0.0).is_certain(&[]);
    let (_, err) = restart_files(30.0).save(&[], 4);
    assert!(err.contains("the ranks wrote their files 30."), "{err}");
    // A file without rank in the directory of the ranks' files may be a part of the step.
    let site = restart_files(0.0);
    site.write_at(340.0, "restartfiles/restart.header", 900);
    let (_, err) = site.save(&[], 4);
    assert!(err.contains("s apart: it is uncertain whether the files are of one step"), "{err}");
}

#[test]
fn a_file_that_is_shorter_than_in_the_stored_checkpoints_is_doubtful_and_no_rule_removes_the_last_whole_one() {
    // The application overwrites the files, or keeps only those of the newest step.
    for (before, is_numbered) in [(1, false), (3, false), (1, true)] {
        let site = Site::new();
        let step = |step: u32, cut: usize| {
            (0..4usize).for_each(|rank| {
                let name = |step: u32| match is_numbered {
                    true => format!("out_{step}.{rank}"),
                    false => format!("restart.{rank}"),
                };
                let _ = std::fs::remove_file(site.data().join(name(step - 1)));
                let name = name(step);
                site.write_at(f64::from(step) * 60.0, &name, if rank == 2 { cut } else { 5000 });
                let mut bytes = std::fs::read(site.data().join(&name)).expect("read");
                bytes[..4].copy_from_slice(&step.to_le_bytes());
                std::fs::write(site.data().join(&name), bytes).expect("written");
            });
        };
        let more = ["--layout", "{checkpoint}.{rank}", "--keep", "1"];
        for nth in 1..=before {
            step(nth, 5000);
            site.save(&more, 0);
        }
        step(before + 1, 2500);
        let (_, err) = site.save(&more, 4);
        assert!(err.contains(".2 has 2500 bytes, and had 5000 in "), "{err}");
        let to = site.dir.path().join("to");
        let _ = std::fs::remove_dir_all(&to);
        run(mcr().args(["restart", "--copy", "--store"]).arg(site.store()).arg("--to").arg(&to), 2);
        let restored = contents(&to);
        assert!(restored.len() == 4 && restored.values().all(|bytes| bytes.len() == 5000), "{before}, {is_numbered}");
    }
}
