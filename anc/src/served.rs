//! The groups that restarts read at present. All restarts of a group share one buffer of decoded segments, so that a
//! segment is decoded once for all nodes of the group, as long as the budget allows.

use crate::budget::{Budget, Lease, Shares};
use mcrengine::container::{ContainerSet, DecodingMemory, ReadError, ReadOrder, SegmentBuffer};
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::store::Store;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// Maximum number of groups that restarts read at the same time. Restarts of further groups wait.
const GROUPS_MAX: usize = 2;
/// Each group leases the aggregator's budget divided by this number. So half of the budget is left for checkpoints.
const GROUP_DIVISOR: u64 = 4;
/// The codecs of all restarts together may take the aggregator's budget divided by this number, or as much as one
/// segment needs. This memory is not leased: otherwise a restart could wait for a flush, and a flush for a restart.
const DECODING_DIVISOR: u64 = 2;

/// A group of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupKey {
    /// The job.
    pub job: JobId,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The group.
    pub group: GroupId,
}

/// The groups that restarts read at present.
pub struct Served {
    groups: Mutex<HashMap<GroupKey, Weak<ServedGroup>>>,
    room: Arc<Semaphore>,
    decoding: Arc<DecodingMemory>,
}

/// A group that at least one restart reads.
pub struct ServedGroup {
    key: GroupKey,
    /// One of the [`GROUPS_MAX`] permits.
    permit: OnceCell<Option<OwnedSemaphorePermit>>,
    open: Mutex<Option<Arc<OpenGroup>>>,
    /// The memory of the codecs for all groups.
    decoding: Arc<DecodingMemory>,
    /// One reference for each restart of the group.
    restarts: Arc<()>,
}

/// A restart of a group.
pub struct OfGroup {
    group: Arc<ServedGroup>,
    _restart: Arc<()>,
}

/// The containers and the decoded segments of a group.
pub struct OpenGroup {
    /// The decoded segments.
    pub segments: SegmentBuffer,
    /// The budget for stored bytes of segments that are being decoded.
    pub stored: Arc<Budget>,
    _lease: Lease,
}

impl Served {
    /// No groups, for an aggregator with this budget.
    pub fn new(budget: &Budget) -> Self {
        let (groups, room) = (Mutex::default(), Arc::new(Semaphore::new(GROUPS_MAX)));
        Self { groups, room, decoding: DecodingMemory::new(budget.total_bytes() / DECODING_DIVISOR) }
    }

    /// The group, for one restart. The group is closed after its last restart.
    pub fn group(&self, key: GroupKey) -> OfGroup {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|_, group| group.strong_count() > 0);
        let group = groups.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let group = ServedGroup {
                key: key.clone(),
                permit: OnceCell::new(),
                open: Mutex::default(),
                decoding: Arc::clone(&self.decoding),
                restarts: Arc::new(()),
            };
            let group = Arc::new(group);
            groups.insert(key, Arc::downgrade(&group));
            group
        });
        let _restart = Arc::clone(&group.restarts);
        OfGroup { group, _restart }
    }

    /// Waits until restarts may read the group. The caller may drop the future at any time. Returns `false` if the
    /// aggregator is shutting down.
    pub async fn admit(&self, group: &ServedGroup) -> bool {
        let permit = || async { Arc::clone(&self.room).acquire_owned().await.ok() };
        group.permit.get_or_init(permit).await.is_some()
    }
}

impl std::ops::Deref for OfGroup {
    type Target = ServedGroup;

    fn deref(&self) -> &ServedGroup {
        &self.group
    }
}

impl ServedGroup {
    /// Number of restarts that read the group at present.
    pub fn restarts(&self) -> usize {
        Arc::strong_count(&self.restarts) - 1
    }

    /// Opens the group, or returns the group that another restart opened. Waits for memory of the budget. The thread
    /// must have no lease of the budget.
    pub fn open(&self, store: &dyn Store, budget: &Arc<Budget>) -> Result<Arc<OpenGroup>, ReadError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &*open {
            return Ok(Arc::clone(open));
        }
        let GroupKey { job, checkpoint, group } = &self.key;
        let set = Arc::new(ContainerSet::open(store, job, checkpoint, *group)?);
        let tasks = set.tasks(|_| true);
        let all = tasks.iter().map(|task| task.raw_bytes.0 + set.stored_bytes_of(task)).sum::<u64>();
        let most = tasks.iter().map(|task| set.task_bytes(task)).max().unwrap_or(0);
        // Segments and their bases must fit, however small the budget is.
        let wanted = (budget.total_bytes() / GROUP_DIVISOR).min(all).max(most);
        let lease = budget.lease(wanted);
        let Shares { decoded_bytes, stored_bytes } = Shares::of(wanted, &tasks);
        let segments = SegmentBuffer::new(set, &tasks, decoded_bytes, ReadOrder::Shared)?;
        let segments = segments.with_decoding(Arc::clone(&self.decoding));
        let made = Arc::new(OpenGroup { segments, stored: Budget::new(stored_bytes), _lease: lease });
        *open = Some(Arc::clone(&made));
        Ok(made)
    }
}
