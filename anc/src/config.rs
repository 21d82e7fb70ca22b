//! The configuration of an aggregator. [`AncOptions`] has the values as the operator wrote them.
//! [`AncOptions::check`] checks the values and makes an [`AncConfig`].

use crate::flush::{FlushOptions, WHOLE_EVERY, least_budget};
use crate::group::Times;
use crate::hub::HubOptions;
use mcr_proto::tls::Security;
use mcrengine::classify::Naming;
use mcrengine::codec::{Profile, cores};
use mcrengine::parity::ParityPercent;
use mcrengine::plan::{PlanOptions, Scheme};
use mcrengine::retention::{Rules, duration_ms};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The `[anc]` table, as written. Every key except `store` may be left out.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AncOptions {
    /// The directory on the parallel file system that holds the containers. No default.
    pub store: PathBuf,
    /// Whether to create the store's directory if it does not exist. Default false, because the directory may be on a
    /// file system that is not mounted.
    pub create: bool,
    /// Whether a group shares the store: another user may own the directory, and the group may write to it. Default
    /// false.
    pub shared_store: bool,
    /// Address and port to listen on, or address and range of ports, as in `0.0.0.0:7117-7180`. The first free port
    /// of a range is used. Default 0.0.0.0:7117.
    pub listen: String,
    /// Number of ranks merged into one container (GROUP_SIZE). The agents must have the same group size. Default 32.
    pub group_size: u32,
    /// Number of ranks of a job, if the agents do not report this number. Default: none, so agents must report the
    /// number.
    pub ranks: Option<u32>,
    /// `agnostic`, `agnostic-block`, `aware` or `aware-block`. Default aware.
    pub scheme: Scheme,
    /// Number of bytes of one rank that precede the bytes of the next rank. Only the block schemes use this number.
    /// Default 65536.
    pub block_bytes: u32,
    /// Raw MiB in one segment, 1 to 64. Default 0, which means 32 for `balanced` and `max` (16 if `budget-mib` is
    /// below its default), and 4 for the other profiles. With `balanced` and `max`, segments of bytes and records
    /// have a quarter of this length, at most 4 MiB. With `fast`, a segment has at most a quarter of the bytes to
    /// store, but at least 0.5 MiB.
    pub segment_mib: u64,
    /// Variables with fewer bytes than this number share segments, instead of being compressed with their class.
    /// Default 100.
    pub small_bytes: u64,
    /// Maximum MiB of checkpoint data in memory. Announcements take at most half of this memory. Minimum: 3 segments
    /// (`balanced`: 12 segments, `max`: 16 segments). Default 0, which means 256 MiB (`balanced`: 512 MiB, `max`:
    /// 1024 MiB).
    pub budget_mib: u64,
    /// Number of threads that compress. Default 0, which means one thread for each core that the process may use.
    pub threads: usize,
    /// `fast`, `balanced`, `max`, `paper`, `paper-single`, `zstd`, `gzip`, `raw`, ... Default fast.
    pub profile: Profile,
    /// Write rate of the store for this aggregator, in MiB per second. The choice of codecs minimizes the sum of the
    /// times for compressing and writing. Default 0, which means that only the number of stored bytes counts.
    pub store_mib_per_s: u64,
    /// Whether to decode and compare each segment before it is written. Default true.
    pub verify: bool,
    /// Whether to store a variable only once if it has not changed since the previous checkpoint, or is equal on
    /// another rank. With true, the codecs of the previous checkpoint are used again too. Default true.
    pub reuse: bool,
    /// Whether older checkpoints are used to code a checkpoint. `auto`: older checkpoints are used if the profile
    /// supports this (`max`), `reuse` is true, and the result is smaller. `off`: older checkpoints are not used.
    /// Default auto.
    pub time: Time,
    /// Of this number of consecutive checkpoints, at least one is coded without older checkpoints. 2 to 64. Default
    /// 8.
    pub whole_every: u32,
    /// Length of the parity of each container, in per cent of the length of the container: 0 to 50. `mcr verify
    /// --repair` mends a damaged container by its parity. Default 0, which means no parity. 2 per cent is enough to
    /// mend single bad sectors.
    pub parity_percent: u32,
    /// How the names of two variables are compared: `numbers` (each run of digits counts as `#`) or `exact`. Default
    /// numbers.
    pub naming: String,
    /// Rules that replace `naming`: pairs of a regular expression and the replacement of its matches. The rules are
    /// applied in order.
    pub naming_rules: Vec<(String, String)>,
    /// Seconds to wait for the last rank of a checkpoint before the checkpoint is abandoned. Default 600.
    pub gather_seconds: u64,
    /// Seconds that one fetch may take before the fetch's agent counts as lost. Default 60.
    pub fetch_seconds: u64,
    /// Maximum time between the writing of the first and of the last file of one checkpoint, in seconds. Default 600.
    pub spread_seconds: u64,
    /// Number of flushes of different groups that run at the same time. Default 2.
    pub flushes: usize,
    /// Seconds that the aggregator may take to end. During this time the aggregator finishes checkpoints that agents
    /// have announced or may still announce. Default 20, which is less than SLURM's KillWait of 30 s.
    pub drain_seconds: u64,
    /// Number of newest checkpoints of a job to keep after each commit. Default 0: this rule is off. If all rules are
    /// off, no checkpoint is removed. If a job has more than 1000 checkpoints, old checkpoints are removed less often
    /// than after each commit.
    pub keep: u32,
    /// Keep checkpoints that were written within this time before the newest checkpoint, as in `30min`, `2h`,
    /// `1d12h`. Default: none.
    pub keep_within: String,
    /// Number of hours for which the newest checkpoint of each hour is kept. Default 0.
    pub keep_hourly: u32,
    /// Number of days for which the newest checkpoint of each day is kept. Default 0.
    pub keep_daily: u32,
    /// Number of weeks for which the newest checkpoint of each week is kept. Default 0.
    pub keep_weekly: u32,
    /// Number of months for which the newest checkpoint of each month is kept. Default 0.
    pub keep_monthly: u32,
    /// `ADDRESS:PORT` at which metrics for Prometheus are served. The caller of [`Self::check`] parses this text.
    /// Default: none.
    pub metrics: Option<String>,
}

/// Whether checkpoints are coded with older checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Time {
    /// Code with older checkpoints if the result is smaller.
    Auto,
    /// Never code with older checkpoints.
    Off,
}

impl Default for AncOptions {
    fn default() -> Self {
        Self {
            store: PathBuf::new(),
            create: false,
            shared_store: false,
            listen: "0.0.0.0:7117".into(),
            group_size: 32,
            ranks: None,
            scheme: Scheme::default(),
            block_bytes: 64 << 10,
            segment_mib: 0,
            small_bytes: 100,
            budget_mib: 0,
            threads: 0,
            profile: Profile::Fast,
            store_mib_per_s: 0,
            verify: true,
            reuse: true,
            time: Time::Auto,
            whole_every: WHOLE_EVERY,
            parity_percent: 0,
            naming: "numbers".into(),
            naming_rules: Vec::new(),
            gather_seconds: 600,
            fetch_seconds: 60,
            spread_seconds: 600,
            flushes: 2,
            drain_seconds: 20,
            keep: 0,
            keep_within: String::new(),
            keep_hourly: 0,
            keep_daily: 0,
            keep_weekly: 0,
            keep_monthly: 0,
            metrics: None,
        }
    }
}

/// An address and the ports on which an aggregator may listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address of this node. 0.0.0.0 or `::` means all addresses of the node.
    pub address: IpAddr,
    /// The ports, which are tried in increasing order. Port 0 means that the operating system chooses a port.
    pub ports: RangeInclusive<u16>,
}

impl Listen {
    /// Parses `ADDRESS:PORT` or `ADDRESS:FIRST-LAST`.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = match text.rsplit_once('-') {
            Some((first, last)) => (first, Some(last.parse().ok()?)),
            None => (text, None),
        };
        let first: SocketAddr = first.parse().ok()?;
        let ports = first.port()..=last.unwrap_or(first.port());
        (!ports.is_empty() && (last.is_none() || first.port() > 0)).then_some(Self { address: first.ip(), ports })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", SocketAddr::new(self.address, *self.ports.start()))?;
        if self.ports.start() == self.ports.end() { Ok(()) } else { write!(f, "-{}", self.ports.end()) }
    }
}

/// The checked configuration of an aggregator.
#[derive(Clone)]
pub struct AncConfig {
    /// The store's directory.
    pub store: PathBuf,
    /// Whether to create the store's directory if it does not exist.
    pub create: bool,
    /// Whether a group shares the store, see [`AncOptions::shared_store`].
    pub shared_store: bool,
    /// The address and the ports to listen on.
    pub listen: Listen,
    /// The path of a socket to listen on, instead of a port. Only the user of this process and root can connect. The
    /// configuration cannot set this field.
    pub socket: Option<PathBuf>,
    /// How connections are protected. The configuration cannot set this field.
    pub security: Security,
    /// The settings of the hub.
    pub hub: HubOptions,
    /// Maximum bytes of checkpoint data in memory.
    pub budget_bytes: u64,
    /// Maximum time that the aggregator may take to end, see [`AncOptions::drain_seconds`].
    pub drain: Duration,
}

/// A key of the configuration has a wrong value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {found}; {expected}")]
pub struct AncConfigError {
    /// The key, with its table.
    pub key: &'static str,
    /// The wrong value.
    pub found: String,
    /// The allowed values, or what to do.
    pub expected: String,
}

fn wrong<T>(key: &'static str, found: impl ToString, expected: impl Into<String>) -> Result<T, AncConfigError> {
    Err(AncConfigError { key, found: found.to_string(), expected: expected.into() })
}

impl AncOptions {
    /// Replaces the configured retention rules.
    pub fn set_keep(&mut self, keep: &Rules) {
        self.keep = keep.last;
        self.keep_within =
            if keep.within_ms == 0 { String::new() } else { format!("{}s", keep.within_ms.div_ceil(1000)) };
        (self.keep_hourly, self.keep_daily) = (keep.hourly, keep.daily);
        (self.keep_weekly, self.keep_monthly) = (keep.weekly, keep.monthly);
    }

    fn budget_mib(&self) -> u64 {
        if self.budget_mib == 0 { self.profile.budget_mib() } else { self.budget_mib }
    }

    /// Checks every value, and makes the checked configuration.
    pub fn check(&self) -> Result<AncConfig, AncConfigError> {
        if self.store.as_os_str().is_empty() {
            return wrong("anc.store", "missing", "name the directory on the parallel file system, or set MCR_STORE");
        }
        let Some(listen) = Listen::parse(&self.listen) else {
            let expected = "it must be ADDRESS:PORT or ADDRESS:FIRST-LAST, as in 0.0.0.0:7117 or 0.0.0.0:7117-7180";
            return wrong("anc.listen", &self.listen, expected);
        };
        if !(1..=65536).contains(&self.group_size) {
            return wrong("anc.group-size", self.group_size, "it must be between 1 and 65536");
        }
        if self.ranks == Some(0) {
            return wrong("anc.ranks", 0, "it must be at least 1, or left out");
        }
        let Some(block_bytes) = NonZeroU32::new(self.block_bytes).filter(|b| b.get() >= 8) else {
            return wrong("anc.block-bytes", self.block_bytes, "it must be at least 8");
        };
        if self.segment_mib > 64 {
            return wrong("anc.segment-mib", self.segment_mib, "it must be at most 64, or 0 to let the profile choose");
        }
        let budget_bytes = self.budget_mib().saturating_mul(1 << 20);
        let segment_bytes = match self.segment_mib {
            0 => self.profile.segment_bytes(budget_bytes),
            segment_mib => segment_mib << 20,
        };
        let least_mib = least_budget(segment_bytes, &self.profile).div_ceil(1 << 20);
        if self.budget_mib() < least_mib || self.budget_mib > 1 << 20 {
            return wrong(
                "anc.budget-mib",
                self.budget_mib(),
                format!(
                    "with segments of {} MiB and the profile {} it must be between {least_mib} and {}",
                    segment_bytes >> 20,
                    self.profile,
                    1 << 20
                ),
            );
        }
        if self.store_mib_per_s > 1 << 20 {
            let want = "it must be at most 1048576, or 0 to choose the fewest bytes";
            return wrong("anc.store-mib-per-s", self.store_mib_per_s, want);
        }
        if !(2..=64).contains(&self.whole_every) {
            return wrong(
                "anc.whole-every",
                self.whole_every,
                "it must be between 2 and 64; set time = \"off\" instead of 1",
            );
        }
        if self.parity_percent > ParityPercent::MAX {
            return wrong("anc.parity-percent", self.parity_percent, "it must be between 0 (no parity) and 50");
        }
        if self.threads > 1024 {
            return wrong(
                "anc.threads",
                self.threads,
                "it must be at most 1024, or 0 for one thread on each core that the process may use",
            );
        }
        let naming = match self.naming.as_str() {
            _ if !self.naming_rules.is_empty() => {
                let mut rules = Vec::with_capacity(self.naming_rules.len());
                for (regex, by) in &self.naming_rules {
                    match regex::Regex::new(regex) {
                        Ok(regex) => rules.push((regex, by.clone())),
                        Err(error) => {
                            return wrong(
                                "anc.naming-rules",
                                regex,
                                format!("it must be a regular expression: {error}"),
                            );
                        }
                    }
                }
                Naming::Rules(rules)
            }
            "numbers" => Naming::Numbers,
            "exact" => Naming::Exact,
            other => return wrong("anc.naming", other, "it must be \"numbers\" or \"exact\""),
        };
        for (key, seconds) in [
            ("anc.gather-seconds", self.gather_seconds),
            ("anc.fetch-seconds", self.fetch_seconds),
            ("anc.spread-seconds", self.spread_seconds),
            ("anc.drain-seconds", self.drain_seconds),
        ] {
            if !(1..=604_800).contains(&seconds) {
                return wrong(key, seconds, "it must be between 1 second and a week (604800)");
            }
        }
        if !(1..=64).contains(&self.flushes) {
            return wrong("anc.flushes", self.flushes, "it must be between 1 and 64");
        }
        let within_ms = match self.keep_within.as_str() {
            "" => 0,
            text => match duration_ms(text) {
                Ok(ms) => ms,
                Err(_) => return wrong("anc.keep-within", text, "it must be a duration, as in 30min, 2h or 1d12h"),
            },
        };
        let keep = Rules {
            last: self.keep,
            within_ms,
            hourly: self.keep_hourly,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
        };
        let threads = match self.threads {
            0 => cores(),
            threads => threads,
        };
        let plan = PlanOptions {
            scheme: self.scheme,
            block_bytes,
            segment_bytes,
            small_bytes: self.small_bytes,
            ..PlanOptions::of(&self.profile, budget_bytes)
        };
        let flush = FlushOptions {
            plan,
            naming,
            profile: self.profile.clone(),
            verify: self.verify,
            reuse: self.reuse,
            whole_every: if self.time == Time::Off { 1 } else { self.whole_every },
            store_bytes_per_s: (self.store_mib_per_s > 0).then_some(self.store_mib_per_s << 20),
            meter: Arc::default(),
            parity: ParityPercent::new(self.parity_percent),
            threads,
        };
        let hub = HubOptions {
            flush,
            group_size: self.group_size,
            ranks: self.ranks,
            times: Times { gather_ms: self.gather_seconds * 1000, retry_ms: 1000 },
            fetch_deadline: Duration::from_secs(self.fetch_seconds),
            spread: Duration::from_secs(self.spread_seconds),
            flushes: self.flushes,
            keep,
            of_job: None,
            has_agent: false,
        };
        let drain = Duration::from_secs(self.drain_seconds);
        let (store, create, shared_store) = (self.store.clone(), self.create, self.shared_store);
        let security = Security::Plain;
        Ok(AncConfig { store, create, shared_store, listen, socket: None, security, hub, budget_bytes, drain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> AncOptions {
        AncOptions { store: "/scratch/mcr".into(), ..Default::default() }
    }

    #[test]
    fn the_defaults_are_valid_once_a_store_is_named() {
        let config = options().check().map_err(|e| e.to_string()).expect("valid");
        assert_eq!(config.hub.group_size, 32);
        assert_eq!(config.hub.flush.store_bytes_per_s, None, "codecs are chosen for the fewest bytes, as in mcr save");
        assert!(AncOptions::default().check().is_err_and(|e| e.key == "anc.store"));
    }

    #[test]
    fn a_range_of_ports_is_read_and_printed_as_it_was_written() {
        for text in ["0.0.0.0:7117", "0.0.0.0:7117-7180", "[::1]:0", "127.0.0.1:65535-65535"] {
            let listen = Listen::parse(text).expect(text);
            assert_eq!(Listen::parse(&listen.to_string()), Some(listen), "{text}");
        }
        for text in ["0.0.0.0", "0.0.0.0:9-8", "0.0.0.0:0-5", "0.0.0.0:1-", "0.0.0.0:1-70000", "-1", "host:1"] {
            assert_eq!(Listen::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_value_out_of_range_is_refused_by_name() {
        let bad: [(&str, AncOptions); 12] = [
            ("anc.keep-within", AncOptions { keep_within: "2 hours".into(), ..options() }),
            ("anc.listen", AncOptions { listen: "here".into(), ..options() }),
            ("anc.group-size", AncOptions { group_size: 0, ..options() }),
            ("anc.ranks", AncOptions { ranks: Some(0), ..options() }),
            ("anc.block-bytes", AncOptions { block_bytes: 7, ..options() }),
            ("anc.segment-mib", AncOptions { segment_mib: 65, ..options() }),
            ("anc.budget-mib", AncOptions { budget_mib: 11, ..options() }),
            ("anc.store-mib-per-s", AncOptions { store_mib_per_s: (1 << 20) + 1, ..options() }),
            ("anc.whole-every", AncOptions { whole_every: 1, ..options() }),
            ("anc.parity-percent", AncOptions { parity_percent: 51, ..options() }),
            ("anc.naming", AncOptions { naming: "exakt".into(), ..options() }),
            ("anc.naming-rules", AncOptions { naming_rules: vec![("(".into(), String::new())], ..options() }),
        ];
        for (key, options) in bad {
            assert_eq!(options.check().map(|_| ()).expect_err(key).key, key);
        }
    }
}
