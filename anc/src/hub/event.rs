//! What the hub hears.

use crate::drain::Uncommitted;
use crate::fetch::{AgentLink, Announced};
use crate::flush_error::FlushError;
use crate::group::Key;
use mcr_proto::v1;
use mcrengine::ids::{CheckpointId, JobId, Rank};
use mcrengine::manifest::Manifest;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// What happened.
pub enum HubEvent {
    /// An agent said hello.
    Opened {
        /// Its session.
        link: Arc<AgentLink>,
        /// Its job.
        job: JobId,
    },
    /// An agent's session has ended.
    Ended {
        /// Its session.
        session: u64,
    },
    /// An agent gave sign of life.
    Heard {
        /// Its session.
        session: u64,
    },
    /// A rank is settled and described.
    Announced {
        /// The files, and the agent that has them.
        announced: Announced,
        /// The job.
        job: JobId,
        /// Ranks of the job; 0: unknown.
        ranks: u32,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
    },
    /// A rank's files are gone or being rewritten.
    Withdrawn {
        /// The session of its agent.
        session: u64,
        /// The job.
        job: JobId,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
        /// Why.
        reason: String,
    },
    /// A flush thread is done.
    FlushEnded {
        /// The group.
        key: Key,
        /// How it ended.
        result: Box<Result<Flushed, FlushError>>,
        /// How long it took.
        elapsed: Duration,
    },
    /// These committed checkpoints exist by now, all groups included; the others were looked for.
    Exist(Vec<Key>),
    /// Somebody asks how things are.
    Status(oneshot::Sender<v1::StatusReply>),
    /// An agent has announced all files that were written; `leaving`: nothing more will come from it.
    Looked {
        /// Its session.
        session: u64,
        /// The agent ends once it is answered.
        leaving: bool,
    },
    /// Finish what agents have announced or may still announce, give up the rest, and end.
    Shutdown {
        /// At this time at the latest.
        until: Instant,
        /// Takes the groups that are not committed.
        done: oneshot::Sender<Vec<Uncommitted>>,
    },
}

/// What a flush gave.
pub struct Flushed {
    /// The name of the checkpoint.
    pub id: CheckpointId,
    /// Its manifest.
    pub manifest: Manifest,
    /// Whether all groups are there now.
    pub exists: bool,
    /// It was in the store already.
    pub was_there: bool,
}
