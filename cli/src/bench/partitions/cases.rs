//! The generated traces: the shapes of the programs of Harahel, the paper's test suite (Table 3), and of restarts.
//!
//! The paper names its programs, but prints neither their code nor their calls. So each program in this file has the
//! typical functions of such a program, and calls these functions in the usual order. The numbers of loads are
//! therefore not the numbers of the paper.

use mcrengine::partition::{ChainId, PartitionId, PartitionList, Trace, TraceError, TraceEvent};

/// Length of each partition of a generated trace. Four partitions fit into half of the local memory of an SPE, which
/// has 256 KiB (section 2).
const PARTITION_BYTES: u64 = 32 << 10;

/// A generated trace.
pub struct Case {
    pub name: &'static str,
    /// The program, in a few words.
    pub about: &'static str,
    pub trace: Trace,
}

/// A program that records its calls.
struct Program {
    events: Vec<TraceEvent>,
    /// The state of the generator of random numbers.
    random: u64,
}

impl Program {
    /// Calls a partition. `body` makes the calls of the partition, then the partition returns.
    fn call(&mut self, partition: u32, body: impl FnOnce(&mut Self)) {
        let chain = ChainId(0);
        self.events.push(TraceEvent::Call { chain, partition: PartitionId(partition) });
        body(self);
        self.events.push(TraceEvent::Return { chain });
    }

    /// Calls a partition that makes no calls.
    fn leaf(&mut self, partition: u32) {
        self.call(partition, |_| ());
    }

    /// Calls partitions that make no calls, one after the other.
    fn leaves(&mut self, partitions: &[u32]) {
        partitions.iter().for_each(|partition| self.leaf(*partition));
    }

    /// Each partition calls the next partition, and the last partition runs `end`.
    fn chain(&mut self, partitions: &[u32], end: &mut dyn FnMut(&mut Self)) {
        match partitions {
            [] => end(self),
            [first, rest @ ..] => self.call(*first, |program| program.chain(rest, end)),
        }
    }

    /// A number below `n`, which is not 0. SplitMix64 of G. Steele, D. Lea and C. Flood, 2014.
    fn below(&mut self, n: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(n)) as u32
    }

    /// A number below `n`. Small numbers are much more frequent than large numbers.
    fn skewed(&mut self, n: u32) -> u32 {
        let below = self.below(n) + 1;
        self.below(below)
    }
}

/// A program: its name, a description, and the function that makes its calls.
type Shape = (&'static str, &'static str, fn(&mut Program));

/// The programs of Table 3, in its order, then the shapes of restarts.
const SHAPES: [Shape; 18] = [
    ("dsp", "three kernels in turn, each with functions", dsp),
    ("gzip", "compression: matches, then Huffman codes", gzip),
    ("gunzip", "decompression: tables, codes, windows", gunzip),
    ("jacobi", "sweep, exchange and norm in each iteration", |p| iterations(p, &[1, 2, 3], 100)),
    ("laplace", "integrand and sum in each iteration", |p| iterations(p, &[1, 2], 100)),
    ("md", "four functions in each time step", |p| iterations(p, &[1, 2, 3, 4], 100)),
    ("mgrid", "V-cycles of three functions on seven grids", mgrid),
    ("micro-1", "one level of calls", |p| iterations(p, &[1, 2, 3, 4, 5], 20)),
    ("micro-2", "a chain of functions across files", |p| chains(p, 5, 20)),
    ("micro-3", "one function with all argument registers", |p| iterations(p, &[1], 100)),
    ("micro-5", "a long chain", |p| chains(p, 40, 5)),
    ("micro-6", "a longer chain with reuse", |p| reuse(p, 64, false)),
    ("micro-7", "a long chain with reuse after each return", |p| reuse(p, 32, true)),
    ("micro-8", "a long chain around three functions", |p| ring(p, 133, 3)),
    ("ranks", "restart: 8 ranks each read the same segments", ranks),
    ("deltas", "restart: 4 checkpoints, segments with a base", deltas),
    ("reads", "mount: random reads, some segments popular", reads),
    ("scans", "mount: random reads during copies of all", scans),
];

/// All generated traces. Equal seeds give equal traces.
pub fn all(seed: u64) -> Result<Vec<Case>, TraceError> {
    let case = |(name, about, run): Shape| {
        let mut program = Program { events: Vec::new(), random: seed };
        run(&mut program);
        let number = |event: &TraceEvent| match event {
            TraceEvent::Call { partition, .. } => partition.0 + 1,
            TraceEvent::Return { .. } => 0,
        };
        let partitions = program.events.iter().map(number).max().unwrap_or(0);
        let list = PartitionList::of_lengths((0..partitions).map(|_| PARTITION_BYTES))?;
        Ok(Case { name, about, trace: Trace::new(list, program.events)? })
    };
    SHAPES.into_iter().map(case).collect()
}

/// The main function calls some functions in each iteration.
fn iterations(program: &mut Program, functions: &[u32], times: usize) {
    program.call(0, |program| {
        for _ in 0..times {
            program.leaves(functions);
        }
    });
}

fn chains(program: &mut Program, length: u32, times: usize) {
    let functions: Vec<u32> = (0..length).collect();
    for _ in 0..times {
        program.chain(&functions, &mut |_| ());
    }
}

fn dsp(program: &mut Program) {
    program.call(0, |program| {
        (0..40).for_each(|_| program.leaf(1)); // multiply and accumulate
        (0..40).for_each(|_| program.call(2, |program| program.leaf(3))); // codebook: encode, distance
        for _ in 0..40 {
            program.call(4, |program| program.leaves(&[5, 6, 7])); // JPEG: transform, quantise, code
        }
    });
}

/// deflate (1) searches matches (2) and records them (3). A full block is coded: trees (5) with lengths (6) and codes
/// (7), then the bits (8). In 1 of 16 iterations, the window is filled (9), with a checksum (10).
fn gzip(program: &mut Program) {
    program.call(0, |program| {
        program.call(1, |program| {
            for _ in 0..20 {
                for _ in 0..40 {
                    (0..=program.below(2)).for_each(|_| program.leaf(2));
                    program.leaf(3);
                    if program.below(16) == 0 {
                        program.call(9, |program| program.leaf(10));
                    }
                }
                program.call(4, |program| {
                    (0..3).for_each(|_| program.call(5, |program| program.leaves(&[6, 7])));
                    (0..5).for_each(|_| program.leaf(8));
                });
            }
        });
    });
}

/// inflate (1) decodes blocks (2). Each block makes two or three tables (3), then decodes codes (4), which fetch
/// bytes (5) and flush the window (6) with a checksum (7) and a write (8).
fn gunzip(program: &mut Program) {
    program.call(0, |program| {
        program.call(1, |program| {
            for _ in 0..40 {
                program.call(2, |program| {
                    (0..2 + program.below(2)).for_each(|_| program.leaf(3));
                    program.call(4, |program| {
                        for _ in 0..5 + program.below(10) {
                            (0..=program.below(3)).for_each(|_| program.leaf(5));
                            program.call(6, |program| program.leaves(&[7, 8]));
                        }
                    });
                });
            }
        });
    });
}

/// A V-cycle: restriction (1) down to the coarsest grid, then interpolation (2) and smoothing (3) upwards.
fn mgrid(program: &mut Program) {
    program.call(0, |program| {
        for _ in 0..20 {
            (0..7).for_each(|_| program.leaf(1));
            (0..7).for_each(|_| program.leaves(&[2, 3]));
        }
    });
}

/// A chain around eight functions. Without `after`, each function calls two helpers, and then the next function. With
/// `after`, each function calls the next function, and then one helper.
fn reuse(program: &mut Program, depth: u32, after: bool) {
    fn level(program: &mut Program, at: u32, depth: u32, after: bool) {
        program.call(at % 8, |program| {
            if !after {
                program.leaves(&[8, 9]);
            }
            if at < depth {
                level(program, at + 1, depth, after);
            }
            if after {
                program.leaf(8);
            }
        });
    }
    (0..3).for_each(|_| level(program, 0, depth, after));
}

fn ring(program: &mut Program, depth: u32, functions: u32) {
    let calls: Vec<u32> = (0..depth).map(|n| n % functions).collect();
    program.chain(&calls, &mut |_| ());
}

fn ranks(program: &mut Program) {
    for _ in 0..8 {
        (0..24).for_each(|segment| program.leaf(segment));
    }
}

/// Segments 0 to 11 are of the first checkpoint, and are the bases of the segments of three later checkpoints.
fn deltas(program: &mut Program) {
    for checkpoint in 0..4 {
        for segment in 0..12 {
            match checkpoint {
                0 => program.leaf(segment),
                _ => program.call(12 * checkpoint + segment, |program| program.leaf(segment)),
            }
        }
    }
}

fn reads(program: &mut Program) {
    for _ in 0..2000 {
        let segment = program.skewed(64);
        program.leaf(segment);
    }
}

fn scans(program: &mut Program) {
    for _ in 0..4 {
        for segment in 0..64 {
            (0..4).for_each(|_| {
                let popular = program.below(8);
                program.leaf(popular);
            });
            program.leaf(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_traces_and_every_call_returns() {
        let (first, second) = (all(1).expect("valid"), all(1).expect("valid"));
        assert_eq!(first.len(), SHAPES.len());
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first.trace, second.trace, "{}", first.name);
            let calls = first.trace.events().iter().filter(|event| matches!(event, TraceEvent::Call { .. })).count();
            assert_eq!(calls * 2, first.trace.events().len(), "{}", first.name);
        }
        let other = all(2).expect("valid");
        assert!(first.iter().zip(&other).any(|(first, other)| first.trace != other.trace));
    }
}
