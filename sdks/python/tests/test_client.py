"""The blocking client, and what both clients do when the server is away."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest

import flowfabric as ff
from flowfabric import wire
from flowfabric._calls import Following
from flowfabric.testing import Server

from .proxy import proxy
from .support import bench, run


@ff.task("double", retries=0)
async def double(ctx: ff.Context, number: int) -> int:
    await ctx.emit("number", number)
    return number * 2


@ff.task("total", retries=0)
async def total(ctx: ff.Context) -> int:
    upstreams = await ctx.upstreams()
    assert all(one.result for one in upstreams)
    return len(upstreams)


@pytest.fixture
def lane(server: Server) -> Iterator[str]:
    """A lane with a worker in a thread."""
    name = f"lane-{uuid4().hex[:12]}"
    worker = ff.Worker([double, total], server.url, lanes=[name], drain=1.0, claim_wait=1.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield name
    worker.stop()
    thread.join(30)


def test_a_blocking_program_submits_waits_and_reads(server: Server, lane: str) -> None:
    with server.client() as client:
        execution = client.submit(double, 21, lane=lane, tags={"team": lane}, priority=10)
        assert execution.result(20) == 42
        assert execution.get().priority == 10
        assert [event.json() for event in execution.tail() if event.frame] == [21]
        assert [one.execution_id for one in client.list(tag=f"team={lane}")] == [execution.id]
        assert client.execution(execution.id, int).result() == 42
        replayed = execution.replay()
        assert replayed.public_state
        assert execution.result(20) == 42
        kinds = {event.event.event_type for event, _ in zip(client.events(kinds="completion"), range(1), strict=False)}
        assert kinds


def test_a_batch_answers_for_each_of_its_submissions(server: Server, lane: str) -> None:
    with server.client() as client:
        made = [ff.submission(double, number, lane=lane) for number in range(5)]
        made.insert(2, ff.submission("double", 1, lane="not a lane"))
        answers = client.submit_all(made)
        refused = answers.pop(2)
        assert isinstance(refused, ff.Refused)
        assert refused.code == "invalid"
        assert [one.result(20) for one in answers if isinstance(one, ff.Execution)] == [0, 2, 4, 6, 8]


def test_the_same_key_means_the_same_execution(server: Server, lane: str) -> None:
    with server.client() as client:
        first = client.submit(double, 1, lane=lane, idempotency_key=lane)
        assert client.submit(double, 1, lane=lane, idempotency_key=lane).id == first.id
        with pytest.raises(ff.Conflict) as raised:
            client.submit(double, 2, lane=lane, idempotency_key=lane)
        assert raised.value.code == "idempotency_conflict"


def test_a_flow_is_created_in_one_call(server: Server, lane: str) -> None:
    with server.client() as client:
        flow = ff.Flow("report", tags={"team": "a"})
        flow.node("left", double, 1, lane=lane).node("right", double, 2, lane=lane).node("sum", total, lane=lane)
        nodes = client.create_flow(flow.edge("left", "sum").edge("right", "sum"))
        assert nodes["sum"].result(20) == 2
        assert nodes["left"].result(20) == 2


def test_an_end_without_success_and_a_wait_that_is_up_are_errors_of_their_own(server: Server) -> None:
    with server.client() as client:
        nobody = client.submit("nobody-serves-this", 1, lane=f"lane-{uuid4().hex[:12]}")
        with pytest.raises(TimeoutError, match="waiting"):
            nobody.result(0.05)
        assert nobody.explain().reasons
        nobody.cancel("not needed")
        with pytest.raises(ff.NotCompleted) as raised:
            nobody.result(5)
        assert raised.value.public_state == "cancelled"
        with pytest.raises(ff.NotFound) as missing:
            client.execution("0000-01890a5d-ac96-774b-bcce-b302099a8057").get()
        assert missing.value.code == "execution_not_found"


def test_a_call_is_repeated_while_the_server_is_away_and_takes_effect_once(tmp_path: Path) -> None:
    server = Server(f"sqlite://{tmp_path}/flowfabric.db", options=["--log-level", "error"])
    with server.client() as client:
        with pytest.raises(ff.Unreachable):
            server.client(retry=ff.RetryPolicy(max_elapsed=0.1)).submit("k")
        starting = threading.Timer(0.3, server.start)
        starting.start()
        execution = client.submit("k", "once")
        starting.join()
        try:
            assert [one.execution_id for one in client.list(kind="k")] == [execution.id]
        finally:
            server.stop()


#: Characters that end a line for Python, and none of a stream.
ODD = "one\u2028two\u2029three\u0085four é"
SAID = [("ping", {}), ("paused", {"reason": ODD}), ("attempt", {"attempt": 1}), ("end", {"public_state": "failed"})]


def written(end: str) -> bytes:
    """A stream whose lines end so."""
    events = [["event: " + kind, "id: 1", "data: " + json.dumps(data, ensure_ascii=False), ""] for kind, data in SAID]
    return "".join(line + end for event in events for line in event).encode()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_a_line_of_a_stream_ends_where_its_protocol_says(end: str) -> None:
    text = written(end)
    for size in (1, 2, 3, 7, len(text)):
        following = Following("x", "0-0")
        following.request()
        parts = [text[place : place + size] for place in range(0, len(text), size)]
        events = [event for part in parts for event in following.read(part)]
        assert [(event.kind, event.data) for event in events] == SAID[1:]
    # The half of a line with which a connection was cut belongs to no line of the next one.
    following = Following("x", "0-0")
    for part in (text[:-40], text):
        following.request()
        events = list(following.read(part))
    assert events[-1].kind == "end"


def test_both_clients_read_a_stream_with_the_line_ends_of_other_protocols() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(written("\n"))

        def log_message(self, *_: object) -> None:
            return

    async def test(url: str) -> None:
        async with ff.AsyncClient(url) as client:
            assert [(one.kind, one.data) async for one in client.execution("x").tail()] == SAID[1:]

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            with ff.Client(url) as client:
                assert [(one.kind, one.data) for one in client.execution("x").tail()] == SAID[1:]
            run(test(url))
        finally:
            server.shutdown()


def test_a_tail_goes_on_after_its_last_frame_when_the_server_was_restarted(tmp_path: Path) -> None:
    gate = asyncio.Event()

    @ff.task("talker", retries=0)
    async def talker(ctx: ff.Context) -> None:
        for number in range(5):
            await ctx.emit("n", number)
        await gate.wait()
        for number in range(5, 10):
            await ctx.emit("n", number)

    async def test() -> None:
        server = Server(f"sqlite://{tmp_path}/flowfabric.db", options=["--log-level", "error"])
        server.start()
        try:
            async with bench(server, talker) as its:
                execution = await its.submit(talker)
                seen = []
                async for event in execution.tail():
                    if event.frame:
                        seen.append(event.json())
                    if len(seen) == 5 and not gate.is_set():
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
                        gate.set()
                assert seen == list(range(10))
        finally:
            server.stop()

    run(test())


def test_waiting_for_a_result_does_not_block_the_loop(server: Server) -> None:
    async def test() -> None:
        async with server.async_client() as client:
            execution = await client.submit("nobody", lane=f"lane-{uuid4().hex[:12]}")
            began = time.monotonic()
            waits = await asyncio.gather(*(execution.wait(0.3) for _ in range(20)), return_exceptions=True)
            assert all(isinstance(one, TimeoutError) for one in waits)
            assert time.monotonic() - began < 5

    run(test())


@pytest.mark.parametrize("approved", [True, False])
def test_what_waits_for_people_is_listed_and_decided(approved: bool, server: Server) -> None:
    """A worker that is no program of ours asks: it suspends its task with a question."""

    async def test() -> None:
        async with server.async_client() as client:
            lane = f"lane-{uuid4().hex[:12]}"
            execution = await client.submit("refund", 40, lane=lane)
            claimed = await client.call(wire.claim, instance_id=lane, lanes=[lane], wait_ms=20_000)
            (task,) = claimed.tasks
            await client.call(
                wire.suspend,
                execution_id=task.execution_id,
                fence=task.fence.model_dump(),
                reason="approval",
                condition={"any": [{"name": "approve"}]},
                question="Refund 40 EUR to Ann?",
            )
            (asked,) = [one async for one in client.approvals(execution_id=execution.id)]
            assert (asked.question, asked.kind) == ("Refund 40 EUR to Ann?", "refund")
            decided = await (execution.approve({"amount": 40}) if approved else execution.reject())
            assert decided.outcome
            assert [one async for one in client.approvals(execution_id=execution.id)] == []
            resumed = await client.call(wire.claim, instance_id=lane, lanes=[lane], wait_ms=20_000)
            signals = await client.call(wire.list_resume_signals, execution_id=resumed.tasks[0].execution_id)
            assert [one.name for one in signals.items] == ["approve" if approved else "reject"]

    run(test())


def test_a_hard_limit_is_an_error_of_the_task_and_a_soft_one_is_said(server: Server) -> None:
    name = f"team-{uuid4().hex[:12]}"

    @ff.task("spender", retries=0, budgets=[name])
    async def spender(ctx: ff.Context, tokens: int) -> str:
        answer = await ctx.usage({"tokens": tokens}, key="all")
        return answer.budgets[name].outcome

    async def test() -> None:
        async with bench(server, spender) as its:
            await its.client.create_budget(name, hard={"tokens": 100}, soft={"tokens": 10})
            assert await (await its.submit(spender, 5)).result(20) == "ok"
            assert await (await its.submit(spender, 50)).result(20) == "soft_breach"
            with pytest.raises(ff.NotCompleted) as raised:
                await (await its.submit(spender, 500)).result(20)
            assert raised.value.category == "budget_exceeded"
            assert raised.value.reason == f"budget {name}: the limit of tokens is reached"
            assert (await its.client.budget(name)).usage == {"tokens": 55}

    run(test())


def test_submissions_at_the_same_time_share_calls_and_each_has_its_own_answer(server: Server) -> None:
    async def test() -> None:
        with proxy(server.url) as its:
            async with ff.AsyncClient(its.url) as client:
                lane = f"lane-{uuid4().hex[:12]}"
                many = [
                    client.submit("any", number, lane=lane, idempotency_key=f"{lane}-{number // 2}")
                    for number in range(60)
                ]
                bad = [client.submit("x" * 10_000, lane=lane), client.submit("any", lane="x" * 10_000)]
                made = await asyncio.gather(*many, *bad, return_exceptions=True)
                # A key that is used twice at once is one execution, and another input under it is refused.
                ids = Counter(one.id for one in made if isinstance(one, ff.AsyncExecution))
                assert len(ids) == 30
                refused = [one for one in made if isinstance(one, ff.Refused)]
                assert {one.code for one in refused} == {"idempotency_conflict", "invalid"}
                assert {type(one) for one in refused} == {ff.Conflict, ff.Invalid}
                assert its.calls["batch"] in {1, 2}
                large = await asyncio.gather(*(client.submit("any", "x" * 900_000, lane=lane) for _ in range(20)))
                assert len({one.id for one in large}) == 20

    run(test())


def test_whatever_a_client_submits_is_in_its_namespace(server: Server) -> None:
    async def test() -> None:
        async with server.async_client(namespace="elsewhere") as client:
            alone = await client.submit("any")
            together = await asyncio.gather(*(client.submit("any") for _ in range(3)))
            batch = await client.submit_all([ff.submission("any"), ff.submission("any", namespace="another")])
            views = [await one.get() for one in (alone, *together, *batch) if isinstance(one, ff.AsyncExecution)]
            assert [view.namespace for view in views] == ["elsewhere"] * 5 + ["another"]

    run(test())


#: The certificate of an authority whose key nobody has.
AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBfjCCASWgAwIBAgIUAN0ReFP7Cp3MIuRRWu/lOSVmg9kwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJYXV0aG9yaXR5MCAXDTI2MTExNjE5NTI1OFoYDzIxMjYxMDIz
MTk1MjU4WjAUMRIwEAYDVQQDDAlhdXRob3JpdHkwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASUCvYpUB7QBjpyCaEP4g3JdZXCpW0xfarKbE6OmMSJht5A7o35pkwW
8iZ81ve4Xekbec3oYDPAWai6pGx7nwpvo1MwUTAdBgNVHQ4EFgQUN1PpbX8jTpDV
x3eNQnWPhM4vqrEwHwYDVR0jBBgwFoAUN1PpbX8jTpDVx3eNQnWPhM4vqrEwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiAYGbrvGl1FVOQZk09FvgSR
AH1dM8mWYmuDyWoCL3s12QIgI03sJihHRrh7TxecIeSF9QqtoiIyN7EngXeUROKk
y0I=
-----END CERTIFICATE-----
"""


def test_the_authorities_of_a_file_are_trusted_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "authority.pem"
    file.write_text(AUTHORITY)
    monkeypatch.setenv("FF_CA_FILE", str(file))
    trusted = ff.Client("https://localhost").settings.http_options()["verify"]
    assert [dict(one[0] for one in found["subject"]) for found in trusted.get_ca_certs()] == [
        {"commonName": "authority"}
    ]
    with pytest.raises(FileNotFoundError):
        ff.Client("https://localhost", ca_file=str(tmp_path / "absent.pem"))
    assert ff.Client("http://localhost", ca_file=str(tmp_path / "absent.pem")).settings.ca_file


def test_a_token_that_others_could_read_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ff.Client("http://ff.invalid", token="canary-token")
    assert "plain HTTP" in caplog.text
    assert "canary" not in caplog.text
    caplog.clear()
    for url in ("https://ff.invalid", "http://localhost:7171", "http://[::1]:7171"):
        ff.Client(url, token="canary-token")
    assert not caplog.text
