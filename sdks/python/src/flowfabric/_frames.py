"""A task's stream: frames gather while a call is under way, and go together with the next."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from . import wire
from ._gather import Gatherer
from ._payload import plain
from .errors import Refused

if TYPE_CHECKING:
    from ._run import Run

#: Frames in one call, and those that may wait for it.
APPEND_MAX = 1_000
BACKLOG_MAX = 4_096
#: Bytes in one call, well below the largest body even in base64.
APPEND_MAX_BYTES = 4 * 1024 * 1024


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
        """Appends frames, as many in a call as a body may hold."""
        start = size = 0
        try:
            for end, frame in enumerate(frames, 1):
                size += len(frame.get("payload_base64") or str(frame.get("payload")))
                if end == len(frames) or size > APPEND_MAX_BYTES:
                    await self._append(frames[start:end])
                    start, size = end, 0
        except Exception as error:
            self._error = self._error or error
        return [self._error] * len(frames)

    async def _append(self, frames: list[dict[str, Any]]) -> None:
        try:
            await self._run.call(wire.APPEND_FRAMES, first_sequence=self._next, frames=frames)
        except Refused as error:
            # An earlier append that was given up may have been stored all the same; these frames then follow it.
            stored = error.details.get("next_sequence")
            if error.code != "invalid" or not isinstance(stored, int) or stored <= self._next:
                raise
            self._next = stored
            await self._run.call(wire.APPEND_FRAMES, first_sequence=stored, frames=frames)
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
