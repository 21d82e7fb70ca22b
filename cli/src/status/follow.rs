//! The events of `mcr status --json --follow`: what changed between two answers of an aggregator.

use super::model::Model;
use crate::output::json_word;
use mcr_proto::v1;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Job, label and number of a group.
type Key = (String, String, u32);

/// What is known of each aggregator. The number of aggregators in a model is bounded, and so is the number of groups
/// in an answer.
#[derive(Debug, Default)]
pub struct Follower(BTreeMap<String, Seen>);

#[derive(Debug, Default)]
struct Seen {
    is_lost: bool,
    /// The phase of each group in the last answer. `None` before the first answer.
    phases: Option<BTreeMap<Key, String>>,
}

fn is_over(phase: &str) -> bool {
    phase == "committed" || phase == "abandoned"
}

impl Follower {
    /// The events since the last call, oldest first. The first answer of an aggregator gives only the groups that are
    /// in flight, because the other groups are history.
    pub fn news(&mut self, model: &Model, now_unix_ms: u64) -> Vec<Value> {
        let mut events = Vec::new();
        for aggregator in &model.aggregators {
            let address = &aggregator.address;
            let seen = self.0.entry(address.clone()).or_default();
            let of_aggregator = |event: &str, reason: Option<&str>| {
                json!({
                    "event": event, "seen_unix_ms": now_unix_ms, "aggregator": address, "job": null, "checkpoint": null,
                    "label": null, "group": null, "reason": reason, "raw_bytes": null, "stored_bytes": null,
                    "flush_ms": null,
                })
            };
            match (aggregator.current(), &aggregator.error) {
                (Some(answer), _) => {
                    if std::mem::take(&mut seen.is_lost) {
                        events.push(of_aggregator("aggregator-back", None));
                    }
                    let of_group =
                        |event: &str, group: &v1::CheckpointStatus| of_group(event, now_unix_ms, address, group);
                    events.extend(changes(seen.phases.as_ref(), &answer.status, of_group));
                    let phases = answer.status.checkpoints.iter().map(|group| (key(group), group.phase.clone()));
                    seen.phases = Some(phases.collect());
                }
                (None, Some(error)) if !std::mem::replace(&mut seen.is_lost, true) => {
                    events.push(of_aggregator("aggregator-lost", Some(error)));
                }
                (None, _) => {}
            }
        }
        events
    }
}

fn key(group: &v1::CheckpointStatus) -> Key {
    (group.job.clone(), group.label.clone(), group.group)
}

/// The events of the groups of an aggregator. `before`: the phases in the answer before.
fn changes(
    before: Option<&BTreeMap<Key, String>>,
    status: &v1::StatusReply,
    event: impl Fn(&str, &v1::CheckpointStatus) -> Value,
) -> Vec<Value> {
    let mut events = Vec::new();
    // An answer has the newest group first.
    for group in status.checkpoints.iter().rev() {
        let old = before.and_then(|phases| phases.get(&key(group))).map(String::as_str);
        if old == Some(&group.phase) || (before.is_none() && is_over(&group.phase)) {
            continue;
        }
        if old.is_none_or(is_over) {
            events.push(event("announced", group));
        }
        match group.phase.as_str() {
            "committed" => events.push(event("committed", group)),
            "abandoned" => events.push(event("abandoned", group)),
            "waiting" => events.push(event("flush-failed", group)),
            _ => {}
        }
    }
    events
}

fn of_group(event: &str, now_unix_ms: u64, address: &str, group: &v1::CheckpointStatus) -> Value {
    let is_committed = event == "committed";
    // For a committed checkpoint, the field `reason` has its name in the store.
    let checkpoint = (is_committed && !group.reason.is_empty()).then_some(&group.reason);
    let reason = (!is_committed && event != "announced" && !group.reason.is_empty()).then_some(&group.reason);
    json!({
        "event": json_word(event), "seen_unix_ms": now_unix_ms, "aggregator": address, "job": group.job,
        "checkpoint": checkpoint, "label": group.label, "group": group.group, "reason": reason,
        "raw_bytes": is_committed.then_some(group.raw_bytes),
        "stored_bytes": is_committed.then_some(group.stored_bytes),
        "flush_ms": is_committed.then_some(group.flush_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn answer(groups: &[(&str, &str)]) -> Result<v1::StatusReply, String> {
        let group = |(label, phase): &(&str, &str)| v1::CheckpointStatus {
            job: "wave".into(),
            label: (*label).to_owned(),
            phase: (*phase).to_owned(),
            reason: if *phase == "committed" { format!("{label}~2") } else { String::new() },
            raw_bytes: 10,
            ..Default::default()
        };
        Ok(v1::StatusReply { checkpoints: groups.iter().map(group).collect(), ..Default::default() })
    }

    /// The words of the events, such as `committed it_1`.
    fn words(events: &[Value]) -> Vec<String> {
        let word = |event: &Value| {
            let label = event["label"].as_str().unwrap_or("-");
            format!("{} {label}", event["event"].as_str().unwrap_or_default())
        };
        events.iter().map(word).collect()
    }

    #[test]
    fn each_change_is_one_event_and_history_is_none() {
        let (mut model, mut follower, now) = (Model::default(), Follower::default(), Instant::now());
        model.add(&["a:1".to_owned()], now);
        let mut news = |result| {
            model.note("a:1", result, now);
            follower.news(&model, 5)
        };
        let events = news(answer(&[("it_2", "gathering"), ("it_1", "committed")]));
        assert_eq!(words(&events), ["announced it_2"]);
        assert_eq!(news(answer(&[("it_2", "flushing"), ("it_1", "committed")])), Vec::<Value>::new());
        let events = news(answer(&[("it_3", "committed"), ("it_2", "waiting"), ("it_1", "committed")]));
        assert_eq!(words(&events), ["flush-failed it_2", "announced it_3", "committed it_3"]);
        assert_eq!((&events[2]["checkpoint"], &events[2]["raw_bytes"]), (&"it_3~2".into(), &10.into()));
        assert_eq!((&events[1]["checkpoint"], &events[1]["seen_unix_ms"]), (&Value::Null, &5.into()));
        let events = news(Err("refused".into()));
        assert_eq!((words(&events), &events[0]["reason"]), (vec!["aggregator-lost -".to_owned()], &"refused".into()));
        assert_eq!(news(Err("refused".into())), Vec::<Value>::new());
        // The aggregator was started again, so it knows only what was announced since.
        assert_eq!(words(&news(answer(&[]))), ["aggregator-back -"]);
        assert_eq!(words(&news(answer(&[("it_2", "abandoned")]))), ["announced it_2", "abandoned it_2"]);
        assert_eq!(words(&news(answer(&[("it_2", "committed")]))), ["announced it_2", "committed it_2"]);
    }
}
