"""Celery: a task queue. Results are on, as they are the only way to learn that a task has ended."""

import time

import celery
import redis
from celery import chain
from celery_tasks import address, clock, empty
from measure import *

store = redis.Redis.from_url(address)
version = celery.__version__


def throughput(_):
    before = store.dbsize()
    began = time.perf_counter()
    at_once(TASKS, SUBMITTERS, lambda _: empty.delay())
    # Every result is one key, so counting keys tells when all have ended without taking part in the work.
    while store.dbsize() < before + TASKS:
        time.sleep(0.01)
    return per_second(TASKS, began)


def wake(_):
    latencies = []
    for _ in range(WAKES):
        began = time.monotonic()
        latencies.append((clock.delay().get() - began) * 1000)
    return latencies


def flow(_=None):
    chain(*[empty.si() for _ in range(CHAIN_LENGTH)]).delay().get()


def flows(_):
    began = time.perf_counter()
    at_once(CHAINS_AT_ONCE, CHAINS_AT_ONCE, flow)
    return per_second(CHAINS_AT_ONCE, began)


at_once(WORKERS, WORKERS, lambda _: empty.delay().get())
pool = f"a pool of {WORKERS} processes"
covers = f"a chain of {CHAIN_LENGTH} tasks, from the call to the result of the last"
measure(version, "throughput", "tasks/s", f"{TASKS} empty tasks, {SUBMITTERS} threads submit, {pool}: from the first submit to the last result", throughput)
measure(version, "wake", "ms", f"from the call of delay to the start of the task, {pool}, all idle", wake)
measure(version, "chain", "ms", f"{covers}; one at a time", lambda _: one_by_one(CHAINS, flow))
measure(version, "chains", "flows/s", f"{covers}; {CHAINS_AT_ONCE} at once", flows)
measure(version, "idle", "commands/s", f"{pool}, idle for {IDLE_SECONDS} s, every command the server counts", lambda _: idle_commands())
