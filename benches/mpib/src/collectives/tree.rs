//! Trees along which blocks are passed. Every rank computes the tree from the same data.

/// A spanning tree of all ranks. The children of a rank are in the order in which they are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    root: usize,
    parent: Vec<Option<usize>>,
    children: Vec<Vec<usize>>,
}

impl Tree {
    /// The root serves all ranks directly, in the given order, which contains every other rank once.
    pub fn flat(ranks: usize, root: usize, order: impl IntoIterator<Item = usize>) -> Self {
        let mut tree = Self { root, parent: vec![None; ranks], children: vec![Vec::new(); ranks] };
        order.into_iter().for_each(|rank| tree.join(rank, root));
        tree
    }

    /// The root serves all ranks directly, in the order of ranks after the root.
    pub fn linear(ranks: usize, root: usize) -> Self {
        Self::flat(ranks, root, (1..ranks).map(|i| (root + i) % ranks))
    }

    /// A flat tree. The rank with the most bytes is served first, so that long messages to a slow receiver overlap
    /// the other messages.
    pub fn sorted(lens: &[usize], root: usize) -> Self {
        let mut order: Vec<_> = (0..lens.len()).filter(|&r| r != root).collect();
        order.sort_by_key(|&r| (std::cmp::Reverse(lens[r]), r));
        Self::flat(lens.len(), root, order)
    }

    /// A flat tree. The rank with the largest cost, for example distance, is served first, so that its latency
    /// overlaps the other messages.
    pub fn sorted_by(cost: &[f64], root: usize) -> Self {
        let mut order: Vec<_> = (0..cost.len()).filter(|&r| r != root).collect();
        order.sort_by(|&a, &b| cost[b].total_cmp(&cost[a]).then(a.cmp(&b)));
        Self::flat(cost.len(), root, order)
    }

    /// The binomial tree over `seats`, a permutation of all ranks that begins with the root.
    pub fn binomial(seats: &[usize]) -> Self {
        let n = seats.len();
        let mut tree = Self::flat(n, seats[0], []);
        // The parent of seat s is s without its lowest bit. Larger subtrees are served first.
        for bit in (0..usize::BITS).rev().map(|b| 1usize << b).filter(|&b| b < n) {
            for seat in (bit..n).step_by(2 * bit) {
                tree.join(seats[seat], seats[seat - bit]);
            }
        }
        tree
    }

    /// The binomial tree over the ranks in the order root, root + 1, ..., last rank, 0, ..., root - 1.
    pub fn binomial_from(ranks: usize, root: usize) -> Self {
        Self::binomial(&(0..ranks).map(|i| (root + i) % ranks).collect::<Vec<_>>())
    }

    /// J. L. Traeff, "Hierarchical gather/scatter algorithms with graceful degradation" (IPDPS 2004), for blocks of
    /// different lengths. A block that is longer than all other remaining blocks together is sent directly, since
    /// passing the block on would cost more than the saved latency. The remaining ranks form a binomial tree, in
    /// which longer blocks are nearer to the root.
    pub fn traeff(lens: &[usize], root: usize) -> Self {
        let mut rest: Vec<_> = (0..lens.len()).filter(|&r| r != root).collect();
        rest.sort_by_key(|&r| (std::cmp::Reverse(lens[r]), r));
        let mut left: usize = rest.iter().map(|&r| lens[r]).sum();
        let mut direct = Vec::new();
        // If all blocks have equal lengths, no block is longer than all others together, unless only two blocks are
        // left.
        while rest.len() > 2 && lens[rest[0]] > left - lens[rest[0]] {
            let rank = rest.remove(0);
            left -= lens[rank];
            direct.push(rank);
        }
        let mut seats = vec![root];
        seats.extend(rest);
        let inner = Self::binomial(&(0..seats.len()).collect::<Vec<_>>());
        let mut tree = Self::flat(lens.len(), root, direct);
        for (seat, rank) in seats.iter().enumerate() {
            tree.children[*rank].extend(inner.children[seat].iter().map(|&s| seats[s]));
            if let Some(parent) = inner.parent[seat] {
                tree.parent[*rank] = Some(seats[parent]);
            }
        }
        tree
    }

    fn join(&mut self, rank: usize, parent: usize) {
        self.parent[rank] = Some(parent);
        self.children[parent].push(rank);
    }

    /// The root of the tree.
    pub fn root(&self) -> usize {
        self.root
    }

    /// The parent of a rank; `None` for the root.
    pub fn parent(&self, rank: usize) -> Option<usize> {
        self.parent[rank]
    }

    /// The children of a rank, in the order of service.
    pub fn children(&self, rank: usize) -> &[usize] {
        &self.children[rank]
    }

    /// The ranks of the subtree of `rank`, parents first. Their blocks travel together in this order. Branches are in
    /// the order of ranks, not in the order of service. So the root's blocks are often in this order already, if the
    /// root is rank 0.
    pub fn below(&self, rank: usize) -> Vec<usize> {
        let mut found = vec![rank];
        let mut at = 0;
        // Visit the ranks in depth-first order, so that the ranks of a branch stay together.
        while at < found.len() {
            let place = at + 1;
            found.splice(place..place, self.branches(found[at]));
            at += 1;
        }
        found
    }

    /// The children in the order of their branches in [`Tree::below`].
    pub fn branches(&self, rank: usize) -> Vec<usize> {
        let mut children = self.children[rank].clone();
        children.sort_unstable();
        children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trees(n: usize, root: usize) -> Vec<Tree> {
        let lens: Vec<_> = (0..n).map(|i| (i * 7919) % 13 + if i == n / 2 { 1000 } else { 0 }).collect();
        let costs: Vec<_> = lens.iter().map(|&l| l as f64).collect();
        vec![
            Tree::linear(n, root),
            Tree::sorted(&lens, root),
            Tree::sorted_by(&costs, root),
            Tree::binomial_from(n, root),
            Tree::traeff(&lens, root),
        ]
    }

    #[test]
    fn every_rank_hangs_in_the_tree_once() {
        for n in 1..20 {
            for root in [0, n / 2, n - 1] {
                for tree in trees(n, root) {
                    let mut all = tree.below(root);
                    assert_eq!(all[0], root);
                    all.sort_unstable();
                    assert_eq!(all, (0..n).collect::<Vec<_>>(), "{tree:?}");
                    for rank in 0..n {
                        let parent = tree.parent(rank);
                        assert_eq!(parent.is_none(), rank == root, "{tree:?}");
                        assert!(parent.is_none_or(|p| tree.children(p).contains(&rank)), "{tree:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_binomial_tree_has_as_many_levels_as_bits() {
        let tree = Tree::binomial_from(16, 3);
        let depth = |mut rank| {
            let mut depth = 0;
            while let Some(parent) = tree.parent(rank) {
                (rank, depth) = (parent, depth + 1);
            }
            depth
        };
        assert_eq!((0..16).map(depth).max(), Some(4));
        assert_eq!(tree.children(3), [11, 7, 5, 4], "larger subtrees first");
        assert_eq!(tree.below(11).len(), 8);
        assert_eq!(Tree::binomial_from(16, 0).below(0), (0..16).collect::<Vec<_>>(), "nothing to rearrange");
    }

    #[test]
    fn traeff_sends_a_huge_block_directly_and_is_binomial_for_equal_ones() {
        let tree = Tree::traeff(&[1, 1, 1, 900, 1, 1], 0);
        assert_eq!((tree.parent(3), tree.children(3).len()), (Some(0), 0));
        let equal = Tree::traeff(&[5; 8], 0);
        assert_eq!(equal, Tree::binomial_from(8, 0));
    }

    #[test]
    fn the_longest_block_is_served_first() {
        assert_eq!(Tree::sorted(&[9, 1, 5, 7], 0).children(0), [3, 2, 1]);
    }
}
