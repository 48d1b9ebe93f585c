"""Views and batches: counted once, at the hour they happened, and nothing is dropped silently (P2, P7)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import text

from analytics import maintenance
from analytics.ingest.events import Ages, Reason, Refused, check
from analytics.windows import hour_of
from tenants import users
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import likes_of, make_page, views_of
from tests.people import Caller, client_of


def view(page: str, **more: Any) -> dict[str, Any]:
    return {"type": "view", "page": page, **more}


def send(caller: Caller, events: list[Any], **options: Any) -> dict[str, Any]:
    answer = caller("POST", "/api/v1/events", json={"events": events}, **options)
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.get_json()
    return body


def buckets(tenant: str) -> dict[datetime, int]:
    with tenant_tx(tenant) as tx:
        rows = tx.execute(text("SELECT bucket_hour, views FROM page_views_hour")).all()
    return {row.bucket_hour: row.views for row in rows}


def test_a_batch_of_a_thousand_with_seven_bad_ones(sender: Caller, tenant: str, page: str) -> None:
    now = utcnow()
    bad: dict[int, tuple[Any, str]] = {
        3: (view("nowhere", id="x3"), "unknown_page"),
        99: ({"type": "sneeze", "page": page}, "unknown_type"),
        100: ("not even an object", "invalid"),
        500: (view(page, occurred_at=(now - timedelta(days=8)).isoformat()), "too_old"),
        501: (view(page, occurred_at=(now + timedelta(minutes=10)).isoformat()), "in_the_future"),
        700: ({"type": "action", "user": "u-1", "action_type": "READ"}, "unknown_action"),
        999: ({"type": "like", "page": page}, "invalid"),
    }
    events = [bad[index][0] if index in bad else view(page, id=f"e{index}") for index in range(1000)]
    first = send(sender, events)
    assert (first["accepted"], first["duplicates"]) == (993, 0)
    assert {item["index"]: item["code"] for item in first["rejected"]} == {i: code for i, (_, code) in bad.items()}
    assert all(item["detail"] for item in first["rejected"])
    again = send(sender, events)
    assert (again["accepted"], again["duplicates"], len(again["rejected"])) == (0, 993, 7)
    assert views_of(tenant) == 993
    counted = client_of(sender.http, tenant)("GET", "/api/v1/ingest/rejections").get_json()
    assert counted["total"] == 14
    assert counted["reasons"] == {
        "unknown_page": 2,
        "unknown_type": 2,
        "invalid": 4,
        "too_old": 2,
        "in_the_future": 2,
        "unknown_action": 2,
    }
    metrics = sender.http.get("/metrics").text
    assert f'plaudit_events_rejected_total{{reason="invalid",tenant="{tenant}"}} 4.0' in metrics
    assert f'plaudit_events_total{{tenant="{tenant}",type="view"}} 993.0' in metrics


def test_the_same_id_twice_in_one_batch_counts_once(sender: Caller, tenant: str, page: str) -> None:
    answer = send(sender, [view(page, id="same"), view(page, id="same"), view(page)])
    assert (answer["accepted"], answer["duplicates"]) == (2, 1)
    assert views_of(tenant) == 2


def test_a_refused_event_may_be_sent_again_when_its_page_is_there(sender: Caller, tenant: str) -> None:
    event = view("later", id="early")
    assert send(sender, [event])["rejected"][0]["code"] == "unknown_page"
    make_page(sender, "later")
    assert send(sender, [event])["accepted"] == 1


def test_an_id_counts_once_also_across_types_and_routes(sender: Caller, tenant: str, page: str) -> None:
    assert send(sender, [{"type": "like", "page": page, "user": "u", "id": "one"}])["accepted"] == 1
    assert send(sender, [{"type": "unlike", "page": page, "user": "u", "id": "one"}])["duplicates"] == 1
    assert sender("POST", f"/api/v1/pages/{page}/views", json={"id": "one"}).get_json()["duplicates"] == 1
    assert likes_of(tenant, page) == (1, 1)


def test_another_tenant_has_ids_of_its_own(client: FlaskClient, sender: Caller, other_tenant: str, page: str) -> None:
    other = client_of(client, other_tenant, "pages:write", "events:write")
    make_page(other, page)
    assert send(sender, [view(page, id="shared")])["accepted"] == 1
    assert send(other, [view(page, id="shared")])["accepted"] == 1


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
    local = now.astimezone(__import__("datetime").timezone(timedelta(hours=5, minutes=30)))
    send(sender, [view(page, occurred_at=local.isoformat())])
    assert buckets(tenant) == {hour_of(now): 1}


def test_a_revoked_token_writes_nothing(client: FlaskClient, sender: Caller, tenant: str, page: str) -> None:
    admin = client_of(client, tenant)
    assert sender("POST", f"/api/v1/pages/{page}/views").status_code == 202
    admin("DELETE", f"/api/v1/clients/{sender.id}")
    for method, path, body in (
        ("POST", f"/api/v1/pages/{page}/views", {}),
        ("POST", "/api/v1/events", {"events": [view(page)]}),
        ("PUT", f"/api/v1/pages/{page}/likes/u-1", None),
    ):
        answer = sender(method, path, json=body)
        assert answer.status_code == 401, path
        assert "invalid_token" in answer.headers["WWW-Authenticate"]
    assert views_of(tenant) == 1


def test_a_like_of_a_user_who_is_erased_meanwhile_is_rejected_and_can_be_sent_again(
    sender: Caller, tenant: str, page: str
) -> None:
    like = {"type": "like", "page": page, "user": "u", "id": "once"}
    with pytest.MonkeyPatch.context() as erased:
        erased.setattr(users, "lock_users", lambda *_: set())
        told = send(sender, [like, view(page)])
    assert (told["accepted"], [(r["index"], r["code"]) for r in told["rejected"]]) == (1, [(0, "invalid")])
    assert sender("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"invalid": 1}
    assert send(sender, [like])["accepted"] == 1
    assert likes_of(tenant, page) == (1, 1)


def test_event_ids_are_forgotten_forty_days_after_they_were_last_received(
    sender: Caller, tenant: str, page: str
) -> None:
    def remembered() -> int:
        with tenant_tx(tenant) as tx:
            return int(tx.execute(text("SELECT count(*) FROM seen_events")).scalar_one())

    send(sender, [view(page, id="old")])
    with owner_tx() as tx:
        tx.execute(text("UPDATE seen_events SET seen_on = seen_on - 39 WHERE tenant_id = :t"), {"t": tenant})
    assert send(sender, [view(page, id="old")])["duplicates"] == 1
    maintenance.purge_history(now=utcnow() + timedelta(days=2))
    assert remembered() == 1, "receiving it again renewed it"
    maintenance.purge_history(now=utcnow() + timedelta(days=42))
    assert remembered() == 0


NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["type", "page", "user", "id", "occurred_at", "action_type", "x"]), JSON, max_size=7
    )
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["view", "like", "unlike"]), "page": st.text(max_size=6)},
        optional={"user": st.text(max_size=6), "id": st.text(max_size=6), "occurred_at": st.datetimes().map(str)},
    )
    | JSON
)
def test_whatever_is_sent_is_an_item_or_has_a_reason(raw: Any) -> None:
    try:
        item = check(raw, now=NOW, ages=Ages.for_caller(NOW, backfill_days=None))
    except Refused as refused:
        assert refused.code in Reason
        assert refused.detail
    else:
        assert NOW - timedelta(days=7) <= item.at <= NOW + timedelta(minutes=5)
