"""Corrections over HTTP: admins only, once for each key, with their reason in the ledger and not in the log."""

from collections.abc import Callable
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.scores.corrections import CORRECTION
from tenants.db import tenant_tx
from tenants.users import Role
from tests.people import Caller, client_of, user_of

GIVEN = {"account": "points", "delta": 50, "reason": "counted by hand"}


def test_an_admin_corrects_a_score_and_says_why(
    client: FlaskClient, admin: Caller, player: Caller, tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    boss, path = user_of(client, tenant, role=Role.ADMIN), f"/api/v1/users/{player.id}/corrections"
    for caller in (player, client_of(client, tenant, "users:write", "actions:write", "events:write")):
        assert caller("POST", path, json=GIVEN).status_code == 403
    key = {"Idempotency-Key": "k1"}
    first, again = (boss("POST", path, json=GIVEN, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code, first.get_json()) == (201, 201, again.get_json())
    entry_id = first.get_json()["entry_id"]
    assert first.get_json() == {"score": 50, "delta": 50, "entry_id": entry_id, "account": "points"}
    taken = boss("POST", path, json={**GIVEN, "delta": -51})
    assert (taken.status_code, taken.get_json()["code"]) == (409, "below_zero")
    (entry,) = player("GET", "/api/v1/users/me/ledger").get_json()["items"]
    assert (entry["id"], entry["reason"], entry["delta"]) == (entry_id, "counted by hand", 50)
    assert entry["source"].startswith("correction:")
    (line,) = player("GET", "/api/v1/users/me/actions").get_json()["items"]
    assert (line["id"], line["action_type"], line["verification"]) == (entry["event_id"], CORRECTION, "admin")
    assert (line["points"], line["metadata"]["reason"]) == (50, "counted by hand")
    assert boss.id in line["metadata"]["by"]
    (audited,) = (line for line in logged() if line["action"] == "audit.score.corrected")
    logged_entry = {"entry_id": entry_id, "account": "points", "delta": 50}
    assert (audited["userId"], audited["data"]) == (
        boss.id,
        {"user": player.id, **logged_entry, "address": "127.0.0.0/24"},
    )
    assert not any("counted by hand" in str(line) for line in logged()), "erasure does not reach logs"
    assert player("GET", "/api/v1/users/me/export").get_json()["ledger"][0]["reason"] == "counted by hand"
    assert admin("DELETE", f"/api/v1/users/{player.id}").status_code == 200
    assert reasons_of(tenant) == [None, None]


def reasons_of(tenant: str) -> list[str | None]:
    kept = text("SELECT reason FROM score_ledger UNION ALL SELECT metadata::text FROM action_events")
    with tenant_tx(tenant) as tx:
        return list(tx.scalars(kept))


def test_what_is_wrong_is_named(admin: Caller, player: Caller) -> None:
    wrong: dict[str, Any] = {
        "account": ["likes", None, 1],
        "delta": [0, 2**53 + 1, -(2**53) - 1, 1.5, "1", True],
        "reason": ["no", "x" * 501, None],
    }
    for name, values in wrong.items():
        for value in values:
            answer = admin("POST", f"/api/v1/users/{player.id}/corrections", json={**GIVEN, name: value})
            assert (answer.status_code, list(answer.get_json()["errors"])) == (422, [name]), value
    assert admin("POST", "/api/v1/users/ext:nobody/corrections", json=GIVEN).status_code == 404
