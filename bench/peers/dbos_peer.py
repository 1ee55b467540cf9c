"""DBOS: durable workflows as a library on PostgreSQL; this process is client and worker."""

import os
import threading
import time
from importlib.metadata import version as installed

from dbos import DBOS, DBOSConfig
from measure import *

DBOS(config=DBOSConfig(name="peer", system_database_url=os.environ["PEER_URL"], log_level="ERROR", run_admin_server=False))
version = installed("dbos")
# Its queue hands out as many as may run at once and asks again a second later, so fewer tell the rate as well.
QUEUED = min(TASKS, 200)
arrived = []
waiting, resumed = threading.Event(), threading.Event()


@DBOS.workflow()
def empty():
    arrived.append(time.perf_counter())


@DBOS.step()
def step():
    pass


@DBOS.workflow()
def chain():
    for _ in range(CHAIN_LENGTH):
        step()


@DBOS.workflow()
def suspend():
    waiting.set()
    DBOS.recv("signal", timeout_seconds=60)
    arrived.append(time.perf_counter())
    resumed.set()


def throughput(_):
    began = time.perf_counter()
    at_once(TASKS, WORKERS, lambda _: empty())
    return per_second(TASKS, began)


def queued(_):
    began = time.perf_counter()
    for handle in [queue.enqueue(empty) for _ in range(QUEUED)]:
        handle.get_result()
    return per_second(QUEUED, began)


def wake(_):
    latencies = []
    for _ in range(WAKES):
        arrived.clear()
        began = time.perf_counter()
        DBOS.start_workflow(empty).get_result()
        latencies.append((arrived[0] - began) * 1000)
    return latencies


def flows(_):
    began = time.perf_counter()
    at_once(CHAINS_AT_ONCE, CHAINS_AT_ONCE, lambda _: chain())
    return per_second(CHAINS_AT_ONCE, began)


def suspend_resume(_):
    latencies = []
    for _ in range(WAKES):
        arrived.clear()
        waiting.clear()
        resumed.clear()
        handle = DBOS.start_workflow(suspend)
        waiting.wait()
        # The handler has announced itself; give it time to be really waiting.
        time.sleep(0.02)
        began = time.perf_counter()
        DBOS.send(handle.get_workflow_id(), "", "signal")
        resumed.wait()
        latencies.append((arrived[0] - began) * 1000)
        handle.get_result()
    return latencies


DBOS.launch()
queue = DBOS.register_queue("peer-queue", worker_concurrency=WORKERS)
covers = f"one workflow of {CHAIN_LENGTH} steps, from the call to its end"
measure(version, "throughput", "tasks/s", f"{TASKS} empty workflows called by {WORKERS} threads of one process", throughput, variant="direct")
measure(version, "throughput", "tasks/s", f"{QUEUED} empty workflows through a queue with {WORKERS} at once: bound by its poll of a second", queued, variant="queue")
measure(version, "wake", "ms", "from the call of start_workflow to the start of the function, in one process", wake)
measure(version, "chain", "ms", f"{covers}; one at a time", lambda _: one_by_one(CHAINS, chain))
measure(version, "chains", "flows/s", f"{covers}; {CHAINS_AT_ONCE} threads at once", flows)
measure(version, "suspend-resume", "ms", "from the call of send to the return of recv, in one process", suspend_resume)
DBOS.destroy()
