"""The smallest program: a task, a worker that serves it, and a client that waits for its result.

ff dev &
python hello.py
"""

from __future__ import annotations

import asyncio

import flowfabric as ff


@ff.task("hello")
async def hello(ctx: ff.Context, name: str) -> str:
    greeting: str = await ctx.step("greet", lambda: f"Hello, {name}!")
    await ctx.progress(100, "greeted")
    return greeting


async def main() -> None:
    async with ff.AsyncClient() as client, ff.Worker([hello], client).running():
        execution = await client.submit(hello, "world")
        print(await execution.result())


if __name__ == "__main__":
    asyncio.run(main())
