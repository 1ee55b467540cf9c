//! `ff worker`: runs a program as a worker, sees and removes workers.

use flowfabric::WorkerView;
use flowfabric::op::{DeregisterWorker, ListWorkers, deregister_worker, list_workers};

use crate::command::pages;
use crate::failure::Result;
use crate::output::{Cell, Style, Table};
use crate::session::Session;
use crate::worker::{self, TABLE};

/// The arguments of `ff worker`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = format!("\
The program reads the input of a task on standard input. Lines on standard error become frames of type `log`. Its
environment says which task it is (FF_TASK_*), and `ff task` streams, reports usage and suspends. SIGTERM means that the
lease is lost or the execution cancelled.

{TABLE}

Examples:
  ff worker --lane media --kind transcode -- ./transcode.sh --fast
  ff worker --kind shout --concurrency 4 -- tr a-z A-Z
  ff worker ls --lane gpu
  ff worker rm worker-7f3a"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    launch: worker::Launch,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List live workers
    #[command(
        after_help = "Examples:\n  ff worker ls --lane gpu\n  ff worker ls -o json | jq '[.items[].leases_held] | add'"
    )]
    Ls {
        /// Only workers that serve this lane
        #[arg(long)]
        lane: Option<String>,
    },
    /// Remove the registration of a worker process that is gone
    #[command(after_help = "Examples:\n  ff worker rm worker-7f3a\n\nIts leases run out by themselves.")]
    Rm {
        /// The process, as `ff worker ls` shows it
        instance: String,
    },
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let Some(verb) = arguments.verb else { return worker::run(session, arguments.launch).await };
    match verb {
        Verb::Ls { lane } => {
            let items = pages(async |cursor| {
                let args = list_workers::Args { lane: lane.clone(), cursor, ..Default::default() };
                let page = session.client.call::<ListWorkers>(args).await?;
                Ok((page.items, page.next_cursor))
            });
            let answer = list_workers::Outcome { items: items.await?, next_cursor: None };
            session.out.answer(&answer, |style| text(&answer.items, style))
        }
        Verb::Rm { instance } => {
            let args = deregister_worker::Args { instance_id: instance.clone(), namespace: None, nonce: None };
            let answer = session.client.call::<DeregisterWorker>(args).await?;
            session.out.answer(&answer, |_| {
                if answer.changed { format!("{instance} is removed") } else { format!("{instance} was not registered") }
            })
        }
    }
}

fn text(workers: &[WorkerView], style: Style) -> String {
    let mut table =
        Table::new(["INSTANCE", "WORKER", "LANES", "KINDS", "CAPABILITIES", "LEASES", "VERSION", "HEARTBEAT"]);
    for worker in workers {
        table.row([
            Cell::of(&worker.instance_id),
            Cell::of(&worker.worker_id),
            Cell::list(&worker.lanes),
            Cell::list(&worker.kinds),
            Cell::list(worker.capabilities.tokens()),
            Cell::of(format!("{}/{}", worker.leases_held, worker.capacity)),
            Cell::maybe(Some(&worker.version)),
            Cell::at(worker.last_heartbeat_at),
        ]);
    }
    table.text(style, "There are no live workers.")
}
