"""A worker in a process with little memory, some of whose tasks take all of it."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from pathlib import Path

import flowfabric as ff

FOLDER = Path(os.environ["FOLDER"])
#: On top of what the process has when it begins to work.
MEMORY_BYTES = 256 << 20
#: Memory that is used up also fails heartbeats: a lease outlives many of them.
LEASE_TTL_S = 10.0


@ff.task("hungry", retries=0)
async def hungry(ctx: ff.Context) -> int:
    eaten: list[bytearray] = []
    while True:
        eaten.append(bytearray(16 << 20))
        # Others run while there is almost nothing left.
        await asyncio.sleep(0)


def pay() -> str:
    with (FOLDER / "paid").open("a") as file:
        file.write("paid")
    return "paid"


@ff.task("steady", retries=0)
def steady(ctx: ff.SyncContext) -> str:
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    return ctx.step("pay", pay, once=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    ff.Worker([hungry, steady], lanes=[os.environ["LANE"]], lease_ttl=LEASE_TTL_S).run()
