//! From which checkpoint a restart goes on, and who decides it.
//!
//! The first restart of an incarnation decides, durably: its record in the store names the checkpoint. The other nodes of the
//! same start follow the record, or fail and say so. A restart that only looks decides nothing.

use crate::args::RestartArgs;
use crate::common::now_unix_ms;
use anyhow::bail;
use mcr_cnc::config::{incarnation_of, node_name, real_path};
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::incarnation::{self, Begun, Draft, Incarnation, Incarnations, PassedOver};
use mcrengine::living::{self, LivingRun};
use mcrengine::manifest::CheckpointState;
use mcrengine::store::{Store, StoreError};
use std::time::{Duration, Instant};

/// What a restart is.
pub enum Role {
    /// It looks: whatever it restores, nothing is decided. The text says why, where nobody asked for it.
    Look(Option<String>),
    /// It follows the decision of the start that it belongs to.
    Follow(Incarnation),
    /// It decides for a new incarnation, the one after this number.
    Decide { after: u32 },
}

/// From the decision to the end of the restart at least: times of files are up to 10 ms coarse, and what the application writes
/// next must not seem older than the decision.
const APART: Duration = Duration::from_millis(25);

/// What came of a decision.
pub enum Decided {
    /// This restart decided, for the incarnation of this number.
    Here(u32),
    /// Another node of the same start decided first.
    Other(Incarnation),
}

/// Why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    /// Another start of the job is the newest.
    #[error("{0}; are there two jobs of one name?")]
    Fenced(String),
    /// The store took no record.
    #[error("writing the record of the incarnation")]
    Store(#[from] StoreError),
}

impl Undecided {
    /// Whether it is the store that takes nothing, and nobody else has decided.
    pub fn is_of_the_store(&self) -> bool {
        matches!(self, Self::Store(_))
    }
}

/// A restart of a job, with what decides its role.
pub struct Decider<'a> {
    store: &'a dyn Store,
    job: &'a JobId,
    args: &'a RestartArgs,
    /// Identity of the start; empty by hand.
    identity: String,
    host: String,
    began_unix_ms: u64,
    started: Instant,
}

impl<'a> Decider<'a> {
    pub fn new(store: &'a dyn Store, job: &'a JobId, args: &'a RestartArgs, started: Instant) -> anyhow::Result<Self> {
        let environment = |name: &str| std::env::var(name).ok();
        let identity = incarnation_of(args.incarnation.as_deref(), &environment)?;
        Ok(Self { store, job, args, identity, host: node_name(&environment), began_unix_ms: now_unix_ms(), started })
    }

    /// The role of this restart, by the records that there are.
    pub fn role(&self, all: &[CheckpointState], incarnations: &Incarnations) -> anyhow::Result<Role> {
        if self.args.copy || self.args.dry_run {
            return Ok(Role::Look(None));
        }
        if let Some(run) = self.living_elsewhere() {
            return Ok(Role::Look(Some(format!(
                "job {} is running: {run}. This restart is into another directory, so it only looked, and decided nothing. If the \
                 application starts from here, end that mcr run and run this restart again, or give --incarnation NAME",
                self.job
            ))));
        }
        let Some(newest) = incarnations.newest() else { return Ok(Role::Decide { after: 0 }) };
        let after = newest.number;
        if newest.identity == self.identity {
            let is_open = newest.is_restart && !has_committed(all, newest.number) && self.may_follow(newest)?;
            // What it decided may have turned out damaged since.
            let is_good = newest
                .from
                .as_ref()
                .is_none_or(|id| all.iter().any(|s| s.id == *id && s.is_complete() && s.bad.is_none()));
            if let (true, false, Some(from)) = (is_open, is_good, &newest.from) {
                eprintln!(
                    "mcr: {} went on from {from}, which was removed or marked as bad since: this restart decides anew. Nodes that \
                     restored {from} must run their restart again",
                    newest.describe()
                );
            }
            return Ok(if is_open && is_good { Role::Follow(newest.clone()) } else { Role::Decide { after } });
        }
        if self.identity.is_empty() {
            return Ok(Role::Look(Some(format!(
                "job {} is saved by {}, and this restart has no identity: it only looked, and decided nothing. To start the job from \
                 here, run it within its SLURM job, or give --incarnation NAME",
                self.job,
                newest.describe()
            ))));
        }
        if let Some(old) = incarnations.all().iter().rev().find(|record| record.identity == self.identity) {
            bail!(
                "{} of job {} is over: {} began after it, and goes on from {}; use --copy to look at a checkpoint",
                old.describe(),
                self.job,
                newest.describe(),
                newest.from.as_ref().map_or("nothing", CheckpointId::as_str)
            );
        }
        Ok(Role::Decide { after })
    }

    /// An `mcr run` of this start of the job that lives and watches another directory than the one that is restored
    /// into. It lives as long as its application, and an application that starts anew does so where it is watched.
    fn living_elsewhere(&self) -> Option<LivingRun> {
        let to = real_path(&self.args.to);
        let all = LivingRun::all(self.store, self.job).unwrap_or_default();
        let mut of_this_start = all.into_iter().filter(|run| run.identity == self.identity);
        let first = of_this_start.next()?;
        (first.watch != to && of_this_start.all(|run| run.watch != to)).then_some(first)
    }

    /// Names what saves the job and lives: it may be that somebody only wanted to look. What cannot be read ends
    /// nothing.
    fn tell_whom_it_ends(&self) {
        let runs = LivingRun::all(self.store, self.job).unwrap_or_default();
        let others = runs.iter().filter(|run| run.identity != self.identity).map(ToString::to_string);
        let aggregators = living::holders_of_groups(self.store, self.job).unwrap_or_default();
        for who in others.chain(aggregators) {
            eprintln!(
                "mcr: {who}, was saving job {} when this restart began. What it has not committed belongs to the run before, and \
                 stays incomplete. To look at a checkpoint of a running job use --copy",
                self.job
            );
        }
    }

    /// Whether this restart can be another node's part of a start that has begun: the same part twice is another start.
    fn may_follow(&self, newest: &Incarnation) -> Result<bool, StoreError> {
        let is_part = !self.identity.is_empty() || self.args.ranks.is_some();
        Ok(is_part && !incarnation::has_part(self.store, self.job, newest.number, &self.part())?)
    }

    /// Which part this restart restores. By hand the ranks alone tell, since the directory may be another each time.
    fn part(&self) -> String {
        let ranks = self.args.ranks.as_ref().map(ToString::to_string).unwrap_or_default();
        match self.identity.is_empty() {
            true => format!(" {ranks}"),
            false => format!("{} {ranks} {}", self.host, real_path(&self.args.to)),
        }
    }

    /// Records that the job goes on from a checkpoint, or from nothing, unless another node of the same start was first.
    pub fn decide(
        &self,
        after: u32,
        from: Option<&CheckpointState>,
        all: &[CheckpointState],
        passed_over: &[PassedOver],
    ) -> Result<Decided, Undecided> {
        let from = from.and_then(|state| state.place.map(|place| (state.id.clone(), place)));
        let is_newer =
            |state: &&CheckpointState| state.is_complete() && from.as_ref().is_none_or(|f| state.place > Some(f.1));
        let whole: Vec<CheckpointId> = all.iter().filter(is_newer).map(|state| state.id.clone()).collect();
        let mut after = after;
        loop {
            let draft = Draft {
                identity: self.identity.clone(),
                begun_by: format!("mcr restart on {}", self.host),
                began_unix_ms: self.began_unix_ms,
                took_ms: self.started.elapsed().as_millis() as u64,
                from: from.clone(),
                is_restart: true,
                whole: Vec::clone(&whole),
                passed_over: passed_over.to_vec(),
            };
            let other = match incarnation::begin(self.store, self.job, after, draft)? {
                Begun::Here(record) => {
                    self.tell_whom_it_ends();
                    if let (false, Some(from)) = (whole.is_empty(), &record.from) {
                        eprintln!(
                            "mcr: job {} goes on from {from} from now on. Newer and set aside, so that a restart takes it only with \
                             --checkpoint: {}. To look at an older checkpoint use --copy",
                            self.job,
                            names_of(&whole)
                        );
                    }
                    return Ok(Decided::Here(record.number));
                }
                Begun::Other(other) => other,
            };
            if other.identity != self.identity {
                let what = format!("{} of job {} began at the same moment", other.describe(), self.job);
                return Err(Undecided::Fenced(what));
            }
            if other.is_restart && self.may_follow(&other)? {
                return Ok(Decided::Other(other));
            }
            after = other.number; // an agent of the same start was first, or a restart of the same part
        }
    }

    /// Notes that this part has been restored.
    pub fn done(&self, number: u32) -> Result<(), StoreError> {
        std::thread::sleep(APART);
        incarnation::note_part(self.store, self.job, number, &self.part())
    }
}

fn names_of(ids: &[CheckpointId]) -> String {
    let mut names = ids.iter().take(4).map(CheckpointId::as_str).collect::<Vec<_>>().join(", ");
    if ids.len() > 4 {
        names.push_str(&format!(" and {} more", ids.len() - 4));
    }
    names
}

fn has_committed(all: &[CheckpointState], number: u32) -> bool {
    all.iter().any(|state| state.groups > 0 && state.place.is_some_and(|place| place.incarnation == number))
}
