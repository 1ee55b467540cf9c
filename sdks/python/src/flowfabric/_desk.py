"""Where a worker takes work and hands in endings: the one place that knows how these calls travel.

Endings that gather while a call is under way go together in the next, with a request for as many tasks as there is
room for then. Beside them at most one call waits for work, so that no ending waits behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from . import wire
from ._gather import Gatherer
from .client import AsyncClient
from .errors import Refused

T = TypeVar("T")

log = logging.getLogger("flowfabric")

#: Endings in one call, and tasks in one claim.
ENDINGS_MAX = 100
CLAIM_MAX = 256
#: The pause after a claim that failed, on top of the client's own repeats.
CLAIM_PAUSE_S = 1.0


class Desk:
    """Claims and endings of one worker. `in_hand` says how many tasks the worker holds, `take` gives it more."""

    def __init__(
        self,
        client: AsyncClient,
        asks: dict[str, Any],
        capacity: int,
        in_hand: Callable[[], int],
        take: Callable[[list[wire.Task]], None],
    ) -> None:
        self._client = client
        #: What the holder of a lease says is repeated for as long as the lease lasts; its loss ends the wait.
        self.patient = client.patient()
        self._asks = {name: value for name, value in asks.items() if name != "instance_id"}
        self._instance_id = {"instance_id": asks["instance_id"]}
        self._capacity = capacity
        self._in_hand = in_hand
        self._take = take
        #: Tasks that calls under way ask for, and those whose endings they carry.
        self._asked = self._leaving = 0
        self._endings: Gatherer[tuple[wire.Operation[Any], dict[str, Any]], Any] = Gatherer(self._send, ENDINGS_MAX)
        self.closed = False

    @property
    def room(self) -> int:
        """How many tasks the worker could take beside those that it has asked for."""
        room = self._capacity - self._in_hand() - self._asked + self._leaving
        return 0 if self.closed else max(0, min(room, CLAIM_MAX))

    async def claim(self, wait_ms: int) -> None:
        """Takes tasks for the room there is, waiting for the first of them."""
        try:
            claimed = (await self._exchange([], wait_ms)).claim
            if claimed and claimed.problem:
                raise Refused(200, claimed.problem.model_dump())
        except Exception as error:
            # Whatever it is, such as a lack of memory: a worker that lives goes on.
            log.warning("a claim failed: %s", str(error) or repr(error))
            await asyncio.sleep(CLAIM_PAUSE_S)

    async def end(self, operation: wire.Operation[T], args: dict[str, Any]) -> T:
        """Ends a task, or parts from it."""
        ended: T | None = await self._endings.put((operation, args))
        # An ending that the shared call did not take is handed in by itself: its own answer says all there is to say.
        return ended if ended is not None else await self.patient.call(operation, **args)

    def close(self) -> None:
        """Claims nothing more."""
        self.closed = True

    async def _send(self, endings: list[tuple[wire.Operation[Any], dict[str, Any]]]) -> list[Any]:
        self._leaving += len(endings)
        try:
            ended = (await self._exchange([{operation.name: args} for operation, args in endings], 0)).end
        except Exception as error:
            # It is too large, or one of them cannot be written: each of them is told by itself.
            log.warning("an exchange was refused; its endings are handed in one by one: %s", str(error) or repr(error))
            return [None] * len(endings)
        finally:
            self._leaving -= len(endings)
        return [getattr(one, operation.name) for (operation, _), one in zip(endings, ended, strict=True)]

    async def _exchange(self, endings: list[dict[str, Any]], wait_ms: int) -> wire.ExchangeOutcome:
        asked = self.room
        self._asked += asked
        claim = {**self._asks, "max_tasks": asked, "wait_ms": wait_ms} if asked else None
        client = self.patient if endings else self._client
        try:
            answer = await client.call(wire.EXCHANGE, **self._instance_id, end=endings, claim=claim)
        finally:
            self._asked -= asked
        self._take(answer.claim.tasks if answer.claim else [])
        return answer
