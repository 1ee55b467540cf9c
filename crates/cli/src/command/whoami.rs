//! `ff whoami`: which deployment commands go to, and on whose behalf.

use flowfabric::op::{CallerView, GetDeployment, get_deployment};
use serde::Serialize;

use crate::failure::Result;
use crate::output::{Cell, Fields};
use crate::session::Session;

/// The arguments of `ff whoami`: none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff whoami
  ff whoami --profile production
  ff whoami -o json | jq -r .caller.role")]
pub(crate) struct Arguments {}

#[derive(Serialize)]
struct Answer {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<CallerView>,
}

/// Asks the deployment.
pub(crate) async fn run(session: Session, _: Arguments) -> Result<()> {
    let caller = session.client.call::<GetDeployment>(get_deployment::Args {}).await?.caller;
    let answer = Answer { address: session.address(), caller };
    session.out.answer(&answer, |style| {
        let mut fields = Fields::default();
        fields.add("server", Cell::of(&answer.address));
        if let Some(caller) = &answer.caller {
            fields.add("name", Cell::of(&caller.name));
            fields.add("role", Cell::of(caller.role));
            fields.add("namespace", Cell::of(caller.namespace.as_deref().unwrap_or("all")));
            if !caller.lanes.is_empty() {
                fields.add("lanes", Cell::list(&caller.lanes));
            }
        }
        fields.text(style)
    })
}
