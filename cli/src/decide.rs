//! Decides from which checkpoint a restart continues, and which restart makes this decision.
//!
//! The first restart of an incarnation decides. This restart writes a durable record into the store, which names the
//! checkpoint. The restarts on other nodes follow the record, or fail with an error. A restart with --copy or
//! --dry-run decides nothing.

use crate::advice::Advised;
use crate::args::{RankSet, RestartArgs, ranks};
use crate::common::now_unix_ms;
use crate::config::aggregator_socket_of;
use crate::left_running;
use crate::not_read::{not_read, way_to_read};
use crate::settings::Settings;
use anyhow::bail;
use mcr_cnc::config::{incarnation_of, node_name, real_path};
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::incarnation::{self, Begun, Draft, Incarnation, Incarnations, Part, PassedOver};
use mcrengine::living::{self, LivingRun};
use mcrengine::manifest::{self, CheckpointState, Place};
use mcrengine::store::{Entry, Store, StoreError, visible};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The role of a restart.
pub enum Role {
    /// The restart only copies files and records no decision. If the user did not give --copy or --dry-run, the text
    /// says why.
    Look(Option<String>),
    /// The restart follows the decision that another node of the same start of the job recorded.
    Follow(Incarnation),
    /// The restart decides for a new incarnation, with a number after `after`.
    Decide { after: u32 },
    /// Other nodes of the same start have restored a checkpoint that this node cannot restore. The text names this
    /// checkpoint.
    Lost(String),
}

/// Minimum time from the decision to the end of the restart. File times are only accurate to 10 ms, and a file that
/// the application writes next must not look older than the decision.
pub const FILE_TIME_MARGIN: Duration = Duration::from_millis(25);

/// The ranks that other restarts of the same incarnation have restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// No ranks were restored.
    None,
    /// Other ranks were restored, and at least one rank of this restart was not. So this restart belongs to the same
    /// start.
    OtherRanks,
    /// All ranks of this restart were restored, and some of these ranks only on other nodes.
    SameRanks,
    /// All ranks of this restart were restored on this node. In this case, this restart begins the application again.
    SameRanksHere,
}

/// The result of a decision.
pub enum Decided {
    /// This restart decided, for the incarnation with this number.
    Here(u32),
    /// Another node of the same start decided first.
    Other(Box<Incarnation>),
}

/// Why no decision was recorded.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    /// Another start of the job has begun a newer incarnation.
    #[error("{0}; are there two jobs with the same name?")]
    Fenced(String),
    /// The store could not write the record.
    #[error("writing the record of the incarnation")]
    Store(#[from] StoreError),
}

impl Undecided {
    /// Whether the store failed and no other start has decided.
    pub fn is_of_the_store(&self) -> bool {
        matches!(self, Self::Store(_))
    }
}

/// A restart of a job, with everything that decides its role.
pub struct Decider<'a> {
    store: &'a dyn Store,
    job: &'a JobId,
    args: &'a RestartArgs,
    /// Identity of this start of the job; empty if the job was started by hand.
    identity: String,
    host: String,
    began_unix_ms: u64,
    started: Instant,
}

impl<'a> Decider<'a> {
    pub fn new(store: &'a dyn Store, job: &'a JobId, args: &'a RestartArgs, started: Instant) -> anyhow::Result<Self> {
        let environment = |name: &str| std::env::var(name).ok();
        let identity = incarnation_of(args.incarnation.as_deref(), &environment)?;
        Ok(Self {
            store,
            job,
            args,
            identity,
            host: node_name(&environment).replace(' ', "_"),
            began_unix_ms: now_unix_ms(),
            started,
        })
    }

    /// The role of this restart, which the existing records decide.
    pub fn role(&self, all: &[CheckpointState], incarnations: &Incarnations) -> anyhow::Result<Role> {
        if self.args.copy || self.args.dry_run {
            return Ok(Role::Look(None));
        }
        if let Some(run) = self.living_elsewhere() {
            return Ok(Role::Look(Some(format!(
                "job {} is running: {run}. This restart is into another directory, so it only copied files and \
                 recorded no decision. If the application starts from here, end that mcr run and run this restart \
                 again, or give --incarnation NAME",
                self.job
            ))));
        }
        let Some(newest) = incarnations.newest() else {
            return Ok(match self.living_before_its_first_commit() {
                Some(run) => Role::Look(Some(format!(
                    "job {} is running and has committed nothing yet: {run}. This restart is into another directory, \
                     so it recorded no decision. To begin a new run, end that mcr run first",
                    self.job
                ))),
                None => Role::Decide { after: 0 },
            });
        };
        let after = newest.number;
        if newest.identity == self.identity {
            if !newest.is_restart || !self.may_follow(newest)? {
                return Ok(Role::Decide { after });
            }
            // All ranks of a complete checkpoint have run, so the new run of this record began before this restart.
            if newest.from.is_none() && has_completed(all, newest.number) {
                return Ok(Role::Decide { after });
            }
            let others = self.others(newest, all)?;
            // If the job committed a checkpoint after the decision, the application was started, or `mcr save` ran.
            // But if a rank of this restart was not restored, the application was not started with this rank. In this
            // case, this restart still belongs to the same start.
            if has_committed(all, newest.number) && others != Others::OtherRanks {
                return Ok(Role::Decide { after });
            }
            let are_elsewhere = matches!(others, Others::OtherRanks | Others::SameRanks);
            // The checkpoint of the decision may have been damaged or marked as bad after the decision. A checkpoint
            // that all nodes name may be marked as bad.
            let is_named = |id: &CheckpointId| self.args.checkpoint.as_ref() == Some(id);
            let is_good = |id: &CheckpointId| {
                all.iter().any(|s| s.id == *id && s.is_complete() && (s.bad.is_none() || is_named(id)))
            };
            let from = newest.from.as_ref().and_then(|from| all.iter().find(|state| state.id == *from));
            if let Some(unreadable) = from.filter(|state| state.is_unreadable) {
                let problem = unreadable.problems.first().map_or("no reason is known", String::as_str);
                let what =
                    format!("{} continues from {}, which was not read ({problem})", newest.describe(), unreadable.id);
                return Err(not_read(what, problem, way_to_read(problem).to_owned()));
            }
            return Ok(match &newest.from {
                Some(from) if !is_good(from) && are_elsewhere && self.args.checkpoint.is_none() => Role::Lost(format!(
                    "{} continues from {from}, which another node restored, and {from} was removed or marked as bad \
                         since: this node cannot restore it. Run the restart again on all nodes; to choose for this \
                         node alone, give --checkpoint ID",
                    newest.describe()
                )),
                Some(from) if !is_good(from) => {
                    eprintln!(
                        "mcr: {} continued from {from}, which was removed or marked as bad since: this restart \
                         decides again",
                        newest.describe()
                    );
                    Role::Decide { after }
                }
                _ => Role::Follow(newest.clone()),
            });
        }
        if self.identity.is_empty() {
            let Some(living) = self.living_of(newest) else {
                let advice = format!("{CONTINUE_BY_HAND}; to copy the files only, give --copy");
                return Err(
                    no_identity(self.job, newest, "this restart has no identity: nothing was copied", advice).into()
                );
            };
            return Ok(Role::Look(Some(format!(
                "job {} is in use by {living}. Its last start is {}, and this restart has no identity: it only \
                 copied files and recorded no decision. {CONTINUE_BY_HAND}",
                self.job,
                newest.describe()
            ))));
        }
        if let Some(old) = incarnations.all().iter().rev().find(|record| record.identity == self.identity) {
            bail!(
                "{} of job {} is over: {} began after it, and continues from {}; use --copy to copy a checkpoint",
                old.describe(),
                self.job,
                newest.describe(),
                newest.from.as_ref().map_or("nothing", CheckpointId::as_str)
            );
        }
        Ok(Role::Decide { after })
    }

    /// Whether this restart records nothing if it restores nothing: the directory has files of its own, so it is no
    /// store, and no restart of another node can follow the record. In a store the record is needed, also if nothing
    /// of the job is there: files of a dead run may be announced and not committed yet, and must not be mixed with
    /// those of the next run.
    pub fn records_nothing(&self, after: u32) -> bool {
        let is_alone = self.identity.is_empty() && self.args.ranks.is_none();
        let is_file = |entry: &Entry| !entry.is_dir && visible(&entry.name);
        let has_files = || self.store.list_dir(Path::new("")).is_ok_and(|entries| entries.iter().any(is_file));
        after == 0 && is_alone && has_files()
    }

    /// A running `mcr run` of this start that watches another directory than the target directory. A restarted
    /// application would run in the watched directory.
    ///
    /// Only `mcr run` counts, because `mcr run` ends when its application ends. An agent may run longer than its
    /// application. If agents counted, a restart after the death of the application would begin no incarnation, and
    /// the next run could complete a checkpoint of the dead application.
    fn living_elsewhere(&self) -> Option<LivingRun> {
        let to = real_path(&self.args.to);
        let all = LivingRun::all(self.store, self.job).unwrap_or_default();
        let mut of_this_start = all.into_iter().filter(|run| run.identity == self.identity);
        let first = of_this_start.next()?;
        (first.watch != to && of_this_start.all(|run| run.watch != to)).then_some(first)
    }

    /// A running `mcr run` of this job, user and node that watches another directory than the target directory. Before
    /// the first commit, the store has no file that shows this `mcr run`. A decision would end it, and its first
    /// checkpoint would be lost.
    fn living_before_its_first_commit(&self) -> Option<String> {
        if !self.identity.is_empty() {
            return None;
        }
        let state_file = match &self.args.state {
            Some(state_file) => state_file.clone(),
            None => {
                let config = Settings::find_config().ok().flatten().unwrap_or_default();
                config.state_file(Some(self.job.to_string())).ok()?
            }
        };
        let socket = aggregator_socket_of(&state_file);
        UnixStream::connect(&socket).ok()?;
        let watches = left_running::living_watches();
        let elsewhere = watches.first().filter(|_| !watches.contains(Path::new(&real_path(&self.args.to))))?;
        Some(format!("mcr run, which listens at {} and may watch {}", socket.display(), elsewhere.display()))
    }

    /// A running process that may save the start `newest` of the job. `None` if there is no such process. Processes
    /// on other nodes are found only if the file system of the store has locks between nodes.
    fn living_of(&self, newest: &Incarnation) -> Option<String> {
        let runs = LivingRun::all(self.store, self.job).unwrap_or_default();
        let run = runs.into_iter().find(|run| run.identity == newest.identity).map(|run| run.to_string());
        run.or_else(|| living::holders_of_groups(self.store, self.job).unwrap_or_default().into_iter().next())
    }

    /// Warns about running processes that save the job, because the decision prevents further commits of these
    /// processes. The user may have wanted only a copy (--copy). Errors are ignored.
    fn report_runs_it_ends(&self) {
        let runs = LivingRun::all(self.store, self.job).unwrap_or_default();
        let tell = |who: &dyn std::fmt::Display, what: &str| {
            eprintln!(
                "mcr: {who}, was saving job {} when this restart began. {what}. To copy a checkpoint of a running job \
                 without harm, use --copy",
                self.job
            );
        };
        for run in runs.iter().filter(|run| run.identity != self.identity) {
            tell(run, "From now on NOTHING more of that run is saved, because the job continues from this restart");
        }
        // An aggregator may save the next run of the job too. An agent with another identity is refused from now on.
        // An agent with this identity is not refused, so the files that its run writes from now on are saved.
        let all = living::holders_of_groups(self.store, self.job).unwrap_or_default();
        let of_this_identity = living::holders_of_identity(self.store, self.job, &self.identity).unwrap_or_default();
        for aggregator in all {
            let if_it_goes_on = match of_this_identity.contains(&aggregator) {
                true => {
                    "end it: as long as it is there, the run after this restart may not be saved, and what it writes \
                     may be saved as a part of that run"
                }
                false => "NOTHING more of it is saved",
            };
            tell(
                &aggregator,
                &format!(
                    "What the run before this restart wrote and is not committed stays incomplete. If that run still \
                     goes on, {if_it_goes_on}"
                ),
            );
        }
    }

    /// Whether this restart can be one node's part of the start that made the record `newest`. If the same part was
    /// restored already, this restart belongs to another start.
    fn may_follow(&self, newest: &Incarnation) -> Result<bool, StoreError> {
        let is_part = !self.identity.is_empty() || self.args.ranks.is_some();
        Ok(is_part && !incarnation::has_part(self.store, self.job, newest.number, &self.part())?)
    }

    /// Compares the ranks of this restart with the ranks that were restored for an incarnation.
    fn others(&self, newest: &Incarnation, all: &[CheckpointState]) -> Result<Others, StoreError> {
        let parts = incarnation::parts(self.store, self.job, newest.number)?;
        if parts.is_empty() {
            return Ok(Others::None);
        }
        // If the number of ranks is not known, the set of all ranks contains only rank 0.
        let from = newest.from.as_ref().and_then(|from| all.iter().find(|state| state.id == *from));
        let every = RankSet::all(from.map_or(1, |state| state.ranks.max(1)));
        let own = self.args.ranks.as_ref().unwrap_or(&every);
        // A part without a readable list of ranks counts as all ranks.
        let ranks_of = |part: &Part| (part.node == self.host, ranks(&part.ranks).unwrap_or_else(|_| every.clone()));
        let restored: Vec<(bool, RankSet)> = parts.iter().map(ranks_of).collect();
        let here = restored.iter().filter(|(is_here, _)| *is_here).map(|(_, ranks)| ranks);
        Ok(match own.is_covered_by(restored.iter().map(|(_, ranks)| ranks)) {
            false => Others::OtherRanks,
            true if own.is_covered_by(here) => Others::SameRanksHere,
            true => Others::SameRanks,
        })
    }

    /// The part that this restart restores. For a restart by hand, only the ranks count, because each restart by hand
    /// may use another directory.
    fn part(&self) -> String {
        let ranks = self.args.ranks.as_ref().map(ToString::to_string).unwrap_or_default();
        match self.identity.is_empty() {
            true => format!(" {ranks}"),
            false => format!("{} {ranks} {}", self.host, real_path(&self.args.to)),
        }
    }

    /// Records that the job continues from a checkpoint, or begins a new run, unless another node of the same start
    /// decided first.
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
                unfinished: Some(self.unfinished(all, from.as_ref().map(|from| from.1))?),
                passed_over: passed_over.to_vec(),
            };
            let other = match incarnation::begin(self.store, self.job, after, draft)? {
                Begun::Here(record) => {
                    self.report_runs_it_ends();
                    if let (false, Some(from)) = (whole.is_empty(), &record.from) {
                        eprintln!(
                            "mcr: job {} continues from {from} from now on. These newer checkpoints are set aside; a restart takes them only with \
                             --checkpoint: {}. To copy an older checkpoint, use --copy",
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
                return Ok(Decided::Other(Box::new(other)));
            }
            after = other.number; // an agent of the same start, or a restart of the same part, made a record first
        }
    }

    /// The incomplete checkpoints that can never become complete after this decision.
    fn unfinished(&self, all: &[CheckpointState], from: Option<Place>) -> Result<Vec<CheckpointId>, StoreError> {
        Ok(manifest::unfinished(self.store, self.job, all, from)?)
    }

    /// Records that this part was restored.
    pub fn done(&self, number: u32) -> Result<(), StoreError> {
        std::thread::sleep(FILE_TIME_MARGIN);
        let part = Part {
            node: self.host.clone(),
            ranks: self.args.ranks.as_ref().map(ToString::to_string).unwrap_or_default(),
            directory: real_path(&self.args.to),
        };
        incarnation::note_part(self.store, self.job, number, &self.part(), &part)
    }
}

/// Advice for a user who continues by hand a job whose last start has an identity.
const CONTINUE_BY_HAND: &str =
    "To continue the job by hand, choose a new NAME, and set MCR_INCARNATION=NAME for mcr restart and for mcr run";

/// The error of a command without identity, for a job whose last start has an identity.
fn no_identity(job: &JobId, newest: &Incarnation, why: &str, advice: impl Into<String>) -> Advised {
    Advised::with_sentence(format!("the last start of job {job} is {}, and {why}", newest.describe()), advice)
}

/// Fails if the last start of the job has an identity, and `mcr run` has none. The aggregator would refuse the agent
/// of this `mcr run`, so nothing would be saved.
pub fn check_identity_of_run(store: &dyn Store, job: &JobId, identity: &str) -> Result<(), Advised> {
    let newest = match incarnation::newest(store, job) {
        Ok(newest) => newest,
        Err(error) if error.is_damage() => {
            let what = format!("{error}, so nothing can be saved: nothing was started");
            return Err(Advised::new(what, "mcr verify --repair writes this small file again").at(error.path()));
        }
        Err(_) => None, // the aggregator reads the record later
    };
    match newest.filter(|newest| identity.is_empty() && !newest.identity.is_empty()) {
        Some(newest) => {
            Err(no_identity(job, &newest, "this mcr run has no identity: nothing was started", CONTINUE_BY_HAND))
        }
        None => Ok(()),
    }
}

/// Lists at most four names, and the number of the remaining names.
pub fn names_of(ids: &[CheckpointId]) -> String {
    let mut names = ids.iter().take(4).map(CheckpointId::as_str).collect::<Vec<_>>().join(", ");
    if ids.len() > 4 {
        names.push_str(&format!(" and {} more", ids.len() - 4));
    }
    names
}

fn has_committed(all: &[CheckpointState], number: u32) -> bool {
    all.iter().any(|state| state.groups > 0 && state.place.is_some_and(|place| place.incarnation == number))
}

fn has_completed(all: &[CheckpointState], number: u32) -> bool {
    all.iter().any(|state| state.is_complete() && state.place.is_some_and(|place| place.incarnation == number))
}
