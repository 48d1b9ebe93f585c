"""Limits that were reached, as security events."""

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.http import limit_events
from tests.service import eventually

Logged = Callable[[], list[dict[str, Any]]]


def reached(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["action"] == "audit.limit.reached"]


def test_a_flood_of_refusals_leaves_one_line_a_minute_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_events, "_noted", {})
    key = ("login", "acme", "203.0.113.9")
    assert [limit_events._count(key, now=at) for at in (0.0, 1.0, 59.0, 60.0, 61.0)] == [1, 0, 0, 3, 0]
    assert limit_events._count(("login", "acme", "203.0.113.10"), now=61.0) == 1, "another network has its own"


def test_what_is_remembered_of_them_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_events, "_noted", {})
    monkeypatch.setattr(limit_events, "MAX_NOTED", 10)
    for number in range(100):
        limit_events._count(("login", None, str(number)), now=0.0)
    assert len(limit_events._noted) <= 10


def test_a_refused_caller_is_in_the_log_with_tenant_limit_and_network(
    client: FlaskClient, tenant: str, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit_events, "_noted", {})

    def is_limited() -> bool:
        answer = client.post(
            "/api/v1/auth/login", json={"tenant": tenant, "username": "nobody", "password": "wrong password"}
        )
        return answer.status_code == 429

    eventually(is_limited, every_s=0)
    (line,) = reached(logged())
    assert line["data"]["limit"] == "login"
    assert line["data"]["refused"] == 1
    assert line["data"]["address"] == "127.0.0.0/24"
    assert "wrong password" not in str(line)
