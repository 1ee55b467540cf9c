"""A worker that kills itself with SIGKILL at a boundary: just before or just after one of its calls about a task.

Every effect is a line in a file, written and synced by the body itself, so that a test can count what really happened.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import flowfabric as ff

#: Calls that are boundaries; those about the worker itself are not.
ABOUT_TASKS = {"record_steps", "park", "complete", "create_executions", "append_frames", "exchange"}

folder = Path(os.environ["FOLDER"])


def effect(name: str) -> None:
    """Something that cannot be undone."""
    handle = os.open(folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{name}\n".encode())
    os.fsync(handle)
    os.close(handle)


def crash_at(kill_at: int) -> None:
    """Counts the boundaries of this process, and ends it at one of them."""
    call = ff.AsyncClient.call
    boundaries = itertools.count(1)

    def boundary() -> None:
        if next(boundaries) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def counted(self: ff.AsyncClient, operation: Any, /, **args: Any) -> Any:
        about_tasks = operation.name in ABOUT_TASKS and args.get("end") != []
        if about_tasks:
            boundary()
        answer = await call(self, operation, **args)
        if about_tasks:
            boundary()
        return answer

    ff.AsyncClient.call = counted  # type: ignore[method-assign,assignment]


def note(execution: str, name: str) -> str:
    effect(f"{execution} {name}")
    return f"{name} done"


@ff.task("drill", retries=0)
async def drill(ctx: ff.Context) -> list[str]:
    me = ctx.execution_id
    pages = await asyncio.gather(*(ctx.step("fetch", note, me, f"fetch-{n}", key=str(n)) for n in range(3)))
    plan = await ctx.step("plan", note, me, "plan")
    await ctx.emit("token", plan)
    paid = await ctx.step("pay", note, me, "pay", once=True)
    decision = await ctx.wait_signal("decision", str)
    mailed = await ctx.child("mail", mail, me, lane=ctx.task.lane)
    await ctx.sleep("settle", 0.01)
    shipped = await ctx.step("ship", note, me, "ship", once="ask")
    return [*pages, plan, paid, decision, mailed, shipped]


@ff.task("mail", retries=0)
async def mail(ctx: ff.Context, order: str) -> str:
    return await ctx.step("mail", note, order, "mail", once=True)


if __name__ == "__main__":
    if kill_at := int(os.environ.get("KILL_AT", "0")):
        crash_at(kill_at)
    ff.Worker([drill, mail], lanes=sys.argv[1:], lease_ttl=3.0, concurrency=30).run()
