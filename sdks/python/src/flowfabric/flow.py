"""A flow's graph in the making."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from typing_extensions import Self, Unpack

from .task import Options, Task, submission

I = TypeVar("I")  # noqa: E741


class Flow:
    """A graph of executions that a client creates in one call.

    flow = Flow("report").node("fetch", fetch, url).node("render", render).edge("fetch", "render")
    created = client.create_flow(flow)
    """

    def __init__(self, kind: str, *, tags: Mapping[str, str] | None = None, idempotency_key: str | None = None) -> None:
        self.args: dict[str, Any] = {"kind": kind, "nodes": [], "edges": [], "tags": dict(tags or {})}
        self.results: dict[str, Any] = {}
        if idempotency_key:
            self.args["idempotency_key"] = idempotency_key

    def node(
        self, name: str, what: Task[I, Any] | str, input: Any = None, *, join: Any = None, **options: Unpack[Options]
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
