"""Counts the words of 1,000 pages: twenty children with fifty steps each, all of which may crash at any time.

ff dev &
python map_reduce.py
"""

from __future__ import annotations

import asyncio
from collections import Counter

import flowfabric as ff

PAGES = 1_000
CHUNK = 50


def fetch(page: int) -> str:
    """Stands for a page of the web."""
    return "tide moon " * (page % 7) + "sea"


async def count(page: int) -> dict[str, int]:
    return Counter(fetch(page).split())


@ff.task("count-words", retries=3)
async def count_words(ctx: ff.Context, pages: list[int]) -> dict[str, int]:
    counts = await asyncio.gather(*(ctx.step("page", count, page, key=str(page)) for page in pages))
    await ctx.progress(100, f"{len(pages)} pages")
    return sum((Counter(one) for one in counts), Counter())


@ff.task("count-all-words", retries=3)
async def count_all_words(ctx: ff.Context, pages: int) -> dict[str, int]:
    chunks = [list(range(start, min(start + CHUNK, pages))) for start in range(0, pages, CHUNK)]
    children = [ctx.child("chunk", count_words, chunk, str(chunk[0])) for chunk in chunks]
    counts = await asyncio.gather(*children)
    return sum((Counter(one) for one in counts), Counter())


async def main() -> None:
    async with ff.AsyncClient() as client, ff.Worker([count_words, count_all_words], client).running():
        execution = await client.submit(count_all_words, PAGES)
        counts = await execution.result()
        print(f"{PAGES} pages: " + ", ".join(f"{word} {counts[word]}" for word in sorted(counts)))


if __name__ == "__main__":
    asyncio.run(main())
