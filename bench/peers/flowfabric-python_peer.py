"""Our Python SDK: submits from this process, and a worker in one other process."""

import asyncio
import os
import subprocess
import sys
import time
from importlib.metadata import version

import flowfabric as ff
from measure import *


async def at_once_async(times, limit, act):
    """Does something so many times, at most so many at once, and waits for all."""
    left = iter(range(times))

    async def one():
        for number in left:
            await act(number)

    await asyncio.gather(*(one() for _ in range(min(times, limit))))


class Started:
    """Tasks as the worker starts them."""

    def __init__(self, worker, loop):
        self.seen, self._worker, self._loop = asyncio.Queue(), worker, loop

    def read(self):
        for line in self._worker.stdout:
            execution_id, at = line.split()
            self._loop.call_soon_threadsafe(self.seen.put_nowait, (execution_id, float(at)))


async def throughput(client, started):
    began = time.perf_counter()
    submitting = asyncio.create_task(at_once_async(TASKS, SUBMITTERS, lambda _: client.submit("empty")))
    ids = [(await started.seen.get())[0] for _ in range(TASKS)]
    await submitting
    # Those that were started last are the only ones that may not have ended.
    await asyncio.gather(*(client.execution(one).wait() for one in ids[-2 * WORKERS :]))
    return per_second(TASKS, began)


async def wake(client, started):
    latencies = []
    for _ in range(WAKES):
        began = time.monotonic()
        execution = await client.submit("empty")
        latencies.append(((await started.seen.get())[1] - began) * 1000)
        await execution.wait()
    return latencies


async def flow(client):
    graph = ff.Flow("chain")
    names = [str(number) for number in range(CHAIN_LENGTH)]
    for name in names:
        graph.node(name, "link")
    for upstream, downstream in zip(names, names[1:]):
        graph.edge(upstream, downstream)
    await (await client.create_flow(graph))[names[-1]].wait()


async def chain(client, _):
    latencies = []
    for _ in range(CHAINS):
        began = time.perf_counter()
        await flow(client)
        latencies.append((time.perf_counter() - began) * 1000)
    return latencies


async def chains(client, _):
    began = time.perf_counter()
    await at_once_async(CHAINS_AT_ONCE, CHAINS_AT_ONCE, lambda _: flow(client))
    return per_second(CHAINS_AT_ONCE, began)


async def with_worker(scenario):
    command = [sys.executable, "flowfabric-python_worker.py"]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        async with ff.AsyncClient() as client:
            started = Started(worker, asyncio.get_running_loop())
            asyncio.get_running_loop().run_in_executor(None, started.read)
            # The worker and every connection are warm when the window begins.
            await at_once_async(WORKERS * 4, SUBMITTERS, lambda _: client.submit("empty"))
            for _ in range(WORKERS * 4):
                await started.seen.get()
            return await scenario(client, started)
    finally:
        worker.terminate()
        worker.wait()


async def idle(_client, _started):
    return await asyncio.to_thread(idle_commands)


ours = version("flowfabric")
one = f"one worker process with concurrency {WORKERS}, which takes as many ahead"
covers = f"a flow of {CHAIN_LENGTH} executions, from its creation to the end of the last"
run = lambda scenario: lambda _: asyncio.run(with_worker(scenario))
measure(ours, "throughput", "tasks/s", f"{TASKS} empty tasks, {SUBMITTERS} submits at once from another process, {one}: from the first submit to the last completion", run(throughput))
measure(ours, "wake", "ms", f"from the call of submit to the start of the function, {one}, idle", run(wake))
measure(ours, "chain", "ms", f"{covers}; one at a time", run(chain))
measure(ours, "chains", "flows/s", f"{covers}; {CHAINS_AT_ONCE} at once", run(chains))
measure(ours, "idle", "commands/s", f"{one} and a server, idle for {IDLE_SECONDS} s, every command the store counts", run(idle))
