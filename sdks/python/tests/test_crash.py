"""A worker killed with SIGKILL at each boundary of a program: every step's effect happens once where `once` says so."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

import flowfabric as ff
from flowfabric import wire
from flowfabric.testing import Server

from .support import store, until

PROGRAM = Path(__file__).with_name("crashing.py")
RUNS = 25
#: Workers that start at the same time.
AT_ONCE = 5
EXPECTED = ["fetch-0 done", "fetch-1 done", "fetch-2 done", "plan done", "pay done", "yes", "mail done", "ship done"]


def worker(server: Server, folder: Path, lanes: list[str], kill_at: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FF_SERVER": server.url, "FOLDER": str(folder), "KILL_AT": str(kill_at)}
    return subprocess.Popen([sys.executable, PROGRAM, *lanes], env=environment, stderr=subprocess.DEVNULL)


async def killed(server: Server, folder: Path, lane: str, kill_at: int, turn: asyncio.Semaphore) -> int:
    """A worker's whole life: it takes the task of its lane, and ends at its boundary."""
    async with turn:
        process = worker(server, folder, [lane], kill_at)
        try:
            return await asyncio.to_thread(process.wait, 60)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_every_effect_happens_once_where_once_says_so(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        with store(kind, tmp_path) as url, Server(url, options=["--log-level", "error"]) as server:
            async with server.async_client() as client:
                lanes = [f"lane-{uuid4().hex[:12]}" for _ in range(RUNS)]
                executions = [await client.submit("drill", lane=lane) for lane in lanes]
                for execution in executions:
                    await execution.signal("decision", "yes")
                turn = asyncio.Semaphore(AT_ONCE)
                ends = await asyncio.gather(
                    *(killed(server, tmp_path, lane, number, turn) for number, lane in enumerate(lanes, 1))
                )
                assert set(ends) == {-9}
                survivor = worker(server, tmp_path, lanes, 0)
                try:
                    for execution in executions:
                        await until(partial(settle, client, execution, tmp_path))
                finally:
                    survivor.terminate()
                    survivor.wait()
                for execution in executions:
                    assert await execution.result(5) == EXPECTED
                check_effects((tmp_path / "effects").read_text().splitlines(), [one.id for one in executions])

    asyncio.run(asyncio.wait_for(test(), 240))


async def settle(client: ff.AsyncClient, execution: ff.AsyncExecution[list[str]], folder: Path) -> bool | None:
    """Answers what an execution or its child is in doubt about, as a person does who looks at what happened; says when
    the execution has ended."""
    upstreams = await client.call(ff.wire.list_upstreams, execution_id=execution.id)
    for one in [execution, *(client.execution(child.execution_id) for child in upstreams.items)]:
        if (await one.get()).public_state != "suspended":
            continue
        begun = {step.name: step.state async for step in one.steps()}
        for name in ("pay", "ship", "mail"):
            if begun.get(name) == "begun":
                happened = f"{execution.id} {name}" in (folder / "effects").read_text().splitlines()
                answer = {"answer": "happened", "result": f"{name} done"} if happened else {"answer": "did_not_happen"}
                await client.call(wire.decide_step, execution_id=one.id, step={"name": name}, **answer)
    return True if (await execution.get()).public_state in {"completed", "failed", "cancelled"} else None


def check_effects(effects: list[str], executions: list[str]) -> None:
    counts = Counter(effects)
    for execution in executions:
        for name in ("pay", "ship", "mail"):
            assert counts[f"{execution} {name}"] == 1, f"{execution} {name}"
        for name in ("fetch-0", "fetch-1", "fetch-2", "plan"):
            # A body that ended just before its worker died, and before its entry was stored, runs again.
            assert counts[f"{execution} {name}"] in {1, 2}, f"{execution} {name}"
    # One worker dies at one boundary: at most the steps that were under way then ran twice.
    twice = sum(count - 1 for count in counts.values())
    assert twice <= RUNS
