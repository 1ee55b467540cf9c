"""A worker with a pydantic-ai agent that dies in the middle of a tool call, the first time."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import flowfabric as ff
from flowfabric.pydantic_ai import DurableAgent

folder = Path(os.environ["FOLDER"])


def note(line: str) -> int:
    """Leaves a line, and says how often it was left."""
    with (folder / "log").open("a") as log:
        log.write(line + "\n")
    return (folder / "log").read_text().splitlines().count(line)


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note(f"model {len(messages)}")
    if len(messages) == 1:
        calls = [ToolCallPart("look_up", {"word": word}) for word in ("tide", "moon")]
        return ModelResponse(parts=[*calls])
    if len(messages) == 3:
        return ModelResponse(parts=[ToolCallPart("charge", {"amount": 7})])
    return ModelResponse(parts=[TextPart("The moon makes the tide.")])


plain_agent = Agent(FunctionModel(model), name="researcher")


@plain_agent.tool_plain
async def look_up(word: str) -> str:
    note(f"tool {word}")
    return word.upper()


@plain_agent.tool_plain
def charge(amount: int) -> str:
    if note("charge") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"charged {amount}"


agent = DurableAgent(plain_agent)


@ff.task("research", retries=0)
async def research(ctx: ff.Context, question: str) -> str:
    return (await agent.run(question)).output


if __name__ == "__main__":
    ff.Worker([research], lanes=sys.argv[1:], lease_ttl=1.0).run()
