//! Finds the shape of numbers: records of a few numbers, or rows and planes of a grid.
//!
//! Numbers that are one record apart have the same meaning, and therefore differ least. So the length of a record is
//! the distance at which the numbers differ least. In a smooth field, a number is predicted by
//! the previous number. The error of this prediction is predicted by the error one row before. The remaining error is
//! predicted by the remaining error one plane before. The length of a row, or of a plane, is therefore the distance
//! that saves the most bits.

use super::find::Region;
use crate::codec::LANES_POINT_MAX;

/// The longest record that is searched for, in numbers. For example, three coordinates are a record of 3 numbers.
const LANES_MAX: usize = 16;
/// The longest row that is searched for, in records, and the most rows of a plane.
const ROW_MAX: usize = 1024;
const ROWS_MAX: usize = 512;
/// Bits per number that a distance must save.
const LAG_BITS: f64 = 0.3;
/// A plane must save at least this share of the bits that a row saves.
const PLANE_MIN_SHARE: f64 = 0.25;
/// The length of a record is found from at most this many numbers.
const LAG_NUMBERS: usize = 4096;
/// Rows and planes are searched for in at most this many numbers of a region. A row or a plane has at most half of
/// these numbers.
const FIELD_NUMBERS: usize = 1 << 17;
/// For each distance, this many numbers are compared. Only every seventh number is compared, so that the numbers
/// belong to several rows.
const SEARCH_NUMBERS: usize = 256;
const SEARCH_STEP: usize = 7;
/// The best `BEST_MAX` distances are compared once more, with `ROW_NUMBERS` numbers.
const BEST_MAX: usize = 16;
const ROW_NUMBERS: usize = 1024;
/// Rows and planes are searched for in at most this many regions of a segment. Other regions may get the shapes that
/// were found in these regions.
const SEARCHES_MAX: usize = 8;

/// The numbers of a region, loaded for comparison.
struct Field {
    numbers: Vec<i64>,
}

impl Field {
    /// Mean bits of the error at `places`, if each number is predicted by its neighbours at the given distances.
    fn left(&self, places: impl Iterator<Item = usize>, distances: &[usize]) -> f64 {
        // Each sum of some of the distances, and whether an odd number of distances is in the sum.
        let corners: Vec<(usize, bool)> = (0..1usize << distances.len())
            .map(|some| {
                let back = distances.iter().enumerate().filter(|(n, _)| some >> n & 1 == 1).map(|(_, d)| *d).sum();
                (back, some.count_ones() % 2 == 1)
            })
            .collect();
        let bits = |at: usize| {
            let add = |sum: i64, &(back, is_odd): &(usize, bool)| match is_odd {
                true => sum.wrapping_sub(self.numbers[at - back]),
                false => sum.wrapping_add(self.numbers[at - back]),
            };
            u64::BITS - corners.iter().fold(0, add).unsigned_abs().leading_zeros()
        };
        let (sum, count) = places.map(bits).fold((0, 0u32), |(sum, count), bits| (sum + bits, count + 1));
        f64::from(sum) / f64::from(count.max(1))
    }

    /// Mean bits per number that the additional distance `more` saves, measured on the last numbers.
    fn saved(&self, distances: &[usize], more: usize) -> f64 {
        let all = [distances, &[more]].concat();
        let reach: usize = all.iter().sum();
        let places = self.numbers.len().saturating_sub(ROW_NUMBERS).max(reach)..self.numbers.len();
        if places.len() * 2 < ROW_NUMBERS {
            0.0
        } else {
            self.left(places.clone(), distances) - self.left(places, &all)
        }
    }

    /// The best further distance, as a multiple of `step`, or `None` if no distance saves enough. Of all distances
    /// that save nearly as much as the best distance, the shortest distance is chosen, because multiples of a good
    /// distance are good as well.
    fn search(&self, distances: &[usize], step: usize, most: usize) -> Option<usize> {
        let from = self.numbers.len() / 2;
        let reach = from.checked_sub(distances.iter().sum())?;
        let places = || (from..self.numbers.len()).step_by(SEARCH_STEP).take(SEARCH_NUMBERS);
        let cost = |n: usize| self.left(places(), &[distances, &[n * step]].concat());
        let costs: Vec<f64> = (1..=most.min(reach / step)).map(cost).collect();
        // In smooth numbers shorter distances always look better, so only local minima count.
        let mut found: Vec<(f64, usize)> = (costs.windows(3).zip(2..))
            .filter(|(near, _)| near[1] <= near[0] && near[1] <= near[2])
            .map(|(near, n)| (near[1], n))
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let best: Vec<(f64, usize)> =
            found.iter().take(BEST_MAX).map(|&(_, n)| (self.saved(distances, n * step), n)).collect();
        let most = best.iter().map(|(saved, _)| *saved).fold(LAG_BITS, f64::max);
        best.iter().filter(|found| found.0 >= most * 0.7).map(|(_, n)| *n).min()
    }
}

impl Region {
    fn numbers(&self) -> usize {
        self.bytes / self.kind.width
    }

    /// Numbers in a record. 1 if there are no records.
    fn lanes(&self, own: &[u8]) -> usize {
        let width = self.kind.width;
        let part = self.numbers().min(LAG_NUMBERS);
        let part = &own[(self.numbers() - part) / 2 * width..][..part * width];
        let costs: Vec<f64> = (1..=LANES_MAX).map(|lag| self.kind.cost(part, lag)).collect();
        let least = costs.iter().copied().fold(f64::MAX, f64::min);
        let lanes = costs.iter().position(|cost| *cost <= least + LAG_BITS / 4.0).map_or(1, |n| n + 1);
        if least + LAG_BITS < costs[0] { lanes } else { 1 }
    }

    /// Rows in a plane and records in a row, if the numbers are smooth fields on a grid. A shape that was found in an
    /// earlier region is preferred. If no such shape fits, a new shape is searched for, unless `searches` (the number
    /// of searches that are left) is 0.
    fn plane_and_row(&self, own: &[u8], known: &[[usize; 2]], searches: &mut usize) -> Option<[usize; 2]> {
        if known.is_empty() && *searches == 0 {
            return None;
        }
        let (count, lanes) = (self.numbers() / self.lanes, self.lanes);
        let field = Field { numbers: self.kind.load(own).take(FIELD_NUMBERS).collect() };
        let fits = |&[plane, row]: &[usize; 2]| {
            plane * row * 2 <= count
                && field.saved(&[lanes], row * lanes) > LAG_BITS
                && (plane == 1 || field.saved(&[lanes, row * lanes], plane * row * lanes) > LAG_BITS)
        };
        if let Some(found) = known.iter().find(|known| fits(known)) {
            return Some(*found);
        }
        *searches = searches.checked_sub(1)?;
        let row = field.search(&[lanes], lanes, ROW_MAX).filter(|row| row * 2 <= count)?;
        let [of_row, of_plane] = [&[lanes][..], &[lanes, row * lanes]];
        let plane = field.search(of_plane, row * lanes, ROWS_MAX).filter(|plane| plane * row * 2 <= count);
        // A field that is nearly periodic also repeats after some rows, so a plane must save more than a minimum.
        let least = field.saved(of_row, row * lanes) * PLANE_MIN_SHARE;
        let plane = plane.filter(|plane| field.saved(of_plane, plane * row * lanes) > least);
        Some([plane.unwrap_or(1), row])
    }

    /// Shortens the region to whole planes, rows or records. Returns the remainder of the region.
    fn cut(&mut self, [plane, row]: [usize; 2]) -> Option<Self> {
        let Self { start, kind, lanes, .. } = *self;
        let each = plane * row * lanes;
        let (count, whole) = (self.numbers(), self.numbers() / each);
        self.dims = match (plane, row) {
            (1, 1) => [1, 1, whole],
            (1, _) => [1, whole, row],
            _ => [whole, plane, row],
        };
        self.bytes = whole * each * kind.width;
        let left = count - whole * each;
        let (bytes, dims) = (left * kind.width, [1, 1, left / lanes]);
        (left > 0).then(|| Self { start: start + self.bytes, bytes, kind, lanes, dims })
    }
}

/// Gives each region its shape. The numbers after the last whole row or plane become a separate region. The numbers
/// after the last whole record belong to no region.
pub(super) fn shaped(found: Vec<Region>, bytes: &[u8]) -> Vec<Region> {
    let mut shaped = Vec::with_capacity(found.len());
    let (mut known, mut searches) = (Vec::new(), SEARCHES_MAX);
    for mut region in found {
        let own = &bytes[region.start..region.start + region.bytes];
        region.lanes = region.lanes(own);
        region.cut([1, 1]); // a remainder of a few bytes is coded with the other bytes
        // Longer records are treated as rows.
        let grid = match region.lanes <= LANES_POINT_MAX {
            true => region.plane_and_row(own, &known, &mut searches),
            false => None,
        };
        let mut rest = None;
        if let Some(found) = grid {
            if !known.contains(&found) {
                known.insert(0, found);
            }
            rest = region.cut(found);
        }
        shaped.push(region);
        shaped.extend(rest);
    }
    shaped
}

#[cfg(test)]
mod tests {
    use super::super::find::find;
    use super::super::find::tests::noise;
    use super::*;

    #[test]
    fn rows_and_planes_of_a_grid_are_found() {
        let field = |n: usize| {
            // The field is not periodic.
            let [i, j, k] = [n / 800, n / 25 % 32, n % 25].map(|n| n as f64);
            3.0 + (i * 0.31 + 1.0).sin() * (j * 0.07 + j * j * 0.004).cos() * (k * 0.4 + 0.5).sin() + noise(n) * 1e-6
        };
        let bytes: Vec<u8> = (0..20 * 32 * 25).flat_map(|n| field(n).to_le_bytes()).collect();
        let found = shaped(find(&bytes, &[]), &bytes);
        assert_eq!(found.iter().map(|region| region.dims).collect::<Vec<_>>(), [[20, 32, 25]]);
    }

    #[test]
    fn rows_of_points_are_found() {
        let field = |n: usize| {
            let [j, k] = [n / 2 / 70, n / 2 % 70].map(|n| n as f64);
            let own = (j * 0.07 + j * j * 0.001).sin() * (k * 0.07 + 0.5).cos() + noise(n) * 1e-6;
            if n.is_multiple_of(2) { 1.6 + own } else { 0.7 * (2.5 - own * own) }
        };
        let bytes: Vec<u8> = (0..2 * 80 * 70).flat_map(|n| field(n).to_be_bytes()).collect();
        let found = shaped(find(&bytes, &[]), &bytes);
        assert_eq!(found.iter().map(|region| (region.dims, region.lanes)).collect::<Vec<_>>(), [([1, 80, 70], 2)]);
    }

    #[test]
    fn three_coordinates_are_told_apart() {
        let bytes: Vec<u8> =
            (0..9000).flat_map(|n| (100f64.powi(n % 3) * (1.0 + noise(n as usize) * 0.01)).to_le_bytes()).collect();
        let found = shaped(find(&bytes, &[]), &bytes);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].dims, found[0].lanes), ([1, 1, 3000], 3));
    }
}
