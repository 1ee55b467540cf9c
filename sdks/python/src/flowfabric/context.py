"""The context, which a task's function is given beside its input."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, overload

from typing_extensions import TypedDict, Unpack

from . import wire
from ._batches import frame
from ._ids import child_id, derive, draw
from ._journal import Identity, is_ended
from ._step import SHORT_WAIT_S, Spent, Step, StepOptions, Turn, call_body, value_type
from .errors import BudgetExceeded, BudgetRefused, ChildFailed, NotDone, Parked, SignalTimeout, TaskError
from .task import NOTHING, Codec, Coro, I, Options, R, Span, Submission, Task, codec, milliseconds, submission

if TYPE_CHECKING:
    from ._run import Run

P = ParamSpec("P")

#: The context of the task that the running code belongs to.
CURRENT: ContextVar[Context] = ContextVar("flowfabric_context")


class SignalOptions(TypedDict, total=False):
    """The options of a wait for a signal."""

    #: Tells waits for one name apart. Parallel waits need one.
    key: str | None
    timeout: Span | None


def current() -> Context | None:
    """The context of the task in hand, for code that is not given it."""
    return CURRENT.get(None)


class _About:
    """The task in hand."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.task = task = run.task
        self.execution_id = task.execution_id
        #: The attempt, from 0.
        self.attempt = task.fence.attempt
        #: Retries so far.
        self.retry_count = task.retry_count
        self.tags = task.tags

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the execution."""
        named = {"execution_id": self.execution_id, "kind": self.task.kind}
        return logging.LoggerAdapter(logging.getLogger("flowfabric.task"), named)

    @property
    def cancelled(self) -> bool:
        """Whether the lease is lost or handed back: what the function still does is in vain."""
        return self._run.closed

    def random(self, name: str, key: str | None = None) -> float:
        """A number from 0 up to 1 that is the same in every run of the function; `random.Random` takes it as a seed."""
        return draw(self.execution_id, self.task.generation or 0, name, key)

    def uuid(self, name: str, key: str | None = None) -> uuid.UUID:
        """An id that is the same in every run of the function, for example the key of a payment."""
        return uuid.UUID(bytes=derive("uuid", self.execution_id, self.task.generation or 0, name, key, 0))


class Context(_About):
    """The task of an `async` function."""

    @property
    def client(self) -> Any:
        """A client of the same server, for everything else."""
        return self._run.client

    @overload
    def step(self, name: str, body: Callable[..., Coro[R]], *args: Any, **options: Unpack[StepOptions]) -> Coro[R]: ...
    @overload
    def step(self, name: str, body: Callable[..., R], *args: Any, **options: Unpack[StepOptions]) -> Coro[R]: ...
    def step(self, name: str, body: Callable[..., Any], *args: Any, **options: Unpack[StepOptions]) -> Coro[Any]:
        """Runs code once: its result is kept, and a function that is called again gets it back unrun.

        A step is known by its name and key, never by its place in the code; parallel calls of one name need keys. The
        result is JSON by the return annotation of the body, or by `returns`. A plain function runs in a thread.
        `once` is for an effect that must not happen twice, and says what becomes of it when nobody knows whether it
        did (`True` asks a person). `retry` tries in this attempt, `timeout` bounds each try, and a digest of `input`
        notices that the code has changed under a counted step.
        """
        journal = self._run.journal
        return journal.call(name, options.get("key"), Step(journal, partial(body, *args), options).run)

    def now(self, name: str = "now", key: str | None = None) -> Coro[datetime]:
        """The time, which is the same in every run of the function."""
        journal = self._run.journal
        return journal.call(name, key, Step(journal, _utc_now, {"returns": datetime}, kind="now").run)

    def sleep(
        self, name: str, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> Coro[None]:
        """Sleeps. A sleep of more than five seconds lets go of the task: it costs nothing and survives every crash."""
        seconds = timedelta(days, seconds, 0, 0, minutes, hours).total_seconds()
        return self._run.journal.call(name, None, partial(self._sleep, seconds))

    async def _sleep(self, seconds: float, identity: Identity) -> None:
        journal = self._run.journal
        known = await journal.find(identity, "sleep")
        if known and is_ended(known):
            return
        if seconds <= SHORT_WAIT_S and known is None:
            with journal.busy():
                await asyncio.sleep(seconds)
            await journal.record({**identity.args(), "kind": "sleep", "state": "completed"})
        else:
            await journal.until_ended(identity, "sleeps", {"sleep_ms": milliseconds(seconds)})

    @overload
    def wait_signal(self, name: str, returns: type[R], **options: Unpack[SignalOptions]) -> Coro[R]: ...
    @overload
    def wait_signal(self, name: str, returns: Any = ..., **options: Unpack[SignalOptions]) -> Coro[Any]: ...
    def wait_signal(self, name: str, returns: Any = Any, **options: Unpack[SignalOptions]) -> Coro[Any]:
        """Waits for a signal of this name and answers with its payload. The task is not held meanwhile. `SignalTimeout`
        when none came in time; the instant is fixed when the wait begins."""
        waiting = partial(self._wait_signal, codec(returns), options.get("timeout"))
        return self._run.journal.call(name, options.get("key"), waiting)

    async def _wait_signal(self, payload: Codec[Any], timeout: Span | None, identity: Identity) -> Any:
        journal = self._run.journal
        await journal.find(identity, "signal")
        args = {} if timeout is None else {"timeout_ms": milliseconds(timeout)}
        ended = await journal.until_ended(identity, "waitpoints", args)
        if ended.state == "failed":
            raise SignalTimeout(f"no signal {identity.name!r} came in time", category=ended.category)
        return payload.read(ended.result, f"the payload of signal {identity.name!r}", "invalid_signal")

    def child(
        self, name: str, what: Task[I, R] | str, input: I = NOTHING, key: str | None = None, **options: Unpack[Options]
    ) -> Coro[R]:
        """Spawns a child once, waits for its end without holding the task, and answers with its result. Children that
        are gathered, each with a key, are spawned in one call."""
        return self._run.journal.call(name, key, partial(self._child, submission(what, input, **options)))

    async def _child(self, made: Submission[R], identity: Identity) -> R:
        run, journal = self._run, self._run.journal
        its_id = child_id(self.execution_id, self.task.generation or 0, *identity)
        if await journal.find(identity, "child") is None:
            with journal.busy():
                await run.spawn({**made.args, "execution_id": its_id})
        ended = await journal.until_ended(identity, "children", {"execution_id": its_id})
        # An entry of an earlier generation names the child of that time.
        child = run.client.execution(ended.child_id or its_id)
        with journal.busy():
            if ended.state == "failed":
                # The entry of a child that had ended before it was waited for does not say why.
                failure = None if ended.message else (await child.get()).last_failure
                reason = ended.message or (failure.reason if failure else f"child {identity.label} did not succeed")
                raise ChildFailed(reason, category=ended.category)
            # Only in a fork is the result of a child in the parent's journal.
            content = ended.result or await run.client.call(wire.get_result, execution_id=child.id)
        return made.result.decode(content)

    async def continue_as_new(self, input: Any) -> NoReturn:
        """Begins the function anew, with another input and an empty journal. It stays the same execution, so that a
        loop may run for months."""
        await self._run.continue_as_new(codec(Any).encode("input", input))
        raise Parked

    async def emit(
        self, frame_type: str, value: Any, *, mode: str | None = None, correlation_id: str | None = None
    ) -> None:
        """Writes a frame to the task's stream in the background; all are stored before the task ends. Text and bytes
        are written as they are, anything else as JSON. `mode` is `durable`, `summary` or `best_effort`."""
        await self._run.frames.write(frame(frame_type, value, mode=mode, correlation_id=correlation_id))

    async def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Says how far the task is."""
        await self._run.call(wire.progress, pct=None if percent is None else round(percent), message=message)

    async def usage(
        self, usage: Mapping[str, int], *, key: str | None = None, budget: str | None = None
    ) -> wire.ReportUsageOutcome:
        """Charges the execution's budgets. The same key counts once for this execution; without one, call it in a
        step. `BudgetExceeded` when the hard limit of a budget forbids it; a soft limit that is passed is in the
        answer."""
        answer: wire.ReportUsageOutcome
        answer = await self._run.call(wire.report_usage, usage=dict(usage), dedup_key=key, budget=budget)
        for name, said in answer.budgets.items():
            if said.outcome == "hard_breach":
                raise BudgetExceeded(name, said.dimension)
        return answer

    async def spend(
        self, name: str, estimate: Mapping[str, int], body: Callable[..., Any], *args: Any, budget: str | None = None
    ) -> Any:
        """Holds an estimate in the execution's budgets, does the work, and settles what it really spent: the body
        returns `Spent(value, actual)`, and this the value.

        `BudgetRefused` when a budget has no room: the work is not begun. A body that raises has spent the estimate,
        unless it raises `NotDone`; so has one that dies with its worker. Work that is to happen once in all runs of the
        function is a step: `ctx.step("ask", lambda: ctx.spend("ask", {"tokens": 2_000}, ask, prompt))`.
        """
        run, key = self._run, f"{name} #{self._run.count('spend')}"
        with run.journal.busy():
            held = await run.call(wire.reserve_spend, key=key, amounts=dict(estimate), budget=budget)
            if held.outcome == "refused":
                raise BudgetRefused(name, held)
            if held.outcome == "asked":
                # The task was let go; the function is called again when a person has answered.
                run.unwind()
                raise Parked
            # A body that raises has spent the estimate, unless it says that it has done nothing.
            operation: wire.Operation[..., Any] = wire.settle_spend
            actual = {"actual": dict(estimate)}
            try:
                spent: Spent[Any] = await asyncio.ensure_future(call_body(partial(body, *args)))
                actual = {"actual": dict(spent.actual)}
            except TaskError as error:
                if error.category == NotDone.default_category:
                    operation, actual = wire.release_spend, {}
                raise
            finally:
                if held.budgets and not run.closed:
                    await run.call(operation, key=key, **actual)
            return spent.value

    def acquire(
        self,
        provider: str,
        name: str,
        body: Callable[..., Coro[Spent[R]] | Spent[R]],
        *args: Any,
        tokens: int = 0,
        ttl: Span | None = None,
        **options: Unpack[StepOptions],
    ) -> Coro[R]:
        """Waits until a provider lets a call through, makes it as a step, and tells what it really cost: the body
        returns `Spent(value, {"tokens": used})`, and this the value.

        `tokens` is what the call is expected to cost. A body that raises `Throttled` (a 429) has everybody leave the
        provider alone, and is called again at its next turn. After `ttl` another call may be made in its stead.
        """
        turn = Turn(self._run, provider, tokens, ttl)
        made: StepOptions = {"returns": value_type(body), **options}
        step = Step(self._run.journal, partial(turn.make, partial(body, *args)), made)
        step.turn = turn
        return self._run.journal.call(name, options.get("key"), step.run)

    async def upstreams(self) -> list[wire.UpstreamView]:
        """The executions it depends on, with outcomes and results; also its children."""
        its_id, client = self.execution_id, self._run.holder_client
        return [one async for one in client.items(wire.list_upstreams, execution_id=its_id, results=True)]


def _blocking(method: Callable[Concatenate[Context, P], Coro[R]]) -> Callable[Concatenate[SyncContext, P], R]:
    def call(self: SyncContext, /, *args: P.args, **options: P.kwargs) -> R:
        async def calling() -> R:
            return await method(self._context, *args, **options)

        return asyncio.run_coroutine_threadsafe(calling(), self._loop).result()

    call.__doc__ = method.__doc__
    return call


class SyncContext(_About):
    """The task of a plain function, which runs in a thread. It has steps and streams, and cannot wait."""

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(run)
        self._loop = loop
        self._context = Context(run)

    def step(self, name: str, body: Callable[..., R], *args: Any, **options: Unpack[StepOptions]) -> R:
        """Runs code once; see `Context.step`."""
        return self._step(name, body, *args, **options)

    _step = _blocking(Context.step)
    now = _blocking(Context.now)
    emit = _blocking(Context.emit)
    progress = _blocking(Context.progress)
    usage = _blocking(Context.usage)
    spend = _blocking(Context.spend)


async def _utc_now() -> datetime:
    return datetime.now(timezone.utc)
