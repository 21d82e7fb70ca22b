//! Decides which ranks of a checkpoint are ready. A rank is ready if all its files are settled, and nothing indicates
//! that more files will follow.

use super::ready::{ReadyRank, SettledFile, WaitingRank, Why};
use super::rewrites::{Clock, Rest, Rewrites};
use super::usual::Usual;
use super::{Answer, Gone, OwnRanks, SettleRules};
use crate::fingerprint::Fingerprint;
use crate::timeline::Timeline;
use mcrengine::ids::{CheckpointId, Digest, FilePath, Rank, shape_of};
use mcrengine::turns::WrittenFile;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Decides which ranks of which checkpoints are ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    own: OwnRanks,
    quiet_ms: u64,
    needs_marker: bool,
    files_per_rank: Option<u32>,
    doubt_quiet_ms: u64,
    /// How the job's processes ended. `None` if they may run.
    gone: Option<Gone>,
    /// Number of files and bytes of each rank in its last report.
    usual: BTreeMap<Rank, Usual>,
    checkpoints: BTreeMap<CheckpointId, Gathered>,
    /// Files that a restart wrote and that the application has not changed since.
    restored: BTreeSet<FilePath>,
    /// The application's pointer files and links, by the ranks that wait for them and by the shapes of their paths. The
    /// shape of `rpointer.atm_0003` is `rpointer.atm_#`.
    pointers: BTreeMap<(Rank, Vec<u8>), Pointer>,
}

/// The usual delay of a pointer file or a link.
#[derive(Clone, Copy, Debug, Default)]
struct Pointer {
    /// Delay of the pointer after the last file of its checkpoint, in milliseconds. `None`: the pointer is not
    /// expected.
    after_ms: Option<u64>,
    /// Number of times that the expected pointer did not appear.
    in_vain: u32,
}

/// When a pointer was written for a checkpoint, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Written {
    first_ms: u64,
    last_ms: u64,
}

/// Maximum number of shapes of pointers, for each rank that waits for them. Further pointers are not awaited.
const POINTERS_MAX: usize = 4096;
/// Number of times that a pointer may be missing. After this number of times, the pointer is not expected.
const IN_VAIN_MAX: u32 = 3;
/// Maximum wait for a pointer that is written repeatedly, in multiples of a checkpoint's quiet time.
const POINTER_QUIET_TIMES: u64 = 4;

/// The files of a rank when it was reported. A digest takes less memory than the list of files.
#[derive(Clone, Copy, Debug)]
struct Reported {
    digest: Digest,
    bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Gathered {
    last_event_ms: u64,
    /// When a file was last written, by the caller's clock. A file settles some time after it was written.
    written_ms: u64,
    marked: bool,
    /// Files by rank. The key `None` has the files that belong to no single rank. A file without fingerprint is not
    /// settled. The files are in sorted lists, which need less memory than maps. Most ranks have one file, and there
    /// may be very many ranks.
    files: BTreeMap<Option<Rank>, Vec<(FilePath, Option<Fingerprint>)>>,
    /// The last report of each reported rank.
    announced: BTreeMap<Rank, Reported>,
    /// Ranks that have changed since their report. Only these ranks are checked again.
    changed: BTreeSet<Rank>,
    /// The earliest last write to a settled file of the checkpoint, in nanoseconds since 1970.
    begun_ns: Option<i64>,
    /// When the pointer files and the links of the checkpoint were written, by the waiting rank and by shape.
    pointers: BTreeMap<(Rank, Vec<u8>), Written>,
    /// The ranks for which a pointer was written after the report of the rank.
    late_pointers: BTreeSet<Rank>,
    rewrites: Rewrites,
    /// The ranks with a file whose content does not show the length of the file. Such a file may be cut.
    may_be_cut: BTreeSet<Rank>,
    /// The ranks with such a file that was written when the job's processes ended without success.
    written_at_end: BTreeSet<Rank>,
}

impl Readiness {
    /// The state before any file was seen.
    pub fn new(rules: &SettleRules, layout: &crate::layout::Layout, own: OwnRanks) -> Self {
        Self {
            own,
            quiet_ms: rules.checkpoint_quiet_ms,
            needs_marker: layout.has_marker(),
            files_per_rank: layout.files_per_rank(),
            doubt_quiet_ms: rules.doubt_quiet_ms,
            gone: None,
            usual: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            restored: BTreeSet::new(),
            pointers: BTreeMap::new(),
        }
    }

    /// Records that the watcher has found all files that existed when it began.
    pub fn begun(&mut self) {
        self.checkpoints.values_mut().for_each(|gathered| gathered.rewrites.joined());
    }

    /// The times at which the checkpoints began.
    pub fn timeline(&self) -> Timeline {
        let mut timeline = Timeline::default();
        for (label, gathered) in &self.checkpoints {
            gathered.begun_ns.into_iter().for_each(|begun_ns| timeline.add(label, begun_ns));
        }
        timeline
    }

    /// Records that a pointer file, or a link to a checkpoint, was written. The pointer counts for the checkpoint
    /// with the newest event. `rank` is the rank that waits for the pointer. Returns the checkpoint if this rank was
    /// already reported.
    pub fn pointer_written(&mut self, now_ms: u64, path: &Path, rank: Rank) -> Option<CheckpointId> {
        let newest = self.checkpoints.iter_mut().max_by_key(|(_, gathered)| gathered.last_event_ms);
        let (label, gathered) = newest?;
        let after_ms = now_ms.saturating_sub(gathered.last_event_ms);
        let shape = (rank, shape_of(&path.to_string_lossy()));
        if self.pointers.len() < POINTERS_MAX || self.pointers.contains_key(&shape) {
            let usual = self.pointers.entry(shape.clone()).or_default();
            if usual.in_vain < IN_VAIN_MAX && after_ms <= self.doubt_quiet_ms / 2 {
                usual.after_ms = Some(after_ms);
            }
            gathered.pointers.entry(shape).or_insert(Written { first_ms: now_ms, last_ms: now_ms }).last_ms = now_ms;
        }
        if gathered.announced.contains_key(&rank) && gathered.late_pointers.insert(rank) {
            gathered.changed.insert(rank);
            return Some(label.clone());
        }
        None
    }

    /// Records that a file of a checkpoint exists or has changed. If a fingerprint is given, the file is settled.
    pub fn put(
        &mut self,
        now_ms: u64,
        checkpoint: &CheckpointId,
        rank: Option<Rank>,
        path: &FilePath,
        settled: Option<Fingerprint>,
    ) {
        let is_restored = self.restored.contains(path);
        let gathered = self.gathered(checkpoint);
        let files = gathered.files.entry(rank).or_insert_with(|| Vec::with_capacity(1));
        let mut is_written = true;
        let is_new = match files.binary_search_by(|(other, _)| other.cmp(path)) {
            Ok(at) => {
                let before = std::mem::replace(&mut files[at].1, settled);
                if let (Some(before), true) = (before, before != settled) {
                    gathered.rewrites.replaced(path, before.modified_ns, before.changed_ns, is_restored);
                }
                is_written = before.is_some();
                before != settled
            }
            Err(at) => {
                files.insert(at, (path.clone(), settled));
                true
            }
        };
        if let Some(written_ns) = settled.map(|print| print.written_ns()) {
            gathered.begun_ns = Some(gathered.begun_ns.map_or(written_ns, |begun_ns| written_ns.min(begun_ns)));
        }
        if is_new {
            gathered.last_event_ms = now_ms;
            gathered.written_ms = if is_written { now_ms } else { gathered.written_ms };
            gathered.changed.insert(rank.unwrap_or(Rank(0)));
        }
    }

    /// Records that the content of one of the rank's files does not show the length of the file.
    pub fn set_may_be_cut(&mut self, checkpoint: &CheckpointId, rank: Option<Rank>) {
        self.gathered(checkpoint).may_be_cut.insert(rank.unwrap_or(Rank(0)));
    }

    /// Records that such a file of the rank was written when the job's processes ended without success.
    pub fn set_written_at_end(&mut self, checkpoint: &CheckpointId, rank: Option<Rank>) {
        self.gathered(checkpoint).written_at_end.insert(rank.unwrap_or(Rank(0)));
    }

    /// Records whether a restart wrote this file. A rank is not ready if a restart wrote all its files. If the
    /// application has changed one of the files since, all files of the rank are saved.
    pub fn set_restored(&mut self, path: &FilePath, is_restored: bool) {
        match is_restored {
            true => drop(self.restored.insert(path.clone())),
            false => drop(self.restored.remove(path)),
        }
    }

    /// Makes restored files count as files that the application wrote.
    pub fn take_restored(&mut self) {
        let restored = std::mem::take(&mut self.restored);
        for gathered in self.checkpoints.values_mut() {
            let is_one =
                |files: &[(FilePath, Option<Fingerprint>)]| files.iter().any(|(path, _)| restored.contains(path));
            let ranks =
                gathered.files.iter().filter(|(_, files)| is_one(files)).map(|(rank, _)| rank.unwrap_or(Rank(0)));
            gathered.changed.extend(ranks.collect::<Vec<_>>());
        }
    }

    /// Records that a file of a checkpoint was removed. Returns whether the file was part of an announcement.
    pub fn remove(&mut self, now_ms: u64, checkpoint: &CheckpointId, rank: Option<Rank>, path: &FilePath) -> bool {
        let Some(gathered) = self.checkpoints.get_mut(checkpoint) else { return false };
        let mut was_settled = false;
        if let Some(files) = gathered.files.get_mut(&rank) {
            if let Ok(at) = files.binary_search_by(|(other, _)| other.cmp(path)) {
                let was = files.remove(at).1;
                was_settled = was.is_some();
                gathered.rewrites.removed(path, was.map(|was| (was.modified_ns, was.changed_ns)));
            }
            if files.is_empty() {
                gathered.files.remove(&rank);
            }
        }
        gathered.last_event_ms = now_ms;
        let rank = rank.unwrap_or(Rank(0));
        gathered.changed.extend([rank, Rank(0)]);
        let announced = was_settled && gathered.announced.contains_key(&rank);
        if gathered.files.is_empty() {
            self.checkpoints.remove(checkpoint);
        } else if !gathered.files.contains_key(&Some(rank)) {
            gathered.announced.remove(&rank);
        }
        announced
    }

    /// Records whether the marker file of a checkpoint exists and is settled. After the marker no further files of
    /// the checkpoint follow.
    pub fn mark(&mut self, checkpoint: &CheckpointId, is_there: bool) {
        self.gathered(checkpoint).marked = is_there;
    }

    fn gathered(&mut self, checkpoint: &CheckpointId) -> &mut Gathered {
        if !self.checkpoints.contains_key(checkpoint) {
            self.checkpoints.insert(checkpoint.clone(), Gathered::default());
        }
        self.checkpoints.get_mut(checkpoint).expect("the checkpoint was inserted above")
    }

    /// Returns the ranks that are ready and whose present state was not yet reported, at most `most` ranks. Also
    /// returns the time at which this function must be called again, in milliseconds.
    pub fn due(&mut self, now_ms: u64, most: usize) -> (Vec<ReadyRank>, Option<u64>) {
        let (mut ready, mut next_ms, gone) = (Vec::new(), None::<u64>, self.gone);
        for (checkpoint, gathered) in &mut self.checkpoints {
            let mut quiet_at_ms = gathered.last_event_ms.saturating_add(self.quiet_ms);
            if gathered.changed.is_empty() {
                continue;
            }
            let (mut doubt_ns, mut interval_ns) = (None, 0);
            if quiet_at_ms <= now_ms {
                let rest = gathered.rest(now_ms, self.doubt_quiet_ms);
                quiet_at_ms = quiet_at_ms.max(rest.until_ms);
                doubt_ns = rest.doubt_ns.filter(|_| !self.needs_marker);
                interval_ns = rest.interval_ns;
            }
            let complete = if self.needs_marker { gathered.marked } else { quiet_at_ms <= now_ms };
            if !complete && !self.needs_marker {
                next_ms = Some(next_ms.map_or(quiet_at_ms, |at| at.min(quiet_at_ms)));
            }
            if !complete && self.files_per_rank.is_none() {
                continue;
            }
            let changed: Vec<_> = gathered.changed.iter().copied().collect();
            for rank in changed {
                if ready.len() >= most {
                    return (ready, Some(now_ms));
                }
                let files = gathered.settled(rank, &self.own).filter(|_| !gathered.is_restored(rank, &self.restored));
                let own = self.own.ask(rank, now_ms, gathered.last_event_ms, self.doubt_quiet_ms);
                if let (Some(_), true, Answer::AskAgain(at_ms)) = (&files, complete, own) {
                    next_ms = Some(next_ms.map_or(at_ms, |at| at.min(at_ms)));
                    continue;
                }
                let files = files.filter(|_| own == Answer::Yes);
                let before = gathered.announced.get(&rank).map(|reported| reported.digest);
                let is_late = gathered.is_late(rank);
                let Some(files) = files.filter(|files| before != Some(digest_of(files, is_late))) else {
                    gathered.changed.remove(&rank);
                    continue;
                };
                let enough = self.files_per_rank.is_some_and(|needed| files.len() as u64 >= u64::from(needed));
                let of_files = Usual::of(&files);
                let usual = self.usual.get(&rank).filter(|usual| of_files.is_later_than(usual));
                let are_vouched = gone.is_some_and(|gone| gone.vouches_for(&files));
                let is_cut = gathered.may_be_cut.contains(&rank) && of_files.is_cut(usual);
                let has_shrunk = gathered.has_shrunk(rank, of_files);
                let is_less = is_cut || complete && !enough && of_files.lacks(usual, has_shrunk);
                if (complete || enough) && !self.needs_marker && is_less {
                    // The rank waits for a file that may be missing. If the file appeared after the announcement of
                    // the rank, the rank would have to be announced again under the same name.
                    if gone.is_some() && !are_vouched {
                        continue;
                    }
                    let doubt_until_ms = gathered.last_event_ms.saturating_add(self.doubt_quiet_ms);
                    if doubt_until_ms > now_ms {
                        next_ms = Some(next_ms.map_or(doubt_until_ms, |at| at.min(doubt_until_ms)));
                        continue;
                    }
                }
                let pointer_until_ms =
                    gathered.pointer_until_ms(rank, &self.pointers, self.quiet_ms, self.doubt_quiet_ms);
                if let Some(until_ms) = pointer_until_ms.filter(|until_ms| *until_ms > now_ms) {
                    next_ms = Some(next_ms.map_or(until_ms, |at| at.min(until_ms)));
                    continue;
                }
                if complete || enough {
                    let lacks_files = !enough && of_files.lacks_files(usual);
                    let is_cut = is_cut && !are_vouched;
                    let has_less = !self.needs_marker && (is_cut || lacks_files);
                    let doubt_ns = doubt_ns.filter(|_| !are_vouched);
                    let is_as_long = usual.is_some_and(|usual| usual.bytes() == of_files.bytes());
                    let is_last = !self.needs_marker && gathered.written_at_end.contains(&rank) && !is_as_long;
                    let written = files.iter().map(|file| file.written(rank));
                    let first_ns = gathered.rewrites.first_of(written);
                    ready.push(ReadyRank {
                        checkpoint: checkpoint.clone(),
                        rank,
                        files,
                        companions: Vec::new(),
                        root: None,
                        again: before.is_some(),
                        doubt_ns,
                        interval_ns,
                        first_ns,
                        has_less,
                        is_last,
                    });
                }
            }
        }
        (ready, next_ms)
    }

    /// Whether this agent announces a file. The agent that takes a rank announces the files of this rank. The agent
    /// that takes rank 0 also announces the files that belong to no single rank.
    pub fn takes(&self, placed: &crate::layout::Placed) -> bool {
        let Some(rank) = placed.rank else {
            let files = self.checkpoints.get(&placed.checkpoint).map(|gathered| &gathered.files);
            let sees = |rank: &Option<Rank>| files.is_some_and(|files| files.contains_key(rank));
            let sees_none = files.is_none_or(|files| files.keys().all(Option::is_none));
            return self.own.takes(Rank(0)) && (self.own.are_shared() || sees(&Some(Rank(0))) || sees_none);
        };
        self.own.takes(rank)
    }

    /// Ends all quiet times, because the job's processes have ended. A rank that has written less than for the previous
    /// checkpoint then is ready if the processes vouch for its files. Other such ranks never become ready, because a
    /// process may have ended while it was writing.
    pub fn without_quiet_times(&mut self, gone: Gone) {
        (self.quiet_ms, self.doubt_quiet_ms) = (0, 0);
        self.gone = Some(gone);
    }

    /// Returns at most `most` ranks whose files are all settled and whose present state was not yet reported. Each
    /// rank has the reason why it waits.
    pub fn waiting(&self, now_ms: u64, most: usize) -> Vec<WaitingRank> {
        let mut waiting = Vec::new();
        for (checkpoint, gathered) in &self.checkpoints {
            let is_quiet = gathered.last_event_ms.saturating_add(self.quiet_ms) <= now_ms;
            for rank in &gathered.changed {
                if waiting.len() >= most {
                    return waiting;
                }
                let Some(files) = gathered.settled(*rank, &self.own) else { continue };
                if !self.own.takes(*rank) {
                    continue;
                }
                let reported = gathered.announced.get(rank).map(|reported| reported.digest);
                if reported == Some(digest_of(&files, gathered.is_late(*rank))) {
                    continue;
                }
                let of_files = Usual::of(&files);
                let usual = self.usual.get(rank).filter(|usual| of_files.is_later_than(usual));
                let is_cut = || gathered.may_be_cut.contains(rank) && of_files.is_cut(usual);
                let has_shrunk = gathered.has_shrunk(*rank, of_files);
                let is_fewer = || !self.needs_marker && (of_files.lacks(usual, has_shrunk) || is_cut());
                let why = match () {
                    () if self.needs_marker && !gathered.marked => Why::Marker,
                    () if is_quiet && is_fewer() => Why::Fewer,
                    () => Why::Quiet,
                };
                let modified_ns = files.iter().map(|file| file.fingerprint.modified_ns).max().unwrap_or(i64::MIN);
                waiting.push(WaitingRank { checkpoint: checkpoint.clone(), rank: *rank, why, modified_ns });
            }
        }
        waiting
    }

    /// Records that this rank was reported with these files.
    pub fn announced(&mut self, ready: &ReadyRank) {
        let gathered = self.checkpoints.entry(ready.checkpoint.clone()).or_default();
        let mut usual = Usual::of(&ready.files);
        let bytes = usual.bytes();
        usual.appends = gathered.announced.get(&ready.rank).is_some_and(|reported| reported.bytes < bytes);
        let before = self.usual.get(&ready.rank);
        if before.is_none_or(|before| usual.is_later_than(before)) {
            usual = before.map_or(usual, |before| usual.after(before));
            self.usual.insert(ready.rank, usual);
        }
        let of_rank = self.pointers.range_mut(pointers_of(ready.rank));
        for (_, pointer) in of_rank.filter(|(shape, _)| !gathered.pointers.contains_key(*shape)) {
            if pointer.after_ms.take().is_some() {
                pointer.in_vain += 1;
            }
        }
        let is_late = gathered.is_late(ready.rank);
        gathered.announced.insert(ready.rank, Reported { digest: digest_of(&ready.files, is_late), bytes });
        gathered.rewrites.announced();
        gathered.changed.remove(&ready.rank);
    }

    /// Forgets the report of a rank whose files could not be read. The rank is then reported again even if no file
    /// changes.
    pub fn forget_announced(&mut self, checkpoint: &CheckpointId, rank: Rank) {
        if let Some(gathered) = self.checkpoints.get_mut(checkpoint) {
            gathered.announced.remove(&rank);
            gathered.changed.insert(rank);
        }
    }
}

/// The keys of the pointers for which a rank waits.
fn pointers_of(rank: Rank) -> Range<(Rank, Vec<u8>)> {
    (rank, Vec::new())..(Rank(rank.0.saturating_add(1)), Vec::new())
}

fn digest_of(files: &[SettledFile], pointer_was_late: bool) -> Digest {
    let mut bytes = Vec::with_capacity(files.len() * 80);
    for SettledFile { path, fingerprint: print } in files {
        bytes.extend_from_slice(path.as_bytes());
        bytes.push(0); // a path contains no zero byte, so this zero byte ends the path
        for number in [print.device, print.inode, print.bytes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&print.modified_ns.to_le_bytes());
        bytes.extend_from_slice(&print.changed_ns.to_le_bytes());
    }
    bytes.extend(pointer_was_late.then_some(1));
    Digest::of(&bytes)
}

impl Gathered {
    /// Whether a pointer for which this rank waits was written after the report of this rank.
    fn is_late(&self, rank: Rank) -> bool {
        self.late_pointers.contains(&rank)
    }

    /// The time until which a rank waits for pointers. The rank waits until all written pointers are at rest. If a
    /// pointer is expected but not yet written, the rank waits for the quiet time plus twice the usual delay, but at
    /// most for `doubt_ms`, counted from the last event.
    fn pointer_until_ms(
        &self,
        rank: Rank,
        usual: &BTreeMap<(Rank, Vec<u8>), Pointer>,
        quiet_ms: u64,
        doubt_ms: u64,
    ) -> Option<u64> {
        let missing = usual.range(pointers_of(rank)).filter(|(shape, _)| !self.pointers.contains_key(*shape));
        let longest_ms = missing.filter_map(|(_, pointer)| pointer.after_ms).max();
        let expected_ms = longest_ms.map(|after_ms| self.last_event_ms + (2 * after_ms + quiet_ms).min(doubt_ms));
        let written = || self.pointers.range(pointers_of(rank)).map(|(_, written)| written);
        let first_ms = written().map(|written| written.first_ms).max();
        let last_ms = written().map(|written| written.last_ms).max();
        let at_rest_ms = first_ms.zip(last_ms).map(|(first_ms, last_ms)| {
            // A pointer that is written repeatedly delays the rank only for this time.
            let most_ms = (self.last_event_ms + POINTER_QUIET_TIMES * quiet_ms).max(first_ms + quiet_ms);
            (last_ms + quiet_ms).min(most_ms)
        });
        expected_ms.max(at_rest_ms)
    }

    /// Whether the rank has fewer bytes than in its last report of this checkpoint.
    fn has_shrunk(&self, rank: Rank, now: Usual) -> bool {
        self.announced.get(&rank).is_some_and(|reported| now.bytes() < reported.bytes)
    }

    /// Judges whether the checkpoint must be at rest for longer, because the application writes its files again.
    fn rest(&mut self, now_ms: u64, longest_ms: u64) -> Rest {
        let files = self.files.iter().flat_map(|(rank, files)| files.iter().map(move |file| (*rank, file)));
        let settled = files.filter_map(|(rank, (path, print))| {
            print.map(|print| WrittenFile { rank, path, at_ns: i128::from(print.modified_ns) })
        });
        self.rewrites.rest(Clock { now_ms, written_ms: self.written_ms, longest_ms }, settled)
    }

    /// Whether a restart wrote all files of a rank. Files that belong to no single rank count only if the rank has no
    /// other files.
    fn is_restored(&self, rank: Rank, restored: &BTreeSet<FilePath>) -> bool {
        let own = self.files.get(&Some(rank)).or_else(|| self.files.get(&None));
        !restored.is_empty() && own.is_some_and(|files| files.iter().all(|(path, _)| restored.contains(path)))
    }

    /// The files of a rank. `None` if the rank has no files, or if a file is not settled. Rank 0 also gets the files
    /// that belong to no single rank. An agent takes such files only if its configuration names rank 0, if it sees
    /// files of rank 0, or if it sees no files of any rank.
    fn settled(&self, rank: Rank, own: &OwnRanks) -> Option<Vec<SettledFile>> {
        if !own.watches(rank) {
            return None;
        }
        let mine = self.files.get(&Some(rank));
        let others = (rank == Rank(0)).then(|| self.files.get(&None)).flatten();
        if mine.is_none() && !own.are_shared() && self.files.keys().any(Option::is_some) {
            return None;
        }
        let all = mine.into_iter().chain(others).flatten();
        let mut files: Vec<_> = all
            .map(|(path, settled)| settled.map(|fingerprint| SettledFile { path: path.clone(), fingerprint }))
            .collect::<Option<_>>()?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        (!files.is_empty()).then_some(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    const LOCAL: SettleRules = SettleRules {
        quiet_ms: 200,
        scan_quiet_ms: 2_000,
        doubt_quiet_ms: 30_000,
        checkpoint_quiet_ms: 500,
        local: true,
    };

    fn print(bytes: u64, at: i64) -> Fingerprint {
        Fingerprint { device: 1, inode: 2, bytes, modified_ns: at, changed_ns: at }
    }

    fn id(label: &str) -> CheckpointId {
        label.parse().expect("valid")
    }
    fn path(name: &str) -> FilePath {
        FilePath::new(name.as_bytes()).expect("valid")
    }
    fn readiness(layout: Layout, own: OwnRanks) -> Readiness {
        Readiness::new(&LOCAL, &layout, own)
    }
    fn ranks(found: &[ReadyRank]) -> Vec<(u32, usize, bool)> {
        found.iter().map(|ready| (ready.rank.0, ready.files.len(), ready.again)).collect()
    }
    fn announce(readiness: &mut Readiness, now_ms: u64) -> Vec<(u32, usize, bool)> {
        let (ready, _) = readiness.due(now_ms, 9);
        ready.iter().for_each(|ready| readiness.announced(ready));
        ranks(&ready)
    }

    #[test]
    fn a_rank_whose_files_a_restart_put_there_is_ready_when_the_application_has_written_one_of_them() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        for (name, rank) in [("a/0", 0), ("a/0.mesh", 0), ("a/1", 1)] {
            r.set_restored(&path(name), true);
            r.put(0, &id("a"), Some(Rank(rank)), &path(name), Some(print(1, 1)));
        }
        r.put(0, &id("a"), None, &path("a/parameters"), Some(print(1, 1)));
        assert_eq!(announce(&mut r, 1_000), [], "the application has written no file of a rank");
        r.set_restored(&path("a/0"), false);
        r.put(2_000, &id("a"), Some(Rank(0)), &path("a/0"), Some(print(2, 2)));
        assert_eq!(announce(&mut r, 3_000), [(0, 3, false)], "all three files of rank 0, and not rank 1");
    }

    #[test]
    fn a_rank_is_ready_when_all_it_has_is_settled_and_its_checkpoint_is_quiet() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        r.put(0, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(1, 1)));
        r.put(0, &id("a"), Some(Rank(2)), &path("a/2"), None);
        assert_eq!(r.due(499, 9), (vec![], Some(500)));
        assert_eq!(announce(&mut r, 500), [(1, 1, false)]);
        assert_eq!(r.due(500, 9), (vec![], None), "a rank is reported once, and then only a kernel event matters");
        r.put(600, &id("a"), Some(Rank(2)), &path("a/2"), Some(print(1, 1)));
        assert_eq!(announce(&mut r, 1_100), [(2, 1, false)]);
        // Rank 1 gets a second file, and the file of rank 2 gets new content.
        r.put(2_000, &id("a"), Some(Rank(1)), &path("a/1b"), Some(print(1, 1)));
        r.put(2_000, &id("a"), Some(Rank(2)), &path("a/2"), Some(print(1, 2)));
        assert_eq!(announce(&mut r, 2_500), [(1, 2, true), (2, 1, true)]);
        r.put(9_000, &id("a"), Some(Rank(2)), &path("a/2"), Some(print(1, 2)));
        r.put(20_000, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(1, 3)));
        r.put(20_000, &id("b"), Some(Rank(1)), &path("b/1"), Some(print(1, 3)));
        r.put(20_000, &id("b"), Some(Rank(1)), &path("b/1b"), Some(print(1, 3)));
        let (first, next_ms) = r.due(20_500, 1);
        assert_eq!((ranks(&first), next_ms), (vec![(1, 2, true)], Some(20_500)), "another rank is ready now");
        r.announced(&first[0]);
        assert_eq!(announce(&mut r, 20_500), [(1, 2, false)]);
        assert_eq!(announce(&mut r, 29_000), [], "unchanged content is not reported again");
    }

    #[test]
    fn a_rank_with_less_than_last_time_is_given_longer_to_write_the_rest() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        r.put(0, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(100, 1)));
        r.put(0, &id("a"), Some(Rank(1)), &path("a/1b"), Some(print(100, 1)));
        assert_eq!(announce(&mut r, 500), [(1, 2, false)]);
        r.put(1_000, &id("b"), Some(Rank(1)), &path("b/1"), Some(print(100, 1)));
        assert_eq!(r.due(1_500, 9), (vec![], Some(31_000)), "a file is missing");
        r.put(5_000, &id("b"), Some(Rank(1)), &path("b/1b"), Some(print(100, 1)));
        assert_eq!(announce(&mut r, 5_500), [(1, 2, false)]);
        r.put(6_000, &id("c"), Some(Rank(1)), &path("c/1"), Some(print(40, 1)));
        r.put(6_000, &id("c"), Some(Rank(1)), &path("c/1b"), Some(print(40, 1)));
        assert_eq!(r.due(6_500, 9), (vec![], Some(36_000)), "less than half of the bytes");
        assert_eq!(announce(&mut r, 36_000), [(1, 2, false)], "after the long rest, the small size is accepted");
        r.put(40_000, &id("d"), Some(Rank(1)), &path("d/1"), Some(print(40, 1)));
        r.put(40_000, &id("d"), Some(Rank(1)), &path("d/1b"), Some(print(40, 1)));
        assert_eq!(announce(&mut r, 40_500), [(1, 2, false)], "the small size has become the usual size");
    }

    #[test]
    fn a_rank_that_pauses_while_it_appends_is_ready_when_it_has_about_as_much_as_last_time() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        let put = |r: &mut Readiness, label: &str, at_ms: u64, bytes: u64| {
            r.put(at_ms, &id(label), Some(Rank(1)), &path(&format!("{label}/1")), Some(print(bytes, at_ms as i64)));
        };
        for (at_ms, bytes, again) in [(0, 100, false), (1_000, 200, true), (2_000, 300, true)] {
            put(&mut r, "a", at_ms, bytes);
            assert_eq!(announce(&mut r, at_ms + 500), [(1, 1, again)], "it is not known yet that the rank appends");
        }
        put(&mut r, "b", 9_000, 200);
        assert_eq!(r.due(9_500, 9), (vec![], Some(39_000)), "two thirds of the bytes");
        put(&mut r, "b", 10_000, 280);
        assert_eq!(announce(&mut r, 10_500), [(1, 1, false)], "a step may be a little shorter");
        // The application dies after the second of three parts.
        put(&mut r, "c", 20_000, 200);
        r.without_quiet_times(Gone::Unknown);
        assert_eq!(announce(&mut r, 60_000), []);
        assert_eq!(r.waiting(60_000, 9).iter().map(|waiting| waiting.why).collect::<Vec<_>>(), [Why::Fewer]);
    }

    #[test]
    fn a_rank_that_overwrites_its_file_with_varying_lengths_does_not_wait() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        for (step, bytes) in [100, 110, 95, 130, 90, 66, 100, 140, 70].into_iter().enumerate() {
            let at_ms = step as u64 * 60_000;
            r.put(at_ms, &id("state"), Some(Rank(0)), &path("state/0"), Some(print(bytes, at_ms as i64)));
            assert_eq!(announce(&mut r, at_ms + 500), [(0, 1, step > 0)], "step {step}");
        }
    }

    #[test]
    fn a_rank_with_fewer_bytes_than_several_equal_checkpoints_waits_and_is_then_doubtful() {
        // The superblock of an HDF5 file shows whether the file is cut.
        for is_hdf5 in [false, true] {
            let mut r = readiness(Layout::directories(), OwnRanks::all());
            for (step, bytes) in [(1, 9), (2, 9), (3, 8), (4, 9)] {
                let (at_ms, id, is_cut) = (step * 100_000, id(&format!("s{step}")), step == 3 && !is_hdf5);
                let name = format!("s{step}/0");
                r.put(at_ms, &id, Some(Rank(0)), &path(&name), Some(print(bytes, step as i64)));
                if !is_hdf5 {
                    r.set_may_be_cut(&id, Some(Rank(0)));
                }
                let ready_ms = at_ms + if is_cut { 30_000 } else { 500 };
                assert!(r.due(ready_ms - 1, 9).0.is_empty(), "{name}");
                let (ready, _) = r.due(ready_ms, 9);
                assert_eq!(ready.iter().map(|ready| ready.has_less).collect::<Vec<_>>(), [is_cut], "{name}");
                r.announced(&ready[0]);
            }
        }
    }

    #[test]
    fn a_checkpoint_that_is_reported_after_a_later_one_is_not_compared_with_it() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        for (at_ms, step, bytes) in [(0, 10, 12), (1_000, 11, 12), (2_000, 9, 8), (3_000, 8, 8)] {
            let label = id(&format!("s{step}"));
            r.put(at_ms, &label, Some(Rank(0)), &path(&format!("s{step}/0")), Some(print(bytes, step)));
            r.set_may_be_cut(&label, Some(Rank(0)));
            assert_eq!(announce(&mut r, at_ms + 500), [(0, 1, false)], "step {step}");
        }
        r.put(9_000, &id("s12"), Some(Rank(0)), &path("s12/0"), Some(print(8, 12)));
        r.set_may_be_cut(&id("s12"), Some(Rank(0)));
        assert_eq!(announce(&mut r, 9_500), [], "step 12 is shorter than the steps 10 and 11");
    }

    #[test]
    fn a_file_that_was_written_when_the_application_failed_is_doubtful_unless_it_is_as_long_as_before() {
        // The bytes in the checkpoint before, and in the last checkpoint.
        for (before, bytes, is_last) in [(None, 9, true), (Some(9), 9, false), (Some(8), 9, true), (Some(9), 8, true)] {
            let mut r = readiness(Layout::directories(), OwnRanks::all());
            if let Some(before) = before {
                r.put(0, &id("a"), Some(Rank(0)), &path("a/0"), Some(print(before, 0)));
                assert_eq!(announce(&mut r, 500), [(0, 1, false)]);
            }
            r.without_quiet_times(Gone::Failed);
            r.put(60_000, &id("b"), Some(Rank(0)), &path("b/0"), Some(print(bytes, 60_000)));
            r.set_may_be_cut(&id("b"), Some(Rank(0)));
            r.set_written_at_end(&id("b"), Some(Rank(0)));
            let (ready, _) = r.due(60_000, 9);
            assert_eq!(ready.iter().map(|ready| ready.is_last).collect::<Vec<_>>(), [is_last], "{before:?}, {bytes}");
        }
    }

    #[test]
    fn processes_that_end_with_success_vouch_only_for_files_that_changed_since_they_began() {
        for (began_ns, expected) in [(10_000, vec![(1, 1, false)]), (10_001, vec![])] {
            let mut r = readiness(Layout::directories(), OwnRanks::all());
            r.put(0, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(100, 0)));
            assert_eq!(announce(&mut r, 500), [(1, 1, false)]);
            r.put(10_000, &id("b"), Some(Rank(1)), &path("b/1"), Some(print(40, 10_000)));
            r.without_quiet_times(Gone::Well { since_ns: began_ns });
            assert_eq!(announce(&mut r, 10_100), expected);
            let waits = r.waiting(10_100, 9).iter().map(|waiting| waiting.why).collect::<Vec<_>>();
            assert_eq!(waits, if expected.is_empty() { vec![Why::Fewer] } else { vec![] });
        }
    }

    #[test]
    fn files_of_no_rank_go_with_rank_0_wherever_that_is() {
        let put = |r: &mut Readiness, rank: Option<u32>, name| {
            r.put(0, &id("a"), rank.map(Rank), &path(name), Some(print(1, 1)));
        };
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        put(&mut r, None, "a/h");
        put(&mut r, Some(0), "a/0");
        assert_eq!(announce(&mut r, 500), [(0, 2, false)]);
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        put(&mut r, None, "a/h");
        assert_eq!(announce(&mut r, 500), [(0, 1, false)], "the agent sees no files of a rank");
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        put(&mut r, None, "a/h");
        put(&mut r, Some(7), "a/7");
        assert_eq!(announce(&mut r, 500), [(7, 1, false)], "rank 0 is on another node");
        let mut r = readiness(Layout::directories(), OwnRanks::only(vec![0..=3]));
        put(&mut r, None, "a/h");
        put(&mut r, Some(7), "a/7");
        assert_eq!(announce(&mut r, 500), [(0, 1, false)], "the agent takes rank 0 and not rank 7");
        let mut r = readiness(Layout::directories(), OwnRanks::only(vec![4..=7]));
        put(&mut r, None, "a/h");
        put(&mut r, Some(7), "a/7");
        assert_eq!(announce(&mut r, 500), [(7, 1, false)]);
    }

    #[test]
    fn a_pointer_that_comes_after_the_files_is_awaited_from_then_on_and_not_for_ever() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        let write = |r: &mut Readiness, at_ms, name: &str| {
            let file = path(&format!("{name}/0"));
            r.put(at_ms, &id(name), Some(Rank(0)), &file, Some(print(1, at_ms as i64)));
        };
        write(&mut r, 0, "a");
        assert_eq!(announce(&mut r, 500), [(0, 1, false)], "no pointer is expected yet");
        r.pointer_written(1_500, Path::new("latest"), Rank(0));
        assert_eq!(announce(&mut r, 2_000), [(0, 1, true)], "the pointer was late, so the rank is reported again");
        r.pointer_written(1_700, Path::new("latest"), Rank(0));
        assert_eq!(announce(&mut r, 3_000), [], "a second late pointer is not reported");
        write(&mut r, 10_000, "b");
        assert_eq!(r.due(10_500, 9), (vec![], Some(13_900)), "the rank waits for twice the usual delay");
        assert_eq!(r.waiting(10_600, 9)[0].why, Why::Quiet, "the rank has as many files as before");
        r.pointer_written(11_000, Path::new("latest"), Rank(0));
        assert_eq!(r.due(11_000, 9), (vec![], Some(11_500)), "the rank waits until the pointer is at rest");
        assert_eq!(announce(&mut r, 11_500), [(0, 1, false)]);
        // From now on the application writes no pointer.
        write(&mut r, 20_000, "c");
        assert_eq!(announce(&mut r, 22_499), []);
        assert_eq!(announce(&mut r, 22_500), [(0, 1, false)]);
        write(&mut r, 30_000, "d");
        assert_eq!(announce(&mut r, 30_500), [(0, 1, false)]);
        // A pointer that is written repeatedly delays the rank only for a limited time.
        write(&mut r, 40_000, "e");
        (40_100..42_000).step_by(100).for_each(|at_ms| drop(r.pointer_written(at_ms, Path::new("latest"), Rank(0))));
        assert_eq!(announce(&mut r, 42_000), [(0, 1, false)]);
    }

    #[test]
    fn a_rank_waits_for_its_own_pointer_and_not_for_those_of_other_ranks() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        for (at_ms, label) in [(0, "a"), (10_000, "b")] {
            for rank in 1..=2 {
                let file = path(&format!("{label}/{rank}"));
                r.put(at_ms, &id(label), Some(Rank(rank)), &file, Some(print(1, at_ms as i64)));
            }
            if label == "a" {
                assert_eq!(announce(&mut r, 500), [(1, 1, false), (2, 1, false)]);
                let late = r.pointer_written(1_500, Path::new("rank2/latest"), Rank(2));
                assert_eq!(late, Some(id("a")));
                assert_eq!(announce(&mut r, 2_000), [(2, 1, true)]);
            }
        }
        assert_eq!(announce(&mut r, 10_500), [(1, 1, false)]);
        assert_eq!(r.pointer_written(11_500, Path::new("rank2/latest"), Rank(2)), None);
        assert_eq!(announce(&mut r, 12_000), [(2, 1, false)]);
    }

    #[test]
    fn each_pointer_of_an_earlier_checkpoint_is_awaited() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        let write = |r: &mut Readiness, at_ms, name: &str| {
            let file = path(&format!("{name}/0"));
            r.put(at_ms, &id(name), Some(Rank(0)), &file, Some(print(1, at_ms as i64)));
        };
        let point = |r: &mut Readiness, at_ms, name: &str| r.pointer_written(at_ms, Path::new(name), Rank(0)).is_some();
        write(&mut r, 0, "a");
        assert_eq!(announce(&mut r, 500), [(0, 1, false)], "no pointer is expected yet");
        assert!(point(&mut r, 800, "rpointer.atm"));
        assert_eq!(announce(&mut r, 1_300), [(0, 1, true)]);
        assert!(!point(&mut r, 1_600, "rpointer.lnd") && !point(&mut r, 3_200, "rpointer.drv"));
        write(&mut r, 10_000, "b");
        assert!(!point(&mut r, 10_800, "rpointer.atm"));
        assert_eq!(r.due(11_300, 9), (vec![], Some(16_900)), "two pointers are missing");
        assert!(!point(&mut r, 11_600, "rpointer.lnd") && !point(&mut r, 13_200, "rpointer.drv"));
        assert_eq!(r.due(13_200, 9), (vec![], Some(13_700)), "the last pointer must be at rest");
        assert_eq!(announce(&mut r, 13_700), [(0, 1, false)]);
        // From now on the application writes only one of the pointers.
        write(&mut r, 20_000, "c");
        assert!(!point(&mut r, 20_100, "rpointer.atm"));
        assert_eq!(announce(&mut r, 26_899), []);
        assert_eq!(announce(&mut r, 26_900), [(0, 1, false)], "the wait has a bound");
        write(&mut r, 30_000, "d");
        assert!(!point(&mut r, 30_100, "rpointer.atm"));
        assert_eq!(announce(&mut r, 30_600), [(0, 1, false)]);
    }

    #[test]
    fn a_marker_or_a_known_number_of_files_needs_no_quiet_time() {
        let marked = Layout::directories().with_marker("{checkpoint}/DONE").expect("valid");
        let mut r = readiness(marked, OwnRanks::all());
        r.put(0, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(1, 1)));
        assert_eq!(r.due(99_000, 9), (vec![], None), "a checkpoint without its marker is not complete");
        r.mark(&id("a"), true);
        assert_eq!(announce(&mut r, 0), [(1, 1, false)]);
        let mut r = readiness(Layout::directories().with_files_per_rank(2), OwnRanks::all());
        r.put(0, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(1, 1)));
        assert_eq!(announce(&mut r, 1), []);
        r.put(1, &id("a"), Some(Rank(1)), &path("a/1b"), Some(print(1, 1)));
        assert_eq!(announce(&mut r, 1), [(1, 2, false)]);
    }

    #[test]
    fn what_vanishes_leaves_nothing_behind() {
        let mut r = readiness(Layout::directories(), OwnRanks::all());
        r.put(0, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(1, 1)));
        assert!(!r.remove(0, &id("a"), Some(Rank(1)), &path("a/1")), "the file was not announced");
        assert!(r.checkpoints.is_empty());
        r.put(0, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(1, 1)));
        r.put(0, &id("a"), Some(Rank(2)), &path("a/2"), Some(print(1, 1)));
        assert_eq!(announce(&mut r, 500), [(1, 1, false), (2, 1, false)]);
        assert!(r.remove(600, &id("a"), Some(Rank(1)), &path("a/1")));
        r.put(700, &id("a"), Some(Rank(1)), &path("a/1"), Some(print(1, 1)));
        assert_eq!(announce(&mut r, 1_200), [(1, 1, false)], "a new file under the old name is reported");
    }
}
