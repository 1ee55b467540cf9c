"""What becomes of a worker and its tasks when something goes wrong around them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.testing import Server

from .support import Bench, bench, run, until, until_state

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


def test_a_worker_says_what_it_serves_and_why_an_attempt_failed(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    @ff.task("breaks", retries=0)
    async def breaks(ctx: ff.Context) -> None:
        raise KeyError("no such page")

    async def test() -> tuple[Bench, str]:
        async with bench(server, breaks) as its:
            execution = await its.submit(breaks)
            with pytest.raises(ff.NotCompleted):
                await execution.result(20)
            return its, execution.id

    with caplog.at_level(logging.INFO, "flowfabric"):
        its, failed = run(test())
    told = [one for one in caplog.records if one.name == "flowfabric" and its.worker.instance_id in one.getMessage()]
    serves = f"worker {its.worker.instance_id} serves breaks in the lanes {its.lane} at {server.url}"
    assert (told[0].levelno, told[0].getMessage()) == (logging.INFO, serves)
    (warning,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert warning.getMessage() == f"execution {failed}: attempt 0 of breaks failed: KeyError: 'no such page'"
    assert 'raise KeyError("no such page")' in caplog.text


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
            await its.client.call(ff.wire.revoke_lease, execution_id=execution.id)
            assert await execution.result(30) == "done elsewhere"
        assert told.is_set()

    run(test())
