//! The client: any operation of an engine, in this process or behind a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ff_core::op::get_deployment::{self, Outcome as Deployment};
use ff_core::op::{GetDeployment, Operation};
use ff_core::{Code, Error, PartitionConfig};
use ff_engine::{Engine, Serves};
use serde_json::Value;

use crate::error::{Result, SdkError};
use crate::identity;
use crate::retry::{Retries, RetryPolicy};
use crate::transport::{ANSWERED, Call, Calling, Connection, Failure, Key};

/// A connection to a deployment. Clones share it.
///
/// Every call may be repeated after a lost answer or while the deployment cannot be reached, as [`RetryPolicy`]
/// says; it carries its identity, so it takes effect once.
///
/// ```
/// # async fn example() -> flowfabric::Result<()> {
/// let client = flowfabric::Client::connect("memory://").await?;
/// let execution = client.submit("greet").input(&"world").send().await?;
/// println!("{} is {}", execution.id(), execution.get().await?.public_state);
/// client.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    namespace: Option<Arc<str>>,
}

struct Inner {
    connection: Connection,
    retry: RetryPolicy,
    deployment: Deployment,
    tries: AtomicU64,
}

impl Client {
    pub(crate) async fn over(connection: Connection, namespace: Option<String>, retry: RetryPolicy) -> Result<Self> {
        // An unreachable server or an unknown token is an error now, and not at the first call.
        let deployment = {
            let key = Key::default();
            let mut call = Calling::<GetDeployment>::new(get_deployment::Args {});
            repeat(&connection, &mut call, &key, (&retry, &AtomicU64::new(0))).await?;
            call.into_parts().1.expect(ANSWERED)
        };
        let inner = Inner { connection, retry, deployment, tries: AtomicU64::new(0) };
        Ok(Self { inner: Arc::new(inner), namespace: namespace.map(Arc::from) })
    }

    /// The connection with another namespace for calls that name none.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { inner: self.inner.clone(), namespace: Some(Arc::from(namespace)) }
    }

    /// The namespace of calls that name none; `None` leaves it to the token, or to `default`.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Calls any operation; its arguments and its answer are in the operation's module in [`op`](crate::op).
    ///
    /// ```
    /// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
    /// use flowfabric::op::{PauseLane, pause_lane};
    /// let args = pause_lane::Args { lane: "gpu".into(), namespace: None, reason: Some("maintenance".into()) };
    /// let lane = client.call::<PauseLane>(args).await?;
    /// assert_eq!(lane.name, "gpu");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call<O: Operation>(&self, args: O::Args) -> Result<O::Outcome>
    where
        Engine: Serves<O>,
    {
        let (key, mut call) = self.prepare::<O>(args);
        self.repeat(&mut call, &key).await?;
        Ok(call.into_parts().1.expect(ANSWERED))
    }

    /// Calls an operation for a caller that needs its arguments afterwards; they then contain the identity of the call.
    pub(crate) async fn call_repeatedly<O: Operation>(&self, args: O::Args) -> (O::Args, Result<O::Outcome>)
    where
        Engine: Serves<O>,
    {
        let (key, mut call) = self.prepare::<O>(args);
        let answered = self.repeat(&mut call, &key).await;
        let (args, outcome) = call.into_parts();
        (args, answered.map(|()| outcome.expect(ANSWERED)))
    }

    /// Gives a call its namespace and its identity.
    fn prepare<'c, O: Operation>(&self, mut args: O::Args) -> (Key, Calling<'c, O>) {
        if let Some(namespace) = &self.namespace {
            O::set_default_namespace(&mut args, namespace);
        }
        O::identify(&mut args, &identity::minting(self.partition_config()));
        let key = if O::needs_key(&args) { self.fresh_key() } else { Key::default() };
        (key, Calling::new(args))
    }

    fn fresh_key(&self) -> Key {
        match &self.inner.connection {
            Connection::InProcess(engine) => engine.key(identity::unique()),
            Connection::Http(_) => Key { text: Some(identity::unique()), caller: None },
        }
    }

    /// Calls an operation by its name, with arguments and answer in JSON.
    pub async fn call_json(&self, operation: &str, args: Value) -> Result<Value> {
        let (key, mut call) = self.prepare_by_name(operation, &args)?;
        self.repeat(call.as_mut(), &key).await?;
        let answer = call.answer().map_err(SdkError::payload("answer"))?;
        serde_json::from_slice(&answer).map_err(SdkError::payload("answer"))
    }

    /// This is no generic function, so that the calls of all operations are compiled in this crate and not in programs.
    fn prepare_by_name<'c>(&self, operation: &str, args: &Value) -> Result<Prepared<'c>> {
        macro_rules! prepare {
            ($($module:ident $name:ident;)*) => {
                match operation {
                    $( <ff_core::op::$name as Operation>::NAME => self.prepare_json::<ff_core::op::$name>(args), )*
                    unknown => {
                        Err(Error::new(Code::RouteNotFound, format!("there is no operation {unknown}")).into())
                    }
                }
            };
        }
        ff_core::operations!(prepare)
    }

    fn prepare_json<'c, O: Operation>(&self, args: &Value) -> Result<Prepared<'c>>
    where
        Engine: Serves<O>,
    {
        // The arguments are read from a text, because values in them keep the text in which they are written.
        let args = O::from_text(&args.to_string()).map_err(unreadable)?;
        let (key, call) = self.prepare::<O>(args);
        Ok((key, Box::new(call)))
    }

    async fn repeat<'c>(&'c self, call: &mut dyn Call<'c>, key: &'c Key) -> Result<()> {
        let inner = &self.inner;
        Ok(repeat(&inner.connection, call, key, (&inner.retry, &inner.tries)).await?)
    }

    /// The description of the deployment.
    pub fn deployment(&self) -> &Deployment {
        &self.inner.deployment
    }

    /// How the deployment is partitioned.
    pub fn partition_config(&self) -> &PartitionConfig {
        &self.inner.deployment.partitions
    }

    /// The engine, if it runs in this process.
    pub fn engine(&self) -> Option<&Engine> {
        match &self.inner.connection {
            Connection::InProcess(in_process) => Some(in_process.engine()),
            Connection::Http(_) => None,
        }
    }

    /// How many calls were made, repeats included. Over HTTP each is a round trip, but for submissions made at the same
    /// time, which share requests.
    pub fn calls_made(&self) -> u64 {
        self.inner.tries.load(Ordering::Relaxed)
    }

    /// Stops the engine that this client started in this process, for all clones. Other clients need no closing.
    pub async fn close(&self) {
        if let Connection::InProcess(in_process) = &self.inner.connection {
            in_process.close().await;
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    pub(crate) fn retry_policy(&self) -> &RetryPolicy {
        &self.inner.retry
    }
}

/// A call that is ready to be made, with its identity.
type Prepared<'c> = (Key, Box<dyn Call<'c> + 'c>);

/// Makes a call until it is answered or fails for good; each try is counted.
async fn repeat<'c>(
    connection: &'c Connection,
    call: &mut dyn Call<'c>,
    key: &'c Key,
    (policy, tries): (&RetryPolicy, &AtomicU64),
) -> Result<(), Failure> {
    let mut retries = Retries::new(policy);
    loop {
        tries.fetch_add(1, Ordering::Relaxed);
        match connection.call(call, key).await {
            Ok(()) => return Ok(()),
            Err(failure) => retries.after(failure).await?,
        }
        call.mark_repeat();
    }
}

fn unreadable(error: serde_json::Error) -> SdkError {
    Error::new(Code::Invalid, error.to_string()).into()
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = match &self.inner.connection {
            Connection::InProcess(_) => "in process",
            Connection::Http(_) => "over HTTP",
        };
        f.debug_struct("Client").field("way", &way).field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
