"""A worker: a process that takes tasks of the kinds it serves and calls their functions."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from . import wire
from ._batches import Exchange
from ._calls import Settings, log
from ._ids import mint
from ._leases import LeaseKeeper
from ._run import Run
from ._sync import Client
from .client import AsyncClient
from .errors import FlowFabricError
from .task import Span, Task, milliseconds


class Worker:
    """Calls functions for executions of their kinds.

    `Worker([research]).run()` works until SIGTERM or Ctrl-C, then claims nothing more, waits `drain` for the tasks in
    hand, hands back the rest, and ends. In a program with an event loop of its own: `await worker.serve()`, or
    `async with worker.running():`.
    """

    def __init__(
        self,
        tasks: Iterable[Task[Any, Any]],
        client: Client | AsyncClient | str | None = None,
        *,
        name: str = "python",
        instance_id: str | None = None,
        lanes: Sequence[str] = ("default",),
        capabilities: Sequence[str] = (),
        concurrency: int = 10,
        prefetch: int = 0,
        lease_ttl: Span = 30.0,
        claim_wait: Span = 20.0,
        drain: Span = 15.0,
        version: str | None = None,
        build_id: str | None = None,
        tools: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.tasks = {task.kind: task for task in tasks}
        if not self.tasks:
            raise ValueError("a worker needs at least one task")
        if concurrency < 1 or prefetch < 0:
            raise ValueError("concurrency must be at least 1, and prefetch at least 0")
        self.settings = client.settings if isinstance(client, Client | AsyncClient) else Settings.found(client, {})
        self.concurrency, self._prefetch = concurrency, prefetch
        # Names have at most 64 bytes, and a UUID takes 36 of them.
        self.instance_id = instance_id or f"{name.encode('ascii', 'ignore').decode()[:27]}-{mint()}"
        self._lease_ttl_s = milliseconds(lease_ttl) / 1000
        self._claim_wait_ms = milliseconds(claim_wait)
        self._drain_s = milliseconds(drain) / 1000
        if build_id:
            # Executions with the policy `pin_build` are run to their end by the build that started them.
            capabilities = [*capabilities, f"build:{build_id}"]
        #: A part of claims, too: work of another kind is never handed out to this worker.
        asks = {"lanes": list(lanes), "capabilities": list(capabilities), "kinds": sorted(self.tasks)}
        self._asks: dict[str, Any] = {**asks, "lease_ttl_ms": milliseconds(lease_ttl)}
        # The nonce is chosen anew by each process, so that a second one with the same instance id is noticed.
        own = {"instance_id": self.instance_id, "nonce": mint()}
        #: The tools are what agents are told about its kinds, from `tool`.
        said = {"worker_id": name, "version": version, "tools": [dict(tool) for tool in tools]}
        self._registration = {**self._asks, **own, **said, "capacity": concurrency + prefetch}
        #: Tasks whose functions run, or whose ends are on their way.
        self._runs: dict[Run, asyncio.Task[None]] = {}
        self._working = 0
        #: Tasks that were taken ahead and wait for a place.
        self._waiting: deque[Run] = deque()
        self.exchange: Exchange
        self._keeper: LeaseKeeper
        #: Tells the loop that works to stop, from any thread.
        self._stop: Callable[[], object] = lambda: None
        self._freed: asyncio.Event
        #: Stops listening to signals.
        self._unheard = contextlib.ExitStack()

    def run(self) -> None:
        """Works until the process is told to stop."""
        asyncio.run(self.serve())

    def stop(self) -> None:
        """Tells the worker to stop, from any thread."""
        self._stop()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        """Works in the background while the block runs."""
        started = asyncio.Event()
        serving = asyncio.create_task(self.serve(started))
        # One that cannot start says why.
        serving.add_done_callback(lambda _: started.set())
        await started.wait()
        if serving.done():
            await serving
        try:
            yield self
        finally:
            self.stop()
            await serving

    async def serve(self, started: asyncio.Event | None = None) -> None:
        """Works until it is stopped, or the process is told to stop."""
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._stop = partial(loop.call_soon_threadsafe, stopping.set)
        self._freed = asyncio.Event()
        async with AsyncClient(self.settings) as client:
            await client.call(wire.register_worker, **self._registration)
            capacity = self.concurrency + self._prefetch
            take = partial(self._take, client)
            self.exchange = Exchange(client, self.instance_id, self._asks, capacity, self._in_hand, take)
            self._keeper = LeaseKeeper(self.settings, self._registration, self._lease_ttl_s, self.stop)
            self._keeper.start()
            asks = (", ".join(self._asks["kinds"]), ", ".join(self._asks["lanes"]))
            log.info("worker %s serves %s in the lanes %s at %s", self.instance_id, *asks, self.settings.url)
            try:
                self._listen(loop, stopping)
                if started is not None:
                    started.set()
                claiming = asyncio.create_task(self._claim())
                claiming.add_done_callback(lambda _: stopping.set())
                await stopping.wait()
                self.exchange.closed = True
                claiming.cancel()
                await asyncio.wait({claiming})
                await self._drain()
            finally:
                self._unheard.close()
                self._keeper.stop()
                await self._leave(client)

    def _listen(self, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        """Listens to SIGTERM and Ctrl-C where that is possible."""
        if threading.current_thread() is threading.main_thread():
            for one in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError):
                    loop.add_signal_handler(one, stopping.set)
                    self._unheard.callback(loop.remove_signal_handler, one)

    async def _claim(self) -> None:
        while True:
            self._freed.clear()
            await (self.exchange.claim(self._claim_wait_ms) if self.exchange.room() else self._freed.wait())

    def _in_hand(self) -> int:
        return len(self._runs) + len(self._waiting)

    def _take(self, client: AsyncClient, tasks: list[wire.Task]) -> None:
        for task in tasks:
            run = Run(self, client, task)
            self._keeper.add(run.lease)
            self._waiting.append(run)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._working < self.concurrency and not self.exchange.closed:
            run = self._waiting.popleft()
            if run.closed:
                self._keeper.remove(run.lease)
                continue
            self._working += 1
            self._runs[run] = asyncio.create_task(self._go(run))
        self._freed.set()

    async def _go(self, run: Run) -> None:
        try:
            await run.go(self.tasks[run.task.kind], self._worked)
        except Exception:
            log.exception("a task could not be run")
        finally:
            self._keeper.remove(run.lease)
            del self._runs[run]
            self._start_waiting()

    def _worked(self) -> None:
        """A function has ended. Its end may be on its way yet, which keeps no other task from running."""
        self._working -= 1
        self._start_waiting()

    async def _drain(self) -> None:
        """Hands back what has not begun, waits for the tasks in hand, and hands back those that take too long."""
        await self._hand_back_waiting()
        if self._runs:
            log.info("worker %s waits for %d tasks", self.instance_id, len(self._runs))
            await asyncio.wait(set(self._runs.values()), timeout=self._drain_s)
        await asyncio.gather(*(run.hand_back() for run in list(self._runs)))
        # A call that was under way may have brought tasks meanwhile.
        await self._hand_back_waiting()

    async def _hand_back_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        await asyncio.gather(*(run.hand_back() for run in waiting))

    async def _leave(self, client: AsyncClient) -> None:
        try:
            await client.call(wire.deregister_worker, instance_id=self.instance_id, nonce=self._registration["nonce"])
        except FlowFabricError as error:
            log.warning("the worker could not deregister: %s", error)
