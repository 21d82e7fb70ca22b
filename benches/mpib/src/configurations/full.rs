//! The steps of all configurations at the size of the paper, computed with measured rates, and the numbers that the
//! text of the paper prints.
//!
//! The rates of a step do not depend on the number of ranks, if each aggregator has its own core, as in the paper. So
//! the time of a step is its number of bytes multiplied by the time for each byte. Only the network of a node with
//! several aggregators and the store are shared.

use serde::Serialize;

/// The steps of a checkpoint, in their order.
pub const SAVE_STEPS: [&str; 4] = ["transfer", "merge", "compress", "write"];
/// The steps of a restart, in their order.
pub const RESTART_STEPS: [&str; 4] = ["read", "decompress", "split", "transfer"];

/// The measured rates of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Name of the configuration.
    pub configuration: String,
    /// Whether one rank of each group writes for the group.
    pub aggregated: bool,
    /// Bytes of the files divided by stored bytes.
    pub ratio: f64,
    /// Processor time in seconds to merge or concatenate a byte of the files.
    pub merge_seconds_per_byte: f64,
    /// Processor time in seconds to compress a byte of the files.
    pub compress_seconds_per_byte: f64,
    /// Processor time in seconds to decompress a byte of the files.
    pub decompress_seconds_per_byte: f64,
    /// Processor time in seconds to split a byte of the files.
    pub split_seconds_per_byte: f64,
    /// Bytes that an aggregator receives from its group in a second.
    pub to_aggregator_bytes_per_second: f64,
    /// Bytes that an aggregator sends to its group in a second.
    pub from_aggregator_bytes_per_second: f64,
    /// Bytes that all ranks or aggregators together write to the store in a second.
    pub write_bytes_per_second: f64,
    /// Bytes that all ranks or aggregators together read from the store in a second.
    pub read_bytes_per_second: f64,
}

/// The size and the machine for which times are computed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FullSize {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of ranks of a group.
    pub group: usize,
    /// Bytes of the files of a rank.
    pub rank_bytes: usize,
    /// Number of aggregators on a node, which share its network.
    pub node_aggregators: usize,
    /// Bytes in a second that the network carries to or from a node.
    pub node_bytes_per_second: usize,
    /// Bytes in a second that the store takes or gives. `None`: the measured rate.
    pub store_bytes_per_second: Option<usize>,
}

impl FullSize {
    /// Number of aggregators, which is also the number of writers.
    pub fn aggregators(&self) -> usize {
        self.ranks.div_ceil(self.group)
    }

    /// Number of nodes of aggregators: equation 3 of the paper.
    pub fn aggregator_nodes(&self) -> usize {
        self.aggregators().div_ceil(self.node_aggregators)
    }

    /// Bytes of one file in the store.
    pub fn file_bytes(&self, of: &Rates) -> f64 {
        self.worker_bytes(of) / of.ratio
    }

    /// Bytes of the files that one process works on.
    fn worker_bytes(&self, of: &Rates) -> f64 {
        self.rank_bytes as f64 * if of.aggregated { self.group as f64 } else { 1.0 }
    }

    /// The time in which each aggregator transfers the bytes of its group.
    fn transfer(&self, of: &Rates, bytes_per_second: f64) -> f64 {
        if !of.aggregated {
            return 0.0;
        }
        let bytes = self.worker_bytes(of);
        let of_node = bytes * self.node_aggregators.min(self.aggregators()) as f64 / self.node_bytes_per_second as f64;
        (bytes / bytes_per_second).max(of_node)
    }

    fn store(&self, of: &Rates, measured_bytes_per_second: f64) -> f64 {
        let rate = self.store_bytes_per_second.map_or(measured_bytes_per_second, |rate| rate as f64);
        self.ranks as f64 * self.rank_bytes as f64 / of.ratio / rate
    }

    /// The times in seconds of [`SAVE_STEPS`].
    pub fn save(&self, of: &Rates) -> [f64; 4] {
        let bytes = self.worker_bytes(of);
        [
            self.transfer(of, of.to_aggregator_bytes_per_second),
            bytes * of.merge_seconds_per_byte,
            bytes * of.compress_seconds_per_byte,
            self.store(of, of.write_bytes_per_second),
        ]
    }

    /// The times in seconds of [`RESTART_STEPS`].
    pub fn restart(&self, of: &Rates) -> [f64; 4] {
        let bytes = self.worker_bytes(of);
        [
            self.store(of, of.read_bytes_per_second),
            bytes * of.decompress_seconds_per_byte,
            bytes * of.split_seconds_per_byte,
            self.transfer(of, of.from_aggregator_bytes_per_second),
        ]
    }
}

/// The times that a statement of the paper compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The sum of the steps of a checkpoint.
    Save,
    /// The step `write` of a checkpoint.
    Write,
    /// The sum of the steps of a restart.
    Restart,
    /// The step `read` of a restart.
    Read,
}

/// A statement in the text of section VII.C: by how many percent a time with `Aware+Agg` is shorter than the same
/// time with another configuration. `-`: the text has no number for this application.
pub struct Statement {
    /// The compared times.
    pub compared: Compared,
    /// The other configuration.
    pub than: &'static str,
    /// The number for ALE3D.
    pub ale3d: &'static str,
    /// The number for Cactus.
    pub cactus: &'static str,
}

/// The statements of the paper about figures 12 and 13. The text of the paper has no times in seconds. "over 80%" is
/// in the sentence after a sentence about ALE3D, and does not name an application.
pub const STATEMENTS: [Statement; 6] = [
    Statement { compared: Compared::Save, than: NOTHING, ale3d: "up to 87%", cactus: "-" },
    Statement { compared: Compared::Save, than: AGGREGATED, ale3d: "-", cactus: "up to 32%" },
    Statement { compared: Compared::Write, than: AGNOSTIC, ale3d: "92%", cactus: "86%" },
    Statement { compared: Compared::Restart, than: NOTHING, ale3d: "over 62%", cactus: "-" },
    Statement { compared: Compared::Restart, than: COMPRESSED, ale3d: "over 80%", cactus: "-" },
    Statement { compared: Compared::Read, than: AGNOSTIC, ale3d: "43%", cactus: "71%" },
];

/// Names of the configurations in table V of the paper: no compression, no aggregation.
pub const NOTHING: &str = "NoC+NoAgg";
/// Each rank compresses its file, no aggregation.
pub const COMPRESSED: &str = "C+NoAgg";
/// No compression, aggregation.
pub const AGGREGATED: &str = "NoC+Agg";
/// Aggregation, data-agnostic compression.
pub const AGNOSTIC: &str = "Agnostic+Agg";
/// Aggregation, data-aware compression.
pub const AWARE: &str = "Aware+Agg";

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> Rates {
        Rates {
            configuration: AWARE.into(),
            aggregated: true,
            ratio: 2.0,
            merge_seconds_per_byte: 1e-9,
            compress_seconds_per_byte: 2e-8,
            decompress_seconds_per_byte: 1e-8,
            split_seconds_per_byte: 2e-9,
            to_aggregator_bytes_per_second: 1e9,
            from_aggregator_bytes_per_second: 2e9,
            write_bytes_per_second: 1e8,
            read_bytes_per_second: 2e8,
        }
    }

    const FULL: FullSize = FullSize {
        ranks: 15_408,
        group: 32,
        rank_bytes: 87_000_000,
        node_aggregators: 12,
        node_bytes_per_second: 4_000_000_000,
        store_bytes_per_second: Some(30_000_000_000),
    };

    #[test]
    fn the_papers_run_has_482_aggregators_on_41_nodes() {
        assert_eq!((FULL.aggregators(), FULL.aggregator_nodes()), (482, 41));
        assert!((FULL.file_bytes(&rates()) - 1.392e9).abs() < 1.0);
    }

    #[test]
    fn each_step_takes_the_time_of_its_bytes() {
        let near = |found: [f64; 4], expected: [f64; 4]| {
            let same = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b);
            assert!(same, "{found:?}, expected {expected:?}");
        };
        // A group has 2.784 GB. 12 aggregators share the network of a node: 33.408 GB at 4 GB/s.
        near(FULL.save(&rates()), [8.352, 2.784, 55.68, 22.3416]);
        near(FULL.restart(&rates()), [22.3416, 27.84, 5.568, 8.352]);
        // Without other aggregators on the node, the measured rate is the limit.
        let alone = FullSize { node_aggregators: 1, store_bytes_per_second: None, ..FULL };
        near(alone.save(&rates()), [2.784, 2.784, 55.68, 6702.48]);
        near(alone.restart(&rates()), [3351.24, 27.84, 5.568, 1.392]);
        // Without aggregation, each rank works on its own file.
        let each = Rates { aggregated: false, ..rates() };
        near(FULL.save(&each), [0.0, 0.087, 1.74, 22.3416]);
    }
}
