"""P5 on every table: raw SQL as the service's role, with one tenant set, against another tenant's rows."""

from datetime import timedelta
from uuid import UUID

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from analytics import redaction
from analytics.boards import projection, snapshots, weights
from analytics.boards.intents import Projecting
from analytics.ingest import imports, page_writes
from analytics.quests import rewards, templates
from analytics.quests.rewards import Reward
from tenants import credentials
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.quests.questing import OFFER, World
from tests.beacons import ORIGIN, send
from tests.people import client_of, user_of


@pytest.fixture
def full_tenant(client: FlaskClient, other_tenant: str) -> str:
    """A tenant with a row in every table there is."""
    admin, user = client_of(client, other_tenant), user_of(client, other_tenant)
    admin("PATCH", "/api/v1/settings", json={"signup_open": False}, headers={"Idempotency-Key": "k"})
    key = admin("POST", "/api/v1/keys", json={"origins": [ORIGIN], "auto_pages": True}).get_json()["key"]
    assert send(client, key, f'{{"url": "{ORIGIN}/makes-itself"}}').get_json()["accepted"] == 1
    admin("PATCH", "/api/v1/settings", json={"limits": {"auto_pages_per_day": 0}})
    assert send(client, key, f'{{"url": "{ORIGIN}/unknown"}}').get_json()["rejected"]
    admin("POST", f"/api/v1/users/{user.id}/password-reset")
    admin("POST", "/api/v1/tokens", json={"name": "Grafana", "scopes": ["stats:read"]})
    admin("PUT", "/api/v1/pages/p", json={"space": "s", "title": "t", "url": "/p"})
    user("PUT", "/api/v1/pages/p/like")
    send(client, key, '{"page": "p"}')
    events = [{"type": "view", "page": "p", "id": "e"}, {"type": "nonsense"}]
    admin("POST", "/api/v1/events", json={"events": events})
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 20_000})
    admin("PATCH", f"/api/v1/users/{user.id}", json={"segment": "north"})
    token = admin("POST", "/api/v1/action-tokens", json={"user": user.id, "action_type": "post"}).get_json()
    assert user("PATCH", "/api/v1/scores", json={"action_token": token["action_token"]}).status_code == 200
    credentials.revoke_token(other_tenant, "some-jti", expires_at=utcnow() + timedelta(hours=1))
    with tenant_tx(other_tenant) as tx:
        imports.begin(tx, "hash", name="file", now=utcnow())
        weights.add(tx, likes=1, views=1, effective_from=None, by="test", now=utcnow())
        redaction.mark(tx, UUID(user.id), now=utcnow())
    admin("POST", "/api/v1/live/tickets")
    projection.project_step(other_tenant, now=utcnow())
    snapshots.refresh(other_tenant, now=utcnow())
    with tenant_tx(other_tenant) as tx:
        page_writes.put(tx, "q", space="s", title="t", url="/q", now=utcnow())
        tx.add(Projecting(tenant_id=other_tenant, kind="page", member="1", scopes=["tenant"]))
    world = World(other_tenant)
    creator, performer = world.person(), world.person()
    done = world.get(world.done(creator, performer, creator, tags=["docs"]))
    with tenant_tx(other_tenant) as tx:
        rewards._owe(tx, done, Reward.XP, RuntimeError("the test's own"), now=utcnow())
        templates.create(tx, {**OFFER, "tags": []}, now=utcnow())
        templates.promote(tx, "docs", "Documentation", None, now=utcnow())
    return other_tenant


def tenant_tables() -> list[str]:
    with owner_tx() as tx:
        return sorted(
            tx.scalars(
                text(
                    "SELECT c.table_name FROM information_schema.columns c JOIN information_schema.tables t"
                    " USING (table_schema, table_name) WHERE c.table_schema = 'public' AND c.column_name = 'tenant_id'"
                    " AND t.table_type = 'BASE TABLE' AND NOT (SELECT relispartition FROM pg_class"
                    " WHERE oid = c.table_name::regclass)"
                )
            )
        )


STORED_COLUMNS = text("""
    SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name = :table AND is_generated = 'NEVER'
""")


def test_another_tenants_rows_are_neither_seen_nor_changed_nor_made(tenant: str, full_tenant: str) -> None:
    tables = tenant_tables()
    assert len(tables) > 10
    for table in tables:
        with owner_tx() as tx:
            theirs = tx.execute(
                text(f"SELECT to_jsonb(x) FROM {table} x WHERE tenant_id = :t LIMIT 1"), {"t": full_tenant}
            ).scalar()
            columns = tx.execute(STORED_COLUMNS, {"table": table}).scalar_one()
        assert theirs is not None, f"give {table} a row in the fixture"
        with tenant_tx(tenant) as tx:
            assert tx.execute(text(f"SELECT count(*) FROM {table} WHERE tenant_id = '{full_tenant}'")).scalar_one() == 0
        refused_or_nothing(tenant, f"UPDATE {table} SET tenant_id = tenant_id WHERE tenant_id = '{full_tenant}'")
        refused_or_nothing(tenant, f"DELETE FROM {table} WHERE tenant_id = '{full_tenant}'")
        with pytest.raises(DBAPIError, match=r"row-level security|permission denied"), tenant_tx(tenant) as tx:
            tx.execute(
                text(
                    f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE"
                    f" SELECT {columns} FROM jsonb_populate_record(NULL::{table}, CAST(:row AS jsonb))"
                ),
                {"row": __import__("json").dumps(theirs)},
            )


def refused_or_nothing(tenant: str, statement: str) -> None:
    try:
        with tenant_tx(tenant) as tx:
            assert tx.execute(text(f"{statement} RETURNING 1")).all() == []
    except DBAPIError as error:
        assert "permission denied" in str(error.orig)


def test_nobodys_rows_are_seen_when_no_tenant_is_set(tenant: str, full_tenant: str) -> None:
    for table in tenant_tables():
        with tenant_tx(tenant) as tx:
            tx.execute(text("RESET plaudit.tenant"))
            assert tx.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0
