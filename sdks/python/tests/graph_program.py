"""A worker with a LangGraph graph that dies in the middle of a tool call, the first time."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

import flowfabric as ff
from flowfabric.langgraph import JournalSaver

folder = Path(os.environ["FOLDER"])


class State(TypedDict, total=False):
    question: str
    plan: str
    found: str
    answer: str


def note(line: str) -> int:
    """Leaves a line, and says how often it was left."""
    with (folder / "log").open("a") as log:
        log.write(line + "\n")
    return (folder / "log").read_text().splitlines().count(line)


async def plan(state: State) -> State:
    note("plan")
    return {"plan": f"look up {state['question']}"}


async def look_up(state: State) -> State:
    if note("look up") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"found": state["plan"].upper()}


async def answer(state: State) -> State:
    note("answer")
    return {"answer": f"I know: {state['found']}"}


builder: Any = StateGraph(State)
builder.add_node("plan", plan).add_node("look_up", look_up).add_node("answer", answer)
builder.add_edge(START, "plan").add_edge("plan", "look_up").add_edge("look_up", "answer").add_edge("answer", END)


@ff.task("graph", retries=0)
async def graph(ctx: ff.Context, question: str) -> str:
    saver = await JournalSaver.open(ctx)
    state = await saver.run(builder.compile(checkpointer=saver), {"question": question}, durability="sync")
    return str(state["answer"])


if __name__ == "__main__":
    ff.Worker([graph], lanes=sys.argv[1:], lease_ttl=1.0).run()
