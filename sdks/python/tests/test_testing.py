"""The kit for users' tests: the real server, whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import flowfabric as ff
from flowfabric.testing import Server

from .support import bench, run


def test_an_hour_passes_when_the_test_says_so() -> None:
    ran: Counter[str] = Counter()

    @ff.task("nap", retries=0)
    async def nap(ctx: ff.Context) -> list[str]:
        async def note(name: str) -> str:
            ran[name] += 1
            return name

        before = await ctx.step("before", note, "before")
        began = await ctx.now("began")
        await ctx.sleep("nap", hours=1)
        try:
            await ctx.wait_signal("never", timeout=24 * 3600)
        except ff.SignalTimeout:
            after = await ctx.step("after", note, "after")
        return [before, after, began.isoformat()]

    async def test() -> None:
        with Server() as server:
            async with bench(server, nap) as its:
                execution = await its.submit(nap)
                await asyncio.to_thread(server.until_idle)
                assert (await execution.get()).public_state == "delayed"
                await asyncio.to_thread(server.advance, minutes=59)
                assert (await execution.get()).public_state == "delayed"
                await asyncio.to_thread(server.advance, minutes=1)
                await asyncio.to_thread(server.until_idle)
                assert (await execution.get()).public_state == "suspended"
                await asyncio.to_thread(server.advance, days=1)
                assert (await execution.result(20))[:2] == ["before", "after"]
        assert ran == {"before": 1, "after": 1}

    run(test())


def test_a_worker_that_crashed_in_a_sleep_wakes_at_the_first_instant() -> None:
    @ff.task("nap", retries=0)
    async def nap(ctx: ff.Context) -> str:
        await ctx.sleep("nap", hours=1)
        return "rested"

    async def test() -> None:
        with Server() as server:
            async with bench(server, nap) as its:
                execution = await its.submit(nap)
                await asyncio.to_thread(server.until_idle)
            await asyncio.to_thread(server.advance, minutes=30)
            async with server.async_client() as client, ff.Worker([nap], client, lanes=[its.lane]).running():
                view = await execution_of(client, execution.id).get()
                assert view.public_state == "delayed"
                await asyncio.to_thread(server.advance, minutes=30)
                assert await execution_of(client, execution.id).result(20) == "rested"

    run(test())


def execution_of(client: ff.AsyncClient, execution_id: str) -> ff.AsyncExecution[str]:
    return client.execution(execution_id, str)


def test_a_server_on_real_time_has_no_clock_to_move(server: Server) -> None:
    with pytest.raises(ff.NotFound) as raised:
        server.advance(hours=1)
    assert raised.value.code == "no_test_clock"
