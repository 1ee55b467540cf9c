"""Workers in trouble: they keep or lose their leases as they should, say so, and nothing with `once` happens twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.testing import Server

from .support import PATIENCE_S, Bench, bench, run, until, until_state

#: How long an event loop is blocked; a lease lasts a quarter of that.
BLOCK_SECONDS = float(os.environ.get("BLOCK_SECONDS", "8"))
#: How long a server is away, shorter than one lease and longer than another.
AWAY_SECONDS = float(os.environ.get("AWAY_SECONDS", "0"))

#: A client that gives up long before the server is back, as one of 30 seconds does when it is away for a minute.
IMPATIENT = ff.RetryPolicy(max_backoff=0.1, max_elapsed=0.3)
SERVER = ["--log-level", "error"]
HUNGRY = Path(__file__).with_name("hungry.py")


@asynccontextmanager
async def own(folder: Path, *tasks: ff.Task[None, str], lease_ttl: float) -> AsyncIterator[tuple[Server, Bench]]:
    """A server that a test may stop, and a worker whose client gives up early."""
    server = Server(f"sqlite://{folder}/flowfabric.db", options=SERVER)
    server.start()
    try:
        async with server.async_client() as watcher, ff.AsyncClient(server.url, retry=IMPATIENT) as client:
            worker = ff.Worker(tasks, client, lease_ttl=lease_ttl, drain=1.0, claim_wait=1.0)
            async with worker.running():
                yield server, Bench(watcher, "default", worker)
    finally:
        server.stop()


async def count_heartbeats(caplog: pytest.LogCaptureFixture, many: int) -> bool | None:
    failed = [one for one in caplog.messages if one.startswith("a heartbeat failed")]
    return True if len(failed) >= many else None


class Effects:
    """What happened, and a gate in the middle of it."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = 0

    def happen(self, name: str) -> str:
        self.done[name] += 1
        return name

    async def wait_in(self, name: str) -> str:
        """An effect, after which the world outside changes before the body has ended."""
        self.happen(name)
        self.reached.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return name


def payer(effects: Effects) -> ff.Task[None, str]:
    @ff.task("payer", retries=0)
    async def pay(ctx: ff.Context) -> str:
        await ctx.step("plan", effects.happen, "plan")
        await ctx.emit("note", "about to pay")
        return await ctx.step("pay", effects.wait_in, "pay", once=True)

    return pay


def test_a_blocked_event_loop_keeps_its_leases(server: Server) -> None:
    seconds = BLOCK_SECONDS

    @ff.task("blocks", retries=0)
    async def blocks(ctx: ff.Context) -> int:
        time.sleep(seconds)  # noqa: ASYNC251
        return ctx.attempt

    async def test() -> None:
        async with bench(server, blocks, lease_ttl=seconds / 4) as its:
            execution = await its.submit(blocks)
            assert await execution.result(seconds + 30) == 0
            assert (await execution.get()).reclaim_count == 0

    run(test())


def test_a_server_that_is_away_for_less_than_a_lease_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A record, frames and an ending wait for it, for much longer than the client is patient."""
    effects = Effects()
    pay = payer(effects)

    async def test() -> None:
        async with own(tmp_path, pay, lease_ttl=max(12.0, 2 * AWAY_SECONDS)) as (server, its):
            execution = await its.submit(pay)
            await effects.reached.wait()
            began = time.monotonic()
            await asyncio.to_thread(server.kill)
            effects.go_on.set()
            # A third of the lease is one heartbeat: the client's own patience is over by then.
            await until(lambda: count_heartbeats(caplog, 1), AWAY_SECONDS + PATIENCE_S)
            await asyncio.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
            await asyncio.to_thread(server.start)
            assert await execution.result(30) == "pay"
            view = await execution.get()
            assert (view.attempt, view.reclaim_count, view.retry_count) == (0, 0, 0)

    run(test(), AWAY_SECONDS + 60)
    assert effects.done == {"plan": 1, "pay": 1}
    assert effects.cancelled == 0


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_that_is_away_for_longer_than_a_lease_loses_it_and_asks(
    silent: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    effects = Effects()
    pay = payer(effects)

    async def cancelled() -> bool | None:
        return True if effects.cancelled else None

    async def test() -> None:
        async with own(tmp_path, pay, lease_ttl=1.0) as (server, its):
            execution = await its.submit(pay)
            await effects.reached.wait()
            process = server._process
            assert process is not None
            began = time.monotonic()
            await asyncio.to_thread(process.send_signal, signal.SIGSTOP) if silent else await asyncio.to_thread(
                server.kill
            )
            await until(cancelled)
            # It is given up when it runs out: not before, and not a heartbeat later.
            assert 0.3 < time.monotonic() - began < 5
            await asyncio.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
            process.send_signal(signal.SIGCONT) if silent else await asyncio.to_thread(server.start)
            # Nobody knows whether it was paid, so a person is asked instead of paying twice.
            await until_state(execution, "suspended")
            await execution.decide("pay", "happened", "paid before")
            assert await execution.result(30) == "paid before"
            view = await execution.get()
            assert (view.reclaim_count, view.retry_count) == (1, 0)

    run(test(), AWAY_SECONDS + 60)
    assert effects.done == {"plan": 1, "pay": 1}
    assert "the lease is lost: expired" in caplog.text
    assert "a heartbeat failed" in caplog.text


def test_a_server_that_restarts_finds_its_workers_at_work(tmp_path: Path) -> None:
    done: Counter[str] = Counter()

    @ff.task("steady", retries=0)
    async def steady(ctx: ff.Context) -> str:
        for name in ("one", "two", "three"):
            await ctx.step(name, lambda: done.update([ctx.execution_id]), once="fail")
        return "done"

    async def test() -> None:
        async with own(tmp_path, steady, lease_ttl=10.0) as (server, its):
            executions = [await its.submit(steady) for _ in range(30)]
            for _ in range(2):
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
            for one in executions:
                assert await one.result(30) == "done"
                view = await one.get()
                assert (view.attempt, view.reclaim_count) == (0, 0)

    run(test())
    assert set(done.values()) == {3}


def test_a_worker_whose_token_is_revoked_loses_its_leases_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    effects = Effects()
    pay = payer(effects)

    async def test() -> None:
        secret = {"FF_API_TOKEN": "the-administrator-token"}
        with Server(f"sqlite://{tmp_path}/flowfabric.db", options=SERVER, environment=secret) as server:
            async with server.async_client(token="the-administrator-token") as admin:
                made = [await admin.call(ff.wire.create_token, name=name, role="worker") for name in ("one", "two")]
                first, second = (server.async_client(token=one.secret) for one in made)
                async with ff.Worker([pay], first, claim_wait=0.2, lease_ttl=1.0, drain=0).running():
                    execution = await admin.submit(pay)
                    await effects.reached.wait()
                    await admin.call(ff.wire.revoke_token, name="one")
                    async with ff.Worker([pay], second, lease_ttl=1.0, drain=0).running():
                        await until_state(execution, "suspended")
                        await execution.decide("pay", "did_not_happen")
                        effects.go_on.set()
                        assert await execution.result(20) == "pay"
                        left = await admin.submit(pay)
                        assert await left.result(20) == "pay"

    run(test())
    # The first worker was cancelled in its payment, and a person said that it did not happen; the rest is the second's.
    assert effects.cancelled == 1
    assert effects.done == {"plan": 2, "pay": 3}
    for said in (
        "a heartbeat failed: unauthenticated",
        "a claim failed: unauthenticated",
        "the lease is lost: expired",
    ):
        assert said in caplog.text


@contextmanager
def hungry_worker(server: Server, folder: Path, lane: str) -> Iterator[None]:
    environment = {**os.environ, "FF_SERVER": server.url, "FOLDER": str(folder), "LANE": lane}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, HUNGRY], env=environment, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_worker_without_memory_fails_what_needs_it_and_keeps_the_rest(server: Server, tmp_path: Path) -> None:
    async def test() -> None:
        lane = f"lane-{tmp_path.name}"
        with hungry_worker(server, tmp_path, lane):
            async with server.async_client() as client:
                steady = await client.submit("steady", lane=lane)
                await until_state(steady, "active")
                hungry = [await client.submit("hungry", lane=lane) for _ in range(6)]
                for one in hungry:
                    with pytest.raises(ff.NotCompleted) as raised:
                        await one.result(40)
                    assert "MemoryError" in str(raised.value)
                (tmp_path / "go").touch()
                assert await steady.result(20) == "paid"
                view = await steady.get()
                assert (view.attempt, view.reclaim_count) == (0, 0)
        assert (tmp_path / "paid").read_text() == "paid"
        assert b"MemoryError" in (tmp_path / "log").read_bytes()

    run(test())
