//! Schedules of message exchanges, in which each rank takes part in at most one exchange at a time.

/// Rounds in which every pair of `n` ranks meets exactly once, and no rank is in two pairs of a round: a
/// 1-factorisation of the complete graph, by the circle method. There are n - 1 rounds for even n, and n rounds for
/// odd n, in which one rank rests.
pub fn rounds_of_pairs(n: usize) -> Vec<Vec<(usize, usize)>> {
    if n < 2 {
        return Vec::new();
    }
    let even = n + n % 2; // for odd n, an imaginary rank is added; its partner rests
    let circle = even - 1;
    (0..circle)
        .map(|round| {
            let mut pairs: Vec<_> = (0..even / 2)
                .map(|k| {
                    let a = (round + k) % circle;
                    let b = if k == 0 { circle } else { (round + circle - k) % circle };
                    (a.min(b), a.max(b))
                })
                .filter(|&(_, b)| b < n)
                .collect();
            pairs.sort_unstable();
            pairs
        })
        .collect()
}

/// An experiment of one rank with two other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Triple {
    /// The rank that sends first.
    pub from: usize,
    /// The two receivers, the smaller rank first.
    pub to: [usize; 2],
}

/// Rounds of disjoint triples, in which every rank is `from` in `each` triples if n allows, with partners that vary
/// as much as possible. For many ranks, all n (n-1) (n-2) / 2 triples would take too long.
pub fn rounds_of_triples(n: usize, each: usize) -> Vec<Vec<Triple>> {
    if n < 3 {
        return Vec::new();
    }
    let mut wanted = Vec::new();
    for from in 0..n {
        let mut chosen = Vec::new();
        // Neighbours at increasing distances, so that every rank is a partner equally often.
        'distances: for gap in 1..n {
            for first in (1..n).step_by(2) {
                let (j, k) = ((from + first) % n, (from + first + gap) % n);
                let triple = Triple { from, to: [j.min(k), j.max(k)] };
                if k != from && j != k && !chosen.contains(&triple) {
                    chosen.push(triple);
                }
                if chosen.len() == each {
                    break 'distances;
                }
            }
        }
        wanted.extend(chosen);
    }
    let mut rounds: Vec<(Vec<bool>, Vec<Triple>)> = Vec::new();
    for triple in wanted {
        let seats = [triple.from, triple.to[0], triple.to[1]];
        let free = rounds.iter().position(|(busy, _)| seats.iter().all(|&s| !busy[s]));
        let at = free.unwrap_or_else(|| {
            rounds.push((vec![false; n], Vec::new()));
            rounds.len() - 1
        });
        seats.iter().for_each(|&s| rounds[at].0[s] = true);
        rounds[at].1.push(triple);
    }
    rounds.into_iter().map(|(_, triples)| triples).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_meets_once_and_nobody_is_in_two_places() {
        for n in 0..40 {
            let rounds = rounds_of_pairs(n);
            let mut met = BTreeSet::new();
            for round in &rounds {
                let seats: BTreeSet<_> = round.iter().flat_map(|&(a, b)| [a, b]).collect();
                assert_eq!(seats.len(), 2 * round.len(), "n {n}: {round:?}");
                for &(a, b) in round {
                    assert!(a < b && b < n, "n {n}: {a}, {b}");
                    assert!(met.insert((a, b)), "n {n}: {a}, {b} meet twice");
                }
            }
            assert_eq!(met.len(), n * n.saturating_sub(1) / 2);
            let least = if n < 2 { 0 } else { n - 1 + n % 2 };
            assert_eq!(rounds.len(), least, "n {n}: more rounds than needed");
        }
    }

    #[test]
    fn every_rank_leads_triples_and_no_round_has_a_rank_twice() {
        assert!(rounds_of_triples(2, 3).is_empty());
        for n in 3..20 {
            let rounds = rounds_of_triples(n, 3);
            let mut led = vec![BTreeSet::new(); n];
            for round in &rounds {
                let seats: BTreeSet<_> = round.iter().flat_map(|t| [t.from, t.to[0], t.to[1]]).collect();
                assert_eq!(seats.len(), 3 * round.len(), "n {n}: {round:?}");
                for t in round {
                    assert!(t.to[0] < t.to[1] && t.to[1] < n, "n {n}: {t:?}");
                    assert!(led[t.from].insert(t.to), "n {n}: {t:?} twice");
                }
            }
            let pairs_of_others = (n - 1) * (n - 2) / 2;
            assert!(led.iter().all(|l| l.len() == pairs_of_others.min(3)), "n {n}: {led:?}");
        }
    }
}
