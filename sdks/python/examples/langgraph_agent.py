"""A LangGraph graph that survives the death of its worker in the middle of a tool call.

ff dev &
touch crash
python langgraph_agent.py &
CRASH_ONCE=crash python langgraph_agent.py worker       # dies in look_up, as of kill -9
python langgraph_agent.py worker                        # goes on with look_up; plan is not run again
"""

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


class State(TypedDict, total=False):
    question: str
    plan: str
    found: str
    answer: str


async def plan(state: State) -> State:
    print("plan", flush=True)
    return {"plan": f"look up {state['question']}"}


def search(words: str) -> str:
    """Stands for a search; the drill kills the process here, once."""
    crash = Path(os.environ.get("CRASH_ONCE", "/nonexistent"))
    if crash.exists():
        crash.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return words.upper()


async def look_up(state: State) -> State:
    print("look up", flush=True)
    return {"found": search(state["plan"])}


async def answer(state: State) -> State:
    print("answer", flush=True)
    return {"answer": f"I know: {state['found']}"}


builder: Any = StateGraph(State)
builder.add_node("plan", plan).add_node("look_up", look_up).add_node("answer", answer)
builder.add_edge(START, "plan").add_edge("plan", "look_up").add_edge("look_up", "answer").add_edge("answer", END)


@ff.task("graph", retries=0)
async def graph(ctx: ff.Context, question: str) -> str:
    saver = await JournalSaver.open(ctx)
    state = await saver.run(builder.compile(checkpointer=saver), {"question": question}, durability="sync")
    return str(state["answer"])


def main() -> None:
    if sys.argv[1:] == ["worker"]:
        ff.Worker([graph], lease_ttl=2.0).run()
    else:
        print(ff.Client().submit(graph, "tides").result())


if __name__ == "__main__":
    main()
