//! `ff flow`: graphs of executions.

mod tree;

use ff_core::{FlowState, limits};
use flowfabric::op::{CreateFlow, RemoveFlow, create_flow, list_flows, remove_flow};
use flowfabric::{CancelFlowPolicy, CancelFlowResult, FlowId, FlowView, GraphView, SdkError};

use crate::failure::Result;
use crate::flow_file;
use crate::input::{Source, one_of};
use crate::output::{Cell, Output, Style, Table, flow_state};
use crate::progress::Spinner;
use crate::session::Session;
use crate::watch::{self, View, Watch};

/// The arguments of `ff flow`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff flow submit report.yaml
  ff flow get ID --watch
  ff flow ls --state running
  ff flow cancel ID --wait")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Submit a whole graph from YAML or JSON
    #[command(after_help = "\
Examples:
  ff flow submit report.yaml
  ff flow submit - < report.json
  ff flow submit report.yaml --key nightly-2026-11-15
  ff flow submit report.yaml --check      only look for mistakes

A file:
  kind: report
  nodes:
    fetch:  { kind: fetch, input: { url: https://example.com } }
    render: { kind: render, after: [fetch] }
    mail:   { kind: mail, after: [{ node: render, as: page }], lane: slow }")]
    Submit(Submit),
    /// Show a flow as a tree with states
    #[command(
        after_help = "Examples:\n  ff flow get ID\n  ff flow get ID --watch\n  ff flow get ID -o json | jq '.nodes[] | {node, public_state}'"
    )]
    Get(Get),
    /// List flows, newest first
    #[command(after_help = "Examples:\n  ff flow ls\n  ff flow ls --state failed --tag team=data")]
    Ls(Ls),
    /// Cancel a flow; none of its members starts afterwards
    #[command(after_help = "\
Examples:
  ff flow cancel ID --reason 'wrong input'
  ff flow cancel ID --policy cancel_pending --wait")]
    Cancel(Cancel),
    /// Remove a flow that has ended, with its members
    #[command(after_help = "Examples:\n  ff flow rm ID")]
    Rm {
        /// The flow
        #[arg(value_name = "ID")]
        flow_id: FlowId,
    },
}

#[derive(Debug, clap::Args)]
struct Submit {
    /// A file of YAML or JSON, or - for standard input
    #[arg(value_name = "FILE", value_parser = Source::file)]
    file: Source,
    /// The same key means the same flow
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Look for mistakes and submit nothing; needs no server
    #[arg(long)]
    check: bool,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// The flow
    #[arg(value_name = "ID")]
    flow_id: FlowId,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Only flows in this state
    #[arg(long, value_parser = one_of!(FlowState))]
    state: Option<FlowState>,
    /// Only flows of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only with this tag
    #[arg(long, value_name = "KEY=VALUE")]
    tag: Option<String>,
    /// How many at the most
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Where the last page ended
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, clap::Args)]
struct Cancel {
    /// The flow
    #[arg(value_name = "ID")]
    flow_id: FlowId,
    /// Which members it concerns
    #[arg(long, value_parser = one_of!(CancelFlowPolicy), default_value = "cancel_all")]
    policy: CancelFlowPolicy,
    /// Why
    #[arg(long, default_value = "")]
    reason: String,
    /// Wait until the members have followed
    #[arg(long, short)]
    wait: bool,
}

impl Arguments {
    /// The file to look for mistakes in, if that is all there is to do.
    pub(crate) fn check(&self) -> Option<&Source> {
        match &self.verb {
            Verb::Submit(submit) if submit.check => Some(&submit.file),
            _ => None,
        }
    }
}

/// Looks for mistakes in a file.
pub(crate) fn check(out: &Output, file: &Source) -> Result<()> {
    let args = flow_file::read(file)?;
    args.graph().map_err(SdkError::from)?;
    let answer = serde_json::json!({ "nodes": args.nodes.len(), "edges": args.edges.len() });
    let text = format!("{} nodes and {} edges, no mistakes found", args.nodes.len(), args.edges.len());
    out.answer(&answer, |_| text)
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    match arguments.verb {
        Verb::Submit(submit) => self::submit(&session, submit).await,
        Verb::Get(get) => watch::show(session, get.watch, &get).await,
        Verb::Ls(ls) => watch::show(session, ls.watch, &ls).await,
        Verb::Cancel(cancel) => self::cancel(session, cancel).await,
        Verb::Rm { flow_id } => {
            let answer = session.client.call::<RemoveFlow>(remove_flow::Args { flow_id }).await?;
            session.out.answer(&answer, |_| format!("{flow_id} is removed"))
        }
    }
}

async fn submit(session: &Session, arguments: Submit) -> Result<()> {
    let mut args = flow_file::read(&arguments.file)?;
    args.idempotency_key = arguments.key;
    let answer = session.client.call::<CreateFlow>(args).await?;
    if matches!(answer, create_flow::Outcome::AlreadyExists { .. }) {
        session.out.note("It was there already.");
    }
    session.out.answer(&answer, |_| answer.flow_id().map(|id| id.to_string()).unwrap_or_default())
}

async fn cancel(session: Session, arguments: Cancel) -> Result<()> {
    let session = if arguments.wait { session.patient().await? } else { session };
    let Cancel { flow_id, policy, reason, wait } = arguments;
    let spinner = Spinner::start(&session.out, format!("cancelling {flow_id}"));
    let cancelled = session.client.cancel_flow(flow_id, policy, reason, wait).await;
    drop(spinner);
    let answer = cancelled?;
    session.out.answer(&answer, |_| match &answer {
        CancelFlowResult::CancellationScheduled { policy, member_count, .. } => {
            format!("{flow_id} is cancelled ({policy}); its {member_count} members follow")
        }
        CancelFlowResult::AlreadyTerminal { state, member_count, .. } => {
            format!("the flow had ended before: {state}, {member_count} members")
        }
        CancelFlowResult::Cancelled { policy, member_count, members, failed } => {
            let failed = if failed.is_empty() { String::new() } else { format!(", {} could not be", failed.len()) };
            // The answer lists so many at most.
            let listed_all = members.len() < limits::FLOW_CANCEL_LISTED_MAX;
            let of = if listed_all { String::new() } else { format!(" or more of its {member_count}") };
            format!("{flow_id} is cancelled ({policy}) with {}{of} members{failed}", members.len())
        }
        CancelFlowResult::Unknown(variant) => format!("{flow_id}: {}", variant.json()),
    })
}

impl View for Get {
    type Answer = GraphView;

    async fn fetch(&self, session: &Session) -> Result<Self::Answer> {
        Ok(session.client.flow_graph(self.flow_id).await?)
    }

    fn text(&self, answer: &Self::Answer, style: Style) -> String {
        tree::text(answer, style)
    }

    fn is_final(&self, answer: &Self::Answer) -> bool {
        answer.flow.ended_at.is_some()
    }
}

impl View for Ls {
    type Answer = list_flows::Outcome;

    async fn fetch(&self, session: &Session) -> Result<Self::Answer> {
        let filter = list_flows::Args {
            namespace: None,
            kind: self.kind.clone(),
            state: self.state,
            tag: self.tag.clone(),
            cursor: self.cursor.clone(),
            limit: Some(self.limit),
        };
        Ok(session.client.list_flows(filter).await?)
    }

    fn text(&self, answer: &Self::Answer, style: Style) -> String {
        let mut text = table(&answer.items, style);
        if let Some(cursor) = &answer.next_cursor {
            text.push_str(&format!("\n\nThere are more: --cursor {cursor}."));
        }
        text
    }

    fn is_final(&self, _: &Self::Answer) -> bool {
        false
    }
}

fn table(flows: &[FlowView], style: Style) -> String {
    let mut table = Table::new(["FLOW", "STATE", "KIND", "ENDED", "CREATED"]);
    for flow in flows {
        table.row([
            Cell::of(flow.flow_id),
            Cell::coloured(flow.state, flow_state(flow.state)),
            Cell::maybe(flow.kind.as_ref()),
            Cell::of(format!("{}/{}", flow.counts.ended(), flow.member_count)),
            Cell::at(flow.created_at),
        ]);
    }
    table.text(style, "There are no such flows.")
}
