//! Chooses the nodes of a job on which the job's aggregators run. All nodes of a job compute the same result.

use crate::settings::NodeOptions;
use anyhow::{Context, bail};
use mcr_node::facts::JobFacts;
use mcr_node::hostlist::expand;

/// Number of nodes that share one aggregator, if the number of aggregators is not configured.
const NODES_PER_AGGREGATOR: usize = 8;

/// The aggregators of a job with several nodes, and the role of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// `HOST:FIRST-LAST` of each aggregator.
    pub aggregators: Vec<String>,
    /// Whether an aggregator runs on this node.
    pub is_aggregator: bool,
    /// Position of this node in the list of the job's nodes.
    pub index: u32,
    /// Number of nodes of the job.
    pub nodes: u32,
}

impl Placement {
    /// Aggregator i of N runs on the node at position i * nodes / N. `None` if the job has one node.
    pub fn of(facts: &JobFacts, options: &NodeOptions) -> anyhow::Result<Option<Self>> {
        if facts.nodes <= 1 {
            return Ok(None);
        }
        let names = expand(&facts.node_list)?;
        if names.len() != facts.nodes as usize {
            let (nodes, listed) = (facts.nodes, names.len());
            bail!("SLURM says that the job has {nodes} nodes, and its list has {listed}: {}", facts.node_list);
        }
        let index = names.iter().position(|name| *name == facts.node);
        let index =
            index.with_context(|| format!("node {} is not in the job's list {}", facts.node, facts.node_list))?;
        let wanted = options.aggregators.map_or(names.len().div_ceil(NODES_PER_AGGREGATOR), |number| number as usize);
        let number = wanted.clamp(1, names.len());
        let places: Vec<usize> = (0..number).map(|i| i * names.len() / number).collect();
        let address = |place: &usize| format!("{}:{}", options.address_of(&names[*place]), options.ports);
        Ok(Some(Self {
            aggregators: places.iter().map(address).collect(),
            is_aggregator: places.contains(&index),
            index: u32::try_from(index)?,
            nodes: facts.nodes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(node: &str, aggregators: Option<u32>) -> Placement {
        let facts = JobFacts {
            job_id: "7".into(),
            restart_count: 0,
            uid: 6001,
            work_dir: "/home".into(),
            node: node.into(),
            nodes: 10,
            node_list: "n[01-10]".into(),
            tasks: None,
            comment: String::new(),
            het_job_id: None,
        };
        let options = NodeOptions { aggregators, address: "%n-ib0".into(), ..NodeOptions::default() };
        Placement::of(&facts, &options).expect("placed").expect("several nodes")
    }

    #[test]
    fn aggregators_are_spread_evenly_over_the_nodes_of_the_job() {
        let placement = placed("n01", None);
        assert_eq!(placement.aggregators, ["n01-ib0:7117-7180", "n06-ib0:7117-7180"]);
        assert_eq!((placement.is_aggregator, placement.index, placement.nodes), (true, 0, 10));
        assert!(placed("n06", None).is_aggregator && !placed("n02", None).is_aggregator);
        assert_eq!(placed("n10", Some(3)).aggregators, ["n01", "n04", "n07"].map(|n| format!("{n}-ib0:7117-7180")));
        assert_eq!(placed("n10", Some(99)).aggregators.len(), 10);
    }

    #[test]
    fn a_list_of_nodes_that_does_not_fit_is_refused() {
        let facts = |node: &str, nodes, list: &str| JobFacts {
            job_id: "7".into(),
            restart_count: 0,
            uid: 6001,
            work_dir: "/home".into(),
            node: node.into(),
            nodes,
            node_list: list.into(),
            tasks: None,
            comment: String::new(),
            het_job_id: None,
        };
        let of = |facts: JobFacts| Placement::of(&facts, &NodeOptions::default()).map_err(|e| e.to_string());
        assert_eq!(of(facts("n1", 1, "")), Ok(None));
        assert!(of(facts("n1", 3, "n[1-2]")).is_err_and(|e| e.contains("3 nodes, and its list has 2")));
        assert!(of(facts("n3", 2, "n[1-2]")).is_err_and(|e| e.contains("node n3 is not in")));
        assert!(of(facts("n3", 2, "n[1-")).is_err_and(|e| e.contains("cannot be expanded")));
    }
}
