//! Asks aggregators for their state.

use super::args::StatusArgs;
use super::find::find;
use super::model::{Model, Shared, locked};
use crate::cert::security;
use mcr_cnc::dial::dial_address;
use mcr_proto::tls::{Other, Security, sentence_of};
use mcr_proto::v1;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The begin of the reason if an aggregator did not answer in time.
pub const NO_ANSWER: &str = "no answer within";
/// Maximum time to wait for an answer.
pub const ONCE_MAX: Duration = Duration::from_secs(10);
/// Maximum time to wait for an answer if the question is repeated (`--watch`).
pub const REPEATED_MAX: Duration = Duration::from_secs(5);

async fn ask(address: String, security: Security, most: Duration) -> (String, Result<v1::StatusReply, String>) {
    let answer = async {
        let mut client = dial_address(&address, &security).await?;
        client
            .status(v1::StatusRequest {})
            .await
            .map(tonic::Response::into_inner)
            .map_err(|status| sentence_of(&status, Other::Aggregator))
    };
    let late = || Err(format!("{NO_ANSWER} {} s", most.as_secs()));
    let result = tokio::time::timeout(most, answer).await.unwrap_or_else(|_| late());
    (address, result)
}

/// Asks all aggregators at the same time, and records their answers.
pub async fn ask_all(model: &mut Model, most: Duration) -> anyhow::Result<()> {
    let security = security(None, &model.addresses())?;
    let mut asked = JoinSet::new();
    model.due().into_iter().for_each(|address| drop(asked.spawn(ask(address, security.clone(), most))));
    while let Some(answer) = asked.join_next().await {
        if let Ok((address, result)) = answer {
            model.note(&address, result, Instant::now());
        }
    }
    Ok(())
}

/// Searches for aggregators again, unless the command line names the aggregators. Aggregators that are known stay in
/// the model, even if the daemon of the node or an agent does not answer any more.
pub async fn refresh(model: &mut Model, args: &StatusArgs) {
    if args.aggregators.is_empty()
        && let Ok(found) = find(args).await
    {
        model.add(&found.aggregators, Instant::now());
        model.silent_agents = found.silent_agents;
    }
}

/// Asks all aggregators in each interval. Each aggregator has at most one open question, so an aggregator that does
/// not answer does not delay other aggregators.
pub async fn ask_again_and_again(model: Shared, args: StatusArgs) {
    let mut asked = JoinSet::new();
    loop {
        let mut found = locked(&model).clone();
        refresh(&mut found, &args).await;
        let due = {
            let mut model = locked(&model);
            model.add(&found.addresses(), Instant::now());
            model.silent_agents = found.silent_agents;
            model.due()
        };
        for address in due {
            match security(None, std::slice::from_ref(&address)) {
                Ok(security) => drop(asked.spawn(ask(address, security, REPEATED_MAX))),
                Err(error) => locked(&model).note(&address, Err(format!("{error:#}")), Instant::now()),
            }
        }
        let next = tokio::time::sleep(Duration::from_secs(args.interval));
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = &mut next => break,
                Some(answer) = asked.join_next() => if let Ok((address, result)) = answer {
                    locked(&model).note(&address, result, Instant::now());
                },
            }
        }
    }
}
