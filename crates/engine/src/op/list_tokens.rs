//! Lists API tokens by name, without their secrets.

use ff_core::op::ListTokens;
use ff_core::op::list_tokens::{Args, Outcome};
use ff_core::{ApiToken, Partition, Result, index, limits};
use ff_store::Scan;

use crate::cursor;
use crate::engine::{Caller, Engine, Handle};

impl Handle<ListTokens> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let limit = self.limits().page(args.limit)?;
        // The cursor is the last name: it leads to the last entry also when that is gone.
        let last = cursor::decode::<String>(args.cursor.as_deref())?;
        let mut after = last.map(|name| (index::name_score(&name), ApiToken::key_of(&name)));
        let mut items = Vec::new();
        loop {
            let scan = Scan { after: after.take(), ..Scan::first(ApiToken::listing(), limits::PAGE_MAX) };
            let page = self.store().scan(Partition::SYSTEM, scan.with_documents()).await?;
            let whole = page.entries.len() == limits::PAGE_MAX;
            for entry in page.entries {
                after = Some((entry.score, entry.member.clone()));
                let Some(stored) = entry.document else { continue };
                let Some(token) = self.readable::<ApiToken>(&stored) else { continue };
                if !caller.sees(&token.namespace) {
                    continue;
                }
                if items.len() == limit {
                    let next_cursor = items.last().map(|last: &ff_core::ApiTokenInfo| cursor::encode(&last.name));
                    return Ok(Outcome { items, next_cursor });
                }
                items.push(token.info());
            }
            if !whole {
                return Ok(Outcome { items, next_cursor: None });
            }
        }
    }
}
