"""Every route says in the contract all that a client must know to be generated from it."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any

import pytest
from flask import Flask

from app.api.openapi import METHODS, OPERATION_IDS, operations, path_of
from app.http.conditional import expected_version, if_changed
from tests.contract.conformity import specification

NOT_IN_THE_CONTRACT = {
    "/": "leads to the dashboard",
    "/api/docs": "the contract itself",
    "/api/openapi.json": "the contract itself",
    "/assets/{version}/{name}": "files of our own pages",
    "/dashboard/{_view}": "views of the page at /dashboard",
    "/static/{filename}": "files of our own pages",
}
# Fields that may have any type.
UNTYPED = {"UpdateIn.userId"}
# Of Python, and not of ECMAScript.
NOT_ECMA = re.compile(r"\\[AZz]|\(\?P|\(\?>|\(\?[aiLmsux]|[*+?}]\+")

Json = dict[str, Any]


@pytest.fixture
def spec(app: Flask) -> Json:
    return deepcopy(specification(app))


def all_operations(spec: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in spec["paths"].items():
        for method in METHODS:
            if method in methods:
                yield f"{method} {path}", methods[method]


def faults(spec: Json) -> list[str]:
    """What the operations do not say."""
    found = []
    ids = Counter(operation.get("operationId") for _, operation in all_operations(spec))
    for name, operation in all_operations(spec):
        operation_id, answers = operation.get("operationId", ""), operation["responses"]
        if not re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", operation_id) or ids[operation_id] > 1:
            found.append(f"{name}: operationId {operation_id!r} is not a verb and a noun, of this operation only")
        if not {"default", "4XX"} & answers.keys():
            found.append(f"{name}: no errors")
        if "security" not in operation:
            found.append(f"{name}: no security")
        successes = [status for status in answers if status[0] in "12"]
        if not successes:
            found.append(f"{name}: no success")
        bare = [status for status in successes if status not in {"101", "204"} and not answers[status].get("content")]
        found += [f"{name}: {status} without a schema" for status in bare]
        if not operation.get("summary"):
            found.append(f"{name}: no summary")
    return found


def loose_parts(spec: Json) -> list[str]:
    """Parts of a path that may be any text."""
    return [
        f"{path} {parameter['name']}"
        for path, methods in spec["paths"].items()
        for parameter in methods.get("parameters", [])
        if parameter["in"] == "path" and not {"pattern", "format", "maxLength", "enum"} & parameter["schema"].keys()
    ]


def untyped(spec: Json) -> list[str]:
    return [
        f"{name}.{field}"
        for name, schema in spec["components"]["schemas"].items()
        for field, one in schema.get("properties", {}).items()
        if not {"type", "$ref", "anyOf", "oneOf", "enum", "const"} & one.keys()
    ]


def all_patterns(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from all_patterns(one)


def reached(view: Callable[..., Any]) -> set[Any]:
    """The functions that a view, or a function of its module that it uses, may call."""
    start, seen = inspect.unwrap(view), set[Any]()
    pending: list[Any] = [start]
    while pending:
        function = pending.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        if function.__module__ == start.__module__:
            names = names_in(function.__code__)
            used = [function.__globals__.get(name) for name in names]
            pending += used + [part for one in used if inspect.isclass(one) for part in vars(one).values()]
    return seen


def names_in(code: CodeType) -> set[str]:
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def undeclared_conditions(app: Flask, spec: Json) -> list[str]:
    """Routes that read a condition and do not say so."""
    found = []
    for path, method, view, _, operation in operations(app, spec):
        named = {parameter.get("$ref", "").rpartition("/")[2] for parameter in operation["parameters"]}
        uses = reached(view)
        for function, header in ((if_changed, "If-None-Match"), (expected_version, "If-Match")):
            if function in uses and header not in named:
                found.append(f"{method} {path}: {header}")
    return found


def test_every_route_is_in_the_contract(app: Flask, spec: Json) -> None:
    paths = {path_of(rule.rule) for rule in app.url_map.iter_rules()}
    assert paths - spec["paths"].keys() == NOT_IN_THE_CONTRACT.keys()
    assert OPERATION_IDS.keys() <= app.view_functions.keys(), "no route has this name any more"


def test_every_operation_says_all_that_a_client_must_know(app: Flask, spec: Json) -> None:
    assert faults(spec) == []
    assert loose_parts(spec) == []
    assert set(untyped(spec)) == UNTYPED
    assert undeclared_conditions(app, spec) == []
    assert [pattern for pattern in all_patterns(spec) if NOT_ECMA.search(pattern)] == []
    assert len([*all_patterns(spec)]) > 30


def test_the_rules_notice_what_is_missing(app: Flask, spec: Json) -> None:
    pages, page = spec["paths"]["/api/v1/pages"]["get"], spec["paths"]["/api/v1/pages/{external_id}"]
    pages["operationId"] = page["get"]["operationId"]
    del page["put"]["responses"]["200"]["content"], page["put"]["responses"]["default"], page["put"]["security"]
    page["parameters"][0]["schema"].pop("pattern")
    stats = spec["paths"]["/api/v1/pages/{external_id}/stats"]["get"]
    stats["parameters"] = []
    assert sorted(fault.partition(": ")[0] for fault in faults(spec)) == [
        "get /api/v1/pages",
        "get /api/v1/pages/{external_id}",
        *["put /api/v1/pages/{external_id}"] * 3,
    ]
    assert loose_parts(spec) == ["/api/v1/pages/{external_id} external_id"]
    assert undeclared_conditions(app, spec) == ["get /api/v1/pages/{external_id}/stats: If-None-Match"]
    assert all(NOT_ECMA.search(pattern) for pattern in (r"a\Z", r"(?P<a>b)", r"a*+", r"(?>a)", r"(?i)a"))
