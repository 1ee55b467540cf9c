"""Kills a worker in the middle of a task, starts another, and shows that nothing was done twice.

ff dev &
python crash_drill.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import flowfabric as ff

STEPS = 5


def work(number: int) -> int:
    """Every run of it leaves a line."""
    with Path(os.environ["DRILL_LOG"]).open("a") as log:
        log.write(f"step {number}\n")
    time.sleep(0.2)
    return number


@ff.task("drill", retries=0)
async def drill(ctx: ff.Context) -> int:
    total = 0
    for number in range(STEPS):
        total += await ctx.step("work", work, number)
    return total


def start_worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "worker"])


def main() -> None:
    log = Path(tempfile.mkdtemp()) / "log"
    log.touch()
    os.environ["DRILL_LOG"] = str(log)
    with ff.Client() as client:
        first = start_worker()
        execution = client.submit(drill)
        while len(log.read_text().splitlines()) < 3:
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.wait()
        print("killed the worker in its third step")
        second = start_worker()
        print(f"the sum is {execution.result()}, after {execution.get().reclaim_count} lost lease")
        second.terminate()
        second.wait()
    runs = Counter(log.read_text().splitlines())
    print(", ".join(f"{step}: {count}" for step, count in sorted(runs.items())))


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        ff.Worker([drill], lease_ttl=1.0).run()
    else:
        main()
