"""The Python package `mcp` as a client: what it is told, and what survives."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp.types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from .support import ADMIN, KEY, PROGRAM, Server, Worker, environment, kill, start_client, start_worker, until

SLOW = """
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["FOLDER"])
with (folder / "runs").open("a") as runs:
    runs.write("run\\n")
while not (folder / "go").exists():
    time.sleep(0.02)
print(json.dumps({"said": json.load(sys.stdin)["text"]}))
"""


@asynccontextmanager
async def connected(server: Server, token: str = ADMIN, **options: Any) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
        async with Client(transport, **options) as client:
            yield client


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


def test_a_call_outlives_the_kill_of_server_worker_and_client(server: Server, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tool = tmp_path / "slow.json"
    tool.write_text(json.dumps({"kind": "slow", "description": "Takes long.", "input_schema": schema}))
    program = [sys.executable, "-c", SLOW]
    worker = start_worker(server, tmp_path, tool, program)
    until(lambda: server.http("GET", "/v1/tools?kind=slow")["items"] or None)
    client = start_client(server, tmp_path, "slow", "hello", "once")
    until(lambda: (tmp_path / "runs").exists() or None)
    for process in (client, worker):
        kill(process)
    server.kill()
    server.start()
    worker = start_worker(server, tmp_path, tool, program)
    (tmp_path / "go").touch()
    again = start_client(server, tmp_path, "slow", "hello", "once")
    assert again.wait(timeout=60) == 0
    assert json.loads((tmp_path / "answer").read_text()) == {"said": "hello"}
    assert len(server.http("GET", "/v1/executions")["items"]) == 1
    kill(worker)


def test_an_approval_is_answered_through_elicitation(server: Server) -> None:
    worker = Worker(server, "deploy")
    asked: list[str] = []

    async def answer(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"why": "it is Monday"})

    async def main() -> types.CallToolResult:
        async with connected(server, elicitation_callback=answer) as client:
            calling = asyncio.create_task(client.call_tool("deploy", {"text": "now"}))
            task = await asyncio.to_thread(worker.claim)
            schema = {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}
            question = {"condition": {"any": [{"name": "approve"}]}, "reason": "approval", "question": "Deploy?"}
            await asyncio.to_thread(worker.do, task, "suspend", {**question, "schema": schema})
            resumed = await asyncio.to_thread(worker.claim)
            signal = resumed["resume_signals"][0]
            assert signal["name"] == "approve"
            await asyncio.to_thread(worker.do, resumed, "complete", {"result": {"deployed": True}})
            return await calling

    result = run(main())
    assert asked == ["Deploy?"]
    assert result.structured_content == {"deployed": True}


def test_what_is_cancelled_is_told(server: Server) -> None:
    worker = Worker(server, "long")

    async def main() -> types.CallToolResult:
        async with connected(server) as client:
            calling = asyncio.create_task(client.call_tool("long", {"text": "x"}))
            task = await asyncio.to_thread(worker.claim)
            cancelled = await client.call_tool("flowfabric_cancel_execution", {"execution_id": task["execution_id"]})
            assert cancelled.structured_content["outcome"] == "cancelled"
            return await calling

    result = run(main())
    assert result.is_error
    assert result.content[0].text.startswith("cancelled")


def test_a_foreign_token_sees_nothing(server: Server) -> None:
    Worker(server, "secret")
    stranger = server.token("stranger", "elsewhere", "operator")

    async def main() -> None:
        async with connected(server, token=stranger) as client:
            listed = await client.list_tools()
            assert all(tool.name != "secret" for tool in listed.tools)
            with pytest.raises(MCPError, match="no tool secret"):
                await client.call_tool("secret", {"text": "x"})

    run(main())
    assert server.http("GET", "/v1/executions")["items"] == []


def test_bad_input_starts_nothing(server: Server) -> None:
    Worker(server, "strict")

    async def main() -> types.CallToolResult:
        async with connected(server) as client:
            return await client.call_tool("strict", {"text": 7}, meta={KEY: "k"})

    result = run(main())
    assert result.is_error
    assert "arguments.text" in result.content[0].text
    assert server.http("GET", "/v1/executions")["items"] == []


def test_a_desktop_host_speaks_to_it_over_its_standard_input(server: Server) -> None:
    worker = Worker(server, "shout")

    async def main(mode: str) -> types.CallToolResult:
        parameters = StdioServerParameters(
            command=PROGRAM, args=["mcp", "--server", server.url], env=environment(FF_TOKEN=ADMIN)
        )
        async with Client(parameters, mode=mode) as client:
            assert any(tool.name == "shout" for tool in (await client.list_tools()).tools)
            calling = asyncio.create_task(client.call_tool("shout", {"text": "hi"}))
            task = await asyncio.to_thread(worker.claim)
            await asyncio.to_thread(worker.do, task, "complete", {"result": {"said": "HI"}})
            return await calling

    for mode in ("auto", "legacy"):
        assert run(main(mode)).structured_content == {"said": "HI"}
