"""Makes the fields of a made-up request agree with each other, and checks answers that are about several things at once.

A schema says the form of each field, and schemathesis fills each by itself. How two of them go together, such as two ids in
one partition, an edge and its nodes, or a rule of cron, is said in words only. A request that keeps its schema is brought in
line with those words before it is sent, so that every operation must accept it; one that breaks its schema is sent as it is.
"""

import base64
import json
import re
from urllib.parse import unquote

import schemathesis
from schemathesis.checks import CheckContext
from schemathesis.core.failures import Failure

CRONS = ("*/5 * * * *", "0 9 * * MON-FRI", "30 4 1,15 * *", "0 0 * * *")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
# The fields that are the identity of a call, like the header.
IDENTITIES = ("idempotency_key", "dedup_key", "command_id")
# What each run of a template has of its own.
OF_A_RUN = ("execution_id", "namespace", "idempotency_key", "dedup_window_ms", "delay_until", "deadline_at", "singleton", "debounce")
OF_A_FLOW = ("flow_id", "node", "parent", "join", "dependencies")
# The shortest window of a budget, in milliseconds.
WINDOW_MIN_MS = 100
# A condition has 256 nodes and counts 1,000 signals at most, and here at most 256 parts.
CONDITION_PART_MAX = 3
# A whole number that was written with a fraction.
WHOLE = re.compile(r"-?[0-9]+\.0")
# How ids in the first partition begin.
FIRST_PARTITION = "0000-"
# The longest name of a step.
STEP_NAME_MAX = 128
# A dimension that every budget has here.
DIMENSION = "tokens"
# The operations that answer for each of their parts, and where the answers stand.
IN_PARTS = {"create_executions": ("results",), "exchange": ("end", "renew", "claim")}
# What a call says in its query when its body is bytes.
BESIDE_BYTES = {
    "kind": "k",
    "name": "n",
    "reason": "signal",
    "answer": "happened",
    "condition": {"any": []},
    "fence": {"attempt": 0, "lease_id": "0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e", "epoch": 1},
}


@schemathesis.check
def a_broken_part_is_refused(context: CheckContext, response, case) -> None:
    """Stands in for `negative_data_rejection` where the rest of a call goes on without the part that breaks the schema."""
    answers = IN_PARTS.get(case.operation.definition.raw["operationId"])
    if answers is None or case.meta is None or case.meta.generation.mode.is_positive or response.status_code != 200:
        return
    answer = response.json()
    parts = [part for name in answers for part in listed(answer.get(name))]
    if not any("problem" in part or part.get("outcome") == "refused" for part in parts):
        raise Failure(operation=case.operation.label, title="Broken part accepted", message=f"no part is refused: {answer}")


def listed(value):
    return value if isinstance(value, list) else [value] if value else []


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    # A cursor is one that a list has given out.
    drop(case.query, "cursor")
    for place in (case.path_parameters, case.query):
        for name, value in (place or {}).items():
            # In an address, whole numbers have no fraction.
            if WHOLE.fullmatch(str(value)):
                place[name] = int(float(value))
    for name, value in (case.path_parameters or {}).items():
        # A name such as `%12` is not encoded because it looks as if it were, and would arrive as a control character.
        if isinstance(value, str) and any(ord(letter) <= 32 or ord(letter) == 127 for letter in unquote(value)):
            case.path_parameters[name] = value.replace("%", "%25")
    definition = case.operation.definition.raw
    operation = definition["operationId"]
    body = case.body
    if case.media_type == "application/octet-stream":
        # A schema cannot say that the other fields are needed in the query when the body is bytes, and only then.
        needed = definition["requestBody"]["content"].get("application/json", {}).get("schema", {}).get("required", [])
        beside = {name: BESIDE_BYTES[name] for name in needed}
        kwargs["auth"] = in_query({name: value if isinstance(value, str) else json.dumps(value) for name, value in beside.items()})
    if isinstance(body, dict):
        without_fractions(body)
    if operation in OPERATIONS and isinstance(body, dict):
        OPERATIONS[operation](body, case.path_parameters or {})
    if isinstance(body, dict):
        drop(body, "cursor")
        agree(body)
        # Two identities of one call must be the same one, and the key of a child is one, too.
        named_by_parent = isinstance(body.get("parent"), dict) and given(body["parent"], "key")
        if named_by_parent or any(given(body, name) for name in IDENTITIES):
            drop(case.headers, "Idempotency-Key")


def in_query(fields):
    """Adds fields to the address of a request that is ready to be sent."""

    def add(request):
        request.prepare_url(request.url, fields)
        return request

    return add


def given(fields, name):
    return fields.get(name) is not None


def drop(fields, *names):
    for name in names:
        if fields and name in fields:
            del fields[name]


def keep_one(fields, *names):
    """Keeps the first of several fields that exclude each other."""
    there = [name for name in names if given(fields, name)]
    drop(fields, *there[1:])


def choose(choices, value):
    """One of several, the same for the same value."""
    return choices[len(str(value)) % len(choices)]


def different(items, name):
    """Leaves out items that have the name of another."""
    seen, kept = set(), []
    for item in items:
        if name(item) not in seen:
            seen.add(name(item))
            kept.append(item)
    items[:] = kept


def agree(value):
    """What holds wherever the fields stand."""
    if isinstance(value, list):
        for item in value:
            agree(item)
    if not isinstance(value, dict):
        return
    for field in ("input", "payload", "result", "continuation"):
        kind = "continuation_content_type" if field == "continuation" else "content_type"
        if field in value:
            # A JSON value is JSON, and stands instead of bytes.
            drop(value, f"{field}_base64", kind)
        elif kind in value and f"{field}_base64" in value and not given(value, f"{field}_base64"):
            drop(value, kind)
    if given(value, "content_type") and not any(given(value, f"{field}_base64") for field in ("input", "payload", "result")):
        drop(value, "content_type")
    if given(value, "continuation_content_type") and not given(value, "continuation_base64"):
        drop(value, "continuation_content_type")
    keep_one(value, "key", "occurrence")
    if given(value, "no_progress"):
        breaker = value["no_progress"]
        breaker["window"] = breaker.get("window", 50)
        breaker["same"] = min(breaker.get("same", 5), breaker["window"])
    for item in value.values():
        agree(item)


def without_fractions(value):
    """Writes whole numbers as programs do: 7.0 is an integer for a schema, and not for readers that know types."""
    for place, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, float) and item.is_integer():
            value[place] = int(item)
        elif isinstance(item, (dict, list)):
            without_fractions(item)


def same_partition(like, *ids):
    """The ids, in the partition of another."""
    return [like[:5] + one[5:] for one in ids]


def create_execution(body, _path=None):
    if not given(body, "fair_key"):
        drop(body, "fair_weight")
    if given(body, "parent"):
        drop(body, "flow_id")
        if given(body["parent"], "key"):
            drop(body, "execution_id", "idempotency_key")
    # The deployment has one partition.
    for fields, name in ((body, "flow_id"), (body, "execution_id"), (body.get("parent") or {}, "execution_id")):
        if given(fields, name):
            [fields[name]] = same_partition(FIRST_PARTITION, fields[name])
    place = body.get("flow_id") or (body.get("parent") or {}).get("execution_id")
    if place is None:
        drop(body, "dependencies", "node", "join")
    else:
        drop(body, "singleton", "debounce")
        for dependency in body.get("dependencies") or []:
            [dependency["upstream"]] = same_partition(place, dependency["upstream"])
        different(body.get("dependencies") or [], lambda dependency: dependency["upstream"])
    keep_one(body, "singleton", "debounce")
    if given(body, "debounce") and given(body["debounce"], "max_wait_ms"):
        body["debounce"]["max_wait_ms"] = max(body["debounce"]["wait_ms"], body["debounce"]["max_wait_ms"])
    if given(body, "singleton") or given(body, "debounce"):
        drop(body, "execution_id", "delay_until")
    different(body.get("concurrency") or [], lambda one: one["key"])


def create_executions(body, _path):
    for request in body["executions"]:
        create_execution(request)


def template(request):
    drop(request, *OF_A_RUN, *OF_A_FLOW)
    create_execution(request)


def flow(body, _path=None):
    if given(body, "flow_id"):
        [body["flow_id"]] = same_partition(FIRST_PARTITION, body["flow_id"])
    nodes = body.get("nodes") or []
    different(nodes, lambda node: node["name"])
    for node in nodes:
        drop(node["request"], *OF_A_FLOW, *OF_A_RUN)
        create_execution(node["request"])
    # Edges lead from earlier nodes to later ones.
    edges = body.get("edges") or []
    names = [node["name"] for node in nodes]
    if len(names) < 2:
        edges.clear()
    for number, edge in enumerate(edges):
        later = 1 + number % (len(names) - 1)
        edge["from"], edge["to"] = names[number % later], names[later]
    different(edges, lambda edge: (edge["from"], edge["to"]))
    for node in nodes:
        upstreams = sum(edge["to"] == node["name"] for edge in edges)
        join = node.get("join")
        if isinstance(join, dict) and "quorum" in join:
            if upstreams == 0:
                drop(node, "join")
            else:
                join["quorum"]["k"] = min(join["quorum"]["k"], upstreams)


def target(body):
    if "execution" in body:
        template(body["execution"])
    if "flow" in body:
        drop(body["flow"], "flow_id", "idempotency_key", "namespace")
        if not body["flow"].get("nodes"):
            body["flow"]["nodes"] = [{"name": "only", "request": {"kind": "only"}}]
        flow(body["flow"])


def schedule(body, _path):
    spec = body.get("spec")
    if spec is not None:
        if given(spec, "cron"):
            spec["cron"] = choose(CRONS, spec["cron"])
            drop(spec, "every_ms", "at")
            if given(spec, "time_zone"):
                spec["time_zone"] = choose(ZONES, spec["time_zone"])
        else:
            drop(spec, "time_zone")
            if given(spec, "every_ms"):
                drop(spec, "at")
            elif not spec.get("at"):
                spec["at"] = [0]
    if given(body, "template"):
        target(body["template"])
    in_order(body, "starts_at", "ends_at")


def in_order(body, first, last):
    if given(body, first) and given(body, last):
        body[first], body[last] = sorted((body[first], body[last]))


def backfill(body, _path):
    in_order(body, "from", "to")


def hook(body, _path):
    if given(body, "secret"):
        secret = (body["secret"] + "0123456789abcdef")[:100]
        standard = body.get("scheme") in (None, "standard")
        body["secret"] = base64.b64encode(secret.encode()).decode() if standard else secret
    target(body["target"])
    drop(body["target"].get("execution"), "input", "input_base64", "content_type")


def subscription(body, _path):
    target(body["target"])
    drop(body["target"].get("execution"), "input", "input_base64", "content_type")


def window(body):
    keep_one(body, "calendar", "rolling_ms", "reset_interval_ms")
    for name in ("rolling_ms", "reset_interval_ms"):
        if given(body, name) and 0 < body[name] < WINDOW_MIN_MS:
            body[name] = 0
    if given(body, "calendar"):
        body["calendar"]["time_zone"] = choose(ZONES, body["calendar"].get("time_zone"))


def add_dimension(body, _path=None):
    if body.get("dimensions"):
        for limits in body["dimensions"].values():
            # A soft limit is not above a hard one.
            if limits.get("hard"):
                limits["soft"] = min(limits.get("soft") or 0, limits["hard"])
        body["dimensions"] = dict(list(body["dimensions"].items())[:8]) | {DIMENSION: {"hard": 1}}


def budget(body, path):
    window(body)
    add_dimension(body)
    name = body.get("name") or path.get("name") or ""
    room = len(name) <= 190 and name.count("/") < 4
    # Only a budget that was made with a tag has a template to change.
    if not (room and given(body, "per") and given(body, "template")):
        drop(body, "per", "template")
    if given(body, "template"):
        window(body["template"])
        add_dimension(body["template"])


def decide_budget(body, _path):
    if body["answer"] == "no":
        drop(body, "amounts")
    else:
        body["amounts"] = {DIMENSION: max(1, *(body.get("amounts") or {}).values(), 1)}


def bulk(body, _path):
    action = body["action"]
    if action not in ("cancel", "hold"):
        drop(body, "reason")
    for name, needed in (("priority", 1), ("tags", {"a": "b"})):
        if action != f"set_{name}":
            drop(body, name)
        elif not given(body, name):
            body[name] = needed
    in_order(body["filter"], "created_from", "created_to")
    in_order(body["filter"], "ended_from", "ended_to")


def entries(body, _path=None):
    places = body.get("entries") or body.get("undone") or body.get("cause")
    if places and not given(body, "first_number"):
        body["first_number"] = 1
    for entry in body.get("entries") or []:
        state = entry["state"]
        if state != "completed":
            drop(entry, "result", "result_base64", "content_type")
        if state not in ("failed", "retrying"):
            drop(entry, "category", "message")
        if state in ("completed", "failed"):
            drop(entry, "next_at")
        if state == "retrying" and not given(entry, "next_at"):
            entry["next_at"] = 0


def cancel(body, _path=None):
    # Only the holder of a lease records entries.
    if not given(body, "fence"):
        drop(body, "entries", "first_number")
    entries(body)


def delay(body, _path=None):
    keep_one(body, "until", "delay_ms")
    if not given(body, "until") and not given(body, "delay_ms"):
        body["delay_ms"] = 1
    entries(body)


def park(body, _path=None):
    entries(body)
    steps = set()
    for field in ("sleeps", "waitpoints", "children", "questions"):
        kept = []
        for wait in body.get(field) or []:
            keep_one(wait["step"], "key", "occurrence")
            name = (wait["step"]["name"], wait["step"].get("key"), wait["step"].get("occurrence") or 0)
            if name not in steps:
                steps.add(name)
                kept.append(wait)
        if field in body:
            body[field] = kept
    if not steps:
        body["sleeps"] = [{"step": {"name": "rest"}, "sleep_ms": 1}]
    for sleep in body.get("sleeps") or []:
        keep_one(sleep, "until", "sleep_ms")
        if not given(sleep, "until") and not given(sleep, "sleep_ms"):
            sleep["sleep_ms"] = 1
    for wait in body.get("waitpoints") or []:
        keep_one(wait, "timeout_at", "timeout_ms")
    for question in body.get("questions") or []:
        question["reason"] = choose(("in_doubt", "journal_mismatch"), question["reason"])


def suspend(body, _path=None):
    entries(body)
    if "schema" in body:
        body["schema"] = {"type": "object"}
    ids = body.get("waitpoint_ids") or []
    different(ids, str)
    if ids:
        drop(body, "waitpoint_key")
    body["condition"] = condition(body["condition"], len(ids) or 1, 1)
    # Something ends every suspension.
    if not given(body, "timeout_ms"):
        body["timeout_ms"] = 1_000


def condition(one, waitpoints, depth):
    if not isinstance(one, dict):
        return one
    for field in ("all_of", "any_of"):
        if field in one:
            if depth >= 4:
                return "operator_only"
            one[field] = [condition(child, waitpoints, depth + 1) for child in one[field][:CONDITION_PART_MAX]]
    for field in ("any", "all"):
        if field in one:
            del one[field][CONDITION_PART_MAX:]
    if "count" in one:
        count = one["count"]
        count["n"] = min(count["n"], waitpoints if count.get("distinct") == "waitpoints" else CONDITION_PART_MAX)
        del (count.get("matchers") or [])[CONDITION_PART_MAX:]
    return one


def fork(body, _path):
    # No journal has a step that was made up.
    drop(body, "before_step", "from_step")


def decide_step(body, _path):
    if body["answer"] != "happened":
        drop(body, "result", "result_base64", "content_type")


def claim(body, _path=None):
    ids = body.get("lease_ids") or []
    different(ids, str)
    if ids:
        body["max_tasks"] = len(ids)
    else:
        drop(body, "retry")
    # Nothing is there to wait for.
    drop(body, "wait_ms")


def exchange(body, _path):
    known = set()
    kept = []
    for ending in body.get("end") or []:
        [(verb, request)] = ending.items()
        rule = {"delay": delay, "park": park, "suspend": suspend}.get(verb, entries)
        rule(request)
        if request["execution_id"] not in known:
            known.add(request["execution_id"])
            kept.append(ending)
    if "end" in body:
        body["end"] = kept
    if given(body, "claim"):
        claim(body["claim"])


def register(body, _path):
    different(body.get("tools") or [], lambda tool: tool["kind"])
    for tool in body.get("tools") or []:
        tool["input_schema"] = {"type": "object"}
        if "output_schema" in tool:
            tool["output_schema"] = {"type": "object"}
        drop(tool, "lane")
        if body.get("kinds") and tool["kind"] not in body["kinds"]:
            body["kinds"][-1:] = [tool["kind"]]
    if body.get("kinds"):
        body["tools"] = [tool for tool in body.get("tools") or [] if tool["kind"] in body["kinds"]]


def stage_edge(body, path):
    body["upstream"], body["downstream"] = same_partition(path["flow_id"], body["upstream"], body["downstream"])
    if body["upstream"] == body["downstream"]:
        last = "1" if body["downstream"].endswith("0") else "0"
        body["downstream"] = body["downstream"][:-1] + last


def add_member(body, path):
    [body["execution_id"]] = same_partition(path["flow_id"], body["execution_id"])


def pending_waitpoint(body, path):
    if given(body, "step"):
        drop(body, "waitpoint_key", "waitpoint_id", "expires_in_ms")
    if given(body, "waitpoint_id"):
        [body["waitpoint_id"]] = same_partition(path["execution_id"], body["waitpoint_id"])


def signal(body, _path):
    if not given(body, "waitpoint_id"):
        drop(body, "token")
        # The name is then that of a step, which is shorter.
        body["name"] = body["name"][:STEP_NAME_MAX]


def throttle(body, _path):
    if given(body, "status"):
        body["status"] = choose((429, 503, 529), "x" * (body["status"] % 3))


def usage(body, _path):
    body["usage"] = {DIMENSION: max(body["usage"].values())}
    if not given(body, "execution_id"):
        drop(body, "fence")


OPERATIONS = {
    "create_execution": create_execution,
    "create_executions": create_executions,
    "create_flow": flow,
    "stage_dependency_edge": stage_edge,
    "add_execution_to_flow": add_member,
    "create_schedule": schedule,
    "update_schedule": schedule,
    "backfill_schedule": backfill,
    "create_hook": hook,
    "create_subscription": subscription,
    "create_budget": budget,
    "update_budget": budget,
    "set_budget_limits": add_dimension,
    "decide_budget": decide_budget,
    "report_budget_usage": usage,
    "create_bulk": bulk,
    "register_worker": register,
    "claim": claim,
    "exchange": exchange,
    "record_steps": entries,
    "complete": entries,
    "fail": entries,
    "cancel_execution": cancel,
    "wait_children": entries,
    "continue_as_new": entries,
    "delay": delay,
    "park": park,
    "suspend": suspend,
    "decide_step": decide_step,
    "fork_execution": fork,
    "replay_execution": fork,
    "throttle_provider": throttle,
    "create_pending_waitpoint": pending_waitpoint,
    "deliver_signal": signal,
}
