//! `ff approve` and `ff reject`: decide what waits for a person.
//!
//! Both are a signal with a name. Before it is sent, the names that the execution waits for are looked up, so that a
//! decision that no execution waits for is told and not lost.

use std::io::{BufRead, IsTerminal, Write};

use flowfabric::op::{ApprovalView, list_approvals};
use flowfabric::{BudgetQuestionView, ExecutionId, ExecutionView, SignalOutcome};
use serde::Serialize;

use crate::command::signal;
use crate::failure::{self, Failure, Result};
use crate::input::{Payload, SOURCE, Source};
use crate::output::{Cell, Style, Table};
use crate::session::Session;

const REJECT: &str = "reject";

/// The arguments of `ff approvals`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff approvals                          what waits for people
  ff approvals -o json | jq -r '.items[].execution_id'")]
pub(crate) struct Approvals {}

/// The arguments of `ff approve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff approve                            list what waits, choose, confirm
  ff approve --list                     only list
  ff approve ID --yes                   without a question
  ff approve ID --yes --payload '{\"comment\": \"looks good\"}'
  ff approve ID --signal release        the name it waits for, if that is not `approve`")]
pub(crate) struct Approve {
    #[command(flatten)]
    decision: Decision,
    /// The signal to send
    #[arg(long, value_name = "NAME", default_value = "approve")]
    signal: String,
}

/// The arguments of `ff reject`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff reject                             list what waits, choose, confirm
  ff reject ID --yes --payload '{\"reason\": \"too expensive\"}'
  ff reject ID --signal deny            the name it waits for, if that is not `reject`

The execution must wait for a signal of this name; one that does not can be cancelled: `ff cancel ID`.")]
pub(crate) struct Reject {
    #[command(flatten)]
    decision: Decision,
    /// The signal to send
    #[arg(long, value_name = "NAME", default_value = "reject")]
    signal: String,
}

#[derive(Debug, clap::Args)]
struct Decision {
    /// The execution; without it, choose from a list
    #[arg(value_name = "ID")]
    execution_id: Option<ExecutionId>,
    /// Only list what waits
    #[arg(long, conflicts_with_all = ["execution_id", "yes"])]
    list: bool,
    /// Ask nothing
    #[arg(long, short)]
    yes: bool,
    /// The payload of the signal: JSON, @FILE, or - for standard input
    #[arg(long, value_name = SOURCE)]
    payload: Option<Source>,
    /// The name of the person that decides [default: the user's name]
    #[arg(long = "as", value_name = "NAME", env = "USER", hide_env = true)]
    source: Option<String>,
}

#[derive(Debug, Serialize)]
struct Pending {
    execution_id: ExecutionId,
    kind: String,
    /// The question for people.
    question: Option<String>,
    /// A detail of the wait, for people.
    detail: Option<String>,
    /// Signals it takes; any when empty.
    signals: Vec<String>,
    suspended_at: Option<i64>,
    timeout_at: Option<i64>,
    assignees: Vec<String>,
    /// The names behind the signals that have counted so far.
    signed: Vec<String>,
    /// People are asked, so a refusal ends it whatever it waits for.
    #[serde(skip)]
    asks: bool,
}

#[derive(Debug, Serialize)]
struct List {
    items: Vec<Pending>,
    /// The questions of budgets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    budgets: Vec<BudgetQuestionView>,
}

#[derive(Debug, Serialize)]
struct Decided {
    execution_id: ExecutionId,
    signal: String,
    #[serde(flatten)]
    outcome: SignalOutcome,
}

/// Lists what waits for people.
pub(crate) async fn list(session: Session, _: Approvals) -> Result<()> {
    let list = pending(&session).await?;
    session.out.answer(&list, |style| text(&list, style))
}

/// Approves.
pub(crate) async fn approve(session: Session, arguments: Approve) -> Result<()> {
    decide(session, arguments.decision, arguments.signal).await
}

/// Rejects.
pub(crate) async fn reject(session: Session, arguments: Reject) -> Result<()> {
    decide(session, arguments.decision, arguments.signal).await
}

async fn decide(session: Session, decision: Decision, signal: String) -> Result<()> {
    let payload = Payload::read(decision.payload.as_ref(), None)?;
    let pending = match decision.execution_id {
        Some(id) => pending_of(&session, id).await?,
        None => {
            let list = pending(&session).await?;
            if decision.list || list.items.is_empty() {
                return session.out.answer(&list, |style| text(&list, style));
            }
            choose(&session, list)?
        }
    };
    check_name(&pending, &signal)?;
    if !decision.yes && !confirm(&format!("Send {signal:?} to {} ({})?", pending.execution_id, pending.kind))? {
        return Err(Failure::new(failure::NOT_CONFIRMED, "not_confirmed", "nothing was sent"));
    }
    let sending = session.client.execution(pending.execution_id).signal(&signal).with(|args| {
        args.payload = payload.json;
        args.source_type = decision.source.is_some().then(|| "person".to_owned());
        args.source_identity = decision.source;
    });
    let answer = Decided { execution_id: pending.execution_id, signal, outcome: sending.send().await? };
    session
        .out
        .answer(&answer, |_| format!("{} {}", answer.execution_id, signal::text(&answer.signal, &answer.outcome)))
}

/// Everything that waits for people, what has waited longest first.
async fn pending(session: &Session) -> Result<List> {
    let (mut items, mut budgets) = (Vec::new(), Vec::new());
    let mut page = list_approvals::Args::default();
    loop {
        let found = session.client.approvals(page.clone()).await?;
        items.extend(found.items.into_iter().map(Pending::from));
        budgets.extend(found.budgets);
        match found.next_cursor {
            Some(cursor) => page.cursor = Some(cursor),
            None => return Ok(List { items, budgets }),
        }
    }
}

async fn pending_of(session: &Session, id: ExecutionId) -> Result<Pending> {
    let asked = list_approvals::Args { execution_id: Some(id), ..Default::default() };
    if let Some(found) = session.client.approvals(asked).await?.items.into_iter().next() {
        return Ok(found.into());
    }
    let view = session.client.execution(id).get().await?;
    if view.suspension.is_none() {
        let message = format!("{id} is {}: it waits for no decision", view.public_state);
        return Err(Failure::of(flowfabric::Code::ExecutionNotSuspended, message));
    }
    describe(session, view).await
}

impl From<ApprovalView> for Pending {
    fn from(view: ApprovalView) -> Self {
        Self {
            execution_id: view.execution_id,
            kind: view.kind,
            question: view.question,
            detail: view.detail,
            signals: view.signals,
            suspended_at: Some(view.since),
            timeout_at: view.deadline,
            assignees: view.assignees,
            signed: view.signed.into_iter().map(|one| one.by.unwrap_or(one.name)).collect(),
            asks: true,
        }
    }
}

async fn describe(session: &Session, view: ExecutionView) -> Result<Pending> {
    let waitpoints = session.client.execution(view.execution_id).pending_waitpoints().await?;
    let mut signals: Vec<String> = waitpoints.into_iter().flat_map(|waitpoint| waitpoint.required_names).collect();
    signals.sort_unstable();
    signals.dedup();
    Ok(Pending {
        execution_id: view.execution_id,
        kind: view.kind,
        detail: view.blocking_detail,
        signals,
        question: None,
        assignees: Vec::new(),
        signed: Vec::new(),
        asks: false,
        suspended_at: view.suspension.as_ref().map(|suspension| suspension.suspended_at),
        timeout_at: view.suspension.and_then(|suspension| suspension.timeout_at),
    })
}

fn check_name(pending: &Pending, signal: &str) -> Result<()> {
    let refusal = pending.asks && signal == REJECT;
    if refusal || pending.signals.is_empty() || pending.signals.iter().any(|name| name == signal) {
        return Ok(());
    }
    let id = pending.execution_id;
    let names = pending.signals.join(", ");
    let message = format!("{id} does not wait for {signal:?} but for: {names}");
    let advice = format!("Name one with --signal, or end it with `ff cancel {id}`.");
    Err(Failure::new(ff_core::Class::Conflict.exit_code(), "signal_not_awaited", message).advice(advice))
}

fn text(list: &List, style: Style) -> String {
    let mut table = Table::new(["#", "EXECUTION", "KIND", "QUESTION", "SIGNALS", "FOR", "SIGNED", "SINCE", "GIVES UP"]);
    for (number, item) in list.items.iter().enumerate() {
        table.row([
            Cell::of(number + 1),
            Cell::of(item.execution_id),
            Cell::of(&item.kind),
            Cell::maybe(item.question.as_ref().or(item.detail.as_ref())),
            Cell::list(&item.signals),
            Cell::list(&item.assignees),
            Cell::list(&item.signed),
            Cell::maybe_at(item.suspended_at),
            Cell::maybe_at(item.timeout_at),
        ]);
    }
    match (list.items.is_empty(), list.budgets.is_empty()) {
        (_, true) => table.text(style, "Nothing waits for a decision."),
        (true, false) => questions(&list.budgets, style),
        (false, false) => format!("{}\n\n{}", table.text(style, ""), questions(&list.budgets, style)),
    }
}

/// The questions of budgets, and how they are answered.
fn questions(budgets: &[BudgetQuestionView], style: Style) -> String {
    let mut table = Table::new(["BUDGET", "DIMENSION", "ASKED FOR", "LEFT", "LIMIT", "SINCE", "EXECUTION"]);
    for question in budgets {
        table.row([
            Cell::of(&question.budget),
            Cell::of(&question.dimension),
            Cell::maybe((question.requested > 0).then_some(question.requested)),
            Cell::of(question.left),
            Cell::of(question.limit),
            Cell::at(question.since),
            Cell::maybe(question.execution_id),
        ]);
    }
    let answers = "`ff budget grant BUDGET DIMENSION=AMOUNT` or `ff budget decline BUDGET` answers.";
    format!("{}\n{answers}", table.text(style, ""))
}

/// Shows the list and asks for one of it.
fn choose(session: &Session, mut list: List) -> Result<Pending> {
    if session.out.is_json() {
        return Err(no_terminal().advice("Name the execution; `--list -o json` lists what waits."));
    }
    eprintln!("{}", text(&list, session.out.style()));
    let answer = ask(&format!("Which one? [1-{}, nothing to leave]", list.items.len()))?;
    if answer.is_empty() {
        return Err(Failure::new(failure::NOT_CONFIRMED, "not_confirmed", "nothing was chosen, nothing was sent"));
    }
    let number: usize = answer.parse().unwrap_or(0);
    if !(1..=list.items.len()).contains(&number) {
        return Err(Failure::usage(format!("{answer:?} is no number from 1 to {}", list.items.len())));
    }
    Ok(list.items.swap_remove(number - 1))
}

fn confirm(question: &str) -> Result<bool> {
    let answer = ask(&format!("{question} [y/N]"))?;
    Ok(matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Asks on standard error, so that standard output holds the answer alone.
fn ask(question: &str) -> Result<String> {
    let mut err = std::io::stderr();
    write!(err, "{question} ")?;
    err.flush()?;
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        let _ = writeln!(err);
        return Err(no_terminal());
    }
    if !std::io::stdin().is_terminal() {
        let _ = writeln!(err);
    }
    Ok(line.trim().to_owned())
}

fn no_terminal() -> Failure {
    Failure::new(failure::NOT_CONFIRMED, "not_confirmed", "there is no terminal to ask at, nothing was sent")
        .advice("Name the execution and give --yes.")
}
