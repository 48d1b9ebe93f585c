"""Exporting and erasing a user: everything is exported, and no name is left."""

from collections.abc import Callable
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import checking, projection
from tenants import redis as tenants_redis
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import make_page
from tests.analytics.scores.conftest import UPDATE, claim_of
from tests.people import Caller, user_of


def test_erasing_a_user_forgets_who_they_were_everywhere(
    admin: Caller, client: FlaskClient, tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    name = "forgetful_fred"
    fred = user_of(client, tenant, username=name)
    picture = f"https://pictures.example/{name}.png"
    known = {"bio": name, "display_name": name, "avatar_url": picture, "segments": ["north", "pro"]}
    changed = admin("PATCH", f"/api/v1/users/{fred.id}", json=known, headers={"Idempotency-Key": "k"})
    assert changed.status_code == 200, changed.text
    for page in ("a", "b"):
        make_page(admin, page)
        assert fred("PUT", f"/api/v1/pages/{page}/like").get_json()["likes"] == 1
    headers = {"User-Agent": name}
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "once_per_object": True})
    claim = claim_of(metadata={"who": name}, object=f"profile/{name}")
    assert fred("POST", UPDATE, json=claim, headers=headers).status_code == 200
    assert fred("POST", UPDATE, json=claim_of(timestamp="2999-01-01T00:00:00Z")).status_code == 422
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert admin("POST", path, json={"action": "dismiss", "note": f"{name} is fine"}).status_code == 200
    projection.project_all(tenant, now=utcnow)
    board = "/api/v1/leaderboards?scope=tenant&window=all&metric=likes"
    assert len(admin("GET", board).get_json()["items"]) == 2

    exported = fred("GET", "/api/v1/users/me/export").get_json()
    assert exported["profile"]["username"] == name
    assert exported["profile"]["suspended_until"] is None
    assert {field: exported["profile"][field] for field in known} == known
    assert sorted(like["page"] for like in exported["likes"]) == ["a", "b"]
    assert exported["actions"][0]["agent"] == name
    assert exported["ledger"][0]["delta"] == 10

    before = len(logged())
    receipt = fred("DELETE", "/api/v1/users/me")
    assert receipt.status_code == 200, receipt.text
    assert receipt.get_json()["likes"] == 2
    assert receipt.get_json()["audit_rows"] == 1
    assert fred("GET", "/api/v1/me").status_code == 401
    assert admin("GET", f"/api/v1/users/{fred.id}").status_code == 404
    projection.project_all(tenant, now=utcnow)
    assert admin("GET", f"{board}&limit=50").get_json()["items"] == []
    assert admin("GET", "/api/v1/leaderboards?scope=users&window=all").get_json()["items"] == []
    replayed = admin("PATCH", f"/api/v1/users/{fred.id}", json=known, headers={"Idempotency-Key": "k"}).get_json()
    assert [replayed[field] for field in known] == [None, None, None, []]
    with tenant_tx(tenant) as tx:
        stored = text("SELECT display_name, avatar_url, segment, segments FROM users WHERE id = :u")
        assert tx.execute(stored, {"u": fred.id}).one() == (None, None, None, [])
        assert tx.scalar(text("SELECT sum(delta) FROM score_ledger WHERE user_id = :u"), {"u": fred.id}) == 10
    report = checking.check(tenant, now=utcnow())
    assert report.differences == []
    assert mentions(tenant, name) == []
    with tenants_redis.boards().client() as redis:
        for key in redis.scan_iter("*"):
            assert name.encode() not in key + (redis.dump(key) or b"")  # None: it has just expired
    assert not any(name in str(line) for line in logged()[before:])


def mentions(tenant: str, name: str) -> list[str]:
    """The tables in which this name stands."""
    with owner_tx() as tx:
        tables = tx.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        found = []
        for table in tables:
            hit = tx.scalar(
                text(f"""
                    SELECT count(*) FROM {table} x WHERE x::text ILIKE :name
                       OR x::text ILIKE '%' || encode(convert_to(:bare, 'UTF8'), 'hex') || '%'
                """),
                {"name": f"%{name}%", "bare": name},
            )
            found += [table] if hit else []
        return found
