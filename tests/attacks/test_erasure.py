"""Erasing a user costs the others nothing, and takes away what names that user and nothing else."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import redaction
from app.settings import Settings
from tenants import idempotency, users
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page, views_of
from tests.citus import not_on_citus
from tests.people import Caller, client_of, user_of
from tests.service import blocked_connections, eventually
from workers import jobs


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


def keep(tenant: str, body: bytes) -> str:
    """Keep an answer, as if a request had been given it; its key."""
    claim = idempotency.identify(caller="c", rights="", method="POST", path="/", key=uuid4().hex, body=b"")
    with tenant_tx(tenant) as tx:
        idempotency.keep(tx, claim, status=200, headers={}, body=body, now=utcnow())
    return claim.request


def kept(tenant: str, request: str) -> Any:
    with tenant_tx(tenant) as tx:
        body = tx.scalar(
            text("SELECT body FROM idempotency_keys WHERE tenant_id = :t AND request = :r"), {"t": tenant, "r": request}
        )
    return None if body is None else orjson.loads(bytes(body))


def pending(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return int(tx.scalar(text("SELECT count(*) FROM pending_redactions WHERE tenant_id = :t"), {"t": tenant}) or 0)


def test_erasing_a_user_with_a_common_name_leaves_other_answers_as_they_were(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    page = {"space": "eng", "title": "T", "url": "https://wiki.example/t", "visibility": "public"}
    send = {"Idempotency-Key": "k"}
    first = admin("PUT", "/api/v1/pages/t", json=page, headers=send)
    named = user_of(client, tenant, username="public")
    assert named("DELETE", "/api/v1/users/me").status_code == 200
    again = admin("PUT", "/api/v1/pages/t", json=page, headers=send)
    assert again.headers["Idempotent-Replay"] == "true"
    assert (again.get_json()["visibility"], again.data) == ("public", first.data)


def test_an_answer_is_redacted_where_it_names_the_user_by_our_id(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    gone, other = user_of(client, tenant, username="gone"), user_of(client, tenant, username="other")
    them, another = {"id": gone.id, "username": "gone"}, {"id": other.id, "username": "other"}
    request = keep(
        tenant,
        orjson.dumps({"items": [them, another, {"user_id": gone.id, "note": "n"}, {"user": them, "bio": "b"}, "gone"]}),
    )
    assert admin("DELETE", f"/api/v1/users/{gone.id}", headers={"Idempotency-Key": "k"}).status_code == 200
    blank = {"id": gone.id, "username": None}
    assert kept(tenant, request) == {
        "items": [blank, another, {"user_id": gone.id, "note": None}, {"user": blank, "bio": None}, "gone"]
    }
    assert pending(tenant) == 0


def test_answers_are_redacted_after_the_commit_of_the_erasure(
    admin: Caller, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, seen = user_of(client, tenant), []

    def read_erased_user(tenant_id: str, user_id: UUID, **_kwargs: Any) -> None:
        with tenant_tx(tenant_id) as tx, pytest.raises(users.UserNotFound):
            users.get(tx, user_id)
        seen.append(user_id)

    monkeypatch.setattr(redaction, "redact", read_erased_user)
    admin("DELETE", f"/api/v1/users/{gone.id}", headers={"Idempotency-Key": "k"})
    assert seen == [UUID(gone.id)]


def test_a_step_of_redaction_reads_no_more_than_its_rows_and_bytes(
    admin: Caller, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = user_of(client, tenant)
    body = orjson.dumps({"id": gone.id, "bio": "b" * 1000})
    requests = [keep(tenant, body) for _ in range(30)]
    with monkeypatch.context() as crashing:
        crashing.setattr(redaction, "redact", lambda *_args, **_kwargs: None)
        admin("DELETE", f"/api/v1/users/{gone.id}")

    def redacted() -> int:
        return sum(kept(tenant, request)["bio"] is None for request in requests)

    monkeypatch.setattr(redaction, "MAX_ROWS_PER_STEP", 10)
    assert redaction.step(tenant, UUID(gone.id))
    assert redacted() == 10
    monkeypatch.setattr(redaction, "MAX_BYTES_PER_STEP", 4 * len(body))
    assert redaction.step(tenant, UUID(gone.id))
    assert redacted() == 14
    redaction.redact(tenant, UUID(gone.id), is_over=lambda: False)
    assert (redacted(), pending(tenant)) == (30, 0)


def test_what_a_crash_left_is_redacted_by_the_scheduled_job(
    admin: Caller, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = user_of(client, tenant, username="gone")
    request = keep(tenant, orjson.dumps({"id": gone.id, "username": "gone"}))

    def crash(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("the power went")

    with monkeypatch.context() as crashing:
        crashing.setattr(redaction, "step", crash)
        assert admin("DELETE", f"/api/v1/users/{gone.id}").status_code == 200, "the user is erased all the same"
    assert (kept(tenant, request)["username"], pending(tenant)) == ("gone", 1)
    jobs.redact_kept_answers()
    jobs.redact_kept_answers()
    assert (kept(tenant, request)["username"], pending(tenant)) == (None, 0)


@not_on_citus
def test_a_user_who_is_erased_twice_at_once_is_erased(
    app: Flask, admin: Caller, client: FlaskClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = user_of(client, admin.tenant)
    monkeypatch.setattr(redaction, "redact", lambda *_args, **_kwargs: None)

    def erase(_: int) -> int:
        own = Caller(app.test_client(), admin.tenant, admin.token, admin.id)
        return own("DELETE", f"/api/v1/users/{gone.id}").status_code

    with ThreadPoolExecutor(2) as both:
        with tenant_tx(admin.tenant) as tx:
            tx.execute(text("SELECT FROM users WHERE tenant_id = :t FOR UPDATE"), {"t": admin.tenant})
            statuses = both.map(erase, range(2))
            eventually(lambda: blocked_connections(settings.database_url or "") == 2)  # both wait for the user
        assert set(statuses) <= {200, 404}
    assert pending(admin.tenant) == 1


def test_a_large_answer_is_not_kept_and_its_request_is_not_carried_out_twice(admin: Caller, tenant: str) -> None:
    make_page(admin, "p")
    events = [{"type": "view", "page": "p"}, *[{"type": "view", "page": "p", "unknown_field": 1}] * 999]
    send = {"Idempotency-Key": "k"}
    first = admin("POST", "/api/v1/events", json={"events": events}, headers=send)
    assert first.get_json()["accepted"] == 1
    assert len(first.data) > idempotency.MAX_KEPT_BYTES
    again = admin("POST", "/api/v1/events", json={"events": events}, headers=send)
    assert (again.status_code, again.get_json()["code"]) == (409, "answer_not_kept")
    assert "carried out" in again.get_json()["detail"]
    assert views_of(tenant, "p") == 1
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT sum(octet_length(body)) FROM idempotency_keys")) is None


def test_the_detail_of_a_refused_event_repeats_little_of_what_was_sent(admin: Caller) -> None:
    long = "z" * 5_000
    events: list[Any] = [
        {"type": "view", "page": "p", long: 1},
        {"type": long},
        {"type": "action", "action_type": long},
    ]
    answer = admin("POST", "/api/v1/events", json={"events": events}).get_json()
    assert [rejected["index"] for rejected in answer["rejected"]] == [0, 1, 2]
    assert all(len(rejected["detail"]) <= 200 for rejected in answer["rejected"])
