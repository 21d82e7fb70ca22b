//! The order of points, told by where they are: each is one of the nearest to the one before.
//!
//! Codes sort their particles along a curve that fills space, or keep them cell by cell. Whoever knows the positions
//! can tell which point comes next with three or four bits, where its number would take fifteen or more. Which curve
//! it was need not be known.
//!
//! The nearest are found in a k-d tree (J. L. Bentley, "Multidimensional binary search trees used for associative
//! searching", Communications of the ACM 18(9), 1975), from which points vanish as they are taken. The search is the
//! same step by step when decoding, so where it stops early, it does so on both sides.

/// How many of the nearest are numbered; a rank of this says that it is none of them.
pub(super) const NEAR: usize = 12;
/// Points of a leaf at most.
const LEAF: usize = 8;
/// Nodes that one search looks at.
const VISITS_MAX: usize = 64;

/// A box around some points.
struct Node {
    low: [f64; 3],
    high: [f64; 3],
    /// Points in it that are not taken yet.
    left: u32,
    parent: u32,
    /// The first of its two children, 0 for a leaf.
    child: u32,
    from: usize,
    to: usize,
}

/// Points that are still to come.
pub(super) struct Chain<'a> {
    points: [&'a [f64]; 3],
    nodes: Vec<Node>,
    order: Vec<u32>,
    /// Of each point, the leaf that it is in.
    leaf_of: Vec<u32>,
    is_left: Vec<bool>,
    /// The points in the order of the tree, so that those of a leaf lie together; not a number once they are taken.
    near: Vec<[f64; 3]>,
    /// Where each point is among them.
    near_at: Vec<u32>,
    /// The nearest, with the squares of their distances.
    found: Vec<(f64, u32)>,
    open: Vec<(u32, f64)>,
}

fn square([x, y, z]: [f64; 3]) -> f64 {
    x * x + y * y + z * z
}

impl<'a> Chain<'a> {
    /// Of these points, those for which `is_one` is true. Coordinates are finite.
    pub(super) fn new(points: [&'a [f64]; 3], is_one: &[bool]) -> Self {
        let order: Vec<u32> = (0u32..).zip(is_one).filter(|(_, is_one)| **is_one).map(|(n, _)| n).collect();
        let node = |parent, from, to| Node { low: [0.0; 3], high: [0.0; 3], left: 0, parent, child: 0, from, to };
        let mut chain = Self {
            points,
            nodes: vec![node(0, 0, order.len())],
            leaf_of: vec![0; is_one.len()],
            is_left: is_one.to_vec(),
            near: Vec::new(),
            near_at: vec![0; is_one.len()],
            order,
            found: Vec::with_capacity(NEAR + 1),
            open: Vec::new(),
        };
        let mut at = 0;
        while at < chain.nodes.len() {
            let (from, to) = (chain.nodes[at].from, chain.nodes[at].to);
            let own = &mut chain.order[from..to];
            let (mut low, mut high) = ([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]);
            for (axis, values) in points.iter().enumerate() {
                for &n in own.iter() {
                    low[axis] = low[axis].min(values[n as usize]);
                    high[axis] = high[axis].max(values[n as usize]);
                }
            }
            let mut child = 0;
            if own.len() > LEAF {
                let extent = |axis: usize| high[axis] - low[axis];
                let axis = (1..3).fold(0, |best, axis| if extent(axis) > extent(best) { axis } else { best });
                let values = points[axis];
                let half = own.len() / 2;
                // A total order, so that the halves are the same whatever the algorithm.
                own.select_nth_unstable_by(half, |&a, &b| {
                    values[a as usize].total_cmp(&values[b as usize]).then(a.cmp(&b))
                });
                child = chain.nodes.len() as u32;
                chain.nodes.push(node(at as u32, from, from + half));
                chain.nodes.push(node(at as u32, from + half, to));
            } else {
                own.sort_unstable();
                own.iter().for_each(|&n| chain.leaf_of[n as usize] = at as u32);
            }
            let node = &mut chain.nodes[at];
            (node.low, node.high, node.left, node.child) = (low, high, (to - from) as u32, child);
            at += 1;
        }
        chain.near = chain.order.iter().map(|&n| chain.point(n)).collect();
        for (at, &n) in (0u32..).zip(&chain.order) {
            chain.near_at[n as usize] = at;
        }
        chain
    }

    fn point(&self, n: u32) -> [f64; 3] {
        self.points.map(|values| values[n as usize])
    }

    fn distance_to_box(&self, node: u32, [x, y, z]: [f64; 3]) -> f64 {
        let Node { low, high, .. } = &self.nodes[node as usize];
        let off = |value: f64, axis: usize| (low[axis] - value).max(value - high[axis]).max(0.0);
        square([off(x, 0), off(y, 1), off(z, 2)])
    }

    /// Fills `found` with the points nearest to a place, nearest first.
    fn search(&mut self, place: [f64; 3]) {
        self.found.clear();
        self.open.clear();
        if self.nodes[0].left > 0 {
            self.open.push((0, 0.0));
        }
        let mut visits = 0;
        while let Some((at, distance)) = self.open.pop() {
            let worst = |found: &[(f64, u32)]| if found.len() < NEAR { f64::INFINITY } else { found[NEAR - 1].0 };
            if distance >= worst(&self.found) {
                continue;
            }
            visits += 1;
            if visits > VISITS_MAX {
                break;
            }
            let Node { child, from, to, .. } = self.nodes[at as usize];
            if child > 0 {
                let children = [child, child + 1].map(|child| (child, self.distance_to_box(child, place)));
                let [a, b] = children;
                let ordered = if b.1 < a.1 { [a, b] } else { [b, a] }; // the nearer one on top
                let open = &mut self.open;
                open.extend(ordered.into_iter().filter(|(child, _)| self.nodes[*child as usize].left > 0));
                continue;
            }
            for (&n, &[x, y, z]) in self.order[from..to].iter().zip(&self.near[from..to]) {
                let distance = square([x - place[0], y - place[1], z - place[2]]);
                // Nothing is below what is not a number.
                if distance < worst(&self.found) {
                    self.found.truncate(NEAR - 1);
                    self.found.push((distance, n));
                    let mut at = self.found.len() - 1;
                    while at > 0 && self.found[at - 1].0 > distance {
                        self.found.swap(at - 1, at);
                        at -= 1;
                    }
                }
            }
        }
    }

    fn take(&mut self, n: u32) {
        self.is_left[n as usize] = false;
        self.near[self.near_at[n as usize] as usize] = [f64::NAN; 3];
        let mut at = self.leaf_of[n as usize];
        loop {
            let node = &mut self.nodes[at as usize];
            node.left -= 1;
            if at == 0 {
                break;
            }
            at = node.parent;
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
