//! The caller that a bearer token stands for.

use ff_core::api_token::EVERY_NAMESPACE;
use ff_core::session::{SESSION_TTL_MS, Session};
use ff_core::{ApiSecret, ApiToken, Code, Error, Result};

use crate::caller::{Caller, Standing};
use crate::system::SystemDocuments;

impl SystemDocuments {
    /// The caller behind an API token. Wrong, unknown, expired and revoked ones read the same; a revocation holds
    /// within a second.
    pub(crate) async fn authenticate(&self, bearer: &str) -> Result<Caller> {
        Ok(caller(self.token_of(bearer).await?))
    }

    /// A session for the holder of an API token. It ends with the token, and before that after its own time.
    pub(crate) async fn begin_session(&self, bearer: &str) -> Result<Session> {
        Ok(self.token_of(bearer).await?.session(self.transactor().now() + SESSION_TTL_MS))
    }

    /// The caller behind a session of an API token; refusals read as those of [`SystemDocuments::authenticate`].
    pub(crate) async fn authenticate_session(&self, session: &Session) -> Result<Caller> {
        let known = self.system_document::<ApiToken>(&ApiToken::key_of_session(session)).await?;
        let token = known.ok_or_else(|| Error::of(Code::Unauthenticated))?;
        token.check_session(session, self.transactor().now())?;
        Ok(caller(token))
    }

    /// Refuses a caller whose token was revoked, has expired, or is another one by now. One without a stored token, from
    /// the configuration or from a server without tokens, stays what it is.
    pub(crate) async fn confirm_caller(&self, caller: &Caller) -> Result<()> {
        if caller.token_created_at == 0 {
            return Ok(());
        }
        let token = self.system_document::<ApiToken>(&ApiToken::key_of(&caller.name)).await?;
        let token = token.ok_or_else(|| Error::of(Code::Unauthenticated))?;
        let namespace = (token.namespace != EVERY_NAMESPACE).then_some(token.namespace.as_str());
        let same = token.role == caller.role
            && namespace == caller.namespace.as_deref()
            && token.created_at == caller.token_created_at;
        if same && token.is_live(self.transactor().now()) { Ok(()) } else { Err(Error::of(Code::Unauthenticated)) }
    }

    /// The stored token that this text is.
    async fn token_of(&self, bearer: &str) -> Result<ApiToken> {
        let presented = ApiSecret::parse(bearer)?;
        // An unknown token is compared as well, so that the time it takes does not tell which names exist. A document
        // that is not there has neither name nor hash, and authenticates no caller.
        let token = self.system_document::<ApiToken>(&presented.key()).await?.unwrap_or_default();
        token.authenticate(&presented, self.transactor().now())?;
        Ok(token)
    }
}

fn caller(token: ApiToken) -> Caller {
    let namespace = (token.namespace != EVERY_NAMESPACE).then_some(token.namespace);
    let standing = if token.may_assert_source { Standing::Relay } else { Standing::Token };
    Caller {
        standing,
        lanes: token.lanes,
        token_created_at: token.created_at,
        ..Caller::new(token.name, namespace, token.role)
    }
}
