"""One step: code whose result is kept, so that it does not run again."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread
from typing import Any, Literal, TypeAlias, TypeVar

from typing_extensions import TypedDict

from . import wire
from ._journal import IN_STEP, Identity, Journal
from ._payload import Codec, codec, returned_type, wire_json
from .errors import NotDone, StepFailed, TaskError
from .task import Span, milliseconds

T = TypeVar("T")

#: A body that runs longer than this is shown to people as begun.
SHOWN_AFTER_S = 1.0
#: The longest wait between two tries under one lease.
WAIT_MAX_S = 5.0
#: The longest name of an entry.
NAME_MAX_BYTES = 128

#: What becomes of a `once` step of which nobody knows whether it happened: `ask` waits for the signal
#: `in doubt: NAME`, `fail` fails with the category `in_doubt`, `run_again` runs it.
OnDoubt: TypeAlias = Literal["ask", "fail", "run_again"]


@dataclass(frozen=True)
class Retry:
    """So many tries in all in one attempt, with this wait before the second, doubled before each further one and never
    over 5 seconds."""

    tries: int
    wait: Span = 1.0

    def seconds_before(self, tried: int) -> float:
        """How long to wait after so many tries."""
        return min(milliseconds(self.wait) / 1000 * 2.0 ** min(tried - 1, 16), WAIT_MAX_S)


class StepOptions(TypedDict, total=False):
    """What can be said about a step."""

    #: Tells calls of one name apart. Parallel calls need one.
    key: str | None
    #: The body has an effect that must not happen twice; `True` asks a person when nobody knows whether it did.
    once: OnDoubt | bool
    #: Tries in one attempt.
    retry: Retry | int
    #: For each try.
    timeout: Span
    #: What the body works on. A counted step that finds another one later fails with `journal_mismatch`.
    input: Any
    #: The type of the result, instead of the body's return annotation.
    returns: Any


class Step:
    """A step about to run."""

    def __init__(
        self,
        journal: Journal,
        identity: Identity,
        body: Callable[[], Any],
        options: StepOptions,
        kind: str | None = None,
    ) -> None:
        self.journal = journal
        self.identity = identity
        self.body = body
        self.kind = kind
        returns = options.get("returns")
        self.result = codec(returned_type(getattr(body, "func", body)) if returns is None else returns)
        once = options.get("once")
        self.once: OnDoubt | None = "ask" if once is True else once or None
        retry = options.get("retry", 1)
        self.retry = Retry(retry) if isinstance(retry, int) else retry
        self.timeout = options.get("timeout")
        given = options.get("input")
        self.input_hash = None if given is None else hashlib.sha256(wire_json(given)).hexdigest()[:32]

    async def run(self) -> Any:
        """Runs it, or brings back what it did before."""
        try:
            return await self._run()
        finally:
            self.journal.call_ended(self.identity)

    async def _run(self) -> Any:
        known = await self.journal.find(self.identity)
        if known is None:
            return await self._run_body(0)
        recorded = known.input_hash
        if self.identity.key is None and self.input_hash and recorded and recorded != self.input_hash:
            reason = f"step {self.identity.label} has another input than the one it recorded"
            raise TaskError(reason, category="journal_mismatch")
        if known.state == "completed":
            return self._result_of(known)
        if known.state == "failed":
            raise failure_of(self.identity, known)
        if known.state == "begun" and self.once:
            decided, value = await self._decide(known.number)
            if decided:
                return value
        return await self._run_body(known.tries)

    async def _run_body(self, before: int) -> Any:
        begun = await self._begin(before)
        tried = 0
        while True:
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
            if begun is not None and self.once != "run_again" and not isinstance(failure, NotDone):
                decided, value = await self._decide(begun)
                if decided:
                    return value
                # What begins now is a doubt of its own, which no earlier answer settles.
                begun = await self._begin(before + tried)
                continue
            if tried < self.retry.tries:
                with self.journal.busy():
                    await asyncio.sleep(self.retry.seconds_before(tried))
                continue
            reason, category, retry_after = in_words(failure)
            await self.journal.record(self._entry("failed", before + tried, category=category, message=reason))
            raise _failed(self.identity, reason, category, retry_after) from failure

    async def _begin(self, tries: int) -> int | None:
        """Records that a `once` body begins, and says under which number."""
        return await self.journal.record(self._entry("begun", tries)) if self.once else None

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

    def _result_of(self, known: wire.StepView) -> Any:
        try:
            return self.result.decode(known.result)
        except ValueError as error:
            reason = f"the recorded result of step {known.name!r} cannot be read: {error}"
            raise TaskError(reason, category="journal_mismatch") from error

    async def _decide(self, begun: int) -> tuple[bool, Any]:
        """Nobody knows whether the `once` body happened that began under this number. Not decided means that it is to
        run."""
        doubt = f"nobody knows whether step {self.identity.label} happened"
        if self.once == "run_again":
            return False, None
        if self.once == "fail":
            raise await self._fail_in_doubt(doubt)
        question = f"in doubt: {self.identity.label}".encode()[:NAME_MAX_BYTES].decode(errors="ignore")
        answers: Codec[Any] = Codec(Any)
        round_ = 0
        # The key ties the answer to this beginning: one that was given for an earlier doubt, or before anybody asked,
        # does not let the body run again. An answer that says nothing is asked for again.
        while True:
            identity = self.journal.call(question, f"{begun}.{round_}")
            ended = await self.journal.until_ended(identity, "waitpoints", {})
            answer = answers.decode(ended.result)
            word = answer.get("answer") if isinstance(answer, dict) else answer
            if word == "did_not_happen":
                return False, None
            if word == "fail":
                raise await self._fail_in_doubt(f"{doubt}; a person let it fail")
            if word == "happened":
                result = answer.get("result") if isinstance(answer, dict) else None
                try:
                    value = self.result.of_json(result)
                except ValueError:
                    round_ += 1
                    continue
                entry = {**self.identity.args(), "state": "completed"}
                await self.journal.record({**entry, **({} if result is None else {"result": result})})
                return True, value
            round_ += 1

    async def _fail_in_doubt(self, reason: str) -> StepFailed:
        failed = {**self.identity.args(), "state": "failed", "category": "in_doubt", "message": reason}
        await self.journal.record(failed)
        return _failed(self.identity, reason, "in_doubt", None)


async def call_body(body: Callable[[], Any]) -> Any:
    """Calls a body: a coroutine is awaited, a plain function runs in a thread, so that it does not block the loop."""
    IN_STEP.set(True)
    if inspect.iscoroutinefunction(getattr(body, "func", body)):
        return await body()
    value = await in_thread(body)
    return await value if isinstance(value, Awaitable) else value


async def in_thread(function: Callable[[], T]) -> T:
    """Calls a function in a thread of its own. A thread cannot be stopped, and does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def call() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(function)
        except StopIteration as stop:
            error = RuntimeError(repr(stop))
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            # The loop is closed: nobody waits.
            return

    context = copy_context()
    Thread(target=call, daemon=True, name="flowfabric-body").start()
    return await done


def in_words(error: BaseException) -> tuple[str, str, float | None]:
    """Reason, category and wait before the retry of a failure."""
    if isinstance(error, TaskError):
        return error.reason, error.category, error.retry_after
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__, "error", None


def _failed(identity: Identity, reason: str, category: str | None, retry_after: float | None) -> StepFailed:
    failed = StepFailed(reason, category=category, retry_after=retry_after)
    failed.step = identity.args()
    return failed


def failure_of(identity: Identity, known: wire.StepView) -> StepFailed:
    """The failure that the journal holds."""
    return _failed(identity, known.message or f"step {identity.label} failed", known.category, None)
