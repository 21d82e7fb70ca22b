//! What `mcr save --keep` saves and keeps.

use super::*;

#[test]
fn a_save_that_keeps_fewer_than_it_saved_says_so() {
    let site = Site::new();
    for step in 1..=3 {
        (0..2).for_each(|rank| site.write(format!("s{step}/r{rank}"), format!("{step} {rank}").as_bytes()));
    }
    let (out, _) = site.save(&["--keep", "1", "--layout", "{checkpoint}/r{rank}"], 0);
    assert!(out.contains("1 of 3 checkpoints are in") && out.contains("2 removed by --keep"), "{out}");
}

/// A site with steps 1 to `last` of two ranks, written a minute apart, the last one a minute ago.
fn site_with_steps(last: u32) -> Site {
    let site = Site::new();
    for step in 1..=last {
        write_step(&site, step, 60 * (last + 1 - step));
    }
    site
}

fn write_step(site: &Site, step: u32, seconds_ago: u32) {
    for rank in 0..2 {
        let path = format!("s{step}/r{rank}");
        site.write(&path, format!("{step} {rank}").as_bytes());
        let file = std::fs::File::options().write(true).open(site.data().join(&path)).expect("opened");
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(seconds_ago.into())).expect("set");
    }
}

#[test]
fn steps_that_keep_would_remove_again_are_not_saved_a_second_time() {
    let site = site_with_steps(4);
    let layout = ["--keep", "2", "--layout", "{checkpoint}/r{rank}"];
    site.save(&layout, 0);
    let (out, _) = site.save(&layout, 0);
    assert!(out.contains("2 of 4 checkpoints are in") && out.contains("2 older than what --keep keeps"), "{out}");
    assert!(!out.contains("removed"), "{out}");
    // The next step takes the place of the oldest kept step.
    write_step(&site, 5, 0);
    let (out, _) = site.save(&layout, 0);
    assert!(out.contains("2 of 5 checkpoints are in") && out.contains("1 removed by --keep"), "{out}");
    let back = site.back();
    assert_eq!(back[Path::new("s5/r1")], b"5 1");
    // A kept checkpoint that is marked as bad does not count, so an older step is saved in its place.
    run(mcr().args(["prune", "--mark-bad", "s4", "--job", "job", "--store"]).arg(site.store()), 0);
    let (out, _) = site.save(&layout, 0);
    let states = list(&site.store());
    let is_third = |id: &serde_json::Value| id.as_str().is_some_and(|id| id.starts_with("s3"));
    assert!(states.iter().any(|state| is_third(&state["checkpoint"]) && state["complete"] == true), "{out}");
}
