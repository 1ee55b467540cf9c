"""Sequences of the engine's contract that a worker takes part in, on each store: a sleep across a crash, an exchange
whose answer is lost, a link without an account, and two services in one lane. The others are in test_journal and
test_governance."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flowfabric as ff
from flowfabric import wire
from flowfabric.testing import Server

from .proxy import proxy
from .support import bench, run, store, until, until_state

#: Longer than what is slept under the lease.
NAP_S = 7
#: Endings and claims of one exchange.
MANY = 20
ADMIN = "the-administrator-token"


def test_a_sleep_ends_at_its_first_instant_although_its_worker_crashed_meanwhile(server: Server) -> None:
    woken = asyncio.Event()

    @ff.task("naps", retries=0)
    async def naps(ctx: ff.Context) -> str:
        async def branch() -> None:
            await ctx.wait_signal("go")
            if not woken.is_set():
                woken.set()
                await ctx.step("dies here", asyncio.Event().wait)

        await asyncio.gather(ctx.sleep("nap", NAP_S), branch())
        return "rested"

    async def nap_ends_at(execution: ff.AsyncExecution[str]) -> int | None:
        async for step in execution.steps():
            if step.name == "nap":
                return step.next_at
        return None

    async def test() -> None:
        async with bench(server, naps, lease_ttl=1.0) as its:
            execution = await its.submit(naps)
            first = await until(lambda: nap_ends_at(execution))
            await execution.signal("go")
            await asyncio.wait_for(woken.wait(), 10)
            await its.client.call(wire.revoke_lease, execution_id=execution.id)
            assert await execution.result(30) == "rested"
            view = await execution.get()
            assert view.reclaim_count == 1
            assert view.completed_at is not None
            assert first <= view.completed_at < first + NAP_S * 1000

    run(test())


def test_twenty_endings_and_claims_whose_answer_is_lost_are_said_again_and_happen_once(server: Server) -> None:
    done: Counter[str] = Counter()
    begun, together = [0], asyncio.Event()
    lost: list[dict[str, Any]] = []

    @ff.task("twenty", retries=0)
    async def twenty(ctx: ff.Context) -> int:
        done[ctx.execution_id] += 1
        begun[0] += 1
        if begun[0] == MANY:
            together.set()
        await together.wait()
        return done[ctx.execution_id]

    def lose(name: str, body: dict[str, Any]) -> str | None:
        if name != "exchange" or len(body.get("end", [])) != MANY or lost:
            return None
        lost.append(body)
        return "lose"

    async def test() -> None:
        with proxy(server.url) as its:
            its.fate = lose
            async with server.async_client() as direct, ff.AsyncClient(its.url) as client:
                lane = f"lane-twenty-{id(its)}"
                executions = await direct.submit_all([ff.submission(twenty, lane=lane) for _ in range(2 * MANY)])
                async with ff.Worker([twenty], client, lanes=[lane], concurrency=MANY, drain=2.0).running():
                    for one in executions:
                        assert isinstance(one, ff.AsyncExecution)
                        assert await one.result(30) == 1
                        view = await one.get()
                        assert (view.attempt, view.reclaim_count) == (0, 0)
            assert lost[0]["claim"]["max_tasks"] == MANY
            repeats = [body for name, body in its.bodies if name == "exchange" and body.get("end") == lost[0]["end"]]
            assert [body["claim"].get("retry") for body in repeats] == [None, True]
            assert repeats[0]["claim"]["lease_ids"] == repeats[1]["claim"]["lease_ids"]

    run(test())
    assert set(done.values()) == {1}
    assert len(done) == 2 * MANY


@pytest.fixture(params=["sqlite", "valkey"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that asks for tokens."""
    environment, options = {"FF_API_TOKEN": ADMIN}, ["--log-level", "error"]
    with store(request.param, tmp_path) as url, Server(url, options=options, environment=environment) as server:
        yield server


def test_a_waitpoint_token_decides_without_an_api_token_and_does_nothing_else(guarded: Server) -> None:
    @ff.task("asks", retries=0)
    async def asks(ctx: ff.Context) -> str:
        return str(await ctx.wait_signal("decision", str))

    async def test() -> None:
        async with (
            guarded.async_client(token=ADMIN) as admin,
            guarded.async_client() as anybody,
            ff.Worker([asks], admin, drain=1.0).running(),
        ):
            execution = await admin.submit(asks)
            await until_state(execution, "suspended")
            (asked,) = (await admin.call(wire.list_pending_waitpoints, execution_id=execution.id)).items
            where = {"execution_id": execution.id, "waitpoint_id": asked.waitpoint_id}
            token = (await admin.call(wire.get_waitpoint_token, **where)).token
            theirs = anybody.execution(execution.id)
            refusals = (
                theirs.get(),
                theirs.cancel(),
                theirs.signal("decision", "no"),
                anybody.call(wire.list_executions),
            )
            for refused in refusals:
                with pytest.raises(ff.Unauthenticated):
                    await refused
            await theirs.signal("decision", "yes", waitpoint_id=asked.waitpoint_id, token=token)
            assert await execution.result(20) == "yes"

    run(test())


def test_a_waitpoint_token_does_not_approve_for_two_people(guarded: Server) -> None:
    two = {"count": {"n": 2, "distinct": "sources", "matchers": [{"name": "approve"}]}}

    async def test() -> None:
        async with guarded.async_client(token=ADMIN) as admin, guarded.async_client() as anybody:
            execution = await admin.submit("refund", lane="refunds")
            (task,) = (await admin.call(wire.claim, instance_id="by-hand", lanes=["refunds"], wait_ms=5_000)).tasks
            fence = task.fence.model_dump()
            asked = await admin.call(
                wire.suspend, execution_id=execution.id, fence=fence, reason="approval", condition=two
            )
            link = {"waitpoint_id": asked.waitpoint_id, "token": asked.token, "source_type": "person"}
            theirs = anybody.execution(execution.id)
            votes = [await theirs.approve(source_identity=name, **link) for name in ("ann", "bob")]
            assert [vote.effect for vote in votes] == ["appended_to_waitpoint", "no_op"]
            assert (await execution.get()).public_state == "suspended"
            assert (await execution.approve()).outcome == "triggered_resume"

    run(test())


def test_two_services_in_one_lane_are_not_handed_each_others_work(server: Server) -> None:
    seen: list[str] = []

    def service(name: str) -> ff.Task[str, str]:
        @ff.task(name, retries=0)
        async def serve(ctx: ff.Context, input: str) -> str:
            seen.append(f"{name} {ctx.task.kind}")
            return name

        return serve

    async def test() -> None:
        first, second = service("first"), service("second")
        async with bench(server, first) as its:
            waiting = await its.submit(second, "x")
            done = [await its.submit(first, "x") for _ in range(20)]
            for execution in done:
                assert await execution.result(20) == "first"
            view = await waiting.get()
            assert (view.public_state, view.attempt) == ("waiting", None)
            async with ff.Worker([second], its.client, lanes=[its.lane], drain=1.0).running():
                assert await waiting.result(20) == "second"
        assert Counter(seen) == {"first first": 20, "second second": 1}

    run(test())
