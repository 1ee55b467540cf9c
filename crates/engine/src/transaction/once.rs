//! Commands that must have their effect once. The answer of such a command is written in the commit that carries it
//! out, under the identity of the call. The caller may give the identity; otherwise the engine makes one, because the
//! engine itself repeats a command whose reply was lost.
//!
//! This record costs a put and no read. The first try assumes that there is none. The engine looks for it only if the
//! guard on its absence fails, or before it refuses or answers without a commit.

use std::marker::PhantomData;

use ff_core::idempotency::{CommandRecord, Identity};
use ff_core::op::{Operation, path_parameters};
use ff_core::{Code, CommandId, Error, Partition, Result, limits};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Command, Transactor, Tx};
use crate::caller::Caller;
use crate::env::BoxFuture;

impl Transactor {
    /// Runs a command that has an identity once: a repeat gets the first answer. A command without an identity is
    /// harmless to repeat, and runs like any other.
    pub(crate) async fn transact_once<C: Command>(
        &self,
        partition: Partition,
        identity: Option<Identity>,
        verb: &C,
    ) -> Result<C::Outcome>
    where
        C::Outcome: Serialize + DeserializeOwned + Sync,
    {
        let identity = identity.as_ref();
        self.transact(partition, self.fresh_command(), &Once { identity, verb }).await
    }

    /// The same for an operation whose partition follows from a name in its arguments. Its record lies in that
    /// partition, so the caller's key with another name would not find it. Therefore the key is first bound to its
    /// request in the system partition.
    pub(crate) async fn transact_once_by_name<C: Command>(
        &self,
        partition: Partition,
        identity: Option<Identity>,
        verb: &C,
    ) -> Result<C::Outcome>
    where
        C::Outcome: Serialize + DeserializeOwned + Sync,
    {
        if let Some(identity) = identity.as_ref().filter(|identity| identity.is_callers()) {
            self.transact(Partition::SYSTEM, self.fresh_command(), &Bind { identity }).await?;
        }
        self.transact_once(partition, identity, verb).await
    }

    /// The answer to a call that says more than its commit knows, such as what became of the members of a flow. The first
    /// answer under the caller's identity is kept for its repeats.
    pub(crate) async fn answer_once<T>(
        &self,
        partition: Partition,
        callers: Option<Identity>,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
    {
        let Some(identity) = callers.map(|identity| identity.of_later_answer()) else { return answer.await };
        if let Some(kept) = self.kept(partition, &identity).await? {
            return Ok(kept);
        }
        self.keep_first(partition, &identity, answer.await?).await
    }

    /// The answer that is kept under an identity.
    pub(crate) async fn kept<T: DeserializeOwned + Send + Sync>(
        &self,
        partition: Partition,
        identity: &Identity,
    ) -> Result<Option<T>> {
        self.rehearse(partition, &FindKept { identity, answer: PhantomData }).await
    }

    /// Keeps an answer that was found after the commit it speaks of. Of two calls under one identity the first to come here
    /// answers for both.
    pub(crate) async fn keep_first<T>(&self, partition: Partition, identity: &Identity, answer: T) -> Result<T>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
    {
        let verb = KeepFirst { identity, answer: &answer };
        Ok(self.transact(partition, self.fresh_command(), &verb).await?.unwrap_or(answer))
    }

    /// Keeps another answer in place of one that was kept under an identity, or none, unless something else is kept by now.
    pub(crate) async fn replace_answer<T>(
        &self,
        partition: Partition,
        identity: &Identity,
        answer: &T,
        by: Option<&T>,
    ) -> Result<()>
    where
        T: Serialize + DeserializeOwned + PartialEq + Send + Sync,
    {
        let verb = ReplaceAnswer { identity, answer, by };
        self.transact(partition, self.fresh_command(), &verb).await
    }

    /// The identity of a call: the one its caller gave it, as a field of its arguments or beside them, or the engine's
    /// own.
    pub(crate) fn identity<O: Operation>(
        &self,
        caller: &Caller,
        args: &O::Args,
        command_id: Option<CommandId>,
    ) -> Option<Identity> {
        let callers = self.callers_identity::<O>(caller, args, command_id);
        Some(callers.unwrap_or_else(|| self.own_identity(O::NAME)))
    }

    /// The identity that its caller gave a call, scoped to caller, operation and target. Another request under it is
    /// refused.
    pub(crate) fn callers_identity<O: Operation>(
        &self,
        caller: &Caller,
        args: &O::Args,
        command_id: Option<CommandId>,
    ) -> Option<Identity> {
        let by_id = command_id.as_ref().map(|id| id.as_bytes().as_slice());
        let name = by_id.or(caller.idempotency_key.as_deref().map(str::as_bytes))?;
        let content = O::to_text(args).expect("arguments hold only types that JSON can express");
        Some(self.scoped_identity(caller, (O::NAME, O::PATH), name, &content))
    }

    /// The caller's name for a request, made unique to the caller, the operation and the target.
    fn scoped_identity(
        &self,
        caller: &Caller,
        (operation, path): (&str, &str),
        name: &[u8],
        content: &str,
    ) -> Identity {
        let fields: serde_json::Value = serde_json::from_str(content).expect("it was written as JSON");
        // The target consists of the parameters of the path and the namespace.
        let named = path_parameters(path).chain(["namespace"]);
        let target: Vec<String> = named.map(|field| fields[field].to_string()).collect();
        let reach = caller.namespace.as_deref().unwrap_or_default();
        let mut parts = vec![caller.key_scope(), reach.as_bytes(), name];
        parts.extend(target.iter().map(String::as_bytes));
        let identity = Identity::new(operation, &parts, self.options().dedup_window_ms);
        identity.for_request(content.as_bytes())
    }

    /// An identity that only this call knows, for as long as the engine may repeat it.
    pub(crate) fn own_identity(&self, operation: &str) -> Identity {
        Identity::new(operation, &[self.fresh_command().as_bytes()], limits::OWN_EVIDENCE_MS)
    }
}

/// Binds a key to one request: another request under it is refused.
struct Bind<'a> {
    identity: &'a Identity,
}

impl Command for Bind<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        match tx.load::<CommandRecord>(self.identity.key()).await? {
            Some(found) => self.identity.check_same(&found.document),
            None => {
                tx.create_until(&self.identity.record(""), tx.now + self.identity.kept_ms);
                Ok(())
            }
        }
    }
}

struct FindKept<'a, T> {
    identity: &'a Identity,
    answer: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + Sync> Command for FindKept<'_, T> {
    type Outcome = Option<T>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        tx.kept_answer(self.identity).await
    }
}

/// Keeps an answer, unless one is kept already, which is the outcome then.
struct KeepFirst<'a, T> {
    identity: &'a Identity,
    answer: &'a T,
}

impl<T: Serialize + DeserializeOwned + Send + Sync> Command for KeepFirst<'_, T> {
    type Outcome = Option<T>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let kept = tx.kept_answer(self.identity).await?;
        if kept.is_none() {
            tx.keep_answer(self.identity, self.answer);
        }
        Ok(kept)
    }
}

/// Replaces or removes a kept answer that is still this one.
struct ReplaceAnswer<'a, T> {
    identity: &'a Identity,
    answer: &'a T,
    by: Option<&'a T>,
}

impl<T: Serialize + DeserializeOwned + PartialEq + Send + Sync> Command for ReplaceAnswer<'_, T> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        if tx.kept_answer::<T>(self.identity).await?.is_some_and(|kept| kept == *self.answer) {
            match self.by {
                Some(by) => tx.keep_answer(self.identity, by),
                None => tx.delete(&self.identity.key()),
            }
        }
        Ok(())
    }
}

/// A command with its identity, if it has one. Both cases share this type, because each type around a command is
/// compiled with everything that the command does.
struct Once<'a, C> {
    identity: Option<&'a Identity>,
    verb: &'a C,
}

impl<C: Command> Command for Once<'_, C>
where
    C::Outcome: Serialize + DeserializeOwned + Sync,
{
    type Outcome = C::Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<C::Outcome> {
        if tx.is_repeat()
            && let Some(answer) = self.recall(tx).await?
        {
            return read_kept(&answer);
        }
        let outcome = self.verb.run(tx).await;
        let Some(identity) = self.identity else { return outcome };
        if let Ok(outcome) = &outcome
            && !tx.is_empty()
        {
            tx.keep_answer(identity, outcome);
        } else if identity.is_callers()
            && !tx.is_repeat()
            && let Some(answer) = self.recall(tx).await?
        {
            // The refusal may be due to an earlier run of this very command.
            tx.discard();
            return read_kept(&answer);
        }
        outcome
    }
}

impl<C> Once<'_, C> {
    /// The answer that the command left when it ran before. It is boxed so that it is compiled once; it is rarely
    /// needed.
    fn recall<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<Option<CommandRecord>>> {
        match self.identity {
            Some(identity) => Box::pin(tx.kept_record(identity)),
            None => Box::pin(std::future::ready(Ok(None))),
        }
    }
}

fn read_kept<T: DeserializeOwned>(record: &CommandRecord) -> Result<T> {
    let answer = serde_json::from_slice(&record.answer);
    answer.map_err(|error| Error::new(Code::CorruptDocument, format!("a kept answer: {error}")))
}

impl Tx<'_> {
    /// Leaves the answer to a command under its identity, in the commit that carries it out.
    pub(crate) fn keep_answer(&mut self, identity: &Identity, answer: &impl Serialize) {
        let answer = serde_json::to_vec(answer).expect("answers hold only types that JSON can express");
        self.create_until(&identity.record(answer), self.now + identity.kept_ms);
    }

    /// The answer that a command with this identity left. Another request under the same identity is refused.
    pub(crate) async fn kept_answer<T: DeserializeOwned>(&mut self, identity: &Identity) -> Result<Option<T>> {
        self.kept_record(identity).await?.map(|record| read_kept(&record)).transpose()
    }

    async fn kept_record(&mut self, identity: &Identity) -> Result<Option<CommandRecord>> {
        let Some(found) = self.load::<CommandRecord>(identity.key()).await? else { return Ok(None) };
        identity.check_same(&found.document)?;
        Ok(Some(found.document))
    }
}
