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


class Answer(BaseModel):
    text: str
    tokens: int


class Decision(BaseModel):
    approved: bool
    by: str


async def ask(prompt: str) -> Answer:
    """One call of the model."""
    request = {"model": "small", "messages": [{"role": "user", "content": prompt}]}
    async with httpx.AsyncClient(base_url=os.environ["MODEL_URL"], timeout=60) as model:
        response = (await model.post("/v1/chat/completions", json=request)).raise_for_status().json()
    return Answer(text=response["choices"][0]["message"]["content"], tokens=response["usage"]["total_tokens"])


async def ask_and_charge(ctx: ff.Context, name: str, prompt: str) -> str:
    """A model call that is paid for once, whatever crashes."""
    answer = await ctx.step("ask", ask, prompt, key=name, retry=3)
    await ctx.usage({"tokens": answer.tokens}, key=name)
    return answer.text


@ff.task("expense-agent", retries=3, budgets=["agents"])
async def agent(ctx: ff.Context, claim: str) -> str:
    rules = await ask_and_charge(ctx, "rules", f"Which rules apply to: {claim}?")
    advice = await ask_and_charge(ctx, "advice", f"Should we pay {claim}, given {rules}?")
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
        print(f"spent: {(await client.budget('agents')).usage['tokens']} tokens")


if __name__ == "__main__":
    asyncio.run(main())
