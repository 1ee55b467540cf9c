"""What becomes of a worker and its tasks when something goes wrong around them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.testing import Server

from .support import bench, run, until, until_state

PROGRAM = Path(__file__).with_name("program.py")


@contextmanager
def worker_process(server: Server, lane: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, with the tasks of `program.py`."""
    said = {**os.environ, "FF_SERVER": server.url, "LANE": lane, **environment}
    process = subprocess.Popen([sys.executable, PROGRAM], env=said, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_blocked_event_loop_keeps_its_leases(server: Server) -> None:
    @ff.task("blocks", retries=0)
    async def blocks(ctx: ff.Context) -> int:
        time.sleep(3.5)  # noqa: ASYNC251
        return ctx.attempt

    async def test() -> None:
        async with bench(server, blocks, lease_ttl=1.0) as its:
            execution = await its.submit(blocks)
            assert await execution.result(30) == 0
            assert (await execution.get()).reclaim_count == 0

    run(test())


def test_sigterm_lets_tasks_finish_and_hands_back_those_that_take_too_long(server: Server, tmp_path: Path) -> None:
    async def test() -> None:
        lane = f"lane-{tmp_path.name}"
        async with server.async_client() as client:
            with worker_process(server, lane, FOLDER=str(tmp_path)) as process:
                short = await client.submit("short", str(tmp_path / "go"), lane=lane)
                long = await client.submit("long", lane=lane)
                await until_state(short, "active")
                await until_state(long, "active")
                begun = tmp_path / "begun"

                async def has_begun() -> bool | None:
                    return True if begun.exists() else None

                await until(has_begun)
                process.send_signal(signal.SIGTERM)
                (tmp_path / "go").touch()
                assert await short.result(20) == "finished"
                assert await asyncio.to_thread(process.wait, 20) == 0
            handed_back = await long.get()
            assert handed_back.public_state == "waiting"
            with worker_process(server, lane, FOLDER=str(tmp_path)):
                assert await long.result(20) == "continued"
            view = await long.get()
            assert (view.attempt, view.reclaim_count, view.retry_count) == (0, 0, 0)
            assert begun.read_text() == "begun"

    run(test())


def test_a_server_that_is_away_for_a_while_loses_nothing(tmp_path: Path) -> None:
    away = asyncio.Event()
    back = asyncio.Event()

    @ff.task("patient", retries=0)
    async def patient(ctx: ff.Context) -> list[int]:
        first = await ctx.step("first", lambda: 1)
        away.set()
        await back.wait()
        return [first, await ctx.step("second", lambda: 2)]

    async def test() -> None:
        server = Server(f"sqlite://{tmp_path}/flowfabric.db", options=["--log-level", "error"])
        server.start()
        try:
            async with bench(server, patient, lease_ttl=30.0) as its:
                execution = await its.submit(patient)
                await away.wait()
                await asyncio.to_thread(server.kill)
                back.set()
                await asyncio.to_thread(server.start)
                assert await execution.result(30) == [1, 2]
                view = await execution.get()
                assert (view.attempt, view.reclaim_count) == (0, 0)
        finally:
            server.stop()

    run(test())


@pytest.mark.parametrize("silent", [False, True])
def test_a_lease_that_ran_out_while_the_server_was_away_cancels_the_function(silent: bool, tmp_path: Path) -> None:
    seen: list[str] = []
    began, ended = asyncio.Event(), asyncio.Event()

    @ff.task("unlucky")
    async def unlucky(ctx: ff.Context) -> str:
        if ctx.task.claim_kind != "initial":
            return ctx.task.claim_kind
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            ended.set()
            raise
        return "never"

    async def test() -> None:
        server = Server(f"sqlite://{tmp_path}/flowfabric.db", options=["--log-level", "error"])
        server.start()
        try:
            async with bench(server, unlucky, lease_ttl=1.0) as its:
                execution = await its.submit(unlucky)
                await began.wait()
                if silent:
                    process = server._process
                    assert process is not None
                    process.send_signal(signal.SIGSTOP)
                    await asyncio.wait_for(ended.wait(), 20)
                    process.send_signal(signal.SIGCONT)
                else:
                    await asyncio.to_thread(server.kill)
                    await asyncio.wait_for(ended.wait(), 20)
                    await asyncio.to_thread(server.start)
                assert await execution.result(30) == "reclaim"
        finally:
            server.stop()
        assert seen == ["cancelled"]

    run(test())


async def nothing_from(client: ff.AsyncClient) -> None:
    await client.call(ff.wire.GET_DEPLOYMENT)


def test_a_revoked_token_stops_a_worker_from_taking_work(tmp_path: Path) -> None:
    @ff.task("secret", retries=0)
    async def secret(ctx: ff.Context) -> str:
        return "done"

    async def test() -> None:
        options = ["--log-level", "error"]
        store = f"sqlite://{tmp_path}/flowfabric.db"
        with Server(store, options=options, environment={"FF_API_TOKEN": "the-admin-token"}) as server:
            async with server.async_client(token="the-admin-token") as admin:
                made = [await admin.call(ff.wire.CREATE_TOKEN, name=name, role="worker") for name in ("one", "two")]
                with pytest.raises(ff.Unauthenticated):
                    await server.async_client(token="nonsense").call(ff.wire.GET_DEPLOYMENT)
                first, second = (server.async_client(token=one.secret) for one in made)
                revoked = ff.Worker([secret], first, claim_wait=0.2, lease_ttl=1.0, drain=0)
                async with revoked.running():
                    assert await (await admin.submit(secret)).result(20) == "done"
                    await admin.call(ff.wire.REVOKE_TOKEN, name="one")
                    with pytest.raises(ff.Unauthenticated):
                        await until(lambda: nothing_from(first))
                    left = await admin.submit(secret)
                    async with ff.Worker([secret], second, drain=0).running():
                        assert await left.result(20) == "done"

    run(test())


def test_an_instance_id_that_lives_is_refused(server: Server) -> None:
    @ff.task("any", retries=0)
    async def anything(ctx: ff.Context) -> None:
        return None

    async def test() -> None:
        name = f"one-{os.getpid()}"
        async with bench(server, anything, instance_id=name) as its:
            with pytest.raises(ff.Conflict) as raised:
                await ff.Worker([anything], its.client, instance_id=name).serve()
            assert raised.value.code == "duplicate_worker_instance"

    run(test())


def test_a_thread_whose_lease_is_lost_is_told_and_keeps_its_place(server: Server) -> None:
    told = threading.Event()

    @ff.task("stubborn")
    def stubborn(ctx: ff.SyncContext) -> str:
        if ctx.task.claim_kind != "initial":
            return "done elsewhere"
        while not ctx.cancelled:
            time.sleep(0.01)
        try:
            ctx.step("late", lambda: 1)
        except ff.Parked:
            told.set()
            raise
        return "never"

    async def test() -> None:
        async with bench(server, stubborn, lease_ttl=1.0, concurrency=1) as its:
            execution = await its.submit(stubborn)
            await until_state(execution, "active")
            await its.client.call(ff.wire.REVOKE_LEASE, execution_id=execution.id)
            assert await execution.result(30) == "done elsewhere"
        assert told.is_set()

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
