"""A task's stream: frames gather while a call is under way, and go together with the next."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

from . import wire
from ._payload import plain
from .errors import Refused

if TYPE_CHECKING:
    from ._journal import Lessee

#: Frames in one call, and those that wait for it; a writer that is faster than the server waits, too.
APPEND_MAX = 1_000
BACKLOG_MAX = 4_096
#: Bytes in one call, well below the largest body even in base64.
APPEND_MAX_BYTES = 4 * 1024 * 1024


class Frames:
    """Writes the stream of the task in hand, in order."""

    def __init__(self, lessee: Lessee) -> None:
        self._lessee = lessee
        self._next = lessee.task.next_frame_sequence
        self._waiting: list[dict[str, Any]] = []
        self._sender: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    async def write(self, frame: dict[str, Any]) -> None:
        """Hands over a frame. A single one is on its way at once, and a flood costs few calls."""
        while len(self._waiting) >= BACKLOG_MAX and self._sender is not None:
            await asyncio.wait({self._sender}, timeout=0.05)
        if self._error:
            raise self._error
        self._waiting.append(frame)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def flush(self) -> None:
        """Waits until everything is stored."""
        while self._sender is not None:
            await asyncio.wait({self._sender})
        if self._error:
            raise self._error

    async def _send(self) -> None:
        try:
            while self._waiting:
                await self._append(self._take())
        except Exception as error:
            self._error = error
        finally:
            self._sender = None

    def _take(self) -> list[dict[str, Any]]:
        count, size = 0, 0
        for frame in self._waiting[:APPEND_MAX]:
            size += len(frame.get("payload_base64") or str(frame.get("payload", "")))
            if count and size > APPEND_MAX_BYTES:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _append(self, frames: list[dict[str, Any]]) -> None:
        try:
            await self._lessee.call(wire.APPEND_FRAMES, first_sequence=self._next, frames=frames)
        except Refused as error:
            # An earlier append that was given up may have been stored all the same; these frames then follow it.
            stored = error.details.get("next_sequence")
            if error.code != "invalid" or not isinstance(stored, int) or stored <= self._next:
                raise
            self._next = stored
            await self._lessee.call(wire.APPEND_FRAMES, first_sequence=stored, frames=frames)
        self._next += len(frames)


def frame(frame_type: str, value: Any, mode: str | None, correlation_id: str | None) -> dict[str, Any]:
    """A frame: text and bytes as they are, anything else as JSON."""
    made: dict[str, Any] = {"type": frame_type, "mode": mode, "correlation_id": correlation_id}
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        made["payload_base64"] = base64.b64encode(data).decode()
        made["content_type"] = "text/plain; charset=utf-8" if isinstance(value, str) else "application/octet-stream"
    else:
        made["payload"] = plain(value)
    return {name: one for name, one in made.items() if one is not None}
