//! Lists the waitpoints of an execution that take signals, without their tokens.

use std::collections::BTreeSet;

use ff_core::op::ListPendingWaitpoints;
use ff_core::op::list_pending_waitpoints::{Args, Outcome};
use ff_core::waitpoint::Waitpoint;
use ff_core::{Key, Result, TokenSubject, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::engine::{Caller, Engine, Handle};

impl Handle<ListPendingWaitpoints> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        let suspension = execution.suspension.as_ref();
        let active: Vec<Key> = suspension
            .map(|suspension| suspension.waitpoints.iter().map(Waitpoint::key_of).collect())
            .unwrap_or_default();
        let pending = Scan::first(index::pending_waitpoints(execution.id.uuid), limits::PAGE_MAX).with_documents();
        let queries = vec![Query::Documents(active), Query::Scan(pending)];
        let answers = self.read(args.execution_id.partition(), queries).await?;
        let mut found = Vec::new();
        for answer in answers.answers {
            match answer {
                Answer::Documents(documents) => found.extend(documents.into_iter().flatten()),
                Answer::Scan(page) => found.extend(page.entries.into_iter().filter_map(|entry| entry.document)),
                _ => {}
            }
        }
        let secrets = self.waitpoint_secrets().await?;
        let mut items = Vec::with_capacity(found.len());
        let mut seen = BTreeSet::new();
        for waitpoint in found.iter().filter_map(|stored| self.readable::<Waitpoint>(stored)) {
            // Those of the journal buffer until their entry or their generation ends.
            let over = waitpoint
                .generation
                .is_some_and(|generation| generation != execution.generation || execution.is_terminal());
            // One of a parked execution is found twice: it is waited for, and it is pending.
            if over || waitpoint.check_open(answers.at).is_err() || !seen.insert(waitpoint.id) {
                continue;
            }
            let token = secrets.sign(&TokenSubject::from(&waitpoint))?;
            items.extend(waitpoint.info(suspension, token.kid().to_owned(), token.fingerprint()));
        }
        Ok(Outcome { items })
    }
}
