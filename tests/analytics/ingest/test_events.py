"""Views and batches: counted once, at the hour they happened, and nothing is dropped silently (P2, P7)."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import text

from analytics import maintenance
from analytics.ingest.events import Ages, check
from analytics.ingest.reasons import Reason, Refused
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import views_of
from tests.analytics.ingest.conftest import send, view
from tests.people import Caller, client_of


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
    maintenance.purge_history(now=utcnow() + timedelta(days=2), is_over=lambda: False)
    assert remembered() == 1, "receiving it again renewed it"
    maintenance.purge_history(now=utcnow() + timedelta(days=42), is_over=lambda: False)
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
