"""Endings and the next tasks travel in one call, and nothing is lost or done twice when its answer is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

import flowfabric as ff
from flowfabric._batches import Exchange
from flowfabric.testing import Server

from .proxy import Proxy, proxy
from .support import run, until, until_state

RETRY = ff.RetryPolicy(initial_backoff=0.01, max_backoff=0.05)


@asynccontextmanager
async def behind(its: Proxy, *tasks: Any, **options: Any) -> AsyncIterator[tuple[ff.Worker, str]]:
    """A worker behind a proxy, in a lane of its own."""
    lane = f"lane-{uuid4().hex[:12]}"
    said = {"lanes": [lane], "drain": 2.0, "claim_wait": 2.0, **options}
    async with ff.AsyncClient(its.url, retry=RETRY) as client:
        worker = ff.Worker(tasks, client, **said)
        async with worker.running():
            yield worker, lane


def counting(kind: str, done: Counter[str]) -> ff.Task[None, int]:
    @ff.task(kind, retries=0)
    async def count(ctx: ff.Context) -> int:
        done[ctx.execution_id] += 1
        return done[ctx.execution_id]

    return count


async def submit_many(client: ff.AsyncClient, what: ff.Task[None, int], many: int, lane: str) -> list[Any]:
    return await client.submit_all(ff.submission(what, lane=lane) for _ in range(many))


def test_endings_and_the_next_tasks_are_one_call(server: Server) -> None:
    done: Counter[str] = Counter()
    count = counting("shared-calls", done)

    async def test() -> None:
        with proxy(server.url) as its:
            async with behind(its, count, concurrency=10) as (_, lane), server.async_client() as client:
                executions = await submit_many(client, count, 200, lane)
                assert [await one.result(30) for one in executions] == [1] * 200
            # Ten at a time, so about twenty turns; each used to be ten endings and a claim.
            assert its.calls["exchange"] <= 120, its.calls
            assert its.calls["complete"] == its.calls["claim"] == 0
            assert max(len(body.get("end", [])) for name, body in its.bodies if name == "exchange") > 1

    run(test())
    assert set(done.values()) == {1}


def test_a_busy_worker_asks_for_no_more_than_it_has_room_for(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Tasks end while a call with other endings is under way, whose places are for what that call brings."""

    @ff.task("uneven", retries=0)
    async def uneven(ctx: ff.Context, place: int) -> None:
        await asyncio.sleep(place % 7 / 400)

    async def test() -> None:
        with proxy(server.url) as its:
            async with server.async_client() as client:
                lane = f"lane-{uuid4().hex[:12]}"
                executions = await client.submit_all(ff.submission(uneven, place, lane=lane) for place in range(200))
                worker = ff.Worker([uneven], ff.AsyncClient(its.url), lanes=[lane], concurrency=5)
                async with worker.running():
                    for one in executions:
                        assert isinstance(one, ff.AsyncExecution)
                        await one.result(30)
            claims = [body["claim"] for name, body in its.bodies if name == "exchange" and not body.get("end")]
            # Each ending asks for the task that takes its place.
            assert len(claims) <= 20

    run(test())
    assert "a claim failed" not in caplog.text


class Gated:
    """A client whose calls are answered when the test says so, with so many new tasks."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: asyncio.Queue[int] = asyncio.Queue()

    def repeating_forever(self) -> Gated:
        return self

    async def call(self, _: object, *, end: list[Any], claim: dict[str, Any] | None, **__: object) -> Any:
        self.asked.append(claim["max_tasks"] if claim else 0)
        tasks = [SimpleNamespace()] * await self.answers.get()
        ended = [SimpleNamespace(complete="ended") for _ in end]
        return SimpleNamespace(end=ended, claim=SimpleNamespace(tasks=tasks, problem=None))


def test_the_places_that_endings_free_are_for_the_call_that_carries_them() -> None:
    async def test() -> None:
        held = 4
        taken: list[Any] = []
        client = Gated()
        exchange = Exchange(client, "one", {}, 4, lambda: held + len(taken), taken.extend)  # type: ignore[arg-type]

        async def asked(calls: int) -> bool | None:
            return True if len(client.asked) == calls else None

        first = asyncio.create_task(exchange.end(ff.wire.complete, {}))
        await until(partial(asked, 1))
        second = asyncio.create_task(exchange.end(ff.wire.complete, {}))
        assert exchange.room() == 0
        client.answers.put_nowait(1)
        await first
        # The first task has not left the worker, and a new one is there: the call of the second asks for nothing.
        await until(partial(asked, 2))
        assert client.asked == [1, 0]
        held -= 1
        # Its place is taken. That of the second is not free before its call is answered.
        assert exchange.room() == 0
        client.answers.put_nowait(0)
        await second
        held -= 1
        assert exchange.room() == 1

    run(test())


def test_an_exchange_whose_answer_is_lost_is_the_same_exchange(server: Server) -> None:
    done: Counter[str] = Counter()
    count = counting("lost-answers", done)
    seen: Counter[str] = Counter()

    def lose(name: str, body: dict[str, Any]) -> str | None:
        """The first answer to every second exchange with endings, and to every third without."""
        if name != "exchange" or body.get("claim", {}).get("retry"):
            return None
        kind = "ending" if body.get("end") else "claim"
        seen[kind] += 1
        return "lose" if seen[kind] % (2 if kind == "ending" else 3) == 0 else None

    async def test() -> None:
        with proxy(server.url) as its:
            its.fate = lose
            async with behind(its, count, concurrency=4, prefetch=2) as (_, lane), server.async_client() as client:
                executions = await submit_many(client, count, 80, lane)
                assert [await one.result(50) for one in executions] == [1] * 80
                for one in executions:
                    view = await one.get()
                    assert (view.attempt, view.reclaim_count) == (0, 0)
            repeats = [body for name, body in its.bodies if name == "exchange" and body.get("claim", {}).get("retry")]
            first = {
                tuple(body["claim"]["lease_ids"])
                for name, body in its.bodies
                if body not in repeats and "claim" in body
            }
            assert repeats
            assert all(tuple(body["claim"]["lease_ids"]) in first for body in repeats)

    run(test())
    assert set(done.values()) == {1}
    assert seen["ending"] >= 2


def test_an_ending_that_is_refused_is_said_and_the_others_beside_it_stand(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    @ff.task("some-refused", retries=0)
    async def some(ctx: ff.Context, depth: int) -> Any:
        nested: Any = 1
        for _ in range(depth):
            nested = [nested]
        return nested

    async def test() -> None:
        async with server.async_client() as client:
            lane = f"lane-{uuid4().hex[:12]}"
            depths = [0, 200, 0, 200, 0]
            executions = await client.submit_all([ff.submission(some, depth, lane=lane) for depth in depths])
            async with ff.Worker([some], client, lanes=[lane], drain=2.0).running():
                for depth, one in zip(depths, executions, strict=True):
                    assert isinstance(one, ff.AsyncExecution)
                    if depth:
                        with pytest.raises(ff.NotCompleted) as raised:
                            await one.result(20)
                        assert raised.value.category == "refused"
                    else:
                        assert await one.result(20) == 1

    run(test())
    assert caplog.text.count("its ending was refused; the attempt fails") == 2


def test_prefetch_is_bounded_and_handed_back_at_once(server: Server) -> None:
    started: list[str] = []
    go = asyncio.Event()

    @ff.task("ahead", retries=0)
    async def ahead(ctx: ff.Context) -> str:
        started.append(ctx.execution_id)
        await go.wait()
        return "done"

    async def leased(executions: list[Any], many: int) -> list[str] | None:
        active = [one.id for one in executions if (await one.get()).public_state == "active"]
        return active if len(active) == many else None

    async def test() -> None:
        async with server.async_client() as client:
            lane = f"lane-{uuid4().hex[:12]}"
            executions = await client.submit_all([ff.submission(ahead, lane=lane) for _ in range(12)])
            worker = ff.Worker([ahead], client, lanes=[lane], concurrency=2, prefetch=3, drain=20.0)
            async with worker.running():
                await until(partial(leased, executions, 5))
                assert len(started) == 2
                worker.stop()
                # Those that have not begun are given back before those in hand have ended.
                await until(partial(leased, executions, 2))
                go.set()
            states = Counter([(await client.execution(one.id).get()).public_state for one in executions])  # type: ignore[union-attr]
            assert states == {"completed": 2, "waiting": 10}
            async with ff.Worker([ahead], client, lanes=[lane], drain=1.0).running():
                for one in executions:
                    assert isinstance(one, ff.AsyncExecution)
                    assert await one.result(20) == "done"
            assert Counter(started) == {one.id: 1 for one in executions}  # type: ignore[union-attr]

    run(test())


def test_tasks_that_are_on_their_way_to_a_worker_that_stops_are_handed_back(server: Server) -> None:
    count = counting("on-its-way", Counter())
    stopped = threading.Event()

    def hold(name: str, body: dict[str, Any]) -> None:
        if name == "exchange" and not body["claim"].get("retry"):
            stopped.wait(20)

    async def test() -> None:
        with proxy(server.url) as its:
            its.hold = hold
            async with server.async_client() as client:
                try:
                    async with behind(its, count, claim_wait=20.0) as (worker, lane):
                        execution = await client.submit(count, lane=lane)
                        await until_state(execution, "active")
                        began = time.monotonic()
                        worker.stop()
                        # Its lease would last for half a minute.
                        await until_state(execution, "waiting")
                    assert time.monotonic() - began < 10
                finally:
                    stopped.set()
                async with ff.Worker([count], client, lanes=[lane]).running():
                    assert await execution.result(10) == 1
                view = await execution.get()
                assert (view.attempt, view.reclaim_count) == (0, 0)

    run(test())


def test_a_worker_stops_although_its_server_is_away(server: Server) -> None:
    count = counting("away", Counter())

    async def test() -> None:
        with proxy(server.url) as its:
            async with behind(its, count, claim_wait=20.0) as (worker, _):

                async def claims() -> bool | None:
                    return True if its.calls["exchange"] else None

                await until(claims)
                its.fate = lambda name, _: "lose" if name == "exchange" else None
                began = time.monotonic()
                worker.stop()
        assert time.monotonic() - began < 10

    run(test())


@pytest.mark.parametrize(("many", "size", "result"), [(20, 1_000_000, "ok"), (5, 10, "\ud800")])
def test_endings_that_cannot_travel_together_are_handed_in_one_by_one(
    many: int, size: int, result: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Some are too large together; of others one cannot be written at all, which only its own execution notices."""
    ready = asyncio.Event()

    @ff.task("large", retries=0)
    async def large(ctx: ff.Context) -> str:
        await ready.wait()
        return "x" * size

    @ff.task("last", retries=0)
    async def last(ctx: ff.Context) -> str:
        await ready.wait()
        return result

    async def test() -> None:
        async with server.async_client() as client:
            lane = f"lane-{uuid4().hex[:12]}"
            executions = [await client.submit(large, lane=lane) for _ in range(many)]
            odd = await client.submit(last, lane=lane)
            async with ff.Worker([large, last], client, lanes=[lane], concurrency=many + 1).running() as worker:

                async def all_started() -> bool | None:
                    return True if len(worker._runs) == many + 1 else None

                await until(all_started)
                ready.set()
                for one in executions:
                    assert len(await one.result(30)) == size
                if result == "ok":
                    assert await odd.result(20) == "ok"
                else:
                    with pytest.raises(ff.NotCompleted) as raised:
                        await odd.result(20)
                    assert raised.value.category == "invalid_result"

    run(test())
    assert "its endings are handed in one by one" in caplog.text
