"""P2 for requests: one Idempotency-Key, one effect, however often and at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import user_changes
from analytics.quests import templates
from app.http.rights import Access, declared, public
from app.http.transactions import again_after_deadlock
from tenants import credentials, idempotency, retention, users
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.users import Role
from tests.people import Caller, client_of, user_of

# They answer with credentials, which are never kept to be shown again.
CREDENTIAL_ROUTES = {
    "/api/v1/auth/logout",
    "/api/v1/auth/password",
    "/api/v1/clients",
    "/api/v1/clients/<client_id>/rotate",
    "/api/v1/keys",
    "/api/v1/keys/<key_id>/signing-secret",
    "/api/v1/tokens",
    "/api/v1/users/<user>/password-reset",
    "/api/v1/action-tokens",
    "/api/v1/live/tickets",
    "/dashboard/logout",
    "/api/v1/rewards/failed/<uuid:reward_id>/retry",  # in several transactions; once it is paid, 409
}
NEW = {"title": "Proofread", "description": "Two pages.", "reward_xp": 10, "reward_reputation": 1}


def templates_of(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return len(templates.list_(tx, after=None, limit=100))


def keys_of(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return len(credentials.list_keys(tx))


def test_fifty_threads_one_key_one_effect(app: Flask, client: FlaskClient, tenant: str) -> None:
    caller = client_of(client, tenant)

    def post(_: int) -> tuple[int, bytes]:
        own = Caller(app.test_client(), tenant, caller.token, caller.id)
        answer = own("POST", "/api/v1/quest-templates", json=NEW, headers={"Idempotency-Key": "once"})
        return answer.status_code, answer.data

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(post, range(50)))
    made = [body for status, body in answers if status == 201]
    assert {status for status, _ in answers} <= {201, 409}
    assert made
    assert len(set(made)) == 1
    assert templates_of(tenant) == 1


def test_a_replay_says_so_and_another_body_is_refused(client: FlaskClient, tenant: str) -> None:
    caller = client_of(client, tenant)
    send = {"Idempotency-Key": "k1"}
    first = caller("POST", "/api/v1/quest-templates", json=NEW, headers=send)
    again = caller("POST", "/api/v1/quest-templates", json=NEW, headers=send)
    assert (again.status_code, again.data) == (first.status_code, first.data)
    assert "Idempotent-Replay" not in first.headers
    assert again.headers["Idempotent-Replay"] == "true"
    other = caller("POST", "/api/v1/quest-templates", json={**NEW, "title": "Another"}, headers=send)
    assert (other.status_code, other.get_json()["code"]) == (422, "idempotency_key_reused")
    assert templates_of(tenant) == 1


def test_a_replay_is_for_the_rights_of_the_first_time(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant, role=Role.ADMIN)
    request = {"json": {"display_name": "First"}, "headers": {"Idempotency-Key": "k1"}}
    assert user("PATCH", "/api/v1/users/me", **request).status_code == 200
    user("PATCH", "/api/v1/users/me", json={"display_name": "Second"})
    with tenant_tx(tenant) as tx:
        found = users.get(tx, UUID(user.id))
        user_changes.change_user(tx, found, {"role": Role.MEMBER}, now=utcnow())
    again = user("PATCH", "/api/v1/users/me", **request)
    assert (again.status_code, again.get_json()["code"]) == (403, "rights_changed")
    assert user("GET", "/api/v1/users/me").get_json()["display_name"] == "Second", "it is not carried out again"


def test_another_callers_same_key_is_independent(client: FlaskClient, tenant: str, other_tenant: str) -> None:
    for caller in (client_of(client, tenant), client_of(client, tenant), client_of(client, other_tenant)):
        answer = caller("POST", "/api/v1/quest-templates", json=NEW, headers={"Idempotency-Key": "same"})
        assert answer.status_code == 201
        assert "Idempotent-Replay" not in answer.headers
    assert (templates_of(tenant), templates_of(other_tenant)) == (2, 1)


def test_another_path_is_independent(client: FlaskClient, tenant: str) -> None:
    caller = client_of(client, tenant)
    send = {"Idempotency-Key": "same"}
    one, two = (
        caller("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"] for _ in range(2)
    )
    assert caller("DELETE", f"/api/v1/keys/{one}", headers=send).status_code == 204
    assert caller("DELETE", f"/api/v1/keys/{one}", headers=send).status_code == 204, "replayed, not 404"
    assert caller("DELETE", f"/api/v1/keys/{two}", headers=send).status_code == 204
    assert keys_of(tenant) == 0


def test_a_refusal_is_not_kept(client: FlaskClient, tenant: str) -> None:
    caller = client_of(client, tenant)
    send = {"Idempotency-Key": "k2"}
    assert caller("POST", "/api/v1/quest-templates", json={**NEW, "title": "x"}, headers=send).status_code == 422
    assert caller("POST", "/api/v1/quest-templates", json=NEW, headers=send).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256, "ü"])
def test_an_impossible_key_is_422(client: FlaskClient, tenant: str, key: str) -> None:
    headers = {"Idempotency-Key": key.encode().decode("latin-1")}
    assert client_of(client, tenant)("POST", "/api/v1/quest-templates", json=NEW, headers=headers).status_code == 422


def test_the_answer_and_its_effect_are_one_transaction(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = client_of(client, tenant)

    def broken(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "keep", broken)
        answer = caller("POST", "/api/v1/quest-templates", json=NEW, headers={"Idempotency-Key": "k3"})
        assert answer.status_code == 500
    assert templates_of(tenant) == 0, "no answer kept, no effect"


def test_answers_are_kept_for_a_day(client: FlaskClient, tenant: str) -> None:
    caller = client_of(client, tenant)
    send = {"Idempotency-Key": "k4"}
    assert caller("POST", "/api/v1/quest-templates", json=NEW, headers=send).status_code == 201
    with owner_tx() as tx:
        tx.execute(
            text("UPDATE idempotency_keys SET created_at = now() - interval '25 hours' WHERE tenant_id = :t"),
            {"t": tenant},
        )
    again = caller("POST", "/api/v1/quest-templates", json=NEW, headers=send)
    assert "Idempotent-Replay" not in again.headers
    assert retention.purge_expired(now=utcnow() + timedelta(hours=25), is_over=lambda: False)["idempotency_keys"] >= 1


def test_every_changing_route_takes_a_key(app: Flask) -> None:
    """A new POST or PATCH that forgets it is noticed here."""
    forgotten = []
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        changes = {"POST", "PATCH"} & (rule.methods or set())
        if changes and not isinstance(declared(view), Access) and not getattr(view, "plaudit_idempotent", False):
            forgotten.append(rule.rule)
    assert set(forgotten) == CREDENTIAL_ROUTES


def test_two_requests_that_lock_each_other_out_are_both_answered(own_app: Flask, tenant: str) -> None:
    """PostgreSQL rolls one of them back, which is then carried out once more."""
    both_have_one = threading.Barrier(2, timeout=30)
    attempts: list[int] = []

    @own_app.post("/locks/<int:first>/<int:second>")
    @public
    @again_after_deadlock
    def lock_two(first: int, second: int) -> str:
        attempts.append(first)
        with tenant_tx(tenant) as tx:
            for number in (first, second):
                tx.execute(
                    text("SELECT pg_advisory_xact_lock(hashtextextended(:lock, 0))"), {"lock": f"{tenant} {number}"}
                )
                if len(attempts) <= 2 and number == first:
                    both_have_one.wait()
        return "locked"

    def lock(path: str) -> int:
        return own_app.test_client().post(path).status_code

    with ThreadPoolExecutor(2) as both:
        assert list(both.map(lock, ["/locks/1/2", "/locks/2/1"])) == [200, 200]
    assert len(attempts) == 3
