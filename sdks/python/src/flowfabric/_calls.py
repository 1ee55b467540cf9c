"""One call: how it is written, read and repeated. Nothing here sends; the two clients do."""

from __future__ import annotations

import importlib
import random
import time
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from . import wire
from ._ids import mint, mint_beside, mint_spread
from .errors import FlowFabricError, Refused, Unreachable, Unreadable, refusal

propagate: Any
context: Any
try:
    propagate = importlib.import_module("opentelemetry.propagate")
    context = importlib.import_module("opentelemetry.context")
except ImportError:
    propagate = context = None

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
#: The field that holds a call's identity.
IDENTITIES = {
    "deliver_signal": "signal_id",
    "suspend": "idempotency_key",
    "report_usage": "dedup_key",
    "report_budget_usage": "dedup_key",
}
#: Calls that are the same call by nature: their arguments name what they do, and nothing undoes it.
NATURAL = frozenset({"heartbeat_worker", "renew_leases", "exchange", "create_budget", "create_quota"})


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


@dataclass(frozen=True)
class Settings:
    """Where the server is, and what every call says."""

    url: str
    token: str | None = field(default=None, repr=False)
    namespace: str | None = None
    retry: RetryPolicy = RetryPolicy()

    def http_options(self) -> dict[str, Any]:
        """The options of an httpx client for this server."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"a server's address begins with http:// or https://, not {self.url!r}")
        headers = {"accept": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        loopback = parts.hostname in {"localhost", "127.0.0.1", "::1"}
        return {
            "base_url": self.url.rstrip("/"),
            "headers": headers,
            "timeout": httpx.Timeout(self.retry.answer_timeout, pool=None),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64),
            "verify": parts.scheme == "https",
            "trust_env": not loopback,
        }


class Call(Generic[T]):
    """A call with its identity."""

    def __init__(self, operation: wire.Operation[T], args: dict[str, Any], settings: Settings, partitions: int) -> None:
        self.operation = operation
        args = {name: value for name, value in args.items() if value is not None}
        if settings.namespace:
            takes_namespace = "namespace" in operation.body or "namespace" in operation.query
            for one in (*([args] if takes_namespace else []), *args.get("executions", ())):
                # A child is where its parent is.
                if "parent" not in one:
                    one.setdefault("namespace", settings.namespace)
        self.headers = trace_headers()
        _identify(operation, args, partitions, self.headers)
        self.path = operation.path
        self._query: dict[str, str | list[str]] = {}
        self._body: dict[str, Any] = {}
        for name, value in args.items():
            if "{" + name + "}" in self.path:
                self.path = self.path.replace("{" + name + "}", quote(str(value), safe=""))
            elif name in operation.body:
                self._body[name] = value
            elif name in operation.query:
                self._query[name] = _query_text(value)
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
        headers = self.headers
        if self._query:
            arguments["params"] = self._query
        if self.operation.body or self.operation.method == "POST":
            if self._content is None:
                self._content = to_json(self._body)
            arguments["content"] = self._content
            headers = {**headers, "content-type": "application/json"}
        return {**arguments, "headers": headers}

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
        least = 0.0
        if isinstance(error, Refused):
            if not error.may_pass:
                raise error
            least = error.retry_after_ms / 1000
        elif not isinstance(error, Unreachable):
            raise error
        backoff = min(self._policy.initial_backoff * 2.0 ** min(self._repeats, 16), self._policy.max_backoff)
        # Those who failed together do not come back together.
        pause = max(backoff * random.uniform(0.5, 1.0), least)
        if time.monotonic() - self._started + pause >= self._policy.max_elapsed:
            raise error
        self._repeats += 1
        return pause


def needs_partitions(operation: wire.Operation[Any]) -> bool:
    """Whether the caller mints an id that names a partition."""
    return operation.name in {"create_execution", "create_executions", "create_flow"}


def _identify(operation: wire.Operation[Any], args: dict[str, Any], partitions: int, headers: dict[str, str]) -> None:
    name = operation.name
    if name in {"create_execution", "create_executions"}:
        for one in args.get("executions", [args]):
            _identify_submission(one, partitions)
    elif name in {"claim", "exchange"}:
        if claim := args if name == "claim" else args.get("claim"):
            claim.setdefault("lease_ids", [mint() for _ in range(claim.get("max_tasks", 1))])
    elif "idempotency_key" in args:
        return
    elif name == "create_flow":
        args.setdefault("flow_id", mint_spread(partitions))
    elif name in IDENTITIES:
        args.setdefault(IDENTITIES[name], mint())
    elif "command_id" in operation.body:
        args.setdefault("command_id", mint())
    elif operation.method == "POST" and "fence" not in args and name not in NATURAL:
        headers["idempotency-key"] = mint()


def _identify_submission(args: dict[str, Any], partitions: int) -> None:
    """An id costs nothing; a key would leave a record."""
    parent = args.get("parent") or {}
    if "execution_id" in args or "idempotency_key" in args or parent.get("key"):
        return
    beside = args.get("flow_id") or parent.get("execution_id")
    args["execution_id"] = mint_beside(beside) if beside else mint_spread(partitions)


def _query_text(value: Any) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    return [str(one) for one in value] if isinstance(value, list | tuple | set | frozenset) else str(value)


def failure_of(status: int, content: bytes) -> FlowFabricError:
    """What a status that is no success means. Something in between may answer, too, in words of its own."""
    try:
        problem = from_json(content)
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "code" in problem:
        return refusal(status, problem)
    if status in {429, 502, 503, 504}:
        return Unreachable(f"the server is not available: status {status}")
    return Unreadable(f"status {status} without a reason that this version knows")


def trace_headers() -> dict[str, str]:
    """The span that the caller is in, where OpenTelemetry is installed."""
    headers: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(headers)
    return {name: value for name, value in headers.items() if name == "traceparent"}


def enter_trace(traceparent: str | None) -> None:
    """What this task does from now on belongs to the submitter's trace, where OpenTelemetry is installed."""
    if propagate is not None and traceparent:
        context.attach(propagate.extract({"traceparent": traceparent}))
