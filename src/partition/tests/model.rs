//! Random programs, compared with a model that was written from the paper's text without the code of the manager.
//!
//! The model stores no states. The model derives the states from two facts: what is in the sub-buffers, and what is
//! on the stack.

use super::*;
use proptest::prelude::*;

/// The paper's policies, from their definitions.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Modulus,
    /// Lifetimes of at most this number of calls.
    Lru(u64),
}

/// The partition manager of the paper: one chain, equal sub-buffers, and a victim cache of `victims_max` entries.
struct Model {
    rule: Rule,
    buffer: Vec<Option<u32>>,
    /// The running partition and its callers, with their sub-buffers; the running partition is the last.
    stack: Vec<(u32, usize)>,
    /// For each sub-buffer, the number of calls at its last use; `None` if the sub-buffer was emptied.
    used: Vec<Option<u64>>,
    calls: u64,
    replaced: Option<usize>,
    victims: Vec<u32>,
    victims_max: usize,
    /// Hits, moves, victims and loads.
    counts: [u64; 4],
}

impl Model {
    fn new(rule: Rule, sub_buffers: usize, victims_max: usize) -> Self {
        let (buffer, used) = (vec![None; sub_buffers], vec![None; sub_buffers]);
        let (stack, victims, counts) = (vec![], vec![], [0; 4]);
        Self { rule, buffer, stack, used, calls: 0, replaced: None, victims, victims_max, counts }
    }

    fn place_of(&self, partition: u32) -> Option<usize> {
        self.buffer.iter().position(|resident| *resident == Some(partition))
    }

    fn state(&self, partition: u32) -> State {
        let (is_here, runs) =
            (self.place_of(partition).is_some(), self.stack.last().map(|top| top.0) == Some(partition));
        let is_caller = self.stack.iter().rev().skip(1).any(|(caller, _)| *caller == partition);
        match (is_here, runs, is_caller) {
            (true, true, _) => State::Active,
            (true, false, _) => State::Inactive,
            (false, _, true) => State::EvictedForReuse,
            (false, _, false) => State::Evicted,
        }
    }

    /// How many calls of its lifetime a sub-buffer has left.
    fn lifetime(&self, full: u64, sub_buffer: usize) -> u64 {
        self.used[sub_buffer].map_or(0, |at| full.saturating_sub(self.calls - at))
    }

    fn choose(&mut self) -> usize {
        let n = self.buffer.len();
        let in_turn = |k: usize| (self.replaced.map_or(0, |last| last + 1) + k) % n;
        let next = match self.rule {
            Rule::Modulus => in_turn(0),
            Rule::Lru(full) => {
                let least = (0..n).map(|s| self.lifetime(full, s)).min().expect("a sub-buffer");
                (0..n).map(in_turn).find(|s| self.lifetime(full, *s) == least).expect("the least")
            }
        };
        self.replaced = Some(next);
        next
    }

    /// Brings the partition on top of the stack to its place. `callers` are the partitions to which calls return.
    fn bring(&mut self, partition: u32, to: usize, callers: &[u32]) {
        let from = self.place_of(partition);
        let copy = self.victims.iter().position(|victim| *victim == partition).filter(|_| from.is_none());
        copy.map(|at| self.victims.remove(at));
        if from != Some(to) {
            if let Some(evicted) = self.buffer[to].filter(|evicted| callers.contains(evicted)) {
                self.victims.push(evicted);
                let extra = self.victims.len().saturating_sub(self.victims_max);
                self.victims.drain(..extra);
            }
            if let Some(from) = from {
                (self.buffer[from], self.used[from]) = (None, None);
            }
        }
        let kind = match (from, copy) {
            (Some(from), _) if from == to => 0,
            (Some(_), _) => 1,
            (None, Some(_)) => 2,
            (None, None) => 3,
        };
        self.counts[kind] += 1;
        (self.buffer[to], self.used[to]) = (Some(partition), Some(self.calls));
    }

    fn call(&mut self, partition: u32) -> usize {
        let to = self.place_of(partition).unwrap_or_else(|| self.choose());
        self.calls += 1;
        let callers: Vec<u32> = self.stack.iter().map(|(caller, _)| *caller).collect();
        self.stack.push((partition, to));
        self.bring(partition, to, &callers);
        to
    }

    fn back(&mut self) -> Option<(u32, usize)> {
        self.stack.pop();
        let (partition, to) = *self.stack.last()?;
        let callers: Vec<u32> = self.stack.iter().rev().skip(1).map(|(caller, _)| *caller).collect();
        self.bring(partition, to, &callers);
        Some((partition, to))
    }
}

type Tested = Result<(), TestCaseError>;
type AnyManager = PartitionManager<Box<dyn Policy>>;

const PARTITIONS: u32 = 7;

fn steps() -> impl Strategy<Value = Vec<Option<u32>>> {
    // Some programs stay flat, others have deep chains.
    (1u32..8).prop_flat_map(|calls| {
        let step = prop_oneof![calls => (0..PARTITIONS).prop_map(Some), 4 => Just(None)];
        prop::collection::vec(step, 0..300)
    })
}

fn run<P: Policy>(policy: P, rule: Rule, n: usize, victims: usize, steps: &[Option<u32>]) -> Tested {
    let limits = VictimLimits { entries: victims, bytes: u64::MAX };
    let (mut manager, chain) = manager(PARTITIONS as usize, n, policy, limits);
    let mut model = Model::new(rule, n, victims);
    for step in steps {
        match step {
            Some(partition) => {
                let access = manager.call(chain, PartitionId(*partition)).expect("callable");
                prop_assert_eq!(access.sub_buffer.0 as usize, model.call(*partition));
            }
            None if model.stack.is_empty() => {
                let error = manager.return_to_caller(chain);
                prop_assert_eq!(error, Err(PartitionError::NothingToReturn(chain)));
            }
            None => {
                let access = manager.return_to_caller(chain).expect("a call to return from");
                let found = access.map(|access| (access.partition.0, access.sub_buffer.0 as usize));
                prop_assert_eq!(found, model.back());
            }
        }
        for partition in 0..PARTITIONS {
            let state = manager.state(PartitionId(partition));
            prop_assert_eq!(state, Ok(model.state(partition)), "partition {}", partition);
            let is_victim = manager.victims().contains(PartitionId(partition));
            prop_assert_eq!(is_victim, model.victims.contains(&partition), "partition {}", partition);
        }
        let counters = manager.counters();
        let counts = [counters.hits, counters.moves, counters.victims, counters.loads];
        prop_assert_eq!(counts, model.counts);
        prop_assert_eq!(counts.iter().sum::<u64>(), counters.uses());
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_program_passes_the_states_and_loads_of_the_model_with_modulus(
        n in 1usize..6, victims in 0usize..4, steps in steps(),
    ) {
        run(Modulus::new(), Rule::Modulus, n, victims, &steps)?;
    }

    #[test]
    fn every_program_passes_the_states_and_loads_of_the_model_with_lru(
        n in 1usize..6, victims in 0usize..4, lifetime in prop_oneof![0u32..9, Just(LIFETIME_MAX)], steps in steps(),
    ) {
        run(Lru::with_lifetime(lifetime), Rule::Lru(lifetime.into()), n, victims, &steps)?;
    }

    /// Several chains, holds, partitions and sub-buffers of different lengths, and every policy.
    #[test]
    fn no_program_evicts_or_moves_what_is_in_use_and_an_error_changes_nothing(
        policy in 0usize..4,
        lengths in prop::collection::vec(1u64..20, 1..5),
        steps in prop::collection::vec((0u32..4, 0u32..9, 0u32..PARTITIONS), 0..300),
    ) {
        let largest = lengths.iter().copied().max().expect("a sub-buffer");
        let list = PartitionList::of_lengths((0..u64::from(PARTITIONS)).map(|n| 1 + n * 3 % largest)).expect("few");
        let layout = BufferLayout::of_lengths(lengths.iter().sum(), &lengths).expect("few");
        let policy: Box<dyn Policy> = match policy {
            0 => Box::new(Modulus::new()),
            1 => Box::new(Lru::new()),
            2 => Box::new(LookAhead::new(steps.iter().map(|(_, _, partition)| PartitionId(*partition)))),
            _ => Box::new(ClockPro::new(lengths.len())),
        };
        let limits = VictimLimits { entries: 2, bytes: 20 };
        let mut manager = PartitionManager::new(list.clone(), layout.clone(), policy, limits).expect("fits");
        let chains = [(); 3].map(|()| manager.open_chain().expect("few"));
        let mut holds = [0u32; PARTITIONS as usize];
        for (who, what, partition) in steps {
            let id = PartitionId(partition);
            let places = |manager: &AnyManager| -> Vec<_> {
                list.iter().map(|(id, _)| (manager.sub_buffer_of(id), manager.state(id).expect("listed"))).collect()
            };
            let (before, counted) = (places(&manager), manager.counters());
            let own = chains.get(who as usize).copied().unwrap_or(ChainId(77));
            let running = |manager: &AnyManager, chain| manager.chain(chain).ok().and_then(|stack| stack.current());
            let others: Vec<_> = chains.iter().filter(|c| **c != own).filter_map(|c| running(&manager, *c)).collect();
            let is_error = match what {
                0..=3 => manager.call(own, id).is_err(),
                4..=5 => manager.return_to_caller(own).is_err(),
                6 => manager.hold(id).map(|_| holds[id.0 as usize] += 1).is_err(),
                7 => manager.release(id).map(|()| holds[id.0 as usize] -= 1).is_err(),
                _ if who == 0 => manager.abandon(own).is_err(),
                _ => manager.forget(id).is_err(),
            };
            if is_error {
                prop_assert_eq!(&before, &places(&manager));
                prop_assert_eq!(counted, manager.counters());
            }
            for other in others {
                prop_assert_eq!(manager.sub_buffer_of(other.partition), Some(other.sub_buffer));
            }
            let mut resident = Vec::new();
            for (id, entry) in list.iter() {
                let state = manager.state(id).expect("listed");
                let runs = chains.iter().any(|chain| running(&manager, *chain).is_some_and(|r| r.partition == id));
                let path = |chain: &ChainId| manager.chain(*chain).expect("open").return_path().collect::<Vec<_>>();
                let returns = |chain: &ChainId| path(chain).iter().any(|caller| caller.partition == id);
                let (is_held, will_return) = (holds[id.0 as usize] > 0, chains.iter().any(returns));
                let at = manager.sub_buffer_of(id);
                let expected = match (at.is_some(), runs || is_held, will_return) {
                    (true, true, _) => State::Active,
                    (true, false, _) => State::Inactive,
                    (false, _, true) => State::EvictedForReuse,
                    (false, _, false) => State::Evicted,
                };
                prop_assert_eq!(state, expected);
                prop_assert!(!is_held || at == before[id.0 as usize].0, "held partitions stay");
                if let Some(at) = at {
                    prop_assert_eq!(manager.resident(at), Some(id));
                    prop_assert!(layout.iter().any(|(s, length)| s == at && length >= entry.bytes));
                    resident.push(at);
                }
                prop_assert!(!manager.victims().contains(id) || state == State::EvictedForReuse);
            }
            let taken = layout.iter().filter(|(s, _)| manager.resident(*s).is_some()).count();
            prop_assert_eq!(taken, resident.len(), "each partition is in one sub-buffer");
            prop_assert!(manager.victims().bytes() <= 20 && manager.victims().len() <= 2);
        }
    }
}
