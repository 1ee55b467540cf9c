//! A call of an operation without the operation's types: what carries it, and repeats it, is compiled once and not for
//! each operation.

use std::pin::Pin;
use std::task::{Context, Poll};

use ff_core::Error;
use ff_core::op::Operation;
use ff_core::op::wire::WireRequest;
use ff_engine::env::BoxFuture;
use ff_engine::{Caller, Engine, Serves};

use super::Failure;

/// Why an outcome is there after a try that succeeded.
pub(crate) const ANSWERED: &str = "a call that was answered has its outcome";

/// The identity of a call whose arguments have no field for it, in the forms that the two ways need.
#[derive(Debug, Default)]
pub(crate) struct Key {
    /// The key itself.
    pub(crate) text: Option<String>,
    /// On whose behalf an engine in this process is called, with the key.
    pub(crate) caller: Option<Caller>,
}

/// A call. Its outcome is left in it.
pub(crate) trait Call<'c>: Send {
    /// Begins a try with an engine in this process.
    fn begin(&mut self, engine: &'c Engine, caller: &'c Caller);

    /// Goes on with the try that was begun.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>;

    /// The call as a request to a server.
    fn write(&self) -> Result<WireRequest, Error>;

    /// The path of the operation that takes several of these calls at once; see [`Operation::GATHERED_AT`].
    fn gathered_at(&self) -> Option<&'static str>;

    /// Takes a server's answer, or the absence of a body.
    fn read(&mut self, body: Option<&[u8]>) -> Result<(), Failure>;

    /// Says that the next try repeats one whose answer may have been lost.
    fn mark_repeat(&mut self);

    /// The outcome of a call that was answered, as JSON.
    fn answer(&self) -> serde_json::Result<Vec<u8>>;
}

/// A call of one operation.
pub(crate) struct Calling<'c, O: Operation> {
    args: O::Args,
    under_way: Option<BoxFuture<'c, Result<O::Outcome, Error>>>,
    outcome: Option<O::Outcome>,
}

impl<'c, O: Operation> Calling<'c, O> {
    pub(crate) fn new(args: O::Args) -> Self {
        Self { args, under_way: None, outcome: None }
    }

    /// The arguments, and the outcome if the call was answered.
    pub(crate) fn into_parts(self) -> (O::Args, Option<O::Outcome>) {
        (self.args, self.outcome)
    }
}

impl<'c, O: Operation> Call<'c> for Calling<'c, O>
where
    Engine: Serves<O>,
{
    fn begin(&mut self, engine: &'c Engine, caller: &'c Caller) {
        self.under_way = Some(Serves::<O>::serve(engine, caller, self.args.clone()));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let work = self.under_way.as_mut().expect("a try is begun before it goes on");
        let answered = std::task::ready!(Pin::new(work).poll(cx));
        self.under_way = None;
        Poll::Ready(answered.map(|outcome| self.outcome = Some(outcome)))
    }

    fn write(&self) -> Result<WireRequest, Error> {
        O::write(&self.args)
    }

    fn gathered_at(&self) -> Option<&'static str> {
        O::GATHERED_AT
    }

    fn read(&mut self, body: Option<&[u8]>) -> Result<(), Failure> {
        let outcome = match body {
            Some(body) => O::read(body).map_err(|error| Failure::Unreadable(error.to_string()))?,
            None => O::read_nothing().ok_or_else(|| Failure::Unreadable("the answer has no body".into()))?,
        };
        self.outcome = Some(outcome);
        Ok(())
    }

    fn mark_repeat(&mut self) {
        O::mark_repeat(&mut self.args);
    }

    fn answer(&self) -> serde_json::Result<Vec<u8>> {
        O::answer(self.outcome.as_ref().expect(ANSWERED))
    }
}
