//! `ff worker`: sees and removes workers.

use flowfabric::WorkerView;
use flowfabric::op::{DeregisterWorker, ListWorkers, deregister_worker, list_workers};

use crate::command::pages;
use crate::failure::Result;
use crate::output::{Cell, Style, Table};
use crate::session::Session;

/// What the command takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff worker ls
  ff worker ls --lane gpu
  ff worker rm worker-7f3a")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List live workers
    #[command(
        after_help = "Examples:\n  ff worker ls --lane gpu\n  ff worker ls -o json | jq '[.items[].leases_held] | add'"
    )]
    Ls {
        /// Only those that serve this lane
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
    match arguments.verb {
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
    let mut table = Table::new(["INSTANCE", "WORKER", "LANES", "CAPABILITIES", "LEASES", "VERSION", "HEARTBEAT"]);
    for worker in workers {
        table.row([
            Cell::of(&worker.instance_id),
            Cell::of(&worker.worker_id),
            Cell::list(&worker.lanes),
            Cell::list(worker.capabilities.tokens()),
            Cell::of(format!("{}/{}", worker.leases_held, worker.capacity)),
            Cell::maybe(Some(&worker.version)),
            Cell::at(worker.last_heartbeat_at),
        ]);
    }
    table.text(style, "There are no live workers.")
}
