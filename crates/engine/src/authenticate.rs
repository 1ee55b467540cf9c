//! Who a bearer token stands for.

use ff_core::api_token::EVERY_NAMESPACE;
use ff_core::{ApiSecret, ApiToken, Result};

use crate::engine::{Caller, Engine};

impl Engine {
    /// The caller behind an API token. Wrong, unknown, expired and revoked ones read the same; a revocation holds
    /// within a second.
    pub async fn authenticate(&self, bearer: &str) -> Result<Caller> {
        let presented = ApiSecret::parse(bearer)?;
        let known = self.system_document::<ApiToken>(&presented.key()).await?;
        // An unknown token is compared as well, so that the time it takes does not tell which names exist.
        let token = known.unwrap_or_default();
        token.authenticate(&presented, self.now())?;
        let namespace = (token.namespace != EVERY_NAMESPACE).then_some(token.namespace);
        Ok(Caller { name: token.name, namespace, role: token.role, idempotency_key: None })
    }
}
