"""A function that is called again does not do again what it did."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

import flowfabric as ff
from flowfabric.testing import Server

from .proxy import proxy
from .support import bench, run, steps_of, until, until_state


class Decision(BaseModel):
    approved: bool
    by: str = "nobody"


def test_recorded_steps_are_not_run_again_after_a_lost_lease(server: Server) -> None:
    ran: Counter[str] = Counter()
    begun = asyncio.Event()

    async def page(name: str) -> str:
        ran[name] += 1
        return f"page {name}"

    @ff.task("research")
    async def research(ctx: ff.Context) -> list[str]:
        first = await ctx.step("fetch", page, "first")
        second = await ctx.step("fetch", page, "second")
        if ctx.task.claim_kind == "initial":
            begun.set()
            await asyncio.Event().wait()
        return [first, second, await ctx.step("fetch", page, "third")]

    async def test() -> None:
        async with bench(server, research, lease_ttl=1.0) as its:
            execution = await its.submit(research)
            await asyncio.wait_for(begun.wait(), 10)
            await its.client.call(ff.wire.revoke_lease, execution_id=execution.id)
            assert await execution.result(20) == ["page first", "page second", "page third"]
        assert ran == {"first": 1, "second": 1, "third": 1}

    run(test())


def test_what_a_step_returns_is_the_same_when_it_ran_and_when_it_is_read(server: Server) -> None:
    @ff.task("typed", retries=0)
    async def typed(ctx: ff.Context) -> list[str]:
        async def decide() -> Decision:
            return Decision(approved=True, by="ann")

        decision = await ctx.step("decide", decide)
        pair: Any = await ctx.step("pair", lambda: (1, 2))
        data = await ctx.step("data", lambda: b"\xff", returns=bytes)
        if ctx.task.claim_kind == "initial":
            await ctx.wait_signal("go on")
        return [type(decision).__name__, decision.by, type(pair).__name__, repr(data)]

    async def test() -> None:
        async with bench(server, typed) as its:
            execution = await its.submit(typed)
            await until_state(execution, "suspended")
            await execution.signal("go on")
            assert await execution.result(10) == ["Decision", "ann", "list", "b'\\xff'"]

    run(test())


def test_parallel_steps_need_keys_and_a_key_is_used_once(server: Server) -> None:
    async def number(value: int) -> int:
        await asyncio.sleep(0.01)
        return value

    @ff.task("keyed", retries=0)
    async def keyed(ctx: ff.Context) -> list[int]:
        return await asyncio.gather(*(ctx.step("n", number, n, key=str(n)) for n in range(20)))

    @ff.task("unkeyed", retries=0)
    async def unkeyed(ctx: ff.Context) -> None:
        first = asyncio.ensure_future(ctx.step("n", number, 1))
        try:
            await ctx.step("n", number, 2)
        finally:
            await first

    @ff.task("twice", retries=0)
    async def twice(ctx: ff.Context) -> None:
        await ctx.step("n", number, 1, key="a")
        await ctx.step("n", number, 1, key="a")

    async def test() -> None:
        async with bench(server, keyed, unkeyed, twice) as its:
            assert await (await its.submit(keyed)).result(10) == list(range(20))
            for task, category in ((unkeyed, "step_key_required"), (twice, "duplicate_step")):
                with pytest.raises(ff.NotCompleted) as raised:
                    await (await its.submit(task)).result(10)
                assert raised.value.category == category

    run(test())


def test_a_retry_runs_the_failed_step_again_and_no_other(server: Server) -> None:
    ran: Counter[str] = Counter()

    def work(name: str, fails: int) -> str:
        ran[name] += 1
        if ran[name] <= fails:
            raise RuntimeError(f"{name} failed")
        return name

    @ff.task("retried", policy={"retry": {"max_retries": 3, "backoff": {"fixed": {"delay_ms": 10}}}})
    async def retried(ctx: ff.Context) -> list[str]:
        caught = ""
        try:
            await ctx.step("caught", work, "caught", 1)
        except ff.StepFailed as failed:
            caught = failed.reason
        compensated = await ctx.step("compensate", work, "compensate", 0)
        tried = await ctx.step("tried", work, "tried", 1, retry=ff.Retry(2, 0.01))
        return [caught, compensated, tried, await ctx.step("last", work, "last", 2)]

    async def test() -> None:
        async with bench(server, retried) as its:
            execution = await its.submit(retried)
            assert await execution.result(20) == ["RuntimeError: caught failed", "compensate", "tried", "last"]
        assert ran == {"caught": 1, "compensate": 1, "tried": 2, "last": 3}

    run(test())


@pytest.mark.parametrize(
    ("answer", "expected", "runs"),
    [("did_not_happen", "paid now", 2), ("happened", "receipt 7", 1), ("fail", "in_doubt", 1)],
)
def test_a_once_step_in_doubt_asks_and_takes_each_answer(server: Server, answer: str, expected: str, runs: int) -> None:
    ran: list[str] = []

    def pay() -> str:
        ran.append("pay")
        if len(ran) == 1:
            raise TimeoutError("no answer from the bank")
        return "paid now"

    @ff.task("pay", retries=0)
    async def paying(ctx: ff.Context) -> str:
        try:
            return await ctx.step("pay", pay, once=True)
        except ff.StepFailed as failed:
            return failed.category

    async def test() -> None:
        async with bench(server, paying) as its:
            execution = await its.submit(paying)
            await until_state(execution, "suspended")
            result = {"result": "receipt 7"} if answer == "happened" else {}
            await its.client.call(
                ff.wire.decide_step, execution_id=execution.id, step={"name": "pay"}, answer=answer, **result
            )
            assert await execution.result(20) == expected
        assert len(ran) == runs

    run(test())


def test_a_counted_step_with_another_input_is_asked_about_and_a_keyed_one_says_beforehand(server: Server) -> None:
    ran: Counter[str] = Counter()

    def count(name: str) -> int:
        ran[name] += 1
        return ran[name]

    @ff.task("changed", retries=0)
    async def changed(ctx: ff.Context) -> list[int]:
        run_number = ctx.task.fence.epoch
        kept = await ctx.step("keyed", count, "kept", key="a", input=run_number)
        again = await ctx.step("keyed", count, "again", key="b", input=run_number, on_change="run_again")
        await ctx.wait_signal("go on")
        return [kept, again, await ctx.step("counted", count, "counted", input=run_number > 3)]

    async def test() -> None:
        async with bench(server, changed) as its:
            execution = await its.submit(changed)
            await until_state(execution, "suspended")
            await execution.signal("go on")
            assert await execution.result(20) == [1, 2, 1]
            view = await execution.get()
            assert [one.name for one in view.steps_changed] == ["keyed"]

    run(test())


def test_a_loop_continues_as_new_with_an_empty_journal(server: Server) -> None:
    @ff.task("loop", retries=0)
    async def loop(ctx: ff.Context, count: int) -> int:
        await ctx.step("work", lambda: count)
        if count < 5:
            await ctx.continue_as_new(count + 1)
        return count

    async def test() -> None:
        async with bench(server, loop) as its:
            execution = await its.submit(loop, 1)
            assert await execution.result(20) == 5
            assert await steps_of(execution) == [("work", "completed")]

    run(test())


def test_a_once_body_that_says_nothing_happened_is_tried_again(server: Server) -> None:
    ran: list[int] = []

    async def send() -> int:
        ran.append(1)
        if len(ran) < 3:
            raise ff.NotDone("the connection was refused")
        return len(ran)

    @ff.task("send", retries=0)
    async def sending(ctx: ff.Context) -> int:
        return await ctx.step("send", send, once="fail", retry=ff.Retry(3, 0.01))

    async def test() -> None:
        async with bench(server, sending) as its:
            assert await (await its.submit(sending)).result(10) == 3

    run(test())


def test_a_wait_lets_go_of_the_task_and_the_function_unwinds(server: Server) -> None:
    seen: list[str] = []

    @ff.task("waits", retries=0)
    async def waits(ctx: ff.Context) -> bool:
        try:
            decision = await ctx.wait_signal("decision", Decision)
        except Exception:
            seen.append("an ordinary except sees it")
            raise
        except ff.Parked:
            seen.append("parked")
            with pytest.raises(ff.Parked):
                await ctx.step("too late", lambda: 1)
            raise
        return decision.approved

    async def unwound() -> bool | None:
        return True if seen else None

    async def test() -> None:
        async with bench(server, waits) as its:
            execution = await its.submit(waits)
            await until_state(execution, "suspended")
            # The worker learns of it a moment later.
            await until(unwound)
            assert seen == ["parked"]
            await execution.signal("decision", {"approved": True})
            assert await execution.result(10) is True
            assert await steps_of(execution) == [("decision", "completed")]

    run(test())


def test_a_signal_before_the_wait_is_kept_and_one_that_does_not_come_times_out(server: Server) -> None:
    gate = asyncio.Event()

    @ff.task("early", retries=0)
    async def early(ctx: ff.Context) -> list[str]:
        await ctx.step("begin", gate.wait)
        first = await ctx.wait_signal("word", str)
        try:
            await ctx.wait_signal("never", timeout=0.05)
        except ff.SignalTimeout as late:
            return [first, late.category]
        return []

    async def test() -> None:
        async with bench(server, early) as its:
            execution = await its.submit(early)
            await until_state(execution, "active")
            await execution.signal("word", "kept")
            gate.set()
            assert await execution.result(20) == ["kept", "timeout"]

    run(test())


def test_two_branches_wait_for_two_signals_and_the_second_link_still_works(server: Server) -> None:
    @ff.task("branches", retries=0)
    async def branches(ctx: ff.Context) -> list[str]:
        async def branch(name: str) -> str:
            said = await ctx.wait_signal(name, str)
            return await ctx.step("note", lambda: f"{name}: {said}", key=name)

        return list(await asyncio.gather(branch("left"), branch("right")))

    async def test() -> None:
        async with bench(server, branches) as its:
            execution = await its.submit(branches)
            await until_state(execution, "suspended")
            waiting = await its.client.call(ff.wire.list_pending_waitpoints, execution_id=execution.id)
            assert len(waiting.items) == 2
            await execution.signal("left", "yes")

            async def noted() -> bool | None:
                return True if ("note", "completed") in await steps_of(execution) else None

            await until(noted)
            await until_state(execution, "suspended")
            await execution.signal("right", "no")
            assert await execution.result(10) == ["left: yes", "right: no"]

    run(test())


def test_a_step_does_not_wait_for_something_durable(server: Server) -> None:
    @ff.task("nested", retries=0)
    async def nested(ctx: ff.Context) -> None:
        async def body() -> None:
            await ctx.wait_signal("never")

        await ctx.step("body", body)

    async def test() -> None:
        async with bench(server, nested) as its:
            with pytest.raises(ff.NotCompleted) as raised:
                await (await its.submit(nested)).result(10)
            assert raised.value.category == "wait_in_step"

    run(test())


def test_time_and_chance_are_the_same_in_every_run(server: Server) -> None:
    seen: list[list[str]] = []

    @ff.task("chance", retries=0)
    async def chance(ctx: ff.Context) -> None:
        at = await ctx.now()
        seen.append([at.isoformat(), str(ctx.random("dice")), str(ctx.uuid("payment"))])
        await ctx.wait_signal("again")

    async def test() -> None:
        async with bench(server, chance) as its:
            execution = await its.submit(chance)
            await until_state(execution, "suspended")
            await execution.signal("again")
            await execution.result(10)
            other = await its.submit(chance)
            await until_state(other, "suspended")
            await other.cancel()
        assert seen[0] == seen[1]
        assert not set(seen[0]) & set(seen[2])

    run(test())


def test_a_child_is_spawned_once_and_its_failure_is_the_parents_to_catch(server: Server) -> None:
    ran: Counter[str] = Counter()

    @ff.task("leaf", retries=0)
    async def leaf(ctx: ff.Context, name: str) -> str:
        ran[name] += 1
        if name == "bad":
            raise ff.TaskError("no fruit here")
        return name.upper()

    @ff.task("tree", retries=0)
    async def tree(ctx: ff.Context) -> list[str]:
        good = await ctx.child("good", leaf, "good")
        try:
            await ctx.child("bad", leaf, "bad")
        except ff.ChildFailed as failed:
            return [good, failed.category, failed.reason]
        return []

    async def test() -> None:
        async with bench(server, leaf, tree) as its:
            kinds = {"lane": its.lane}
            leaf.options.update(kinds)  # type: ignore[typeddict-item]
            assert await (await its.submit(tree)).result(20) == ["GOOD", "failed", "no fruit here"]
        assert ran == {"good": 1, "bad": 1}

    run(test())


def test_a_replay_spawns_a_child_anew(server: Server) -> None:
    ran: list[str] = []

    @ff.task("leaf", retries=0)
    async def leaf(ctx: ff.Context) -> str:
        ran.append(ctx.execution_id)
        return ctx.execution_id

    @ff.task("tree", retries=0)
    async def tree(ctx: ff.Context, lane: str) -> str:
        return await ctx.child("leaf", leaf, lane=lane)

    async def test() -> None:
        async with bench(server, leaf, tree) as its:
            execution = await its.submit(tree, its.lane)
            first = await execution.result(20)
            await execution.replay()
            again = await execution.result(20)
            assert first != again
            assert ran == [first, again]

    run(test())


def test_children_that_are_spawned_together_share_a_call_and_keep_their_order(server: Server) -> None:
    @ff.task("square", retries=0)
    async def square(ctx: ff.Context, number: int) -> int:
        return number * number

    @ff.task("squares", retries=0)
    async def squares(ctx: ff.Context, lane: str) -> int:
        children = [ctx.child("square", square, number, str(number), lane=lane) for number in range(100)]
        return sum(await asyncio.gather(*children))

    async def test() -> None:
        async with bench(server, square, squares, concurrency=50) as its:
            assert await (await its.submit(squares, its.lane)).result(50) == sum(n * n for n in range(100))

    run(test())


def test_a_journal_too_large_for_a_claim_is_read_in_pages(server: Server) -> None:
    ran: list[int] = []

    def large(number: int) -> str:
        ran.append(number)
        return str(number) * 20_000

    @ff.task("large", retries=0)
    async def many(ctx: ff.Context) -> int:
        total = 0
        for number in range(30):
            total += len(await ctx.step("large", large, number))
        await ctx.wait_signal("again")
        return total

    async def test() -> None:
        async with bench(server, many) as its:
            execution = await its.submit(many)
            await until_state(execution, "suspended")
            await execution.signal("again")
            assert await execution.result(20) == 20_000 * (10 + 2 * 20)
        assert ran == list(range(30))

    run(test())


def test_a_fork_goes_on_before_a_step_and_a_diff_shows_what_it_did_otherwise(server: Server) -> None:
    @ff.task("forked", retries=0)
    async def forked(ctx: ff.Context, model: str) -> str:
        plan = await ctx.step("plan", lambda: "one plan")
        return plan + await ctx.step("write", lambda: f" by {model}", key="draft")

    async def test() -> None:
        async with bench(server, forked) as its:
            origin = await its.submit(forked, "large")
            assert await origin.result(20) == "one plan by large"
            fork = await origin.fork(("write", "draft"), input="small", tags={"why": "cheaper"})
            assert await fork.result(20) == "one plan by small"
            (different,) = await origin.diff(fork)
            assert different.one
            assert different.other
            assert (different.one.name, different.one.key) == ("write", "draft")
            assert (await origin.result(5), await origin.diff(origin)) == ("one plan by large", [])
            # The blocking client has the same methods.
            with server.client() as client:
                same = client.execution(origin.id).diff(client.execution(fork.id))
                assert [pair.one and pair.one.name for pair in same] == ["write"]
                again = client.execution(origin.id).fork("plan")
            assert await its.client.execution(again.id).result(20) == "one plan by large"

    run(test())


def test_results_that_are_too_large_together_are_recorded_in_several_calls(server: Server) -> None:
    @ff.task("bulky", retries=0)
    async def bulky(ctx: ff.Context) -> int:
        steps = (ctx.step("page", lambda: "x" * 900_000, key=str(place)) for place in range(20))
        return sum(map(len, await asyncio.gather(*steps)))

    async def test() -> None:
        with proxy(server.url) as its:
            async with server.async_client() as client:
                lane = f"lane-{uuid4().hex[:12]}"
                execution = await client.submit(bulky, lane=lane)
                async with ff.AsyncClient(its.url) as through, ff.Worker([bulky], through, lanes=[lane]).running():
                    assert await execution.result(40) == 20 * 900_000
        records = [body["entries"] for name, body in its.bodies if name == "steps"]
        assert sum(map(len, records)) == 20
        assert len(records) <= 8

    run(test())


@pytest.mark.parametrize(
    ("name", "key", "size"),
    [("bad", "large", 2_000_000), ("long" * 33, "name", 1), ("bad", "\ud800", 1)],
    ids=["large", "long name", "unwritable key"],
)
def test_an_entry_that_is_refused_fails_its_own_step_only(name: str, key: str, size: int, server: Server) -> None:
    paid: Counter[str] = Counter()

    @ff.task("beside")
    async def beside(ctx: ff.Context) -> list[str]:
        working: set[str] = set()
        all_work = asyncio.Event()

        async def work(which: str) -> str:
            paid[which] += 1
            working.add(which)
            if len(working) == 4:
                all_work.set()
            # They end in the same turn of the loop, so that their entries share a call.
            await all_work.wait()
            return "x" * size if which == "bad" else which

        steps = [ctx.step("pay", work, str(place), key=str(place), once=True) for place in range(3)]
        steps.insert(1, ctx.step(name, work, "bad", key=key))
        done = await asyncio.gather(*steps, return_exceptions=True)
        return [one if isinstance(one, str) else "refused" for one in done]

    async def test() -> None:
        async with bench(server, beside) as its:
            execution = await its.submit(beside)
            assert await execution.result(20) == ["0", "refused", "1", "2"]
            assert [state for _, state in await steps_of(execution)] == ["begun"] * 3 + ["completed"] * 3

    run(test())
    assert paid == {"0": 1, "1": 1, "2": 1, "bad": 1}


@pytest.mark.parametrize(
    ("reason", "recorded"),
    [("é" * 3_000, "é" * 2_048), ("a\0b", "ab"), ("\ud83d!", "\\ud83d!")],
    ids=["long", "nul", "half a pair"],
)
def test_a_step_fails_with_its_own_category_whatever_its_failure_says(
    reason: str, recorded: str, server: Server
) -> None:
    caught: list[tuple[str, str]] = []

    @ff.task("wordy", retries=3, never_retry=["final"])
    async def wordy(ctx: ff.Context) -> None:
        def fail() -> None:
            raise ff.TaskError(reason, category="final")

        try:
            await ctx.step("fail", fail)
        except ff.StepFailed as failed:
            caught.append((failed.category, failed.reason))
            raise

    async def test() -> None:
        async with bench(server, wordy) as its:
            execution = await its.submit(wordy)
            failure = (await execution.wait(10)).last_failure
            assert failure
            assert (failure.category, failure.reason) == ("final", recorded)
            entries = [(step.state, step.category, step.message) async for step in execution.steps()]
            assert entries == [("failed", "final", recorded)]

    run(test())
    assert caught == [("final", recorded)]
