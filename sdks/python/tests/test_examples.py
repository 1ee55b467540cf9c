"""The examples run, and the agent of docs/quickstart.md is run exactly as it is printed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import flowfabric as ff
from flowfabric.testing import Server

from .model import mock_model

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server of its own: examples use the default lane."""
    with Server(f"sqlite://{tmp_path}/flowfabric.db", options=["--log-level", "error"]) as server:
        yield server


def example(server: Server, name: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env={**os.environ, "FF_SERVER": server.url, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hello(own: Server) -> None:
    assert example(own, "hello.py") == "Hello, world!\n"


def test_an_agent_with_approval_and_budget(own: Server) -> None:
    with mock_model() as model:
        said = example(own, "agent.py", MODEL_URL=model.url)
        assert "advice: An answer to: Should we pay a taxi to the airport" in said
        assert re.search(r"paid as [0-9a-f-]{36}, approved by ann\nspent: 24 tokens, 99976 are left\n$", said)
        assert set(model.asked.values()) == {1}
        assert "rejected by ann" in example(own, "agent.py", "--reject", MODEL_URL=model.url)


def test_map_reduce_over_a_thousand_pages(own: Server) -> None:
    assert example(own, "map_reduce.py") == "1000 pages: moon 2997, sea 1000, tide 2997\n"


def test_a_schedule(own: Server) -> None:
    said = example(own, "schedule.py").splitlines()
    assert said[0] == "The report of yesterday is written."
    assert len(said) == 4
    assert all(re.fullmatch(r"next: (Mon|Tues|Wednes|Thurs|Fri)day, 0[45]:00 UTC", line) for line in said[1:])


def test_a_crash_drill(own: Server) -> None:
    said = example(own, "crash_drill.py")
    assert "the sum is 10, after 1 lost lease" in said
    assert "step 0: 1, step 1: 1, step 2: 2, step 3: 1, step 4: 1" in said


def test_a_webhook_that_is_delivered_twice_is_one_order_and_one_payment(own: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "FF_SERVER": own.url}
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "webhook.py", port],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().split()[-1]
        with httpx.Client(base_url=url, trust_env=False) as sender, own.client() as client:
            placed = {
                sender.post("/orders", json={"id": "7", "amount": 100}, headers={"webhook-id": "a"}).json()["execution"]
                for _ in range(2)
            }
            (execution_id,) = placed
            for _ in range(2):
                payment = {"order": "7", "amount": 90}
                assert sender.post("/payments", json=payment, headers={"webhook-id": "b"}).is_success
            assert client.execution(execution_id).result(20) == "order 7: 10 is missing"
            assert sender.post("/orders", json={"id": 7}, headers={"webhook-id": "c"}).status_code == 400
    finally:
        process.terminate()
        process.wait(20)


def test_the_agent_of_the_documentation_as_it_is_printed(own: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    (program,) = re.findall(r"```python agent.py\n(.*?)```", page, re.DOTALL)
    assert len(program.splitlines()) <= 40
    (tmp_path / "agent.py").write_text(program)
    with mock_model() as model, own.client() as client:
        environment = {**os.environ, "FF_SERVER": own.url, "MODEL_URL": model.url}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "agent.py"], cwd=tmp_path, env=environment)

        worker = start()
        try:
            execution = client.submit("agent", "tides")
            deadline = time.monotonic() + 30
            while execution.get().public_state != "suspended":
                assert time.monotonic() < deadline
                time.sleep(0.02)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker = start()
            execution.signal("decision", {"approved": True, "by": "ann"})
            published = execution.result(30)
        finally:
            worker.terminate()
            worker.wait(20)
        assert published.startswith("An answer to: Write a paragraph from: An answer to: What is new about tides?")
        assert (tmp_path / "published.txt").read_text() == published + "\n"
        assert len(model.asked) == 3
        assert set(model.asked.values()) == {1}
        assert [event.text for event in execution.tail() if event.frame] == [published]


def test_an_agent_of_the_openai_sdk_killed_in_a_tool_call(own: Server, tmp_path: Path) -> None:
    crash = tmp_path / "crash"
    crash.touch()
    with mock_model() as model, own.client() as client:
        environment = {**os.environ, "FF_SERVER": own.url, "MODEL_URL": model.url, "CRASH_ONCE": str(crash)}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, EXAMPLES / "openai_agents.py", "worker"], env=environment)

        execution = client.submit("researcher", "What makes the tide?")
        assert start().wait(60) == -9
        second = start()
        try:
            assert execution.result(60) == "An answer to: The tide follows the moon."
        finally:
            second.terminate()
            second.wait(20)
        assert model.asked == {"What makes the tide?": 1, "The tide follows the moon.": 1}


def test_a_graph_killed_in_a_node_goes_on_after_the_last_one_that_ended(own: Server, tmp_path: Path) -> None:
    crash, log = tmp_path / "crash", tmp_path / "log"
    crash.touch()
    environment = {**os.environ, "FF_SERVER": own.url, "CRASH_ONCE": str(crash)}

    def start() -> subprocess.Popen[bytes]:
        program = EXAMPLES / "langgraph_agent.py"
        with log.open("a") as said:
            return subprocess.Popen([sys.executable, program, "worker"], env=environment, stdout=said)

    with own.client() as client:
        execution = client.submit("graph", "tides")
        assert start().wait(60) == -9
        second = start()
        try:
            assert execution.result(60) == "I know: LOOK UP TIDES"
        finally:
            second.terminate()
            second.wait(20)
    assert log.read_text().splitlines() == ["plan", "look up", "look up", "answer"]


def test_examples_are_all_run() -> None:
    here = Path(__file__).read_text()
    assert all(f'"{one.name}"' in here for one in EXAMPLES.glob("*.py")), "an example that no test runs"
    assert ff.__all__ == sorted(ff.__all__)
