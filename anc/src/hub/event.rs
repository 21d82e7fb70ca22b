//! The events that the hub handles.

use crate::drain::Uncommitted;
use crate::fetch::{AgentLink, Announced};
use crate::flush_error::FlushError;
use crate::group::Key;
use mcr_proto::v1;
use mcrengine::ids::{CheckpointId, JobId, Rank};
use mcrengine::manifest::Manifest;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// An event for the hub.
pub enum HubEvent {
    /// An agent opened a session.
    Opened {
        /// The session of the agent.
        link: Arc<AgentLink>,
        /// The job of the agent.
        job: JobId,
    },
    /// An agent's session has ended.
    Ended {
        /// The session of the agent.
        session: u64,
    },
    /// An agent announced the files of a rank.
    Announced {
        /// The files, and the agent that has them.
        announced: Announced,
        /// The job.
        job: JobId,
        /// Number of ranks of the job. 0 means that the number is unknown.
        ranks: u32,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
    },
    /// A rank's files are gone or being rewritten.
    Withdrawn {
        /// The session of the rank's agent.
        session: u64,
        /// The job.
        job: JobId,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
        /// Why the announcement was withdrawn.
        reason: String,
    },
    /// A flush thread has ended.
    FlushEnded {
        /// The checkpoint and the group.
        key: Key,
        /// The result of the flush.
        result: Box<Result<Flushed, FlushError>>,
        /// How long the flush took.
        elapsed: Duration,
    },
    /// All groups of the checkpoints with these keys are in the store. The other checked checkpoints are still
    /// incomplete.
    Exist(Vec<Key>),
    /// The hub has searched the store for files that existed before their agent began to watch.
    Searched(Vec<Searched>),
    /// A client asks for the status of the aggregator.
    Status(oneshot::Sender<v1::StatusReply>),
    /// An agent has announced all written files.
    Looked {
        /// The session of the agent.
        session: u64,
        /// Whether the agent will announce nothing more, and ends when its announcements are answered.
        leaving: bool,
    },
    /// The hub must finish the checkpoints that agents have announced or may still announce, abandon all other
    /// checkpoints, and end.
    Shutdown {
        /// The latest time to end.
        until: Instant,
        /// Receives the list of groups that are not committed.
        done: oneshot::Sender<Vec<Uncommitted>>,
    },
}

/// The result of a successful flush.
pub struct Flushed {
    /// The name of the checkpoint.
    pub id: CheckpointId,
    /// The manifest of the group.
    pub manifest: Manifest,
    /// Whether all groups of the checkpoint are committed now.
    pub exists: bool,
    /// Whether the group was already in the store.
    pub was_there: bool,
}

/// The result of a search in the store.
pub struct Searched {
    pub(super) key: Key,
    /// The numbers of the announcements whose files were searched.
    pub(super) announcements: BTreeMap<Rank, u64>,
    /// Whether files with other times of writing counted as the same files.
    pub(super) any_time: bool,
    /// The manifest that has the files of all these ranks, and whether its checkpoint is complete.
    pub(super) found: Option<(Box<Manifest>, bool)>,
}
