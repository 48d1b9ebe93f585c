"""The OpenAPI document: what flask-smorest generates from the schemas, completed by what the routes declare.

A route says once who may call it (`app.http.rights`), whether it takes an `Idempotency-Key` (`app.http.transactions`)
and whether it is conditional (`app.http.conditional`). From that follow its security, its parameters, its errors and
the headers of its answers, here and nowhere else; tests/rules/test_openapi.py fails for a route that says too little.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from flask import Flask

from analytics.scores.catalog import ACTION_TYPE
from app.api import patterns
from app.api.blueprint import ref
from app.http.edge import REQUEST_ID
from app.http.rights import Access, May, declared, takes_key
from tenants import idempotency, static_tokens, users
from tenants.credentials import CLIENT_ID, KEY_ID, Scope

Json = dict[str, Any]
View = Callable[..., Any]

METHODS = ("get", "put", "post", "patch", "delete")

# Of routes whose function's name says too little without its module.
OPERATION_IDS = {
    "oauth.token": "issue_access_token",
    "oauth.revoke": "revoke_access_token",
    "oauth.jwks": "read_signing_keys",
    "oauth.metadata": "read_authorization_server",
    "auth.register": "register_user",
    "auth.login": "log_in",
    "auth.refresh": "refresh_tokens",
    "auth.logout": "log_out",
    "auth.reset": "reset_password",
    "users.me": "read_me",
    "users.offer_reset": "offer_password_reset",
    "likes.like": "like_page",
    "likes.unlike": "unlike_page",
    "likes.like_for": "like_page_for_user",
    "likes.unlike_for": "unlike_page_for_user",
    "events.rejections": "read_rejections",
    "unknown_addresses.list_unknown": "list_unknown_addresses",
    "unknown_addresses.make_page": "make_unknown_address_a_page",
    "unknown_addresses.dismiss": "dismiss_unknown_address",
    "beacon.beacon": "send_beacon",
    "beacon.script": "read_beacon_script",
    "leaderboards.export": "export_board",
    "actions.issue_token": "issue_action_token",
    "scores.claim": "claim_action_token",
    "rewards.list_failed": "list_failed_rewards",
    "rewards.retry": "retry_reward",
    "live.boards_socket": "open_boards_socket",
    "live.scoreboard_socket": "open_scoreboard_socket",
    "live.stream": "stream_live_events",
    "health.live": "check_liveness",
    "health.ready": "check_readiness",
    "metrics.metrics": "read_metrics",
    "sessions.page": "show_dashboard",
    "sessions.login": "sign_in_to_dashboard",
    "sessions.logout": "sign_out_of_dashboard",
    "widgets.popular": "show_popular_pages",
    "widgets.popular_script": "read_popular_script",
    "widgets.badge": "show_badge",
}

_USER = users.EXTERNAL_ID.pattern
# By the end of the path up to the parameter; the longest that fits is the right one.
PATH_PARAMETERS: dict[str, Json] = {
    "{external_id}": {"description": "the page, by your own id", "pattern": patterns.whole(users.EXTERNAL_ID.pattern)},
    "{user}": {
        "description": "our id, `ext:` with your own id, or `me`",
        "pattern": f"^(?:me|ext:{_USER}|[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}})$",
    },
    "/likes/{user}": {"description": "your own id of the user", "pattern": patterns.whole(users.EXTERNAL_ID.pattern)},
    "{action_type}": {"description": "the action, by its type", "pattern": patterns.whole(ACTION_TYPE.pattern)},
    "{client_id}": {"pattern": patterns.whole(CLIENT_ID.pattern)},
    "{key_id}": {"pattern": patterns.whole(KEY_ID.pattern)},
    "{token_id}": {"pattern": patterns.whole(static_tokens.ID.pattern)},
    "{tag}": {"minLength": 1, "maxLength": 32},
}

HEADERS: dict[str, Json] = {
    "X-Request-Id": {"description": "the request's id: yours, or a new one", "schema": {"type": "string"}},
    "ETag": {"description": "names this version", "schema": {"type": "string"}},
    "Retry-After": {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 1}},
    "RateLimit": {"description": "what is left of the limit, and until when", "schema": {"type": "string"}},
    "RateLimit-Policy": {"description": "the limit", "schema": {"type": "string"}},
    "Idempotent-Replay": {
        "description": "this is the answer to the first request with this Idempotency-Key",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "WWW-Authenticate": {"description": "how to authenticate", "schema": {"type": "string"}},
    "Upgrade": {"schema": {"type": "string", "enum": ["websocket"]}},
}

PARAMETERS: dict[str, Json] = {
    "X-Request-Id": {
        "description": "your own id for the request, for the answer and our logs",
        "schema": {"type": "string", "pattern": patterns.whole(REQUEST_ID.pattern)},
    },
    "Idempotency-Key": {
        "description": "the same key and body within 24 hours get the first answer again, and nothing changes",
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": idempotency.MAX_KEY_CHARS,
            "pattern": "^[ -~]*$",
        },
    },
    "If-Match": {
        "description": "an ETag: change this version only (412 if there is a newer one)",
        "schema": {"type": "string"},
    },
    "If-None-Match": {
        "description": "the ETag of an answer that you have: 304 if it is still right",
        "schema": {"type": "string"},
    },
}


def _problem(description: str, *headers: str) -> Json:
    return {
        "description": description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *headers)},
        "content": {"application/problem+json": {"schema": ref("Problem")}},
    }


PROBLEMS: dict[str, tuple[str, Json]] = {
    "400": ("Malformed", _problem("The request cannot be read")),
    "401": ("Unauthenticated", _problem("Credentials are missing or not valid", "WWW-Authenticate")),
    "403": ("Forbidden", _problem("These credentials may not do this")),
    "404": ("NotFound", _problem("It does not exist, or is another tenant's")),
    "409": ("Conflict", _problem("The current state does not allow it", "Retry-After")),
    "412": ("Stale", _problem("It has changed since you read it (If-Match)")),
    "413": ("TooLarge", _problem("The body is too large")),
    "415": ("WrongType", _problem("This content type is not accepted here")),
    "422": ("Invalid", _problem("Some fields are not valid: `errors` names them")),
    "426": ("UpgradeRequired", _problem("It is a websocket, and the request does not ask for one", "Upgrade")),
    "428": ("PreconditionRequired", _problem("Say which version this is for: If-Match")),
    "429": (
        "Limited",
        _problem("Too many requests: wait for Retry-After", "Retry-After", "RateLimit", "RateLimit-Policy"),
    ),
    "503": ("Unavailable", _problem("Not now, but a later attempt may succeed", "Retry-After")),
    "default": ("Refused", _problem("Any other error")),
}


def complete(app: Flask, spec: Json, *, public_url: str) -> Json:
    """The document, with what the routes of this application declare. Changes `spec`."""
    components = spec["components"]
    components["headers"] = HEADERS
    components["parameters"] = {name: {"in": "header", "name": name, **one} for name, one in PARAMETERS.items()}
    components["responses"] = dict(PROBLEMS.values())
    for path, _, view, endpoint, operation in operations(app, spec):
        operation.setdefault("operationId", OPERATION_IDS.get(endpoint, view.__name__))
        operation.setdefault("security", security_of(view))
        _add_parameters(operation, view)
        _add_errors(operation, view, has_parts="{" in path)
        _add_headers(operation, view)
    for path, operations_ in spec["paths"].items():
        for parameter in operations_.get("parameters", []):
            _describe_part(path, parameter)
    _finish_schemas(spec)
    flows = components["securitySchemes"]["client"]["flows"]["clientCredentials"]
    flows["tokenUrl"] = f"{public_url}/oauth/token"
    return spec | {"servers": [{"url": public_url}]}


def operations(app: Flask, spec: Json) -> Iterator[tuple[str, str, View, str, Json]]:
    """Path, method, view, endpoint and operation of every documented route."""
    for rule in app.url_map.iter_rules():
        path = path_of(rule.rule)
        for method in METHODS:
            operation = spec["paths"].get(path, {}).get(method)
            if operation is not None and method.upper() in (rule.methods or ()):
                yield path, method, app.view_functions[rule.endpoint], rule.endpoint, operation


def path_of(rule: str) -> str:
    """A rule of Flask's as a path of OpenAPI's."""
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule)


def security_of(view: View) -> list[dict[str, list[str]]]:
    """Which credentials the view accepts: one of these. (An empty one: none is needed.)"""
    access, security = declared(view), list[dict[str, list[str]]]()
    if isinstance(access, May):
        scopes = access.scopes | {Scope.ADMIN} if access.scopes else frozenset[Scope]()
        security += [{"client": [scope.value]} for scope in sorted(scopes)]
        security += [{"user": []}] if access.roles else []
    if takes_key(view):
        security += [{"key": []}, {"key_in_query": []}]
    if access is Access.OPERATOR:
        security += [{"operator": []}, {}]
    return security


def _conditions(view: View) -> frozenset[str]:
    return getattr(view, "plaudit_conditional", frozenset())


def _is_idempotent(view: View) -> bool:
    return getattr(view, "plaudit_idempotent", False)


def _add_parameters(operation: Json, view: View) -> None:
    names = sorted(_conditions(view) & PARAMETERS.keys())
    names += ["Idempotency-Key"] if _is_idempotent(view) else []
    references = [{"$ref": f"#/components/parameters/{name}"} for name in (*names, "X-Request-Id")]
    operation["parameters"] = operation.get("parameters", []) + references


def _add_errors(operation: Json, view: View, *, has_parts: bool) -> None:
    """The errors that follow from what the route declares, and any other; none, if it describes its own."""
    responses: Json = operation.setdefault("responses", {})
    for status in [status for status, answer in responses.items() if "$ref" in answer and status == "422"]:
        del responses[status]  # flask-smorest's own
    if "4XX" in responses:
        return
    access, security = declared(view), operation["security"]
    has_query = any(parameter.get("in") == "query" for parameter in operation["parameters"])
    follows = {
        "401 403": bool(security) and {} not in security,
        "404": has_parts,
        "409 422": _is_idempotent(view),
        "412": "If-Match" in _conditions(view),
        "413 415 422": "requestBody" in operation,
        "422": has_query,
        "429": access is not Access.PROBE,
    }
    statuses = {"400", "503", "default"}.union(*(names.split() for names, is_so in follows.items() if is_so))
    for status in sorted({"403", "default"} if access is Access.OPERATOR else statuses):
        responses.setdefault(status, {"$ref": f"#/components/responses/{PROBLEMS[status][0]}"})


def _add_headers(operation: Json, view: View) -> None:
    """To the answers of its own; those of errors have them already."""
    conditions = _conditions(view)
    names = ["X-Request-Id", *(["ETag"] if conditions else [])]
    names += ["Idempotent-Replay"] if _is_idempotent(view) else []
    if "If-None-Match" in conditions:
        operation["responses"]["304"] = {"description": "What you have is still right"}
    for status, answer in operation["responses"].items():
        if "$ref" not in answer and status[0] in "123":
            added = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
            answer["headers"] = {**added, **answer.get("headers", {})}
    operation["responses"] = dict(sorted(operation["responses"].items()))


def _describe_part(path: str, parameter: Json) -> None:
    """What a part of the path may be."""
    if parameter.get("in") != "path" or parameter["schema"] != {"type": "string", "minLength": 1}:
        return
    up_to = path[: path.index("{" + parameter["name"] + "}")] + "{" + parameter["name"] + "}"
    known = max((end for end in PATH_PARAMETERS if up_to.endswith(end)), key=len, default=None)
    described = dict(PATH_PARAMETERS[known]) if known is not None else {}
    if "description" in described:
        parameter["description"] = described.pop("description")
    parameter["schema"] = {"type": "string", **described}


def _finish_schemas(spec: Json) -> None:
    """Answers may get more fields in a later release, and have all of today's; unless one is there only sometimes."""
    schemas = spec["components"]["schemas"]
    sent = set[str]()
    for operation in (one for path in spec["paths"].values() for name, one in path.items() if name in METHODS):
        _reach(operation.get("requestBody", {}), schemas, sent)
        _reach(operation["parameters"], schemas, sent)
    for name, schema in schemas.items():
        properties = schema.get("properties", {})
        sometimes = {field for field, one in properties.items() if one.pop("x-sometimes", False)}
        if name not in sent:
            schema.pop("additionalProperties", None)
            schema["required"] = [field for field in properties if field not in sometimes]
            if not schema["required"]:
                del schema["required"]


def _reach(part: Any, schemas: Json, names: set[str]) -> None:
    """Add the names of the schemas that this part of the document refers to."""
    if isinstance(part, list):
        for one in part:
            _reach(one, schemas, names)
    elif isinstance(part, dict):
        name = str(part.get("$ref", "")).removeprefix("#/components/schemas/")
        if name in schemas and name not in names:
            names.add(name)
            _reach(schemas[name], schemas, names)
        for one in part.values():
            _reach(one, schemas, names)
