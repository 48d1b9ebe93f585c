"""Requests that schemathesis derives from the contract find no contradiction between it and the service.

Few for each operation, and always the same. (`schemathesis run` against an instance of one's own tries many more.)
schemathesis is loaded when a test runs: every pytest process imports this module, and one runs its tests.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings

from tests.contract.conformity import specification
from tests.people import client_of

pytestmark = pytest.mark.long

MAX_EXAMPLES = 3
ORIGIN = "https://wiki.example"
# Of quests there are rules that no schema can express; a socket is opened by an upgrade.
NEVER_SUCCESSFUL = {
    ("/api/v1/quests", "POST"),
    ("/api/v1/quests/{quest_id}/claim", "POST"),
    ("/ws/leaderboards", "GET"),
}
# What an admin's client may call, reads and writes, with each kind of parameter and body; and whatever its answer is.
OPERATIONS = [
    ("/.well-known/jwks.json", "GET"),
    ("/health/ready", "GET"),
    ("/oauth/token", "POST"),
    ("/api/v1/me", "GET"),
    ("/api/v1/settings", "GET"),
    ("/api/v1/settings", "PATCH"),
    ("/api/v1/settings/weights", "PUT"),
    ("/api/v1/pages", "GET"),
    ("/api/v1/pages/{external_id}", "PUT"),
    ("/api/v1/pages/{external_id}/stats", "GET"),
    ("/api/v1/pages/{external_id}/series", "GET"),
    ("/api/v1/pages/{external_id}/views", "POST"),
    ("/api/v1/pages/{external_id}/likes/{user}", "PUT"),
    ("/api/v1/events", "POST"),
    ("/api/v1/beacon", "POST"),
    ("/api/v1/leaderboards", "GET"),
    ("/api/v1/leaderboards/rank", "GET"),
    ("/api/v1/leaderboards/export.csv", "GET"),
    ("/api/v1/overview", "GET"),
    ("/api/v1/action-tokens", "POST"),
    ("/api/v1/actions/catalog/{action_type}", "PUT"),
    ("/api/v1/users", "GET"),
    ("/api/v1/users/{user}/export", "GET"),
    ("/api/v1/users/{user}", "PATCH"),
    ("/api/v1/keys", "POST"),
    ("/api/v1/clients", "POST"),
    ("/api/v1/quests", "POST"),
    ("/api/v1/quests/{quest_id}/claim", "POST"),
    ("/api/v1/quest-categories/{tag}", "PUT"),
    ("/api/v1/live/tickets", "POST"),
    ("/embed/popular", "GET"),
    ("/ws/leaderboards", "GET"),
]


@dataclass
class Known:
    """Credentials, and what exists: with names that are made up most answers would be 404."""

    headers: dict[str, str]
    key: str
    parts: dict[str, str]

    def put_into(self, case: Any) -> None:
        case.headers = {**(case.headers or {}), **self.headers, "X-Plaudit-Key": self.key, "Origin": ORIGIN}
        known = {name: value for name, value in self.parts.items() if name in (case.path_parameters or {})}
        case.path_parameters = {**(case.path_parameters or {}), **known}
        if "/likes/" in case.path:
            case.path_parameters["user"] = "ann"
        if case.path.startswith("/embed/"):
            case.query = {**(case.query or {}), "key": self.key}
        if case.path.endswith("/rank"):
            case.query = {"member": "a", "around": 3}
        if case.path == "/oauth/token":
            case.headers |= {"Authorization": self.parts["login"]}
            case.body = {"grant_type": "client_credentials"}
        if case.path == "/api/v1/beacon":
            case.body = {"page": "a"} if case.media_type == "application/json" else '{"page": "a"}'
        if case.path == "/api/v1/action-tokens":
            case.body = {"user": "ext:ann", "action_type": "post"}
        case.headers.pop("If-Match", None)


@pytest.fixture
def known(app: Flask, tenant: str) -> Known:
    admin = client_of(app.test_client(), tenant)
    page = {"space": "docs", "title": "A", "url": "/a", "visibility": "public"}
    assert admin("PUT", "/api/v1/pages/a", json=page).status_code == 201
    assert admin("PUT", "/api/v1/pages/a/likes/ann").status_code == 200
    assert admin("PUT", "/api/v1/actions/catalog/post", json={"points": 5}).status_code == 200
    offer = {"title": "Translate", "description": "All of it, please.", "reward_xp": 10, "reward_reputation": 1}
    quest = admin("POST", "/api/v1/quests", json={**offer, "user": "ben"}).get_json()["id"]
    key = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"]
    login = "Basic " + b64encode(f"{admin.id}:{admin.secret}".encode()).decode()
    parts = {"external_id": "a", "user": "ext:ann", "action_type": "post", "quest_id": quest, "login": login}
    return Known({"Authorization": f"Bearer {admin.token}"}, key, parts)


@pytest.fixture
def contract(app: Flask) -> Any:
    import schemathesis

    loaded = schemathesis.openapi.from_dict(specification(app))
    loaded.app = app
    return loaded


@pytest.mark.parametrize("requests", ["right", "wrong"])
def test_the_service_answers_as_its_contract_says(contract: Any, known: Known, requests: str) -> None:
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    mode = GenerationMode.POSITIVE if requests == "right" else GenerationMode.NEGATIVE
    conformance = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    successful = set()
    for path, method in OPERATIONS:

        @settings(
            max_examples=MAX_EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=contract[path][method].as_strategy(generation_mode=mode))
        def try_it(case: Any) -> None:
            if mode is GenerationMode.POSITIVE:
                known.put_into(case)
            answer = case.call_and_validate(headers=known.headers | dict(case.headers or {}), checks=conformance)
            if answer.status_code < 400:
                successful.add((case.path, case.method))

        try_it()
    if mode is GenerationMode.POSITIVE:
        assert set(OPERATIONS) - successful == NEVER_SUCCESSFUL
