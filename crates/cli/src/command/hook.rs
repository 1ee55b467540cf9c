//! `ff hook`: messages from outside that lead to work.

use flowfabric::op::{HookSignal, HookTarget, HookView, create_hook, list_hooks};
use flowfabric::{HookScheme, Secret};

use crate::failure::Result;
use crate::flow_file;
use crate::input::{Source, one_of};
use crate::output::{Cell, Style, Table};
use crate::session::Session;

/// The arguments of `ff hook`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff hook create pushes --scheme github --secret-file secret.txt --kind build --lane ci
  ff hook create payments --signal paid --correlation-id /data/order
  ff hook ls
  ff hook rm pushes

Messages are posted to /v1/hooks/NAME of the server, with ?namespace=NAMESPACE where that is not the default one.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a hook; the same definition again is the same hook
    #[command(after_help = "\
Examples:
  ff hook create pushes --scheme github --secret-file secret.txt --kind build
  ff hook create nightly --flow report.yaml
  ff hook create payments --signal paid --correlation-id /data/order --tag order

A secret that the server makes is shown this once.")]
    Create(Box<Create>),
    /// List hooks
    #[command(after_help = "Examples:\n  ff hook ls\n  ff hook ls -o json | jq -r '.items[].name'")]
    Ls,
    /// Show a hook
    #[command(after_help = "Examples:\n  ff hook get pushes\n  ff hook get pushes -o json | jq .target")]
    Get {
        /// The hook
        name: String,
    },
    /// Remove a hook: messages to it are refused from then on
    #[command(after_help = "Examples:\n  ff hook rm pushes")]
    Rm {
        /// The hook
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name, unique in the namespace; part of the address
    name: String,
    /// How its sender signs [default: standard]
    #[arg(long, value_parser = one_of!(HookScheme))]
    scheme: Option<HookScheme>,
    /// A file with the secret that messages are signed with, or - for standard input [default: a random one]
    #[arg(long, value_name = "FILE", value_parser = Source::file)]
    secret_file: Option<Source>,
    /// Each message is an execution of this kind, whose input is the body
    #[arg(long, required_unless_present_any = ["flow", "signal"])]
    kind: Option<String>,
    /// The lane of these executions [default: default]
    #[arg(long, requires = "kind")]
    lane: Option<String>,
    /// Each message is a flow, as this file describes it
    #[arg(long, value_name = "FILE", value_parser = Source::file, conflicts_with = "kind")]
    flow: Option<Source>,
    /// Each message is a signal of this name to an execution that waits
    #[arg(long, value_name = "NAME", conflicts_with_all = ["kind", "flow"], requires = "correlation_id")]
    signal: Option<String>,
    /// Where in the body the value stands that leads to the execution
    #[arg(long, value_name = "POINTER", requires = "signal")]
    correlation_id: Option<String>,
    /// The tag of the execution that has this value [default: correlation_id]
    #[arg(long, value_name = "KEY", requires = "signal")]
    tag: Option<String>,
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    match arguments.verb {
        Verb::Create(hook) => create(&session, *hook).await,
        Verb::Ls => {
            let items = session.client.list_hooks().await?;
            let answer = list_hooks::Outcome { items, next_cursor: None };
            session.out.answer(&answer, |style| table(&answer.items, style))
        }
        Verb::Get { name } => {
            let hook = session.client.get_hook(&name).await?;
            session.out.answer(&hook, |style| table(std::slice::from_ref(&hook), style))
        }
        Verb::Rm { name } => {
            let answer = session.client.delete_hook(&name).await?;
            session.out.answer(&answer, |_| format!("{name} is removed"))
        }
    }
}

async fn create(session: &Session, hook: Create) -> Result<()> {
    let target = match (hook.signal, hook.flow, hook.kind) {
        (Some(name), _, _) => {
            let correlation_id = hook.correlation_id.unwrap_or_default();
            HookTarget::Signal(HookSignal { correlation_id, tag: hook.tag, name })
        }
        (None, Some(file), _) => HookTarget::Flow(Box::new(flow_file::read(&file)?)),
        (None, None, kind) => HookTarget::Execution(Box::new(flowfabric::op::create_execution::Args {
            kind: kind.unwrap_or_default(),
            lane: hook.lane,
            ..Default::default()
        })),
    };
    let secret = hook.secret_file.as_ref().map(Source::read_text).transpose()?;
    let secret = secret.map(|secret| Secret(secret.trim().to_owned()));
    let args = create_hook::Args { name: hook.name.clone(), namespace: None, scheme: hook.scheme, secret, target };
    let answer = session.client.create_hook(args).await?;
    if let create_hook::Outcome::Created { secret: Some(_), .. } = &answer {
        session.out.note("The secret is shown this once:");
    }
    session.out.answer(&answer, |_| match &answer {
        create_hook::Outcome::Created { secret: Some(secret), .. } => secret.0.clone(),
        create_hook::Outcome::Created { .. } => format!("{} is created", hook.name),
        create_hook::Outcome::AlreadyExists { .. } => format!("{} was there before, just so", hook.name),
        create_hook::Outcome::Unknown(variant) => variant.json().to_owned(),
    })
}

fn table(hooks: &[HookView], style: Style) -> String {
    let mut table = Table::new(["HOOK", "SCHEME", "TARGET", "CREATED", "BY"]);
    for hook in hooks {
        let target = match &hook.target {
            HookTarget::Execution(request) => format!("creates {}", request.kind),
            HookTarget::Flow(request) => format!("creates a flow of {}", request.nodes.len()),
            HookTarget::Signal(signal) => {
                format!("signals {} by {}={}", signal.name, signal.tag(), signal.correlation_id)
            }
            HookTarget::Unknown(variant) => variant.json().to_owned(),
        };
        table.row([
            Cell::of(&hook.name),
            Cell::of(hook.scheme),
            Cell::of(target),
            Cell::at(hook.created_at),
            Cell::maybe(Some(&hook.created_by).filter(|by| !by.is_empty())),
        ]);
    }
    table.text(style, "There are no hooks.")
}
