"""What has no method of its own: operations by their generated types, and what a submission says about its keys."""

from __future__ import annotations

import asyncio
import hmac
from hashlib import sha256
from uuid import uuid4

import httpx
import pytest

import flowfabric as ff
from flowfabric import wire
from flowfabric.testing import Server

from .support import bench, run, until, until_state


def unique(name: str) -> str:
    return f"{name}-{uuid4().hex[:12]}"


def test_a_bulk_job_replays_what_failed_and_says_how_many(server: Server) -> None:
    mended = False

    @ff.task(unique("fragile"), retries=0)
    async def fragile(ctx: ff.Context) -> str:
        if not mended:
            raise ff.TaskError("not yet")
        return "whole"

    async def test() -> None:
        nonlocal mended
        async with bench(server, fragile) as its:
            executions = [await its.submit(fragile) for _ in range(5)]
            for one in executions:
                assert (await one.wait(20)).public_state == "failed"
            mended = True
            failed = {"kind": [fragile.kind], "state": ["failed"]}
            looked = await its.client.bulk("replay", failed, dry_run=True)
            assert looked.progress.done == 5
            assert (await its.client.bulk("replay", failed)).progress.done == 5
            assert [await one.result(20) for one in executions] == ["whole"] * 5
            assert looked.bulk_id in [one.bulk_id async for one in its.client.items(wire.list_bulk)]

    run(test())


def test_a_subscription_creates_an_execution_for_each_end(server: Server) -> None:
    heard: list[str] = []

    @ff.task(unique("works"), retries=0)
    async def works(ctx: ff.Context) -> None: ...

    @ff.task("hears", retries=0)
    async def hears(ctx: ff.Context, message: dict[str, object]) -> None:
        heard.append(str(message["type"]))

    async def test() -> None:
        async with bench(server, works, hears) as its:
            name = unique("ends")
            target = {"execution": ff.submission(hears, lane=its.lane).args}
            filters = {"kinds": [works.kind]}
            await its.client.call(wire.create_subscription, name=name, target=target, filter=filters)
            await (await its.submit(works)).result(20)

            async def told() -> bool | None:
                return True if heard == ["completed"] else None

            await until(told)
            paused = await its.client.call(wire.pause_subscription, name=name, note="quiet")
            assert paused.state == "paused"
            assert name in [one.name async for one in its.client.items(wire.list_subscriptions)]
            await its.client.call(wire.delete_subscription, name=name)
            with pytest.raises(ff.NotFound):
                await its.client.call(wire.get_subscription, name=name)

    run(test())


def test_a_hook_makes_an_execution_of_a_signed_message(server: Server) -> None:
    @ff.task("opened", retries=0)
    async def opened(ctx: ff.Context, message: dict[str, object]) -> object:
        return message["number"]

    async def test() -> None:
        async with bench(server, opened) as its, httpx.AsyncClient(base_url=server.url) as outside:
            name, secret, body = unique("pulls"), "a secret that both sides know", b'{"number": 7}'
            target = {"execution": ff.submission(opened, lane=its.lane).args}
            made = await its.client.call(wire.create_hook, name=name, target=target, scheme="github", secret=secret)
            assert made.outcome == "created"
            signature = "sha256=" + hmac.new(secret.encode(), body, sha256).hexdigest()
            headers = {"x-hub-signature-256": signature, "x-github-delivery": "1", "content-type": "application/json"}
            answer = await outside.post(f"/v1/hooks/{name}", content=body, headers=headers)
            assert answer.is_success, answer.text
            [created] = [one async for one in its.client.list(lane=its.lane)]
            assert await its.client.execution(created.execution_id).result(20) == 7
            await its.client.call(wire.delete_hook, name=name)

    run(test())


def test_a_submission_says_what_it_shares(server: Server) -> None:
    most = running = 0

    @ff.task("exclusive", retries=0)
    async def exclusive(ctx: ff.Context) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    async def test() -> None:
        key = unique("tenant")
        async with bench(server, exclusive) as its:
            keys: ff.Options = {"concurrency": {key: 1}, "fair_key": key, "fair_weight": 2}
            for one in [await its.submit(exclusive, **keys) for _ in range(5)]:
                await one.result(20)
            assert most == 1
            later: ff.Options = {"singleton": key, "lane": "nobody-works-here"}
            first = await its.submit(exclusive, **later)
            assert (await its.submit(exclusive, **later)).id == first.id
            counted = await its.client.call(wire.get_counts)
            assert sum(one["value"] for one in counted.states.values()) >= 6, counted
            await first.cancel()

    run(test())


def test_a_call_to_a_provider_waits_for_its_turn_without_its_task(server: Server) -> None:
    @ff.task("asks", retries=0)
    async def asks(ctx: ff.Context, number: int) -> int:
        async def ask() -> ff.Spent[int]:
            return ff.Spent(number, {"tokens": 3})

        return await ctx.acquire("slow-api", "ask", ask, tokens=10)

    async def test() -> None:
        with Server() as clocked:
            async with bench(clocked, asks) as its:
                await its.client.call(wire.create_provider, name="slow-api", max_requests=1, window_ms=60_000)
                assert await (await its.submit(asks, 1)).result(20) == 1
                second = await its.submit(asks, 2)
                await until_state(second, "delayed")
                assert "slow-api" in (await second.explain()).model_dump_json()
                # Past its turn, and not past the lease under which it then asks again.
                await asyncio.to_thread(clocked.advance, seconds=65)
                assert await second.result(20) == 2

    run(test())


def test_a_function_that_repeats_itself_is_unwound_when_the_policy_says_so(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def ask(number: int) -> str:
        asked.append(number)
        return "the same"

    @ff.task("asks-again", retries=0, policy={"no_progress": {"same": 3, "window": 10, "action": "ask"}})
    async def asks_again(ctx: ff.Context) -> None:
        for number in range(10):
            await ctx.step("ask", ask, number, key=str(number))

    async def test() -> None:
        async with bench(server, asks_again) as its:
            execution = await its.submit(asks_again)
            await until_state(execution, "suspended")
            # The step that is one too many was recorded, and the next one did not run.
            assert len(asked) == 3
            await execution.cancel()

    run(test())
    assert "the lease is lost" not in caplog.text
