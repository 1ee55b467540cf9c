"""One call: how it is written, read and repeated; and a stream of events. Nothing here sends; the two clients do."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import random
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from . import wire
from ._ids import mint, mint_beside, mint_spread
from .errors import FlowFabricError, Refused, Unreachable, Unreadable, refusal

try:
    from opentelemetry import context, propagate
except ImportError:
    context = propagate = None

T = TypeVar("T")

log = logging.getLogger("flowfabric")

CONNECT_TIMEOUT_S = 10.0
#: The server pings every 15 seconds; one that misses three of them is gone.
SILENCE_MAX_S = 50.0
#: Text has further ends of lines, which mean nothing in a stream of events.
LINE_END = re.compile(rb"\r\n|\n|\r")
#: Where the environment says what a client is not told.
VARIABLES = {"url": "FF_SERVER", "token": "FF_TOKEN", "namespace": "FF_NAMESPACE", "ca_file": "FF_CA_FILE"}
#: Calls whose caller mints ids that name a partition.
NEEDS_PARTITIONS = (wire.create_execution, wire.create_executions)
#: Fields that hold a call's identity. The server takes the header `idempotency-key` for them.
IDENTITIES = {"command_id", "dedup_key", "idempotency_key", "signal_id"}


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client keeps trying while the server cannot be reached. Every call carries its identity, so a repeat
    has the effect of one call."""

    #: Seconds before the first repeat; doubled with each further one.
    initial_backoff: float = 0.05
    max_backoff: float = 2.0
    #: No repeat begins later than this after the first try; 0 switches repeats off.
    max_elapsed: float = 30.0
    #: An answer that is not there after this time is lost; a call that waits has its wait on top.
    answer_timeout: float = 30.0


class ConnectOptions(TypedDict, total=False):
    """What a client may be told beside the address of its server."""

    token: str | None
    namespace: str | None
    retry: RetryPolicy | None
    #: A PEM file with the authorities to trust for an `https://` server instead of the system's.
    ca_file: str | None


@dataclass(frozen=True)
class Settings:
    """Where the server is, and what every call says."""

    url: str = "http://127.0.0.1:7171"
    token: str | None = field(default=None, repr=False)
    namespace: str | None = None
    retry: RetryPolicy = RetryPolicy()
    ca_file: str | None = None

    @classmethod
    def found(cls, url: str | None, options: ConnectOptions) -> Settings:
        """What is given, then what the environment says, then this machine."""
        said = {name: os.environ.get(variable) for name, variable in VARIABLES.items()}
        given = {name: value for name, value in {"url": url, **options}.items() if value}
        return cls(**{**{name: value for name, value in said.items() if value}, **given})  # type: ignore[arg-type]

    def unreachable(self, error: httpx.TransportError) -> Unreachable:
        """The exception for a call that has no answer."""
        return Unreachable(f"{self.url} does not answer: {str(error) or repr(error)}")

    def http_options(self) -> dict[str, Any]:
        """The options of an httpx client for this server."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"a server's address begins with http:// or https://, not {self.url!r}")
        authorization = {"authorization": f"Bearer {self.token}"} if self.token else {}
        here = parts.hostname in {"localhost", "127.0.0.1", "::1"}
        if self.token and parts.scheme == "http" and not here:
            log.warning("the token goes to %s over plain HTTP; use https:// for another machine", parts.hostname)
        return {
            "base_url": self.url.rstrip("/"),
            "headers": {"accept": "application/json", **authorization},
            "timeout": httpx.Timeout(self.retry.answer_timeout, pool=None),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64),
            "verify": parts.scheme == "https" and (not self.ca_file or ssl.create_default_context(cafile=self.ca_file)),
            "trust_env": not here,
        }


class Call(Generic[T]):
    """A call with its identity."""

    def __init__(
        self, operation: wire.Operation[..., T], args: dict[str, Any], settings: Settings, partitions: int
    ) -> None:
        self.operation = operation
        args = {name: value for name, value in args.items() if value is not None}
        if settings.namespace:
            takes_namespace = "namespace" in operation.body or "namespace" in operation.query
            for one in (*([args] if takes_namespace else []), *args.get("executions", ())):
                # A child is where its parent is.
                if "parent" not in one:
                    one.setdefault("namespace", settings.namespace)
        self.headers = {**in_trace(), **_identify(operation, args, partitions)}
        self.path = operation.path
        self._query: dict[str, Any] = {}
        self._body: dict[str, Any] = {}
        for argument, value in args.items():
            # A word of Python has an underscore behind it, such as `from_`.
            name = argument.rstrip("_")
            if "{" + name + "}" in self.path:
                self.path = self.path.replace("{" + name + "}", quote(str(value), safe=""))
            elif name in operation.body:
                self._body[name] = value
            elif name in operation.query:
                self._query[name] = value
            else:
                raise TypeError(f"{operation.name} takes no argument {name!r}")
        if "{" in self.path:
            raise TypeError(f"{operation.name} needs {self.path[self.path.index('{') + 1 : self.path.index('}')]!r}")
        waits_ms = args.get("wait_ms") or args.get("claim", {}).get("wait_ms") or 0
        patience = settings.retry.answer_timeout
        self.timeout = httpx.Timeout(patience + waits_ms / 1000, connect=min(patience, CONNECT_TIMEOUT_S), pool=None)
        self._content: bytes | None = None

    def request(self) -> dict[str, Any]:
        """The arguments of httpx's `request`."""
        arguments: dict[str, Any] = {"method": self.operation.method, "url": self.path, "timeout": self.timeout}
        if not (self.operation.body or self.operation.method == "POST"):
            return {**arguments, "params": self._query or None, "headers": self.headers}
        self._content = self._content or to_json(self._body)
        headers = {**self.headers, "content-type": "application/json"}
        return {**arguments, "params": self._query or None, "headers": headers, "content": self._content}

    def read(self, status: int, content: bytes) -> T:
        """The answer, or the exception it stands for."""
        if status == 204:
            return cast(T, self.operation.answer.model_construct(tasks=[], grants=[]))  # type: ignore[attr-defined]
        if status >= 300:
            raise failure_of(status, content)
        answer: Any = self.operation.answer
        try:
            return cast(T, from_json(content) if answer is dict else answer.model_validate_json(content))
        except (ValidationError, ValueError) as error:
            raise Unreadable(f"the answer of {self.operation.name}: {error}") from error

    def repeated(self) -> None:
        """Says of the call that it repeats one whose answer may have been lost. Only a claim needs to be told."""
        for claim in (self._body, self._body.get("claim")):
            if claim and "lease_ids" in claim:
                claim["retry"] = True
                self._content = None


class Repeats:
    """The repeats of one call."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._started = time.monotonic()
        self._repeats = 0

    def pause(self, error: FlowFabricError) -> float:
        """Seconds to wait before the next try; an error that is final is raised."""
        if not (error.may_pass if isinstance(error, Refused) else isinstance(error, Unreachable)):
            raise error
        least = error.retry_after_ms / 1000 if isinstance(error, Refused) else 0.0
        backoff = min(self._policy.initial_backoff * 2.0 ** min(self._repeats, 16), self._policy.max_backoff)
        # Calls that failed together do not come back together.
        pause = max(backoff * random.uniform(0.5, 1.0), least)
        if time.monotonic() - self._started + pause >= self._policy.max_elapsed:
            raise error
        self._repeats += 1
        return pause


def _identify(operation: wire.Operation[..., Any], args: dict[str, Any], partitions: int) -> dict[str, str]:
    """Gives a call its identity: ids that it brings along, what it says about its lease, or else a header."""
    if operation in NEEDS_PARTITIONS:
        for one in args.get("executions", [args]):
            _identify_submission(one, partitions)
    elif operation in (wire.claim, wire.exchange):
        if claim := args if operation is wire.claim else args.get("claim"):
            claim.setdefault("lease_ids", [mint() for _ in range(claim.get("max_tasks", 1))])
    elif operation.method == "POST":
        own = IDENTITIES & operation.body
        if not own & args.keys() and (own or not operation.body & {"fence", "leases"}):
            return {"idempotency-key": mint()}
    return {}


def _identify_submission(args: dict[str, Any], partitions: int) -> None:
    """An id costs nothing; a key leaves a record. Where a key decides which execution it is, that gives the id."""
    parent = args.get("parent") or {}
    if "execution_id" in args or "idempotency_key" in args or parent.get("key"):
        return
    beside = args.get("flow_id") or parent.get("execution_id")
    if "singleton" in args or "debounce" in args:
        args["idempotency_key"] = mint()
    else:
        args["execution_id"] = mint_beside(beside) if beside else mint_spread(partitions)


def failure_of(status: int, content: bytes) -> FlowFabricError:
    """The exception for a status that is no success. A proxy in between may have answered in words of its own."""
    with contextlib.suppress(ValueError):
        problem = from_json(content)
        if isinstance(problem, dict) and "code" in problem:
            return refusal(status, problem)
    if status in {429, 502, 503, 504}:
        return Unreachable(f"the server is not available: status {status}")
    return Unreadable(f"status {status} without a reason that this version knows")


def in_trace() -> dict[str, str]:
    """The span that the caller is in, where OpenTelemetry is installed, as a header."""
    headers: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(headers)
    return {name: value for name, value in headers.items() if name == "traceparent"}


def enter_trace(traceparent: str | None) -> None:
    """Makes this task a part of the submitter's trace, where OpenTelemetry is installed."""
    if propagate is not None and traceparent:
        context.attach(propagate.extract({"traceparent": traceparent}))


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream. `kind` is `frame`; `attempt`, after which what came before is void; `paused`,
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
    """The place in a stream up to which events were shown: a new connection goes on there and misses none."""

    execution_id: str
    after: str
    paused: bool = False
    ended: bool = False

    def request(self) -> dict[str, Any]:
        """The arguments of httpx's `stream` for a new connection."""
        self._kind, self._data, self._rest, self._after_return = "", "{}", b"", False
        resume = {"last-event-id": self.after} if self.after != "0-0" else {}
        return {
            "url": f"/v1/executions/{self.execution_id}/stream",
            "headers": {"accept": "text/event-stream", **resume},
            "timeout": httpx.Timeout(SILENCE_MAX_S, connect=CONNECT_TIMEOUT_S, pool=None),
        }

    def read(self, part: bytes) -> Iterator[StreamEvent]:
        """The events that end in this part of the answer, unless they were shown before."""
        # An end of two characters may be spread over two parts.
        part = part.removeprefix(b"\n" if self._after_return else b"")
        self._after_return = part.endswith(b"\r")
        *lines, self._rest = LINE_END.split(self._rest + part)
        return filter(None, map(self._read_line, lines))

    def _read_line(self, line: bytes) -> StreamEvent | None:
        field, _, value = line.decode(errors="replace").partition(": ")
        if field == "event":
            self._kind, self._data = value, "{}"
        elif field == "data":
            self._data = value
        if line or self._kind in {"", "ping"}:
            return None
        event, self._kind = _event(self._kind, self._data), ""
        return event if self._is_news(event) else None

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


def _event(kind: str, data: str) -> StreamEvent:
    try:
        body = from_json(data)
        frame = wire.StreamFrame.model_validate(body) if kind == "frame" else None
    except ValueError as error:
        raise Unreadable(f"an event: {error}") from error
    if kind == "error":
        raise refusal(200, body)
    return StreamEvent(kind, body, frame)
