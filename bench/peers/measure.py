"""What every peer on Python shares: the size of the work, and how a figure is printed."""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def number(name, otherwise):
    return int(os.environ.get(name, otherwise))


TASKS = number("PEER_TASKS", 10_000)
WORKERS = number("PEER_WORKERS", 16)
SUBMITTERS = number("PEER_SUBMITTERS", 64)
WAKES = number("PEER_WAKES", 200)
CHAINS = number("PEER_CHAINS", 50)
CHAINS_AT_ONCE = number("PEER_CHAINS_AT_ONCE", 100)
CHAIN_LENGTH = 10
IDLE_SECONDS = number("PEER_IDLE_SECONDS", 10)
REPETITIONS = number("PEER_REPETITIONS", 1)
ONLY = os.environ.get("PEER_SCENARIOS")


def significant(value):
    return float(f"{value:.4g}")


def measure(version, scenario, unit, note, run, **more):
    """Runs a scenario as often as asked and prints its figure: it answers with a rate or a list of latencies in ms."""
    if ONLY and scenario not in ONLY.split(","):
        return
    answers = []
    for repetition in range(REPETITIONS):
        print(f"{os.environ['PEER_SYSTEM']}: {scenario} {repetition + 1} of {REPETITIONS}", file=sys.stderr)
        answers.append(run(repetition))
    if isinstance(answers[0], list):
        latencies = sorted(latency for answer in answers for latency in answer)
        rank = lambda percent: max(0, math.ceil(len(latencies) * percent / 100) - 1)
        figures = {f"p{percent}": significant(latencies[rank(percent)]) for percent in (50, 95, 99)}
        figures["samples"] = len(latencies)
    else:
        figures = {"rate": significant(statistics.median_low(answers)), "rates": [significant(answer) for answer in answers]}
    head = {"system": os.environ["PEER_SYSTEM"], "version": version, "scenario": scenario}
    stored = {"store": os.environ["PEER_STORE"], "durability": os.environ["PEER_DURABILITY"], "repetitions": REPETITIONS}
    print(json.dumps({**head, **stored, **figures, "unit": unit, "note": note, **more}), flush=True)


def per_second(count, began):
    """Things per second since a moment of `time.perf_counter()`."""
    return count / (time.perf_counter() - began)


def one_by_one(times, act):
    """How long each took, in milliseconds."""
    latencies = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        latencies.append((time.perf_counter() - began) * 1000)
    return latencies


def at_once(times, limit, act):
    """Does something so many times, at most so many at once, and waits for all."""
    with ThreadPoolExecutor(min(times, limit)) as pool:
        return list(pool.map(act, range(times)))


def valkey_commands():
    """Commands a Valkey server has carried out so far, those inside of scripts too; our own question is not one."""
    asked = ["valkey-cli", "-p", os.environ["PEER_PORT"], "info", "commandstats"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    counted = [line for line in lines if line.startswith("cmdstat_") and not line.startswith("cmdstat_info:")]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in counted)


def idle_commands():
    """Commands per second of a Valkey server while nothing happens."""
    time.sleep(2)
    before = valkey_commands()
    time.sleep(IDLE_SECONDS)
    return (valkey_commands() - before) / IDLE_SECONDS
