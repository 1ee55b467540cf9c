"""The two clients: `Client` blocks, `AsyncClient` is awaited. They have the same methods.

Every operation of the API is `client.call(wire.PAUSE_LANE, lane="gpu")`; the methods are those used most.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Generic, TypeVar, overload

import httpx
from typing_extensions import Self, Unpack

from . import wire
from ._calls import CONNECT_TIMEOUT_S, Call, Repeats, RetryPolicy, Settings, failure_of, needs_partitions
from ._payload import Codec, codec
from ._tail import SILENCE_MAX_S, Following, StreamEvent
from .errors import FlowFabricError, NotCompleted, Refused, Unreachable, refusal
from .flow import Flow
from .task import Options, Span, Submission, Task, milliseconds, submission

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
T = TypeVar("T")

#: One call waits at most this long; a longer wait is several calls.
WAIT_MAX_S = 30.0
#: How many executions one call creates.
BATCH_MAX = 1_000


class _Connection:
    """Where the server is: what is given, then `FF_SERVER`, `FF_TOKEN` and `FF_NAMESPACE`, then this machine."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        namespace: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.settings = Settings(
            url or os.environ.get("FF_SERVER") or "http://127.0.0.1:7171",
            token or os.environ.get("FF_TOKEN") or None,
            namespace or os.environ.get("FF_NAMESPACE") or None,
            retry or RetryPolicy(),
        )
        self._partitions: int | None = None
        self._open(self.settings.http_options())

    def _open(self, options: dict[str, Any]) -> None:
        raise NotImplementedError


def _signal_args(execution_id: str, name: str, payload: Any, more: dict[str, Any]) -> dict[str, Any]:
    return {"execution_id": execution_id, "name": name, **codec(Any).encode("payload", payload), **more}


def _budget_args(name: str, hard: Mapping[str, int], soft: Mapping[str, int], more: dict[str, Any]) -> dict[str, Any]:
    dimensions = {one: {"hard": hard.get(one, 0), "soft": soft.get(one, 0)} for one in {**hard, **soft}}
    return {"name": name, "dimensions": dimensions, **more}


def _refused(answer: wire.CreateResult) -> Refused | None:
    return refusal(200, answer.error.model_dump()) if answer.error else None


def _not_completed(view: wire.ExecutionView) -> NotCompleted:
    failure = view.last_failure
    reason, category = (failure.reason, failure.category) if failure else (None, None)
    return NotCompleted(view.execution_id, view.public_state, reason, category)


def _chunks(made: list[Submission[R]]) -> Iterator[list[Submission[R]]]:
    return (made[start : start + BATCH_MAX] for start in range(0, len(made), BATCH_MAX))


class Client(_Connection):
    """A connection to a server. It may be used by several threads."""

    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx.Client(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def call(self, operation: wire.Operation[T], /, **args: Any) -> T:
        """Calls an operation. It is repeated while the server cannot be reached, and takes effect once."""
        call = Call(operation, args, self.settings, self._partition_count() if needs_partitions(operation) else 1)
        repeats = Repeats(self.settings.retry)
        while True:
            try:
                response = self._http.request(**call.request())
                return call.read(response.status_code, response.content)
            except httpx.TransportError as error:
                failure: FlowFabricError = Unreachable(f"{self.settings.url}: {error!r}")
            except (Refused, Unreachable) as error:
                failure = error
            time.sleep(repeats.pause(failure))
            call.repeated()

    def _partition_count(self) -> int:
        if self._partitions is None:
            self._partitions = self.call(wire.GET_DEPLOYMENT).partitions.flow
        return self._partitions

    @overload
    def submit(self, what: Task[I, R], input: I = ..., **options: Unpack[Options]) -> Execution[R]: ...
    @overload
    def submit(self, what: str, input: Any = ..., **options: Unpack[Options]) -> Execution[Any]: ...
    def submit(self, what: Task[Any, Any] | str, input: Any = None, **options: Unpack[Options]) -> Execution[Any]:
        """Submits a task, or a kind that somebody else serves, with its input."""
        made = submission(what, input, **options)
        created = self.call(wire.CREATE_EXECUTION, **made.args)
        return Execution(self, created.execution_id, made.result)

    def submit_all(self, submissions: Iterable[Submission[R]]) -> list[Execution[R] | Refused]:
        """Submits many, up to 1,000 in a call; each has its own answer."""
        answers: list[Execution[R] | Refused] = []
        for chunk in _chunks(list(submissions)):
            created = self.call(wire.CREATE_EXECUTIONS, executions=[dict(one.args) for one in chunk])
            for one, answer in zip(chunk, created.results, strict=True):
                answers.append(_refused(answer) or Execution(self, answer.execution_id or "", one.result))
        return answers

    @overload
    def execution(self, execution_id: str) -> Execution[Any]: ...
    @overload
    def execution(self, execution_id: str, returns: type[R]) -> Execution[R]: ...
    def execution(self, execution_id: str, returns: Any = Any) -> Execution[Any]:
        """An execution that is there already."""
        return Execution(self, execution_id, codec(returns))

    def list(self, **filters: Any) -> Iterator[wire.ExecutionSummary]:
        """Executions, the newest first; the filters are those of `list_executions`."""
        cursor = filters.pop("cursor", None)
        while True:
            page = self.call(wire.LIST_EXECUTIONS, cursor=cursor, **filters)
            yield from page.items
            if not (cursor := page.next_cursor):
                return

    def events(self, *, cursor: str | None = None, **filters: Any) -> Iterator[wire.EventView]:
        """What happens in the deployment, from the oldest event there is, or after a cursor. A repeat has the
        same `event_id`. It does not end."""
        while True:
            page = self.call(wire.LIST_EVENTS, cursor=cursor, wait_ms=milliseconds(WAIT_MAX_S), **filters)
            yield from page.items
            cursor = page.next_cursor

    def create_flow(self, flow: Flow) -> dict[str, Execution[Any]]:
        """Creates a flow and all of its executions at once; answers them by their nodes."""
        created = self.call(wire.CREATE_FLOW, **flow.args)
        return {name: Execution(self, one, flow.results[name]) for name, one in created.executions.items()}

    def create_budget(
        self, name: str, *, hard: Mapping[str, int] = {}, soft: Mapping[str, int] = {}, **more: Any
    ) -> wire.CreateBudgetOutcome:
        """Creates a budget with its limits by dimension, unless it is there."""
        return self.call(wire.CREATE_BUDGET, **_budget_args(name, hard, soft, more))

    def budget(self, name: str) -> wire.BudgetStatus:
        """What a budget has used, and what is left."""
        return self.call(wire.GET_BUDGET, name=name)


class Execution(Generic[R]):
    """One execution, as its submitter or an operator sees it."""

    def __init__(self, client: Client, execution_id: str, result: Codec[R]) -> None:
        self.client = client
        self.id = execution_id
        self._result = result

    def get(self) -> wire.ExecutionView:
        """Everything about it but its bytes."""
        return self.client.call(wire.GET_EXECUTION, execution_id=self.id)

    def wait(self, timeout: Span | None = None) -> wire.ExecutionView:
        """Waits until it has ended. `TimeoutError` when the time is up."""
        until = None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000
        while True:
            left = WAIT_MAX_S if until is None else max(0.0, min(WAIT_MAX_S, until - time.monotonic()))
            waited = self.client.call(wire.WAIT_EXECUTION, execution_id=self.id, wait_ms=milliseconds(left))
            if waited.terminal:
                return waited.execution
            if left == 0:
                raise TimeoutError(f"execution {self.id} is {waited.execution.public_state}")

    def result(self, timeout: Span | None = None) -> R:
        """Waits for its end and reads its result. `NotCompleted` when it ended otherwise."""
        view = self.wait(timeout)
        if view.public_state != "completed":
            raise _not_completed(view)
        return self._result.decode(self.client.call(wire.GET_RESULT, execution_id=self.id))

    def cancel(self, reason: str | None = None) -> wire.CancelExecutionOutcome:
        """Cancels it, whatever it does."""
        return self.client.call(wire.CANCEL_EXECUTION, execution_id=self.id, reason=reason)

    def replay(self, **args: Any) -> wire.ReplayExecutionOutcome:
        """Runs it again after its end, with a journal of its own."""
        return self.client.call(wire.REPLAY_EXECUTION, execution_id=self.id, **args)

    def signal(self, name: str, payload: Any = None, **more: Any) -> wire.SignalOutcome:
        """Signals it by name; `waitpoint_id` and `token` where the caller has only those."""
        return self.client.call(wire.DELIVER_SIGNAL, **_signal_args(self.id, name, payload, more))

    def explain(self) -> wire.Explanation:
        """Why it is not running."""
        return self.client.call(wire.EXPLAIN_EXECUTION, execution_id=self.id)

    def steps(self, generation: int | None = None) -> Iterator[wire.StepView]:
        """Its journal, oldest first."""
        after: int | None = 0
        while after is not None:
            page = self.client.call(wire.LIST_STEPS, execution_id=self.id, generation=generation, after=after)
            yield from page.items
            after = page.next_after

    def tail(self, after: str = "0-0") -> Iterator[StreamEvent]:
        """Its stream over all attempts, until it ends. It reconnects by itself after the last frame."""
        following = Following(after)
        repeats = Repeats(self.client.settings.retry)
        timeout = httpx.Timeout(SILENCE_MAX_S, connect=CONNECT_TIMEOUT_S, pool=None)
        url = f"/v1/executions/{self.id}/stream"
        while not following.ended:
            failure: FlowFabricError = Unreachable("the stream was cut")
            try:
                with self.client._http.stream("GET", url, headers=following.headers(), timeout=timeout) as response:
                    if response.status_code != 200:
                        raise failure_of(response.status_code, response.read())
                    for data in response.iter_bytes():
                        for event in following.feed(data):
                            repeats = Repeats(self.client.settings.retry)
                            yield event
            except httpx.TransportError as error:
                failure = Unreachable(f"{self.client.settings.url}: {error!r}")
            except (Refused, Unreachable) as error:
                failure = error
            if not following.ended:
                time.sleep(repeats.pause(failure))


class AsyncClient(_Connection):
    """The same for a program with an event loop."""

    def _open(self, options: dict[str, Any]) -> None:
        self._http = httpx.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def call(self, operation: wire.Operation[T], /, **args: Any) -> T:
        """Calls an operation. It is repeated while the server cannot be reached, and takes effect once."""
        partitions = await self._partition_count() if needs_partitions(operation) else 1
        call = Call(operation, args, self.settings, partitions)
        repeats = Repeats(self.settings.retry)
        while True:
            try:
                response = await self._http.request(**call.request())
                return call.read(response.status_code, response.content)
            except httpx.TransportError as error:
                failure: FlowFabricError = Unreachable(f"{self.settings.url}: {error!r}")
            except (Refused, Unreachable) as error:
                failure = error
            await asyncio.sleep(repeats.pause(failure))
            call.repeated()

    def patient(self) -> Self:
        """The same client, which repeats calls for as long as anybody waits for them."""
        client = copy(self)
        client.settings = replace(self.settings, retry=replace(self.settings.retry, max_elapsed=math.inf))
        return client

    async def _partition_count(self) -> int:
        if self._partitions is None:
            self._partitions = (await self.call(wire.GET_DEPLOYMENT)).partitions.flow
        return self._partitions

    @overload
    async def submit(self, what: Task[I, R], input: I = ..., **options: Unpack[Options]) -> AsyncExecution[R]: ...
    @overload
    async def submit(self, what: str, input: Any = ..., **options: Unpack[Options]) -> AsyncExecution[Any]: ...
    async def submit(
        self, what: Task[Any, Any] | str, input: Any = None, **options: Unpack[Options]
    ) -> AsyncExecution[Any]:
        """Submits a task, or a kind that somebody else serves, with its input."""
        made = submission(what, input, **options)
        created = await self.call(wire.CREATE_EXECUTION, **made.args)
        return AsyncExecution(self, created.execution_id, made.result)

    async def submit_all(self, submissions: Iterable[Submission[R]]) -> list[AsyncExecution[R] | Refused]:
        """Submits many, up to 1,000 in a call; each has its own answer."""
        answers: list[AsyncExecution[R] | Refused] = []
        for chunk in _chunks(list(submissions)):
            created = await self.call(wire.CREATE_EXECUTIONS, executions=[dict(one.args) for one in chunk])
            for one, answer in zip(chunk, created.results, strict=True):
                answers.append(_refused(answer) or AsyncExecution(self, answer.execution_id or "", one.result))
        return answers

    @overload
    def execution(self, execution_id: str) -> AsyncExecution[Any]: ...
    @overload
    def execution(self, execution_id: str, returns: type[R]) -> AsyncExecution[R]: ...
    def execution(self, execution_id: str, returns: Any = Any) -> AsyncExecution[Any]:
        """An execution that is there already."""
        return AsyncExecution(self, execution_id, codec(returns))

    async def list(self, **filters: Any) -> AsyncIterator[wire.ExecutionSummary]:
        """Executions, the newest first; the filters are those of `list_executions`."""
        cursor = filters.pop("cursor", None)
        while True:
            page = await self.call(wire.LIST_EXECUTIONS, cursor=cursor, **filters)
            for one in page.items:
                yield one
            if not (cursor := page.next_cursor):
                return

    async def events(self, *, cursor: str | None = None, **filters: Any) -> AsyncIterator[wire.EventView]:
        """What happens in the deployment, from the oldest event there is, or after a cursor. It does not end."""
        while True:
            page = await self.call(wire.LIST_EVENTS, cursor=cursor, wait_ms=milliseconds(WAIT_MAX_S), **filters)
            for one in page.items:
                yield one
            cursor = page.next_cursor

    async def create_flow(self, flow: Flow) -> dict[str, AsyncExecution[Any]]:
        """Creates a flow and all of its executions at once; answers them by their nodes."""
        created = await self.call(wire.CREATE_FLOW, **flow.args)
        return {name: AsyncExecution(self, one, flow.results[name]) for name, one in created.executions.items()}

    async def create_budget(
        self, name: str, *, hard: Mapping[str, int] = {}, soft: Mapping[str, int] = {}, **more: Any
    ) -> wire.CreateBudgetOutcome:
        """Creates a budget with its limits by dimension, unless it is there."""
        return await self.call(wire.CREATE_BUDGET, **_budget_args(name, hard, soft, more))

    async def budget(self, name: str) -> wire.BudgetStatus:
        """What a budget has used, and what is left."""
        return await self.call(wire.GET_BUDGET, name=name)


class AsyncExecution(Generic[R]):
    """One execution, as its submitter or an operator sees it."""

    def __init__(self, client: AsyncClient, execution_id: str, result: Codec[R]) -> None:
        self.client = client
        self.id = execution_id
        self._result = result

    async def get(self) -> wire.ExecutionView:
        """Everything about it but its bytes."""
        return await self.client.call(wire.GET_EXECUTION, execution_id=self.id)

    async def wait(self, timeout: Span | None = None) -> wire.ExecutionView:
        """Waits until it has ended. `TimeoutError` when the time is up."""
        until = None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000
        while True:
            left = WAIT_MAX_S if until is None else max(0.0, min(WAIT_MAX_S, until - time.monotonic()))
            waited = await self.client.call(wire.WAIT_EXECUTION, execution_id=self.id, wait_ms=milliseconds(left))
            if waited.terminal:
                return waited.execution
            if left == 0:
                raise TimeoutError(f"execution {self.id} is {waited.execution.public_state}")

    async def result(self, timeout: Span | None = None) -> R:
        """Waits for its end and reads its result. `NotCompleted` when it ended otherwise."""
        view = await self.wait(timeout)
        if view.public_state != "completed":
            raise _not_completed(view)
        content = await self.client.call(wire.GET_RESULT, execution_id=self.id)
        return self._result.decode(content)

    async def cancel(self, reason: str | None = None) -> wire.CancelExecutionOutcome:
        """Cancels it, whatever it does."""
        return await self.client.call(wire.CANCEL_EXECUTION, execution_id=self.id, reason=reason)

    async def replay(self, **args: Any) -> wire.ReplayExecutionOutcome:
        """Runs it again after its end, with a journal of its own."""
        return await self.client.call(wire.REPLAY_EXECUTION, execution_id=self.id, **args)

    async def signal(self, name: str, payload: Any = None, **more: Any) -> wire.SignalOutcome:
        """Signals it by name; `waitpoint_id` and `token` where the caller has only those."""
        return await self.client.call(wire.DELIVER_SIGNAL, **_signal_args(self.id, name, payload, more))

    async def explain(self) -> wire.Explanation:
        """Why it is not running."""
        return await self.client.call(wire.EXPLAIN_EXECUTION, execution_id=self.id)

    async def steps(self, generation: int | None = None) -> AsyncIterator[wire.StepView]:
        """Its journal, oldest first."""
        after: int | None = 0
        while after is not None:
            page = await self.client.call(wire.LIST_STEPS, execution_id=self.id, generation=generation, after=after)
            for one in page.items:
                yield one
            after = page.next_after

    async def tail(self, after: str = "0-0") -> AsyncIterator[StreamEvent]:
        """Its stream over all attempts, until it ends. It reconnects by itself after the last frame."""
        following = Following(after)
        repeats = Repeats(self.client.settings.retry)
        timeout = httpx.Timeout(SILENCE_MAX_S, connect=CONNECT_TIMEOUT_S, pool=None)
        url = f"/v1/executions/{self.id}/stream"
        while not following.ended:
            failure: FlowFabricError = Unreachable("the stream was cut")
            try:
                stream = self.client._http.stream("GET", url, headers=following.headers(), timeout=timeout)
                async with stream as response:
                    if response.status_code != 200:
                        raise failure_of(response.status_code, await response.aread())
                    async for data in response.aiter_bytes():
                        for event in following.feed(data):
                            repeats = Repeats(self.client.settings.retry)
                            yield event
            except httpx.TransportError as error:
                failure = Unreachable(f"{self.client.settings.url}: {error!r}")
            except (Refused, Unreachable) as error:
                failure = error
            if not following.ended:
                await asyncio.sleep(repeats.pause(failure))


def async_client_of(settings: Settings) -> AsyncClient:
    """Another client for the same server."""
    return AsyncClient(settings.url, token=settings.token, namespace=settings.namespace, retry=settings.retry)
