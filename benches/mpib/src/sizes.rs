//! Chooses the message sizes to measure: few sizes where the curve is straight, and many sizes where the curve bends.
//!
//! The method is from mpptest (W. Gropp, E. Lusk, "Reproducible measurements of MPI performance characteristics",
//! EuroPVM/MPI 1999). The middle between two neighbouring sizes is measured. If the measured time differs from the
//! straight line between both neighbours by more than a tolerance, both halves are refined in the same way. So sizes
//! concentrate at a jump, for example from eager to rendezvous.

/// Limits of the refinement.
#[derive(Clone, Copy, Debug)]
pub struct Refinement {
    /// Maximum difference between the time at a middle and the line, relative to the line.
    pub tolerance: f64,
    /// Intervals with fewer bytes are not divided.
    pub min_gap_bytes: usize,
    /// Maximum number of sizes.
    pub max_sizes: usize,
}

impl Default for Refinement {
    fn default() -> Self {
        Self { tolerance: 0.1, min_gap_bytes: 64, max_sizes: 200 }
    }
}

/// Powers of two from `first` (or the next power of two) to `last`, including both ends.
pub fn powers_of_two(first: usize, last: usize) -> Vec<usize> {
    let mut sizes = vec![first.min(last), last];
    let mut size = 1usize;
    while size < last {
        if size > first {
            sizes.push(size);
        }
        let Some(next) = size.checked_mul(2) else { break };
        size = next;
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Measures the sizes `first` (sorted, without duplicates) with `measure`, and refines. Returns sizes and times,
/// sorted by size.
pub fn refine<E>(
    first: &[usize],
    limits: Refinement,
    mut measure: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Vec<(usize, f64)>, E> {
    let mut points: Vec<(usize, f64)> = Vec::with_capacity(limits.max_sizes);
    for &size in first {
        points.push((size, measure(size)?));
    }
    // Intervals are refined in breadth-first order, so that the limit of sizes reduces the detail and not the range.
    let mut intervals: std::collections::VecDeque<_> = points.windows(2).map(|w| (w[0], w[1])).collect();
    while let Some((low, high)) = intervals.pop_front() {
        if points.len() >= limits.max_sizes || high.0 - low.0 < 2 * limits.min_gap_bytes.max(1) {
            continue;
        }
        let size = low.0 + (high.0 - low.0) / 2;
        let line = low.1 + (high.1 - low.1) * (size - low.0) as f64 / (high.0 - low.0) as f64;
        let middle = (size, measure(size)?);
        points.push(middle);
        if (middle.1 - line).abs() > limits.tolerance * line.abs() {
            intervals.extend([(low, middle), (middle, high)]);
        }
    }
    points.sort_unstable_by_key(|p| p.0);
    Ok(points)
}

/// The time at `size`, interpolated linearly between `points` (sorted by size), and extrapolated at both ends.
pub fn interpolate(points: &[(usize, f64)], size: usize) -> f64 {
    match points {
        [] => f64::NAN,
        [only] => only.1,
        _ => {
            let right = points.partition_point(|p| p.0 < size).clamp(1, points.len() - 1);
            let ((x0, y0), (x1, y1)) = (points[right - 1], points[right]);
            let slope = (y1 - y0) / (x1 as f64 - x0 as f64);
            (y0 + slope * (size as f64 - x0 as f64)).max(0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn a_straight_line_needs_one_size_in_each_gap() {
        let measured = refine(&[0, 1024, 4096], Refinement::default(), |s| Ok::<_, Infallible>(5.0 + s as f64));
        let sizes: Vec<_> = measured.expect("never fails").iter().map(|p| p.0).collect();
        assert_eq!(sizes, [0, 512, 1024, 2560, 4096]);
    }

    #[test]
    fn a_jump_draws_sizes_to_itself() {
        let jump = 3000;
        let measured = refine(&powers_of_two(0, 65536), Refinement::default(), |s| {
            Ok::<_, Infallible>(if s < jump { 10.0 + s as f64 / 1e3 } else { 30.0 + s as f64 / 1e3 })
        })
        .expect("never fails");
        let (below, above): (Vec<_>, Vec<_>) = measured.iter().map(|p| p.0).partition(|&s| s < jump);
        let gap = above.first().expect("sizes above") - below.last().expect("sizes below");
        assert!(gap <= 128, "the jump is known to {gap} bytes");
        assert!(measured.len() < 60, "{} sizes", measured.len());
        assert!(measured.windows(2).all(|w| w[0].0 < w[1].0), "sorted, no doubles");
    }

    #[test]
    fn noise_ends_at_the_limit() {
        let mut turn = 0.0;
        let limits = Refinement { max_sizes: 50, ..Refinement::default() };
        let measured = refine(&[0, 1 << 20], limits, |_| {
            turn += 1.0;
            Ok::<_, Infallible>(f64::powf(3.0, turn % 2.0))
        });
        assert_eq!(measured.expect("never fails").len(), 50);
    }

    #[test]
    fn powers_of_two_keep_both_ends() {
        assert_eq!(powers_of_two(0, 9), [0, 1, 2, 4, 8, 9]);
        assert_eq!(powers_of_two(3, 16), [3, 4, 8, 16]);
        assert_eq!(powers_of_two(7, 7), [7]);
    }

    #[test]
    fn interpolation_goes_through_the_points_and_on() {
        let points = [(10, 1.0), (20, 3.0), (40, 4.0)];
        for (size, time) in [(10, 1.0), (15, 2.0), (20, 3.0), (30, 3.5), (60, 5.0), (0, 0.0)] {
            assert_eq!(interpolate(&points, size), time, "at {size}");
        }
    }
}
