"""Durable execution: a function that waits, fails or dies with its worker is called again, and what it already did is
not done again.

    import flowfabric as ff

    @ff.task("greet")
    async def greet(ctx: ff.Context, name: str) -> str:
        return await ctx.step("greeting", make_greeting, name)

    ff.Worker([greet]).run()                    # in one process
    ff.Client().submit(greet, "world").result() # in another
"""

from . import wire
from ._calls import RetryPolicy, StreamEvent
from ._step import OnDoubt, Retry, Spent
from ._sync import Client, Execution
from .client import AsyncClient, AsyncExecution, Difference
from .context import Context, SyncContext, current
from .errors import BudgetExceeded, BudgetRefused, ChildFailed, NotDone, SignalTimeout, StepFailed, TaskError, Throttled
from .errors import Conflict, Forbidden, InternalError, Invalid, LimitReached, NotFound, Refused, Stale
from .errors import FlowFabricError, NotCompleted, Parked, Unauthenticated, Unavailable, Unreachable, Unreadable
from .task import Flow, Options, Submission, Task, ToolOptions, When, schedule, submission, task, tool
from .worker import Worker

__all__ = [
    "AsyncClient", "AsyncExecution", "BudgetExceeded", "BudgetRefused", "ChildFailed", "Client", "Conflict",
    "Context", "Difference", "Execution", "Flow", "FlowFabricError", "Forbidden", "InternalError", "Invalid",
    "LimitReached", "NotCompleted", "NotDone", "NotFound", "OnDoubt", "Options", "Parked", "Refused", "Retry",
    "RetryPolicy", "SignalTimeout", "Spent", "Stale", "StepFailed", "StreamEvent", "Submission", "SyncContext", "Task",
    "TaskError", "Throttled", "ToolOptions", "Unauthenticated", "Unavailable", "Unreachable", "Unreadable", "When",
    "Worker", "current", "schedule", "submission", "task", "tool", "wire",
]  # fmt: skip
