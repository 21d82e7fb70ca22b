//! Tests of `mcr run` and of agents that guess the layout while the application runs.

use crate::support::*;
use std::path::Path;
use std::time::Duration;

const NOT_COMMITTED: Option<i32> = Some(5);
const TWO: &[&str] = &["--ranks", "2"];

/// Whether this checkpoint is complete in the store of the directory.
fn is_complete(dir: &Path, id: &str) -> bool {
    list(&dir.join("store")).iter().any(|c| c["checkpoint"] == id && c["complete"] == true)
}

/// Runs a script under `mcr run` without a layout. Returns the log.
fn run_guessed(dir: &Path, ranks: &[&str], script: &str, status: i32) -> String {
    let mut command = mcr();
    std::fs::create_dir_all(dir.join("out")).expect("made");
    command.args(["run", "--create", "--job", "job"]).args(ranks).arg("--watch").arg(dir.join("out"));
    command.arg("--store").arg(dir.join("store")).arg("--state").arg(dir.join("state")).current_dir(dir.join("out"));
    let output = run(command.args(["--", "sh", "-c", script]), status);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn names_used_in_turn_are_all_saved_although_the_first_ones_showed_only_half_of_the_layout() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 1 2 3 4; do x=a; [ $((step%2)) = 0 ] && x=b; for rank in 0 1; do \
                  echo step $step rank $rank > state_$x.$rank.dat; done; sleep 3; done";
    let log = run_guessed(dir.path(), TWO, script, 0);
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
    for (name, step) in [("a", 3), ("b", 4)] {
        let text = std::fs::read_to_string(back.join(format!("state_{name}.1.dat"))).expect("restored");
        assert_eq!(text, format!("step {step} rank 1\n"), "{log}");
    }
}

#[test]
fn files_that_the_guess_cannot_place_are_named_at_the_end_and_many_of_them_give_5() {
    let script = |steps: &str| {
        format!(
            "for step in {steps}; do mkdir step_$step; for rank in 0 1; do echo $step > step_$step/rank_$rank.dat; done; sleep 2.2; done"
        )
    };
    let dir = tempfile::tempdir().expect("a directory");
    let log = run_guessed(dir.path(), TWO, &script("1 2 final"), 5);
    assert!(
        log.contains("not committed: files belong to no checkpoint") && log.contains("first=step_final/rank_0.dat"),
        "{log}"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let log = run_guessed(dir.path(), TWO, &format!("{}; echo log > notes.dat", script("1 2 3")), 0);
    assert!(log.contains("files=1 of=7 first=notes.dat"), "{log}");
    assert!(is_complete(dir.path(), "step_3"));
}

#[test]
fn a_few_small_files_in_no_checkpoint_do_not_make_the_checkpoints_doubtful() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 1 2 3 4; do head -c 4000 /dev/urandom > turb0.f0000$step; echo filetemplate > \
                  turb.nek5000; sleep 2.5; done";
    let log = run_guessed(dir.path(), &["--ranks", "1"], script, 0);
    let saved = list(&dir.path().join("store"));
    assert!(saved.len() == 4 && saved.iter().all(|c| c["doubt"].is_null()), "{saved:?}\n{log}");
}

#[test]
fn restart_files_that_come_after_plots_are_saved_or_named_at_the_end_with_5() {
    let plots = |name: &str| {
        let name = name.replace('#', "$step");
        format!("for step in 1 2 3 4 5; do head -c 4000 /dev/urandom > {name}; sleep 2; done; sleep 2;")
    };
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("{} echo state > wrfrst_d01_2000-01-01_05:00:00", plots("wrfout_d01_2000-01-01_0#:00:00"));
    let log = run_guessed(dir.path(), &["--ranks", "1"], &script, 0);
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
    let state = std::fs::read_to_string(back.join("wrfrst_d01_2000-01-01_05:00:00"));
    assert_eq!(state.ok().as_deref(), Some("state\n"), "{log}");

    // The guess does not know whether the first files are plots.
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("{} echo state > restart_0005.dat", plots("fields_000#.dat"));
    let log = run_guessed(dir.path(), &["--ranks", "1"], &script, 5);
    assert!(log.contains("not committed: restart files") && log.contains("first=restart_0005.dat"), "{log}");
}

#[test]
fn a_start_whose_names_do_not_show_the_layout_continues_with_the_layout_of_the_newest_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |its: &str| {
        let file = "dump-0000$it-000000000$k.h5";
        format!("for it in {its}; do for k in 0 1 2; do echo $it > {file}; done; sleep 2.5; done")
    };
    let script = format!("{}; for n in a b c d e f g; do echo $n > input_$n.par; done", write("1 2 3"));
    run_guessed(dir.path(), &["--ranks", "3"], &script, 5);
    let log = run_guessed(dir.path(), &["--ranks", "3"], &write("4"), 5);
    assert!(log.contains("the newest checkpoint shows it"), "{log}");
    assert!(is_complete(dir.path(), "dump-00004"), "{log}");
}

#[test]
fn a_flush_names_files_that_the_guess_cannot_place_and_gives_5() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "write() {{ mkdir step_$1; for rank in 0 1; do echo $1 > step_$1/rank_$rank.dat; done; sleep 2.2; }}; \
         flush() {{ {mcr} flush --state {state} --timeout 20 > {out}.$1 2>&1; echo $? > {out}.$1.status; }}; \
         write 1; write 2; flush all; write final; flush some",
        mcr = env!("CARGO_BIN_EXE_mcr"),
        state = dir.path().join("state").display(),
        out = dir.path().join("flush").display()
    );
    run_guessed(dir.path(), TWO, &script, 5);
    let text = |name: &str| std::fs::read_to_string(dir.path().join(format!("flush.{name}"))).expect("written");
    assert_eq!(text("all.status").trim(), "0", "{}", text("all"));
    assert_eq!(text("some.status").trim(), "5", "{}", text("some"));
    let some = text("some");
    assert!(some.contains("NOT committed: 2 of 6 files") && some.contains("first: step_final/rank_0.dat"), "{some}");
}

#[test]
fn a_flush_while_the_names_do_not_show_the_layout_says_so_and_gives_5() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "echo 1 > first.dat; sleep 1; {mcr} flush --state {state} --timeout 5 > {out} 2>&1; echo $? >> {out}",
        mcr = env!("CARGO_BIN_EXE_mcr"),
        state = dir.path().join("state").display(),
        out = dir.path().join("flush").display()
    );
    run_guessed(dir.path(), &["--ranks", "1"], &script, 0);
    let said = std::fs::read_to_string(dir.path().join("flush")).expect("written");
    assert!(said.contains("mcr run is running, but its agent does not answer"), "{said}");
    assert_eq!(said.lines().last(), Some("5"), "{said}");
}

#[test]
fn an_agent_whose_ranks_the_guess_does_not_show_saves_nothing_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let (watch, store) = (dir.path().join("node1"), dir.path().join("store"));
    std::fs::create_dir(&watch).expect("made");
    let (_aggregator, address) = Daemon::aggregator(dir.path(), "anc", &store, "");
    let agent = Daemon::agent(dir.path(), "n1", &watch, &[address], "ranks = 2\nlocal-ranks = \"1-1\"");
    for step in 1..=2 {
        std::fs::create_dir(watch.join(format!("it_{step}"))).expect("made");
        std::fs::write(watch.join(format!("it_{step}/state.dat")), "data").expect("written");
        std::thread::sleep(Duration::from_millis(2200));
    }
    agent.signal("TERM");
    let (status, log) = agent.end();
    assert!(status == NOT_COMMITTED && log.contains("which is not in local-ranks of this node"), "{status:?}: {log}");
}

#[test]
fn nodes_with_one_rank_each_need_no_layout_if_the_number_of_ranks_is_known() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let (_aggregator, address) = Daemon::aggregator(dir.path(), "anc", &store, "");
    let nodes = ["node0", "node1"].map(|name| dir.path().join(name));
    let agents = nodes.each_ref().map(|watch| {
        std::fs::create_dir(watch).expect("made");
        let name = watch.file_name().expect("has one").to_string_lossy().into_owned();
        Daemon::agent(dir.path(), &name, watch, std::slice::from_ref(&address), "ranks = 2")
    });
    for step in 1..=3 {
        for (rank, watch) in nodes.iter().enumerate() {
            std::fs::write(watch.join(format!("out_000{step}.{rank}.dat")), format!("{step} {rank}")).expect("written");
        }
        std::thread::sleep(Duration::from_millis(2200));
    }
    for agent in agents {
        agent.signal("TERM");
        let (status, log) = agent.end();
        assert_eq!(status, Some(0), "{log}");
    }
    for rank in ["0", "1"] {
        let back = dir.path().join(format!("back{rank}"));
        let mut restart = mcr();
        restart.args(["restart", "--copy", "--store"]).arg(&store).args(["--ranks", rank, "--to"]).arg(&back);
        run(&mut restart, 0);
        let restored = std::fs::read_to_string(back.join(format!("out_0003.{rank}.dat"))).expect("restored");
        assert_eq!(restored, format!("3 {rank}"));
    }
}

#[test]
fn files_without_numbers_of_a_code_with_one_rank_are_saved_when_its_command_ends() {
    for ranks in [&["--ranks", "1"][..], &[]] {
        let dir = tempfile::tempdir().expect("a directory");
        let script = "for step in 1 2; do echo $step > WAVECAR; echo $step > CHGCAR; sleep 2.2; done";
        let log = run_guessed(dir.path(), ranks, script, 0);
        assert!(log.contains("all files are saved as one checkpoint at the end"), "{log}");
        assert!(log.contains("show no checkpoints: all files are saved as one checkpoint"), "{log}");
        let back = dir.path().join("back");
        run(mcr().args(["restart", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
        for name in ["WAVECAR", "CHGCAR"] {
            assert_eq!(std::fs::read_to_string(back.join(name)).expect("restored"), "2\n", "{log}");
        }
    }
    // The file names do not show which of the two ranks wrote which file.
    let dir = tempfile::tempdir().expect("a directory");
    let log = run_guessed(dir.path(), TWO, "echo 1 > WAVECAR; echo 1 > CHGCAR; sleep 2.2", 5);
    assert!(
        log.contains("nothing is saved until they do") && log.contains("name one with the key layout in [cnc]"),
        "{log}"
    );
}

#[test]
fn names_without_a_rank_need_no_number_of_ranks() {
    let dir = tempfile::tempdir().expect("a directory");
    let script =
        "for step in 100 200 300; do mkdir step_$step; echo $step > step_$step/model.pt; sleep 2.2; done; exit 9";
    let log = run_guessed(dir.path(), &[], script, 9);
    assert!(log.contains("all files belong to rank 0, the only rank"), "{log}");
    assert!(["step_100", "step_200", "step_300"].iter().all(|id| is_complete(dir.path(), id)), "{log}");
}

#[test]
fn a_number_in_the_names_of_the_only_rank_is_a_step() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 1 2 3; do echo $step > model_$step.pt; sleep 2.2; done";
    let log = run_guessed(dir.path(), &["--ranks", "1"], script, 0);
    assert!(["model_1", "model_2", "model_3"].iter().all(|id| is_complete(dir.path(), id)), "{log}");
}

#[test]
fn logs_that_belong_to_no_checkpoint_change_the_exit_status_of_no_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 100 200; do for rank in 0 1; do echo $step > chk_$step.$rank.dat; done; \
                  echo log > run_$step.out; echo log > run_$step.log; sleep 2.2; done";
    let log = run_guessed(dir.path(), TWO, script, 0);
    assert!(is_complete(dir.path(), "chk_200"), "{log}");
    let mut save = mcr();
    save.args(["save", "--create", "--job", "saved", "--store"])
        .arg(dir.path().join("saved"))
        .arg(dir.path().join("out"));
    let output = run(&mut save, 0);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains(
            "4 files with the name of a log, an older copy, a plot or an input not saved (first: run_100.log)"
        ),
        "{said}"
    );
}

#[test]
fn digits_in_the_names_of_codes_and_formats_are_neither_steps_nor_ranks() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 00010 00020; do for rank in 0000 0001; do echo $step > Sedov3d_rk2.$step.$rank.h5.dat; \
                  done; sleep 2.2; done";
    let log = run_guessed(dir.path(), TWO, script, 0);
    for id in ["Sedov3d_rk2.00010", "Sedov3d_rk2.00020"] {
        assert!(is_complete(dir.path(), id), "{id}: {log}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 0003 0004; do echo $step > sod_hdf5_chk_$step; sleep 2.2; done";
    let log = run_guessed(dir.path(), &["--ranks", "1"], script, 0);
    for id in ["hdf5_chk_0003", "hdf5_chk_0004"] {
        assert!(is_complete(dir.path(), id), "{id}: {log}");
    }
}

#[test]
fn a_step_that_is_written_under_temporary_names_is_saved_when_it_has_its_names_and_never_before() {
    let dir = tempfile::tempdir().expect("a directory");
    // The application is killed while it writes step 3.
    let script = "for step in 1 2 3; do for rank in 0 1; do echo step $step > rst.$step.$rank.tmp; done; sleep 1; \
                  [ $step = 3 ] && kill -9 $$; for rank in 0 1; do mv rst.$step.$rank.tmp rst.$step.$rank; done; \
                  sleep 2; done";
    let log = run_guessed(dir.path(), TWO, script, 137);
    let names: Vec<_> = list(&dir.path().join("store")).iter().map(|line| line["checkpoint"].to_string()).collect();
    assert_eq!(names, ["\"rst.2\"", "\"rst.1\""], "{log}");
    let mut save = mcr();
    save.args(["save", "--create", "--job", "job"]).arg(dir.path().join("out"));
    let said = run(save.arg("--store").arg(dir.path().join("other")), 0);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("2 files with a temporary name not saved (first: rst.3.0.tmp)"), "{said}");
    assert_eq!(list(&dir.path().join("other")).len(), 2);
}

#[test]
fn files_that_all_have_temporary_names_are_not_taken_for_a_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let log =
        run_guessed(dir.path(), TWO, "for rank in 0 1; do echo 1 > rst.1.$rank.tmp; done; sleep 2; kill -9 $$", 137);
    assert!(!dir.path().join("store/job").exists(), "{log}");
    let mut save = mcr();
    save.args(["save", "--create", "--job", "job"]).arg(dir.path().join("out"));
    let said = run(save.arg("--store").arg(dir.path().join("store")), 1);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("only 2 files with a temporary name") && said.contains("--layout single"), "{said}");
}

/// Saves the application's directory of a test with `mcr save`. Returns the messages.
fn save_guessed(dir: &Path, status: i32) -> String {
    let mut save = mcr();
    save.args(["save", "--create", "--job", "saved", "--store"]).arg(dir.join("saved")).arg(dir.join("out"));
    String::from_utf8_lossy(&run(&mut save, status).stderr).into_owned()
}

#[test]
fn numbers_that_may_be_ranks_with_gaps_are_asked_about_by_run_and_by_save() {
    for (name, form) in [
        ("ckpt_$step.$rank.h5", "# in ckpt_N.#.h5 may be the rank"),
        ("f_${rank}_$step", "# in f_N_# would be the rank"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let script =
            format!("for step in 1 2 3; do for rank in 10 20 30; do echo $step > {name}; done; sleep 2.5; done");
        let script = if form.contains("ckpt") { script.replace("1 2 3", "100 200 300") } else { script };
        for ranks in [&[][..], &["--ranks", "3"]] {
            let log = run_guessed(dir.path(), ranks, &script, 5);
            assert!(log.contains("not committed: no layout is configured") && log.contains(form), "{log}");
            assert!(!dir.path().join("store/job").exists(), "{log}");
        }
        let said = save_guessed(dir.path(), 1);
        assert!(said.contains(form), "{said}");
    }
}

#[test]
fn a_file_that_was_cut_short_does_not_show_that_files_are_no_ranks() {
    for write in ["echo $step > state.$rank.h5", "echo $step > new.tmp; mv new.tmp state.$rank.h5"] {
        let dir = tempfile::tempdir().expect("a directory");
        let script = format!(
            "for step in 1 2; do for rank in 0 1; do {write}; done; sleep 3; done; rank=0; {write}; kill -9 $$"
        );
        let log = run_guessed(dir.path(), &[], &script, 137);
        assert!(log.contains("not committed: no layout is configured") && log.contains("may be the ranks"), "{log}");
        assert!(!dir.path().join("store/job").exists(), "{log}");
    }
}

#[test]
fn a_file_that_each_rank_writes_once_and_no_checkpoint_has_gives_5_however_many_steps_follow() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for rank in 0 1; do echo mesh > mesh$rank.dat; done; for step in 100 200 300 400 500; do \
                  for rank in 0 1; do echo $step > sol${step}_$rank.dat; done; sleep 2.5; done";
    let log = run_guessed(dir.path(), TWO, script, 5);
    assert!(log.contains("not committed: files belong to no checkpoint") && log.contains("first=mesh0.dat"), "{log}");
    assert!(!log.contains("the rank is # in mesh"), "{log}");
    let saved = list(&dir.path().join("store"));
    assert!(saved.len() == 5 && saved.iter().all(|c| !c["doubt"].is_null()), "{saved:?}\n{log}");
    save_guessed(dir.path(), 4);
}

#[test]
fn dates_before_the_ranks_are_one_checkpoint_each() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for day in 1 2 3; do for rank in 0 1 2; do [ $day$rank = 32 ] && kill -9 $$; \
                  echo $day > 2026-01-0${day}T000000_r$rank.nc; done; sleep 3; done";
    let log = run_guessed(dir.path(), &[], script, 137);
    assert!(is_complete(dir.path(), "2026-01-02T000000") && !is_complete(dir.path(), "2026-01-03T000000"), "{log}");
}

#[test]
fn a_second_run_in_another_directory_is_named_while_the_command_runs_and_at_its_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for run in min prod; do mkdir $run; for step in 1 2; do for rank in 0 1; do \
                  echo $run $step > $run/step$step.r$rank; done; sleep 2.2; done; done; sleep 12";
    let log = run_guessed(dir.path(), TWO, script, 5);
    let why = "both look like files of checkpoint step1";
    let (running, end) = log.split_once("the command ended").expect("ended");
    assert!(running.contains(why) && end.contains(why), "{log}");
    assert!(!log.contains("did not announce in time"), "{log}");
    assert!(["step1", "step2"].iter().all(|id| is_complete(dir.path(), id)), "{log}");
    let said = save_guessed(dir.path(), 1);
    assert!(said.contains(why), "{said}");
}

#[test]
fn files_with_the_names_of_pointer_files_come_back_from_a_run_whose_names_have_no_steps() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 1 2 3; do echo first $step > restart.txt; for rank in 0 1; do mkdir -p rank$rank; \
                  echo $step $rank > rank$rank/restart; echo $step $rank > rank$rank/history; done; sleep 2.5; done";
    let log = run_guessed(dir.path(), TWO, script, 0);
    assert!(log.contains("1 pointer file (such as restart.txt) saved with"), "{log}");
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
    let text = |name: &str| std::fs::read_to_string(back.join(name)).unwrap_or_default();
    for rank in 0..2 {
        let expected = format!("3 {rank}\n");
        assert_eq!(
            (text(&format!("rank{rank}/restart")), text(&format!("rank{rank}/history"))),
            (expected.clone(), expected)
        );
    }
    assert_eq!(text("restart.txt"), "first 3\n", "{log}");
}

/// The content of the file with this name. All files have the same length.
fn content(name: &str) -> String {
    format!("{name:>40}")
}

/// Writes files with these names, and saves them with `mcr save`. Returns the messages.
fn save_names(dir: &Path, names: impl IntoIterator<Item = String>, status: i32) -> String {
    for name in names {
        let path = dir.join("out").join(&name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(path, content(&name)).expect("written");
    }
    save_guessed(dir, status)
}

#[test]
fn numbers_of_ranks_before_the_step_or_in_a_grid_are_asked_about_and_nothing_is_saved() {
    let two = |form: &'static str, x: u32, y: u32| {
        let name = move |x: u32, y: u32| form.replace('X', &x.to_string()).replace('Y', &y.to_string());
        (0..x).flat_map(move |x| (0..y).map(move |y| name(x, y)))
    };
    for (form, x, y) in [("state.000X.0000Y", 4, 1), ("dump.X.Y", 4, 3), ("u.10.pxX.pyY", 3, 2), ("rst_X_Y.bin", 3, 2)]
    {
        let dir = tempfile::tempdir().expect("a directory");
        let said = save_names(dir.path(), two(form, x, y), 1);
        assert!(said.contains("Say with --layout which number is the step"), "{form}: {said}");
        assert!(!dir.path().join("saved/saved").exists(), "{form}");
    }
}

#[test]
fn all_files_of_a_directory_with_the_name_of_a_step_come_back() {
    for (form, numbers) in [
        ("step_S/restart.#", [0, 32, 64, 96]),
        ("ckpt_S/state.#.bin", [4711, 4713, 4718, 4720]),
        ("DD00S/rst.#", [163, 12, 53, 16]),
        ("step_S/state_#.dat", [0, 1, 2, 3]),
    ] {
        for steps in [&[10][..], &[10, 20, 30]] {
            let dir = tempfile::tempdir().expect("a directory");
            let names = steps.iter().flat_map(|step| {
                let form = form.replace('S', &step.to_string());
                numbers.map(|number: u32| form.replace('#', &number.to_string()))
            });
            let said = save_names(dir.path(), names, 0);
            let back = dir.path().join("back");
            run(mcr().args(["restart", "--store"]).arg(dir.path().join("saved")).arg("--to").arg(&back), 0);
            let newest = form.replace('S', &steps[steps.len() - 1].to_string());
            for number in numbers {
                let name = newest.replace('#', &number.to_string());
                assert_eq!(std::fs::read_to_string(back.join(&name)).ok(), Some(content(&name)), "{said}");
            }
        }
    }
}

#[test]
fn a_newer_directory_without_the_number_of_a_step_makes_the_saved_checkpoints_doubtful() {
    for last in ["final", "emergency"] {
        let dir = tempfile::tempdir().expect("a directory");
        let steps = ["step_0", "step_1", "step_2", last];
        let names = steps.iter().flat_map(|step| (0..2).map(move |rank| format!("{step}/r{rank}.dat")));
        let said = save_names(dir.path(), names, 4);
        assert!(said.contains("step_2 is doubtful") && said.contains(&format!("first: {last}/r0.dat")), "{said}");
        let back = dir.path().join("back");
        let mut restart = mcr();
        restart.args(["restart", "--store"]).arg(dir.path().join("saved")).arg("--to").arg(&back);
        let told = run(&mut restart, 2);
        assert!(back.join("step_2/r1.dat").exists(), "{}", String::from_utf8_lossy(&told.stderr));
    }
}

#[test]
fn a_run_without_a_layout_does_not_save_in_another_layout_than_the_runs_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |step: u32| format!("for k in a b; do for r in 0 1; do echo $k > s{step}_$k.rank_$r.dat; done; done");
    let script = format!("{}; sleep 2; {}; sleep 2; {}", write(1), write(2), write(3));
    run_guessed(dir.path(), &["--ranks", "2", "--layout", "{checkpoint}.rank_{rank}.dat"], &script, 0);
    assert!(is_complete(dir.path(), "s3_b"));
    let log = run_guessed(dir.path(), &["--ranks", "2"], &format!("{}; sleep 3", write(4)), 5);
    assert!(log.contains("s1_a.rank_0.dat was saved as s1_a, rank 0, and would now be "), "{log}");
    assert!(
        list(&dir.path().join("store"))
            .iter()
            .all(|state| state["checkpoint"].as_str().is_some_and(|id| id.contains('_')))
    );
}
