//! The demo: a flow that fans out, streams, asks for an approval and spends a budget, and what there is to say about it.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Instant;

use flowfabric::op::{GetWaitpointToken, create_budget, get_waitpoint_token};
use flowfabric::{BlockingReason, Client, CreatedFlow, Execution, Limits, PublicState, SdkError, StreamEvent};
use tokio::task::JoinSet;

use super::narrator::Narrator;
use super::scenery;
use super::work::{LANE, TOPICS};
use crate::failure::{Failure, Result};
use crate::output::Colour;

/// The budget that the demo spends from.
const BUDGET: &str = "demo";
const HARD_TOKENS: i64 = 2_000;
const SOFT_TOKENS: i64 = 300;

/// Runs the demo and tells about it.
pub(super) async fn tell(client: &Client, narrator: &Narrator, started: Instant, auto_approve: bool) -> Result<()> {
    fund(client).await?;
    let flow = submit(client).await?;
    let fan = TOPICS.len();
    narrator.step(Colour::Blue, "submitted", &format!("flow {}", flow.id()));
    narrator.step(Colour::Blue, "", &format!("plan, {fan} x research at once, draft, review, publish: one call"));

    let plan = node(&flow, "plan")?;
    plan.wait().await?;
    let took = started.elapsed().as_millis();
    narrator.step(Colour::Green, "completed", &format!("plan: the first execution, {took} ms after the start"));

    let mut research = JoinSet::new();
    for (topic, _) in TOPICS {
        let execution = node(&flow, &research_node(topic))?;
        research.spawn(async move { (topic, execution.wait().await) });
    }
    while let Some(Ok((topic, ended))) = research.join_next().await {
        narrator.step(Colour::Green, ended?.public_state.as_str(), &format!("research about {topic}, 120 tokens"));
    }

    let draft = node(&flow, "draft")?;
    stream(&draft, narrator).await?;
    scenery::arrange(client).await?;
    let review = node(&flow, "review")?;
    approve(client, &review, narrator, auto_approve).await?;

    let reviewed = review.wait().await?.public_state;
    let colour = if reviewed == PublicState::Completed { Colour::Green } else { Colour::Red };
    narrator.step(colour, reviewed.as_str(), "review: the same attempt went on after the signal");
    let published = node(&flow, "publish")?.wait().await?.public_state;
    narrator.step(colour, published.as_str(), "publish");
    close(client, &flow, narrator, started).await?;
    try_next(narrator, &flow, &draft, &review);
    Ok(())
}

/// A budget that an earlier run may have used up is filled again.
async fn fund(client: &Client) -> Result<()> {
    let limits = Limits { hard: HARD_TOKENS, soft: SOFT_TOKENS, ..Limits::default() };
    let dimensions = BTreeMap::from([("tokens".to_owned(), limits)]);
    client.create_budget(create_budget::Args { name: BUDGET.into(), dimensions, ..Default::default() }).await?;
    client.reset_budget(BUDGET).await?;
    Ok(())
}

async fn submit(client: &Client) -> Result<CreatedFlow> {
    let work = |kind: &str| {
        client.submit(kind).lane(LANE).budget(BUDGET).tag("demo", "report").never_retry([flowfabric::policy::PERMANENT])
    };
    let mut flow =
        client.new_flow("report").node("plan", work("plan").input("FlowFabric")).node("draft", work("draft"));
    for (topic, _) in TOPICS {
        let name = research_node(topic);
        flow = flow.node(&name, work("research").input(topic)).edge("plan", &name).edge(&name, "draft");
    }
    let flow = flow.node("review", work("review")).edge("draft", "review");
    Ok(flow.node("publish", work("publish")).edge("review", "publish").create().await?)
}

fn research_node(topic: &str) -> String {
    format!("research-{topic}")
}

fn node(flow: &CreatedFlow, name: &str) -> Result<Execution> {
    flow.node(name).ok_or_else(|| Failure::new(1, "internal", format!("the flow has no node {name}")))
}

/// Shows a stream while it grows.
async fn stream(draft: &Execution, narrator: &Narrator) -> Result<()> {
    narrator.begin(Colour::Cyan, "draft");
    let mut tail = draft.tail();
    while let Some(event) = tail.next().await {
        match event? {
            StreamEvent::Frame(frame) => narrator.token(std::str::from_utf8(&frame.payload.0).unwrap_or("?")),
            StreamEvent::End { .. } => break,
            _ => {}
        }
    }
    narrator.line("");
    Ok(())
}

/// Waits until the review asks, says how to answer, and answers if told to.
async fn approve(client: &Client, review: &Execution, narrator: &Narrator, auto_approve: bool) -> Result<()> {
    let mut tail = review.tail();
    loop {
        match tail.next().await.transpose()? {
            Some(StreamEvent::Paused { reason: BlockingReason::WaitingForApproval, detail, .. }) => {
                narrator.step(
                    Colour::Magenta,
                    "suspended",
                    &format!("review waits for a person, without a worker: {detail}"),
                );
                break;
            }
            Some(StreamEvent::End { .. }) | None => return Ok(()),
            Some(_) => {}
        }
    }
    let id = review.id();
    narrator.elsewhere();
    narrator.command(&format!("approve {id}"), "say yes (or reject)");
    narrator.command(&format!("explain {id}"), "why is it not running");
    narrator.command("ls", "what there is");
    if let Some(waitpoint) = review.pending_waitpoints().await?.first() {
        let args = get_waitpoint_token::Args { execution_id: id, waitpoint_id: waitpoint.waitpoint_id };
        let token = client.call::<GetWaitpointToken>(args).await?.token;
        narrator.step(
            Colour::Magenta,
            "or",
            "with the token of this one waitpoint, which is all the authority it takes:",
        );
        narrator.signal(&id, &waitpoint.waitpoint_id, &token.0);
    }
    if auto_approve {
        narrator.step(Colour::Magenta, "approved", "by --auto-approve");
        return send(review, "auto-approve").await;
    }
    if std::io::stdin().is_terminal() {
        narrator.step(Colour::Magenta, "or", "press Enter to approve");
        let pressed = super::enter_pressed();
        let pressed = async {
            if pressed.await.is_err() {
                std::future::pending::<()>().await
            }
        };
        tokio::select! {
            ended = review.wait() => drop(ended?),
            () = pressed => send(review, "enter").await?,
        }
    }
    Ok(())
}

async fn send(review: &Execution, who: &str) -> Result<()> {
    match review.signal("approve").source("person", who).send().await {
        Ok(_) => Ok(()),
        // Another caller was faster.
        Err(SdkError::Refused(error)) if error.code.class() == flowfabric::Class::Conflict => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The end of the flow, and what it cost.
async fn close(client: &Client, flow: &CreatedFlow, narrator: &Narrator, started: Instant) -> Result<()> {
    let state = client.flow(flow.id()).await?.state;
    let budget = client.budget(BUDGET).await?;
    let used = budget.usage.get("tokens").copied().unwrap_or_default();
    let soft = if used > SOFT_TOKENS { format!(", past the soft limit of {SOFT_TOKENS}") } else { String::new() };
    narrator.step(Colour::Yellow, "budget", &format!("{BUDGET}: {used} of {HARD_TOKENS} tokens{soft}"));
    let seconds = started.elapsed().as_secs_f64();
    narrator.step(Colour::Green, state.as_str(), &format!("the flow, {seconds:.1} s after the start"));
    Ok(())
}

fn try_next(narrator: &Narrator, flow: &CreatedFlow, draft: &Execution, review: &Execution) {
    narrator.elsewhere();
    narrator.command(&format!("flow get {}", flow.id()), "the flow as a tree");
    narrator.command(&format!("tail {}", draft.id()), "the stream, again");
    narrator.command(&format!("get {} --attempts", review.id()), "one attempt, two leases");
    narrator.command(&format!("budget get {BUDGET}"), "what was spent");
    narrator.command("worker --kind shout -- tr a-z A-Z", "any program is a worker");
    narrator.command("submit shout '\"hello\"' --wait", "work for it");
}
