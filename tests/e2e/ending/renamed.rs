//! What is saved of a code that renames its file before it writes the file again.

use super::*;

#[test]
fn each_step_of_a_code_that_renames_its_file_before_it_writes_it_again_is_saved_also_after_a_restart() {
    for copy in ["old_restart.dat", "backup.dat", "prev/restart.dat"] {
        let dir = tempfile::tempdir().expect("a directory");
        let (out, store) = (dir.path().join("out"), dir.path().join("store"));
        let steps = |from: u32, to: u32| {
            let rename = format!("mkdir -p prev; [ -e restart.dat ] && mv restart.dat {copy}");
            format!("for s in $(seq {from} {to}); do {rename}; echo step $s > restart.dat; sleep 1.5; done")
        };
        run_one_rank(dir.path(), "single", &steps(1, 3), 0);
        run(mcr().args(["restart", "--store"]).arg(&store).arg("--to").arg(&out), 0);
        let log = run_one_rank(dir.path(), "single", &steps(4, 6), 0);
        let states = list(&store);
        assert_eq!(states[0]["state"], "complete", "{copy}: {states:?}\n{log}");
        let back = dir.path().join("back");
        run(mcr().args(["restart", "--copy", "--store"]).arg(&store).arg("--to").arg(&back), 0);
        let text = |name: &str| std::fs::read_to_string(back.join(name)).ok();
        assert_eq!(text("restart.dat").as_deref(), Some("step 6\n"), "{copy}: {log}");
        assert_eq!(text(copy).as_deref(), Some("step 5\n"), "{copy}: {log}");
    }
}
