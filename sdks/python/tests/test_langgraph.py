"""The checkpointer conforms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

import flowfabric as ff
from flowfabric.testing import Server

from .support import bench, run

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.checkpoint.conformance import checkpointer_test, validate

from flowfabric.langgraph import JournalSaver


def test_the_checkpointer_conforms(server: Server) -> None:
    @ff.task("conform", retries=0)
    async def conform(ctx: ff.Context) -> str:
        numbers = count()

        @checkpointer_test(name="JournalSaver")
        async def saver() -> AsyncIterator[Any]:
            yield await JournalSaver.open(ctx, f"saver-{next(numbers)}")

        return (await validate(saver)).conformance_level()

    async def test() -> None:
        async with bench(server, conform) as its:
            assert await (await its.submit(conform)).result(50) == "FULL"

    run(test())
