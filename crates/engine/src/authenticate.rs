//! Who a bearer token stands for.

use ff_core::api_token::EVERY_NAMESPACE;
use ff_core::session::{SESSION_TTL_MS, Session};
use ff_core::{ApiSecret, ApiToken, Code, Error, Result};

use crate::engine::{Caller, Engine, Standing};

impl Engine {
    /// The caller behind an API token. Wrong, unknown, expired and revoked ones read the same; a revocation holds
    /// within a second.
    pub async fn authenticate(&self, bearer: &str) -> Result<Caller> {
        Ok(caller(self.token_of(bearer).await?))
    }

    /// A session for the holder of an API token. It ends with the token, and before that after its own time.
    pub async fn begin_session(&self, bearer: &str) -> Result<Session> {
        Ok(self.token_of(bearer).await?.session(self.now() + SESSION_TTL_MS))
    }

    /// The caller behind a session of an API token; refusals read as those of [`Engine::authenticate`].
    pub async fn authenticate_session(&self, session: &Session) -> Result<Caller> {
        let known = self.system_document::<ApiToken>(&ApiToken::key_of_session(session)).await?;
        let token = known.ok_or_else(|| Error::of(Code::Unauthenticated))?;
        token.check_session(session, self.now())?;
        Ok(caller(token))
    }

    /// The stored token that this text is.
    async fn token_of(&self, bearer: &str) -> Result<ApiToken> {
        let presented = ApiSecret::parse(bearer)?;
        // An unknown token is compared as well, so that the time it takes does not tell which names exist. A document
        // that is not there has neither name nor hash, and authenticates nobody.
        let token = self.system_document::<ApiToken>(&presented.key()).await?.unwrap_or_default();
        token.authenticate(&presented, self.now())?;
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
