"""Schedules, trees of budgets, and spending in two steps."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest

import flowfabric as ff
from flowfabric import wire
from flowfabric.testing import Server

from .proxy import proxy
from .support import bench, run, until, until_state

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def unique(name: str) -> str:
    return f"{name}-{uuid4().hex[:12]}"


def milliseconds_of(at: datetime) -> int:
    return round(at.timestamp() * 1000)


@ff.task("report", retries=0)
async def report(ctx: ff.Context, of: str) -> str:
    return f"a report of {of}"


def test_a_schedule_from_its_creation_to_its_end(server: Server) -> None:
    name = unique("nightly")

    async def test() -> None:
        async with bench(server, report) as its:
            client = its.client
            what = ff.submission(report, "the day", lane=its.lane)
            nightly = ff.schedule(
                what, cron="0 2 * * *", zone="Europe/Berlin", starts_at=START, jitter=10, overlap="skip", catch_up=5
            )
            created = await client.call(wire.create_schedule, name=name, **nightly)
            assert created.outcome == "created"
            seen = await client.call(wire.get_schedule, name=name)
            assert (seen.overlap, seen.jitter_ms, seen.catch_up) == ("skip", 10_000, {"all": {"max": 5}})
            # Two in the morning in Berlin is one o'clock in the winter of UTC.
            assert seen.next[0] == milliseconds_of(START + timedelta(hours=1))
            assert name in [one.name async for one in client.items(wire.list_schedules)]
            paused = await client.call(wire.pause_schedule, name=name, note="the warehouse is moved")
            assert paused.state == "paused"
            assert (await client.call(wire.resume_schedule, name=name)).state == "active"
            triggered = await client.call(wire.trigger_schedule, name=name)
            assert triggered.execution_id
            assert await client.execution(triggered.execution_id, str).result(20) == "a report of the day"
            first, last = milliseconds_of(START), milliseconds_of(START + timedelta(days=2))
            backfill = await client.call(wire.backfill_schedule, name=name, from_=first, to=last)
            assert backfill.instants == 2

            async def both_ran() -> bool | None:
                runs = [one async for one in client.list(schedule=name, state="completed")]
                return True if len(runs) == 3 else None

            await until(both_ran)
            hourly = ff.schedule(what, every=timedelta(hours=1))
            with pytest.raises(ff.Conflict) as stale:
                await client.call(wire.update_schedule, name=name, expected_revision=0, **hourly)
            assert stale.value.code == "stale_revision"
            revision = seen.revision + 2
            updated = await client.call(wire.update_schedule, name=name, expected_revision=revision, **hourly)
            assert updated.spec.every_ms == 3_600_000
            assert (await client.call(wire.delete_schedule, name=name)).schedule_id == created.schedule_id
            with pytest.raises(ff.NotFound):
                await client.call(wire.get_schedule, name=name)

    run(test())


def test_a_schedule_of_a_flow_and_a_spec_that_cannot_be_read(server: Server) -> None:
    with server.client() as client:
        weekly = unique("weekly")
        flow = ff.Flow("weekly").node("first", report, "a").node("second", report, "b").edge("first", "second")
        at = [START, START + timedelta(days=7)]
        client.call(wire.create_schedule, name=weekly, **ff.schedule(flow, at=at))
        assert client.call(wire.get_schedule, name=weekly).template.model_dump()["flow"]["kind"] == "weekly"
        with pytest.raises(ff.Invalid) as refused:
            client.call(wire.create_schedule, name=unique("bad"), **ff.schedule(flow, cron="every day"))
        assert refused.value.details["field"] == "spec.cron"
        client.call(wire.delete_schedule, name=weekly)


def test_a_tree_of_budgets_shows_what_is_used_and_left(server: Server) -> None:
    root = unique("acme")

    @ff.task("charges", retries=0, budgets=[f"{root}/ada"])
    async def charges(ctx: ff.Context, tokens: int) -> None:
        await ctx.usage({"tokens": tokens}, key="all")

    async def test() -> None:
        async with bench(server, charges) as its:
            await its.client.create_budget(root, hard={"tokens": 100})
            await its.client.create_budget(f"{root}/ada", hard={"tokens": 80})
            await (await its.submit(charges, 30)).result(20)
            tree = {one.name: one.standing["tokens"] async for one in its.client.items(wire.get_budget_tree, name=root)}
            assert {name: (one.used, one.left) for name, one in tree.items()} == {
                root: (30, 70),
                f"{root}/ada": (30, 50),
            }
            standing = (await its.client.budget(f"{root}/ada")).standing["tokens"]
            assert (standing.used, standing.reserved, standing.left) == (30, 0, 50)

    run(test())


def test_what_is_spent_is_held_first_and_settled_at_what_it_cost(server: Server) -> None:
    name = unique("team")
    held: list[tuple[int, int]] = []

    @ff.task("spender", retries=0, budgets=[name])
    async def spender(ctx: ff.Context, how: str) -> str:
        async def work(prompt: str) -> ff.Spent[str]:
            standing = (await ctx.client.budget(name)).standing["tokens"]
            held.append((standing.used, standing.reserved))
            if how == "fails":
                raise ValueError("the model answered nonsense")
            if how == "nothing":
                raise ff.NotDone("the model was not reached")
            return ff.Spent(f"an answer to {prompt}", {"tokens": 30})

        answer: str = await ctx.spend("ask", {"tokens": 60}, work, "a question")
        return answer

    @ff.task("plain-spender", retries=0, budgets=[name])
    def plain(ctx: ff.SyncContext) -> int:
        return int(ctx.spend("ask", {"tokens": 10}, lambda: ff.Spent(7, {"tokens": 5})))

    async def test() -> None:
        async with bench(server, spender, plain) as its:
            await its.client.create_budget(name, hard={"tokens": 100})

            async def used() -> tuple[int, int]:
                standing = (await its.client.budget(name)).standing["tokens"]
                return standing.used, standing.reserved

            assert await (await its.submit(spender, "works")).result(20) == "an answer to a question"
            assert await used() == (30, 0)
            assert await (await its.submit(plain)).result(20) == 7
            assert await used() == (35, 0)
            # Nothing was spent for certain: all of it goes back.
            with pytest.raises(ff.NotCompleted) as nothing:
                await (await its.submit(spender, "nothing")).result(20)
            assert nothing.value.category == "not_done"
            assert await used() == (35, 0)
            # Nobody knows what a call cost that failed: the estimate counts.
            with pytest.raises(ff.NotCompleted):
                await (await its.submit(spender, "fails")).result(20)
            assert await used() == (95, 0)
            # There is no room for another one: it is not begun, and the execution says why.
            with pytest.raises(ff.NotCompleted) as refused:
                await (await its.submit(spender, "works")).result(20)
            assert refused.value.category == "budget_refused"
            assert refused.value.reason == f"ask: budget {name} has 5 tokens left of 100, 60 were asked for"
            assert await used() == (95, 0)

    run(test())
    assert held == [(0, 60), (35, 60), (35, 60)]


def test_a_refusal_can_be_caught_and_says_what_is_left(server: Server) -> None:
    name = unique("team")
    caught: list[tuple[str, str | None, int | None, int | None]] = []

    @ff.task("careful", retries=0, budgets=[name])
    async def careful(ctx: ff.Context) -> int:
        for tokens in (500, 50):
            try:
                return int(await ctx.spend("ask", {"tokens": tokens}, lambda: ff.Spent(1, {"tokens": 20})))
            except ff.BudgetRefused as refused:
                caught.append((refused.budget, refused.dimension, refused.refusal.left, refused.refusal.limit))
        return 0

    async def test() -> None:
        async with bench(server, careful) as its:
            await its.client.create_budget(name, hard={"tokens": 100})
            assert await (await its.submit(careful)).result(20) == 1

    run(test())
    assert caught == [(name, "tokens", 100, 100)]


def test_a_budget_that_asks_a_person_lets_the_task_wait_and_go_on(server: Server) -> None:
    name = unique("team")
    began: list[str] = []

    @ff.task("asking", retries=0, budgets=[name])
    async def asking(ctx: ff.Context) -> str:
        await ctx.step("plan", lambda: began.append("plan"))

        async def work() -> ff.Spent[str]:
            began.append("work")
            return ff.Spent("done", {"tokens": 120})

        return str(await ctx.step("ask", lambda: ctx.spend("ask", {"tokens": 150}, work)))

    async def test() -> None:
        async with bench(server, asking) as its:
            await its.client.create_budget(name, hard={"tokens": 100}, on_hard="ask")
            execution = await its.submit(asking)
            view = await until_state(execution, "suspended")
            assert view.retry_count == 0
            await its.client.call(ff.wire.decide_budget, name=name, answer="grant", amounts={"tokens": 100})
            assert await execution.result(20) == "done"
            assert (await its.client.budget(name)).usage == {"tokens": 120}

    run(test())
    assert began == ["plan", "work"]


def test_many_that_spend_at_once_never_pass_the_limit_together(server: Server) -> None:
    name = unique("team")
    gate = asyncio.Event()
    won: list[str] = []

    @ff.task("racer", retries=0, budgets=[name])
    async def racer(ctx: ff.Context) -> bool:
        async def work() -> ff.Spent[None]:
            await gate.wait()
            won.append(ctx.execution_id)
            return ff.Spent(None, {"tokens": 10})

        try:
            await ctx.spend("race", {"tokens": 10}, work)
        except ff.BudgetRefused:
            return False
        return True

    async def test() -> None:
        async with bench(server, racer, concurrency=64) as its:
            await its.client.create_budget(name, hard={"tokens": 100})
            for one in await asyncio.gather(*(its.submit(racer) for _ in range(64))):
                assert one.id

            async def stands(used: int, reserved: int) -> bool | None:
                standing = (await its.client.budget(name)).standing["tokens"]
                assert standing.used + standing.reserved <= 100
                return True if (standing.used, standing.reserved) == (used, reserved) else None

            await until(lambda: stands(0, 100))
            gate.set()
            await until(lambda: stands(100, 0))

    run(test())
    assert len(set(won)) == len(won) == 10


@pytest.mark.parametrize(("asked", "said"), [(1e300, 86_400_000), (-1, 0), (math.nan, None)])
def test_a_provider_is_asked_to_be_left_alone_for_a_wait_that_the_server_takes(
    asked: float, said: int | None, server: Server
) -> None:
    name = unique("api")

    async def ask() -> ff.Spent[None]:
        raise ff.Throttled("too many requests", retry_after=asked)

    @ff.task("impatient", retries=0)
    async def impatient(ctx: ff.Context) -> None:
        await ctx.acquire(name, "ask", ask)

    async def test() -> None:
        with proxy(server.url) as its:
            its.fate = lambda called, _: 404 if called == "throttle" else None
            async with server.async_client() as client, ff.AsyncClient(its.url) as through:
                await client.call(wire.create_provider, name=name, max_requests=10)
                execution = await client.submit(impatient, lane=name)
                async with ff.Worker([impatient], through, lanes=[name]).running():
                    assert (await execution.wait(20)).public_state == "failed"
            assert [body.get("retry_after_ms") for called, body in its.bodies if called == "throttle"] == [said]

    run(test())


def test_a_call_to_a_provider_counts_what_it_really_cost_and_heeds_a_429(server: Server) -> None:
    name = unique("api")
    calls: list[float] = []

    async def ask(prompt: str) -> ff.Spent[str]:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise ff.Throttled("too many requests", retry_after=0.3)
        return ff.Spent(prompt.upper(), {"tokens": 120})

    @ff.task("asker", retries=0)
    async def asker(ctx: ff.Context) -> str:
        answer = await ctx.acquire(name, "ask", ask, "tides", tokens=1_000)
        await ctx.wait_signal("again")
        return answer

    async def test() -> None:
        async with bench(server, asker) as its:
            await its.client.call(wire.create_provider, name=name, max_tokens=4_000, max_concurrent=2)
            execution = await its.submit(asker)
            await until_state(execution, "suspended")
            seen = await its.client.call(wire.get_provider, name=name)
            assert (seen.tokens_in_window, seen.in_use) == (120, 0)
            # The limit was halved by the 429.
            assert seen.effective.tokens < 4_000
            await execution.signal("again")
            assert await execution.result(20) == "TIDES"
        # The provider was left alone for as long as it said, and the second run of the function asked nobody.
        assert len(calls) == 2
        assert calls[1] - calls[0] >= 0.3

    run(test())


def test_a_failed_call_to_a_provider_counts_as_expected(server: Server) -> None:
    name = unique("api")

    async def ask() -> ff.Spent[str]:
        raise ff.TaskError("the model has no answer", category="model")

    @ff.task("asker", retries=0)
    async def asker(ctx: ff.Context) -> str:
        return await ctx.acquire(name, "ask", ask, tokens=1_000)

    async def test() -> None:
        async with bench(server, asker) as its:
            await its.client.call(wire.create_provider, name=name, max_tokens=4_000)
            execution = await its.submit(asker)
            failure = (await execution.wait(20)).last_failure
            assert failure
            assert (failure.category, failure.reason) == ("model", "the model has no answer")
            assert (await its.client.call(wire.get_provider, name=name)).tokens_in_window == 1_000

    run(test())
