"""Tasks, which are functions with the kind they serve, and their submission: once, in a graph, or by a schedule. Values
become JSON through pydantic, as the annotation says, and `bytes` stay as they are."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, get_type_hints, overload

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from typing_extensions import Self, TypedDict, TypeVar, Unpack

from . import wire
from .errors import TaskError

if TYPE_CHECKING:
    from .context import Context, SyncContext

#: Input and result of a task; anything, where only its kind is known.
I = TypeVar("I", default=Any)  # noqa: E741
R = TypeVar("R", default=Any)
#: The input of a task that takes none.
NOTHING: Any = None
#: Something to await, which begins only then.
Coro: TypeAlias = Coroutine[Any, Any, R]
#: Seconds, or a span.
Span: TypeAlias = float | timedelta


def milliseconds(span: Span) -> int:
    """A span in the unit of the API."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    return max(0, round(seconds * 1000))


def wait_within(seconds: Any, max_ms: int) -> int | None:
    """A wait that somebody asks for, as the server takes it; none where it is no number."""
    with suppress(TypeError, ValueError):
        return milliseconds(min(seconds, max_ms / 1000))
    return None


def instant(at: datetime) -> int:
    """An instant in the unit of the API."""
    return round(at.timestamp() * 1000)


class Codec(Generic[R]):
    """Writes and reads values of one type."""

    def __init__(self, annotation: Any) -> None:
        self._raw = annotation is bytes
        self._adapter: TypeAdapter[R] = TypeAdapter(Any if annotation is None else annotation)

    def encode(self, field: str, value: Any) -> dict[str, Any]:
        """The arguments of a call that carry a value in this field."""
        if isinstance(value, bytes | bytearray):
            return {f"{field}_base64": base64.b64encode(value).decode(), "content_type": "application/octet-stream"}
        return {field: self._adapter.dump_python(value, mode="json", warnings=False)}

    def decode(self, content: wire.Content | None) -> R:
        """The value that some bytes hold. No bytes are null."""
        data = base64.b64decode(content.payload_base64) if content else b""
        if self._raw:
            return data  # type: ignore[return-value]
        return self._adapter.validate_json(data or b"null")

    def read(self, content: wire.Content | None, what: str, category: str) -> R:
        """The same for a task, which fails with this category if the value does not fit."""
        try:
            return self.decode(content)
        except ValueError as error:
            raise TaskError(f"{what} cannot be read: {error}", category=category) from error

    def schema(self, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
        """The JSON schema of the type; empty where it says nothing."""
        return {} if self._raw else self._adapter.json_schema(mode=mode)

    def same(self, value: Any) -> R:
        """The value as a later run reads it, so that the run that made it sees nothing else."""
        if isinstance(value, bytes | bytearray):
            return bytes(value)  # type: ignore[return-value]
        return self._adapter.validate_json(self._adapter.dump_json(value, warnings=False))


@lru_cache(maxsize=1024)
def _cached(annotation: Any) -> Codec[Any]:
    return Codec(annotation)


def codec(annotation: Any) -> Codec[Any]:
    """The codec of an annotation; made once where the annotation can be remembered."""
    try:
        return _cached(annotation)
    except TypeError:
        return Codec(annotation)


def returned_type(function: Callable[..., Any]) -> Any:
    """The type that a function says it returns; anything where it says nothing."""
    try:
        return get_type_hints(inspect.unwrap(function)).get("return", Any)
    except Exception:  # A name that only the type checker knows, or a callable without hints.
        return Any


#: Anything as what JSON holds.
plain: Callable[[Any], Any] = to_jsonable_python


class Options(TypedDict, total=False):
    """The options of a submission."""

    lane: str
    priority: int
    tags: Mapping[str, str]
    #: Retries after the first attempt; 0 is none.
    retries: int
    #: Failures of these categories are final.
    never_retry: Sequence[str]
    #: Everything that a policy can say, as the API writes it.
    policy: Mapping[str, Any] | wire.Policy
    #: The same key means the same execution, for a day.
    idempotency_key: str
    #: Not before this instant.
    delay_until: datetime
    #: It expires at this instant.
    deadline_at: datetime
    #: Capabilities that its worker must have.
    requires: Sequence[str]
    budgets: Sequence[str]
    quota: str
    #: It runs only while fewer than so many others hold each of these keys.
    concurrency: Mapping[str, int]
    #: Work of different keys takes turns in its lane, a key of weight 3 three times as often as one of weight 1.
    fair_key: str
    fair_weight: int
    #: While one with this key waits or runs, that one is the answer.
    singleton: str
    #: Of a burst only the last one runs: `key`, `wait_ms` and `max_wait_ms`.
    debounce: Mapping[str, Any]
    namespace: str
    creator: str
    #: An id that the caller minted.
    execution_id: str
    #: Any other field of `create_execution`, as the API writes it.
    extra: Mapping[str, Any]


class Task(Generic[I, R]):
    """A function that workers call for executions of a kind, from `@task`."""

    def __init__(self, kind: str, function: Callable[..., Any], options: Options) -> None:
        self.kind = kind
        self.function = function
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        names = list(inspect.signature(function).parameters)
        if not 1 <= len(names) <= 2:
            raise TypeError(f"{kind}: a task takes its context and at most one input")
        self.takes_input = len(names) == 2
        self.input: Codec[I] = codec(get_type_hints(function).get(names[1], Any) if self.takes_input else None)
        self.result: Codec[R] = codec(returned_type(function))
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, as a test does."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.kind!r}>"


class ToolOptions(TypedDict, total=False):
    """What a worker can say to agents about a tool."""

    title: str
    #: Where calls are submitted; `default` if the worker serves it, otherwise its first lane, when absent.
    lane: str
    #: Calling it again with the same input changes nothing more.
    repeatable: bool
    #: It changes nothing.
    read_only: bool
    #: It may destroy something; when absent, unless it is read only.
    destructive: bool
    #: Whether a call is a task of the protocol; `optional` when absent.
    tasks: wire.TaskSupport


def tool(what: Task[Any, Any], description: str | None = None, **options: Unpack[ToolOptions]) -> dict[str, Any]:
    """A task as a tool for agents, for `Worker(..., tools=[...])`. The schemas come from the types of its function, and
    the description, when none is given, from its documentation. The input is an object: a model, or a `TypedDict`."""
    about = description or inspect.getdoc(what.function)
    if not about:
        raise ValueError(f"{what.kind}: a tool needs a description, by which models choose it")
    schema = what.input.schema("validation") if what.takes_input else {"type": "object"}
    definition = {"kind": what.kind, "description": about, "input_schema": schema, **options}
    output = what.result.schema("serialization")
    return {**definition, "output_schema": output} if output else definition


class _Decorator:
    def __init__(self, kind: str, options: Options) -> None:
        self._kind = kind
        self._options = options

    @overload
    def __call__(self, function: Callable[[Context, I], Awaitable[R]]) -> Task[I, R]: ...
    @overload
    def __call__(self, function: Callable[[Context], Awaitable[R]]) -> Task[None, R]: ...
    @overload
    def __call__(self, function: Callable[[SyncContext, I], R]) -> Task[I, R]: ...
    @overload
    def __call__(self, function: Callable[[SyncContext], R]) -> Task[None, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[Any, Any]:
        return Task(self._kind, function, self._options)


def task(kind: str, **options: Unpack[Options]) -> _Decorator:
    """Makes a function a task of some kind. The options are those of its submissions, unless they say otherwise.

    An `async def` gets a `Context`; a `def` runs in a thread and gets a `SyncContext`, which cannot wait.
    """
    return _Decorator(kind, options)


@dataclass(frozen=True)
class Submission(Generic[R]):
    """An execution about to be created, for a call, a batch, a flow or a parent."""

    args: dict[str, Any]
    result: Codec[R]


def submission(what: Task[I, R] | str, input: I = NOTHING, **options: Unpack[Options]) -> Submission[R]:
    """A submission of a task, or of a kind that somebody else serves, with its input and options."""
    made: Task[I, R] | None = None if isinstance(what, str) else what
    said: dict[str, Any] = {**(made.options if made else {}), **options}
    writer, reader = (made.input, made.result) if made else (codec(Any), codec(Any))
    args = {"kind": made.kind if made else what, **({} if input is None else writer.encode("input", input))}
    if policy := _policy(said):
        args["policy"] = policy
    extra = said.pop("extra", {})
    for name, value in said.items():
        args[_RENAMED.get(name, name)] = _WRITTEN.get(name, plain)(value)
    return Submission({**args, **extra}, reader)


#: Options that the API calls otherwise, and those that it writes otherwise.
_RENAMED = {"requires": "required_capabilities", "budgets": "budget_ids", "quota": "quota_policy_id"}
_WRITTEN: dict[str, Callable[[Any], Any]] = {
    "delay_until": instant,
    "deadline_at": instant,
    "concurrency": lambda limits: [{"key": key, "limit": limit} for key, limit in limits.items()],
    "singleton": lambda key: {"key": key},
}


def _policy(said: dict[str, Any]) -> dict[str, Any]:
    """Takes out of some options what they say about the policy."""
    given = said.pop("policy", {})
    if isinstance(given, wire.Policy):
        given = given.model_dump(by_alias=True, exclude_unset=True)
    policy: dict[str, Any] = plain(dict(given))
    for name, called in (("retries", "max_retries"), ("never_retry", "non_retryable_categories")):
        if name in said:
            policy.setdefault("retry", {})[called] = plain(said.pop(name))
    return policy


class Flow:
    """A graph of executions that a client creates in one call.

    flow = Flow("report").node("fetch", fetch, url).node("render", render).edge("fetch", "render")
    created = client.create_flow(flow)
    """

    def __init__(self, kind: str, *, tags: Mapping[str, str] | None = None, idempotency_key: str | None = None) -> None:
        known_by = {"idempotency_key": idempotency_key} if idempotency_key else {}
        self.args: dict[str, Any] = {"kind": kind, "nodes": [], "edges": [], "tags": dict(tags or {}), **known_by}
        self.results: dict[str, Codec[Any]] = {}

    def node(
        self, name: str, what: Task[I, Any] | str, input: I = NOTHING, *, join: Any = None, **options: Unpack[Options]
    ) -> Self:
        """Adds a node. It runs when all of its upstreams have succeeded, unless `join` says otherwise."""
        made = submission(what, input, **options)
        node = {"name": name, "request": made.args}
        self.args["nodes"].append({**node, "join": join} if join is not None else node)
        self.results[name] = made.result
        return self

    def edge(self, upstream: str, downstream: str) -> Self:
        """The second node waits for the first, and can read its result."""
        self.args["edges"].append({"from": upstream, "to": downstream})
        return self


class When(TypedDict, total=False):
    """The times and options of a schedule. Exactly one of `cron`, `every` and `at` is given."""

    #: A cron expression of five fields, or of six with the seconds first.
    cron: str
    #: The time zone of the expression; `UTC` when absent.
    zone: str
    every: Span
    at: Sequence[datetime]
    starts_at: datetime
    ends_at: datetime
    #: Each run starts up to so much later.
    jitter: Span
    #: How it takes an instant at which the latest run has not ended; `allow` when absent.
    overlap: wire.Overlap
    #: How it makes up for instants that no server saw to in time; a number runs so many of them at most.
    catch_up: Literal["none", "last"] | int
    #: So many failed runs in a row pause it.
    pause_after_failures: int


def schedule(what: Submission[Any] | Flow, **when: Unpack[When]) -> dict[str, Any]:
    """The definition of a schedule, for the operations that create and update one:
    `client.call(wire.create_schedule, name="nightly", **schedule(submission(report, "eu"), cron="0 2 * * *"))`."""
    said: dict[str, Any] = {name: instant(one) if isinstance(one, datetime) else one for name, one in when.items()}
    spec = {"cron": said.pop("cron", None), "time_zone": said.pop("zone", None)}
    spec["at"] = [instant(one) for one in said.pop("at", ())]
    for name, among in (("every", spec), ("jitter", said)):
        if name in said:
            among[f"{name}_ms"] = milliseconds(said.pop(name))
    if isinstance(said.get("catch_up"), int):
        said["catch_up"] = {"all": {"max": said["catch_up"]}}
    return {"spec": spec, "template": {"flow" if isinstance(what, Flow) else "execution": what.args}, **said}
