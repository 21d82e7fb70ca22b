//! Points in space, sorted so that those near each other lie together: a k-d tree (J. L. Bentley, "Multidimensional binary
//! search trees used for associative searching", Communications of the ACM 18(9), 1975).
//!
//! Halves are cut by a total order, so that the tree is the same on every host, whatever the algorithm.

/// A box around some points.
pub(super) struct Node {
    pub low: [f64; 3],
    pub high: [f64; 3],
    pub parent: u32,
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
    /// Where they are, in the same order.
    pub places: Vec<[f64; 3]>,
}

#[inline(always)]
pub(super) fn square([x, y, z]: [f64; 3]) -> f64 {
    x * x + y * y + z * z
}

impl Node {
    /// The square of the distance from a place to the nearest point of the box.
    #[inline(always)]
    pub(super) fn distance(&self, [x, y, z]: [f64; 3]) -> f64 {
        let off = |value: f64, axis: usize| (self.low[axis] - value).max(value - self.high[axis]).max(0.0);
        square([off(x, 0), off(y, 1), off(z, 2)])
    }
}

impl Tree {
    /// Of these points, those for which `is_one` is true, at most `leaf` in a leaf. Coordinates are finite.
    pub(super) fn new(points: [&[f64]; 3], is_one: &[bool], leaf: usize) -> Self {
        let mut order: Vec<u32> = (0u32..).zip(is_one).filter(|(_, is_one)| **is_one).map(|(n, _)| n).collect();
        let node = |parent, from, to| Node { low: [0.0; 3], high: [0.0; 3], parent, child: 0, from, to };
        let mut nodes = vec![node(0, 0, order.len())];
        let mut at = 0;
        while at < nodes.len() {
            let (from, to) = (nodes[at].from, nodes[at].to);
            let own = &mut order[from..to];
            let (mut low, mut high) = ([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]);
            for (axis, values) in points.iter().enumerate() {
                for &n in own.iter() {
                    low[axis] = low[axis].min(values[n as usize]);
                    high[axis] = high[axis].max(values[n as usize]);
                }
            }
            let mut child = 0;
            if own.len() > leaf {
                let extent = |axis: usize| high[axis] - low[axis];
                let axis = (1..3).fold(0, |best, axis| if extent(axis) > extent(best) { axis } else { best });
                let values = points[axis];
                let half = own.len() / 2;
                own.select_nth_unstable_by(half, |&a, &b| {
                    values[a as usize].total_cmp(&values[b as usize]).then(a.cmp(&b))
                });
                child = nodes.len() as u32; // fewer than twice the points
                nodes.push(node(at as u32, from, from + half));
                nodes.push(node(at as u32, from + half, to));
            } else {
                own.sort_unstable();
            }
            let node = &mut nodes[at];
            (node.low, node.high, node.child) = (low, high, child);
            at += 1;
        }
        let places = order.iter().map(|&n| points.map(|values| values[n as usize])).collect();
        Self { nodes, order, places }
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = (u32, &Node)> {
        (0u32..).zip(&self.nodes).filter(|(_, node)| node.child == 0)
    }
}
