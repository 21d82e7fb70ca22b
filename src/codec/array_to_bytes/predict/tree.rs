//! Points in space, sorted so that those near each other lie together: a k-d tree (J. L. Bentley, "Multidimensional binary
//! search trees used for associative searching", Communications of the ACM 18(9), 1975).
//!
//! Halves are cut by a total order, so that the tree is the same on every host, whatever the algorithm.

/// A box around some points.
pub(super) struct Node {
    pub low: [f64; 3],
    pub high: [f64; 3],
    /// The first of its two children, 0 for a leaf.
    pub child: u32,
    /// Its points, in the order of the tree.
    pub from: usize,
    pub to: usize,
}

pub(super) struct Tree {
    /// The root first; children after their parents.
    pub nodes: Vec<Node>,
    /// The points, so that those of a node lie together; rising in a leaf.
    pub order: Vec<u32>,
}

/// One coordinate of a point, and its number, as one integer: they rise with the coordinate, and of equals with the number.
trait Key: Copy + Ord {
    fn of(coordinate: f64, number: u32) -> Self;
    fn coordinate(self) -> f64;
    fn number(self) -> u32;
}

/// Of singles.
impl Key for u64 {
    fn of(coordinate: f64, number: u32) -> Self {
        let bits = (coordinate as f32).to_bits();
        u64::from(bits ^ (((bits as i32 >> 31) as u32) | 1 << 31)) << 32 | u64::from(number)
    }

    fn coordinate(self) -> f64 {
        let ordered = (self >> 32) as u32;
        f64::from(f32::from_bits(ordered ^ (((!ordered as i32 >> 31) as u32) | 1 << 31)))
    }

    fn number(self) -> u32 {
        self as u32
    }
}

impl Key for u128 {
    fn of(coordinate: f64, number: u32) -> Self {
        let bits = coordinate.to_bits();
        u128::from(bits ^ (((bits as i64 >> 63) as u64) | 1 << 63)) << 64 | u128::from(number)
    }

    fn coordinate(self) -> f64 {
        let ordered = (self >> 64) as u64;
        f64::from_bits(ordered ^ (((!ordered as i64 >> 63) as u64) | 1 << 63))
    }

    fn number(self) -> u32 {
        self as u32
    }
}

/// The lowest and the highest coordinates.
fn extents<K: Key>(points: &[[K; 3]]) -> ([f64; 3], [f64; 3]) {
    let Some(first) = points.first() else { return ([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]) };
    let (low, high) = points.iter().fold((*first, *first), |(mut low, mut high), point| {
        for axis in 0..3 {
            low[axis] = low[axis].min(point[axis]);
            high[axis] = high[axis].max(point[axis]);
        }
        (low, high)
    });
    (low.map(K::coordinate), high.map(K::coordinate))
}

/// Puts so many of the points that are lower along an axis in front, of equals those with lower numbers.
fn part<const AXIS: usize, K: Key>(points: &mut [[K; 3]], count: usize) {
    points.select_nth_unstable_by_key(count, |point| point[AXIS]);
}

#[inline(always)]
pub(super) fn square([x, y, z]: [f64; 3]) -> f64 {
    x * x + y * y + z * z
}

impl Tree {
    /// Of these points, those for which `is_one` is true, at most `leaf` in a leaf. Coordinates are finite.
    pub(super) fn new(points: [&[f64]; 3], is_one: &[bool], leaf: usize) -> Self {
        let are_singles =
            points.iter().all(|values| values.iter().all(|&x| f64::from(x as f32).to_bits() == x.to_bits()));
        match are_singles {
            true => Self::of_keys::<u64>(points, is_one, leaf),
            false => Self::of_keys::<u128>(points, is_one, leaf),
        }
    }

    fn of_keys<K: Key>(points: [&[f64]; 3], is_one: &[bool], leaf: usize) -> Self {
        let all = (0u32..).zip(is_one).filter(|(_, is_one)| **is_one);
        let mut points: Vec<[K; 3]> = all.map(|(n, _)| points.map(|values| K::of(values[n as usize], n))).collect();
        let node = |from, to| Node { low: [0.0; 3], high: [0.0; 3], child: 0, from, to };
        let mut nodes = vec![node(0, points.len())];
        let mut at = 0;
        while at < nodes.len() {
            let (from, to) = (nodes[at].from, nodes[at].to);
            let own = &mut points[from..to];
            let (low, high) = extents(own);
            let mut child = 0;
            if own.len() > leaf {
                let extent = |axis: usize| high[axis] - low[axis];
                let axis = (1..3).fold(0, |best, axis| if extent(axis) > extent(best) { axis } else { best });
                let half = own.len() / 2;
                match axis {
                    0 => part::<0, K>(own, half),
                    1 => part::<1, K>(own, half),
                    _ => part::<2, K>(own, half),
                }
                child = nodes.len() as u32; // fewer than twice the points
                nodes.push(node(from, from + half));
                nodes.push(node(from + half, to));
            } else {
                own.sort_unstable_by_key(|point| point[0].number());
            }
            let node = &mut nodes[at];
            (node.low, node.high, node.child) = (low, high, child);
            at += 1;
        }
        Self { nodes, order: points.iter().map(|point| point[0].number()).collect() }
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = (u32, &Node)> {
        (0u32..).zip(&self.nodes).filter(|(_, node)| node.child == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same<K: Key>(coordinate: f64, number: u32) -> bool {
        let key = K::of(coordinate, number);
        key.coordinate().to_bits() == coordinate.to_bits() && key.number() == number
    }

    proptest! {
        #[test]
        fn keys_are_in_the_order_of_coordinates_then_of_numbers_and_tell_both(
            a in any::<f32>(), b in any::<f32>(), c in any::<f64>(), d in any::<f64>(), n in any::<u32>(), m in any::<u32>(),
        ) {
            let (a, b) = (f64::from(a), f64::from(b));
            prop_assert_eq!(u64::of(a, n).cmp(&u64::of(b, m)), a.total_cmp(&b).then(n.cmp(&m)));
            prop_assert_eq!(u64::of(a, n).cmp(&u64::of(a, m)), n.cmp(&m));
            prop_assert_eq!(u128::of(c, n).cmp(&u128::of(d, m)), c.total_cmp(&d).then(n.cmp(&m)));
            prop_assert!(same::<u64>(a, n) && same::<u128>(a, n) && same::<u128>(c, n));
        }

        #[test]
        fn singles_make_the_same_tree_as_doubles(
            points in prop::collection::vec(([-2f32..2.0, -2f32..2.0, -2f32..2.0], any::<bool>()), 0..200), steps in 1u8..20,
        ) {
            // Many coordinates are equal, and 0 comes with both signs.
            let round = |x: f32| f64::from((x * f32::from(steps)).round() / f32::from(steps));
            let along = [0, 1, 2].map(|axis| points.iter().map(|(point, _)| round(point[axis])).collect::<Vec<f64>>());
            let is_one: Vec<bool> = points.iter().map(|(_, is_one)| *is_one).collect();
            let along = along.each_ref().map(Vec::as_slice);
            let (of_singles, of_doubles) = (Tree::of_keys::<u64>(along, &is_one, 5), Tree::of_keys::<u128>(along, &is_one, 5));
            prop_assert_eq!(&of_singles.order, &of_doubles.order);
            let boxes = |tree: &Tree| tree.nodes.iter().map(|n| (n.low, n.high, n.child, n.from, n.to)).collect::<Vec<_>>();
            prop_assert_eq!(boxes(&of_singles), boxes(&of_doubles));
        }
    }
}
