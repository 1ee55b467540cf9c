"""An agent of the OpenAI Agents SDK that survives the death of its worker in the middle of a tool call.

ff dev &
MODEL_URL=http://127.0.0.1:8000 python openai_agents.py worker &
python openai_agents.py
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

import flowfabric as ff


class DurableModel(Model):
    """A model each of whose answers is kept."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        ctx = ff.current()
        assert ctx is not None
        answer: ModelResponse = await ctx.step(
            "model", partial(self._model.get_response, *args, **kwargs), returns=ModelResponse
        )
        return answer

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        return self._model.stream_response(*args, **kwargs)


def fetch(word: str) -> str:
    """Stands for a search; the drill kills the process here, once."""
    crash = Path(os.environ.get("CRASH_ONCE", "/nonexistent"))
    if crash.exists():
        crash.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"The {word} follows the moon."


@function_tool
async def look_up(tool: ToolContext[Any], word: str) -> str:
    """Looks a word up."""
    ctx = ff.current()
    assert ctx is not None
    return await ctx.step("look up", fetch, word, key=tool.tool_call_id)


@ff.task("researcher", retries=3)
async def research(ctx: ff.Context, question: str) -> str:
    provider = AsyncOpenAI(base_url=os.environ["MODEL_URL"] + "/v1", api_key=os.environ.get("MODEL_KEY", "none"))
    model = DurableModel(OpenAIChatCompletionsModel("small", provider))
    agent = Agent[None](name="researcher", instructions="Look things up.", tools=[look_up], model=model)
    return str((await Runner.run(agent, question)).final_output)


def main() -> None:
    if sys.argv[1:] == ["worker"]:
        set_tracing_disabled(True)
        ff.Worker([research], lease_ttl=2.0).run()
    else:
        print(ff.Client().submit(research, "What makes the tide?").result())


if __name__ == "__main__":
    main()
