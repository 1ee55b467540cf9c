"""Exceptions: refusals of the server by class and code, and failures that a task's function raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from . import wire


class FlowFabricError(Exception):
    """Everything that a call of this package raises."""


class Unreachable(FlowFabricError):
    """The server could not be reached, or its answers were lost, for as long as the repeats lasted."""


class Unreadable(FlowFabricError):
    """The server's answer is not what this version understands."""


class Refused(FlowFabricError):
    """The server refused. `code` comes from the one table of codes; codes that this version does not know are kept."""

    #: The subclasses, by what the server calls them.
    by_class: ClassVar[dict[str, type[Refused]]] = {}

    def __init_subclass__(cls, named: str) -> None:
        cls.by_class[named] = cls

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code", "unknown"))
        self.error_class = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.details: dict[str, Any] = dict(problem.get("details") or {})
        self.retryable = bool(problem.get("retryable", False))
        self.retry_after_ms = int(problem.get("retry_after_ms") or 0)
        self.advice = str(problem.get("advice", ""))
        #: The whole answer, with fields that a newer server has added.
        self.problem = dict(problem)
        super().__init__(f"{self.code}: {self.detail}")

    @property
    def is_lease_lost(self) -> bool:
        """Whether the lease behind a task is lost, so that its work is somebody else's by now."""
        return self.code in LEASE_LOST

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed later without any change."""
        passing = self.error_class == "unavailable" or self.code == "concurrency_limit_exceeded"
        return passing and self.retryable

    @property
    def is_about_content(self) -> bool:
        """Whether the call was refused for what it says, so that saying it again would be refused again."""
        by_content = self.error_class in {"invalid", "limit", "not_found", "conflict"}
        return by_content and not self.retryable and not self.is_lease_lost


def is_final(error: BaseException | None) -> bool:
    """Whether a call cannot be written, or was refused for what it says: saying it again would change nothing."""
    return isinstance(error, ValueError) or (isinstance(error, Refused) and error.is_about_content)


LEASE_LOST = frozenset({"stale_lease", "lease_expired", "lease_revoked", "execution_not_active", "execution_not_found"})


class NotFound(Refused, named="not_found"):
    """The thing named does not exist, or not for this caller."""


class Invalid(Refused, named="invalid"):
    """The request itself is wrong; `details["field"]` says where."""


class Conflict(Refused, named="conflict"):
    """The request is fine, and the present state forbids it."""


class Stale(Refused, named="stale"):
    """The caller's lease or stream is no longer its own."""


class LimitReached(Refused, named="limit"):
    """A limit was reached."""


class Unauthenticated(Refused, named="unauthenticated"):
    """No or no valid credentials."""


class Forbidden(Refused, named="forbidden"):
    """Valid credentials that do not allow this."""


class Unavailable(Refused, named="unavailable"):
    """The deployment cannot answer now."""


class InternalError(Refused, named="internal"):
    """A defect of the server."""


def refusal(status: int, problem: Mapping[str, Any]) -> Refused:
    """The exception for a problem; one of a class that this version does not know is a plain `Refused`."""
    return Refused.by_class.get(str(problem.get("title", "")), Refused)(status, problem)


class NotCompleted(FlowFabricError):
    """A result was asked for, but the execution ended without success."""

    def __init__(self, view: wire.ExecutionView) -> None:
        self.execution_id, self.public_state, failure = view.execution_id, view.public_state, view.last_failure
        self.reason: str | None = failure.reason if failure else None
        self.category: str | None = failure.category if failure else None
        said = f"execution {self.execution_id} is {self.public_state}"
        super().__init__(f"{said}: {self.reason}" if self.reason else said)


class TaskError(Exception):
    """A failure of a task or a step. The execution's policy decides by the category about another attempt."""

    default_category = "error"

    def __init__(self, reason: str, *, category: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.category = category or self.default_category
        #: Seconds before the retry, instead of the policy's backoff.
        self.retry_after = retry_after


class NotDone(TaskError):
    """Raised by the body of a `once` step: nothing happened, for certain. Only then is it tried again by itself."""

    default_category = "not_done"


class Throttled(TaskError):
    """Raised by the function that `ctx.acquire` calls: the provider said that there were too many calls (429), and
    perhaps for how many seconds it wants to be left alone (`retry_after`)."""

    default_category = "throttled"


class StepFailed(TaskError):
    """A step has failed. It is the same exception when the step ran now and when its failure is read from the journal;
    the body's own exception is the `__cause__` where it ran now."""

    #: Which step it was: a retry of the attempt runs it again, and no other.
    step: dict[str, Any] | None = None


class SignalTimeout(TaskError):
    """No signal came in time."""

    default_category = "timeout"


class BudgetExceeded(TaskError):
    """A hard limit of a budget forbids what a task has reported. `budget` and `dimension` say which."""

    default_category = "budget_exceeded"

    def __init__(self, budget: str, dimension: str | None, reason: str | None = None) -> None:
        super().__init__(reason or f"budget {budget}: the limit of {dimension or 'it'} is reached")
        self.budget, self.dimension = budget, dimension


class BudgetRefused(BudgetExceeded):
    """A budget has no room for what a task was about to spend: nothing was begun. `refusal` says how much is left of
    which limit, and when it resets."""

    default_category = "budget_refused"

    def __init__(self, name: str, refusal: wire.ReserveSpendOutcome) -> None:
        left = f"budget {refusal.budget} has {refusal.left} {refusal.dimension} left of {refusal.limit}"
        super().__init__(refusal.budget or "", refusal.dimension, f"{name}: {left}, {refusal.requested} were asked for")
        self.refusal = refusal


class ChildFailed(TaskError):
    """A child ended without success; the category is its outcome."""


class Parked(BaseException):
    """Unwinds a function whose task was let go. It is called again when what it waits for has happened: do not catch
    it. A context refuses every further call with it."""
