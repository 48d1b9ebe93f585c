"""Flags over HTTP: who sees and resolves them. (What a verdict does: tests/analytics/scores/test_integrity.py.)"""

from datetime import timedelta
from uuid import UUID

import pytest

from analytics.scores import integrity
from analytics.scores.integrity import Rule
from tenants.db import tenant_tx, utcnow
from tests.people import Caller

FLAGS = "/api/v1/integrity/flags"
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def flagged(player: Caller, tenant: str) -> Caller:
    """A user with an older flag for an impossible clock and a newer one for too many points."""
    now = utcnow()
    with tenant_tx(tenant) as tx:
        integrity.raise_flag(tx, UUID(player.id), Rule.IMPOSSIBLE_CLOCK, {}, now=now - timedelta(minutes=1))
        integrity.raise_flag(tx, UUID(player.id), Rule.POINTS_PER_HOUR, {"points": 500}, now=now)
    return player


def test_flags_are_listed_newest_first_in_slices(admin: Caller, flagged: Caller) -> None:
    first = admin("GET", f"{FLAGS}?limit=1").get_json()
    (newest,) = first["items"]
    assert (newest["rule"], newest["details"], newest["state"]) == ("points_per_hour", {"points": 500}, "open")
    assert (newest["user_id"], newest["resolved_by"]) == (flagged.id, None)
    rest = admin("GET", f"{FLAGS}?limit=1&cursor={first['next_cursor']}").get_json()
    assert ([flag["rule"] for flag in rest["items"]], rest["next_cursor"]) == (["impossible_clock"], None)


def test_a_flag_is_resolved_once_and_says_by_whom(admin: Caller, flagged: Caller) -> None:
    flag = admin("GET", FLAGS).get_json()["items"][0]
    path = f"{FLAGS}/{flag['id']}/resolve"
    resolved = admin("POST", path, json={"action": "dismiss", "note": "a holiday"}).get_json()
    assert (resolved["state"], resolved["note"], resolved["reversed_entries"]) == ("dismissed", "a holiday", 0)
    assert resolved["resolved_by"] == f"client:{admin.id}"
    again = admin("POST", path, json={"action": "reverse"})
    assert (again.status_code, again.get_json()["code"]) == (409, "flag_resolved")
    assert [one["id"] for one in admin("GET", f"{FLAGS}?state=dismissed").get_json()["items"]] == [flag["id"]]
    assert [one["rule"] for one in admin("GET", f"{FLAGS}?state=open").get_json()["items"]] == ["impossible_clock"]


def test_an_unknown_flag_verdict_or_state_is_refused(admin: Caller) -> None:
    assert admin("POST", f"{FLAGS}/{UNKNOWN}/resolve", json={"action": "dismiss"}).status_code == 404
    assert admin("POST", f"{FLAGS}/{UNKNOWN}/resolve", json={"action": "forgive"}).status_code == 422
    assert admin("GET", f"{FLAGS}?state=forgiven").status_code == 422


def test_members_see_no_flag_and_resolve_none(flagged: Caller) -> None:
    assert flagged("GET", FLAGS).status_code == 403
    assert flagged("POST", f"{FLAGS}/{UNKNOWN}/resolve", json={"action": "dismiss"}).status_code == 403
