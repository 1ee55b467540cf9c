//! Kinds of work that agents may call.

use ff_core::op::parts::Removed;
use ff_core::op::{DeleteTool, DeleteToolArgs, ListTools, ListToolsArgs, ListToolsOutcome};
use ff_core::tool::Tool;
use ff_core::{Code, Partition, Result};

use crate::caller::Caller;
use crate::cursor;
use crate::named_documents::{RemoveNamed, page};
use crate::op::Handle;
use crate::services::Services;

/// Lists tools by name. A caller that is limited to lanes sees those that it may submit to.
impl Handle<ListTools> for Services {
    async fn handle(&self, caller: &Caller, args: ListToolsArgs) -> Result<ListToolsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let tools = match &args.kind {
            Some(kind) => self
                .transactor
                .find::<Tool>(Partition::SYSTEM, Tool::key_of(&namespace, kind))
                .await?
                .into_iter()
                .collect(),
            None => {
                let partitions = vec![Partition::SYSTEM];
                self.transactor
                    .named_after::<Tool>(partitions, &namespace, cursor.as_deref(), |tool| &tool.kind)
                    .await?
            }
        };
        let reached: Vec<_> = tools.iter().filter(|tool| caller.reaches(&tool.lane)).map(Tool::view).collect();
        let (items, next_cursor) = page(reached, limit, |tool| &tool.kind);
        Ok(ListToolsOutcome { items, next_cursor })
    }
}

impl Handle<DeleteTool> for Services {
    async fn handle(&self, caller: &Caller, args: DeleteToolArgs) -> Result<Removed> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        caller.check_every_lane()?;
        let identity = self.transactor.identity::<DeleteTool>(caller, &args, None);
        let verb = RemoveNamed::<Tool>::new(Tool::key_of(&namespace, &args.kind), &args.kind, Code::ToolNotFound);
        self.transactor.transact_once(Partition::SYSTEM, identity, &verb).await
    }
}
