"""A revoked token does nothing at all; and whatever is rolled back leaves no trace (P2, P7)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from flask.testing import FlaskClient
from prometheus_client import REGISTRY
from sqlalchemy import text

from analytics.ingest import rejections
from analytics.ingest.writes import WriteRequest
from tenants import credentials, liveness, static_tokens
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page, views_of
from tests.people import Caller, client_of, static_token_of


@pytest.fixture
def sender(client: FlaskClient, tenant: str) -> Caller:
    caller = client_of(client, tenant)
    assert caller("PUT", "/api/v1/actions/catalog/post", json={"points": 10}).status_code == 200
    make_page(caller, "home")
    return caller


def revoke(caller: Caller) -> None:
    with tenant_tx(caller.tenant, separate=True) as tx:
        credentials.revoke_client(tx, caller.id, now=utcnow())


def mixed_batch(user: str) -> dict[str, Any]:
    return {
        "events": [
            {"type": "action", "user": user, "action_type": "post", "id": str(uuid4())},
            {"type": "action", "user": user, "action_type": "unknown"},
            {"type": "view", "page": "home"},
            {"type": "view", "page": "nowhere"},
            {"type": "like", "page": "home", "user": user},
        ]
    }


def traces(tenant: str) -> dict[str, float]:
    """Everything that a batch could move: rows of the tenant, and its counters in the metrics."""
    tables = ("users", "score_ledger", "action_events", "page_likes", "seen_events", "outbox", "ingest_rejections_hour")
    with tenant_tx(tenant) as tx:
        found: dict[str, float] = {
            table: int(tx.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()) for table in tables
        }
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.labels.get("tenant") == tenant and sample.name.endswith("_total"):
                found[f"{sample.name} {sorted(sample.labels.items())}"] = sample.value
    return found


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
def test_a_revoked_clients_batch_makes_no_user_and_counts_nothing(
    sender: Caller, tenant: str, headers: dict[str, str]
) -> None:
    revoke(sender)
    before = traces(tenant)
    refused = sender("POST", "/api/v1/events", json=mixed_batch("ghost500"), headers=headers)
    assert (refused.status_code, refused.get_json()["code"]) == (401, "invalid_token")
    assert traces(tenant) == before


def test_a_client_revoked_while_its_batch_is_written_leaves_no_trace(
    sender: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = WriteRequest.prepare
    before, breakers = traces(tenant), breaker_counts(tenant)

    def revoked_meanwhile(request: WriteRequest) -> None:
        real(request)
        revoke(sender)  # after the request was authenticated, before its transaction begins

    monkeypatch.setattr(WriteRequest, "prepare", revoked_meanwhile)
    refused = sender("POST", "/api/v1/events", json=mixed_batch("mona"))
    assert refused.status_code == 401
    assert traces(tenant) == before
    assert breaker_counts(tenant) == breakers, "nor is it held against the tenant"


def expire(token: Caller) -> None:
    with tenant_tx(token.tenant, separate=True) as tx:
        past = text("UPDATE static_tokens SET expires_at = :at WHERE tenant_id = :tenant AND id = :id")
        tx.execute(past, {"tenant": token.tenant, "id": token.id, "at": utcnow() - timedelta(minutes=1)})


def revoke_static(token: Caller) -> None:
    with tenant_tx(token.tenant, separate=True) as tx:
        static_tokens.revoke(tx, token.id, now=utcnow())


@pytest.mark.parametrize("end", [revoke_static, expire])
def test_a_static_token_that_ends_while_its_batch_is_written_leaves_no_trace(
    sender: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch, end: Callable[[Caller], None]
) -> None:
    real, token = WriteRequest.prepare, static_token_of(sender, "events:write")
    before = traces(tenant)

    def ended_meanwhile(request: WriteRequest) -> None:
        real(request)
        end(token)

    monkeypatch.setattr(WriteRequest, "prepare", ended_meanwhile)
    for path, body in (("/api/v1/events", mixed_batch("mona")), ("/api/v1/pages/home/views", {})):
        assert token("POST", path, json=body).status_code == 401
        with tenant_tx(tenant) as tx:
            valid = text("UPDATE static_tokens SET revoked_at = NULL, expires_at = NULL WHERE tenant_id = :tenant")
            tx.execute(valid, {"tenant": tenant})
            liveness.record(tx, [f"token:static:{token.id}"])
    assert traces(tenant) == before
    monkeypatch.setattr(WriteRequest, "prepare", real)
    assert token("POST", "/api/v1/events", json=mixed_batch("mona")).get_json()["accepted"] > 0


def test_a_revoked_clients_bad_view_is_refused_and_not_recorded(sender: Caller, tenant: str) -> None:
    revoke(sender)
    before = traces(tenant)
    refused = sender("POST", "/api/v1/pages/home/views", json={"occurred_at": "1999-01-01T00:00:00Z"})
    assert (refused.status_code, traces(tenant)) == (401, before)


def breaker_counts(tenant: str) -> int:
    from analytics.scores.limits import breakers

    return breakers._of(tenant)._arrived


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [({}, 404, "unknown_page"), ({"occurred_at": "1999-01-01T00:00:00Z"}, 422, "too_old")],
)
def test_a_refused_view_is_recorded_once_with_or_without_an_idempotency_key(
    sender: Caller, tenant: str, body: dict[str, str], status: int, reason: str
) -> None:
    def refusals() -> tuple[int, float]:
        with tenant_tx(tenant) as tx:
            stored = rejections.by_reason(tx, since=utcnow()).get(reason, 0)
        labels = {"tenant": tenant, "reason": reason}
        return stored, REGISTRY.get_sample_value("plaudit_events_rejected_total", labels) or 0

    for times, headers in enumerate(({}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "k"}), 1):
        refused = sender("POST", "/api/v1/pages/nowhere/views", json=body, headers=headers)
        assert refused.status_code == status
        assert refusals() == (times, times)


def test_an_answer_that_cannot_be_kept_takes_its_metrics_back(
    sender: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit fails after the view was applied: the view is not there, and nothing says that it was."""
    from tenants import idempotency

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise idempotency.StillRunning

    before = traces(tenant)
    monkeypatch.setattr(idempotency, "keep", fail)
    calls: list[Callable[[], Any]] = [
        lambda: sender("POST", "/api/v1/pages/home/views", json={}, headers={"Idempotency-Key": "v"}),
        lambda: sender("PUT", "/api/v1/pages/home/likes/u", headers={"Idempotency-Key": "l"}),
        lambda: sender("POST", "/api/v1/events", json=mixed_batch("u"), headers={"Idempotency-Key": "e"}),
    ]
    for call in calls:
        assert call().status_code == 409
    assert (traces(tenant), views_of(tenant)) == (before, 0)
