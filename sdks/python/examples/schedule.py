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
        schedule = client.schedule("morning-report")
        what = ff.submission(report, "yesterday")
        # While one report is not finished, the next is not begun; after an outage the last one is made up for.
        await schedule.create(what, cron="0 6 * * MON-FRI", zone="Europe/Berlin", overlap="skip", catch_up="last")
        triggered = await schedule.trigger()
        print(await client.execution(triggered.execution_id or "", str).result())
        for at in (await schedule.get()).next[:3]:
            print(f"next: {datetime.fromtimestamp(at / 1000, timezone.utc):%A, %H:%M} UTC")
        await schedule.delete()


if __name__ == "__main__":
    asyncio.run(main())
