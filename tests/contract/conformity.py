"""Whether an answer is what the OpenAPI document says: for the first few of each kind in all tests."""

from collections import Counter
from functools import cache
from typing import Any

from flask import Flask, Request, Response, current_app, request
from openapi_schema_validator import OAS31Validator

from app.api.openapi import path_of

# Of each operation and status, in each process: comparing takes a millisecond.
MAX_COMPARED = 3
_compared: Counter[tuple[str, str, int]] = Counter()
_found: list[str] = []


def watch(response: Response) -> Response:
    """After each request of a test."""
    rule = request.url_rule.rule if request.url_rule is not None else ""
    kind = (rule, request.method, response.status_code)
    _compared[kind] += 1
    if _compared[kind] <= MAX_COMPARED and not response.is_streamed:
        app = current_app._get_current_object()  # type: ignore[attr-defined]
        why = contradictions(specification(app), request, response)
        _found.extend(f"{request.method} {rule} {response.status_code}: {one}" for one in why)
    return response


def take() -> list[str]:
    """What was found since the last call."""
    found, _found[:] = _found[:], []
    return found


@cache
def specification(app: Flask) -> dict[str, Any]:
    # Without `watch` and whatever else happens around a request.
    with app.test_request_context("/api/openapi.json"):
        answer: Any = app.view_functions["document"]()
        document: dict[str, Any] = answer.get_json()
        return document


def contradictions(spec: dict[str, Any], req: Request, response: Response) -> list[str]:
    operation = spec["paths"].get(path_of(req.url_rule.rule if req.url_rule else ""), {}).get(req.method.lower())
    if operation is None or response.status_code >= 500:
        return []
    answer = documented(spec, operation["responses"], str(response.status_code))
    if answer is None:
        return ["this status is not documented"]
    content = answer.get("content", {})
    if not content:
        return ["an empty answer is documented"] if has_body(response) else []
    media_type = content.get(response.mimetype)
    if media_type is None:
        return [f"{response.mimetype} is not documented"]
    return in_body(spec, media_type, response) if str(response.mimetype).endswith("json") else []


def documented(spec: dict[str, Any], answers: dict[str, Any], status: str) -> dict[str, Any] | None:
    answer: dict[str, Any] | None = answers.get(status) or answers.get(f"{status[0]}XX") or answers.get("default")
    if answer is not None and "$ref" in answer:
        answer = spec["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return answer


def in_body(spec: dict[str, Any], media_type: dict[str, Any], response: Response) -> list[str]:
    validator = OAS31Validator({"components": spec["components"], **media_type["schema"]})
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(response.get_json())]


def has_body(response: Response) -> bool:
    """Werkzeug sends none with these statuses, whatever the response has."""
    return response.status_code not in {204, 304} and bool(response.get_data())
