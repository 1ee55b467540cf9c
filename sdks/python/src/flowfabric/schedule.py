"""When a schedule runs, and what it creates then."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

from typing_extensions import TypedDict

from .flow import Flow
from .task import Span, Submission, instant, milliseconds

#: What happens at an instant while the latest run has not ended.
Overlap: TypeAlias = Literal["allow", "skip", "buffer_one", "cancel_previous"]


class When(TypedDict, total=False):
    """What can be said about a schedule. Exactly one of `cron`, `every` and `at` is given."""

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
    overlap: Overlap
    #: What becomes of instants that no server saw to in time; a number runs so many of them at most.
    catch_up: Literal["none", "last"] | int
    #: So many failed runs in a row pause it.
    pause_after_failures: int


def schedule_args(what: Submission[Any] | Flow, when: When) -> dict[str, Any]:
    """A schedule, as the API writes it."""
    said: dict[str, Any] = {name: instant(one) if isinstance(one, datetime) else one for name, one in when.items()}
    spec = {"cron": said.pop("cron", None), "time_zone": said.pop("zone", None)}
    spec["at"] = [instant(one) for one in said.pop("at", ())]
    for name, among in (("every", spec), ("jitter", said)):
        if name in said:
            among[f"{name}_ms"] = milliseconds(said.pop(name))
    if isinstance(said.get("catch_up"), int):
        said["catch_up"] = {"all": {"max": said["catch_up"]}}
    return {"spec": spec, "template": {"flow" if isinstance(what, Flow) else "execution": what.args}, **said}
