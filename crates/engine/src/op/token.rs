//! API tokens.

use ff_core::idempotency::Identity;
use ff_core::op::parts::Secret;
use ff_core::op::{
    CreateToken, CreateTokenArgs, CreateTokenOutcome, ListTokens, ListTokensArgs, ListTokensOutcome, RevokeToken,
    RevokeTokenArgs, RevokeTokenOutcome,
};
use ff_core::{ApiSecret, ApiToken, Code, Error, NewApiToken, Partition, Result, index, limits};
use ff_store::Scan;

use crate::caller::Caller;
use crate::cursor;
use crate::env;
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};

/// Creates an API token. Its secret is shown once, and again to a repeat of the call that has its idempotency key.
///
/// The secret of such a call is derived from the key and from random bytes that the record of the call keeps: neither of
/// the two reveals it without the other, and the store holds only one of them.
impl Handle<CreateToken> for Services {
    async fn handle(&self, caller: &Caller, args: CreateTokenArgs) -> Result<CreateTokenOutcome> {
        let identity = self.transactor.callers_identity::<CreateToken>(caller, &args, None);
        // A token reaches no further than the one that makes it.
        args.lanes.iter().try_for_each(|lane| caller.check_lane(lane))?;
        let lanes = if args.lanes.is_empty() { caller.lanes.clone() } else { args.lanes };
        let new = NewApiToken {
            name: args.name,
            namespace: caller.namespace(args.namespace.as_deref())?,
            role: args.role,
            expires_in_ms: args.expires_in_ms,
            created_by: caller.name.clone(),
            may_assert_source: args.may_assert_source,
            lanes,
        };
        let key = caller.idempotency_key.as_deref();
        let verb = StoreToken { caller, new, random: env::random_bytes(self.transactor.env()), identity, key };
        let (token, secret) =
            self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &verb).await?;
        Ok(CreateTokenOutcome { token: token.info(), secret: Secret(secret.reveal()) })
    }
}

/// Whether a token reaches no further than the caller, which may then look after it.
fn governs(caller: &Caller, token: &ApiToken) -> bool {
    let within =
        caller.lanes.is_empty() || !token.lanes.is_empty() && token.lanes.iter().all(|lane| caller.reaches(lane));
    caller.sees(&token.namespace) && within
}

struct StoreToken<'a> {
    caller: &'a Caller,
    new: NewApiToken,
    random: [u8; 32],
    identity: Option<Identity>,
    key: Option<&'a str>,
}

impl StoreToken<'_> {
    /// The secret part, from what is kept of the call and what only its caller knows.
    fn secret(&self, kept: [u8; 32]) -> [u8; 32] {
        self.key.map_or(kept, |key| ApiToken::derived_secret(kept, key.as_bytes()))
    }

    /// The token that this very call made before.
    async fn repeated(&self, tx: &mut Tx<'_>) -> Result<Option<(ApiToken, ApiSecret)>> {
        let kept = match &self.identity {
            Some(identity) => tx.kept_answer::<[u8; 32]>(identity).await?,
            None => None,
        };
        let Some(loaded) = tx.load::<ApiToken>(ApiToken::key_of(&self.new.name)).await? else { return Ok(None) };
        let secret = ApiSecret::new(&self.new.name, self.secret(kept.unwrap_or(self.random)));
        // A token that was made anew under the name since has another secret.
        Ok(loaded.document.has_secret(&secret).then_some((loaded.document, secret)))
    }
}

impl Command for StoreToken<'_> {
    type Outcome = (ApiToken, ApiSecret);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        if let Some(repeated) = self.repeated(tx).await? {
            return Ok(repeated);
        }
        if let Some(existing) = tx.load::<ApiToken>(ApiToken::key_of(&self.new.name)).await? {
            let existing = existing.document;
            // Without an idempotency key the secret cannot be shown again, so not even the same request is a repeat. A
            // token that is no good any more gives its name back.
            if existing.is_live(tx.now) || !governs(self.caller, &existing) {
                return Err(Error::of(Code::DefinitionConflict).with("name", &self.new.name));
            }
        }
        let (token, secret) = ApiToken::create(self.new.clone(), self.secret(self.random), tx.now)?;
        tx.save(&token);
        if let Some(identity) = &self.identity {
            tx.keep_answer(identity, &self.random);
        }
        Ok((token, secret))
    }
}

impl Handle<ListTokens> for Services {
    async fn handle(&self, caller: &Caller, args: ListTokensArgs) -> Result<ListTokensOutcome> {
        let limit = self.transactor.limits().page(args.limit)?;
        // The cursor is the last name: it leads to the last entry also when that is gone.
        let last = cursor::decode::<String>(args.cursor.as_deref())?;
        let mut after = last.map(|name| (index::name_score(&name), ApiToken::key_of(&name)));
        let mut items = Vec::new();
        loop {
            let scan = Scan { after: after.take(), ..Scan::first(ApiToken::listing(), limits::PAGE_MAX) };
            let page = self.transactor.store().scan(Partition::SYSTEM, scan.with_documents()).await?;
            let whole = page.entries.len() == limits::PAGE_MAX;
            for entry in page.entries {
                after = Some((entry.score, entry.member.clone()));
                let Some(stored) = entry.document else { continue };
                let Some(token) = self.transactor.readable::<ApiToken>(&stored) else { continue };
                if !governs(caller, &token) {
                    continue;
                }
                if items.len() == limit {
                    let next_cursor = items.last().map(|last: &ff_core::ApiTokenInfo| cursor::encode(&last.name));
                    return Ok(ListTokensOutcome { items, next_cursor });
                }
                items.push(token.info());
            }
            if !whole {
                return Ok(ListTokensOutcome { items, next_cursor: None });
            }
        }
    }
}

impl Handle<RevokeToken> for Services {
    async fn handle(&self, caller: &Caller, args: RevokeTokenArgs) -> Result<RevokeTokenOutcome> {
        self.transactor
            .transact(
                Partition::SYSTEM,
                self.transactor.fresh_command(),
                &Request::<RevokeToken> { caller, args: &args },
            )
            .await
    }
}

impl Command for Request<'_, RevokeToken> {
    type Outcome = RevokeTokenOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RevokeTokenOutcome> {
        let loaded = tx.load::<ApiToken>(ApiToken::key_of(&self.args.name)).await?;
        let found = loaded.map(|loaded| loaded.document).filter(|token| governs(self.caller, token));
        let mut token = found.ok_or_else(|| Error::of(Code::TokenNotFound).with("name", &self.args.name))?;
        let changed = token.revoke(tx.now);
        if changed {
            tx.save(&token);
        }
        Ok(RevokeTokenOutcome { changed })
    }
}
