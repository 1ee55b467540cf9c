//! Substitutes for ids that are taken. The ids of waitpoints and children derive from an entry of the journal and are
//! no secret, so that another caller may have created something under one. The waitpoint or child of the entry then
//! lives under a random id, which the engine keeps under the derived one: no caller can choose it, and every later call
//! finds it.

use ff_core::idempotency::Identity;
use ff_core::{ExecutionId, Result, limits};
use uuid::Uuid;

use crate::env;
use crate::transaction::Tx;

fn identity(execution: &ExecutionId, taken: Uuid) -> Identity {
    Identity::new("substitute", &[execution.uuid.as_bytes(), taken.as_bytes()], limits::DURATION_MAX_MS)
}

/// The id that stands for a taken one of this execution, if there is one.
pub(crate) async fn find(tx: &mut Tx<'_>, execution: &ExecutionId, taken: Uuid) -> Result<Option<Uuid>> {
    let kept = tx.kept_answer::<[u8; 16]>(&identity(execution, taken)).await?;
    Ok(kept.map(Uuid::from_bytes))
}

/// Finds or mints the substitute; a new one is kept in the transaction's commit.
pub(crate) async fn find_or_mint(tx: &mut Tx<'_>, execution: &ExecutionId, taken: Uuid) -> Result<Uuid> {
    if let Some(found) = find(tx, execution, taken).await? {
        return Ok(found);
    }
    let minted = env::mint(tx.transactor.env(), tx.now).uuid();
    tx.keep_answer(&identity(execution, taken), minted.as_bytes());
    Ok(minted)
}
