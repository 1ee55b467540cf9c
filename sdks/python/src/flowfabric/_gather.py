"""Calls that carry many things: what comes while one is under way goes together with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from .errors import Parked

T = TypeVar("T")
R = TypeVar("R")


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
        # Those who are about to hand something over in this turn of the loop do so first.
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
