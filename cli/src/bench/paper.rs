//! Computes Tables III and IV of the mcrEngine paper (SC12) from headers and ratios.

use super::input::Captured;
use super::series::{Series, scheme_name};
use mcrengine::header::{ElementType, FileHeader, Role};
use mcrengine::plan::Scheme;

/// Table III: the characteristics of a checkpoint.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Characteristics {
    pub ranks: u32,
    pub files: u64,
    pub file_bytes: u64,
    pub rank_bytes_min: u64,
    pub rank_bytes_max: u64,
    pub variables: u64,
    pub file_variables_min: u64,
    pub file_variables_max: u64,
    /// Raw bytes of all variables, without the skeletons.
    pub variable_bytes: u64,
    pub double_bytes: u64,
    pub float_bytes: u64,
    pub other_bytes: u64,
    /// Bytes of the files that belong to no variable: the metadata of HDF5.
    pub skeleton_bytes: u64,
    /// Number of files whose structure is unknown.
    pub opaque_files: u64,
}

/// One line of Table IV.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Improvement {
    pub scheme: Scheme,
    /// Improvement in percent, and the group size at which it occurs.
    pub best: (f64, u32),
    pub worst: (f64, u32),
}

/// Computes Table III for the measured files.
pub fn characteristics(captured: &Captured) -> Characteristics {
    let mut of_ranks = vec![0u64; captured.ranks as usize];
    // Links, directories and pointer files are not counted, as in the paper.
    let count = captured.files().count() as u64;
    let mut table = Characteristics { ranks: captured.ranks, files: count, ..Default::default() };
    let mut counts = Vec::with_capacity(captured.headers.len());
    for FileHeader { rank, bytes, variables, .. } in captured.files() {
        table.file_bytes += bytes;
        of_ranks[rank.0 as usize] += bytes;
        let mut count = 0;
        for variable in variables {
            let raw_bytes = variable.raw_bytes.0;
            match variable.role {
                Role::Skeleton => table.skeleton_bytes += raw_bytes,
                Role::WholeFile => table.opaque_files += 1,
                Role::Array | Role::StoredChunks => count += 1,
            }
            if variable.role != Role::Skeleton {
                table.variable_bytes += raw_bytes;
                match variable.element {
                    ElementType::Float { width: 8, .. } => table.double_bytes += raw_bytes,
                    ElementType::Float { width: 4, .. } => table.float_bytes += raw_bytes,
                    ElementType::Float { .. }
                    | ElementType::Bytes
                    | ElementType::Int { .. }
                    | ElementType::Fixed { .. }
                    | ElementType::Compound { .. } => table.other_bytes += raw_bytes,
                }
            }
        }
        table.variables += count;
        counts.push(count);
    }
    let ends = |all: &[u64]| (all.iter().copied().min().unwrap_or(0), all.iter().copied().max().unwrap_or(0));
    (table.rank_bytes_min, table.rank_bytes_max) = ends(&of_ranks);
    (table.file_variables_min, table.file_variables_max) = ends(&counts);
    table
}

/// Equation 2 of the paper, for each scheme, relative to Agnostic at the same group size.
pub fn improvements(figure_7: &[Series]) -> Vec<Improvement> {
    let of = |scheme| figure_7.iter().find(|series| series.name == scheme_name(scheme));
    let Some(agnostic) = of(Scheme::Agnostic) else { return Vec::new() };
    let line = |scheme| {
        let gains: Vec<(f64, u32)> = (of(scheme)?.points.iter().zip(&agnostic.points))
            .filter_map(|(a, b)| Some((relative_improvement(a.ratio()?, b.ratio()?), a.cell.group_size)))
            .collect();
        let best = gains.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let worst = gains.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Improvement { scheme, best, worst })
    };
    [Scheme::AwareBlock, Scheme::Aware].into_iter().filter_map(line).collect()
}

/// The relative improvement in percent.
fn relative_improvement(a: f64, b: f64) -> f64 {
    (a - b) / b * 100.0
}

#[cfg(test)]
mod tests {
    use super::super::measure::Coder;
    use super::super::series::{Cell, Point};
    use super::*;

    fn series(scheme: Scheme, stored: &[Option<u64>]) -> Series {
        let point = |(nth, stored_bytes): (usize, &Option<u64>)| Point {
            cell: Cell { scheme, coder: Coder::Lz4, group_size: 1 << nth, block_bytes: None },
            checkpoint: "c".into(),
            file_bytes: 1000,
            stored_bytes: *stored_bytes,
        };
        Series { name: scheme_name(scheme).into(), points: stored.iter().enumerate().map(point).collect() }
    }

    #[test]
    fn improvements_are_those_of_equation_2_at_the_same_group_size() {
        let figure = [
            series(Scheme::Agnostic, &[Some(500), Some(400), Some(400)]),
            series(Scheme::Aware, &[Some(250), Some(320), None]),
            series(Scheme::AwareBlock, &[Some(1000), Some(400), Some(200)]),
        ];
        let found: Vec<_> =
            improvements(&figure).into_iter().map(|line| (line.scheme, line.best, line.worst)).collect();
        let expected = [(Scheme::AwareBlock, (100.0, 4), (-50.0, 1)), (Scheme::Aware, (100.0, 1), (25.0, 2))];
        assert_eq!(found, expected);
    }
}
