//! What the operator wrote for an aggregator, and what it runs with: two types, the second made only by checking the
//! first.

use crate::flush::{FlushOptions, WHOLE_EVERY, least_budget};
use crate::group::Times;
use crate::hub::HubOptions;
use crate::rate::StoreSpeed;
use mcrengine::classify::Naming;
use mcrengine::codec::{Profile, cores};
use mcrengine::plan::{PlanOptions, Scheme};
use mcrengine::retention::{Rules, duration_ms};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The `[anc]` table, as written. Every key may be left out but `store`.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AncOptions {
    /// The directory on the parallel file system that holds the containers. No default.
    pub store: PathBuf,
    /// Make the store's directory if it is not there. Default false: it may be on a file system that is not mounted.
    pub create: bool,
    /// Address and port to listen on. Default 0.0.0.0:7117.
    pub listen: String,
    /// GROUP_SIZE: ranks merged into one container. The agents' must be the same. Default 32.
    pub group_size: u32,
    /// Ranks of jobs whose agents do not say. Default: none, agents must say.
    pub ranks: Option<u32>,
    /// `agnostic`, `agnostic-block`, `aware` or `aware-block`. Default aware.
    pub scheme: Scheme,
    /// Bytes of each rank before the next rank's turn, in the block schemes. Default 65536.
    pub block_bytes: u32,
    /// MiB gathered into one segment before it is compressed, 1 to 64. Default 0: what suits the profile, 4, or 16
    /// for `balanced` and `max`, there a quarter of it for bytes and records. With `fast` no more than a quarter of
    /// what is to be stored, but half a MiB at least.
    pub segment_mib: u64,
    /// Variables with fewer bytes are pooled instead of coded with their class. Default 100.
    pub small_bytes: u64,
    /// MiB of checkpoint in flight at most, up to half of it announcements; at least 3 segments, 12 for `balanced`
    /// and 16 for `max`, 32 where that looks back. Default 0: 256, or 512 for `max`.
    pub budget_mib: u64,
    /// Threads that compress. Default 0: as many as the process may run on.
    pub threads: usize,
    /// `fast`, `balanced`, `max`, `paper`, `paper-single`, `zstd`, `gzip`, `raw`, ... Default fast.
    pub profile: Profile,
    /// MiB that the store takes in a second, for this aggregator: the choice of codecs makes the sum of coding and
    /// writing least. Default: measured from what is written. 0: not counted, only bytes are.
    pub store_mib_per_s: Option<u64>,
    /// Decode every segment again before it is written. Default true.
    pub verify: bool,
    /// Store once what did not change since the checkpoint before, or is the same on another rank; and keep what codecs
    /// were chosen for it. Default true.
    pub reuse: bool,
    /// `auto`: code with what older checkpoints hold, where the profile does that (`max`) and it is smaller; needs
    /// `reuse`. `off`: code each checkpoint by itself. Default auto.
    pub time: Time,
    /// One checkpoint of so many at least is coded by itself, 2 to 64. Default 8.
    pub whole_every: u32,
    /// When the names of two variables agree: `numbers` (after runs of digits became `#`) or `exact`. Default numbers.
    pub naming: String,
    /// Instead of `naming`: pairs of a regular expression and what its matches become, applied one after the other.
    pub naming_rules: Vec<(String, String)>,
    /// Seconds to wait for the last rank of a checkpoint before it is given up. Default 600.
    pub gather_seconds: u64,
    /// Seconds that one fetch may take before its agent counts as lost. Default 60.
    pub fetch_seconds: u64,
    /// Seconds within which the files of one checkpoint are written. Default 600.
    pub spread_seconds: u64,
    /// Flushes of different groups at a time. Default 2.
    pub flushes: usize,
    /// How long the aggregator may take to end: until then it goes on with what agents have announced or may still
    /// announce. Default 20, which is inside SLURM's KillWait of 30 s.
    pub drain_seconds: u64,
    /// Number of the newest checkpoints of a job that are kept after each commit. Default 0: this rule keeps none.
    /// Without any rule nothing is removed. Of a job that keeps more than 1000, up to one per 1000 more are there for
    /// a while.
    pub keep: u32,
    /// Keep what was written within this time before the newest, as in `30min`, `2h`, `1d12h`. Default: none.
    pub keep_within: String,
    /// Number of hours of each of which the newest checkpoint is kept. Default 0.
    pub keep_hourly: u32,
    /// The same for days. Default 0.
    pub keep_daily: u32,
    /// The same for weeks. Default 0.
    pub keep_weekly: u32,
    /// The same for months. Default 0.
    pub keep_monthly: u32,
}

/// Whether checkpoints are coded with older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Time {
    /// Where it is smaller.
    Auto,
    /// Never.
    Off,
}

impl Default for AncOptions {
    fn default() -> Self {
        Self {
            store: PathBuf::new(),
            create: false,
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
            store_mib_per_s: None,
            verify: true,
            reuse: true,
            time: Time::Auto,
            whole_every: WHOLE_EVERY,
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
        }
    }
}

/// What an aggregator runs with.
#[derive(Clone)]
pub struct AncConfig {
    /// The store's directory.
    pub store: PathBuf,
    /// Whether it is made if it is not there.
    pub create: bool,
    /// Where to listen.
    pub listen: SocketAddr,
    /// What the hub runs with.
    pub hub: HubOptions,
    /// Bytes of checkpoint in flight at most.
    pub budget_bytes: u64,
    /// See [`AncOptions::drain_seconds`].
    pub drain: Duration,
}

/// Which key is wrong, what it holds, what it may hold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {found}; {expected}")]
pub struct AncConfigError {
    /// The key, with its table.
    pub key: &'static str,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub expected: String,
}

fn wrong<T>(key: &'static str, found: impl ToString, expected: impl Into<String>) -> Result<T, AncConfigError> {
    Err(AncConfigError { key, found: found.to_string(), expected: expected.into() })
}

impl AncOptions {
    /// Puts these rules in place of those that are written.
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

    /// Checks every value once.
    pub fn check(&self) -> Result<AncConfig, AncConfigError> {
        if self.store.as_os_str().is_empty() {
            return wrong("anc.store", "missing", "name the directory on the parallel file system, or set MCR_STORE");
        }
        let Ok(listen) = self.listen.parse() else {
            return wrong("anc.listen", &self.listen, "it must be ADDRESS:PORT, as in 0.0.0.0:7117");
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
            return wrong(
                "anc.segment-mib",
                self.segment_mib,
                "it must be at most 64, or 0 for what suits the profile",
            );
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
        if self.store_mib_per_s.is_some_and(|rate| rate > 1 << 20) {
            return wrong(
                "anc.store-mib-per-s",
                self.store_mib_per_s.unwrap_or_default(),
                "it must be at most 1048576, 0 for not counted, or left out for measured",
            );
        }
        if !(2..=64).contains(&self.whole_every) {
            return wrong("anc.whole-every", self.whole_every, "it must be between 2 and 64; time = \"off\" is for 1");
        }
        if self.threads > 1024 {
            return wrong(
                "anc.threads",
                self.threads,
                "it must be at most 1024, or 0 for as many as the process may run on",
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
            store_speed: match self.store_mib_per_s {
                None => StoreSpeed::Measured(Arc::default()),
                Some(0) => StoreSpeed::Ignored,
                Some(rate) => StoreSpeed::Known(rate << 20),
            },
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
        };
        let drain = Duration::from_secs(self.drain_seconds);
        Ok(AncConfig { store: self.store.clone(), create: self.create, listen, hub, budget_bytes, drain })
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
        assert!(AncOptions::default().check().is_err_and(|e| e.key == "anc.store"));
    }

    #[test]
    fn every_value_out_of_range_is_refused_by_name() {
        let bad: [(&str, AncOptions); 11] = [
            ("anc.keep-within", AncOptions { keep_within: "2 hours".into(), ..options() }),
            ("anc.listen", AncOptions { listen: "here".into(), ..options() }),
            ("anc.group-size", AncOptions { group_size: 0, ..options() }),
            ("anc.ranks", AncOptions { ranks: Some(0), ..options() }),
            ("anc.block-bytes", AncOptions { block_bytes: 7, ..options() }),
            ("anc.segment-mib", AncOptions { segment_mib: 65, ..options() }),
            ("anc.budget-mib", AncOptions { budget_mib: 11, ..options() }),
            ("anc.store-mib-per-s", AncOptions { store_mib_per_s: Some((1 << 20) + 1), ..options() }),
            ("anc.whole-every", AncOptions { whole_every: 1, ..options() }),
            ("anc.naming", AncOptions { naming: "exakt".into(), ..options() }),
            ("anc.naming-rules", AncOptions { naming_rules: vec![("(".into(), String::new())], ..options() }),
        ];
        for (key, options) in bad {
            assert_eq!(options.check().map(|_| ()).expect_err(key).key, key);
        }
    }
}
