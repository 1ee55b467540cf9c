"""Where a worker takes work and hands in endings: the one place that knows how these calls travel."""

from __future__ import annotations

from typing import Any, TypeVar

from . import wire
from .client import AsyncClient

T = TypeVar("T")

#: Tasks in one claim.
CLAIM_MAX = 256


class Desk:
    """Claims and endings, each in a call of its own."""

    def __init__(self, client: AsyncClient, asks: dict[str, Any]) -> None:
        self._client = client
        self._asks = asks

    async def claim(self, max_tasks: int, wait_ms: int) -> list[wire.Task]:
        """Takes up to so many tasks, waiting for the first of them."""
        asked = min(max_tasks, CLAIM_MAX)
        answer = await self._client.call(wire.CLAIM, **self._asks, max_tasks=asked, wait_ms=wait_ms)
        return answer.tasks

    async def end(self, operation: wire.Operation[T], args: dict[str, Any]) -> T:
        """Ends a task, or parts from it."""
        return await self._client.call(operation, **args)
