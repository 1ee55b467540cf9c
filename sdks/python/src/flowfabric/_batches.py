"""Calls that carry many things, because what comes while one is under way goes together with the next: a task's frames,
and a worker's claims and endings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from . import wire
from .errors import Parked, Refused
from .task import codec

if TYPE_CHECKING:
    from ._run import Run
    from .client import AsyncClient

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger("flowfabric")

#: Frames in one call, which is small enough even if each of them is as large as it may be; and those that may wait.
APPEND_MAX = 100
BACKLOG_MAX = 4_096
#: Endings in one call, and tasks in one claim.
ENDINGS_MAX = 100
CLAIM_MAX = 256
#: Turns of the event loop within which a task leaves the worker whose end is answered.
LEAVING_TURNS = 5
#: The pause after a claim that failed, on top of the client's own repeats.
CLAIM_PAUSE_S = 1.0
#: How long a worker that stops asks what its last claim has brought.
LAST_CLAIM_S = 2.0

#: How a task is to end: the call, and what it says.
Ending: TypeAlias = tuple[wire.Operation[..., Any], dict[str, Any]]


class Gatherer(Generic[T, R]):
    """Delivers items in their order. A single one is on its way at once, and a flood costs few calls."""

    def __init__(self, deliver: Callable[[list[T]], Awaitable[Sequence[R | BaseException]]], limit: int) -> None:
        self._deliver = deliver
        self._limit = limit
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._sender: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T) -> asyncio.Future[R]:
        """Hands over an item; it is delivered also when nobody waits for its answer."""
        answered: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answered))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return answered

    async def flush(self) -> None:
        """Waits until everything is delivered."""
        while self._sender is not None:
            await asyncio.wait({self._sender})

    async def _send(self) -> None:
        # Branches that are about to hand something over in this turn of the loop do so first.
        await asyncio.sleep(0)
        while self._waiting:
            batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            try:
                answers = await self._deliver([item for item, _ in batch])
            except (Exception, Parked) as error:
                answers = [error] * len(batch)
            for (_, answered), answer in zip(batch, answers, strict=True):
                settle(answered, answer)
        self._sender = None


def settle(future: asyncio.Future[Any], answer: Any) -> None:
    """Answers a branch with a value or an exception. The branch may be gone."""
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
        # A branch that is gone does not ask.
        future.exception()
    else:
        future.set_result(answer)


class Frames:
    """Writes the stream of the task in hand, in order."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next = run.task.next_frame_sequence
        self._frames: Gatherer[dict[str, Any], None] = Gatherer(self._send, APPEND_MAX)
        self._error: Exception | None = None

    async def write(self, frame: dict[str, Any]) -> None:
        """Hands over a frame. A writer that is faster than the server waits."""
        if self._error:
            raise self._error
        stored = self._frames.put(frame)
        if len(self._frames) >= BACKLOG_MAX:
            await stored

    async def flush(self) -> None:
        """Waits until everything is stored."""
        await self._frames.flush()
        if self._error:
            raise self._error

    async def _send(self, frames: list[dict[str, Any]]) -> list[BaseException | None]:
        try:
            await self._append(frames)
        except Exception as error:
            self._error = self._error or error
        return [self._error] * len(frames)

    async def _append(self, frames: list[dict[str, Any]]) -> None:
        try:
            await self._run.call(wire.append_frames, first_sequence=self._next, frames=frames)
        except Refused as error:
            # An earlier append that was given up may have been stored all the same; these frames then follow it.
            stored = error.details.get("next_sequence")
            if error.code != "invalid" or not isinstance(stored, int) or stored <= self._next:
                raise
            self._next = stored
            await self._run.call(wire.append_frames, first_sequence=stored, frames=frames)
        self._next += len(frames)


def frame(frame_type: str, value: Any, **said: Any) -> dict[str, Any]:
    """A frame: text and bytes as they are, anything else as JSON."""
    text = isinstance(value, str)
    made = {"type": frame_type, **codec(Any).encode("payload", value.encode() if text else value), **said}
    made |= {"content_type": "text/plain; charset=utf-8"} if text else {}
    return {name: one for name, one in made.items() if one is not None or name == "payload"}


@dataclass
class Exchange:
    """Where a worker takes work and hands in endings. Endings go together, with a request for as many tasks as there is
    room for then; beside them at most one call waits for work, so that no ending waits behind it. `in_hand` says how
    many tasks the worker holds, `take` gives it more."""

    client: AsyncClient
    instance_id: str
    asks: dict[str, Any]
    capacity: int
    in_hand: Callable[[], int]
    take: Callable[[list[wire.Task]], None]
    #: Claims nothing more.
    closed: bool = False
    #: Tasks that calls under way ask for, beyond the places that their own endings free.
    _asked: int = 0

    def __post_init__(self) -> None:
        #: For calls of a lease holder, which are repeated for as long as the lease lasts; its loss ends the wait.
        self.holder_client = self.client.repeating_forever()
        self._endings: Gatherer[Ending, Any] = Gatherer(self._send, ENDINGS_MAX)

    def room(self, leaving: int = 0) -> int:
        """How many tasks the worker could take beside those that it has asked for, in a call that ends so many. Another
        call may come before these have ended, so that their places are not for it."""
        room = self.capacity - self.in_hand() - self._asked + leaving
        return 0 if self.closed else max(0, min(room, CLAIM_MAX))

    async def claim(self, wait_ms: int) -> None:
        """Takes tasks for the room there is, waiting for the first of them."""
        try:
            claimed = (await self._exchange([], wait_ms)).claim
            if claimed and claimed.problem:
                raise Refused(200, claimed.problem.model_dump())
        except Exception as error:
            # Any error, such as a lack of memory: a worker that lives goes on.
            log.warning("a claim failed: %s", str(error) or repr(error))
            await asyncio.sleep(CLAIM_PAUSE_S)

    async def end(self, operation: wire.Operation[..., T], args: dict[str, Any]) -> T:
        """Ends a task, or parts from it."""
        ended: T | None = await self._endings.put((operation, args))
        # An ending that the shared call did not take is handed in by itself: its own answer says all there is to say.
        return ended if ended is not None else await self.holder_client.call(operation, **args)

    async def _send(self, endings: list[Ending]) -> list[Any]:
        # Tasks that the call before has ended leave the worker first, so that this one asks for all there is room for.
        for _ in range(LEAVING_TURNS):
            await asyncio.sleep(0)
        try:
            ended = (await self._exchange([{operation.name: args} for operation, args in endings], 0)).end
        except Exception as error:
            # It is too large, or one of them cannot be written: each of them is told by itself.
            log.warning("an exchange was refused; its endings are handed in one by one: %s", str(error) or repr(error))
            return [None] * len(endings)
        return [getattr(one, operation.name) for (operation, _), one in zip(endings, ended, strict=True)]

    async def _exchange(self, endings: list[dict[str, Any]], wait_ms: int) -> wire.ExchangeOutcome:
        asked = self.room(len(endings))
        self._asked += (beyond := max(0, asked - len(endings)))
        claim = {**self.asks, "max_tasks": asked, "wait_ms": wait_ms} if asked else None
        client = self.holder_client if endings else self.client
        try:
            answer = await client.call(wire.exchange, instance_id=self.instance_id, end=endings, claim=claim)
        except asyncio.CancelledError:
            # The worker stops. Tasks may be on their way: the same claim brings them, so that they are handed back.
            again = claim and {**claim, "wait_ms": 0, "retry": True}
            with contextlib.suppress(Exception):
                call = self.client.call(wire.exchange, instance_id=self.instance_id, end=[], claim=again)
                claimed = (await asyncio.wait_for(call, LAST_CLAIM_S)).claim
                self.take(claimed.tasks if claimed else [])
            raise
        finally:
            self._asked -= beyond
        self.take(answer.claim.tasks if answer.claim else [])
        return answer
