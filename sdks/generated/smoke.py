"""Creates, claims, completes and reads an execution with the client that was generated from the OpenAPI document."""

from __future__ import annotations

import os
from typing import TypeVar

from flowfabric_generated import AuthenticatedClient
from flowfabric_generated.api.approvals import list_approvals
from flowfabric_generated.api.executions import complete, create_execution, get_execution, get_result, suspend
from flowfabric_generated.api.workers import claim
from flowfabric_generated.models import (
    ClaimBody,
    ClaimOutcome,
    CompleteJsonBody,
    CompleteOutcome,
    ConditionMatcher,
    ConditionOfAny,
    Content,
    CreateExecutionJsonBody,
    CreateExecutionOutcome,
    ExecutionView,
    ListApprovalsOutcome,
    Problem,
    PublicState,
    SuspendJsonBody,
    SuspendOutcomeSuspended,
    SuspendReason,
    Task,
)

T = TypeVar("T")


def a(kind: type[T], answer: object) -> T:
    """The answer, which must be of this kind."""
    assert isinstance(answer, kind), answer
    return answer


def created(client: AuthenticatedClient, kind: str) -> str:
    body = CreateExecutionJsonBody(kind=kind, input_={"n": 20})
    return a(CreateExecutionOutcome, create_execution.sync(client=client, body=body)).execution_id


def claimed(client: AuthenticatedClient, kind: str) -> Task:
    body = ClaimBody(lanes=["default"], kinds=[kind])
    (task,) = a(list, a(ClaimOutcome, claim.sync("generated-python", client=client, body=body)).tasks)
    return a(Task, task)


def main() -> None:
    headers = {"accept": "application/json"}
    with AuthenticatedClient(os.environ["FF_SERVER"], os.environ["FF_TOKEN"], headers=headers) as client:
        execution = created(client, "python-doubles")
        task = claimed(client, "python-doubles")
        assert task.execution_id == execution
        doubled = CompleteJsonBody(fence=task.fence, result=2 * 20)
        a(CompleteOutcome, complete.sync(execution, client=client, body=doubled))
        view = a(ExecutionView, get_execution.sync(execution, client=client))
        assert view.public_state is PublicState.COMPLETED, view
        assert a(Content, get_result.sync(execution, client=client)).payload == 40

        execution = created(client, "python-asks")
        task = claimed(client, "python-asks")
        approve = ConditionOfAny(any_=[ConditionMatcher(name="approve")])
        asks = SuspendJsonBody(fence=task.fence, reason=SuspendReason.APPROVAL, question="Publish it?", condition=approve)
        a(SuspendOutcomeSuspended, suspend.sync(execution, client=client, body=asks))
        listed = a(ListApprovalsOutcome, list_approvals.sync(client=client)).items
        assert [one.condition for one in listed if one.execution_id == execution] == [approve], listed

        assert a(Problem, get_result.sync(execution, client=client)).status == 404
    print("created, claimed, completed, suspended, read and refused")


main()
