//! The options of the rules of retention.

use crate::args::values::at_least_one;
use clap::Args;
use mcrengine::retention::Rules;

#[derive(Clone, Debug, Default, Args)]
pub struct KeepArgs {
    /// Keep the newest N complete checkpoints of each series of names that differ only in their numbers
    #[arg(long, visible_alias = "keep-last", value_name = "N", value_parser = at_least_one)]
    pub keep: Option<std::num::NonZeroU32>,
    /// Keep checkpoints that are older than the newest checkpoint by at most this time: 45s, 30min, 2h, 1d12h, 6w, 3m
    /// (months), 1y
    #[arg(long, value_name = "DURATION", value_parser = mcrengine::retention::duration_ms)]
    pub keep_within: Option<u64>,
    /// Keep the newest checkpoint of each hour, for the last N hours with checkpoints
    #[arg(long, value_name = "N")]
    pub keep_hourly: Option<u32>,
    /// Keep the newest checkpoint of each day (UTC), for the last N days with checkpoints
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u32>,
    /// Keep the newest checkpoint of each week, for the last N weeks with checkpoints
    #[arg(long, value_name = "N")]
    pub keep_weekly: Option<u32>,
    /// Keep the newest checkpoint of each month, for the last N months with checkpoints
    #[arg(long, value_name = "N")]
    pub keep_monthly: Option<u32>,
}

impl KeepArgs {
    /// The rules that the user asked for.
    pub fn rules(&self) -> Rules {
        Rules {
            last: self.keep.map_or(0, std::num::NonZeroU32::get),
            within_ms: self.keep_within.unwrap_or(0),
            hourly: self.keep_hourly.unwrap_or(0),
            daily: self.keep_daily.unwrap_or(0),
            weekly: self.keep_weekly.unwrap_or(0),
            monthly: self.keep_monthly.unwrap_or(0),
        }
    }
}
