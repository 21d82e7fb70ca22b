//! The options of `mcr status`.

use crate::node_socket::NodeSocket;
use clap::Args;

#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Aggregators to ask (host:port, or unix:PATH on this node; comma-separated) [default: the aggregators of your
    /// jobs that mcr node saves on this node; without such jobs, the aggregators in the settings of the job in this
    /// directory, or of its agent]
    #[arg(long, env = "MCR_AGGREGATORS", value_delimiter = ',', value_name = "ADDRESSES")]
    pub aggregators: Vec<String>,
    #[command(flatten)]
    pub node: NodeSocket,
    /// Show a live view until q or Ctrl-C is pressed. If standard output is not a terminal, print the tables at each
    /// interval
    #[arg(long)]
    pub watch: bool,
    /// Time between two requests to an aggregator
    #[arg(long, requires = "watch", default_value_t = 2, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Print JSON; with --watch, print an object on one line at each interval
    #[arg(long)]
    pub json: bool,
}
