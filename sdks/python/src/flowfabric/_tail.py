"""An execution's stream while it grows: server-sent events, read without any I/O."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from . import wire
from .errors import FlowFabricError, Unreadable, refusal

#: The server pings every 15 seconds; one that misses three of them is gone.
SILENCE_MAX_S = 50.0
#: An event larger than this is no event: a frame has at most 64 KiB.
EVENT_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True)
class StreamEvent:
    """What a viewer of a stream sees. `kind` is `frame`; `attempt`, after which what came before is void; `paused`,
    when the worker let go; `end`; or something that a newer server says."""

    kind: str
    data: dict[str, Any]
    frame: wire.StreamFrame | None = None

    @property
    def payload(self) -> bytes:
        """The bytes of a frame."""
        return base64.b64decode(self.frame.payload_base64) if self.frame else b""

    @property
    def text(self) -> str:
        """The text of a frame."""
        return self.payload.decode()

    def json(self) -> Any:
        """The JSON of a frame."""
        return from_json(self.payload)


@dataclass
class Following:
    """What has been shown, so that a new connection goes on after it: no frame is missed, none comes twice."""

    after: str = "0-0"
    paused: bool = False
    ended: bool = False
    _text: bytearray = field(default_factory=bytearray)

    def headers(self) -> dict[str, str]:
        """What a new connection says."""
        self._text.clear()
        resume = {"last-event-id": self.after} if self.after != "0-0" else {}
        return {"accept": "text/event-stream", **resume}

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that are whole now, without those that were shown before."""
        self._text += data
        if len(self._text) > EVENT_MAX_BYTES:
            raise Unreadable("an event has no end")
        shown = []
        while (end := self._text.find(b"\n\n")) >= 0:
            event = _event(bytes(self._text[:end]))
            del self._text[: end + 2]
            if event and self._is_news(event):
                shown.append(event)
        return shown

    def _is_news(self, event: StreamEvent) -> bool:
        if event.kind == "paused":
            news, self.paused = not self.paused, True
            return news
        if event.frame:
            self.paused, self.after = False, event.frame.id
        elif event.kind == "attempt":
            self.paused, self.after = False, f"{event.data.get('attempt', 0)}-0"
        elif event.kind == "end":
            self.ended = True
        return True


def _event(text: bytes) -> StreamEvent | None:
    kind, data = "", b""
    for line in text.split(b"\n"):
        if line.startswith(b"event: "):
            kind = line[7:].decode()
        elif line.startswith(b"data: "):
            data = line[6:]
    if not kind or kind == "ping":
        return None
    try:
        body = from_json(data or b"{}")
        frame = wire.StreamFrame.model_validate(body) if kind == "frame" else None
    except ValueError as error:
        raise Unreadable(f"an event: {error}") from error
    if kind == "error":
        problem: FlowFabricError = refusal(200, body)
        raise problem
    return StreamEvent(kind, body, frame)
