"""A worker in a process of its own, for tests that stop or kill it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import flowfabric as ff

FOLDER = Path(os.environ.get("FOLDER", "."))


@ff.task("short")
def short(ctx: ff.SyncContext, gate: str) -> str:
    while not Path(gate).exists():
        time.sleep(0.01)
    return "finished"


@ff.task("long")
async def long(ctx: ff.Context) -> str:
    async def begin() -> None:
        with (FOLDER / "begun").open("a") as file:
            file.write("begun")

    await ctx.step("begin", begin)
    if ctx.task.claim_kind == "initial":
        await asyncio.Event().wait()
    return "continued"


if __name__ == "__main__":
    ff.Worker([short, long], lanes=[os.environ["LANE"]], lease_ttl=2.0, drain=1.0).run()
