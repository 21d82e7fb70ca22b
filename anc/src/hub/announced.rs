//! Handles the announcement of a rank: the hub refuses it or adds it to a checkpoint.

use super::gather::{Gather, LOOK_FIRST_MS, Overwritten, Search, content, give_back, is_over, modified_ns};
use super::late_part::SameStep;
use super::{Agent, GATHERS_MAX, Hub, is_elsewhere};
use crate::fetch::{About, Announced};
use crate::group::{Event, Failed, Key, Phase};
use crate::instance::{NotTaken, spoil_instance};
use mcrengine::ids::{CheckpointId, GroupId, Grouping, JobId, Rank};
use mcrengine::units::{RawBytes, StoredBytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of finished checkpoints of one group that the hub remembers. The hub answers agents that announce a
/// rank of such a checkpoint again.
const REMEMBERED_MAX: usize = 16;
/// Maximum number of refusals that the hub remembers, about 100 bytes each. When the number is reached, the hub
/// forgets all refusals, and logs the warning of a repeated refusal again.
const REFUSED_MAX: usize = 64 << 10;

/// Whether two nodes of one start of a job have announced the same files of a shared directory.
fn is_twin(first: &Announced, other: &Announced) -> bool {
    let (of_first, of_other) = (&first.link.about.identity, &other.link.about.identity);
    !of_first.is_empty()
        && of_first == of_other
        && first.link.node != other.link.node
        && !first.link.has_ended()
        && (content(&first.files), modified_ns(&first.files)) == (content(&other.files), modified_ns(&other.files))
}

impl Hub {
    /// Logs the warning of a refusal only once for each checkpoint and reason. An agent that is refused for a
    /// temporary reason announces again every 10 s, and every second while a drain or a flush waits.
    fn tell_refusal(&mut self, session: u64, label: &CheckpointId, rank: Rank, why: &str) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        match self.refused.insert((session, label.clone(), why.to_owned())) {
            true => tracing::warn!(checkpoint = %label, rank = rank.0, why, "announcement refused"),
            false => tracing::debug!(checkpoint = %label, rank = rank.0, why, "announcement refused again"),
        }
    }

    /// Adds the announced files of a rank to the checkpoint that its group gathers, or refuses them. A refused agent
    /// gets the reason, and whether to announce again. If the group is being flushed, the files are kept for the
    /// flush after it. If the group has committed the same files already, only this rank gets the answer again.
    pub(super) fn announced(&mut self, announced: Announced, job: JobId, ranks: u32, label: CheckpointId, rank: Rank) {
        let refuse = |hub: &mut Self, announced: &Announced, label: &CheckpointId, why: String, retry: bool| {
            hub.tell_refusal(announced.link.session, label, rank, &why);
            give_back(announced, label, rank, why, retry);
        };
        let Some(grouping) = Grouping::new(ranks, self.options.group_size) else {
            let why =
                "NOT SAVED: the number of ranks is unknown; give --ranks, or ranks in [cnc] or [anc], or SLURM_NTASKS";
            return refuse(self, &announced, &label, why.to_owned(), false);
        };
        let about = &announced.link.about;
        let from = |about: &About| match about.ranks {
            0 => "the newest checkpoint, or ranks in [anc]".to_owned(),
            _ => about.ranks_from.clone(),
        };
        if rank.0 >= grouping.ranks() {
            let (ranks, from) = (grouping.ranks(), from(about));
            let why = format!(
                "{rank} NOT SAVED: ranks = {ranks} (from {from}) means ranks 0 to {}; set ranks, or give --layout if \
                     the number in the file name is no rank",
                ranks - 1
            );
            self.beyond(&job, &label, rank, &announced, &why);
            return refuse(self, &announced, &label, why, false);
        }
        if let Some((highest, node, _)) = self.beyond.get(&job).filter(|(highest, ..)| highest.0 >= grouping.ranks()) {
            let why = format!(
                "{rank} NOT SAVED: ranks = {} (from {}), but node {node} has files of {highest}; set ranks",
                grouping.ranks(),
                from(about)
            );
            return refuse(self, &announced, &label, why, true);
        }
        let says_else = |a: &&Agent| a.job == job && ![0, grouping.ranks()].contains(&a.link.about.ranks);
        if let Some(other) = self.agents.values().find(says_else) {
            let why = format!(
                "{rank} NOT SAVED: the agents of job {job} disagree on its number of ranks: {} (node {}, from {}) and {} (node {}, from {}); \
                 nothing is saved until they agree",
                grouping.ranks(),
                announced.link.node,
                from(about),
                other.link.about.ranks,
                other.link.node,
                from(&other.link.about)
            );
            return refuse(self, &announced, &label, why, true);
        }
        let claims = |other: &&Agent| {
            is_elsewhere(other, &job, &announced.link) && (other.link.about.claims(rank) || other.ranks.contains(&rank))
        };
        if let Some(other) = self.agents.values().find(claims).map(|other| Arc::clone(&other.link)) {
            self.conflict(&job, &other, &announced.link, rank);
        }
        if let Some((_, _, why)) = self.conflicts.get(&job) {
            let why = format!("{rank} NOT SAVED: {why}");
            return refuse(self, &announced, &label, why, true);
        }
        let key = Key { group: grouping.group_of(rank), job, label };
        let same_step = self.same_step(&key, rank, &announced);
        if let Some(agent) = self.agents.get_mut(&announced.link.session) {
            agent.ranks.insert(rank);
            // The agent announced a file although it had reported that it would announce nothing more. Therefore the
            // agent's grace period starts again.
            agent.leaving_ms = agent.leaving_ms.map(|_| self.started.elapsed().as_millis() as u64);
        }
        tracing::debug!(
            job = %key.job,
            checkpoint = %key.label,
            rank = rank.0,
            files = announced.files.len(),
            "announced"
        );
        let over = match self.gathers.get(&key).map(|gather| (&gather.phase, gather)) {
            None => true,
            // Identical bytes that were written again belong to the next content, because the bytes of other ranks
            // may have changed.
            Some((Phase::Committed(_), gather)) => {
                gather.committed.get(&rank) != Some(&(content(&announced.files), modified_ns(&announced.files)))
            }
            Some((Phase::Abandoned(_), _)) => true,
            Some((_, gather)) => gather.grouping != grouping && !matches!(gather.phase, Phase::Flushing { .. }),
        };
        if over {
            if self.gathers.len() >= GATHERS_MAX && !self.gathers.contains_key(&key) {
                return refuse(
                    self,
                    &announced,
                    &key.label,
                    format!("the aggregator already gathers {GATHERS_MAX} checkpoints"),
                    true,
                );
            }
            let replaced = self.gathers.get(&key).and_then(|gather| match &gather.phase {
                Phase::Committed(id) => Some(id.clone()),
                _ => None,
            });
            self.begin(key.clone(), grouping);
            self.complete_siblings(&key, announced.written_unix_ns);
            if let Some(id) = replaced.filter(|_| same_step != SameStep::No) {
                self.further_part(&key, id, same_step, rank);
            }
        }
        let Some(gather) = self.gathers.get_mut(&key) else { return };
        let before = gather.announced.get(&rank).or_else(|| gather.next.get(&rank));
        if let Some(first) = before.filter(|first| is_twin(first, &announced)) {
            // Two nodes of a shared directory announced the same files, and the files of the first node are used. The
            // second node announces again until the rank is committed, and then gets the answer `Committed` too.
            let why = format!("node {} has announced the same files of this rank", first.link.node);
            tracing::debug!(checkpoint = %key.label, rank = rank.0, why, "announced by two nodes");
            return give_back(&announced, &key.label, rank, why, true);
        }
        let replaced = match gather.phase {
            Phase::Flushing { .. } => {
                // The announcement is noted now. The announcement shows which content was overwritten, even if the
                // agent withdraws the announcement before the flush ends.
                gather.saw(rank, &announced, same_step == SameStep::Yes);
                gather.next.insert(rank, announced.clone())
            }
            Phase::Committed(_) => {
                // The same content was announced again. Only the announcing rank gets an answer.
                gather.announced = [(rank, announced)].into();
                return self.step(&key, Event::Announced(rank));
            }
            Phase::Gathering { .. } | Phase::Waiting { .. } | Phase::Abandoned(_) => {
                gather.saw(rank, &announced, same_step == SameStep::Yes);
                gather.note_search(&announced);
                gather.announced.insert(rank, announced.clone())
            }
        };
        if let Some(other) = replaced.filter(|other| other.link.session != announced.link.session) {
            tracing::warn!(
                job = %key.job, checkpoint = %key.label, rank = rank.0, first = other.link.node, last = announced.link.node,
                "the rank was announced in two sessions; the last announcement counts"
            );
            let reason =
                format!("node {} announced the same rank later; let only one agent save the rank", announced.link.node);
            // If the two agents belong to different incarnations, one of them will be refused later. The agent whose
            // announcement is replaced may be the valid agent, so it may announce again.
            let retry = other.link.about.identity != announced.link.about.identity;
            give_back(&other, &key.label, rank, reason, retry);
        }
        self.drop_stale(&key);
        if self.gathers.get(&key).is_some_and(|gather| gather.announced.contains_key(&rank)) {
            self.step(&key, Event::Announced(rank));
        }
        self.limit_waiting(&key);
    }

    /// Handles a rank that is too high for the number of ranks that its agent reports. Without this rank the
    /// checkpoint is not whole, so a mark in the store informs all groups and every restart.
    fn beyond(&mut self, job: &JobId, label: &CheckpointId, rank: Rank, announced: &Announced, why: &str) {
        if self.beyond.len() >= GATHERS_MAX {
            self.beyond.clear();
        }
        let this = (rank, announced.link.node.clone(), announced.link.session);
        let highest = self.beyond.entry(job.clone()).or_insert_with(|| this.clone());
        if highest.0 < rank {
            *highest = this;
        }
        let (store, spread, shared) = (Arc::clone(&self.store), self.options.spread, Arc::clone(&self.shared));
        let not_taken = NotTaken { rank, written_ms: announced.written_unix_ns / 1_000_000 };
        let (key, why) = (Key { job: job.clone(), group: GroupId(0), label: label.clone() }, why.to_owned());
        self.own_threads.run("marking a checkpoint as not whole", move || {
            let incarnation = shared.currents.of(&*store, &key.job)?.map_or(0, |current| current.record.number);
            Ok(spoil_instance(&*store, &key, not_taken, incarnation, spread, &why)?)
        });
    }

    /// Begins to gather a new checkpoint for `key`. Limits the number of remembered checkpoints.
    fn begin(&mut self, key: Key, grouping: Grouping) {
        self.serial += 1;
        let missing = grouping.ranks_of(key.group).map(Rank).collect();
        let deadline_ms = self.now_ms() + self.options.times.gather_ms;
        let before = self.gathers.remove(&key);
        let (last, overwritten, usual_ns, refused_since) = before.map_or_else(Default::default, |before| {
            for (rank, announced) in before.announced.iter().chain(&before.next) {
                let reason = "the number of ranks of the job has changed".into();
                give_back(announced, &key.label, *rank, reason, true);
            }
            (before.last, before.overwritten, before.usual_ns, before.refused_since)
        });
        let gather = Gather {
            phase: Phase::Gathering { missing, deadline_ms, failed: Failed::default() },
            grouping,
            announced: BTreeMap::new(),
            next: BTreeMap::new(),
            committed: BTreeMap::new(),
            last,
            overwritten,
            usual_ns,
            may_complete: None,
            is_late_part: false,
            has_asked: false,
            problem: String::new(),
            exists: false,
            container: None,
            sessions: BTreeSet::new(),
            given_up_while_draining: false,
            untold: BTreeMap::new(),
            look: (0, LOOK_FIRST_MS),
            looked_ms: None,
            raw_bytes: RawBytes(0),
            stored_bytes: StoredBytes(0),
            since: Instant::now(),
            flush_ms: 0,
            progress: Arc::default(),
            serial: self.serial,
            unchanged_since: None,
            refused_since,
            search: Search::None,
        };
        self.gathers.insert(key.clone(), gather);
        let mut over: Vec<(u64, Key)> = (self.gathers.iter())
            .filter(|(other, gather)| other.job == key.job && other.group == key.group && is_over(&gather.phase))
            .map(|(other, gather)| (gather.serial, other.clone()))
            .collect();
        over.sort();
        let excess = over.len().saturating_sub(REMEMBERED_MAX);
        for (_, oldest) in over.into_iter().take(excess) {
            self.gathers.remove(&oldest);
        }
    }

    /// Returns announcements of old files to their agents, and waits for new announcements. A file of a checkpoint is
    /// old if it was written more than `spread` before the newest file. A file is also old if it was written before
    /// the bound that another rank set when it overwrote its files ([`Gather::not_before_ns`]). Old files belong to a
    /// content that the application is overwriting.
    fn drop_stale(&mut self, key: &Key) {
        let spread_ns = i64::try_from(self.options.spread.as_nanos()).unwrap_or(i64::MAX);
        let Some(gather) = self.gathers.get_mut(key) else { return };
        if !matches!(gather.phase, Phase::Gathering { .. } | Phase::Waiting { .. }) {
            return;
        }
        let newest = gather.announced.values().map(|a| a.written_unix_ns).max().unwrap_or(i64::MIN);
        let began_ns = self.shared.currents.began_ns(&key.job);
        // The bound of a rank is never later than the bound of all ranks, which is computed only once.
        let of_all_ns = Overwritten::not_before_ns(gather.overwritten.values().copied(), began_ns);
        let is_before = |a: &Announced, bound_ns: Option<i64>| {
            a.written_unix_ns < newest.saturating_sub(spread_ns).max(bound_ns.unwrap_or(i64::MIN))
        };
        let is_stale = |rank: Rank, a: &Announced| {
            !a.files.is_empty() && is_before(a, of_all_ns) && is_before(a, gather.not_before_ns(rank, began_ns))
        };
        let announced = gather.announced.iter();
        let stale: Vec<Rank> = announced.filter(|(rank, a)| is_stale(**rank, a)).map(|(rank, _)| *rank).collect();
        // Another incarnation may have begun by a restart in the meantime. Then no file of this incarnation was
        // overwritten, so the ranks may announce their files once more.
        let may_be_wrong = !stale.is_empty() && gather.overwritten.values().any(|one| one.was_written_ns.is_some());
        let retry = may_be_wrong && !std::mem::replace(&mut gather.has_asked, true);
        if retry {
            let (store, shared, job) = (Arc::clone(&self.store), Arc::clone(&self.shared), key.job.clone());
            self.own_threads.run("asking for the newest incarnation", move || {
                shared.currents.of(&*store, &job)?; // `currents` remembers the result
                Ok(())
            });
        }
        for rank in stale {
            tracing::warn!(
                job = %key.job,
                checkpoint = %key.label,
                rank = rank.0,
                "the files are older than those of other ranks; waiting for new files"
            );
            if let Some(gather) = self.gathers.get_mut(key)
                && let Some(announced) = gather.announced.remove(&rank)
            {
                let reason =
                    "another rank has overwritten its own files since; new files of this rank are awaited".into();
                give_back(&announced, &key.label, rank, reason, retry);
            }
            self.step(key, Event::Lost(rank));
        }
    }
}
