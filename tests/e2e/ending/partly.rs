//! What `mcr run` says and saves if a guess leaves out files of the ranks, or if files were removed or cut.

use super::*;

/// Runs a shell script under `mcr run` without a layout and without the number of ranks. Returns the log.
fn run_guessing(dir: &Path, script: &str, status: i32) -> String {
    run_without_layout(dir, &[], script, status)
}

/// Runs a shell script under `mcr run` with these options, and without a layout. Returns the log.
fn run_without_layout(dir: &Path, options: &[&str], script: &str, status: i32) -> String {
    let watch = dir.join("out");
    std::fs::create_dir_all(&watch).expect("made");
    let mut command = mcr();
    command.args(["run", "--job", "job", "--create", "--store"]).arg(dir.join("store")).args(options);
    command.arg("--state").arg(dir.join("state")).arg("--watch").arg(&watch).current_dir(watch);
    command.args(["--", "sh", "-c", script]);
    String::from_utf8_lossy(&run(&mut command, status).stderr).into_owned()
}

fn doubtful(dir: &Path) -> Vec<String> {
    let all = list(&dir.join("store"));
    all.iter()
        .filter(|c| c["doubt"].is_string())
        .map(|c| c["checkpoint"].as_str().expect("a name").to_owned())
        .collect()
}

#[test]
fn a_run_whose_guess_leaves_out_a_file_of_each_rank_gives_5_and_steps_without_such_files_of_their_own_are_doubtful() {
    let each_rank = |of_rank: &str| {
        format!(
            "for s in 0001 0002 0003 0004; do for r in 0 1 2; do head -c 20000 /dev/urandom > ckpt_${{s}}_r$r.bin; \
             {of_rank}; done; sleep 2.5; done"
        )
    };
    // The files of the ranks are small, and appear after the layout was guessed.
    let beside = each_rank("[ $s -lt 3 ] || echo $s > part_${s}_r$r.bin");
    let dir = tempfile::tempdir().expect("a directory");
    let log = run_guessing(dir.path(), &beside, 5);
    assert!(log.contains("first=part_0003_r0.bin"), "{log}");
    assert_eq!(doubtful(dir.path()), ["ckpt_0004", "ckpt_0003"], "{log}");
    // Files that each rank overwrites in each step.
    let dir = tempfile::tempdir().expect("a directory");
    let log = run_guessing(dir.path(), &each_rank("echo $s > rng_rank$r.bin"), 5);
    assert!(log.contains("not committed") && log.contains("first=rng_rank0.bin"), "{log}");
    // A log of the application is no part of its state.
    let dir = tempfile::tempdir().expect("a directory");
    run_guessing(dir.path(), &each_rank("echo $s >> energy.dat"), 0);
}

#[test]
fn a_run_whose_files_were_removed_before_they_were_saved_says_this_and_gives_5() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for r in 0 1 2; do echo $r > d001.$r; done; sleep 4; rm d001.*";
    let log = run_guessing(dir.path(), script, 5);
    assert!(log.contains("the files of a checkpoint were removed before they were saved"), "{log}");
}

#[test]
fn the_last_file_of_a_killed_process_is_not_taken_if_all_its_files_before_were_longer() {
    for (end, status, is_taken) in [("kill -KILL $$", 137, false), ("exit 0", 0, true)] {
        let dir = tempfile::tempdir().expect("a directory");
        let script = format!(
            "write() {{ head -c $3 /dev/urandom > s$1.rank_$2.txt; }}; for s in 1 2 3; do write $s 0 20000; \
             write $s 1 20000; sleep 1.5; done; write 4 0 20000; write 4 1 19000; {end}"
        );
        let log = run(&mut run_with(dir.path(), &["--", "sh", "-c", &script]), status).stderr;
        let log = String::from_utf8_lossy(&log).into_owned();
        assert!(is_complete(dir.path(), "s3"), "{log}");
        assert_eq!(is_complete(dir.path(), "s4"), is_taken, "{log}");
        assert_eq!(log.contains("checkpoint=s4 ranks=1"), !is_taken, "{log}");
    }
}

#[test]
fn one_file_that_is_overwritten_by_renaming_is_saved_from_its_second_content_on_without_a_number_of_ranks() {
    let dir = tempfile::tempdir().expect("a directory");
    let script =
        "for step in 1 2 3 4; do head -c 2000 /dev/urandom > new; mv new restart.h5; sleep 3; done; kill -9 $$";
    run_guessing(dir.path(), script, 137);
    let all = list(&dir.path().join("store"));
    assert!(all.len() >= 2 && all.iter().all(|checkpoint| checkpoint["complete"] == true), "{all:?}");
}

#[test]
fn the_success_of_a_command_says_nothing_about_files_that_the_command_has_not_written() {
    // An application that died after rank 0 had overwritten its file.
    let files = "echo 1 > state.rank_0.txt; echo 1 > state.rank_1.txt; sleep 1.5; echo 2 > state.rank_0.txt; sleep 1";
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    std::fs::create_dir(&out).expect("made");
    let written = std::process::Command::new("sh").args(["-c", files]).current_dir(out).status();
    assert!(written.expect("starts").success());
    let log = run(&mut run_with(dir.path(), &["--", "sleep", "1.5"]), 5).stderr;
    let log = String::from_utf8_lossy(&log).into_owned();
    assert_eq!(doubtful(dir.path()), ["state"], "{log}");
    assert!(log.contains("the newest checkpoint is doubtful"), "{log}");
}

#[test]
fn ranks_that_write_more_than_half_a_step_apart_make_no_checkpoint_of_two_steps_without_doubt() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for i in 1 2 3 4; do echo step $i > state.rank_0.txt; sleep 2.2; [ $i = 4 ] && kill -9 $$; \
                  echo step $i > state.rank_1.txt; sleep 0.8; done";
    let log = run(&mut run_with(dir.path(), &["--", "sh", "-c", script]), 137).stderr;
    let all = list(&dir.path().join("store"));
    assert!(all.len() >= 2, "{all:?}");
    for (nth, checkpoint) in all.iter().enumerate() {
        let (back, id) = (dir.path().join(format!("back{nth}")), checkpoint["checkpoint"].as_str().expect("a name"));
        let mut restart = mcr();
        restart.args(["restart", "--copy", "--checkpoint", id, "--store"]).arg(dir.path().join("store"));
        run(restart.arg("--to").arg(&back), 2 * i32::from(checkpoint["doubt"].is_string()));
        let text = |rank: u32| std::fs::read_to_string(back.join(format!("state.rank_{rank}.txt"))).expect("restored");
        let is_of_one_step = text(0) == text(1);
        assert!(is_of_one_step || checkpoint["doubt"].is_string(), "{id}: {}", String::from_utf8_lossy(&log));
    }
}

#[test]
fn the_last_step_of_several_groups_is_saved_also_if_one_rank_writes_longer_than_the_pause_between_steps() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "bytes() { head -c 2000 /dev/urandom; }; slowly() { for n in 1 2 3 4 5; do bytes; sleep 0.3; done; }; \
                  for s in 1 2 3 4; do for r in 0 1 2; do bytes > state.rank_$r.txt; done; \
                  slowly > state.rank_3.txt; sleep 0.4; done";
    let layout = ["--group-size", "2", "--ranks", "4", "--", "bash", "-c", script];
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--layout", "{checkpoint}.rank_{rank}.txt", "--store"]);
    command.arg(dir.path().join("store")).arg("--state").arg(dir.path().join("state")).arg("--watch");
    let out = dir.path().join("out");
    std::fs::create_dir_all(&out).expect("made");
    let log = run(command.arg(&out).args(layout).current_dir(&out), 0).stderr;
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--copy", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
    for rank in 0..4 {
        let read = |dir: &Path| std::fs::read(dir.join(format!("state.rank_{rank}.txt"))).expect("there");
        assert!(read(&back) == read(&out), "rank {rank}: {}", String::from_utf8_lossy(&log));
    }
}

#[test]
fn a_file_of_all_ranks_that_a_guess_leaves_out_beside_overwritten_files_makes_doubt_and_a_log_does_not() {
    // The log is older than the first step.
    let script = |shared: &str| {
        format!(
            "echo begin > energy.dat; sleep 1.5; for s in 1 2 3; do for r in 0 1 2; do mkdir -p rank$r; \
             head -c 20000 /dev/urandom > rank$r/field.bin; done; echo step $s >> energy.dat; {shared}; sleep 2.5; done"
        )
    };
    for (shared, is_doubtful) in [("head -c 9000 /dev/urandom > global.bin", true), ("true", false)] {
        let dir = tempfile::tempdir().expect("a directory");
        let status = if is_doubtful { 5 } else { 0 };
        let log = run_without_layout(dir.path(), &["--ranks", "3"], &script(shared), status);
        assert_eq!(!doubtful(dir.path()).is_empty(), is_doubtful, "{shared}: {log}");
    }
}

#[test]
fn the_files_of_a_killed_application_whose_names_show_no_checkpoints_are_doubtful() {
    for (end, status) in [("kill -9 $$", 137), ("exit 0", 0)] {
        let dir = tempfile::tempdir().expect("a directory");
        let steps = "for s in 1 2; do echo step $s > model.pt; sleep 0.5; [ $s = 2 ] || echo step $s > opt.pt; \
                     sleep 0.5; done;";
        run_without_layout(dir.path(), &["--ranks", "1"], &format!("{steps} {end}"), status);
        assert_eq!(!doubtful(dir.path()).is_empty(), status != 0, "{end}");
    }
}

#[test]
fn a_rank_that_was_killed_while_it_overwrote_its_file_makes_no_complete_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    std::fs::create_dir_all(&out).expect("made");
    // In step 4, rank 1 ends when it has written 2900 of 3000 bytes. The application runs on, and is then killed.
    let script = "for s in 1 2 3 4; do for r in 0 1; do n=3000; [ $s$r = 41 ] && n=2900; \
                  head -c $n /dev/urandom > state.$r; done; sleep 3; done; kill -9 $$";
    let mut command = mcr();
    command.args(["run", "--job", "job", "--create", "--ranks", "2", "--layout", "{checkpoint}.{rank}", "--store"]);
    command.arg(dir.path().join("store")).arg("--state").arg(dir.path().join("state")).arg("--watch").arg(&out);
    let output = run(command.current_dir(&out).args(["--", "sh", "-c", script]), 137);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("the rank wrote fewer files or bytes than for the checkpoint before"), "{log}");
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--copy", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
    for rank in 0..2 {
        let bytes = std::fs::metadata(back.join(format!("state.{rank}"))).expect("restored").len();
        assert_eq!(bytes, 3000, "state.{rank}: {log}");
    }
}

#[test]
fn a_file_in_which_a_failed_command_was_writing_is_doubtful_unless_its_length_is_as_before() {
    // The text has no header that states the length of a file.
    let step = |nth: u32, length: u32| {
        format!("echo one > s{nth}.rank_1.txt; head -c {length} /dev/zero > s{nth}.rank_0.txt; ")
    };
    for (last, end, doubts) in [
        (3000, "kill -9 $$", &["s2"][..]),
        (4000, "kill -9 $$", &[]),
        (5000, "exit 1", &["s2"]),
        (3000, "sleep 2; kill -9 $$", &[]),
        (3000, "exit 0", &[]),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let script = format!("{} sleep 2; {} {end}", step(1, 4000), step(2, last));
        let status = if end.contains("kill") { 137 } else { i32::from(end == "exit 1") };
        run(&mut run_with(dir.path(), &["--", "sh", "-c", &script]), status);
        assert_eq!(doubtful(dir.path()), doubts, "{last} bytes, {end}");
    }
}
