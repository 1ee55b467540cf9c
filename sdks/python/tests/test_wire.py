"""The generated words of the API are fresh, and lenient about what a newer server says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric import errors, wire
from flowfabric._calls import Call, Settings, failure_of

PACKAGE = Path(__file__).resolve().parents[1]


def test_the_generated_types_are_those_of_the_api() -> None:
    done = subprocess.run(
        [sys.executable, PACKAGE / "tools" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_unknown_fields_and_values_are_kept() -> None:
    outcome = wire.ParkOutcome.model_validate({"outcome": "postponed", "moon": "full"})
    assert outcome.outcome == "postponed"
    assert outcome.model_extra == {"moon": "full"}


def test_unknown_states_are_kept_in_a_list() -> None:
    item = {"execution_id": "x", "namespace": "n", "lane": "l", "kind": "k", "priority": 0, "created_at": 1}
    newer = {**item, "public_state": "hibernating", "moon": "full"}
    page = wire.ListExecutionsOutcome.model_validate({"items": [newer], "tide": "low"})
    assert (page.items[0].public_state, page.items[0].model_extra) == ("hibernating", {"moon": "full"})
    assert page.model_extra == {"tide": "low"}


def test_unknown_codes_and_classes_are_kept() -> None:
    error = failure_of(418, b'{"code": "teapot", "title": "kettle", "detail": "short and stout", "spout": 1}')
    assert type(error) is errors.Refused
    assert (error.code, error.error_class, error.problem["spout"]) == ("teapot", "kettle", 1)
    known = failure_of(409, b'{"code": "tomorrow", "title": "conflict", "detail": "not yet"}')
    assert isinstance(known, errors.Conflict)


def test_something_in_between_that_answers_in_its_own_words_counts_as_unreachable() -> None:
    assert isinstance(failure_of(502, b"<html>bad gateway</html>"), errors.Unreachable)
    assert isinstance(failure_of(404, b"<html>not here</html>"), errors.Unreadable)


def test_an_argument_that_the_operation_does_not_have_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TypeError, match="takes no argument 'lanes'"):
        Call(wire.pause_lane, {"lane": "gpu", "lanes": []}, Settings("http://localhost"), 1)
    with pytest.raises(TypeError, match="needs 'lane'"):
        Call(wire.pause_lane, {}, Settings("http://localhost"), 1)


def test_an_identity_is_minted_before_the_first_try_and_stays() -> None:
    settings = Settings("http://localhost")
    claim = Call(wire.claim, {"instance_id": "w", "lanes": ["l"], "max_tasks": 3}, settings, 1)
    first = claim.request()["content"]
    claim.repeated()
    again = claim.request()["content"]
    assert first.replace(b"}", b',"retry":true}') == again
    create = Call(wire.create_execution, {"kind": "k"}, settings, 4)
    assert b'"execution_id":"000' in create.request()["content"]
    keyed = Call(wire.create_execution, {"kind": "k", "idempotency_key": "mine"}, settings, 4)
    assert b"execution_id" not in keyed.request()["content"]
    hold = Call(wire.hold_execution, {"execution_id": "e"}, settings, 1)
    assert hold.request()["headers"]["idempotency-key"] == hold.request()["headers"]["idempotency-key"]


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Settings("http://localhost", token="secret"))
