"""One step: code whose result is kept, so that it does not run again; and its turn, where a provider allows so many."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic_core import to_json
from typing_extensions import TypedDict

from . import wire
from ._batches import settle
from ._journal import IN_STEP, Identity, Journal, changed, is_ended
from .errors import NotDone, StepFailed, TaskError, Throttled
from .task import Span, codec, milliseconds, returned_type, wait_within

if TYPE_CHECKING:
    from ._run import Run

T = TypeVar("T")

#: A body that runs longer than this is shown to people as begun.
SHOWN_AFTER_S = 1.0
#: Waits up to this long are waited under the lease.
SHORT_WAIT_S = 5.0
#: A text is cut where it is too long for the API; its beginning says the most.
REASON_MAX_BYTES = 4_096
CATEGORY_MAX_BYTES = 256
#: A provider is left alone for this long at the most.
THROTTLE_MAX_MS = 86_400_000
#: The category of a step of which nobody knows whether it happened.
IN_DOUBT = "in_doubt"

#: The fate of a `once` step of which nobody knows whether it happened: `ask` suspends the execution until a person
#: answers, `fail` fails with the category `in_doubt`, `run_again` runs it.
OnDoubt: TypeAlias = Literal["ask", "fail", "run_again"]
#: The fate of an entry with a key that the program gives another input than the recorded one.
OnChange: TypeAlias = Literal["keep", "run_again", "fail"]


@dataclass(frozen=True)
class Retry:
    """So many tries in all in one attempt, with this wait before the second, doubled before each further one and never
    over 5 seconds."""

    tries: int
    wait: Span = 1.0

    def seconds_before(self, tried: int) -> float:
        """How long to wait after so many tries."""
        return min(milliseconds(self.wait) / 1000 * 2.0 ** min(tried - 1, 16), SHORT_WAIT_S)


class StepOptions(TypedDict, total=False):
    """The options of a step."""

    #: Tells calls of one name apart. Parallel calls need one.
    key: str | None
    #: The body has an effect that must not happen twice; `True` asks a person when nobody knows whether it did.
    once: OnDoubt | bool
    #: Tries in one attempt.
    retry: Retry | int
    #: For each try.
    timeout: Span
    #: The value that the body works on. A counted step that finds another one is asked about (`journal_mismatch`).
    input: Any
    #: How a step with a key takes another input than the recorded one.
    on_change: OnChange
    #: The type of the result, instead of the body's return annotation.
    returns: Any


class Step:
    """A step about to run."""

    #: The provider's turn that each try waits for.
    turn: Turn | None = None
    identity: Identity

    def __init__(self, journal: Journal, body: Callable[[], Any], options: StepOptions, kind: str = "step") -> None:
        self.journal = journal
        self.body = body
        self.kind = kind
        returns = options.get("returns")
        self.result = codec(returned_type(getattr(body, "func", body)) if returns is None else returns)
        once = options.get("once")
        self.once: OnDoubt | None = "ask" if once is True else once or None
        retry = options.get("retry", 1)
        self.retry = Retry(retry) if isinstance(retry, int) else retry
        self.timeout = options.get("timeout")
        self.on_change = options.get("on_change", "keep")
        given = options.get("input")
        self.input_hash = None if given is None else hashlib.sha256(to_json(given)).hexdigest()[:32]

    async def run(self, identity: Identity) -> Any:
        """Runs it, or brings back what it did before."""
        self.identity = identity
        known = await self.journal.find(self.identity, self.kind, self.input_hash)
        if known is None:
            return await self._run_body(0)
        if is_ended(known) and changed(known, self.kind, self.input_hash):
            # Under a key the program has said beforehand what this means.
            if self.on_change == "run_again":
                return await self._run_body(0)
            if self.on_change == "fail":
                reason = f"step {self.identity.label} has another input than the one it recorded"
                raise TaskError(reason, category="journal_mismatch")
            self.journal.changed.add(self.identity)
        if known.state == "completed":
            return self.result.read(known.result, f"the recorded result of step {known.name!r}", "journal_mismatch")
        if known.state == "failed":
            raise _failed(self.identity, known.message or f"step {self.identity.label} failed", known.category, None)
        if known.state == "begun" and self.once:
            await self._doubt()
        return await self._run_body(known.tries)

    async def _run_body(self, before: int) -> Any:
        tried = 0
        while True:
            if self.turn:
                await self.turn.wait(self.identity.label)
            if self.once and not tried:
                await self.journal.record(self._entry("begun", before))
            tried += 1
            started = time.monotonic()
            try:
                value = await self._one_try(before + tried)
                encoded = self.result.encode("result", value)
                value = self.result.same(value)
            except Exception as error:
                failure = error
            else:
                took_ms = round((time.monotonic() - started) * 1000)
                await self.journal.record(self._entry("completed", before + tried, took_ms=took_ms, **encoded))
                return value
            if self.turn and isinstance(failure, Throttled):
                tried -= 1
                continue
            if self.once in {"ask", "fail"} and not isinstance(failure, NotDone):
                await self._doubt()
            if tried < self.retry.tries:
                with self.journal.busy():
                    await asyncio.sleep(self.retry.seconds_before(tried))
                continue
            reason, category, retry_after = in_words(failure)
            await self.journal.record(self._entry("failed", before + tried, category=category, message=reason))
            raise _failed(self.identity, reason, category, retry_after) from failure

    async def _one_try(self, tries: int) -> Any:
        limit = None if self.timeout is None else milliseconds(self.timeout) / 1000
        with self.journal.busy():
            body = asyncio.ensure_future(call_body(self.body))
            try:
                first = SHOWN_AFTER_S if limit is None else min(SHOWN_AFTER_S, limit)
                await asyncio.wait({body}, timeout=first)
                if not body.done() and (limit is None or limit > first):
                    if not self.once:
                        await self.journal.record(self._entry("begun", tries))
                    await asyncio.wait({body}, timeout=None if limit is None else limit - first)
                if not body.done():
                    raise TaskError("the step timed out", category="timeout")
            finally:
                if not body.done():
                    body.cancel()
                    await asyncio.wait({body})
            return body.result()

    def _entry(self, state: str, tries: int, **more: Any) -> dict[str, Any]:
        made = {"state": state, "tries": tries, "input_hash": self.input_hash, "kind": self.kind, **more}
        return {**self.identity.args(), **{name: value for name, value in made.items() if value is not None}}

    async def _doubt(self) -> None:
        """Nobody knows whether a `once` body happened. This returns when it is to run."""
        doubt = f"nobody knows whether step {self.identity.label} happened"
        if self.once == "ask":
            await self.journal.ask(self.identity, IN_DOUBT, doubt, self.kind, self.input_hash)
        elif self.once == "fail":
            await self.journal.record(self._entry("failed", 0, category=IN_DOUBT, message=doubt))
            raise _failed(self.identity, doubt, IN_DOUBT, None)


async def call_body(body: Callable[[], Any]) -> Any:
    """Calls a body: a coroutine is awaited, a plain function runs in a thread, so that it does not block the loop."""
    IN_STEP.set(True)
    if inspect.iscoroutinefunction(getattr(body, "func", body)):
        return await body()
    value = await in_thread(body)
    return await value if isinstance(value, Awaitable) else value


async def in_thread(function: Callable[[], T]) -> T:
    """Calls a function in a thread of its own. A thread cannot be stopped, and does not keep the process alive."""
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        outcome: Any
        try:
            outcome = context.run(function)
        except BaseException as raised:
            outcome = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised
        # Nobody waits for it when the loop is closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, done, outcome)

    Thread(target=call, daemon=True, name="flowfabric-body").start()
    return await done


def in_words(error: BaseException) -> tuple[str, str, float | None]:
    """Reason, category and wait before the retry of a failure, in words that the server takes."""
    reason, category, retry_after = type(error).__name__, "error", None
    # The error of somebody else may be unable to say what it is.
    with contextlib.suppress(Exception):
        if isinstance(error, TaskError):
            reason, category, retry_after = str(error.reason), str(error.category), error.retry_after
        elif text := str(error):
            reason = f"{reason}: {text}"
    category = "".join(one for one in category if one.isprintable() or one in "\u200c\u200d")
    return _cut(reason, REASON_MAX_BYTES), _cut(category, CATEGORY_MAX_BYTES) or "error", retry_after


def _cut(text: str, max_bytes: int) -> str:
    return text.replace("\0", "").encode(errors="backslashreplace")[:max_bytes].decode(errors="ignore")


def _failed(identity: Identity, reason: str, category: str | None, retry_after: float | None) -> StepFailed:
    failed = StepFailed(reason, category=category, retry_after=retry_after)
    # A step that failed because nobody knows whether it happened does not run again by itself.
    failed.step = None if category == IN_DOUBT else identity.args()
    return failed


@dataclass(frozen=True)
class Spent(Generic[T]):
    """The value of a piece of work, and its real cost by dimension."""

    value: T
    actual: Mapping[str, int]


def value_type(body: Callable[..., Any]) -> Any:
    """The type of the value, where a function says that it returns `Spent[T]`."""
    return next(iter(get_args(returned_type(body))), Any)


@dataclass
class Turn:
    """The right to make one call."""

    run: Run
    provider: str
    tokens: int
    ttl: Span | None
    _naps: int = 0
    _key: str = ""

    async def wait(self, step: str) -> None:
        """Returns when the call may be made. A long wait lets go of the task, which keeps its place in the line."""
        self._key, run = step, self.run
        ttl_ms = None if self.ttl is None else milliseconds(self.ttl)
        asks = {"provider": self.provider, "key": step, "cost": {"tokens": self.tokens}, "ttl_ms": ttl_ms}
        while True:
            with run.journal.busy():
                acquired = await run.call(wire.acquire_provider, **asks)
                if acquired.granted:
                    return
                if acquired.wait_ms <= SHORT_WAIT_S * 1000:
                    await asyncio.sleep(acquired.wait_ms / 1000)
                    continue
            # A wait that an earlier run of the function has been through is over at once.
            nap = run.journal.begin(f"wait for {self.provider}", f"{step} {self._naps}")
            self._naps += 1
            sleep = {"sleep_ms": acquired.wait_ms, "provider": self.provider}
            await run.journal.until_ended(nap, "sleeps", sleep)

    async def make(self, body: Callable[[], Any]) -> Any:
        """Makes the call, and settles what it cost. One that raises counts as expected."""
        tokens = self.tokens
        try:
            spent: Spent[Any] = await call_body(body)
            tokens = spent.actual.get("tokens", 0)
            return spent.value
        except Throttled as error:
            tokens = 0
            after, namespace = wait_within(error.retry_after, THROTTLE_MAX_MS), self.run.task.namespace
            await self.run.call(wire.throttle_provider, name=self.provider, namespace=namespace, retry_after_ms=after)
            raise
        finally:
            if not self.run.closed:
                cost = {"requests": 1, "tokens": tokens}
                await self.run.call(wire.settle_provider, provider=self.provider, key=self._key, actual=cost)
