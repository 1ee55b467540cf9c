"""The checkpointer conforms, and a graph goes on where it was when its worker dies in a tool call."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import flowfabric as ff
from flowfabric.testing import Server

from .support import bench, run

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.checkpoint.conformance import checkpointer_test, validate

from flowfabric.langgraph import JournalSaver

PROGRAM = Path(__file__).with_name("graph_program.py")


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


def test_a_graph_killed_in_a_node_goes_on_after_the_last_one_that_ended(server: Server, tmp_path: Path) -> None:
    lane = f"lane-{uuid4().hex[:12]}"
    environment = {**os.environ, "FF_SERVER": server.url, "FOLDER": str(tmp_path)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, PROGRAM, lane], env=environment)

    with server.client() as client:
        execution = client.submit("graph", "tides", lane=lane)
        assert start().wait(60) == -9
        second = start()
        try:
            assert execution.result(60) == "I know: LOOK UP TIDES"
        finally:
            second.terminate()
            second.wait(20)
        log = Counter((tmp_path / "log").read_text().splitlines())
        assert log == {"plan": 1, "look up": 2, "answer": 1}
