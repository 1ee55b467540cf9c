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
from ._calls import RetryPolicy
from ._step import OnDoubt, Retry
from ._sync import Client, Execution, Schedule
from ._tail import StreamEvent
from .client import AsyncClient, AsyncExecution, AsyncSchedule, Difference
from .context import Child, Context, Spent, SyncContext, current
from .errors import (
    BudgetExceeded,
    BudgetRefused,
    ChildFailed,
    Conflict,
    FlowFabricError,
    Forbidden,
    InternalError,
    Invalid,
    LimitReached,
    NotCompleted,
    NotDone,
    NotFound,
    Parked,
    Refused,
    SignalTimeout,
    Stale,
    StepFailed,
    TaskError,
    Unauthenticated,
    Unavailable,
    Unreachable,
    Unreadable,
)  # fmt: skip
from .flow import Flow
from .schedule import When
from .task import Options, Submission, Task, submission, task
from .worker import Worker

__all__ = [
    "AsyncClient", "AsyncExecution", "AsyncSchedule", "BudgetExceeded", "BudgetRefused", "Child", "ChildFailed",
    "Client", "Conflict", "Context", "Difference", "Execution", "Flow", "FlowFabricError", "Forbidden",
    "InternalError", "Invalid", "LimitReached", "NotCompleted", "NotDone", "NotFound", "OnDoubt", "Options",
    "Parked", "Refused", "Retry", "RetryPolicy", "Schedule", "SignalTimeout", "Spent", "Stale", "StepFailed",
    "StreamEvent", "Submission", "SyncContext", "Task", "TaskError", "Unauthenticated", "Unavailable",
    "Unreachable", "Unreadable", "When", "Worker", "current", "submission", "task", "wire",
]  # fmt: skip
