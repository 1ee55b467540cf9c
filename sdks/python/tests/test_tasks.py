"""A task from its submission to its result."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

import flowfabric as ff
from flowfabric.testing import Server

from .proxy import proxy
from .support import bench, run, until_state


class Text(BaseModel):
    text: str
    words: int | None = None


class Order(BaseModel):
    item: str
    count: int = 1
    placed_at: datetime


@dataclasses.dataclass
class Receipt:
    total: int
    items: list[str]


@ff.task("order", retries=0)
async def order(ctx: ff.Context, order: Order) -> Receipt:
    return Receipt(order.count * 7, [order.item] * order.count)


@ff.task("plain", retries=0)
def plain(ctx: ff.SyncContext, numbers: list[int]) -> int:
    return sum(numbers)


@ff.task("nothing", retries=0)
async def nothing(ctx: ff.Context) -> None:
    return None


@ff.task("bytes", retries=0)
async def raw(ctx: ff.Context, data: bytes) -> bytes:
    return data[::-1]


@ff.task("any", retries=0)
async def anything(ctx: ff.Context, value: Any) -> Any:
    return {"got": value}


def test_annotations_decide_what_a_task_takes_and_returns(server: Server) -> None:
    async def test() -> None:
        async with bench(server, order, plain, nothing, raw, anything) as its:
            placed = Order(item="tea", count=3, placed_at=datetime(2026, 1, 2, tzinfo=timezone.utc))
            assert await (await its.submit(order, placed)).result(10) == Receipt(21, ["tea", "tea", "tea"])
            assert await (await its.submit(plain, [1, 2, 3])).result(10) == 6
            assert await (await its.submit(nothing)).result(10) is None
            assert await (await its.submit(raw, b"\x00\xff")).result(10) == b"\xff\x00"
            assert await (await its.submit(anything, {"a": [1, None]})).result(10) == {"got": {"a": [1, None]}}
            by_kind = await its.submit("order", {"item": "tea", "placed_at": "2026-01-02T00:00:00Z"})
            assert await by_kind.result(10) == {"total": 7, "items": ["tea"]}

    run(test())


def test_an_input_that_does_not_fit_is_a_failure_of_its_own_category(server: Server) -> None:
    async def test() -> None:
        async with bench(server, order) as its:
            wrong = await its.submit("order", {"item": 7}, retries=0)
            with pytest.raises(ff.NotCompleted) as raised:
                await wrong.result(10)
            assert raised.value.category == "invalid_input"
            assert "placed_at" in (raised.value.reason or "")

    run(test())


def test_a_failure_is_retried_as_the_policy_says(server: Server) -> None:
    tries: list[int] = []

    @ff.task("flaky", policy={"retry": {"max_retries": 2, "backoff": {"fixed": {"delay_ms": 10}}}})
    async def flaky(ctx: ff.Context) -> int:
        tries.append(ctx.attempt)
        if ctx.retry_count < 2:
            raise ValueError("not yet")
        return ctx.retry_count

    @ff.task("final", retries=3, never_retry=["bad_request"])
    async def final(ctx: ff.Context) -> None:
        raise ff.TaskError("zero is not allowed", category="bad_request")

    async def test() -> None:
        async with bench(server, flaky, final) as its:
            assert await (await its.submit(flaky)).result(20) == 2
            assert tries == [0, 1, 2]
            with pytest.raises(ff.NotCompleted, match="zero is not allowed") as raised:
                await (await its.submit(final)).result(10)
            assert (raised.value.category, raised.value.public_state) == ("bad_request", "failed")

    run(test())


def test_a_result_that_the_server_refuses_fails_the_attempt(server: Server) -> None:
    @ff.task("huge", retries=0)
    async def huge(ctx: ff.Context) -> str:
        return "x" * 2_000_000

    async def test() -> None:
        async with bench(server, huge) as its:
            with pytest.raises(ff.NotCompleted) as raised:
                await (await its.submit(huge)).result(10)
            assert raised.value.category == "refused"

    run(test())


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


FAILURES: list[tuple[Exception, str, str]] = [
    (ff.TaskError("é" * 3_000, category="long"), "long", "é" * 2_048),
    (ff.TaskError("a\0b", category="n\0ul\n"), "nul", "ab"),
    (ff.TaskError("\ud83d!"), "error", "\\ud83d!"),
    (ff.TaskError("one", category="c" * 300), "c" * 256, "one"),
    (ff.TaskError("two", category="\0"), "error", "two"),
    (ff.TaskError("two", category="zero\u200dwidth"), "zero\u200dwidth", "two"),
    *((ff.TaskError("three", retry_after=after), "error", "three") for after in (-1, 1e300, math.inf, math.nan)),
    (ff.TaskError("three", retry_after="5"), "error", "three"),  # type: ignore[arg-type]
    (Mute(), "error", "Mute"),
]


def test_an_attempt_ends_whatever_its_failure_says(server: Server) -> None:
    @ff.task("fails", retries=0)
    async def fails(ctx: ff.Context, which: int) -> None:
        raise FAILURES[which][0]

    async def test() -> None:
        async with bench(server, fails) as its:
            for which, (_, category, reason) in enumerate(FAILURES):
                failure = (await (await its.submit(fails, which)).wait(10)).last_failure
                assert failure
                assert (failure.category, failure.reason) == (category, reason)

    run(test())


def test_a_failure_that_is_refused_all_the_same_is_said_in_other_words(server: Server) -> None:
    ran: list[int] = []

    @ff.task("odd", retries=0)
    async def odd(ctx: ff.Context) -> None:
        ran.append(ctx.attempt)
        raise ff.TaskError("odd", category="odd")

    def fate(name: str, body: dict[str, Any]) -> int | None:
        said = [body, *(one.get("fail", {}) for one in body.get("end", []))]
        return 404 if any(one.get("category") == "odd" for one in said) else None

    async def test() -> None:
        with proxy(server.url) as its:
            its.fate = fate
            lane = f"lane-{uuid4().hex[:12]}"
            async with server.async_client() as client, ff.AsyncClient(its.url) as through:
                execution = await client.submit(odd, lane=lane)
                async with ff.Worker([odd], through, lanes=[lane]).running():
                    failure = (await execution.wait(10)).last_failure
                    assert failure
                    assert (failure.category, failure.reason) == ("refused", "route_not_found: says the proxy")

    run(test())
    assert ran == [0]


def test_a_cancelled_execution_cancels_its_function(server: Server) -> None:
    seen: list[str] = []

    @ff.task("endless", retries=0)
    async def endless(ctx: ff.Context) -> None:
        seen.append("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def test() -> None:
        async with bench(server, endless, lease_ttl=1.0) as its:
            execution = await its.submit(endless)
            await until_state(execution, "active")
            await execution.cancel("enough")
            view = await execution.wait(10)
            assert view.public_state == "cancelled"
        assert seen == ["began", "cancelled"]

    run(test())


def test_frames_progress_and_usage_reach_their_readers(server: Server) -> None:
    @ff.task("writer", retries=0)
    async def writer(ctx: ff.Context) -> str:
        for word in ["Once ", "upon ", "a time"]:
            await ctx.emit("token", word)
        await ctx.emit("page", {"number": 1})
        await ctx.progress(40, "half of it")
        counted = await ctx.usage({"tokens": 12}, key="draft")
        again = await ctx.usage({"tokens": 12}, key="draft")
        (first,), (second,) = counted.budgets.values(), again.budgets.values()
        return f"{first.outcome} {second.outcome}"

    async def test() -> None:
        async with bench(server, writer) as its:
            budget = f"budget-{its.lane}"
            await its.client.create_budget(budget, hard={"tokens": 100})
            execution = await its.submit(writer, budgets=[budget])
            assert await execution.result(10) == "ok already_applied"
            events = [event async for event in execution.tail()]
            assert "".join(event.text for event in events if event.frame and event.frame.type == "token") == (
                "Once upon a time"
            )
            assert [event.json() for event in events if event.frame and event.frame.type == "page"] == [{"number": 1}]
            assert events[-1].kind == "end"
            view = await execution.get()
            assert view.progress is not None
            assert view.progress.message == "half of it"
            status = await its.client.budget(budget)
            assert status.model_dump()["usage"]["tokens"] == 12

    run(test())


def test_a_plain_function_has_steps_and_streams(server: Server) -> None:
    @ff.task("threaded", retries=0)
    def threaded(ctx: ff.SyncContext, words: list[str]) -> str:
        joined = ctx.step("join", " ".join, words, returns=str)
        ctx.emit("line", joined)
        ctx.progress(100)
        assert ctx.now().tzinfo is not None
        return joined.upper()

    async def test() -> None:
        async with bench(server, threaded) as its:
            execution = await its.submit(threaded, ["a", "b"])
            assert await execution.result(10) == "A B"
            assert [event.text async for event in execution.tail() if event.frame] == ["a b"]

    run(test())


def test_a_task_is_a_tool_of_agents_with_the_schemas_of_its_types(server: Server) -> None:
    @ff.task("sum_up")
    async def sum_up(_: ff.Context, given: Text) -> dict[str, str]:
        """Sums up a text."""
        return {"summary": given.text[: given.words]}

    @ff.task("bare")
    async def bare(_: ff.Context) -> None: ...

    async def test() -> None:
        tools = [ff.tool(sum_up, read_only=True, tasks="required"), ff.tool(bare, "Does nothing.")]
        async with bench(server, sum_up, bare, tools=tools) as its:
            listed = {tool.kind: tool async for tool in its.client.items(ff.wire.list_tools)}
            shown = listed["sum_up"]
            assert (shown.description, shown.tasks, shown.lane) == ("Sums up a text.", "required", its.lane)
            assert (shown.read_only, shown.destructive) == (True, False)
            assert isinstance(shown.input_schema, dict)
            assert isinstance(shown.output_schema, dict)
            assert shown.input_schema["required"] == ["text"]
            assert shown.output_schema["additionalProperties"] == {"type": "string"}
            assert listed["bare"].input_schema == {"type": "object"}
            assert listed["bare"].tasks == "optional"

    run(test())
    with pytest.raises(ValueError, match="bare: a tool needs a description"):
        ff.tool(bare)
