"""A pydantic-ai agent goes on where it was when its worker dies in a tool call."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from flowfabric.testing import Server

pytest.importorskip("pydantic_ai.durable_exec", exc_type=ImportError)

PROGRAM = Path(__file__).with_name("agent_program.py")


def test_an_agent_killed_in_a_tool_call_asks_its_model_nothing_twice(server: Server, tmp_path: Path) -> None:
    lane = f"lane-{uuid4().hex[:12]}"
    environment = {**os.environ, "FF_SERVER": server.url, "FOLDER": str(tmp_path)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, PROGRAM, lane], env=environment)

    with server.client() as client:
        execution = client.submit("research", "What makes the tide?", lane=lane)
        assert start().wait(60) == -9
        second = start()
        try:
            assert execution.result(60) == "The moon makes the tide."
        finally:
            second.terminate()
            second.wait(20)
        log = Counter((tmp_path / "log").read_text().splitlines())
        assert log == {"model 1": 1, "tool tide": 1, "tool moon": 1, "model 3": 1, "charge": 2, "model 5": 1}


def test_outside_of_a_task_it_is_an_ordinary_agent(tmp_path: Path) -> None:
    os.environ["FOLDER"] = str(tmp_path)
    (tmp_path / "log").write_text("charge\n")
    from .agent_program import agent

    assert asyncio.run(agent.run("What makes the tide?")).output == "The moon makes the tide."
