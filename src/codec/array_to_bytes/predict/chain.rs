//! The order of points, told by where they are: each is one of the nearest to the one before.
//!
//! Codes sort their particles along a curve that fills space, or keep them cell by cell. Whoever knows the positions
//! can tell which point comes next with three or four bits, where its number would take fifteen or more. Which curve
//! it was need not be known.
//!
//! The nearest are found in a k-d tree (`tree.rs`), from which points vanish as they are taken. The search is the
//! same step by step when decoding, so where it stops early, it does so on both sides.

use super::tree::{Node, Tree, square};

/// How many of the nearest are numbered; a rank of this says that it is none of them.
pub(super) const NEAR: usize = 12;
/// Points of a leaf at most.
const LEAF: usize = 8;
/// Nodes that one search looks at.
const VISITS_MAX: usize = 64;

/// Points that are still to come.
pub(super) struct Chain<'a> {
    points: [&'a [f64]; 3],
    /// Its points are not numbers once they are taken.
    tree: Tree,
    /// Of each node, how many points in it are not taken yet.
    left: Vec<u32>,
    /// Of each point, the leaf that it is in, and where in the order of the tree it is.
    leaf_of: Vec<u32>,
    near_at: Vec<u32>,
    is_left: Vec<bool>,
    /// The nearest, with the squares of their distances.
    found: Vec<(f64, u32)>,
    open: Vec<(u32, f64)>,
}

impl<'a> Chain<'a> {
    /// Of these points, those for which `is_one` is true. Coordinates are finite.
    pub(super) fn new(points: [&'a [f64]; 3], is_one: &[bool]) -> Self {
        let tree = Tree::new(points, is_one, LEAF);
        let (mut leaf_of, mut near_at) = (vec![0; is_one.len()], vec![0; is_one.len()]);
        for (leaf, node) in tree.leaves() {
            tree.order[node.from..node.to].iter().for_each(|&n| leaf_of[n as usize] = leaf);
        }
        (0u32..).zip(&tree.order).for_each(|(at, &n)| near_at[n as usize] = at);
        Self {
            points,
            left: tree.nodes.iter().map(|node| (node.to - node.from) as u32).collect(),
            tree,
            leaf_of,
            near_at,
            is_left: is_one.to_vec(),
            found: Vec::with_capacity(NEAR + 1),
            open: Vec::new(),
        }
    }

    fn point(&self, n: u32) -> [f64; 3] {
        self.points.map(|values| values[n as usize])
    }

    /// Fills `found` with the points nearest to a place, nearest first.
    fn search(&mut self, place: [f64; 3]) {
        self.found.clear();
        self.open.clear();
        if self.left[0] > 0 {
            self.open.push((0, 0.0));
        }
        let mut visits = 0;
        // The square of the distance to the farthest that is found, once there are as many as are numbered.
        let mut worst = f64::INFINITY;
        while let Some((at, distance)) = self.open.pop() {
            if distance >= worst {
                continue;
            }
            visits += 1;
            if visits > VISITS_MAX {
                break;
            }
            let Node { child, from, to, .. } = self.tree.nodes[at as usize];
            if child > 0 {
                let of = |child: u32| (child, self.tree.nodes[child as usize].distance(place));
                let (a, b) = (of(child), of(child + 1));
                let (far, near) = if b.1 < a.1 { (a, b) } else { (b, a) };
                for (child, distance) in [far, near] {
                    if self.left[child as usize] > 0 {
                        self.open.push((child, distance));
                    }
                }
                continue;
            }
            for (&n, &[x, y, z]) in self.tree.order[from..to].iter().zip(&self.tree.places[from..to]) {
                let distance = square([x - place[0], y - place[1], z - place[2]]);
                // Nothing is below what is not a number.
                if distance < worst {
                    self.found.truncate(NEAR - 1);
                    self.found.push((distance, n));
                    let mut at = self.found.len() - 1;
                    while at > 0 && self.found[at - 1].0 > distance {
                        self.found.swap(at - 1, at);
                        at -= 1;
                    }
                    worst = self.found.get(NEAR - 1).map_or(f64::INFINITY, |(distance, _)| *distance);
                }
            }
        }
    }

    fn take(&mut self, n: u32) {
        self.is_left[n as usize] = false;
        self.tree.places[self.near_at[n as usize] as usize] = [f64::NAN; 3];
        let mut at = self.leaf_of[n as usize];
        loop {
            self.left[at as usize] -= 1;
            if at == 0 {
                break;
            }
            at = self.tree.nodes[at as usize].parent;
        }
    }

    /// For each point in this order its rank among those near the one before, and of those that were not near, how far
    /// their numbers are from that one's. Each of the points comes once.
    pub(super) fn ranks(mut self, order: &[u32]) -> (Vec<i64>, Vec<i64>) {
        let (mut ranks, mut others) = (Vec::with_capacity(order.len()), Vec::new());
        let mut before = 0;
        for &next in order {
            self.search(self.point(before));
            match self.found.iter().position(|(_, n)| *n == next) {
                Some(rank) => ranks.push(rank as i64),
                None => {
                    ranks.push(NEAR as i64);
                    others.push(i64::from(next) - i64::from(before));
                }
            }
            self.take(next);
            before = next;
        }
        (ranks, others)
    }

    /// The order that [`Chain::ranks`] was given. `None` where there is none.
    pub(super) fn order(mut self, ranks: &[i64], others: &[i64]) -> Option<Vec<u32>> {
        let mut others = others.iter();
        let mut order = Vec::with_capacity(ranks.len());
        let mut before = 0;
        for &rank in ranks {
            let next = if rank == NEAR as i64 {
                u32::try_from(i64::from(before).checked_add(*others.next()?)?).ok()?
            } else {
                self.search(self.point(before));
                self.found.get(usize::try_from(rank).ok()?)?.1
            };
            self.is_left.get(next as usize).filter(|is_left| **is_left)?;
            self.take(next);
            order.push(next);
            before = next;
        }
        others.next().is_none().then_some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_order_comes_back_and_any_ranks_are_an_order_or_nothing(
            coordinates in prop::collection::vec((-9i32..9, any::<f32>(), prop::sample::select(vec![0.0, 1e300, -1e300])), 1..200),
            holes in prop::collection::vec(any::<bool>(), 200),
            shuffle in any::<u64>(),
            ranks in prop::collection::vec(-2i64..26, 0..40),
        ) {
            let finite = |x: f32| if x.is_finite() { f64::from(x) } else { 0.0 };
            let x: Vec<f64> = coordinates.iter().map(|c| f64::from(c.0)).collect();
            let y: Vec<f64> = coordinates.iter().map(|c| finite(c.1)).collect();
            let z: Vec<f64> = coordinates.iter().map(|c| c.2).collect();
            let points = [&x[..], &y, &z];
            let is_one = &holes[..x.len()];
            let mut order: Vec<u32> = (0u32..).zip(is_one).filter(|(_, is)| **is).map(|(n, _)| n).collect();
            order.sort_by_key(|&n| (u64::from(n) + 1).wrapping_mul(shuffle | 1));
            let (found, others) = Chain::new(points, is_one).ranks(&order);
            prop_assert_eq!(Chain::new(points, is_one).order(&found, &others), Some(order));
            if let Some(order) = Chain::new(points, is_one).order(&ranks, &[]) {
                prop_assert_eq!(order.len(), ranks.len());
            }
        }
    }

    #[test]
    fn points_along_a_line_follow_each_other_with_small_ranks() {
        let x: Vec<f64> = (0..500).map(f64::from).collect();
        let none = vec![0.0; 500];
        let order: Vec<u32> = (0..500).rev().collect();
        let (ranks, others) = Chain::new([&x, &none, &none], &[true; 500]).ranks(&order);
        // The first is far from where the search begins.
        assert_eq!((ranks[0], others.len()), (NEAR as i64, 1));
        assert!(ranks[1..].iter().all(|&rank| rank == 0));
    }

    #[test]
    fn many_points_at_one_place_are_searched_no_longer_than_others() {
        let same = vec![1.5; 20_000];
        let order: Vec<u32> = (0..20_000).collect();
        let chain = || Chain::new([&same, &same, &same], &[true; 20_000]);
        let (ranks, others) = chain().ranks(&order);
        assert_eq!(chain().order(&ranks, &others), Some(order));
    }
}
