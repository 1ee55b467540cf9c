"""A task: a function with the kind it serves, and a submission of one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, get_type_hints, overload

from typing_extensions import TypedDict, Unpack

from . import wire
from ._payload import Codec, codec, plain, returned_type

if TYPE_CHECKING:
    from .context import Context, SyncContext

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

#: Seconds, or a span.
Span: TypeAlias = float | timedelta


def milliseconds(span: Span) -> int:
    """A span in the unit of the API."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    return max(0, round(seconds * 1000))


def instant(at: datetime) -> int:
    """An instant in the unit of the API."""
    return round(at.timestamp() * 1000)


class Options(TypedDict, total=False):
    """What can be said about a submission."""

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
    #: What a worker must be able to do.
    requires: Sequence[str]
    budgets: Sequence[str]
    quota: str
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
        parameters = list(inspect.signature(function).parameters.values())
        if not 1 <= len(parameters) <= 2:
            raise TypeError(f"{kind}: a task takes its context and at most one input")
        self.takes_input = len(parameters) == 2
        input_type: Any = None
        if self.takes_input:
            input_type = get_type_hints(function).get(parameters[1].name, Any)
        self.input: Codec[I] = codec(input_type)
        self.result: Codec[R] = codec(returned_type(function))
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, as a test does."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.kind!r}>"


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


@overload
def submission(what: Task[I, R], input: I = ..., **options: Unpack[Options]) -> Submission[R]: ...
@overload
def submission(what: str, input: Any = ..., **options: Unpack[Options]) -> Submission[Any]: ...
def submission(what: Task[Any, Any] | str, input: Any = None, **options: Unpack[Options]) -> Submission[Any]:
    """What is to be created: a task, or a kind that somebody else serves, with its input and options."""
    if isinstance(what, str):
        kind, writer, reader, said = what, codec(Any), codec(Any), options
    else:
        kind, writer, reader, said = what.kind, what.input, what.result, Options(**{**what.options, **options})
    args: dict[str, Any] = {"kind": kind, **writer.encode("input", input)}
    for name, value in said.items():
        if name not in {"retries", "never_retry", "policy", "extra"}:
            args[_RENAMED.get(name, name)] = instant(value) if isinstance(value, datetime) else plain(value)
    if policy := _policy(said):
        args["policy"] = policy
    return Submission({**args, **said.get("extra", {})}, reader)


#: Options that the API calls otherwise.
_RENAMED = {"requires": "required_capabilities", "budgets": "budget_ids", "quota": "quota_policy_id"}


def _policy(said: Options) -> dict[str, Any]:
    given = said.get("policy") or {}
    if isinstance(given, wire.Policy):
        given = given.model_dump(by_alias=True, exclude_unset=True)
    policy: dict[str, Any] = plain(dict(given))
    for name, called in (("retries", "max_retries"), ("never_retry", "non_retryable_categories")):
        if name in said:
            policy.setdefault("retry", {})[called] = plain(said[name])  # type: ignore[literal-required]
    return policy
