"""An agent that calls one tool under one key, and writes what it got into a file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main(tool: str, text: str, key: str) -> None:
    headers = {"authorization": f"Bearer {os.environ['TOKEN']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(os.environ["URL"], http_client=http)
        async with Client(transport) as client:
            result = await client.call_tool(tool, {"text": text}, meta={"flowfabric/idempotency-key": key})
    Path(os.environ["FOLDER"], "answer").write_text(json.dumps(result.structured_content))


asyncio.run(main(*sys.argv[1:4]))
