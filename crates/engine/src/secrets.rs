//! The secrets that sign waitpoint tokens: installed at the first start, read through the cache of system documents,
//! replaced by rotation only.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ff_core::op;
use ff_core::waitpoint::Waitpoint;
use ff_core::{Code, Error, Installation, Partition, Result, Secret, TokenSubject, WaitpointSecrets, WaitpointToken};

use crate::env;
use crate::system::SystemDocuments;
use crate::transaction::{Command, Transactor, Tx};

/// An unknown kid makes the engine read the secrets again, but not more often than this: a caller that makes kids up
/// must not make work.
const FORCED_READ_MS: i64 = 1_000;

/// The secrets of a deployment, as this engine knows them.
#[derive(Clone)]
pub(crate) struct Secrets {
    transactor: Transactor,
    system: SystemDocuments,
    state: Arc<SecretState>,
}

/// The memory of an engine about secrets beside the documents.
#[derive(Default)]
pub(crate) struct SecretState {
    last_forced_read: Mutex<Option<i64>>,
    rotating: AtomicBool,
}

impl SecretState {
    /// Whether an unknown kid may cause a read now; the permission is used up.
    fn may_force_read(&self, now: i64) -> bool {
        let mut last = self.last_forced_read.lock().expect("no holder of this lock panics");
        if last.is_some_and(|at| now - at < FORCED_READ_MS) {
            return false;
        }
        *last = Some(now);
        true
    }

    /// Begins a rotation, unless one is under way. It ends when the guard is dropped.
    fn begin_rotation(&self) -> Result<RotationGuard<'_>> {
        if self.rotating.swap(true, Ordering::SeqCst) {
            return Err(already_rotating());
        }
        Ok(RotationGuard(self))
    }
}

/// One rotation at a time.
pub(crate) fn already_rotating() -> Error {
    Error::of(Code::ConcurrencyLimitExceeded).with("pool", "admin_rotate").with("max", 1).retry_after(1_000)
}

/// A rotation under way.
pub(crate) struct RotationGuard<'a>(&'a SecretState);

impl Drop for RotationGuard<'_> {
    fn drop(&mut self) {
        self.0.rotating.store(false, Ordering::SeqCst);
    }
}

impl Secrets {
    pub(crate) fn new(system: SystemDocuments) -> Self {
        Self { transactor: system.transactor().clone(), system, state: Arc::default() }
    }

    /// Begins a rotation; see [`SecretState::begin_rotation`].
    pub(crate) fn begin_rotation(&self) -> Result<RotationGuard<'_>> {
        self.state.begin_rotation()
    }

    /// Installs the first secret, configured or generated. One that is there already stays.
    pub(crate) async fn install_secret(&self) -> Result<()> {
        let configured = self.transactor.options().waitpoint_secret.as_deref();
        let secret = match configured {
            Some(hex) => Secret::from_hex("waitpoint_secret", hex)?,
            None => Secret::from_random(env::random_bytes(self.transactor.env())),
        };
        let install = Install { secret, configured: configured.is_some() };
        match self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &install).await? {
            Installation::Installed if install.configured => {
                tracing::info!("the configured waitpoint secret is installed")
            }
            Installation::Installed => tracing::info!("a waitpoint secret was generated and installed"),
            Installation::Unchanged => {}
            Installation::Differs => tracing::warn!(
                "the configured waitpoint secret is not the one that signs and was not applied; \
                 rotate to it, or remove it from the configuration"
            ),
            Installation::Repaired => {
                tracing::warn!("the waitpoint secrets were half installed and have been repaired")
            }
        }
        Ok(())
    }

    /// The secrets, at most a second old.
    pub(crate) async fn waitpoint_secrets(&self) -> Result<WaitpointSecrets> {
        let found = self.system.system_document::<WaitpointSecrets>(&WaitpointSecrets::key_of()).await?;
        found.ok_or_else(|| Error::new(Code::Internal, "no waitpoint secret is installed"))
    }

    /// The secrets to verify a token with. A kid that they do not know may be younger than the copy.
    pub(crate) async fn secrets_for(&self, token: &str) -> Result<WaitpointSecrets> {
        let secrets = self.waitpoint_secrets().await?;
        let unknown = WaitpointToken::parse(token).is_ok_and(|token| !secrets.knows(token.kid()));
        if unknown && self.state.may_force_read(self.transactor.env().now_ms()) {
            self.system.forget(&WaitpointSecrets::key_of());
            return self.waitpoint_secrets().await;
        }
        Ok(secrets)
    }

    /// The token of a waitpoint, signed with the current secret.
    pub(crate) async fn sign(&self, waitpoint: &Waitpoint) -> Result<op::parts::Secret> {
        let token = self.waitpoint_secrets().await?.sign(&TokenSubject::from(waitpoint))?;
        Ok(op::parts::Secret(token.reveal()))
    }
}

struct Install {
    secret: Secret,
    configured: bool,
}

impl Command for Install {
    type Outcome = Installation;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Installation> {
        let loaded = tx.load::<WaitpointSecrets>(WaitpointSecrets::key_of()).await?;
        let mut secrets = loaded.map(|loaded| loaded.document).unwrap_or_default();
        let installation = secrets.install_first(self.secret.clone(), self.configured, tx.now);
        if matches!(installation, Installation::Installed | Installation::Repaired) {
            tx.save(&secrets);
        }
        Ok(installation)
    }
}
