"""What several tests need: a lane of their own, and waiting for something to be so."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import flowfabric as ff
from flowfabric.testing import Server

T = TypeVar("T")

#: A test that waits longer than this has failed.
PATIENCE_S = 30.0


async def until(what: Callable[[], Awaitable[T | None]], patience: float = PATIENCE_S) -> T:
    """Asks until there is an answer."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if (answer := await what()) is not None:
            return answer
        await asyncio.sleep(0.01)
    raise TimeoutError("it did not become so")


async def until_state(execution: ff.AsyncExecution[Any], *states: str) -> ff.wire.ExecutionView:
    """Waits until an execution is shown in one of these states."""

    async def look() -> ff.wire.ExecutionView | None:
        view = await execution.get()
        return view if view.public_state in states else None

    return await until(look)


class Bench:
    """A client and a worker in a lane of their own."""

    def __init__(self, client: ff.AsyncClient, lane: str, worker: ff.Worker) -> None:
        self.client = client
        self.lane = lane
        self.worker = worker

    async def submit(self, what: Any, input: Any = None, **options: Any) -> ff.AsyncExecution[Any]:
        return await self.client.submit(what, input, **{"lane": self.lane, **options})


@asynccontextmanager
async def bench(server: Server, *tasks: Any, **options: Any) -> AsyncIterator[Bench]:
    """Works in the background while the block runs."""
    lane = f"lane-{uuid4().hex[:12]}"
    async with server.async_client() as client:
        worker = ff.Worker(tasks, client, **{"lanes": [lane], "drain": 2.0, "claim_wait": 5.0, **options})
        async with worker.running():
            yield Bench(client, lane, worker)


def run(coroutine: Coroutine[Any, Any, T], patience: float = 60) -> T:
    """Runs an async test, and gives up on one that hangs."""

    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, patience)

    return asyncio.run(bounded())


async def steps_of(execution: ff.AsyncExecution[Any]) -> list[tuple[str, str]]:
    """Name and state of each record of a journal."""
    return [(step.name, step.state) async for step in execution.steps()]


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """A Valkey of its own."""
    program = shutil.which("valkey-server")
    assert program, "valkey-server was not found; `cargo xtask test` installs it"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [program, "--port", str(port), "--save", "", "--dir", folder, "--maxmemory-policy", "noeviction"],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"valkey://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    """Where a server keeps things for as long as the block runs."""
    if kind == "sqlite":
        yield f"sqlite://{folder}/flowfabric.db"
    else:
        with valkey(folder) as url:
            yield url
