use super::*;

fn core(root: &Path) -> (Core, mpsc::Receiver<WatchEvent>, PipeReader) {
    let layout = Layout::from_patterns(&["{checkpoint}/r{rank}"], 0).expect("valid");
    let rules = SettleRules { quiet_ms: 0, scan_quiet_ms: 0, checkpoint_quiet_ms: 0, ..SettleRules::default() };
    let options = WatchOptions { rules, local: Some(true), ..WatchOptions::default() };
    let (events, receiver) = mpsc::channel(8);
    let (wait, wake) = io::pipe().expect("a pipe");
    (Core::new(root, layout, options, events, wake).expect("watches"), receiver, wait)
}

fn wait_for(core: &mut Core, receiver: &mut mpsc::Receiver<WatchEvent>) -> ReadyRank {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        core.turn();
        match receiver.try_recv() {
            Ok(WatchEvent::Ready(ready)) => return ready,
            _ => assert!(Instant::now() < deadline, "no rank became ready"),
        }
    }
}

#[test]
fn at_rest_only_the_kernel_and_the_check_of_the_path_wake_us() {
    let root = tempfile::tempdir().expect("a directory");
    let (mut core, mut receiver, _wait) = core(root.path());
    core.turn();
    assert_eq!(core.turn(), Some(core.path_check_ms), "an empty directory");
    std::fs::create_dir(root.path().join("t1")).expect("made");
    std::fs::write(root.path().join("t1/r0"), "x").expect("written");
    let slow = std::fs::File::create(root.path().join("t1/r1")).expect("made");
    wait_for(&mut core, &mut receiver);
    drop(slow);
    wait_for(&mut core, &mut receiver);
    std::fs::remove_file(root.path().join("t1/r1")).expect("removed");
    let deadline = Instant::now() + Duration::from_secs(10);
    while core.files.len() > 1 {
        core.turn();
        assert!(Instant::now() < deadline, "the file that was removed is still known");
    }
    core.turn();
    assert_eq!(core.turn(), Some(core.path_check_ms), "everything was reported");
    assert!(core.due.is_empty() && core.examine.is_empty() && core.notices.is_empty());
}

#[test]
fn an_overflow_of_a_queue_leads_to_a_scan() {
    let root = tempfile::tempdir().expect("a directory");
    let (mut core, mut receiver, _wait) = core(root.path());
    core.turn();
    // Each iteration causes three different events, so the kernel cannot merge them. The watcher reads no event
    // during the loop.
    for _ in 0..kernel::EVENTS_MAX / 2 {
        std::fs::write(root.path().join("noise"), "").expect("written");
        std::fs::remove_file(root.path().join("noise")).expect("removed");
    }
    std::fs::create_dir(root.path().join("t1")).expect("made");
    std::fs::write(root.path().join("t1/r0"), "x").expect("written");
    let ready = wait_for(&mut core, &mut receiver);
    assert_eq!((ready.checkpoint.as_str(), ready.rank), ("t1", Rank(0)));
    assert!(core.scans >= 2, "found without a scan: there was no overflow to test");
}
