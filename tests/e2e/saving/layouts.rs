//! A later save of a job uses the layout of the earlier saves.

use super::*;

#[test]
fn a_half_written_step_is_saved_with_the_layout_of_the_whole_steps_before() {
    let site = Site::new();
    let write = |step: u32, name: &str, rank: u32| {
        site.write(format!("{step}/{step}{name}.h5.{rank}"), format!("{step} {name} {rank}").as_bytes());
    };
    for step in 1..=3 {
        for rank in 0..4 {
            ["", "_particles"].iter().for_each(|name| write(step, name, rank));
        }
        site.save(&[], 0);
    }
    write(4, "", 0);
    let (out, _) = site.save(&[], 4);
    assert!(out.contains("3 of 4 checkpoints are in") && out.contains("not saved: 4"), "{out}");
    let back = site.back();
    assert_eq!(back.len(), 8, "{back:?}");
    assert_eq!(back[Path::new("3/3_particles.h5.3")], b"3 _particles 3");
}

#[test]
fn steps_that_are_saved_one_by_one_stay_one_checkpoint_of_one_rank_each_time() {
    let site = Site::new();
    site.write("rb.py", b"script");
    for step in 1..=4 {
        site.write(format!("snapshots/snapshots_s{step}.h5"), format!("snapshot {step}").as_bytes());
        site.write(format!("checkpoints/checkpoints_s{step}.h5"), format!("state {step}").as_bytes());
        site.save(&[], 0);
    }
    assert_eq!(site.back().len(), 9);
}
