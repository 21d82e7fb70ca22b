//! The known state of aggregators and agents. The functions in this file neither wait nor send requests.

use mcr_proto::v1;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of aggregators in a live view.
const AGGREGATORS_MAX: usize = 256;

/// Everything that `mcr status` shows.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub aggregators: Vec<Aggregator>,
    /// Agents of the user's jobs on this node that do not answer.
    pub silent_agents: Vec<SilentAgent>,
}

/// A model that a live view or the page shows while answers arrive.
pub type Shared = Arc<Mutex<Model>>;

/// Locks a model for a short time, during which nothing waits.
pub fn locked(model: &Shared) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An aggregator, and its last answer.
#[derive(Clone, Debug)]
pub struct Aggregator {
    pub address: String,
    pub last: Option<Answer>,
    /// Why the aggregator did not answer the last question. `None` if the aggregator answered.
    pub error: Option<String>,
    /// When the first question was asked.
    begun: Instant,
    /// Whether a question was sent and not yet answered.
    is_asked: bool,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: v1::StatusReply,
    pub at: Instant,
}

/// An agent of this node that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentAgent {
    /// The number of the job in SLURM.
    pub job_id: String,
    /// The socket of the agent.
    pub path: String,
    pub error: String,
    /// Whether `mcr node` does not save the job any more, because its worker failed.
    pub is_given_up: bool,
}

impl Aggregator {
    /// The time since the last answer, or since the first question if there was no answer.
    pub fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last.as_ref().map_or(self.begun, |last| last.at))
    }

    /// The last answer, if the aggregator also answered the last question.
    pub fn current(&self) -> Option<&Answer> {
        self.last.as_ref().filter(|_| self.error.is_none())
    }
}

impl Model {
    /// Adds aggregators that are not known yet.
    pub fn add(&mut self, addresses: &[String], now: Instant) {
        for address in addresses {
            let is_known = self.aggregators.iter().any(|aggregator| aggregator.address == *address);
            if !is_known && self.aggregators.len() < AGGREGATORS_MAX {
                let (address, last, error) = (address.clone(), None, None);
                self.aggregators.push(Aggregator { address, last, error, begun: now, is_asked: false });
            }
        }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.aggregators.iter().map(|aggregator| aggregator.address.clone()).collect()
    }

    /// The aggregators without an open question. The caller must ask these aggregators, because each of these
    /// aggregators is now marked as asked.
    pub fn due(&mut self) -> Vec<String> {
        let due = self.aggregators.iter_mut().filter(|aggregator| !aggregator.is_asked);
        due.map(|aggregator| {
            aggregator.is_asked = true;
            aggregator.address.clone()
        })
        .collect()
    }

    /// Records the answer of an aggregator, or why the aggregator did not answer.
    pub fn note(&mut self, address: &str, result: Result<v1::StatusReply, String>, now: Instant) {
        let Some(of) = self.aggregators.iter_mut().find(|aggregator| aggregator.address == address) else { return };
        of.is_asked = false;
        match result {
            Ok(status) => (of.last, of.error) = (Some(Answer { status, at: now }), None),
            Err(error) => of.error = Some(error),
        }
    }

    /// Number of aggregators that answered the last question.
    pub fn answered(&self) -> usize {
        self.aggregators.iter().filter(|aggregator| aggregator.current().is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregator_is_silent_since_its_last_answer_and_is_asked_once_at_a_time() {
        let (mut model, start) = (Model::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        model.add(&["a:1".to_owned(), "b:1".to_owned()], start);
        model.add(&["a:1".to_owned()], start);
        assert_eq!(model.due(), ["a:1", "b:1"]);
        assert_eq!(model.due(), Vec::<String>::new());
        model.note("a:1", Ok(v1::StatusReply::default()), after(3));
        model.note("b:1", Err("refused".into()), after(3));
        assert_eq!((model.due().len(), model.answered()), (2, 1));
        model.note("a:1", Err("refused".into()), after(15));
        let silent: Vec<u64> = model.aggregators.iter().map(|one| one.silent_for(after(15)).as_secs()).collect();
        assert_eq!(silent, [12, 15]);
        assert!(model.aggregators[0].current().is_none() && model.aggregators[0].last.is_some());
    }

    #[test]
    fn the_number_of_aggregators_is_bounded() {
        let mut model = Model::default();
        let many: Vec<String> = (0..1000).map(|n| format!("n{n}:1")).collect();
        model.add(&many, Instant::now());
        assert_eq!(model.aggregators.len(), AGGREGATORS_MAX);
    }
}
