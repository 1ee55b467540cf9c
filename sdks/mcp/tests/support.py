"""A server, workers and clients in processes of their own, so that each can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PROGRAM = os.environ.get("FF_PROGRAM", "ff")
ADMIN = "test-administrator-token"
KEY = "flowfabric/idempotency-key"
#: A test that waits longer than this has failed.
PATIENCE_S = 60.0


def until(what: Callable[[], T | None]) -> T:
    """Asks until there is an answer."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if (answer := what()) is not None:
            return answer
        time.sleep(0.02)
    raise TimeoutError("it did not become so")


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FF_")}
    return {**inherited, **more}


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and everything it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Server:
    """A server on a store that outlives it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self.store = f"sqlite://{folder}/flowfabric.db"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [PROGRAM, "server", "--store", self.store, "--listen", self.address]
        env = environment(FF_API_TOKEN=ADMIN)
        self.process = subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.DEVNULL)
        until(self._answers)

    def _answers(self) -> bool | None:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2):
                return True
        except OSError:
            return None

    def kill(self) -> None:
        assert self.process is not None
        kill(self.process)

    def http(self, method: str, path: str, body: Any = None, token: str = ADMIN) -> Any:
        """Calls the HTTP API; refusals raise."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=40) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def token(self, name: str, namespace: str, role: str) -> str:
        body = {"name": name, "namespace": namespace, "role": role}
        return str(self.http("POST", "/v1/admin/tokens", body)["secret"])


class Worker:
    """A worker that does by hand what the test says."""

    def __init__(self, server: Server, kind: str) -> None:
        self.server = server
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        tool = {"kind": kind, "description": f"Does {kind}.", "input_schema": schema}
        self.lane = f"lane-{kind}"
        body = {"worker_id": kind, "lanes": [self.lane], "nonce": "n", "tools": [tool]}
        server.http("PUT", f"/v1/workers/{kind}", body)

    def claim(self) -> dict[str, Any]:
        body = {"lanes": [self.lane], "wait_ms": 20_000}
        answer = self.server.http("POST", "/v1/workers/w/claim", body)
        task: dict[str, Any] = answer["tasks"][0]
        return task

    def do(self, task: dict[str, Any], verb: str, body: dict[str, Any]) -> None:
        path = f"/v1/executions/{task['execution_id']}/{verb}"
        self.server.http("POST", path, {**body, "fence": task["fence"]})


def start_worker(server: Server, folder: Path, tool: Path, program: list[str]) -> subprocess.Popen[bytes]:
    """`ff worker` with a tool, killable with the programs that it runs."""
    kind = json.loads(tool.read_text())["kind"]
    command = [PROGRAM, "worker", "--kind", kind, "--tool", str(tool), "--lease-ttl", "1s", "--", *program]
    env = environment(FF_SERVER=server.url, FF_TOKEN=ADMIN, FOLDER=str(folder))
    return subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.DEVNULL)


def start_client(server: Server, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """An agent in a process of its own."""
    program = Path(__file__).with_name("agent.py")
    env = environment(URL=f"{server.url}/mcp", TOKEN=ADMIN, FOLDER=str(folder))
    return subprocess.Popen([sys.executable, str(program), *arguments], env=env, start_new_session=True)
