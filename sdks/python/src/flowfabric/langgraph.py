"""LangGraph graphs whose checkpoints are in the journal of their task.

    @ff.task("plan")
    async def plan(ctx: ff.Context, question: str) -> str:
        saver = await JournalSaver.open(ctx)
        graph = builder.compile(checkpointer=saver)
        return (await saver.run(graph, {"question": question}))["answer"]

A graph whose worker dies goes on after the last node that ended. A checkpoint has at most 1 MiB.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, get_checkpoint_metadata
from langgraph.checkpoint.memory import InMemorySaver

from .context import Context
from .task import codec


class JournalSaver(InMemorySaver):
    """Every change of its checkpoints is an entry of the journal before it takes effect; a new run begins with the
    changes that are there. Made with `open`."""

    def __init__(self, ctx: Context, name: str) -> None:
        super().__init__()
        self._journal, self._name, self._thread = ctx._run.journal, name, ctx.execution_id
        self._changes = 0

    @classmethod
    async def open(cls, ctx: Context, name: str = "langgraph") -> JournalSaver:
        """The checkpoints of the task in hand, as its earlier runs left them."""
        saver = cls(ctx, name)
        recorded = await saver._journal.take(name)
        saver._changes = len(recorded)
        for entry in recorded:
            assert entry.result is not None
            kind, data = base64.b64decode(entry.result.payload_base64).split(b":", 1)
            saver._apply(*saver.serde.loads_typed((kind.decode(), data)))
        return saver

    @property
    def config(self) -> RunnableConfig:
        """The one thread of a task that needs no other."""
        return {"configurable": {"thread_id": self._thread}}

    async def run(self, graph: Any, input: Any, **options: Any) -> Any:
        """Runs a compiled graph to its end, or goes on with it where an earlier run of the task was."""
        begun = await self.aget_tuple(self.config)
        return await graph.ainvoke(None if begun else input, self.config, **options)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Saves a checkpoint."""
        merged = get_checkpoint_metadata(config, metadata)
        saved: RunnableConfig = await self._change("put", _reduced(config), checkpoint, merged, new_versions)
        return saved

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Saves what a node has written."""
        await self._change("put_writes", _reduced(config), list(writes), task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Forgets a thread."""
        await self._change("delete_thread", thread_id)

    async def _change(self, method: str, *args: Any) -> Any:
        kind, data = self.serde.dumps_typed([method, list(args)])
        self._changes += 1
        entry = {"name": self._name, "key": str(self._changes), "state": "completed"}
        await self._journal.record({**entry, **codec(bytes).encode("result", kind.encode() + b":" + data)})
        return self._apply(method, args)

    def _apply(self, method: str, args: Sequence[Any]) -> Any:
        return getattr(InMemorySaver, method)(self, *args)


def _reduced(config: RunnableConfig) -> dict[str, Any]:
    """The part of a configuration that a checkpoint needs: the rest lives in this process only."""
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return {"configurable": {name: value for name, value in config["configurable"].items() if name in names}}
