"""The client that is awaited. `Client`, which blocks, has the same methods: tools/generate.py writes it from this file.

Every operation of the API is `client.call(wire.pause_lane, lane="gpu")`, and what a list has is
`client.items(wire.list_hooks)`; the other methods do more than one call does, or are those used most.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

import httpx
from typing_extensions import Self, Unpack

from . import wire
from ._batches import Gatherer
from ._calls import NEEDS_PARTITIONS, Call, ConnectOptions, Following, Repeats, Settings, StreamEvent, failure_of
from ._calls import in_trace as trace_headers
from .errors import FlowFabricError, NotCompleted, Refused, Unreachable, refusal
from .task import NOTHING, Codec, Flow, I, Options, R, Span, Submission, Task, codec, milliseconds, submission

P = ParamSpec("P")
T = TypeVar("T")

#: One call waits at most this long; a longer wait is several calls.
WAIT_MAX_S = 30.0
#: How often a bulk job is looked at while somebody waits for its end.
LOOK_EVERY_S = 0.2
#: How many executions one call creates.
BATCH_MAX = 1_000
#: A step by its name, by name and key, or by name and how many calls of it came before.
Step: TypeAlias = str | tuple[str, str | int]
#: The answer of a person to a question about a step.
Answer: TypeAlias = Literal["happened", "did_not_happen", "fail", "keep", "run_again"]


class Difference(NamedTuple):
    """A step that two executions did differently, as each of them has it; `None` where it has none."""

    one: wire.StepView | None
    other: wire.StepView | None


class Connection:
    """Where the server is: what is given, then the variables `FF_SERVER`, `FF_TOKEN`, `FF_NAMESPACE` and `FF_CA_FILE`,
    then this machine."""

    #: The client of httpx: one that is awaited, or one that blocks.
    _transport: Any
    call: Any

    def __init__(self, url: str | Settings | None = None, **options: Unpack[ConnectOptions]) -> None:
        self.settings = url if isinstance(url, Settings) else Settings.found(url, options)
        self._partitions: int | None = None
        self._http = self._transport(**self.settings.http_options())

    def repeating_forever(self) -> Self:
        """The same client, which repeats calls for as long as anybody waits for them."""
        client = copy(self)
        vars(client).pop("_creates", None)
        client.settings = replace(self.settings, retry=replace(self.settings.retry, max_elapsed=math.inf))
        return client


class SyncConnection(Connection):
    """The part of the client that blocks which is not written from the other one."""

    def create(self, args: dict[str, Any]) -> str:
        return str(self.call(wire.create_execution, **args).execution_id)


class AsyncConnection(Connection):
    """The part of the client that is awaited which the other one does without: submissions that are made at the same
    time share a call."""

    _creates: Gatherer[dict[str, Any], str | None] | None = None

    async def create(self, args: dict[str, Any]) -> str:
        created = None
        # One that belongs to a trace brings it along in a call of its own.
        if not trace_headers():
            self._creates = self._creates or Gatherer(self._create_all, BATCH_MAX)
            created = await self._creates.put(args)
        # So does one that the shared call did not take: its own answer says all there is to say.
        return created or str((await self.call(wire.create_execution, **args)).execution_id)

    async def _create_all(self, args: list[dict[str, Any]]) -> list[str | None]:
        if len(args) == 1:
            return [None]
        try:
            return [one.execution_id for one in (await self.call(wire.create_executions, executions=args)).results]
        except Refused:
            # They are too large together.
            return [None] * len(args)


def step_args(step: Step) -> dict[str, Any]:
    """A step by its name, by name and key, or by name and how many calls of it came before."""
    if isinstance(step, str):
        return {"name": step}
    return {"name": step[0], "key" if isinstance(step[1], str) else "occurrence": step[1]}


def chunks(made: list[Submission[R]]) -> Iterator[list[Submission[R]]]:
    """As many as one call creates."""
    return (made[start : start + BATCH_MAX] for start in range(0, len(made), BATCH_MAX))


def compared(ones: list[wire.StepView], others: list[wire.StepView]) -> list[Difference]:
    """The steps that two journals have differently."""
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

    async def call(self, operation: wire.Operation[P, T], /, *_: P.args, **args: P.kwargs) -> T:
        """Calls an operation. It is repeated while the server cannot be reached, and takes effect once."""
        partitions = await self._partition_count() if operation in NEEDS_PARTITIONS else 1
        call = Call(operation, args, self.settings, partitions)
        repeats = Repeats(self.settings.retry)
        while True:
            try:
                response = await self._http.request(**call.request())
                return call.read(response.status_code, response.content)
            except httpx.TransportError as error:
                failure: FlowFabricError = self.settings.unreachable(error)
            except (Refused, Unreachable) as error:
                failure = error
            await asyncio.sleep(repeats.pause(failure))
            call.repeated()

    async def _partition_count(self) -> int:
        if self._partitions is None:
            self._partitions = (await self.call(wire.get_deployment)).partitions.flow
        return self._partitions

    async def submit(self, what: Task[I, R] | str, input: I = NOTHING, **options: Unpack[Options]) -> AsyncExecution[R]:
        """Submits a task, or a kind that somebody else serves, with its input."""
        made = submission(what, input, **options)
        return AsyncExecution(self, await self.create(made.args), made.result)

    async def submit_all(self, submissions: Iterable[Submission[R]]) -> list[AsyncExecution[R] | Refused]:
        """Submits many, up to 1,000 in a call; each has its own answer."""
        answers: list[AsyncExecution[R] | Refused] = []
        for chunk in chunks(list(submissions)):
            created = await self.call(wire.create_executions, executions=[dict(one.args) for one in chunk])
            for one, answer in zip(chunk, created.results, strict=True):
                refused = refusal(200, answer.error.model_dump()) if answer.error else None
                answers.append(refused or AsyncExecution(self, answer.execution_id or "", one.result))
        return answers

    def execution(self, execution_id: str, returns: type[R] = NOTHING) -> AsyncExecution[R]:
        """An execution that is there already."""
        return AsyncExecution(self, execution_id, codec(returns))

    async def items(
        self, operation: wire.Operation[P, wire.Page[T]], /, *_: P.args, **args: P.kwargs
    ) -> AsyncIterator[T]:
        """Everything that a list has, page by page."""
        pages: wire.Operation[..., Any] = operation
        cursor = "after" if "after" in pages.query else "cursor"
        given: dict[str, Any] = dict(args)
        while True:
            page = await self.call(pages, **given)
            for one in page.items:
                yield one
            given[cursor] = getattr(page, f"next_{cursor}")
            if not given[cursor]:
                return

    def list(self, **filters: Any) -> AsyncIterator[wire.ExecutionSummary]:
        """Executions, the newest first; the filters are those of `list_executions`."""
        return self.items(wire.list_executions, **filters)

    def approvals(self, **filters: Any) -> AsyncIterator[wire.ApprovalView]:
        """Questions that wait for people, the oldest first; the filters are those of `list_approvals`."""
        return self.items(wire.list_approvals, **filters)

    async def events(self, *, cursor: str | None = None, **filters: Any) -> AsyncIterator[wire.EventView]:
        """Events of the deployment, from the oldest there is, or after a cursor. The iterator does not end."""
        while True:
            page = await self.call(wire.list_events, cursor=cursor, wait_ms=milliseconds(WAIT_MAX_S), **filters)
            for one in page.items:
                yield one
            cursor = page.next_cursor

    async def bulk(self, action: wire.BulkAction, filter: Mapping[str, Any], **more: Any) -> wire.BulkView:
        """Does something to everything that a filter matches, and waits until it is done:
        `bulk("replay", {"state": ["failed"]})`. Without the wait: `call(wire.create_bulk, ...)`."""
        job = await self.call(wire.create_bulk, action=action, filter=filter, **more)
        while job.ended_at is None:
            await asyncio.sleep(LOOK_EVERY_S)
            job = await self.call(wire.get_bulk, bulk_id=job.bulk_id)
        return job

    async def create_flow(self, flow: Flow) -> dict[str, AsyncExecution[Any]]:
        """Creates a flow and all of its executions at once; answers them by their nodes."""
        created = await self.call(wire.create_flow, **flow.args)
        return {name: AsyncExecution(self, one, flow.results[name]) for name, one in created.executions.items()}

    async def budget(self, name: str) -> wire.BudgetStatus:
        """A budget and its usage; `standing` says what is held and left, how fast it goes, and where that ends."""
        return await self.call(wire.get_budget, name=name)

    async def create_budget(
        self, name: str, *, hard: Mapping[str, int] = {}, soft: Mapping[str, int] = {}, **more: Any
    ) -> wire.CreateBudgetOutcome:
        """Creates a budget with its limits by dimension, unless it is there. The name may be a path: `acme/ada` stands
        under `acme`."""
        limits = {one: {"hard": hard.get(one, 0), "soft": soft.get(one, 0)} for one in {**hard, **soft}}
        return await self.call(wire.create_budget, name=name, dimensions=limits, **more)


class AsyncExecution(Generic[R]):
    """One execution, as its submitter or an operator sees it."""

    def __init__(self, client: AsyncClient, execution_id: str, result: Codec[R]) -> None:
        self.client = client
        self.id = execution_id
        self._result = result

    async def get(self) -> wire.ExecutionView:
        """Everything about it but its bytes."""
        return await self.client.call(wire.get_execution, execution_id=self.id)

    async def wait(self, timeout: Span | None = None) -> wire.ExecutionView:
        """Waits until it has ended. `TimeoutError` when the time is up."""
        until = None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000
        while True:
            left = WAIT_MAX_S if until is None else max(0.0, min(WAIT_MAX_S, until - time.monotonic()))
            waited = await self.client.call(wire.wait_execution, execution_id=self.id, wait_ms=milliseconds(left))
            if waited.terminal:
                return waited.execution
            if left == 0:
                raise TimeoutError(f"execution {self.id} is {waited.execution.public_state}")

    async def result(self, timeout: Span | None = None) -> R:
        """Waits for its end and reads its result. `NotCompleted` when it ended otherwise."""
        view = await self.wait(timeout)
        if view.public_state != "completed":
            raise NotCompleted(view)
        return self._result.decode(await self.client.call(wire.get_result, execution_id=self.id))

    async def cancel(self, reason: str | None = None) -> wire.CancelExecutionOutcome:
        """Cancels it, whatever it does."""
        return await self.client.call(wire.cancel_execution, execution_id=self.id, reason=reason)

    async def replay(self, from_step: Step | None = None, **args: Any) -> wire.ReplayExecutionOutcome:
        """Runs it again after its end, with a journal of its own, or with what it did before a step."""
        step = None if from_step is None else step_args(from_step)
        return await self.client.call(wire.replay_execution, execution_id=self.id, from_step=step, **args)

    async def fork(self, before: Step | None = None, **args: Any) -> AsyncExecution[R]:
        """Begins another execution with what this one did before a step, or with all of it; `input`, `tags` and
        `budget_ids` where they are to be others."""
        if "input" in args:
            args |= codec(Any).encode("input", args.pop("input"))
        step = None if before is None else step_args(before)
        forked = await self.client.call(wire.fork_execution, execution_id=self.id, before_step=step, **args)
        return AsyncExecution(self.client, forked.execution_id, self._result)

    async def diff(self, other: AsyncExecution[Any]) -> list[Difference]:
        """The steps that the other one did differently, or only one of them did."""
        return compared([one async for one in self.steps()], [one async for one in other.steps()])

    async def signal(self, name: str, payload: Any = None, **more: Any) -> wire.SignalOutcome:
        """Signals it by name; `waitpoint_id` and `token` where the caller has only those."""
        args = {"name": name, **codec(Any).encode("payload", payload), **more}
        return await self.client.call(wire.deliver_signal, execution_id=self.id, **args)

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
        return await self.client.call(wire.decide_step, **args)

    async def explain(self) -> wire.Explanation:
        """Why it is not running."""
        return await self.client.call(wire.explain_execution, execution_id=self.id)

    def steps(self, generation: int | None = None) -> AsyncIterator[wire.StepView]:
        """Its journal, oldest first."""
        return self.client.items(wire.list_steps, execution_id=self.id, generation=generation)

    async def tail(self, after: str = "0-0") -> AsyncIterator[StreamEvent]:
        """Its stream over all attempts, until it ends. It reconnects by itself after the last frame."""
        following = Following(self.id, after)
        repeats = Repeats(self.client.settings.retry)
        while not following.ended:
            failure: FlowFabricError = Unreachable("the stream was cut")
            try:
                async with self.client._http.stream("GET", **following.request()) as response:
                    if response.status_code != 200:
                        raise failure_of(response.status_code, await response.aread())
                    async for part in response.aiter_bytes():
                        for event in following.read(part):
                            repeats = Repeats(self.client.settings.retry)
                            yield event
            except httpx.TransportError as error:
                failure = self.client.settings.unreachable(error)
            except (Refused, Unreachable) as error:
                failure = error
            if not following.ended:
                await asyncio.sleep(repeats.pause(failure))
