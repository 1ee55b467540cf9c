"""An agent that spends from a budget and asks a person before it acts.

ff dev &
MODEL_URL=http://127.0.0.1:8000 python agent.py
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

import httpx
from pydantic import BaseModel

import flowfabric as ff


class Decision(BaseModel):
    approved: bool
    by: str


async def ask(prompt: str) -> ff.Spent[str]:
    """One call of the model, with what it cost."""
    request = {"model": "small", "messages": [{"role": "user", "content": prompt}]}
    async with httpx.AsyncClient(base_url=os.environ["MODEL_URL"], timeout=60) as model:
        response = (await model.post("/v1/chat/completions", json=request)).raise_for_status().json()
    return ff.Spent(response["choices"][0]["message"]["content"], {"tokens": response["usage"]["total_tokens"]})


async def think(ctx: ff.Context, name: str, prompt: str) -> str:
    """A model call that holds what it may cost before it is made, and is made once, whatever crashes."""
    answer = await ctx.step("think", lambda: ctx.spend(name, {"tokens": 2_000}, ask, prompt), key=name, returns=str)
    return str(answer)


@ff.task("expense-agent", retries=3, never_retry=["budget_refused"], budgets=["agents"])
async def agent(ctx: ff.Context, claim: str) -> str:
    rules = await think(ctx, "rules", f"Which rules apply to: {claim}?")
    advice = await think(ctx, "advice", f"Should we pay {claim}, given {rules}?")
    await ctx.emit("advice", advice)
    decision = await ctx.wait_signal("decision", Decision, timeout=timedelta(days=7))
    if not decision.approved:
        return f"{claim}: rejected by {decision.by}"
    payment = ctx.uuid("payment")
    return await ctx.step("pay", lambda: f"{claim}: paid as {payment}, approved by {decision.by}", once=True)


async def main() -> None:
    async with ff.AsyncClient() as client, ff.Worker([agent], client).running():
        await client.create_budget("agents", hard={"tokens": 100_000}, soft={"tokens": 80_000})
        execution = await client.submit(agent, "a taxi to the airport")
        async for event in execution.tail():
            if event.frame:
                print(f"advice: {event.text}")
            if event.kind == "paused":
                # A person does this, with `ff signal` or in the dashboard.
                await execution.signal("decision", {"approved": "--reject" not in sys.argv, "by": "ann"})
        print(await execution.result())
        standing = (await client.budget("agents")).standing["tokens"]
        print(f"spent: {standing.used} tokens, {standing.left} are left")


if __name__ == "__main__":
    asyncio.run(main())
