//! Who a bearer token stands for.

use ff_core::api_token::EVERY_NAMESPACE;
use ff_core::session::{SESSION_TTL_MS, Session};
use ff_core::{ApiSecret, ApiToken, Result};

use crate::engine::{Caller, Engine, Standing};

impl Engine {
    /// The caller behind an API token. Wrong, unknown, expired and revoked ones read the same; a revocation holds
    /// within a second.
    pub async fn authenticate(&self, bearer: &str) -> Result<Caller> {
        let presented = ApiSecret::parse(bearer)?;
        let known = self.system_document::<ApiToken>(&presented.key()).await?;
        // An unknown token is compared as well, so that the time it takes does not tell which names exist.
        let token = known.unwrap_or_default();
        token.authenticate(&presented, self.now())?;
        Ok(caller(token))
    }

    /// A session for the holder of an API token. It ends with the token, and before that after its own time.
    pub async fn begin_session(&self, bearer: &str) -> Result<Session> {
        let presented = ApiSecret::parse(bearer)?;
        let token = self.system_document::<ApiToken>(&presented.key()).await?.unwrap_or_default();
        token.authenticate(&presented, self.now())?;
        Ok(token.session(self.now() + SESSION_TTL_MS))
    }

    /// The caller behind a session of an API token; refusals read as those of [`Engine::authenticate`].
    pub async fn authenticate_session(&self, session: &Session) -> Result<Caller> {
        let token = self.system_document::<ApiToken>(&ApiToken::key_of_session(session)).await?.unwrap_or_default();
        token.check_session(session, self.now())?;
        Ok(caller(token))
    }
}

fn caller(token: ApiToken) -> Caller {
    let namespace = (token.namespace != EVERY_NAMESPACE).then_some(token.namespace);
    let standing = if token.may_assert_source { Standing::Relay } else { Standing::Token };
    Caller { standing, lanes: token.lanes, ..Caller::new(token.name, namespace, token.role) }
}
