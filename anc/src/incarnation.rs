//! Decides which incarnation of a job may commit, and which files are older than the incarnation.
//!
//! The store holds the records of incarnations ([`mcrengine::incarnation`]). This module remembers the newest record
//! of each job, and when the incarnation began, by this process's steady clock. The time is calculated from the age
//! of the record by the clock of the store's file system, so the time of day of a node is not used.

use mcr_proto::clock::steady_ns;
use mcrengine::ids::JobId;
use mcrengine::incarnation::{self, Begun, Draft, Incarnation};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::store::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of jobs that are remembered. If there are more jobs, all records are read again.
const JOBS_MAX: usize = 1024;
/// Maximum number of attempts to begin an incarnation, because other processes may begin incarnations at the same
/// time.
const TRIES_MAX: u32 = 8;

/// The newest incarnation of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// The record of the incarnation.
    pub record: Arc<Incarnation>,
    /// When the incarnation began, in nanoseconds of this process's steady clock.
    pub began_ns: i64,
    /// The last restart by hand. `None` if the incarnation has an identity, or if no restart was made by hand.
    pub by_hand: Option<Restart>,
}

/// A restart by hand, which has no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The number of the incarnation that the restart began.
    pub number: u32,
    /// Time at which the incarnation began, in nanoseconds of this process's steady clock.
    pub began_ns: i64,
}

impl Restart {
    /// The directories into which the nodes of the job restored their ranks. Empty if one restart restored all
    /// ranks.
    pub fn directories(&self, store: &dyn Store, job: &JobId) -> Result<BTreeSet<String>, StoreError> {
        let parts = incarnation::parts(store, job, self.number)?;
        let has_all_ranks = parts.iter().any(|part| part.ranks.is_empty());
        Ok(if has_all_ranks { BTreeSet::new() } else { parts.into_iter().map(|part| part.directory).collect() })
    }
}

impl Current {
    /// Whether files that were written before this incarnation belong to another incarnation. If the files belong to
    /// no other incarnation, the files of the job existed before its first agent announced.
    pub fn has_predecessor(&self) -> bool {
        self.record.is_restart || self.record.number > 1
    }
}

/// A request to commit for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim<'a> {
    /// The identity of the incarnation. Empty if the job was started by hand.
    pub identity: &'a str,
    /// The name of the node, for messages.
    pub node: &'a str,
}

/// Why a claim is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The newest incarnation of the job is another incarnation.
    #[error("{0}")]
    Fenced(String),
    /// The directory of the job has the checkpoints of another job.
    #[error("{0}")]
    Renamed(String),
    /// The store failed.
    #[error("reading the incarnation of the job")]
    Store(#[from] StoreError),
}

/// Fails if the directory of the job has the checkpoints of another job. `node`: the name of the node, for the message.
pub fn check_directory(store: &dyn Store, job: &JobId, node: &str) -> Result<(), Refused> {
    let Some(other) = manifest::foreign_job(store, job) else { return Ok(()) };
    Err(Refused::Renamed(format!(
        "{} has the checkpoints of job {other}, because the directory was renamed or copied. Nothing is saved for node \
         {node}. Rename the directory back to {other}, or move it out of the store",
        store.root().join(job.as_str()).display()
    )))
}

/// The current time in milliseconds since 1970.
pub(crate) fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Begins the incarnation with the number after `after`, without a restart. The new incarnation continues from the
/// newest complete checkpoint that is not marked as bad. If another process begins this incarnation first, the
/// function returns no error.
pub fn begin_anew(store: &dyn Store, job: &JobId, after: u32, draft: Draft) -> Result<(), StoreError> {
    let all: Vec<CheckpointState> = manifest::newest_restorable(store, job)?.collect();
    let began_unix_ms = now_unix_ms();
    // As in a restart, a checkpoint that was set aside counts only if every complete checkpoint was set aside.
    let are_all_aside = all.iter().all(|state| state.is_set_aside);
    let may_continue = |state: &&CheckpointState| state.bad.is_none() && (are_all_aside || !state.is_set_aside);
    let newest = all.iter().find(may_continue);
    let from = newest.and_then(|state| state.place.map(|place| (state.id.clone(), place)));
    let newer = all.iter().filter(|state| state.place > from.as_ref().map(|from| from.1));
    let whole = newer.map(|state| state.id.clone()).collect();
    let unfinished = Some(manifest::unfinished(store, job, &all, from.as_ref().map(|from| from.1))?);
    match incarnation::begin(store, job, after, Draft { began_unix_ms, from, whole, unfinished, ..draft })? {
        Begun::Here(record) => {
            tracing::info!(
                %job,
                incarnation = record.number,
                record.identity,
                by = record.begun_by,
                "an incarnation of the job began"
            );
        }
        Begun::Other(_) => {}
    }
    Ok(())
}

/// The newest incarnation of each job that was looked up.
#[derive(Debug, Default)]
pub struct Currents(Mutex<BTreeMap<JobId, Current>>);

impl Currents {
    /// The newest incarnation of a job. `None` if the job has no incarnation. Each call lists one directory. Each
    /// record is read only once.
    pub fn of(&self, store: &dyn Store, job: &JobId) -> Result<Option<Current>, StoreError> {
        let number = incarnation::newest_number(store, job)?;
        if number == 0 {
            return Ok(None);
        }
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(job).cloned();
        if let Some(known) = known.filter(|known| known.record.number == number) {
            return Ok(Some(known));
        }
        let Some(record) = incarnation::newest(store, job)? else { return Ok(None) };
        // File times have a resolution of some milliseconds. Therefore the beginning is the time halfway between the
        // start of the restart and the writing of its record. This time is after the last file of the previous run
        // and before the first file of the next run.
        let age = incarnation::age(store, job, record.number)? + Duration::from_millis(record.took_ms) / 2;
        let ago = |age: Duration| steady_ns().saturating_sub(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX));
        let by_hand = match record.identity.is_empty() {
            true => incarnation::Incarnations::load(store, job).map_err(StoreError::from)?.newest_restart(),
            false => None,
        };
        let by_hand = by_hand.map(|number| Ok::<_, StoreError>((number, incarnation::age(store, job, number)?)));
        let by_hand = by_hand.transpose()?.map(|(number, age)| Restart { number, began_ns: ago(age) });
        let began_ns = ago(age);
        let current = Current { record: Arc::new(record), began_ns, by_hand };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= JOBS_MAX {
            all.clear();
        }
        all.insert(job.clone(), current.clone());
        Ok(Some(current))
    }

    /// When the newest known incarnation began. `None` if this incarnation has no predecessor. Does not read the
    /// store.
    pub fn began_ns(&self, job: &JobId) -> Option<i64> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(job).filter(|current| current.has_predecessor()).map(|current| current.began_ns)
    }

    /// The incarnation for which a claim commits. The result is the newest incarnation, if the newest incarnation has
    /// the claim's identity. A claim with a new identity begins an incarnation, and then claims for the previous
    /// incarnation are refused. An agent claims when it connects. So the store has a record with the agent's identity
    /// before the next run restarts. After that restart, the agent counts as older.
    pub fn admit(&self, store: &dyn Store, job: &JobId, claim: Claim<'_>) -> Result<Option<Current>, Refused> {
        for _ in 0..TRIES_MAX {
            let current = self.of(store, job)?;
            let number = current.as_ref().map_or(0, |current| current.record.number);
            match &current {
                Some(current) if current.record.identity == claim.identity => return Ok(Some(current.clone())),
                None if claim.identity.is_empty() => return Ok(None),
                Some(current) if claim.identity.is_empty() => {
                    return Err(Refused::Fenced(format!(
                        "job {job} is saved by {}; the agent of node {} has no identity. Give it the same identity \
                         (\"incarnation\" in [cnc], or MCR_INCARNATION), or give the job another name",
                        current.record.describe(),
                        claim.node
                    )));
                }
                _ => {}
            }
            let older = incarnation::Incarnations::load(store, job).map_err(StoreError::from)?;
            if let (Some(old), Some(current)) =
                (older.all().iter().rev().find(|record| record.identity == claim.identity), &current)
            {
                return Err(Refused::Fenced(format!(
                    "{} of job {job} is over: {} began after it. Nothing more is saved for node {}. If both are running, \
                     end one of them, or give one of them another job name",
                    old.describe(),
                    current.record.describe(),
                    claim.node
                )));
            }
            let begun_by = format!("the agent of node {}", claim.node);
            begin_anew(
                store,
                job,
                number,
                Draft { identity: claim.identity.to_owned(), begun_by, ..Draft::default() },
            )?;
        }
        Err(Refused::Fenced(format!(
            "other incarnations of job {job} begin again and again; two jobs may have this name"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::ids::CheckpointId;
    use mcrengine::marks::mark_bad;
    use mcrengine::store::MemoryStore;
    use std::path::Path;

    fn admitted(currents: &Currents, store: &MemoryStore, identity: &str) -> Result<u32, String> {
        let job = "j".parse().expect("valid");
        let current = currents.admit(store, &job, Claim { identity, node: "n0" });
        current.map(|c| c.map_or(0, |c| c.record.number)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_new_identity_fences_the_one_before_and_that_one_is_told_by_which() {
        let (currents, other, store) = (Currents::default(), Currents::default(), MemoryStore::new());
        assert_eq!(admitted(&currents, &store, ""), Ok(0), "the job was started by hand, and there was no restart yet");
        assert_eq!(admitted(&currents, &store, "SLURM job 1"), Ok(1));
        assert_eq!(admitted(&other, &store, "SLURM job 1"), Ok(1), "another aggregator sees the same");
        assert_eq!(admitted(&other, &store, "SLURM job 2"), Ok(2));
        let told = admitted(&currents, &store, "SLURM job 1").expect_err("fenced");
        assert!(told.contains("incarnation 1 (SLURM job 1") && told.contains("incarnation 2 (SLURM job 2"), "{told}");
        let told = admitted(&currents, &store, "").expect_err("fenced");
        assert!(told.contains("has no identity"), "{told}");
    }

    #[test]
    fn a_new_incarnation_does_not_begin_from_a_checkpoint_that_is_marked_as_bad() {
        let (store, job) = (MemoryStore::new(), "wave".parse().expect("valid"));
        for dir in ["wave", "wave/.incarnations", "wave/DD0001", "wave/DD0002"] {
            store.create_dir(Path::new(dir)).expect("created");
        }
        for path in [
            "wave/.incarnations/0001",
            "wave/DD0001/group-0000.mcr",
            "wave/DD0001/group-0000.manifest",
            "wave/DD0002/group-0000.mcr",
            "wave/DD0002/group-0000.manifest",
        ] {
            let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/v1/store").join(path);
            store.put(Path::new(path), &std::fs::read(golden).expect("a golden file"));
        }
        let begun_from = |after: u32| {
            begin_anew(&store, &job, after, Draft { identity: format!("job {after}"), ..Draft::default() })
                .expect("begins");
            incarnation::newest(&store, &job).expect("readable").expect("begun")
        };
        let (older, newer): (CheckpointId, CheckpointId) =
            ("DD0001".parse().expect("valid"), "DD0002".parse().expect("valid"));
        assert_eq!(begun_from(1).from, Some(newer.clone()), "no checkpoint is marked");
        mark_bad(&store, &job, &newer, "wrong numbers").expect("marked");
        let record = begun_from(2);
        assert_eq!((&record.from, &record.whole[..]), (&Some(older.clone()), &[newer][..]));
        mark_bad(&store, &job, &older, "wrong numbers").expect("marked");
        assert_eq!(begun_from(3).from, None, "all checkpoints are marked");
    }

    #[test]
    fn an_agent_that_connects_makes_nothing_visible_for_a_job_that_is_not_there() {
        let (currents, store) = (Currents::default(), MemoryStore::new());
        assert_eq!(admitted(&currents, &store, ""), Ok(0));
        assert!(store.list_dir(Path::new("")).expect("lists").is_empty());
        assert_eq!(admitted(&currents, &store, "a"), Ok(1));
        assert_eq!(manifest::jobs(&store).expect("lists"), []);
    }

    #[test]
    fn a_run_that_connected_before_the_restart_of_the_next_run_is_fenced_although_it_committed_nothing() {
        let (currents, store, job) = (Currents::default(), MemoryStore::new(), "j".parse().expect("valid"));
        assert_eq!(admitted(&currents, &store, "first"), Ok(1));
        let draft = Draft { identity: "second".into(), is_restart: true, ..Draft::default() };
        assert!(matches!(incarnation::begin(&store, &job, 1, draft), Ok(Begun::Here(_))));
        let told = admitted(&currents, &store, "first").expect_err("fenced");
        assert!(told.contains("is over: incarnation 2 (second"), "{told}");
        assert_eq!(admitted(&currents, &store, "second"), Ok(2));
    }
}
