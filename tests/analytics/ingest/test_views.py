"""Views are counted in the hour in which they happened."""

from datetime import datetime, timedelta, timezone

from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.windows import hour_of
from tenants.db import tenant_tx, utcnow
from tests.analytics.ingest.conftest import send, view
from tests.people import Caller, client_of


def buckets(tenant: str) -> dict[datetime, int]:
    with tenant_tx(tenant) as tx:
        rows = tx.execute(text("SELECT bucket_hour, views FROM page_views_hour")).all()
    return {row.bucket_hour: row.views for row in rows}


def test_late_views_land_in_their_own_hour(client: FlaskClient, sender: Caller, tenant: str, page: str) -> None:
    now = utcnow()
    late = now - timedelta(hours=3)
    assert send(sender, [view(page, occurred_at=late.isoformat())])["accepted"] == 1
    assert buckets(tenant) == {hour_of(late): 1}
    old = view(page, occurred_at=(now - timedelta(days=8)).isoformat())
    assert send(sender, [old])["rejected"][0]["code"] == "too_old"
    single = sender("POST", f"/api/v1/pages/{page}/views", json={"occurred_at": old["occurred_at"]})
    assert (single.status_code, single.get_json()["code"]) == (422, "too_old")
    ahead = sender(
        "POST", f"/api/v1/pages/{page}/views", json={"occurred_at": (now + timedelta(minutes=10)).isoformat()}
    )
    assert ahead.get_json()["code"] == "in_the_future"

    backfiller = client_of(client, tenant, "events:write", "events:backfill")
    assert send(backfiller, [old])["accepted"] == 1
    ancient = view(page, occurred_at=(now - timedelta(days=401)).isoformat())
    assert send(backfiller, [ancient])["rejected"][0]["code"] == "too_old"
    assert buckets(tenant)[hour_of(now - timedelta(days=8))] == 1


def test_an_offset_is_understood(sender: Caller, tenant: str, page: str) -> None:
    now = utcnow()
    local = now.astimezone(timezone(timedelta(hours=5, minutes=30)))
    send(sender, [view(page, occurred_at=local.isoformat())])
    assert buckets(tenant) == {hour_of(now): 1}
