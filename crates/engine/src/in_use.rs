//! Whether executions that have not ended use something that is to be deleted.

use ff_core::execution::Execution;
use ff_core::{Code, Error, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::transaction::Transactor;

/// Executions looked at; past it the engine cannot say that none of them uses the thing.
const EXAMINED_MAX: usize = 10_000;

impl Transactor {
    /// Refuses while an execution of the namespace that has not ended fits. It may be submitted a moment later: what is
    /// deleted then is missing, and whatever needs it waits for it to be made again.
    pub(crate) async fn refuse_in_use(
        &self,
        namespace: &str,
        what: &str,
        fits: impl Fn(&Execution) -> bool,
    ) -> Result<()> {
        let mut examined = 0;
        for partition in self.flow_partitions() {
            for state in PublicState::ALL.iter().copied().filter(|state| !state.is_terminal()) {
                let found = self.first_that_fits(partition, index::state(namespace, state), &fits, &mut examined);
                if let Some(execution) = found.await? {
                    let detail = format!("{what} is used by executions that have not ended, such as {}", execution.id);
                    return Err(Error::new(Code::InUse, detail)
                        .with("execution_id", execution.id)
                        .with("public_state", execution.public_state()));
                }
                if examined >= EXAMINED_MAX {
                    let detail = format!(
                        "none of {EXAMINED_MAX} executions that have not ended uses {what}, but there are more"
                    );
                    return Err(Error::new(Code::InUse, detail).with("examined", examined));
                }
            }
        }
        Ok(())
    }

    async fn first_that_fits(
        &self,
        partition: Partition,
        index: ff_core::IndexName,
        fits: &impl Fn(&Execution) -> bool,
        examined: &mut usize,
    ) -> Result<Option<Execution>> {
        let mut after = None;
        while *examined < EXAMINED_MAX {
            let scan = Scan { after, ..Scan::first(index.clone(), limits::PAGE_MAX).with_documents() };
            let page = self.read(partition, vec![Query::Scan(scan)]).await?;
            let page = page.into_only(Answer::into_scan).map_err(Error::from)?;
            let full = page.entries.len() == limits::PAGE_MAX;
            *examined += page.entries.len();
            after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            let documents = page.entries.into_iter().filter_map(|entry| entry.document);
            let found = documents.filter_map(|stored| self.readable::<Execution>(&stored)).find(|one| fits(one));
            if found.is_some() || !full {
                return Ok(found);
            }
        }
        Ok(None)
    }
}
