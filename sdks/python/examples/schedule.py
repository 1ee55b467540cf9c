"""A report every working day: makes a schedule, runs it once by hand, and shows when it runs next.

ff dev &
python schedule.py
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import flowfabric as ff


@ff.task("morning-report", retries=3)
async def report(ctx: ff.Context, of: str) -> str:
    return await ctx.step("write", lambda: f"The report of {of} is written.")


async def main() -> None:
    async with ff.AsyncClient() as client, ff.Worker([report], client).running():
        name, what = "morning-report", ff.submission(report, "yesterday")
        # While one report is not finished, the next is not begun; after an outage the last one is made up for.
        when: ff.When = {"cron": "0 6 * * MON-FRI", "zone": "Europe/Berlin", "overlap": "skip", "catch_up": "last"}
        await client.call(ff.wire.create_schedule, name=name, **ff.schedule(what, **when))
        triggered = await client.call(ff.wire.trigger_schedule, name=name)
        print(await client.execution(triggered.execution_id or "", str).result())
        for at in (await client.call(ff.wire.get_schedule, name=name)).next[:3]:
            print(f"next: {datetime.fromtimestamp(at / 1000, timezone.utc):%A, %H:%M} UTC")
        await client.call(ff.wire.delete_schedule, name=name)


if __name__ == "__main__":
    asyncio.run(main())
