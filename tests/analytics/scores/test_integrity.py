"""Flags on suspicious users, and what an admin decides about them."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import checking, projection
from analytics.scores import integrity
from analytics.scores.integrity import Rule, Verdict
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.analytics.scores.conftest import UPDATE, claim_of, entries, pay
from tests.people import Caller, log_in


def user_token(player: Caller) -> Caller:
    """The same user, logged in again."""
    with tenant_tx(player.tenant) as tx:
        username = tx.scalar(text("SELECT username FROM users WHERE id = :u"), {"u": player.id})
    return replace(player, token=log_in(player.http, player.tenant, str(username))["access_token"])


def test_a_flag_is_raised_and_resolved_by_an_admin(
    admin: Caller, client: FlaskClient, tenant: str, player: Caller
) -> None:
    admin("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 150}})
    admin("PUT", "/api/v1/actions/catalog/jackpot", json={"points": 200})
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    assert admin("GET", "/api/v1/integrity/flags").get_json()["items"] == []
    assert player("POST", UPDATE, json=claim_of(actionType="jackpot")).status_code == 200
    assert player("POST", UPDATE, json=claim_of(actionType="jackpot")).status_code == 200
    (flag,) = admin("GET", "/api/v1/integrity/flags?state=open").get_json()["items"]
    assert (flag["rule"], flag["user_id"]) == ("points_per_hour", player.id)
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert player("POST", path, json={"action": "dismiss"}).status_code == 403
    assert admin("POST", path, json={"action": "suspend"}).get_json()["state"] == "suspended"
    assert player("POST", UPDATE, json=claim_of()).status_code == 401, "shut out"
    resolved = admin("POST", path, json={"action": "reverse", "note": "made up"}).get_json()
    assert (resolved["state"], resolved["reversed_entries"]) == ("reversed", 3)
    assert admin("POST", path, json={"action": "dismiss"}).status_code == 409
    assert entries(tenant, player.id)[-1][2] == 0
    admin("PATCH", f"/api/v1/users/{player.id}", json={"suspended": False})
    projection.project_all(tenant, now=utcnow)
    assert admin("GET", "/api/v1/leaderboards?scope=users&window=all").get_json()["items"] == []
    assert checking.check(tenant, now=utcnow()).differences == []
    ledger_ = admin("GET", f"/api/v1/users/{player.id}/ledger?limit=4").get_json()
    assert [entry["delta"] for entry in ledger_["items"]] == [-200, -200, -10, 200]
    more = admin("GET", f"/api/v1/users/{player.id}/ledger?limit=4&cursor={ledger_['next_cursor']}").get_json()
    assert [entry["delta"] for entry in more["items"]] == [200, 10]


def test_what_is_taken_back_late_leaves_every_window_with_what_was_given(
    admin: Caller, player: Caller, tenant: str
) -> None:
    then = utcnow() - timedelta(days=2)
    pay(tenant, player.id, 500, then)
    with tenant_tx(tenant) as tx:
        integrity.raise_flag(tx, UUID(player.id), Rule.POINTS_PER_HOUR, {"points": 500, "most": 100}, now=then)
        integrity.name_entries(tx, UUID(player.id), Rule.POINTS_PER_HOUR, now=then)
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert admin("POST", path, json={"action": "reverse"}).get_json()["reversed_entries"] == 1, "what the flag names"
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    projection.project_all(tenant, now=utcnow)
    for window in ("1d", "7d", "all"):
        (row,) = admin("GET", f"/api/v1/leaderboards?scope=users&window={window}").get_json()["items"]
        assert row["value"] == 20, window
    assert checking.check(tenant, now=utcnow()).differences == []


def test_a_flag_of_an_older_release_names_the_hour_before_it(admin: Caller, player: Caller, tenant: str) -> None:
    for days, points in ((3, 7), (2, 500), (1, 9)):
        pay(tenant, player.id, points, utcnow() - timedelta(days=days))
    with tenant_tx(tenant) as tx:
        then = utcnow() - timedelta(days=2, seconds=-1)
        integrity.raise_flag(tx, UUID(player.id), Rule.POINTS_PER_HOUR, {"points": 500, "most": 100}, now=then)
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert admin("POST", path, json={"action": "reverse"}).get_json()["reversed_entries"] == 1
    assert entries(tenant, player.id)[-1][2] == 16


def test_a_verdict_suspends_the_user_until_the_last_such_flag_is_dismissed(player: Caller, tenant: str) -> None:
    flags = {}
    for rule in Rule:
        with tenant_tx(tenant) as tx:
            integrity.raise_flag(tx, UUID(player.id), rule, {}, now=utcnow())
            (flags[rule],) = [one.id for one in integrity.list_(tx, state="open", after=None, limit=2)]
            integrity.resolve(tx, flags[rule], Verdict.SUSPEND, by="test", note=None, now=utcnow())
    suspended = []
    for flag_id in flags.values():
        with tenant_tx(tenant) as tx:
            suspended.append(users.get(tx, UUID(player.id)).suspended_at is not None)
            integrity.resolve(tx, flag_id, Verdict.DISMISS, by="test", note=None, now=utcnow())
    with tenant_tx(tenant) as tx:
        suspended.append(users.get(tx, UUID(player.id)).suspended_at is not None)
    assert suspended == [*[True] * len(Rule), False]


def test_a_tenant_may_have_suspicious_users_suspended_at_once(admin: Caller, player: Caller) -> None:
    admin("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 5, "suspend_automatically": True}})
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    assert player("POST", UPDATE, json=claim_of()).status_code == 401
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    assert flag["state"] == "suspended"
    path = f"/api/v1/users/{flag['user_id']}"
    assert admin("GET", path).get_json()["suspended"] is True
    dismissed = admin("POST", f"/api/v1/integrity/flags/{flag['id']}/resolve", json={"action": "dismiss"})
    assert dismissed.get_json()["state"] == "dismissed"
    assert admin("GET", path).get_json()["suspended"] is False, "it is lifted"
    admin("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 10}})
    again = user_token(player)
    assert again("POST", UPDATE, json=claim_of()).status_code == 200, "what was dismissed does not count against them"
    assert len(admin("GET", "/api/v1/integrity/flags").get_json()["items"]) == 1
