//! `ff mcp`: serves an agent host over standard input and output.

use ff_core::op::{Operation, OperationInfo};
use ff_mcp::{Deployment, Server};
use flowfabric::{Client, Code, Engine, Error, SdkError};

use crate::failure::{Failure, Result};
use crate::session::Session;

/// The arguments of `ff mcp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A host starts this command and speaks the Model Context Protocol with it. Kinds of work that workers described when they
registered are tools; a call is an execution, which goes on when the host ends.

Examples:
  ff mcp --server https://flows.example.com --token-file token
  ff mcp --server sqlite://./flowfabric.db --no-operator-tools")]
pub(crate) struct Arguments {
    /// Offer only the tools of workers, and not those that operate the deployment
    #[arg(long)]
    no_operator_tools: bool,
}

/// Serves the host until it hangs up.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    // A server that restarts in the middle of a call is waited for.
    let session = session.patient().await?;
    let reached = Reached { client: session.client, operator_tools: !arguments.no_operator_tools };
    ff_mcp::stdio::serve(Server::new(reached)).await.map_err(|error| Failure::new(1, "mcp", error.to_string()))
}

/// A deployment through the SDK's client.
#[derive(Clone)]
struct Reached {
    client: Client,
    operator_tools: bool,
}

impl Deployment for Reached {
    async fn call<O: Operation>(&self, args: O::Args) -> ff_core::Result<O::Outcome>
    where
        Engine: flowfabric::Serves<O>,
    {
        self.client.call::<O>(args).await.map_err(refused)
    }

    fn offers(&self, _operation: &OperationInfo) -> bool {
        self.operator_tools
    }

    /// The client gives each call an identity of its own, under which it repeats it after a lost answer.
    fn with_key(&self, _key: &str) -> Self {
        self.clone()
    }
}

fn refused(error: SdkError) -> Error {
    match error {
        SdkError::Refused(error) => error,
        SdkError::Unreachable(why) => Error::new(Code::Unavailable, why),
        other => Error::new(Code::Internal, other.to_string()),
    }
}
