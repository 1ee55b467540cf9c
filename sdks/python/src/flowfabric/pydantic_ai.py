"""pydantic-ai agents whose model requests and tool calls are steps.

    agent = DurableAgent(Agent("openai:gpt-5", name="researcher"))

    @ff.task("research")
    async def research(ctx: ff.Context, question: str) -> str:
        return (await agent.run(question)).output

In a task, an agent that dies in the middle goes on where it was: no model request that was answered is made again, and
no tool that ran is called again. Outside of a task the agent is an ordinary one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeAlias

from pydantic_ai import RunContext, durable_exec
from pydantic_ai.agent import AbstractAgent, AgentRun, WrapperAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.output import OutputDataT
from pydantic_ai.tools import AgentDepsT

from ._journal import IN_STEP
from ._step import StepOptions
from .context import current

#: An operation of an agent.
_Body: TypeAlias = Callable[[], Awaitable[object]]


class _Backend(durable_exec.JournalCallableOperationBackend[StepOptions]):
    """Each operation of an agent is a step of the task in hand."""

    async def execute(
        self, *, name: str, body: _Body, cache_key: tuple[object, ...], config: StepOptions, **_: object
    ) -> object:
        ctx = current()
        assert ctx is not None, "an operation is durable only in a task"

        async def run() -> Any:
            return await body()

        # Tools run side by side: the id of a call is in the model's answer, which is in the journal. Everything else
        # of one run comes in order.
        run_context = next((one for one in cache_key if isinstance(one, RunContext)), None)
        run_id, call_id = (run_context.run_id, run_context.tool_call_id) if run_context else (None, None)
        place = call_id or str(ctx._run.count(f"{name} {run_id}"))
        key = f"{(run_id or '').rpartition(':')[2]}.{place}"
        options: StepOptions = {**config, "key": key, "returns": Any}
        return await ctx.step(name, run, **options)


class Durability(durable_exec.BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable in tasks. `model`, `tool` and `event` are options of the steps, such as `retry` or
    `once`; a tool's own are in its metadata, under `flowfabric`, where `False` says that it is no step."""

    engine_spec = durable_exec.DurabilityEngineSpec(
        engine_name="FlowFabric",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=durable_exec.JSON_CODEC,
        tool_config_key="flowfabric",
    )

    def __init__(self, **options: Any) -> None:
        roles = ("model", "tool", "event")
        self._options: dict[str, Any] = {role: options.pop(role, None) or {} for role in roles}
        super().__init__(**options)

    @property
    def in_durable_context(self) -> bool:
        """Whether a task is in hand, outside of its steps."""
        return current() is not None and not IN_STEP.get()

    def get_default_run_id(self) -> str | None:
        """The same in every run of the function."""
        ctx = current()
        return f"{ctx.execution_id}:{ctx._run.count('agent run')}" if ctx and self.in_durable_context else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same in every run of the function."""
        return durable_exec.conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """When the agent's run first began."""
        ctx = current()
        return await ctx.now(f"{self.name}__start", run_id) if ctx and self.in_durable_context else None

    def get_durable_operation_backend(self) -> _Backend:
        """Steps of the task in hand."""

        resolve = self._build_resolve_tool_config(self._options["tool"])

        def tool_options(_: object, tool: Any, tool_name: str) -> Any:
            return resolve(tool, tool_name)

        config = durable_exec.RoleBasedOperationConfig[StepOptions](
            **self._options, capability={}, resolve_tool=tool_options
        )
        return _Backend(agent_name=self.name, default_model_id=self._default_model_id, config=config)


class DurableAgent(WrapperAgent[AgentDepsT, OutputDataT]):
    """An agent whose runs are durable in tasks; the options are those of `Durability`."""

    def __init__(self, wrapped: AbstractAgent[AgentDepsT, OutputDataT], **options: Any) -> None:
        super().__init__(wrapped)
        self._durability: Durability[AgentDepsT] = Durability(**options)

    @asynccontextmanager
    async def iter(  # type: ignore[override]
        self, *prompt: Any, capabilities: Sequence[AbstractCapability[AgentDepsT]] | None = None, **options: Any
    ) -> AsyncIterator[AgentRun[AgentDepsT, Any]]:
        """Every way to run an agent comes through here."""
        durable = [*(capabilities or ()), self._durability]
        async with super().iter(*prompt, capabilities=durable, **options) as run:
            yield run
