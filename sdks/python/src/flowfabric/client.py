"""The client that is awaited. `Client`, which blocks, has the same methods: tools/generate.py writes it from this file.

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
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, overload

import httpx
from typing_extensions import Self, Unpack

from . import wire
from ._calls import CONNECT_TIMEOUT_S, Call, Repeats, RetryPolicy, Settings, failure_of, needs_partitions, trace_headers
from ._gather import Gatherer
from ._payload import Codec, codec
from ._tail import SILENCE_MAX_S, Following, StreamEvent
from .errors import FlowFabricError, NotCompleted, Refused, Unreachable, refusal
from .flow import Flow
from .schedule import Overlap, When, schedule_args
from .task import Options, Span, Submission, Task, instant, milliseconds, submission

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
T = TypeVar("T")

#: One call waits at most this long; a longer wait is several calls.
WAIT_MAX_S = 30.0
#: How many executions one call creates.
BATCH_MAX = 1_000
#: A step by its name, by name and key, or by name and how many calls of it came before.
Step: TypeAlias = str | tuple[str, str | int]
#: What a person says about a step.
Answer: TypeAlias = Literal["happened", "did_not_happen", "fail", "keep", "run_again"]


class Difference(NamedTuple):
    """A step that two executions did differently, as each of them has it; `None` where it has none."""

    one: wire.StepView | None
    other: wire.StepView | None


class Connection:
    """Where the server is: what is given, then `FF_SERVER`, `FF_TOKEN` and `FF_NAMESPACE`, then this machine."""

    #: What sends requests; the two clients have their own.
    _transport: Any

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
        self._http = self._transport(**self.settings.http_options())

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Another client for the same server."""
        return cls(settings.url, token=settings.token, namespace=settings.namespace, retry=settings.retry)

    def patient(self) -> Self:
        """The same client, which repeats calls for as long as anybody waits for them."""
        client = copy(self)
        vars(client).pop("_creates", None)
        client.settings = replace(self.settings, retry=replace(self.settings.retry, max_elapsed=math.inf))
        return client


class SyncConnection(Connection):
    """What only the client that blocks does."""

    call: Any

    def _create(self, args: dict[str, Any]) -> str:
        return str(self.call(wire.CREATE_EXECUTION, **args).execution_id)


class AsyncConnection(Connection):
    """What only the client that is awaited does: submissions that are made at the same time share a call."""

    call: Any
    _creates: Gatherer[dict[str, Any], str | None] | None = None

    async def _create(self, args: dict[str, Any]) -> str:
        created = None
        # One that belongs to a trace brings it along in a call of its own.
        if not trace_headers():
            self._creates = self._creates or Gatherer(self._create_all, BATCH_MAX)
            created = await self._creates.put(args)
        # So does one that the shared call did not take: its own answer says all there is to say.
        return created or str((await self.call(wire.CREATE_EXECUTION, **args)).execution_id)

    async def _create_all(self, args: list[dict[str, Any]]) -> list[str | None]:
        if len(args) == 1:
            return [None]
        try:
            return [one.execution_id for one in (await self.call(wire.CREATE_EXECUTIONS, executions=args)).results]
        except Refused:
            # They are too large together.
            return [None] * len(args)


def step_args(step: Step) -> dict[str, Any]:
    """A step by its name, by name and key, or by name and how many calls of it came before."""
    if isinstance(step, str):
        return {"name": step}
    return {"name": step[0], "key" if isinstance(step[1], str) else "occurrence": step[1]}


def not_completed(view: wire.ExecutionView) -> NotCompleted:
    """How an execution ended that has no result."""
    failure = view.last_failure
    reason, category = (failure.reason, failure.category) if failure else (None, None)
    return NotCompleted(view.execution_id, view.public_state, reason, category)


def chunks(made: list[Submission[R]]) -> Iterator[list[Submission[R]]]:
    """As many as one call creates."""
    return (made[start : start + BATCH_MAX] for start in range(0, len(made), BATCH_MAX))


def compared(ones: list[wire.StepView], others: list[wire.StepView]) -> list[Difference]:
    """What two journals say differently."""
    one, other = ({(step.name, step.key, step.occurrence): step for step in steps} for steps in (ones, others))
    both = [Difference(one.get(identity), other.get(identity)) for identity in {**one, **other}]
    return [pair for pair in both if _essence(pair.one) != _essence(pair.other)]


def _essence(step: wire.StepView | None) -> Any:
    return step and (step.state, step.category, step.input_hash, step.result)


class AsyncClient(AsyncConnection):
    """A connection to a server."""

    _transport = httpx.AsyncClient

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
        return AsyncExecution(self, await self._create(made.args), made.result)

    async def submit_all(self, submissions: Iterable[Submission[R]]) -> list[AsyncExecution[R] | Refused]:
        """Submits many, up to 1,000 in a call; each has its own answer."""
        answers: list[AsyncExecution[R] | Refused] = []
        for chunk in chunks(list(submissions)):
            created = await self.call(wire.CREATE_EXECUTIONS, executions=[dict(one.args) for one in chunk])
            for one, answer in zip(chunk, created.results, strict=True):
                refused = refusal(200, answer.error.model_dump()) if answer.error else None
                answers.append(refused or AsyncExecution(self, answer.execution_id or "", one.result))
        return answers

    @overload
    def execution(self, execution_id: str) -> AsyncExecution[Any]: ...
    @overload
    def execution(self, execution_id: str, returns: type[R]) -> AsyncExecution[R]: ...
    def execution(self, execution_id: str, returns: Any = Any) -> AsyncExecution[Any]:
        """An execution that is there already."""
        return AsyncExecution(self, execution_id, codec(returns))

    def list(self, **filters: Any) -> AsyncIterator[wire.ExecutionSummary]:
        """Executions, the newest first; the filters are those of `list_executions`."""
        return self._items(wire.LIST_EXECUTIONS, filters)

    def approvals(self, **filters: Any) -> AsyncIterator[wire.ApprovalView]:
        """What waits for people, what has waited longest first; the filters are those of `list_approvals`."""
        return self._items(wire.LIST_APPROVALS, filters)

    async def _items(
        self, operation: wire.Operation[Any], args: dict[str, Any], cursor: str = "cursor"
    ) -> AsyncIterator[Any]:
        """What a list has, page by page."""
        while True:
            page = await self.call(operation, **args)
            for one in page.items:
                yield one
            args[cursor] = getattr(page, f"next_{cursor}")
            if not args[cursor]:
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
        """Creates a budget with its limits by dimension, unless it is there. The name may be a path: `acme/ada` stands
        under `acme`."""
        limits = {one: {"hard": hard.get(one, 0), "soft": soft.get(one, 0)} for one in {**hard, **soft}}
        return await self.call(wire.CREATE_BUDGET, name=name, dimensions=limits, **more)

    async def budget(self, name: str) -> wire.BudgetStatus:
        """What a budget has used; its `standing` says what is held and left, how fast it goes, and where that ends."""
        return await self.call(wire.GET_BUDGET, name=name)

    def budget_tree(self, name: str) -> AsyncIterator[wire.BudgetStatus]:
        """A budget and everything that stands under it, by name."""
        return self._items(wire.GET_BUDGET_TREE, {"name": name})

    def schedule(self, name: str) -> AsyncSchedule:
        """The schedule of this name, whether it is there already or is to be created."""
        return AsyncSchedule(self, name)

    def schedules(self, **filters: Any) -> AsyncIterator[wire.ScheduleSummary]:
        """Schedules by name, with their next instant and what became of the last one."""
        return self._items(wire.LIST_SCHEDULES, filters)


class AsyncSchedule:
    """What creates an execution or a flow again and again."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.client = client
        self.name = name

    async def create(self, what: Submission[Any] | Flow, **when: Unpack[When]) -> wire.CreateScheduleOutcome:
        """Creates it, unless it is there: `create(ff.submission(report, "eu"), cron="0 2 * * *", overlap="skip")`."""
        return await self.client.call(wire.CREATE_SCHEDULE, name=self.name, **schedule_args(what, when))

    async def update(
        self, what: Submission[Any] | Flow, *, expected_revision: int | None = None, **when: Unpack[When]
    ) -> wire.ScheduleSummary:
        """Replaces all of its definition, if it still has this revision. It goes on from now."""
        args = {"name": self.name, "expected_revision": expected_revision, **schedule_args(what, when)}
        return await self.client.call(wire.UPDATE_SCHEDULE, **args)

    async def get(self) -> wire.ScheduleView:
        """Its definition, its next instants and its last runs."""
        return await self.client.call(wire.GET_SCHEDULE, name=self.name)

    async def pause(self, note: str | None = None) -> wire.ScheduleSummary:
        """Passes over the instants from now on."""
        return await self.client.call(wire.PAUSE_SCHEDULE, name=self.name, note=note)

    async def resume(self, note: str | None = None) -> wire.ScheduleSummary:
        """Goes on from now."""
        return await self.client.call(wire.RESUME_SCHEDULE, name=self.name, note=note)

    async def trigger(self, overlap: Overlap | None = None) -> wire.TriggerScheduleOutcome:
        """Runs it once, now, whether it is paused or not."""
        return await self.client.call(wire.TRIGGER_SCHEDULE, name=self.name, overlap=overlap)

    async def backfill(
        self, first: datetime, last: datetime, overlap: Overlap | None = None
    ) -> wire.BackfillScheduleOutcome:
        """Runs the instants of a stretch once more."""
        stretch = {"from": instant(first), "to": instant(last)}
        return await self.client.call(wire.BACKFILL_SCHEDULE, name=self.name, overlap=overlap, **stretch)

    async def delete(self) -> wire.DeleteScheduleOutcome:
        """Removes it. Its runs stay and go on."""
        return await self.client.call(wire.DELETE_SCHEDULE, name=self.name)


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
            raise not_completed(view)
        content = await self.client.call(wire.GET_RESULT, execution_id=self.id)
        return self._result.decode(content)

    async def cancel(self, reason: str | None = None) -> wire.CancelExecutionOutcome:
        """Cancels it, whatever it does."""
        return await self.client.call(wire.CANCEL_EXECUTION, execution_id=self.id, reason=reason)

    async def replay(self, from_step: Step | None = None, **args: Any) -> wire.ReplayExecutionOutcome:
        """Runs it again after its end, with a journal of its own, or with what it did before a step."""
        step = None if from_step is None else step_args(from_step)
        return await self.client.call(wire.REPLAY_EXECUTION, execution_id=self.id, from_step=step, **args)

    async def fork(self, before: Step | None = None, **args: Any) -> AsyncExecution[R]:
        """Begins another execution with what this one did before a step, or with all of it; `input`, `tags` and
        `budget_ids` where they are to be others."""
        if "input" in args:
            args |= codec(Any).encode("input", args.pop("input"))
        step = None if before is None else step_args(before)
        forked = await self.client.call(wire.FORK_EXECUTION, execution_id=self.id, before_step=step, **args)
        return AsyncExecution(self.client, forked.execution_id, self._result)

    async def diff(self, other: AsyncExecution[Any]) -> list[Difference]:
        """The steps that the other one did differently, or only one of them did."""
        mine, its = [one async for one in self.steps()], [one async for one in other.steps()]
        return compared(mine, its)

    async def signal(self, name: str, payload: Any = None, **more: Any) -> wire.SignalOutcome:
        """Signals it by name; `waitpoint_id` and `token` where the caller has only those."""
        args = {"name": name, **codec(Any).encode("payload", payload), **more}
        return await self.client.call(wire.DELIVER_SIGNAL, execution_id=self.id, **args)

    async def approve(self, payload: Any = None, **more: Any) -> wire.SignalOutcome:
        """Says yes to what it asks people."""
        return await self.signal("approve", payload, **more)

    async def reject(self, payload: Any = None, **more: Any) -> wire.SignalOutcome:
        """Says no to what it asks people."""
        return await self.signal("reject", payload, **more)

    async def decide(self, step: Step, answer: Answer, result: Any = None) -> wire.DecideStepOutcome:
        """Answers what is asked about a step: `happened` with its result, `did_not_happen` or `fail` for one in doubt;
        `keep`, `run_again` or `fail` for one that the program no longer fits."""
        happened = codec(Any).encode("result", result) if answer == "happened" else {}
        args = {"execution_id": self.id, "step": step_args(step), "answer": answer, **happened}
        return await self.client.call(wire.DECIDE_STEP, **args)

    async def explain(self) -> wire.Explanation:
        """Why it is not running."""
        return await self.client.call(wire.EXPLAIN_EXECUTION, execution_id=self.id)

    def steps(self, generation: int | None = None) -> AsyncIterator[wire.StepView]:
        """Its journal, oldest first."""
        return self.client._items(wire.LIST_STEPS, {"execution_id": self.id, "generation": generation}, "after")

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
