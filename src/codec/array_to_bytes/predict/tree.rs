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

/// One of the points while the tree is made: what is together is moved together.
#[derive(Clone, Copy)]
struct Point {
    at: [f64; 3],
    n: u32,
}

/// The lowest and the highest coordinates.
fn extents(points: &[Point]) -> ([f64; 3], [f64; 3]) {
    let less = |a: f64, b: f64| if b < a { b } else { a };
    let more = |a: f64, b: f64| if b > a { b } else { a };
    points.iter().fold(([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]), |(low, high), point| {
        let each = |with: &dyn Fn(usize) -> f64| [with(0), with(1), with(2)];
        (each(&|axis| less(low[axis], point.at[axis])), each(&|axis| more(high[axis], point.at[axis])))
    })
}

/// Puts so many of the points that are lower along an axis in front, of equals those with lower numbers.
fn part<const AXIS: usize>(points: &mut [Point], count: usize) {
    points.select_nth_unstable_by(count, |a, b| a.at[AXIS].total_cmp(&b.at[AXIS]).then(a.n.cmp(&b.n)));
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
        let all = (0u32..).zip(is_one).filter(|(_, is_one)| **is_one);
        let mut points: Vec<Point> =
            all.map(|(n, _)| Point { at: points.map(|values| values[n as usize]), n }).collect();
        let node = |parent, from, to| Node { low: [0.0; 3], high: [0.0; 3], parent, child: 0, from, to };
        let mut nodes = vec![node(0, 0, points.len())];
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
                    0 => part::<0>(own, half),
                    1 => part::<1>(own, half),
                    _ => part::<2>(own, half),
                }
                child = nodes.len() as u32; // fewer than twice the points
                nodes.push(node(at as u32, from, from + half));
                nodes.push(node(at as u32, from + half, to));
            } else {
                own.sort_unstable_by_key(|point| point.n);
            }
            let node = &mut nodes[at];
            (node.low, node.high, node.child) = (low, high, child);
            at += 1;
        }
        let (order, places) = points.iter().map(|point| (point.n, point.at)).unzip();
        Self { nodes, order, places }
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = (u32, &Node)> {
        (0u32..).zip(&self.nodes).filter(|(_, node)| node.child == 0)
    }
}
