"""The worker of our Python SDK. It says when it started which task, so that another process can tell the end of them."""

import os
import time

import flowfabric as ff


@ff.task("empty")
async def empty(ctx: ff.Context) -> None:
    # The clock is the same for all processes of a machine.
    os.write(1, f"{ctx.execution_id} {time.monotonic()}\n".encode())


@ff.task("link")
async def link(ctx: ff.Context) -> None:
    pass


workers = int(os.environ.get("PEER_WORKERS", 16))
ff.Worker([empty, link], concurrency=workers, prefetch=workers).run()
