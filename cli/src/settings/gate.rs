//! The options of gates. Only the cluster's file can set these options.

use crate::metrics::{WrongMetrics, metrics_address};
use anyhow::bail;
use mcr_anc::config::Listen;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The table `[gate]` of the cluster's file. All nodes need the same values.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GateOptions {
    /// The address on which the gate listens, as `ADDRESS:PORT`. Default 0.0.0.0:7117.
    pub listen: String,
    /// The ports on which the aggregators of an aggregator node listen, as `FIRST-LAST`. Default 7118-7180.
    pub ports: String,
    /// Directory of the gate's key `cluster.key` and certificates `cluster.pem`. Nodes without a gate need only the
    /// certificates. Default /etc/mcr/gate.
    pub directory: PathBuf,
    /// Maximum number of aggregators on an aggregator node. Default 32.
    pub aggregators: u32,
    /// Maximum number of aggregators of one user on an aggregator node. Default 8.
    pub user_aggregators: u32,
    /// Time in seconds without any agent, after which an aggregator ends. Default 600 seconds.
    pub idle_seconds: u64,
    /// `ADDRESS:PORT` at which the gate serves metrics for Prometheus. Default: none.
    pub metrics: Option<String>,
}

impl Default for GateOptions {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0:7117".into(),
            ports: "7118-7180".into(),
            directory: "/etc/mcr/gate".into(),
            aggregators: 32,
            user_aggregators: 8,
            idle_seconds: 600,
            metrics: None,
        }
    }
}

impl GateOptions {
    /// The first and the last port of the aggregators.
    pub fn port_range(&self) -> Option<(u16, u16)> {
        let ports = Listen::parse(&format!("0.0.0.0:{}", self.ports))?.ports;
        (*ports.start() > 0).then_some((*ports.start(), *ports.end()))
    }

    /// The address at which the gate serves metrics. `None`: the gate serves no metrics.
    pub fn metrics_address(&self) -> Result<Option<SocketAddr>, WrongMetrics> {
        metrics_address(self.metrics.as_deref())
    }

    pub(super) fn check(self) -> anyhow::Result<Self> {
        if Listen::parse(&self.listen).is_none_or(|listen| listen.ports.start() != listen.ports.end()) {
            bail!("listen = {:?}; it must be ADDRESS:PORT, as in \"0.0.0.0:7117\"", self.listen);
        }
        if self.port_range().is_none() {
            bail!("ports = {:?}; it must be FIRST-LAST, as in \"7118-7180\"", self.ports);
        }
        if !self.directory.is_absolute() {
            bail!("directory = {:?}; it must be an absolute path", self.directory);
        }
        for (key, value) in [("aggregators", self.aggregators), ("user-aggregators", self.user_aggregators)] {
            if !(1..=256).contains(&value) {
                bail!("{key} = {value}; it must be between 1 and 256");
            }
        }
        if !(1..=604_800).contains(&self.idle_seconds) {
            bail!("idle-seconds = {}; it must be between 1 second and a week (604800)", self.idle_seconds);
        }
        self.metrics_address()?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_wrong_values_are_refused_by_name() {
        let options = GateOptions::default().check().expect("valid");
        assert_eq!(options.port_range(), Some((7118, 7180)));
        for (key, options) in [
            ("listen", GateOptions { listen: "7117".into(), ..GateOptions::default() }),
            ("listen", GateOptions { listen: "0.0.0.0:1-2".into(), ..GateOptions::default() }),
            ("ports", GateOptions { ports: "0-5".into(), ..GateOptions::default() }),
            ("directory", GateOptions { directory: "gate".into(), ..GateOptions::default() }),
            ("aggregators", GateOptions { aggregators: 0, ..GateOptions::default() }),
            ("user-aggregators", GateOptions { user_aggregators: 257, ..GateOptions::default() }),
            ("metrics", GateOptions { metrics: Some("localhost".into()), ..GateOptions::default() }),
            ("idle-seconds", GateOptions { idle_seconds: 0, ..GateOptions::default() }),
        ] {
            let error = options.check().expect_err(key).to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
