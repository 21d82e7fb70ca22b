//! Models of the time of a message, and the fit of their parameters to measured times. Nothing here uses MPI.
//!
//! All times are in seconds, and all sizes are in bytes. If there are no data for a parameter, its fit is NaN.

pub mod lanes;

use serde::{Deserialize, Serialize};

/// R. Hockney: a message of m bytes takes `latency + m * per_byte`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hockney {
    /// Time of an empty message in seconds.
    pub latency_seconds: f64,
    /// Seconds per byte.
    pub seconds_per_byte: f64,
}

impl Hockney {
    /// Fits a line to one-way times (half of round trips) at two or more sizes. The line minimises the sum of squared
    /// relative errors, since an error of 10 % is as bad at 1 byte as at 1 MiB. Negative parameters are replaced by
    /// 0.
    pub fn fit(points: &[(usize, f64)]) -> Self {
        let sum = |term: fn(f64, f64) -> f64| -> f64 { points.iter().map(|&(m, t)| term(m as f64, t)).sum() };
        // Minimise sum ((a + b m - t) / t)^2.
        let (w, wm) = (sum(|_, t| 1.0 / (t * t)), sum(|m, t| m / (t * t)));
        let (wmm, wt, wmt) = (sum(|m, t| m * m / (t * t)), sum(|_, t| 1.0 / t), sum(|m, t| m / t));
        let determinant = w * wmm - wm * wm;
        let (a, b) = ((wt * wmm - wmt * wm) / determinant, (w * wmt - wm * wt) / determinant);
        if !(a.is_finite() && b.is_finite()) {
            return Self { latency_seconds: f64::NAN, seconds_per_byte: f64::NAN };
        }
        if a < 0.0 {
            return Self { latency_seconds: 0.0, seconds_per_byte: wmt / wmm };
        }
        if b < 0.0 {
            return Self { latency_seconds: wt / w, seconds_per_byte: 0.0 };
        }
        Self { latency_seconds: a, seconds_per_byte: b }
    }

    /// Fits one-way times at two or more sizes, of which the smallest is empty. The latency is the time of the empty
    /// message. The time per byte is the slope between the two largest sizes. Long messages begin with a handshake
    /// that short messages do not need, so a line through short and long messages would give neither the latency nor
    /// the bandwidth of the link.
    pub fn from_ends(points: &[(usize, f64)]) -> Self {
        let [first, .., before, last] = points else { return Self::fit(points) };
        let slope = (last.1 - before.1) / (last.0 as f64 - before.0 as f64);
        Self { latency_seconds: first.1, seconds_per_byte: slope.max(0.0) }
    }

    /// Time of a message.
    pub fn seconds(&self, bytes: usize) -> f64 {
        self.latency_seconds + bytes as f64 * self.seconds_per_byte
    }

    /// Bandwidth, for reports and checks.
    pub fn bits_per_second(&self) -> f64 {
        8.0 / self.seconds_per_byte
    }

    /// The homogeneous model: the mean of both parameters over all pairs.
    pub fn mean_of(pairs: &PairMatrix<Self>) -> Self {
        let n = pairs.values.len().max(1) as f64;
        Self {
            latency_seconds: pairs.values.iter().map(|h| h.latency_seconds).sum::<f64>() / n,
            seconds_per_byte: pairs.values.iter().map(|h| h.seconds_per_byte).sum::<f64>() / n,
        }
    }

    /// Time of a linear scatter or gather, in which the root handles one block after the other.
    pub fn linear_scatter_seconds(&self, ranks: usize, bytes: usize) -> f64 {
        ranks.saturating_sub(1) as f64 * self.seconds(bytes)
    }

    /// Time of a binomial scatter or gather: ceil(log2 n) rounds, each with half of the remaining blocks.
    pub fn binomial_scatter_seconds(&self, ranks: usize, bytes: usize) -> f64 {
        let rounds = ranks.next_power_of_two().trailing_zeros();
        f64::from(rounds) * self.latency_seconds + (ranks.saturating_sub(1) * bytes) as f64 * self.seconds_per_byte
    }
}

/// A value for every unordered pair of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairMatrix<T> {
    /// Number of ranks.
    pub ranks: usize,
    /// The values in the order (0,1) (0,2) ... (1,2) ...
    pub values: Vec<T>,
}

impl<T> PairMatrix<T> {
    /// Computes the value of each pair i < j with `value`.
    pub fn new(ranks: usize, mut value: impl FnMut(usize, usize) -> T) -> Self {
        let pairs = (0..ranks).flat_map(|i| (i + 1..ranks).map(move |j| (i, j)));
        Self { ranks, values: pairs.map(|(i, j)| value(i, j)).collect() }
    }

    /// Index of a pair in `values`.
    pub fn index(ranks: usize, i: usize, j: usize) -> usize {
        let (i, j) = (i.min(j), i.max(j));
        assert!(i < j && j < ranks, "pair {i}, {j} of {ranks}");
        i * (2 * ranks - i - 1) / 2 + j - i - 1
    }

    /// The value of a pair; i and j must differ.
    pub fn get(&self, i: usize, j: usize) -> &T {
        &self.values[Self::index(self.ranks, i, j)]
    }
}

/// A. Alexandrov et al.: latency L, overheads o, gap g between messages, gap G between bytes of a long message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogGp {
    /// L: latency
    pub latency_seconds: f64,
    /// o: time in which the sender can do nothing else
    pub overhead_seconds: f64,
    /// g: minimum time between the starts of two messages
    pub gap_seconds: f64,
    /// G: time per byte of a long message
    pub seconds_per_byte: f64,
}

/// The measurements at one message size for [`LogGp::fit`]: round trip times of trains of messages. The method is
/// from T. Hoefler et al., "Low-overhead LogGP parameter assessment for modern interconnection networks" (2007).
/// PRTT(n, d, s) is the time from the start of the first of n messages of s bytes to the answer to the last message.
/// Each message starts d seconds after the previous message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Train {
    /// s
    pub bytes: usize,
    /// n
    pub messages: usize,
    /// PRTT(1, 0, s)
    pub single_seconds: f64,
    /// PRTT(n, 0, s)
    pub back_to_back_seconds: f64,
    /// d
    pub delay_seconds: f64,
    /// PRTT(n, d, s), with d larger than any gap. If d is 0, equal to `back_to_back_seconds`.
    pub delayed_seconds: f64,
}

impl LogGp {
    /// Fits trains at two or more sizes in ascending order. The delayed train of the smallest size determines o.
    ///
    /// If the gap is the limit, PRTT(n, 0, s) = PRTT(1, 0, s) + (n - 1) (g + (s - 1) G). For a d longer than all
    /// gaps, PRTT(n, d, s) = PRTT(1, 0, s) + (n - 1) (o + d). As in [`Hockney::from_ends`], g comes from the smallest
    /// size, and G is the slope between the two largest sizes. The reason is that a network card accepts the first
    /// short messages faster than it sends them, and long messages begin with a handshake.
    pub fn fit(trains: &[Train]) -> Self {
        let gaps: Vec<_> = trains
            .iter()
            .map(|t| {
                let gap = (t.back_to_back_seconds - t.single_seconds) / (t.messages as f64 - 1.0);
                (t.bytes.saturating_sub(1), gap.max(f64::MIN_POSITIVE))
            })
            .collect();
        let line = Hockney::from_ends(&gaps);
        let overhead = trains.first().map_or(f64::NAN, |t| {
            ((t.delayed_seconds - t.single_seconds) / (t.messages as f64 - 1.0) - t.delay_seconds).max(0.0)
        });
        // A round trip is 2 (L + 2 o + (s - 1) G). L is computed from the smallest message, because an error of G, the
        // time of a byte, has the least effect there.
        let latency = trains.first().map_or(f64::NAN, |t| {
            let bytes = t.bytes.saturating_sub(1) as f64;
            (t.single_seconds / 2.0 - 2.0 * overhead - bytes * line.seconds_per_byte).max(0.0)
        });
        Self {
            latency_seconds: latency,
            overhead_seconds: overhead,
            gap_seconds: line.latency_seconds,
            seconds_per_byte: line.seconds_per_byte,
        }
    }

    /// Time of a message, from the call of send to the end of receive.
    pub fn seconds(&self, bytes: usize) -> f64 {
        self.latency_seconds + 2.0 * self.overhead_seconds + bytes.saturating_sub(1) as f64 * self.seconds_per_byte
    }
}

/// The model of A. Lastovetsky, I. Mkwawa and M. O'Flynn, which separates the processors' part of a message from the
/// network's part. A message of m bytes from rank i to rank j takes `C_i + L_ij + C_j + m (t_i + 1/b_ij + t_j)`.
///
/// L is the latency of the network. C (for each message) and t (for each byte) are the time of the work that a rank
/// does for one message after the other, in any component. For example, the time in a network card that all messages
/// of a rank use is part of t, like a copy in memory. 1/b is the remaining time of a byte, in which several messages
/// can overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lmo {
    /// C of each rank, in the order of the ranks.
    pub processing_seconds: Vec<f64>,
    /// t of each rank, in the order of the ranks.
    pub processing_seconds_per_byte: Vec<f64>,
    /// L of each pair.
    pub latency_seconds: PairMatrix<f64>,
    /// 1/b of each pair: the measured time of a byte minus the parts of both ends, so that the sum is the measured
    /// time. The value is negative if the parts of both ends overlap, for example in a sending and a receiving
    /// network card.
    pub seconds_per_byte: PairMatrix<f64>,
}

/// A point-to-two experiment: `from` sends to two ranks at the same time, and both receivers send an empty answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointToTwo {
    /// The rank that sends and measures.
    pub from: usize,
    /// The two receivers.
    pub to: [usize; 2],
    /// Round trip of empty messages.
    pub empty_seconds: f64,
    /// Round trip with `bytes` to the receivers and empty answers.
    pub loaded_seconds: f64,
}

impl Lmo {
    /// Fits the parameters, after A. Lastovetsky and V. Rychkov (Cluster 2007), from three kinds of measurements:
    /// round trips of all pairs, empty (`empty`) and with `bytes` one way (`loaded`); the time per byte of a long
    /// message of each pair (`per_byte`, as in [`Hockney::from_ends`]); and point-to-two experiments.
    ///
    /// T_ij(0) = 2 (C_i + L_ij + C_j) and T_ijk(0) = 2 (2 C_i + max (L_ix + C_x)), so C_i is half of T_ijk(0) - max
    /// T_ix(0). Likewise T_ijk(m) - max T_ix(m) = 2 C_i + m t_i. The value of a rank is the mean over its
    /// experiments. C_i is at least 0, and at most half of an empty one-way time, since the other end needs as much
    /// time. t_i is at least 0, and at most the whole time per byte.
    pub fn fit(
        bytes: usize,
        empty: &PairMatrix<f64>,
        loaded: &PairMatrix<f64>,
        per_byte: &PairMatrix<f64>,
        twos: &[PointToTwo],
    ) -> Self {
        let n = empty.ranks;
        let least = |values: &PairMatrix<f64>, i: usize| {
            (0..n).filter(|&j| j != i).map(|j| *values.get(i, j)).fold(f64::INFINITY, f64::min).max(0.0)
        };
        let mean = |values: Vec<f64>, most: f64| {
            if values.is_empty() { 0.0 } else { (values.iter().sum::<f64>() / values.len() as f64).clamp(0.0, most) }
        };
        let of_rank = |i: usize| twos.iter().filter(move |two| two.from == i);
        let longest = |times: &PairMatrix<f64>, two: &PointToTwo| {
            two.to.iter().map(|&x| *times.get(two.from, x)).fold(f64::MIN, f64::max)
        };
        let fixed: Vec<f64> = (0..n)
            .map(|i| {
                let each = of_rank(i).map(|two| (two.empty_seconds - longest(empty, two)) / 2.0);
                mean(each.collect(), least(empty, i) / 4.0)
            })
            .collect();
        let varying: Vec<f64> = (0..n)
            .map(|i| {
                let each = of_rank(i)
                    .map(|two| (two.loaded_seconds - longest(loaded, two) - 2.0 * fixed[i]) / bytes.max(1) as f64);
                mean(each.collect(), least(per_byte, i))
            })
            .collect();
        Self {
            latency_seconds: PairMatrix::new(n, |i, j| *empty.get(i, j) / 2.0 - fixed[i] - fixed[j]),
            seconds_per_byte: PairMatrix::new(n, |i, j| *per_byte.get(i, j) - varying[i] - varying[j]),
            processing_seconds: fixed,
            processing_seconds_per_byte: varying,
        }
    }

    /// Time of a message from i to j.
    pub fn seconds(&self, i: usize, j: usize, bytes: usize) -> f64 {
        let (c, t) = (&self.processing_seconds, &self.processing_seconds_per_byte);
        let network = self.latency_seconds.get(i, j) + bytes as f64 * self.seconds_per_byte.get(i, j);
        c[i] + c[j] + bytes as f64 * (t[i] + t[j]) + network
    }

    /// Time of a linear scatter: the root's part for one block after the other, and the rest of all blocks at the
    /// same time.
    pub fn linear_scatter_seconds(&self, root: usize, bytes: usize) -> f64 {
        let n = self.processing_seconds.len();
        let own = self.processing_seconds[root] + bytes as f64 * self.processing_seconds_per_byte[root];
        let rest = (0..n).filter(|&j| j != root).map(|j| self.seconds(root, j, bytes) - own).fold(0.0, f64::max);
        n.saturating_sub(1) as f64 * own + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, truth: f64, what: &str) {
        assert!((found - truth).abs() <= 1e-9 * truth.abs() + 1e-15, "{what}: {found}, truth {truth}");
    }

    #[test]
    fn hockney_is_found_again_and_noise_does_not_move_it_far() {
        let truth = Hockney { latency_seconds: 5e-3, seconds_per_byte: 8e-8 };
        let exact: Vec<_> = [0, 1000, 65536, 1 << 20].map(|m| (m, truth.seconds(m))).to_vec();
        let found = Hockney::fit(&exact);
        near(found.latency_seconds, 5e-3, "latency");
        near(found.seconds_per_byte, 8e-8, "per byte");
        let noisy: Vec<_> =
            exact.iter().enumerate().map(|(i, &(m, t))| (m, if i % 2 == 0 { t * 1.02 } else { t * 0.98 })).collect();
        let found = Hockney::fit(&noisy);
        assert!((found.latency_seconds / 5e-3 - 1.0).abs() < 0.03, "{found:?}");
        assert!((found.seconds_per_byte / 8e-8 - 1.0).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn parameters_are_never_negative_and_one_point_gives_none() {
        assert!(Hockney::fit(&[(5, 1.0)]).latency_seconds.is_nan());
        let falling = Hockney::fit(&[(0, 2.0), (100, 1.0)]);
        assert!(falling.seconds_per_byte == 0.0 && falling.latency_seconds > 0.9, "{falling:?}");
        let steep = Hockney::fit(&[(10, 0.001), (100, 1.0)]);
        assert!(steep.latency_seconds == 0.0 && steep.seconds_per_byte > 0.0, "{steep:?}");
    }

    #[test]
    fn a_handshake_of_long_messages_hides_neither_latency_nor_bandwidth() {
        let time = |m: usize| 10e-3 + m as f64 * 8e-8 + if m > 65536 { 20e-3 } else { 0.0 };
        let found = Hockney::from_ends(&[0, 1024, 131_072, 1 << 20].map(|m| (m, time(m))));
        near(found.latency_seconds, 10e-3, "latency");
        near(found.seconds_per_byte, 8e-8, "per byte");
        assert_eq!(Hockney::from_ends(&[(0, 1.0), (10, 2.0)]), Hockney::fit(&[(0, 1.0), (10, 2.0)]));
    }

    #[test]
    fn pairs_have_one_place_each() {
        for n in 2..12 {
            let matrix = PairMatrix::new(n, |i, j| (i, j));
            for i in 0..n {
                for j in (0..n).filter(|&j| j != i) {
                    assert_eq!(*matrix.get(i, j), (i.min(j), i.max(j)));
                }
            }
        }
    }

    #[test]
    fn loggp_is_found_again() {
        let truth = LogGp { latency_seconds: 2e-5, overhead_seconds: 1e-6, gap_seconds: 3e-6, seconds_per_byte: 1e-9 };
        let train = |bytes: usize| {
            let single = 2.0 * truth.seconds(bytes);
            let gap = truth.gap_seconds + (bytes - 1) as f64 * truth.seconds_per_byte;
            Train {
                bytes,
                messages: 17,
                single_seconds: single,
                back_to_back_seconds: single + 16.0 * gap,
                delay_seconds: 1e-3,
                delayed_seconds: single + 16.0 * (truth.overhead_seconds + 1e-3),
            }
        };
        let found = LogGp::fit(&[train(1), train(1024), train(65536)]);
        near(found.latency_seconds, truth.latency_seconds, "L");
        near(found.overhead_seconds, truth.overhead_seconds, "o");
        near(found.gap_seconds, truth.gap_seconds, "g");
        near(found.seconds_per_byte, truth.seconds_per_byte, "G");
    }

    #[test]
    fn lmo_is_found_again_from_all_triples() {
        let n = 5;
        let truth = Lmo {
            processing_seconds: (0..n).map(|i| 1e-5 * (1.0 + i as f64)).collect(),
            processing_seconds_per_byte: (0..n).map(|i| 1e-9 * (5.0 - i as f64)).collect(),
            latency_seconds: PairMatrix::new(n, |i, j| 1e-4 * (1.0 + (i * j) as f64)),
            seconds_per_byte: PairMatrix::new(n, |i, j| 1e-8 * (1.0 + (i + j) as f64)),
        };
        let bytes = 100_000;
        let round = |i, j, m| truth.seconds(i, j, m) + truth.seconds(i, j, 0);
        let empty = PairMatrix::new(n, |i, j| round(i, j, 0));
        let loaded = PairMatrix::new(n, |i, j| round(i, j, bytes));
        let twos: Vec<_> = crate::schedule::rounds_of_triples(n, 6)
            .into_iter()
            .flatten()
            .map(|t| {
                let longest = |m| t.to.iter().map(|&x| round(t.from, x, m)).fold(0.0, f64::max);
                let (c, v) = (truth.processing_seconds[t.from], truth.processing_seconds_per_byte[t.from]);
                PointToTwo {
                    from: t.from,
                    to: t.to,
                    empty_seconds: longest(0) + 2.0 * c,
                    loaded_seconds: longest(bytes) + 2.0 * c + bytes as f64 * v,
                }
            })
            .collect();
        let per_byte = PairMatrix::new(n, |i, j| (round(i, j, bytes) - round(i, j, 0)) / bytes as f64);
        let found = Lmo::fit(bytes, &empty, &loaded, &per_byte, &twos);
        for i in 0..n {
            near(found.processing_seconds[i], truth.processing_seconds[i], "C");
            near(found.processing_seconds_per_byte[i], truth.processing_seconds_per_byte[i], "t");
            for j in i + 1..n {
                near(*found.latency_seconds.get(i, j), *truth.latency_seconds.get(i, j), "L");
                near(*found.seconds_per_byte.get(i, j), *truth.seconds_per_byte.get(i, j), "1/b");
            }
        }
    }

    #[test]
    fn a_card_that_all_messages_leave_by_is_the_senders_own_part() {
        let (n, bytes, card, delay) = (4, 1_000_000, 1e-8, 5e-3);
        // Sending and receiving overlap, so a message takes its transmission time once.
        let empty = PairMatrix::new(n, |_, _| 2.0 * delay);
        let loaded = PairMatrix::new(n, |_, _| 2.0 * delay + bytes as f64 * card);
        let two = |from: usize| PointToTwo {
            from,
            to: [(from + 1) % n, (from + 2) % n],
            empty_seconds: 2.0 * delay,
            loaded_seconds: 2.0 * delay + 2.0 * bytes as f64 * card,
        };
        let found = {
            let per_byte = PairMatrix::new(n, |_, _| card);
            Lmo::fit(bytes, &empty, &loaded, &per_byte, &(0..n).map(two).collect::<Vec<_>>())
        };
        near(found.processing_seconds_per_byte[1], card, "t");
        near(found.processing_seconds[1], 0.0, "C");
        near(*found.latency_seconds.get(0, 3), delay, "L");
        // The model predicts the measured time of a message. The speed of the root's card determines the time of a
        // scatter.
        near(found.seconds(0, 3, bytes), delay + bytes as f64 * card, "message");
        near(found.linear_scatter_seconds(0, bytes), delay + 3.0 * bytes as f64 * card, "scatter");
    }

    #[test]
    fn parts_of_ranks_are_never_more_than_is_there() {
        // Other work delayed this experiment by a second.
        let times = PairMatrix::new(3, |_, _| 1e-3);
        let two = PointToTwo { from: 0, to: [1, 2], empty_seconds: 1.0, loaded_seconds: 3.0 };
        let loaded = PairMatrix::new(3, |_, _| 2e-3);
        let found = Lmo::fit(1000, &times, &loaded, &PairMatrix::new(3, |_, _| 1e-6), &[two]);
        near(found.processing_seconds[0], 0.25e-3, "C");
        near(found.processing_seconds_per_byte[0], 1e-6, "t");
        near(found.seconds(0, 1, 1000), 0.5e-3 + 1e-3, "message");
    }
}
