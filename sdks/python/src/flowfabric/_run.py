"""The life of one task: its function is called, and what became of it is reported."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from itertools import count
from typing import TYPE_CHECKING, Any

from . import wire
from ._batches import Ending, Frames
from ._calls import enter_trace, log
from ._journal import Journal
from ._leases import EXPIRED, Lease
from ._step import in_thread, in_words
from .client import AsyncClient
from .context import CURRENT, Context, SyncContext
from .errors import FlowFabricError, Parked, Refused, StepFailed, TaskError, is_final
from .task import Task, wait_within

if TYPE_CHECKING:
    from .worker import Worker


#: The longest wait that a failure may ask for: ten years.
RETRY_AFTER_MAX_MS = 10 * 366 * 86_400_000
#: A function whose task was let go has this long to unwind before it is cancelled.
UNWIND_S = 1.0


class Run:
    """One claimed task with its lease, from its claim to its end."""

    def __init__(self, worker: Worker, client: AsyncClient, task: wire.Task) -> None:
        self.worker = worker
        self.client = client
        self.holder_client = worker.exchange.holder_client
        self.task = task
        self.fence = task.fence.model_dump()
        ttl_s, loop = task.lease_ttl_ms / 1000, asyncio.get_running_loop()
        held = (ttl_s, lambda reason: loop.call_soon_threadsafe(self.lose, reason), time.monotonic() + ttl_s)
        self.lease = Lease(task.execution_id, self.fence, *held)
        self.journal = Journal(self)
        self.frames = Frames(self)
        self._function: asyncio.Task[Any] | None = None
        #: The thread of a plain function, which goes on when its task is lost.
        self._thread: asyncio.Task[Any] | None = None
        self._counts: defaultdict[str, count[int]] = defaultdict(count)
        self._calls: set[asyncio.Future[Any]] = set()
        self._reporting: asyncio.Task[Any] | None = None
        self._restart = self.closed = False

    # For the journal, the stream and the context

    async def call(self, operation: wire.Operation[..., Any], **args: Any) -> Any:
        """Calls an operation of the lease holder."""
        own = {"fence": self.fence, "execution_id": self.task.execution_id}
        args |= {name: own[name] for name in own if name in operation.body or f"{{{name}}}" in operation.path}
        end, call = self.worker.exchange.end, self.holder_client.call
        try:
            return await self._while_held(end(operation, args) if operation is wire.park else call(operation, **args))
        except Refused as error:
            if error.is_lease_lost:
                self.lose(error.code)
            raise

    async def _while_held(self, calling: Coroutine[Any, Any, Any]) -> Any:
        """Awaits a call, which is repeated while no server answers. The loss of the lease ends it."""
        call = asyncio.ensure_future(calling)
        self._calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            if self.closed:
                raise Parked from None
            raise
        finally:
            self._calls.discard(call)

    def count(self, what: str) -> int:
        """How often something was asked for before in this run of the function."""
        return next(self._counts[what])

    async def continue_as_new(self, args: dict[str, Any]) -> None:
        """Ends this generation of the execution and begins the next."""
        await self.journal.flush()
        await self.call(wire.continue_as_new, **args)
        self.unwind()

    def unwind(self, restart: bool = False) -> None:
        """Ends the function with `Parked`: its task was let go, or is to be started over."""
        self._restart = restart
        self._close()

    def lose(self, reason: str) -> None:
        """The lease is lost: the function is cancelled, and what it did meanwhile is not reported."""
        # A renewal that crosses the ending says so, too, and the ending's own answer is on its way then.
        if not self.closed and self._reporting is None:
            log.warning("execution %s: the lease is lost: %s", self.task.execution_id, reason)
        elif self._reporting is not None and reason == EXPIRED:
            self._reporting.cancel()
        self._close(cancel=True)

    def _close(self, cancel: bool = False) -> None:
        self.closed = True
        self.journal.close()
        for call in self._calls if cancel else ():
            call.cancel()
        if self._function is not None:
            # A branch that waits for nothing of ours has to be stopped, too.
            asyncio.get_running_loop().call_later(0 if cancel else UNWIND_S, self._function.cancel)

    async def spawn(self, args: dict[str, Any]) -> None:
        """Spawns a child. Children that are spawned together share a call."""
        parent = {"execution_id": self.task.execution_id, "fence": self.fence}
        await self._while_held(self.holder_client.create({**args, "parent": parent}))

    # The life of the task

    async def go(self, task: Task[Any, Any], worked: Callable[[], None]) -> None:
        """Calls the function and reports its end. The lease is held meanwhile."""
        try:
            ending = await self._work(task)
        finally:
            if self._thread is None:
                worked()
        try:
            if ending is not None:
                await self._report(ending)
        except FlowFabricError as error:
            log.warning("execution %s: its end could not be reported: %s", self.task.execution_id, error)
        if self._thread is not None:
            # The outcome of a thread that nobody waited for is of no use; its place is taken until it ends.
            await asyncio.gather(self._thread, return_exceptions=True)
            worked()

    async def _work(self, task: Task[Any, Any]) -> Ending | None:
        self._function = asyncio.create_task(self._call(task))
        await asyncio.wait({self._function})
        if self._function.cancelled():
            error: BaseException | None = asyncio.CancelledError("the function was cancelled")
        else:
            error = self._function.exception()
        if self._restart:
            return wire.delay, {"delay_ms": 0}
        if self.closed:
            return None
        try:
            # The frames of a failed attempt are worth reading, too.
            await self.journal.flush()
        except FlowFabricError as failure:
            error = error or TaskError(str(failure), category="stream")
        if self.closed:
            return None
        if error is None:
            try:
                result = task.result.encode("result", self._function.result())
                return wire.complete, {**result, **self.journal.notes()}
            except Exception as failure:
                error = TaskError(str(failure), category="invalid_result")
        ending = self._failure(error)
        said = (self.task.execution_id, self.fence["attempt"], task.kind, ending[1]["reason"])
        log.warning("execution %s: attempt %d of %s failed: %s", *said, exc_info=error)
        return ending

    async def _call(self, task: Task[Any, Any]) -> Any:
        enter_trace(self.task.trace_context)
        arguments: list[Any] = []
        if task.takes_input:
            arguments.append(task.input.read(self.task.input, f"the input of {task.kind}", "invalid_input"))
        if task.is_async:
            context = Context(self)
            CURRENT.set(context)
            return await task.function(context, *arguments)
        sync_context = SyncContext(self, asyncio.get_running_loop())
        self._thread = asyncio.create_task(in_thread(lambda: task.function(sync_context, *arguments)))
        return await asyncio.shield(self._thread)

    def _failure(self, error: BaseException) -> Ending:
        reason, category, retry_after = in_words(error)
        args: dict[str, Any] = {"reason": reason or "failed without a reason", "category": category}
        args["retry_after_ms"] = wait_within(retry_after, RETRY_AFTER_MAX_MS)
        cause: BaseException | None = error
        while cause is not None and not (isinstance(cause, StepFailed) and cause.step):
            cause = cause.__cause__
        if isinstance(cause, StepFailed):
            args |= {"cause": cause.step, "first_number": self.journal.next_number}
        return wire.fail, args

    async def _report(self, ending: Ending, is_last: bool = False) -> None:
        operation, args = ending[0], {"execution_id": self.task.execution_id, "fence": self.fence, **ending[1]}
        self._reporting = asyncio.create_task(self.worker.exchange.end(operation, args))
        await asyncio.wait({self._reporting})
        if self._reporting.cancelled():
            log.warning("execution %s: the lease ran out before its end could be reported", self.task.execution_id)
            return
        error = self._reporting.exception()
        if isinstance(error, Refused) and error.is_lease_lost:
            log.warning("execution %s: the lease was lost before its end: %s", self.task.execution_id, error)
        elif is_final(error) and not is_last:
            # Without this its work would be done again and again, whenever its lease has run out.
            log.warning("execution %s: its ending was refused; the attempt fails: %s", self.task.execution_id, error)
            category = "refused" if isinstance(error, Refused) or operation is wire.fail else "invalid_result"
            await self._report(self._failure(TaskError(str(error), category=category)), is_last=True)
        else:
            self._reporting.result()

    async def hand_back(self) -> None:
        """Lets go of the task, so that it continues elsewhere in the same attempt."""
        self._close(cancel=True)
        if self._reporting is not None:
            self._reporting.cancel()
        try:
            await self.client.call(wire.delay, execution_id=self.task.execution_id, fence=self.fence, delay_ms=0)
        except FlowFabricError as error:
            log.warning("execution %s could not be handed back: %s", self.task.execution_id, error)
