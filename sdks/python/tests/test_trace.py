"""The trace of a submitter goes on in the function, and in what the function submits; and what a function logs."""

from __future__ import annotations

import logging

import pytest
from opentelemetry import context, trace

import flowfabric as ff
from flowfabric.testing import Server

from .support import bench, run

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C


def trace_id() -> int:
    return int(trace.get_current_span().get_span_context().trace_id)


def test_a_function_runs_in_the_trace_of_its_submitter_and_so_do_its_children(server: Server) -> None:
    @ff.task("leaf", retries=0)
    def leaf(ctx: ff.SyncContext) -> int:
        return trace_id()

    @ff.task("root", retries=0)
    async def root(ctx: ff.Context) -> list[int]:
        in_step = await ctx.step("look", trace_id)
        return [in_step, await ctx.child("leaf", leaf, lane=ctx.task.lane), trace_id()]

    async def test() -> None:
        submitter = trace.SpanContext(TRACE_ID, 0xB7AD6B7169203331, is_remote=False, trace_flags=trace.TraceFlags(1))
        async with bench(server, leaf, root) as its:
            token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(submitter)))
            traced = await its.submit(root)
            context.detach(token)
            assert await traced.result(20) == [TRACE_ID] * 3
            assert await (await its.submit(leaf)).result(20) == 0

    run(test())


def test_a_function_logs_under_the_name_of_its_execution(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    @ff.task("logs", retries=0)
    async def logs(ctx: ff.Context) -> None:
        ctx.log.info("read %d", 3)

    async def test() -> str:
        async with bench(server, logs) as its:
            execution = await its.submit(logs)
            await execution.result(20)
            return execution.id

    with caplog.at_level(logging.INFO, "flowfabric.task"):
        its_id = run(test())
    (record,) = [one for one in caplog.records if one.name == "flowfabric.task"]
    assert record.getMessage() == "read 3"
    assert (vars(record)["execution_id"], vars(record)["kind"]) == (its_id, "logs")
