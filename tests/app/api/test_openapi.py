"""What the contract says of each route follows from what the route declares."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from app.settings import Settings
from tenants.settings import RANGES
from tests.app.conftest import with_settings

Json = dict[str, Any]


@pytest.fixture
def spec(client: FlaskClient) -> Json:
    document: Json = client.get("/api/openapi.json").get_json()
    return document


def parameters(operation: Json) -> set[str]:
    return {parameter.get("name") or parameter["$ref"].rpartition("/")[2] for parameter in operation["parameters"]}


def headers(answer: Json) -> set[str]:
    return set(answer.get("headers", {}))


def test_a_server_is_where_the_operator_says_and_paths_stay_whole(spec: Json, settings: Settings) -> None:
    assert spec["servers"] == [{"url": settings.public_url}]
    elsewhere = with_settings(settings, public_url="https://plaudit.example").get("/api/openapi.json").get_json()
    assert elsewhere["servers"] == [{"url": "https://plaudit.example"}]
    flow = elsewhere["components"]["securitySchemes"]["client"]["flows"]["clientCredentials"]
    assert flow["tokenUrl"] == "https://plaudit.example/oauth/token"
    assert "events:write" in flow["scopes"]
    assert all(path.startswith("/") for path in elsewhere["paths"])


def test_each_route_names_the_credentials_that_it_accepts(spec: Json) -> None:
    security = {
        path: spec["paths"][path][method]["security"]
        for path, method in (
            ("/api/v1/clients", "get"),
            ("/api/v1/events", "post"),
            ("/api/v1/pages/{external_id}/like", "put"),
            ("/api/v1/leaderboards", "get"),
            ("/api/v1/beacon", "post"),
            ("/embed/popular", "get"),
            ("/oauth/token", "post"),
            ("/metrics", "get"),
            ("/health/live", "get"),
        )
    }
    key: list[Json] = [{"key": []}, {"key_in_query": []}]
    assert security == {
        "/api/v1/clients": [{"client": ["admin"]}, {"user": []}],
        "/api/v1/events": [{"client": ["admin"]}, {"client": ["events:write"]}, {"user": []}],
        "/api/v1/pages/{external_id}/like": [{"user": []}],
        "/api/v1/leaderboards": [{"client": ["admin"]}, {"client": ["stats:read"]}, {"user": []}, *key],
        "/api/v1/beacon": key,
        "/embed/popular": [{"key_in_query": []}],
        "/oauth/token": [{"client_login": []}, {}],
        "/metrics": [{"operator": []}, {}],
        "/health/live": [],
    }


def test_headers_and_errors_follow_from_the_decorators(spec: Json) -> None:
    board = spec["paths"]["/api/v1/leaderboards"]["get"]
    assert {"If-None-Match", "X-Request-Id", "scope", "key"} <= parameters(board)
    assert "304" in board["responses"]
    assert {"ETag", "X-Request-Id"} <= headers(board["responses"]["200"])

    batch = spec["paths"]["/api/v1/events"]["post"]
    assert "Idempotency-Key" in parameters(batch)
    assert "Idempotent-Replay" in headers(batch["responses"]["202"])
    assert {"400", "401", "403", "409", "413", "415", "422", "429", "503", "default"} <= batch["responses"].keys()

    change = spec["paths"]["/api/v1/settings"]["patch"]
    assert {"If-Match", "Idempotency-Key"} <= parameters(change)
    assert {"412", "422"} <= change["responses"].keys()
    assert "If-Match" in parameters(spec["paths"]["/api/v1/quests/{quest_id}/claim"]["post"])

    limited = spec["components"]["responses"]["Limited"]
    assert headers(limited) == {"X-Request-Id", "Retry-After", "RateLimit", "RateLimit-Policy"}
    assert [*limited["content"]] == ["application/problem+json"]
    problem = spec["components"]["schemas"]["Problem"]
    assert set(problem["required"]) == {"type", "title", "status", "detail", "code", "request_id"}
    assert "errors" in problem["properties"]


def test_what_is_sent_is_closed_and_what_is_answered_is_open_and_complete(spec: Json) -> None:
    schemas = spec["components"]["schemas"]
    assert schemas["PagePutIn"]["additionalProperties"] is False
    assert schemas["PagePutIn"]["required"] == ["space", "title", "url"]
    assert schemas["PagePutIn"]["properties"]["space"]["pattern"] == "^[A-Za-z0-9._~-]{1,64}$"
    assert "additionalProperties" not in schemas["PageOut"]
    assert set(schemas["PageOut"]["required"]) == schemas["PageOut"]["properties"].keys()
    assert "errors" not in schemas["Problem"]["required"]
    assert "x-sometimes" not in str(spec)


def test_settings_are_typed_with_their_ranges(spec: Json) -> None:
    schemas = spec["components"]["schemas"]
    changes = schemas["SettingsIn"]
    assert changes["additionalProperties"] is False
    assert "required" not in changes
    for path, (minimum, maximum) in RANGES.items():
        group, _, name = path.rpartition(".")
        of = schemas[changes["properties"][group]["$ref"].rpartition("/")[2]] if group else changes
        field = of["properties"][name]
        assert (field["type"], field["minimum"], field["maximum"]) == ("integer", minimum, maximum), path
    assert changes["properties"]["signup_sees"]["enum"] == ["public", "all"]


def test_events_and_answers_that_are_not_json_have_schemas(spec: Json) -> None:
    event = spec["components"]["schemas"]["EventIn"]
    assert event["additionalProperties"] is False
    assert event["properties"]["type"]["enum"] == ["view", "like", "unlike", "action"]
    assert "^[A-Za-z0-9._~:@-]{1,128}$" in str(event["properties"]["page"])
    for path, kind in (
        ("/api/v1/leaderboards/export.csv", "text/csv"),
        ("/api/v1/live/events", "text/event-stream"),
        ("/metrics", "text/plain"),
        ("/embed/badge/{external_id}.svg", "image/svg+xml"),
    ):
        assert spec["paths"][path]["get"]["responses"]["200"]["content"][kind]["schema"]["type"] == "string"
